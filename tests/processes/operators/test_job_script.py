"""JobScriptOperator, with a batch system of three shell scripts and no Airflow around it."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import NEVER_EXPIRE
from airflow.sdk.exceptions import AirflowFailException, TaskDeferralTimeout, TaskDeferred

from lading.hooks.batch import canceller
from lading.hooks.batch.canceller import Cancellation
from lading.hooks.batch.refusals import CancelError
from lading.hooks.job_scripts.local_script import NearScriptError
from lading.hooks.job_scripts.profile import SiteOptions, SiteProfile
from lading.hooks.job_scripts.result import JobFailed
from lading.hooks.job_scripts.run import RunRecord
from lading.hooks.job_scripts.run_site import RunSite, jobname
from lading.hooks.job_scripts.script import JobScript, JobScriptError
from lading.hooks.job_scripts.task_run import new_run, token
from lading.hooks.ssh.answer import TransportError
from lading.hooks.ssh.steps import Parts
from lading.operators import JobScriptOperator, job_script
from lading.operators.job_script_trigger import JobScriptTrigger
from tests.clusters.toy_batch import Toy, ToyCluster
from tests.services import processes


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ToyCluster:
    made = ToyCluster(tmp_path / "toy")
    options = SiteOptions(work_dir=str(tmp_path / "work"), max_poll_interval=0.1, lost_after=0.6)
    monkeypatch.setattr(
        job_script, "open_site", lambda name, dag_id, team: RunSite(name, Toy(), SiteProfile(), options, made)
    )
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return made


class Store(dict[str, Any]):
    """Airflow's task state store, which outlives a try."""

    def set(self, key: str, value: Any, *, retention: Any) -> None:
        assert retention is NEVER_EXPIRE
        self[key] = value

    def delete(self, key: str) -> None:
        self.pop(key, None)


class Try:
    """A try of a task."""

    def __init__(self, map_index: int = -1, store: Store | None = None) -> None:
        self.store = Store() if store is None else store
        self.pushed: dict[str, Any] = {}
        names = {"dag_id": "d", "run_id": "r", "task_id": "script", "map_index": map_index}
        self.ti = SimpleNamespace(id=uuid.uuid4(), try_number=1, xcom_push=self.pushed.__setitem__, **names)

    @property
    def context(self) -> dict[str, Any]:
        return {"ti": self.ti, "task_state_store": self.store}


def run_of(attempt: Try, **properties: Any) -> RunRecord:
    """The run of a try, as the triggerer knows it."""
    return new_run(job_script.open_site("toy", "d", None), JobScript("", **properties), attempt.ti)


def folder(cluster: ToyCluster, attempt: Try) -> Path:
    return cluster.folder.parent / "work" / "scripts" / token(attempt.ti)


def operator(body: str, **options: Any) -> JobScriptOperator:
    return JobScriptOperator(task_id="script", body=body, site="toy", **{"deferrable": False, **options})


def submit_deferred(task: JobScriptOperator, attempt: Try) -> RunRecord:
    """Let a task defer, and submit its job as the triggerer does."""
    with pytest.raises(TaskDeferred) as caught:
        task.execute(attempt.context)
    assert isinstance(caught.value.trigger, JobScriptTrigger)
    (seen,) = job_script.open_site("toy", "d", None).advance([run_of(attempt)])
    assert seen.record.job_id is not None
    return seen.record


def test_waiting_in_the_worker(cluster: ToyCluster) -> None:
    attempt = Try()
    assert operator("echo {a}; echo last", attributes={"a": 1}).execute(attempt.context) == "last"
    told = attempt.pushed["batch_job"]
    assert (told["site"], told["job_id"], told["state"], told["exit_code"]) == ("toy", "1", "succeeded", 0)


def test_the_same_try_finds_its_job_and_another_submits_anew(cluster: ToyCluster) -> None:
    attempt, body = Try(), "sleep 0.5; echo $CLUSTERJOB_ID"
    submit_deferred(operator(body, deferrable=True), attempt)
    assert operator(body).execute(attempt.context) == "1"
    assert operator(body).execute(Try().context) == "2"
    assert cluster.jobs == 2


def test_what_a_dead_worker_has_left_is_cancelled_first(cluster: ToyCluster) -> None:
    died = Try()
    submit_deferred(operator("sleep 60", deferrable=True), died)
    again = Try(store=died.store)
    assert operator("echo anew").execute(again.context) == "anew"
    assert (folder(cluster, died) / "cancelled").exists()
    assert not processes.lives(int((cluster.folder / "jobs" / "1" / "pid").read_text()))
    assert again.store == {}, "nothing is left to be cancelled by another try"


def test_what_a_dead_worker_has_left_is_cancelled_until_it_is_gone(
    cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canceller.Canceller, "repeated_after", (0.1, 0.1))
    died, killed = Try(), cluster.folder / "killed"
    submit_deferred(operator("sleep 60", deferrable=True), died)
    cluster.set("deaf")
    with monkeypatch.context() as patch:
        patch.setattr(job_script, "REACH_TIMEOUT", 1.0)
        with pytest.raises(CancelError, match="toy still shows job 1"):
            operator("echo anew").execute(Try(store=died.store).context)
    assert cluster.jobs == 1
    again = threading.Thread(target=unset_when, args=(cluster, "deaf", lambda: len(killed.read_text().split()) > 4))
    again.start()
    assert operator("echo anew").execute(Try(store=died.store).context) == "anew"
    again.join()


