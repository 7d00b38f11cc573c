"""What a site tells the node agent of its location: ``config.json`` in the spool."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Protocol

from lading.scheduling.resources import Resources


class SiteDefaults(Protocol):
    """What a site's table says for jobs whose authors say nothing: limits in MiB and seconds, and a container."""

    @property
    def memory_limit(self) -> int | None: ...
    @property
    def time_limit(self) -> int | None: ...
    @property
    def container(self) -> str: ...
    @property
    def container_python(self) -> str: ...


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """``config.json``: the location as its site describes it.

    :param measure_disk: whether disk space is what is free now, at most as much as the location has
    :param patience: seconds for which a waiting job may be overtaken
    :param kill_grace: seconds between SIGTERM and SIGKILL
    :param idle_seconds: after which the agent ends that has no job and of which nobody has asked anything; None: never
    :param switch_off: shell text that it leaves the machine with then; empty: the machine goes on
    :param scratch: the folder in which each job has one of its own; empty: the machine's folder for temporary files
    :param keep_failed: seconds for which that of a failed job is kept
    :param is_spot: whether AWS may take the machine away, after a notice that the agent reads
    """

    capacity: Resources
    gpu_devices: tuple[str, ...]
    patience: float
    kill_grace: float
    measure_disk: bool = False
    idle_seconds: float | None = None
    switch_off: str = ""
    scratch: str = ""
    keep_failed: float = 0.0
    is_spot: bool = False

    @classmethod
    def from_json(cls, text: str) -> AgentConfig:
        fields = json.loads(text)
        return cls(
            Resources(**fields["capacity"]),
            tuple(map(str, fields["gpu_devices"])),
            float(fields["patience"]),
            float(fields["kill_grace"]),
            bool(fields.get("measure_disk")),
            None if (idle := fields.get("idle_seconds")) is None else float(idle),
            str(fields.get("switch_off", "")),
            str(fields.get("scratch", "")),
            float(fields.get("keep_failed", 0.0)),
            bool(fields.get("is_spot")),
        )
