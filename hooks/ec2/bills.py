"""What spot instances have cost from launch to termination, with every change of their price.

Lading looks up prices only from time to time, and not while no controller runs. AWS keeps the whole history:
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeSpotPriceHistory.html
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lading.hooks.ec2.client import EC2
from lading.scheduling.accounting import billing


@dataclass(frozen=True, slots=True)
class EndedInstance:
    """A spot instance that has terminated.

    :param name: that of its location
    :param launched_at: epoch seconds by AWS's clock, like ``ended_at``
    :param more: its surcharges (volume, address), USD per hour
    """

    name: str
    kind: str
    zone: str
    launched_at: float
    ended_at: float
    more: float


class Bills:
    """The pending bills of terminated spot instances. ``round`` waits for AWS; another thread adds instances.

    :param report: called with an event for each bill
    """

    def __init__(self, ec2: EC2, report: Callable[[dict[str, Any]], None]) -> None:
        self.ec2, self.report = ec2, report
        self.due: deque[EndedInstance] = deque()
        self.is_new = False
        """Whether an instance was added since AWS was last asked."""

    def add(self, instance: EndedInstance) -> None:
        """Bill an instance in the next round, after its termination was reported."""
        self.due.append(instance)
        self.is_new = True

    def round(self) -> None:
        """Compute all pending bills.

        :raises EC2Error: AWS does not report the prices; the next round tries again
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
                    self.report({"event": "billed", "token": instance.name, "usd": usd})
