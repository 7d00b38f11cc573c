"""A batch site as runs of job scripts use it: each operation handles many runs in one exchange.

The site holds the truth (see :mod:`lading.hooks.job_scripts.layout`), so any process that knows the token of a run can
continue it.

| observed | concluded | until |
|---|---|---|
| the site or its batch system could not be asked | nothing | the next look |
| files of runs cannot be read | nothing about any run | the next look |
| no complete list has the name | the submission was not accepted: try again | for good |
| a possibly incomplete list lacks it | nothing | a complete list |
| an unknown state for ``lost_after`` | gone: exit status, accounting, else cancelled and lost | a known state |
| never launched | removed, then submitted again, up to three times | it starts |
"""

from __future__ import annotations

import logging
import shlex
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import accumulate, islice
from pathlib import Path

from lading.hooks.batch import canceller, script_jobs
from lading.hooks.batch.canceller import Canceller
from lading.hooks.batch.outcome import TAIL_BYTES
from lading.hooks.batch.refusals import CancelError
from lading.hooks.batch.registry import batch_systems
from lading.hooks.batch.site_config import NotAllowed, SiteRules
from lading.hooks.batch.status_query import QUESTION_LIMIT, Statuses, StatusQuery, accounts, ask
from lading.hooks.batch.submit_limits import BackPressure, largest_array
from lading.hooks.batch.system import BatchSystem, CouldNotAsk, SubmitError
from lading.hooks.cleanup import leftovers
from lading.hooks.cleanup.cleaning import clean_cluster
from lading.hooks.files import sites_file
from lading.hooks.files.logs import Trouble
from lading.hooks.job_scripts import layout
from lading.hooks.job_scripts.array import RunArray, ask_taken, attempt
from lading.hooks.job_scripts.profile import ProfileError, SiteOptions, SiteProfile
from lading.hooks.job_scripts.run import RunRecord, SiteReport, after_question, after_submission, looked_up
from lading.hooks.job_scripts.script import JobScript
from lading.hooks.site import RemovedLeftovers
from lading.hooks.ssh.answer import CommandResult, TransportError, whole_number
from lading.hooks.ssh.steps import FilePart, Get, Parts, Put, RemoteStep, Remove
from lading.hooks.ssh.transport import TIMEOUT, Transport, Unusable
from lading.scheduling.matching.admission import admitted, refusal
from lading.scheduling.model.site_names import is_named
from lading.scheduling.text.nearest import nearest_first
from lading.scheduling.text.printable import shortened

log = logging.getLogger(__name__)

# Names the trouble of an unreachable site in the log.
LOOKING = "runs cannot be polled"

# For a finished run, bytes that are read of the output not read while it ran: in total, in one exchange, and from the
# end if there is more.
MOST_REST, AT_ONCE, LAST = 2**24, 2**22, 2**16
# The reason of a run for which a limit leaves no room; the limit follows.
HELD = "it waits to be submitted"
# The reason of a run that no controller has admitted yet.
UNADMITTED = "waiting for Lading's controller to admit it"


@dataclass(frozen=True)
class RunSighting:
    """A run after a look at it.

    :param output: content of its output file from the requested offset on, as far as requested and as far as it fits
    :param more: whether there may be more output: it did not fit, or could not be read
    """

    record: RunRecord
    output: bytes = b""
    more: bool = False


