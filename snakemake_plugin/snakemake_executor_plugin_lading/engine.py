"""Lading's engine as the executor of one workflow uses it: the store, the controller, and jobs as rows."""

from __future__ import annotations

import json
import os
import re
import shlex
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from lading.hooks.files.safe_files import make_private, write_atomically
from lading.hooks.files.version import MixedVersions, check_versions
from snakemake_executor_plugin_lading.needs import NeedsError, executor_config, limits_of
from snakemake_executor_plugin_lading.place import FOLDER, ControllerOptions, Place, transaction
from snakemake_executor_plugin_lading.process import join, settings

if TYPE_CHECKING:
    from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

# So many ends are taken in at a time.
MOST_ENDS = 1000
# Jobs of a Snakemake that was killed are ended before this one begins, within so many seconds.
SECONDS_TO_CLEAR = 300.0
# What is to come is stored so often at most, seconds.
SECONDS_BETWEEN_PLANS = 2.0
MOST_PRIORITY = 2**31 - 1
LONGEST_NAME = 250
# A reason says which machine and how much; the same for another job is no news.
NUMBERS = re.compile(r"\d+(\.\d+)?")
CommandOf: TypeAlias = Callable[[Any], tuple[list[str], dict[str, str]] | None]


class EngineError(Exception):
    """The engine cannot be used; the text says why, and what to do."""


@dataclass(frozen=True, slots=True)
class EndedJob:
    """How a job has ended.

    :param cause: why it failed; None: it did not
    :param words: the same as a sentence
    :param row: of the store
    """

    succeeded: bool
    cause: str | None
    words: str
    row: Any


