"""The result of placement: where each job goes, or why it waits."""

from __future__ import annotations

from dataclasses import dataclass, field

from lading.scheduling.matching.stops import Stop
from lading.scheduling.model.reasons import Reason
from lading.scheduling.provisioning import Provision


@dataclass(slots=True)
class Assignment:
    """Where jobs go, by job name.

    :param placed: the site and the location
    :param passed: for jobs placed after other sites of their route: why those sites did not take them
    :param waits: why a job waits; None: only for its turn
    :param turned_away: by site, the jobs that found no room there
    :param refused: why no site can ever run a job
    :param provisions: by site, what is launched and released there
    :param barred: by site, the jobs that the bounds of their shares keep from it, even if it has room
    :param stops: the stop of each job whose requests where it is placed differ from its hints
    """

    placed: dict[str, tuple[str, str]] = field(default_factory=dict)
    passed: dict[str, Reason] = field(default_factory=dict)
    waits: dict[str, Reason | None] = field(default_factory=dict)
    turned_away: dict[str, list[str]] = field(default_factory=dict)
    refused: dict[str, Reason] = field(default_factory=dict)
    provisions: dict[str, Provision] = field(default_factory=dict)
    barred: dict[str, frozenset[str]] = field(default_factory=dict)
    stops: dict[str, Stop] = field(default_factory=dict)
