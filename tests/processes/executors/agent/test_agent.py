"""A real node agent, driven through a real spool; its jobs are functions instead of Airflow tasks."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from lading.executors.agent import process_tree
from lading.executors.agent.agent import Agent
from lading.executors.agent.job_folder import EndCause, Supervisor
from lading.hooks.files import host
from lading.hooks.files.safe_files import write_atomically
from lading.hooks.spool.spool import MOST_LOG_BYTES, AgentConfig, Envelope, JobFolder, Spool
from lading.scheduling.model.reasons import free_text
from lading.scheduling.model.resources import Resources
from tests.clusters import agent_runner
from tests.reasons import message_in
from tests.services import unprivileged
from tests.services.agent import ROOT, NodeAgent


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    NodeAgent.clean_up()


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[NodeAgent]:
    node = NodeAgent(tmp_path)
    node.start()
    yield node
    assert node.stop() == 0
    assert list(node.spool.jobs.iterdir()) == []


def alive(path: Path) -> bool:
    return os.path.exists(f"/proc/{path.read_text()}")


def test_a_job_is_started_and_its_success_reported(agent: NodeAgent) -> None:
    agent.put("one", "child", seconds=0.1)
    finished = agent.wait_for("one")
    started = agent.wait_for("one", "started")
    assert finished["cause"] is None
    assert finished["exit_code"] == 0
    assert finished["cpu_seconds"] >= 0
    assert started["at"] + 0.1 <= finished["at"] <= time.time()
    assert finished["started_at"] == started["at"]
    agent.wait(lambda: not list(agent.spool.jobs.iterdir()))
    assert list(agent.spool.inbox.iterdir()) == []


def test_a_failure_is_reported_with_its_exit_code(agent: NodeAgent) -> None:
    agent.put("one", "fail")
    finished = agent.wait_for("one")
    assert (finished["cause"], finished["exit_code"]) == ("error", 3)
    assert str(finished["reason"]) == "the task ended with 3"


def test_jobs_start_as_room_allows_by_priority(agent: NodeAgent, tmp_path: Path) -> None:
    agent.put("full", "until", Resources(4, 512), path=str(tmp_path / "end"))
    agent.wait_for("full", "started")
    agent.put("low", "sleep", Resources(4, 512), seconds=0.1, queued_at=time.time() - 60)
    agent.put("high", "sleep", Resources(4, 512), priority=5, seconds=0.1)
    waiting = agent.wait_for("low", "waiting")
    assert message_in(waiting) == "waits for room on this machine: needs 4 cpus, 512 MiB memory; cpus are taken"
    (tmp_path / "end").touch()
    low, high = agent.wait_for("low"), agent.wait_for("high")
    assert low["started_at"] >= high["started_at"] + 0.1
    assert len(agent.events_of("low", "waiting")) == 1
    assert agent.events_of("high", "waiting") == [], "a short wait is not worth reporting"


def test_room_is_free_when_the_task_has_ended_not_when_its_reports_are_made(agent: NodeAgent, tmp_path: Path) -> None:
    agent.put("reports", "succeed", Resources(4, 512), report_until=str(tmp_path / "reported"))
    agent.put("next", "succeed", Resources(4, 512), queued_at=time.time() + 1)
    following = agent.wait_for("next")
    assert agent.events_of("reports", "finished") == [], "its reports take longer than the next job"
    (tmp_path / "reported").touch()
    reports = agent.wait_for("reports")
    assert reports["at"] <= following["started_at"], "by the recorded times no more runs at once than there is room for"


def test_by_the_recorded_times_no_more_runs_than_there_is_room_for(agent: NodeAgent, tmp_path: Path) -> None:
    cpus = {f"job{number}": 1.0 + number % 3 for number in range(15)}
    reported = tmp_path / "reported"  # when the last one has started, in the room that the others have given back
    for token, its_cpus in cpus.items():
        agent.put(token, "child", Resources(its_cpus, 64), seconds=0.01, report_until=str(reported))
    for token in cpus:
        agent.wait_for(token, "started")
    reported.touch()
    ends = [agent.wait_for(token) for token in cpus]
    steps = sorted(
        step
        for end in ends
        for step in ((end["started_at"], 1, cpus[end["token"]]), (end["at"], 0, -cpus[end["token"]]))
    )
    assert max(itertools.accumulate(change for _, _, change in steps)) <= 4


def test_a_job_too_large_for_the_machine_fails_at_once(agent: NodeAgent) -> None:
    agent.put("huge", "succeed", Resources(64, 512))
    finished = agent.wait_for("huge")
    assert finished["cause"] == "error"
    assert "64 cpus" in str(finished["reason"])


def test_a_job_over_its_memory_limit_is_killed(agent: NodeAgent) -> None:
    agent.put("greedy", "allocate", memory_limit=200, mebibytes=300, seconds=30)
    agent.put("modest", "allocate", memory_limit=200, mebibytes=100, seconds=1)
    greedy, modest = agent.wait_for("greedy"), agent.wait_for("modest")
    assert greedy["cause"] == "out_of_memory"
    assert "200 MiB" in str(greedy["reason"])
    assert greedy["peak_memory"] >= 200
    assert modest["cause"] is None
    assert 90 <= modest["peak_memory"] <= 130


@pytest.mark.parametrize("privileged", [True, False])
def test_pages_of_files_count_for_no_limit_and_no_peak(tmp_path: Path, privileged: bool) -> None:
    node = NodeAgent(tmp_path)
    node.start(privileged=privileged)
    node.put("maps", "map_file", memory_limit=300, mebibytes=256, seconds=4, path=str(tmp_path / "array"))
    node.put("free", "map_file", mebibytes=256, seconds=4, path=str(tmp_path / "another"))
    node.put("short", "map_file", mebibytes=64, seconds=0, path=str(tmp_path / "third"))
    node.put("greedy", "allocate", memory_limit=300, mebibytes=400, seconds=60)
    for token in ("maps", "free", "short"):
        finished = node.wait_for(token)
        assert finished["cause"] is None
        assert (finished["peak_memory"] or 0) < 40, "by this figure memory='auto' is sized"
    greedy = node.wait_for("greedy")
    assert greedy["cause"] == "out_of_memory"
    assert node.stop() == 0


def test_memory_that_forked_processes_share_counts_once(agent: NodeAgent) -> None:
    agent.put("pool", "share", memory_limit=300, mebibytes=150, processes=4, seconds=1)
    finished = agent.wait_for("pool")
    assert finished["cause"] is None
    assert 140 <= finished["peak_memory"] <= 220


def test_an_agent_without_privileges_looks_after_tasks_that_it_may_not_look_into(tmp_path: Path) -> None:
    node = NodeAgent(tmp_path)
    node.start(privileged=False)
    node.put("greedy", "allocate_unseen", memory_limit=200, mebibytes=300, seconds=60)
    node.put("modest", "allocate_unseen", memory_limit=200, mebibytes=100, seconds=1.5)
    node.put("free", "allocate_unseen", mebibytes=150, seconds=1.5)
    node.put("unwanted", "allocate_unseen", mebibytes=1, seconds=60)
    pid = node.wait_for("unwanted", "started")["pid"]
    assert node.process is not None
    assert "CapEff:\t0000000000000000" in Path(f"/proc/{node.process.pid}/status").read_text()
    (task,) = node.wait(lambda: process_tree.descendants(pid))
    assert node.wait_for("greedy")["cause"] == "out_of_memory"
    look = unprivileged.command("/bin/cat", f"/proc/{task.pid}/smaps_rollup")
    assert subprocess.run(look, cwd=ROOT, stderr=subprocess.DEVNULL).returncode != 0
    for token, used in (("modest", 100), ("free", 150)):
        finished = node.wait_for(token)
        assert finished["cause"] is None
        assert used - 10 <= finished["peak_memory"] <= used + 30
    node.spool.ask_to_cancel({"unwanted": free_text("never mind")})
    assert node.wait_for("unwanted")["cause"] == "cancelled"
    assert not host.is_alive(task.pid, task.started)
    assert node.stop() == 0


def test_being_forked_from_the_agent_is_no_use_of_memory(agent: NodeAgent) -> None:
    agent.put("trivial", "sleep", seconds=1.5)
    assert (agent.wait_for("trivial")["peak_memory"] or 0) < 15


def test_a_job_over_its_time_limit_is_asked_to_end(agent: NodeAgent) -> None:
    agent.put("slow", "sleep", time_limit=3, seconds=600)
    finished = agent.wait_for("slow")
    assert (finished["cause"], finished["exit_code"]) == ("time_limit", -signal.SIGTERM)
    assert "3 s" in str(finished["reason"])


def test_a_deaf_job_over_its_time_limit_is_killed(agent: NodeAgent, tmp_path: Path) -> None:
    agent.put("deaf", "sleep_deaf", time_limit=5, seconds=600, started=str(tmp_path / "started"))
    finished = agent.wait_for("deaf")
    assert (finished["cause"], finished["exit_code"]) == ("time_limit", -signal.SIGKILL)
    assert finished["at"] - finished["started_at"] < 600, "it would sleep for longer"


def test_a_running_job_is_cancelled(agent: NodeAgent) -> None:
    agent.put("one", "sleep", seconds=60)
    agent.wait_for("one", "started")
    agent.spool.ask_to_cancel({"one": free_text("the user has had enough")})
    finished = agent.wait_for("one")
    assert (finished["cause"], str(finished["reason"])) == ("cancelled", "the user has had enough")
    agent.wait(lambda: not list(agent.spool.cancels.iterdir()))


@pytest.mark.parametrize("delay", [0.0, 0.002, 0.005, 0.01, 0.02])
def test_a_job_is_cancelled_at_any_moment_of_its_start(agent: NodeAgent, delay: float) -> None:
    tokens = [f"job-{number}" for number in range(4)]
    for token in tokens:
        agent.put(token, "sleep", seconds=60)
    time.sleep(delay)
    agent.spool.ask_to_cancel(dict.fromkeys(tokens, free_text("never mind")))
    for token in tokens:
        assert agent.wait_for(token)["cause"] == "cancelled"


def test_a_waiting_job_is_cancelled_at_once_and_never_runs(agent: NodeAgent, tmp_path: Path) -> None:
    agent.put("full", "until", Resources(4, 512), path=str(tmp_path / "end"))
    agent.wait_for("full", "started")
    agent.put("waits", "note", path=str(tmp_path / "runs"), queued_at=time.time() - 60)
    agent.wait_for("waits", "waiting")
    agent.spool.ask_to_cancel({"waits": free_text("no longer wanted")})
    finished = agent.wait_for("waits")
    assert (finished["cause"], finished["started_at"]) == ("cancelled", None)
    assert agent.events_of("full", "finished") == []
    (tmp_path / "end").touch()
    agent.wait_for("full")
    agent.put("waits", "note", path=str(tmp_path / "runs"))  # renewed too late
    agent.put("after", "succeed")
    agent.wait_for("after")
    assert not (tmp_path / "runs").exists()
    assert len(agent.events_of("waits", "finished")) == 1


def test_a_job_that_is_not_there_is_cancelled_too(agent: NodeAgent) -> None:
    agent.spool.ask_to_cancel({"unknown": free_text("gone")})
    assert agent.wait_for("unknown")["cause"] == "cancelled"
    agent.wait(lambda: not list(agent.spool.cancels.iterdir()))


ENVELOPE = {
    "token": "bad",
    "workload": {},
    "resources": {"cpus": 1, "memory": 64},
    "memory_limit": None,
    "time_limit": None,
    "priority": 1,
    "queued_at": 1,
    "expires_at": 1e10,
}


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        "\udcff",
        json.dumps({**ENVELOPE, "token": "another"}),
        json.dumps({**ENVELOPE, "resources": {"cpus": "many", "memory": 64}}),
        json.dumps({**ENVELOPE, "resources": {"cpus": 1, "memory": -64}}),
        json.dumps({**ENVELOPE, "priority": None}),
        json.dumps({**ENVELOPE, "time_limit": float("nan")}),
    ],
)
def test_a_garbage_envelope_is_set_aside_and_reported(agent: NodeAgent, text: str) -> None:
    (agent.spool.root / "garbage").write_bytes(text.encode(errors="surrogateescape"))
    os.rename(agent.spool.root / "garbage", agent.spool.envelope("bad"))
    agent.spool.ring()
    finished = agent.wait_for("bad")
    assert finished["cause"] == "error"
    assert "envelope" in str(finished["reason"])
    agent.wait((agent.spool.root / "rejected" / "bad.json").exists)
    agent.put("good", "succeed")
    assert agent.wait_for("good")["cause"] is None


@pytest.mark.parametrize("text", ["", "\0\0\0"])
def test_an_envelope_that_a_power_cut_has_emptied_is_as_if_it_had_never_come(agent: NodeAgent, text: str) -> None:
    write_atomically(agent.spool.envelope("torn"), text)
    agent.spool.ring()
    agent.wait(lambda: not agent.spool.envelope("torn").exists())
    agent.put("torn", "succeed")
    assert agent.wait_for("torn")["cause"] is None
    assert len(agent.events_of("torn", "finished")) == 1


def test_a_large_log_is_parted_while_the_agent_lives(agent: NodeAgent) -> None:
    agent.put("one", "succeed")
    agent.wait_for("one")
    os.truncate(agent.spool.log, MOST_LOG_BYTES + 1)
    agent.wait(agent.spool.old_log.exists)
    (agent.spool.inbox / "bad.json").write_text("{")
    agent.wait_for("bad")
    agent.wait(lambda: "envelope of the job cannot be read" in read_log(agent))
    assert agent.spool.log.stat().st_size < 10_000


def strange(folder: Path, names: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave what is no file: a FIFO, a folder, a link to nothing, a socket, and a file of a terabyte."""
    fifo, inner, link, listener, giant = names
    os.mkfifo(folder / fifo)
    (folder / inner / "inside").mkdir(parents=True)
    (folder / link).symlink_to("nowhere")
    with monkeypatch.context() as here, socket.socket(socket.AF_UNIX) as made:
        here.chdir(folder)  # the path of a socket must be short
        made.bind(listener)
    with (folder / giant).open("wb") as stream:
        stream.truncate(2**40)


