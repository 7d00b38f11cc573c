"""The request of a batch job, and the profile of a site: how the requests of one site differ from another's."""

from __future__ import annotations

import re
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal

from pydantic import Field, model_validator

from lading.hooks.files.table_model import Memory, TableModel

_COUNT = re.compile(r"[0-9]{1,9}")
_SPAN = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?")
_TITLED = re.compile(r".+\.(L[0-9a-f]{14}\b.*)", re.DOTALL)
# A host name whose characters cannot end a directive.
_NODE = re.compile(r"[A-Za-z0-9][\w.-]{0,252}", re.ASCII)


def new_name() -> str:
    """Return a unique name for a submission or an order. It has 15 characters, the maximum of TORQUE."""
    return f"L{uuid.uuid4().hex[:14]}"


def titled(name: str, title: str, others: str = "_") -> str:
    """Return a name of :func:`new_name` with a title in front of it, for people who read the batch system's job lists.

    :param title: any text
    :param others: characters that the title can have in addition to letters, digits, dashes and dots
    """
    text = title if "=" in others else title.replace("=", "-")
    plain = re.sub(rf"[^A-Za-z0-9.{re.escape(others)}-]+", "_", text)[:100]
    return f"{plain if plain[:1].isalpha() else f'r{plain}'}.{name}"


def untitled(name: str) -> str:
    """Return the name of :func:`new_name` within a titled name."""
    match = _TITLED.fullmatch(name)
    return name if match is None else match[1]


@dataclass(frozen=True, slots=True)
class ArrayRange:
    """The elements of a job array.

    :param indices: as text: ``0-9``, ``1-9:2``, ``1,3,7-9``
    :param max_running: how many of them can run at once; None: any number
    :raises ValueError: the text is not valid, an index occurs twice, or the number is not positive
    """

    indices: str
    max_running: int | None = None

    def __post_init__(self) -> None:
        for span in self.indices.split(","):
            match = _SPAN.fullmatch(span)
            if not match or (match[2] and int(match[2]) < int(match[1])) or (match[3] and int(match[3]) < 1):
                raise ValueError(
                    f"array indices {self.indices!r} are not valid; write for example 0-9, 1-9:2 or 1,3,7-9"
                )
        if self.max_running is not None and self.max_running < 1:
            raise ValueError(f"max_running = {self.max_running} is not positive; leave it out for no limit")
        # No batch system accepts more; a typo such as 0-999999999 must not exhaust the memory.
        if len(self) > 4_000_000:
            raise ValueError(f"array indices {self.indices!r} name {len(self)} elements; the maximum is 4000000")
        if len(set(self)) < len(self):
            raise ValueError(f"array indices {self.indices!r} have an index twice; write each once")

    @classmethod
    def parse(cls, text: str) -> ArrayRange:
        """Parse elements as people write them: ``1-10``, ``0-9:3`` or ``1,3,7-9``; a suffix ``%4`` allows four at once.

        :raises ValueError: the text is not valid
        """
        indices, percent, most = text.partition("%")
        if percent and not _COUNT.fullmatch(most):
            raise ValueError(f"array {text!r} is not valid; write for example '1-10', '0-9:3', '1,3,7-9' or '1-10%4'")
        return cls(indices, int(most) if percent else None)

    @property
    def _spans(self) -> list[range]:
        matches = [_SPAN.fullmatch(span) for span in self.indices.split(",")]
        return [range(int(m[1]), int(m[2] or m[1]) + 1, int(m[3] or 1)) for m in matches if m]

    def __iter__(self) -> Iterator[int]:
        for span in self._spans:
            yield from span

    def __len__(self) -> int:
        return sum(map(len, self._spans))

    def __str__(self) -> str:
        return self.indices if self.max_running is None else f"{self.indices}%{self.max_running}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchJobRequest:
    """The resources and options of one submission. None: not set, so the batch system's default applies.

    :param jobname: name of the job
    :param queue: the queue, called partition in SLURM
    :param time: maximum run time in seconds
    :param nodes: number of nodes
    :param least_nodes: how many of them suffice; a batch system that takes no range gives all of them
    :param ppn: processes on each node
    :param threads: cpus of each process
    :param mem: MiB that the job needs on each node
    :param stdout: file for its standard output
    :param stderr: file for its standard error; if it equals ``stdout``, both go into one file
    :param gpus: number on each node
    :param gpu_type: their type, in the site's notation
    :param native: native directives by the batch system's own keys, without dashes; True: a bare flag; None, False:
        left out
    :param array: the elements, if it is a job array
    :param excluded_nodes: names of nodes on which it must not run
    :param comment: text for people, shown next to its name if the batch system has such a field
    :raises ValueError: a number is not positive, or an excluded node is not a valid host name
    """

    jobname: str | None = None
    queue: str | None = None
    time: int | None = None
    nodes: int | None = None
    ppn: int | None = None
    threads: int | None = None
    mem: int | None = None
    stdout: str | None = None
    stderr: str | None = None
    gpus: int | None = None
    native: Mapping[str, str | bool | None] = field(default_factory=dict)
    array: ArrayRange | None = None
    excluded_nodes: Sequence[str] = ()
    least_nodes: int | None = None
    gpu_type: str | None = None
    comment: str | None = None

    def __post_init__(self) -> None:
        for own_field in fields(self):
            value = getattr(self, own_field.name)
            if isinstance(value, int) and value < 1:
                raise ValueError(f"{own_field.name} = {value} is not valid; it must be 1 or more")
        for node in self.excluded_nodes:
            if not _NODE.fullmatch(node):
                raise ValueError(
                    f"excluded node {node!r} is not a valid host name; valid characters: letters, digits, '-', '_', '.'"
                )

    @property
    def shaped(self) -> bool:
        """Whether nodes, ppn or threads are set."""
        return (self.nodes, self.ppn, self.threads) != (None, None, None)

    @property
    def processes(self) -> int:
        """Processes of the whole job; numbers that are not set count as 1."""
        return (self.nodes or 1) * (self.ppn or 1)

    @property
    def cpus_per_node(self) -> int:
        """Cpus on each node; numbers that are not set count as 1."""
        return (self.ppn or 1) * (self.threads or 1)

    @property
    def cpus(self) -> int:
        """Cpus of the whole job; numbers that are not set count as 1."""
        return (self.nodes or 1) * self.cpus_per_node


