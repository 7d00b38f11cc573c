"""Groups of machines that are being filled, ordered by their remaining room."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from lading.scheduling.packing.answer import MachineGroup
from lading.scheduling.packing.problem import Vector, fits


@dataclass(slots=True, eq=False)
class ShelfSlot(MachineGroup):
    """A group while it is being filled.

    :param age: of its first machine; the others follow consecutively
    :param labels: tasks and runs with a job on it, as ("task" or "run", name)
    """

    age: int = 0
    ends_at: float | None = None
    labels: set[tuple[str, str]] = field(default_factory=set)


# free cpus, free memory (both 0 if only age counts), age, and the group itself
Entry: TypeAlias = tuple[int, int, int, ShelfSlot]


class Neighbours:
    """A chunk of consecutive entries, and the maximum that any of them has of each resource.

    Removing the largest entry leaves ``most`` too high, which only slows searches down, so it is measured again only
    when a search reaches the chunk (``stale``).
    """

    __slots__ = ("entries", "most", "stale")

    def __init__(self, entries: list[Entry]) -> None:
        self.entries = entries
        self.measure()

    def measure(self) -> None:
        self.most = tuple(map(max, *(entry[3].free for entry in self.entries), (0, 0, 0, 0)))
        self.stale = False

    def has_most(self, free: Vector) -> bool:
        """Return whether ``free`` equals the chunk's maximum in some resource."""
        most: Vector = self.most
        return free[0] == most[0] > 0 or free[1] == most[1] > 0 or free[2] == most[2] > 0 or free[3] == most[3] > 0

    def may_fit(self, need: Vector) -> bool:
        if fits(need, self.most) and self.stale:
            self.measure()
        return fits(need, self.most)


class Shelf:
    """Groups ordered by remaining room, or by age, in chunks, so that a search skips chunks where nothing fits.

    :param by_age: oldest first, whatever room remains
    """

    def __init__(self, *, by_age: bool = False) -> None:
        self.by_age = by_age
        self.chunks: list[Neighbours] = []
        self.ends: list[Entry] = []  # the last entry of each chunk

    def entry(self, site: ShelfSlot) -> Entry:
        return (0, 0, site.age, site) if self.by_age else (site.free[0], site.free[1], site.age, site)

    def add(self, site: ShelfSlot) -> None:
        entry = self.entry(site)
        if not self.chunks:
            self.chunks.append(Neighbours([entry]))
            self.ends.append(entry)
            return
        i = min(bisect_left(self.ends, entry), len(self.chunks) - 1)
        chunk = self.chunks[i]
        insort(chunk.entries, entry)
        if len(chunk.entries) > 128:
            half = Neighbours(chunk.entries[64:])
            del chunk.entries[64:]
            self.chunks.insert(i + 1, half)
            self.ends.insert(i + 1, half.entries[-1])
            chunk.measure()
        elif not fits(site.free, chunk.most):
            chunk.most = tuple(map(max, chunk.most, site.free))
        self.ends[i] = chunk.entries[-1]

    def remove(self, site: ShelfSlot) -> None:
        entry = self.entry(site)
        i = bisect_left(self.ends, entry)
        chunk = self.chunks[i]
        del chunk.entries[bisect_left(chunk.entries, entry)]
        if not chunk.entries:
            del self.chunks[i], self.ends[i]
            return
        self.ends[i] = chunk.entries[-1]
        if not chunk.stale:
            chunk.stale = chunk.has_most(site.free)

    def first(self, need: Vector, admits: Callable[[ShelfSlot], bool] | None) -> ShelfSlot | None:
        """Return the first group in the order that has room and is admitted."""
        cpus, memory, disk, gpus = need
        least = (0, 0) if self.by_age else (cpus, memory)
        for i in range(bisect_left(self.ends, least), len(self.chunks)):
            if not self.chunks[i].may_fit(need):
                continue
            entries = self.chunks[i].entries
            for j in range(bisect_left(entries, least), len(entries)):
                entry = entries[j]
                if entry[1] < least[1]:
                    continue
                site = entry[3]
                free = site.free
                has_room = free[1] >= memory and free[0] >= cpus and free[2] >= disk and free[3] >= gpus
                if has_room and (admits is None or admits(site)):
                    return site
        return None
