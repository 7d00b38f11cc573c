"""Runs of job scripts, with a batch system of three shell scripts."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lading.hooks.batch import canceller, submit_limits
from lading.hooks.batch.system import CancelError, Profile
from lading.hooks.job_scripts import hook as batch_hook
from lading.hooks.job_scripts.array_result import JobArrayRun
from lading.hooks.job_scripts.hook import BatchHook, JobRun
from lading.hooks.job_scripts.local_script import NearScriptError
from lading.hooks.job_scripts.profile import SiteProfile
from lading.hooks.job_scripts.result import JobFailed, SubmitRejected
from lading.hooks.job_scripts.run import RunRecord
from lading.hooks.job_scripts.run_site import RunSite, read_site
from lading.hooks.job_scripts.script import JobScript, JobScriptError
from lading.hooks.ssh.answer import TransportError
from lading.hooks.ssh.paramiko_transport import SSHTransport
from lading.hooks.ssh.transport import Unusable
from tests.clusters.toy_batch import Toy, ToyCluster
from tests.services.processes import wait_until

# What a run may take on a machine that is busy with something else, seconds.
PATIENCE = 180.0


# A body that lasts until :func:`let_go`.
HELD = "while [ ! -e ../go ]; do sleep 0.05; done"


def let_go(run: JobRun | JobArrayRun) -> None:
    (Path(run.folder).parent / "go").touch()


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ToyCluster:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return ToyCluster(tmp_path / "toy")


@pytest.fixture
def make_hook(cluster: ToyCluster, tmp_path: Path) -> Callable[..., BatchHook]:
    def make(**options: Any) -> BatchHook:
        speed = {"max_poll_interval": 0.1, "lost_after": 0.6, **options}
        return BatchHook(
            Toy(), transport=cluster, work_dir=str(tmp_path / "work"), runs_folder=tmp_path / "runs", **speed
        )

    return make


@pytest.fixture
def hook(make_hook: Callable[..., BatchHook]) -> BatchHook:
    return make_hook()


def test_a_run(hook: BatchHook) -> None:
    run = hook.submit(JobScript("echo {word}; pwd; echo oh >&2", attributes={"word": "hi"}))
    assert run.get(PATIENCE) == 0
    assert run.output() == f"hi\n{run.folder}\noh\n"
    assert (run.status, run.job_id, run.successful()) == ("succeeded", "1", True)


def test_the_same_script_is_submitted_once(
    hook: BatchHook, make_hook: Callable[..., BatchHook], cluster: ToyCluster
) -> None:
    script = JobScript("sleep 0.3; echo once")
    first = hook.submit(script)
    again = make_hook().submit(script)
    assert again.token == first.token
    assert again.get(PATIENCE) == first.get(PATIENCE) == 0
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
    assert run.get(PATIENCE) == 0
    assert cluster.jobs == 1
    assert Path("near").read_text() == "prologue\n"
    assert (Path(run.folder).parent / "times").read_text() == "run\n"


@pytest.mark.parametrize("jobname", [None, "mine"])
def test_an_answer_that_never_came(hook: BatchHook, cluster: ToyCluster, jobname: str | None) -> None:
    cluster.set("mute")
    run = hook.submit(JobScript(f"echo run >> ../times; {HELD}", jobname=jobname))
    assert wait_until(lambda: run.status != "queued" and run.job_id is not None, PATIENCE)
    let_go(run)
    assert run.get(PATIENCE) == 0
    assert (Path(run.folder).parent / "times").read_text() == "run\n"
    if jobname is None:
        assert cluster.jobs == 1  # found by its name


def test_limits_are_waited_for(hook: BatchHook, cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submit_limits.BackPressure, "seconds_between_probes", 1.0)
    cluster.set("refuse", "too many jobs")
    run = hook.submit(JobScript("true"))
    assert (run.status, run.job_id, run.record.reason) == ("queued", None, "too many jobs")
    cluster.unset("refuse")
    assert run.get(PATIENCE) == 0


def test_refusals_for_ever_are_reported(hook: BatchHook, cluster: ToyCluster) -> None:
    cluster.set("refuse", "no such queue")
    with pytest.raises(SubmitRejected, match="no such queue"):
        hook.submit(JobScript("true"))
    cluster.unset("refuse")
    assert hook.submit(JobScript("true")).get(PATIENCE) == 0


def test_could_not_ask_is_no_end(hook: BatchHook, cluster: ToyCluster, caplog: pytest.LogCaptureFixture) -> None:
    run = hook.submit(JobScript("sleep 0.2"))
    cluster.set("down")
    caplog.set_level("INFO")
    for _ in range(2):
        with pytest.raises(multiprocessing.TimeoutError):
            run.get(0.5)
    words = [record.getMessage() for record in caplog.records if "toy" in record.getMessage()]
    assert len(words) == 1, "the same is not said again and again"
    assert "toy: cannot connect" in words[0]
    with pytest.raises(ValueError, match="not finished"):
        run.successful()
    cluster.unset("down")
    assert run.get(PATIENCE) == 0


def test_failures_and_losses(hook: BatchHook) -> None:
    failed = hook.submit(JobScript("exit 7"))
    lost = hook.submit(JobScript("kill -KILL $PPID"))
    with pytest.raises(JobFailed, match="exit status 7") as caught:
        failed.get(PATIENCE)
    assert (caught.value.record.cause, caught.value.record.exit_code) == ("error", 7)
    with pytest.raises(JobFailed, match="lost"):
        lost.get(PATIENCE)
    assert not lost.successful()


def test_cancelling(hook: BatchHook, cluster: ToyCluster) -> None:
    run = hook.submit(JobScript("sleep 60"))
    run.cancel()
    with pytest.raises(JobFailed, match="cancelled"):
        run.get(PATIENCE)
    cluster.set("refuse", "too many jobs")
    waiting = hook.submit(JobScript("echo never"))
    waiting.cancel()
    cluster.unset("refuse")
    with pytest.raises(JobFailed, match="cancelled"):
        waiting.get(PATIENCE)
    assert cluster.jobs == 1


def test_signals_reach_the_script(hook: BatchHook, cluster: ToyCluster) -> None:
    body = "trap 'echo caught; exit 5' USR1; echo ready; while :; do sleep 0.05; done"
    run = hook.submit(JobScript(body))
    while "ready" not in run.output():
        pass
    pid = (cluster.folder / "jobs" / "1" / "pid").read_text().strip()
    subprocess.run(["kill", "-USR1", pid], check=True)
    with pytest.raises(JobFailed, match="exit status 5"):
        run.get(PATIENCE)
    assert run.output() == "ready\ncaught\n"


def test_prologue_and_epilogue(hook: BatchHook, make_hook: Callable[..., BatchHook]) -> None:
    script = JobScript("exit 2", prologue="echo before >> near", epilogue='echo "$LADING_STATE $LADING_CAUSE" >> near')
    run, same = hook.submit(script), make_hook().submit(script)
    for each in (run, same, run):
        with pytest.raises(JobFailed):
            each.get(PATIENCE)
    assert Path("near").read_text() == "before\nfailed error\n"


def test_a_prologue_that_fails_submits_nothing(hook: BatchHook, cluster: ToyCluster) -> None:
    with pytest.raises(NearScriptError, match="status 4"):
        hook.submit(JobScript("true", prologue="exit 4"))
    assert cluster.jobs == 0


def test_an_epilogue_that_fails_is_reported_to_all(hook: BatchHook) -> None:
    run = hook.submit(JobScript("true", epilogue="echo >> near; exit 4"))
    for _ in range(2):
        with pytest.raises(NearScriptError, match="status 4"):
            run.get(PATIENCE)
    assert Path("near").read_text() == "\n"


def test_many_runs_are_one_exchange(hook: BatchHook, cluster: ToyCluster) -> None:
    runs = [hook.submit(JobScript("sleep 0.5"), key=str(number)) for number in range(10)]
    before = cluster.exchanges
    hook.refresh(at_once=True)
    assert cluster.exchanges == before + 1
    assert all(run.get(PATIENCE) == 0 for run in runs)


def test_names_of_our_own_are_refused(hook: BatchHook, tmp_path: Path) -> None:
    with pytest.raises(JobScriptError, match=r"lading\.sh"):
        hook.submit(JobScript("true", filename="lading.sh"))
    for name in ("attempt.1", "element.2"):
        with pytest.raises(JobScriptError, match=name):
            hook.submit(JobScript("true", array="1-2", aux_scripts={name: "true"}))
        with pytest.raises(JobScriptError, match=name):
            hook.submit(JobScript("true", filename=name))
    with pytest.raises(ValueError, match="key"):
        hook.submit(JobScript("true"), key="../x")
    assert not list(tmp_path.glob("runs/*.json"))


def test_unknown_options_and_systems() -> None:
    with pytest.raises(TypeError, match="max_poll_interval"):
        BatchHook("slurm", interval=3)
    with pytest.raises(TypeError, match="poll_longest is now called max_poll_interval; rename it"):
        BatchHook("slurm", poll_longest=3)
    with pytest.raises(ValueError, match="slurm, pbspro"):
        BatchHook("condor")
    with pytest.raises(ValueError, match="lost_after"):
        BatchHook("slurm", lost_after=0)


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
        "import sys; from lading.hooks.job_scripts.hook import BatchHook; BatchHook('slurm', work_dir='/x'); "
        "print([name for name in sys.modules if name.partition('.')[0] == 'airflow'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_runs_that_have_not_ended_are_kept(hook: BatchHook, cluster: ToyCluster) -> None:
    """Also where the batch system names none of them."""
    cluster.set("refuse", "too many jobs")
    waiting, ended = hook.submit(JobScript("true")), hook.submit(JobScript("exit 0"))
    ended.update(hook.site.cancel([ended.record]))
    for folder in map(Path, (waiting.folder, ended.folder)):
        for path in (*folder.rglob("*"), folder):
            os.utime(path, (0, 0))
    assert [each.number for each in hook.clean("1d")] == [1]
    assert (Path(waiting.folder).exists(), Path(ended.folder).exists()) == (True, False)


def test_no_more_are_submitted_than_may_be(cluster: ToyCluster, tmp_path: Path) -> None:
    profile = SiteProfile(profile=Profile(max_submitted=1))
    work, runs = str(tmp_path / "work"), tmp_path / "runs"
    hook = BatchHook(Toy(), transport=cluster, work_dir=work, runs_folder=runs, profile=profile, max_poll_interval=0.05)
    first, second = hook.submit(JobScript(HELD)), hook.submit(JobScript("sleep 0.1"))
    assert (first.job_id, second.job_id, second.status) == ("1", None, "queued")
    assert "max_submitted" in str(second.record.reason)
    let_go(first)
    assert (second.get(PATIENCE), first.get(PATIENCE)) == (0, 0)


def test_the_token_is_enough_to_cancel(hook: BatchHook, cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submit_limits.BackPressure, "seconds_between_probes", 1.0)
    cluster.set("refuse", "too many jobs")
    run = hook.submit(JobScript("sleep 60"))
    cluster.unset("refuse")
    while run.job_id is None:
        assert run.status in ("queued", "submitted")
    assert run.record.attempt > 1
    (record,) = hook.site.cancel([RunRecord(run.token, run.folder)])
    assert record.job_id == run.job_id
    with pytest.raises(JobFailed):
        run.get(PATIENCE)


def submit_array(hook: BatchHook, body: str, array: str = "1-3", **resources: Any) -> JobArrayRun:
    run = hook.submit(JobScript(body, array=array, **resources))
    assert isinstance(run, JobArrayRun)
    return run


def test_each_element_of_an_array_has_its_own_end(hook: BatchHook, cluster: ToyCluster) -> None:
    run = submit_array(hook, 'echo "part $CLUSTERJOB_ARRAY_INDEX"; exit $(($CLUSTERJOB_ARRAY_INDEX - 1))', "1-3%2")
    run.wait(PATIENCE)
    assert cluster.jobs == 1
    assert [element.status for element in run] == ["succeeded", "failed", "failed"]
    assert [element.record.exit_code for element in run] == [0, 1, 2]
    assert [element.output() for element in run] == ["part 1\n", "part 2\n", "part 3\n"]
    assert run.output() == "part 1\npart 2\npart 3\n"
    assert run[2].job_id == "1.2"
    assert (run.status, run.record.exit_code, run.successful()) == ("failed", 1, False)
    assert run[1].get() == 0
    with pytest.raises(JobFailed, match="exit status 2"):
        run[3].get()
    with pytest.raises(JobFailed, match=r"2 of 3 elements have failed: element 2: .*; element 3: "):
        run.get()


def test_an_array_that_succeeds(hook: BatchHook) -> None:
    run = submit_array(hook, "pwd")
    assert run.get(PATIENCE) == 0
    assert len(run) == 3
    assert run.output() == f"{run.folder}\n" * 3
    with pytest.raises(IndexError, match=r"no element 4; the elements are 1-3"):
        run[4]


@pytest.mark.parametrize(
    ("body", "scripts"),
    [
        ("echo x >$CLUSTERJOB_ARRAY_INDEX; cat $CLUSTERJOB_ARRAY_INDEX", {}),
        ("rm -rf $CLUSTERJOB_ARRAY_INDEX; mkdir $CLUSTERJOB_ARRAY_INDEX; echo x", {}),
        ("sh ./2", {"2": "echo x", "element": "true", "element.sh": "true"}),
    ],
)
def test_files_called_like_an_element_are_the_users(hook: BatchHook, body: str, scripts: dict[str, str]) -> None:
    run = hook.submit(JobScript(body, array="1-3", aux_scripts=scripts))
    assert run.get(PATIENCE) == 0
    assert run.output() == "x\n" * 3


def test_another_process_finds_an_array_and_its_elements(
    make_hook: Callable[..., BatchHook], cluster: ToyCluster
) -> None:
    first = submit_array(make_hook(), "sleep 0.3; echo once >> ../times; exit $(($CLUSTERJOB_ARRAY_INDEX % 2))")
    again = submit_array(make_hook(), "sleep 0.3; echo once >> ../times; exit $(($CLUSTERJOB_ARRAY_INDEX % 2))")
    again.wait(PATIENCE)
    assert cluster.jobs == 1
    assert [element.status for element in again] == ["failed", "succeeded", "failed"]
    assert (Path(first.folder).parent / "times").read_text() == "once\n" * 3


def test_an_array_whose_answer_never_came(hook: BatchHook, cluster: ToyCluster) -> None:
    cluster.set("mute")
    run = submit_array(hook, f"echo run >> ../times; {HELD}")
    assert wait_until(lambda: run.status != "queued" and run.job_id is not None, PATIENCE)
    let_go(run)
    assert run.get(PATIENCE) == 0
    assert cluster.jobs == 1  # found by its name
    assert (Path(run.folder).parent / "times").read_text() == "run\n" * 3


def test_an_array_that_was_submitted_twice_runs_once(hook: BatchHook, cluster: ToyCluster) -> None:
    """Where the answer was lost and the job has a name that is not its own, it cannot be looked up."""
    cluster.set("mute")
    run = submit_array(hook, "echo run >> ../times; sleep 1", jobname="mine")
    assert run.get(PATIENCE) == 0
    assert (Path(run.folder).parent / "times").read_text() == "run\n" * 3
    assert {element.status for element in run} == {"succeeded"}


def test_an_array_whose_node_does_not_hear_of_its_cancel_is_cancelled_again(
    hook: BatchHook, cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canceller.Canceller, "repeated_after", (0.1, 0.1))
    run = submit_array(hook, "sleep 60")
    cluster.set("deaf")
    run.cancel()
    assert wait_until(lambda: bool(hook.refresh(at_once=True)) or asked_to_end(cluster) > 2, 20, 0.2)
    assert not run.ready()
    cluster.unset("deaf")
    run.wait(PATIENCE)
    assert {element.status for element in run} == {"cancelled"}


def asked_to_end(cluster: ToyCluster) -> int:
    """How often jobs were cancelled."""
    return len((cluster.folder / "killed").read_text().splitlines())


def test_an_element_is_cancelled_alone_and_the_array_whole(hook: BatchHook, cluster: ToyCluster) -> None:
    run = submit_array(hook, "sleep 60")
    run[2].cancel()
    run[2].wait(PATIENCE)
    assert [element.record.state for element in run][1] == "cancelled"
    assert not run.ready()
    run.cancel()
    run.wait(PATIENCE)
    assert {element.status for element in run} == {"cancelled"}
    assert (run.status, run.record.cause) == ("cancelled", "cancelled")


@pytest.mark.parametrize("array", [None, "1-3"])
def test_a_cancel_that_is_done_although_the_batch_system_says_it_is_not(
    make_hook: Callable[..., BatchHook], cluster: ToyCluster, array: str | None
) -> None:
    kill = cluster.folder / "bin" / "toy-kill"
    kill.write_text(f"{kill.read_text()}echo 'cannot connect' >&2; exit 1\n")
    script = JobScript("sleep 60", array=array)
    run = make_hook().submit(script)
    with pytest.raises(CancelError, match="cannot connect"):
        run.cancel()
    again = make_hook().submit(script)  # another process, which finds what was saved
    again.wait(PATIENCE)
    assert (again.record.state, again.record.cause) == ("cancelled", "cancelled")
    again.cancel()


def test_an_element_whose_cancel_is_done_although_the_batch_system_says_it_is_not(
    hook: BatchHook, cluster: ToyCluster
) -> None:
    kill = cluster.folder / "bin" / "toy-kill"
    kill.write_text(f"{kill.read_text()}echo 'cannot connect' >&2; exit 1\n")
    run = submit_array(hook, "sleep 60")
    with pytest.raises(CancelError, match="cannot connect"):
        run[2].cancel()
    run[2].wait(PATIENCE)
    assert run[2].record.state == "cancelled"
    run[2].cancel()
    assert [element.record.cancelling for element in run] == [False, True, False]
    with pytest.raises(CancelError, match="cannot connect"):
        run.cancel()
    run.wait(PATIENCE)
    assert {element.record.state for element in run} == {"cancelled"}


def test_an_array_that_waits_is_cancelled_whole(hook: BatchHook, cluster: ToyCluster) -> None:
    cluster.set("refuse", "too many jobs")
    run = submit_array(hook, "true")
    assert (run[1].status, run[1].job_id, run.job_id) == ("queued", None, None)
    with pytest.raises(CancelError, match="cancel the whole array"):
        run[1].cancel()
    run.cancel()
    cluster.unset("refuse")
    run.wait(PATIENCE)
    assert (run.status, run[3].status, cluster.jobs) == ("cancelled", "cancelled", 0)


def test_prologue_and_epilogue_of_an_array_run_once(hook: BatchHook) -> None:
    run = submit_array(hook, "true", prologue="echo before >> near", epilogue="echo $LADING_STATE >> near")
    for element in run:
        element.wait(PATIENCE)
    assert Path("near").read_text() == "before\n"
    assert run.ready()
    assert Path("near").read_text() == "before\nsucceeded\n"


def test_an_array_counts_as_its_elements(make_hook: Callable[..., BatchHook], cluster: ToyCluster) -> None:
    hook = make_hook(profile=SiteProfile(profile=Profile(max_submitted=4)))
    with pytest.raises(ValueError, match="5 elements, but max_submitted is 4"):
        submit_array(hook, "true", "1-5")
    first, second = submit_array(hook, HELD), submit_array(hook, "sleep 0.1")
    assert first.job_id is not None
    assert (second.record.state, second.job_id) == ("queued", None)
    assert "max_submitted" in str(second.record.reason)
    let_go(first)
    assert second.get(PATIENCE) == 0


@pytest.mark.parametrize("array", ["", "10-1", "1-", "1%", "1-3%0", "a", "1-3%4%5", "1,1"])
def test_no_array(hook: BatchHook, array: str) -> None:
    if array:
        with pytest.raises(ValueError, match="array"):
            hook.submit(JobScript("true", array=array))
    else:
        assert not isinstance(hook.submit(JobScript("true", array=array)), JobArrayRun)


def test_the_names_of_ipyparallel(hook: BatchHook) -> None:
    run = hook.submit(JobScript(f"{HELD}; sleep 0.3"))
    assert not run.done()
    assert run.metadata["completed"] is None
    let_go(run)
    assert run.result(PATIENCE) == 0
    assert run.done()
    told = run.metadata
    assert told["submitted"] <= told["completed"]
    assert told["started"] <= told["completed"]
    assert (told["status"], told["job_id"], told["exit_code"]) == ("succeeded", "1", 0)
    elapsed = run.elapsed
    assert 0.3 <= elapsed + 1 < PATIENCE + 1  # the cluster counts in whole seconds
    time.sleep(0.05)
    assert run.elapsed == elapsed
    endless = hook.submit(JobScript("sleep 60"))
    endless.abort()
    endless.wait(PATIENCE)
    assert endless.metadata["status"] == "cancelled"
    assert endless.metadata["completed"] is not None


def test_nothing_is_saved_where_it_is_not_needed(cluster: ToyCluster, tmp_path: Path) -> None:
    work_dir = str(tmp_path / "work")
    hook = BatchHook(Toy(), transport=cluster, work_dir=work_dir, runs_folder=None, max_poll_interval=0.05)
    script = JobScript("echo hi")
    first, second = hook.submit(script), hook.submit(script)
    assert first.token != second.token
    assert first.get(PATIENCE) == second.get(PATIENCE) == 0
    assert cluster.jobs == 2
    assert hook.submit(script, key="k").token == hook.submit(script, key="k").token
    assert hook.submit(script, key="k", force=True).get(PATIENCE) == 0
    assert sum(each.number for each in hook.clean("30d")) == 0
    assert not (tmp_path / "runs").exists()
    assert not (Path.home() / ".lading" / "runs" / f"{first.key}.json").exists()


class Closed(ToyCluster):
    """A cluster whose connection cannot be used."""

    def _converse(self, exchange: Any, timeout: float) -> None:
        self.exchanges += 1
        raise TransportError("no such connection")


def test_what_time_cannot_mend_fails_at_once(tmp_path: Path) -> None:
    cluster = Closed(tmp_path / "closed")
    cluster.unusable = True
    hook = BatchHook(Toy(), transport=cluster, runs_folder=tmp_path / "runs")
    with pytest.raises(Unusable, match="no such connection"):
        hook.submit(JobScript("true"))
    assert cluster.exchanges == 1


def test_each_repetition_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(batch_hook, "REACH_TIMEOUT", 2.5)
    hook = BatchHook(Toy(), transport=Closed(tmp_path / "closed"), runs_folder=tmp_path / "runs")
    with pytest.raises(TransportError, match="no such connection"):
        hook.submit(JobScript("true"))
    said = [record.getMessage() for record in caplog.records]
    assert any("no such connection; trying again in" in line for line in said)
    assert len(said) >= 1


@pytest.mark.parametrize(
    ("uri", "words", "lasting"),
    [
        (None, "AIRFLOW_CONN_NEVER_DEFINED", True),
        ("ssh://", "remote_host", True),
        ("ssh://me@127.0.0.1:1", "refused", False),
    ],
)
def test_which_connections_time_mends(
    monkeypatch: pytest.MonkeyPatch, uri: str | None, words: str, lasting: bool
) -> None:
    if uri:
        monkeypatch.setenv("AIRFLOW_CONN_NEVER_DEFINED", uri)
    transport = SSHTransport("never_defined")
    (answer,) = transport.run(["true"])
    assert words in answer.message
    assert transport.unusable is lasting
