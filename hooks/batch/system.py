"""What a batch system is: one interface for SLURM, PBS Pro, TORQUE, LSF, SGE and whatever a third party adds.

A batch system only translates: what is asked for becomes directives and commands, what commands say becomes jobs. It
runs nothing, waits for nothing and keeps nothing, so that it can be tested with recorded answers alone; transport,
retries and state live in shared code. Every question is about many jobs at once. How another system is added:
``docs/new_batch_system.md``.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from lading.hooks.batch.directives import Exclusion, Unsupported, one_line, refuse_conflicts, sets_any
from lading.hooks.batch.inventory import Survey
from lading.hooks.batch.refusals import CancelError, CouldNotAsk, SubmitError, Wording
from lading.hooks.files.table_model import TableModel
from lading.hooks.ssh.answer import Answer
from lading.scheduling.units import format_memory, parse_memory

__all__ = [
    "Answer",
    "ArrayRange",
    "BatchSystem",
    "CancelError",
    "CouldNotAsk",
    "Exclusion",
    "MemoryDialect",
    "NativeJob",
    "Profile",
    "Request",
    "SubmitError",
    "Unsupported",
    "WholeNode",
]

State = Literal["pending", "running", "ended"]
Cause = Literal["out_of_memory", "time_limit", "preempted", "node_failure", "cancelled", "error"]

# No batch system takes more; a slip such as 0-999999999 must not fill the memory.
LARGEST_ARRAY = 4_000_000
_COUNT = re.compile(r"[0-9]{1,9}")
_SPAN = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?")
# A name that can end no directive, wherever it stands in one.
_NODE = re.compile(r"[A-Za-z0-9][\w.-]{0,252}", re.ASCII)


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
class Request:
    """What one submission asks for. None: not given; the batch system's own default holds.

    :param jobname: its name
    :param queue: the queue, which SLURM calls partition
    :param time: seconds that it may run
    :param nodes: how many machines
    :param ppn: processes on each of them
    :param threads: cpus of each process
    :param mem: MiB that the job needs on each node
    :param stdout: where its standard output goes
    :param stderr: where its standard error goes; the same as ``stdout``: both into one file
    :param gpus: how many on each node
    :param native: directives in the scheduler's own keys, without dashes; True: a bare flag; None, False: left out
    :param array: the elements, if it is a job array
    :param excluded_nodes: the names of machines on which it shall not run
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

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, int) and value < 1:
                raise ValueError(f"{each.name} = {value} is not valid; it must be 1 or more")
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

    per: Literal["node", "cpu", "slot", "job", "none"] | None = None
    unit: Literal["B", "K", "M", "G", "T"] | None = None
    resource: str | None = Field(default=None, pattern=r"^[A-Za-z][\w.-]*(,[A-Za-z][\w.-]*)*$")


class WholeNode(TableModel):
    """The machines of a site that gives jobs nothing less than a machine.

    :param cpus: what each has
    :param memory: what a job can have on each, such as ``64 GiB`` or a number of MiB; None: nobody has said
    """

    cpus: int = Field(ge=1)
    memory: Annotated[int, BeforeValidator(parse_memory)] | None = None


