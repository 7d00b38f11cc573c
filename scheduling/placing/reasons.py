"""Why a job waits that no site has taken, in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.waiting import Waiting
from lading.scheduling.text.units import format_time

# Seconds for which a job must have waited before it is given a reason: short waits are not worth one.
SECONDS_UNTIL_EXPLAINED = 10.0


def awaited(job: Waiting, site: SiteView) -> str | None:
    """What a job waits for at a site that launches what it needs, in words; None: only for a moment."""
    words = site.coming(job)
    return None if words is None else f"waits: {words}"


def reason(
    job: Waiting, words: Sequence[str], last: SiteView, following: Sequence[str], sites: int, *, is_late: bool
) -> str | None:
    """Why a job waits, in words; None: for its turn, or only for a moment.

    :param words: why the sites that it came to have not taken it
    :param last: the last one of these
    :param following: those to which it may go later
    :param sites: how many there are
    :param is_late: whether it has waited for so long that it is worth a reason
    """
    is_busy = words[-1] == last.no_room
    is_only = len(words) == 1 and not following and (sites == 1 or not job.site)
    if is_busy and (is_only or not is_late):
        return None
    said = "; ".join(words)
    if following and not last.is_new:
        then = f"after {format_time(int(last.burst_after))} it may go to site {following[0]!r} (burst_after)"
        return f"waits: {said}; {then}"
    return f"waits: {said}; its hint site allows no other" if is_busy and job.site else f"waits: {said}"
