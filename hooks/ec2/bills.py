"""What spot instances have cost from their launch to their end, however often their price has changed meanwhile.

Prices are looked up now and then, and not at all while no controller runs. AWS's history has them all:
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
class EndedInstance:
    """A spot instance that has ended.

    :param name: of its location
    :param launched_at: epoch seconds by AWS's clock, as ``ended_at``
    :param more: what it cost beside its own price (volume, address), USD per hour
    """

    name: str
    kind: str
    zone: str
    launched_at: float
    ended_at: float
    more: float


class Bills:
    """The bills still to be made of ended spot instances. ``round`` waits for AWS; another thread adds to it.

    :param tell: called with an event for each bill
    """

    def __init__(self, ec2: EC2, tell: Callable[[dict[str, Any]], None]) -> None:
        self.ec2, self.tell = ec2, tell
        self.due: deque[EndedInstance] = deque()
        self.is_new = False
        """Whether something is due for which AWS was not asked yet."""

    def add(self, instance: EndedInstance) -> None:
        """Make out a bill in the next round, when the end was reported."""
        self.due.append(instance)
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
            for instance in alike:
                self.due.remove(instance)
                if prices:
                    usd = billing.metered(prices, instance.more, instance.launched_at, instance.ended_at)
                    self.tell({"event": "billed", "token": instance.name, "usd": usd})
