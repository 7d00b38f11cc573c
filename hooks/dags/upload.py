"""The Dag bundles of jobs at a site, with ``dags = "sync"``: each content lies there once, in a folder of its hash.

A job is bound to the content that its bundle has when the job is submitted: its envelope names the folder, and what
runs it (a batch job, or a node agent that runs many) sets the variables by which Airflow reads its Dags from there, for
the process of that job alone (:func:`lading.hooks.dags.bundles.environment`). Later changes of the bundle make no
difference to it.

A folder is there as a whole or not at all: parts of the archive arrive beside it, are unpacked beside it, and the
result is renamed. Lading never writes to it later, and renames it before it removes it.
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
from lading.scheduling.reasons import Reason, because

if TYPE_CHECKING:
    from lading.hooks.ssh.transport import Transport

log = logging.getLogger(__name__)

Job = TypeVar("Job")

# Bytes of an archive in one exchange; more would keep the site's other news waiting.
PART = 8 * 2**20
# Seconds in which one part must have arrived.
PART_TIMEOUT = 180.0
# Seconds between two searches for bundles that are not used any more.
SWEEP_INTERVAL = 3600.0


@dataclass
class _Upload:
    """An archive on its way.

    :param bundle: whose content it is; its jobs are bound to that, even if there is another by now
    :param name: of this attempt: another controller may send the same content
    :param sent: bytes of it that have arrived
    """

    bundle: Bundle
    hash: str
    archive: bytes
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    sent: int = 0

    @property
    def stage(self) -> str:
        """The folder beside the bundles in which it arrives; hidden, as whatever is not complete."""
        return f".{self.name}"

    def part(self, folder: str) -> RunCommand:
        """Write the next part; the last one lets the whole become a bundle. It may be repeated."""
        data = self.archive[self.sent : self.sent + PART]
        file = f"part.{self.sent // PART:06}"
        place, stage = shlex.quote(folder), self.stage
        lines = [
            f"umask 077; mkdir -p -- {place}/{stage} && cd -- {place} || exit",
            # An answer that was lost, or another controller.
            f"[ ! -d {self.hash} ] || {{ rm -rf {stage}; exit 0; }}",
            f'cat > {stage}/{file} && [ "$(wc -c < {stage}/{file})" -eq {len(data)} ] || exit',
        ]
        if self.sent + PART >= len(self.archive):
            content = f"content.{self.name}"
            lines += [
                f"(cd {stage} && rm -rf {content} && mkdir {content} && cat part.* | gzip -dc > archive) || exit",
                f"(cd {stage}/{content} && tar -xof ../archive) || exit",
                # The second of two processes renames into the folder that is there by now.
                f"[ -d {self.hash} ] || mv {stage}/{content} {self.hash} || exit",
                f"rm -rf {self.hash}/{content} {stage}",
            ]
        return RunCommand("\n".join(lines), stdin=data)


@dataclass(frozen=True, slots=True)
class BundleStates:
    """What is known of the bundles of some jobs in one round.

    :param hashes: of what lies on the cluster
    :param waits: why jobs of a bundle cannot be submitted now
    :param refusals: why they never can
    """

    hashes: dict[Bundle, str] = field(default_factory=dict)
    waits: dict[Bundle, Reason] = field(default_factory=dict)
    refusals: dict[Bundle, str] = field(default_factory=dict)

    def hash_of(self, envelope: Envelope) -> str:
        """The hash of what a job reads its Dags from; empty: it needs none that Lading brings."""
        bundle = of_workload(envelope.workload)
        return self.hashes.get(bundle, "") if bundle else ""

    def wait_of(self, envelope: Envelope) -> Reason | None:
        """Why a job cannot be submitted now; None: it can, as far as its bundle is concerned."""
        bundle = of_workload(envelope.workload)
        return self.waits.get(bundle) if bundle else None

    def refusal_of(self, envelope: Envelope) -> str | None:
        """Why a job can never be submitted, as text; None: it can."""
        bundle = of_workload(envelope.workload)
        return self.refusals.get(bundle) if bundle else None


@dataclass(frozen=True, slots=True)
class BoundJob(Generic[Job]):
    """A job whose Dags are where it will read them.

    :param envelope: bound to them
    :param hash: of what it reads; empty: it needs nothing that Lading brings
    """

    job: Job
    envelope: Envelope
    hash: str


class BundleSync:
    """The bundles at a site. It belongs to the thread that talks to the site.

    :param folder: of bundles there, in Lading's own
    :param bundles: those of this machine
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
        """Bind jobs to what their bundles hold now, and bring what is new to the site; returns those that can run.

        :param waiting: jobs, each with its envelope and the hash of the content to which it was bound before, which it
            keeps reading whatever its bundle holds by now; empty: to none
        :param refuse: called with a job that can never run, and why, as text
        :param hold: called with a job that cannot run now, and why
        :raises OSError: the site could not be asked
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
        """Look at the bundles that jobs name, and bring what is new: one part of one archive, in one exchange.

        In the first round there is one more exchange, which asks what is there.

        :raises OSError: the cluster could not be asked
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
        """What is there has to be asked again: something that should be there was not."""
        self._present = None

    def sweep(self, used: Iterable[str]) -> RunCommand | None:
        """Remove what no live job reads, and none has for a day; None: that was looked for not long ago.

        :param used: the hashes that jobs read of which the controller knows; others are found by their files
        """
        if time.monotonic() < self._sweep_at:
            return None
        self._sweep_at = time.monotonic() + SWEEP_INTERVAL
        return _sweep(self.folder, {*used, *([self._upload.hash, self._upload.stage] if self._upload else [])})

    def swept(self, answer: CommandResult) -> None:
        """Take in the answer to :meth:`sweep`."""
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
        (answer,) = transport.exchange([upload.part(self.folder)], PART_TIMEOUT)
        if answer.status is None:
            raise TransportError(answer.message)
        if answer.status != 0:
            self._upload = None
            reason = because("bundle_not_written", bundle=upload.bundle.name, folder=self.folder, text=answer.message)
            log.warning("%s", reason.sentence)
            bound.waits[upload.bundle] = reason
            return
        upload.sent += PART
        if upload.sent >= len(upload.archive):
            log.info("Dag bundle %s was sent as %s/%s", upload.bundle.name, self.folder, upload.hash)
            self._upload = None
            present.add(upload.hash)
            bound.waits.pop(upload.bundle, None)
            bound.hashes[upload.bundle] = upload.hash


