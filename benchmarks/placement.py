"""What one decision over several sites takes: python -m benchmarks.placement [JOBS [SITES [LOCATIONS]]]

Prints the milliseconds of processor time of the best of three, for jobs that name nothing, that have targets in another
order than that of the sites file, and whose targets are shuffled; then for jobs that name nothing at sites of other
policies, of which ``third party`` takes the first location that it is offered.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.stops import as_text
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.resources import Resources
from lading.scheduling.placing.choosing import Choice
from lading.scheduling.placing.placement import assign
from lading.scheduling.placing.policies import Files, PolicyContext


class First:
    """A policy of a third party."""

    def get_location(
        self, context: PolicyContext, job: PlannedJob, requirement: Resources, available: Any, jobs: Any, locations: Any
    ) -> str:
        return str(next(iter(available)))


def sites(count: int, locations: int, policy: str = "greedy") -> list[SiteView]:
    """Sites whose machines are empty."""
    there = [Location(f"machine{number}", Resources(cpus=8, memory=32768)) for number in range(locations)]
    return [SiteView(name=f"site{number}", locations=there, possible=there, policy=policy) for number in range(count)]


def main() -> None:
    jobs, count, locations = given()
    names = [f"site{number}" for number in range(count)]
    cases = {
        "no targets": None,
        "targets": as_text([*names[1:], *names[:1]], []),
        "targets, shuffled": as_text(names, ["shuffle"]),
    }
    for case, targets in cases.items():
        measure(case, waiting(jobs, targets), count, locations)
    for policy in ("priced", "first_come", "data_locality", "third party"):
        measure(policy, waiting(jobs), count, locations, policy)


def waiting(jobs: int, targets: str | None = None) -> list[WaitingJob]:
    """Jobs of twelve shapes, each with an input file."""
    return [
        WaitingJob(name=f"{number:08}", resources=Resources(1 + number % 4, 1024 * (1 + number % 3)), targets=targets)
        for number in range(jobs)
    ]


def measure(case: str, jobs: list[WaitingJob], count: int, locations: int, policy: str = "greedy") -> None:
    inputs = {job.name: {f"file:///{job.name}": 1} for job in jobs}
    holders = {f"file:///{job.name}": frozenset({("site0", f"machine{int(job.name) % locations}")}) for job in jobs}
    taken = []
    for _ in range(3):
        there, begun = sites(count, locations, policy), time.process_time()
        choice = Choice(0.0, {"third party": First()}, Files(inputs, holders))
        found = assign(jobs, there, now=0.0, choice=choice)
        taken.append(time.process_time() - begun)
    print(f"{case}: {min(taken) * 1000:.0f} ms, {len(found.placed):,} of {len(jobs):,} placed")


def given() -> list[int]:
    written = [int(each) for each in sys.argv[1:4]]
    return [*written, *[5000, 5, 200][len(written) :]]


if __name__ == "__main__":
    main()
