"""What spot machines have cost from their launch to their end, however often their price has changed meanwhile.

Prices are looked at now and then, and not at all while no controller runs. What AWS tells of the past has them all:
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeSpotPriceHistory.html
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lading.hooks.ec2.client import EC2
from lading.scheduling import billing


@dataclass(frozen=True, slots=True)
class Life:
    """A machine that was there, under its name, and what it has cost beside its own price, USD per hour.

    :param launched_at: epoch seconds by AWS's clock, as ``ended_at``
    """

    name: str
    kind: str
    zone: str
    launched_at: float
    ended_at: float
    more: float


class Bills:
    """The bills that are to be made out. ``round`` waits for AWS; another thread may add to them.

    :param tell: called with an event for each
    """

    def __init__(self, ec2: EC2, tell: Callable[[dict[str, Any]], None]) -> None:
        self.ec2, self.tell = ec2, tell
        self.due: deque[Life] = deque()
        self.is_new = False
        """Whether something is due for which AWS was not asked yet."""

    def add(self, life: Life) -> None:
        """Make out a bill in the next round, when the end was told."""
        self.due.append(life)
        self.is_new = True

    def round(self) -> None:
        """Make out what is due.

        :raises EC2Error: AWS does not say what it cost; it is asked again in the next round
        """
        self.is_new = False
        while self.due:
            kind, zone = self.due[0].kind, self.due[0].zone
            alike = [each for each in list(self.due) if (each.kind, each.zone) == (kind, zone)]
            since, until = min(each.launched_at for each in alike), max(each.ended_at for each in alike)
            prices = self.ec2.spot_prices(kind, zone, since, until)
            for each in alike:
                self.due.remove(each)
                if prices:
                    usd = billing.metered(prices, each.more, each.launched_at, each.ended_at)
                    self.tell({"event": "billed", "token": each.name, "usd": usd})
