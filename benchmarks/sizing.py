"""What sizing rules waste on recorded tries: memory that was reserved but not used, and tries that had too little.

python -m benchmarks.sizing                                   synthetic tries
python -m benchmarks.sizing FILE... --history 0.3 --seeds 1 2 3 4 5
python -m benchmarks.sizing FILE... --history 0 --output json
python -m benchmarks.sizing FILE... --usd                     simulate what a second run costs on EC2

A file is a CSV table with the columns task, peak_bytes, seconds and asked_bytes, and optionally input_bytes,
asked_cpus, used_cpus and submitted (seconds), in the order of submission. The protocol is that of Bader et al., Sizey:
Memory-Efficient Execution of Scientific Workflow Tasks (CLUSTER 2024): a random part of the tries of each task with 34
tries or more is history; the others arrive one after the other, and the rules learn from them. A try with too little
memory runs for its whole duration and is repeated. Without history, tries arrive in the order of submission. Cpus are
measured on tries of ten seconds or more; a try counts as slowed down if it used more than 1.1 times the cpus that it
was packed by.

With --usd, a random half of the tries of each task is the first run, and the other half is the second run. Its jobs
arrive as recorded (column submitted), and are simulated on EC2 instances (policy greedy): with the authors' requests,
with what auto has learnt from the first run and learns in the second, and with exactly what each used.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Protocol

from benchmarks.workflows import goods
from lading.plugin.offline.simulation.conditions import Conditions
from lading.plugin.offline.simulation.report import Report
from lading.plugin.offline.simulation.simulator import simulate
from lading.plugin.offline.simulation.sized_tries import SHORT, SizedTries
from lading.plugin.offline.simulation.trace import Arrival
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.machine_traits import DEFAULT_ARCH
from lading.scheduling.model.plan import ASKED, SIZES
from lading.scheduling.model.resources import Resources
from lading.scheduling.placing.policies import GREEDY
from lading.scheduling.sizing.right_size import Sizes, quantile, sizes
from lading.scheduling.sizing.usage import SHORTEST_SECONDS, Usage, Use

MIB = 2**20
FEWEST = 34
REQUIRED = ("task", "peak_bytes", "seconds", "asked_bytes")


@dataclass(frozen=True)
class RecordedTry:
    """One try of a task. Memory is bytes."""

    input_bytes: int | None
    peak_bytes: int
    seconds: float
    asked_bytes: int
    asked_cpus: float
    used_cpus: float
    submitted: float | None = None

    @property
    def use(self) -> Use:
        return Use(
            cpus=self.asked_cpus,
            memory=math.ceil(self.asked_bytes / MIB),
            seconds=self.seconds,
            peak_memory=math.ceil(self.peak_bytes / MIB),
            cpu_seconds=self.used_cpus * self.seconds,
            input_size=self.input_bytes,
        )


class Rule(Protocol):
    """Sizes the tries of one task. Memory is bytes."""

    def first(self, job: RecordedTry) -> float: ...

    def again(self, job: RecordedTry, too_little: float) -> float:
        """Return the memory of a try that repeats one which fell short."""

    def learn(self, job: RecordedTry) -> None:
        """Take in what a try has used that ended well."""

    def cpus(self, job: RecordedTry) -> float:
        """Return the cpus that a job is packed by."""


class Asked:
    """What the authors of the workflow ask for."""

    def first(self, job: RecordedTry) -> float:
        return job.asked_bytes

    def again(self, job: RecordedTry, too_little: float) -> float:
        return max(2 * too_little, MIB)

    def learn(self, job: RecordedTry) -> None:
        pass

    def cpus(self, job: RecordedTry) -> float:
        return job.asked_cpus


class Largest(Asked):
    """The largest peak so far, and five per cent."""

    def __init__(self) -> None:
        self.largest = 0
        self.most_cpus = 0.0

    def first(self, job: RecordedTry) -> float:
        return self.largest * 1.05 or job.asked_bytes

    def learn(self, job: RecordedTry) -> None:
        self.largest = max(self.largest, job.peak_bytes)
        self.most_cpus = max(self.most_cpus, job.used_cpus)

    def cpus(self, job: RecordedTry) -> float:
        return self.most_cpus or job.asked_cpus


class Percentile(Asked):
    """The 99th percentile of all tries so far and a fifth, from the twentieth on; all are kept."""

    def __init__(self) -> None:
        self.tries: list[RecordedTry] = []

    def first(self, job: RecordedTry) -> float:
        return self._percentile([each.peak_bytes for each in self.tries]) or job.asked_bytes

    def learn(self, job: RecordedTry) -> None:
        self.tries.append(job)

    def cpus(self, job: RecordedTry) -> float:
        return self._percentile([each.used_cpus for each in self.tries]) or job.asked_cpus

    def _percentile(self, values: Sequence[float]) -> float:
        return 1.2 * (quantile(values, 0.99) or 0.0) if len(values) >= 20 else 0.0


class Auto(Asked):
    """The hint ``auto`` with the authors' amount until a try has ended, with the summary that the store keeps."""

    def __init__(self) -> None:
        self.usage = Usage()
        self._sizes: Sizes | None = None

    @property
    def sizes(self) -> Sizes:
        if self._sizes is None:
            self._sizes = sizes(self.usage)
        return self._sizes

    def first(self, job: RecordedTry) -> float:
        mib = self.sizes.amount("memory", job.input_bytes)
        return job.asked_bytes if mib is None else mib * MIB

    def again(self, job: RecordedTry, too_little: float) -> float:
        had = max(1, math.ceil(too_little / MIB))
        self._add(replace(job.use, memory=had, peak_memory=had, cause=SHORT))
        assert self.sizes.memory is not None
        return self.sizes.memory.after(too_little / MIB) * MIB

    def learn(self, job: RecordedTry) -> None:
        self._add(job.use)

    def _add(self, use: Use) -> None:
        self.usage.add(use)
        self._sizes = None

    def cpus(self, job: RecordedTry) -> float:
        return self.sizes.amount("cpus", job.input_bytes) or job.asked_cpus


