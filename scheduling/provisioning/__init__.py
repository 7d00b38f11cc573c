"""Provisioning: what a site launches, which machines or allocations it releases, and what jobs wait for.

Pure; called by the controller alone, for jobs that no location has room for. Placing jobs on existing locations is
:mod:`lading.scheduling.placing.placement`'s task.
"""

from __future__ import annotations

from lading.scheduling.provisioning.allocation_plan import shaped
from lading.scheduling.provisioning.decision import decide, decide_apart
from lading.scheduling.provisioning.launch import (
    LONGEST_ARRIVAL,
    SECONDS_TO_BEGIN,
    SECONDS_UNTIL_SETTLED,
    Launch,
    Provision,
)
from lading.scheduling.provisioning.recall import recalls, suits, takes

__all__ = [
    "LONGEST_ARRIVAL",
    "SECONDS_TO_BEGIN",
    "SECONDS_UNTIL_SETTLED",
    "Launch",
    "Provision",
    "decide",
    "decide_apart",
    "recalls",
    "shaped",
    "suits",
    "takes",
]