class Profile(TableModel):
    """What differs between sites with the same batch system. Every field is optional.

    :param nodes: ``ignore`` where jobs are placed by cores: they ask for processes, which may lie on any nodes
    :param memory: how memory is asked for
    :param parallel_environment: SGE: the one that jobs with more than one slot run in (``qconf -spl`` lists them)
    :param gpu_resource: what a gpu is called: SLURM's gres, a PBS Pro chunk's or an SGE complex's resource
    :param whole_node: set where jobs get whole machines only; they are asked for as such
    :param max_array_size: how many elements a job array may have at most; with SLURM, each index is below it
    :param max_submitted: how many jobs, each array element counted, a user may have submitted at a time; more are held
        back until some have ended. Without it the limit is learned from refusals
    """

    nodes: Literal["ignore"] | None = None
    memory: MemoryDialect | None = None
    parallel_environment: str | None = Field(default=None, pattern=r"^[^\s\x00-\x1f\"']+$")
    gpu_resource: str | None = Field(default=None, pattern=r"^[A-Za-z][\w.:-]*$")
    whole_node: WholeNode | None = None
    max_array_size: int | None = Field(default=None, ge=1)
    max_submitted: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _ignores_nodes_altogether(self) -> Profile:
        if self.nodes is not None and self.whole_node is not None:
            raise ValueError("nodes = 'ignore' and whole_node contradict each other; keep one")
        if self.nodes is not None and self.memory is not None and self.memory.per == "node":
            raise ValueError("memory.per = 'node' means nothing where nodes = 'ignore'; valid: cpu, slot, job, none")
        return self

    def scatters(self, request: Request) -> bool:
        """Whether the processes of a request may lie on any nodes; a single one has its node in any case."""
        return self.nodes == "ignore" and request.processes > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeJob:
    """A job, or an element of a job array, as the batch system sees it.

    Ended with neither cause nor exit code means that the batch system does not say how; then the sentinel or the
    accounting may know. It is never a success by itself: see :attr:`succeeded`.

    :param id: as :meth:`BatchSystem.submitted` has given it; that of the array for its elements
    :param index: of the array element; None: no array
    :param name: as it was submitted; None: not known, or the batch system has cut it
    :param state: held and requeued jobs are pending; a state that Lading does not know counts as running
    :param reason: why it waits or how it ended, in words for the user
    :param cause: why it failed
    :param exit_code: as a shell has it: 128 + n for one that signal n has ended
    :param nodes: where it runs or ran, as the batch system writes it
    :param ended_at: by the site's clock, which may have no time zone
    """

    id: str
    state: State
    index: int | None = None
    name: str | None = None
    reason: str | None = None
    cause: Cause | None = None
    exit_code: int | None = None
    nodes: str | None = None
    ended_at: datetime | None = None

    @property
    def succeeded(self) -> bool | None:
        """Whether it is known to have succeeded or failed; None: it has not ended, or nobody knows yet."""
        if self.state != "ended" or (self.cause is None and self.exit_code is None):
            return None
        return self.cause is None and self.exit_code == 0


def unknown(system: str, state: str) -> str:
    """The reason of a job in a state that no table has. It is there, so it counts as running; never as ended."""
    return f"{system} says that its state is {state!r}, which Lading does not know"


