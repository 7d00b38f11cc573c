"""Lading's engine as used by the executor of a workflow: the store, the controller, and jobs as rows."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import secrets
import shlex
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from lading.hooks.files.safe_files import make_private, write_atomically
from lading.hooks.files.version import MixedVersions, check_versions
from lading.scheduling.text.printable import printable
from snakemake_executor_plugin_lading import runs
from snakemake_executor_plugin_lading.batch_resources import are_known, cause
from snakemake_executor_plugin_lading.needs import (
    JobNeeds,
    NeedsError,
    PastJobs,
    RunSites,
    auto_resources,
    check_limits,
    executor_config,
    for_users,
    forecast_hints,
    in_allocation,
    input_size,
    needs_of,
)
from snakemake_executor_plugin_lading.state_folder import (
    FOLDER,
    ControllerOptions,
    StateFolder,
    StoreRemoved,
    transaction,
)

if TYPE_CHECKING:
    from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

    from lading.executors.store import Change
    from lading.hooks.site import RequestRefusal
    from lading.hooks.spool.spool import Envelope
    from lading.scheduling.hints.hints import Hints
    from lading.scheduling.sizing.right_size import Sizes

# How many ended jobs are fetched at a time.
MOST_ENDS = 1000
# How long to wait until the jobs of a killed Snakemake are cancelled before this one starts, in seconds.
SECONDS_TO_CLEAR = 300.0
# How often the remaining jobs are stored at most, in seconds.
SECONDS_BETWEEN_PLANS = 2.0
# How often past durations and waits are read at most, in seconds.
SECONDS_BETWEEN_LOOKS_BACK = 10.0
MOST_PRIORITY = 2**31 - 1
LONGEST_NAME = 250
# Numbers and random names in a reason. A reason that differs only in these is not logged again.
NUMBERS = re.compile(r"[0-9a-f]{32}|\d+(\.\d+)?")
# Why jobs wait in every large run: for other jobs, or for a full machine.
USUAL_REASONS = {"turn", "machine_full", "no_whole_gpu"}
MOST_OWNERS = 2**31
# The runner of jobs that start Snakemake, on nodes where this plugin is installed.
RUNNER = "snakemake_executor_plugin_lading.runner"


class EngineError(Exception):
    """The engine cannot be used; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class EndedJob:
    """The end of a job.

    :param cause: why it failed; None: it succeeded
    :param message: the cause as a sentence
    :param row: the row of the job in the store
    """

    succeeded: bool
    cause: str | None
    message: str
    row: Any


@dataclass(frozen=True, slots=True)
class JobCommand:
    """What a job runs.

    :param arguments: the program and its arguments
    :param environment: environment variables in addition to those of the run
    :param folder: its working directory; empty: a scratch folder of its own, because no common directory is assumed
    :param is_direct: whether it is the job's shell command; otherwise it is a Snakemake
    """

    arguments: list[str]
    environment: dict[str, str]
    folder: str
    is_direct: bool

    def key(self, name: str) -> tuple[str, ...]:
        """Return a key that identifies the work of a job, regardless of which Snakemake submitted it.

        :param name: the name of its task
        """
        variables = (f"{each}={self.environment[each]}" for each in sorted(self.environment))
        return name, self.folder, *self.arguments, *variables


class BatchRequest(NamedTuple):
    """A request, and the first job of each rule that has it."""

    needs: JobNeeds
    jobs: dict[str, Any]

    def refused(self, refusal: RequestRefusal, site: str) -> str:
        """Describe why the batch system of a site refuses it."""
        (rule, job), *others = self.jobs.items()
        rules = f"rule {rule} (job {number_of(job)})" + "".join(f", rule {name}" for name, _ in others)
        option, value = refusal.option, refusal.value
        what = None if option is None else cause(job.resources, option)
        if what is None and value is not None:
            what = f"option {option} of site {site!r} is {value!r}"
        if refusal.system is None:
            return ": ".join(filter(None, (rules, what, refusal.message)))
        when = "" if refusal.is_final else " for now"
        whom = f"{refusal.system} refuses " + ("its batch jobs" if what is None else "it")
        text = f"{whom}{when}: {refusal.message}{refusal.advice}"
        return f"{rules}: {text}" if what is None else f"{rules}: {what}, but {text}"


CommandOf: TypeAlias = Callable[[Any], JobCommand | None]


