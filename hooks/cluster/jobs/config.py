"""The table of a batch cluster in the sites file: kinds ``slurm``, ``pbspro``, ``torque``, ``lsf``, ``sge``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from lading.hooks.api_tunnel.address import HOST
from lading.hooks.batch.site_config import BatchSiteConfig, SiteRules
from lading.hooks.batch.system import Profile
from lading.hooks.deployment import current
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
from lading.scheduling.gpus import parse_type
from lading.scheduling.machine_traits import DEFAULT_ARCH, DEFAULT_OS, ON_DEMAND
from lading.scheduling.matching.admission import Admission
from lading.scheduling.resources import Resources

if TYPE_CHECKING:
    from lading.hooks.api_tunnel.tunnel import ApiTunnel

Texts = dict[str, str | int | float | bool]
Directives = dict[str, Annotated[str | int | float | bool, BeforeValidator(directive_value)]]
# Four minutes for jobs, in the first half of which a job can start, and two minutes reserved for ending them.
SHORTEST_ALLOCATION = 360


class ClusterConfig(Profile, BatchSiteConfig, RemoteConfig):
    """The table of a cluster behind a batch system, including the fields of :class:`Profile`."""

    work_dir: str = Field(
        description="A folder for Lading, used by this Airflow only; absolute, and shared by login node and compute "
        "nodes."
    )
    python: str = Field(
        description="The Python on the nodes in which Lading and Airflow's Task SDK are installed; for Snakemake jobs, "
        "any Python 3.10 or newer."
    )
    node_cpus: Count = Field(description="Processors of one node that a job can use.")
    node_memory: Memory = Field(description="Memory of one node that a job can use.")
    node_disk: Amount = Field(0, description="Scratch space of one node that a job can use.")
    node_gpus: CountOrZero = Field(0.0, description="GPUs of one node that a job can use.")
    gpu_types: table_model.Texts = Field(
        (),
        description='A list of the types of its GPUs, as the batch system names them, such as `["a100", "v100"]`, for '
        'tasks with `gpus="a100:1"`; only one type with allocations.',
    )
    arch: Arch = Field(DEFAULT_ARCH, description="The architecture of its nodes, as `uname -m` prints it there.")
    os: Os = Field(DEFAULT_OS, description="The operating system of its nodes, for jobs that request one.")
    features: Features = Field(
        (),
        description="A list of features that every one of its nodes has. Tasks can request them with the hint "
        "`features`.",
    )
    properties: Properties = Field(
        (),
        description='Named properties that every one of its nodes has, such as `{license = "matlab"}`, for the hint '
        "`properties`.",
    )
    capacity_type: CapacityType = Field(
        ON_DEMAND, description="`spot` if jobs can be preempted at any time, else `on-demand`."
    )
    memory_overhead: Amount | None = Field(
        None,
        description="Memory requested in addition to the task's own; default: 384 MiB for Airflow's supervisor of the "
        'task, or 48 MiB for Snakemake jobs with `mode = "job"`.',
    )
    queue: str | None = Field(None, description="The queue (partition) of all jobs; default: the site's own default.")
    time: Duration | None = Field(
        None,
        description="The time limit of batch jobs whose task has none. Default: one day, or the limit of the queue for "
        "Snakemake jobs.",
    )
    time_limit: Duration | None = Field(
        None, description="The time limit of jobs whose author sets none; default: that of the batch job."
    )
    max_jobs: int = Field(
        1000,
        ge=1,
        description='With `mode = "job"`: the maximum number of submitted jobs; further jobs wait in Airflow.',
    )
    jwt_lifetime: Duration = Field(
        86400, description="How long a job's JWT is valid; it is renewed after half of this time while the job waits."
    )
    max_poll_interval: Duration = Field(
        60,
        ge=2,
        le=60,
        description="Poll interval while nothing happens, from 2 s to 1 min. While jobs change, the folder of the "
        "cluster is read every 2 s, and the batch system is queried for states every 5 s, every 15 s with more than "
        "1,000 jobs, or at this interval if it is shorter; a query to its accounting counts as one.",
    )
    exclude_nodes_for: DurationOrZero = Field(
        1800,
        description="How long no job is submitted to a node that has failed or on which jobs die before their tasks "
        "start; 0: no node is excluded. Not for pbspro and torque, which have no option for it.",
    )
    tunnel_host: str | None = Field(
        None,
        description="With a tunnel: the name or address by which nodes reach the login node; default: the output of "
        "`hostname -f` there.",
    )
    tunnel_port: int | None = Field(
        None,
        ge=1024,
        le=65535,
        description="With a tunnel: its port on the login node; default: any free port, which is then reused.",
    )
    mode: Literal["job", "allocation"] = Field(
        "job",
        description="`job`: each task is a batch job, and the instances of a mapped task are an array. `allocation`: "
        "tasks are packed into few batch jobs, each with a node or part of one, which end when idle. If not set, "
        "[short jobs](snakemake.md#short-jobs-on-a-cluster) of Snakemake can be packed.",
    )
    max_allocations: int = Field(4, ge=1, description="With allocations: their maximum number at a time.")
    allocation_time: Duration = Field(
        14400,
        description="With allocations: their time limit. A task with a longer limit gets an allocation of that length.",
    )
    idle_seconds: Duration = Field(
        300,
        description="With allocations: an allocation ends after this time without a running job. One that was "
        "requested for predicted work stays up for as long as another one would wait in the queue, and then ends if no "
        "work arrives.",
    )
    expected_queue_time: DurationOrZero | None = Field(
        None,
        description="With allocations: the expected wait in the queue, until twenty waits have been measured; default: "
        "`idle_seconds`. An idle allocation is kept for a task that is expected sooner than that.",
    )
    hurry: Hurry = Field(
        1.0,
        description="With allocations: [how much finishing early is worth](hurry.md) for runs without the hint "
        "`hurry`, in cpu-hours instead of money.",
    )
    usd_per_cpu_hour: Price | None = Field(
        None, description="Price of a cpu-hour in USD; if not set, cpu-hours are counted instead of money."
    )
    resources: Directives = Field({}, description="A table of native directives for all jobs.")
    attributes: Texts = Field({}, description="A table of placeholders for job scripts; not used for tasks.")

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
                f"gpu_types {odd[0]!r}: no batch system accepts a blank in it; use the name that its own options accept"
            )
        if types and not self.node_gpus:
            raise ValueError("gpu_types cannot be used without node_gpus, the number of GPUs of a node")
        if len(types) < len(self.gpu_types):
            raise ValueError(f"gpu_types {', '.join(self.gpu_types)}: two of them are one type, {', '.join(types)}")
        if len(types) > 1 and self.mode == "allocation":
            raise ValueError(
                f"gpu_types {', '.join(self.gpu_types)}: an allocation has GPUs of one type; give one type, and a "
                "further site for each of the others"
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
                "api = 'tunnel' needs the SSH connection to the login node: give ssh_conn_id or control_master; "
                "without it, commands run on this machine, and api = 'url' is what nodes need"
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
        shortest = self.kill_grace + SHORTEST_ALLOCATION
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
        found = {name: str(getattr(self, name)), "queue": self.queue}
        return {name: value for name, value in found.items() if value is not None}

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
        found = BatchDefaults() if self.mode == "allocation" else current.deployment().batch_defaults()
        return found.memory_overhead

    @property
    def time_of_the_rest(self) -> int | None:
        """The time limit of batch jobs whose task has none, seconds; None: that of their queue."""
        return self.time or current.deployment().batch_defaults().time

    def tunnel(self, transport: Transport, api: str, file: str, shared: str | None) -> ApiTunnel:
        """Return the tunnel from nodes to Airflow's API; see :class:`lading.hooks.api_tunnel.tunnel.ApiTunnel`."""
        from lading.hooks.api_tunnel.tunnel import ApiTunnel

        host, port = self.tunnel_host, self.tunnel_port
        return ApiTunnel(transport, self.python, api, host=host, port=port, file=file, shared=shared)

    @property
    def profile(self) -> Profile:
        return Profile(**{name: getattr(self, name) for name in Profile.model_fields})
