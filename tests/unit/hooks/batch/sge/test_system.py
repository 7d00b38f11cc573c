"""Grid Engine where the conformance suite does not look: other versions, letters of states, causes in accounts."""

from __future__ import annotations

import pytest

from lading.hooks.batch.sge.system import SGE
from lading.hooks.batch.status_query import StatusQuery
from lading.hooks.batch.system import BatchJobRequest, MemoryDialect, Profile, SubmitError
from lading.hooks.ssh.answer import CommandResult
from tests.recordings import recorded


def _queued(letters: str) -> CommandResult:
    job = f"<JB_job_number>9</JB_job_number><JB_name>x</JB_name><state>{letters}</state>"
    return CommandResult(
        0, f"<job_info><queue_info><job_list>{job}</job_list></queue_info><job_info></job_info></job_info>"
    )


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


def _record(**changes: str) -> CommandResult:
    text = recorded("sge/accounts").stdout.split("=" * 62 + "\n")[1]
    for key, value in changes.items():
        lines = [line for line in text.splitlines() if line.split()[:1] != [key]]
        text = "\n".join([*lines, f"{key} {value}"])
    return CommandResult(0, f"{'=' * 62}\n{text}\n")


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
        (
            {"failed": "100 : assumedly after job", "exit_status": "137", "ru_wallclock": "3601.123"}
            | {"category": "-l h_vmem=2G,h_rt=1:00:00", "maxvmem": "0.000"},
            "time_limit",
        ),
        ({"failed": "100", "exit_status": "137", "ru_wallclock": "3600", "category": "-l h_rt=INFINITY"}, "error"),
        # With -notify a job gets SIGUSR2 before it is killed, and dies of that.
        ({"failed": "100", "exit_status": "140", "maxvmem": "14.1G", "category": "-l h_vmem=14G"}, "out_of_memory"),
    ],
)
def test_causes(changes: dict[str, str], cause: str | None) -> None:
    (job,) = SGE().accounted(_record(**changes))
    assert (job.state, job.cause) == ("ended", cause)
    assert job.succeeded is (cause is None)


def test_a_job_that_goes_on_has_not_ended() -> None:
    (job,) = SGE().accounted(_record(failed="25  : rescheduling", exit_status="137"))
    assert job.state == "pending"


# Univa and Altair: who has deleted a job, times with dots, and more lines. A wide column as Gridware has it.
UNIVA = """\
==============================================================
qname        all.q
hostname     node01
owner        hpc
jobname      L0
jobnumber    3000000056
taskid       7
pe_taskid    NONE
submit_cmd   qsub -terse -l h_vmem=2G job.sh
qsub_time    11/24/2026 10:00:00.123
start_time   11/24/2026 10:00:01.234
end_time     11/24/2026 10:10:00.345
granted_pe   smp
slots        2
failed       100 : assumedly after job
deleted_by   NONE
exit_status  137
ru_wallclock 599.111
wallclock    600.543
maxvmem      3.998G
maxrss       3.9G
jc_name      NONE
category     -u hpc -l h_vmem=2G -pe smp 2
"""
GRIDWARE = """\
==============================================================
qname                              all.q
hostname                           rocky-8-amd64-1
jobname                            L1
jobnumber                          8
taskid                             undefined
pe_taskid                          NONE
qsub_time                          2026-11-24 10:00:50.347122
end_time                           2026-11-24 10:01:50.512008
failed                             0
exit_status                        0
ru_wallclock                       60
"""
# As old as 6.2u5: without a category, and each process of a parallel job with a record like that of the job.
OLD = """\
==============================================================
qname        amd.q
hostname     node008.cm.cluster
jobname      L2
jobnumber    3192235
taskid       undefined
qsub_time    Wed Mar 13 15:40:38 2019
start_time   -/-
end_time     -/-
granted_pe   NONE
slots        8
failed       1   : assumedly before job
exit_status  0
ru_wallclock 0
maxvmem      0.000
"""


def test_accounts_of_other_versions() -> None:
    univa, gridware, old = SGE().accounted(CommandResult(0, UNIVA + GRIDWARE + OLD))
    assert (univa.id, univa.index, univa.cause, univa.exit_code) == ("3000000056", 7, "out_of_memory", 137)
    assert (gridware.id, gridware.index, gridware.name, gridware.succeeded) == ("8", None, "L1", True)
    assert (old.cause, old.exit_code, old.reason) == ("error", None, "assumedly before job")


def test_a_job_that_was_deleted() -> None:
    (job,) = SGE().accounted(CommandResult(0, UNIVA.replace("deleted_by   NONE", "deleted_by   hpc@login1")))
    assert job.cause == "cancelled"


