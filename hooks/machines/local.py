"""The site of kind ``local``: the machine that the controller runs on, packed by one node agent."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, StrictBool

from lading.hooks.cleanup.cleaning import clean_files
from lading.hooks.files import hardware, host
from lading.hooks.files.owner import Owner
from lading.hooks.files.safe_files import make_private, visible
from lading.hooks.files.table_model import Amount, Count, CountOrZero, GPUType, Memory, Price
from lading.hooks.machines import agent_host
from lading.hooks.machines.agent_host import AgentHost
from lading.hooks.site import (
    Check,
    Holding,
    LocationState,
    Observation,
    ObservedLocation,
    PackedConfig,
    RemovedLeftovers,
    Site,
    StagingArea,
    join,
)
from lading.hooks.spool import server
from lading.hooks.spool.hold import Hold
from lading.hooks.spool.rejected import RejectedFiles
from lading.hooks.spool.spool import Envelope, Spool
from lading.hooks.spool.tokens import TOKEN
from lading.hooks.ssh.local_transport import ShellTransport
from lading.scheduling.model.gpus import gpu_feature
from lading.scheduling.model.location import Location
from lading.scheduling.model.reasons import Reason
from lading.scheduling.model.resources import Resources

log = logging.getLogger(__name__)

# Seconds after which an agent without jobs exits unless its controller rings, and seconds between rings.
AGENT_IDLE_SECONDS, SECONDS_BETWEEN_RINGS = 50.0, 10.0


class LocalConfig(PackedConfig):
    """``kind = "local"``: this machine."""

    kind: Literal["local"] = "local"
    cpus: Count | None = Field(None, description="Processors for jobs. Default: all that Airflow can use.")
    memory: Memory | None = Field(None, description="Memory for jobs. Default: all that Airflow can use.")
    disk: Amount | None = Field(
        None, description="Scratch space for jobs. Default: the free space in `scratch` when a job starts."
    )
    gpus: CountOrZero | None = Field(None, description="GPUs for jobs. Default: all GPUs that Lading finds.")
    gpu_type: GPUType | None = Field(
        None,
        description=(
            'The type of the machine\'s GPUs, such as `a100`, for tasks with `gpus="a100:1"`. Default: the '
            "type that NVIDIA's driver reports."
        ),
    )
    instance_type: str | None = Field(
        None,
        min_length=1,
        max_length=64,
        description="A name with which jobs can request this machine in the hint `instance_type`.",
    )
    reserve_cpus: CountOrZero = Field(0.0, description="Processors that are left to Airflow itself.")
    reserve_memory: Amount = Field(1024, description="Memory that is left to Airflow itself.")
    usd_per_hour: Price | None = Field(
        None,
        description="The price of this machine in USD per hour. If not set, Lading counts cpu-hours instead of money.",
    )
    enabled: StrictBool = Field(
        True, description="Whether jobs can run on this machine. Without a table for it, they can."
    )

    def cpu_hour(self, capacity: Resources) -> float | None:
        return self.usd_per_hour / capacity.cpus if self.usd_per_hour is not None and capacity.cpus > 0 else None


class LocalSite(Site[LocalConfig], Holding):
    kind = "local"
    holds = True
    seconds_ahead = 0.25  # its agent is polled without asking another machine
    config_model = LocalConfig
    has_sites_file = True

    def __init__(self, name: str, config: LocalConfig, folder: Path) -> None:
        super().__init__(name, config, folder)
        self.host = socket.gethostname()
        self.spool = Spool(folder)
        self.rejected = RejectedFiles(self.spool.rejected)
        self.agent_host = AgentHost(self.spool, self.rejected, options=config.deployment.runner_options())
        self.closed = False
        self.next_ring = 0.0

    @cached_property
    def capacity(self) -> Resources:
        """The most that jobs can use: the configured amounts, else what this process can use less the reserve.

        For the disk that is its whole size: free space changes, so the agent checks it when it starts a job.
        """
        found = host.usable(host.scratch(self.config.scratch))
        kept = self._kept
        capacity = self._configured(found - kept)
        if capacity.cpus <= 0 or capacity.memory <= 0:
            raise ValueError(
                f"site {self.name!r}: nothing is left for jobs: it has {found.cpus:g} cpus and {found.memory} "
                f"MiB, reserve_cpus is {kept.cpus:g} and reserve_memory {kept.memory} MiB; lower the reserve, or "
                "set cpus and memory"
            )
        return capacity

    @property
    def arch(self) -> str:
        return hardware.arch()

    def potential(self) -> list[Location]:
        # This process may run in another container than the controller, so only the limits of the hardware are certain.
        return [self._location(self._configured(host.hardware(host.scratch(self.config.scratch)) - self._kept))]

    @property
    def _kept(self) -> Resources:
        """What is left to Airflow if the table does not set the amounts for jobs."""
        return Resources(cpus=self.config.reserve_cpus, memory=self.config.reserve_memory)

    def observe(self) -> Observation:
        make_private(self.spool.root.parent)
        self._claim()
        note = None if self.closed else self.agent_host.keep_alive(self._settings())
        if not self.closed and time.monotonic() >= self.next_ring:
            self.next_ring = time.monotonic() + SECONDS_BETWEEN_RINGS
            self.spool.ring()
        # The order matters: a job that is moving from one folder to the next is found at least once, and its events are
        # read last.
        known = {path.stem for path in visible(self.spool.inbox)} | {path.name for path in visible(self.spool.jobs)}
        batches, is_all = self._batches()
        returned = visible(self.spool.returned) if self.spool.returned.is_dir() else []
        back = [
            {"event": "returned", "token": path.stem, "location": self.host}
            for path in returned
            if TOKEN.fullmatch(path.stem)
        ]

        def acknowledge() -> None:
            for path in (*(path for path, _ in batches), *returned):
                path.unlink(missing_ok=True)

        seen = ObservedLocation(
            self._location(self.capacity),
            LocationState.UP if note is None else LocationState.UNREACHABLE,
            # None while events are unread: some jobs only show up in these events.
            frozenset(token for token in known if TOKEN.fullmatch(token)) if is_all else None,
            join(note, self.rejected.note),
        )
        return Observation([seen], [*back, *(event for _, events in batches for event in events)], acknowledge)

    def _location(self, capacity: Resources) -> Location:
        gpu_type = self.config.gpu_type or (hardware.gpu_type() if capacity.gpus else None)
        return Location(
            self.host,
            capacity,
            site=self.name,
            instance_type=self.config.instance_type,
            arch=self.arch,
            features=frozenset([gpu_feature(gpu_type)] if gpu_type else []),
        )

    def _batches(self) -> tuple[list[tuple[Path, list[dict[str, Any]]]], bool]:
        """Return the next batches of events with their files, and whether these are all."""
        batches, count = [], 0
        for path, events in self.spool.journal(self.rejected):
            batches.append((path, events))
            count += len(events)
            # Once a look has read this many events, it leaves the other batches to the next look.
            if count >= 20_000:
                return batches, False
        return batches, True

    def staging_area(self, location: str) -> StagingArea:
        return StagingArea(self.host, ShellTransport(), str(self.spool.root.absolute()))

    def put(self, envelopes: Mapping[str, Sequence[Envelope]]) -> None:
        # A returned job whose return is not stored yet is skipped: the controller gives it without knowing of the
        # return, and it has to go elsewhere.
        new = (
            each for each in envelopes.get(self.host, ()) if not (self.spool.returned / f"{each.token}.json").exists()
        )
        self.spool.put([envelope.at(self.config) for envelope in new])

    def cancel(self, reasons: Mapping[str, Mapping[str, Reason]]) -> None:
        self.spool.ask_to_cancel(reasons.get(self.host, {}))

    def recall(self, tokens: Mapping[str, Sequence[str]]) -> None:
        self.spool.take_back(tokens.get(self.host, ()))

    def hold(self, holds: Mapping[str, Sequence[Hold]]) -> None:
        self.spool.keep_room(holds.get(self.host, ()))

    def drop(self, tokens: Mapping[str, Collection[str]]) -> None:
        self.spool.drop_holds(tokens.get(self.host, ()))

    def clean(self, older_than: float, keep: Collection[str], dry_run: bool) -> Iterator[RemovedLeftovers]:
        for kind, files in self.spool.leftovers().items():
            yield from clean_files(kind, files, older_than=older_than, dry_run=dry_run)

    def checks(self) -> Iterator[Check]:
        try:
            self._claim(look=True)
        except OSError as error:
            yield Check("folder", False, f"{self.spool.root} cannot be used: {error}")
        if (more := host.excess(self._amounts, host.hardware(host.scratch(self.config.scratch)))) is not None:
            yield Check("table", True, f"[sites.{self.name}] {more}", warns=True)

    def close(self, how: str, timeout: float) -> None:
        self.closed = True
        try:
            self._claim(look=True)
        except OSError as error:
            log.warning("Site %r is not closed: %s", self.name, error)
            return
        self.agent_host.close(how, timeout)

    def _claim(self, *, look: bool = False) -> None:
        """Mark the folder of this site as this deployment's.

        :param look: only check the mark, and do not add one
        :raises OSError: the folder belongs to another deployment, or that cannot be determined
        """
        server.claim(str(self.spool.root), self._owner.ids, self._owner.name, "a [lading] state_folder", look=look)

    @cached_property
    def _owner(self) -> Owner:
        return Owner.from_key(*self.config.deployment.identity())

    def _configured(self, found: Resources) -> Resources:
        return replace(found, **{name: amount for name, amount in self._amounts.items() if amount is not None})

    @property
    def _amounts(self) -> dict[str, Any]:
        return {name: getattr(self.config, name) for name in ("cpus", "memory", "disk", "gpus")}

    def _settings(self) -> dict[str, Any]:
        config = self.config
        return agent_host.settings(
            self.capacity,
            config.patience,
            config.kill_grace,
            measure_disk=config.disk is None,
            idle_seconds=AGENT_IDLE_SECONDS,
            scratch=config.scratch,
            keep_failed=config.keep_failed_scratch,
        )
