"""A batch site as runs of job scripts see it: everything is done for many runs at once, in one exchange each.

The site holds the truth (see :mod:`lading.hooks.run_folder`), so whoever knows the token of a run may go on with it.
"""

from __future__ import annotations

import logging
import shlex
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from lading.hooks import run_folder
from lading.hooks.batch import BatchSystem, CouldNotAsk, NativeJob
from lading.hooks.cluster_steps import Part, Parts
from lading.hooks.exchange import Get, Put, Run, Step, TransportError
from lading.hooks.job_script import JobScript
from lading.hooks.run_record import Facts, RunRecord, after_question, after_submission, looked_up
from lading.hooks.site_profile import ProfileError, SiteProfile
from lading.hooks.transport import TIMEOUT, Transport
from lading.hooks.wording import Answer, CancelError

log = logging.getLogger(__name__)

WORK_DIR = "~/lading"
# So many submissions in one exchange, so that it ends in time where each takes a second.
MOST_SUBMITTED = 50
# Bytes of the outputs of all runs in one exchange.
MOST_OUTPUT = 2**24
# So many submissions of a run may have been refused, one after the other, when it is cancelled.
MOST_ATTEMPTS = 1000
# Bytes that are read of the output of a run that has ended, beside what was read while it ran.
MOST_REST = 2**24


@dataclass(frozen=True, slots=True)
class SiteOptions:
    """What a site's table in the sites file says of runs; the names are those of its keys.

    :param ssh_conn_id: Airflow's SSH connection to the login node; None: commands run on this machine
    :param control_master: in place of it, what one types after ``ssh``: a shared connection of the OpenSSH client
    :param login_setup: shell lines before the commands on the login node
    :param work_dir: the folder that login node and compute nodes share; absolute, or below the home as ``~/...``
    :param setup: shell lines before every job
    :param accounting: ``auto``, or ``off`` where the site has none that users may read
    :param poll_shortest: seconds between questions to the site while something changes
    :param poll_longest: seconds between questions when nothing does
    :param absence_deadline: seconds after which a run that nobody knows is lost
    """

    ssh_conn_id: str | None = None
    control_master: str | None = None
    login_setup: str = ""
    work_dir: str = WORK_DIR
    setup: str = ""
    accounting: str = "auto"
    poll_shortest: float = 2.0
    poll_longest: float = 60.0
    absence_deadline: float = 120.0

    @classmethod
    def of_table(cls, table: Mapping[str, Any], where: str) -> SiteOptions:
        """What a table says; keys of others are left alone.

        :param where: the file and the table, for messages
        :raises ProfileError: a value is not valid
        """
        given = {name: table[name] for name in cls.__slots__ if name in table}
        for name in ("poll_shortest", "poll_longest", "absence_deadline"):
            value = given.get(name, 1)
            if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
                raise ProfileError(f"{where}: {name} = {value!r} is not valid; a number of seconds above 0 is")
        for name, value in given.items():
            if not name.startswith(("poll_", "absence_")) and not isinstance(value, str):
                raise ProfileError(f"{where}: {name} = {value!r} is no text")
        if given.get("accounting", "auto") not in ("auto", "off"):
            raise ProfileError(f"{where}: accounting = {given['accounting']!r} is not valid; 'auto' and 'off' are")
        if not given.get("work_dir", WORK_DIR).startswith(("/", "~/")):
            raise ProfileError(f"{where}: work_dir = {given['work_dir']!r}: an absolute path or ~/... is expected")
        if given.get("ssh_conn_id") and given.get("control_master"):
            raise ProfileError(f"{where}: ssh_conn_id and control_master are two ways to the site; keep one")
        return cls(**given)

    def transport(self) -> Transport:
        """The way to the site; nothing is opened yet."""
        if self.ssh_conn_id:
            from lading.hooks.ssh import SSHTransport

            return SSHTransport(self.ssh_conn_id, setup=self.login_setup)
        if self.control_master:
            from lading.hooks.control_master import ControlMasterTransport

            return ControlMasterTransport(self.control_master, setup=self.login_setup)
        from lading.hooks.shell import ShellTransport

        return ShellTransport(setup=self.login_setup)


