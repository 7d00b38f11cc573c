"""The batch system's own variables in the processes of tasks: which are taken away, and which stay.

A batch system describes a job to its processes by variables, and takes many of the same names for orders. So a task
that calls ``sbatch``, ``srun`` or ``mpirun`` would hand on what Lading has asked for on its behalf: one process of many
cpus, so much memory, cpus to be bound to, an empty environment. An MPI then refuses to start more than one process
(`not enough slots <https://github.com/open-mpi/ompi/issues/3133>`_), ``srun`` finds its orders contradictory (`mutually
exclusive <https://github.com/snakemake/snakemake/issues/2230>`_), jobs within jobs run on the wrong cpus.

Taken away is what the batch system has set when the job begins and whose name starts as :attr:`BatchSystem.leaks` says.
What says where and what a job is stays: the core variables (id, array index, name, nodes, where it was submitted),
:data:`KEPT`, and everything of another name, such as ``TMPDIR`` and ``CUDA_VISIBLE_DEVICES``. What a site's ``setup``
adds stays, too; its lines still see all.

A task of several processes is there for ``mpirun`` and ``srun`` to start them where its job has its nodes, so what
describes the job to them stays, as in any batch script: ``SLURM_*``, ``PBS_*``, ``LSB_*``, ``PE_*``. Taken away are
:attr:`BatchSystem.orders` alone: ``srun`` would start processes without the environment of the task.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lading.hooks.batch.system import BatchSystem

# Where a job's script notes the names, for the processes of tasks.
NOTE = "LADING_SCHEDULER_VARIABLES"
# How the commands find their cluster, the scratch folder of a job, its other half of an id, and what it has got.
_KEPT = """
    SLURM_CONF SLURM_CLUSTER_NAME SLURM_TMPDIR SLURM_ARRAY_JOB_ID SLURM_JOB_PARTITION SLURM_JOB_ACCOUNT SLURM_JOB_GPUS
    PBS_CONF_FILE PBS_EXEC PBS_HOME PBS_SERVER PBS_DEFAULT PBS_JOBDIR PBS_JOBFS PBS_QUEUE
    LSB_MCPU_HOSTS LSB_DJOB_HOSTFILE LSB_DJOB_NUMPROC LSB_QUEUE
    SGE_ROOT SGE_CELL SGE_CLUSTER_NAME SGE_QMASTER_PORT SGE_EXECD_PORT SGE_ARCH NSLOTS
"""
KEPT = frozenset(_KEPT.split())
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)", re.ASCII)


def kept(system: BatchSystem) -> frozenset[str]:
    """The variables of a batch system that a task keeps."""
    return KEPT.union(*map(_VARIABLE.findall, system.variables.values()))


def note(system: BatchSystem, *, several: bool = False) -> list[str]:
    """The lines (bash) of a job's script, before the site's own, that note what is to be taken away from its tasks.

    They take nothing away: the rest of the script needs some of it.

    :param several: whether the task is to start several processes, on one node or more
    """
    prefixes = system.orders if several else system.leaks
    found = " ".join(f"${{!{prefix}@}}" for prefix in dict.fromkeys(prefixes))
    return [
        f"{NOTE}=",
        f"for each in {found}; do",
        f'  case $each in {"|".join(sorted(kept(system)))}) ;; *) {NOTE}="${NOTE} $each";; esac',
        "done",
        f"export {NOTE}",
    ]


def strip(environment: MutableMapping[str, str]) -> None:
    """Take away from a task's process what was noted."""
    for name in environment.pop(NOTE, "").split():
        environment.pop(name, None)
