"""Copies Dag bundles to a site, with ``dags = "sync"``. Each content is stored once, in a folder named by its hash.

A job is bound to the content of its bundle at the time of submission. Its envelope names the folder, and what runs the
job (a batch job, or a node agent that runs many) sets the variables that make Airflow read its Dags from it, for that
job's process alone (:func:`lading.hooks.dags.bundles.environment`). Later changes of the bundle do not affect it.

A folder exists either complete or not at all: parts of the archive arrive next to it and are unpacked there, and the
result is renamed. Lading never changes a folder afterwards, and renames it before removing it.
"""

from __future__ import annotations

import logging
import shlex
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from lading.hooks.dags.bundles import Bundle, BundleRefused, BundleUnavailable, DagBundles, of_workload
from lading.hooks.dags.snapshot import HASH_DIGITS
from lading.hooks.spool.spool import Envelope
from lading.hooks.spool.tokens import checked
from lading.hooks.ssh.answer import CommandResult, TransportError
from lading.hooks.ssh.steps import RunCommand
from lading.scheduling.model.reasons import Reason, because

if TYPE_CHECKING:
    from lading.hooks.ssh.transport import Transport

log = logging.getLogger(__name__)

Job = TypeVar("Job")


@dataclass
class _Upload:
    """An archive that is being sent.

    :param bundle: its jobs are bound to this content, even if the bundle changes meanwhile
    :param name: unique to this attempt, because another controller may send the same content
    :param sent: bytes that have arrived
    """

    bundle: Bundle
    hash: str
    archive: bytes
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    sent: int = 0
    part_bytes = 8 * 2**20
    """Of an archive, sent in one exchange; more would delay other work at the site."""

    @property
    def stage(self) -> str:
        """The folder, next to the bundles, in which it arrives; hidden like everything incomplete."""
        return f".{self.name}"

    def part(self, folder: str) -> RunCommand:
        """Return the step that writes the next part, and with the last one creates the bundle. It can be repeated."""
        data = self.archive[self.sent : self.sent + self.part_bytes]
        file = f"part.{self.sent // self.part_bytes:06}"
        place, stage = shlex.quote(folder), self.stage
        lines = [
            f"umask 077; mkdir -p -- {place}/{stage} && cd -- {place} || exit",
            # The bundle exists: an earlier answer was lost, or another controller was faster.
            f"[ ! -d {self.hash} ] || {{ rm -rf {stage}; exit 0; }}",
            f'cat > {stage}/{file} && [ "$(wc -c < {stage}/{file})" -eq {len(data)} ] || exit',
        ]
        if self.sent + self.part_bytes >= len(self.archive):
            content = f"content.{self.name}"
            lines += [
                f"(cd {stage} && rm -rf {content} && mkdir {content} && cat part.* | gzip -dc > archive) || exit",
                f"(cd {stage}/{content} && tar -xof ../archive) || exit",
                # If another process is faster, mv moves the content into its folder; the last line removes it there.
                f"[ -d {self.hash} ] || mv {stage}/{content} {self.hash} || exit",
                f"rm -rf {self.hash}/{content} {stage}",
            ]
        return RunCommand("\n".join(lines), stdin=data)


@dataclass(frozen=True, slots=True)
class BundleStates:
    """The state of some jobs' bundles in one tick.

    :param hashes: the content on the cluster
    :param waits: why jobs of a bundle cannot be submitted now
    :param refusals: why jobs of a bundle can never be submitted
    """

    hashes: dict[Bundle, str] = field(default_factory=dict)
    waits: dict[Bundle, Reason] = field(default_factory=dict)
    refusals: dict[Bundle, str] = field(default_factory=dict)

    def hash_of(self, envelope: Envelope) -> str:
        """The hash of the content that a job reads its Dags from; empty: Lading brings none."""
        bundle = of_workload(envelope.workload)
        return self.hashes.get(bundle, "") if bundle else ""

    def wait_of(self, envelope: Envelope) -> Reason | None:
        """Why a job's bundle keeps it from being submitted now; None: it does not."""
        bundle = of_workload(envelope.workload)
        return self.waits.get(bundle) if bundle else None

    def refusal_of(self, envelope: Envelope) -> str | None:
        """Why a job's bundle keeps it from ever being submitted, as text; None: it does not."""
        bundle = of_workload(envelope.workload)
        return self.refusals.get(bundle) if bundle else None


@dataclass(frozen=True, slots=True)
class BoundJob(Generic[Job]):
    """A job bound to Dags that are at the site.

    :param envelope: names their folder
    :param hash: of their content; empty: Lading brings none
    """

    job: Job
    envelope: Envelope
    hash: str


