"""How long Snakemake takes for many jobs of a second on a SLURM: in Lading's allocations, and by its plugin ``slurm``.

    .environments/snakemake/bin/python -m benchmarks.snakemake_slurm [--jobs 500] [--contenders lading slurm]

After ``make .environments/snakemake/installed``, as root, with nothing else at work: it starts a SLURM of emulated
nodes on this machine, and installs snakemake-executor-plugin-slurm into a temporary folder. ``slurm`` submits each job
by itself, ``slurm-arrays`` 25 at a time, and both look at them from five seconds on. Larger arrays fail: the plugin
puts the commands of all jobs of an array into one argument, of which Linux takes 128 KiB, and the script by which it
submits what is longer loses that argument. Lading's time has in it the start and the end of its controller, and the
wait for allocations. None has more jobs at work than the nodes have cpus.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.services import node_python
from tests.services.account import Account
from tests.services.slurm import Slurm

NODES = 4
PLUGIN = (
    "snakemake-executor-plugin-slurm",
    "snakemake-executor-plugin-slurm-jobstep",
    "throttler",
    "pandas",
    "python-dateutil",
    "six",
)
SNAKEFILE = """
import os
rule all:
    input: expand("out/{i}.txt", i=range(int(os.environ["JOBS"])))
rule one:
    output: "out/{i}.txt"
    resources: mem_mb=1000, runtime=10
    shell: "sleep 1; touch {output}"
"""
SITES = """
[sites.local]
enabled = false

[sites.hpc]
kind = "slurm"
mode = "allocation"
work_dir = "{home}/lading"
python = "{python}"
node_cpus = {cpus}
node_memory = 16000
max_poll_interval = 2
idle_seconds = 5
"""
SLURM = ("--executor", "slurm", "--slurm-no-account", "--slurm-status-command", "squeue", "--default-resources",
         "slurm_partition=batch", "--slurm-init-seconds-before-status-checks", "5")  # fmt: skip
WAYS = {
    "lading": ("--executor", "lading", "--lading-sites-file", "sites.toml"),
    "slurm": SLURM,
    "slurm-arrays": (*SLURM, "--slurm-array-jobs", "all", "--slurm-array-limit", "25"),
}


def measured(slurm: Slurm, python: Path, plugin: Path, way: str, jobs: int, cpus: int) -> float:
    """The seconds of one run in a folder of its own.

    :raises RuntimeError: it failed; with the end of what Snakemake has said
    """
    account = slurm.account
    folder = account.home / way
    folder.mkdir()
    (folder / "Snakefile").write_text(SNAKEFILE)
    (folder / "sites.toml").write_text(SITES.format(home=account.home, python=python, cpus=cpus))
    subprocess.run(["chown", "-R", account.name, str(folder)], check=True)
    paths = {"PATH": os.environ["PATH"]}
    if way != "lading":
        paths = {"PATH": f"{plugin / 'programs'}:{paths['PATH']}", "PYTHONPATH": str(plugin)}
    home = {"HOME": str(account.home), "USER": account.name, "JOBS": str(jobs)}
    began = time.monotonic()
    done = subprocess.run(
        [str(python), "-m", "snakemake", "--jobs", str(jobs), "--retries", "2", *WAYS[way]],
        cwd=folder,
        env={"LC_ALL": "C.UTF-8", **home, **paths, **slurm.environment},
        user=account.name,
        group=account.name,
        extra_groups=[],
        capture_output=True,
        text=True,
    )
    seconds = time.monotonic() - began
    if done.returncode:
        logs = "".join(path.read_text()[-2000:] for path in sorted(folder.glob(".snakemake/slurm_logs/**/*.log"))[:1])
        said = (done.stdout + done.stderr)[-3000:]
        raise RuntimeError(f"{way} ended with exit code {done.returncode}: {said}\nThe first job: {logs}")
    slurm.wait_until_free(300)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.snakemake_slurm", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--jobs", type=int, default=500, help="how many (default: 500)")
    parser.add_argument("--cpus", type=int, default=8, help="of each of the four nodes (default: 8)")
    parser.add_argument("--contenders", nargs="+", choices=WAYS, default=list(WAYS), help="which (default: all)")
    options = parser.parse_args()
    with Account() as account, Slurm(account, nodes=NODES, cpus=options.cpus) as slurm:
        python, plugin = node_python.make(account), account.folder / "plugin"
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(plugin), "--no-deps", *PLUGIN]
        subprocess.run(install, check=True)
        # The plugin takes SLURM's variables from its jobs, also the one that says where this SLURM's configuration is.
        (plugin / "programs").mkdir()
        (srun := plugin / "programs" / "srun").write_text(
            f'#!/bin/sh\nSLURM_CONF={slurm.environment["SLURM_CONF"]} exec {shutil.which("srun")} "$@"\n'
        )
        srun.chmod(0o755)
        found: dict[str, float] = {}
        for way in options.contenders:
            load = os.getloadavg()[0]
            seconds = found[way] = measured(slurm, python, plugin, way, options.jobs, options.cpus)
            ratio = f", {seconds / found['lading']:.1f} times Lading's" if "lading" in found and way != "lading" else ""
            loads = f"load {load:.0f} before, {os.getloadavg()[0]:.0f} after"
            print(f"{way}: {seconds:.1f} s for {options.jobs} jobs{ratio} ({loads})", flush=True)


if __name__ == "__main__":
    main()
