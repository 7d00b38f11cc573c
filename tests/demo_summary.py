"""What the demo says about its runs: a row per task, and a few lines about how they were packed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median_low
from typing import Any

from rich import box
from rich.table import Table

# Airflow's [core] parallelism where nobody has changed it: the slots of LocalExecutor.
SLOTS = 32
GIB = 1024

# What a line is about, and the line.
Line = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Job:
    """A row of ``airflow lading jobs``, as far as the demo needs it. Memory is MiB, times are epoch seconds."""

    task: str
    site: str
    location: str
    outcome: str
    cpus: float
    memory: int
    queued_at: float
    peak_memory: float | None = None
    cpu_seconds: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    batch_job: str | None = None
    node: str | None = None
    index: int = -1

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Job:
        return cls(
            task=row["task_id"],
            site=row["site"] or "",
            location=row["location"] or "",
            outcome="ok" if row["state"] == "succeeded" else f"{row['state']} {row['cause'] or ''}".rstrip(),
            cpus=float(row["cpus"]),
            memory=int(row["memory_mib"]),
            queued_at=float(row["queued_at"]),
            peak_memory=number(row["peak_memory_mib"]),
            cpu_seconds=number(row["cpu_seconds"]),
            started_at=number(row["started_at"]),
            ended_at=number(row["ended_at"]),
            batch_job=row["batch_job"],
            node=row["node"],
            index=int(row["map_index"]),
        )

    @property
    def waited(self) -> float | None:
        return None if self.started_at is None else self.started_at - self.queued_at

    @property
    def ran(self) -> float | None:
        return None if self.started_at is None or self.ended_at is None else self.ended_at - self.started_at


def number(text: str | None) -> float | None:
    """Airflow's commands write every number as text in JSON."""
    return None if text is None else float(text)


# -- a row per task