class Engine:
    """The store of a state folder, with a controller for it.

    :param workflow: Snakemake's workflow
    :param options: the executor's settings
    :param environment: the environment variables of all jobs
    :param logger: Snakemake's logger
    :raises EngineError: an option is not valid, or the store cannot be used
    """

    def __init__(self, workflow: Any, options: Any, environment: Mapping[str, str], logger: Any) -> None:
        from lading.executors.controller_process import ControllerProcess
        from lading.executors.migrations.own_database import AnotherVersion
        from lading.executors.store.durations import Durations, PastWaits
        from snakemake_executor_plugin_lading.host import SnakemakeHost, make_settings

        self.workflow, self.options, self.logger = workflow, options, logger
        self.state = StateFolder(Path(options.state_folder or FOLDER).expanduser().absolute())
        self.run_id = str(uuid.uuid4())
        self.dag_id = dag_id_of(workflow)
        self.workdir = runs.path_key(os.getcwd())
        # Not the process ID, which another process can have in a container, or later.
        self.owner = secrets.randbelow(MOST_OWNERS)
        self.tries: dict[str, tuple[str | None, int | None, int | None]] = {}
        """The cause of failure, the memory and the time of the last try of failed jobs, by their keys."""
        self.resubmitted: dict[str, int] = {}
        self.resumable: dict[str, str] = {}
        """The tokens of adopted jobs of a killed Snakemake, by their keys, until Snakemake submits the same jobs."""
        self.sizes: dict[str, Sizes] = {}
        """What the tries of tasks needed whose memory or runtime Lading chooses, as of the last submission."""
        self.next_plan = self.next_look_back = 0.0
        self._is_plan_old = False
        self._planned: dict[int, Any] = {}
        """The jobs of the stored plan, by their Python object IDs."""
        self._left: dict[str, set[int]] = {}
        self.past, self._lengths, self._waits = PastJobs(), Durations(), PastWaits()
        self._environment = json.dumps(dict(environment))
        self._presence: Any = None
        self._is_ending = False
        self._said: set[str] = set()
        try:
            check_versions()
            check_limits(options.limits)
            executor_config(cpus=1, site=options.site, hurry=options.hurry, finish_by=options.finish_by)
            make_private(self.state.root)
            sites_file = None if options.sites_file is None else Path(options.sites_file).expanduser().absolute()
            if sites_file is not None and not sites_file.is_file():
                raise EngineError(f"--lading-sites-file: there is no file {sites_file}")
            self.options_of_controller = ControllerOptions(None if sites_file is None else str(sites_file))
            self.settings = make_settings(self.state, self.options_of_controller)
            self.host = SnakemakeHost.connect(self.state)
        except (MixedVersions, NeedsError, AnotherVersion, OSError) as error:
            raise EngineError(str(error)) from error
        self.database = self.host.engine
        self.controller = ControllerProcess(self.host, self.settings, self.owner)
        self.sites = self._load_sites()
        self._limit_threads()

    def _load_sites(self) -> RunSites:
        """Load the sites file here first, because a controller with an invalid file would fail to start repeatedly.

        :raises EngineError: it is not valid
        """
        from lading.executors.controller.sites_file import declared, edition_now
        from lading.hooks.machines.local import LocalSite
        from lading.plugin.published import edition, known, published
        from lading.plugin.sites import SitesError, load_sites

        try:
            self._loaded = sites = load_sites(self.settings, self.host)
            chosen = [each for name, each in sites.items() if self.options.site in (None, name)]
            [only] = chosen if len(chosen) == 1 else [None]
            here = only.capacity if isinstance(only, LocalSite) else None
        except (SitesError, ValueError) as error:
            raise EngineError(f"--lading-sites-file: {error}") from error
        if (read := edition(self.settings)) is not None and read == edition_now(self.settings.sites_file):
            return RunSites(published(self.settings), here)
        found = {}
        for name, site in sites.items():
            try:
                found[name] = known(declared(site))
            except Exception as error:  # sites of third parties can raise anything, and AWS can be unreachable
                self.logger.info(f"Lading: the capacity of site {name!r} is unknown: {for_users(str(error))}")
        return RunSites(found if len(found) == len(sites) else {}, here)

    def _limit_threads(self) -> None:
        """Limit the threads of rules to those of this machine if it is the only site, like ``--cores`` does."""
        settings, most = self.workflow.resource_settings, self.sites.most_threads
        if most is None or (settings.max_threads is not None and settings.max_threads <= most):
            return
        settings.max_threads = most
        for job in self.workflow.dag.jobs:
            if job._resources is not None and job._resources._cores > most:
                job._resources = job._params = job._scheduler_resources = None

    def check_jobs(self) -> None:
        """Refuse a workflow with jobs that no site can ever run, as far as that is known before they are ready.

        :raises EngineError: a job cannot run; the text names the first one
        """
        from lading.scheduling.hints.hints import Hints

        for job in self.workflow.dag.needrun_jobs():
            if job.is_local:
                continue
            try:
                needs = self._first_needs(job)
                self.sites.check(Hints.from_config(needs.config), self.dag_id)
            except NeedsError as error:
                raise EngineError(f"rule {name_of(job)} (job {job.jobid}): {error}") from error
            except (
                Exception
            ):  # its request depends on files that do not exist yet; it is checked when the job is submitted
                continue
            self._warn(job, needs)

    def _first_needs(self, job: Any) -> JobNeeds:
        """Return the request of a job that was not tried yet, and whose inputs may not exist yet.

        Its command can depend on its inputs, so the request is the least: that of a job that starts no Snakemake.

        :raises NeedsError: it is not valid
        """
        from lading.scheduling.sizing.right_size import NOTHING_KNOWN

        fitted = self.sizes.get(name_of(job), NOTHING_KNOWN)
        return needs_of(job, self.workflow, self.options, None, self.sites, fitted, is_direct=True)

    def ask_sites(self) -> None:
        """Refuse a workflow with jobs that the batch system of their site would refuse for good.

        Each batch system is asked about each different request that is known before its jobs are ready. If it cannot
        be asked, or refuses a request only for now, the workflow starts.

        :raises EngineError: it refuses jobs; the text names their rules
        """
        from lading.scheduling.hints.hints import Hints

        dag, alike = self.workflow.dag, dict[str, BatchRequest]()
        units = dict.fromkeys(dag.get_job_group(each) or each for each in dag.needrun_jobs())
        for job in sorted(units, key=number_of):
            if job.is_local:
                continue
            try:
                if not are_known(job):
                    continue
                needs = self._first_needs(job)
            except Exception:  # as in check_jobs
                continue
            key = json.dumps([needs.config, needs.columns], sort_keys=True)
            alike.setdefault(key, BatchRequest(needs, {})).jobs.setdefault(name_of(job), job)
        by_site = dict[str, list[BatchRequest]]()
        for request in alike.values():
            site = self.sites.batch_site(Hints.from_config(request.needs.config), self.dag_id)
            if site is not None:
                by_site.setdefault(site, []).append(request)
        refused = []
        for site, requests in by_site.items():
            try:
                refusals = self._loaded[site].refusals([self._envelope(each) for each in requests])
            except OSError as error:
                self.logger.info(f"Lading: the requests of the jobs could not be checked by site {site!r}: {error}")
                continue
            for request, refusal in zip(requests, refusals, strict=True):
                if refusal is not None and refusal.is_final:
                    refused.append(request.refused(refusal, site))
                elif refusal is not None:
                    self.logger.info(f"Lading: {for_users(request.refused(refusal, site))}")
        if refused:
            raise EngineError("\n".join(refused))

    def _envelope(self, request: BatchRequest) -> Envelope:
        """Return the first job of a request as it would be sent to a site."""
        from lading.executors.columns import hint_columns
        from lading.executors.controller import dispatch
        from lading.executors.store import JobRow
        from lading.scheduling.hints.hints import Hints

        columns = {**hint_columns(Hints.from_config(request.needs.config), self.settings), **request.needs.columns}
        workload = json.dumps({"rule": next(iter(request.jobs))})
        row = JobRow(token="", subject="", workload=workload, priority=0, queued_at=0.0, **columns)
        return dispatch.envelope(row, "", 0.0)

    def _warn(self, job: Any, needs: JobNeeds) -> None:
        """Say that a job requests more memory than this machine has."""
        if needs.too_much is not None and self.sites.here is not None:
            self.say_once(
                f"rule {name_of(job)} requests {needs.too_much} MiB, more than the {self.sites.here.memory} MiB of "
                "this machine: its jobs run alone, without a memory limit",
                f"{name_of(job)} alone",
            )

    def say_once(self, text: str, common: str | None = None) -> None:
        """Log a text, unless this one or one with the same in common was logged before."""
        if (key := common or text) not in self._said:
            self._said.add(key)
            self.logger.info(f"Lading: {text}")

    def start(self, command_of: CommandOf) -> None:
        """Start a controller if necessary, and adopt or cancel the jobs of a killed Snakemake of this workflow.

        :param command_of: returns the command of a job; None: it starts a Snakemake
        :raises EngineError: old jobs do not end; or the controller of the state folder uses another sites file
        """
        from lading.executors.controller.sites_file import difference
        from lading.executors.controller_process import another_scheduler_lives, current_lease, kill, lives
        from lading.executors.orchestrator.presence import Presence
        from lading.plugin.published import edition

        with self.state.locked():
            if lives(lease := current_lease(self.host)):
                advice = (
                    "wait until it has stopped, give the same --lading-sites-file, or use another --lading-state-folder"
                )
                if ControllerOptions.read(self.state.options) != self.options_of_controller:
                    raise EngineError(
                        f"a controller is running for {self.state.root} with a sites file other than "
                        f"{self.options_of_controller.sites_file or 'none'}: {advice}"
                    )
                if difference(edition(self.settings), self.settings.sites_file) is not None:
                    if another_scheduler_lives(self.host, self.settings, self.owner) or not kill(lease):
                        raise EngineError(
                            f"a controller is running for {self.state.root} and other workflows, with "
                            f"{self.options_of_controller.sites_file} as it was before it changed: {advice}"
                        )
                    self.logger.info("Lading: the controller is started again, because the sites file has changed")
            else:
                self.options_of_controller.write(self.state.options)
            # Because Snakemake does not shut its executor down if Ctrl-C comes at certain moments, or again at the end.
            atexit.register(self.stop)
            self._presence = Presence(self.state.schedulers, self.owner)
            self.settings.stopped.unlink(missing_ok=True)
        try:
            self._fit_sizes(self.workflow.dag.needrun_jobs())
            self.check_jobs()
            self.keep_controller()  # it starts while this process does the rest
            self.ask_sites()
            self._begin_run()
            self._take_over(command_of)
            self._clear()
            self._save_plan()
        except BaseException:
            self.stop()
            raise

    def _begin_run(self) -> None:
        """Store the run and the environment variables of its jobs, and remove the records of killed runs."""
        with transaction(self.database) as session:
            session.add(runs.WorkflowRunRow(run_id=self.run_id, owner=self.owner, workdir=self.workdir))
            runs.forget_killed_runs(session, self.state)
        # After the row, which is needed to remove the file if this Snakemake is killed.
        variables = self.state.environment(self.run_id)
        make_private(variables.parent)
        write_atomically(variables, self._environment)

    def _killed_runs(self, session: Any) -> set[str]:
        return {row.run_id for row in runs.killed_runs(session, self.state.schedulers, self.workdir)}

    def _take_over(self, command_of: CommandOf) -> None:
        """Adopt running jobs of killed Snakemakes that this one would run again.

        They are recognized by rule, folder and the whole command, and their inputs must not have changed since they
        were submitted. Jobs that start a Snakemake are not adopted: their command does not tell what they do, and
        Snakemake has lost the token that it keeps for an incomplete job.

        :param command_of: returns the command of a job; None: it starts a Snakemake
        """
        from sqlalchemy import select, update

        from lading.executors.store import JobRow, State

        if self.workflow.dag_settings.force_incomplete:
            return
        at_work = JobRow.state.in_((State.PLACED, State.RUNNING)), JobRow.cancel.is_(None)
        with transaction(self.database) as session:
            left: dict[tuple[str, ...], list[tuple[str, float]]] = {}
            killed = JobRow.run_id.in_(self._killed_runs(session))
            columns = JobRow.token, JobRow.task_id, JobRow.workload, JobRow.queued_at
            for row in session.execute(select(*columns).where(*at_work, killed)):
                work = json.loads(row.workload)
                left.setdefault(_read_direct(work).key(row.task_id), []).append((row.token, row.queued_at))
            for job in self.workflow.dag.needrun_jobs() if left else ():
                if job.is_local or len(found := left.pop(_command_key(job, command_of), [])) != 1:
                    continue
                [(token, queued_at)] = found
                if self._is_as_it_was(job, queued_at):
                    mine = {"owner": self.owner, "run_id": self.run_id, "subject": self.run_id, "dag_id": self.dag_id}
                    mine["map_index"] = number_of(job)
                    session.execute(update(JobRow).where(JobRow.token == token).values(**mine))
                    self.resumable[key_of(job)] = token
        if self.resumable:
            self.logger.info(f"Lading: {len(self.resumable)} jobs of an earlier Snakemake continue")

    def _is_as_it_was(self, job: Any, queued_at: float) -> bool:
        """Whether the inputs of a job are unchanged since it was submitted, and it is not forced to run again.

        :param queued_at: when it was submitted, epoch seconds
        """
        dag = self.workflow.dag
        if job.rule in dag.forcerules or not dag.forcefiles.isdisjoint(job.output):
            return False
        if any(dag.needrun(each) for each in dag.dependencies[job]):
            return False
        try:
            return all(os.stat(each).st_mtime <= queued_at for each in job.input)
        except OSError:
            return False

    def resume(self, info: SubmittedJobInfo) -> bool:
        """Resume an adopted job; returns whether it was adopted. If not, it has to be submitted."""
        from sqlalchemy import select

        from lading.executors.store import JobRow

        if info.job.attempt != 1 or (token := self.resumable.pop(key_of(info.job), None)) is None:
            return False
        with transaction(self.database) as session:
            columns = JobRow.workload, JobRow.memory_limit, JobRow.time_limit
            row = session.execute(select(*columns).where(JobRow.token == token)).one()
        workload = json.loads(row.workload)
        info.external_jobid = token
        info.aux["log"] = Path(workload["log_folder"], workload["log_path"])
        info.aux["had"] = row.memory_limit, row.time_limit
        info.aux["command"] = _read_direct(workload)
        return True

    def _clear(self) -> None:
        """Cancel the jobs of killed Snakemakes, because this one may be about to run the same jobs."""
        from sqlalchemy import select

        from lading.executors.store import LIVE, JobRow, State, apply, tell

        was_logged, deadline = False, time.monotonic() + SECONDS_TO_CLEAR
        while True:
            with transaction(self.database, is_alone=True) as session:
                is_left = JobRow.state.in_(LIVE), JobRow.run_id.in_(self._killed_runs(session))
                rows = session.execute(select(JobRow.token, JobRow.state).where(*is_left))
                left = [(token, state) for token, state in rows]
                apply(session, _cancellations(left))
                tell(session, [token for token, _ in left])
                runs.forget_killed_runs(session, self.state)
            if not any(state in (State.PLACED, State.RUNNING) for _, state in left):
                return
            if not was_logged:
                self.logger.info(f"Lading: {len(left)} jobs of an earlier Snakemake are cancelled first")
                was_logged = True
            if time.monotonic() > deadline:
                raise EngineError(
                    f"{len(left)} jobs of an earlier Snakemake could not be stopped; see {self.settings.controller_log}"
                )
            self.keep_controller()
            time.sleep(0.2)

    def keep_controller(self) -> None:
        """Start a controller if none is running, unless this workflow is ending."""
        if self._is_ending:
            return
        try:
            self.controller.ensure()
        except StoreRemoved:
            raise
        except Exception as error:  # for example if the store is locked for long; tried again later
            self.logger.warning(f"Lading: cannot check whether a controller is running: {error}")

    def submit(self, infos: Sequence[SubmittedJobInfo]) -> None:
        """Store jobs in one transaction. Each gets a new token, even if it is resubmitted.

        :raises WorkflowError: the request of a job is not valid
        """
        from snakemake_interface_common.exceptions import WorkflowError

        from lading.executors import store

        rows = []
        self._fit_sizes([info.job for info in infos])
        self._look_back()
        for info in infos:
            try:
                rows.append(self._columns(info))
            except NeedsError as error:
                raise WorkflowError(f"job {info.job.jobid} ({name_of(info.job)}): {error}") from error
        with transaction(self.database) as session:
            store.add_jobs(session, rows)
        for info, columns in zip(infos, rows, strict=True):
            info.external_jobid = columns["token"]
        self.controller.ring()

    def _fit_sizes(self, jobs: Iterable[Any]) -> None:
        """Read what tries needed, for rules whose memory or runtime Lading chooses."""
        if names := sized_tasks(jobs, self.workflow, self.options):
            with transaction(self.database) as session:
                self.sizes |= read_sizes(session, self.dag_id, names)

    def _look_back(self) -> None:
        """Read from time to time how long jobs ran and waited, if short jobs can share allocations."""
        if time.monotonic() < self.next_look_back or not (clusters := self.sites.with_allocations):
            return
        self.next_look_back = time.monotonic() + SECONDS_BETWEEN_LOOKS_BACK
        with transaction(self.database) as session:
            self._lengths.learn(session)
            self._waits.read(session)
        self.past = PastJobs(self._lengths.history, self._waits.known, self._waits.launches)
        if not self.past.waits.seconds and not self.past.launches.seconds:
            self.say_once(
                f"each job is its own batch job, because it is not known yet how long they wait at "
                f"{', '.join(clusters)}. Later, short jobs share allocations if they wait longer than they run; "
                'with mode = "allocation" in the table of the site, all jobs do'
            )

    def _columns(self, info: SubmittedJobInfo) -> dict[str, Any]:
        from lading.executors.columns import hint_columns
        from lading.executors.store import State
        from lading.hooks.spool.command import CommandWork
        from lading.scheduling.hints.hints import Hints

        job, aux = info.job, info.aux
        command: JobCommand = aux["command"]
        token, name, size = str(uuid.uuid4()), name_of(job), input_size(job)
        last = self.tries.get(key_of(job))
        hints, needs = self._needs(job, last, size, is_direct=command.is_direct)
        if last is None:  # a job that failed in an allocation is retried as a batch job
            needs, why = in_allocation(needs, self.sites, self.dag_id, name, self.past)
            if why:
                hints = Hints.from_config(needs.config)
                self.say_once(why)
        self._warn(job, needs)  # again, because it may have been unknown before its inputs existed
        for decision in needs.decisions:
            self.logger.debug(f"Lading: job {job.jobid} ({name}) {decision}")
        columns = {**hint_columns(hints, self.settings), **needs.columns, "input_size": size}
        log_path = f"{name}/{job.jobid}-{token}.log"
        aux["log"] = self.state.logs / log_path
        aux["chosen"] = needs.chosen
        had_memory = columns["memory"] if "memory" in needs.chosen else None  # batch systems enforce it themselves
        aux["had"] = columns["memory_limit"] or had_memory, columns["time_limit"]
        work = CommandWork(
            command.arguments,
            folder=command.folder,
            environment=command.environment,
            log_folder=str(self.state.logs),
            log_path=log_path,
            rule=name,
            wildcards=wildcards_of(job),
            runner="" if command.is_direct else RUNNER,
        )
        return {
            **columns,
            "token": token,
            "owner": self.owner,
            "kind": "Command",
            "subject": self.run_id,
            "workload": json.dumps(work.to_workload()),
            "state": State.QUEUED,
            "priority": max(-MOST_PRIORITY, min(MOST_PRIORITY, int(getattr(job, "priority", 0) or 0))),
            "unreported": False,
            "news": 0,
            "dag_id": self.dag_id,
            "run_id": self.run_id,
            "task_id": name,
            "map_index": int(number_of(job)),
            "try_number": int(job.attempt),
        }

    def _needs(
        self, job: Any, last: tuple[str | None, int | None, int | None] | None, size: int | None, *, is_direct: bool
    ) -> tuple[Hints, JobNeeds]:
        """Return the request of a job. If no site can meet the larger request of a retry, return that of its rule.

        :param size: bytes of its inputs; None: unknown
        :raises NeedsError: no site can meet that either
        """
        from lading.scheduling.hints.hints import Hints
        from lading.scheduling.sizing.right_size import NOTHING_KNOWN

        fitted = self.sizes.get(name_of(job), NOTHING_KNOWN)
        needs = needs_of(job, self.workflow, self.options, last, self.sites, fitted, size, is_direct=is_direct)
        hints = Hints.from_config(needs.config)
        try:
            self.sites.check(hints, self.dag_id)
        except NeedsError:
            if last is None:
                raise
            return self._needs(job, None, size, is_direct=is_direct)
        return hints, needs

    def fetch_ended(self) -> dict[str, EndedJob]:
        """Return the jobs that have ended and are not acknowledged yet, by token."""
        from sqlalchemy import select

        from lading.executors.store import ENDED, JobRow, State, mark_reported, unreported

        with self.database.connect() as connection:  # the most frequent query, so it avoids the ORM
            any_news = select(JobRow.token).where(JobRow.owner == self.owner, JobRow.unreported.is_(True)).limit(1)
            if connection.execute(any_news).first() is None:
                return {}
        with transaction(self.database) as session:
            not_yet = set(self.resumable.values())
            news = unreported(session, self.owner, MOST_ENDS + len(not_yet))
            rows = [row for row in news if row.token not in not_yet]
            mark_reported(session, [row for row in rows if row.state not in ENDED])
            session.flush()
            session.expunge_all()
        return {
            row.token: EndedJob(row.state == State.SUCCEEDED, row.cause, end_message(row), row)
            for row in rows
            if row.state in ENDED
        }

    def acknowledge(self, ended: Mapping[str, EndedJob]) -> None:
        """Store that Snakemake has processed ended jobs, and which jobs remain."""
        from lading.executors.store import mark_reported

        if ended:
            with transaction(self.database) as session:
                mark_reported(session, [each.row for each in ended.values()])
        self._is_plan_old = self._is_plan_old or bool(ended)
        if not self._is_plan_old or time.monotonic() < self.next_plan:
            return
        lock = self.workflow.scheduler._lock  # held by Snakemake's thread while it changes the DAG
        if lock.acquire(blocking=False):
            try:
                self._save_plan()
            finally:
                lock.release()
            self._is_plan_old, self.next_plan = False, time.monotonic() + SECONDS_BETWEEN_PLANS

    def wait_reasons(self) -> dict[str, str]:
        """Return why jobs of this run wait, here or at a batch system, by what similar reasons have in common: the
        sentence without numbers.
        """
        from sqlalchemy import select

        from lading.executors.store import JobRow, State

        mine = JobRow.run_id == self.run_id, JobRow.state.in_((State.QUEUED, State.PLACED)), JobRow.reason.is_not(None)
        with transaction(self.database) as session:
            found = session.execute(select(JobRow.reason_code, JobRow.reason).where(*mine).distinct().limit(50)).all()
        said = (for_users(str(reason)) for code, reason in found if code not in USUAL_REASONS)
        return {NUMBERS.sub("", text): text for text in said}

    def may_resubmit(self, info: SubmittedJobInfo, end: EndedJob) -> bool:
        """Whether a failed job is resubmitted without using up a retry. What it had is noted for its next try."""
        from lading.scheduling.hints.retries import INFRASTRUCTURE

        key = key_of(info.job)
        self.tries[key] = (end.cause, *info.aux["had"])
        too_little = {"out_of_memory": "memory", "time_limit": "time"}.get(end.cause or "")
        is_ours = end.cause in INFRASTRUCTURE or too_little in info.aux.get("chosen", ())
        if not is_ours or self.resubmitted.get(key, 0) >= self.options.infrastructure_retries:
            return False
        self.resubmitted[key] = self.resubmitted.get(key, 0) + 1
        return True

    def explain(self, error: Exception) -> Exception:
        """Return the cause of an error: that the store was removed, if it was; otherwise the error itself."""
        try:
            self.state.check(self.host.store)
        except StoreRemoved as removed:
            return removed
        return error

    def cancel(self) -> None:
        """Cancel all jobs of this run. Waiting jobs are cancelled at once."""
        with contextlib.suppress(StoreRemoved), transaction(self.database, is_alone=True) as session:
            self._cancel(session)
        self.controller.ring()

    def _cancel(self, session: Any) -> None:
        from sqlalchemy import select

        from lading.executors.store import LIVE, JobRow, apply, tell

        mine = JobRow.run_id == self.run_id, JobRow.state.in_(LIVE), JobRow.cancel.is_(None)
        left = [(token, state) for token, state in session.execute(select(JobRow.token, JobRow.state).where(*mine))]
        apply(session, _cancellations(left))
        tell(session, [token for token, _ in left])

    def stop(self, *, waits: bool = True) -> None:
        """Finish this workflow. Its controller is stopped unless another workflow, its jobs or a machine still need it.

        Remaining jobs are cancelled: those of an interrupted workflow, and those that were adopted but never resumed,
        because something before them failed. If this is interrupted itself, it can be called again.

        :param waits: whether to stop the controller and wait for it; otherwise it stops by itself
        """
        from sqlalchemy import exists, select

        from lading.executors.store import LIVE, JobRow, instances

        if self._presence is None:
            atexit.unregister(self.stop)
            return
        self._is_ending, is_launched, has_jobs = True, False, False
        try:
            with transaction(self.database, is_alone=True) as session:
                self._cancel(session)
                runs.forget_run(session, self.state, self.run_id)
                is_launched = instances.count_living(session) > 0
                others = exists().where(JobRow.state.in_(LIVE), JobRow.run_id != self.run_id)
                has_jobs = bool(session.scalar(select(others)))
        except StoreRemoved:
            waits = False  # the controller and its agents notice it, too, and exit
        self._presence.end()
        self._presence.path.unlink(missing_ok=True)  # its number is never used again, so files would accumulate
        if is_launched:
            # It releases them when they are due, and exits a minute after the last one.
            self.logger.info("Lading: the controller continues until launched machines are released")
        elif waits and not has_jobs:  # jobs of a workflow whose Snakemake was killed continue
            self.controller.stop()
        self._presence = None
        atexit.unregister(self.stop)

    def _save_plan(self) -> None:
        """Store the remaining jobs, for sites that launch machines: the whole plan if it changed, else what is left."""
        dag, left = self.workflow.dag, dict[str, set[int]]()
        is_known = True
        for job in dag.needrun_jobs():
            if not job.is_local:
                unit = dag.get_job_group(job) or job
                is_known = is_known and self._planned.get(id(job)) is job
                left.setdefault(name_of(unit), set()).add(number_of(unit))
        rules = {} if is_known else self._plan()
        with transaction(self.database) as session:
            if not is_known:
                runs.save_rules(session, self.run_id, rules)
            else:
                gone = {name: set[int]() for name in self._left.keys() - left.keys()}
                changed = {name: numbers for name, numbers in left.items() if numbers != self._left.get(name)}
                runs.save_left(session, self.run_id, gone | changed)
        self._left = left

    def _plan(self) -> dict[str, runs.PlannedRule]:
        """Return the remaining rules: the order of their jobs, and the request of each job."""
        from lading.scheduling.sizing.right_size import NOTHING_KNOWN

        dag = self.workflow.dag
        # Keeps references to the jobs, so that no other object gets the same ID.
        self._planned = {id(job): job for job in dag.needrun_jobs() if not job.is_local}
        self._look_back()
        jobs = planned_jobs(dag, lambda job: job.is_local)
        rules: dict[str, runs.PlannedRule] = {}
        for job in jobs:
            rules.setdefault(name_of(job), runs.PlannedRule()).left.add(number_of(job))
        alike: dict[tuple[str, str], list[int]] = {}
        for job, others in jobs.items():
            name, number = name_of(job), number_of(job)
            rule, before = rules[name], dict[str, list[int]]()
            for each in others:
                before.setdefault(name_of(each), []).append(number_of(each))
            rule.upstream |= before.keys()
            rule.before[number] = before
            fitted = self.sizes.get(name, NOTHING_KNOWN)
            hints = forecast_hints(job, self.workflow, self.options, self.sites, fitted)
            hints, _ = self.sites.shared(hints, self.dag_id, name, self.past)
            key = name, json.dumps(hints, sort_keys=True)
            if key not in alike:
                alike[key] = []
                rule.hints.append((hints, alike[key]))
            alike[key].append(number)
        for rule in rules.values():
            for number, before in rule.before.items():
                some = {each: sorted(before.get(each, ())) for each in sorted(rule.upstream)}
                rule.before[number] = {each: its for each, its in some.items() if len(its) < len(rules[each].left)}
        return rules


