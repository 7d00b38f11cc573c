"""Airflow's Dag bundles on this machine: which one a workload names, its folder, and its current content.

A bundle may first have to be fetched over the network, so bundles are read in threads and a site waits for one only
briefly.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from lading.hooks.dags.snapshot import FolderChanged, Hashes, SnapshotFile, TooManyFiles, members, packed
from lading.hooks.dags.teams import LOCAL_BUNDLE

MIB = 2**20
CONFIG_LIST = "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST"
LOAD_EXAMPLES = "AIRFLOW__CORE__LOAD_EXAMPLES"


class BundleUnavailable(OSError):
    """A bundle cannot be read now; the message is for the user. It is retried."""


class BundleRefused(ValueError):
    """A bundle cannot be sent to a site as it is; the message is for the user."""


class Bundle(NamedTuple):
    """The Dag bundle that a workload names.

    :param name: as in ``[dag_processor] dag_bundle_config_list``
    :param version: for example a commit; None: the current content
    """

    name: str
    version: str | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The content of a bundle.

    :param hash: over all of it
    :param files: number of files
    :param size: total bytes
    :param archive: the files as a compressed tar; None: not requested
    """

    hash: str
    files: int
    size: int
    archive: bytes | None = None


def of_workload(workload: Mapping[str, Any]) -> Bundle | None:
    """Return the bundle that a workload names; None if it names none."""
    info = workload.get("bundle_info")
    if not isinstance(info, Mapping) or not info.get("name"):
        return None
    return Bundle(str(info["name"]), info.get("version"))


def environment(workload: Mapping[str, Any], folder: str) -> dict[str, str]:
    """Return the variables that make a job read its bundle from a folder, and no other bundle.

    Airflow requests the bundle by name and version once the task's process has started (``task_runner.parse``), looks
    for the Dag's file below its path and puts that path on ``sys.path``. ``LocalDagBundle`` accepts a version and
    ignores it. Example Dags are switched off, because searching Airflow and its providers for them takes seconds.

    :param workload: that of a job with a bundle
    :param folder: absolute
    """
    bundle = of_workload(workload)
    assert bundle is not None
    table = {"name": bundle.name, "classpath": LOCAL_BUNDLE, "kwargs": {"path": folder}}
    # Escaped, because Airflow would expand anything that looks like a variable.
    return {CONFIG_LIST: json.dumps([table]).replace("$", "\\u0024"), LOAD_EXAMPLES: "False"}


class AirflowBundles:
    def __init__(self) -> None:
        self._manager: Any = None
        self._initialized: dict[Bundle, float] = {}

    def names(self) -> list[str]:
        """Return the names of the configured bundles.

        :raises Exception: the configuration is not valid
        """
        from airflow.configuration import conf

        tables: Any = conf.getjson("dag_processor", "dag_bundle_config_list")
        return [str(table["name"]) for table in tables or ()]

    def is_installed(self, name: str) -> bool:
        """Check whether the bundle is one of the examples that come with Airflow and its providers.

        :raises BundleRefused: no such bundle exists
        """
        if name in (configured := self.names()):
            return False
        if name in self._all():
            return True
        raise BundleRefused(
            f"Dag bundle {name!r} is not in [dag_processor] dag_bundle_config_list on the machine of Lading's "
            f"controller; valid: {', '.join(configured)}"
        )

    @contextmanager
    def open(self, bundle: Bundle) -> Iterator[Path]:
        """Provide the folder of a bundle, fetching it if needed. It is locked against changes, unless it is local.

        :raises Exception: whatever the bundle's own class raises on failure
        """
        from airflow.dag_processing.bundles.local import LocalDagBundle

        self._all()
        found = self._manager.get_bundle(bundle.name, bundle.version)
        lock: AbstractContextManager[Any] = nullcontext() if isinstance(found, LocalDagBundle) else found.lock()
        with lock:
            if self._is_due(bundle, found):
                found.initialize()
                self._initialized[bundle] = time.monotonic()
            yield Path(found.path)

    def _all(self) -> Collection[str]:
        if self._manager is None:
            from airflow.dag_processing.bundles.manager import DagBundlesManager

            self._manager = DagBundlesManager()
        return set(self._manager.get_all_bundle_names())

    def _is_due(self, bundle: Bundle, found: Any) -> bool:
        """Check whether to fetch it: it never was, or it has no version and may have changed since."""
        at = self._initialized.get(bundle)
        if at is None or not found.path.exists():
            return True
        return bundle.version is None and time.monotonic() - at > found.refresh_interval


