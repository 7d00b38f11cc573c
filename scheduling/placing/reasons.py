"""Why a job waits that no site has taken. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.reasons import Reason, because, combined

# Seconds for which a job must have waited before it is given a reason: short waits are not worth one.
SECONDS_UNTIL_EXPLAINED = 10.0


def reason(
    job: WaitingJob, met: Sequence[Reason], last: SiteView, following: Sequence[str], sites: int, *, is_late: bool
) -> Reason | None:
    """Why a job waits; None: for its turn, or only for a moment.

    :param met: why the sites that it came to have not taken it
    :param last: the last one of these
    :param following: those to which it may go later
    :param sites: how many there are
    :param is_late: whether it has waited for so long that it is worth a reason
    """
    is_busy = met[-1] == last.no_room
    is_only = len(met) == 1 and not following and (sites == 1 or not job.site)
    if is_busy and (is_only or not is_late):
        return None
    found = combined(met)
    if following and not last.is_new:
        return found.with_also(because("may_go_on", after=last.burst_after, next=following[0]))
    return found.with_also(because("only_site")) if is_busy and job.site else found
