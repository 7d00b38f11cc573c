"""The gang terms from a job's hints, as stored with the job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from lading.scheduling.hints.gang_hints import AttemptSchedule


@dataclass(frozen=True, slots=True)
class GangTerms:
    """How the members of a gang start, according to their Dag; stored with each member.

    :param name: the name of the gang; None: a job alone
    :param partial: whether members that fit start even if others do not
    :param on_failure: ``cancel`` or ``leave``
    :param attempts: None: the default schedule
    :param tasks: the gang's tasks in order, each with the tasks before it
    :param limits: by task, how many of its jobs Airflow lets run at once, and the name of that limit
    :param spread: whether each member needs a location of its own
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
