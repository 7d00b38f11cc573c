"""The site of kinds ``slurm``, ``pbspro``, ``torque``, ``lsf``, ``sge``: each task is a job of the batch system.

A thread talks to the cluster, in at most three exchanges a round over one connection, so a login node that does not
answer holds up neither the controller nor its other sites.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from lading.hooks.batch.arrays import largest_array
from lading.hooks.batch.system import BatchSystem
from lading.hooks.cleanup import leftovers
from lading.hooks.cleanup.cleaning import clean_cluster, clean_files
from lading.hooks.cluster import job_script
from lading.hooks.cluster.allocations import script as allocation_script
from lading.hooks.cluster.allocations.mode import AllocationMode
from lading.hooks.cluster.checks import checks as cluster_checks
from lading.hooks.cluster.checks.diagnosis import Sighting, explain
from lading.hooks.cluster.config import ClusterConfig
from lading.hooks.cluster.excluded_nodes import ExcludedNodes
from lading.hooks.cluster.job_mode import JobMode
from lading.hooks.cluster.layout import ClusterFolder
from lading.hooks.cluster.poller import Poller
from lading.hooks.files.atomic import visible
from lading.hooks.files.trouble import Trouble
from lading.hooks.site import Check, Cleaned, LocationState, Observation, Seen, Site, join
from lading.hooks.spool.log_mirror import LogCopies
from lading.hooks.spool.rejected import Rejected
from lading.hooks.spool.spool import Envelope
from lading.scheduling.plan import LAYOUT, NATIVE, Location

if TYPE_CHECKING:
    from lading.hooks.api_tunnel.tunnel import ApiTunnel
    from lading.hooks.ssh.transport import Transport

log = logging.getLogger(__name__)

# How long the first look waits for an answer, so that who only looks once knows what there is; later ones do not,
# seconds.
FIRST_ANSWER = 10.0
# What could not be asked is asked again after this, seconds; the connection has a back-off of its own.
PAUSE_AFTER_TROUBLE = 5.0
# A tunnel that is lost is built again within this: tasks that run need it, seconds.
TUNNEL_PAUSE = 1.0

MODES: dict[str, type[JobMode] | type[AllocationMode]] = {"job": JobMode, "allocation": AllocationMode}


class ClusterSite(Site[ClusterConfig]):
    """A batch cluster; :func:`cluster_kind` makes the class of each batch system."""

    config_model = ClusterConfig
    system: ClassVar[BatchSystem]

    def __init__(self, name: str, config: ClusterConfig, folder: Path) -> None:
        super().__init__(name, config, folder)
        self.jwt_seconds = float(config.max_wait)
        self.trouble: str | None = None
        self._troubles = Trouble(log)
        self.is_trial = False
        self.tunnel: ApiTunnel | None = None
        self._shared_tunnel: str | None = None
        self._poller: Poller | None = None
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._answered = threading.Event()
        self._first_answer = FIRST_ANSWER
        self._stopping = False

    @property
    def poller(self) -> Poller:
        """The conversation with the cluster."""
        if self._poller is None:
            from airflow.configuration import conf

            from lading.hooks.api_tunnel.tunnel import ApiTunnel

            transport, api = self.connect(), api_url(self.config)
            if self.config.api == "tunnel":
                file = ClusterFolder(self.config.work_dir).api_address
                self.tunnel = ApiTunnel(
                    transport,
                    self.config.python,
                    api,
                    host=self.config.tunnel_host,
                    port=self.config.tunnel_port,
                    file=file,
                    shared=self._shared_tunnel,
                )
            self._poller = MODES[self.config.mode](
                self.config,
                self.system,
                transport,
                api,
                LogCopies(Path(conf.get("logging", "base_log_folder")), self._log_copies),
                self._excluded_nodes(),
                Rejected(self._rejected),
            )
            self._poller.submitter.is_trial = self.is_trial
        return self._poller

    def connect(self) -> Transport:
        """The way to the login node."""
        return self.config.transport()

    @classmethod
    def refuse(cls, config: ClusterConfig) -> None:
        if "exclude_nodes_for" in config.model_fields_set and config.exclude_nodes_for and not cls.system.exclusion:
            raise ValueError(
                f"exclude_nodes_for = {config.exclude_nodes_for}: {cls.system.name} has no word for nodes to keep away "
                "from; leave it out"
            )

    def dialect(self) -> dict[str, Any] | None:
        profile = self.config.profile.model_dump(mode="json")
        return {"system": self.system.name, "profile": profile, "takes_layouts": self.config.mode == "job"}

    def potential(self) -> list[Location]:
        return [self._location()]

    def observe(self) -> Observation:
        self._start()
        answered, self._first_answer = self._answered.wait(self._first_answer), 0.0
        if not answered:
            raise OSError("no answer yet")
        poller = self.poller
        if poller.user is None:
            raise OSError(self.trouble or "no answer yet")
        events = poller.unread()
        note = self.trouble or poller.note or poller.no_api or poller.failing

        def acknowledge() -> None:
            poller.acknowledge(len(events))
            if events:
                self._wake.set()

        seen = Seen(
            self._location(),
            LocationState.UP if note is None else LocationState.UNREACHABLE,
            poller.known(),
            join(note, poller.rejected.note),
            poller.allocations(),
        )
        return Observation([seen], events, acknowledge)

    def _location(self) -> Location:
        hints = frozenset((NATIVE, LAYOUT) if self.config.mode == "job" else (NATIVE,))
        return Location(self.name, self.config.capacity, hints=hints, site=self.name, max_jobs=self.config.max_jobs)

    def script(self, envelope: Envelope) -> str | None:
        of_one = allocation_script.of_one if self.config.mode == "allocation" else job_script.of_one
        excluded = tuple(self._excluded_nodes().reasons())
        api = api_url(self.config)
        return of_one(
            envelope.limited(self.config.memory_limit, self.config.time_limit),
            system=self.system,
            config=self.config,
            api=api,
            excluded=excluded,
        )

    def put(self, envelopes: Mapping[str, Sequence[Envelope]]) -> None:
        if here := envelopes.get(self.name):
            self.poller.give(self._limited(envelope) for envelope in here)
            self._wake.set()

    def cancel(self, messages: Mapping[str, Mapping[str, str]]) -> None:
        if (here := messages.get(self.name)) and self.poller.ask_to_cancel(here):
            self._wake.set()

    def close(self, how: str, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        self._stop_thread(timeout)
        if self._poller is None:
            return
        try:
            if self._thread is not None and self._thread.is_alive():
                raise OSError("it does not answer; its jobs go on")
            if how != "hand_over" and self._poller.user is not None:
                self._let_go(self._poller, how, deadline)
            if self.is_trial:
                self._poller.remove()
        except OSError as error:
            log.warning("Site %r could not be let go of in order: %s", self.name, error)
        finally:
            if self.tunnel is not None:
                self.tunnel.close()
            self._poller.transport.close()

    def trial(self, folder: Path) -> Site[ClusterConfig]:
        config = self.config.model_copy(update={"work_dir": f"{self.config.work_dir}/{folder.name}"})
        site = type(self)(self.name, config, folder / "spool")
        site.is_trial = True
        site._shared_tunnel = ClusterFolder(self.config.work_dir).api_address
        return site

    def trial_sizes(self) -> list[int]:
        if self.config.mode != "job" or largest_array(self.system, self.config.profile) == 1:
            return [1]
        return [1, max(2, self.system.smallest_array)]

    def failing(self) -> str | None:
        return self._poller.failing if self._poller is not None else None

    def diagnosis(self, event: Mapping[str, Any] | None, timeout: float) -> str:
        words = str(event["message"]) if event is not None else self.trouble or self.poller.note or self.poller.no_api
        if event is None and words:
            return words
        jobs = self.poller.batch_jobs()
        paths = [path.rpartition("/") for _, path in jobs]
        try:
            found = [self.poller.transport.get(folder, [name])[name] for folder, _, name in paths]
        except OSError as error:
            return f"{words or 'the trial job did not end in time'}; nothing more is known: {error}"
        seen = [
            Sighting(job, job.native_id(self.system), None if said is None else said.decode(errors="replace"))
            for (job, _), said in zip(jobs, found, strict=True)
        ]
        return explain(self.config, seen, words, timeout)

    def checks(self) -> Iterator[Check]:
        transport = self.connect()
        try:
            yield from cluster_checks.checks(self.config, self.system, transport, api_url(self.config))
        finally:
            transport.close()

    def clean(self, older_than: float, keep: Collection[str], dry_run: bool) -> Iterator[Cleaned]:
        transport, root = self.connect(), self.config.work_dir
        options: Any = {"older_than": older_than, "dry_run": dry_run}
        # Those that are sent are looked after by whoever sends them: a controller counts on those that are there.
        bundles = leftovers.BUNDLES if self.config.dags == "shared" else ()
        try:
            sorts = (*leftovers.RUNS, *leftovers.JOBS, *bundles)
            yield from clean_cluster(transport, self.system, root, sorts, keep=keep, **options)
        finally:
            transport.close()
        # A controller that lives writes it whenever it has copied something.
        if LogCopies(Path(), self._log_copies).tokens.isdisjoint(keep):
            yield from clean_files("positions in logs", [self._log_copies], **options)
        if self._rejected.is_dir():
            yield from clean_files("rejected files", visible(self._rejected), **options)

    @property
    def _seconds_excluded(self) -> int:
        """How long a node that has failed is not used; 0 where the batch system has no word for that."""
        return self.config.exclude_nodes_for if self.system.exclusion else 0

    def _excluded_nodes(self) -> ExcludedNodes:
        return ExcludedNodes(self._seconds_excluded, self.folder / "nodes.json")

    @property
    def _log_copies(self) -> Path:
        """The file that says how far logs have been copied."""
        return self.folder / "logs.json"

    @property
    def _rejected(self) -> Path:
        """What could not be read of what lies on the cluster."""
        return self.folder / "rejected"

    def _limited(self, envelope: Envelope) -> Envelope:
        return envelope.limited(self.config.memory_limit, self.config.time_limit)

    def _let_go(self, poller: Poller, how: str, deadline: float) -> None:
        """Take back what waits, to be submitted again when Airflow is there again; end what runs if that is asked."""
        poller.submitter.give_back()
        poller.withdraw_waiting()
        tracker = poller.tracker
        while True:
            if how == "cancel":
                poller.ask_to_cancel(dict.fromkeys(tracker.at_work(), "Airflow was stopped"))
            poller.round()
            over = not (tracker.at_work() or tracker.errands.withdrawals)
            if how == "leave" or over or time.monotonic() > deadline:
                return
            time.sleep(min(1.0, max(0.1, deadline - time.monotonic())))

    def _start(self) -> None:
        if self._thread is None and not self._stopping:
            poller = self.poller
            self._thread = threading.Thread(
                target=self._run, args=(poller,), name=f"lading-site-{self.name}", daemon=True
            )
            self._thread.start()

    def _stop_thread(self, timeout: float) -> None:
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout)

    def _run(self, poller: Poller) -> None:
        what = f"Site {self.name!r} could not be asked"
        while not self._stopping:
            self._wake.clear()
            try:
                poller.no_api = self._without_tunnel()
                poller.round()
                self.trouble = None
                self._troubles.end(what)
                pause = poller.pause()
            except OSError as error:
                self._troubles.begin(what, error)
                self.trouble, pause = str(error), PAUSE_AFTER_TROUBLE
            except Exception as error:  # a third party's batch system may raise anything
                self._troubles.begin(what, error, traceback=True)
                self.trouble, pause = f"{type(error).__name__}: {error}", PAUSE_AFTER_TROUBLE
            self._answered.set()
            self._sleep(poller, pause)

    def _without_tunnel(self) -> str | None:
        """Build the tunnel to Airflow's API where it is lost; what keeps it from being built."""
        if self.tunnel is not None:
            try:
                self.tunnel.keep()
            except OSError:
                return f"no tunnel leads to Airflow's API: {self.tunnel.backoff.words}"
        return None

    def _sleep(self, poller: Poller, pause: float) -> None:
        """Wait until it is time, or somebody wakes us, or a tunnel that was lost stands again."""
        deadline = time.monotonic() + pause
        while (left := deadline - time.monotonic()) > 0:
            if self._wake.wait(left if self.tunnel is None else min(left, TUNNEL_PAUSE)):
                return
            if self.tunnel is not None and not self.tunnel.stands:
                poller.no_api = self._without_tunnel()
                if poller.no_api is None:
                    return


def api_url(config: ClusterConfig) -> str:
    """The URL of Airflow's execution API for the nodes of a site."""
    from airflow.executors.base_executor import get_execution_api_server_url

    return config.api_url or get_execution_api_server_url()


def cluster_kind(system: BatchSystem) -> type[ClusterSite]:
    """The kind of sites of a batch system."""
    return type(f"{type(system).__name__}Site", (ClusterSite,), {"kind": system.name, "system": system})
