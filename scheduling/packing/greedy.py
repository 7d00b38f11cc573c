"""The greedy policy: the algorithm by which Seven Bridges packs jobs onto instances.

1. Jobs are ordered by the price of the cheapest type that fits each, most expensive first (:func:`problem.pose`).
2. Each goes to the first instance that fits. Instances are ordered by their remaining room, least first: cpus, then
   memory, then age.
3. For the first job left over, one instance of the cheapest type that fits it is added, and all remaining jobs are
   tried again, until none is left.

The jobs left when an instance is added fit none of the earlier instances, so only the new one has room for them. Hence
a job that finds no room on the existing machines either goes to the oldest new instance that fits, or is the first job
left over. All jobs can therefore be placed in one round, one by one.

Equal jobs fill an instance until it is full: after one was placed, that instance is still the first that fits, because
those before it had no room for the shape. So a run of equal jobs is placed in one step, and new instances with equal
contents form one :class:`~lading.scheduling.packing.answer.MachineGroup` of consecutive ages.

Two rules are added. A location with an end time sorts before permanent ones, the soonest first, so that short jobs use
the time it has left. And a job that has waited longer than the patience reserves the location where it lacks least:
nothing later is placed into the room it needs, so its shortage only shrinks, and it starts in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.reason_text import MOST_NAMES
from lading.scheduling.model.reasons import NEW, Reason, because
from lading.scheduling.packing.answer import Packing, take
from lading.scheduling.packing.limits import Instances
from lading.scheduling.packing.problem import Problem, Room, Shape, copies, fits
from lading.scheduling.packing.shelf import Shelf, ShelfSlot


def pack(problem: Problem, effort: str = "fast") -> Packing:
    """Pack by the greedy policy. It has only one effort; the parameter is ignored."""
    return Greedy(problem).pack()


class Greedy:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.sites: list[ShelfSlot] = []
        self.shelf = Shelf()
        self.added = Shelf(by_age=True)
        self.ending: list[ShelfSlot] = []
        self.age = 0
        self.left: list[tuple[int, int, int, Reason]] = []
        self.position = [0] * len(problem.shapes)  # how many jobs of each shape are placed or left over
        self.hopeless: dict[int, Reason] = {}  # shapes that found no place, never retried: room only shrinks
        self.kept: dict[ShelfSlot, str] = {}  # machines reserved for a waiting job, with the location's name
        self.instances = Instances(problem.limits, (room.location for room in problem.rooms))
        self.of_label: dict[tuple[str, str], int] = {}
        self.labels = [problem.labels(shape) for shape in problem.shapes]
        self.wishes = [any(shape.wish) for shape in problem.shapes]
        # A machine with less than this free fits no shape, so it leaves the shelf.
        self.least = tuple(min((shape.need[i] for shape in problem.shapes), default=0) for i in range(4))
        for room in problem.rooms:
            self.open_room(room)

    def pack(self) -> Packing:
        may_keep = self.problem.patience is not None
        for number, jobs in self.problem.order:
            if may_keep or number not in self.hopeless:  # saves time: of ten thousand jobs most have no room
                self.place(number, jobs)
        for number, reason in self.hopeless.items():
            count = sum([job.count for job in self.problem.members[number]])
            if count > self.position[number]:
                self.leave(number, count - self.position[number], reason)
        sites = sorted(self.sites, key=lambda site: site.age)
        return Packing([site for site in sites if site.fills], self.left)

    def open_room(self, room: Room) -> None:
        location = room.location
        labels = {("task", task) for task in location.tasks} | {("run", run) for run in location.runs}
        self.add(ShelfSlot(None, room, 1, room.free, [], self.age, location.ends_at, labels))
        self.age += 1
        for label in labels:
            self.of_label[label] = self.of_label.get(label, 0) + 1

    def add(self, site: ShelfSlot) -> None:
        self.sites.append(site)
        self.shelve(site)

    def shelve(self, site: ShelfSlot) -> None:
        if site.ends_at is not None:
            self.ending.append(site)
            self.ending.sort(key=lambda other: (other.ends_at, other.free[0], other.free[1], other.age))
        elif fits(self.least, site.free):  # type: ignore[arg-type]
            (self.shelf if site.room is not None else self.added).add(site)

    def unshelve(self, site: ShelfSlot) -> None:
        if site.ends_at is not None:
            self.ending.remove(site)
        elif fits(self.least, site.free):  # type: ignore[arg-type]
            (self.shelf if site.room is not None else self.added).remove(site)

    def place(self, number: int, jobs: list[PlannedJob]) -> None:
        """Place a run of equal jobs as far as there is room; the rest waits."""
        left = sum([job.count for job in jobs])
        reason = self.hopeless.get(number)
        while left and reason is None:
            site = self.find(number)
            if site is None:
                reason = self.launch(number, left)
                continue
            left -= self.fill(site, number, left)
        if left:
            self.hopeless[number] = reason = reason or NEW
            self.wait(number, jobs, left, reason)

    def stays(self, room: Room | None, shape: Shape) -> bool:
        """Return whether a location lasts for as long as the shape runs; launched machines always do."""
        return room is None or room.location.lasts(shape.time, self.problem.now)

    def find(self, number: int) -> ShelfSlot | None:
        shape = self.problem.shapes[number]
        admits = self.admission(number)
        for site in self.ending:
            if fits(shape.need, site.free) and self.stays(site.room, shape) and (admits is None or admits(site)):
                return site
        return self.shelf.first(shape.need, admits) or self.added.first(shape.need, admits)

    def admission(self, number: int) -> Callable[[ShelfSlot], bool] | None:
        """Return a check of whether a machine grants the shape's wish and limits; None if every machine does."""
        full = [(kind, name) for kind, name, most in self.labels[number] if self.of_label.get((kind, name), 0) >= most]
        if not full and not self.wishes[number]:
            return None
        wish = self.problem.shapes[number].wish

        def admits(site: ShelfSlot) -> bool:
            machine = site.bin or site.room
            return machine is not None and machine.kind.grants(wish) and all(label in site.labels for label in full)

        return admits

    def fill(self, site: ShelfSlot, number: int, wanted: int) -> int:
        """Put jobs of a shape on the machines of a group, oldest first, until these are full or no job is left."""
        shape = self.problem.shapes[number]
        each = copies(shape.need, site.free, wanted)
        machines = min(site.size, wanted // each)
        labels = self.labels[number]
        if labels:
            machines = 1  # each further machine has to be checked against the limits again
        self.unshelve(site)
        if site.size > machines:
            rest = ShelfSlot(
                site.bin, site.room, site.size - machines, site.free, [], site.age + machines, None, set(site.labels)
            )
            rest.fills = [(other, per, start + per * machines) for other, per, start in site.fills]
            site.size = machines
            self.add(rest)
        site.fills.append((number, each, self.position[number]))
        site.free = take(site.free, shape.need, each)
        for kind, name, _ in labels:
            if (kind, name) not in site.labels:
                site.labels.add((kind, name))
                self.of_label[kind, name] = self.of_label.get((kind, name), 0) + 1
        self.shelve(site)
        self.position[number] += each * machines
        return each * machines

    def launch(self, number: int, wanted: int) -> Reason | None:
        """Add instances of the cheapest type that fits for the jobs of this run; return a reason if none can be
        added.
        """
        problem, shape = self.problem, self.problem.shapes[number]
        reason = self.forbidden(number)
        if reason:
            return reason
        granting = problem.on_sale.granting(shape.wish)
        chosen = granting.cheapest(shape.need)
        if chosen is not None and self.instances.left(chosen) == 0:
            large = [candidate for candidate in granting.bins if fits(shape.need, candidate.capacity)]
            chosen = next((candidate for candidate in large if self.instances.left(candidate)), None)
            if chosen is None:
                return self.instances.reason(large)
        if chosen is None:
            return self.no_launch(shape) if problem.explains else NEW
        each = copies(shape.need, chosen.capacity, wanted)
        size = 1 if self.labels[number] else min(-(-wanted // each), self.instances.left(chosen))
        self.add(ShelfSlot(chosen, None, size, chosen.capacity, [], self.age))
        self.age += size
        self.instances.add(chosen, size)
        return None

    def forbidden(self, number: int) -> Reason | None:
        """Return the reached limit on the instances of the task, the run or the site; None if no limit is reached."""
        for kind, name, most in self.labels[number]:
            if self.of_label.get((kind, name), 0) >= most:
                return because("group_instances", used=self.of_label.get((kind, name), 0), most=most, group=name)
        most_instances = self.problem.limits.instances
        if (
            self.problem.on_sale.granting(self.problem.shapes[number].wish).bins
            and most_instances is not None
            and self.instances.number >= most_instances
        ):
            return because("site_instances", used=self.instances.number, most=most_instances)
        return None

    def no_launch(self, shape: Shape) -> Reason:
        """Return why no instance can be launched for the shape: no type fits, or none that fits has capacity now."""
        later = [b for b in self.problem.blocked if b.kind.grants(shape.wish) and fits(shape.need, b.capacity)]
        if later:
            soonest = min(later, key=lambda b: (b.offering.unavailable_until or 0.0, b.price))
            until = soonest.offering.unavailable_until or 0.0
            why = soonest.offering.unavailable_because
            code = "launch_withheld" if why is not None and why.meaning.kind == "refused" else "no_capacity"
            reason = because(code, type=soonest.type.name, until=until)
            return reason if why is None else reason.with_also(why)
        return self.no_room(shape)

    def no_room(self, shape: Shape) -> Reason:
        """Return what the shape waits for on the locations that are large enough for it."""
        rooms = [r for r in self.problem.rooms if r.kind.grants(shape.wish) and fits(shape.need, r.capacity)]
        staying = [r for r in rooms if self.stays(r, shape)]
        if not staying:
            return because("outlasts", seconds=shape.time, location=rooms[0].location.name if rooms else None)
        return because("busy", locations=[each.location.name for each in staying[: MOST_NAMES + 1]])

    def wait(self, number: int, jobs: list[PlannedJob], left: int, reason: Reason) -> None:
        """Let the last ``left`` jobs of a run wait. Those past the patience reserve a location each, if possible."""
        for job in self.impatient(jobs, left) if self.problem.patience is not None else ():
            site = self.keep(number)
            if site is None:
                break
            count = min(job.count, left)
            self.leave(number, count, because("next_here", location=self.kept[site]))
            left -= count
        if left:
            self.leave(number, left, reason)

    def leave(self, number: int, count: int, reason: Reason) -> None:
        self.left.append((number, self.position[number], count, reason))
        self.position[number] += count

    def impatient(self, jobs: list[PlannedJob], left: int) -> Iterator[PlannedJob]:
        """Yield those of the last ``left`` jobs of a run that have waited longer than the patience."""
        patience, now = self.problem.patience, self.problem.now
        if patience is None:
            return
        passed = sum(job.count for job in jobs) - left
        for job in jobs:
            passed -= job.count
            if passed < 0 and now - job.queued_at > patience:
                yield job

    def keep(self, number: int) -> ShelfSlot | None:
        """Reserve what the shape needs where it lacks least; a location is reserved for at most one job."""
        shape = self.problem.shapes[number]
        best: tuple[float, int] | None = None
        chosen = None
        for site in self.sites:
            room = site.room
            if room is None or site in self.kept or not room.kind.grants(shape.wish):
                continue
            if not fits(shape.need, room.capacity) or not self.stays(room, shape):
                continue
            lack = sum(max(0, n - free) / n for n, free in zip(shape.need, site.free, strict=True) if n)
            if best is None or (lack, site.age) < best:
                best, chosen = (lack, site.age), site
        if chosen is not None:
            self.unshelve(chosen)
            left = tuple(max(0, free - n) for free, n in zip(chosen.free, shape.need, strict=True))
            chosen.free = left  # type: ignore[assignment]
            self.shelve(chosen)
            self.kept[chosen] = chosen.room.location.name if chosen.room else ""
        return chosen
