"""The sites of the demo: this machine, a SLURM that it starts, or a mock of EC2."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import lading.example_dags
from tests.demo_summary import Job, Line, batch_lines, bought_lines, packed_lines
from tests.services import node_python, processes
from tests.services.account import Account
from tests.services.airflow import Airflow
from tests.services.ec2 import FakeEC2
from tests.services.slurm import Slurm
from tests.services.sshd import Sshd

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = Path(lading.example_dags.__path__[0])
# They name sites that have to be there.
OF_OTHER_SITES = ("burst.py", "cluster_sketches.py", "lab_machines.py", "stays_with_its_files.py")


class DemoError(RuntimeError):
    """This demo cannot be shown here; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Demo:
    """What one demo runs, and on what.

    :param dag: the Dag
    :param result: the task whose result is printed
    :param lines: make the summary, of the id of the last run and the jobs of all runs
    :param conf: of its runs
    :param runs: how many
    :param sites: the sites file; empty: none
    :param environment: of Airflow's processes, beside ours
    :param commands: to try while the UI is up
    """

    dag: str
    result: str
    lines: Callable[[Airflow, str, Sequence[Sequence[Job]]], list[Line]]
    conf: Mapping[str, object] = field(default_factory=dict)
    runs: int = 1
    sites: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    commands: tuple[str, ...] = ("sites", "jobs")


def python_of(account: Account) -> Path:
    """The interpreter for the jobs of an account, with Airflow and Lading.

    :raises DemoError: the account cannot run or read it
    """
    try:
        python = node_python.make(account)
    except RuntimeError as error:
        raise DemoError(str(error)) from None
    tried = subprocess.run(
        [str(python), "-c", "import lading.scheduling"],
        user=account.uid,
        group=account.uid,
        extra_groups=[],
        cwd="/",
        env={},
        capture_output=True,
        text=True,
    )
    if tried.returncode:
        raise DemoError(
            "jobs run as another user, who cannot read this clone: move it to where everybody can, such as /opt or "
            f"/srv, not below {Path.home()}"
        )
    return python


def rows(airflow: Airflow, *command: str) -> list[dict[str, str]]:
    """What a command of Lading lists."""
    listed: list[dict[str, str]] = json.loads(airflow.lading(*command, "--output", "json"))
    return listed


def ended_instances(airflow: Airflow) -> list[dict[str, str]]:
    """All instances that were launched, once idle ones have been released.

    :raises DemoError: they were not
    """
    found: list[dict[str, str]] = []

    def ended() -> bool:
        found[:] = rows(airflow, "instances", "--ended")
        return all(each["ended_at"] for each in found)

    print("Waiting until the idle machines are released")
    if not processes.wait_until(ended, 300, 2):
        raise DemoError(f"machines were not released within 300 s\n{airflow.log_tails()}")
    return found


def simulated_costs(environment: Mapping[str, str], site: str, run_id: str) -> dict[str, dict[str, float]]:
    """What the jobs that a run had at a site would have cost there, by policy; nothing if none ran there.

    :param environment: of Airflow's processes
    :raises DemoError: they could not be simulated
    """
    command = [sys.executable, "-m", "tests.demo_costs", site, run_id]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        why = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise DemoError(f"the run ended, but what its jobs would have cost under other policies is not known: {why}")
    found: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


@contextmanager
def local(folder: Path) -> Iterator[Demo]:
    """This machine: the second run is sized by the first."""

    def lines(airflow: Airflow, run_id: str, runs: Sequence[Sequence[Job]]) -> list[Line]:
        [machine] = [each for each in rows(airflow, "sites") if each["kind"] == "local"]
        return packed_lines(runs, float(machine["cpus"]), int(machine["memory_mib"]))

    shutil.copytree(EXAMPLES, folder / "dags", ignore=shutil.ignore_patterns(*OF_OTHER_SITES, "__pycache__"))
    yield Demo("stdlib_survey", "gather", lines, {"every": 2}, runs=2)


@contextmanager
def slurm(folder: Path) -> Iterator[Demo]:
    """A SLURM of emulated nodes behind an SSH server."""
    (folder / "dags").mkdir()
    shutil.copy(EXAMPLES / "cluster_sketches.py", folder / "dags")
    print("Starting SLURM: four emulated nodes behind an SSH server (Debian's packages, which are installed first)")
    with Account() as account, Slurm(account) as cluster, Sshd(account, environment=cluster.environment) as login:
        sites = f"""
            [sites.hpc]
            kind = "slurm"
            ssh_conn_id = "hpc"
            work_dir = "{account.home}/lading"
            python = "{python_of(account)}"
            queue = "batch"
            node_cpus = 8
            node_memory = "15 GiB"
            dags = "sync"
            max_poll_interval = 4
            setup = "export AIRFLOW_HOME={account.home}/airflow"
            """
        yield Demo(
            "cluster_sketches",
            "tree",
            lambda airflow, run_id, runs: batch_lines(runs[-1]),
            {"samples": 3},
            sites=sites,
            environment={"AIRFLOW_CONN_HPC": login.connection()},
        )


@contextmanager
def ec2(folder: Path) -> Iterator[Demo]:
    """This machine, and a mock of EC2 for what finds no room on it."""

    def lines(airflow: Airflow, run_id: str, runs: Sequence[Sequence[Job]]) -> list[Line]:
        return bought_lines(runs[-1], ended_instances(airflow), simulated_costs(airflow.environment, "cloud", run_id))

    (folder / "dags").mkdir()
    shutil.copy(EXAMPLES / "burst.py", folder / "dags")
    with FakeEC2(boot_seconds=2) as service:
        # Its machines are other users, who read neither our folder nor that of the demo.
        dags = service.account.folder / "airflow" / "dags"
        shutil.copytree(folder / "dags", dags)
        sites = f"""
            [sites.local]
            cpus = 1.5
            memory = "4 GiB"

            [sites.cloud]
            {service.toml}
            accept_untargeted = true
            instance_types = ["m5.large", "m5.xlarge"]
            capacity_type = "spot-with-fallback"
            max_instances = 4
            idle_seconds = 10
            expected_boot_time = 5
            python = "{python_of(service.account)}"
            setup = '''
            export AIRFLOW_HOME=$HOME/airflow AIRFLOW__CORE__DAGS_FOLDER={dags}
            '''
            """
        commands = ("sites", "jobs", "instances --ended", "cost burst")
        conf = {"parts": 6, "seconds": 20}
        # The controller, and boto3 within it, ask the mock.
        yield Demo("burst", "report", lines, conf, sites=sites, environment=service.environment, commands=commands)


SITES: Mapping[str, Callable[[Path], AbstractContextManager[Demo]]] = {"local": local, "slurm": slurm, "ec2": ec2}


def chosen() -> Callable[[Path], AbstractContextManager[Demo]]:
    """What ``SITE`` in the environment names.

    :raises DemoError: there is no such demo; with what is valid
    """
    name = os.environ.get("SITE") or "local"
    if name not in SITES:
        raise DemoError(f"SITE={name}: there is no such demo; valid: {', '.join(SITES)}")
    return SITES[name]
