"""The process that a batch system starts for one task."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lading.hooks.cluster.jobs.layout import ClusterFolder, Task, write_tokens
from lading.hooks.files.safe_files import visible
from lading.hooks.spool import agent_archive
from lading.hooks.spool.command import COMMAND_RUNNER, CommandWork
from lading.hooks.spool.spool import Envelope, Spool
from lading.hooks.spool.values import reason_of
from lading.hooks.ssh.local_transport import ShellTransport
from lading.scheduling.model.reasons import free_text
from lading.scheduling.model.resources import Layout, Resources
from tests.services.forked import Forked
from tests.services.processes import wait_until

ROOT = Path(__file__).parents[4]


class Cluster:
    """The folder of a cluster with a submission of one task."""

    def __init__(self, root: Path, token: str = "a") -> None:
        self.token = token
        self.folder = ClusterFolder(str(root))
        self.spool = Spool(Path(self.folder.spool))
        for name in ("inbox", "cancel", "events", "jobs"):
            (self.spool.root / name).mkdir(parents=True)
        submission = Path(self.folder.submission("L1"))
        submission.mkdir(parents=True)
        Path(self.folder.tokens("L1")).write_text(write_tokens([Task("other"), Task(token, "x.log")]))
        self.started: list[subprocess.Popen[bytes] | Forked] = []

    def put(
        self,
        function: str,
        memory_limit: int | None = None,
        time_limit: int | None = None,
        layout: Layout | None = None,
        **more: Any,
    ) -> None:
        workload = {"function": function, "arguments": more, "token": "secret"}
        envelope = Envelope(
            self.token, workload, Resources(1, 100), memory_limit, time_limit, 0, 0.0, 2e9, layout=layout
        )
        self.spool.envelope(self.token).write_text(envelope.to_json())

    def start(self, *, anew: bool = False) -> subprocess.Popen[bytes] | Forked:
        """
        :param anew: by an interpreter of its own, as batch systems do
        """
        module = "lading.executors.agent.batch_job"
        self.scratch = Path(self.folder.root) / "scratch"
        self.scratch.mkdir(exist_ok=True)
        options = ["--runner", "tests.clusters.agent_runner", "--kill-grace", "1"]
        options += ["--scratch", str(self.scratch), "--keep-failed", "600"]
        arguments = [self.folder.root, "L1", "2", *options]
        if anew:
            command = [sys.executable, "-m", module, *arguments]
            self.started.append(subprocess.Popen(command, cwd=ROOT, start_new_session=True))
        else:
            self.started.append(Forked(module, arguments, cwd=ROOT))
        return self.started[-1]

    def run(self, *, anew: bool = False) -> int:
        return self.start(anew=anew).wait(180)

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for path in visible(self.spool.events) for line in path.read_text().splitlines()]

    def end(self) -> dict[str, Any]:
        [event] = [event for event in self.events() if event["event"] == "finished"]
        return event

    def wait_until_started(self) -> None:
        """Until its process has identified itself: one that a signal ends before is as if it had never begun."""
        assert wait_until(self.spool.job("a").supervisor.exists, 30, 0.05)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    for process in made.started:
        process.kill()
        process.wait()


def test_a_task_succeeds(cluster: Cluster) -> None:
    cluster.put("succeed")
    assert cluster.run(anew=True) == 0
    assert [event["event"] for event in cluster.events()] == ["started", "finished"]
    assert (cluster.end()["cause"], cluster.end()["exit_code"]) == (None, 0)
    left = [path.name for path in cluster.spool.job("a").root.iterdir()]
    assert "exit.json" in left, "the controller removes it"
    assert not any("workload" in name or "claimed" in name for name in left), "they hold the JWT"


def test_it_ends_with_its_task_and_not_at_its_next_look(cluster: Cluster) -> None:
    cluster.put("succeed")
    program = (
        "from lading.executors.agent import batch_job, batch_task, limits, warm_pool\n"
        "batch_task.TICK = limits.FIRST_LOOK = warm_pool.PATIENCE = 600.0\n"
        f"batch_job.main([{cluster.folder.root!r}, 'L1', '2', '--runner', 'tests.clusters.agent_runner'])\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=120)
    assert cluster.end()["exit_code"] == 0


def test_what_it_waits_for_the_api_server_is_not_its_own_time(cluster: Cluster, tmp_path: Path) -> None:
    cluster.put("succeed", time_limit=5, answered=str(tmp_path / "answered"))
    process = cluster.start()
    # Which is said after ten seconds.
    assert wait_until(lambda: any(each["event"] == "waiting" for each in cluster.events()), 120, 0.1)
    (tmp_path / "answered").touch()
    assert process.wait(180) == 0
    first, waiting, second, finished = cluster.events()
    assert (first["event"], second["event"], finished["event"]) == ("started", "started", "finished")
    assert str(reason_of(waiting["reason"])).endswith("; 1 job waits on this machine")
    assert second["at"] - first["at"] > 5
    assert (finished["cause"], finished["started_at"]) == (None, second["at"])


@pytest.mark.parametrize(
    ("layout", "said", "told"),
    [
        (Layout(8, 2, 1, least_nodes=2), "3", 3),
        (Layout(8, 2, 1), "3", None),
        (Layout(8, 2, 1, least_nodes=2), "several", None),  # what makes no sense fails no task
    ],
)
def test_of_a_range_of_nodes_it_says_how_many_it_has_got(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, layout: Layout, said: str, told: int | None
) -> None:
    monkeypatch.setenv("LADING_NODES", said)  # as its script has it of its batch system
    seen = tmp_path / "seen"
    cluster.put("variables", layout=layout, path=str(seen))
    assert cluster.run(anew=True) == 0
    [started] = [event for event in cluster.events() if event["event"] == "started"]
    assert started.get("nodes") == told
    assert json.loads(seen.read_text())["LADING_NODES"] == said, "and the task sees it"


def test_a_task_fails(cluster: Cluster) -> None:
    cluster.put("fail")
    cluster.run()
    assert (cluster.end()["cause"], cluster.end()["exit_code"]) == ("error", 3)


def test_its_scratch_folder_is_kept_when_it_fails_and_goes_when_it_succeeds(cluster: Cluster) -> None:
    for code, kept in ((3, ["a", "a.kept", "swept"]), (0, ["swept"])):
        shutil.rmtree(cluster.spool.job("a").root, ignore_errors=True)
        shutil.rmtree(Path(cluster.folder.root) / "scratch", ignore_errors=True)
        cluster.put("litter", code=code)
        cluster.run()
        assert sorted(path.name for path in (cluster.scratch / f"lading-{os.geteuid()}").iterdir()) == kept


def test_a_second_batch_job_runs_nothing(cluster: Cluster, tmp_path: Path) -> None:
    cluster.put("note", path=str(tmp_path / "notes"), seconds=0.5)
    first, second = cluster.start(), cluster.start()
    assert (first.wait(180), second.wait(180)) == (0, 0)
    assert cluster.run() == 0
    assert (tmp_path / "notes").read_text() == "a\n"
    assert [event["event"] for event in cluster.events()] == ["started", "finished"]


def test_limits_are_enforced(cluster: Cluster) -> None:
    cluster.put("allocate", memory_limit=200, mebibytes=400, seconds=30)
    cluster.run()
    assert cluster.end()["cause"] == "out_of_memory"


def test_pages_of_files_count_for_no_limit(cluster: Cluster, tmp_path: Path) -> None:
    cluster.put("map_file", memory_limit=300, mebibytes=256, seconds=3, path=str(tmp_path / "array"))
    cluster.run()
    assert cluster.end()["cause"] is None
    assert (cluster.end()["peak_memory"] or 0) < 40


def test_a_task_is_cancelled_by_a_file(cluster: Cluster) -> None:
    cluster.put("sleep", seconds=60)
    process = cluster.start()
    cluster.wait_until_started()
    cluster.spool.cancel("a").write_text("marked failed")
    assert process.wait(120) == 0
    assert (cluster.end()["cause"], reason_of(cluster.end()["reason"])) == ("cancelled", free_text("marked failed"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_the_batch_system_ends_it(cluster: Cluster, number: signal.Signals) -> None:
    cluster.put("sleep", seconds=60)
    process = cluster.start()
    cluster.wait_until_started()
    process.send_signal(number)
    assert process.wait(120) == 0
    assert cluster.end()["cause"] == "terminated"


def test_a_killed_batch_job_takes_its_task_with_it(cluster: Cluster, tmp_path: Path) -> None:
    cluster.put("note", path=str(tmp_path / "notes"), seconds=60)
    process = cluster.start()
    assert wait_until((tmp_path / "notes").exists, 30, 0.05)
    time.sleep(0.1)
    process.kill()
    sentinel = cluster.spool.job("a").sentinel
    assert wait_until(sentinel.exists, 20, 0.05), "its supervisor has seen the end of the task"
    assert json.loads(sentinel.read_text())["exit_code"] < 0
    assert json.loads(cluster.spool.job("a").cause.read_text())["cause"] == "terminated", "why is for the controller"


def test_a_deaf_task_is_killed_with_its_batch_job(cluster: Cluster, tmp_path: Path) -> None:
    cluster.put("sleep_deaf", seconds=60, started=str(tmp_path / "started"))
    process = cluster.start()
    assert wait_until((tmp_path / "started").exists, 30, 0.05)
    process.kill()
    assert wait_until(cluster.spool.job("a").sentinel.exists, 20, 0.05)


def test_a_task_reads_the_dags_that_it_is_bound_to_and_sees_no_orders(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_NTASKS", "1")
    monkeypatch.setenv("LADING_SCHEDULER_VARIABLES", " SLURM_NTASKS")
    workload = {
        "function": "variables",
        "arguments": {"path": str(tmp_path / "seen")},
        "bundle_info": {"name": "mine", "version": "1"},
    }
    dags = cluster.folder.bundle("0a1b")
    envelope = Envelope(cluster.token, workload, Resources(1, 100), None, None, 0, 0.0, 2e9, dags=dags, team="genes")
    cluster.spool.envelope(cluster.token).write_text(envelope.to_json())
    assert cluster.run(anew=True) == 0
    seen = json.loads((tmp_path / "seen").read_text())
    assert json.loads(seen["AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST"])[0]["kwargs"] == {"path": dags}
    assert seen["LADING_TEAM"] == "genes"
    assert seen["SLURM_JOB_ID"] == "7"
    assert "SLURM_NTASKS" not in seen
    assert "LADING_SCHEDULER_VARIABLES" not in seen


# Each module that is imported takes the CPU time of every batch job, of which a short task itself needs little. These
# modules of the standard library take the most; without them, a batch job takes half the time. What only some jobs need
# is imported where it is used.
SLOW = {
    "argparse", "array", "asyncio", "dataclasses", "datetime", "decimal", "email", "fractions", "getopt", "hashlib",
    "http.client", "inspect", "locale", "logging", "multiprocessing", "random", "selectors", "shutil", "site", "socket",
    "statistics", "string", "subprocess", "tempfile", "textwrap", "threading", "tokenize", "traceback", "uuid",
}  # fmt: skip
# All modules of Lading that a batch job with a command needs.
NEEDED = """
lading.executors.agent.batch_task lading.executors.agent.container_runner
lading.executors.agent.end_signals lading.executors.agent.job_folder
lading.executors.agent.journal lading.executors.agent.limits lading.executors.agent.process_tree
lading.executors.agent.running lading.executors.agent.scratch lading.executors.agent.signal_passing
lading.executors.agent.supervisor lading.executors.agent.tasks.command_runner lading.executors.agent.warm_pool
lading.executors.agent.watchdog lading.hooks.batch.environment lading.hooks.cluster.jobs.layout lading.hooks.files.bell
lading.hooks.files.child_processes lading.hooks.files.host lading.hooks.files.json_model lading.hooks.files.logs
lading.hooks.files.safe_files lading.hooks.spool.command lading.hooks.spool.job_files lading.hooks.spool.spool
lading.hooks.spool.tokens lading.hooks.spool.values lading.scheduling.model.light_dataclasses
lading.scheduling.model.reasons lading.scheduling.model.resources lading.scheduling.text.nesting
lading.scheduling.text.printable
"""


def test_a_command_needs_few_modules(cluster: Cluster, tmp_path: Path) -> None:
    work = CommandWork(["true"], log_folder=str(tmp_path / "logs"), log_path="a.log")
    envelope = Envelope("a", work.to_workload(), Resources(1, 100), 100, 600, 0, 0.0, 2e9)
    cluster.spool.envelope("a").write_text(envelope.to_json())
    agent_archive.bring(ShellTransport(), sys.executable, str(tmp_path))
    archive, module = agent_archive.archive().path(str(tmp_path)), "lading.executors.agent.batch_job"
    # All its processes end by os._exit: the batch job, its watcher, and the process that runs the command.
    program = f"""
import os, runpy, sys
before, leave = set(sys.modules), os._exit
def list_modules(code):
    with open(f"{tmp_path}/{{os.getpid()}}.modules", "w") as file:
        file.write(" ".join(set(sys.modules) - before))
    leave(code)
os._exit = list_modules
sys.argv = [{archive!r}, {module!r}, {str(tmp_path)!r}, "L1", "2", "--runner", {COMMAND_RUNNER!r}]
runpy.run_path({archive!r}, run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, text=True, cwd="/")
    assert (done.returncode, done.stderr) == (0, "")
    assert (cluster.end()["cause"], cluster.end()["exit_code"]) == (None, 0)
    files = list(tmp_path.glob("*.modules"))
    assert len(files) == 4, "also the one between the batch job and its watcher"
    imported = set().union(*(file.read_text().split() for file in files))
    assert imported & SLOW == set()
    packages = {name.rpartition(".")[0] for name in imported}
    assert {name for name in imported - packages if name.startswith("lading")} == set(NEEDED.split())
    small = min((set(file.read_text().split()) for file in files), key=len)
    assert {name for name in small - packages if name.startswith("lading")} == {"lading.executors.agent.watchdog"}
