"""The options of qsub of PBS Pro, OpenPBS and TORQUE, and what they set in the environment of a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lading.hooks.batch.system import BatchJobRequest

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


def chunks(request: BatchJobRequest) -> BatchJobRequest:
    """The request with a chunk for each process in place of one for each node; chunks lie where they fit."""
    mem = None if request.mem is None else -(-request.mem // (request.ppn or 1))
    return replace(request, nodes=request.processes, ppn=1, mem=mem)
