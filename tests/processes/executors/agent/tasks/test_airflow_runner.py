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
from airflow.sdk.execution_time import callback_supervisor, coordinator, supervisor

from lading.executors.agent import process_tree
from lading.executors.agent.job_folder import TERMINATED, EndCause
from lading.executors.agent.supervisor import AgentJob, AgentJobFailed
from lading.executors.agent.tasks import airflow_runner
from lading.hooks.spool.spool import Envelope, Spool
from lading.scheduling.reasons import free_text
from lading.scheduling.resources import Resources
from tests.services.agent import ROOT, NodeAgent
from tests.services.execution_api import ExecutionApi, task_workload

DAG = """
import os, subprocess, sys, time
from airflow.sdk import DAG, Asset, task

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
    def sleep(): time.sleep(600)

    @task.bash
    def bash(): return "sleep 600"

    @task
    def allocate():
        block = bytearray(os.urandom(2**20)) * 400
        time.sleep(60)

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

    for each in (leave_zombies, succeed, write, fail, vanish, sleep, bash, allocate, leave_a_daemon):
        each()
"""


@pytest.fixture(scope="module")
def api() -> Iterator[ExecutionApi]:
    with ExecutionApi() as server:
        yield server


@pytest.fixture(scope="module")
def make_node(tmp_path_factory: pytest.TempPathFactory, api: ExecutionApi) -> Iterator[Callable[..., NodeAgent]]:
    """Start an agent whose tasks have a heartbeat of so many seconds."""
    made = []

    def make(heartbeat: str, **environment: str) -> NodeAgent:
        home = tmp_path_factory.mktemp("home")
        (home / "dags").mkdir()
        (home / "dags" / "dag.py").write_text(DAG)
        made.append(NodeAgent(home, capacity=Resources(64, 65536)))
        made[-1].start(
            runner=airflow_runner.__name__,
            # What is written down late in a test comes after an event, however long a busy machine takes for that.
            constants={f"{airflow_runner.__name__}.CAUSE_PATIENCE": 60},
            AIRFLOW_HOME=str(home),
            AIRFLOW__CORE__EXECUTION_API_SERVER_URL=api.url,
            AIRFLOW__CORE__LOAD_EXAMPLES="False",
            AIRFLOW__WORKERS__EXECUTION_API_RETRIES="1",
            AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT="60",
            AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL=heartbeat,
            AIRFLOW__DATABASE__SQL_ALCHEMY_CONN="sqlite:////nowhere/at/all.db",
            **environment,
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
    assert str(finished["reason"]) == "the task failed, as its log says"
    assert api.states(token) == ["failed"]


def test_a_task_whose_process_vanishes_has_failed(node: NodeAgent, api: ExecutionApi) -> None:
    token = put(node, "vanish")
    finished = node.wait_for(token)
    assert (finished["cause"], finished["exit_code"]) == ("error", 3)
    assert "exit code 3" in str(finished["reason"])
    assert api.states(token) == ["failed"]


@pytest.mark.parametrize(
    ("status", "detail", "cause", "words"),
    [
        (400, {"reason": "bad_request"}, "error", "answered 400"),
        (409, {"reason": "invalid_state", "previous_state": "running"}, "cancelled", "already running elsewhere"),
        (409, {"reason": "invalid_state", "previous_state": "failed"}, "cancelled", "answered 409"),  # was marked
        (409, {"reason": "invalid_state", "previous_state": None}, "cancelled", "answered 409"),  # was cleared
        (404, {"reason": "not_found"}, "cancelled", "answered 404"),
    ],
)
def test_a_task_that_the_server_does_not_let_start(
    node: NodeAgent, api: ExecutionApi, status: int, detail: dict[str, str | None], cause: str, words: str
) -> None:
    api.refusals["/run"] = status
    api.details["/run"] = {"message": "no", **detail}
    finished = node.wait_for(put(node, "succeed"))
    assert finished["cause"] == cause
    assert words in str(finished["reason"])
    assert (finished["started_at"] is None) == (cause == "cancelled"), "Airflow need not be told what it refused"


@pytest.mark.parametrize(
    ("task", "call", "states"),
    [("succeed", "/run", []), ("succeed", "/xcoms/dag/run/succeed/return_value", []), ("bash", "/heartbeat", [])],
)
def test_a_task_that_cannot_reach_the_api_leaves_its_failure_to_the_scheduler(
    node: NodeAgent, api: ExecutionApi, task: str, call: str, states: list[str]
) -> None:
    """Airflow's client has tried for long enough: that uses up no try."""
    api.refusals[call] = 503
    token = put(node, task)
    finished = node.wait_for(token)
    assert finished["cause"] == "node_failure"
    assert "execution API was out of reach from this machine" in str(finished["reason"])
    assert api.states(token) == states


def test_the_end_of_a_task_is_noticed_at_once(make_node: Callable[..., NodeAgent]) -> None:
    """Airflow's own supervisor may sleep for the heartbeat interval after the end of the task."""
    node = make_node("600")
    for token in [put(node, "succeed") for _ in range(4)]:
        finished = node.wait_for(token)
        assert finished["at"] - finished["started_at"] < 300


def test_resources_are_free_while_the_supervisor_still_reports(node: NodeAgent, api: ExecutionApi) -> None:
    api.gates["/state"] = threading.Event()
    token = put(node, "vanish")  # its supervisor reports the failure after the end of its process
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


@pytest.mark.parametrize("task", ["fail", "vanish"])
@pytest.mark.parametrize(
    ("status", "detail"),
    [(409, {"reason": "invalid_state", "previous_state": "success"}), (404, {"reason": "not_found"})],
)
def test_a_task_whose_end_the_server_has_decided_has_not_failed(
    node: NodeAgent, api: ExecutionApi, task: str, status: int, detail: dict[str, str]
) -> None:
    """It was marked, or deleted, between its last heartbeat and its end."""
    api.refusals["/state"] = status
    api.details["/state"] = {"message": "no", **detail}
    token = put(node, task)
    finished = node.wait_for(token)
    assert (finished["cause"], finished["exit_code"]) == ("cancelled", 0)
    assert api.states(token), "it was told"
    assert "what the task has come to is not wanted any more" in [line["event"] for line in log(node, token)]


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
    # Our classes are looked up by name when a task or a callback starts.
    source = inspect.getsource(coordinator._PythonCoordinator.execute_task)
    assert "import ActivitySubprocess" in source
    assert "CallbackSubprocess.start(" in inspect.getsource(callback_supervisor.supervise_callback)


def test_our_supervisors_take_the_place_of_airflows() -> None:
    assert issubclass(airflow_runner.TaskSupervisor, supervisor.ActivitySubprocess)
    assert issubclass(airflow_runner.CallbackSupervisor, callback_supervisor.CallbackSubprocess)
