"""Where the money goes that a simulated day costs over the bound of hours: boots, empty machines, room that stays free.

What runs on a machine is worth what it adds to the bound, so that these parts are the whole of what is over it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass

from lading.plugin.offline.simulation.conditions import Conditions
from lading.plugin.offline.simulation.report import Report
from lading.plugin.offline.simulation.simulated_machines import SimulatedMachine
from lading.plugin.offline.simulation.simulator import Simulation
from lading.plugin.offline.simulation.trace import Arrival
from lading.scheduling.model.catalogue import Catalogue
from lading.scheduling.model.plan import InstanceLimits, Objective
from lading.scheduling.packing.bound import relax
from lading.scheduling.packing.problem import pose
from lading.scheduling.provisioning.scale_in import ScaleIn


@dataclass(frozen=True, slots=True)
class Losses:
    """What was paid for and ran nothing, in USD or as parts of the bound.

    :param boot: machines that came up
    :param empty: machines that were up and had no jobs
    :param unfilled: room that was free even when its machine was fullest, for as long as that had jobs
    :param partners: room that was used for a part of that time: before a job came, or after it had ended
    """

    boot: float = 0.0
    empty: float = 0.0
    unfilled: float = 0.0
    partners: float = 0.0


@dataclass(frozen=True, slots=True)
class Life:
    """A machine from its launch to its end, and the jobs that it had: when each began and ended, and its shape.

    :param price: USD per second
    """

    price: float
    launched: float
    ready: float
    ended: float
    jobs: Sequence[tuple[float, float, int]]

    def losses(self, worth: Callable[[int], float]) -> Losses:
        """USD that were lost.

        :param worth: USD per second of a job, by its shape
        """
        changes = [(begin, worth(shape), 1) for begin, _, shape in self.jobs]
        changes += [(end, -worth(shape), -1) for _, end, shape in self.jobs]
        empty = free = busy = held = 0.0
        least, number, since = self.price, 0, self.ready
        for when, more, sign in [*sorted(changes), (self.ended, 0.0, 0)]:
            seconds, since = when - since, when
            if not number:
                empty += self.price * seconds
            elif seconds > 0:
                busy, free, least = busy + seconds, free + (self.price - held) * seconds, min(least, self.price - held)
            held, number = held + more, number + sign
        return Losses(self.price * (self.ready - self.launched), empty, least * busy, free - least * busy)


class Watched(Simulation):
    """A simulation that remembers what its machines had."""

    def __init__(self, trace: Sequence[Arrival], catalogue: Catalogue, policy: str, effort: str) -> None:
        super().__init__(trace, catalogue, InstanceLimits(), policy, effort, Objective(), ScaleIn(), Conditions())
        self.jobs: defaultdict[str, list[tuple[float, float, int]]] = defaultdict(list)
        self.lives: list[Life] = []

    def start(self, machine: SimulatedMachine, shape: int, number: int, now: float) -> None:
        before = set(machine.jobs)
        super().start(machine, shape, number, now)
        begins = [(job, machine.running[job].begun) for job in machine.jobs.keys() - before]
        self.jobs[machine.name] += [(begin, begin + self.durations[job], shape) for job, begin in begins]

    def release(self, machine: SimulatedMachine, time: float) -> None:
        super().release(machine, time)
        price = machine.launch.usd_per_hour / 3600
        self.lives.append(Life(price, machine.launched_at, machine.ready_at, time, self.jobs.pop(machine.name, ())))

    def losses(self) -> Losses:
        """The losses of all machines, as parts of the bound; after the run."""
        hours = {queue.job.name: queue.hours for queue in self.queues}
        problem = pose(
            [queue.job for queue in self.queues], [], self.catalogue, InstanceLimits(), Objective(), 0.0, None
        )
        found = relax(problem, [sum(hours[job.name] for job in jobs) for jobs in problem.members], 0.0, [])
        worth = {
            int(job.name): float(usd) / 3600
            for jobs, usd in zip(problem.members, found.worth, strict=True)
            for job in jobs
        }
        every = [astuple(life.losses(worth.__getitem__)) for life in self.lives]
        return Losses(*(sum(part) / found.value for part in zip(*every, strict=True)))


def watched(trace: Sequence[Arrival], catalogue: Catalogue, policy: str, effort: str) -> tuple[Report, Losses]:
    """Simulate a trace, where nothing fails, and say where the money went."""
    run = Watched(trace, catalogue, policy, effort)
    return run.run(lambda done: None), run.losses()
