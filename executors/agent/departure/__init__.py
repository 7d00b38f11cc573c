"""When the place goes where an agent runs its jobs: how that is learnt, and kept. Jobs are ended in the room above;
nothing here does that."""