def table(runs: Sequence[Sequence[Job]]) -> Table:
    """A row per task of the last run, in order of their start, with the median memory that each run requested."""
    shown = Table(
        title="What ran where", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )
    tasks = by_task(runs[-1])
    has_batch_jobs = any(job.batch_job for job in runs[-1])
    shown.add_column("task", no_wrap=True)
    shown.add_column("jobs", justify="right", no_wrap=True)
    shown.add_column("where", overflow="fold")  # what a narrow terminal has no room for is wrapped in these columns
    if has_batch_jobs:
        shown.add_column("batch job", overflow="fold")
    shown.add_column("outcome", overflow="fold", min_width=len("outcome"))
    for heading in ("cpus", "CPU s", "MiB", "peak", "waited", "ran s"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for task, jobs in sorted(tasks.items(), key=lambda each: min(job.started_at or 0 for job in each[1])):
        requested = [median_low(job.memory for job in its) for run in runs if (its := by_task(run).get(task))]
        shown.add_row(
            task,
            str(len(jobs)),
            where(jobs),
            *([", ".join(job.batch_job for job in jobs if job.batch_job)] if has_batch_jobs else []),
            outcomes(jobs),
            f"{max(job.cpus for job in jobs):g}",
            most(jobs, lambda job: job.cpu_seconds, ".1f"),
            " → ".join(f"{memory:,}" for memory, _ in groupby(requested)),
            most(jobs, lambda job: job.peak_memory, ",.0f"),
            most(jobs, lambda job: job.waited, ".1f"),
            most(jobs, lambda job: job.ran, ".1f"),
        )
    return shown


def by_task(jobs: Sequence[Job]) -> dict[str, list[Job]]:
    tasks: dict[str, list[Job]] = {}
    for job in sorted(jobs, key=lambda job: job.index):
        tasks.setdefault(job.task, []).append(job)
    return tasks


def where(jobs: Sequence[Job]) -> str:
    """The sites of jobs, each with its machine or the number of them."""
    parts = []
    for site in dict.fromkeys(job.site for job in jobs):
        machines = [job.node or job.location for job in jobs if job.site == site]
        several = len(set(machines)) > 1
        place = f"{site} {machines[0]}" if not several else site
        on = f" on {len(set(machines))} machines" if several else ""
        parts.append(f"{counted([place] * len(machines))}{on}")
    return ", ".join(parts)


def counted(names: Iterable[str]) -> str:
    """Each name once, with how often it occurs."""
    return ", ".join(f"{name} × {count}" if count > 1 else name for name, count in Counter(names).items())


def outcomes(jobs: Sequence[Job]) -> str:
    """Each outcome once, after how many of several jobs had it."""
    names = Counter(job.outcome for job in jobs)
    return ", ".join(f"{count} {name}" if len(jobs) > 1 else name for name, count in names.items())


def most(jobs: Sequence[Job], value: Callable[[Job], float | None], form: str) -> str:
    known = [found for job in jobs if (found := value(job)) is not None]
    return format(max(known), form) if known else ""


# -- lines


def run_line(jobs: Sequence[Job]) -> str:
    """How long a run took, and how much of it went on at once."""
    spans = [(job.started_at, job.ended_at) for job in jobs if job.started_at is not None and job.ended_at is not None]
    if not spans:
        return "no job ran"
    took = max(ended for _, ended in spans) - min(started for started, _ in spans)
    return f"{counting(len(spans), 'job')} in {took:.0f} s, at most {len(most_at_once(jobs))} at once"


def most_at_once(jobs: Sequence[Job], since: Callable[[Job], float | None] = lambda job: job.started_at) -> list[Job]:
    """The jobs of the moment at which most of them were running, or otherwise past ``since`` and not ended."""
    spans = [(begin, job) for job in jobs if (begin := since(job)) is not None and job.ended_at is not None]
    found = [[job for begin, job in spans if begin <= moment < (job.ended_at or 0)] for moment, _ in spans]
    return max(found, key=len, default=[])


def memory_line(jobs: Sequence[Job]) -> str:
    """What the jobs of a run requested together, and what they used."""
    requested, used = sum(job.memory for job in jobs), sum(job.peak_memory or 0 for job in jobs)
    return f"requested {requested / GIB:.1f} GiB in all, of which they used {used / GIB:.1f}"


def packed_lines(runs: Sequence[Sequence[Job]], cpus: float, memory: int) -> list[Line]:
    """What a machine of this size did in two runs of a Dag, and what LocalExecutor would have done with it."""
    first, second = runs
    return [
        ("This machine", f"{cpus:g} cores and {memory / GIB:.1f} GiB for tasks"),
        ("First run", f"{run_line(first)}; they {memory_line(first)}"),
        ("Second run", f"{run_line(second)}; {sized_line(first, second)}they {memory_line(second)}"),
        ("LocalExecutor", local_executor(second, cpus, memory)),
    ]


def sized_line(first: Sequence[Job], second: Sequence[Job]) -> str:
    """How many jobs requested less memory than those of their task did at first; empty: none.

    Tries of less than two seconds size no task, so on a fast machine there may be none.
    """
    requested: dict[str, int] = {}
    for job in first:
        requested[job.task] = max(job.memory, requested.get(job.task, 0))
    sized = sum(job.memory < requested.get(job.task, 0) for job in second)
    return f"{sized} of them sized by what the first run used, " if sized else ""


def local_executor(jobs: Sequence[Job], cpus: float, memory: int) -> str:
    """What an executor would have started at once that only counts slots, and what of the machine that takes.

    The jobs that were queued or running at one moment were ready then, whatever starts them.
    """
    ready = most_at_once(jobs, lambda job: job.queued_at)
    started = sorted(ready, key=lambda job: job.queued_at)[:SLOTS]
    used = sum(job.peak_memory or 0 for job in started)
    fits = "" if used <= memory else ", more than there is"
    return (
        f"counts {SLOTS} slots ([core] parallelism), not cores or memory: it would have started {len(started)} tasks "
        f"at once, which request {sum(job.cpus for job in started):g} cores and use up to {used / GIB:.1f} GiB{fits}"
    )


def batch_lines(jobs: Sequence[Job]) -> list[Line]:
    """The submissions of a run, a job array on one line."""
    arrays: dict[tuple[str, str], list[Job]] = {}
    for job in sorted(jobs, key=lambda job: (job.started_at or 0, job.index)):
        arrays.setdefault((job.task, (job.batch_job or "").partition("_")[0]), []).append(job)
    lines = [("Run", f"{run_line(jobs)}; {counting(len(arrays), 'submission')}")]
    for (task, native), members in arrays.items():
        nodes = counted(job.node or "?" for job in members)
        is_array = any("_" in (job.batch_job or "") for job in members)
        what = f"job array {native}, {counting(len(members), 'element')}" if is_array else f"job {native}"
        lines.append((task, f"{what}, on {nodes}"))
    return lines


def bought_lines(
    jobs: Sequence[Job], instances: Sequence[Mapping[str, Any]], if_bought: Mapping[str, Any]
) -> list[Line]:
    """What was bought for a run, and what other ways to buy would have cost.

    :param instances: rows of ``airflow lading instances --ended``, all of which have ended
    :param if_bought: by policy: ``usd``, ``machines`` and ``seconds`` of the same jobs (:mod:`tests.demo_costs`);
        empty: none ran on a bought machine
    """
    sites = Counter(job.site for job in jobs)
    kinds = Counter(f"{each['instance_type']} {each['capacity_type']} in {each['zone']}" for each in instances)
    usd = sum(float(each["usd"] or 0) for each in instances)
    seconds = sum(float(each["ended_at"]) - float(each["launched_at"]) for each in instances)
    bought = ", ".join(f"{count} × {kind}" for kind, count in kinds.items()) or "nothing"
    names = {"forecast": "Lading", "greedy": "greedy packing", "alone": "one machine per task"}
    compared = "; ".join(
        f"{name} {each['usd']:.4f} USD ({counting(each['machines'], 'machine')}, {each['seconds']:.0f} s)"
        for policy, name in names.items()
        if (each := if_bought.get(policy))
    )
    simulated = f"the jobs at cloud, with the same prices and boots: {compared}" if compared else "no job ran at cloud"
    return [
        ("Run", f"{run_line(jobs)}: {', '.join(f'{count} at {site}' for site, count in sites.items())}"),
        ("Bought", f"{bought}: {seconds:.0f} s in all for {usd:.4f} USD"),
        ("Simulated", simulated),
    ]


def counting(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
