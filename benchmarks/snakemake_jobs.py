"""How long Snakemake takes for many short jobs: with Lading's executor, and with its own on the same machine.

``python -m benchmarks.snakemake_jobs``, after ``make .environments/snakemake/installed``. Lading's site has as many
cpus as Snakemake's own executor has cores, so as many of the jobs, which sleep, are at work
at once. The runs alternate.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
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
SITES = '[sites.local]\nkind = "local"\ncpus = {cores}\nmemory = "1 TiB"\n'


def measured(options: Sequence[str], jobs: int, cores: int) -> float:
    """The seconds of one run in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="lading-snakemake-") as folder:
        Path(folder, "Snakefile").write_text(SNAKEFILE)
        Path(folder, "sites.toml").write_text(SITES.format(cores=cores))
        began = time.monotonic()
        subprocess.run(
            [str(SNAKEMAKE), *options],
            cwd=folder,
            env={**os.environ, "JOBS": str(jobs)},
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.snakemake_jobs", description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=1000, help="how many")
    parser.add_argument("--cores", type=int, default=8, help="how many of them at a time")
    parser.add_argument("--runs", type=int, default=3, help="how often each is measured")
    options = parser.parse_args()
    if not SNAKEMAKE.exists():
        sys.exit("Snakemake is missing: make .environments/snakemake/installed")
    ways = {
        "its own executor": ["--cores", str(options.cores)],
        "lading": ["--executor", "lading", "--jobs", "100000", "--lading-sites-file", "sites.toml"],
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.runs):
        for name, arguments in ways.items():
            found[name].append(measured(arguments, options.jobs, options.cores))
    for name, runs in found.items():
        print(f"{name}: {statistics.median(runs):.1f} s (median of {len(runs)} runs)")


if __name__ == "__main__":
    main()
