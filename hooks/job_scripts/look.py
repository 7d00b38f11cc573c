"""One look at runs of job scripts at their site: one exchange for all of them, and what follows from its answers.

| read | concluded | until |
|---|---|---|
| the site or its batch system could not be asked | nothing | the next look |
| files of runs that cannot be read | nothing of any run | the next look |
| a name in no whole list | its submission was not accepted: tried again | for good |
| the same in a list that may lack some | nothing | a whole list |
| a strange state for ``lost_after`` | gone: exit status, accounting, else cancelled and lost | a known state |
| never launched | taken out; once it is gone submitted again, three times | it begins |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import accumulate, islice
from typing import Protocol

from lading.hooks.batch.outcome import TAIL_BYTES
from lading.hooks.batch.status_query import QUESTION_LIMIT, Statuses, StatusQuery, accounts, ask
from lading.hooks.batch.submit_limits import BackPressure
from lading.hooks.batch.system import BatchSystem, CouldNotAsk, SubmitError
from lading.hooks.files.logs import Trouble
from lading.hooks.job_scripts import layout
from lading.hooks.job_scripts.array import RunArray, attempt
from lading.hooks.job_scripts.profile import SiteOptions, SiteProfile
from lading.hooks.job_scripts.run import RunRecord, SiteReport, after_question, after_submission, looked_up
from lading.hooks.ssh.answer import CommandResult, TransportError
from lading.hooks.ssh.steps import FilePart, Get, Parts, RemoteStep
from lading.hooks.ssh.transport import TIMEOUT, Transport

# The most submissions in one exchange, so that it ends in time where each takes a second.
MOST_SUBMITTED = 50
# What is said of a run for which a limit has left no room, before why.
HELD = "it waits to be submitted"
# Bytes of the outputs of all runs in one exchange.
MOST_OUTPUT = 2**24


@dataclass(frozen=True)
class RunSighting:
    """A run after a look at it.

    :param output: what its output file holds from the asked offset on, as far as it was asked for and fits
    :param more: whether there may be more of it: it did not fit, or could not be read
    """

    record: RunRecord
    output: bytes = b""
    more: bool = False


class ReachedSite(Protocol):
    """What a look needs of the site at which the runs are."""

    name: str
    system: BatchSystem
    profile: SiteProfile
    options: SiteOptions
    transport: Transport
    trouble: Trouble
    pressure: BackPressure


class RunLook:
    """One exchange, and what follows from its answers.

    :param user: name at the site
    :param root: the folder of all runs
    :param offsets: by token, how much of the output is known already
    :param now: seconds since the epoch
    :param arrays: those that are submitted, with runs that have them as ``array``
    """

    def __init__(
        self,
        site: ReachedSite,
        user: str,
        root: str,
        records: Sequence[RunRecord],
        offsets: dict[str, int],
        now: float,
        arrays: Sequence[RunArray] = (),
    ) -> None:
        self.site, self.user, self.root, self.records, self.offsets, self.now = site, user, root, records, offsets, now
        waiting = [each for each in records if each.waiting]
        alone = [each for each in waiting if not each.look_up and (each.cancelling or each.shared is None)]
        due = [each for each in alone if each.not_before <= now or each.cancelling]
        self.arrays = {
            array: elements
            for array in arrays
            if (elements := [each for each in waiting if each.array == array.folder and not each.cancelling])
        }
        self.lost = [each for each in waiting if each.look_up]
        self.known = [each for each in records if each.job_id is not None and not each.ended]
        self.gone = [each for each in self.known if each.gone_since is not None]
        self.shown = [each for each in records if each.token in offsets and each.output]
        ending = [each for each in due if each.cancelling][:MOST_SUBMITTED]
        starting = [each for each in due if not each.cancelling]
        submitted = len(self.known) + sum(map(len, self.arrays.values()))
        allowed, why = site.pressure.allow(site.system.name, site.profile.profile, submitted)
        room = sum(jobs <= allowed for jobs in accumulate(each.jobs for each in starting))
        self.due = [*ending, *starting[: min(MOST_SUBMITTED - len(ending), room)]]
        self.held = [replace(each, reason=f"{HELD}: {why.sentence}") for each in starting[room:]]
        # One of them at a time: a round ends at the first refusal.
        self.arrays = {} if starting[:room] else dict(islice(self.arrays.items(), 1))

    def done(self) -> list[RunSighting]:
        new = {each.token: each for each in self.held}
        steps = self._steps()
        if not steps:
            return [RunSighting(new.get(each.token, each)) for each in self.records]
        timeout = TIMEOUT + QUESTION_LIMIT * sum(name in ("status", "accounting") for name, _ in steps)
        timeout += layout.SUBMIT_LIMIT if self.due or self.arrays else 0
        answers = dict(zip(steps, self.site.transport.exchange(list(steps.values()), timeout), strict=True))
        new |= {
            record.token: after_submission(record, answers["submit", record.token], self.site.system, self.now)
            for record in self.due
            if answers["submit", record.token].stdout.strip() != layout.HELD
        }
        new |= self._elements(answers)
        self._learn(answers)
        jobs = self._jobs(answers.get(("status", "")))
        if jobs is not None:
            found = [looked_up(record, jobs.jobs, self.site.system) for record in self.lost]
            new |= {each.token: each for each in found if each.job_id is not None or jobs.is_whole}
        known = self._known(jobs, answers)
        for record in known.values():
            if record.ended:
                self.site.pressure.release()
        new |= known
        outputs = self._outputs(answers.get(("outputs", "")))
        seen = [outputs.get(each.token, RunSighting(each)) for each in self.records]
        return [replace(each, record=new.get(each.record.token, each.record)) for each in seen]

    def _steps(self) -> dict[tuple[str, str], RemoteStep]:
        system = self.site.system
        steps: dict[tuple[str, str], RemoteStep] = {}
        if self.known or self.lost:
            steps["status", ""] = self._query.step
        if accounting := self._accounting():
            steps["accounting", ""] = ask(accounting)
        if self.known:
            steps["files", ""] = self._files
        if self.gone and self.site.system.wording.memory is not None:
            steps["logs", ""] = self._logs
        before = ""
        for record in self.due:
            steps["submit", record.token] = layout.submit(system, record.folder, record.attempt, before)
            before = "" if record.cancelling else attempt(record)
        for array in self.arrays:
            steps["put", array.folder] = array.put()
            steps["submit", array.folder] = array.submit(system)
        if self.shown:
            steps["outputs", ""] = self._parts
        return steps

    def _learn(self, answers: Mapping[tuple[str, str], CommandResult]) -> None:
        """Learn what the site takes from what it has said to submissions, in their order."""
        submitted, pressure, system = len(self.known), self.site.pressure, self.site.system
        parts = [(record.token, record.jobs, 1) for record in self.due]
        parts += [(array.folder, len(elements), 2) for array, elements in self.arrays.items()]
        for name, count, lines in parts:
            answer = answers["submit", name]
            first, *rest = answer.stdout.split("\n", lines)
            if first.split()[:1] != ["answered"] or len(rest) < lines:
                continue
            with suppress(SubmitError):  # what follows for the run is for it to find
                pressure.read(system, replace(answer, stdout=rest[-1]), count, submitted, divisible=lines > 1)
                submitted += count

    def _elements(self, answers: Mapping[tuple[str, str], CommandResult]) -> dict[str, RunRecord]:
        new = {}
        for array, elements in self.arrays.items():
            put, answer = answers["put", array.folder], answers["submit", array.folder]
            if put.status != 0:
                answer = CommandResult(None, "", put.message)
            for record in elements:
                new[record.token] = array.after(record, answer, self.site.system, self.now)
        return new

    @property
    def _files(self) -> Get:
        names = (layout.JOB, layout.EXIT, layout.CANCELLED)
        return Get(self.root, [f"{record.token}/{name}" for record in self.known for name in names])

    @property
    def _logs(self) -> Parts:
        """The ends of what runs that have gone, and the batch system of them, have written."""
        return Parts([FilePart(path, -TAIL_BYTES) for record in self.gone for path in record.logs])

    @property
    def _parts(self) -> Parts:
        # All together fit into an exchange, however many there are.
        most = max(4096, min(2**18, MOST_OUTPUT // max(1, len(self.shown))))
        return Parts([FilePart(str(record.output), self.offsets[record.token]) for record in self.shown], most)

    def _accounting(self) -> list[str] | None:
        if not self.gone or self.site.options.accounting == "off":
            return None
        since = datetime.fromtimestamp(min(record.submitted_at or self.now for record in self.gone))
        return self.site.system.accounting(_ids(self.gone), self.user, since)

    @property
    def _query(self) -> StatusQuery:
        return StatusQuery(self.site.system, self.user, _ids(self.known), by_name=bool(self.lost))

    def _jobs(self, answer: CommandResult | None) -> Statuses | None:
        """What the batch system says; None: it was not asked, or has not answered."""
        if answer is None:
            return None
        found, fault = None, None
        try:
            found = self._query.read(answer)
            fault = found.gap
        except CouldNotAsk as error:
            fault = error
        self.site.trouble.note(f"site {self.site.name}: {self.site.system.name}", fault)
        return found

    def _known(self, jobs: Statuses | None, answers: Mapping[tuple[str, str], CommandResult]) -> dict[str, RunRecord]:
        if not self.known:
            return {}
        what = f"site {self.site.name}: files of runs"
        try:
            contents = self._files.files(answers["files", ""])
            logs = self._logs.contents(answers["logs", ""]) if ("logs", "") in answers else ()
        except TransportError as error:
            self.site.trouble.begin(what, error)
            return {}
        self.site.trouble.end(what)
        options, system, site = self.site.options, self.site.system, f"site {self.site.name}"
        reported = accounts(system, answers.get(("accounting", "")), self.site.trouble, f"{site}: the accounting")
        texts = iter(logs)
        written = {each.token: "\n".join(_text(next(texts, None)) or "" for _ in each.logs) for each in self.gone}
        has_accounting = type(system).accounting is not BatchSystem.accounting
        return {
            record.token: after_question(
                record,
                SiteReport(
                    asked=jobs is not None and not jobs.is_silent(record.submission),
                    native=None if jobs is None else jobs.get(record.submission, record.name),
                    account=reported.get(record.submission, record.name),
                    accounting=options.accounting != "off" and has_accounting,
                    sentinel=_text(contents[f"{record.token}/{layout.EXIT}"]),
                    job=_text(contents[f"{record.token}/{layout.JOB}"]),
                    cancelled=contents[f"{record.token}/{layout.CANCELLED}"] is not None,
                    log=written.get(record.token, ""),
                ),
                self.now,
                deadline=options.lost_after,
                patience=min(10.0, options.lost_after / 2),
                system=system,
                cancel_unrunnable_after=options.cancel_unrunnable_after,
            ).timed(_text(contents[f"{record.token}/{layout.EXIT}"]), self.now)
            for record in self.known
        }

    def _outputs(self, answer: CommandResult | None) -> dict[str, RunSighting]:
        if answer is None:
            return {}
        parts = self._parts
        what = f"site {self.site.name}: output of runs"
        try:
            contents = [content or b"" for content in parts.contents(answer)]
        except TransportError as error:
            self.site.trouble.begin(what, error)
            return {each.token: RunSighting(each, more=True) for each in self.shown}
        self.site.trouble.end(what)
        read = zip(self.shown, contents, strict=True)
        return {each.token: RunSighting(each, content, len(content) >= parts.most) for each, content in read}


def _ids(records: Sequence[RunRecord]) -> list[str]:
    """What a batch system is asked about: jobs, and arrays as a whole."""
    return list(dict.fromkeys(record.submission[0] for record in records))


def _text(content: bytes | None) -> str | None:
    return None if content is None else content.decode(errors="replace").strip()
