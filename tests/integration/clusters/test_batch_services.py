"""SLURM and Grid Engine run jobs of an unprivileged user who comes in by SSH, and their faults are what they say."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from lading.hooks.ssh.answer import CommandResult
from lading.hooks.ssh.paramiko_transport import SSHTransport
from lading.hooks.ssh.steps import RunCommand
from tests.services import processes
from tests.services.account import Account
from tests.services.gridengine import GridEngine
from tests.services.slurm import Slurm
from tests.services.sshd import Sshd

JOB = b"#!/bin/sh\nid -un\nhostname\n"
LONG_JOB = b"#!/bin/sh\nsleep 300\n"


class Shell:
    """The user's commands, each of which must succeed unless it is asked for its whole answer."""

    def __init__(self, transport: SSHTransport) -> None:
        self.transport = transport

    def __call__(self, command: str, stdin: bytes | None = None) -> str:
        answer = self.ask(command, stdin)
        assert answer.status == 0, answer
        return answer.stdout.strip()

    def ask(self, command: str, stdin: bytes | None = None) -> CommandResult:
        return self.transport.run([RunCommand(command, stdin=stdin)])[0]


def eventually(reached: Callable[[], object], seconds: float = 40) -> bool:
    return processes.wait_until(lambda: bool(reached()), seconds, 0.2)


