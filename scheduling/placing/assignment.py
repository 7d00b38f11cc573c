"""Where jobs go, as it was decided."""

from __future__ import annotations

from dataclasses import dataclass, field

from lading.scheduling.matching.stops import Stop
from lading.scheduling.provisioning import Provision
from lading.scheduling.reasons import Reason


@dataclass(slots=True)
class Assignment:
    """Where jobs go, by their names.

    :param placed: the site and the location
    :param passed: of those that another site should have had: why it has not taken them
    :param waits: why a job waits; None: for its turn
    :param turned_away: by site, the jobs that found no room there
    :param refused: why no site can ever run a job
    :param provisions: by site, what is launched and released there
    :param barred: by site, the jobs that may not go there now, whatever is free, by the bounds of their shares
    :param stops: of the jobs that ask for something else than their hints say where they are placed: that stop
    """

    placed: dict[str, tuple[str, str]] = field(default_factory=dict)
    passed: dict[str, Reason] = field(default_factory=dict)
    waits: dict[str, Reason | None] = field(default_factory=dict)
    turned_away: dict[str, list[str]] = field(default_factory=dict)
    refused: dict[str, Reason] = field(default_factory=dict)
    provisions: dict[str, Provision] = field(default_factory=dict)
    barred: dict[str, frozenset[str]] = field(default_factory=dict)
    stops: dict[str, Stop] = field(default_factory=dict)