class MemoryDialect(TableModel):
    """How a site expects memory requests, where that differs from its batch system's default.

    :param per: what the number refers to: a ``node``, a ``cpu``, a ``slot`` (a cpu in the terms of SGE and LSF) or the
        whole ``job``; ``none``: memory is not requested at all
    :param unit: ``B``, ``K``, ``M``, ``G`` or ``T`` (powers of 1024); amounts are rounded up to whole units
    :param resource: name of the resource, such as ``h_vmem``, ``pmem`` or ``mem``; several are separated by commas
    """

    per: Literal["node", "cpu", "slot", "job", "none"] | None = Field(
        default=None,
        description="What the requested memory is for: a `node`, `cpu`, `slot` or `job`. With `none`, no memory is "
        "requested. The default depends on the batch system.",
    )
    unit: Literal["B", "K", "M", "G", "T"] | None = Field(
        default=None,
        description=(
            "The unit of the requested memory: `B`, `K`, `M`, `G` or `T`, which are powers of 1024. The default "
            "depends on the batch system."
        ),
    )
    resource: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z][\w.-]*(,[A-Za-z][\w.-]*)*$",
        description="The name of the resource, such as `h_vmem`, or several names separated by commas. The default "
        "depends on the batch system.",
    )


class WholeNode(TableModel):
    """The nodes of a site that gives jobs only whole nodes.

    :param cpus: cpus of each node
    :param memory: memory of each node that a job can use, such as ``64 GiB`` or a number of MiB; None: not set
    """

    cpus: int = Field(ge=1, description="Processors of each node.")
    memory: Memory | None = Field(default=None, description="Memory of each node that a job can use.")


class Profile(TableModel):
    """The differences between sites with the same batch system. Every field is optional.

    In SLURM, ``max_array_size`` is the exclusive upper bound of array indices. Each element of an array counts towards
    ``max_submitted``; further jobs wait until some have ended.
    """

    nodes: Literal["ignore"] | None = Field(
        default=None,
        description="Set this to `ignore` if the batch system allocates cores instead of nodes. Jobs then request "
        "processes, which can run on any nodes. See [job scripts](job_scripts.md).",
    )
    memory: MemoryDialect | None = Field(
        default=None,
        description=(
            "How Lading requests memory: a table with the keys `per`, `unit` and `resource`. See [job "
            "scripts](job_scripts.md)."
        ),
    )
    parallel_environment: str | None = Field(
        default=None,
        pattern=r"^[^\s\x00-\x1f\"']+$",
        description=(
            "Grid Engine: the parallel environment of jobs with more than one slot. `qconf -spl` lists the "
            "environments."
        ),
    )
    gpu_resource: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z][\w.:-]*$",
        description=(
            "The name under which the batch system counts GPUs: a gres (SLURM), chunk resource (PBS Pro) or "
            "complex (Grid Engine)."
        ),
    )
    gpu_type_resource: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z][\w.-]*$",
        description="PBS Pro and Grid Engine: the resource or complex whose value is the type of a GPU.",
    )
    whole_node: WholeNode | None = Field(
        default=None,
        description="Set this if each job gets a whole node: a table with the `cpus` and `memory` of a node.",
    )
    max_array_size: int | None = Field(default=None, ge=1, description="Maximum number of elements of a job array.")
    max_submitted: int | None = Field(
        default=None,
        ge=1,
        description=(
            "Maximum number of jobs that the user can have submitted at the same time. If not set, Lading learns "
            "it from rejected submissions."
        ),
    )

    @model_validator(mode="after")
    def _ignores_nodes_altogether(self) -> Profile:
        if self.nodes is not None and self.whole_node is not None:
            raise ValueError("nodes = 'ignore' and whole_node contradict each other; keep one")
        if self.nodes is not None and self.memory is not None and self.memory.per == "node":
            raise ValueError("memory.per = 'node' has no meaning with nodes = 'ignore'; valid: cpu, slot, job, none")
        return self

    def room(self, submitted: int) -> int:
        """Return how many more jobs can be submitted, given the number of submitted ones; no limit if it is not set."""
        return sys.maxsize if self.max_submitted is None else max(0, self.max_submitted - submitted)

    def scatters(self, request: BatchJobRequest) -> bool:
        """Whether the processes of a request can be spread over any nodes; a single process always has one node."""
        return self.nodes == "ignore" and request.processes > 1
