"""Run the services of ``deploy/docker/compose.yaml`` as processes of this machine: ``python -m tests.compose``.

No part of ``make test``, since it takes a minute and a half of a processor.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.services import processes
from tests.services.deployed import DAG, Deployed
from tests.services.ports import free_ports
from tests.services.postgres import Postgres
from tests.unit.deploy.test_deploy import DEPLOY, airflow_services, image_environment, secrets

AIRFLOW = Path(sys.executable).with_name("airflow")


class Deployment:
    """The services, without containers: addresses and paths of the containers are those of this machine."""

    def __init__(self, folder: Path, database: Postgres) -> None:
        self.folder, self.port = folder, free_ports(1)[0]
        health, workers, triggers = free_ports(3)
        self.known = secrets(f"127.0.0.1:{database.port}")
        self.paths = {
            "http://api-server:8080": f"http://127.0.0.1:{self.port}",
            "/etc/lading": str(DEPLOY / "docker"),
            "/var/lib/lading": str(folder / "lading"),
            "/var/lib/airflow": str(folder / "logins"),
        }
        self.more = {
            "AIRFLOW_HOME": str(folder),
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_SERVER_PORT": str(health),
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(workers),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(triggers),
        }
        self.running: list[subprocess.Popen[bytes]] = []

    def environment(self, service: str) -> dict[str, str]:
        """Of a service: the image's variables, then those of the file, whose secrets come from ``.env``."""
        found = image_environment() | airflow_services()[service]["environment"]
        for name, value in found.items():
            text = re.sub(r"\$\{(\w+):\?[^}]*\}", lambda match: self.known[match[1]], value)
            for path, instead in self.paths.items():
                text = text.replace(path, instead)
            found[name] = text
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
        return {**inherited, **found, **self.more}

    def start(self, service: str) -> subprocess.Popen[bytes]:
        program, *arguments = airflow_services()[service]["command"]
        return self.begin(service, program, arguments)

    def begin(self, service: str, program: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        assert program == "airflow"
        with (self.folder / f"{service}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(AIRFLOW), *arguments],
                env=self.environment(service),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.running.append(process)
        return process

    def probe(self, service: str) -> None:
        """Run a health check until it succeeds, with the host name of this machine."""
        _, program, *arguments = airflow_services()[service]["healthcheck"]["test"]
        words = [socket.gethostname() if word == service else word for word in arguments]
        done = processes.wait_until(lambda: self.begin(service, program, words).wait(600) == 0, 300, 1)
        assert done, self.tails()

    def tails(self) -> str:
        return processes.tails(sorted(self.folder.glob("*.log")), 15)

    def stop(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        processes.wait_until(lambda: all(each.poll() is not None for each in self.running), 150)
        processes.kill(processes.belonging(self.folder, ()))


def main() -> None:
    with TemporaryDirectory() as name, Postgres() as database:
        folder = Path(name)
        for volume in ("lading", "logins"):
            (folder / volume).mkdir(mode=0o700)
        (folder / "dags").mkdir()
        (folder / "dags" / "deployed.py").write_text(DAG.format(folder=folder))
        (folder / "go").touch()
        database.create_database("airflow")
        deployment = Deployment(folder, database)
        try:
            run_a_dag(deployment)
        finally:
            deployment.stop()


def run_a_dag(deployment: Deployment) -> None:
    """Start all services, log in, run a Dag and ask the probes."""
    assert deployment.start("migrate").wait(600) == 0, deployment.tails()
    print("The tables are there")
    for service in airflow_services().keys() - {"migrate"}:
        deployment.start(service)
    deployed = Deployed(f"http://127.0.0.1:{deployment.port}", deployment.tails)
    deployed.wait_for_health()
    deployed.log_in(json.loads((deployment.folder / "logins" / "passwords.json").read_text())["admin"])
    print("Logged in as admin")
    deployed.wait_for_success(deployed.trigger())
    assert "acts for sites local" in (deployment.folder / "controller.log").read_text(), "its own controller ran it"
    print("A Dag ran")
    for service in ("dag-processor", "triggerer"):
        deployment.probe(service)
    print("Their probes say that Dag processor and triggerer live")


if __name__ == "__main__":
    main()