def test_of_a_job_that_was_started_anew_the_last_record_counts() -> None:
    first = GRIDWARE.replace("failed                             0", "failed  25  : rescheduling")
    for records, state in ((first + GRIDWARE, "ended"), (GRIDWARE + first, "pending")):
        (job,) = SGE().accounted(CommandResult(0, records))
        assert job.state == state


def test_a_record_without_an_end_is_no_success() -> None:
    # Univa 8.3 makes such records before the real one, and sometimes alone.
    never = GRIDWARE.replace("2026-11-24 10:01:50.512008", "-/-")
    (job,) = SGE().accounted(CommandResult(0, never))
    assert (job.state, job.succeeded) == ("ended", None)
    real = GRIDWARE.replace("exit_status                        0", "exit_status                        3")
    for records in (never + real, real + never):
        (job,) = SGE().accounted(CommandResult(0, records))
        assert job.exit_code == 3


@pytest.mark.parametrize("cut", ["failed  ", "exit_status  "])
def test_nothing_follows_from_a_record_that_is_cut(cut: str) -> None:
    jobs = SGE().accounted(CommandResult(0, OLD + GRIDWARE[: GRIDWARE.index(cut)]))
    assert [job.id for job in jobs if job.succeeded is not None] == ["3192235"]


def test_a_queue_of_univa_with_tasks_that_cannot_be_read() -> None:
    def job(number: int, tasks: str) -> str:
        return (
            f'<job_list state="pending"><JB_job_number>{number}</JB_job_number><JB_name>a</JB_name><state>qw</state>'
            f"<queue_name></queue_name><jclass_name></jclass_name><slots>1</slots><tasks>{tasks}</tasks></job_list>"
        )

    text = f"<job_info><queue_info>{job(7, '1-3:1, 5')}{job(8, '1-3:1,5,...')}</queue_info></job_info>"
    found = StatusQuery(SGE(), "hpc", ["7", "8"]).read(CommandResult(0, text))
    assert [job.index for job in found.jobs if job.id == "7"] == [1, 2, 3, 5]
    assert [found.is_silent(("7", 4)), found.is_silent(("8", 2))] == [False, True], "it costs its own array alone"


@pytest.mark.parametrize(
    ("answer", "id"),
    [
        (CommandResult(0, "jsv: 1 core was added\n12\n"), "12"),
        (CommandResult(0, "12.1-10:1\n", "qsub: warning: -cwd is the default here\n"), "12"),
        (CommandResult(0, 'Your job-array 12.1-10:1 ("x") has been submitted\n'), "12"),
        (recorded("sge/submitted_warning"), "3"),
    ],
)
def test_submissions_with_other_text_around(answer: CommandResult, id: str) -> None:
    assert SGE().submitted(answer) == id


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (25, "limit", "job rejected: Only 75 jobs are allowed per user (current job count: 75)"),
        (1, "limit", "job rejected: Only 20000 jobs are allowed per cluster"),
        (25, "limit", "the licence server is being restarted, come back later"),
        (1, "permanent", "the licence server has no such licence"),
        (1, "permanent", "job rejected: You try to submit a job with more than 75000 tasks"),
        (1, "transient", "job 12 was rejected cause it couldn't be written"),
        (1, "transient", "failed receiving gdi request response (got syncron message receive timeout error)."),
        (1, "transient", 'got no response from JSV script "/opt/sge/jsv.sh"'),
        (1, "permanent", "error: no suitable queues"),
    ],
)
def test_refusals(status: int, kind: str, words: str) -> None:
    with pytest.raises(SubmitError) as caught:
        SGE().submitted(CommandResult(status, "", f"Unable to run job: {words}\nExiting.\n"))
    assert caught.value.kind == kind
    assert caught.value.is_of_arrays == ("tasks" in words)


def test_options_of_univa_are_no_resources() -> None:
    made = SGE().directives(
        BatchJobRequest(native={"umask": "027", "tcon": "yes", "sc": "a=b", "scratch": "5G"}), Profile()
    )
    assert made == ["-umask 027", "-tcon yes", "-sc a=b", "-l scratch=5G"]


def test_each_slot_of_a_whole_node_has_its_part_of_the_memory() -> None:
    profile = Profile(
        parallel_environment="mpi",
        memory=MemoryDialect(per="slot", resource="h_vmem"),
        whole_node={"cpus": 32, "memory": "64 GiB"},
    )
    directives = SGE().directives(BatchJobRequest(nodes=2, ppn=1, mem=32 * 1024 + 1), profile)
    assert directives == ["-pe mpi 64", "-l h_vmem=1025M"]