def unset_when(cluster: ToyCluster, name: str, reached: Callable[[], bool]) -> None:
    while not reached():
        time.sleep(0.05)
    cluster.unset(name)


@pytest.mark.parametrize("left", ["toy", "gone"])
def test_a_worker_that_died_before_it_submitted(
    cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    whole = job_script.open_site

    def open_site(name: str, *who: str | None) -> RunSite:
        if name == "gone":
            raise ValueError("there is no such site")
        return whole(name, *who)

    monkeypatch.setattr(job_script, "open_site", open_site)
    again = Try()
    again.store[job_script.RUN] = {"site": left, "token": str(uuid.uuid4())}
    assert operator("echo anew").execute(again.context) == "anew"
    assert cluster.jobs == 1


def test_nothing_is_submitted_beside_a_job_that_cannot_be_cancelled(
    cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cancel(site: RunSite, records: Any) -> Any:
        raise CancelError("refused")

    monkeypatch.setattr(RunSite, "cancel", cancel)
    monkeypatch.setattr(job_script, "REACH_TIMEOUT", 0.0)
    again, left = Try(), {"site": "toy", "token": str(uuid.uuid4())}
    again.store[job_script.RUN] = left
    with pytest.raises(CancelError):
        operator("true").execute(again.context)
    assert cluster.jobs == 0
    assert again.store[job_script.RUN] == left, "another try tries it again"


def test_deferring(cluster: ToyCluster) -> None:
    attempt = Try()
    task = operator("exit 3", deferrable=True)
    with pytest.raises(TaskDeferred) as caught:
        task.execute(attempt.context)
    assert isinstance(caught.value.trigger, JobScriptTrigger)
    record = run_of(attempt).failed("error", None, 3)
    event = {"record": record.to_json(), "last_line": None}
    with pytest.raises(JobFailed, match="exit status 3"):
        task.resume_execution("execute_complete", {"event": event}, attempt.context)


@pytest.mark.parametrize(
    ("whose", "has_queue", "job"),
    [
        ("own", True, {"site": "toy", "nodes": 2, "ppn": 4, "threads": 1, "mem": 2048, "time": 3600, "queue": "long"}),
        ("own", False, None),
        ("nobody's", True, None),
        ("another's", True, None),  # of an Airflow within a job of Lading's
    ],
)
def test_a_controller_decides_under_ladings_executor_alone(
    cluster: ToyCluster,
    monkeypatch: pytest.MonkeyPatch,
    whose: str,
    has_queue: bool,
    job: dict[str, Any] | None,
) -> None:
    opened = job_script.open_site

    def with_queue(*asked: Any) -> RunSite:
        site = opened(*asked)
        site.has_queue = has_queue
        return site

    monkeypatch.setattr(job_script, "open_site", with_queue)
    attempt = Try()
    monkeypatch.delenv("LADING_TASK", raising=False)
    if whose != "nobody's":
        monkeypatch.setenv("LADING_TASK", str(attempt.ti.id if whose == "own" else uuid.uuid4()))
    properties = {"nodes": 2, "ppn": 4, "mem": "2 GiB", "time": "1h", "queue": "long"}
    with pytest.raises(TaskDeferred) as caught:
        operator("true", deferrable=True, properties=properties).execute(attempt.context)
    _, given = caught.value.trigger.serialize()
    assert given == {"site": "toy", "properties": properties, **({} if job is None else {"job": job})}
    assert JobScriptTrigger(**given).job == job


def test_a_trigger_that_took_too_long(cluster: ToyCluster, capsys: pytest.CaptureFixture[str]) -> None:
    attempt, task = Try(), operator("sleep 60", deferrable=True, execution_timeout=timedelta(seconds=70))
    submit_deferred(task, attempt)
    with pytest.raises(TaskDeferralTimeout):
        task.resume_execution("__fail__", {"error": "Trigger timeout"}, attempt.context)
    assert (folder(cluster, attempt) / "cancelled").exists()
    assert "execution_timeout of 0:01:10" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["properties", "attributes", "aux_scripts"])
def test_a_template_that_became_text_is_refused(cluster: ToyCluster, name: str) -> None:
    with pytest.raises(JobScriptError, match=f"{name}: .*'time'.*valid: a dict.*render_template_as_native_obj"):
        operator("true", **{name: "{'time': '1h'}"}).execute(Try().context)


def test_being_killed_while_it_waits(cluster: ToyCluster) -> None:
    begun = cluster.folder / "begun"
    task = operator(f"touch {begun}; sleep 600")

    def kill() -> None:
        processes.wait_until(begun.exists, 60, 0.05)
        task.on_kill()

    killing = threading.Thread(target=kill)
    killing.start()
    with pytest.raises(JobFailed, match=r"cancelled|lost"):
        task.execute(Try().context)
    killing.join()


def test_a_worker_that_is_killed_leaves_a_note_of_the_job_that_it_has_cancelled(cluster: ToyCluster) -> None:
    attempt, task = Try(), operator("sleep 60", deferrable=True)
    submit_deferred(task, attempt)
    cluster.set("deaf")
    task.on_kill()
    site = job_script.open_site("toy", "d", None)
    [answer] = site.transport.exchange([canceller.read_notes(site._work_dir)])
    [(name, noted)] = canceller.parse_notes(answer).items()
    assert (name, noted) == (token(attempt.ti), Cancellation("1", None, jobname(name)))
    assert noted.is_shown(Toy().statuses(cluster.run([["toy-list"]])[0]))
    cluster.unset("deaf")
    job_script.end_run(site, {"token": name})
    assert canceller.parse_notes(*site.transport.exchange([canceller.read_notes(site._work_dir)])) == {}


def test_a_rejected_script_is_not_tried_again(cluster: ToyCluster) -> None:
    cluster.set("refuse", "no such queue")
    with pytest.raises(AirflowFailException, match="no such queue"):
        operator("true").execute(Try().context)
    attempt, task = Try(), operator("true", deferrable=True)
    with pytest.raises(TaskDeferred):
        task.execute(attempt.context)
    (seen,) = job_script.open_site("toy", "d", None).advance([run_of(attempt)])
    event = {"record": seen.record.to_json(), "last_line": None}
    with pytest.raises(AirflowFailException, match="no such queue"):
        task.resume_execution("execute_complete", {"event": event}, attempt.context)


def test_failures_bring_their_last_output(cluster: ToyCluster) -> None:
    with pytest.raises(JobFailed, match=r"(?s)exit status 4.*it broke"):
        operator("echo it broke; exit 4").execute(Try().context)


def test_prologue_and_epilogue(cluster: ToyCluster) -> None:
    near = {"prologue": "echo before >> near", "epilogue": "echo $LADING_STATE >> near"}
    attempt = Try()
    for _ in range(2):  # the second time as by another worker
        operator("true", properties=near).execute(attempt.context)
    assert Path("near").read_text() == "before\nsucceeded\n"
    with pytest.raises(NearScriptError, match="status 9"):
        operator("true", properties={"epilogue": "exit 9"}).execute(Try().context)
    with pytest.raises(JobFailed, match="exit status 3"):
        operator("exit 3", properties={"epilogue": "exit 9"}).execute(Try().context)


def test_the_last_line_is_read_though_the_connection_is_cut(
    cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look that has seen the end could not read what was printed, nor the first question for it."""
    whole, cuts = Parts.contents, []

    def contents(parts: Parts, answer: Any) -> Any:
        if len(cuts) < 2 and (answer.status, cluster_ended(cluster)) == (0, True):
            cuts.append(1)
            raise TransportError("cut")
        return whole(parts, answer)

    monkeypatch.setattr(Parts, "contents", contents)
    assert operator("echo first; sleep 0.5; echo last").execute(Try().context) == "last"
    assert len(cuts) == 2


def cluster_ended(cluster: ToyCluster) -> bool:
    return any(cluster.folder.parent.glob("work/scripts/*/exit"))


def test_deferred_tasks_leave_their_submission_to_the_triggerer(cluster: ToyCluster) -> None:
    records = []
    for map_index, queue in enumerate(("a", "a", "b")):
        attempt = Try(map_index)
        with pytest.raises(TaskDeferred) as caught:
            operator(f"echo {map_index}", deferrable=True, properties={"queue": queue}).execute(attempt.context)
        assert isinstance(caught.value.trigger, JobScriptTrigger)
        records.append(run_of(attempt, **caught.value.trigger.properties))
    assert cluster.jobs == 0
    assert all((Path(record.folder) / "lading.sh").exists() for record in records)
    assert records[0].shared == records[1].shared != records[2].shared
    assert operator("echo here").execute(Try(4).context) == "here"  # by itself, where it does not defer
    own_file = operator("true", deferrable=True, properties={"stdout": "mine"})
    for unshared in (Try(5), Try()):
        with pytest.raises(TaskDeferred):
            own_file.execute(unshared.context)
        assert run_of(unshared, stdout="mine").shared is None
    assert cluster.jobs == 1


def test_chunks_are_refused(cluster: ToyCluster) -> None:
    with pytest.raises(AirflowFailException, match="chunk_size=1"):
        operator("true").execute({**Try().context, "scatter_job": 3})
    assert cluster.jobs == 0


def test_a_range_of_nodes_is_an_import_error() -> None:
    with pytest.raises(
        ValueError, match=r"nodes = \[2, 8\]: a job script takes one number of nodes, such as 4; only the hint"
    ):
        JobScriptOperator(task_id="t", site="hpc", body="true", properties={"nodes": [2, 8]})


def test_a_task_is_no_array() -> None:
    with pytest.raises(ValueError, match="array = '1-10': a task submits one job"):
        JobScriptOperator(task_id="t", site="hpc", body="true", properties={"array": "1-10"})
