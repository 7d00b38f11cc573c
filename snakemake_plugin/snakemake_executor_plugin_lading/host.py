"""Snakemake as the host of Lading."""

from __future__ import annotations

import argparse
import io
import json
import logging
import math
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timezone, tzinfo
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from lading.executors.migrations.own_database import own_tables_fault
from lading.executors.orchestrator.orchestrator import (
    DagPast,
    DagStructure,
    DagTask,
    ExpectedGang,
    Forecaster,
    MetricsBackend,
    Roster,
    TaskNote,
)
from lading.executors.settings import Settings
from lading.executors.store import LIVE, JobRow, State, chunks
from lading.executors.store.gangs.runs import DagRunKey
from lading.executors.store.leases import DatabaseNow
from lading.executors.store.run_rows import RunForecastRow, RunKey, RunRequest, RunTerms
from lading.hooks.deployment.deployment import BatchDefaults, DeploymentIdentity, Login, OpenSocket
from lading.hooks.files import child_processes
from lading.hooks.spool.command import COMMAND_RUNNER
from lading.plugin.host import Command, Host
from lading.scheduling.model.site_names import ACCOUNT
from lading.scheduling.sizing.right_size import Sizes
from snakemake_executor_plugin_lading import runs
from snakemake_executor_plugin_lading.needs import DEFAULT_RESOURCES, OF_AIRFLOW, allocations_of, for_users, rule_line
from snakemake_executor_plugin_lading.state_folder import ControllerOptions, StateFolder, transaction

if TYPE_CHECKING:
    import paramiko
    from rich.console import Console

# Memory of the Python process that supervises a command in a batch job, MiB.
MEMORY_OF_BATCH_JOB = 48
# For allocations of sites whose table has no mode, in seconds: how long an idle allocation keeps its node, and how long
# a job waits for room in an allocation before it can be a batch job itself.
IDLE_SECONDS, BURST_SECONDS = 10, 3600
# Characters of the name of a workflow's own folder in a work_dir.
LENGTH_OF_FOLDER = 12
SSH_PORT = 22
# The connection of sites that name none. If no profile has this name, boto3 finds the credentials itself.
DEFAULT_AWS_CONNECTION = "aws_default"
SECONDS_TO_SHUT_DOWN = 30
DAYS_KEPT = 30
# Width of tables in a pipe or a file, wide enough that most rows fit into a line.
WIDTH = 200


def make_settings(state: StateFolder, options: ControllerOptions) -> Settings:
    return Settings(
        sites_file=None if options.sites_file is None else Path(options.sites_file),
        state_folder=state.root,
        default_resources=DEFAULT_RESOURCES,
        on_shutdown="cancel",
        shutdown_seconds=SECONDS_TO_SHUT_DOWN,
        job_retention_days=DAYS_KEPT,
    )