class BundleSync:
    """The bundles at a site. To be used only in the thread that talks to the site.

    :param folder: that of the bundles, in Lading's own folder at the site
    :param bundles: those on this machine
    """

    def __init__(self, folder: str, bundles: DagBundles) -> None:
        self.folder = folder
        self.bundles = bundles
        self._present: set[str] | None = None
        self._upload: _Upload | None = None
        self._sweep_at = 0.0

    def bind_jobs(
        self,
        transport: Transport,
        waiting: Sequence[tuple[Job, Envelope, str]],
        *,
        refuse: Callable[[Job, str], None],
        hold: Callable[[Job, Reason], None],
    ) -> list[BoundJob[Job]]:
        """Bind jobs to the current content of their bundles, and send new content to the site; return the jobs ready.

        :param waiting: each job with its envelope and the hash of the content that it was bound to before and keeps
            reading; empty: not bound yet
        :param refuse: called with a job that can never run, and the reason as text
        :param hold: called with a job that cannot run now, and the reason
        :raises OSError: the site could not be reached
        """
        bound = self.prepare(transport, [envelope for _, envelope, hash in waiting if not hash])
        ready = []
        for job, envelope, known_hash in waiting:
            if not known_hash and (message := bound.refusal_of(envelope)) is not None:
                refuse(job, message)
            elif not known_hash and (reason := bound.wait_of(envelope)) is not None:
                hold(job, reason)
            else:
                hash = known_hash or bound.hash_of(envelope)
                ready.append(BoundJob(job, bind(envelope, self.folder, hash), hash))
        return ready

    def prepare(self, transport: Transport, envelopes: Iterable[Envelope]) -> BundleStates:
        """Read the bundles that jobs name, and send new content: one part of one archive, in one exchange.

        The first call takes one exchange more, to list the bundles at the site.

        :raises OSError: the site could not be reached
        """
        named = {of_workload(envelope.workload) for envelope in envelopes}
        asked = sorted((bundle for bundle in named if bundle is not None), key=str)
        bound = BundleStates()
        if not asked:
            return bound
        if self._present is None:
            self._present = _listed(*transport.exchange([listing(self.folder)]))
        for bundle in asked:
            self._provide_bundle(bundle, self._present, bound)
        if self._upload is not None:
            self._send(transport, self._upload, self._present, bound)
        return bound

    def forget(self) -> None:
        """List the bundles at the site again, because an expected one was missing."""
        self._present = None

    def sweep(self, used: Iterable[str]) -> RunCommand | None:
        """Return the step that removes bundles no live job has read for a day; None: the last sweep is too recent.

        :param used: the hashes of jobs that the controller knows; those of other jobs are found in their files
        """
        if time.monotonic() < self._sweep_at:
            return None
        self._sweep_at = time.monotonic() + 3600.0
        return _sweep(self.folder, {*used, *([self._upload.hash, self._upload.stage] if self._upload else [])})

    def swept(self, answer: CommandResult) -> None:
        if self._present is not None:
            self._present.difference_update(line.strip() for line in answer.lines)

    def _provide_bundle(self, bundle: Bundle, present: Collection[str], bound: BundleStates) -> None:
        upload = self._upload
        sending = because("bundle_sending", bundle=bundle.name)
        if upload is not None and upload.bundle == bundle:
            bound.waits[bundle] = sending
            return
        try:
            found = self.bundles.snapshot(bundle, present, pack=upload is None)
        except BundleUnavailable as error:
            bound.waits[bundle] = because("bundle", text=str(error))
        except BundleRefused as error:
            bound.refusals[bundle] = str(error)
        else:
            if found is None:
                return
            if found.hash in present:
                bound.hashes[bundle] = found.hash
                return
            bound.waits[bundle] = sending
            if found.archive is not None:
                self._upload = _Upload(bundle, found.hash, found.archive)

    def _send(self, transport: Transport, upload: _Upload, present: set[str], bound: BundleStates) -> None:
        (answer,) = transport.exchange([upload.part(self.folder)], timeout=180.0)
        if answer.status is None:
            raise TransportError(answer.message)
        if answer.status != 0:
            self._upload = None
            reason = because("bundle_not_written", bundle=upload.bundle.name, folder=self.folder, text=answer.message)
            log.warning("%s", reason.sentence)
            bound.waits[upload.bundle] = reason
            return
        upload.sent += upload.part_bytes
        if upload.sent >= len(upload.archive):
            log.info("Dag bundle %s was sent as %s/%s", upload.bundle.name, self.folder, upload.hash)
            self._upload = None
            present.add(upload.hash)
            bound.waits.pop(upload.bundle, None)
            bound.hashes[upload.bundle] = upload.hash


def bind(envelope: Envelope, folder: str, hash: str) -> Envelope:
    """Return the job's envelope, bound to the content with this hash; with an empty hash, bound to none."""
    return replace(envelope, dags=f"{folder}/{checked(hash)}" if hash else None)


def listing(folder: str) -> RunCommand:
    place = shlex.quote(folder)
    return RunCommand(f"umask 077; mkdir -p -- {place} && ls -- {place}")


def _listed(answer: CommandResult) -> set[str]:
    if answer.status != 0:
        raise TransportError(f"the Dag bundles at the site cannot be listed: {answer.message}")
    return {line.strip() for line in answer.lines if line.strip()}


def _sweep(folder: str, kept: Collection[str]) -> RunCommand:
    """Remove unused bundles. Each is renamed first, so that a half-removed one is not mistaken for a complete one."""
    spared = "|".join(sorted(map(shlex.quote, kept))) or "''"
    return RunCommand(
        f"cd -- {shlex.quote(folder)} 2>/dev/null || exit 0\n"
        # The folder is named in envelopes, and in the files of running jobs.
        "used=$(cd .. && find incoming spool allocations -name '*.json' -type f "
        f"-exec grep -oh 'bundles/[0-9a-f]\\{{{HASH_DIGITS}\\}}' {{}} + 2>/dev/null)\n"
        "for each in * .[!.]*; do\n"
        f'case "$each" in {spared}) continue;; esac\n'
        'case "$used" in *"bundles/$each"*) continue;; esac\n'
        # find counts whole days: more than 24 hours.
        '[ -n "$(find "./$each" -prune -mtime +0 2>/dev/null)" ] || continue\n'
        'mv -- "./$each" "./.removed.$$" && rm -rf -- "./.removed.$$" && printf "%s\\n" "$each"\n'
        "done"
    )
