"""Inputs for the suite of batch systems, and helpers that compare results.

The inputs are resources, job names, garbage, and answers of other batch systems.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from lading.hooks.batch.system import NativeJob
from lading.hooks.ssh.answer import CommandResult

RESOURCES: Mapping[str, object] = {
    "jobname": "a_name",
    "queue": "a_queue",
    "time": 3600,
    "nodes": 2,
    "ppn": 4,
    "threads": 8,
    "mem": 4096,
    "stdout": "/a/out",
    "stderr": "/a/err",
    "gpus": 2,
}
BANNER = "\nWelcome to the cluster!\n  * Maintenance on 24 Dec, 08:00 *\n\n"
# Job names that people use and that break parsers.
NAMES = ("plain", "with blank", "a|b", "a^b,c;d", "it's", "über-Straße", "<&>", "%j", "007", "1e5", "RUNNING", "{x}")
GARBAGE = (
    "<html><body>502 Bad Gateway</body></html>",
    "\x00\x01\x02\ufffd\ufffd",
    "Traceback (most recent call last):\n  File ...\nKeyError: 'x'",
    "}{",
)
# By batch system, so that none gets its own: the output of its commands about jobs, and about none.
FOREIGN: Mapping[str, Sequence[CommandResult]] = {
    "slurm": [
        CommandResult(0, "4559_[2-3%2]|PENDING||Priority|arr\n4560|RUNNING|n1|None|a name\n"),
        CommandResult(
            0,
            "4561|FAILED|7:0|2026-11-20T19:37:40|n1|fails\n4561.batch|FAILED|7:0|2026-11-20T19:37:40|n1|batch\n",
        ),
        CommandResult(1, "", "slurm_load_jobs error: Invalid job id specified\n"),
    ],
    "pbspro": [
        CommandResult(
            0, '{\n\t"pbs_version":"23.06.06",\n\t"Jobs":{\n\t\t"1.pbs1":{"Job_Name":"run","job_state":"R"}\n\t}\n}\n'
        ),
        CommandResult(
            153, "Job Id: 1.pbs1|Job_Name=run|job_state=R|queue=workq\n", "qstat: Unknown Job Id 9999.pbs1\n"
        ),
        CommandResult(0, "Job Id: 1.pbs1\n    Job_Name = run\n    job_state = R\n    queue = workq\n\n"),
        CommandResult(
            0,
            "Job ID      Name     User   Time Use S Queue\n"
            "----------- -------- ------ -------- - -----\n"
            "1.pbs1      run      hpc    00:00:00 R workq\n",
        ),
    ],
    "torque": [
        CommandResult(
            0,
            '<?xml version="1.0"?>\n'
            "<Data><Job><Job_Id>3.trq1</Job_Id><Job_Name>run</Job_Name><job_state>R</job_state></Job></Data>"
            "\n",
        ),
        CommandResult(153, "", "qstat: Unknown Job Id Error 9999.trq1\n"),
    ],
    "lsf": [
        CommandResult(
            0,
            "JOBID   USER    STAT  QUEUE      FROM_HOST   EXEC_HOST   JOB_NAME   SUBMIT_TIME\n"
            "114     hpc     RUN   normal     lava1       lava1       arr[1]     Nov 20 19:37\n",
        ),
        CommandResult(
            0,
            "JOBID^JOBINDEX^STAT^EXIT_CODE^EXEC_HOST^EXIT_REASON^PEND_REASON^JOB_NAME\n201^0^RUN^-^host1^-^-^a name\n",
        ),
        CommandResult(
            0,
            "\n"
            "Job <117>, User <hpc>, Project <default>, Command <exit 7>\n"
            "Fri Nov 20 19:37:05: Submitted from host <lava1>, to Queue <normal>;\n"
            "Fri Nov 20 19:37:06: Dispatched to <lava1>;\n"
            "Fri Nov 20 19:37:07: Exited with exit code 7.\n",
        ),
        CommandResult(255, "No matching job found\n"),
    ],
    "sge": [
        CommandResult(
            0,
            "<?xml version='1.0'?>\n"
            '<job_info><queue_info><job_list state="running"><JB_job_number>1</JB_job_number><JB_name>run</J'
            "B_name><state>r</state></job_list></queue_info><job_info></job_info></job_info>\n",
        ),
        CommandResult(
            0,
            "==============================================================\n"
            "qname        all.q\n"
            "jobnumber    1\n"
            "taskid       undefined\n"
            "jobname      run\n"
            "failed       0\n"
            "exit_status  0\n",
        ),
        CommandResult(1, "", "error: job id 9999 not found\n"),
    ],
}

E = TypeVar("E", bound=Exception)


def read_answer(call: Callable[[CommandResult], object], kind: type[Exception], answer: CommandResult) -> object:
    """Return what is read from an answer; None if it is rejected."""
    try:
        return call(answer)
    except kind:
        return None


def dressed(answer: CommandResult) -> list[CommandResult]:
    """Return the answer unchanged, with other text before and after it, and with CRLF line endings."""
    return [
        answer,
        replace(answer, stdout=BANNER + answer.stdout),
        replace(answer, stdout=answer.stdout.rstrip("\n") + "\n" + BANNER),
        replace(answer, stdout=answer.stdout.replace("\n", "\r\n")),
    ]


def compare(jobs: Sequence[NativeJob], expected: Sequence[Mapping[str, object]]) -> None:
    found = {(job.id, job.index): job for job in jobs}
    assert len(found) == len(jobs), "a job appears twice"
    assert set(found) == {(each["id"], each.get("index")) for each in expected}
    for fields in expected:
        job = found[fields["id"], fields.get("index")]  # type: ignore[index]
        seen = {name: getattr(job, name) for name in fields}
        assert seen == dict(fields)


def raised_message(kind: type[Exception], call: Callable[..., object], *arguments: object) -> str:
    return str(raised(kind, call, *arguments))


def raised(kind: type[E], call: Callable[..., object], *arguments: object) -> E:
    try:
        result = call(*arguments)
    except kind as error:
        return error
    raise AssertionError(f"expected {kind.__name__} to be raised, but the call returned {result!r}")