RULES: Mapping[str, Callable[[], Rule]] = {
    "asked": Asked, "largest": Largest, "percentile": Percentile, "auto": Auto,
}  # fmt: skip


@dataclass
class Total:
    """What a rule has wasted, of the mean of all seeds.

    :param waste: GB hours that were reserved and not used, of all tries
    :param short: tries that had too little memory
    :param packed: cpu hours that tries of ten seconds or more were packed by
    :param used: cpu hours that they used
    :param slowed: how many of these got less than they used by over a tenth
    """

    waste: float = 0.0
    tries: float = 0
    short: float = 0
    packed: float = 0.0
    used: float = 0.0
    slowed: float = 0
    timed: float = field(default=0)

    def add(self, other: Total, part: float = 1.0) -> None:
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value * part)


def tries_of(path: Path) -> dict[str, list[RecordedTry]]:
    """The tries of each task of a file, by submission."""
    tasks: dict[str, list[RecordedTry]] = defaultdict(list)
    with path.open(encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if missing := [name for name in REQUIRED if name not in (reader.fieldnames or ())]:
            raise SystemExit(f"{path}: there is no column {missing[0]}; it needs {', '.join(REQUIRED)}")
        for row in reader:
            tasks[row["task"]].append(
                RecordedTry(
                    int(float(row["input_bytes"])) if row.get("input_bytes") else None,
                    int(float(row["peak_bytes"])),
                    float(row["seconds"]),
                    int(float(row["asked_bytes"])),
                    float(row.get("asked_cpus") or 1),
                    float(row.get("used_cpus") or 0),
                    float(row["submitted"]) if row.get("submitted") else None,
                )
            )
    return tasks


def made(seed: int) -> dict[str, list[RecordedTry]]:
    """Tries of tasks whose need is constant, follows their inputs, has outliers, or has two levels."""
    chance = random.Random(seed)

    def job(size: float, gib: float, asked: int) -> RecordedTry:
        return RecordedTry(
            int(size), int(gib * 2**30), chance.uniform(30, 3000), asked * 2**30, 4, chance.uniform(0.9, 1.1)
        )

    def size() -> float:
        return chance.lognormvariate(22, 0.8)

    needs: Mapping[str, tuple[int, Callable[[float], float]]] = {
        "index": (72, lambda _: 38 + chance.uniform(0, 0.1)),
        "sort": (16, lambda size: 0.5 + 1.9 * size / 2**30 * chance.uniform(0.9, 1)),
        "mark_duplicates": (64, lambda _: 14 + chance.expovariate(0.5) if chance.random() < 0.98 else 45),
        "call": (16, lambda _: chance.choice([4, 11]) + chance.gauss(0, 0.1)),
        "report": (6, lambda _: chance.uniform(0.01, 0.02)),
    }
    sized = {name: [(each, need(each)) for each in (size() for _ in range(120))] for name, (_, need) in needs.items()}
    return {name: [job(*each, needs[name][0]) for each in tries] for name, tries in sized.items()}


def replay(rule: Rule, tries: Sequence[RecordedTry], history: int) -> Total:
    """Return what a rule wastes on the tries of a task that are no history."""
    total = Total()
    for each in tries[:history]:
        rule.learn(each)
    for each in tries[history:]:
        memory = rule.first(each)
        while memory < each.peak_bytes:
            total.waste += memory * each.seconds
            total.short += 1
            memory = rule.again(each, memory)
        total.waste += (memory - each.peak_bytes) * each.seconds
        total.tries += 1
        if each.seconds >= SHORTEST_SECONDS:
            cpus = rule.cpus(each)
            total.packed += cpus * each.seconds / 3600
            total.used += each.used_cpus * each.seconds / 3600
            total.slowed += each.used_cpus > 1.1 * cpus
            total.timed += 1
        rule.learn(each)
    total.waste /= 3.6e12
    return total


def measure(tasks: Mapping[str, Sequence[RecordedTry]], history: float, seeds: Sequence[int]) -> dict[str, Total]:
    """Return the totals of each rule, of the mean of all seeds."""
    totals = {name: Total() for name in RULES}
    for seed in seeds if history else seeds[:1]:
        for recorded in (each for each in tasks.values() if len(each) >= FEWEST):
            tries = list(recorded)
            if history:
                random.Random(seed).shuffle(tries)
            for name, rule in RULES.items():
                of_task = replay(rule(), tries, int(len(tries) * history))
                totals[name].add(of_task, 1 / (len(seeds) if history else 1))
    return totals


def second_run(tasks: Mapping[str, Sequence[RecordedTry]], seed: int) -> dict[str, Report]:
    """Return what the second half of the tries of each task costs by what its jobs request."""
    chance, known, trace = random.Random(seed), defaultdict[str, Usage](Usage), list[Arrival]()
    for task, recorded in tasks.items():
        first = set(chance.sample(range(len(recorded)), len(recorded) // 2))
        for number, each in enumerate(recorded):
            if number in first:
                known[task].add(each.use)
                continue
            if each.submitted is None:
                raise SystemExit("--usd: the column submitted is missing, which says when each try arrived, in seconds")
            asked = Resources(each.asked_cpus, each.use.memory)
            job = PlannedJob(f"{task} {number}", asked, arch=DEFAULT_ARCH, task=task)
            trace.append(Arrival(job, each.submitted, max(each.seconds, 0.1), used=each.use))
    trace.sort(key=lambda each: each.arrival)
    catalogue, found = goods(), {}
    for how in SIZES:
        before = {task: Usage.load(usage.dump()) for task, usage in known.items()}
        tries = SizedTries(trace, how, catalogue, before)
        found[how] = simulate(trace, catalogue, policy=GREEDY, tries=tries, conditions=Conditions(boot_seconds=60.0))
    return found


def print_second_runs(recordings: Mapping[str, Mapping[str, Sequence[RecordedTry]]], seed: int) -> None:
    print(f"{'':16}{'sizes':8}{'USD':>10}{'factor':>8}{'seconds':>10}{'factor':>8}{'short':>7}{'jobs':>7}")
    sums: dict[str, float] = defaultdict(float)
    for name, tasks in recordings.items():
        found = second_run(tasks, seed)
        asked = found[ASKED]
        for how, each in found.items():
            sums[how] += each.cost
            print(
                f"{name:16}{how:8}{each.cost:10.2f}{each.cost / asked.cost:8.3f}{each.makespan:10.0f}"
                f"{each.makespan / asked.makespan:8.3f}{each.short:7}{each.jobs:7}",
                flush=True,
            )
    if len(recordings) > 1:
        for how, usd in sums.items():
            print(f"{'sum':16}{how:8}{usd:10.2f}{usd / sums[ASKED]:8.3f}")


def rows(totals: Mapping[str, Mapping[str, Total]]) -> Iterator[str]:
    yield (
        f"{'':16}{'rule':12}{'GB h wasted':>12}{'short':>8}{'tries':>8}{'short %':>9}{'cpus packed/used':>18}"
        f"{'slowed %':>10}"
    )
    for name, rules in totals.items():
        for rule, total in rules.items():
            yield (
                f"{name:16}{rule:12}{total.waste:12.1f}{total.short:8.0f}{total.tries:8.0f}"
                f"{100 * total.short / max(total.tries, 1):9.2f}{total.packed / max(total.used, 1e-9):18.3f}"
                f"{100 * total.slowed / max(total.timed, 1):10.2f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument(
        "--history", type=float, default=0.3, help="the part of the tries that are known in advance, 0 to 1"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--output", choices=("table", "json"), default="table")
    parser.add_argument(
        "--usd", action="store_true", help="simulate what a second run costs on EC2 with different requests"
    )
    options = parser.parse_args()
    recordings = {path.stem: tries_of(path) for path in options.files} or {"made": made(1)}
    if options.usd:
        print_second_runs(recordings, options.seeds[0])
        return
    totals = {name: measure(tasks, options.history, options.seeds) for name, tasks in recordings.items()}
    if len(totals) > 1:
        whole = {rule: Total() for rule in RULES}
        for rules in totals.values():
            for rule, total in rules.items():
                whole[rule].add(total)
        totals["sum"] = whole
    if options.output == "json":
        print(
            json.dumps({name: {rule: asdict(each) for rule, each in rules.items()} for name, rules in totals.items()})
        )
    else:
        print("\n".join(rows(totals)))


if __name__ == "__main__":
    main()
