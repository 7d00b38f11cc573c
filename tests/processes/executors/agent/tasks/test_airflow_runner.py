"""Airflow's workloads as the jobs of a node agent, with Airflow's own supervisor and a stand-in for its API server."""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.execution_time import callback_supervisor, comms, coordinator, supervisor, task_runner

from lading.executors.agent import job_folder, process_tree
from lading.executors.agent.job_folder import TERMINATED, EndCause
from lading.executors.agent.supervisor import AgentJob, AgentJobFailed
from lading.executors.agent.tasks import airflow_runner
from lading.hooks.spool.spool import Envelope, Spool
from lading.scheduling.model.reasons import free_text
from lading.scheduling.model.resources import Resources
from tests.services.agent import ROOT, NodeAgent
from tests.services.execution_api import ExecutionApi, task_workload

DAG = """
import os, signal, subprocess, sys, time
from airflow.sdk import DAG, Asset, Variable, task

with DAG("dag"):
    @task
    def succeed(): return 1

    @task(outlets=[Asset("files", f"file://{os.environ['AIRFLOW_HOME']}/outlet")])
    def write():
        for name in ("result", "outlet"):
            with open(f"{os.environ['AIRFLOW_HOME']}/{name}", "w") as stream:
                stream.write(name * 2)
        return {"file": f"{os.environ['AIRFLOW_HOME']}/result", "missing": "/not/there"}

    @task
    def fail(): raise ValueError("no good")

    @task
    def vanish(): os._exit(3)

    @task
    def die(): os.kill(os.getpid(), signal.SIGKILL)

    @task
    def abort(): os.abort()

    @task
    def need():
        try:
            Variable.get("away")
        finally:
            time.sleep(3)  # cleaning up, with heartbeats

    @task
    def recover():
        for name in ("away", "there"):
            try:
                Variable.get(name)
            except Exception:
                pass
        raise ValueError("no good")

    @task
    def wait_for_file():
        while not os.path.exists(f"{os.environ['AIRFLOW_HOME']}/go"):
            time.sleep(0.05)

    @task
    def sleep(): time.sleep(600)

    @task.bash
    def bash(): return "sleep 600"

    @task
    def tidy_up():
        def end(*_):
            Variable.get("there")
            os._exit(1)

        signal.signal(signal.SIGTERM, end)
        time.sleep(600)

    @task
    def allocate():
        block = bytearray(os.urandom(2**20)) * 400
        time.sleep(60)

    @task
    def keep():
        block = bytearray(os.urandom(2**20)) * 60
        time.sleep(4)

    @task
    def leave_a_daemon():
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)

    @task
    def leave_zombies():
        left, living = os.pipe()
        for _ in range(3):
            if os.fork() == 0:
                os.fork() or time.sleep(0.2)
                os._exit(0)
            os.wait()
        os.close(living)
        os.read(left, 1)
        print("all have ended", flush=True)
        while not os.path.exists(f"{os.environ['AIRFLOW_HOME']}/seen"):
            time.sleep(0.05)

    succeed(), write(), fail(), vanish(), die(), abort(), need(), recover(), wait_for_file()
    sleep(), bash(), tidy_up(), allocate(), keep(), leave_a_daemon(), leave_zombies()
"""


@pytest.fixture(scope="module")
def api() -> Iterator[ExecutionApi]:
    with ExecutionApi() as server:
        yield server


