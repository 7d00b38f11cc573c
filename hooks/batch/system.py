"""What a batch system is: one interface for SLURM, PBS Pro, TORQUE, LSF, SGE and whatever a third party adds.

A batch system only translates: what is asked for becomes directives and commands, what commands say becomes jobs. It
runs nothing, waits for nothing and keeps nothing, so that it can be tested with recorded answers alone; transport,
retries and state live in shared code. Every question is about many jobs at once. How another system is added:
``docs/how_to/new_batch_system.md``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Literal

from lading.hooks.batch.directives import Exclusion, Unsupported, one_line, refuse_conflicts, sets_any, settings
from lading.hooks.batch.inventory import Survey
from lading.hooks.batch.memory import MemoryUnit
from lading.hooks.batch.refusals import CancelError, CouldNotAsk, SubmitError, Wording
from lading.hooks.batch.request import ArrayRange, BatchJobRequest, MemoryDialect, Profile, WholeNode
from lading.hooks.ssh.answer import CommandResult
from lading.scheduling.text.units import format_memory

__all__ = [
    "ArrayRange",
    "BatchJobRequest",
    "BatchSystem",
    "CancelError",
    "CommandResult",
    "CouldNotAsk",
    "Exclusion",
    "MemoryDialect",
    "NativeJob",
    "Profile",
    "SubmitError",
    "Unsupported",
    "WholeNode",
]

State = Literal["pending", "running", "ended"]
Cause = Literal["out_of_memory", "time_limit", "preempted", "node_failure", "cancelled", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeJob:
    """A job, or an element of a job array, as the batch system sees it.

    Ended with neither cause nor exit code means that the batch system does not say how; then the sentinel or the
    accounting may know. It is never a success by itself: see :attr:`succeeded`.

    :param id: as :meth:`BatchSystem.submitted` has given it; that of the array for its elements
    :param index: of the array element; None: no array
    :param name: as it was submitted; None: not known, or the batch system has cut it
    :param state: held and requeued jobs are pending; a state that Lading does not know counts as running for a while
    :param reason: why it waits or how it ended, as text for the user
    :param cause: why it failed; of one that waits, why it will never start: ``error``, or ``node_failure`` where a node
        could not launch it, so that another one may
    :param exit_code: as a shell has it: 128 + n for one that signal n has ended
    :param nodes: where it runs or ran, as the batch system writes it
    :param starts_at: of one that waits: when the batch system expects it to start, epoch seconds by its clock; None: it
        does not say
    :param never: of one that waits: whether it can never start as things are, which an administrator may change
    :param strange: whether its state is none that Lading knows: after a deadline its files and the accounting decide
    """

    id: str
    state: State
    index: int | None = None
    name: str | None = None
    reason: str | None = None
    cause: Cause | None = None
    exit_code: int | None = None
    nodes: str | None = None
    starts_at: float | None = None
    never: bool = False
    strange: bool = False

    @property
    def succeeded(self) -> bool | None:
        """Whether it is known to have succeeded or failed; None: it has not ended, or that is not known yet."""
        if self.state != "ended" or (self.cause is None and self.exit_code is None):
            return None
        return self.cause is None and self.exit_code == 0


def unknown(system: str, state: str) -> str:
    """The reason of a job in a state that no table has. It is there, so it counts as running for a while."""
    return f"{system} reports its state as {state!r}, which Lading does not know"


class BatchSystem(ABC):
    """A batch system. Nothing here does any I/O; a command is a list of arguments, to be quoted where a shell reads it.

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
    :cvar memory_is_refused: whether a process over its job's memory gets none and fails by itself, unreported
    :cvar wording: what its refusals mean
    :cvar exclusion: how a job is kept away from nodes; None: the batch system has no option for it
    :cvar survey: how it lists its nodes and queues; None: it does not
    :cvar granted_nodes: the shell expression for how many nodes a job has got, where it takes a range of them
        (``2-8``); None: it takes none, and a job asks for the most of its range
    :cvar memory_unit: how it shows in which unit it counts memory, where sites differ; None: they do not
    :cvar in_titles: what may stand in the name of a job beside letters, digits, dashes and dots, where that has room
        for more than 15 characters, and is shown whole; None: it has not
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
    granted_nodes: ClassVar[str | None] = None
    memory_unit: ClassVar[MemoryUnit | None] = None
    exclusion: ClassVar[Exclusion | None] = None
    in_titles: ClassVar[str | None] = None

    def directives(self, request: BatchJobRequest, profile: Profile) -> list[str]:
        """What stands in the script after the prefix, one directive each, such as ``--nodes=2``.

        :raises Unsupported: the batch system has no option for something, the site cannot give it, or a native
            directive says what Lading says
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

    def header(self, request: BatchJobRequest, profile: Profile, shell: str) -> list[str]:
        """The first lines of a script that is submitted: what runs it, and the directives.

        :param shell: with its arguments, if it has any
        :raises Unsupported: as :meth:`directives`
        """
        directives = self.directives(request, profile)
        if not request.native.get("S"):  # with which PBS and Grid Engine name another one
            directives += self.interpreter_directives(shell.split(maxsplit=1)[0])
        return [f"#!{shell}", *(f"{self.prefix} {each}" for each in directives)]

    def _exclusion(self, nodes: Sequence[str], native: Sequence[str]) -> list[str]:
        """The directive against nodes; a native one that says where the job should run goes before it."""
        if not nodes:
            return []
        if self.exclusion is None:
            raise Unsupported(f"excluded nodes {', '.join(nodes)}: {self.name} has no option to avoid nodes")
        directive = self.exclusion.render(nodes)
        return [] if sets_any(directive, native, self.synonyms) else [directive]

    @abstractmethod
    def resource_directives(self, request: BatchJobRequest, profile: Profile) -> list[str]:
        """The directives for everything but the native ones.

        :raises Unsupported: as :meth:`directives`
        """

    @abstractmethod
    def native_directive(self, key: str, value: str | bool) -> str:
        """The directive for a key of the scheduler's own; True: a bare flag.

        :raises Unsupported: there can be no such directive
        """

    def settings(self, key: str, value: str | bool) -> list[str]:
        """What a native directive sets, as :func:`lading.hooks.batch.directives.settings` has it; False: takes away.

        :raises Unsupported: there can be no such directive
        """
        try:
            return settings(self.native_directive(key, True if value is False else value))
        except Unsupported:
            if value is not False:
                raise
            return [key]  # one that needs a value, whatever that was

    def options(self, key: str) -> frozenset[str]:
        """The options that the submit command may take a native key for: itself, and where that is none, those of
        one letter that it is made of, the last of them with its argument attached.
        """
        return frozenset((key,))

    def one_name(self, setting: str) -> str:
        """The one name of what a directive sets, of those that mean the same or cannot be given together."""
        return self.synonyms.get(setting, setting)

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
    def submitted(self, answer: CommandResult) -> str:
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
    def statuses(self, answer: CommandResult) -> list[NativeJob]:
        """The jobs in the answer to :meth:`status`. What is said of those that it does not have: :meth:`unknown`.

        :raises CouldNotAsk: it is no answer
        """

    def unknown(self, answer: CommandResult, ids: Sequence[str], *, listed: bool) -> Collection[str]:
        """The ids of which the answer to :meth:`status` says that no more is there than it shows.

        An id that is neither answered nor among these could not be asked for: nothing follows from that, where it would
        be taken for gone otherwise. An answer about all jobs of the user says it of each; one about the jobs that were
        named says it where it declares them unknown, by the patterns of :attr:`wording`.

        :param ids: those that were asked for, as :meth:`submitted` has given them
        :param listed: whether all jobs of the user were asked for: :meth:`status` is the same with ids and without
        """
        if listed:
            return ids
        named, others = self.wording.declared_gone(answer, ids)
        return ids if others and not self.statuses(answer) else named

    def lists_all(self, answer: CommandResult) -> bool:
        """Whether an answer to :meth:`lookup` lists all jobs of the user, so that a name that it lacks is no job's."""
        return True

    @abstractmethod
    def cancel(self, ids: Sequence[str]) -> list[str]:
        """The command that ends jobs, waiting or running.

        :param ids: as :meth:`submitted` or :meth:`element` has given them; at least one
        """

    def cancelled(self, answer: CommandResult) -> None:
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

    def accounted(self, answer: CommandResult) -> list[NativeJob]:
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


def gpu_type_resource(request: BatchJobRequest, profile: Profile) -> str:
    """What names the type of a GPU where the batch system itself has no word for it.

    :raises Unsupported: the site does not say
    """
    if profile.gpu_type_resource is None:
        raise Unsupported(
            f"gpus of type {request.gpu_type}: set gpu_type_resource of the site to the resource that names the type"
        )
    return profile.gpu_type_resource


def _refuse_gpus_of_no_node(request: BatchJobRequest, profile: Profile) -> None:
    if request.gpus and profile.scatters(request):
        raise Unsupported(
            f"gpus = {request.gpus}: they are for each node, but the site says nodes = 'ignore', and "
            f"{request.processes} processes may lie on any number of them; ask for one process, or at a site with nodes"
        )


def _refuse_oversized(request: BatchJobRequest, profile: Profile) -> None:
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
