"""The table of a batch cluster in the sites file: kinds ``slurm``, ``pbspro``, ``torque``, ``lsf``, ``sge``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from lading.hooks.api_tunnel.address import HOST
from lading.hooks.batch.site_config import BatchSiteConfig, SiteRules
from lading.hooks.batch.system import Profile
from lading.hooks.deployment.deployment import BatchDefaults
from lading.hooks.files import table_model
from lading.hooks.files.table_model import (
    Amount,
    Arch,
    CapacityType,
    Count,
    CountOrZero,
    Duration,
    DurationOrZero,
    Features,
    Hurry,
    Memory,
    Os,
    Price,
    Properties,
    directive_value,
)
from lading.hooks.site import RemoteConfig
from lading.hooks.ssh.transport import Transport
from lading.scheduling.matching.admission import Admission
from lading.scheduling.model.gpus import parse_type
from lading.scheduling.model.machine_traits import DEFAULT_ARCH, DEFAULT_OS, ON_DEMAND
from lading.scheduling.model.resources import Resources

if TYPE_CHECKING:
    from lading.hooks.api_tunnel.tunnel import ApiTunnel

Texts = dict[str, str | int | float | bool]
Directives = dict[str, Annotated[str | int | float | bool, BeforeValidator(directive_value)]]


class ClusterConfig(Profile, BatchSiteConfig, RemoteConfig):
    """The table of a cluster behind a batch system, including the fields of :class:`Profile`."""

    work_dir: str = Field(
        description="The absolute path of a folder for Lading that no other Airflow uses. The login node and the "
        "compute nodes must share it."
    )
    python: str = Field(
        description="The Python interpreter on the nodes. It must have Lading and Airflow's Task SDK installed. "
        "For jobs of Snakemake, any Python 3.10 or newer is enough."
    )
    node_cpus: Count = Field(description="Processors of one node that a job can use.")
    node_memory: Memory = Field(description="Memory of one node that a job can use.")
    node_disk: Amount = Field(0, description="Scratch space of one node that a job can use.")
    node_gpus: CountOrZero = Field(0.0, description="GPUs of one node that a job can use.")
    gpu_types: table_model.Texts = Field(
        (),
        description='A list of the types of the nodes\' GPUs, as the batch system names them, such as `["a100", '
        '"v100"]`, for tasks with `gpus="a100:1"`. A site with allocations can have only one type.',
    )
    arch: Arch = Field(DEFAULT_ARCH, description="The architecture of the nodes, as `uname -m` prints it there.")
    os: Os = Field(DEFAULT_OS, description="The operating system of the nodes, for jobs that request one.")
    features: Features = Field(
        (),
        description="A list of features that every node has. Tasks can request them with the hint `features`.",
    )
    properties: Properties = Field(
        (),
        description='Properties that every node has, such as `{license = "matlab"}`. Tasks can request them with the '
        "hint `properties`.",
    )
    capacity_type: CapacityType = Field(
        ON_DEMAND, description="`spot` if jobs can be preempted at any time, else `on-demand`."
    )
    memory_overhead: Amount | None = Field(
        None,
        description="Memory that Lading requests in addition to that of the task. Default: 384 MiB for Airflow's "
        'supervisor of the task, or 48 MiB for jobs of Snakemake with `mode = "job"`.',
    )
    queue: str | None = Field(
        None, description="The queue (SLURM: partition) of all jobs. Default: the default queue of the batch system."
    )
    time: Duration | None = Field(
        None,
        description="The time limit of batch jobs whose task has none. Default: one day, or for jobs of Snakemake the "
        "limit of the queue.",
    )
    time_limit: Duration | None = Field(
        None, description="The time limit of jobs whose author sets none. Default: the time limit of the batch job."
    )
    max_jobs: int = Field(
        1000,
        ge=1,
        description='With `mode = "job"`: the maximum number of submitted jobs. Further jobs wait in Airflow.',
    )
    jwt_lifetime: Duration = Field(
        86400,
        description=(
            "How long the JWT of a job is valid. While the job waits, Lading renews the JWT after half of this time."
        ),
    )
    max_poll_interval: Duration = Field(
        60,
        ge=2,
        le=60,
        description="Poll interval while nothing happens, from 2 s to 1 min. While jobs change, Lading reads the "
        "folder of the cluster every 2 s. It then queries the batch system for the states of jobs "
        "every 5 s, or every 15 s if there are more than 1,000 jobs, but never less often than at this "
        "interval. A query to the accounting counts as a query for states.",
    )
    exclude_nodes_for: DurationOrZero = Field(
        1800,
        description="How long a node is excluded after it has failed, or after jobs have died there before their tasks "
        "started. With 0, no node is excluded. Has no effect with `pbspro` and `torque`, which have no "
        "option to exclude nodes.",
    )
    tunnel_host: str | None = Field(
        None,
        description="With a tunnel: the name or address by which nodes reach the login node. Default: the output of "
        "`hostname -f` on the login node.",
    )
    tunnel_port: int | None = Field(
        None,
        ge=1024,
        le=65535,
        description=(
            "With a tunnel: the port of the tunnel on the login node. Default: a free port, which is then reused."
        ),
    )
    mode: Literal["job", "allocation"] = Field(
        "job",
        description="`job`: each task is a batch job, and the instances of a mapped task are a job array. "
        "`allocation`: Lading packs tasks into a few batch jobs. Each of these holds a node, or a part "
        "of one, and ends when it is idle. If `mode` is not set, [short "
        "jobs](snakemake.md#short-jobs-on-a-cluster) of Snakemake can be packed into allocations.",
    )
    max_allocations: int = Field(
        4, ge=1, description="With allocations: the maximum number of allocations at the same time."
    )
    allocation_time: Duration = Field(
        14400,
        description=(
            "With allocations: the time limit of an allocation. A task with a longer time limit gets an "
            "allocation of that length."
        ),
    )
    idle_seconds: Duration = Field(
        300,
        description="With allocations: an allocation ends after it has had no running job for this long. An allocation "
        "that was requested for predicted work stays up without a job for as long as a new allocation would "
        "wait in the queue.",
    )
    expected_queue_time: DurationOrZero | None = Field(
        None,
        description="With allocations: the expected wait of an allocation in the queue, until twenty waits have been "
        "measured. An idle allocation is kept if a task is expected before a new allocation would start. "
        "Default: `idle_seconds`.",
    )
    hurry: Hurry = Field(
        1.0,
        description="With allocations: [how much finishing early is worth](hurry.md) for runs without the hint "
        "`hurry`. Costs are counted in cpu-hours instead of money.",
    )
    usd_per_cpu_hour: Price | None = Field(
        None, description="The price of a cpu-hour in USD. If not set, Lading counts cpu-hours instead of money."
    )
    resources: Directives = Field({}, description="A table of native directives for all jobs.")
    attributes: Texts = Field({}, description="A table of values for placeholders in job scripts. Tasks do not use it.")

    @field_validator("tunnel_host")
    @classmethod
    def _is_host(cls, value: str | None) -> str | None:
        if value is not None and not HOST.fullmatch(value):
            raise ValueError("the name or address of a host is expected, without port")
        return value

    @model_validator(mode="after")
    def _has_memory_for_jobs(self) -> ClusterConfig:
        if self.overhead >= self.node_memory:
            raise ValueError(f"node_memory must be more than memory_overhead, {self.overhead} MiB")
        return self

    @model_validator(mode="after")
    def _has_gpus_of_its_types(self) -> ClusterConfig:
        types = self.types_of_gpus
        if odd := [each for each in self.gpu_types if " " in each]:
            raise ValueError(
                f"gpu_types {odd[0]!r}: no batch system accepts a blank in the name of a type; use the name "
                "that the options of yours accept"
            )
        if types and not self.node_gpus:
            raise ValueError("gpu_types cannot be used without node_gpus, the number of GPUs of a node")
        if len(types) < len(self.gpu_types):
            raise ValueError(
                f"gpu_types {', '.join(self.gpu_types)}: two of them are the same type, {', '.join(types)}"
            )
        if len(types) > 1 and self.mode == "allocation":
            raise ValueError(
                f"gpu_types {', '.join(self.gpu_types)}: an allocation has GPUs of one type; give one type here, "
                "and declare another site for each of the other types"
            )
        return self

    @property
    def types_of_gpus(self) -> dict[str, str]:
        """Map each type of GPU, as tasks request it, to the batch system's name for it.

        :raises UnitError: a name is not a type
        """
        return {parse_type(each): each for each in self.gpu_types}

    @model_validator(mode="after")
    def _has_a_way_back(self) -> ClusterConfig:
        if self.api == "tunnel" and self.ssh_conn_id is None and self.control_master is None:
            raise ValueError(
                "api = 'tunnel' needs the SSH connection to the login node: give ssh_conn_id or "
                "control_master; without one of these, commands run on this machine, and nodes need api = "
                "'url'"
            )
        if self.api == "url" and (self.tunnel_host is not None or self.tunnel_port is not None):
            raise ValueError("tunnel_host and tunnel_port cannot be used without api = 'tunnel'")
        return self

    @model_validator(mode="after")
    def _of_its_mode(self) -> ClusterConfig:
        given = sorted(self.model_fields_set & {"max_allocations", "allocation_time", "idle_seconds", "hurry"})
        if self.mode == "job" and given:
            raise ValueError(f"{' and '.join(given)} cannot be used without mode = 'allocation'")
        if self.mode == "allocation" and "max_jobs" in self.model_fields_set:
            raise ValueError(
                "max_jobs cannot be used with mode = 'allocation': max_allocations limits the batch jobs there"
            )
        # Four minutes for jobs, in the first half of which a job can start, and two minutes reserved for ending them.
        shortest = self.kill_grace + 360
        if self.mode == "allocation" and self.allocation_time < shortest:
            raise ValueError(
                f"allocation_time = {self.allocation_time} is too short; give {shortest} seconds or more, since two "
                "minutes and kill_grace are reserved to end its jobs"
            )
        return self

    @property
    def admission(self) -> Admission:
        return SiteRules.from_table(self).admission

    @property
    def capacity(self) -> Resources:
        """The most that one job can use: the resources of one node."""
        return Resources(self.node_cpus, self.node_memory - self.overhead, self.node_disk, self.node_gpus)

    @property
    def limits(self) -> dict[str, str]:
        name = "max_allocations" if self.mode == "allocation" else "max_jobs"
        found = {name: getattr(self, name), "max_submitted": self.max_submitted, "queue": self.queue}
        return {name: str(value) for name, value in found.items() if value is not None}

    def cpu_hour(self, capacity: Resources) -> float | None:
        return self.usd_per_cpu_hour

    @property
    def overhead(self) -> int:
        """Memory of a node that no job can use, MiB: that of a supervisor, and of the agent of an allocation."""
        return self.added_memory * (2 if self.mode == "allocation" else 1)

    @property
    def added_memory(self) -> int:
        """Memory of a supervisor, or of the agent of an allocation, MiB."""
        if self.memory_overhead is not None:
            return self.memory_overhead
        found = BatchDefaults() if self.mode == "allocation" else self.deployment.batch_defaults()
        return found.memory_overhead

    @property
    def time_of_the_rest(self) -> int | None:
        """The time limit of batch jobs whose task has none, seconds; None: that of their queue."""
        return self.time or self.deployment.batch_defaults().time

    def tunnel(self, transport: Transport, api: str, file: str, shared: str | None) -> ApiTunnel:
        """Return the tunnel from nodes to Airflow's API; see :class:`lading.hooks.api_tunnel.tunnel.ApiTunnel`."""
        from lading.hooks.api_tunnel.tunnel import ApiTunnel

        host, port = self.tunnel_host, self.tunnel_port
        return ApiTunnel(transport, self.python, api, host=host, port=port, file=file, shared=shared)

    @property
    def profile(self) -> Profile:
        return Profile(**{name: getattr(self, name) for name in Profile.model_fields})
