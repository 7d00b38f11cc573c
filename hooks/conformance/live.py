"""Tests a batch system against a real server, for what recordings cannot show, such as whether an answer is complete.

It submits, polls and cancels a handful of small jobs, and removes them when it exits, whatever the result.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TypeVar

from lading.hooks.batch.outcome import Evidence, Outcome, Sentinel, decide
from lading.hooks.batch.refusals import CouldNotAsk
from lading.hooks.batch.status_query import Key, Statuses, StatusQuery, accounted, plain_name
from lading.hooks.batch.system import ArrayRange, BatchJobRequest, BatchSystem, CancelError, NativeJob, SubmitError
from lading.hooks.cluster.jobs.layout import ClusterFolder
from lading.hooks.cluster.jobs.remote_steps import load
from lading.hooks.files.owner import Owner
from lading.hooks.job_scripts.layout import SUBMIT_LIMIT
from lading.hooks.job_scripts.profile import SiteProfile
from lading.hooks.job_scripts.script import JobScript
from lading.hooks.ssh.answer import CommandResult, TransportError
from lading.hooks.ssh.steps import RunCommand, quoted
from lading.hooks.ssh.transport import Transport
from lading.scheduling.text.units import format_time

T = TypeVar("T")
NO_QUEUE = "lading-no-such-queue"


class Failure(Exception):
    """A check failed; the message says what was expected, what was observed, and what to look at."""


@dataclass
class Trial:
    """One test of a real server.

    :param transport: the connection to the login node
    :param work_dir: a folder that login node and nodes share, absolute or below the home as ``~/...``
    :param site: the profile of the site, and the properties of the jobs apart from their names
    :param seconds: how long a job can wait and run
    :param never: the key and value of a native directive that keeps a job from ever starting; ``{failed}`` in it is
        replaced by the id of a failed job; None: not tested
    """

    system: BatchSystem
    transport: Transport
    work_dir: str
    site: SiteProfile = field(default_factory=SiteProfile)
    seconds: float = 300.0
    say: Callable[[str], None] = print
    never: tuple[str, str] | None = None
    user: str = field(default="", init=False)
    folder: str = field(default="", init=False)
    ids: dict[str, str] = field(default_factory=dict, init=False)
    begun: datetime = field(default_factory=lambda: datetime.now() - timedelta(hours=1), init=False)
    patience = 30.0
    """Seconds to wait for accounting and files."""
    pause = 2.0
    """Seconds between two polls of the jobs."""

    def run(self) -> int:
        """Run all checks, and return how many failed.

        :raises TransportError: the site cannot be reached, or the folder cannot be used
        """
        self._log_in()
        failed = 0
        try:
            for name, check in self._checks():
                try:
                    check()
                except (Failure, SubmitError, CouldNotAsk, CancelError, ValueError) as error:
                    failed += 1
                    self.say(f"FAILED  {name}: {error}")
                    if not self.ids:
                        self.say("no job was submitted, so nothing else can be tested")
                        break
                else:
                    self.say(f"ok      {name}")
        finally:
            self._clean_up()
        return failed

    def _checks(self) -> Iterator[tuple[str, Callable[[], None]]]:
        yield "a job is submitted, and its id is read", lambda: self._submit("ends", "exit 0")
        yield "more jobs are submitted", self._submit_others
        yield "a missing queue is a permanent error", self._refuse
        yield "one query covers all jobs, and reports a missing one as unknown", self._ask_all
        yield "a job is found by its name among all jobs of the user", self._find
        yield "a running job is reported as running", self._see_run
        if "array" in self.ids:
            yield "the elements of an array are reported one by one", self._see_elements
        yield "a running job is cancelled, again at once, and again when it is gone", self._cancel
        yield "a successful and a failed job are told apart", self._see_ends
        if self.never is not None:
            yield "a job that can never start is recognized, and cancelled", self._see_never
        yield "the accounting answers, if there is one", self._account
        yield "a folder of one Airflow deployment is refused to another, with both names", self._own

    # -- the checks

    def _submit_others(self) -> None:
        self._submit("fails", "exit 3")
        self._submit("sleeps", "exec sleep 3600")
        first = self.system.first_index
        last = first + max(2, self.system.smallest_array) - 1
        if self.system.max_array_size > 1:
            self._submit("array", "exec sleep 3600", ArrayRange(f"{first}-{last}"))

    def _refuse(self) -> None:
        try:
            id = self._submitted("refused", "exit 0", queue=NO_QUEUE)
        except SubmitError as error:
            if error.kind != "permanent":
                raise Failure(
                    f"it is classified as {error.kind!r}, so it would be retried forever; `wording.permanent` should "
                    f"match these words: {error.message}"
                ) from None
            return
        self.ids["refused"] = id
        raise Failure(f"queue {NO_QUEUE!r} was accepted, as {id}; `submitted` may have taken a refusal for an id")

    def _ask_all(self) -> None:
        missing = self._missing()
        found, answer = self._ask([*self.ids.values(), missing])
        unheard = [name for name, id in self.ids.items() if id in found.silent]
        if unheard and not {"sleeps", "array"}.isdisjoint(unheard):
            raise Failure(
                f"the answer omits {', '.join(f'{self.ids[name]} ({name})' for name in unheard)}: `status` has to "
                f"query all of them in one command, and `statuses` has to parse them. {self._shown(answer)}"
            )
        if any(job.id == missing for job in found.jobs):
            raise Failure(f"job {missing} does not exist, but was reported. {self._shown(answer)}")
        if unheard or missing in found.silent:
            raise Failure(
                f"the batch system answers that jobs such as {missing} are unknown, but the class does not understand "
                "this answer, so no job would ever count as gone: `wording.gone` should match these words, or "
                f"`unknown` should return these jobs. {self._shown(answer)}"
            )
        living = {job.id for job in found.jobs}
        lost = [name for name in ("sleeps", "array") if self.ids.get(name, missing) not in {*living, missing}]
        if lost:
            raise Failure(
                f"the jobs {', '.join(self.ids[name] for name in lost)} are live, but classified as unknown. "
                f"{self._shown(answer)}"
            )

    def _find(self) -> None:
        name = self._jobname("sleeps")
        found, answer = self._ask((), by_name=True)
        ids = [job.id for job in found.jobs if plain_name(job) == name]
        if self.ids["sleeps"] not in ids:
            raise Failure(
                f"job {self.ids['sleeps']} named {name!r} is missing among {len(found.jobs)} jobs of {self.user}, so a "
                f"lost submission could not be found again. {self._shown(answer)}"
            )

    def _see_run(self) -> None:
        job = self._wait(lambda: self._known("sleeps"), lambda job: job is not None and job.state == "running")
        if job is None or job.state != "running":
            raise Failure(
                f"job {self.ids['sleeps']} is not running after {format_time(self.seconds)}, but is "
                f"{self._described(job)}; allow more with --timeout, or use another --queue"
            )
        if not job.nodes:
            raise Failure(f"job {job.id} is running, but its `nodes` is empty, so failing nodes could not be named")

    def _see_elements(self) -> None:
        id, first = self.ids["array"], self.system.first_index
        found, answer = self._ask([id])
        keys: list[Key] = [(id, index) for index in (first, first + 1)]
        reported = [found.get(key, self._jobname("array")) for key in keys]
        if None in reported:
            raise Failure(
                f"elements {keys} are not reported individually under their array's name. {self._shown(answer)}"
            )
        self.system.cancelled(self._run_command(self.system.cancel([self.system.element(id, first)])))
        job = self._wait(lambda: self._known("array", first), lambda job: job is None or job.state == "ended")
        if job is not None and job.state != "ended":
            raise Failure(f"element {self.system.element(id, first)} was cancelled, but is {self._described(job)}")
        other = self._known("array", first + 1)
        if other is None or other.state == "ended":
            raise Failure(f"element {first} was cancelled, but element {first + 1} is gone with it")

    def _cancel(self) -> None:
        id = self.ids["sleeps"]
        self.system.cancelled(self._run_command(self.system.cancel([id])))
        answer = self._run_command(self.system.cancel([id]))
        try:
            self.system.cancelled(answer)
        except CancelError as error:
            raise Failure(
                f"cancelling job {id} again while it terminates counts as a failure; `wording.ending` should match "
                f"these words: {error.message}"
            ) from None
        job = self._wait(lambda: self._known("sleeps"), lambda job: job is None or job.state == "ended")
        if job is not None and job.state != "ended":
            raise Failure(f"job {id} was cancelled, but is {self._described(job)}")
        if job is not None and job.succeeded:
            raise Failure(f"job {id} was cancelled, but counts as a success: {self._described(job)}")
        for gone_id in (id, self._missing()):
            answer = self._run_command(self.system.cancel([gone_id]))
            try:
                self.system.cancelled(answer)
            except CancelError as error:
                raise Failure(
                    f"cancelling job {gone_id}, which is gone, counts as a failure and would be retried; "
                    f"`wording.gone` should match these words: {error.message}"
                ) from None

    def _see_ends(self) -> None:
        for name, status in (("ends", 0), ("fails", 3)):
            outcome = self._outcome(name)
            if outcome is None:
                raise Failure(
                    f"job {self.ids[name]} (exit {status}) has not finished after {format_time(self.seconds)}, but is "
                    f"{self._described(self._known(name))}"
                )
            expected = None if status == 0 else "error"
            if outcome.cause != expected or (outcome.exit_code or 0) != status:
                raise Failure(f"job {self.ids[name]} exited with status {status}, but counts as {outcome}")

    def _see_never(self) -> None:
        assert self.never is not None
        key, value = self.never
        self.ids["never"] = id = self._submitted(
            "never", "exit 0", native={key: value.replace("{failed}", self.ids["fails"])}
        )
        job = self._wait(
            lambda: self._known("never"),
            lambda job: job is None or job.state == "ended" or job.never or job.cause is not None,
        )
        if job is not None and job.state != "ended" and not (job.never or job.cause):
            raise Failure(
                f"job {id} can never start, but is {self._described(job)}: `statuses` should set `never`, or "
                "cause = 'error' if nothing can change that"
            )
        self.system.cancelled(self._run_command(self.system.cancel([id])))
        job = self._wait(lambda: self._known("never"), lambda job: job is None or job.state == "ended")
        if job is not None and (job.state != "ended" or job.succeeded):
            raise Failure(f"job {id}, which could never start, was cancelled, but is {self._described(job)}")

    def _own(self) -> None:
        folder = ClusterFolder(f"{self.folder}/owned")
        ours, theirs = (
            Owner.from_key("one", "", "http://one.example.org"),
            Owner.from_key("two", "", "http://two.example.org"),
        )
        first, second, again = self.transport.exchange([load(folder, each) for each in (ours, theirs, ours)])
        if first.status != 0 or again.status != 0:
            raise Failure(f"the folder could not be marked. {self._shown(first if first.status else again)}")
        names = [f"{each.name} ({each.ids[0]})" for each in (ours, theirs)]
        if second.status == 0 or not all(name in second.stderr for name in names):
            raise Failure(f"another deployment is not refused with {' and '.join(names)}. {self._shown(second)}")

    def _account(self) -> None:
        names = ["ends", "fails"]
        ids = [self.ids[name] for name in names]
        command = self.system.accounting([*ids, self._missing()], self.user, self.begun)
        if command is None:
            self.say("        there is no accounting: results come only from the batch system and sentinels")
            return
        try:
            jobs = self._wait(
                lambda: accounted(self.system, self._run_command(command)),
                lambda jobs: set(ids) <= {job.id for job in jobs if job.state == "ended"},
                self.patience,
            )
        except CouldNotAsk as error:
            self.say(f"        it did not answer, so accounting = 'off' suits this site: {error.message}")
            return
        reported = {job.id: job for job in jobs}
        for name, id in zip(names, ids, strict=True):
            if id in reported and reported[id].state == "ended" and reported[id].succeeded is not (name == "ends"):
                raise Failure(
                    f"the accounting's answer for job {id} ({name}) is read as {self._described(reported[id])}"
                )

    # -- queries and submissions

    def _log_in(self) -> None:
        work_dir = quoted(self.work_dir)
        (answer,) = self.transport.run([f"id -un && mkdir -p -- {work_dir} && cd -- {work_dir} && pwd"])
        lines = answer.stdout.splitlines()
        if answer.status != 0 or len(lines) < 2:
            raise TransportError(f"{self.transport}: --work-dir {self.work_dir!r} cannot be used: {answer.message}")
        self.user, root = lines[-2:]
        self.folder = f"{root}/conformance-{uuid.uuid4().hex[:8]}"
        (answer,) = self.transport.run([f"umask 077; mkdir -- {shlex.quote(self.folder)}"])
        if answer.status != 0:
            raise TransportError(f"{self.transport}: --work-dir {self.work_dir!r} cannot be used: {answer.message}")
        self.say(f"        {self.system.name} at {self.transport}, as {self.user}, in {self.folder}")

    def _jobname(self, name: str) -> str:
        # 15 characters, as old PBS allows.
        return f"l{self.folder[-8:]}{name[:6]}"

    def _submit(self, name: str, body: str, array: ArrayRange | None = None) -> None:
        self.ids[name] = self._submitted(name, body, array)

    def _submitted(
        self,
        name: str,
        body: str,
        array: ArrayRange | None = None,
        queue: str | None = None,
        native: Mapping[str, str] | None = None,
    ) -> str:
        request = self._request(name, array)
        request = replace(request, queue=queue) if queue is not None else request
        request = replace(request, native={**request.native, **(native or {})})
        left, status = shlex.quote(f"{self.folder}/{name}.exit"), body.removeprefix("exit ")
        sentinel = f"echo {status} > {left}\n" if status.isdigit() else ""
        text = "\n".join([*self.system.header(request, self.site.profile, "/bin/sh"), f"{sentinel}{body}\n"])
        self.transport.put(self.folder, {name: text.encode()}, executable=[name])
        command = RunCommand(self.system.submit(f"{self.folder}/{name}"), folder=self.folder, limit=SUBMIT_LIMIT)
        (answer,) = self.transport.run([command], timeout=SUBMIT_LIMIT + 30)
        return self.system.submitted(answer)

    def _request(self, name: str, array: ArrayRange | None) -> BatchJobRequest:
        script = JobScript(
            "", jobname=self._jobname(name), stdout=f"{self.folder}/output", stderr=f"{self.folder}/output"
        )
        request = script.over(self.site.properties).request()
        return replace(request, time=request.time or 600, array=array)

    def _run_command(self, command: Sequence[str]) -> CommandResult:
        (answer,) = self.transport.run([RunCommand(command)])
        return answer

    def _ask(self, ids: Sequence[str], *, by_name: bool = False) -> tuple[Statuses, CommandResult]:
        query = StatusQuery(self.system, self.user, ids, by_name=by_name)
        answer = self._run_command(query.command)
        return query.read(answer), answer

    def _known(self, name: str, index: int | None = None) -> NativeJob | None:
        found, answer = self._ask(list(self.ids.values()))
        if found.is_silent((self.ids[name], index)):
            raise Failure(f"the answer does not cover job {self.ids[name]}. {self._shown(answer)}")
        return found.get((self.ids[name], index), self._jobname(name))

    def _outcome(self, name: str) -> Outcome | None:
        job = self._wait(lambda: self._known(name), lambda job: job is None or job.state == "ended")
        if job is not None and job.state != "ended":
            return None
        since = time.monotonic()

        def poll_outcome() -> Outcome | None:
            said = self.transport.get(self.folder, [f"{name}.exit"])[f"{name}.exit"]
            sentinel = None if not said else Sentinel.of_status(int(said))
            gone = time.monotonic() - since
            return decide(
                Evidence(native=job, sentinel=sentinel, gone=gone, patience=self.patience, deadline=self.patience)
            )

        return self._wait(poll_outcome, lambda outcome: outcome is not None, 2 * self.patience)

    def _wait(self, look: Callable[[], T], reached: Callable[[T], bool], seconds: float | None = None) -> T:
        end = time.monotonic() + (self.seconds if seconds is None else seconds)
        while not reached(seen := look()) and time.monotonic() < end:
            time.sleep(self.pause)
        return seen

    def _missing(self) -> str:
        return re.sub(r"\d+", lambda match: str(int(match[0]) + 987_654), self.ids["ends"], count=1)

    @staticmethod
    def _described(job: NativeJob | None) -> str:
        if job is None:
            return "unknown"
        parts = [f"{name} = {value!r}" for name in ("cause", "exit_code", "reason") if (value := getattr(job, name))]
        return f"{job.state} ({', '.join(parts)})" if parts else job.state

    @staticmethod
    def _shown(answer: CommandResult) -> str:
        return f"The answer, with exit status {answer.status}, was: {answer.stdout[:1500]!r}, {answer.stderr[:500]!r}"

    def _clean_up(self) -> None:
        if self.ids:
            with contextlib.suppress(OSError, ValueError):
                for id in self.ids.values():  # one by one: a command for several may stop at one that is gone
                    self._run_command(self.system.cancel([id]))
        parent, _, name = self.folder.rpartition("/")
        try:
            self._wait(self._remains, lambda left: not left, self.patience)
            self.transport.remove(parent, [name])
        except (OSError, CouldNotAsk) as error:
            self.say(f"        not everything could be removed, check {self.folder}: {error}")

    def _remains(self) -> list[str]:
        found, _ = self._ask(list(self.ids.values()))
        return [job.id for job in found.jobs if job.id in self.ids.values() and job.state != "ended"]