@pytest.fixture(scope="module")
def make_node(tmp_path_factory: pytest.TempPathFactory, api: ExecutionApi) -> Iterator[Callable[..., NodeAgent]]:
    """Start an agent whose tasks have a heartbeat of so many seconds."""
    made = []

    def make(heartbeat: str, *, privileged: bool = True, **environment: str) -> NodeAgent:
        home = tmp_path_factory.mktemp("home")
        (home / "dags").mkdir()
        (home / "dags" / "dag.py").write_text(DAG)
        variables: dict[str, Any] = {"AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60", **environment}
        made.append(NodeAgent(home, capacity=Resources(64, 65536)))
        made[-1].start(
            runner=airflow_runner.__name__,
            privileged=privileged,
            # What is written down late in a test comes after an event, however long a busy machine takes for that.
            constants={
                f"{airflow_runner.__name__}.CAUSE_PATIENCE": 60,
                "lading.executors.agent.inbox.SECONDS_UNTIL_REPORTED": 0,
                "lading.executors.agent.running.SECONDS_UNTIL_REPORTED": 0,
                "lading.executors.agent.running.SECONDS_PER_COUNT": 0.5,
            },
            AIRFLOW_HOME=str(home),
            AIRFLOW__CORE__EXECUTION_API_SERVER_URL=api.url,
            AIRFLOW__CORE__LOAD_EXAMPLES="False",
            AIRFLOW__WORKERS__EXECUTION_API_RETRIES="1",
            AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL=heartbeat,
            AIRFLOW__DATABASE__SQL_ALCHEMY_CONN="sqlite:////nowhere/at/all.db",
            **variables,
        )
        return made[-1]

    yield make
    try:
        assert [agent.stop() for agent in made] == [0] * len(made)
    finally:
        NodeAgent.clean_up()


@pytest.fixture(scope="module")
def node(make_node: Callable[..., NodeAgent]) -> NodeAgent:
    return make_node("1")


