"""What is asked of a batch system, and what differs in how sites want to be asked."""

from __future__ import annotations

import re
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal

from pydantic import Field, model_validator

from lading.hooks.files.table_model import Memory, TableModel

# No batch system takes more; a slip such as 0-999999999 must not fill the memory.
LARGEST_ARRAY = 4_000_000
_COUNT = re.compile(r"[0-9]{1,9}")
_SPAN = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?")
LONGEST_TITLE = 100
_TITLED = re.compile(r".+\.(L[0-9a-f]{14}\b.*)", re.DOTALL)
# A name that can end no directive, wherever it stands in one.
_NODE = re.compile(r"[A-Za-z0-9][\w.-]{0,252}", re.ASCII)


def new_name() -> str:
    """The name of a submission or an order, unlike any other; TORQUE takes names of 15 characters."""
    return f"L{uuid.uuid4().hex[:14]}"


def titled(name: str, title: str, others: str = "_") -> str:
    """A name of :func:`new_name` that also says what it is for; people read it in lists of the batch system.

    :param title: any text
    :param others: what may stand in it beside letters, digits, dashes and dots
    """
    text = title if "=" in others else title.replace("=", "-")
    plain = re.sub(rf"[^A-Za-z0-9.{re.escape(others)}-]+", "_", text)[:LONGEST_TITLE]
    return f"{plain if plain[:1].isalpha() else f'r{plain}'}.{name}"


def untitled(name: str) -> str:
    """The name of :func:`new_name` in one that says what it is for."""
    match = _TITLED.fullmatch(name)
    return name if match is None else match[1]


@dataclass(frozen=True, slots=True)
class ArrayRange:
    """The elements of a job array.

    :param indices: as text: ``0-9``, ``1-9:2``, ``1,3,7-9``
    :param max_running: so many of them run at once; None: any number
    :raises ValueError: it is no such text, an index comes twice, or the number is not positive
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
        if len(self) > LARGEST_ARRAY:
            raise ValueError(
                f"array indices {self.indices!r} are {len(self)}; no more than {LARGEST_ARRAY} are possible"
            )
        if len(set(self)) < len(self):
            raise ValueError(f"array indices {self.indices!r} have an index twice; write each once")

    @classmethod
    def parse(cls, text: str) -> ArrayRange:
        """The elements as people write them: ``1-10``, ``0-9:3``, ``1,3,7-9``, each with ``%4`` behind it for at most
        four at once.

        :raises ValueError: it is no such text
        """
        indices, percent, most = text.partition("%")
        if percent and not _COUNT.fullmatch(most):
            raise ValueError(f"array {text!r} is not valid; write for example 1-10, 0-9:3, 1,3,7-9 or 1-10%4")
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
    """What one submission asks for. None: not given; the batch system's own default holds.

    :param jobname: its name
    :param queue: the queue, which SLURM calls partition
    :param time: seconds that it may run
    :param nodes: how many machines
    :param least_nodes: how many of them will do; a batch system that takes no range gives all
    :param ppn: processes on each of them
    :param threads: cpus of each process
    :param mem: MiB that the job needs on each node
    :param stdout: where its standard output goes
    :param stderr: where its standard error goes; the same as ``stdout``: both into one file
    :param gpus: how many on each node
    :param gpu_type: their type, as the site calls it
    :param native: directives in the scheduler's own keys, without dashes; True: a bare flag; None, False: left out
    :param array: the elements, if it is a job array
    :param excluded_nodes: the names of machines on which it should not run
    :param comment: what people may read beside its name, where the batch system keeps that
    :raises ValueError: a number is not positive, or what is excluded is no name of a machine
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
                    f"excluded node {node!r} is no name of a machine: letters, digits, '-', '_' and '.' are"
                )

    @property
    def shaped(self) -> bool:
        """Whether nodes, ppn or threads are given."""
        return (self.nodes, self.ppn, self.threads) != (None, None, None)

    @property
    def processes(self) -> int:
        """Of the whole job; what is not given counts as 1."""
        return (self.nodes or 1) * (self.ppn or 1)

    @property
    def cpus_per_node(self) -> int:
        """What is not given counts as 1."""
        return (self.ppn or 1) * (self.threads or 1)

    @property
    def cpus(self) -> int:
        """Of the whole job; what is not given counts as 1."""
        return (self.nodes or 1) * self.cpus_per_node


