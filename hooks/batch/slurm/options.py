"""The options of SLURM's sbatch (sbatch(1)), and what it sets in the environment of a job."""

from __future__ import annotations

from lading.hooks.batch.directives import Exclusion

# Settings that are the same, or that cannot be given together.
# fmt: off
SYNONYMS = {
    "A": "account", "C": "constraint", "D": "chdir", "J": "job-name", "N": "nodes", "a": "array",
    "c": "cpus-per-task", "d": "dependency", "e": "error", "n": "ntasks", "o": "output", "p": "partition",
    "q": "qos", "t": "time", "w": "nodelist", "x": "exclude",
    "mem-per-cpu": "mem", "mem-per-gpu": "mem", "no-requeue": "requeue",
}
# fmt: on
VARIABLES = {
    "ID": "$SLURM_JOB_ID",
    "WORKDIR": "$SLURM_SUBMIT_DIR",
    "SUBMIT_HOST": "$SLURM_SUBMIT_HOST",
    "NAME": "$SLURM_JOB_NAME",
    "ARRAY_INDEX": "$SLURM_ARRAY_TASK_ID",
    "NODELIST": "$SLURM_JOB_NODELIST",
}
ISOLATION: dict[str, str | bool] = {"export": "NONE"}
NO_REQUEUE: dict[str, str | bool] = {"no-requeue": True}
EXCLUSION = Exclusion("--exclude={}")  # sbatch, "--exclude"
