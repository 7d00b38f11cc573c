"""The interface of a batch system, implemented for SLURM, PBS Pro, TORQUE, LSF and SGE, and by third parties.

A batch system only translates: requests into directives and commands, and the output of commands into jobs. It runs
nothing, waits for nothing and stores nothing, so recorded output is enough to test it. Transport, retries and state are
in shared code. Every query covers many jobs at once. How to add a batch system: ``docs/how_to/new_batch_system.md``.
"""

from __future__ import annotations

import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from typing import ClassVar, Literal

from lading.hooks.batch.directives import Exclusion, Unsupported, one_line, refuse_conflicts, sets_any, settings
from lading.hooks.batch.dry_run import DryRun
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
    """A job, or an element of a job array, as the batch system reports it.

    A job that has ended with neither cause nor exit code is not a success: the batch system does not report how it
    ended, and the sentinel or the accounting may know. See :attr:`succeeded`.

    :param id: as :meth:`BatchSystem.submitted` returned it; for an element, the ID of its array
    :param index: index of the array element; None: not an array
    :param name: as submitted; None: unknown, or truncated by the batch system
    :param state: held and requeued jobs are pending; a state unknown to Lading counts as running for a while
    :param reason: why the job waits or how it ended, as text for the user
    :param cause: why the job failed or, for a pending job, why it will never start: ``error``, or ``node_failure`` if a
        node could not launch it, so that another node may succeed
    :param exit_code: as a shell reports it: 128 + n after signal n
    :param nodes: where the job runs or ran, in the batch system's notation
    :param starts_at: when the batch system expects a pending job to start, in epoch seconds by its own clock; None: it
        does not say
    :param never: whether a pending job cannot start under the current configuration, which an administrator can change
    :param strange: whether Lading does not know the state; after a deadline, the job's files and the accounting decide
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
        """Whether the job succeeded; None: it has not ended, or its result is unknown."""
        if self.state != "ended" or (self.cause is None and self.exit_code is None):
            return None
        return self.cause is None and self.exit_code == 0


def unknown(system: str, state: str) -> str:
    """Return the reason of a job whose state is in no table. The job is listed, so it counts as running for a while."""
    return f"{system} reports its state as {state!r}, which Lading does not know"


class BatchSystem(ABC):
    """A batch system. It does no I/O. A command is a list of arguments, which callers quote for the shell.

    :cvar name: its usual name; ``kind`` in the sites file
    :cvar prefix: start of a directive in a script
    :cvar grain: seconds to which a time limit is rounded up
    :cvar variables: the shell expression for each core variable: ID, WORKDIR, SUBMIT_HOST, NAME, ARRAY_INDEX, NODELIST
    :cvar isolation: native directives that keep the environment of the submitting process out of the job
    :cvar no_requeue: native directives that prevent the batch system from starting a job a second time
    :cvar leaks: prefixes of variables that a task must not pass on to a batch system or to nested jobs
    :cvar orders: the same for a task with several processes, where MPI needs the remaining variables
    :cvar first_index: smallest index of an array element
    :cvar smallest_array: minimum number of elements of an array
    :cvar max_array_size: maximum number of elements if the profile does not set it
    :cvar ascii_only: whether scripts with non-ASCII characters are refused
    :cvar memory_is_refused: whether memory beyond a job's limit is refused to its processes, which then fail by
        themselves, so that the batch system reports no cause
    :cvar wording: the meaning of its refusals
    :cvar exclusion: how to keep a job away from nodes; None: the batch system has no option for it
    :cvar survey: how to list its nodes and queues; None: not possible
    :cvar dry_run: how to ask whether it would accept a script; None: not possible
    :cvar granted_nodes: shell expression for the number of nodes that a job got, if the batch system accepts a range of
        nodes (``2-8``); None: it accepts no range, and a job requests the maximum
    :cvar memory_unit: how to find out in which unit it counts memory, where sites differ; None: they do not
    :cvar in_titles: characters allowed in a job name in addition to letters, digits, dashes and dots, if names can be
        longer than 15 characters and are shown in full; None: they cannot
    :cvar synonyms: for each setting of a directive, the setting that is equivalent or conflicts with it; see
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
    dry_run: ClassVar[DryRun | None] = None
    granted_nodes: ClassVar[str | None] = None
    memory_unit: ClassVar[MemoryUnit | None] = None
    exclusion: ClassVar[Exclusion | None] = None
    in_titles: ClassVar[str | None] = None

    def directives(self, request: BatchJobRequest, profile: Profile) -> list[str]:
        """Return the directives of a script without their prefix, for example ``--nodes=2``.

        :raises Unsupported: the batch system has no option for a part of the request, the site cannot provide it, or a
            native directive sets what Lading sets
        """
        _refuse_oversized(request, profile)
        _refuse_gpus_of_no_node(request, profile)
        if request.array is not None:
            self._refuse_array(request.array, profile)
        own = self.resource_directives(request, profile)
        given = {key: value for key, value in request.native.items() if value is not None and value is not False}
        native = {key: self.native_directive(key, value) for key, value in given.items()}
        refuse_conflicts(own, native, self.synonyms)
        self.clusters(native.values())
        excluded = self._exclusion(request.excluded_nodes, list(native.values()))
        return [one_line(directive) for directive in (*own, *native.values(), *excluded)]

    def header(self, request: BatchJobRequest, profile: Profile, shell: str) -> list[str]:
        """Return the first lines of a script: the line that names its interpreter, and the directives.

        :param shell: the interpreter with its arguments, if any
        :raises Unsupported: see :meth:`directives`
        """
        directives = self.directives(request, profile)
        if not request.native.get("S"):  # PBS and Grid Engine: the option that names another interpreter
            directives += self.interpreter_directives(shell.split(maxsplit=1)[0])
        return [f"#!{shell}", *(f"{self.prefix} {each}" for each in directives)]

    def clusters(self, directives: Iterable[str]) -> tuple[str, ...]:
        """Return the clusters that directives name; the batch system runs the job in one of them, which its native ID
        names. Empty: the job runs in the cluster of the host that submits it.

        :raises Unsupported: the names are not valid
        """
        return ()

    def native_clusters(self, native: Mapping[str, str | bool | None]) -> tuple[str, ...]:
        """Return the clusters that native directives name, see :meth:`clusters`."""
        given = {key: value for key, value in native.items() if value is not None and value is not False}
        return self.clusters(self.native_directive(key, value) for key, value in given.items())

    def clusters_of_script(self, script: str) -> tuple[str, ...]:
        """Return the clusters that the header of a script names, see :meth:`clusters`."""
        return self.clusters(self._directives_of(script))

    def options_of_script(self, script: str) -> dict[str, str]:
        """Return the options in the header of a script with their values, by the one name of each."""
        found = {}
        for directive in self._directives_of(script):
            value = re.sub(r"^--?[\w-]+[= ]?", "", directive)
            found[self.one_name(settings(directive)[0])] = " ".join(shlex.split(value))
        return found

    def _directives_of(self, script: str) -> list[str]:
        header = takewhile(lambda line: line.startswith("#"), script.splitlines())
        return [line[len(self.prefix) :].strip() for line in header if line.startswith(self.prefix)]

    def own_id(self, variable: str, clusters: Sequence[str]) -> str:
        """Return the shell expression with which a job writes its native ID as :meth:`submitted` returns it.

        :param variable: the expression for the ID within its cluster
        :param clusters: those that the job's directives name
        """
        return variable

    def _exclusion(self, nodes: Sequence[str], native: Sequence[str]) -> list[str]:
        """Return the directive that excludes nodes. A native directive that chooses nodes takes precedence over it."""
        if not nodes:
            return []
        if self.exclusion is None:
            raise Unsupported(f"excluded nodes {', '.join(nodes)}: {self.name} has no option to avoid nodes")
        directive = self.exclusion.render(nodes)
        return [] if sets_any(directive, native, self.synonyms) else [directive]

    @abstractmethod
    def resource_directives(self, request: BatchJobRequest, profile: Profile) -> list[str]:
        """Return the directives for everything but the native ones.

        :raises Unsupported: see :meth:`directives`
        """

    @abstractmethod
    def native_directive(self, key: str, value: str | bool) -> str:
        """Return the directive for a key of the batch system; the value True makes it a bare flag.

        :raises Unsupported: the key and value cannot be a directive
        """

    def settings(self, key: str, value: str | bool) -> list[str]:
        """Return what a native directive sets, in the notation of :func:`lading.hooks.batch.directives.settings`.

        :param value: False: the directive removes what its site sets
        :raises Unsupported: the key and value cannot be a directive
        """
        try:
            return settings(self.native_directive(key, True if value is False else value))
        except Unsupported:
            if value is not False:
                raise
            return [key]  # an option that needs a value: any value gives the same setting

    def options(self, key: str) -> frozenset[str]:
        """Return the options that the submit command may read in a native key.

        That is the key itself or, if it is no option, the one-letter options it consists of, the last of them with its
        argument attached.
        """
        return frozenset((key,))

    def one_name(self, setting: str) -> str:
        """Return the one name that stands for all settings that are equivalent or conflict with each other."""
        return self.synonyms.get(setting, setting)

    def interpreter_directives(self, path: str) -> list[str]:
        """Return the directives that make the batch system use the interpreter in the first line of a script.

        :param path: of the interpreter, without arguments
        """
        return []

    def refuse_script(self, script: str) -> None:
        """Refuse a script that the submit command would not accept.

        :raises Unsupported: it would not; the message names the line
        """
        for number, line in enumerate(script.split("\n") if self.ascii_only else (), 1):
            if not line.isascii():
                odd = next(character for character in line if not character.isascii())
                raise Unsupported(
                    f"line {number} of the batch script has {odd!r}, but {self.name} accepts only ASCII: "
                    f"{line.strip()[:100]!r}; use only ASCII in names, paths and the site's setup"
                )

    @abstractmethod
    def submit(self, path: str) -> list[str]:
        """Return the command that submits a script."""

    @abstractmethod
    def submitted(self, answer: CommandResult) -> str:
        """Return the native ID in the answer to :meth:`submit`; for an array, the ID of the whole array.

        :raises SubmitError: the answer has none
        """

    @abstractmethod
    def element(self, id: str, index: int) -> str:
        """Return the native ID of one element of an array."""

    @abstractmethod
    def status(self, user: str, ids: Sequence[str] = ()) -> list[str]:
        """Return the one command that queries the states of many jobs and lists array elements one by one.

        :param user: owner of the jobs
        :param ids: as :meth:`submitted` returned them; empty: all jobs of the user, to find one by its name. The answer
            may include other jobs of the user
        """

    def lookup(self, user: str, ids: Sequence[str], clusters: Sequence[str] = ()) -> list[str]:
        """Return the one command that lists all jobs of the user, to find one of which only the name is known.

        :param ids: the known IDs, to be queried too if the list of all jobs omits those that have ended
        :param clusters: other clusters in which the job can be, see :meth:`clusters`
        """
        return self.status(user)

    @abstractmethod
    def statuses(self, answer: CommandResult) -> list[NativeJob]:
        """Return the jobs in the answer to :meth:`status`. For the jobs that it does not list, see :meth:`unknown`.

        :raises CouldNotAsk: it is not a valid answer
        """

    def unknown(self, answer: CommandResult, ids: Sequence[str], *, listed: bool) -> Collection[str]:
        """Return the IDs for which the answer to :meth:`status` is complete: nothing exists beyond what it shows.

        An ID that is neither listed nor returned here could not be queried. Nothing may be concluded about it, whereas
        a returned ID that is not listed counts as gone. An answer that lists all jobs of the user is complete for each
        ID. An answer about named jobs is complete for those it declares unknown by the patterns of :attr:`wording`.

        :param ids: the queried IDs, as :meth:`submitted` returned them
        :param listed: whether the query covered all jobs of the user, because :meth:`status` ignores the IDs
        """
        if listed:
            return ids
        named, others = self.wording.declared_gone(answer, ids)
        return ids if others and not self.statuses(answer) else named

    def lists_all(self, answer: CommandResult, clusters: Sequence[str] = ()) -> bool:
        """Whether an answer to :meth:`lookup` lists all jobs of the user, so that no job has a name that it lacks.

        :param clusters: other clusters that must have answered as well
        """
        return True

    def asked_as(self, answer: CommandResult, ids: Sequence[str]) -> Callable[[str], str]:
        """Return a function that maps an ID in an answer to the queried ID, which may write the server differently."""
        return self.wording.asked_as(ids)

    @abstractmethod
    def cancel(self, ids: Sequence[str]) -> list[str]:
        """Return the command that cancels pending and running jobs.

        :param ids: at least one, as :meth:`submitted` or :meth:`element` returned them
        """

    def cancelled(self, answer: CommandResult) -> None:
        """Check the answer to :meth:`cancel`. Jobs that have already ended are not an error.

        :raises CancelError: not all jobs were cancelled, or the result is unknown
        """
        self.wording.check_cancelled(answer)

    def accounting(self, ids: Sequence[str], user: str, since: datetime) -> list[str] | None:
        """Return the command that queries the accounting for jobs that are no longer listed; None: there is none.

        :param ids: at least one, as :meth:`submitted` returned them
        :param since: a time before the first of them was submitted, by the site's clock
        """
        return None

    def accounted(self, answer: CommandResult) -> list[NativeJob]:
        """Return the jobs in the answer to :meth:`accounting`.

        :raises CouldNotAsk: it is not a valid answer, or the site has no accounting
        """
        raise CouldNotAsk(f"{self.name} has no accounting that users can read")

    def _refuse_array(self, array: ArrayRange, profile: Profile) -> None:
        most = profile.max_array_size
        smallest = min(array)
        if smallest < self.first_index:
            raise Unsupported(
                f"array index {smallest} is too small: the first index of {self.name} is {self.first_index}"
            )
        if most is not None and len(array) > most:
            raise Unsupported(f"array {array}: {len(array)} elements, but max_array_size is {most}; submit it in parts")
        if profile.max_submitted is not None and len(array) > profile.max_submitted:
            raise Unsupported(
                f"array {array}: {len(array)} elements, but max_submitted is {profile.max_submitted}; "
                "submit it in parts"
            )
        if len(array) < self.smallest_array:
            raise Unsupported(
                f"array {array}: {self.name} takes arrays of {self.smallest_array} elements or more; submit single jobs"
            )


