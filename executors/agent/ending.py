"""The end of the place where an agent runs its jobs: of an allocation, or of a machine that is taken away."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from lading.executors.agent.job_folder import EndCause
from lading.hooks.files.safe_files import write_atomically
from lading.hooks.spool.spool import Spool

log = logging.getLogger(__name__)

# Names a file for each job: once the end is known it is there, and says when, seconds since the epoch.
VARIABLE = "LADING_ENDS_AT"


@dataclass(frozen=True, slots=True)
class Ending:
    """An end that is known.

    :param at: when jobs are asked to end (SIGTERM), on the monotonic clock
    :param cause: of the ends of these jobs
    :param grace: seconds between SIGTERM and SIGKILL
    """

    at: float
    cause: EndCause
    grace: float

    @property
    def left(self) -> float:
        """Seconds for jobs."""
        return self.at - time.monotonic()

    def tell(self, spool: Spool) -> None:
        """Let jobs and the controller know."""
        try:
            write_atomically(spool.ends_at, f"{time.time() + self.left:.0f}\n")
        except OSError as error:
            log.error("jobs will not be notified before the machine is taken away: %s", error)