def test_what_is_no_file_neither_holds_the_agent_up_nor_stops_it(
    agent: NodeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    strange(agent.spool.inbox, [f"in-{number}.json" for number in range(5)], monkeypatch)
    strange(agent.spool.cancels, [f"out-{number}" for number in range(5)], monkeypatch)
    os.mkfifo(agent.spool.shutdown)
    agent.spool.ring()
    agent.put("good", "sleep", seconds=60)
    agent.wait_for("good", "started")
    agent.spool.ask_to_cancel({"good": free_text("no longer wanted")})
    assert agent.wait_for("good")["cause"] == "cancelled"
    for number in range(5):
        assert "envelope" in str(agent.wait_for(f"in-{number}")["reason"])
    agent.wait(lambda: not [*agent.spool.inbox.iterdir(), *agent.spool.cancels.iterdir()])
    agent.wait(lambda: len(list(agent.spool.rejected.iterdir())) == 11)
    agent.put("in-1", "succeed")  # a folder in the place of an envelope that comes too late
    agent.put("after", "succeed")
    assert agent.wait_for("after")["cause"] is None


def test_a_file_that_is_no_envelope_at_all_does_no_harm(agent: NodeAgent) -> None:
    write_atomically(agent.spool.inbox / "not a token!.json", "{}")
    agent.put("good", "succeed")
    assert agent.wait_for("good")["cause"] is None


def test_names_of_no_token_are_set_aside_whatever_they_hold(agent: NodeAgent) -> None:
    names = ["a b.json", "x" * 100 + ".json", "\u00e4.json", "job", "job.jsonl"]
    for name in names:
        text = json.dumps({**ENVELOPE, "token": name.removesuffix(".json"), "expires_at": time.time() + 600})
        write_atomically(agent.spool.inbox / name, text)
    agent.put("good", "succeed")
    assert agent.wait_for("good")["cause"] is None
    agent.wait(lambda: not list(agent.spool.inbox.iterdir()))
    assert {path.name for path in agent.spool.rejected.iterdir()} == set(names)
    agent.wait(lambda: read_log(agent).count("does not have the form TOKEN.json") == len(names))


def test_a_damaged_configuration_is_said_once_and_changes_nothing(agent: NodeAgent) -> None:
    agent.put("before", "succeed")
    agent.wait_for("before")
    agent.spool.config.unlink()
    agent.spool.config.mkdir()
    for number in range(5):
        agent.put(f"{number}", "succeed")
        assert agent.wait_for(f"{number}")["cause"] is None
    assert agent.spool.log.read_text().count("config.json cannot be read") == 1
    agent.spool.config.rmdir()
    agent.configure(capacity=Resources(1, 100))
    agent.spool.ring()
    agent.wait(
        lambda: "config.json cannot be read, so the agent keeps its previous configuration: resolved" in read_log(agent)
    )


def read_log(agent: NodeAgent) -> str:
    return agent.spool.log.read_text()


def test_with_an_expiring_jwt_nothing_is_started_until_it_is_renewed(agent: NodeAgent) -> None:
    agent.put("old", "succeed", expires_at=time.time() + 10, queued_at=time.time() - 60)
    assert "renew" in message_in(agent.wait_for("old", "waiting"))
    assert agent.events_of("old", "started") == []
    agent.put("old", "succeed")
    assert agent.wait_for("old")["cause"] is None


def test_what_a_task_leaves_running_is_ended_with_it(agent: NodeAgent, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    agent.put("one", "escape", pid_file=str(pid))
    assert agent.wait_for("one")["cause"] is None
    assert not alive(pid)


def test_a_job_that_left_nothing_behind_hands_its_process_on(tmp_path: Path) -> None:
    agent = NodeAgent(tmp_path)
    agent.start(constants={"lading.executors.agent.warm_pool.PATIENCE": 600})

    def process_of(token: str, function: str, **arguments: Any) -> int:
        agent.put(token, function, **arguments)
        agent.wait_for(token)
        pid: int = agent.events_of(token, "started")[0]["pid"]
        return pid

    first = process_of("one", "mark", path=str(tmp_path / "one"), ti={"id": "task 1"})
    assert process_of("two", "mark", path=str(tmp_path / "two")) == first
    assert (tmp_path / "one").read_text() == "one task 1"
    assert (tmp_path / "two").read_text() == "two no task"
    failed = process_of("three", "fail")
    assert process_of("four", "succeed") != failed
    assert agent.stop() == 0


def test_a_spare_process_waits_for_a_while_only(tmp_path: Path) -> None:
    agent = NodeAgent(tmp_path)
    agent.start(constants={"lading.executors.agent.warm_pool.PATIENCE": 0.5})
    agent.put("one", "succeed")
    agent.wait_for("one")
    pid = agent.events_of("one", "started")[0]["pid"]
    assert agent.wait(lambda: process_tree.Process.read(pid) is None)
    agent.put("two", "succeed")
    agent.wait_for("two")
    assert agent.stop() == 0


def test_more_jobs_run_at_once_than_a_process_may_have_files_open(tmp_path: Path) -> None:
    """The agent raises its own limit; that of the tasks stays."""
    node = NodeAgent(tmp_path, capacity=Resources(40, 40_000))
    node.start(open_files=24)
    limits = tmp_path / "limits"
    limits.mkdir()
    tokens = [node.put(f"job{number}", "open_files", path=str(limits)) for number in range(40)]
    node.wait(lambda: len(list(limits.glob("job*"))) == len(tokens))
    assert not any(node.events_of(token, "finished") for token in tokens), "all at once"
    assert {path.read_text() for path in limits.glob("job*")} == {"24"}
    node.stop()


def test_gpus_are_handed_out(tmp_path: Path) -> None:
    node = NodeAgent(tmp_path, capacity=Resources(8, 4096, 0, 2), gpu_devices=("7", "GPU-x"))
    # All before it looks: what it has seen to the end before the next one comes may have the same device.
    for token, count in (("none", 0), ("half", 0.5), ("other-half", 0.5), ("whole", 1)):
        node.put(token, "environment", Resources(1, 64, 0, count), path=str(tmp_path / token))
    node.start()
    for token in ("none", "half", "other-half", "whole"):
        node.wait_for(token)
    node.stop()
    seen = {token: (tmp_path / token).read_text() for token in ("none", "half", "other-half", "whole")}
    assert seen["none"] == ""
    assert {seen["half"], seen["whole"]} == {"7", "GPU-x"}


def test_without_gpus_the_environment_is_left_alone(agent: NodeAgent, tmp_path: Path) -> None:
    agent.put("one", "environment", path=str(tmp_path / "seen"))
    agent.wait_for("one")
    assert (tmp_path / "seen").read_text() == os.environ.get("CUDA_VISIBLE_DEVICES", "unset")


def test_a_second_agent_of_a_spool_leaves_at_once(agent: NodeAgent) -> None:
    agent.put("one", "succeed")
    agent.wait_for("one")
    identity = agent.spool.identity.read_text()
    second = NodeAgent.__new__(NodeAgent)
    second.spool, second.events, second.process = agent.spool, [], None
    second.start()
    assert second.process is not None
    assert second.process.wait(120) == 0
    assert "another agent" in agent.spool.log.read_text()
    assert agent.spool.identity.read_text() == identity


def test_an_agent_makes_a_lock_anew_that_was_removed_and_gives_way_to_one_that_has_it(tmp_path: Path) -> None:
    node = NodeAgent(tmp_path)
    node.start()
    node.put("a", "sleep", seconds=4)
    node.wait_for("a", "started")
    assert node.process is not None
    node.spool.lock.unlink()
    node.spool.ring()
    node.wait(node.spool.lock.exists)
    node.spool.lock.unlink()
    with node.spool.lock.open("w") as another:  # it has begun in this very moment
        fcntl.flock(another, fcntl.LOCK_EX)
        node.spool.ring()
        assert node.process.wait(120) == 0
    node.start()
    assert node.wait_for("a")["cause"] is None, "its job goes on, and the next one takes it over"
    node.stop()


def test_drain_lets_running_jobs_end_and_starts_no_more(tmp_path: Path) -> None:
    node = NodeAgent(tmp_path)
    node.start()
    node.put("running", "sleep", seconds=1)
    node.wait_for("running", "started")
    node.spool.ask_to_shut_down("drain")
    node.put("late", "succeed")
    assert node.process is not None
    assert node.process.wait(120) == 0
    node.read()
    assert node.events_of("running", "finished")[0]["cause"] is None
    assert node.events_of("late", "started") == []
    assert node.spool.envelope("late").exists()
    assert not node.spool.shutdown.exists()


def test_a_shutdown_ends_running_jobs_and_leaves_the_backlog(tmp_path: Path) -> None:
    node = NodeAgent(tmp_path)
    node.start()
    node.put("running", "sleep", Resources(4, 64), seconds=60)
    node.put("deaf", "sleep_deaf", Resources(0, 64), seconds=60, started=str(tmp_path / "started"))
    node.wait_for("running", "started")
    node.put("waits", "succeed", queued_at=time.time() - 60)
    node.wait_for("waits", "waiting")
    node.wait((tmp_path / "started").exists)
    node.spool.ask_to_shut_down("cancel")
    assert node.process is not None
    assert node.process.wait(120) == 0
    node.read()
    assert [node.events_of(token, "finished")[0]["cause"] for token in ("running", "deaf")] == ["cancelled"] * 2
    assert node.spool.envelope("waits").exists()


def test_a_signal_while_the_agent_looks_for_a_shutdown_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path / "spool")
    spool.create()
    agent = Agent(spool, agent_runner)

    handlers: dict[int, Callable[[int, object], None]] = {}
    monkeypatch.setattr(signal, "set_wakeup_fd", lambda *_, **__: -1)
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    agent.end_signals.receive()

    def interrupted(*_: object) -> str:
        handlers[signal.SIGTERM](signal.SIGTERM, None)
        raise FileNotFoundError

    monkeypatch.setattr(Spool, "request", interrupted)
    agent._read_shutdown()
    monkeypatch.undo()
    agent._read_shutdown()
    assert agent._is_done()


def test_nothing_begins_after_a_signal_that_comes_while_the_agent_looks(tmp_path: Path) -> None:
    """What ends a place ends its jobs, too: their room is free before the agent itself has ended."""
    spool = Spool(tmp_path / "spool")
    spool.create()
    agent = Agent(spool, agent_runner)
    agent._configure(AgentConfig(Resources(1, 1000), (), 60.0, 1.0))
    write_atomically(spool.envelope("t"), Envelope("t", {}, Resources(1, 1), None, None, 0, 0.0, 2e9).to_json())
    agent._read_shutdown()
    agent.inbox.refresh()
    assert agent.inbox.ready(time.time())
    agent.end_signals.received = True
    agent._start_jobs()
    assert (agent.running.jobs, spool.envelope("t").exists()) == ({}, True)


def test_an_agent_adopts_what_the_one_before_it_has_started(tmp_path: Path) -> None:
    node = NodeAgent(tmp_path)
    node.start()
    runs = tmp_path / "runs"
    node.put("lives", "note", path=str(runs), seconds=3)
    node.put("ends", "note", path=str(runs), seconds=0.3)
    node.put("limited", "sleep", Resources(1, 64), time_limit=2, seconds=60)
    node.put("later", "note", Resources(4, 64), path=str(runs), queued_at=time.time() + 1)
    node.wait(lambda: runs.exists() and len(runs.read_text().split()) == 2)
    node.kill()
    time.sleep(0.5)  # `ends` ends without an agent
    node.start()
    for token in ("lives", "ends", "later"):
        assert node.wait_for(token)["cause"] is None, token
    assert node.wait_for("limited")["cause"] == "time_limit"
    assert node.events_of("later", "finished")[0]["started_at"] >= node.events_of("lives", "finished")[0]["at"] - 0.1
    assert Counter(runs.read_text().split()) == Counter(["lives", "ends", "later"])
    assert node.stop() == 0


@pytest.mark.parametrize("with_agent", [True, False], ids=["agent lives", "agent was killed before"])
def test_a_job_whose_supervisor_is_killed_is_lost_with_all_its_processes(tmp_path: Path, with_agent: bool) -> None:
    node = NodeAgent(tmp_path)
    node.start()
    node.put("one", "sleep_deaf", seconds=60, started=str(tmp_path / "started"))
    pid = node.wait_for("one", "started")["pid"]
    node.wait((tmp_path / "started").exists)
    (task,) = process_tree.descendants(pid)
    if not with_agent:
        node.kill()
    os.kill(pid, signal.SIGKILL)
    if not with_agent:
        node.start()
    finished = node.wait_for("one")
    assert finished["cause"] == "lost"
    assert not host.is_alive(task.pid, task.started)
    assert node.stop() == 0


def test_jobs_that_were_about_to_start_wait_again(tmp_path: Path) -> None:
    """The states of a job's folder in which a crash may leave it before the job has started."""
    node = NodeAgent(tmp_path)
    runs = tmp_path / "runs"
    for token in ("unclaimed", "claimed", "renewed"):
        node.put(token, "note", path=str(runs))
        folder = node.spool.job(token)
        folder.root.mkdir()
        os.rename(node.spool.envelope(token), folder.workload)
    claimed = node.spool.job("claimed")
    os.rename(claimed.workload, claimed.claim(2**22 + 1, 1))  # by a process that is dead
    node.put("renewed", "note", path=str(runs))
    cancelled = node.spool.job("cancelled")  # and the agent died before it could report it
    cancelled.root.mkdir()
    node.put("cancelled", "note", path=str(runs))
    os.rename(node.spool.envelope("cancelled"), cancelled.workload)
    EndCause("cancelled", "never mind").write(cancelled)
    node.spool.job("empty").root.mkdir()
    (node.spool.jobs / ".removed").mkdir()
    node.start()
    for token in ("unclaimed", "claimed", "renewed"):
        assert node.wait_for(token)["cause"] is None
    assert node.wait_for("cancelled")["cause"] == "cancelled"
    assert Counter(runs.read_text().split()) == Counter(["unclaimed", "claimed", "renewed"])
    assert node.stop() == 0
    assert list(node.spool.jobs.iterdir()) == []


def test_a_job_of_another_boot_was_ended_by_its_machine(tmp_path: Path) -> None:
    node = NodeAgent(tmp_path)
    folder = node.spool.job("old")
    folder.root.mkdir()
    record = {"pid": os.getpid(), "started": host.started(os.getpid()), "boot_id": "another"}
    record |= {"at": 1.0, "began": 1.0}
    resources = {"cpus": 1, "memory": 64, "disk": 0, "gpus": 0}
    limits = {"memory_limit": None, "time_limit": None, "devices": {}}
    write_atomically(folder.supervisor, json.dumps({**record, **limits, "resources": resources}))
    node.start()
    assert node.wait_for("old")["cause"] == "node_failure"
    assert node.stop() == 0


ME = os.getpid()
SUPERVISOR = {
    "pid": os.getpid(),
    "started": host.started(os.getpid()),
    "boot_id": host.boot_id(),
    "at": 1.0,
    "began": 1.0,
    "resources": {"cpus": 1, "memory": 64},
    "memory_limit": None,
    "time_limit": None,
}


@pytest.mark.parametrize(
    "spoilt",
    [
        {"resources": {"cpus": "a", "memory": 3}},
        {"resources": {"cpus": 1, "memory": 1e400}},
        {"resources": [1, 2]},
        {"at": "x"},
        {"pid": -1},
        {"began": None},
        {"time_limit": "1 h"},
        {"devices": {"0": "all"}},
    ],
    ids=str,
)
def test_who_runs_a_job_is_not_known_from_a_file_that_makes_no_sense(
    tmp_path: Path, spoilt: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    folder = JobFolder(tmp_path)
    write_atomically(folder.supervisor, json.dumps(SUPERVISOR))
    found = Supervisor.read(folder)
    assert found is not None
    assert (found.pid, found.resources) == (os.getpid(), Resources(1, 64))
    write_atomically(folder.supervisor, json.dumps({**SUPERVISOR, **spoilt}))
    assert Supervisor.read(folder) is None
    assert f"ignoring the invalid file {folder.supervisor}" in caplog.text


def test_a_job_whose_folder_was_spoilt_is_its_own_trouble_alone(tmp_path: Path) -> None:
    node = NodeAgent(tmp_path)
    for token, name in (("typed", "supervisor.json"), ("named", "claimed.a.b.json")):
        node.spool.job(token).root.mkdir()
        record = {**SUPERVISOR, "resources": {"cpus": "a", "memory": 3}}
        write_atomically(node.spool.job(token).root / name, json.dumps(record))
    node.start(constants={"lading.executors.agent.job_folder.CLAIM_PATIENCE": 0.1})
    node.put("good", "succeed")
    assert node.wait_for("good")["cause"] is None
    # What is no claim says nothing; that of a process which lives and does not run the job keeps it from being judged.
    for token, claim in (("forgets", "claimed.a.b.json"), ("spoils", f"claimed.{ME}.{host.started(ME)}.json")):
        node.put(token, "sleep", seconds=60)
        pid = node.wait_for(token, "started")["pid"]
        folder = node.spool.job(token)
        node.wait(folder.supervisor.exists)
        folder.supervisor.unlink()
        (folder.root / claim).touch()
        os.kill(pid, signal.SIGKILL)
    finished = node.wait_for("forgets")
    assert (finished["cause"], str(finished["reason"]).rpartition(" ")[2]) == ("lost", "9")
    node.wait(lambda: "cannot determine the state of job spoils" in read_log(node))
    node.put("later", "succeed")
    assert node.wait_for("later")["cause"] is None
    assert read_log(node).count("cannot determine the state of job spoils") == 1
    assert "cannot determine the state of job forgets" not in read_log(node)
    assert node.process is not None
    assert node.process.poll() is None


def test_killing_the_agent_at_any_moment_runs_every_job_exactly_once(tmp_path: Path) -> None:
    node = NodeAgent(tmp_path, capacity=Resources(8, 4096))
    runs = tmp_path / "runs"
    chance = random.Random(1)
    tokens = [f"job-{number}" for number in range(120)]
    node.start()
    for number, token in enumerate(tokens):
        node.put(token, "note", Resources(1, 64), path=str(runs), seconds=chance.choice([0, 0, 0.05, 0.3]))
        if number % 12 == 11:
            time.sleep(chance.random() * 0.25)
            node.kill()
            node.read()
            node.start()
    node.wait(lambda: all(node.events_of(token, "finished") for token in tokens))
    assert Counter(runs.read_text().split()) == Counter(tokens)
    assert {event["cause"] for event in node.events if event["event"] == "finished"} == {None}
    assert node.stop() == 0


def test_jobs_whose_supervisors_are_killed_never_run_again(tmp_path: Path) -> None:
    node = NodeAgent(tmp_path, capacity=Resources(8, 4096))
    runs = tmp_path / "runs"
    chance = random.Random(2)
    tokens = [f"job-{number}" for number in range(40)]
    node.start()
    for token in tokens:
        node.put(token, "note", Resources(1, 64), path=str(runs), seconds=0.2)
    killed = set()
    while not all(node.events_of(token, "finished") for token in tokens):
        node.read()
        running = [
            token for token in tokens if node.events_of(token, "started") and not node.events_of(token, "finished")
        ]
        if running and chance.random() < 0.3:
            # It may run another of the jobs by now, where the end of this one is not read yet.
            pid = node.events_of(chance.choice(running), "started")[-1]["pid"]
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        time.sleep(0.02)
    counts = Counter(runs.read_text().split())
    assert set(counts.values()) == {1}
    for token in tokens:
        cause = node.events_of(token, "finished")[0]["cause"]
        assert cause in (None, "lost")
        assert cause is None or node.events_of(token, "started")[-1]["pid"] in killed
        assert cause is not None or counts[token] == 1
    assert node.stop() == 0


def test_while_events_cannot_be_written_nothing_is_lost(tmp_path: Path) -> None:
    """A full disk, say. Root may write anywhere, so the folder of the events is a file for a while."""
    node = NodeAgent(tmp_path)
    node.start()
    node.put("before", "succeed")
    node.wait_for("before")
    node.read()
    node.spool.events.rename(tmp_path / "events")
    node.spool.events.touch()
    node.put("during", "succeed")
    deadline = time.monotonic() + 120
    while "cannot write" not in node.spool.log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert node.process is not None
    assert node.process.poll() is None
    node.spool.events.unlink()
    (tmp_path / "events").rename(node.spool.events)
    assert node.wait_for("during")["cause"] is None
    assert node.stop() == 0


@pytest.mark.parametrize("is_replaced", [True, False], ids=["replaced", "removed"])
def test_an_agent_whose_spool_is_gone_ends_with_its_jobs(tmp_path: Path, is_replaced: bool) -> None:
    node = NodeAgent(tmp_path)
    node.start()
    node.put("one", "sleep", seconds=600)
    node.wait_for("one", "started")
    assert node.process is not None
    running = process_tree.descendants(node.process.pid)
    assert running
    node.spool.root.rename(tmp_path / "removed")
    if is_replaced:
        node.spool.create()
    assert node.process.wait(120) == 0
    assert not [each.pid for each in running if host.is_alive(each.pid, each.started)]
    assert node.spool.root.exists() == is_replaced