def planned_jobs(dag: Any, is_here: Callable[[Any], bool]) -> dict[Any, set[Any]]:
    """Return the jobs that have to run, each with the jobs right before it. A group counts as one job.

    Local jobs take no time in a plan: the jobs after them wait for the jobs before them.
    """
    units: dict[Any, set[Any]] = {}
    for job in sorted((each for each in dag.needrun_jobs() if not is_here(each)), key=lambda each: int(each.jobid)):
        before = [each for each in dag.job_dependencies(job) if dag.needrun(each)]
        through = dag.bfs(dag.dependencies, *before, stop=lambda each: not (is_here(each) and dag.needrun(each)))
        behind = [each for here in through for each in dag.job_dependencies(here) if dag.needrun(each)]
        unit = dag.get_job_group(job) or job
        others = {dag.get_job_group(each) or each for each in (*before, *behind) if not is_here(each)}
        units.setdefault(unit, set()).update(others - {unit})
    return {unit: {each for each in before if each in units} for unit, before in units.items()}


def _cancellations(jobs: Iterable[tuple[str, str]]) -> list[Change]:
    """Return the changes that cancel jobs. Waiting jobs are cancelled at once.

    :param jobs: the token and the state of each job
    """
    from lading.executors.store import Change, State
    from lading.scheduling.model.reasons import because

    reason = because("unwanted")
    end = {"state": State.CANCELLED, "cause": "cancelled", "reason": reason, "ended_at": time.time()}
    begun = (State.PLACED, State.RUNNING)
    return [Change(token, {"cancel": reason} if state in begun else end) for token, state in jobs]


