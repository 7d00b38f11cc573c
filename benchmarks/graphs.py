"""Generated workflows: fans, diamonds, the shapes of Montage and Epigenomics, and layers of random tasks.

The lengths of a task are log-normal, and a workflow always has the same lengths. Use these workflows to check a change
of the planner on runs for which it was not made: ``python -m benchmarks.workflows --generated``.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from functools import partial

from lading.plugin.offline.simulation.trace import Arrival
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.machine_traits import DEFAULT_ARCH
from lading.scheduling.model.resources import Resources


class Graph:
    """A workflow in the making."""

    def __init__(self, seed: int) -> None:
        self.random, self.jobs = random.Random(seed), list[Arrival]()

    def add(
        self, task: str, median: float, sigma: float = 0.0, after: Sequence[str] = (), cpus: int = 1, mib: int = 1024
    ) -> str:
        """Add a job and return its name.

        :param median: of the lengths of the task, seconds
        :param sigma: the standard deviation of the logarithm of its lengths
        :param after: the jobs for which it waits
        """
        name = f"{task}-{len(self.jobs)}"
        job = PlannedJob(name, Resources(cpus, mib), arch=DEFAULT_ARCH, task=task, run="")
        seconds = max(0.1, median * math.exp(sigma * self.random.gauss(0.0, 1.0)))
        self.jobs.append(Arrival(job, 0.0, seconds, tuple(after)))
        return name


def fan(number: int, median: float, sigma: float, seed: int, cpus: int = 1, *, is_split: bool = False) -> list[Arrival]:
    """Independent jobs, or such jobs after a short one."""
    graph = Graph(seed)
    after = [graph.add("split", 2.0)] if is_split else []
    for _ in range(number):
        graph.add("work", median, sigma, after, cpus)
    return graph.jobs


def diamond(times: float, sigma: float, seed: int) -> list[Arrival]:
    graph = Graph(seed)
    split = graph.add("split", 30 * times)
    aligned = [graph.add("align", 300 * times, sigma, [split], 2, 3000) for _ in range(40)]
    graph.add("merge", 120 * times, 0.0, [graph.add("sort", 60 * times, sigma, [each]) for each in aligned])
    return graph.jobs


def montage(times: float, seed: int) -> list[Arrival]:
    graph = Graph(seed)
    projected = [graph.add("project", 20 * times, 0.3) for _ in range(45)]
    fits = [graph.add("fit", 8 * times, 0.5, graph.random.sample(projected, 2)) for _ in range(150)]
    model = graph.add("model", 100 * times, 0.0, [graph.add("concat", 30 * times, 0.0, fits)])
    levelled = [graph.add("background", 8 * times, 0.3, [model, each]) for each in projected]
    sum_ = graph.add("add", 60 * times, 0.0, [graph.add("table", 15 * times, 0.0, levelled)], 1, 4000)
    graph.add("jpeg", 5 * times, 0.0, [graph.add("shrink", 20 * times, 0.0, [sum_])])
    return graph.jobs


def epigenomics(times: float, seed: int) -> list[Arrival]:
    graph = Graph(seed)
    merged = []
    for _ in range(2):
        split, mapped = graph.add("split", 40 * times, 0.2), []
        for _ in range(20):
            job = graph.add("filter", 60 * times, 0.8, [split])
            for task, median in (("convert", 15 * times), ("pack", 10 * times)):
                job = graph.add(task, median, 0.5, [job])
            mapped.append(graph.add("map", 300 * times, 1.0, [job], 1, 2500))
        merged.append(graph.add("merge", 20 * times, 0.3, mapped))
    index = graph.add("index", 30 * times, 0.0, [graph.add("merge all", 40 * times, 0.0, merged)])
    graph.add("pileup", 40 * times, 0.0, [index])
    return graph.jobs


def layers(times: float, seed: int) -> list[Arrival]:
    """Four to nine layers of one to three tasks, whose medians differ with a standard deviation of 1.5 (logarithm)."""
    graph, before = Graph(seed), list[str]()
    draw = graph.random
    for layer in range(draw.randint(4, 9)):
        here: list[str] = []
        for number in range(draw.randint(1, 3)):
            median, sigma = times * math.exp(draw.gauss(0.0, 1.5)), draw.choice([0.1, 0.3, 0.5, 1.0, 1.5])
            width, cpus = draw.choice([1, 1, 4, 8, 20, 50]), draw.choice([1, 1, 1, 2, 4])
            mib = draw.choice([500, 1000, 3000, 8000])
            for _ in range(width):
                after = draw.sample(before, min(len(before), draw.randint(1, 3)))
                here.append(graph.add(f"task {layer} {number}", median, sigma, after, cpus, mib))
        before = here
    return graph.jobs


# By seed, by how much the lengths of layers are multiplied.
TIMES = (10, 30, 100, 300, 1000, 30, 300)
GENERATED: dict[str, Callable[[], list[Arrival]]] = {
    "fan-30s": partial(fan, 100, 30.0, 0.0, 1),
    "fan-split-30s": partial(fan, 100, 30.0, 0.0, 1, is_split=True),
    "fan-lognormal": partial(fan, 100, 420.0, 0.9, 26),
    "fan-4-cpus": partial(fan, 100, 400.0, 0.8, 2, 4),
    **{f"diamond-{times:g}": partial(diamond, times, sigma, 1) for times, sigma in ((0.1, 0.5), (1, 0.8), (10, 1.0))},
    **{f"montage-{times:g}": partial(montage, times, 1) for times in (0.3, 5)},
    **{f"epigenomics-{times:g}": partial(epigenomics, times, 1) for times in (0.1, 1, 10)},
    **{f"layers-{times}-{seed}": partial(layers, times, seed) for seed, times in enumerate(TIMES, 1)},
}