class BatchSystem(ABC):
    """A batch system. Nothing here does any I/O; a command is a list of words, to be quoted where a shell reads it.

    :cvar name: what people call it; ``kind`` in the sites file
    :cvar prefix: what a directive begins with in a script
    :cvar grain: seconds to which a time limit is rounded up
    :cvar variables: the shell expression for each core variable: ID, WORKDIR, SUBMIT_HOST, NAME, ARRAY_INDEX, NODELIST
    :cvar isolation: native directives that keep the submitting process's environment out of the job
    :cvar no_requeue: native directives that keep the batch system from starting a job a second time
    :cvar leaks: what variables begin with that a job must not hand on to a batch system or to jobs inside it
    :cvar orders: likewise, of a job of several processes: MPI needs the others
    :cvar first_index: the smallest index of an array element
    :cvar smallest_array: the fewest elements an array may have
    :cvar max_array_size: the most elements where the profile does not say
    :cvar ascii_only: whether a script with other characters is not taken
    :cvar memory_is_refused: whether a process over its job's memory gets none and fails by itself, and nobody says so
    :cvar wording: what its refusals mean
    :cvar exclusion: how a job is kept away from nodes; None: the batch system has no word for it
    :cvar survey: how it tells which nodes and queues it has; None: it does not
    :cvar synonyms: for each setting of a directive, what it is the same as or cannot be given with; see
        :mod:`lading.hooks.batch.directives`
    """

    name: ClassVar[str]
    prefix: ClassVar[str]
    grain: ClassVar[int] = 1
    variables: ClassVar[Mapping[str, str]]
    isolation: ClassVar[Mapping[str, str | bool]] = {}
    no_requeue: ClassVar[Mapping[str, str | bool]]
    leaks: ClassVar[tuple[str, ...]]
    orders: ClassVar[tuple[str, ...]] = ("PMI", "PMIX_")
    first_index: ClassVar[int] = 0
    smallest_array: ClassVar[int] = 1
    max_array_size: ClassVar[int] = 1000
    ascii_only: ClassVar[bool] = False
    memory_is_refused: ClassVar[bool] = False
    wording: ClassVar[Wording]
    synonyms: ClassVar[Mapping[str, str]] = {}
    survey: ClassVar[Survey | None] = None
    exclusion: ClassVar[Exclusion | None] = None

    def directives(self, request: Request, profile: Profile) -> list[str]:
        """What stands in the script after the prefix, one directive each, such as ``--nodes=2``.

        :raises Unsupported: the batch system has no word for something, the site cannot give it, or a native directive
            says what Lading says
        """
        _refuse_oversized(request, profile)
        _refuse_gpus_of_no_node(request, profile)
        if request.array is not None:
            self._refuse_array(request.array, profile)
        own = self.resource_directives(request, profile)
        given = {key: value for key, value in request.native.items() if value is not None and value is not False}
        native = {key: self.native_directive(key, value) for key, value in given.items()}
        refuse_conflicts(own, native, self.synonyms)
        excluded = self._exclusion(request.excluded_nodes, list(native.values()))
        return [one_line(directive) for directive in (*own, *native.values(), *excluded)]

    def _exclusion(self, nodes: Sequence[str], native: Sequence[str]) -> list[str]:
        """The directive against nodes; a native one that says where the job shall run goes before it."""
        if not nodes:
            return []
        if self.exclusion is None:
            raise Unsupported(f"excluded nodes {', '.join(nodes)}: {self.name} has no word for nodes to keep away from")
        directive = self.exclusion.of(nodes)
        return [] if sets_any(directive, native, self.synonyms) else [directive]

    @abstractmethod
    def resource_directives(self, request: Request, profile: Profile) -> list[str]:
        """The directives for everything but the native ones.

        :raises Unsupported: as :meth:`directives`
        """

    @abstractmethod
    def native_directive(self, key: str, value: str | bool) -> str:
        """The directive for a key of the scheduler's own; True: a bare flag.

        :raises Unsupported: there can be no such directive
        """

    def interpreter_directives(self, path: str) -> list[str]:
        """The directives without which the batch system may not run a script with the interpreter of its first line.

        :param path: of the interpreter, without arguments
        """
        return []

    def refuse_script(self, script: str) -> None:
        """Refuse the text of a script that the submit command would not take.

        :raises Unsupported: it would not; the message names the line
        """
        for number, line in enumerate(script.split("\n") if self.ascii_only else (), 1):
            if not line.isascii():
                odd = next(character for character in line if not character.isascii())
                raise Unsupported(
                    f"line {number} of the batch script has {odd!r}, but {self.name} takes ASCII alone: "
                    f"{line.strip()[:100]!r}; write names, paths and the site's setup without it"
                )

    @abstractmethod
    def submit(self, path: str) -> list[str]:
        """The command that submits a script."""

    @abstractmethod
    def submitted(self, answer: Answer) -> str:
        """The native id in the answer to :meth:`submit`; of an array, that of the whole array.

        :raises SubmitError: there is none
        """

    @abstractmethod
    def element(self, id: str, index: int) -> str:
        """The native id of one element of an array."""

    @abstractmethod
    def status(self, user: str, ids: Sequence[str] = ()) -> list[str]:
        """The one command that asks for the state of many jobs; array elements come one by one.

        :param user: whose jobs they are
        :param ids: as :meth:`submitted` has given them; empty: all jobs of the user, to look one up by its name. The
            answer may be about other jobs of the user, too
        """

    def lookup(self, user: str, ids: Sequence[str]) -> list[str]:
        """The one command that asks for all jobs of the user, one of which is known by its name alone.

        :param ids: those that are known; to be asked for, too, where the list of all leaves out those that have ended
        """
        return self.status(user)

    @abstractmethod
    def statuses(self, answer: Answer) -> list[NativeJob]:
        """The jobs in the answer to :meth:`status`. What is said of those that it does not have: :meth:`unknown`.

        :raises CouldNotAsk: it is no answer
        """

    def unknown(self, answer: Answer, ids: Sequence[str], *, listed: bool) -> Collection[str]:
        """The ids of which the answer to :meth:`status` says that no more is there than it shows.

        An id that is neither answered nor among these could not be asked for: nothing follows from that, where it would
        be taken for gone otherwise. An answer about all jobs of the user says it of each; one about the jobs that were
        named says it where it declares them unknown, by the words of :attr:`wording`.

        :param ids: those that were asked for, as :meth:`submitted` has given them
        :param listed: whether all jobs of the user were asked for: :meth:`status` is the same with ids and without
        """
        if listed:
            return ids
        named, others = self.wording.declared_gone(answer, ids)
        return ids if others and not self.statuses(answer) else named

    @abstractmethod
    def cancel(self, ids: Sequence[str]) -> list[str]:
        """The command that ends jobs, waiting or running.

        :param ids: as :meth:`submitted` or :meth:`element` has given them; at least one
        """

    def cancelled(self, answer: Answer) -> None:
        """Check the answer to :meth:`cancel`. Jobs that have ended already are no fault.

        :raises CancelError: not all were cancelled, or that is not known
        """
        self.wording.check_cancelled(answer)

    def accounting(self, ids: Sequence[str], user: str, since: datetime) -> list[str] | None:
        """The command that asks for jobs that have ended and are gone; None: there is none.

        :param ids: as :meth:`submitted` has given them; at least one
        :param since: none of them was submitted earlier, by the site's clock
        """
        return None

    def accounted(self, answer: Answer) -> list[NativeJob]:
        """The jobs in the answer to :meth:`accounting`.

        :raises CouldNotAsk: it is no answer, or the site keeps no accounts
        """
        raise CouldNotAsk(f"{self.name} has no accounting that users can read")

    def _refuse_array(self, array: ArrayRange, profile: Profile) -> None:
        most = profile.max_array_size
        smallest = min(array)
        if smallest < self.first_index:
            raise Unsupported(f"array index {smallest}: with {self.name} the first is {self.first_index}")
        if most is not None and len(array) > most:
            raise Unsupported(f"array {array}: {len(array)} elements, but max_array_size is {most}; submit it in parts")
        if profile.max_submitted is not None and len(array) > profile.max_submitted:
            raise Unsupported(
                f"array {array}: {len(array)} elements, but max_submitted is {profile.max_submitted}; "
                "submit it in parts"
            )
        if len(array) < self.smallest_array:
            raise Unsupported(
                f"array {array}: {self.name} takes arrays of {self.smallest_array} elements and more; submit a job"
            )


def _refuse_gpus_of_no_node(request: Request, profile: Profile) -> None:
    if request.gpus and profile.scatters(request):
        raise Unsupported(
            f"gpus = {request.gpus}: they are for each node, but the site says nodes = 'ignore', and "
            f"{request.processes} processes may lie on any number of them; ask for one process, or at a site with nodes"
        )


def _refuse_oversized(request: Request, profile: Profile) -> None:
    node = profile.whole_node
    if node is None:
        return
    if request.cpus_per_node > node.cpus:
        raise Unsupported(
            f"ppn × threads = {request.cpus_per_node}, but whole_node says that a node has {node.cpus} cpus; "
            "ask for more nodes with fewer processes on each"
        )
    if request.mem is not None and node.memory is not None and request.mem > node.memory:
        raise Unsupported(
            f"mem = {format_memory(request.mem)}, but whole_node says that a node has {format_memory(node.memory)}"
        )
