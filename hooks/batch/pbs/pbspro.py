"""PBS Professional and OpenPBS: the options of qsub, all commands, and the meaning of refusals.

Commands: PBS Professional Reference Guide, "PBS Commands", qsub, qstat, qselect, qdel. Refusals, also those of TORQUE:
pbs_error.h, and the texts in pbs_messages.c.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from lading.hooks.batch.directives import Unsupported, clock, one_word, quoted
from lading.hooks.batch.memory import amount, dialect, names
from lading.hooks.batch.pbs import output
from lading.hooks.batch.refusals import Wording, any_of
from lading.hooks.batch.system import (
    ArrayRange,
    BatchJobRequest,
    BatchSystem,
    CouldNotAsk,
    MemoryDialect,
    NativeJob,
    Profile,
    gpu_type_resource,
)
from lading.hooks.ssh.answer import CommandResult

# Names of the core variables inside a job (PBS Reference Guide, "PBS Environment Variables").
VARIABLES: Mapping[str, str] = {
    "ID": "$PBS_JOBID",
    "WORKDIR": "$PBS_O_WORKDIR",
    "SUBMIT_HOST": "$PBS_O_HOST",
    "NAME": "$PBS_JOBNAME",
    "ARRAY_INDEX": "$PBS_ARRAY_INDEX",
    "NODELIST": '$(cat "$PBS_NODEFILE")',
}
# Settings that are equivalent, or that cannot be given together.
SYNONYMS: Mapping[str, str] = {f"l {name}": "l select" for name in ("nodes", "ncpus", "mpiprocs", "ompthreads", "mem")}
NO_REQUEUE: Mapping[str, str | bool] = {"r": "n"}
# Suffixes of sizes.
UNITS = {"B": "b", "K": "kb", "M": "mb", "G": "gb", "T": "tb"}

WORDING = Wording(
    permanent=any_of(
        "violates queue and/or server resource limits",
        # TORQUE uses the same message for requests that no node can ever meet and for busy nodes.
        "exceeds queue resource limits(?!.*cannot locate feasible nodes)",
        "cannot satisfy",
        # A limit of one job, not on the number of jobs.
        r"walltime (?:limit )?exceed|exceed\w* (?:the )?(?:max\w* )?walltime",
        "unknown queue",
        "unknown resource",
        "unauthorized request",
        "access .*denied",
        "illegal",
    ),
    limit=any_of(
        "cannot locate feasible nodes",
        "would exceed",
        "exceeds? .*limit",
        "limit .*(?:reached|exceeded)",
        r"(?:reached|limit of|maximum of) .*(?:limit|jobs)",
        "array .*too large",
        "maximum number of jobs",
        "max_(?:queued|queuable|user_queuable|run)",
        "too many jobs",
        "limit on (?:the )?(?:total )?(?:number|jobs|resource)",
        "(?:queue|destination) is not (?:enabled|started)",
        "queue (?:is )?(?:currently )?(?:disabled|stopped|not available)",
        "licensed? (?:cpus|unavailable)",
        r"errno=1504[23]",
    ),
    transient=any_of(
        "cannot connect to (?:server|pbs|specified server)",
        "(?:could|can) ?(?:not|n't) (?:connect|contact)",
        "communication (?:failure|error|with)",
        "no default server",
        "server (?:is )?(?:busy|shutting down|down)",
        "end of file",
        "protocol",
        "pbs_iff",
        "munge",
        "(?:invalid|expired) credential",
        "system error",
        "internal (?:server )?error",
        "failed to save job",
        # qsub passes jobs to a background process, which may have submitted this one.
        "background qsub",
        "no free connections",
        "connection table full",
        "too many submit retries",
        "can ?not establish connection",
        r"(?:to|from|in) socket|socket close",
        "(?:unable to|error) (?:connect|contact|communicat)",
        "trqauthd",
    ),
    gone=any_of(
        "unknown (?:job|array) ?id",
        "job not found",
        "job has finished",
        "job [^ ]+ has finished",
        "(?:invalid|bad) (?:job )?state .*complete",
        "request invalid for state of job",
        "invalid (?:state for job|for finished array subjob)",
        "job array parameter|nonexistent (?:subjob|job id)",
    ),
    account=any_of(
        "unauthorized (?:request|user)", "access .*(?:denied|not allowed)", "bad [ug]id for job", "invalid account"
    ),
    # If queried for 9.trq1, qstat may report that it does not know 9.trq1.example.org.
    server=any_of(r"(?<=[\d\]])\.[a-z][\w.-]*"),
    ending=any_of("delete already in progress", "job cancel in progress"),
)

_SUBMITTED = re.compile(r"(\d+(?:\[\])?(?:\.[\w.-]+)?)")
# If there are no jobs, qselect prints nothing, or only a site's banner. So does a wrapper that fails silently, so in
# that case the server has to answer a query of its own.
_SELECT = """\
ids=$(qselect -u "$0") || exit
ids=$(printf '%%s\\n' "$ids" | grep '^[0-9][][A-Za-z0-9._-]*$')
[ -n "$ids" ] || qstat -B -f | grep -q '^Server: ' || {
  echo 'qselect has printed no job, and qstat -B names no server' >&2
  exit 1
}
set -f
set -- $(printf '%%s\\n' "$@" "$ids" | sort -u)
[ $# -gt 0 ] || { echo '%s'; exit 0; }
"""


def chunks(request: BatchJobRequest) -> BatchJobRequest:
    """Return the request with one chunk per process instead of one per node; chunks can run on any nodes."""
    mem = None if request.mem is None else -(-request.mem // (request.ppn or 1))
    return replace(request, nodes=request.processes, ppn=1, mem=mem)


class PBSPro(BatchSystem):
    name = "pbspro"
    prefix = "#PBS"
    variables = VARIABLES
    no_requeue = NO_REQUEUE
    leaks = ("PBS_", "PMI", "PMIX_")
    smallest_array = 2
    synonyms = SYNONYMS
    wording = WORDING
    survey = output.PBSPRO_SURVEY
    qstat = output.COMMAND
    nothing = "no jobs"
    in_titles: ClassVar[str | None] = "_"

    def resource_directives(self, request: BatchJobRequest, profile: Profile) -> list[str]:
        request = chunks(request) if profile.scatters(request) else request
        memory = self.memory(profile)
        number = amount(request, memory)
        size = None if number is None else f"{number}{UNITS[memory.unit or 'M']}"
        options: list[tuple[str, Any]] = [
            ("N", request.jobname and one_word(request.jobname)),
            ("q", request.queue),
            ("l", request.time and f"walltime={clock(request.time)}"),
            *self.shape(request, profile, memory, size),
            ("J", request.array and self.array(request.array)),
            ("o", request.stdout),
            *([("j", "oe")] if request.stdout and request.stdout == request.stderr else [("e", request.stderr)]),
        ]
        return [self.native_directive(key, value) for key, value in options if value is not None]

    def memory(self, profile: Profile) -> MemoryDialect:
        memory = dialect(profile, MemoryDialect(per="node"))
        # Each chunk has the memory of a node. Together with chunks, qsub accepts no amount for the whole job.
        return memory.model_copy(update={"per": "node"}) if memory.per == "job" else memory

    def shape(
        self, request: BatchJobRequest, profile: Profile, memory: MemoryDialect, size: str | None
    ) -> list[tuple[str, str | None]]:
        inside = memory.per == "node" and size is not None
        node = profile.whole_node
        chunk = [f"select={request.nodes or 1}", f"ncpus={node.cpus if node else request.cpus_per_node}"]
        if request.shaped:
            chunk += [f"mpiprocs={request.ppn or 1}", f"ompthreads={request.threads or 1}"]
        chunk += [f"{name}={size}" for name in names(memory) or ["mem"] if inside]
        chunk += [f"{profile.gpu_resource or 'ngpus'}={request.gpus}"] if request.gpus else []
        if request.gpu_type is not None:
            chunk.append(f"{gpu_type_resource(request, profile)}={quoted(request.gpu_type)}")
        needed = request.shaped or inside or request.gpus or node
        whole = [f"{name}={size}" for name in names(memory) or ["pmem"]] if size and not inside else []
        place = [("l", "place=scatter:excl")] if node else []
        return [*([("l", ":".join(chunk))] if needed else []), *place, *(("l", each) for each in whole)]

    def array(self, array: ArrayRange) -> str:
        if not re.fullmatch(r"\d+-\d+(:\d+)?", array.indices):
            raise Unsupported(f"array {array}: PBS Pro takes one range such as 0-9 or 0-8:2; submit one job per range")
        return str(array)

    def native_directive(self, key: str, value: str | bool) -> str:
        if len(key) == 1:
            return f"-{key}" if value is True else f"-{key} {quoted(str(value))}"
        return f"-l {key}={quoted(str(value))}"

    def interpreter_directives(self, path: str) -> list[str]:
        return [f"-S {quoted(path)}"]

    def submit(self, path: str) -> list[str]:
        return ["qsub", path]

    def submitted(self, answer: CommandResult) -> str:
        return self.wording.submitted(answer, _SUBMITTED)

    def element(self, id: str, index: int) -> str:
        return output.element(id, index)

    def status(self, user: str, ids: Sequence[str] = ()) -> list[str]:
        return ["sh", "-c", self.qstat, "qstat", *ids] if ids else self.lookup(user, ids)

    def lookup(self, user: str, ids: Sequence[str], clusters: Sequence[str] = ()) -> list[str]:
        # qselect lists only jobs that have not ended. For the known IDs, qstat shows how they have ended.
        return ["sh", "-c", _SELECT % self.nothing + self.qstat, user, *ids]

    def statuses(self, answer: CommandResult) -> list[NativeJob]:
        self.wording.check_asked(answer)
        try:
            found = output.jobs(output.parse_dsv(answer.stdout), output.PBSPRO_EXIT_CODES)
        except ValueError as error:
            raise CouldNotAsk(f"the answer of qstat cannot be parsed: {error}") from None
        if not (found or answer.status or self.nothing in map(str.strip, answer.lines)):
            raise CouldNotAsk(f"qstat reports no job: {answer.message}")
        return found

    def lists_all(self, answer: CommandResult, clusters: Sequence[str] = ()) -> bool:
        return not answer.cut_line

    def cancel(self, ids: Sequence[str]) -> list[str]:
        return ["qdel", *ids]
