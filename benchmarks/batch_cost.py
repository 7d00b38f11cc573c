"""The CPU of one batch job: a trivial task as Lading's job of a batch system, and as an element of the bare array; and
the program ``true`` as a command, which the node agent's archive runs.

Each job is the command that the batch system would start, run here against a stand-in for Airflow's API server; what
counts is the CPU time of all its processes. On a machine that is busy all the time, which a cluster's nodes are with
short tasks, the rates of jobs are as the inverse of it. It can be measured where other work makes rates useless.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from lading.hooks.cluster.jobs.layout import SPOOL_FOLDERS, ClusterFolder, Task, write_tokens
from lading.hooks.spool import agent_archive
from lading.hooks.spool.command import COMMAND_RUNNER, CommandWork
from lading.hooks.spool.spool import Envelope, Spool
from lading.hooks.ssh.local_transport import ShellTransport
from lading.scheduling.model.resources import Resources
from tests.services.execution_api import ExecutionApi, task_workload

MODULE = "lading.executors.agent.batch_job"
DAG = """
from airflow.sdk import dag, task
from lading.operators import resources

@dag(schedule=None)
def trivial():
    @task(executor_config=resources(cpus=1, memory=64))
    def one():
        return 1
    one()

trivial()
"""


def measure(runs: int) -> None:
    with tempfile.TemporaryDirectory(prefix="lading-benchmark-") as folder, ExecutionApi() as api:
        home = Path(folder)
        (home / "dags").mkdir()
        (home / "dags" / "trivial.py").write_text(DAG)
        environment = {
            "PATH": os.environ["PATH"],
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": api.url,
        }
        agent_archive.bring(ShellTransport(), sys.executable, str(home / "work"))
        spent: dict[str, list[tuple[float, float]]] = {"lading": [], "bare": [], "command": []}
        for run in range(runs + 1):
            for name, prepare in (("lading", lading), ("bare", bare), ("command", command)):
                cost = spend(prepare(home), environment)
                if run:  # the first ones have made what Airflow makes in a new home
                    spent[name].append(cost)
        if not all(api.states(each) for each in _made):
            raise RuntimeError("a task has not reported its end")
    medians = {name: tuple(map(statistics.median, zip(*costs, strict=True))) for name, costs in spent.items()}
    for name, (cpu, elapsed) in medians.items():
        print(f"  {name:7} {cpu:.3f} CPU s, {elapsed:.1f} s")
    print(f"medians of {runs} alternating runs: bare/lading {medians['bare'][0] / medians['lading'][0]:.2f} (CPU)")


_made: list[str] = []


def workload() -> dict[str, Any]:
    _made.append(str(uuid.uuid4()))
    return task_workload(_made[-1], "trivial", "one", "trivial.py")


def lading(home: Path) -> list[str]:
    """The command of Lading's batch job, whose envelope lies in the inbox."""
    task = workload()
    return [sys.executable, "-m", MODULE, *submit(home, task, task["log_path"])]


def command(home: Path) -> list[str]:
    """The command of a batch job that runs a program, as its script has it."""
    work = CommandWork(["true"], log_folder=str(home / "logs"), log_path="command.log").to_workload()
    archive = agent_archive.archive().path(str(home / "work"))
    return [sys.executable, "-S", archive, MODULE, *submit(home, work, "command.log"), "--runner", COMMAND_RUNNER]


def submit(home: Path, work: dict[str, Any], log_path: str) -> list[str]:
    """Put a job into the inbox, and return the arguments of its batch job."""
    folder = ClusterFolder(str(home / "work"))
    spool = Spool(Path(folder.spool))
    for name in SPOOL_FOLDERS:
        (spool.root / name).mkdir(parents=True, exist_ok=True)
    token = str(uuid.uuid4())
    submission = f"L{token[:14]}"
    Path(folder.submission(submission)).mkdir(parents=True)
    Path(folder.tokens(submission)).write_text(write_tokens([Task(token, log_path)]))
    now = time.time()
    spool.put([Envelope(token, work, Resources(1, 64), 64, None, 0, now, now + 3600)])
    return [folder.root, submission, "1"]


def bare(home: Path) -> list[str]:
    """The command of an element of the bare array, whose workload lies in a file."""
    path = home / f"{uuid.uuid4()}.json"
    path.write_text(json.dumps(workload()))
    return [sys.executable, "-m", "airflow.sdk.execution_time.execute_workload", "--json-path", str(path)]


def spend(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """The CPU seconds of a command and all that it has started, and the seconds that passed.

    :raises RuntimeError: it failed; with what it said
    """
    began = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, env=environment, cwd="/", stdout=output, stderr=output)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            output.seek(0)
            raise RuntimeError(f"{command} ended with {process.returncode}: {output.read().decode(errors='replace')}")
    return usage.ru_utime + usage.ru_stime, time.monotonic() - began