@pytest.fixture(scope="module")
def hasty(make_node: Callable[..., NodeAgent]) -> NodeAgent:
    """An agent whose tasks wait for the API server for three seconds, and for one answer of it for one."""
    timeouts = {"SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "4", "WORKERS__EXECUTION_API_TIMEOUT": "1"}
    return make_node("1", **{f"AIRFLOW__{name}": value for name, value in timeouts.items()})


@pytest.fixture(scope="module")
def limited(node: NodeAgent) -> dict[str, str]:
    """Jobs over a time limit, by task: both begin at once, long before it."""
    return {task: put(node, task, time_limit=15) for task in ("sleep", "bash")}


@pytest.fixture(autouse=True)
def obliging(api: ExecutionApi) -> Iterator[None]:
    yield
    for gate in api.gates.values():
        gate.set()
    api.gates.clear()
    api.refusals.clear()
    api.details.clear()


def put(node: NodeAgent, task: str, **limits: int) -> str:
    """Leave a task; its token is the id of its task instance."""
    token = str(uuid.uuid4())
    return leave(node, token, task_workload(token, "dag", task, "dag.py"), **limits)


def leave(node: NodeAgent, token: str, workload: dict[str, Any], **limits: int) -> str:
    node.spool.put(
        [
            Envelope(
                token,
                workload,
                Resources(1, 64),
                limits.get("memory_limit"),
                limits.get("time_limit"),
                1,
                time.time(),
                time.time() + 600,
            )
        ]
    )
    return token


def log(node: NodeAgent, token: str) -> list[dict[str, Any]]:
    text = (node.spool.root.parent / "logs" / f"{token}.log").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_a_task_succeeds(node: NodeAgent, api: ExecutionApi) -> None:
    token = put(node, "succeed")
    finished = node.wait_for(token)
    assert (finished["cause"], finished["exit_code"]) == (None, 0)
    assert api.states(token) == ["success"]
    assert any("Returned value was: 1" in line["event"] for line in log(node, token))


CLONED = """
import subprocess, time
from pathlib import Path
from airflow.dag_processing.bundles.base import BaseDagBundle, BundleVersion

class ClonedBundle(BaseDagBundle):
    "A Git bundle, as far as it matters where it lies: the class of Airflow's Git provider locks and clones like that."
    supports_versioning = True

    def __init__(self, *, repository, **named):
        super().__init__(**named)
        self.repository = repository

    def initialize(self):
        with self.lock():
            if not self.path.exists():
                with open(self.repository + ".clones", "a") as clones:
                    clones.write(f"{self.path}\\n")
                time.sleep(1)
                subprocess.run(["git", "clone", "--quiet", self.repository, self.path], check=True)
                subprocess.run(["git", "-C", self.path, "checkout", "--quiet", self.version], check=True)
        super().initialize()

    @property
    def path(self):
        return self.versions_dir / self.version

    def get_current_version(self):
        return BundleVersion(self.version)

    def refresh(self):
        raise NotImplementedError
"""


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=x", "-c", "user.email=x"]
    done = subprocess.run(["git", "-C", folder, *identity, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(repository: Path, name: str) -> str:
    (repository / "dag.py").write_text(f"{DAG}\n# {name}\n")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--message", name)
    return git(repository, "rev-parse", "HEAD")


def test_a_git_bundle_is_cloned_once_per_version_whatever_the_folder_for_temporary_files(
    make_node: Callable[..., NodeAgent], api: ExecutionApi, tmp_path: Path
) -> None:
    repository, temporary = tmp_path / "repository", tmp_path / "temporary"
    for folder in (repository, temporary):
        folder.mkdir()
    git(repository, "init", "--quiet")
    (tmp_path / "cloned_bundle.py").write_text(CLONED)
    kwargs = {"repository": str(repository)}
    node = make_node(
        "1",
        TMPDIR=str(temporary),
        PYTHONPATH=f"{tmp_path}:{ROOT}",
        AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST=json.dumps(
            [{"name": "repository", "classpath": "cloned_bundle.ClonedBundle", "kwargs": kwargs}]
        ),
        AIRFLOW__DAG_PROCESSOR__STALE_BUNDLE_CLEANUP_MIN_VERSIONS="1",
        AIRFLOW__DAG_PROCESSOR__STALE_BUNDLE_CLEANUP_AGE_THRESHOLD="0",
    )
    root = temporary / f"lading-{os.geteuid()}" / "dag_bundles"
    cloned = []
    for name in ("one", "two"):
        version = commit(repository, name)
        cloned.append(str(root / "repository" / "versions" / version))
        bundle = {"name": "repository", "version": version}
        for batch in (2, 1):  # two that find no clone, and one that follows
            tokens = [str(uuid.uuid4()) for _ in range(batch)]
            for token in tokens:
                leave(node, token, {**task_workload(token, "dag", "succeed", "dag.py"), "bundle_info": bundle})
            for token in tokens:
                assert node.wait_for(token)["cause"] is None
                assert api.states(token) == ["success"]
        assert (tmp_path / "repository.clones").read_text().splitlines() == cloned
    assert [str(path) for path in (root / "repository" / "versions").iterdir()] == cloned[1:], "the old one goes"


def test_the_files_that_a_task_has_returned_and_its_outlets_are_reported(node: NodeAgent) -> None:
    finished = node.wait_for(put(node, "write"))
    home = node.spool.root.parent
    assert finished["outputs"] == {f"{home}/outlet": 12, f"{home}/result": 12}
    assert "outputs" not in node.wait_for(put(node, "succeed"))


def test_a_task_that_fails_has_reported_to_airflow_itself(node: NodeAgent, api: ExecutionApi) -> None:
    token = put(node, "fail")
    finished = node.wait_for(token)
    assert (finished["cause"], finished["exit_code"]) == ("error", 0)
    assert str(finished["reason"]) == "the task failed: ValueError: no good"
    assert api.states(token) == ["failed"]


@pytest.mark.parametrize(
    ("task", "exit_code", "said"),
    [("vanish", 3, "exit code 3"), ("die", -signal.SIGKILL, "SIGKILL"), ("abort", -signal.SIGABRT, "SIGABRT")],
)
def test_a_task_whose_process_dies_leaves_its_failure_to_the_scheduler(
    node: NodeAgent, api: ExecutionApi, task: str, exit_code: int, said: str
) -> None:
    """Which runs the callbacks that the dead process could not."""
    token = put(node, task)
    finished = node.wait_for(token)
    assert (finished["cause"], finished["exit_code"]) == ("error", exit_code)
    assert said in str(finished["reason"])
    assert api.states(token) == []


@pytest.mark.parametrize(
    ("status", "detail", "cause", "words"),
    [
        (400, {"reason": "bad_request"}, "error", "answered 400"),
        (401, "Missing auth token", "error", "rejects the task's token (401: Missing auth token); give it the same"),
        (403, "Invalid auth token", "error", "rejects the task's token (403: Invalid auth token); give it the same"),
        (409, {"reason": "invalid_state", "previous_state": "running"}, "cancelled", "already running elsewhere"),
        (409, {"reason": "invalid_state", "previous_state": "failed"}, "cancelled", "answered 409"),  # was marked
        (409, {"reason": "invalid_state", "previous_state": None}, "cancelled", "answered 409"),  # was cleared
        (404, {"reason": "not_found"}, "cancelled", "answered 404"),
    ],
)
def test_a_task_that_the_server_does_not_let_start(
    node: NodeAgent, api: ExecutionApi, status: int, detail: dict[str, str | None] | str, cause: str, words: str
) -> None:
    api.refusals["/run"] = status
    api.details["/run"] = detail if isinstance(detail, str) else {"message": "no", **detail}
    finished = node.wait_for(put(node, "succeed"))
    assert finished["cause"] == cause
    assert words in str(finished["reason"])
    assert (finished["started_at"] is None) == (cause == "cancelled"), "Airflow need not be told what it refused"


@pytest.mark.parametrize(
    ("task", "call"),
    [
        ("succeed", "/xcoms/dag/run/succeed/return_value"),
        ("succeed", "/state"),
        ("need", "/away"),
        ("bash", "/heartbeat"),
        ("tidy_up", "/heartbeat"),  # which gets an answer when it is ended for want of one
    ],
)
def test_a_task_that_cannot_reach_the_api_leaves_its_failure_to_the_scheduler(
    hasty: NodeAgent, api: ExecutionApi, task: str, call: str
) -> None:
    """It has waited for as long as the scheduler can be without its heartbeat: that uses up no try."""
    api.refusals[call] = 503
    token = put(hasty, task)
    finished = hasty.wait_for(token)
    assert (finished["cause"], finished["reason"].code) == ("node_failure", "api_out_of_reach")
    assert set(api.states(token)) <= {"success"}
    assert not any("Likely out of memory" in line["event"] for line in log(hasty, token))


def test_an_outage_is_over_once_the_task_gets_an_answer(hasty: NodeAgent, api: ExecutionApi) -> None:
    """What goes wrong later is the task's own fault."""
    api.refusals["/away"] = 503
    token = put(hasty, "recover")
    finished = hasty.wait_for(token)
    assert (finished["cause"], finished["exit_code"], finished["reason"].code) == ("error", 0, "task_raised")
    assert api.states(token) == ["failed"]


def test_a_task_outlives_an_outage(node: NodeAgent, api: ExecutionApi) -> None:
    """Airflow's own supervisor ends it after the third heartbeat that is not answered."""
    token = put(node, "wait_for_file")
    node.wait(lambda: heartbeats(api, token))
    api.refusals["/heartbeat"] = 503
    before = heartbeats(api, token)
    node.wait(lambda: heartbeats(api, token) > before + 5)
    del api.refusals["/heartbeat"]
    (node.spool.root.parent / "go").touch()
    assert node.wait_for(token)["cause"] is None


def heartbeats(api: ExecutionApi, token: str) -> int:
    return sum(path.endswith(f"/{token}/heartbeat") for _, path, _ in api.requests)


def test_jobs_wait_for_an_api_server_that_is_away(node: NodeAgent, api: ExecutionApi) -> None:
    """One of them asks it, within its own start; the others are held, but for one now and then."""
    api.refusals["/run"] = 500
    api.details["/run"] = {"reason": "Database error", "message": "Serious error when handling your request."}
    first = put(node, "succeed", time_limit=5)
    folder = node.spool.job(first)
    node.wait(lambda: job_folder.is_unanswered(folder))
    tokens = [put(node, "succeed") for _ in range(20)]

    def held() -> set[str]:
        node.read()
        return {token for token in tokens if node.events_of(token, "waiting")}

    node.wait(lambda: len(held()) > 10)

    def counts() -> list[object]:
        reasons = [each["reason"] for token in tokens for each in node.events_of(token, "waiting")]
        assert {reason.code for reason in reasons} == {"api_away"}
        return [dict(reason.params)["jobs"] for reason in reasons]

    node.wait(lambda: 21 in counts())
    node.wait(lambda: node.events_of(first, "waiting"))
    began = node.events_of(first, "started")[0]["at"]
    node.wait(lambda: time.time() > began + 6)  # what it waits is not its own time
    assert len({token for token in tokens if node.events_of(token, "started")}) < 10
    del api.refusals["/run"]
    for token in (first, *tokens):
        assert node.wait_for(token)["cause"] is None
    assert node.events_of(first, "started")[-1]["at"] > began + 6, "its run has begun with the answer"
    assert all(api.states(token) == ["success"] for token in (first, *tokens))


def test_a_job_waits_for_an_api_server_that_hangs(make_node: Callable[..., NodeAgent], api: ExecutionApi) -> None:
    """The server has perhaps put the task to running, and knows it again by its process."""
    node = make_node("1", AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT="1")
    api.gates["/run"] = threading.Event()
    token = put(node, "succeed")

    def processes() -> list[int]:
        return [body["pid"] for _, path, body in api.requests if path.endswith(f"/{token}/run")]

    node.wait(lambda: len(processes()) > 3)
    api.gates["/run"].set()
    assert node.wait_for(token)["cause"] is None
    assert len(set(processes())) == 1


def test_a_job_that_waits_too_long_for_its_start_has_not_begun(hasty: NodeAgent, api: ExecutionApi) -> None:
    api.gates["/run"] = threading.Event()
    finished = hasty.wait_for(put(hasty, "succeed"))
    assert (finished["cause"], finished["reason"].code) == ("node_failure", "api_silent_at_start")


def test_a_job_that_waits_for_the_api_server_can_be_cancelled(node: NodeAgent, api: ExecutionApi) -> None:
    api.refusals["/run"] = 503
    token = put(node, "succeed")
    node.wait(lambda: job_folder.is_unanswered(node.spool.job(token)))
    node.spool.ask_to_cancel({token: free_text("not needed")})
    assert node.wait_for(token)["cause"] == "cancelled"
    del api.refusals["/run"]
    assert node.wait_for(put(node, "succeed"))["cause"] is None, "it does not hold others"


def test_the_end_of_a_task_is_noticed_at_once(make_node: Callable[..., NodeAgent], api: ExecutionApi) -> None:
    """Airflow's own supervisor may sleep for the heartbeat interval after the end of the task.

    It also sends a heartbeat right after the start.
    """
    node = make_node("600")
    for token in [put(node, "succeed") for _ in range(4)]:
        finished = node.wait_for(token)
        assert finished["at"] - finished["started_at"] < 300
        assert heartbeats(api, token) == 0


def test_resources_are_free_while_the_supervisor_still_reports(node: NodeAgent, api: ExecutionApi) -> None:
    api.gates["/state"] = threading.Event()
    token = put(node, "fail")  # its supervisor reports the failure after the end of its process
    node.wait_for(token, "started")
    node.wait((node.spool.job(token).root / "ended").exists)
    node.wait(lambda: api.states(token))
    node.read()
    assert node.events_of(token, "finished") == []
    reported = time.time()
    api.gates["/state"].set()
    assert node.wait_for(token)["at"] < reported, "the recorded end is the moment at which its room is given back"


def test_a_task_over_its_memory_limit_leaves_its_failure_to_the_scheduler(node: NodeAgent, api: ExecutionApi) -> None:
    token = put(node, "allocate", memory_limit=200)
    finished = node.wait_for(token)
    assert finished["cause"] == "out_of_memory"
    assert api.states(token) == []
    last = log(node, token)[-1]
    assert (last["event"], last["level"], last["cause"]) == (str(finished["reason"]), "error", "out_of_memory")


def test_a_task_uses_as_much_memory_by_the_measure_of_root_as_by_that_of_another_user(
    node: NodeAgent, make_node: Callable[..., NodeAgent]
) -> None:
    """Its process has made itself undumpable, and copies tens of MiB of the agent's pages."""
    nodes = (node, make_node("1", privileged=False))
    tokens = [put(each, "keep") for each in nodes]
    peaks = [each.wait_for(token)["peak_memory"] for each, token in zip(nodes, tokens, strict=True)]
    assert min(peaks) > 60 + 5
    assert max(peaks) - min(peaks) <= 5


def test_a_deaf_task_over_its_time_limit_leaves_its_failure_to_the_scheduler(
    node: NodeAgent, api: ExecutionApi, limited: dict[str, str]
) -> None:
    token = limited["sleep"]
    assert node.wait_for(token)["cause"] == "time_limit"
    assert api.states(token) == []
    assert log(node, token)[-1]["cause"] == "time_limit"
    assert not any("Likely out of memory" in line["event"] for line in log(node, token))


def test_a_task_that_obeys_at_its_time_limit_reports_its_own_failure(
    node: NodeAgent, api: ExecutionApi, limited: dict[str, str]
) -> None:
    token = limited["bash"]
    assert node.wait_for(token)["cause"] == "time_limit"
    assert api.states(token) == ["failed"]
    assert log(node, token)[-1]["cause"] == "time_limit"


@pytest.mark.parametrize(
    ("why", "is_late"), [(TERMINATED, False), (TERMINATED, True), (EndCause("preempted", free_text("it goes")), False)]
)
def test_a_task_that_is_ended_with_its_place_leaves_its_failure_to_the_scheduler(
    node: NodeAgent, api: ExecutionApi, why: EndCause, is_late: bool
) -> None:
    """Whether it uses up a try depends on why; the signal may come before its sender is written down."""
    token = put(node, "bash")
    pid = node.wait_for(token, "started")["pid"]
    written = node.spool.root.parent / "logs" / f"{token}.log"
    # The task has its handler, and its supervisor's passes signals on, before Airflow's hook says this; and the hook
    # drops a signal that comes before the start of its command is recorded.
    node.wait(lambda: written.exists() and '"Output:"' in written.read_text())
    if not is_late:
        why.write(node.spool.job(token))
    os.kill(pid, signal.SIGTERM)
    if is_late:
        # This is the task's last word before it reports its failure to its supervisor.
        node.wait(lambda: "::group::Post Execute" in written.read_text())
        why.write(node.spool.job(token))
    assert node.wait_for(token)["exit_code"] == -signal.SIGKILL
    assert api.states(token) == []
    events = [line["event"] for line in log(node, token)]
    assert any("Sending SIGTERM" in event for event in events), "on_kill ran"
    assert str(why.reason) in events


def test_a_task_that_the_server_ends_has_not_failed(node: NodeAgent, api: ExecutionApi) -> None:
    """It was marked in the UI, say: its process is killed, but the server has decided about the task already."""
    token = put(node, "bash")
    node.wait_for(token, "started")
    api.refusals["/heartbeat"] = 409
    finished = node.wait_for(token)
    assert (finished["cause"], finished["exit_code"]) == ("cancelled", 0)
    assert "marked" in str(finished["reason"])
    assert finished["started_at"] is not None
    assert api.states(token) == []


@pytest.mark.parametrize(
    ("status", "detail"),
    [(409, {"reason": "invalid_state", "previous_state": "success"}), (404, {"reason": "not_found"})],
)
def test_a_task_whose_end_the_server_has_decided_has_not_failed(
    node: NodeAgent, api: ExecutionApi, status: int, detail: dict[str, str]
) -> None:
    """It was marked, or deleted, between its last heartbeat and its end."""
    api.refusals["/state"] = status
    api.details["/state"] = {"message": "no", **detail}
    token = put(node, "fail")
    finished = node.wait_for(token)
    assert (finished["cause"], finished["exit_code"]) == ("cancelled", 0)
    assert api.states(token), "it was told"
    assert "Airflow no longer accepts the outcome of the task" in [line["event"] for line in log(node, token)]


def test_what_a_task_leaves_running_does_not_hold_it_up(node: NodeAgent) -> None:
    """Airflow's own supervisor waits for a minute while something holds the task's output open."""
    finished = node.wait_for(put(node, "leave_a_daemon"))
    assert finished["cause"] is None
    assert finished["at"] - finished["started_at"] < 60


def test_orphans_of_a_task_do_not_stay_zombies(node: NodeAgent) -> None:
    token = put(node, "leave_zombies")
    pid = node.wait_for(token, "started")["pid"]
    logged = node.spool.root.parent / "logs" / f"{token}.log"
    node.wait(lambda: logged.exists() and "all have ended" in logged.read_text())
    # The task itself is the only one.
    node.wait(lambda: sum(process.parent == pid for process in process_tree.everything()) == 1)
    assert node.events_of(token, "finished") == []
    (node.spool.root.parent / "seen").touch()
    assert node.wait_for(token)["cause"] is None


@pytest.mark.parametrize(("path", "cause"), [("os.getpid", None), ("os.abort", "error")])
def test_callbacks(node: NodeAgent, path: str, cause: str | None) -> None:
    token = str(uuid.uuid4())
    workload = {
        "type": "ExecuteCallback",
        "token": "a-jwt",
        "dag_rel_path": "dag.py",
        "bundle_info": {"name": "dags-folder", "version": None},
        "log_path": f"{token}.log",
        "callback": {"id": token, "fetch_method": "import_path", "data": {"path": path, "kwargs": {}}},
    }
    finished = node.wait_for(leave(node, token, workload))
    assert finished["cause"] == cause


def test_a_task_is_ended_with_its_process_group_by_a_killed_supervisor(node: NodeAgent) -> None:
    token = put(node, "bash")
    pid = node.wait_for(token, "started")["pid"]
    node.wait((node.spool.root.parent / "logs" / f"{token}.log").exists)
    os.kill(pid, signal.SIGKILL)
    assert node.wait_for(token)["cause"] == "lost"


def test_a_workload_that_airflow_cannot_read_is_not_quoted(tmp_path: Path) -> None:
    """It holds the JWT, and the words go to the log and the store."""
    workload = {"type": "ExecuteTask", "token": ["the-jwt"], "ti": {"id": "none"}}
    with pytest.raises(
        AgentJobFailed, match=r"cannot read the workload: .*token: Input should be a valid string"
    ) as caught:
        airflow_runner.run(workload, AgentJob("job", Spool(tmp_path)))
    assert "ti.id" in str(caught.value)
    assert "the-jwt" not in "".join(traceback.format_exception(caught.value))


def test_what_is_changed_in_airflow_is_still_there() -> None:
    """A changed Airflow must fail here, not silently lose one of our changes."""
    watched = supervisor.WatchedSubprocess
    assert list(inspect.signature(watched._service_subprocess).parameters) == [
        "self",
        "max_wait_time",
        "raise_on_timeout",
        "expect_signal",
    ]
    assert list(inspect.signature(watched._check_subprocess_exit).parameters) == [
        "self",
        "raise_on_timeout",
        "expect_signal",
    ]
    assert list(inspect.signature(watched._register_pipe_readers).parameters) == [
        "self",
        "stdout",
        "stderr",
        "requests",
        "logs",
        "data",
    ]
    assert "_register_pipe_readers" in inspect.getsource(watched.start)
    assert "socket_handler, on_close = key.data" in inspect.getsource(watched._service_subprocess)
    task = supervisor.ActivitySubprocess
    assert "self.update_task_state_if_needed()" in inspect.getsource(task.wait)
    assert "self._upload_logs()" in inspect.getsource(task.wait)
    assert "self._monitor_subprocess()" in inspect.getsource(task.wait)
    assert inspect.getsource(task.wait).index("signal.signal(") < inspect.getsource(task.wait).index("_monitor_subp")
    assert list(inspect.signature(task._handle_request).parameters) == ["self", "msg", "log", "req_id"]
    assert list(inspect.signature(task._handle_heartbeat_failures).parameters) == ["self", "exc"]
    assert "failed_heartbeats >= MAX_FAILED_HEARTBEATS" in inspect.getsource(task._handle_heartbeat_failures)
    assert list(inspect.signature(watched._signal_subprocess).parameters) == ["self", "sig"]
    fields = {field.name for field in task.__attrs_attrs__}
    assert {"_terminal_state", "_pending_terminal_state_msg", "_exit_code", "_process_exit_monotonic"} <= fields
    assert {"_last_heartbeat_attempt", "_last_successful_heartbeat"} <= fields
    assert "_last_successful_heartbeat = time.monotonic()" in inspect.getsource(task._on_child_started)
    # Where tasks build validators that they can share.
    assert "TypeAdapter(ToTask)" in inspect.getsource(comms.CommsDecoder)
    assert "TypeAdapter(JsonValue)" in inspect.getsource(task_runner._serialize_rendered_fields)
    # Our classes are looked up by name when a task or a callback starts.
    source = inspect.getsource(coordinator._PythonCoordinator.execute_task)
    assert "import ActivitySubprocess" in source
    assert "CallbackSubprocess.start(" in inspect.getsource(callback_supervisor.supervise_callback)


def test_our_supervisors_take_the_place_of_airflows() -> None:
    assert issubclass(airflow_runner.TaskSupervisor, supervisor.ActivitySubprocess)
    assert issubclass(airflow_runner.CallbackSupervisor, callback_supervisor.CallbackSubprocess)
