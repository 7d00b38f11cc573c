"""What the row of a gang remembers of its pass, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from lading.executors.store.gangs.tables import GangRow
from lading.executors.store.gangs.terms import GangTerms
from lading.scheduling.gangs.gang import Gang, Partition, RoomAttempt, Stage
from lading.scheduling.hints.attempts import AttemptSchedule
from lading.scheduling.reasons import Reason

Members = Mapping[str, tuple[str, ...]]


@dataclass(slots=True)
class GangMemory:
    """A gang and its row.

    :param members: of each partition of the pass: the tokens of its jobs
    """

    row: GangRow
    terms: GangTerms
    gang: Gang
    members: Members = field(default_factory=dict)

    @classmethod
    def new(cls, token: str, dag_id: str, run_id: str, terms: GangTerms) -> GangMemory:
        """A gang of which nothing is known yet."""
        row = GangRow(token=token, dag_id=dag_id, run_id=run_id, name=terms.name, attempt=0, wake_at=None)
        found = cls(row, terms, Gang((), terms.partial, terms.attempts or AttemptSchedule()))
        found.write()
        return found

    @classmethod
    def of(cls, row: GangRow) -> GangMemory:
        """As a row has it."""
        said = json.loads(row.memory)
        terms = GangTerms.from_json(said["terms"])
        gang = Gang(
            tuple(Partition(name, frozenset(after)) for name, after in said["partitions"]),
            terms.partial,
            AttemptSchedule.from_json(said["attempts"]),
            Stage(row.stage),
            row.attempt,
            row.wake_at,
            said["until"],
            None if said["trying"] is None else RoomAttempt(*said["trying"]),
            tuple(RoomAttempt(*each) for each in said["tried"]),
            tuple(RoomAttempt(*each) for each in said["held"]),
            Reason.of_json(said["why"]) if said.get("why") else None,
            said.get("look_at", 0.0),
            said.get("doubted", False),
        )
        return cls(row, terms, gang, {name: tuple(tokens) for name, tokens in said["members"].items()})

    def write(self) -> bool:
        """Bring the row up to date; returns whether it is another."""
        gang = self.gang
        text = json.dumps(
            {
                "terms": self.terms.to_json(),
                "attempts": gang.attempts.to_json(),
                "partitions": [[each.name, sorted(each.after)] for each in gang.partitions],
                "until": gang.until,
                "trying": gang.trying,
                "tried": gang.tried,
                "held": gang.held,
                "why": None if gang.why is None else gang.why.to_json(),
                "look_at": gang.look_at,
                "doubted": gang.doubted,
                "members": self.members,
            }
        )
        values = {"stage": gang.stage.value, "attempt": gang.attempt, "wake_at": gang.wake_at, "memory": text}
        changed = {name: value for name, value in values.items() if getattr(self.row, name) != value}
        for name, value in changed.items():
            setattr(self.row, name, value)
        return bool(changed)

    @property
    def called(self) -> str:
        """What it is called in words."""
        return f"gang {self.terms.name!r}" if self.terms.name is not None else "it"

    @property
    def tokens(self) -> frozenset[str]:
        """The jobs of the pass."""
        return frozenset(token for tokens in self.members.values() for token in tokens)
