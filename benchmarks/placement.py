"""What one decision over several sites takes: python -m benchmarks.placement [JOBS [SITES [LOCATIONS]]]

Prints the milliseconds of processor time of the best of three, for jobs that name nothing, that have targets in another
order than that of the sites file, and whose targets are shuffled.
"""

from __future__ import annotations

import sys
import time

from lading.scheduling.location import Location
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.stops import as_text
from lading.scheduling.matching.waiting import Waiting
from lading.scheduling.placement import assign
from lading.scheduling.resources import Resources


def sites(count: int, locations: int) -> list[SiteView]:
    """Sites whose machines are empty."""
    there = [Location(f"machine{number}", Resources(cpus=8, memory=32768)) for number in range(locations)]
    return [SiteView(name=f"site{number}", locations=there, possible=there) for number in range(count)]


def main() -> None:
    jobs, count, locations = given()
    names = [f"site{number}" for number in range(count)]
    cases = {
        "no targets": None,
        "targets": as_text([*names[1:], *names[:1]], []),
        "targets, shuffled": as_text(names, ["shuffle"]),
    }
    for case, targets in cases.items():
        waiting = [
            Waiting(name=f"{number:08}", resources=Resources(1 + number % 4, 1024 * (1 + number % 3)), targets=targets)
            for number in range(jobs)
        ]
        taken = []
        for _ in range(3):
            there, begun = sites(count, locations), time.process_time()
            found = assign(waiting, there, now=0.0)
            taken.append(time.process_time() - begun)
        print(f"{case}: {min(taken) * 1000:.0f} ms, {len(found.placed):,} of {jobs:,} placed")


def given() -> list[int]:
    """The numbers on the command line, and the defaults of those that are not there."""
    written = [int(each) for each in sys.argv[1:4]]
    return [*written, *[5000, 5, 200][len(written) :]]


if __name__ == "__main__":
    main()
