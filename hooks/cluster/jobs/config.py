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
# Four minutes for jobs, half of them in which a job may still begin, and what an allocation reserves for their end.
SHORTEST_ALLOCATION = 360


class ClusterConfig(Profile, BatchSiteConfig, RemoteConfig):
    """A cluster behind a batch system. The fields of :class:`Profile` stand beside those of the site."""

    work_dir: str = Field(
        description="A folder of Lading's own for this Airflow, absolute, that login node and compute nodes share."
    )
    python: str = Field(
        description="The Python on the nodes in which Lading and Airflow's Task SDK are installed; for jobs of "
        "Snakemake any of 3.10 or newer."
    )
    node_cpus: Count = Field(description="Processors that a job can have on one node.")
    node_memory: Memory = Field(description="Memory that a job can have on one node.")
    node_disk: Amount = Field(0, description="Scratch space that a job can have on one node.")
    node_gpus: CountOrZero = Field(0.0, description="GPUs that a job can have on one node.")
    gpu_types: table_model.Texts = Field(
        (),
        description='A list of the types of its GPUs as the batch system calls them, such as `["a100", "v100"]`, for '
        'tasks with `gpus="a100:1"`; with allocations one.',
    )
    arch: Arch = Field(DEFAULT_ARCH, description="The architecture of its nodes, as `uname -m` says it there.")
    os: Os = Field(DEFAULT_OS, description="What jobs that ask for an operating system find on its nodes.")
    features: Features = Field(
        (),
        description="A list of features that every one of its nodes has, which tasks can ask for by the hint "
        "`features`.",
    )
    properties: Properties = Field(
        (),
        description='What every one of its nodes has under which name, such as `{license = "matlab"}`, for the hint '
        "`properties`.",
    )
    capacity_type: CapacityType = Field(
        ON_DEMAND, description="`spot` where jobs may be preempted at any time, `on-demand` where they are not."
    )
    memory_overhead: Amount | None = Field(
        None,
        description="Memory asked for beyond what the task asks for; without it 384 MiB, which Airflow's supervisor of "
        'the task needs, and 48 MiB for jobs of Snakemake with `mode = "job"`.',
    )
    queue: str | None = Field(None, description="The queue (partition) of all jobs; without it the site's default.")
    time: Duration | None = Field(
        None,
        description="The time limit of the batch jobs of tasks that have none; tasks with one get theirs. Without it a "
        "day, and for jobs of Snakemake that of the queue.",
    )
    time_limit: Duration | None = Field(
        None, description="Time after which a job whose author gave none is ended; without it that of the batch job."
    )
    max_jobs: int = Field(
        1000, ge=1, description='With `mode = "job"`: so many jobs are submitted at a time; the others wait in Airflow.'
    )
    jwt_lifetime: Duration = Field(
        86400, description="How long a job's JWT is valid; it is renewed while it waits, when half of this has passed."
    )
    max_poll_interval: Duration = Field(
        60,
        ge=2,
        le=60,
        description="Time between questions while nothing happens, from 2 s to 1 min. While jobs change the folder of "
        "the cluster is read every 2 s, and the batch system asked for states every 5 s, 15 s beyond 1,000 jobs, or "
        "this if it is less; a question to its accounting counts as one.",
    )
    exclude_nodes_for: DurationOrZero = Field(
        1800,
        description="How long nothing is submitted to a node that has failed, or on which jobs die before their tasks "
        "begin; 0: no node is excluded. Not with pbspro and torque, which have no option for it.",
    )
    tunnel_host: str | None = Field(
        None,
        description="With a tunnel: the name or address by which nodes call the login node; without it what "
        "`hostname -f` says there.",
    )
    tunnel_port: int | None = Field(
        None,
        ge=1024,
        le=65535,
        description="With a tunnel: its port at the login node; without it any that is free, then the same again.",
    )
    mode: Literal["job", "allocation"] = Field(
        "job",
        description="`job`: each task is a batch job, the instances of a mapped task an array; `allocation`: tasks are "
        "packed into few batch jobs, each of a node or a part of one, which end when idle. Of Snakemake without it "
        "[short jobs](snakemake.md#short-jobs-on-a-cluster) may be packed.",
    )
    max_allocations: int = Field(4, ge=1, description="With allocations: how many there are at a time.")
    allocation_time: Duration = Field(
        14400, description="With allocations: their time limit; a task with a longer one gets one of its own length."
    )
    idle_seconds: Duration = Field(
        300,
        description="With allocations: one in which nothing has run for so long ends by itself; one that was "
        "asked for by what is to come stays for as long as another one would wait in the queue, and ends when nothing "
        "comes.",
    )
    expected_queue_time: DurationOrZero | None = Field(
        None,
        description="With allocations: how long one is expected to wait in its queue, until it is known of twenty; "
        "without it as long as `idle_seconds`. An idle one is kept for a task that comes sooner than that.",
    )
    hurry: Hurry = Field(
        1.0,
        description="With allocations: [what an early end is worth](hurry.md) to runs without the hint `hurry`, in "
        "cpu-hours instead of money.",
    )
    usd_per_cpu_hour: Price | None = Field(
        None, description="What a cpu costs in an hour, USD; without it cpu-hours are counted and no money."
    )
    resources: Directives = Field({}, description="A table of directives of the scheduler, for all jobs.")
    attributes: Texts = Field({}, description="A table of placeholders for job scripts; not used for tasks.")

    @field_validator("tunnel_host")
    @classmethod
    def _is_host(cls, value: str | None) -> str | None:
        if value is not None and not HOST.fullmatch(value):
            raise ValueError("the name or the address of a machine is expected, without port")
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
                f"gpu_types {odd[0]!r}: no batch system has a blank in it; valid: what its own options take"
            )
        if types and not self.node_gpus:
            raise ValueError("gpu_types mean nothing without node_gpus, how many GPUs a node has")
        if len(types) < len(self.gpu_types):
            raise ValueError(f"gpu_types {', '.join(self.gpu_types)}: two of them are one type, {', '.join(types)}")
        if len(types) > 1 and self.mode == "allocation":
            raise ValueError(
                f"gpu_types {', '.join(self.gpu_types)}: an allocation has GPUs of one type; give one, and other sites "
                "for the others"
            )
        return self

    @property
    def types_of_gpus(self) -> dict[str, str]:
        """What the batch system calls each type of GPU, by the name that tasks ask for.

        :raises UnitError: one is no type
        """
        return {parse_type(each): each for each in self.gpu_types}

    @model_validator(mode="after")
    def _has_a_way_back(self) -> ClusterConfig:
        if self.api == "tunnel" and self.ssh_conn_id is None and self.control_master is None:
            raise ValueError(
                "api = 'tunnel' goes over the SSH connection to the login node: give ssh_conn_id or control_master; "
                "without one the commands run on this machine, and api = 'url' is what nodes need"
            )
        if self.api == "url" and (self.tunnel_host is not None or self.tunnel_port is not None):
            raise ValueError("tunnel_host and tunnel_port mean nothing without api = 'tunnel'")
        return self

    @model_validator(mode="after")
    def _of_its_mode(self) -> ClusterConfig:
        given = sorted(self.model_fields_set & {"max_allocations", "allocation_time", "idle_seconds", "hurry"})
        if self.mode == "job" and given:
            raise ValueError(f"{' and '.join(given)} mean nothing without mode = 'allocation'")
        if self.mode == "allocation" and "max_jobs" in self.model_fields_set:
            raise ValueError(
                "max_jobs means nothing with mode = 'allocation', where max_allocations says how many there are"
            )
        shortest = self.kill_grace + SHORTEST_ALLOCATION
        if self.mode == "allocation" and self.allocation_time < shortest:
            raise ValueError(
                f"allocation_time = {self.allocation_time} is too short; give {shortest} seconds or more, of which two "
                "minutes and kill_grace are kept for the end of its jobs"
            )
        return self

    @property
    def admission(self) -> Admission:
        return SiteRules.from_table(self).admission

    @property
    def capacity(self) -> Resources:
        """What one job can have: that of one node."""
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
        """The memory of a node that no job can have, MiB: that of a supervisor, and of the agent of an allocation."""
        return self.added_memory * (2 if self.mode == "allocation" else 1)

    @property
    def added_memory(self) -> int:
        """The memory of a supervisor, and of the agent of an allocation, MiB."""
        if self.memory_overhead is not None:
            return self.memory_overhead
        found = BatchDefaults() if self.mode == "allocation" else current.deployment().batch_defaults()
        return found.memory_overhead

    @property
    def time_of_the_rest(self) -> int | None:
        """The time limit of batch jobs of tasks that have none, seconds; None: that of their queue."""
        return self.time or current.deployment().batch_defaults().time

    def tunnel(self, transport: Transport, api: str, file: str, shared: str | None) -> ApiTunnel:
        """The tunnel by which nodes reach Airflow's API; see :class:`lading.hooks.api_tunnel.tunnel.ApiTunnel`."""
        from lading.hooks.api_tunnel.tunnel import ApiTunnel

        host, port = self.tunnel_host, self.tunnel_port
        return ApiTunnel(transport, self.python, api, host=host, port=port, file=file, shared=shared)

    @property
    def profile(self) -> Profile:
        """The profile of the batch system."""
        return Profile(**{name: getattr(self, name) for name in Profile.model_fields})