@pytest.fixture
def on_slurm(slurm: Slurm, slurm_login: Sshd, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    monkeypatch.setenv("AIRFLOW_CONN_SLURM", slurm_login.connection())
    with SSHTransport("slurm") as transport:
        yield Shell(transport)
        transport.run(["scancel -u $(id -un)"])
    slurm.wait_until_free()


@pytest.fixture
def on_gridengine(gridengine: GridEngine, gridengine_login: Sshd, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    monkeypatch.setenv("AIRFLOW_CONN_SGE", gridengine_login.connection())
    with SSHTransport("sge") as transport:
        yield Shell(transport)
        transport.run(["qdel -u $(id -un)"])
        # The next test is to find none of these running.
        assert eventually(lambda: not Shell(transport)("qstat")), Shell(transport)("qstat")


def test_slurm_runs_a_job(on_slurm: Shell, account: Account) -> None:
    job = on_slurm("sbatch --parsable --output=slurm.out", JOB)
    assert eventually(lambda: on_slurm(f"squeue -h -t all -j {job} -o %T") == "COMPLETED")
    assert on_slurm("cat slurm.out").split()[0] == account.name
    assert eventually(
        lambda: on_slurm(f"sacct -n -P -X -j {job} -o State,ExitCode,User") == f"COMPLETED|0:0|{account.name}"
    )


def test_slurm_spreads_steps_over_nodes(on_slurm: Shell, slurm: Slurm) -> None:
    script = b"#!/bin/sh\nsrun sh -c 'echo $SLURMD_NODENAME'\n"
    # slurmstepd writes words of its own to standard error where the machine is busy.
    files = "--output=steps.out --error=steps.err"
    job = on_slurm(f"sbatch --parsable -N {len(slurm.nodes)} {files}", script)
    assert eventually(lambda: on_slurm(f"squeue -h -t all -j {job} -o %T") == "COMPLETED")
    assert sorted(on_slurm("cat steps.out").split()) == slurm.nodes


def test_slurm_queue_closed_and_opened(on_slurm: Shell, slurm: Slurm) -> None:
    slurm.close_queue()
    answer = on_slurm.ask("sbatch --parsable", JOB)
    assert (answer.status, "partition not available" in answer.stderr) == (1, True)
    slurm.close_queue(state="DOWN")
    job = on_slurm("sbatch --parsable", JOB)
    assert on_slurm(f"squeue -h -j {job} -o %T") == "PENDING"
    slurm.open_queue()
    assert eventually(lambda: on_slurm(f"squeue -h -t all -j {job} -o %T") == "COMPLETED")


def test_slurm_node_drained_and_resumed(on_slurm: Shell, slurm: Slurm) -> None:
    slurm.drain_node("n1")
    answer = on_slurm("sbatch --parsable -w n1", JOB)
    assert eventually(lambda: "PENDING" in on_slurm(f"squeue -h -j {answer} -o %T"))
    slurm.resume_node("n1")
    assert eventually(lambda: on_slurm(f"squeue -h -t all -j {answer} -o %T") == "COMPLETED")


def test_slurm_limits_the_jobs_of_a_user(on_slurm: Shell, slurm: Slurm) -> None:
    slurm.limit_jobs(2)
    answer = on_slurm.ask("sbatch --parsable --array=0-5", JOB)
    assert (answer.status, "AssocMaxSubmitJobLimit" in answer.stderr) == (1, True)
    slurm.limit_jobs(None)
    assert on_slurm("sbatch --parsable --array=0-5", JOB)


def test_gridengine_runs_a_job(on_gridengine: Shell, account: Account) -> None:
    job = on_gridengine("qsub -terse -N job -j y -o job.out", JOB)
    assert eventually(lambda: on_gridengine.ask(f"qacct -j {job}").status == 0)
    assert "exit_status  0" in on_gridengine(f"qacct -j {job}")
    assert on_gridengine("cat job.out").split()[0] == account.name


def test_gridengine_fills_its_slots(on_gridengine: Shell, gridengine: GridEngine) -> None:
    on_gridengine(f"qsub -terse -N wide -pe smp {gridengine.slots}", LONG_JOB)
    assert eventually(lambda: on_gridengine("qstat -s r"))
    waiting = on_gridengine("qsub -terse -N more", JOB)
    assert "qw" in on_gridengine("qstat -s p")
    on_gridengine("qdel wide")
    assert eventually(lambda: on_gridengine.ask(f"qacct -j {waiting}").status == 0)


def test_gridengine_master_killed_and_back(on_gridengine: Shell, gridengine: GridEngine) -> None:
    on_gridengine("qsub -terse -N job", LONG_JOB)
    assert eventually(lambda: on_gridengine("qstat -s r"))
    gridengine.kill_master()
    try:
        answer = on_gridengine.ask("qstat")
        assert answer.status == 1
        assert "unable to send message to qmaster" in answer.stderr
    finally:
        gridengine.start_master()
    assert eventually(lambda: on_gridengine("qstat -s r"))


def test_gridengine_host_killed_and_back(on_gridengine: Shell, gridengine: GridEngine) -> None:
    on_gridengine("qsub -terse -N job -r y", LONG_JOB)
    assert eventually(lambda: on_gridengine("qstat -s r"))
    gridengine.kill_host()
    assert eventually(lambda: "u" in gridengine.queue_state(), 60)
    assert eventually(lambda: "Rq" in on_gridengine("qstat"), 60)
    gridengine.start_host()
    assert gridengine.queue_state() == ""


def test_gridengine_queue_closed_and_opened(on_gridengine: Shell, gridengine: GridEngine) -> None:
    gridengine.close_queue()
    job = on_gridengine("qsub -terse -N job", JOB)
    assert gridengine.queue_state() == "d"
    assert "qw" in on_gridengine("qstat")
    gridengine.open_queue()
    assert eventually(lambda: on_gridengine.ask(f"qacct -j {job}").status == 0)


def test_gridengine_limits_the_jobs_of_a_user(on_gridengine: Shell, gridengine: GridEngine) -> None:
    gridengine.limit_jobs(1)
    try:
        on_gridengine("qsub -terse -N first -h", JOB)
        answer = on_gridengine.ask("qsub -terse -N second", JOB)
        assert (answer.status, "only 1 jobs are allowed per user" in answer.stderr) == (25, True)
    finally:
        gridengine.limit_jobs(None)


def test_nothing_is_left_behind(account: Account) -> None:
    with Slurm(account, nodes=2) as slurm, GridEngine(account) as gridengine:
        folders = [slurm.folder, gridengine.folder]
        assert all(processes.belonging(folder, ()) for folder in folders)
    assert not any(processes.belonging(folder, ()) for folder in folders)
    assert not any(folder.exists() for folder in folders)