@dataclass(frozen=True)
class Sighting:
    """A run after a look at it.

    :param output: what its output file holds from the asked offset on, as far as it was asked for and fits
    """

    record: RunRecord
    output: bytes = b""


@dataclass
class RunSite:
    """A batch site.

    :param name: what people call it
    :param system: its batch system
    :param profile: what is special there
    :param given_transport: the way there; None: the one of the options
    """

    name: str
    system: BatchSystem
    profile: SiteProfile = field(default_factory=SiteProfile)
    options: SiteOptions = field(default_factory=SiteOptions)
    given_transport: Transport | None = None

    def __post_init__(self) -> None:
        self.transport = self.given_transport or self.options.transport()
        self._login: tuple[str, str] | None = None
        self._lock = threading.Lock()

    def login(self) -> tuple[str, str]:
        """The user's name at the site, and the folder of all runs there.

        :raises TransportError: the site could not be asked
        """
        with self._lock:
            if self._login is None:
                (answer,) = self.transport.run(['id -un && printf "%s\\n" "$HOME"'])
                lines = answer.stdout.splitlines()
                if answer.status != 0 or len(lines) != 2:
                    raise TransportError(f"site {self.name}: {answer.words}")
                user, home = lines
                root = self.options.work_dir
                root = f"{home}/{root[2:]}" if root.startswith("~/") else root
                self._login = user, f"{root.rstrip('/')}/scripts"
            return self._login

    def folder(self, token: str) -> str:
        """The folder of a run, absolute.

        :raises TransportError: the site could not be asked
        """
        return f"{self.login()[1]}/{token}"

    def new_record(self, token: str, script: JobScript) -> RunRecord:
        """A run that nobody has heard of yet.

        :param script: over the site's own properties
        :raises TransportError: the site could not be asked
        """
        folder = self.folder(token)
        own_name = None if script.request().jobname else jobname(token)
        return RunRecord(token, folder, own_name, run_folder.output(script, folder))

    def placed(self, token: str) -> bool:
        """Whether the files of a run are at the site, so that its prologue has run.

        :raises TransportError: the site could not be asked
        """
        folder = self.folder(token)
        (answer,) = self.transport.run([f"test -f {shlex.quote(folder)}/{run_folder.WRAPPER}"])
        if answer.status not in (0, 1):
            raise TransportError(f"site {self.name}: {answer.words}")
        return answer.status == 0

    def rendered(self, record: RunRecord, script: JobScript) -> dict[str, str]:
        """The files of a run by name.

        :raises ValueError: the script cannot be rendered
        """
        name, setup = jobname(record.token), self.options.setup
        return run_folder.files(script, self.system, self.profile.profile, record.folder, jobname=name, setup=setup)

    def place(self, record: RunRecord, script: JobScript) -> None:
        """Write the files of a run.

        :raises TransportError: they could not be written
        :raises ValueError: the script cannot be rendered
        """
        files = self.rendered(record, script)
        contents = {name: text.encode(errors="surrogateescape") for name, text in files.items()}
        # The wrapper comes last: where it is, all are there.
        wrapper = {run_folder.WRAPPER: contents.pop(run_folder.WRAPPER)}
        steps = [Put(record.folder, contents, tuple(contents)), Put(record.folder, wrapper, tuple(wrapper))]
        for answer in self.transport.exchange(steps):
            if answer.status != 0:
                raise TransportError(f"site {self.name}: {answer.words}")

    def advance(
        self, records: Sequence[RunRecord], offsets: Mapping[str, int] | None = None, now: float | None = None
    ) -> list[Sighting]:
        """Go on with runs in one exchange: submit those that are due, look at the others.

        What cannot be asked changes nothing.

        :param offsets: by token, how much of the output is known already; outputs of others are not read
        :param now: seconds since the epoch
        """
        now = time.time() if now is None else now
        try:
            user, root = self.login()
            return _Look(self, user, root, records, dict(offsets or {}), now).done()
        except TransportError as error:
            log.warning("%s", error)
            return [Sighting(record) for record in records]

    def cancel(self, records: Iterable[RunRecord]) -> list[RunRecord]:
        """Cancel runs; a submission that is under way is not let begin. It may be repeated.

        :returns: the runs, to be looked at until they have ended
        :raises CancelError: they were not all cancelled, or that is not known
        """
        living = [replace(record, cancelling=True) for record in records if not record.ended]
        if not living:
            return []
        (answer,) = self.transport.exchange([run_folder.cancel([record.folder for record in living])])
        if answer.status != 0:
            raise CancelError(f"site {self.name}: {answer.words}")
        living = self._resolved(living)
        ids = [record.job_id for record in living if record.job_id is not None and not record.ended]
        if ids:
            (answer,) = self.transport.run([self.system.cancel(ids)])
            self.system.cancelled(answer)
        if any(record.job_id is None and not record.ended for record in living):
            raise CancelError(f"site {self.name}: it is not known yet what has come of the submission")
        return living

    def _resolved(self, records: list[RunRecord]) -> list[RunRecord]:
        """The runs with the ids of what was submitted, when nothing new is submitted any more."""
        for _ in range(MOST_ATTEMPTS):
            unknown = [record for record in records if record.job_id is None and not record.ended]
            found = {each.record.token: each.record for each in self.advance(unknown)}
            told = [found.get(record.token, record) for record in records]
            if told == records:
                break
            records = told
        return records

    def claim(self, record: RunRecord, what: str, who: str) -> bool:
        """Claim what only one may do for a run; the same one may ask again.

        :raises TransportError: that could not be found out
        """
        (answer,) = self.transport.exchange([run_folder.claim(record.folder, what, who)])
        if answer.status != 0:
            raise TransportError(f"site {self.name}: {answer.words}")
        return answer.stdout.strip() == who

    def printed(self, record: RunRecord, most: int) -> str:
        """The beginning of what a run has printed.

        :raises TransportError: it could not be read
        """
        if record.output is None:
            return ""
        step = Parts([Part(record.output)], most)
        (answer,) = self.transport.exchange([step])
        return (step.contents(answer)[0] or b"").decode(errors="replace")

    def rest(self, record: RunRecord, offset: int) -> bytes:
        """All that a run that has ended has printed from an offset on, as far as it can be read."""
        found = b""
        while len(found) < MOST_REST:
            (sighting,) = self.advance([record], {record.token: offset + len(found)})
            if not sighting.output:
                break
            found += sighting.output
        return found

    def last_words(self, record: RunRecord, most: int = 2000) -> str:
        """The end of what the batch system has written beside the run's own output, and of that output.

        :raises TransportError: it could not be read
        """
        paths = dict.fromkeys([f"{record.folder}/{run_folder.BATCH_LOG}", record.output])
        step = Parts([Part(path, -most) for path in paths if path])
        (answer,) = self.transport.exchange([step])
        texts = [(content or b"").decode(errors="replace").strip() for content in step.contents(answer)]
        return "\n".join(text for text in texts if text)

    def close(self) -> None:
        self.transport.close()


