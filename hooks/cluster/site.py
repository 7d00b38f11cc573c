"""A batch cluster as a site, in either mode: kinds ``slurm``, ``pbspro``, ``torque``, ``lsf`` and ``sge``.

A separate thread talks to the cluster, in at most three exchanges per round over one connection. So a login node that
does not respond delays neither the controller nor its other sites.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from lading.hooks.batch.submit_limits import largest_array
from lading.hooks.batch.system import BatchJobRequest, BatchSystem
from lading.hooks.cleanup import leftovers
from lading.hooks.cleanup.cleaning import clean_cluster, clean_files
from lading.hooks.cluster.allocations.mode import AllocationMode
from lading.hooks.cluster.allocations.script import AllocationWriter
from lading.hooks.cluster.checks import checks as cluster_checks
from lading.hooks.cluster.checks import dry_runs
from lading.hooks.cluster.checks.diagnosis import TrialSighting, explain
from lading.hooks.cluster.jobs.config import ClusterConfig
from lading.hooks.cluster.jobs.excluded_nodes import ExcludedNodes
from lading.hooks.cluster.jobs.job_mode import JobMode
from lading.hooks.cluster.jobs.job_script import ScriptWriter, named_clusters, named_queues, whole
from lading.hooks.cluster.jobs.layout import ClusterFolder
from lading.hooks.cluster.jobs.poller import ClusterPoller, questions_to
from lading.hooks.files.owner import Owner
from lading.hooks.files.safe_files import visible
from lading.hooks.polling.rounds import Rounds
from lading.hooks.polling.task_logs import LogCopies
from lading.hooks.site import (
    Check,
    ElasticSite,
    Holding,
    LocationState,
    Observation,
    ObservedLocation,
    Order,
    RemovedLeftovers,
    RequestRefusal,
    Site,
    join,
)
from lading.hooks.site.site import StagingArea
from lading.hooks.spool.hold import Hold
from lading.hooks.spool.rejected import RejectedFiles
from lading.hooks.spool.spool import Envelope
from lading.hooks.ssh.transport import Transport
from lading.scheduling.model.gpus import gpu_feature
from lading.scheduling.model.job import LAYOUT, NATIVE
from lading.scheduling.model.location import Location, has_other_limits
from lading.scheduling.model.reasons import Reason, because
from lading.scheduling.model.resources import Resources

if TYPE_CHECKING:
    from lading.hooks.api_tunnel.tunnel import ApiTunnel

log = logging.getLogger(__name__)

MODES: dict[str, type[JobMode] | type[AllocationMode]] = {"job": JobMode, "allocation": AllocationMode}


class ClusterSite(ElasticSite[ClusterConfig], Holding):
    """A batch cluster; :func:`cluster_kind` creates the class for each batch system."""

    config_model = ClusterConfig
    system: ClassVar[BatchSystem]

    def __init__(self, name: str, config: ClusterConfig, folder: Path) -> None:
        super().__init__(name, config, folder)
        self.jwt_seconds = float(config.jwt_lifetime)
        # Something seen in one poll takes effect within this time.
        self.seconds_ahead = 6.0
        self.launches = self.holds = config.mode == "allocation"
        self.requests_are_limits = config.mode == "job"
        self.is_trial = False
        self.tunnel: ApiTunnel | None = None
        self._shared_tunnel: str | None = None
        self._poller: ClusterPoller | None = None
        self._rounds: Rounds | None = None
        # Seconds that the first call of observe waits, so that a single call sees the site; later calls do not wait.
        self._first_answer = 10.0
        self._is_closed = False

    @property
    def poller(self) -> ClusterPoller:
        if self._poller is None:
            transport, api = self.connect(), self.config.execution_api
            if self.config.needs_tunnel(api):
                file = ClusterFolder(self.config.work_dir).api_address
                self.tunnel = self.config.tunnel(transport, api, file, self._shared_tunnel)
            self._poller = MODES[self.config.mode](
                self.config,
                self.system,
                transport,
                api,
                LogCopies(self.config.deployment.log_folder(), self._log_copies),
                self._excluded_nodes(),
                RejectedFiles(self._rejected),
            )
            self._poller.questions = questions_to(self.system, self.config)
            self._poller.owner = Owner.from_key(*self.config.deployment.identity())
            self._poller.submitter.is_trial, self._poller.submitter.site = self.is_trial, self.name
        return self._poller

    @property
    def rounds(self) -> Rounds:
        if self._rounds is None:
            poller = self.poller  # creates the tunnel, too
            self._rounds = Rounds(self.name, poller, self.tunnel, finished=self.notify)
        return self._rounds

    def staging_area(self, location: str) -> StagingArea:
        return StagingArea("", self.poller.transport, self.config.work_dir)

    def connect(self) -> Transport:
        return self.config.transport(self.config.deployment)

    @classmethod
    def refuse(cls, config: ClusterConfig) -> None:
        for each in config.gpu_types:
            cls.system.resource_directives(BatchJobRequest(gpus=1, gpu_type=each), config.profile)
        named_clusters({}, config, cls.system)
        if "exclude_nodes_for" in config.model_fields_set and config.exclude_nodes_for and not cls.system.exclusion:
            raise ValueError(
                f"exclude_nodes_for = {config.exclude_nodes_for}: {cls.system.name} has no option to avoid "
                "nodes; leave it out"
            )

    def dialect(self) -> dict[str, Any] | None:
        profile = self.config.profile.model_dump(mode="json")
        return {
            "system": self.system.name,
            "profile": profile,
            "native": dict(self.config.resources),
            "takes_layouts": self.config.mode == "job",
        }

    @property
    def memory_overhead(self) -> int:
        return self.config.added_memory

    def occupied(self, asked: Resources) -> Resources:
        return whole(asked) if self.config.mode == "job" else asked

    @property
    def arch(self) -> str:
        return self.config.arch

    def potential(self) -> list[Location]:
        return [self._location()]

    def observe(self) -> Observation:
        if not self._is_closed:
            self.rounds.start()
        answered, self._first_answer = self.rounds.answered_within(self._first_answer), 0.0
        if not answered:
            raise OSError("no answer yet")
        poller = self.poller
        if poller.user is None:
            raise self.rounds.error("no answer yet")
        events = poller.unread()
        barred = poller.submitter.barred.reasons()

        def acknowledge() -> None:
            poller.acknowledge(len(events))
            if events:
                self.rounds.wake()

        note = join(
            self.rounds.silence,
            poller.failing,
            poller.rejected.note,
            poller.submitter.limit,
            *(each.sentence for each in barred.values()),
        )
        if isinstance(poller, AllocationMode):
            allocations = [replace(each, location=self._of_its_nodes(each.location)) for each in poller.seen()]
            barred = {} if allocations else barred  # running allocations accept jobs nevertheless
            trouble = self._trouble()
            note = join(None if poller.unasked is None else poller.unasked.sentence, note)
            if any(each.state == LocationState.UP for each in allocations):
                # Allocations get their jobs through the shared folder: without the batch system only launches stop.
                trouble = self._unreached() or poller.unreachable_api
            return Observation(allocations, events, acknowledge, poller.submitter.market(), trouble, note, barred)
        trouble = self._trouble()
        state = LocationState.UP if trouble is None else LocationState.UNREACHABLE
        note = join(None if trouble is None else trouble.sentence, note)
        seen = ObservedLocation(self._location(), state, poller.known(), note)
        return Observation([seen], events, acknowledge, trouble=trouble, barred=barred)

    def _location(self) -> Location:
        hints = frozenset((NATIVE, LAYOUT) if self.config.mode == "job" else (NATIVE,))
        inventory = self._poller.submitter.inventory if self._poller is not None else None
        queues = named_queues(self.config, self.system)
        there, idle = (inventory.count_nodes(queues) if inventory is not None else None) or (None, None)
        # If the site allocates cores, a job can be spread over any number of nodes.
        is_any = self.config.profile.nodes is not None or has_other_limits(self.config.resources)
        most = inventory.most_nodes(queues) if inventory is not None and not is_any else {}
        return self._of_its_nodes(
            Location(
                self.name,
                self.config.capacity,
                hints=hints,
                site=self.name,
                # With allocations, the limit applies to them; they accept as many jobs as they have room for.
                max_jobs=self.config.max_jobs if self.config.mode == "job" else None,
                nodes=there,
                idle_nodes=idle,
                most_nodes=tuple(sorted(most.items())),
            )
        )

    def _of_its_nodes(self, location: Location) -> Location:
        config = self.config
        features = frozenset((*config.features, *config.properties, *map(gpu_feature, config.types_of_gpus)))
        return replace(location, arch=config.arch, os=config.os, features=features, capacity_type=config.capacity_type)

    def script(self, envelope: Envelope) -> str | None:
        kind = AllocationWriter if self.config.mode == "allocation" else ScriptWriter
        writer = kind(self.system, self.config, self.config.execution_api)
        return writer.of_one(envelope.at(self.config), tuple(self._excluded_nodes().reasons()))

    def refusals(self, envelopes: Sequence[Envelope]) -> list[RequestRefusal | None]:
        if self.config.mode != "job" or self.system.dry_run is None:
            return super().refusals(envelopes)
        transport, asked = self.connect(), [envelope.at(self.config) for envelope in envelopes]
        try:
            return dry_runs.refusals(self.config, self.system, transport, self.config.execution_api, asked)
        finally:
            transport.close()

    def put(self, envelopes: Mapping[str, Sequence[Envelope]]) -> None:
        for name, here in envelopes.items():
            limited = [envelope.at(self.config) for envelope in here]
            if isinstance(self.poller, AllocationMode):
                self.poller.submitter.take_for(name, limited)
            elif name == self.name:
                self.poller.give(limited)
        self.rounds.wake()

    def cancel(self, reasons: Mapping[str, Mapping[str, Reason]]) -> None:
        asked = {token: reason for each in reasons.values() for token, reason in each.items()}
        if asked and self.poller.ask_to_cancel(asked):
            self.rounds.wake()

    def launch(self, orders: Sequence[Order]) -> None:
        self._allocations.submitter.order(orders)
        self.rounds.wake()

    def release(self, reasons: Mapping[str, Reason]) -> None:
        self._allocations.submitter.release(reasons)
        self.rounds.wake()

    def recall(self, tokens: Mapping[str, Sequence[str]]) -> None:
        if self.poller.ask_back(tokens):
            self.rounds.wake()

    def hold(self, holds: Mapping[str, Sequence[Hold]]) -> None:
        self._allocations.submitter.hold(holds)
        self.rounds.wake()

    def drop(self, tokens: Mapping[str, Collection[str]]) -> None:
        self._allocations.submitter.drop_holds(tokens)
        self.rounds.wake()

    @property
    def _allocations(self) -> AllocationMode:
        """The poller of a cluster in allocation mode, the only mode that launches locations or holds room."""
        assert isinstance(self.poller, AllocationMode)
        return self.poller

    def close(self, how: str, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        self._is_closed = True
        if self._poller is None:
            return
        self.rounds.stop(timeout)
        try:
            if self.rounds.is_alive:
                raise OSError("it does not respond; its jobs keep running")
            if isinstance(self._poller, AllocationMode):
                self._poller.submitter.forget_orders(because("orders_dropped"))
            if how != "hand_over":
                if self._poller.user is None:  # never reached, but an earlier controller may have left jobs there
                    self._poller.round()
                self._let_go(self._poller, how, deadline)
            if self.is_trial:
                self._poller.remove()
        except OSError as error:
            log.warning("Site %r could not be disconnected cleanly: %s", self.name, error)
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
        if event is None and (trouble := self._trouble()) is not None:
            return trouble.sentence
        message = str(event["reason"]) if event is not None else None
        jobs = self.poller.batch_jobs()
        paths = [path.rpartition("/") for _, path in jobs]
        try:
            found = [self.poller.transport.get(folder, [name])[name] for folder, _, name in paths]
        except OSError as error:
            return f"{message or 'the trial job did not end in time'}; the cause could not be determined: {error}"
        seen = [
            TrialSighting(job, job.native_id(self.system), None if said is None else said.decode(errors="replace"))
            for (job, _), said in zip(jobs, found, strict=True)
        ]
        return explain(self.config, seen, message, timeout)

    def misunderstanding(self, event: Mapping[str, Any], envelope: Envelope) -> str | None:
        unit, id, script = self.system.memory_unit, event.get("native_id"), self.script(envelope)
        if unit is None or id is None or script is None:
            return None
        (answer,) = self.poller.transport.run([unit.job(str(id))])
        return cluster_checks.misunderstanding(self.name, self.config, self.system, unit, script, answer)

    def checks(self) -> Iterator[Check]:
        transport = self.connect()
        try:
            api, owner = self.config.execution_api, Owner.from_key(*self.config.deployment.identity())
            yield from cluster_checks.cluster_checks(self.config, self.system, transport, api, owner)
        finally:
            transport.close()

    def clean(self, older_than: float, keep: Collection[str], dry_run: bool) -> Iterator[RemovedLeftovers]:
        transport, root = self.connect(), self.config.work_dir
        options: Any = {"older_than": older_than, "dry_run": dry_run}
        # Uploaded bundles are removed by the controller that uploads them, which relies on those that it has not
        # removed.
        bundles = leftovers.BUNDLES if self.config.dags == "shared" else ()
        try:
            sorts = (*leftovers.RUNS, *leftovers.JOBS, *bundles)
            yield from clean_cluster(transport, self.system, root, sorts, keep=keep, **options)
        finally:
            transport.close()
        # A running controller rewrites this file whenever it copies logs.
        if LogCopies(Path(), self._log_copies).tokens.isdisjoint(keep):
            yield from clean_files("positions in logs", [self._log_copies], **options)
        if self._rejected.is_dir():
            yield from clean_files("rejected files", visible(self._rejected), **options)

    def _trouble(self) -> Reason | None:
        return self._unreached() or self.poller.trouble

    def _unreached(self) -> Reason | None:
        return None if self.rounds.trouble is None else because("unreachable", text=self.rounds.trouble)

    def _excluded_nodes(self) -> ExcludedNodes:
        """Return the failed nodes; always empty if the batch system has no option to exclude nodes."""
        return ExcludedNodes(self.config.exclude_nodes_for if self.system.exclusion else 0, self.folder / "nodes.json")

    @property
    def _log_copies(self) -> Path:
        """The file that records how far logs have been copied."""
        return self.folder / "logs.json"

    @property
    def _rejected(self) -> Path:
        return self.folder / "rejected"

    def _let_go(self, poller: ClusterPoller, how: str, deadline: float) -> None:
        """Withdraw pending jobs, to be submitted again once Airflow is back; cancel running ones if ``how`` says so."""
        poller.submitter.give_back()
        poller.withdraw_waiting()
        tracker = poller.tracker
        while True:
            if how == "cancel":
                poller.ask_to_cancel(dict.fromkeys(tracker.at_work(), because("airflow_stopped")))
            poller.round()
            over = not (tracker.at_work() or tracker.pending.withdrawals)
            if how == "leave" or over or time.monotonic() > deadline:
                return
            time.sleep(min(1.0, max(0.1, deadline - time.monotonic())))


def cluster_kind(system: BatchSystem) -> type[ClusterSite]:
    return type(f"{type(system).__name__}Site", (ClusterSite,), {"kind": system.name, "system": system})
