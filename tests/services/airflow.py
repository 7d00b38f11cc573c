"""A real Airflow in a folder of its own: API server, scheduler, Dag processor and triggerer on free loopback ports.

The integration tests, the benchmarks and ``make demo`` share it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx

from tests.services import processes
from tests.services.commands import AIRFLOW, UNHEARD, Answer, Commands
from tests.services.forks import CONSTANTS, Lent
from tests.services.ports import free_ports

COMPONENTS = ("dag-processor", "triggerer", "scheduler", "api-server")
FINISHED = frozenset({"success", "failed"})
SQLITE_ATTEMPTS = 10
# How long what was started has for its end, seconds: more than [lading] shutdown_timeout, on a machine that is busy.
PATIENCE = 150.0
# So often a wait asks the API server about a run, seconds: an answer takes a fiftieth of a second of a processor.
POLL = 1.0
# SQLite files as `airflow db migrate` has made them, by executor: a copy takes no time.
MIGRATED: dict[str, bytes] = {}


class AirflowError(RuntimeError):
    """Airflow did not do what it was asked; the message holds the ends of the logs that matter."""


class Airflow:
    """An Airflow of its own; a context manager that migrates the database and starts all components.

    :param home: becomes AIRFLOW_HOME; made when it is not there
    :param executor: Airflow's ``core.executor``
    :param database: SQLAlchemy URL; SQLite in ``home`` when None
    :param dags: folder of Dag files; ``home/dags`` when None
    :param config: further options, ``{"section.option": value}``
    :param components: which of :data:`COMPONENTS` to start
    :param preloaded: whether components are forked from a process that has imported Airflow, in a fraction of the
        time; not where their start or their memory is measured
    :param constants: of modules, to be changed in each such component, in its controller and in its node agent:
        ``{"package.module.NAME": value}``
    """

    def __init__(
        self,
        home: Path,
        *,
        executor: str = "lading.executors.LadingExecutor",
        database: str | None = None,
        dags: Path | None = None,
        config: Mapping[str, object] | None = None,
        components: Iterable[str] = COMPONENTS,
        preloaded: bool = False,
        constants: Mapping[str, object] | None = None,
    ) -> None:
        self.home = home.resolve()
        self.dags = (dags or self.home / "dags").resolve()
        self.preloaded = preloaded
        self.components = tuple(name for name in COMPONENTS if name in set(components))
        api, health, workers, triggers = free_ports(4)
        self.url = f"http://127.0.0.1:{api}"
        options = {
            "core.dags_folder": self.dags,
            "core.execution_api_server_url": f"{self.url}/execution/",
            "core.executor": executor,
            "core.load_examples": False,
            "core.dags_are_paused_at_creation": False,
            "core.max_active_tasks_per_dag": 1000,  # packing decides, not this throttle
            "core.simple_auth_manager_all_admins": True,
            # Components that begin together in a new home would each make up one, and the last one stay in the file.
            "core.fernet_key": base64.urlsafe_b64encode(sha256(str(self.home).encode()).digest()).decode(),
            "api.host": "127.0.0.1",
            "api.port": api,
            "api.base_url": self.url,
            "api_auth.jwt_secret": secrets.token_hex(64),
            "dag_processor.bundle_refresh_check_interval": 1,
            "dag_processor.refresh_interval": 1,
            # What is new or changed is read at once; to read the rest every 30 s keeps half a processor busy.
            "dag_processor.min_file_process_interval": 600,
            "database.sql_alchemy_conn": database or self._sqlite(patience=60),
            "logging.worker_log_server_port": workers,
            "logging.trigger_log_server_port": triggers,
            "scheduler.scheduler_health_check_server_port": health,
            "scheduler.enable_health_check": False,
            "usage_data_collection.enabled": False,
            # A task whose request to a busy API server times out sends it again, and with SQLite both requests may win.
            "workers.execution_api_timeout": 60,
            **(config or {}),
        }
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
        self.environment["AIRFLOW_HOME"] = str(self.home)
        for name, value in options.items():
            self.environment[f"AIRFLOW__{name.replace('.', '__').upper()}"] = str(value)
        if constants:
            assert preloaded, "what is not forked has the constants of its modules"
            self.environment[CONSTANTS] = json.dumps(dict(constants))
        self._is_sqlite = database is None
        self._executor = executor
        self._running: dict[str, subprocess.Popen[bytes] | Lent] = {}
        self._leaders: list[processes.Process] = []
        self._client: httpx.Client | None = None
        self._commands: Commands | None = None

    def __enter__(self) -> Airflow:
        try:
            self.migrate()
            for component in self.components:
                self.start(component)
            self.wait_until_healthy()
        except BaseException:
            with contextlib.suppress(AirflowError):
                self.stop()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    # -- processes

    def migrate(self) -> None:
        """Make the home folder and the database's tables."""
        self.home.mkdir(parents=True, exist_ok=True)
        self.dags.mkdir(parents=True, exist_ok=True)
        file = self.home / "airflow.db"
        if self._is_sqlite and not file.exists() and self._executor in MIGRATED:
            file.write_bytes(MIGRATED[self._executor])
            return
        self.cli("db", "migrate")
        if self._is_sqlite:
            MIGRATED.setdefault(self._executor, file.read_bytes())

    def cli(self, *arguments: str, timeout: float = 120) -> str:
        """Run one ``airflow`` command, where not ``preloaded`` in a process of its own, and return its standard output.

        :raises AirflowError: it failed; with what it printed
        """
        if self.preloaded:
            return self._succeed(*arguments)
        done = subprocess.run(
            self._command(*arguments),
            capture_output=True,
            text=True,
            env={**self.environment, **UNHEARD},
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            timeout=timeout,
        )
        if done.returncode:
            raise AirflowError(
                f"airflow {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
            )
        return done.stdout

    def run(self, *arguments: str, **environment: str) -> Answer:
        """Run one ``airflow`` command in a process that has imported Airflow, whatever its exit status is.

        :param environment: further variables
        """
        return self._forking().run(arguments, {**self.environment, **UNHEARD, **environment})

    def _forking(self) -> Commands:
        """The process that has imported Airflow; a new one where a test has killed it."""
        if self._commands is None or not self._commands.is_alive:
            self._commands = Commands(self.home, self.environment)
        return self._commands

    def lading(self, *arguments: str) -> str:
        """Run one ``airflow lading`` command in the same way and return its standard output.

        :raises AirflowError: it failed; with what it printed
        """
        return self._succeed("lading", *arguments)

    def _succeed(self, *arguments: str) -> str:
        status, output, errors = self.run(*arguments)
        if status:
            raise AirflowError(f"airflow {' '.join(arguments)} ended with {status}:\n{output}{errors}")
        return output

    def start(self, component: str) -> int:
        """Start a component in a session of its own, without waiting for it, and return its pid."""
        if component in self._running:
            raise ValueError(f"{component} is running already")
        process = self._fork(component) if self.preloaded else self._launch(component)
        self._running[component] = process
        self._leaders += processes.identify(process.pid)
        return process.pid

    def _fork(self, component: str) -> Lent:
        log = self.log_file(component)
        return self._forking().start([component], self._environment_of(component), log, log)

    def start_apart(self, component: str, environment: Mapping[str, str], log: Path, *arguments: str) -> Lent:
        """Start one more of a component, with an environment of its own; ``stop`` does not ask it to end.

        :param arguments: of its command
        """
        return self._forking().start([component, *arguments], environment, log, log)

    def _launch(self, component: str) -> subprocess.Popen[bytes]:
        with self.log_file(component).open("ab") as output:
            return subprocess.Popen(
                self._command(component),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment_of(component),
                cwd=self.home,
                start_new_session=True,
            )

    def _environment_of(self, component: str) -> dict[str, str]:
        """The environment of a component. With SQLite the API server alone has little patience.

        Airflow 3.3's API server writes the audit log of a request in its event loop. Where another request has begun
        to write, it waits there for a lock that only the event loop could release, until its patience ends. It also
        looks there whether a user's token was revoked; while 15 requests wait for the lock it would wait 30 s for one
        of their connections.
        """
        if component != "api-server" or not self._is_sqlite:
            return self.environment
        connections = {
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": self._sqlite(patience=3),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_MAX_OVERFLOW": "-1",  # as many as it takes
        }
        return {**self.environment, **connections}

    def _sqlite(self, patience: int) -> str:
        """The database in our folder; ``patience`` seconds to wait for others let several processes write to it."""
        return f"sqlite:///{self.home}/airflow.db?timeout={patience}"

    def kill(self, component: str, number: signal.Signals = signal.SIGKILL, *, group: bool = False) -> None:
        """Send a signal to a component's main process and wait until that has ended.

        :param group: to its whole process group, as a terminal does on Ctrl-C
        :raises AirflowError: it did not end; with what its processes do
        """
        process = self._running.pop(component)
        if group:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        if not processes.wait_until(lambda: process.poll() is not None, PATIENCE, 0.05):
            raise AirflowError(f"{component} did not end {PATIENCE:g} s after {number.name}:\n{self._at_work()}")

    def restart(self, component: str, number: signal.Signals = signal.SIGTERM) -> None:
        """End a component by a signal and start it again."""
        self.kill(component, number)
        self.start(component)

    def stop(self, *, orphans: bool = False, patience: float = PATIENCE) -> None:
        """End all components in order, then whatever they left behind.

        :param orphans: processes left behind are expected, as after a SIGKILL
        :param patience: seconds that what was started has for its end
        :raises AirflowError: something was left behind that should have ended by itself; it is ended all the same
        """
        if self._client:
            self._client.close()
            self._client = None
        # The API server last: the scheduler ends its executor, whose tasks still need it.
        last = self._running.pop("api-server", None)
        stubborn = _end(self._running, patience)
        self._running.clear()
        what_they_do = self._at_work() if stubborn else ""
        stubborn += _end({"api-server": last} if last else {}, patience)
        if self._commands:
            self._commands.end()
            self._commands = None
        if not orphans:
            processes.wait_until(lambda: not self.processes(), patience)
        left = self.processes()
        processes.kill(left)
        processes.wait_until(lambda: not self.processes(), 10)
        if stubborn:
            names = ", ".join(stubborn)
            raise AirflowError(f"{names} did not end {patience:g} s after SIGTERM; logs: {self.home}\n{what_they_do}")
        if left and not orphans:
            commands = "\n".join(f"  {process.pid} {process.command}" for process in left)
            raise AirflowError(f"Airflow left processes behind, which were killed; logs: {self.home}\n{commands}")

    def _at_work(self) -> str:
        return f"{processes.at_work(self.processes())}\n{self.log_tails()}"

    def processes(self) -> list[processes.Process]:
        """Every living process that this Airflow started, directly or not."""
        return processes.belonging(self.home, self._leaders)

    def pid(self, component: str) -> int:
        return self._running[component].pid

    def log_file(self, component: str) -> Path:
        return self.home / f"{component}.log"

    def log_tails(self, lines: int = 30) -> str:
        """The last lines of every component's output, to find out what went wrong."""
        parts = []
        # Not every folder below: those of jobs may go while they are searched.
        for path in sorted(
            log for where in ("", "lading/", "lading/spool/*/") for log in self.home.glob(f"{where}*.log")
        ):
            tail = path.read_text(errors="replace").splitlines()[-lines:]
            parts.append("\n".join([f"--- {path}", *tail]))
        return "\n".join(parts)

    def wait_until_healthy(self, timeout: float = 120) -> None:
        """Wait until every running component says that it is well.

        :raises AirflowError: one ended, or was not well after ``timeout`` seconds
        """
        end = time.monotonic() + timeout * processes.SLOWEST
        while waiting := self._unwell():
            for component, process in self._running.items():
                if process.poll() is not None:
                    raise AirflowError(f"{component} ended with {process.returncode}\n{self.log_tails()}")
            if time.monotonic() > end:
                raise AirflowError(f"{', '.join(waiting)} not healthy after {timeout:g} s\n{self.log_tails()}")
            time.sleep(0.3)

    def _unwell(self) -> list[str]:
        # Asked without a client of our own: its token is only to be had from an API server that is up.
        try:
            health = httpx.get(f"{self.url}/api/v2/monitor/health", timeout=60).json()
        except (httpx.TransportError, ValueError):
            return ["api-server"]
        expected = {"api-server": "metadatabase"}
        names = [(component, expected.get(component, component.replace("-", "_"))) for component in self._running]
        return [component for component, name in names if health.get(name, {}).get("status") != "healthy"]

    @staticmethod
    def _command(*arguments: str) -> list[str]:
        return [sys.executable, str(AIRFLOW), *arguments]

    # -- the REST API

    def rest(
        self,
        method: str,
        path: str,
        json: object = None,
        *,
        headers: Mapping[str, str] | None = None,
        **parameters: object,
    ) -> Any:
        """Call the REST API as admin: ``path`` below ``/api/v2/``; return the decoded answer.

        :raises AirflowError: the status is 400 or more; with the answer's text
        """
        if self._client is None:
            token = httpx.get(f"{self.url}/auth/token", timeout=120).json()["access_token"]
            self._client = httpx.Client(headers={"Authorization": f"Bearer {token}"}, timeout=180)
        query: dict[str, Any] = {name: value for name, value in parameters.items() if value is not None}
        url = f"{self.url}/api/v2/{path.lstrip('/')}"
        for _ in range(SQLITE_ATTEMPTS if self._is_sqlite else 1):
            answer = self._client.request(method, url, json=json, params=query, headers=headers)
            if answer.status_code != httpx.codes.INTERNAL_SERVER_ERROR:
                break  # else the database was locked for too long, see _environment_of, and nothing has been done
        if answer.is_error:
            raise AirflowError(f"{method} {path}: {answer.status_code} {answer.text}")
        return answer.json() if answer.content else None

    def add_dag(self, name: str, source: str, timeout: float = 60) -> None:
        """Write a Dag file ``name``.py and wait until its Dags, or why they cannot be imported, are known.

        :raises AirflowError: it cannot be imported; with Airflow's words
        """
        self.add_dags({name: source}, timeout)

    def add_dags(self, sources: Mapping[str, str], timeout: float = 60) -> None:
        """The same for several files at once, given by name."""
        files = {f"{name}.py": source for name, source in sources.items()}
        for name, source in files.items():
            (self.dags / name).write_text(source)
        missing = set(files)

        def known() -> bool:
            for name in files:
                if errors := self.import_errors(name):
                    raise AirflowError(f"{self.dags / name} cannot be imported:\n" + "\n".join(errors))
            missing.difference_update(dag["relative_fileloc"] for dag in self.rest("GET", "dags", limit=1000)["dags"])
            return not missing

        if not processes.wait_until(known, timeout, 0.5):
            raise AirflowError(f"{', '.join(missing)} not parsed within {timeout:g} s\n{self.log_tails()}")

    def import_errors(self, filename: str) -> list[str]:
        """Why the Dag file ``filename`` cannot be imported, in Airflow's words."""
        errors = self.rest("GET", "importErrors", limit=1000)["import_errors"]
        return [error["stack_trace"] for error in errors if Path(error["filename"]).name == filename]

    def wait_for_dag(self, dag_id: str, timeout: float = 60) -> None:
        """Wait until a Dag of the folder is known to the scheduler."""

        def known() -> bool:
            return any(dag["dag_id"] == dag_id for dag in self.rest("GET", "dags", limit=1000)["dags"])

        if not processes.wait_until(known, timeout, 0.5):
            errors = "\n".join(e["stack_trace"] for e in self.rest("GET", "importErrors")["import_errors"])
            raise AirflowError(f"no Dag {dag_id} after {timeout:g} s\n{errors}\n{self.log_tails()}")

    def wait_for_callbacks(self, name: str, reached: Callable[[], bool], timeout: float = 60) -> bool:
        """Wait for what callbacks do that the Dag processor runs for Dags of the file ``name``.py; whether they did.

        A callback that comes while the file is read is kept until it is read again, so it is changed now and then.
        """
        changed_at = 0.0

        def called() -> bool:
            nonlocal changed_at
            if reached():
                return True
            if time.monotonic() > changed_at + 10:
                (self.dags / f"{name}.py").touch()
                changed_at = time.monotonic()
            return False

        return processes.wait_until(called, timeout)

    def trigger(self, dag_id: str, conf: Mapping[str, object] | None = None) -> str:
        """Start a run now and return its id."""
        body = {"logical_date": None, "conf": dict(conf or {})}
        run_id: str = self.rest("POST", f"dags/{dag_id}/dagRuns", body)["dag_run_id"]
        return run_id

    def run_state(self, dag_id: str, run_id: str) -> str:
        state: str = self.rest("GET", f"dags/{dag_id}/dagRuns/{run_id}")["state"]
        return state

    def wait_for_run(self, dag_id: str, run_id: str, timeout: float = 120) -> str:
        """Wait until a run has finished and return its state, ``success`` or ``failed``.

        :raises AirflowError: it had not after ``timeout`` seconds; with the states of its tasks
        """
        if not processes.wait_until(lambda: self.run_state(dag_id, run_id) in FINISHED, timeout, POLL):
            states = {f"{ti['task_id']}[{ti['map_index']}]": ti["state"] for ti in self.task_instances(dag_id, run_id)}
            raise AirflowError(f"{dag_id} {run_id} unfinished after {timeout:g} s: {states}\n{self.log_tails()}")
        return self.run_state(dag_id, run_id)

    def task_instances(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """All task instances of a run, as the REST API tells them."""
        found: list[dict[str, Any]] = []
        while True:
            page = self.rest("GET", f"dags/{dag_id}/dagRuns/{run_id}/taskInstances", limit=100, offset=len(found))
            found += page["task_instances"]
            if len(found) >= page["total_entries"] or not page["task_instances"]:
                return found

    def task_instance(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> dict[str, Any]:
        suffix = "" if map_index < 0 else f"/{map_index}"
        found: dict[str, Any] = self.rest("GET", f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}{suffix}")
        return found

    def wait_for_task(
        self, dag_id: str, run_id: str, task_id: str, *states: str, map_index: int = -1, timeout: float = 120
    ) -> str:
        """Wait until a task instance is in one of ``states`` and return which.

        :raises AirflowError: it was in none after ``timeout`` seconds
        """
        state: list[str] = []

        def reached() -> bool:
            state[:] = [self.task_instance(dag_id, run_id, task_id, map_index)["state"]]
            return state[0] in states

        if not processes.wait_until(reached, timeout, POLL / 2):
            raise AirflowError(f"{task_id} is {state[0]}, not {states}, after {timeout:g} s\n{self.log_tails()}")
        return state[0]

    def logs(self, dag_id: str, run_id: str, task_id: str, *, map_index: int = -1, try_number: int = 1) -> str:
        """A task's log as the UI shows it, a line per event, with what an error carried."""
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{try_number}"
        content = self.rest("GET", path, map_index=map_index, full_content=True)["content"]
        return "\n".join(each if isinstance(each, str) else _line(each) for each in content)

    def xcom(self, dag_id: str, run_id: str, task_id: str, *, key: str = "return_value", map_index: int = -1) -> object:
        """A value that a task has pushed."""
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/{key}"
        return self.rest("GET", path, map_index=map_index, deserialize=False)["value"]

    def events(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """The audit log of a run, oldest first."""
        found = self.rest("GET", "eventLogs", dag_id=dag_id, run_id=run_id, limit=1000, order_by="event_log_id")
        entries: list[dict[str, Any]] = found["event_logs"]
        return entries


def _end(running: Mapping[str, subprocess.Popen[bytes] | Lent], patience: float) -> list[str]:
    """Ask processes to end, all at once; return the names of those that have not after ``patience`` seconds."""
    for process in running.values():
        process.terminate()
    processes.wait_until(lambda: all(process.poll() is not None for process in running.values()), patience)
    return [name for name, process in running.items() if process.returncode is None]


def _line(message: Mapping[str, Any]) -> str:
    details = message.get("error_detail") or []
    return " ".join([message["event"], *(f"{each.get('exc_type')}: {each.get('exc_value')}" for each in details)])
