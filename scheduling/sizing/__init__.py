"""How much a task needs, from what its tries used."""
