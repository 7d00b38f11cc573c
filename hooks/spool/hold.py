"""Holds: room that an agent keeps for a job that is to come, in a file that runs out by itself."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from lading.scheduling.resources import Resources

# A hold that is not asked for again runs out after this, seconds; it is asked for again well before that.
SECONDS_HELD = 120.0
SECONDS_UNTIL_RENEWED = 30.0
# The kinds of events that are about holds, whose token is that of the hold.
EVENTS = frozenset({"held", "refused", "hold_lost"})


@dataclass(frozen=True, slots=True)
class Hold:
    """Room at a location.

    :param token: its own, unique; a hold that is asked for again stays the same
    :param job: the token of the job that it is for
    :param resources: what that job takes there
    :param seconds: after which it runs out, counted from when it was asked for last
    """

    token: str
    job: str
    resources: Resources
    seconds: float = SECONDS_HELD

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: bytes) -> Hold:
        """:raises ValueError: the text is damaged"""
        # A site that only writes holds need not know how they look.
        from lading.hooks.files.json_model import checked, parsed
        from lading.hooks.spool.events import HoldFile

        found = checked(HoldFile, parsed(text))
        amounts = found["resources"]
        return cls(**{**found, "resources": Resources(amounts.cpus, amounts.memory, amounts.disk, amounts.gpus)})