@dataclass
class RunSite:
    """A batch site.

    :param name: as shown to users
    :param profile: how the site differs from others with that batch system
    :param given_transport: the transport to use; None: that of the options
    :param has_queue: whether each task of a controller is a batch job there, as a job script is
    """

    name: str
    system: BatchSystem
    profile: SiteProfile = field(default_factory=SiteProfile)
    options: SiteOptions = field(default_factory=SiteOptions)
    given_transport: Transport | None = None
    has_queue: bool = True

    def __post_init__(self) -> None:
        self.transport = self.given_transport or self.options.transport()
        self.trouble = Trouble(log)
        # Even if the site takes larger arrays: submitting makes a link for each element on the login node.
        self.pressure = BackPressure(min(1000, largest_array(self.system, self.profile.profile)))
        self._canceller = Canceller()
        self._noted: set[str] = set()
        self._login: tuple[str, str] | None = None
        self._lock = threading.Lock()

    def login(self) -> tuple[str, str]:
        """Return the user's name at the site, and the folder of all runs there.

        :raises Unusable: the connection is not set up, so retrying does not help
        :raises TransportError: the site could not be asked
        """
        with self._lock:
            if self._login is None:
                (answer,) = self.transport.run(['id -un && printf "%s\\n" "$HOME"'])
                lines = answer.stdout.splitlines()
                if answer.status is None and self.transport.unusable:
                    raise Unusable(f"site {self.name}: {answer.message}")
                if answer.status != 0 or len(lines) != 2:
                    raise TransportError(f"site {self.name}: {answer.message}")
                user, home = lines
                root = self.options.work_dir
                root = f"{home}/{root[2:]}" if root.startswith("~/") else root
                self._login = user, f"{root.rstrip('/')}/{script_jobs.RUNS}"
            return self._login

    @property
    def _work_dir(self) -> str:
        """Lading's folder at the site, absolute."""
        return self.login()[1].removesuffix(f"/{script_jobs.RUNS}")

    def folder(self, token: str) -> str:
        """Return the folder of a run, absolute.

        :raises TransportError: the site could not be asked
        """
        return f"{self.login()[1]}/{token}"

    def admitted(self, script: JobScript, dag_id: str | None, team: str | None = None) -> JobScript:
        """Return the script over the site's own properties.

        :param dag_id: the Dag whose task submits it; None: no Dag
        :param team: that of the Dag; None: it has none
        :raises NotAllowed: the site does not admit the Dag, or a directive of the script
        """
        rules = SiteRules.from_table(self.options)
        rules.check_dag(self.name, dag_id, team)
        rules.check_script(script.properties.resources, self.system)
        return script.over(self.profile.properties)

    def new_record(self, token: str, script: JobScript) -> RunRecord:
        """Return the record of a new run.

        :param script: over the site's own properties
        :raises TransportError: the site could not be asked
        :raises ValueError: its names of clusters are not valid
        """
        request = script.request()
        run = self.named_run(token, request.jobname, self.system.native_clusters(request.native))
        elements = None if request.array is None else request.array.indices
        return replace(run, output=layout.output(script, run.folder), elements=elements, time=request.time)

    def named_run(self, token: str, given_name: str | None, clusters: Sequence[str] = ()) -> RunRecord:
        """Return a record that only has the run's folder, the name of its batch job, and where that can be.

        :param given_name: the name in its script; None: the job is named after its token
        :param clusters: those that its script names
        :raises TransportError: the site could not be asked
        """
        own_name = None if given_name else jobname(token)
        return RunRecord(token, self.folder(token), own_name, given_name=given_name or None, clusters=tuple(clusters))

    def placed(self, token: str) -> bool:
        """Whether the files of a run are at the site, so that its prologue has run.

        :raises TransportError: the site could not be asked
        """
        folder = self.folder(token)
        (answer,) = self.transport.run([f"test -f {shlex.quote(folder)}/{layout.WRAPPER}"])
        if answer.status not in (0, 1):
            raise TransportError(f"site {self.name}: {answer.message}")
        return answer.status == 0

    def rendered(self, record: RunRecord, script: JobScript) -> dict[str, str]:
        """Return the files of a run by name.

        :raises ValueError: the script cannot be rendered
        """
        name, setup = jobname(record.token), self.options.setup
        return layout.files(script, self.system, self.profile.profile, record.folder, jobname=name, setup=setup)

    def place(self, record: RunRecord, script: JobScript) -> None:
        """Write the files of a run.

        :raises TransportError: they could not be written
        :raises ValueError: the script cannot be rendered
        """
        files = self.rendered(record, script)
        contents = {name: text.encode(errors="surrogateescape") for name, text in files.items()}
        # The wrapper is written last: its presence shows that the other files are there.
        wrapper = {layout.WRAPPER: contents.pop(layout.WRAPPER)}
        steps = [Put(record.folder, contents, tuple(contents)), Put(record.folder, wrapper, tuple(wrapper))]
        for answer in self.transport.exchange(steps):
            if answer.status != 0:
                raise TransportError(f"site {self.name}: {answer.message}")

    def taken(self, records: Sequence[RunRecord]) -> frozenset[str]:
        """Return the tokens of the runs whose next submission was already made, by any process.

        :raises TransportError: that could not be found out
        """
        (answer,) = self.transport.exchange([ask_taken(records)])
        words = answer.stdout.split()
        if answer.status != 0 or len(words) != len(records):
            raise TransportError(f"site {self.name}: {answer.message}")
        return frozenset(record.token for record, word in zip(records, words, strict=True) if word == "taken")

    def advance(
        self,
        records: Sequence[RunRecord],
        offsets: Mapping[str, int] | None = None,
        now: float | None = None,
        arrays: Sequence[RunArray] = (),
    ) -> list[RunSighting]:
        """Advance runs in one exchange: submit those that are due, and look at the others.

        If something cannot be asked, nothing changes. Runs that share an array are not submitted before they are in
        one.

        :param offsets: by token, how many bytes of the output were read already; outputs of other runs are not read
        :param now: seconds since the epoch
        :param arrays: those in which runs are to be submitted
        """
        now = time.time() if now is None else now
        try:
            user, root = self.login()
            sightings = RunLook(self, user, root, records, dict(offsets or {}), now, arrays).done()
        except TransportError as error:
            self.trouble.begin(LOOKING, error)
            return [RunSighting(record, more=True) for record in records]
        self.trouble.end(LOOKING)
        self._press([sighting.record for sighting in sightings])
        hopeless = [each.record for each in sightings if each.record.hopeless and not each.record.is_held]
        return self._cancel_unrunnable(sightings, hopeless) if hopeless else sightings

    def _press(self, records: Sequence[RunRecord]) -> None:
        """Repeat, at growing intervals, the cancellation of jobs that the batch system still lists."""
        for record in records:
            if record.ended and record.job_id is not None:
                self._canceller.forget(record.job_id)
        gone = [each.token for each in records if each.ended or each.gone_since is not None]
        if over := self._noted.intersection(gone):
            names = sorted(map(canceller.noted_as, over))
            with suppress(TransportError):  # a controller also removes the notes
                self.transport.exchange([Remove(f"{self._work_dir}/{canceller.NOTES}", names)])
            self._noted -= over
        shown = {each.job_id: each for each in records if each.is_shown_although_cancelled and each.job_id is not None}
        held = {each.job_id: each for each in records if each.is_held and each.job_id is not None}
        unwanted = {**shown, **held}
        due = self._canceller.press(list(held), at_once=True)
        due += self._canceller.press([id for id in shown if id not in held], at_once=False)
        if not due:
            return
        what = f"site {self.name}: the batch system still lists cancelled jobs"
        try:
            ids, gap = self._named_so([unwanted[each] for each in due])
            if ids:
                (answer,) = self.transport.run([self.system.cancel(ids)])
                self.system.cancelled(answer)
            self.trouble.note(what, gap)
        except (CancelError, TransportError) as error:
            self.trouble.begin(what, error)

    def _cancel_unrunnable(self, sightings: list[RunSighting], hopeless: Sequence[RunRecord]) -> list[RunSighting]:
        """Cancel runs that will never start, and return all with those failed."""
        what = f"site {self.name}: jobs that will never start could not be cancelled"
        try:
            self.cancel(hopeless)
        except (CancelError, TransportError) as error:
            self.trouble.begin(what, error)
            return sightings
        self.trouble.end(what)
        failed = {record.token: record.failed(str(record.cause), record.reason) for record in hopeless}
        return [replace(each, record=failed.get(each.record.token, each.record)) for each in sightings]

    def cancel(self, records: Iterable[RunRecord]) -> list[RunRecord]:
        """Cancel runs, and prevent pending submissions from starting. It can be repeated.

        :returns: the runs, to be polled until they have finished
        :raises CancelError: not all were cancelled, or that is unknown
        """
        living = [replace(record, cancelling=True) for record in records if not record.ended]
        if not living:
            return []
        folders = [record.folder for record in living]
        (answer,) = self.transport.exchange([script_jobs.forbid(self.login()[1], folders)])
        if (fault := script_jobs.unmarked(folders, answer)[1]) is not None:
            raise CancelError(f"site {self.name}: {fault}")
        living = self._resolved(living)
        going = [record for record in living if record.job_id is not None and not record.ended]
        ids, gap = self._named_so(going) if going else ([], None)
        # Cancellations of jobs whose status is missing are noted, too: a controller cancels jobs that show up under
        # that name.
        noted = {
            each.token: each.cancellation
            for each in going
            if each.name is not None and (each.job_id in ids or gap is not None)
        }
        if noted:
            orders = [ask(self.system.cancel(ids))] if ids else []
            kept, *answers = self.transport.exchange(
                [canceller.note(self._work_dir, noted), *orders], TIMEOUT + QUESTION_LIMIT
            )
            fault = None if kept.status == 0 else TransportError(kept.message)
            self.trouble.note(f"site {self.name}: cancellations could not be noted", fault)
            self._noted |= noted.keys()
            for answer in answers:
                self.system.cancelled(answer)
            self._canceller.ask(ids)
        if gap is not None:
            raise CancelError(f"site {self.name}: the status of jobs to cancel is unknown: {gap}")
        if any(record.job_id is None and not record.ended for record in living):
            raise CancelError(f"site {self.name}: the outcome of the submission is still unknown")
        return living

    def _named_so(self, records: Sequence[RunRecord]) -> tuple[list[str], CouldNotAsk | None]:
        """Return the native ids of jobs that the batch system lists under the names of their runs, and any gap in its
        answer.

        An id that was read from a folder, or that the batch system has reused, may be that of a foreign job, which must
        not be cancelled.
        """
        user, _ = self.login()
        query = StatusQuery(self.system, user, list(dict.fromkeys(each.submission[0] for each in records)))
        (answer,) = self.transport.exchange([query.step], TIMEOUT + QUESTION_LIMIT)
        try:
            found = query.read(answer)
        except CouldNotAsk as error:
            return [], error
        ids = [str(each.job_id) for each in records if each.name and each.cancellation.is_shown(found.jobs)]
        return ids, found.gap

    def _resolved(self, records: list[RunRecord]) -> list[RunRecord]:
        """Advance the runs until no new submission appears, and return them with their native ids."""
        for _ in range(1000):
            unknown = [record for record in records if record.job_id is None and not record.ended]
            found = {each.record.token: each.record for each in self.advance(unknown)}
            reported = [found.get(record.token, record) for record in records]
            if reported == records:
                break
            records = reported
        return records

    def claim(self, record: RunRecord, what: str, who: str) -> bool:
        """Claim what only one process may do for a run; whoever has the claim can ask again.

        :raises TransportError: that could not be found out
        """
        (answer,) = self.transport.exchange([layout.claim(record.folder, what, who)])
        if answer.status != 0:
            raise TransportError(f"site {self.name}: {answer.message}")
        return answer.stdout.strip() == who

    def printed(self, record: RunRecord, most: int) -> str:
        """Return the first ``most`` bytes of what a run has printed.

        :raises TransportError: it could not be read
        """
        if record.output is None:
            return ""
        return self._read(record.output, 0, most).decode(errors="replace")

    def rest(self, record: RunRecord, offset: int) -> bytes:
        """Return all that a finished run has printed from an offset on; of very long output, the beginning and the end.

        :raises TransportError: it could not be read
        """
        if record.output is None:
            return b""
        found = b""
        while new := self._read(record.output, offset + len(found), AT_ONCE):
            found += new
            if len(found) >= MOST_REST:
                return found + self._end(record.output, offset + len(found))
        return found

    def _end(self, path: str, offset: int) -> bytes:
        """Return the end of a file from an offset on, after a line that says how much is left out."""
        (answer,) = self.transport.run([f"wc -c <{shlex.quote(path)}"])
        if answer.status != 0 or (size := whole_number(answer.stdout.strip())) is None:
            raise TransportError(f"site {self.name}: {answer.message}")
        begin = max(offset, size - LAST)
        message = (
            f"\n({begin - offset} bytes are left out here; the whole output is in {path})\n" if begin > offset else ""
        )
        return message.encode(errors="surrogateescape") + self._read(path, begin, LAST)

    def _read(self, path: str, offset: int, most: int) -> bytes:
        step = Parts([FilePart(path, offset)], most)
        (answer,) = self.transport.exchange([step])
        return step.contents(answer)[0] or b""

    def last_output(self, record: RunRecord) -> str:
        """Return the end of the batch system's log of a run, and the end of the run's own output.

        :raises TransportError: it could not be read
        """
        step = Parts([FilePart(path, -TAIL_BYTES) for path in record.logs])
        (answer,) = self.transport.exchange([step])
        texts = [(content or b"").decode(errors="replace").strip() for content in step.contents(answer)]
        return "\n".join(text for text in texts if text)

    def clean(self, older_than: float, keep: Collection[str], dry_run: bool) -> Iterator[RemovedLeftovers]:
        """Remove the folders of finished runs; see :meth:`lading.hooks.site.Site.clean`.

        :raises TransportError: the site could not be asked; nothing or only a part was removed
        """
        yield from clean_cluster(
            self.transport,
            self.system,
            self._work_dir,
            leftovers.RUNS,
            older_than=older_than,
            keep=keep,
            dry_run=dry_run,
        )

    def close(self) -> None:
        self.transport.close()