def bind(envelope: Envelope, folder: str, hash: str) -> Envelope:
    """The envelope of a job that reads its Dags from the content with this hash; empty: from where it finds them."""
    return replace(envelope, dags=f"{folder}/{checked(hash)}" if hash else None)


def listing(folder: str) -> RunCommand:
    """List the folder of bundles."""
    place = shlex.quote(folder)
    return RunCommand(f"umask 077; mkdir -p -- {place} && ls -- {place}")


def _listed(answer: CommandResult) -> set[str]:
    if answer.status != 0:
        raise TransportError(f"the Dag bundles at the site cannot be listed: {answer.message}")
    return {line.strip() for line in answer.lines if line.strip()}


def _sweep(folder: str, kept: Collection[str]) -> RunCommand:
    """Each is renamed before it is removed: half of one must not be taken for the whole."""
    spared = "|".join(sorted(map(shlex.quote, kept))) or "''"
    return RunCommand(
        f"cd -- {shlex.quote(folder)} 2>/dev/null || exit 0\n"
        # An envelope names the folder, and so does what a job that runs has written of itself.
        "used=$(cd .. && find incoming spool allocations -name '*.json' -type f "
        f"-exec grep -oh 'bundles/[0-9a-f]\\{{{HASH_DIGITS}\\}}' {{}} + 2>/dev/null)\n"
        "for each in * .[!.]*; do\n"
        f'case "$each" in {spared}) continue;; esac\n'
        'case "$used" in *"bundles/$each"*) continue;; esac\n'
        # Days are whole ones: more than 24 hours.
        '[ -n "$(find "./$each" -prune -mtime +0 2>/dev/null)" ] || continue\n'
        'mv -- "./$each" "./.removed.$$" && rm -rf -- "./.removed.$$" && printf "%s\\n" "$each"\n'
        "done"
    )
