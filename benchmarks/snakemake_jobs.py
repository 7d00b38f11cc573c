"""How long Snakemake takes for many short jobs: with Lading's executor, and with its own one on the same machine.

``python -m benchmarks.snakemake_jobs``, after ``make .environments/snakemake/installed``. Lading's site has as many
cpus as Snakemake's own executor has cores, so both run the same number of jobs at once; the jobs only sleep. The runs
alternate. The memory shown is the peak of Snakemake's process, and of the largest of Lading's processes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

SNAKEMAKE = Path(__file__).parents[1] / ".environments/snakemake/bin/snakemake"
SNAKEFILE = """
import os
rule all:
    input: "all.txt"
rule one:
    output: "out/{i}.txt"
    shell: "sleep 0.1; echo {wildcards.i} > {output}"
rule merge:
    input: expand("out/{i}.txt", i=range(int(os.environ["JOBS"])))
    output: "all.txt"
    shell: "cat {input} > {output}"
"""
OURS = (b"controller", b"lading.executors.agent")
MIB = 2**20
SITES = '[sites.local]\nkind = "local"\ncpus = {cores}\nmemory = "1 TiB"\n'


@dataclass(frozen=True)
class Run:
    """What a run took: seconds; MiB of Snakemake, of Lading's largest process, and of its files."""

    seconds: float
    snakemake: int
    lading: int
    files: int


def measured(options: Sequence[str], jobs: int, cores: int) -> Run:
    with tempfile.TemporaryDirectory(prefix="lading-snakemake-") as folder:
        Path(folder, "Snakefile").write_text(SNAKEFILE)
        Path(folder, "sites.toml").write_text(SITES.format(cores=cores))
        began, most = time.monotonic(), {"snakemake": 0, "lading": 0}
        process = subprocess.Popen(
            [str(SNAKEMAKE), *options],
            cwd=folder,
            env={**os.environ, "JOBS": str(jobs)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while process.poll() is None:
            most["snakemake"] = max(most["snakemake"], peak(process.pid))
            ours = [pid for pid, command in commands(folder) if any(each in command for each in OURS)]
            most["lading"] = max(most["lading"], *map(peak, ours), 0)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
        seconds = time.monotonic() - began
        if process.returncode:
            raise RuntimeError(f"snakemake {' '.join(options)} ended with exit code {process.returncode}")
        kept = sum(path.stat().st_size for path in Path(folder, ".snakemake/lading").rglob("*") if path.is_file())
        return Run(seconds, most["snakemake"], most["lading"], kept // MIB)


def commands(folder: str) -> Iterator[tuple[int, bytes]]:
    """The processes whose commands name a folder."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if os.fsencode(folder) in (command := path.read_bytes()):
                yield int(path.parent.name), command


def peak(pid: int) -> int:
    """MiB that a process has had at most; 0: it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) // 1024
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.snakemake_jobs", description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=1000, help="the number of jobs")
    parser.add_argument("--cores", type=int, default=8, help="how many of them run at a time")
    parser.add_argument("--runs", type=int, default=3, help="how often each executor is measured")
    options = parser.parse_args()
    if not SNAKEMAKE.exists():
        sys.exit("Snakemake is missing: make .environments/snakemake/installed")
    ways = {
        "its own executor": ["--cores", str(options.cores)],
        "lading": ["--executor", "lading", "--jobs", "100000", "--lading-sites-file", "sites.toml"],
    }
    found: dict[str, list[Run]] = {name: [] for name in ways}
    for _ in range(options.runs):
        for name, arguments in ways.items():
            found[name].append(measured(arguments, options.jobs, options.cores))
            load = os.getloadavg()[0]
            print(f"{name}: {found[name][-1].seconds:.1f} s (load {load:.0f} after it)", flush=True)
    for name, runs in found.items():
        seconds = statistics.median(run.seconds for run in runs)
        memory = f"Snakemake {max(run.snakemake for run in runs)} MiB"
        if most := max(run.lading for run in runs):
            memory += f", Lading's largest process {most} MiB, its files {max(run.files for run in runs)} MiB"
        print(f"{name}: {seconds:.1f} s (median of {len(runs)} runs); {memory}")
    ratios = [mine.seconds / its.seconds for its, mine in zip(*found.values(), strict=True)]
    print(f"lading / its own executor: {statistics.median(ratios):.2f} ({', '.join(f'{each:.2f}' for each in ratios)})")


if __name__ == "__main__":
    main()