class DagBundles:
    """The current content of the bundles on this machine.

    :param limit: the largest size of a bundle, MiB
    :param source: the bundles; None: Airflow's
    """

    patience = 5.0
    """Seconds that a tick waits for a bundle just requested, enough to read a folder on a local disk."""

    def __init__(self, limit: int, source: AirflowBundles | None = None) -> None:
        self.limit = limit
        self.source = source or AirflowBundles()
        self._hashes: dict[Bundle, Hashes] = {}
        self._fixed: dict[Bundle, Snapshot] = {}
        self._readings: dict[Bundle, Future[Snapshot | None]] = {}

    def snapshot(self, bundle: Bundle, known: Collection[str] = (), *, pack: bool = False) -> Snapshot | None:
        """Return the current content of a bundle; None: it is part of Airflow's packages and need not be sent.

        :param known: hashes for which no archive is needed
        :param pack: whether to add an archive for other hashes
        :raises BundleUnavailable: it cannot be read now, or reading takes long
        :raises BundleRefused: it is too large, or does not exist
        """
        fixed = self._fixed.get(bundle)
        if fixed is not None and (fixed.hash in known or not pack):
            return fixed
        patience = 0.0
        if bundle not in self._readings:
            self._readings[bundle] = _in_thread(partial(self._read, bundle, frozenset(known), pack))
            patience = self.patience
        reading = self._readings[bundle]
        wait([reading], patience)
        if not reading.done():
            raise BundleUnavailable(f"Dag bundle {bundle.name!r} is still being read")
        del self._readings[bundle]
        try:
            return reading.result()
        except BundleRefused:
            raise
        except Exception as error:  # each bundle class raises its own
            message = str(error) or type(error).__name__
            raise BundleUnavailable(f"Dag bundle {bundle.name!r} cannot be read: {message}") from error

    def wait(self, bundle: Bundle, seconds: float) -> Snapshot:
        """Return the content of a configured bundle, without an archive, waiting for it if needed.

        :raises BundleUnavailable: it cannot be read, or not within ``seconds``
        :raises BundleRefused: as for :meth:`snapshot`
        """
        deadline = time.monotonic() + seconds
        while True:
            try:
                found = self.snapshot(bundle)
            except BundleUnavailable:
                if bundle not in self._readings or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
            else:
                assert found is not None
                return found

    def _read(self, bundle: Bundle, known: Collection[str], pack: bool) -> Snapshot | None:
        if self.source.is_installed(bundle.name):
            return None
        with self.source.open(bundle) as folder:
            found = self._members(bundle, folder)
            hash = self._hashes.setdefault(bundle, Hashes()).hash_folder(found)
            archive = None
            if pack and hash not in known:
                archive, inside = packed(found)
                if inside != hash:
                    raise FolderChanged(f"{folder} has changed while it was read")
        snapshot = Snapshot(hash, len(found), sum(member.size for member in found))
        if bundle.version is not None:
            self._fixed[bundle] = snapshot
            self._hashes.pop(bundle, None)
        return replace(snapshot, archive=archive)

    def _members(self, bundle: Bundle, folder: Path) -> list[SnapshotFile]:
        try:
            found = members(str(folder))
        except TooManyFiles as error:
            raise BundleRefused(f"Dag bundle {bundle.name!r} cannot be sent to the site: {error}") from None
        if sum(member.size for member in found) > self.limit * MIB:
            raise BundleRefused(too_large(bundle.name, found, self.limit))
        return found


def too_large(name: str, found: Sequence[SnapshotFile], limit: int) -> str:
    largest = sorted(found, key=lambda member: -member.size)[:5]
    named = ", ".join(f"{member.name} ({format_bytes(member.size)})" for member in largest)
    whole = format_bytes(sum(member.size for member in found))
    return (
        f"Dag bundle {name!r} has {whole}, more than max_bundle_size = {limit} MiB; its largest files are {named}; "
        "move data out of the bundle, or raise max_bundle_size"
    )


def format_bytes(size: int) -> str:
    return f"{size / MIB:.1f} MiB" if size >= MIB / 10 else f"{size / 1024:.1f} KiB"


def _in_thread(work: Callable[[], Snapshot | None]) -> Future[Snapshot | None]:
    """Run a function that may hang, in a thread that does not keep the process alive."""
    future: Future[Snapshot | None] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="lading-dag-bundle", daemon=True).start()
    return future
