"""The end of the place where an agent runs its jobs: of an allocation, or of a spot machine that AWS takes away.

AWS gives notice two minutes before. It is read from the instance metadata service (IMDSv2), without boto3, which an
image need not have: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
"""

from __future__ import annotations

import http.client
import logging
import os
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import mktime_tz, parsedate_tz
from typing import Annotated, Any
from urllib.parse import urlsplit

from lading.executors.agent.job_folder import EndCause
from lading.hooks.files.json_model import JsonModel, ReadWith, Text, checked, parsed
from lading.hooks.files.logs import Trouble
from lading.hooks.files.safe_files import write_atomically
from lading.hooks.spool.spool import Spool
from lading.hooks.ssh.backoff import Backoff
from lading.scheduling.reasons import because
from lading.scheduling.text.printable import shortened

log = logging.getLogger(__name__)

# Names a file for each job: once the end is known it is there, and says when, seconds since the epoch.
ENDS_AT_VARIABLE = "LADING_ENDS_AT"

# As AWS's own libraries call it and know it.
METADATA_VARIABLE, ENDPOINT = "AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://169.254.169.254"
ACTION = "/latest/meta-data/spot/instance-action"
# AWS advises to look every five seconds. The service is on the same host: an agent that waits for it starts no jobs.
INTERVAL, TIMEOUT = 5.0, 1.0
LONGEST_PAUSE = 60.0
TOKEN_SECONDS = 21600
# What has more is no answer of this service.
MOST_BYTES = 65536
# Jobs are asked to end so long before the machine goes, and killed while there is time to report it, seconds.
BEFORE, TIME_TO_REPORT = 30.0, 10.0
# No notice comes earlier, seconds.
LONGEST_NOTICE = 120.0

UNKNOWN = "the instance metadata service does not say whether this machine is taken away"


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

    def announce(self, spool: Spool) -> None:
        """Announce it to jobs and to the controller."""
        try:
            write_atomically(spool.ends_at, f"{time.time() + self.left:.0f}\n")
        except OSError as error:
            log.error("jobs will not be notified before the machine is taken away: %s", error)


def _moment(found: Any) -> datetime:
    if not isinstance(found, str):
        raise ValueError(f"a moment is expected, not {shortened(found)}")
    return datetime.fromisoformat(f"{found[:-1]}+00:00" if found.endswith("Z") else found)  # Z only since Python 3.11


@dataclass(frozen=True, kw_only=True, slots=True)
class InstanceAction(JsonModel):
    """What the service says of a machine that is taken away."""

    action: Text
    time: Annotated[datetime, ReadWith(_moment)]


class SpotNotice:
    """The notice of a spot machine that is taken away, read from the instance metadata service.

    :param endpoint: URL of the service; None: as AWS's libraries find it
    """

    def __init__(self, endpoint: str | None = None) -> None:
        self._url = urlsplit(endpoint or os.environ.get(METADATA_VARIABLE) or ENDPOINT)
        self._token, self._token_ends, self._due = "", 0.0, 0.0
        self._backoff = Backoff(first=INTERVAL, longest=LONGEST_PAUSE)
        self._trouble = Trouble(log)

    def read(self, spool: Spool, kill_grace: float) -> Ending | None:
        """The end of this machine, which is announced to jobs; None: none is known, or it is too early to ask again.

        :param kill_grace: seconds between SIGTERM and SIGKILL, as far as there is time for that
        """
        now = time.monotonic()
        if now < max(self._due, self._backoff.not_before):
            return None
        self._due = now + INTERVAL
        try:
            said = self._ask()
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._trouble.begin(UNKNOWN, self._backoff.failed(str(error) or type(error).__name__))
            return None
        self._backoff.succeeded()
        self._trouble.end(UNKNOWN)
        if said is None:
            return None
        found = ending_of_notice(*said, kill_grace)
        log.warning("%s", found.cause.reason)
        found.announce(spool)
        return found

    def _ask(self) -> tuple[datetime, float] | None:
        """When this machine is taken away, and what time it is by the same clock: this machine's may be wrong.

        :raises OSError, HTTPException, ValueError: it does not answer, or makes no sense
        """
        if time.monotonic() > self._token_ends:
            lasts = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_SECONDS)}
            status, token, _ = self._request("PUT", "/latest/api/token", lasts)
            if status != http.client.OK:
                raise ValueError(f"it answers {status} when it is asked for a token")
            self._token, self._token_ends = token.decode("ascii"), time.monotonic() + TOKEN_SECONDS / 2
        status, said, now = self._request("GET", ACTION, {"X-aws-ec2-metadata-token": self._token})
        if status == http.client.NOT_FOUND:
            return None
        if status != http.client.OK:
            self._token_ends = 0.0
            raise ValueError(f"it answers {status}")
        at: datetime = checked(InstanceAction, parsed(said))["time"]
        at = at if at.tzinfo is not None else at.replace(tzinfo=timezone.utc)
        # Where no time is said, the notice is as new as it can be, for it was not there at the last look.
        return at, at.timestamp() - LONGEST_NOTICE if now is None else now

    def _request(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, bytes, float | None]:
        """The status, what is said, and when that was by the clock of the service, seconds since the epoch."""
        connection = http.client.HTTPConnection(self._url.hostname or "", self._url.port, timeout=TIMEOUT)
        try:
            connection.request(method, self._url.path.rstrip("/") + path, headers=headers)
            answer = connection.getresponse()
            date = parsedate_tz(answer.headers.get("Date", ""))
            return answer.status, answer.read(MOST_BYTES), None if date is None else mktime_tz(date)
        finally:
            connection.close()


def ending_of_notice(at: datetime, now: float, kill_grace: float) -> Ending:
    """What a notice means for jobs.

    :param at: when the machine goes
    :param now: what time it is by the clock that says so, seconds since the epoch
    """
    left = min(at.timestamp() - now, LONGEST_NOTICE) - BEFORE
    reason = because("spot_interrupted", at=at.timestamp())
    return Ending(time.monotonic() + left, EndCause("preempted", reason), min(kill_grace, BEFORE - TIME_TO_REPORT))
