"""How long Snakemake takes for many one-second jobs on SLURM: with Lading, with its plugin ``slurm``, and a bare array.

    .environments/snakemake/bin/python -m benchmarks.snakemake_slurm [--jobs 500] [--runs 3] [--ways bare allocations]

Run it after ``make .environments/snakemake/installed``, as root, with no other load: it starts a SLURM with emulated
nodes on this machine, and installs snakemake-executor-plugin-slurm into a temporary folder. The ways alternate, and
each is compared with the others of the same round. ``bare`` is one ``sbatch --array`` without Snakemake, from its
submission until no job is left. ``allocations`` and ``jobs`` use Lading, with these values of ``mode`` of its site. The
jobs of ``jobs-exported`` get Snakemake's environment, like those of the plugin and of the bare array; for ``jobs``,
SLURM reads the login environment of the user.
``slurm`` submits jobs individually and ``slurm-arrays`` 25 at a time; both poll from five seconds on. Larger arrays
fail: the plugin passes the commands of all jobs of an array as one argument, which Linux limits to 128 KiB, and the
script through which it submits longer ones loses that argument. Lading's time includes the start and the exit of its
controller, and the wait for allocations. No way runs more jobs at once than the nodes have cpus.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
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
{mode}
work_dir = "{folder}/lading"
python = "{python}"
setup = "export SLURM_CONF={conf}"
node_cpus = {cpus}
node_memory = 16000
max_poll_interval = 2
"""
SLURM = ("--executor", "slurm", "--slurm-no-account", "--slurm-status-command", "squeue", "--default-resources",
         "slurm_partition=batch", "--slurm-init-seconds-before-status-checks", "5")  # fmt: skip
LADING = ("--executor", "lading", "--lading-sites-file", "sites.toml")
ARRAY = """\
#!/bin/sh
#SBATCH --partition=batch --array=0-{last} --cpus-per-task=1 --mem=1000 --time=10 --output=/dev/null
sleep 1; touch out/$SLURM_ARRAY_TASK_ID.txt
"""
MODES = {
    "allocations": 'mode = "allocation"\nidle_seconds = 5',
    "jobs": 'mode = "job"',
    "jobs-exported": 'mode = "job"\nresources = {export = "ALL"}',
}
# None: without Snakemake.
WAYS: dict[str, Sequence[str] | None] = {
    "bare": None,
    "allocations": LADING,
    "jobs": LADING,
    "jobs-exported": LADING,
    "slurm": SLURM,
    "slurm-arrays": (*SLURM, "--slurm-array-jobs", "all", "--slurm-array-limit", "25"),
}


class Contest:
    """Runs of the same jobs on one cluster.

    :param python: that has Snakemake and Lading
    :param plugin: the folder with the plugin ``slurm``
    :param jobs: how many
    :param cpus: of each node
    """

    def __init__(self, slurm: Slurm, python: Path, plugin: Path, jobs: int, cpus: int) -> None:
        self.slurm, self.python, self.plugin, self.jobs, self.cpus = slurm, python, plugin, jobs, cpus

    def measure(self, way: str, number: int) -> float:
        """The seconds of one run in a folder of its own.

        :raises RuntimeError: it failed; with the end of what Snakemake has said
        """
        account, conf = self.slurm.account, self.slurm.environment["SLURM_CONF"]
        folder = account.home / f"{way}-{number}"
        (folder / "out").mkdir(parents=True)
        (folder / "Snakefile").write_text(SNAKEFILE)
        (folder / "array.sh").write_text(ARRAY.format(last=self.jobs - 1))
        mode = MODES.get(way, "")
        sites = SITES.format(folder=folder, python=self.python, cpus=self.cpus, mode=mode, conf=conf)
        (folder / "sites.toml").write_text(sites)
        subprocess.run(["chown", "-R", account.name, str(folder)], check=True)
        paths = {"PATH": os.environ["PATH"]}
        if way in ("slurm", "slurm-arrays"):
            paths = {"PATH": f"{self.plugin / 'programs'}:{paths['PATH']}", "PYTHONPATH": str(self.plugin)}
        home = {"HOME": str(account.home), "USER": account.name, "JOBS": str(self.jobs)}
        options = WAYS[way]
        # sbatch --wait looks ever more rarely.
        command = ["sh", "-c", 'sbatch array.sh && while [ -n "$(squeue --noheader)" ]; do sleep 0.5; done']
        if options is not None:
            command = [str(self.python), "-m", "snakemake", "--jobs", str(self.jobs), "--retries", "2", *options]
        began = time.monotonic()
        done = subprocess.run(
            command,
            cwd=folder,
            env={"LC_ALL": "C.UTF-8", **home, **paths, **self.slurm.environment},
            user=account.name,
            group=account.name,
            extra_groups=[],
            capture_output=True,
            text=True,
        )
        seconds = time.monotonic() - began
        made = len(list((folder / "out").iterdir()))
        if done.returncode or made != self.jobs:
            logs = [path.read_text()[-2000:] for path in sorted(folder.glob(".snakemake/slurm_logs/**/*.log"))[:1]]
            said = (done.stdout + done.stderr)[-3000:]
            raise RuntimeError(f"{way}: exit code {done.returncode}, {made} files: {said}\nThe first job: {logs}")
        self.slurm.wait_until_free(300)
        return seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.snakemake_slurm", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--jobs", type=int, default=500, help="the number of jobs (default: 500)")
    parser.add_argument("--cpus", type=int, default=8, help="cpus of each of the four nodes (default: 8)")
    parser.add_argument("--runs", type=int, default=1, help="how often each way is measured (default: once)")
    parser.add_argument(
        "--ways", nargs="+", choices=WAYS, default=list(WAYS), help="the ways to measure (default: all)"
    )
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
        contest = Contest(slurm, python, plugin, options.jobs, options.cpus)
        found: dict[str, list[float]] = {way: [] for way in options.ways}
        for number in range(options.runs):
            for way, runs in found.items():
                load = os.getloadavg()[0]
                runs.append(contest.measure(way, number))
                loads = f"load {load:.0f} before, {os.getloadavg()[0]:.0f} after"
                print(f"{way}: {runs[-1]:.1f} s for {options.jobs} jobs ({loads})", flush=True)
        for way, runs in found.items():
            ratios = [
                f"{statistics.median(a / b for a, b in zip(runs, others, strict=True)):.2f} × {other}"
                for other, others in found.items()
                if other != way
            ]
            print(f"{way}: {', '.join(ratios)} (median of {options.runs})")


if __name__ == "__main__":
    main()