class Engine:
    """The store of a workflow's folder, with a controller that acts for it.

    :param workflow: Snakemake's
    :param options: the executor's settings
    :param environment: the variables of all jobs
    :param logger: Snakemake's
    :raises EngineError: an option is not valid, or the store cannot be used
    """

    def __init__(self, workflow: Any, options: Any, environment: Mapping[str, str], logger: Any) -> None:
        from lading.executors.controller_process import ControllerProcess
        from lading.executors.migrations.own_database import AnotherVersion

        self.workflow, self.options, self.logger = workflow, options, logger
        self.place = Place(Path(options.state_folder or FOLDER).expanduser().absolute())
        self.run_id = str(uuid.uuid4())
        self.dag_id = Path(workflow.workdir_init).name[:LONGEST_NAME] or "snakemake"
        self.owner = os.getpid()
        self.tries: dict[str, tuple[str | None, int | None, int | None]] = {}
        """Of jobs that have failed, by their names: the cause, and the memory and the time that they had."""
        self.resubmitted: dict[str, int] = {}
        self.resumable: dict[str, str] = {}
        """The tokens of jobs of a Snakemake that was killed which go on, by their names, until they are asked for."""
        self.next_plan = 0.0
        self._presence: Any = None
        self._is_number_reused = False
        try:
            check_versions()
            limits_of(options.limits)
            executor_config(cpus=1, site=options.site, hurry=options.hurry, finish_by=options.finish_by)
            make_private(self.place.root)
            sites_file = None if options.sites_file is None else Path(options.sites_file).expanduser().absolute()
            if sites_file is not None and not sites_file.is_file():
                raise EngineError(f"--lading-sites-file: there is no file {sites_file}")
            self.options_of_controller = ControllerOptions(None if sites_file is None else str(sites_file))
            self.settings = settings(self.place, self.options_of_controller)
            self.database = join(self.place)
            if sites_file is not None:
                self._check_sites()
        except (MixedVersions, NeedsError, AnotherVersion, OSError) as error:
            raise EngineError(str(error)) from error
        self.controller = ControllerProcess(self.settings, self.owner)
        variables = self.place.environment(self.run_id)
        make_private(variables.parent)
        write_atomically(variables, json.dumps(dict(environment)))

    def _check_sites(self) -> None:
        """Look at the sites file before a controller does, which would start in vain again and again."""
        from lading.plugin.sites import SitesError, load_sites

        try:
            load_sites(self.settings)
        except SitesError as error:
            raise EngineError(f"--lading-sites-file: {error}") from error

    def start(self, command_of: CommandOf) -> None:
        """Have a controller act, and take over or end what a Snakemake has left here that was killed.

        :param command_of: the command of a job, and its environment; None: it is a Snakemake of its own
        :raises EngineError: that does not end; or another controller acts here by another sites file
        """
        from lading.executors.controller_process import current_lease, lives
        from lading.executors.orchestrator.presence import Presence, has_ended

        with self.place.locked():
            if lives(current_lease()):
                if ControllerOptions.read(self.place.options) != self.options_of_controller:
                    raise EngineError(
                        f"a controller runs for {self.place.root} with another sites file than "
                        f"{self.options_of_controller.sites_file or 'none'}: wait until it has ended, give the same "
                        "--lading-sites-file, or another --lading-state-folder"
                    )
            else:
                self.options_of_controller.write(self.place.options)
            # In a container each Snakemake has the same number.
            self._is_number_reused = not _lives(self.settings.schedulers_folder / str(self.owner), has_ended)
            self._presence = Presence(self.settings.schedulers_folder, self.owner)
            self.settings.stopped.unlink(missing_ok=True)
        self._take_over(command_of)
        self._clear()
        self._note_rules(list(self.workflow.dag.needrun_jobs()))
        self.keep_controller()

    def _take_over(self, command_of: CommandOf) -> None:
        """Make the jobs of dead Snakemakes that run and that this one would run again its own.

        They are known by their rule, folder and whole command, and nothing that they read may have changed since they
        were submitted. Of a job that is a Snakemake of its own the command does not say what it does, and the token
        that Snakemake remembers of an incomplete job is lost there.

        :param command_of: the command of a job, and its environment; None: it is a Snakemake of its own
        """
        from sqlalchemy import select, update

        from lading.executors.store import JobRow, State

        if self.workflow.dag_settings.force_incomplete:
            return
        at_work = JobRow.state.in_((State.PLACED, State.RUNNING)), JobRow.cancel.is_(None)
        with transaction(self.database) as session:
            left: dict[tuple[str, ...], list[tuple[str, float]]] = {}
            columns = JobRow.token, JobRow.task_id, JobRow.workload, JobRow.owner, JobRow.run_id, JobRow.queued_at
            for row in session.execute(select(*columns).where(*at_work)):
                if self._is_left(row.owner, row.run_id):
                    work = json.loads(row.workload)
                    key = _work_key(row.task_id, work["folder"], work["arguments"], work["environment"])
                    left.setdefault(key, []).append((row.token, row.queued_at))
            for job in self.workflow.dag.needrun_jobs() if left else ():
                if job.is_local or len(found := left.pop(self._key_of_command(job, command_of), [])) != 1:
                    continue
                [(token, queued_at)] = found
                if self._is_as_it_was(job, queued_at):
                    mine = {"owner": self.owner, "run_id": self.run_id, "subject": self.run_id, "dag_id": self.dag_id}
                    mine["map_index"] = number_of(job)
                    session.execute(update(JobRow).where(JobRow.token == token).values(**mine))
                    self.resumable[key_of(job)] = token
        if self.resumable:
            self.logger.info(f"Lading: {len(self.resumable)} jobs of a Snakemake that was killed go on")

    def _is_left(self, owner: int | None, run_id: str | None) -> bool:
        """Whether a job is of a Snakemake that was killed.

        :param owner: the number of its Snakemake's process
        :param run_id: its run
        """
        from lading.executors.orchestrator.presence import has_ended

        if owner == self.owner:
            return self._is_number_reused and run_id != self.run_id
        return owner is None or not _lives(self.settings.schedulers_folder / str(owner), has_ended)

    def _key_of_command(self, job: Any, command_of: CommandOf) -> tuple[str, ...]:
        """By what a job's work is known; nothing: it has no command that says it, or not before it is ready."""
        try:
            command = command_of(job)
        except Exception:  # what a job asks for may depend on files that are not there
            return ()
        return () if command is None else _work_key(name_of(job), self._folder(), *command)

    def _is_as_it_was(self, job: Any, queued_at: float) -> bool:
        """Whether what a job reads is what it was when it was submitted, and it is not forced to run anew.

        :param queued_at: when it was submitted, seconds since the epoch
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
        """Whether a job was taken over, which it then is; else it is to be submitted."""
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
        info.aux["work"] = workload["arguments"], workload["environment"]
        return True

    def _clear(self) -> None:
        """End the jobs of dead Snakemakes: this one may be about to run the same ones."""
        from sqlalchemy import select

        from lading.executors.store import LIVE, Change, JobRow, State, apply
        from lading.scheduling.reasons import because

        was_logged, deadline = False, time.monotonic() + SECONDS_TO_CLEAR
        while True:
            with transaction(self.database) as session:
                columns = JobRow.token, JobRow.state, JobRow.owner, JobRow.run_id
                rows = session.execute(select(*columns).where(JobRow.state.in_(LIVE))).all()
                dead = {whose for whose in {(owner, run_id) for *_, owner, run_id in rows} if self._is_left(*whose)}
                left = [(token, state) for token, state, *whose in rows if tuple(whose) in dead]
                reason = because("unwanted")
                end = {"state": State.CANCELLED, "cause": "cancelled", "reason": reason, "ended_at": time.time()}
                apply(
                    session,
                    [
                        Change(token, {"cancel": reason} if state in (State.PLACED, State.RUNNING) else end)
                        for token, state in left
                    ],
                )
            if not any(state in (State.PLACED, State.RUNNING) for _, state in left):
                return
            if not was_logged:
                self.logger.info(f"Lading: {len(left)} jobs of a Snakemake that was killed are ended first")
                was_logged = True
            if time.monotonic() > deadline:
                raise EngineError(
                    f"{len(left)} jobs of a Snakemake that was killed do not end; see {self.settings.controller_log}"
                )
            self.keep_controller()
            time.sleep(0.2)

    def keep_controller(self) -> None:
        """Start a controller where none lives."""
        try:
            self.controller.ensure()
        except Exception as error:  # such as a store that is locked for long; it is tried again
            self.logger.warning(f"Lading: the controller could not be looked for: {error}")

    def submit(self, infos: Sequence[SubmittedJobInfo]) -> None:
        """Store jobs in one transaction; each gets a token of its own, also one that is submitted again.

        :raises WorkflowError: what one asks for makes no sense
        """
        from snakemake_interface_common.exceptions import WorkflowError

        from lading.executors import store

        rows = []
        for info in infos:
            try:
                rows.append(self._columns(info))
            except NeedsError as error:
                raise WorkflowError(f"job {info.job.jobid} ({name_of(info.job)}): {error}") from error
        with transaction(self.database) as session:
            for info, columns in zip(infos, rows, strict=True):
                store.add_job(session, owner=self.owner, **columns)
                info.external_jobid = columns["token"]
        self.controller.ring()

    def _columns(self, info: SubmittedJobInfo) -> dict[str, Any]:
        from lading.executors.columns import hint_columns
        from lading.executors.store import State
        from lading.hooks.spool.command import CommandWork
        from lading.scheduling.hints.hints import Hints
        from snakemake_executor_plugin_lading.needs import needs_of

        job, aux = info.job, info.aux
        config, given = needs_of(job, self.workflow, self.options, self.tries.get(key_of(job)))
        columns = {**hint_columns(Hints.from_config(config), self.settings), **given}
        token, name = str(uuid.uuid4()), name_of(job)
        log_path = f"{name}/{job.jobid}-{token}.log"
        aux["log"] = self.place.logs / log_path
        aux["had"] = columns["memory_limit"], columns["time_limit"]
        arguments, environment = aux["work"]
        work = CommandWork(
            arguments,
            folder=self._folder(),
            environment=environment,
            log_folder=str(self.place.logs),
            log_path=log_path,
        )
        return {
            **columns,
            "token": token,
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

    def _folder(self) -> str:
        """Where jobs run: here, unless the files of this machine are not theirs."""
        is_shared = self.workflow.storage_settings.assume_common_workdir
        return str(self.workflow.workdir_init) if is_shared else ""

    def ended(self) -> dict[str, EndedJob]:
        """The jobs that have ended and are not reported yet, by token."""
        from sqlalchemy import select

        from lading.executors.store import ENDED, JobRow, State, unreported
        from lading.executors.store import mark_reported as mark

        with self.database.connect() as connection:  # the most frequent question: without the ORM
            any_news = select(JobRow.token).where(JobRow.owner == self.owner, JobRow.unreported.is_(True)).limit(1)
            if connection.execute(any_news).first() is None:
                return {}
        with transaction(self.database) as session:
            not_yet = set(self.resumable.values())
            news = unreported(session, self.owner, MOST_ENDS + len(not_yet))
            rows = [row for row in news if row.token not in not_yet]
            mark(session, [row for row in rows if row.state not in ENDED])
            session.flush()
            session.expunge_all()
        return {
            row.token: EndedJob(row.state == State.SUCCEEDED, row.cause, words_of(row), row)
            for row in rows
            if row.state in ENDED
        }

    def reported(self, ended: Mapping[str, EndedJob]) -> None:
        """Remember that Snakemake has taken ends in, and what is left to come."""
        from lading.executors.store import mark_reported

        if ended:
            with transaction(self.database) as session:
                mark_reported(session, [each.row for each in ended.values()])
        if ended and time.monotonic() >= self.next_plan:
            self.next_plan = time.monotonic() + SECONDS_BETWEEN_PLANS
            dag = self.workflow.dag
            self._note_rules([job for job in dag.needrun_jobs() if not dag.finished(job)])

    def waits(self) -> set[str]:
        """Why jobs of this run wait, as sentences; the same reason with other numbers once."""
        from sqlalchemy import select

        from lading.executors.store import JobRow, State

        mine = JobRow.run_id == self.run_id, JobRow.state == State.QUEUED, JobRow.reason.is_not(None)
        with transaction(self.database) as session:
            found = session.execute(select(JobRow.reason_code, JobRow.reason).where(*mine).distinct().limit(50)).all()
        # That others go first, and that the machine is full, is what jobs wait for all the time.
        return {NUMBERS.sub("…", str(reason)) for code, reason in found if reason.meaning.kind != "turn"}

    def may_run_again(self, info: SubmittedJobInfo, end: EndedJob) -> bool:
        """Whether a job that has failed is submitted again without a try of its own; what it had is remembered."""
        from lading.scheduling.hints.retries import INFRASTRUCTURE

        key = key_of(info.job)
        self.tries[key] = (end.cause, *info.aux["had"])
        if end.cause not in INFRASTRUCTURE or self.resubmitted.get(key, 0) >= self.options.infrastructure_retries:
            return False
        self.resubmitted[key] = self.resubmitted.get(key, 0) + 1
        return True

    def cancel(self, tokens: Sequence[str]) -> None:
        """Have jobs ended; those that wait have ended at once."""
        from lading.executors.store import Change, State, apply, find
        from lading.scheduling.reasons import because

        reason, now = because("unwanted"), time.time()
        end = {"state": State.CANCELLED, "cause": "cancelled", "reason": reason, "ended_at": now}
        with transaction(self.database) as session:
            found = find(session, tokens)
            begun = (State.PLACED, State.RUNNING)
            apply(session, [Change(each, {"cancel": reason} if at in begun else end) for each, at in found.items()])
        self.controller.ring()

    def stop(self) -> None:
        """This workflow is over: its controller ends, unless another workflow or a machine still needs it."""
        from lading.executors.store import instances
        from snakemake_executor_plugin_lading import rules

        if self._presence is None:
            return
        if self.resumable:  # taken over, and never asked for: something before them has failed
            self.cancel(list(self.resumable.values()))
        with transaction(self.database) as session:
            rules.drop(session, self.run_id)
            is_work = instances.count_living(session) > 0
        self._presence.end()
        self._presence = None
        if is_work:
            # It releases them in its own time, and ends a minute after the last one.
            self.logger.info("Lading: the controller goes on until what was launched is released")
        else:
            self.controller.stop()
        self.place.environment(self.run_id).unlink(missing_ok=True)

    def _note_rules(self, jobs: Iterable[Any]) -> None:
        """Store what is to come, for sites that launch machines."""
        from snakemake_executor_plugin_lading import rules
        from snakemake_executor_plugin_lading.needs import foreseen

        dag = self.workflow.dag
        found: dict[str, tuple[set[str], dict[str, Any], set[int]]] = {}
        for job in jobs:
            if job.is_local:
                continue
            name = name_of(job)
            upstream, _, left = found.setdefault(name, (set(), foreseen(job, self.workflow, self.options), set()))
            left.add(int(job.jobid))
            upstream.update(name_of(each) for each in dag.dependencies[job] if name_of(each) != name)
        with transaction(self.database) as session:
            rules.drop(session, self.run_id)
            rules.save(session, self.run_id, found)


def _lives(path: Path, has_ended: Any) -> bool:
    return path.exists() and not has_ended(path)


def _work_key(name: str, folder: str, arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """By what the work of a job is known, whichever Snakemake has submitted it."""
    return name, folder, *arguments, *(f"{each}={environment[each]}" for each in sorted(environment))


def name_of(job: Any) -> str:
    """What a job's task is called: its rule, or its group."""
    name = f"group-{job.groupid}" if job.is_group() else str(job.rule.name)
    return re.sub(r"[^\w.-]", "_", name)[:LONGEST_NAME]


def number_of(job: Any) -> int:
    """The number of a job in its workflow; that of a group is the lowest one of its jobs."""
    return int(min(each.jobid for each in job.jobs) if job.is_group() else job.jobid)


def key_of(job: Any) -> str:
    """By what the tries of one job are known."""
    return f"{name_of(job)} {number_of(job)}"


def arguments_of(command: str) -> list[str]:
    """A command line as a program with its arguments: of itself where it is that simple, else by a shell."""
    if "&&" not in command:
        arguments = shlex.split(command)
        if arguments[1:3] == ["-m", "snakemake"]:
            return arguments
    return ["/bin/sh", "-c", command]


def words_of(row: Any) -> str:
    """How a job has ended, as a sentence."""
    return ": ".join(str(part) for part in (row.cause, row.reason) if part)
