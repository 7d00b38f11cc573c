"""The command `lading plan` as a user runs it: seconds of a processor, with start-up, and MiB at the peak.

    python -m benchmarks.offline

Standard output has no buffer, as in containers (PYTHONUNBUFFERED). The first run, which compiles modules and the inner
loop where that was not done yet, is not counted. The machine is printed with the figures.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.packing import FAMILIES, different, machine, pipeline
from lading.scheduling.job import PlannedJob

# Printed by the process itself: what the system counts for a child has in it what its parent had.
CODE = """
import sys, time
from lading.plugin.offline.command import main
status = main(sys.argv[1:])
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(time.process_time(), int(peak) / 1024, file=sys.stderr)
sys.exit(status)
"""


def counted(jobs: Sequence[PlannedJob]) -> str:
    """A table with a row for each sort of jobs."""
    lines = (f"{job.name},{job.resources.cpus:g},{job.resources.memory},{job.count}" for job in jobs)
    return "\n".join(["name,cpus,memory_mib,count", *lines])


def single(jobs: Sequence[PlannedJob]) -> str:
    """A table with a row for each job, in no order."""
    sizes = [f"{job.resources.cpus:g},{job.resources.memory}" for job in jobs for _ in range(job.count)]
    random.Random(2).shuffle(sizes)
    return "\n".join(["name,cpus,memory_mib", *(f"job-{number},{size}" for number, size in enumerate(sizes))])


def run(path: Path, options: Sequence[str]) -> list[float]:
    """Seconds of a processor and MiB that the command took."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, "plan", "--jobs", path, "--output", "json", "--types", *FAMILIES, *options],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": ""},
    )
    return [float(word) for word in done.stderr.splitlines()[-1].split()]


def main() -> None:
    million, thousands, unlike = different(200, 5_000), pipeline(10_000), different(10_000)
    table = Table("lading plan", "Options", "To reach, s", "Seconds of a processor", "MiB")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.csv"
        path.write_text(counted(unlike))
        run(path, ["--effort", "fast"])
        for name, text, options, limit in (
            ("nothing but the start", counted(million[:1]), "--policy greedy", ""),
            ("10,000 jobs of 20 shapes", counted(thousands), "--effort fast", ""),
            ("10,000 jobs all different", counted(unlike), "--effort fast", ""),
            ("1,000,000 jobs of 200 shapes", counted(million), "--effort fast", "2.5"),
            ("1,000,000 jobs of 200 shapes", counted(million), "--policy greedy", "2.5"),
            ("the same in 1,000,000 rows", single(million), "--effort fast", "6"),
            ("the same in 1,000,000 rows", single(million), "--policy greedy", "6"),
        ):
            path.write_text(text)
            seconds, memory = run(path, options.split())
            table.add_row(name, options, limit, f"{seconds:.2f}", f"{memory:.0f}")
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(machine())
    console.print(table)


if __name__ == "__main__":
    main()
