"""Airflow's Dag bundles on this machine: which one a workload names, where it lies, what is in it now.

A bundle may be a checkout that has to be fetched over the network first, so all of that is done by threads, and no site
waits for one for long.
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

# How long a round waits for a bundle that was just requested, seconds: a folder on a local disk is read by then.
PATIENCE = 5.0
# How many of its largest files are named when a bundle is too large.
NAMED_FILES = 5

MIB = 2**20
CONFIG_LIST = "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST"
LOAD_EXAMPLES = "AIRFLOW__CORE__LOAD_EXAMPLES"


class BundleUnavailable(OSError):
    """A bundle cannot be read now; as text for the user. It is tried again."""


class BundleRefused(ValueError):
    """A bundle cannot be sent to a site as it is; as text for the user."""


class Bundle(NamedTuple):
    """What a workload says of its Dag bundle.

    :param name: as in ``[dag_processor] dag_bundle_config_list``
    :param version: such as a commit; None: whatever is there now
    """

    name: str
    version: str | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The content of a bundle.

    :param hash: of it
    :param files: how many there are
    :param size: bytes of all
    :param archive: the files as a compressed tar; None: it was not asked for
    """

    hash: str
    files: int
    size: int
    archive: bytes | None = None


def of_workload(workload: Mapping[str, Any]) -> Bundle | None:
    """The bundle of a workload; None: it has none."""
    info = workload.get("bundle_info")
    if not isinstance(info, Mapping) or not info.get("name"):
        return None
    return Bundle(str(info["name"]), info.get("version"))


def environment(workload: Mapping[str, Any], folder: str) -> dict[str, str]:
    """The variables by which a job reads its bundle in a folder, and has no other bundle.

    Airflow asks for the bundle by name and version when the task's process has begun (``task_runner.parse``), looks for
    the Dag's file below its path and puts that path on ``sys.path``. ``LocalDagBundle`` takes a version and has no use
    for it. The examples of Airflow and its providers are no bundles of such a job: it costs seconds to look for them.

    :param workload: of a job that has a bundle
    :param folder: absolute
    """
    bundle = of_workload(workload)
    assert bundle is not None
    table = {"name": bundle.name, "classpath": LOCAL_BUNDLE, "kwargs": {"path": folder}}
    # Airflow would replace what looks like a variable in it.
    return {CONFIG_LIST: json.dumps([table]).replace("$", "\\u0024"), LOAD_EXAMPLES: "False"}


class AirflowBundles:
    """The bundles as Airflow's configuration on this machine has them."""

    def __init__(self) -> None:
        self._manager: Any = None
        self._initialized: dict[Bundle, float] = {}

    def names(self) -> list[str]:
        """The configured bundles.

        :raises Exception: the configuration is not valid
        """
        from airflow.configuration import conf

        tables: Any = conf.getjson("dag_processor", "dag_bundle_config_list")
        return [str(table["name"]) for table in tables or ()]

    def is_installed(self, name: str) -> bool:
        """Whether it is none of the configured bundles but examples, which come with Airflow and its providers.

        :raises BundleRefused: there is no such bundle at all
        """
        if name in (configured := self.names()):
            return False
        if name in self._all():
            return True
        raise BundleRefused(
            f"Dag bundle {name!r} is not in [dag_processor] dag_bundle_config_list of the machine of Lading's "
            f"controller; the bundles there are: {', '.join(configured)}"
        )

    @contextmanager
    def open(self, bundle: Bundle) -> Iterator[Path]:
        """The folder of a bundle, fetched before if need be; it does not change meanwhile, unless it is a local one.

        :raises Exception: whatever the bundle's own class raises when that is not possible
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
        """Whether it has to be fetched: it has not been yet, or it has no version and may be another by now."""
        at = self._initialized.get(bundle)
        if at is None or not found.path.exists():
            return True
        return bundle.version is None and time.monotonic() - at > found.refresh_interval


class DagBundles:
    """What the bundles of this machine hold now.

    :param limit: MiB that a bundle may have
    :param source: where they are; None: Airflow's
    """

    def __init__(self, limit: int, source: AirflowBundles | None = None) -> None:
        self.limit = limit
        self.source = source or AirflowBundles()
        self._hashes: dict[Bundle, Hashes] = {}
        self._fixed: dict[Bundle, Snapshot] = {}
        self._readings: dict[Bundle, Future[Snapshot | None]] = {}

    def snapshot(self, bundle: Bundle, known: Collection[str] = (), *, pack: bool = False) -> Snapshot | None:
        """What is in a bundle now; None: it comes with Airflow's packages and need not be sent.

        :param known: the hashes of which no archive is wanted
        :param pack: whether an archive is wanted of any
        :raises BundleUnavailable: it cannot be read now, or that takes long
        :raises BundleRefused: it is too large, or there is no such bundle
        """
        fixed = self._fixed.get(bundle)
        if fixed is not None and (fixed.hash in known or not pack):
            return fixed
        patience = 0.0
        if bundle not in self._readings:
            self._readings[bundle] = _in_thread(partial(self._read, bundle, frozenset(known), pack))
            patience = PATIENCE
        reading = self._readings[bundle]
        wait([reading], patience)
        if not reading.done():
            raise BundleUnavailable(f"Dag bundle {bundle.name!r} is still being read")
        del self._readings[bundle]
        try:
            return reading.result()
        except BundleRefused:
            raise
        except Exception as error:  # each class of bundles has its own
            message = str(error) or type(error).__name__
            raise BundleUnavailable(f"Dag bundle {bundle.name!r} cannot be read: {message}") from error

    def wait(self, bundle: Bundle, seconds: float) -> Snapshot:
        """What is in a configured bundle, without an archive; this may take long.

        :raises BundleUnavailable: it cannot be read, or not in so many seconds
        :raises BundleRefused: as :meth:`snapshot`
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
    """The message for a bundle that is larger than its limit in MiB."""
    largest = sorted(found, key=lambda member: -member.size)[:NAMED_FILES]
    named = ", ".join(f"{member.name} ({format_bytes(member.size)})" for member in largest)
    whole = format_bytes(sum(member.size for member in found))
    return (
        f"Dag bundle {name!r} has {whole}, more than max_bundle_size = {limit} MiB; its largest files are {named}; "
        "move data out of the bundle, or raise max_bundle_size"
    )


def format_bytes(size: int) -> str:
    """A size as people read it, rounded."""
    return f"{size / MIB:.1f} MiB" if size >= MIB / 10 else f"{size / 1024:.1f} KiB"


def _in_thread(work: Callable[[], Snapshot | None]) -> Future[Snapshot | None]:
    """The result of something that may never end; it does not keep the process from ending."""
    future: Future[Snapshot | None] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="lading-dag-bundle", daemon=True).start()
    return future
