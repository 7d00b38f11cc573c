"""TORQUE (Administrator Guide, "Commands Overview": qsub, qstat, qdel), as far as it differs from PBS Pro.

In TORQUE ``qstat -x`` prints XML, one document for each ID; in PBS Pro, it includes the history. Without ``-t``, the ID
of an array would list all jobs of the server. Users cannot read any accounting: a job that has ended is listed for
``keep_completed`` seconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree.ElementTree import Element

from lading.hooks.batch import xml
from lading.hooks.batch.memory import dialect
from lading.hooks.batch.pbs import output
from lading.hooks.batch.pbs.pbspro import VARIABLES, PBSPro
from lading.hooks.batch.system import ArrayRange, BatchJobRequest, CouldNotAsk, MemoryDialect, NativeJob, Profile
from lading.hooks.ssh.answer import CommandResult

TORQUE_VARIABLES: Mapping[str, str] = {**VARIABLES, "ARRAY_INDEX": "$PBS_ARRAYID"}
TORQUE_SYNONYMS: Mapping[str, str] = {f"l {name}": "l nodes" for name in ("ncpus", "procs", "nodect", "select")}


class TORQUE(PBSPro):
    name = "torque"
    variables = TORQUE_VARIABLES
    smallest_array = 1
    synonyms = TORQUE_SYNONYMS
    survey = output.TORQUE_SURVEY
    qstat = 'exec qstat -t -x "$@"'
    nothing = "<Data></Data>"
    in_titles = None  # "up to and including 15 characters"
    ascii_only = True  # "file must be an ascii script"
    memory_is_refused = True  # "mem" of a job on one node is its processes' RLIMIT_DATA

    def resource_directives(self, request: BatchJobRequest, profile: Profile) -> list[str]:
        return [re.sub("^-J ", "-t ", directive) for directive in super().resource_directives(request, profile)]

    def memory(self, profile: Profile) -> MemoryDialect:
        return dialect(profile, MemoryDialect(per="job"))  # "used by the job", on all of its nodes

    def shape(
        self, request: BatchJobRequest, profile: Profile, memory: MemoryDialect, size: str | None
    ) -> list[tuple[str, str | None]]:
        node = profile.whole_node
        options: list[tuple[str, str | None]] = []
        if profile.scatters(request) and request.cpus_per_node == 1:
            options.append(("l", f"procs={request.processes}"))
        elif request.shaped or request.gpus or node:
            cpus = node.cpus if node else request.cpus_per_node
            gpus = f":gpus={request.gpus}" if request.gpus else ""
            gpus += f":{request.gpu_type}" if request.gpu_type else ""  # a property of the nodes that have them
            options.append(("l", f"nodes={request.nodes or 1}:ppn={cpus}{gpus}"))
        usual = "pmem" if memory.per in ("cpu", "slot") else "mem"
        sizes = [("l", f"{name}={size}") for name in (memory.resource or usual).split(",")]
        return [*options, *(sizes if size else [])]

    def array(self, array: ArrayRange) -> str:
        return str(array)

    def statuses(self, answer: CommandResult) -> list[NativeJob]:
        self.wording.check_asked(answer)
        documents, faults = _documents(answer.stdout)
        if not documents and (faults or not answer.status):
            raise CouldNotAsk(
                f"the answer of qstat is truncated or cannot be parsed: {'; '.join(faults) or answer.message}"
            )
        jobs = [job for document in documents for job in document.iter("Job")]
        return output.jobs(((xml.text_of(job, "Job_Id"), _attributes(job)) for job in jobs), output.TORQUE_EXIT_CODES)

    def lists_all(self, answer: CommandResult, clusters: Sequence[str] = ()) -> bool:
        return super().lists_all(answer) and not _documents(answer.stdout)[1]


def _documents(text: str) -> tuple[list[Element], list[str]]:
    """Return the XML documents in an answer, and the faults of those that cannot be parsed. Each ID has a document, so
    a fault affects one ID only.
    """
    documents, faults = list[Element](), list[str]()
    for inside, end, _ in (part.partition("</Data>") for part in text.split("<Data>")[1:]):
        try:
            documents.append(xml.parse(f"<Data>{inside}{end}"))
        except ValueError as error:
            faults.append(str(error))
    return documents, faults


def _attributes(job: Element) -> dict[str, Any]:
    return {each.tag: {part.tag: part.text or "" for part in each} if len(each) else each.text or "" for each in job}
