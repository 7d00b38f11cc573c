"""Staging: copy the files that jobs read to where the jobs run, before the jobs are sent there.

A job with the hint ``stage`` is sent to its location once all its files are there. A thread copies each file once for
all jobs of a staging area that read it from the same places: from where a task has left it, or from an object store. A
file that is already there, for example in a shared folder, is not copied. Copies are removed when no unfinished Dag
run has jobs that read them.

A file is read with the account of the site that holds it, so only from sites that the reading job's Dag is admitted
to. Files left by the job's own run take precedence over those of other runs of its Dag, and these over all others.

Stores can be slow or hang, so the number of threads is limited for each Dag, each staging area and each source host.
A thread that has waited too long is abandoned: its file fails, and another thread takes its place. Where several
threads hang, no more are started that would probably hang as well. The threads are daemons, so that they do not keep a
stopped controller alive.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from sqlalchemy import select
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.decisions import refused
from lading.executors.store import LIVE, Change, JobRow, State
from lading.executors.store.data import Data
from lading.executors.turns import THREADS, THREADS_PER_DAG, DagTurns
from lading.hooks.files.addresses import normal_path, staging_refusal
from lading.hooks.site import Site, StagingArea
from lading.hooks.ssh.answer import TransportError
from lading.hooks.ssh.backoff import Backoff
from lading.hooks.staging import copying
from lading.hooks.staging.sources import (
    PART_TIMEOUT,
    VERSION_TIMEOUT,
    FileSource,
    FileVersion,
    MachineFile,
    StoredObject,
)
from lading.scheduling.matching import admission
from lading.scheduling.model.reasons import Reason, because
from lading.scheduling.text.printable import shortened

log = logging.getLogger(__name__)

# How often unneeded copies are removed, seconds.
SWEEP_INTERVAL = 60.0

# A staging area: site and name.
Key = tuple[str, str]
# A file to copy: its destination, its address, and the places that may have it.
FetchKey = tuple[Key, str, tuple[str, ...]]


class Reader(Protocol):
    """The owner of a job that reads files."""

    @property
    def dag_id(self) -> str | None: ...

    @property
    def team(self) -> str | None: ...

    @property
    def run_id(self) -> str | None: ...


class Place(NamedTuple):
    """A place that may have a file.

    :param name: for messages
    :param rank: who left the file there: 0: the reading job's run; 1: another run of its Dag; 2: anyone else
    """

    name: str
    source: FileSource
    rank: int = 0


class Abandoned(Exception):
    """The current thread was abandoned, so its result no longer counts."""


@dataclass(frozen=True)
class StagingLimits:
    """How many files are copied at once, and for how long the result of a copy holds.

    Where as many threads hang as the limits allow, a file fails at once that would be read from that host, for that
    Dag, or from any source that can hang.

    :param files_per_area: copied into one staging area at once, as its site has other work to do
    :param files_per_host: copied at once whose first source is this host
    :param failures: after which a file fails its jobs, at a source that answers
    :param seconds_known: for which a file found in its place is assumed to be still there and unchanged
    """

    files_per_area: int = 2
    files_per_host: int = 2
    hanging_at_host: int = 2
    hanging_of_dag: int = 8
    hanging: int = 64
    failures: int = 5
    seconds_known: float = 60.0


@dataclass
class Fetch:
    """A file that is copied into a staging area.

    :param places: where it can be read, in order of precedence
    :param elsewhere: why it is not read from other places that have it, as text
    :param path: its path in the area; None: it is not there yet
    :param failure: why it will never be there
    :param dag: the Dag that it is copied for
    :param known_until: until when ``path`` is taken to be valid, on the monotonic clock
    :param reads: the read under way that may hang, its time limit in seconds, and its deadline on the monotonic clock;
        None: no such read
    """

    area: StagingArea
    address: str
    places: Sequence[Place] = ()
    elsewhere: str = ""
    limits: StagingLimits = StagingLimits()
    path: str | None = None
    failure: Reason | None = None
    backoff: Backoff = field(default_factory=Backoff)
    thread: threading.Thread | None = None
    dag: str = ""
    known_until: float = 0.0
    reads: tuple[str, float, float] | None = None

    @property
    def host(self) -> str | None:
        """The host of its first source, if it has any."""
        return self.places[0].source.host if self.places else None

    @property
    def may_hang(self) -> bool:
        return any(each.source.may_hang for each in self.places)

    @property
    def is_due(self) -> bool:
        return self.thread is None and self.failure is None and self.lies is None and self.backoff.left <= 0

    @property
    def lies(self) -> str | None:
        """Its path in the area, if that was confirmed recently."""
        return self.path if time.monotonic() < self.known_until else None

    @property
    def reason(self) -> Reason:
        trouble = [because("staging_fails", text=self.backoff.message)] if self.backoff.failures else []
        return because("staging", address=self.address).with_also(*trouble)

    def run(self, ring: Callable[[], None]) -> None:
        """Find or copy the file, in a thread of its own; ``ring`` is called at the end."""
        path: str | None = None
        failure: Reason | None = None
        trouble: Exception | None = None
        try:
            path = self._find_or_copy()
        except Abandoned:
            return
        except (FileNotFoundError, PermissionError) as error:
            failure = because("stage_failed", address=self.address, text=str(error))
        except Exception as error:  # each object store raises errors of its own
            trouble = error
        if not self._is_awaited:
            return
        if path is not None:
            self.path, self.known_until = path, time.monotonic() + self.limits.seconds_known
            self.backoff.succeeded()
        self.failure = failure
        if trouble is not None:
            self.backoff.failed(f"{self.address}: {str(trouble) or type(trouble).__name__}")
            # A source that does not answer may do so later.
            if not isinstance(trouble, TransportError) and self.backoff.failures >= self.limits.failures:
                self.failure = because("stage_failed", address=self.address, text=self.backoff.message)
        self.thread = None
        ring()

    def hangs(self) -> Reason | None:
        """Return why its thread is to be abandoned; None: it is not overdue."""
        if self.thread is None or (reads := self.reads) is None or time.monotonic() <= reads[2]:
            return None
        return because("stage_slow", address=self.address, what=reads[0], seconds=reads[1])

    def abandon(self, why: Reason) -> None:
        """Fail the file, and ignore whatever its thread does from now on."""
        self.thread, self.reads, self.failure = None, None, why

    @property
    def _is_awaited(self) -> bool:
        return self.thread is threading.current_thread()

    @contextmanager
    def _reading(self, source: FileSource, what: str, seconds: float) -> Iterator[None]:
        """Note a read while it lasts, if its source can hang.

        :raises Abandoned: the thread was abandoned during the read
        """
        if source.may_hang:
            self.reads = f"{what} from {source.host}", seconds, time.monotonic() + seconds
        try:
            yield
        finally:
            if not self._is_awaited:
                raise Abandoned
            self.reads = None

    def _find_or_copy(self) -> str:
        """Return the file's path in the area, after copying it there if necessary.

        :raises FileNotFoundError: no source has it; the message says why
        :raises PermissionError: the sources that have it do not allow reading it; the message says why
        :raises Exception: it could not be copied now
        """
        why: list[str] = []
        trouble: tuple[int, TransportError] | None = None
        for where, source, rank in self.places:
            if trouble is not None and rank > trouble[0]:
                break  # a lower-ranked source must not replace a higher-ranked one that does not answer now
            try:
                with self._reading(source, "reading its version", VERSION_TIMEOUT):
                    version = source.version()
            except FileNotFoundError:
                why.append(f"it no longer exists at {where}")
            except IsADirectoryError:
                why.append(f"it is a folder at {where}")
            except TransportError as error:  # another source may have it
                trouble = rank, error
            else:
                return copying.find_file(self.area, self.address, version) or self._copy(where, source, version)
        if trouble is not None:
            raise trouble[1]
        # Without a source to compare with, a copy that exists is used as it is.
        if (path := copying.find_file(self.area, self.address, None)) is not None:
            return path
        message = "; ".join([*why, *filter(None, [self.elsewhere])]) or "no task has left this file anywhere"
        raise FileNotFoundError(message)

    def _copy(self, where: str, source: FileSource, version: FileVersion) -> str:
        began = time.monotonic()
        path = copying.brought(self.area, self.address, _Watched(source, self._reading), version)
        seconds = time.monotonic() - began
        log.info("%s (%d bytes) was copied from %s to %s in %.1f s", self.address, version.size, where, path, seconds)
        return path


class _Watched(FileSource):
    """A source whose reads are noted while they last.

    :param reading: notes a read of a source, given its description and its time limit in seconds
    """

    def __init__(
        self, source: FileSource, reading: Callable[[FileSource, str, float], AbstractContextManager[None]]
    ) -> None:
        self.source = source
        self.reading = reading

    @property
    def host(self) -> str:
        return self.source.host

    def version(self) -> FileVersion:
        with self.reading(self.source, "reading its version", VERSION_TIMEOUT):
            return self.source.version()

    def parts(self, size: int) -> Iterator[bytes]:
        parts = self.source.parts(size)
        while True:
            with self.reading(self.source, "reading a part of it", PART_TIMEOUT):
                part = next(parts, None)
            if part is None:
                return
            yield part


class Staging:
    """The jobs that wait for files, and the files that are being copied.

    :param ring: called when a file has arrived or failed
    :param roots: ``[lading] input_roots``: where files can be read; empty: everywhere
    """

    def __init__(
        self,
        sites: Mapping[str, Site[Any]],
        ring: Callable[[], None],
        roots: Sequence[str] = (),
        limits: StagingLimits = StagingLimits(),
    ) -> None:
        self.sites = sites
        self.ring = ring
        self.roots = roots
        self.limits = limits
        self.turns = DagTurns()
        self.fetches: dict[FetchKey, Fetch] = {}
        self.waiting: dict[str, dict[str, dict[str, str]]] = {name: {} for name in sites}
        """By site, the jobs that wait for files, each with the paths of the files that have arrived."""
        self.wanted: dict[str, dict[FetchKey, set[str]]] = {name: {} for name in sites}
        """By site, the files that these jobs read, each with the jobs' Dags."""
        self.for_gangs: dict[FetchKey, set[str]] = {}
        """The files of jobs that room is held for, requested since the last tick, each with the jobs' Dags."""
        self._hanging: list[tuple[threading.Thread, str | None, str]] = []
        """Abandoned threads that are still alive, each with its host and its Dag."""
        self._sweeps: dict[Key, threading.Thread] = {}
        self._swept: dict[Key, frozenset[str]] = {}
        self._sweep_at = 0.0
        self._is_swept = False

    def ready(
        self, session: Session, site: str, placed: Mapping[str, Sequence[str]]
    ) -> tuple[Mapping[str, Sequence[str]], list[Change]]:
        """Return the jobs that can be sent now, by location, and the stored changes of those that wait or fail.

        Besides jobs placed now, this includes earlier ones whose files have arrived.

        :param placed: tokens by location
        """
        asked = {token: location for location, tokens in placed.items() for token in tokens}
        kept, changes = dict(asked), []
        before, self.waiting[site], self.wanted[site] = self.waiting[site], {}, {}
        columns = (
            JobRow.dag_id,
            JobRow.team,
            JobRow.run_id,
            JobRow.token,
            JobRow.site,
            JobRow.location,
            JobRow.state,
            JobRow.stage,
            JobRow.expires_at,
            JobRow.reason,
        )
        known: dict[tuple[str | None, ...], tuple[FetchKey, Fetch]] = {}
        for chunk in store.chunks(sorted({*asked, *before})):
            query = select(*columns, JobRow.placed_because).where(JobRow.token.in_(chunk), JobRow.stage.is_not(None))
            for row in session.execute(query).all():
                if row.expires_at is not None:  # it was sent before and only needs a new JWT
                    continue
                kept.pop(row.token, None)
                if row.state != State.PLACED or row.site != site:  # it has been moved, or has ended
                    continue
                paths = before.get(row.token, {})
                if (change := self._staged(session, row, paths, known)) is not None:
                    changes.append(change)
                if change is not None and "stage" in change.values:
                    kept[row.token] = row.location
                elif change is None or "state" not in change.values:
                    self.waiting[site][row.token] = paths
        store.apply(session, changes)
        self._begin()
        found: dict[str, list[str]] = {}
        for token, location in kept.items():
            found.setdefault(location, []).append(token)
        return found, changes

    def missing(
        self, session: Session, site: str, location: str, text: str, reader: Reader
    ) -> tuple[Reason, bool] | None:
        """Return why a job's files are missing where room is held for it, and whether they always will be; None: all
        are there.

        Missing files are copied from the next tick on, as long as this is called for them in each tick.

        :param text: the job's ``stage`` column
        :param reader: the job
        """
        try:
            area = self.sites[site].staging_area(location)
        except LookupError:
            return because("location_gone", location=location, site=site), True
        if area is None or (addresses := in_store(text)) is None:
            return None  # placement reports what is wrong
        if (why := self._refusal(site, addresses, text, reader)) is not None:
            return why, True
        reasons: list[Reason] = []
        for address in sorted(addresses):
            wanted, fetch = self._fetch(session, site, area, address, reader)
            self.for_gangs.setdefault(wanted, set()).add(reader.dag_id or "")
            if fetch.failure is not None:
                del self.fetches[wanted]  # the next try of the job starts over
                return fetch.failure, True
            if fetch.lies is None:
                reasons.append(fetch.reason)
        return (reasons[0], False) if reasons else None

    def _staged(
        self,
        session: Session,
        job: Any,
        paths: dict[str, str],
        known: dict[tuple[str | None, ...], tuple[FetchKey, Fetch]],
    ) -> Change | None:
        """Return the change of a placed job: the paths of its files, why it waits, or why it fails; None: no change.

        :param paths: paths of the files that have arrived; extended
        :param known: files that jobs of the same run have requested in this tick; extended
        """
        try:
            area = self.sites[job.site].staging_area(job.location)
        except LookupError:  # the site reports that its location is gone when it gets the job
            return Change(job.token, {"stage": job.stage})
        if area is None:
            kind = self.sites[job.site].kind
            return refused(job.token, because("stage_unsupported", site=job.site, kind=kind), time.time())
        reason: Reason | None = None
        addresses = in_store(job.stage)
        if (never := self._refusal(job.site, addresses, job.stage, job)) is not None:  # before any file is requested
            return refused(job.token, never, time.time())
        for address in addresses.difference(paths) if addresses is not None else ():
            asked = job.location, address, job.dag_id, job.team, job.run_id
            if asked not in known:
                known[asked] = self._fetch(session, job.site, area, address, job)
            wanted, fetch = known[asked]
            self.wanted[job.site].setdefault(wanted, set()).add(job.dag_id or "")
            if fetch.failure is not None:
                self.fetches.pop(wanted, None)  # the next try of the job starts over
                return refused(job.token, fetch.failure, time.time())
            if (path := fetch.lies) is not None:
                paths[address] = path
            else:
                reason = min(filter(None, (reason, fetch.reason)), key=str)
        if reason is None:
            return Change(job.token, {"stage": json.dumps(paths), "reason": job.placed_because})
        return Change(job.token, {"reason": reason}, report=True) if reason != job.reason else None

    def _refusal(self, site: str, addresses: frozenset[str] | None, text: str, reader: Reader) -> Reason | None:
        """Return why a job's files must not be copied to a site; None: they can be."""
        there = [(site, self.sites[site].admission)]
        if not admission.admitted(there, reader.dag_id, reader.team):
            return admission.refusal(there, reader.dag_id, reader.team)
        if addresses is None:
            return because("stage_unreadable", text=shortened(text))
        schemes = self.sites[site].config.stage_schemes
        found = (staging_refusal(address, schemes, self.roots) for address in sorted(addresses))
        return next((because("stage_refused", site=site, text=why) for why in found if why is not None), None)

    def _fetch(
        self, session: Session, site: str, area: StagingArea, address: str, reader: Reader
    ) -> tuple[FetchKey, Fetch]:
        """Return the fetch of a file that a job reads; jobs share it if they rank the same places in the same way."""
        places, elsewhere = self._places(session, site, address, reader)
        ranks = sorted({each.rank for each in places})
        wanted = (site, area.name), address, tuple(f"{ranks.index(each.rank)} {each.name}" for each in places)
        fetch = self.fetches.setdefault(wanted, Fetch(area, address, places, elsewhere, self.limits))
        fetch.area, fetch.places, fetch.elsewhere = area, places, elsewhere
        return wanted, fetch

    def _places(self, session: Session, site: str, address: str, reader: Reader) -> tuple[list[Place], str]:
        """Return where a job can read a file, and why it cannot read it elsewhere, as text.

        Files left by the job's run come first, then those of its Dag, then all others; within each group, its own site
        comes first.
        """
        if (path := normal_path(address)) is None:
            return [Place("its object store", StoredObject(address))], ""
        columns = Data.site, Data.location, Data.dag_id, Data.run_id
        rows = [
            row
            for row in session.execute(select(*columns).where(Data.key == copying.key(address)))
            if row.site in self.sites
        ]
        sites = {row.site: self.sites[row.site].admission for row in rows}
        open_ones = admission.admitted(sites.items(), reader.dag_id, reader.team)
        roots = tuple(root for root in self.roots if root.startswith("/"))
        places: list[tuple[int, bool, str, Place]] = []
        elsewhere: list[str] = []
        for row in rows:
            name = f"{row.site}/{row.location}"
            if row.site not in open_ones:
                continue  # not even the site's name is shown to a Dag that is not admitted
            try:
                there = self.sites[row.site].staging_area(row.location)
            except LookupError:  # the location is gone
                continue
            if there is None:
                continue
            if there.transport.is_here and row.site != site and not roots:
                elsewhere.append(
                    f"{name} is the controller's own machine, whose files are copied only from folders that [lading] "
                    "input_roots names"
                )
                continue
            is_of_dag = reader.dag_id is not None and row.dag_id == reader.dag_id
            rank = 2 if not is_of_dag else int(reader.run_id is None or row.run_id != reader.run_id)
            place = Place(name, MachineFile(there.transport, path, roots), rank)
            places.append((rank, row.site != site, name, place))
        # Each place has one row, so names differ and sorting never compares two places.
        return [place for *_, place in sorted(places)], "; ".join(sorted(elsewhere))

    def _begin(self) -> None:
        """Start threads for the files that are due, with Dags taking turns, as far as the limits allow."""
        self._abandon()
        sweeping = {where for where, thread in self._sweeps.items() if thread.is_alive()}
        at_work = [
            (where, each.dag, each.host) for (where, *_), each in self.fetches.items() if each.thread is not None
        ]
        areas, dags = Counter(where for where, _, _ in at_work), Counter(dag for _, dag, _ in at_work)
        hosts = Counter(host for _, _, host in at_work)
        due: dict[str, list[FetchKey]] = {}
        for wanted in (self.for_gangs, *self.wanted.values()):
            for name, readers in wanted.items():
                if name[0] not in sweeping and (fetch := self.fetches.get(name)) is not None and fetch.is_due:
                    for dag in readers:
                        due.setdefault(dag, []).append(name)
        self.turns.forget(due)
        while due and areas.total() < THREADS:
            # Hanging threads count for their Dag, so that it comes after Dags without any.
            dag = self.turns.next(due, dags + Counter(dag for _, _, dag in self._hanging))
            fetch = None
            while due[dag] and fetch is None and dags[dag] < THREADS_PER_DAG:
                where, *_ = name = due[dag].pop(0)
                if self.fetches[name].is_due and areas[where] < self.limits.files_per_area:
                    fetch = self._next(self.fetches[name], dag, hosts)
            if fetch is None:
                del due[dag]
                continue
            areas[where] += 1
            dags[dag] += 1
            hosts[fetch.host] += 1
            self.turns.serve(dag)
            fetch.dag = dag
            fetch.thread = threading.Thread(target=fetch.run, args=(self.ring,), name="staging", daemon=True)
            fetch.thread.start()

    def _next(self, fetch: Fetch, dag: str, hosts: Mapping[str | None, int]) -> Fetch | None:
        """Return a file if its thread can start now; fail it if too many threads hang at its host, for its Dag or in
        total."""
        if fetch.host is not None and hosts.get(fetch.host, 0) >= self.limits.files_per_host:
            return None
        if not fetch.may_hang:
            return fetch
        there = sum(host == fetch.host for _, host, _ in self._hanging)
        of_dag = sum(each == dag for _, _, each in self._hanging)
        for number, most, what in (
            (there, self.limits.hanging_at_host, f" from {fetch.host}"),
            (of_dag, self.limits.hanging_of_dag, f" for Dag {dag!r}"),
            (len(self._hanging), self.limits.hanging, ""),
        ):
            if number >= most:
                fetch.failure = because("stage_hangs", address=fetch.address, number=number, what=what)
                return None
        return fetch

    def _abandon(self) -> None:
        """Abandon threads that are overdue, and forget abandoned ones that have ended since."""
        self._hanging = [each for each in self._hanging if each[0].is_alive()]
        for fetch in self.fetches.values():
            if (why := fetch.hangs()) is not None and (thread := fetch.thread) is not None:
                fetch.abandon(why)
                self._hanging.append((thread, fetch.host, fetch.dag))
                log.warning("%s; its thread is abandoned", why)

    def sweep(self, session: Session) -> None:
        """Copy the files that gangs wait for, and periodically remove copies that no run with live jobs needs."""
        if self.for_gangs:
            self._begin()
            self.for_gangs = {}
        if time.monotonic() < self._sweep_at or (self._is_swept and not self.fetches):
            return
        self._sweep_at = time.monotonic() + SWEEP_INTERVAL
        self._is_swept = True
        runs = select(JobRow.dag_id, JobRow.run_id).where(JobRow.state.in_(LIVE)).distinct().subquery()
        same_run = (JobRow.dag_id == runs.c.dag_id) & (JobRow.run_id == runs.c.run_id)
        texts = session.scalars(select(JobRow.stage).join(runs, same_run).where(JobRow.stage.is_not(None)).distinct())
        needed = frozenset().union(*(in_store(str(text)) or () for text in texts))
        places = (
            select(JobRow.site, JobRow.location)
            .where(JobRow.stage.is_not(None), JobRow.location.is_not(None))
            .distinct()
        )
        for site, location in session.execute(places):
            try:
                area = self.sites[str(site)].staging_area(str(location))
            except LookupError:
                continue
            if area is not None and self._swept.get((str(site), area.name)) != needed:
                self._remove((str(site), area.name), area, needed)

    def _remove(self, where: Key, area: StagingArea, needed: frozenset[str]) -> None:
        """Remove unneeded copies from a staging area, in a thread; nothing is copied to that area meanwhile."""
        mine = {each for each in self.fetches if each[0] == where}
        if any(self.fetches[each].thread is not None for each in mine):
            self._is_swept = False
            return  # the next sweep checks again, after the current copies are complete
        for each in mine:
            if each[1] not in needed:
                del self.fetches[each]
        self._swept[where] = needed

        def run() -> None:
            try:
                if number := copying.swept(area, needed):
                    log.info("%d copies of inputs were removed at %s", number, "/".join(where))
            except OSError as error:
                log.info("Copies of inputs at %s could not be removed now: %s", "/".join(where), error)
                self._swept.pop(where, None)
                self._is_swept = False

        self._sweeps[where] = threading.Thread(target=run, name="staging-sweep", daemon=True)
        self._sweeps[where].start()


def in_store(text: str) -> frozenset[str] | None:
    """Return a job's files from its ``stage`` column; None: the column cannot be read."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return frozenset(found) if isinstance(found, dict) else None
