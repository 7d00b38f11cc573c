"""Runs of job scripts, with a batch system of three shell scripts."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lading.hooks.batch import Profile
from lading.hooks.batch_hook import BatchHook
from lading.hooks.job_run import JobFailed, SubmitRejected
from lading.hooks.job_script import JobScript, JobScriptError
from lading.hooks.near_script import NearScriptError
from lading.hooks.run_record import RunRecord
from lading.hooks.run_site import RunSite
from lading.hooks.site_profile import SiteProfile
from lading.hooks.site_table import read_site
from tests.unit.toy_batch import Toy, ToyCluster


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ToyCluster:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return ToyCluster(tmp_path / "toy")


@pytest.fixture
def make_hook(cluster: ToyCluster, tmp_path: Path) -> Callable[..., BatchHook]:
    def make(**options: Any) -> BatchHook:
        speed = {"poll_shortest": 0.05, "poll_longest": 0.1, "absence_deadline": 2, **options}
        return BatchHook(
            Toy(), transport=cluster, work_dir=str(tmp_path / "work"), runs_folder=tmp_path / "runs", **speed
        )

    return make


@pytest.fixture
def hook(make_hook: Callable[..., BatchHook]) -> BatchHook:
    return make_hook()


def test_a_run(hook: BatchHook) -> None:
    run = hook.submit(JobScript("echo {word}; pwd; echo oh >&2", attributes={"word": "hi"}))
    assert run.get(20) == 0
    assert run.output() == f"hi\n{run.folder}\noh\n"
    assert (run.status, run.job_id, run.successful()) == ("succeeded", "1", True)


def test_the_same_script_is_submitted_once(
    hook: BatchHook, make_hook: Callable[..., BatchHook], cluster: ToyCluster
) -> None:
    script = JobScript("sleep 0.3; echo once")
    first = hook.submit(script)
    again = make_hook().submit(script)
    assert again.token == first.token
    assert again.get(20) == first.get(20) == 0
    assert cluster.jobs == 1
    assert hook.submit(script, key="other").token != first.token
    assert hook.submit(script, force=True).token != first.token
    assert cluster.jobs == 3


@pytest.mark.parametrize("crash_at", ["place", "advance"])
def test_a_process_killed_between_intent_and_saving(
    make_hook: Callable[..., BatchHook], cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch, crash_at: str
) -> None:
    """Killed when the files are written, or right after the batch system has answered."""
    whole = getattr(RunSite, crash_at)

    def crash(*args: Any, **kwargs: Any) -> None:
        whole(*args, **kwargs)
        raise KeyboardInterrupt

    script = JobScript("echo run >> ../times", prologue="echo prologue >> near")
    with monkeypatch.context() as patch:
        patch.setattr(RunSite, crash_at, crash)
        with pytest.raises(KeyboardInterrupt):
            make_hook().submit(script)
    run = make_hook().submit(script)
    assert run.get(20) == 0
    assert cluster.jobs == 1
    assert Path("near").read_text() == "prologue\n"
    assert (Path(run.folder).parent / "times").read_text() == "run\n"


@pytest.mark.parametrize("jobname", [None, "mine"])
def test_an_answer_that_never_came(hook: BatchHook, cluster: ToyCluster, jobname: str | None) -> None:
    cluster.set("mute")
    run = hook.submit(JobScript("echo run >> ../times; sleep 1", jobname=jobname))
    assert run.get(20) == 0
    assert (Path(run.folder).parent / "times").read_text() == "run\n"
    if jobname is None:
        assert cluster.jobs == 1  # found by its name


def test_limits_are_waited_for(hook: BatchHook, cluster: ToyCluster) -> None:
    cluster.set("refuse", "too many jobs")
    run = hook.submit(JobScript("true"))
    assert (run.status, run.job_id, run.record.reason) == ("queued", None, "too many jobs")
    cluster.unset("refuse")
    assert run.get(20) == 0


def test_refusals_for_ever_are_told(hook: BatchHook, cluster: ToyCluster) -> None:
    cluster.set("refuse", "no such queue")
    with pytest.raises(SubmitRejected, match="no such queue"):
        hook.submit(JobScript("true"))
    cluster.unset("refuse")
    assert hook.submit(JobScript("true")).get(20) == 0


def test_could_not_ask_is_no_end(hook: BatchHook, cluster: ToyCluster) -> None:
    run = hook.submit(JobScript("sleep 0.2"))
    cluster.set("down")
    with pytest.raises(multiprocessing.TimeoutError):
        run.get(1)
    with pytest.raises(ValueError, match="not ended"):
        run.successful()
    cluster.unset("down")
    assert run.get(20) == 0


def test_failures_and_losses(hook: BatchHook) -> None:
    failed = hook.submit(JobScript("exit 7"))
    lost = hook.submit(JobScript("kill -KILL $PPID"))
    with pytest.raises(JobFailed, match="exit status 7") as caught:
        failed.get(20)
    assert (caught.value.record.cause, caught.value.record.exit_code) == ("error", 7)
    with pytest.raises(JobFailed, match="lost"):
        lost.get(20)
    assert not lost.successful()


def test_cancelling(hook: BatchHook, cluster: ToyCluster) -> None:
    run = hook.submit(JobScript("sleep 60"))
    run.cancel()
    with pytest.raises(JobFailed, match="cancelled"):
        run.get(20)
    cluster.set("refuse", "too many jobs")
    waiting = hook.submit(JobScript("echo never"))
    waiting.cancel()
    cluster.unset("refuse")
    with pytest.raises(JobFailed, match="cancelled"):
        waiting.get(20)
    assert cluster.jobs == 1


def test_signals_reach_the_script(hook: BatchHook, cluster: ToyCluster) -> None:
    body = "trap 'echo caught; exit 5' USR1; echo ready; while :; do sleep 0.05; done"
    run = hook.submit(JobScript(body))
    while "ready" not in run.output():
        pass
    pid = (cluster.folder / "jobs" / "1" / "pid").read_text().strip()
    subprocess.run(["kill", "-USR1", pid], check=True)
    with pytest.raises(JobFailed, match="exit status 5"):
        run.get(20)
    assert run.output() == "ready\ncaught\n"


def test_prologue_and_epilogue(hook: BatchHook, make_hook: Callable[..., BatchHook]) -> None:
    script = JobScript("exit 2", prologue="echo before >> near", epilogue='echo "$LADING_STATE $LADING_CAUSE" >> near')
    run, same = hook.submit(script), make_hook().submit(script)
    for each in (run, same, run):
        with pytest.raises(JobFailed):
            each.get(20)
    assert Path("near").read_text() == "before\nfailed error\n"


def test_a_prologue_that_fails_submits_nothing(hook: BatchHook, cluster: ToyCluster) -> None:
    with pytest.raises(NearScriptError, match="status 4"):
        hook.submit(JobScript("true", prologue="exit 4"))
    assert cluster.jobs == 0


def test_an_epilogue_that_fails_is_told_to_all(hook: BatchHook) -> None:
    run = hook.submit(JobScript("true", epilogue="echo >> near; exit 4"))
    for _ in range(2):
        with pytest.raises(NearScriptError, match="status 4"):
            run.get(20)
    assert Path("near").read_text() == "\n"


def test_many_runs_are_one_exchange(hook: BatchHook, cluster: ToyCluster) -> None:
    runs = [hook.submit(JobScript("sleep 0.5"), key=str(number)) for number in range(10)]
    before = cluster.exchanges
    hook.refresh(at_once=True)
    assert cluster.exchanges == before + 1
    assert all(run.get(20) == 0 for run in runs)


def test_names_of_our_own_are_refused(hook: BatchHook, tmp_path: Path) -> None:
    with pytest.raises(JobScriptError, match=r"lading\.sh"):
        hook.submit(JobScript("true", filename="lading.sh"))
    with pytest.raises(ValueError, match="key"):
        hook.submit(JobScript("true"), key="../x")
    assert not list(tmp_path.glob("runs/*.json"))


def test_unknown_options_and_systems() -> None:
    with pytest.raises(TypeError, match="poll_shortest"):
        BatchHook("slurm", interval=3)
    with pytest.raises(ValueError, match="slurm, pbspro"):
        BatchHook("condor")
    with pytest.raises(ValueError, match="absence_deadline"):
        BatchHook("slurm", absence_deadline=0)


def test_a_site_of_the_sites_file(tmp_path: Path) -> None:
    path = tmp_path / "sites.toml"
    path.write_text('[sites.here]\nkind = "local"\n[sites.hpc]\nkind = "sge"\nqueue = "a.q"\nwork_dir = "/w"\n')
    site = read_site(path, "hpc")
    assert (site.system.name, site.options.work_dir, site.profile.properties.resources) == (
        "sge",
        "/w",
        {"queue": "a.q"},
    )
    with pytest.raises(ValueError, match="batch cluster"):
        read_site(path, "here")
    with pytest.raises(ValueError, match="here, hpc"):
        read_site(path, "other")


def test_airflow_is_not_needed(tmp_path: Path) -> None:
    code = (
        "import sys; from lading.hooks.batch_hook import BatchHook; BatchHook('slurm', work_dir='/x'); "
        "print([name for name in sys.modules if name.partition('.')[0] == 'airflow'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_runs_that_have_not_ended_are_kept(hook: BatchHook, cluster: ToyCluster) -> None:
    """Also where the batch system names none of them."""
    cluster.set("refuse", "too many jobs")
    waiting, ended = hook.submit(JobScript("true")), hook.submit(JobScript("exit 0"))
    for record in hook.site.cancel([ended.record]):
        ended.update(record)
    for folder in map(Path, (waiting.folder, ended.folder)):
        for path in (*folder.rglob("*"), folder):
            os.utime(path, (0, 0))
    assert [each.number for each in hook.clean("1d")] == [1]
    assert (Path(waiting.folder).exists(), Path(ended.folder).exists()) == (True, False)


def test_no_more_are_submitted_than_may_be(cluster: ToyCluster, tmp_path: Path) -> None:
    profile = SiteProfile(profile=Profile(max_submitted=1))
    work, runs = str(tmp_path / "work"), tmp_path / "runs"
    hook = BatchHook(Toy(), transport=cluster, work_dir=work, runs_folder=runs, profile=profile, poll_shortest=0.05)
    first, second = hook.submit(JobScript("sleep 0.5")), hook.submit(JobScript("sleep 0.4"))
    assert (first.job_id, second.job_id, second.status) == ("1", None, "queued")
    assert "max_submitted" in str(second.record.reason)
    assert (second.get(30), first.get(30)) == (0, 0)


def test_whoever_knows_the_token_can_cancel(hook: BatchHook, cluster: ToyCluster) -> None:
    cluster.set("refuse", "too many jobs")
    run = hook.submit(JobScript("sleep 60"))
    cluster.unset("refuse")
    while run.job_id is None:
        assert run.status in ("queued", "submitted")
    assert run.record.attempt > 1
    (record,) = hook.site.cancel([RunRecord(run.token, run.folder)])
    assert record.job_id == run.job_id
    with pytest.raises(JobFailed):
        run.get(20)
