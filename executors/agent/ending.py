"""The end of an agent's location: an allocation whose time limit is reached, or a spot instance that AWS reclaims.

AWS gives notice two minutes ahead. It is read from the instance metadata service (IMDSv2), without boto3, which an
image need not have: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
"""

from __future__ import annotations

import http.client
import logging
import os
import time
from datetime import datetime, timezone
from email.utils import mktime_tz, parsedate_tz
from typing import Annotated, Any
from urllib.parse import urlsplit

from lading.executors.agent.job_folder import EndCause
from lading.hooks.files.json_model import JsonModel, ReadWith, Text, checked
from lading.hooks.files.logs import Trouble
from lading.hooks.files.safe_files import write_atomically
from lading.hooks.spool.spool import Spool
from lading.hooks.ssh.backoff import Backoff
from lading.scheduling.model.light_dataclasses import dataclass
from lading.scheduling.model.reasons import because
from lading.scheduling.text.nesting import parse_json
from lading.scheduling.text.printable import shortened

log = logging.getLogger(__name__)

# Names a file for jobs that exists once the end of the location is known and contains its time, epoch seconds.
ENDS_AT_VARIABLE = "LADING_ENDS_AT"

# The variable and the default of AWS's own libraries.
METADATA_VARIABLE, ENDPOINT = "AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://169.254.169.254"
ACTION = "/latest/meta-data/spot/instance-action"
# AWS advises polling every five seconds. The timeout is short, as the service runs on the same host and an agent that
# waits for it starts no jobs.
INTERVAL, TIMEOUT = 5.0, 1.0
TOKEN_SECONDS = 21600
# Jobs get SIGTERM this long before the machine is reclaimed, and SIGKILL while there is time to report it, seconds.
BEFORE, TIME_TO_REPORT = 30.0, 10.0
# No notice comes earlier than this before the end, seconds.
LONGEST_NOTICE = 120.0

UNKNOWN = "the instance metadata service does not answer, so it is unknown whether this machine will be reclaimed"


@dataclass(frozen=True, slots=True)
class Ending:
    """The known end of a location.

    :param at: when jobs get SIGTERM, on the monotonic clock
    :param cause: the cause with which these jobs end
    :param grace: seconds between SIGTERM and SIGKILL
    """

    at: float
    cause: EndCause
    grace: float

    @property
    def left(self) -> float:
        """Seconds left for jobs."""
        return self.at - time.monotonic()

    def announce(self, spool: Spool) -> None:
        """Write the end's time to the file for jobs and the controller."""
        try:
            write_atomically(spool.ends_at, f"{time.time() + self.left:.0f}\n")
        except OSError as error:
            log.error("jobs will not be notified before the machine is taken away: %s", error)


def _moment(found: Any) -> datetime:
    if not isinstance(found, str):
        raise ValueError(f"a date and time is expected, not {shortened(found)}")
    return datetime.fromisoformat(f"{found[:-1]}+00:00" if found.endswith("Z") else found)  # Z only since Python 3.11


@dataclass(frozen=True, kw_only=True, slots=True)
class InstanceAction(JsonModel):
    """The service's notice for an instance that is reclaimed."""

    action: Text
    time: Annotated[datetime, ReadWith(_moment)]


class SpotNotice:
    """Reads a spot instance's interruption notice from the instance metadata service.

    :param endpoint: URL of the service; None: the one that AWS's libraries use
    """

    def __init__(self, endpoint: str | None = None) -> None:
        self._url = urlsplit(endpoint or os.environ.get(METADATA_VARIABLE) or ENDPOINT)
        self._token, self._token_ends, self._due = "", 0.0, 0.0
        self._backoff = Backoff(first=INTERVAL, longest=60.0)
        self._trouble = Trouble(log)

    def read(self, spool: Spool, kill_grace: float) -> Ending | None:
        """Return the end of this machine, after announcing it to jobs; None: no notice yet, or not time to ask again.

        :param kill_grace: seconds between SIGTERM and SIGKILL, shortened if there is less time
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
        """Return when this machine is reclaimed, and the current time by the service's clock, as ours may be wrong.

        :raises OSError, HTTPException, ValueError: the service does not answer, or its answer is invalid
        """
        if time.monotonic() > self._token_ends:
            lasts = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_SECONDS)}
            status, token, _ = self._request("PUT", "/latest/api/token", lasts)
            if status != http.client.OK:
                raise ValueError(f"it answers the request for a token with status {status}")
            self._token, self._token_ends = token.decode("ascii"), time.monotonic() + TOKEN_SECONDS / 2
        status, said, now = self._request("GET", ACTION, {"X-aws-ec2-metadata-token": self._token})
        if status == http.client.NOT_FOUND:
            return None
        if status != http.client.OK:
            self._token_ends = 0.0
            raise ValueError(f"it answers with status {status}")
        at: datetime = checked(InstanceAction, parse_json(said))["time"]
        at = at if at.tzinfo is not None else at.replace(tzinfo=timezone.utc)
        # Without a time, assume that the notice has just been given, as it was not there at the last poll.
        return at, at.timestamp() - LONGEST_NOTICE if now is None else now

    def _request(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, bytes, float | None]:
        """Return the status, the body, and the time of the answer by the service's clock, epoch seconds."""
        connection = http.client.HTTPConnection(self._url.hostname or "", self._url.port, timeout=TIMEOUT)
        try:
            connection.request(method, self._url.path.rstrip("/") + path, headers=headers)
            answer = connection.getresponse()
            date = parsedate_tz(answer.headers.get("Date", ""))
            # A longer answer does not come from this service.
            return answer.status, answer.read(65536), None if date is None else mktime_tz(date)
        finally:
            connection.close()


def ending_of_notice(at: datetime, now: float, kill_grace: float) -> Ending:
    """Return the ending that follows from a notice.

    :param at: when the machine is reclaimed
    :param now: the current time by the same clock, epoch seconds
    """
    left = min(at.timestamp() - now, LONGEST_NOTICE) - BEFORE
    reason = because("spot_interrupted", at=at.timestamp())
    return Ending(time.monotonic() + left, EndCause("preempted", reason), min(kill_grace, BEFORE - TIME_TO_REPORT))
