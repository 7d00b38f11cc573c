"""Native directives that need care with one batch system."""

from __future__ import annotations

import pytest

from lading.hooks.batch.sge.system import SGE
from lading.hooks.batch.slurm.system import SLURM
from lading.hooks.batch.system import BatchJobRequest, Profile, Unsupported
from lading.hooks.job_scripts.script import JobScript


@pytest.mark.parametrize("value", ["smp 4", "mpi* 4-16", "smp  4", "mpi 2-4,8", "mpi 4-"])
def test_a_parallel_environment_is_two_words(value: str) -> None:
    (directive,) = SGE().directives(BatchJobRequest(native={"pe": value}), Profile())
    assert directive == f"-pe {' '.join(value.split())}"


@pytest.mark.parametrize("value", ["smp", "smp 4 -l h=x", "smp four", "a b 4", "smp 4; rm", ""])
def test_another_parallel_environment_is_refused(value: str) -> None:
    with pytest.raises(Unsupported, match="smp 4"):
        SGE().directives(BatchJobRequest(native={"pe": value}), Profile())


def test_names_of_slurm_as_python_has_them() -> None:
    script = JobScript("true", mail_type="END", no_requeue=True)
    assert script.render(SLURM()).splitlines()[1:3] == ["#SBATCH --mail-type=END", "#SBATCH --no-requeue"]
    with pytest.raises(ValueError, match="conflict"):
        JobScript("true", mem=100, mem_per_cpu="1G").render(SLURM())