class RunLook:
    """One exchange with a site about runs, and the conclusions from its answers.

    :param user: the user's name at the site
    :param root: the folder of all runs
    :param offsets: by token, how many bytes of the output were read already
    :param now: seconds since the epoch
    :param arrays: those to submit, which runs have as ``array``
    """

    most_submitted = 50
    """In one exchange, so that it finishes in time even if each takes a second. The first refusal holds all that
    follow it."""

    def __init__(
        self,
        site: RunSite,
        user: str,
        root: str,
        records: Sequence[RunRecord],
        offsets: dict[str, int],
        now: float,
        arrays: Sequence[RunArray] = (),
    ) -> None:
        self.site, self.user, self.root, self.records, self.offsets, self.now = site, user, root, records, offsets, now
        waiting = [each for each in records if each.waiting]
        self.locked = [each for each in waiting if each.held and not each.cancelling]
        due = [
            each
            for each in waiting
            if not each.look_up and (each.cancelling or (each.shared is None and not each.held))
        ]
        self.arrays = {
            array: elements
            for array in arrays
            if (elements := [each for each in waiting if each.array == array.folder and not each.cancelling])
        }
        self.lost = [each for each in waiting if each.look_up]
        self.known = [each for each in records if each.job_id is not None and not each.ended]
        self.gone = [each for each in self.known if each.gone_since is not None]
        self.shown = [each for each in records if each.token in offsets and each.output]
        ending = [each for each in due if each.cancelling][: self.most_submitted]
        starting = [each for each in due if not each.cancelling]
        submitted = len(self.known) + sum(map(len, self.arrays.values()))
        first = starting[0].jobs if starting else 1
        allowed, why = site.pressure.allow(site.system.name, site.profile.profile, submitted, first)
        room = sum(jobs <= allowed for jobs in accumulate(each.jobs for each in starting))
        self.held = [replace(each, reason=f"{HELD}: {why.sentence}") for each in starting[room:]]
        self.due = [*ending, *starting[: min(self.most_submitted - len(ending), room)]]
        most_arrays = self.most_submitted - len(self.due) if site.pressure.held() is None else 0
        self.arrays = dict(islice(self.arrays.items(), most_arrays))

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
        new |= self._unlocked(answers.get(("decided", "")))
        self._learn(answers)
        jobs = self._jobs(answers.get(("status", "")))
        if jobs is not None:
            found = [looked_up(record, jobs.jobs, self.site.system) for record in self.lost]
            new |= {each.token: each for each in found if each.job_id is not None or jobs.are_whole(each.clusters)}
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
            steps["submit", array.folder] = array.submit(system, before)
            before = array.folder
        if self.locked:
            steps["decided", ""] = self._decided
        if self.shown:
            steps["outputs", ""] = self._parts
        return steps

    def _learn(self, answers: Mapping[tuple[str, str], CommandResult]) -> None:
        """Learn the site's limits from its answers to submissions, in their order."""
        submitted, pressure, system = len(self.known), self.site.pressure, self.site.system
        parts = [(record.token, record.jobs, 1) for record in self.due]
        parts += [(array.folder, len(elements), 2) for array, elements in self.arrays.items()]
        for name, count, lines in parts:
            answer = answers["submit", name]
            first, *rest = answer.stdout.split("\n", lines)
            if first.split()[:1] != ["answered"] or len(rest) < lines:
                continue
            with suppress(SubmitError):  # after_submission handles it for the run
                pressure.read(system, replace(answer, stdout=rest[-1]), count, submitted, divisible=lines > 1)
                submitted += count

    def _elements(self, answers: Mapping[tuple[str, str], CommandResult]) -> dict[str, RunRecord]:
        new = {}
        for array, elements in self.arrays.items():
            put, answer = answers["put", array.folder], answers["submit", array.folder]
            if answer.stdout.strip() == layout.HELD:
                continue
            if put.status != 0:
                answer = CommandResult(None, "", put.message)
            for record in elements:
                new[record.token] = array.after(record, answer, self.site.system, self.now)
        return new

    def _unlocked(self, answer: CommandResult | None) -> dict[str, RunRecord]:
        """Return the runs that have waited for a controller; a cancelled one ends when it is to be submitted."""
        if answer is None:
            return {}
        what = f"site {self.site.name}: the grants of runs"
        try:
            found, trouble = script_jobs.decided(self._decided, answer)
        except TransportError as error:
            self.site.trouble.begin(what, error)
            return {}
        self.site.trouble.note(what, trouble)
        return {
            each.token: replace(each, reason=UNADMITTED)
            if each.token not in found
            else replace(each, held=False, reason=None)
            for each in self.locked
        }

    @property
    def _decided(self) -> Get:
        return script_jobs.ask_decided(self.root, [each.token for each in self.locked])

    @property
    def _files(self) -> Get:
        names = (layout.JOB, layout.EXIT, layout.CANCELLED)
        return Get(self.root, [f"{record.token}/{name}" for record in self.known for name in names])

    @property
    def _logs(self) -> Parts:
        return Parts([FilePart(path, -TAIL_BYTES) for record in self.gone for path in record.logs])

    @property
    def _parts(self) -> Parts:
        # All parts together fit into one exchange, for any number of runs.
        # At most 16 MiB of output of all runs together in one exchange.
        most = max(4096, min(2**18, 2**24 // max(1, len(self.shown))))
        return Parts([FilePart(str(record.output), self.offsets[record.token]) for record in self.shown], most)

    def _accounting(self) -> list[str] | None:
        if not self.gone or self.site.options.accounting == "off":
            return None
        since = datetime.fromtimestamp(min(record.submitted_at or self.now for record in self.gone))
        return self.site.system.accounting(_ids(self.gone), self.user, since)

    @property
    def _query(self) -> StatusQuery:
        clusters = {cluster for record in self.lost for cluster in record.clusters}
        return StatusQuery(self.site.system, self.user, _ids(self.known), by_name=bool(self.lost), clusters=clusters)

    def _jobs(self, answer: CommandResult | None) -> Statuses | None:
        """Return the batch system's answer; None: it was not asked, or has not answered."""
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
            contents, unreadable = self._files.readable_files(answers["files", ""])
            logs = self._logs.contents(answers["logs", ""]) if ("logs", "") in answers else ()
        except TransportError as error:
            self.site.trouble.begin(what, error)
            return {}
        self.site.trouble.note(what, next(iter(unreadable.values()), None))
        silent = {name.partition("/")[0] for name in unreadable}  # nothing is concluded about these runs
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
            if record.token not in silent
        }

    def _outputs(self, answer: CommandResult | None) -> dict[str, RunSighting]:
        if answer is None:
            return {}
        parts = self._parts
        what = f"site {self.site.name}: outputs of runs"
        try:
            contents = [content or b"" for content in parts.contents(answer)]
        except TransportError as error:
            self.site.trouble.begin(what, error)
            return {each.token: RunSighting(each, more=True) for each in self.shown}
        self.site.trouble.end(what)
        read = zip(self.shown, contents, strict=True)
        return {each.token: RunSighting(each, content, len(content) >= parts.most) for each, content in read}


def _ids(records: Sequence[RunRecord]) -> list[str]:
    """Return the ids to ask the batch system for: single jobs and whole arrays."""
    return list(dict.fromkeys(record.submission[0] for record in records))


def _text(content: bytes | None) -> str | None:
    return None if content is None else content.decode(errors="replace").strip()


def jobname(token: str) -> str:
    """Return the default name of a run's batch job: 15 characters, the limit of old PBS versions."""
    return f"lading-{token.replace('-', '')[:8]}"


# The batch sites of the sites file.


def batch_system(name: str) -> BatchSystem:
    """Return a batch system by its name.

    :raises ValueError: the name is unknown
    """
    systems = batch_systems()
    if name not in systems:
        raise ValueError(f"batch system {name!r} is unknown; the systems are: {nearest_first(name, systems)}")
    return systems[name]


def open_site(name: str, dag_id: str | None, team: str | None) -> RunSite:
    """Open a batch site of ``[lading] sites_file`` for a Dag, with the account that is meant for the Dag.

    All runs of a Dag's job scripts get their site from here, so nothing in a Dag can choose the account.

    :param name: of the site, or of one account of it
    :param dag_id: the Dag whose task uses it; None: no Dag
    :param team: that of the Dag; None: it has none
    :raises NotAllowed: the Dag is not allowed to use it
    :raises ValueError: the file or site does not exist, the site is not a batch cluster, or a value is not valid
    """
    from airflow.sdk.configuration import conf

    given = conf.get("lading", "sites_file", fallback="")
    if not given:
        raise ProfileError(f"site {name!r}: [lading] sites_file is not set; set it to the file that has the site")
    path = Path(given).expanduser()
    named = {
        each: SiteRules.from_table(table).admission
        for each, table in sites_file.read_sites(path).items()
        if is_named(each, name) and isinstance(table, dict)
    }
    if named and not (open_ones := admitted(((each, its) for each, its in named.items()), dag_id, team)):
        raise NotAllowed(str(refusal(named.items(), dag_id, team)))
    return read_site(path, open_ones[0] if named else name)


def read_site(path: Path, name: str) -> RunSite:
    """Read a batch site from a sites file, without checking who may use it.

    :raises ValueError: as :func:`open_site`
    """
    tables = sites_file.read_sites(path)
    if name not in tables:
        raise ProfileError(f"site {shortened(name)} is not in {path}; the sites are: {nearest_first(name, tables)}")
    where = f"{path} [sites.{name}]"
    if not isinstance(tables[name], dict):
        raise ProfileError(f"{where} is not a table")
    profile = SiteProfile.of_table(tables[name], where, others=True)
    try:
        system = batch_system(profile.kind or "")
    except ValueError as error:
        raise ProfileError(f"{where}: job scripts need a batch cluster, but kind = {profile.kind!r}: {error}") from None
    options = SiteOptions.of_table(tables[name], where)
    return RunSite(name, system, profile, options, has_queue=tables[name].get("mode", "job") == "job")
