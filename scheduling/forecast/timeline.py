"""A machine over time: what is used of it when, where there is room, what it costs. Pure; times are epoch seconds."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from itertools import pairwise

from lading.scheduling.packing.problem import Vector


class MachineTimeline:
    """What is planned on one machine.

    A machine is paid while it is busy, through gaps that are not longer than a boot, and for a boot before it is first
    used and after each longer gap: it is released there and launched again.

    :param capacity: what jobs can use of it
    :param usd_per_second: its price
    :param boot: seconds from a launch to the first job
    :param since: when it takes its first job at the earliest: now, or when it has booted
    :param is_there: whether it is launched already, and paid until then whatever is planned
    :param most_boot_paid: of its boot so many seconds cost money at most
    """

    __slots__ = ("boot", "busy", "capacity", "is_there", "most_boot_paid", "since", "times", "usd_per_second", "used")

    def __init__(
        self,
        capacity: Vector,
        usd_per_second: float,
        boot: float,
        since: float,
        *,
        is_there: bool = False,
        most_boot_paid: float = math.inf,
    ) -> None:
        self.capacity, self.usd_per_second, self.boot = capacity, usd_per_second, boot
        self.since, self.is_there, self.most_boot_paid = since, is_there, most_boot_paid
        # From times[i] to times[i + 1] so much is used; of the last one, which has no end, nothing.
        self.times: list[float] = [since]
        self.used: list[Vector] = [(0, 0, 0, 0)]
        # From when to when something is planned, in order, apart from each other.
        self.busy: list[tuple[float, float]] = [(since, since)] if is_there else []

    def earliest(self, since: float, seconds: float, need: Vector) -> float:
        """The first time from ``since`` on at which a job that fits the machine has room for so long."""
        times, used = self.times, self.used
        have = self.capacity
        cpus, memory, disk, gpus = have[0] - need[0], have[1] - need[1], have[2] - need[2], have[3] - need[3]
        begin = since if since > self.since else self.since
        number = bisect_right(times, begin) - 1  # it is not before the first part
        end, count = begin + seconds, len(times)
        while number < count and times[number] < end:
            there = used[number]
            number += 1
            if there[0] > cpus or there[1] > memory or there[2] > disk or there[3] > gpus:
                begin = times[number]  # the last part is empty, so there is a next one
                end = begin + seconds
        return begin

    def add(self, begin: float, seconds: float, need: Vector) -> None:
        """Plan a job."""
        end = begin + seconds
        first, last = self._cut(begin), self._cut(end)
        for number in range(first, last):
            cpus, memory, disk, gpus = self.used[number]
            self.used[number] = (cpus + need[0], memory + need[1], disk + need[2], gpus + need[3])
        first = bisect_left(self.busy, begin, key=lambda part: part[1])
        last = bisect_right(self.busy, end, key=lambda part: part[0])
        if first < last:
            begin, end = min(begin, self.busy[first][0]), max(end, self.busy[last - 1][1])
        self.busy[first:last] = [(begin, end)]

    def _cut(self, time: float) -> int:
        """The number of the part that begins then, which is made where there is none."""
        number = bisect_left(self.times, time)
        if number == len(self.times) or self.times[number] != time:
            self.times.insert(number, time)
            self.used.insert(number, self.used[number - 1] if number else (0, 0, 0, 0))
        return number

    def usd(self) -> float:
        """What it costs from now on, beside the boot of one that is there already."""
        busy = sum(end - begin for begin, end in self.busy)
        gaps = sum(min(after[0] - before[1], self.boot) for before, after in pairwise(self.busy))
        boot = min(self.boot, self.most_boot_paid) if self.busy and not self.is_there else 0.0
        return (busy + gaps + boot) * self.usd_per_second

    def more(self, begin: float, seconds: float) -> float:
        """USD that a job more costs from ``begin`` on for so long."""
        end, boot = begin + seconds, self.boot
        number = bisect_left(self.busy, begin, key=lambda part: part[1])
        before = self.busy[number - 1][1] if number else -math.inf
        paid, at = 0.0, begin
        while at < end:
            following, after = self.busy[number] if number < len(self.busy) else (math.inf, math.inf)
            if following <= at:
                before = at = after
                number += 1
                continue
            until = min(end, following)
            # A gap is paid up to a boot; its parts before and behind the job are gaps again.
            paid += min(at - before, boot) + until - at
            if following < math.inf:
                paid += min(following - until, boot) - min(following - before, boot)
            at = until
        return paid * self.usd_per_second
