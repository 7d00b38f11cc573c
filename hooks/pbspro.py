"""PBS Professional and OpenPBS (PBS Professional Reference Guide, "PBS Commands": qsub, qstat, qselect, qdel)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from lading.hooks import pbs_job, qstat_json
from lading.hooks.batch import Answer, ArrayRange, BatchSystem, CouldNotAsk, MemoryDialect, NativeJob, Profile, Request
from lading.hooks.directive import Unsupported, clock, one_word, quoted
from lading.hooks.memory import amount, dialect, names
from lading.hooks.pbs_words import NO_REQUEUE, SYNONYMS, UNITS, VARIABLES, WORDING

_SUBMITTED = re.compile(r"\d+(?:\[\])?(?:\.[\w.-]+)?")
_SPAN = re.compile(r"\d+-\d+(:\d+)?")


class PBSPro(BatchSystem):
    name = "pbspro"
    prefix = "#PBS"
    variables = VARIABLES
    no_requeue = NO_REQUEUE
    leaks = ("PBS_", "PMI", "PMIX_")
    smallest_array = 2
    synonyms = SYNONYMS
    wording = WORDING
    qstat = "qstat -t -f -F json"
    nothing = '{"Jobs":{}}'

    def resource_directives(self, request: Request, profile: Profile) -> list[str]:
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
        """The site's dialect."""
        memory = dialect(profile, MemoryDialect(per="node"))
        # The chunks of a job have its memory, each that of a node: qsub takes no amount for the whole job beside them.
        return memory.model_copy(update={"per": "node"}) if memory.per == "job" else memory

    def shape(
        self, request: Request, profile: Profile, memory: MemoryDialect, size: str | None
    ) -> list[tuple[str, str | None]]:
        inside = memory.per == "node" and size is not None
        node = profile.whole_node
        chunk = [f"select={request.nodes or 1}", f"ncpus={node.cpus if node else request.cpus_per_node}"]
        if request.shaped:
            chunk += [f"mpiprocs={request.ppn or 1}", f"ompthreads={request.threads or 1}"]
        chunk += [f"{name}={size}" for name in names(memory) or ["mem"] if inside]
        chunk += [f"{profile.gpu_resource or 'ngpus'}={request.gpus}"] if request.gpus else []
        needed = request.shaped or inside or request.gpus or node
        whole = [f"{name}={size}" for name in names(memory) or ["pmem"]] if size and not inside else []
        place = [("l", "place=scatter:excl")] if node else []
        return [*([("l", ":".join(chunk))] if needed else []), *place, *(("l", each) for each in whole)]

    def array(self, array: ArrayRange) -> str:
        """The argument that makes a job an array."""
        if not _SPAN.fullmatch(array.indices):
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

    def submitted(self, answer: Answer) -> str:
        ids = [line.strip() for line in answer.lines if _SUBMITTED.fullmatch(line.strip())]
        if answer.status == 0 and ids:
            return ids[-1]
        raise self.wording.submit_error(answer)

    def element(self, id: str, index: int) -> str:
        return pbs_job.element(id, index)

    def status(self, user: str, ids: Sequence[str] = ()) -> list[str]:
        if ids:
            return [*self.qstat.split(), *ids]
        # qstat shows no attributes of all jobs of a user.
        nothing = f"[ -n \"$ids\" ] || {{ echo '{self.nothing}'; exit 0; }}"
        return ["sh", "-c", f'ids=$(qselect -u "$0") || exit; {nothing}; exec {self.qstat} $ids', user]

    def statuses(self, answer: Answer) -> list[NativeJob]:
        self.wording.check_asked(answer)
        if answer.status and "{" not in answer.stdout:
            return []
        try:
            documents = qstat_json.documents(answer.stdout)
            if not any(key in document for document in documents for key in ("Jobs", "pbs_version")):
                raise ValueError("it is not about jobs")
            return pbs_job.jobs((pair for each in documents for pair in each.get("Jobs", {}).items()), pbs_job.PBSPRO)
        except (ValueError, AttributeError) as error:
            raise CouldNotAsk(f"the answer of qstat makes no sense: {error}; {answer.words}") from None

    def cancel(self, ids: Sequence[str]) -> list[str]:
        return ["qdel", *ids]

    def accounting(self, ids: Sequence[str], user: str, since: datetime) -> list[str] | None:
        return [*self.qstat.split(), "-x", *ids]

    def accounted(self, answer: Answer) -> list[NativeJob]:
        return self.statuses(answer)
