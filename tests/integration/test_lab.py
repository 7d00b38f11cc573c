"""Airflow's tasks on four machines behind SSH, while what they rest on is killed."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

import lading.example_dags
from tests.services import node_python, processes
from tests.services.account import Account
from tests.services.airflow import Airflow
from tests.services.sshd import Sshd

EXAMPLE = Path(lading.example_dags.__path__[0]) / "lab_machines.py"
# More of both looks more closely.
PARTS = int(os.environ.get("LADING_LAB_PARTS", "80"))
KILLING_SECONDS = float(os.environ.get("LADING_LAB_SECONDS", "20"))
SEED = 20_251_122
# What is left of the run when the killing is over ends within this, seconds.
SECONDS_TO_END = 240.0 + 2 * PARTS


class Lab:
    """An Airflow and its four machines."""

    def __init__(self, airflow: Airflow, hosts: dict[str, Sshd], work_dir: Path) -> None:
        self.airflow = airflow
        self.hosts = hosts
        self.work_dir = work_dir

    def agent(self, name: str) -> int | None:
        with suppress(OSError, ValueError, KeyError):
            return int(json.loads((self.work_dir / name / "spool/agent.json").read_text())["pid"])
        return None

    def controllers(self) -> list[int]:
        return [each.pid for each in self.airflow.processes() if "controller --managed" in each.command]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """The lab is on SQLite: test_restarts kills the same, one moment after another, on PostgreSQL."""
    home = tmp_path_factory.mktemp("airflow-lab")
    work_dir = Path(tempfile.mkdtemp(prefix="lading-lab-", dir="/var/tmp"))
    work_dir.chmod(0o1777)  # the machines of the tests are one
    with ExitStack() as stack:
        accounts = {f"lab{number}": stack.enter_context(Account()) for number in range(1, 5)}
        hosts = {name: stack.enter_context(Sshd(account, boots=True)) for name, account in accounts.items()}
        python = node_python.make(accounts["lab1"])
        dags = work_dir / "dags"
        dags.mkdir(mode=0o755)
        shutil.copy(EXAMPLE, dags)
        tables = ", ".join(f'{{ssh_conn_id = "{name}", cpus = 2, memory = 4000}}' for name in hosts)
        (home / "sites.toml").write_text(
            f"""
            [sites.local]
            enabled = false

            [sites.lab]
            kind = "ssh"
            hosts = [{tables}]
            work_dir = "{work_dir}"
            python = "{python}"
            api = "tunnel"
            setup = "export AIRFLOW_HOME=$HOME/airflow AIRFLOW__CORE__DAGS_FOLDER={dags}"
            """
        )
        config = {
            "lading.sites_file": home / "sites.toml",
            "core.default_task_retry_delay": 1,  # of what a machine that goes down has ended
        }
        airflow = Airflow(
            home,
            dags=dags,
            config=config,
            components=("dag-processor", "scheduler", "api-server"),
            preloaded=True,
        )
        for name, host in hosts.items():
            airflow.environment[f"AIRFLOW_CONN_{name.upper()}"] = host.connection()
        stack.enter_context(airflow)
        yield Lab(airflow, hosts, work_dir)
    shutil.rmtree(work_dir)


@pytest.mark.timeout(660 + KILLING_SECONDS + SECONDS_TO_END)
def test_the_example_while_everything_is_killed(lab: Lab) -> None:
    choose = random.Random(SEED)
    lab.airflow.wait_for_dag("lab_machines")
    run = lab.airflow.trigger("lab_machines", {"parts": PARTS})
    lab.airflow.wait_for_task("lab_machines", run, "sizes", "success")
    end = time.monotonic() + KILLING_SECONDS
    while time.monotonic() < end:
        time.sleep(choose.uniform(0.5, 3))
        host = choose.choice(list(lab.hosts))
        what = choose.choice(["agent", "connection", "server", "controller", "machine"])
        if what == "agent":
            pids = [pid for pid in [lab.agent(host)] if pid]
        elif what == "controller":
            pids = lab.controllers()
        elif what == "connection":
            lab.hosts[host].cut()
            continue
        elif what == "machine":
            lab.hosts[host].reboot()
            continue
        else:
            lab.hosts[host].restart()
            continue
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert lab.airflow.wait_for_run("lab_machines", run, timeout=SECONDS_TO_END) == "success"
    report = lab.airflow.xcom("lab_machines", run, "report")
    assert isinstance(report, dict)
    assert abs(report["pi"] - 3.14) < 0.02
    assert sum(report["parts"].values()) == PARTS
    assert len(report["parts"]) == len(lab.hosts), "every machine has run some"
    jobs = json.loads(lab.airflow.lading("jobs", "--run-id", run, "--limit", "1000", "--output", "json"))
    causes = Counter(job["cause"] for job in jobs if job["state"] == "failed")
    assert set(causes) <= {"node_failure"}, "only a machine that went down has ended any"
    tries = [each["try_number"] for each in lab.airflow.task_instances("lab_machines", run)]
    assert len(tries) == PARTS + 4
    assert sum(tries) == len(tries) + causes.total(), "none was lost, and none ran twice"
    assert "inside" not in lab.airflow.logs("lab_machines", run, "report")
    assert processes.wait_until(
        lambda: not any(list((lab.work_dir / name / "logs").glob("*")) for name in lab.hosts), 60, 0.5
    ), "the logs of what has ended were fetched and removed"
    rows = json.loads(lab.airflow.lading("sites", "--output", "json"))
    assert [row["location"] for row in rows] == list(lab.hosts)
