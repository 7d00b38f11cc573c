"""What one decision on machines to buy takes: python -m benchmarks.provisioning [JOBS [SHAPES [MACHINES]]]

Prints the milliseconds of processor time of the best of three, for jobs of some shapes with predicted lengths that wait
at a site whose machines are half full, by the policy that decides; and how long one wave of them takes with every
length alike, as before anything has ended.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter

from benchmarks.machine_hours import modern
from lading.scheduling.matching.market import MachineMarket
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.location import AssignedJob, Location
from lading.scheduling.model.prediction import Prediction
from lading.scheduling.model.resources import Resources
from lading.scheduling.provisioning.decision import decide
from lading.scheduling.provisioning.launch import Provision

GIB = 1024
NOW = 10_000.0


def jobs(number: int, shapes: int, *, alike: bool) -> list[PlannedJob]:
    """Jobs that wait; each shape has a length of its own, or all have the same."""
    chance = random.Random(5)
    kinds = [
        (Resources(cpus := chance.choice((1, 2, 4, 8)), cpus * chance.randint(1, 8) * GIB), chance.uniform(60, 7_200))
        for _ in range(shapes)
    ]
    return [
        PlannedJob(
            f"j{i:06}", size, queued_at=NOW - 10, arch="x86_64", expected=Prediction(900.0 if alike else length, 0.3)
        )
        for i, (size, length) in enumerate(chance.choice(kinds) for _ in range(number))
    ]


def there(number: int) -> list[Location]:
    """Machines with running jobs, and as much room."""
    chance = random.Random(6)
    offer = modern().types["m7i.4xlarge"]
    half = Resources(offer.capacity.cpus / 2, offer.capacity.memory // 2)
    return [
        Location(
            f"i-{i:05}",
            offer.capacity,
            half,
            offer.name,
            usd_per_hour=offer.offerings[0].usd_per_hour,
            arch=offer.arch,
            launched_at=NOW - 3_000,
            jobs=1,
            running_jobs=(AssignedJob(NOW - 600, Prediction(chance.uniform(700, 7_200), 0.3), half),),
        )
        for i in range(number)
    ]


def measure(what: str, waiting: list[PlannedJob], machines: list[Location], policy: str) -> None:
    market = MachineMarket(modern(), policy=policy)
    found: Provision = Provision()
    best = float("inf")
    for turn in range(3):
        begin = time.process_time()
        found = decide(waiting, machines, market, now=NOW + turn)  # what is asked twice at one time is planned once
        best = min(best, time.process_time() - begin)
    types = Counter(each.kind for each in found.launches)
    words = ", ".join(f"{n} {name}" for name, n in types.most_common(3))
    print(f"{what}, {policy}: {1000 * best:.0f} ms, {len(found.launches)} launches ({words}, …)", flush=True)


def main() -> None:
    number, shapes, machines = (int(word) for word in [*sys.argv[1:], *("5000", "50", "300")[len(sys.argv) - 1 :]])
    for alike in False, True:
        what = f"{number:,} jobs of {shapes} shapes on {machines} machines, lengths {'alike' if alike else 'differ'}"
        for policy in "forecast", "greedy":
            measure(what, jobs(number, shapes, alike=alike), there(machines), policy)


if __name__ == "__main__":
    main()
