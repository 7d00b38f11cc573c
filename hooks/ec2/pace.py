"""How fast EC2 may be asked to launch, and what it has none of at the moment."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from lading.hooks.ec2.client import EC2Error, Trouble
from lading.hooks.ssh.backoff import Backoff
from lading.scheduling.quotas import quota

# Of RunInstances an account has 5 requests and 2 more each second, and 1,000 instances and 2 more each second:
# https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html
REQUESTS, INSTANCES, REFILL = 5.0, 1000.0, 2.0
# What EC2 has no capacity for is not asked for again before, seconds; a quota neither, unless machines have ended.
SECONDS_WITHOUT_CAPACITY = 180.0
SECONDS_OVER_QUOTA = 180.0
# A throttle pauses launches for so long, and ever longer; what is refused for good as well, seconds.
FIRST_THROTTLE, LONGEST_THROTTLE = 5.0, 120.0
FIRST_HOLD, LONGEST_HOLD = 60.0, 900.0
# A type of which a machine never answered is not launched in that zone before, seconds: giving one up takes minutes,
# and the other zones are to have been tried by then. After so many in a row it is the image or the network.
SECONDS_AFTER_SILENCE = 1800.0
MOST_SILENT = 3

Offering = tuple[str, str | None, str]
"""Type, zone and capacity type."""


@dataclass(slots=True)
class Bucket:
    """:param most: at most so many at once
    :param refill: more each second
    """

    most: float
    refill: float = REFILL
    left: float = field(init=False)
    at: float = 0.0

    def __post_init__(self) -> None:
        self.left = self.most

    def take(self, number: float, now: float) -> bool:
        """Take so many; returns whether there are as many.

        :param now: seconds on any clock that runs
        """
        self.left, self.at = min(self.most, self.left + max(0.0, now - self.at) * self.refill), now
        if self.left < number:
            return False
        self.left -= number
        return True


class Shortages:
    """What EC2 has refused."""

    def __init__(self) -> None:
        self.offerings: dict[Offering, tuple[float, str]] = {}
        """Until when there is none of an offering, epoch seconds, and AWS's words."""
        self.quotas: dict[str, tuple[float, str]] = {}
        """The same of what an account may have no more of, by the name of the quota."""
        self._throttle = Backoff(FIRST_THROTTLE, LONGEST_THROTTLE)
        self._refusal = Backoff(FIRST_HOLD, LONGEST_HOLD)
        self._doubt = Backoff(FIRST_HOLD, LONGEST_HOLD)
        self._silent = 0

    def refused(self, offering: Offering, error: EC2Error) -> None:
        """A launch was refused."""
        kind, _, capacity_type = offering
        if error.trouble is Trouble.CAPACITY:
            self.offerings[offering] = time.time() + SECONDS_WITHOUT_CAPACITY, str(error)
        elif error.trouble is Trouble.QUOTA:
            self.quotas[quota(kind, capacity_type)] = time.time() + SECONDS_OVER_QUOTA, str(error)
        elif error.trouble is Trouble.THROTTLE:
            self._throttle.failed(f"AWS takes no more requests for now: {error}")
        elif error.trouble is Trouble.PERMANENT:
            self._refusal.failed(str(error))

    def reclaimed(self, offering: Offering, words: str) -> None:
        """AWS has taken a machine away: there is no capacity for another one."""
        self.offerings[offering] = time.time() + SECONDS_WITHOUT_CAPACITY, words

    def never_answered(self, offering: Offering, words: str) -> None:
        """A machine has ended that never answered: another offering is tried, and after some in a row none for a while.

        :param words: why it has ended
        """
        self.offerings[offering] = time.time() + SECONDS_AFTER_SILENCE, f"the last one never answered: {words}"
        self._silent += 1
        if self.is_in_doubt:
            said = f"the last {self._silent} machines that were launched never answered; the last one: {words}"
            self._doubt.failed(said)

    def answered(self) -> None:
        """A machine has answered for the first time."""
        self._silent = 0
        self._doubt.succeeded()

    @property
    def is_in_doubt(self) -> bool:
        """Whether so many have never answered that one at a time is enough."""
        return self._silent >= MOST_SILENT

    def launched(self) -> None:
        """A launch has worked."""
        self._throttle.succeeded()
        self._refusal.succeeded()

    def freed(self) -> None:
        """A machine has ended, so a quota may have room."""
        self.quotas.clear()

    @property
    def paused(self) -> str | None:
        """Why nothing is launched for a moment, in words; None: it may be."""
        return self._throttle.held

    @property
    def held(self) -> str | None:
        """Why nothing can be launched before somebody has done something, in words; None: it can."""
        return self._refusal.held or self._doubt.held

    @property
    def any(self) -> bool:
        """Whether there is none of anything."""
        return any(end > time.time() for end, _ in [*self.offerings.values(), *self.quotas.values()])

    def until(self, offering: Offering) -> float | None:
        """Until when there is none of an offering, epoch seconds; None: there may be now."""
        found = self._of(offering)
        return found[0] if found is not None else None

    def missing(self, offering: Offering) -> str | None:
        """Why there is none of an offering, in words; None: there may be."""
        found = self._of(offering)
        return found[1] if found is not None else None

    def _of(self, offering: Offering) -> tuple[float, str] | None:
        kind, _, capacity_type = offering
        found = self.offerings.get(offering), self.quotas.get(quota(kind, capacity_type))
        return max((each for each in found if each is not None and each[0] > time.time()), default=None)
