"""Holds: room that an agent keeps for an upcoming job, requested by a file that expires by itself."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from lading.scheduling.model.resources import Resources

# Seconds after which a hold is renewed, well before it expires.
SECONDS_UNTIL_RENEWED = 30.0
# The kinds of events about holds; their token is that of the hold.
EVENTS = frozenset({"held", "refused", "hold_lost"})


@dataclass(frozen=True, slots=True)
class Hold:
    """Room at a location.

    :param token: its own, unique; renewing a hold keeps the token
    :param job: the token of the job that it is for
    :param resources: what that job uses at the location
    :param seconds: after which it expires, counted from the last request
    """

    token: str
    job: str
    resources: Resources
    seconds: float = 120.0

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: bytes) -> Hold:
        """Parse a hold.

        :raises ValueError: the text is damaged
        """
        # Not at the top, because a site that only writes holds does not need the models.
        from lading.hooks.files.json_model import checked
        from lading.hooks.spool.job_files import HoldFile
        from lading.scheduling.text.nesting import parse_json

        found = checked(HoldFile, parse_json(text))
        amounts = found["resources"]
        return cls(**{**found, "resources": Resources(amounts.cpus, amounts.memory, amounts.disk, amounts.gpus)})
