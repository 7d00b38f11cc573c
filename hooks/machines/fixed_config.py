"""The table of a site of kind ``ssh``: existing machines, each reached by SSH."""

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
from lading.scheduling.model.machine_traits import DEFAULT_ARCH, ON_DEMAND

# An id that can name a location and its folder; Airflow allows more for a connection.
CONNECTION = re.compile(r"[A-Za-z0-9][\w.-]{0,99}")
_HOST_FIELDS = "cpus", "memory", "disk", "gpus"


class HostConfig(TableModel):
    """One machine."""

    ssh_conn_id: str = Field(description="Airflow's SSH connection to the machine, which is also the machine's name.")
    cpus: Count | None = Field(None, description="Processors that Lading can use. Default: all except `reserve_cpus`.")
    memory: Memory | None = Field(None, description="Memory that Lading can use. Default: all except `reserve_memory`.")
    disk: Amount | None = Field(
        None, description="Disk space that Lading can use. Default: the free space in `scratch` when a job starts."
    )
    gpus: CountOrZero | None = Field(None, description="GPUs that Lading can use. Default: all.")
    gpu_type: GPUType | None = Field(
        None,
        description='The type of the machine\'s GPUs, such as `a100`, for tasks with `gpus="a100:1"`. If not set, the '
        "machine gets no task that requests a type.",
    )
    instance_type: str | None = Field(
        None, description="A name with which jobs can request this machine in the hint `instance_type`."
    )
    features: Features = Field((), description='A list of features that only some machines have, such as `["avx512"]`.')
    properties: Properties = Field(
        (),
        description=(
            'Properties of the machine, such as `{license = "matlab"}`. Tasks can request them with the hint '
            "`properties`."
        ),
    )
    capacity_type: CapacityType = Field(
        ON_DEMAND, description="`spot` if the machine can be reclaimed at any time, else `on-demand`."
    )
    usd_per_hour: float = Field(0.0, ge=0, description="The price of the machine in USD per hour.")

    @field_validator("ssh_conn_id")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        if not CONNECTION.fullmatch(value):
            raise ValueError("the id of a connection is expected: at most 100 letters, digits, - _ and .")
        return value

    @property
    def share(self) -> dict[str, float | None]:
        """Each amount in the table; None: that of the machine is used."""
        return {name: getattr(self, name) for name in _HOST_FIELDS}

    @property
    def is_bounded(self) -> bool:
        """Whether the table limits the amounts, so that other sites can use the rest of the machine."""
        return self.cpus is not None and self.memory is not None


class MachinesConfig(PackedConfig, RemoteConfig):
    """The settings that the tables of all machines with SSH and a node agent have in common."""

    default_arch: WantedArch = Field(
        DEFAULT_ARCH,
        description="The architecture of tasks that name none, if the machines have several architectures. `any`: the "
        "cheapest one. Lading measures the architecture of each machine.",
    )
    work_dir: str = Field(
        description="The absolute path of a folder on the machines that no other Airflow uses. Each machine gets a "
        "subfolder with its name, so the folder can be on a shared file system."
    )
    python: str = Field(
        description="The Python interpreter on the machines. It must have Lading and Airflow's Task SDK installed. For "
        "jobs of Snakemake, any Python 3.10 or newer is enough."
    )
    login_setup: str = Field("", description="Shell lines that run before each of Lading's commands on the machines.")
    setup: str = Field(
        "",
        description=(
            "Shell lines (sh) that run before the node agent starts. All jobs inherit the environment that these "
            "lines set."
        ),
    )
    reserve_cpus: CountOrZero = Field(0.0, description="Processors that Lading does not use on hosts without `cpus`.")
    reserve_memory: Amount = Field(1024, description="Memory that Lading does not use on hosts without `memory`.")
    lost_after: Duration = Field(
        600,
        description="How long a machine can be unreachable before its jobs count as lost. Until then, its jobs are not "
        "started on another machine.",
    )
    max_poll_interval: Duration = Field(
        30,
        ge=1,
        le=60,
        description="Time between polls while nothing happens, from 1 s to 1 min. While jobs change, Lading polls the "
        "machine every second, and finished jobs are reported immediately.",
    )

    @property
    def min_poll_interval(self) -> float:
        # An exchange takes a fraction of this.
        return 1.0

    @property
    def agent_setup(self) -> str:
        """Shell lines before everything that Lading's Python does on a machine."""
        return self.setup

    @property
    @abstractmethod
    def agent_idle_seconds(self) -> float:
        """Seconds after which a node agent without jobs and requests exits."""

    @property
    def reads_notices(self) -> bool:
        """Whether agents on spot machines ask AWS's metadata service for interruption notices."""
        return False

    @property
    def switch_off(self) -> str:
        """Shell text with which an idle agent shuts down its machine on exit; empty: the machine stays up."""
        return ""

    def root(self, host: HostConfig) -> str:
        return f"{self.work_dir}/{host.ssh_conn_id}"


class SSHConfig(MachinesConfig):
    """Machines behind SSH that form one site."""

    hosts: tuple[HostConfig, ...] = Field(
        min_length=1, description="The machines: a list of tables. Each table has the keys [below](#a-host)."
    )
    idle_seconds: Duration = Field(
        1800,
        description="A node agent exits if it has had no jobs and no requests for this long.",
    )

    @property
    def agent_idle_seconds(self) -> float:
        return self.idle_seconds

    @model_validator(mode="after")
    def _has_each_host_once(self) -> SSHConfig:
        names = [host.ssh_conn_id for host in self.hosts]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"hosts lists {', '.join(map(repr, twice))} twice; keep one of each")
        return self

    @model_validator(mode="after")
    def _asks_before_agents_end(self) -> SSHConfig:
        if self.idle_seconds < 2 * self.max_poll_interval:
            raise ValueError(
                f"idle_seconds = {self.idle_seconds} is too short: agents would exit between two polls; give "
                f"{2 * self.max_poll_interval} or more, twice max_poll_interval"
            )
        return self
