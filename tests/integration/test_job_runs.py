"""Runs of job scripts on a real SLURM and a real Grid Engine, through a real sshd, with its faults."""

from __future__ import annotations

import multiprocessing
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lading.hooks.batch_hook import BatchHook
from lading.hooks.job_run import JobFailed, SubmitRejected
from lading.hooks.job_script import JobScript
from lading.hooks.site_profile import SiteProfile
from lading.hooks.ssh import SSHTransport
from lading.hooks.transport import Backoff
from tests.services import processes
from tests.services.gridengine import GridEngine
from tests.services.slurm import Slurm
from tests.services.sshd import Sshd

# A submit command that takes its time, before it asks the batch system and after.
SLOW = """\
#!/bin/sh
if [ -e ~/slow-before ]; then touch ~/reached; sleep 3; fi
{command} "$@"
status=$?
echo submitted >> ~/submissions
if [ -e ~/slow-after ]; then touch ~/reached; sleep 3; fi
exit $status
"""

MakeHook = Callable[..., BatchHook]


def eventually(reached: Callable[[], object], seconds: float = 40) -> bool:
    return processes.wait_until(lambda: bool(reached()), seconds, 0.2)


@pytest.fixture
def make_hook(tmp_path: Path) -> Iterator[MakeHook]:
    made: list[BatchHook] = []

    def make(system: str, *, setup: str = "", profile: SiteProfile | None = None) -> BatchHook:
        transport = SSHTransport(f"runs_{system}", setup=setup, backoff=Backoff(first=0.2, longest=0.5))
        made.append(
            BatchHook(
                system,
                transport=transport,
                work_dir="~/work",
                profile=profile,
                runs_folder=tmp_path / "runs",
                poll_shortest=0.3,
                poll_longest=1.0,
            )
        )
        return made[-1]

    yield make
    for hook in made:
        hook.close()


@pytest.fixture
def on_slurm(
    slurm: Slurm, slurm_login: Sshd, make_hook: MakeHook, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., BatchHook]]:
    monkeypatch.setenv("AIRFLOW_CONN_RUNS_SLURM", slurm_login.connection())
    yield lambda **options: make_hook("slurm", **options)
    slurm.command("scancel", "-u", slurm.account.name)
    slurm.wait_until_free()


@pytest.fixture
def on_gridengine(
    gridengine: GridEngine, gridengine_login: Sshd, make_hook: MakeHook, monkeypatch: pytest.MonkeyPatch
) -> BatchHook:
    monkeypatch.setenv("AIRFLOW_CONN_RUNS_SGE", gridengine_login.connection())
    return make_hook("sge")


def test_a_run_on_slurm(on_slurm: Callable[..., BatchHook], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = JobScript(
        'echo "$CLUSTERJOB_NAME {word}"; sh ./step.sh; echo oh >&2',
        jobname="hello",
        attributes={"word": "world"},
        aux_scripts={"step.sh": "echo step of {jobname}"},
        prologue="echo before >> near",
        epilogue='echo "after $LADING_STATE" >> near',
    )
    run = on_slurm().submit(script)
    assert run.get(40) == 0
    assert (run.ready(), run.successful(), run.status) == (True, True, "succeeded")
    assert run.output() == "hello world\nstep of hello\noh\n"
    again = on_slurm().submit(script)
    assert (again.job_id, again.get(0)) == (run.job_id, 0)
    assert (tmp_path / "near").read_text() == "before\nafter succeeded\n"


def test_failures_on_slurm(on_slurm: Callable[..., BatchHook]) -> None:
    hook = on_slurm()
    failing = hook.submit(JobScript("echo bad; exit 3"))
    waiting = hook.submit(JobScript("sleep 300"))
    foreign = hook.submit(JobScript("sleep 301"))
    with pytest.raises(SubmitRejected, match="invalid partition"):
        hook.submit(JobScript("true", queue="nonesuch"))
    with pytest.raises(multiprocessing.TimeoutError):
        waiting.get(0.1)
    with pytest.raises(ValueError, match="not ended"):
        waiting.successful()
    waiting.cancel()
    hook.site.transport.run([f"scancel {foreign.job_id}"])  # as the user does by hand
    with pytest.raises(JobFailed, match="exit status 3"):
        failing.get(40)
    for run in (waiting, foreign):
        with pytest.raises(JobFailed, match="cancelled") as caught:
            run.get(40)
        assert (caught.value.record.state, caught.value.record.cause) == ("cancelled", "cancelled")


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_connection_cut_in_the_middle_of_a_submission(
    on_slurm: Callable[..., BatchHook], slurm: Slurm, slurm_login: Sshd, when: str
) -> None:
    """Before sbatch asks SLURM, and after it was answered."""
    account = slurm.account
    for name in ("reached", "submissions"):
        (account.home / name).unlink(missing_ok=True)
    account.write("sbatch", SLOW.format(command=shutil.which("sbatch"))).chmod(0o755)
    trap = account.write(f"slow-{when}", "")
    try:
        hook = on_slurm(setup="PATH=$HOME:$PATH")
        with ThreadPoolExecutor(1) as pool:
            submitting = pool.submit(hook.submit, JobScript("echo run >> ../times"))
            assert eventually((account.home / "reached").exists)
            slurm_login.cut()
            run = submitting.result(60)
        assert run.get(60) == 0
    finally:
        trap.unlink()
    assert (account.home / "submissions").read_text() == "submitted\n"
    assert hook.site.transport.run([f"cat {run.folder}/../times; rm {run.folder}/../times"])[0].stdout == "run\n"


def test_a_process_killed_while_it_submits(on_slurm: Callable[..., BatchHook], slurm: Slurm, tmp_path: Path) -> None:
    account = slurm.account
    for name in ("reached", "submissions"):
        (account.home / name).unlink(missing_ok=True)
    account.write("sbatch", SLOW.format(command=shutil.which("sbatch"))).chmod(0o755)
    trap = account.write("slow-after", "")
    code = f"""
        from pathlib import Path
        from lading.hooks.batch_hook import BatchHook
        from lading.hooks.job_script import JobScript
        hook = BatchHook(
            "slurm", ssh_conn_id="runs_slurm", work_dir="~/work", login_setup="PATH=$HOME:$PATH",
            runs_folder=Path({str(tmp_path / "runs")!r}),
        )
        hook.submit(JobScript("echo here"), key="mine")
    """
    try:
        process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)])
        assert eventually((account.home / "reached").exists)
        process.kill()
        process.wait()
    finally:
        trap.unlink()
    run = on_slurm(setup="PATH=$HOME:$PATH").submit(JobScript("echo here"), key="mine")
    assert run.get(60) == 0
    assert (account.home / "submissions").read_text() == "submitted\n"


def test_runs_on_gridengine(on_gridengine: BatchHook) -> None:
    fine = on_gridengine.submit(JobScript("echo $CLUSTERJOB_ID; exit 0", time="5 min"))
    failing = on_gridengine.submit(JobScript("exit 3"))
    ended = on_gridengine.submit(JobScript("sleep 300"))
    ended.cancel()
    assert fine.get(60) == 0
    assert fine.output() == f"{fine.job_id}\n"
    with pytest.raises(JobFailed, match="exit status 3"):
        failing.get(60)
    with pytest.raises(JobFailed, match="cancelled"):
        ended.get(60)
