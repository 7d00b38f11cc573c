"""Which variables of a batch system a task sees."""

from __future__ import annotations

import subprocess

import pytest

from lading.hooks.batch import environment as scheduler_variables
from lading.plugin.manager import batch_systems

SYSTEMS = batch_systems()
PATH = "/usr/bin:/bin"

# What the systems set in a job, as far as it matters here, and what of it a task still sees.
JOBS = {
    "slurm": (
        "SLURM_JOB_ID SLURM_JOB_NODELIST SLURM_ARRAY_JOB_ID SLURM_ARRAY_TASK_ID SLURM_CONF "
        "SLURM_TMPDIR SLURMD_NODENAME",
        "SLURM_JOBID SLURM_NODELIST SLURM_NTASKS SLURM_CPUS_PER_TASK SLURM_MEM_PER_NODE SLURM_CPU_BIND "
        "SLURM_EXPORT_ENV SLURM_TASKS_PER_NODE SLURM_ARRAY_TASK_MAX SBATCH_MEM_BIND SRUN_CPUS_PER_TASK PMI_RANK "
        "PMIX_RANK",
    ),
    "pbspro": (
        "PBS_JOBID PBS_NODEFILE PBS_ARRAY_INDEX PBS_O_WORKDIR PBS_CONF_FILE PBS_JOBDIR",
        "PBS_ENVIRONMENT PBS_JOBCOOKIE PBS_TASKNUM PBS_O_PATH",
    ),
    "torque": ("PBS_JOBID PBS_NODEFILE PBS_ARRAYID PBS_SERVER", "PBS_ENVIRONMENT PBS_NUM_PPN PBS_MOMPORT"),
    "lsf": (
        "LSB_JOBID LSB_JOBINDEX LSB_HOSTS LSB_MCPU_HOSTS LS_SUBCWD LSF_ENVDIR LSF_BINDIR",
        "LSB_BIND_CPU_LIST LSB_SUB_RES_REQ LS_EXEC_T LSF_PM_TASKID",
    ),
    "sge": (
        "JOB_ID JOB_NAME SGE_TASK_ID PE_HOSTFILE NSLOTS SGE_ROOT SGE_CELL SGE_O_WORKDIR",
        "SGE_TASK_LAST SGE_STDOUT_PATH SGE_JOB_SPOOL_DIR JOB_SCRIPT NHOSTS",
    ),
}
ALWAYS = "TMPDIR CUDA_VISIBLE_DEVICES HOME"


def seen(name: str, given: str, setup: str = "", *, several: bool = False) -> dict[str, str]:
    """The environment of a task, in a job that has these variables."""
    script = "\n".join([*scheduler_variables.note(SYSTEMS[name], several=several), setup, "env -0"])
    environment = {"PATH": PATH, **dict.fromkeys(given.split(), "x")}
    done = subprocess.run(["/bin/bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert not done.stderr
    found = dict(entry.split("=", 1) for entry in done.stdout.split("\0") if entry)
    scheduler_variables.strip(found)
    return found


@pytest.mark.parametrize("name", JOBS)
def test_a_task_sees_what_its_job_is_but_no_orders(name: str) -> None:
    stays, goes = JOBS[name]
    found = seen(name, f"{stays} {goes} {ALWAYS}")
    assert set(f"{stays} {ALWAYS}".split()) <= found.keys()
    assert not set(goes.split()) & found.keys()
    assert scheduler_variables.NOTE not in found


@pytest.mark.parametrize("name", JOBS)
def test_a_task_of_several_processes_sees_what_mpi_needs(name: str) -> None:
    stays, goes = JOBS[name]
    orders = {"SLURM_EXPORT_ENV", "SBATCH_MEM_BIND", "PMI_RANK", "PMIX_RANK"}
    found = seen(name, f"{stays} {goes} {ALWAYS}", several=True)
    assert (set(f"{stays} {goes} {ALWAYS}".split()) - orders) <= found.keys()
    assert not orders & found.keys()


def test_what_setup_adds_stays_and_it_sees_all() -> None:
    setup = "export SBATCH_ACCOUNT=astro THREADS=$SLURM_CPUS_PER_TASK"
    found = seen("slurm", "SLURM_CPUS_PER_TASK SBATCH_PARTITION", setup)
    assert (found["SBATCH_ACCOUNT"], found["THREADS"]) == ("astro", "x")
    assert "SLURM_CPUS_PER_TASK" not in found
    assert "SBATCH_PARTITION" not in found


def test_where_nothing_is_noted_nothing_goes() -> None:
    environment = {"SLURM_NTASKS": "4", "PATH": PATH}
    scheduler_variables.strip(environment)
    assert environment == {"SLURM_NTASKS": "4", "PATH": PATH}