def _read_direct(workload: Mapping[str, Any]) -> JobCommand:
    """Return the command of a row, as a direct one, because only jobs with direct commands are adopted."""
    return JobCommand(workload["arguments"], workload["environment"], workload["folder"], is_direct=True)


def _command_key(job: Any, command_of: CommandOf) -> tuple[str, ...]:
    """Return the key of a job's work, see :meth:`JobCommand.key`; empty: it has no direct command, or not yet."""
    try:
        command = command_of(job)
    except Exception:  # the command can depend on files that do not exist yet
        return ()
    return () if command is None else command.key(name_of(job))


def dag_id_of(workflow: Any) -> str:
    """Return the name of a workflow, which is that of its folder."""
    return printable(Path(workflow.workdir_init).name)[:LONGEST_NAME] or "snakemake"


def sized_tasks(jobs: Iterable[Any], workflow: Any, options: Any) -> set[str]:
    """Return the tasks of jobs whose memory or runtime Lading chooses."""
    names = set()
    for job in jobs:
        with contextlib.suppress(Exception):  # reported when the job is submitted
            if auto_resources(job, workflow, options):
                names.add(name_of(job))
    return names


def read_sizes(session: Any, dag_id: str, names: Collection[str]) -> dict[str, Sizes]:
    from lading.executors.accounting import task_usage
    from lading.scheduling.sizing.right_size import sizes

    return {name: sizes(each) for name, each in task_usage.of_tasks(session, dag_id, names).items()}


