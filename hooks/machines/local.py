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
from lading.hooks.deployment import current
from lading.hooks.files import host
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
from lading.scheduling.gpus import gpu_feature
from lading.scheduling.location import Location
from lading.scheduling.reasons import Reason
from lading.scheduling.resources import Resources

log = logging.getLogger(__name__)

# An agent without jobs whose controller does not ring for so long ends, and how often that does, seconds.
AGENT_IDLE_SECONDS, SECONDS_BETWEEN_RINGS = 50.0, 10.0
# When so many events were read in one look, the other batches are left for the next.
MOST_EVENTS = 20_000


class LocalConfig(PackedConfig):
    """``kind = "local"``: this machine."""

    kind: Literal["local"] = "local"
    cpus: Count | None = Field(None, description="Processors to fill; without it those that Airflow may use.")
    memory: Memory | None = Field(None, description="Memory to fill; without it what Airflow may use.")
    disk: Amount | None = Field(
        None, description="Scratch space to fill; without it what is free in `scratch` when a job starts."
    )
    gpus: CountOrZero | None = Field(None, description="GPUs to fill; without it those that are found.")
    gpu_type: GPUType | None = Field(
        None, description='The type of its GPUs, such as `a100`, for tasks with `gpus="a100:1"`; without it that found.'
    )
    instance_type: str | None = Field(
        None,
        min_length=1,
        max_length=64,
        description="What this machine is called by jobs that ask for an instance type.",
    )
    reserve_cpus: CountOrZero = Field(0.0, description="Processors left to Airflow itself.")
    reserve_memory: Amount = Field(1024, description="Memory left to Airflow itself.")
    usd_per_hour: Price | None = Field(
        None, description="What this machine costs in an hour, USD; without it cpu-hours are counted and no money."
    )
    enabled: StrictBool = Field(
        True, description="Whether this machine is a site. It is one also without a table, unless this says `false`."
    )

    def cpu_hour(self, capacity: Resources) -> float | None:
        return self.usd_per_hour / capacity.cpus if self.usd_per_hour is not None and capacity.cpus > 0 else None


class LocalSite(Site[LocalConfig], Holding):
    """This machine."""

    kind = "local"
    holds = True
    seconds_ahead = 0.25  # its agent is looked at without asking another machine
    config_model = LocalConfig
    has_sites_file = True

    def __init__(self, name: str, config: LocalConfig, folder: Path) -> None:
        super().__init__(name, config, folder)
        self.host = socket.gethostname()
        self.spool = Spool(folder)
        self.rejected = RejectedFiles(self.spool.rejected)
        self.agent_host = AgentHost(self.spool, self.rejected, options=current.deployment().runner_options())
        self.closed = False
        self.next_ring = 0.0

    @cached_property
    def capacity(self) -> Resources:
        """What jobs may ever fill: the configured amounts, else what this process may use less the reserve.

        Of the disk that is all: what is free of it changes, so the agent looks at it when it starts a job.
        """
        found = host.usable(host.scratch(self.config.scratch))
        kept = self._kept
        capacity = self._configured(found - kept)
        if capacity.cpus <= 0 or capacity.memory <= 0:
            raise ValueError(
                f"site {self.name!r}: nothing is left to fill: this machine has {found.cpus:g} cpus and {found.memory} "
                f"MiB, reserve_cpus is {kept.cpus:g} and reserve_memory {kept.memory} MiB; lower the reserve, or "
                "set cpus and memory"
            )
        return capacity

    @property
    def arch(self) -> str:
        return host.arch()

    def potential(self) -> list[Location]:
        # This process may run in another container than the controller: only what none here can exceed is certain.
        return [self._location(self._configured(host.hardware(host.scratch(self.config.scratch)) - self._kept))]

    @property
    def _kept(self) -> Resources:
        """What is left to Airflow where the table does not say what may be filled."""
        return Resources(cpus=self.config.reserve_cpus, memory=self.config.reserve_memory)

    def observe(self) -> Observation:
        make_private(self.spool.root.parent)
        self._claim()
        note = None if self.closed else self.agent_host.keep_alive(self._settings())
        if not self.closed and time.monotonic() >= self.next_ring:
            self.next_ring = time.monotonic() + SECONDS_BETWEEN_RINGS
            self.spool.ring()
        # In this order: a job on its way from one to the next is found at least once, and its events last.
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
            # Jobs whose events are still to be read are nowhere else.
            frozenset(token for token in known if TOKEN.fullmatch(token)) if is_all else None,
            join(note, self.rejected.note),
        )
        return Observation([seen], [*back, *(event for _, events in batches for event in events)], acknowledge)

    def _location(self, capacity: Resources) -> Location:
        gpu_type = self.config.gpu_type or (host.gpu_type() if capacity.gpus else None)
        return Location(
            self.host,
            capacity,
            site=self.name,
            instance_type=self.config.instance_type,
            arch=self.arch,
            features=frozenset([gpu_feature(gpu_type)] if gpu_type else []),
        )

    def _batches(self) -> tuple[list[tuple[Path, list[dict[str, Any]]]], bool]:
        """The next batches of events with their files, and whether these are all."""
        batches, count = [], 0
        for path, events in self.spool.journal(self.rejected):
            batches.append((path, events))
            count += len(events)
            if count >= MOST_EVENTS:
                return batches, False
        return batches, True

    def staging_area(self, location: str) -> StagingArea:
        return StagingArea(self.host, ShellTransport(), str(self.spool.root.absolute()))

    def put(self, envelopes: Mapping[str, Sequence[Envelope]]) -> None:
        # That one has come back is not stored yet, so who gives it does not know: it is to go elsewhere.
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
            log.warning("Site %r is left as it is: %s", self.name, error)
            return
        self.agent_host.close(how, timeout)

    def _claim(self, *, look: bool = False) -> None:
        """Mark the folder of this site as this deployment's.

        :param look: whether it is not marked where it has no mark
        :raises OSError: it is another deployment's, whose agent lives there; or that cannot be found out
        """
        server.claim(str(self.spool.root), self._owner.ids, self._owner.name, "a [lading] state_folder", look=look)

    @cached_property
    def _owner(self) -> Owner:
        return Owner.from_key(*current.deployment().identity())

    def _configured(self, found: Resources) -> Resources:
        """What was found, with the amounts in the sites file in its place where there are any."""
        return replace(found, **{name: amount for name, amount in self._amounts.items() if amount is not None})

    @property
    def _amounts(self) -> dict[str, Any]:
        """The amounts in the sites file."""
        return {name: getattr(self.config, name) for name in ("cpus", "memory", "disk", "gpus")}

    def _settings(self) -> dict[str, Any]:
        """The settings of the agent of this machine."""
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
