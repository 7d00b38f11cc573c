"""What the hints of a job say of its gang, as its row has it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from lading.scheduling.hints.gang_hints import AttemptSchedule


@dataclass(frozen=True, slots=True)
class GangTerms:
    """How the members of a gang start, as its Dag says; stored with each of them.

    :param name: of the gang; None: the job is alone
    :param partial: whether what has room starts even where the others have none
    :param on_failure: ``cancel`` or ``leave``
    :param attempts: None: as usual
    :param tasks: of the gang, in their order, each with those that come before it
    :param limits: how many jobs of a task Airflow lets run at once, and what its limit is called
    :param spread: whether each member has a location of its own
    """

    name: str | None = None
    partial: bool = False
    on_failure: str = "cancel"
    attempts: AttemptSchedule | None = None
    tasks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    limits: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    spread: bool = False

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> GangTerms:
        terms = json.loads(text)
        if terms.get("attempts") is not None:
            terms["attempts"] = AttemptSchedule(**{**terms["attempts"], "pauses": tuple(terms["attempts"]["pauses"])})
        terms["tasks"] = {task: tuple(after) for task, after in terms.get("tasks", {}).items()}
        terms["limits"] = {task: (name, int(most)) for task, (name, most) in terms.get("limits", {}).items()}
        return cls(**terms)