def name_of(job: Any) -> str:
    """Return the name of a job's task: its rule or its group."""
    name = f"group-{job.groupid}" if job.is_group() else str(job.rule.name)
    return re.sub(r"[^\w.-]", "_", name)[:LONGEST_NAME]


def wildcards_of(job: Any) -> str:
    """Return the wildcards of a job, for example ``sample=A,lane=1``."""
    wildcards = {} if job.is_group() else job.wildcards_dict
    return printable(",".join(f"{name}={value}" for name, value in wildcards.items()))[:LONGEST_NAME]


def number_of(job: Any) -> int:
    """Return the ID of a job in its workflow; for a group, the lowest ID of its jobs."""
    return int(min(each.jobid for each in job.jobs) if job.is_group() else job.jobid)


def key_of(job: Any) -> str:
    """Return the key that the tries of a job have in common."""
    return f"{name_of(job)} {number_of(job)}"


def arguments_of(command: str) -> list[str]:
    """Convert a command line to a list of arguments: split if it is a plain Snakemake, otherwise run by a shell."""
    if "&&" not in command:
        arguments = shlex.split(command)
        if arguments[1:3] == ["-m", "snakemake"]:
            return arguments
    return ["/bin/sh", "-c", command]


def end_message(row: Any) -> str:
    return ": ".join(for_users(str(part)) for part in (row.cause, row.reason) if part)