class SnakemakeHost(Host):
    """The workflows in a state folder, with connections from ``~/.ssh/config`` and boto3.

    :param engine: of the store in the state folder
    """

    program = "snakemake-lading"
    starter = "Snakemake"

    def __init__(self, engine: Engine, state: StateFolder) -> None:
        self.engine, self.state, self.store = engine, state, state.store_id()

    @classmethod
    def connect(cls, state: StateFolder, *, only_reads: bool = False) -> SnakemakeHost:
        """Open the store in a state folder.

        :param only_reads: whether to leave the store as it is, without creating or migrating tables
        :raises lading.executors.migrations.own_database.AnotherVersion: a newer version of Lading created the store
        """
        return cls(state.open() if only_reads else state.connect(), state)

    def runner_options(self) -> list[str]:
        return ["--runner", COMMAND_RUNNER]

    def brings_agent(self) -> bool:
        return True

    def batch_defaults(self) -> BatchDefaults:
        return BatchDefaults(MEMORY_OF_BATCH_JOB, time=None)

    def implied_sites(self, tables: Mapping[str, Any], models: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Return a site of allocations for the short jobs of each cluster without ``mode`` in its table. Only jobs that
        name such a site go there.
        """
        found = {}
        for name, table in tables.items():
            if "mode" not in models[table["kind"]].model_fields or "mode" in table or ACCOUNT in name:
                continue
            config = models[table["kind"]].model_validate(table, context={"deployment": self})
            own = {"max_jobs", "node_gpus", "gpu_types"}
            found[allocations_of(name)] = {
                **{key: value for key, value in table.items() if key not in own},
                "mode": "allocation",
                "work_dir": f"{config.work_dir}/allocations",
                "accept_untargeted": False,
                # As many cpus as max_jobs jobs with one cpu each.
                "max_allocations": max(1, math.ceil(config.max_jobs / config.node_cpus)),
                "idle_seconds": IDLE_SECONDS,
                "burst_after": BURST_SECONDS,
            }
        return {name: table for name, table in found.items() if name not in tables}

    def own_work_dir(self, work_dir: str) -> str:
        # Not of the secret, which changes if the state folder is removed, nor of the host, which is any login node.
        return f"{work_dir.rstrip('/')}/{sha256(os.fsencode(self.state.root)).hexdigest()[:LENGTH_OF_FOLDER]}"

    def log_folder(self) -> Path:
        return self.state.logs

    def identity(self) -> DeploymentIdentity:
        return DeploymentIdentity(
            self.state.secret(), str(self.state.database), f"{socket.gethostname()}:{self.state.root}", is_named=True
        )

    def api_url(self) -> str:
        return ""

    def heartbeat_timeout(self) -> int | None:
        return None

    def ssh_login(self, to: Any, timeout: int, keepalive: int, open_socket: OpenSocket) -> Login:
        return ConfigLogin(to, timeout, keepalive, open_socket)

    def ssh_fault(self, name: str, error: BaseException) -> tuple[str | None, bool]:
        return f"~/.ssh/config cannot be used for host {name!r}: {error}", isinstance(error, (ValueError, OSError))

    def aws_client(self, aws_conn_id: str, service: str, region: str | None, options: Mapping[str, Any]) -> Any:
        try:
            import boto3
            from botocore.config import Config
        except ImportError as error:
            raise ImportError(f"boto3 is missing ({error}): pip install boto3") from error
        is_default = aws_conn_id in ("", DEFAULT_AWS_CONNECTION) and self.aws_connection_fault(aws_conn_id)
        session = boto3.Session(profile_name=None if is_default else aws_conn_id)
        return session.client(service, region_name=region, config=Config(**options))

    def aws_connection_fault(self, name: str) -> str | None:
        import boto3

        return None if name in boto3.Session().available_profiles else f"there is no profile {name!r} in ~/.aws"

    # The engine: answers from the tables of the workflows.

    def _living(self) -> set[int]:
        return runs.living_owners(self.state.schedulers)

    def has_lost_store(self) -> bool:
        return self.state.has_lost(self.store)

    def session(self) -> AbstractContextManager[Session]:
        return transaction(self.engine)

    def unwanted(self, session: Session, tokens: Sequence[str], seconds: float) -> Sequence[str]:
        # A waiting job is no longer needed if its Snakemake process was killed.
        waiting = JobRow.kind == "Command", JobRow.state.in_((State.QUEUED, State.ATTEMPTED))
        query, alive = select(JobRow.token, JobRow.owner).where(*waiting), self._living()
        rows = (row for chunk in chunks(tokens) for row in session.execute(query.where(JobRow.token.in_(chunk))))
        return [token for token, owner in rows if owner not in alive]

    def disowned(self, session: Session, seconds: float, most: int) -> Sequence[tuple[str, str]]:
        which = JobRow.kind == "Command", JobRow.state.in_((State.ATTEMPTED, State.PLACED)), JobRow.cancel.is_(None)
        query = select(JobRow.token, JobRow.state, JobRow.owner).where(*which)
        query = query.where(JobRow.queued_at < DatabaseNow() - seconds)
        alive = self._living()
        found = [(token, state) for token, state, owner in session.execute(query) if owner not in alive]
        return found[:most]

    def still_at_work(self, session: Session, tokens: Sequence[str], now: float) -> set[str]:
        return set()  # jobs report through their sites only

    def forget_ended(self, session: Session) -> None:
        runs.forget_killed_runs(session, self.state)

    def is_attended(self, schedulers_folder: Path, except_for: int | None) -> bool:
        return bool(self._living() - {except_for})

    def controller_command(self) -> list[str]:
        return child_processes.python_command("snakemake_executor_plugin_lading", "controller", str(self.state.root))

    def forecaster(self) -> Forecaster:
        return RuleForecaster()

    def unfinished(self, session: Session, wanted: Iterable[DagRunKey]) -> Mapping[DagRunKey, Sequence[Any]]:
        return {run: self._rows(session, run) for run in wanted}

    def _rows(self, session: Session, run: DagRunKey) -> list[Any]:
        fields = {"dag_id": run.dag_id, "run_id": run.run_id, "state": None, "start_date": None, "try_number": 1}
        fields |= {"executor": None, "pool": None, "pool_slots": 1}
        of_run = JobRow.dag_id == run.dag_id, JobRow.run_id == run.run_id
        query = select(JobRow.task_id, JobRow.map_index, JobRow.owner).where(*of_run, JobRow.state.in_(LIVE))
        live = {(name, number): owner for name, number, owner in session.execute(query)}
        # If its Snakemake was killed, no further jobs follow those that are live.
        is_killed = bool(live) and self._living().isdisjoint(live.values())
        # Snakemake stores what is left from time to time only; a plan must not keep room for jobs that have ended.
        ended = select(JobRow.task_id, JobRow.map_index).where(*of_run, JobRow.state == State.SUCCEEDED)
        succeeded = {(name, number) for name, number in session.execute(ended)} - live.keys()
        return [
            SimpleNamespace(**fields, task_id=name, map_index=number)
            for name, left in runs.jobs_left(session, run.run_id).items()
            for number in left
            if (not is_killed or (name, number) in live) and (name, number) not in succeeded
        ]

    def hints(self, session: Session, run: DagRunKey) -> Mapping[str, Any]:
        return {name: rule.hints[0][0] for name, rule in runs.rules_of_run(session, run.run_id).items()}

    def hints_of_jobs(self, session: Session, run: DagRunKey) -> Mapping[str, Mapping[int, Any]]:
        return {
            name: {number: config for config, numbers in rule.hints[1:] for number in numbers}
            for name, rule in runs.rules_of_run(session, run.run_id).items()
        }

    def pools(self, session: Session) -> Mapping[str, int]:
        return {}

    def rosters(self, session: Session, wanted: Mapping[str, ExpectedGang]) -> dict[str, Roster]:
        return {}  # rules have no gangs: a group is one job

    def run_requests(self, session: Session) -> Mapping[RunKey, RunRequest]:
        return {}

    def reporting(self, session: Session, dag_id: str, run_id: str, tasks: Iterable[str]) -> str | None:
        return None

    def note(self, session: Session, notes: Iterable[TaskNote]) -> None:
        """Do nothing: Snakemake has no event log, and the rows have the reasons."""

    def metrics(self) -> MetricsBackend:
        return NoMetrics()

    # Commands.

    def run(self, command: Command, args: argparse.Namespace) -> None:
        logging.disable(logging.WARNING)
        command(self, args)

    def settings(self) -> Settings:
        return make_settings(self.state, ControllerOptions.read(self.state.options))

    def option(self, name: str) -> str:
        return ""

    def store_fault(self, session: Session) -> str | None:
        try:
            return own_tables_fault(session.connection())
        except SQLAlchemyError as error:
            return f"{self.state.database} cannot be read: {error}"

    def terms(self, session: Session, dag_id: str, run_id: str) -> RunTerms | None:
        if not runs.jobs_left(session, run_id):
            return None
        return RunTerms(None, session.get(RunForecastRow, (dag_id, run_id)))

    def notes(self, session: Session, job: JobRow) -> list[tuple[float, str]]:
        return []  # Snakemake keeps no log of events

    def for_users(self, text: str | None) -> str | None:
        said = for_users(text or "")
        return None if OF_AIRFLOW.search(said) else said or None

    def zone(self) -> tzinfo:
        return datetime.now().astimezone().tzinfo or timezone.utc

    def line(self, fitted: Sizes) -> str | None:
        return rule_line(fitted)

    def console(self) -> RowPrinter:
        return RowPrinter()


class RuleForecaster(Forecaster):
    """Forecasts with rules as tasks, and their jobs as mapped instances."""

    zone: tzinfo = datetime.now().astimezone().tzinfo or timezone.utc

    def __init__(self) -> None:
        self.read: dict[str, int] = {}
        """The edition of each run that was read last, by run ID."""

    def read_structures(self, session: Session, wanted: Iterable[DagRunKey]) -> Mapping[DagRunKey, DagStructure | None]:
        wanted = list(wanted)
        self.read |= runs.editions(session, [run.run_id for run in wanted])
        found: dict[DagRunKey, DagStructure | None] = {}
        for run in wanted:
            its_rules = runs.rules_of_run(session, run.run_id)
            tasks = {
                name: DagTask(upstream=tuple(sorted(rule.upstream)), before=rule.before)
                for name, rule in its_rules.items()
            }
            found[run] = DagStructure(tasks, zone=self.zone) if tasks else None
        return found

    def changed(self, session: Session, wanted: Iterable[DagRunKey]) -> Sequence[DagRunKey]:
        wanted = list(wanted)
        now = runs.editions(session, [run.run_id for run in wanted])
        return [run for run in wanted if now.get(run.run_id, 0) > self.read.get(run.run_id, 0)]

    def past(self, session: Session, dag_id: str) -> DagPast:
        return DagPast()

    def facts(self, session: Session, dag_id: str) -> Mapping[str, Any]:
        return {}

    def is_ours(self, executor: str | None, team: str | None) -> bool:
        return True


class ConfigLogin(Login):
    """A login at a host like with ``ssh``: by ``~/.ssh/config``, keys, agents and ``known_hosts``."""

    def __init__(self, to: Any, timeout: int, keepalive: int, open_socket: OpenSocket) -> None:
        import paramiko

        self.to, self.timeout, self.keepalive, self.open_socket = to, timeout, keepalive, open_socket
        self.made: Any = None
        self.is_abandoned = False
        if not isinstance(to, str):
            self.username, self.remote_host, self.port = to.user, to.host, to.port
            self.proxy, self.files = to.proxy_command, []
            return
        path = Path("~/.ssh/config").expanduser()
        found = paramiko.SSHConfig.from_path(str(path)).lookup(to) if path.exists() else paramiko.SSHConfig().lookup(to)
        self.username = found.get("user")
        self.remote_host, self.port = found["hostname"], int(found.get("port", SSH_PORT))
        self.files = found.get("identityfile", [])
        self.proxy = found.get("proxycommand")
        if self.proxy is None and (jump := found.get("proxyjump")) and jump.lower() != "none":
            self.proxy = jump_command(jump, self.remote_host, self.port)

    def open(self) -> paramiko.SSHClient:
        import paramiko

        client = paramiko.SSHClient()
        options: dict[str, Any] = dict.fromkeys(("timeout", "banner_timeout", "auth_timeout"), self.timeout)
        if isinstance(self.to, str):
            client.load_system_host_keys()
            options["key_filename"] = [str(Path(each).expanduser()) for each in self.files] or None
        else:
            kind, key = self.to.host_key.split()[:2]
            known = self.remote_host if self.port == SSH_PORT else f"[{self.remote_host}]:{self.port}"
            entry = paramiko.hostkeys.HostKeyEntry.from_line(f"{known} {kind} {key}")
            if entry is None or entry.key is None:
                raise ValueError(f"the host key of {known} is not valid")
            client.get_host_keys().add(known, kind, entry.key)
            options["pkey"] = paramiko.Ed25519Key.from_private_key(io.StringIO(self.to.private_key))
            options |= {"look_for_keys": False, "allow_agent": False}
        if self.proxy:
            self.made = paramiko.ProxyCommand(self.proxy)
        else:
            self.made = self.open_socket(self.remote_host, self.port, self.timeout)
        if self.is_abandoned:
            self.made.close()
            raise OSError("the connection was closed while it was being opened")
        client.connect(self.remote_host, self.port, self.username, sock=self.made, **options)
        transport = client.get_transport()
        assert transport is not None
        transport.set_keepalive(self.keepalive)
        return client

    def abandon(self) -> None:
        self.is_abandoned = True
        if self.made is not None:
            self.made.close()

    def where_keys_are(self) -> str:
        return "~/.ssh/known_hosts"


def jump_command(hosts: str, to: str, port: int) -> str:
    """Return the command that connects to a server through jump hosts.

    :param hosts: the jump hosts as in ``ProxyJump``: ``[user@]host[:port]``, separated by commas
    """
    *before, last = (each.strip() for each in hosts.split(","))
    target = f"[{to}]" if ":" in to else to
    jumps = f"-J {','.join(before)} " if before else ""
    # ssh takes a host with a port only as a URL.
    return f"ssh -o BatchMode=yes {jumps}-W {target}:{port} ssh://{last.removeprefix('ssh://')}"


class NoMetrics:
    """Discards metrics, because Snakemake has no backend for them."""

    def incr(self, stat: str, *, tags: dict[str, Any] | None = None) -> None:
        """Do nothing."""

    def gauge(self, stat: str, value: float, *, tags: dict[str, Any] | None = None) -> None:
        """Do nothing."""

    def timing(self, stat: str, dt: float, *, tags: dict[str, Any] | None = None) -> None:
        """Do nothing."""

    def timer(self, stat: str) -> AbstractContextManager[None]:
        return nullcontext()


class RowPrinter:
    def print_as_json(self, rows: Sequence[dict[str, Any]]) -> None:
        print(json.dumps(rows))

    def print_as_yaml(self, rows: Sequence[dict[str, Any]]) -> None:
        import yaml

        print(yaml.safe_dump(list(rows), sort_keys=False), end="")

    def print_as(self, rows: Sequence[dict[str, Any]], output: str) -> None:
        """Print texts.

        :param output: ``table``, or ``plain`` without borders and colours
        """
        from rich import box
        from rich.table import Table
        from rich.text import Text

        if not rows:
            print("No data found")
            return
        style = box.ASCII_DOUBLE_HEAD if output == "table" else None
        table = Table(box=style, show_edge=False, pad_edge=False)
        for name in rows[0]:
            table.add_column(Text(name), overflow="fold")
        for row in rows:
            table.add_row(*(Text(str(each)) for each in row.values()))
        _console().print(table)


def _console() -> Console:
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=WIDTH)


def read_environment(state: StateFolder, run_id: str) -> str:
    """Return the environment variables of the jobs of a run as JSON. They are sent with each job, and in no table."""
    try:
        return state.environment(run_id).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
