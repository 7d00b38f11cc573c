"""The batch system's variables in the environment of tasks: which ones are removed, and which are kept.

A batch system describes a job to its processes in environment variables, and many of the same variables are options of
its commands. A task that calls ``sbatch``, ``srun`` or ``mpirun`` would therefore pass on the request of its own job:
one process with many cpus, the memory, the cpus to bind to, an empty environment. MPI then refuses to start more than
one process (`not enough slots <https://github.com/open-mpi/ompi/issues/3133>`_), ``srun`` reports contradictory options
(`mutually exclusive <https://github.com/snakemake/snakemake/issues/2230>`_), and nested jobs run on the wrong cpus.

Variables are removed if the batch system has set them when the job starts and their prefix is in
:attr:`BatchSystem.leaks`. Variables that say where and what a job is are kept: the core variables (ID, array index,
name, nodes, submit host), :data:`KEPT`, and all others, such as ``TMPDIR`` and ``CUDA_VISIBLE_DEVICES``. Variables that
a site's ``setup`` adds are kept too, and its lines still see all variables.

A task with several processes needs ``mpirun`` or ``srun`` to start them on the nodes of its job, so the variables that
describe the job to these commands are kept, as in any batch script: ``SLURM_*``, ``PBS_*``, ``LSB_*``, ``PE_*``. Only
:attr:`BatchSystem.orders` are removed: with them, ``srun`` would start processes without the environment of the task.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lading.hooks.batch.system import BatchSystem

# The variable in which a job's script lists the names of the variables to remove.
NOTE = "LADING_SCHEDULER_VARIABLES"
# Configuration of the commands, the scratch folder of a job, the other part of its ID, and its granted resources.
_KEPT = """
    SLURM_CONF SLURM_CLUSTER_NAME SLURM_TMPDIR SLURM_ARRAY_JOB_ID SLURM_JOB_PARTITION SLURM_JOB_ACCOUNT SLURM_JOB_GPUS
    PBS_CONF_FILE PBS_EXEC PBS_HOME PBS_SERVER PBS_DEFAULT PBS_JOBDIR PBS_JOBFS PBS_QUEUE
    LSB_MCPU_HOSTS LSB_DJOB_HOSTFILE LSB_DJOB_NUMPROC LSB_QUEUE
    SGE_ROOT SGE_CELL SGE_CLUSTER_NAME SGE_QMASTER_PORT SGE_EXECD_PORT SGE_ARCH NSLOTS
"""
KEPT = frozenset(_KEPT.split())
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)", re.ASCII)


def kept(system: BatchSystem) -> frozenset[str]:
    return KEPT.union(*map(_VARIABLE.findall, system.variables.values()))


def note(system: BatchSystem, *, several: bool = False) -> list[str]:
    """Return the bash lines at the start of a job's script that list the variables to remove from its tasks.

    They remove nothing yet, because the rest of the script needs some of the variables.

    :param several: whether the task starts several processes, on one node or more
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
    """Remove the listed variables from the environment of a task's process."""
    for name in environment.pop(NOTE, "").split():
        environment.pop(name, None)