class _Look:
    """One exchange, and what follows from its answers."""

    def __init__(
        self,
        site: RunSite,
        user: str,
        root: str,
        records: Sequence[RunRecord],
        offsets: dict[str, int],
        now: float,
    ) -> None:
        self.site, self.user, self.root, self.records, self.offsets, self.now = site, user, root, records, offsets, now
        waiting = [each for each in records if each.job_id is None and not each.ended]
        due = [each for each in waiting if not each.look_up and (each.not_before <= now or each.cancelling)]
        self.due = due[:MOST_SUBMITTED]
        self.lost = [each for each in waiting if each.look_up]
        self.known = [each for each in records if each.job_id is not None and not each.ended]
        self.gone = [each for each in self.known if each.gone_since is not None]
        self.shown = [each for each in records if each.token in offsets and each.output]

    def done(self) -> list[Sighting]:
        steps = self._steps()
        if not steps:
            return [Sighting(record) for record in self.records]
        timeout = TIMEOUT + run_folder.SUBMIT_LIMIT if self.due else TIMEOUT
        answers = dict(zip(steps, self.site.transport.exchange(list(steps.values()), timeout), strict=True))
        new = {
            record.token: after_submission(record, answers["submit", record.token], self.site.system, self.now)
            for record in self.due
        }
        jobs = self._jobs(answers.get(("status", "")))
        if jobs is not None:
            new |= {record.token: looked_up(record, jobs) for record in self.lost}
        new |= self._known(jobs, answers)
        outputs = self._outputs(answers.get(("outputs", "")))
        return [Sighting(new.get(each.token, each), outputs.get(each.token, b"")) for each in self.records]

    def _steps(self) -> dict[tuple[str, str], Step]:
        system = self.site.system
        steps: dict[tuple[str, str], Step] = {}
        ids = [str(record.job_id) for record in self.known]
        if self.known or self.lost:
            # By ids a job cannot be found whose id is not known.
            steps["status", ""] = Run(system.status(self.user, () if self.lost else ids))
        if accounting := self._accounting():
            steps["accounting", ""] = Run(accounting)
        if self.known:
            steps["files", ""] = self._files
        for record in self.due:
            steps["submit", record.token] = run_folder.submit(system, record.folder, record.attempt)
        if self.shown:
            steps["outputs", ""] = self._parts
        return steps

    @property
    def _files(self) -> Get:
        names = (run_folder.JOB, run_folder.EXIT)
        return Get(self.root, [f"{record.token}/{name}" for record in self.known for name in names])

    @property
    def _parts(self) -> Parts:
        # All together fit into an exchange, however many there are.
        most = max(4096, min(2**18, MOST_OUTPUT // max(1, len(self.shown))))
        return Parts([Part(str(record.output), self.offsets[record.token]) for record in self.shown], most)

    def _accounting(self) -> list[str] | None:
        if not self.gone or self.site.options.accounting == "off":
            return None
        since = datetime.fromtimestamp(min(record.submitted_at or self.now for record in self.gone))
        return self.site.system.accounting([str(record.job_id) for record in self.gone], self.user, since)

    def _jobs(self, answer: Answer | None) -> list[NativeJob] | None:
        """What the batch system says; None: it was not asked, or has not answered."""
        try:
            return None if answer is None else self.site.system.statuses(answer)
        except CouldNotAsk as error:
            log.warning("site %s: %s could not be asked: %s", self.site.name, self.site.system.name, error.words)
            return None

    def _known(
        self, jobs: Sequence[NativeJob] | None, answers: Mapping[tuple[str, str], Answer]
    ) -> dict[str, RunRecord]:
        if not self.known:
            return {}
        try:
            contents = self._files.files(answers["files", ""])
        except TransportError as error:
            log.warning("site %s: %s", self.site.name, error)
            return {}
        by_id = {job.id: job for job in jobs or ()}
        accounts = {job.id: job for job in self._accounts(answers.get(("accounting", "")))}
        options = self.site.options
        return {
            record.token: after_question(
                record,
                Facts(
                    asked=jobs is not None,
                    native=by_id.get(str(record.job_id)),
                    account=accounts.get(str(record.job_id)),
                    accounting=options.accounting != "off" and self._has_accounting,
                    sentinel=_text(contents[f"{record.token}/{run_folder.EXIT}"]),
                    job=_text(contents[f"{record.token}/{run_folder.JOB}"]),
                ),
                self.now,
                deadline=options.absence_deadline,
                patience=min(10.0, options.absence_deadline / 2),
            )
            for record in self.known
        }

    @property
    def _has_accounting(self) -> bool:
        return type(self.site.system).accounting is not BatchSystem.accounting

    def _accounts(self, answer: Answer | None) -> list[NativeJob]:
        try:
            return [] if answer is None else self.site.system.accounted(answer)
        except CouldNotAsk as error:
            log.info("site %s: the accounting could not be asked: %s", self.site.name, error.words)
            return []

    def _outputs(self, answer: Answer | None) -> dict[str, bytes]:
        if answer is None:
            return {}
        try:
            contents = self._parts.contents(answer)
        except TransportError as error:
            log.info("site %s: %s", self.site.name, error)
            return {}
        return {record.token: content or b"" for record, content in zip(self.shown, contents, strict=True)}


def jobname(token: str) -> str:
    """What the batch job of a run is called where its author has not named it: 15 characters, as old PBS allows."""
    return f"lading-{token.replace('-', '')[:8]}"


def _text(content: bytes | None) -> str | None:
    return None if content is None else content.decode(errors="replace").strip()
