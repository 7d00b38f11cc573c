"""How fast EC2 may be asked to launch, and what it has none of at the moment. Pure but for the time it is given."""

from __future__ import annotations

from dataclasses import dataclass, field

from lading.hooks.ec2.client import EC2Error, Trouble
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


@dataclass(slots=True)
class Shortages:
    """What EC2 has refused. Times are seconds since the epoch.

    :param offerings: until when there is none of an offering, and AWS's words
    :param quotas: until when an account may have no more of a quota, by its name, and AWS's words
    """

    offerings: dict[Offering, tuple[float, str]] = field(default_factory=dict)
    quotas: dict[str, tuple[float, str]] = field(default_factory=dict)
    _paused: tuple[float, str] | None = None
    _held: tuple[float, str] | None = None
    _throttles: int = 0
    _holds: int = 0
    _silent: int = 0
    _doubted: tuple[float, str] | None = None

    def refused(self, offering: Offering, error: EC2Error, now: float) -> None:
        """A launch was refused."""
        kind, _, capacity_type = offering
        if error.trouble is Trouble.CAPACITY:
            self.offerings[offering] = now + SECONDS_WITHOUT_CAPACITY, str(error)
        elif error.trouble is Trouble.QUOTA:
            self.quotas[quota(kind, capacity_type)] = now + SECONDS_OVER_QUOTA, str(error)
        elif error.trouble is Trouble.THROTTLE:
            self._paused = now + _doubled(FIRST_THROTTLE, self._throttles, LONGEST_THROTTLE), str(error)
            self._throttles += 1
        elif error.trouble is Trouble.PERMANENT:
            self._held = now + _doubled(FIRST_HOLD, self._holds, LONGEST_HOLD), str(error)
            self._holds += 1

    def reclaimed(self, offering: Offering, words: str, now: float) -> None:
        """AWS has taken a machine away: there is no capacity for another one."""
        self.offerings[offering] = now + SECONDS_WITHOUT_CAPACITY, words

    def never_answered(self, offering: Offering, words: str, now: float) -> None:
        """A machine has ended that never answered: another offering is tried, and after some in a row none for a while.

        :param words: why it has ended
        """
        self.offerings[offering] = now + SECONDS_AFTER_SILENCE, f"the last one never answered: {words}"
        self._silent += 1
        if self._silent >= MOST_SILENT:
            pause = _doubled(FIRST_HOLD, self._silent - MOST_SILENT, LONGEST_HOLD)
            said = f"the last {self._silent} machines that were launched never answered; the last one: {words}"
            self._doubted = now + pause, said

    def answered(self) -> None:
        """A machine has answered for the first time."""
        self._silent, self._doubted = 0, None

    @property
    def is_in_doubt(self) -> bool:
        """Whether so many have never answered that one at a time is enough."""
        return self._silent >= MOST_SILENT

    def launched(self) -> None:
        """A launch has worked."""
        self._paused, self._held, self._throttles, self._holds = None, None, 0, 0

    def freed(self) -> None:
        """A machine has ended, so a quota may have room."""
        self.quotas.clear()

    def paused(self, now: float) -> str | None:
        """Why nothing is launched for a moment, in words; None: it may be."""
        if self._paused is not None and now < self._paused[0]:
            return f"AWS takes no more requests for now: {self._paused[1]}"
        return None

    def held(self, now: float) -> str | None:
        """Why nothing can be launched before somebody has done something, in words; None: it can."""
        return next((each[1] for each in (self._held, self._doubted) if each is not None and now < each[0]), None)

    def any(self, now: float) -> bool:
        """Whether there is none of anything."""
        return any(end > now for end, _ in [*self.offerings.values(), *self.quotas.values()])

    def until(self, offering: Offering, now: float) -> float | None:
        """Until when there is none of an offering; None: there may be now."""
        found = self._of(offering, now)
        return found[0] if found is not None else None

    def missing(self, offering: Offering, now: float) -> str | None:
        """Why there is none of an offering, in words; None: there may be."""
        found = self._of(offering, now)
        return found[1] if found is not None else None

    def _of(self, offering: Offering, now: float) -> tuple[float, str] | None:
        kind, _, capacity_type = offering
        found = self.offerings.get(offering), self.quotas.get(quota(kind, capacity_type))
        return max((each for each in found if each is not None and each[0] > now), default=None)


def _doubled(first: float, times: int, longest: float) -> float:
    """Seconds, doubled so many times, but no more than the longest; the number may become as large as it likes."""
    return min(longest, first * 2.0 ** min(times, 32))
