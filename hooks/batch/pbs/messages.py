"""What PBS Pro, OpenPBS and TORQUE say: why they refuse something (pbs_error.h, and the texts in pbs_messages.c)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lading.hooks.batch.refusals import Wording, words
from lading.hooks.batch.system import Request

WORDING = Wording(
    permanent=words(
        "violates queue and/or server resource limits",
        # TORQUE says the same of a request that no node can ever give and of nodes that are busy.
        "exceeds queue resource limits(?!.*cannot locate feasible nodes)",
        "cannot satisfy",
        "unknown queue",
        "unknown resource",
        "unauthorized request",
        "access .*denied",
        "illegal",
    ),
    limit=words(
        "cannot locate feasible nodes",
        "would exceed",
        "exceeds? .*limit",
        "limit .*(?:reached|exceeded)",
        "maximum number of jobs",
        "max_(?:queued|queuable|user_queuable|run)",
        "too many jobs",
        "limit on (?:the )?(?:total )?(?:number|jobs|resource)",
        "(?:queue|destination) is not (?:enabled|started)",
        "queue (?:is )?(?:disabled|stopped)",
        r"errno=1504[23]",
    ),
    transient=words(
        "cannot connect to (?:server|pbs|specified server)",
        "(?:could|can) ?(?:not|n't) (?:connect|contact)",
        "communication (?:failure|error|with)",
        "no default server",
        "server (?:is )?(?:busy|shutting down|down)",
        "end of file",
        "protocol",
        "pbs_iff",
        "munge",
        "invalid credential",
        "system error",
        "internal (?:server )?error",
        "unable to (?:connect|contact|communicate)",
        "trqauthd",
    ),
    gone=words(
        "unknown job ?id",
        "job has finished",
        "job [^ ]+ has finished",
        "(?:invalid|bad) (?:job )?state .*complete",
        "request invalid for state of job",
        "invalid state for job",
        "job array parameter|nonexistent (?:subjob|job id)",
    ),
)

# What the core variables are called inside a job (PBS Reference Guide, "PBS Environment Variables").
VARIABLES: Mapping[str, str] = {
    "ID": "$PBS_JOBID",
    "WORKDIR": "$PBS_O_WORKDIR",
    "SUBMIT_HOST": "$PBS_O_HOST",
    "NAME": "$PBS_JOBNAME",
    "ARRAY_INDEX": "$PBS_ARRAY_INDEX",
    "NODELIST": '$(cat "$PBS_NODEFILE")',
}
TORQUE_VARIABLES: Mapping[str, str] = {**VARIABLES, "ARRAY_INDEX": "$PBS_ARRAYID"}
# Settings that are the same, or that cannot be given together.
SYNONYMS: Mapping[str, str] = {f"l {name}": "l select" for name in ("nodes", "ncpus", "mpiprocs", "ompthreads", "mem")}
TORQUE_SYNONYMS: Mapping[str, str] = {f"l {name}": "l nodes" for name in ("ncpus", "procs", "nodect", "select")}
NO_REQUEUE: Mapping[str, str | bool] = {"r": "n"}
# What sizes end with.
UNITS = {"B": "b", "K": "kb", "M": "mb", "G": "gb", "T": "tb"}


def chunks(request: Request) -> Request:
    """The request with a chunk for each process in place of one for each node; chunks lie where they fit."""
    mem = None if request.mem is None else -(-request.mem // (request.ppn or 1))
    return replace(request, nodes=request.processes, ppn=1, mem=mem)