class MemoryDialect(TableModel):
    """How a site wants memory to be asked for, where that differs from what is usual with its batch system.

    :param per: what the number is for: a ``node``, a ``cpu``, a ``slot`` (the same as a cpu, as SGE and LSF call it),
        the whole ``job``; ``none``: memory is not asked for at all
    :param unit: ``B``, ``K``, ``M``, ``G`` or ``T`` (powers of 1024); amounts are rounded up to whole ones
    :param resource: its name, such as ``h_vmem``, ``pmem`` or ``mem``; more than one with commas between
    """

    per: Literal["node", "cpu", "slot", "job", "none"] | None = Field(
        default=None,
        description="What the number is for: `node`, `cpu`, `slot` or `job`; `none`: memory is not asked for. Without "
        "it as is usual with the batch system.",
    )
    unit: Literal["B", "K", "M", "G", "T"] | None = Field(
        default=None, description="`B`, `K`, `M`, `G` or `T`, powers of 1024; likewise."
    )
    resource: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z][\w.-]*(,[A-Za-z][\w.-]*)*$",
        description="Its name, such as `h_vmem`; more than one with commas between; likewise.",
    )


class WholeNode(TableModel):
    """The machines of a site that gives jobs nothing less than a machine.

    :param cpus: what each has
    :param memory: what a job can have on each, such as ``64 GiB`` or a number of MiB; None: not given
    """

    cpus: int = Field(ge=1, description="Processors of each node.")
    memory: Memory | None = Field(default=None, description="Memory that a job can have on each.")


class Profile(TableModel):
    """What differs between sites with the same batch system. Every field is optional.

    With SLURM each index of an array is below ``max_array_size``. Of ``max_submitted`` each element of an array counts;
    more jobs are held back until some have ended.
    """

    nodes: Literal["ignore"] | None = Field(
        default=None,
        description="`ignore` where the site places by cores: jobs ask for processes, which may lie on any nodes; see "
        "job scripts.",
    )
    memory: MemoryDialect | None = Field(
        default=None, description="How memory is asked for: a table with `per`, `unit`, `resource`; see job scripts."
    )
    parallel_environment: str | None = Field(
        default=None,
        pattern=r"^[^\s\x00-\x1f\"']+$",
        description="Grid Engine: the parallel environment of jobs with more than one slot (`qconf -spl`).",
    )
    gpu_resource: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z][\w.:-]*$",
        description="What a GPU is called: gres, chunk resource or complex.",
    )
    gpu_type_resource: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z][\w.-]*$",
        description="PBS Pro and Grid Engine: the resource or complex that names the type of a GPU.",
    )
    whole_node: WholeNode | None = Field(
        default=None, description="Where jobs get whole nodes only: a table with `cpus` and `memory`."
    )
    max_array_size: int | None = Field(default=None, ge=1, description="How many elements a job array may have.")
    max_submitted: int | None = Field(
        default=None, ge=1, description="How many jobs the user may have submitted at a time; without it it is learned."
    )

    @model_validator(mode="after")
    def _ignores_nodes_altogether(self) -> Profile:
        if self.nodes is not None and self.whole_node is not None:
            raise ValueError("nodes = 'ignore' and whole_node contradict each other; keep one")
        if self.nodes is not None and self.memory is not None and self.memory.per == "node":
            raise ValueError("memory.per = 'node' means nothing where nodes = 'ignore'; valid: cpu, slot, job, none")
        return self

    def room(self, submitted: int) -> int:
        """How many more jobs may be submitted beside so many; any number where the site does not say."""
        return sys.maxsize if self.max_submitted is None else max(0, self.max_submitted - submitted)

    def scatters(self, request: BatchJobRequest) -> bool:
        """Whether the processes of a request may lie on any nodes; a single one has its node in any case."""
        return self.nodes == "ignore" and request.processes > 1