def gpu_type_resource(request: BatchJobRequest, profile: Profile) -> str:
    """Return the site's resource that names the type of a GPU, for batch systems without an option for it.

    :raises Unsupported: the site does not set it
    """
    if profile.gpu_type_resource is None:
        raise Unsupported(
            f"gpus of type {request.gpu_type}: set gpu_type_resource of the site to the resource that names the type"
        )
    return profile.gpu_type_resource


def _refuse_gpus_of_no_node(request: BatchJobRequest, profile: Profile) -> None:
    if request.gpus and profile.scatters(request):
        raise Unsupported(
            f"gpus = {request.gpus}: this is a number per node, but the site has nodes = 'ignore', so "
            f"{request.processes} processes may run on any number of nodes; request one process, or use a site "
            "without that setting"
        )


def _refuse_oversized(request: BatchJobRequest, profile: Profile) -> None:
    node = profile.whole_node
    if node is None:
        return
    if request.cpus_per_node > node.cpus:
        raise Unsupported(
            f"ppn × threads = {request.cpus_per_node}, but a node has {node.cpus} cpus according to whole_node; "
            "request more nodes with fewer processes on each"
        )
    if request.mem is not None and node.memory is not None and request.mem > node.memory:
        raise Unsupported(
            f"mem = {format_memory(request.mem)}, but a node has {format_memory(node.memory)} according to whole_node"
        )
