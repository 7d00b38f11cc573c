"""The table of a site of kind ``ssh``: machines that are there anyway, each reached by SSH."""

from __future__ import annotations

import re
from abc import abstractmethod

from pydantic import Field, field_validator, model_validator

from lading.hooks.files.table_model import (
    Amount,
    CapacityType,
    Count,
    CountOrZero,
    Duration,
    Features,
    GPUType,
    Memory,
    Properties,
    TableModel,
    WantedArch,
)
from lading.hooks.site import PackedConfig, RemoteConfig
from lading.scheduling.machine_traits import DEFAULT_ARCH, ON_DEMAND

# What names a location and its folder; Airflow takes more for a connection.
CONNECTION = re.compile(r"[A-Za-z0-9][\w.-]{0,99}")
# Between two questions to a machine whose jobs change: an exchange takes a fraction of this.
SECONDS_WHILE_JOBS_CHANGE = 1.0
_HOST_FIELDS = "cpus", "memory", "disk", "gpus"


class HostConfig(TableModel):
    """One machine."""

    ssh_conn_id: str = Field(description="Airflow's SSH connection to it, which is also what the machine is called.")
    cpus: Count | None = Field(None, description="Processors that Lading may fill; without it all but the reserve.")
    memory: Memory | None = Field(None, description="Memory that Lading may fill; likewise.")
    disk: Amount | None = Field(
        None, description="Disk space that Lading may fill; without it what is free in `scratch` when a job starts."
    )
    gpus: CountOrZero | None = Field(None, description="GPUs that Lading may fill; without it all that it has.")
    gpu_type: GPUType | None = Field(
        None,
        description='The type of its GPUs, such as `a100`, for tasks with `gpus="a100:1"`; without it no such task.',
    )
    instance_type: str | None = Field(None, description="What jobs call it that ask for an instance type.")
    features: Features = Field((), description='A list of what it has that others have not, such as `["avx512"]`.')
    properties: Properties = Field(
        (), description='What it has under which name, such as `{license = "matlab"}`, for the hint `properties`.'
    )
    capacity_type: CapacityType = Field(
        ON_DEMAND, description="`spot` where it may be reclaimed at any time, `on-demand` where it is not."
    )
    usd_per_hour: float = Field(0.0, ge=0, description="What it costs, USD per hour.")

    @field_validator("ssh_conn_id")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        if not CONNECTION.fullmatch(value):
            raise ValueError("the id of a connection is expected: letters, digits, - _ and ., at most 100")
        return value

    @property
    def share(self) -> dict[str, float | None]:
        """What the table says of each amount; None: what the machine has counts."""
        return {name: getattr(self, name) for name in _HOST_FIELDS}

    @property
    def is_bounded(self) -> bool:
        """Whether the table says how much may be filled, so that others may fill the rest."""
        return self.cpus is not None and self.memory is not None


class MachinesConfig(PackedConfig, RemoteConfig):
    """What the tables of machines have in common that are reached by SSH, each with a node agent."""

    default_arch: WantedArch = Field(
        DEFAULT_ARCH,
        description="The architecture of tasks that name none, where machines have several; `any`: that which costs "
        "least. What each machine has is measured.",
    )
    work_dir: str = Field(
        description="A folder on the machines of Lading's own for this Airflow, absolute; each has one of its name in "
        "it, so it may be shared."
    )
    python: str = Field(
        description="The Python there in which Lading and Airflow's Task SDK are installed; for jobs of Snakemake any "
        "of 3.10 or newer."
    )
    login_setup: str = Field("", description="Shell lines before all of Lading's commands there.")
    setup: str = Field("", description="Shell lines (sh) before the node agent, whose environment all jobs have.")
    reserve_cpus: CountOrZero = Field(0.0, description="Processors left to others where a host says no `cpus`.")
    reserve_memory: Amount = Field(1024, description="Memory left to others where a host says no `memory`.")
    lost_after: Duration = Field(
        600,
        description="How long a machine may be out of reach before its jobs count as lost; none of them is started "
        "elsewhere before that.",
    )
    max_poll_interval: Duration = Field(
        30,
        ge=1,
        le=60,
        description="Time between questions while nothing happens, from 1 s to 1 min; while jobs change a machine is "
        "asked every second, and ends of jobs are reported at once.",
    )

    @property
    def min_poll_interval(self) -> float:
        return SECONDS_WHILE_JOBS_CHANGE

    @property
    def agent_setup(self) -> str:
        """Shell lines before all that Lading's Python does there."""
        return self.setup

    @property
    @abstractmethod
    def agent_idle_seconds(self) -> float:
        """After which a node agent ends that has no job and that has received no request."""

    @property
    def reads_notices(self) -> bool:
        """Whether agents on spot machines ask AWS's metadata service whether these are taken away."""
        return False

    @property
    def switch_off(self) -> str:
        """Shell text that an agent leaves its machine with when it ends so; empty: the machine stays up."""
        return ""

    def root(self, host: HostConfig) -> str:
        """Lading's folder on a host."""
        return f"{self.work_dir}/{host.ssh_conn_id}"


class SSHConfig(MachinesConfig):
    """Machines behind SSH, packed as one site."""

    hosts: tuple[HostConfig, ...] = Field(
        min_length=1, description="The machines: a list of tables, each with the keys [below](#a-host)."
    )
    idle_seconds: Duration = Field(
        1800,
        description="A node agent that has no job and has received no request for so long ends by itself.",
    )

    @property
    def agent_idle_seconds(self) -> float:
        return self.idle_seconds

    @model_validator(mode="after")
    def _has_each_host_once(self) -> SSHConfig:
        names = [host.ssh_conn_id for host in self.hosts]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"hosts has {', '.join(map(repr, twice))} twice; keep one of each")
        return self

    @model_validator(mode="after")
    def _asks_before_agents_end(self) -> SSHConfig:
        if self.idle_seconds < 2 * self.max_poll_interval:
            raise ValueError(
                f"idle_seconds = {self.idle_seconds} is too short: agents would end between two questions; give "
                f"{2 * self.max_poll_interval} or more, twice max_poll_interval"
            )
        return self
