"""Grid Engine where the conformance suite does not look: letters of states, causes in accounts."""

from __future__ import annotations

import pytest

from lading.hooks.batch.sge.system import SGE
from lading.hooks.ssh.answer import Answer
from tests.recordings import recorded


def _queued(letters: str) -> Answer:
    job = f"<JB_job_number>9</JB_job_number><JB_name>x</JB_name><state>{letters}</state>"
    return Answer(0, f"<job_info><queue_info><job_list>{job}</job_list></queue_info><job_info></job_info></job_info>")


@pytest.mark.parametrize(
    ("letters", "state"),
    [
        *((letters, "pending") for letters in ("qw", "hqw", "Rq", "hRwq", "Eqw", "Ehqw")),
        *((letters, "running") for letters in ("r", "hr", "t", "Rr", "Rt", "s", "tS", "T", "dr", "dRr", "dt", "dqw")),
        ("z", "ended"),
    ],
)
def test_states(letters: str, state: str) -> None:
    (job,) = SGE().statuses(_queued(letters))
    assert job.state == state
    assert job.succeeded is None
    assert (job.cause == "error") is ("E" in letters)


def _record(**changes: str) -> Answer:
    text = recorded("sge/accounts").stdout.split("=" * 62 + "\n")[1]
    for key, value in changes.items():
        lines = [line for line in text.splitlines() if line.split()[:1] != [key]]
        text = "\n".join([*lines, f"{key} {value}"])
    return Answer(0, f"{'=' * 62}\n{text}\n")


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"failed": "0", "exit_status": "0"}, None),
        ({"failed": "37  : qmaster enforced h_rt, h_cpu, or h_vmem limit", "exit_status": "137"}, "time_limit"),
        (
            {
                "failed": "100 : assumedly after job",
                "exit_status": "137",
                "maxvmem": "1.999G",
                "category": "-l h_vmem=2G",
            },
            "out_of_memory",
        ),
        (
            {
                "failed": "100",
                "exit_status": "137",
                "maxvmem": "3.9G",
                "slots": "2",
                "category": "-l h_vmem=2G -pe smp 2",
            },
            "error",
        ),
        ({"failed": "100", "exit_status": "137", "ru_wallclock": "61s", "category": "-l h_rt=60"}, "time_limit"),
        ({"failed": "100", "exit_status": "137", "deleted_by": "hpc@vm"}, "cancelled"),
        ({"failed": "19  : before writing exit_status", "exit_status": "0"}, "node_failure"),
        ({"failed": "26  : opening input/output file", "exit_status": "0"}, "error"),
    ],
)
def test_causes(changes: dict[str, str], cause: str | None) -> None:
    (job,) = SGE().accounted(_record(**changes))
    assert (job.state, job.cause) == ("ended", cause)
    assert job.succeeded is (cause is None)


def test_a_job_that_goes_on_has_not_ended() -> None:
    (job,) = SGE().accounted(_record(failed="25  : rescheduling", exit_status="137"))
    assert job.state == "pending"
