"""How an executor supervises the controller's process."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors import controller_process, store
from lading.executors.controller import leadership
from lading.executors.controller.plugin_mark import PluginMark
from lading.executors.controller_process import ControllerProcess, last_line
from lading.executors.settings import Settings
from lading.executors.store import JobRow, Lease, State
from lading.hooks.machines.agent_host import AgentHost
from lading.hooks.spool.rejected import RejectedFiles
from lading.hooks.spool.spool import Spool
from lading.plugin.host import AirflowHost
from tests.clusters.sites import StoreHost, make_settings, make_store
from tests.services.agent import NodeAgent
from tests.services.processes import wait_until


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return make_store(tmp_path)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return make_settings(tmp_path, shutdown_seconds=120)


class Clock:
    """The time by the clock of a process."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    time = staticmethod(time.time)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(controller_process, "time", clock)
    return clock


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """Processes that end with status 1 take the place of controllers."""
    started: list[subprocess.Popen[bytes]] = []

    def spawn(host: AirflowHost, settings: Settings) -> subprocess.Popen[bytes]:
        settings.controller_log.write_text("one\nthe sites file is wrong\n\n")
        started.append(subprocess.Popen(["false"]))
        return started[-1]

    monkeypatch.setattr(controller_process, "spawn", spawn)
    return started


def add_job(engine: Engine, token: str) -> None:
    with Session(engine) as session:
        columns = {"cpus": 1.0, "memory": 1, "disk": 0, "gpus": 0.0, "priority": 0, "queued_at": 1.0}
        store.add_job(
            session, token=token, kind="ExecuteTask", subject=token, workload="{}", state=State.QUEUED, **columns
        )
        session.commit()


def reason(engine: Engine) -> str | None:
    with Session(engine) as session:
        found = session.scalar(select(JobRow.reason))
        return None if found is None else str(found)


def reason_code(engine: Engine) -> str | None:
    with Session(engine) as session:
        found = session.scalar(select(JobRow.reason_code))
        return None if found is None else str(found)


def test_tasks_show_why_no_controller_stays_up(
    engine: Engine,
    settings: Settings,
    clock: Clock,
    started: list[subprocess.Popen[bytes]],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add_job(engine, "a")
    process = ControllerProcess(StoreHost(engine), settings)
    reasons = []
    for _ in range(3):
        process.ensure()
        if process.child is not None:
            process.child.wait()
        clock.now += 60
        reasons.append(reason(engine))
    assert len(started) == 3
    assert reasons[:2] == [None, None], "one death is not worth a reason"
    assert reasons[2] is not None
    assert "the controller exited with status 1: the sites file is wrong; see" in reasons[2]
    assert str(settings.controller_log) in reasons[2]
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 2
    assert "the sites file is wrong" in errors[0]

    monkeypatch.setattr(controller_process, "spawn", lambda host, settings: subprocess.Popen(["sleep", "600"]))
    process.ensure()
    assert process.child is not None
    try:
        for _ in range(2):
            clock.now += 50
            assert reason(engine) is not None
            process.ensure()
        assert reason(engine) is None, "it stays up, so that is not why the task waits"
    finally:
        process.child.kill()
        process.child.wait()


def test_where_the_controller_is_a_service_none_is_started_and_tasks_wait_with_that_reason(
    engine: Engine, settings: Settings, clock: Clock, started: list[subprocess.Popen[bytes]]
) -> None:
    add_job(engine, "a")
    process = ControllerProcess(StoreHost(engine), replace(settings, starts_controller=False))
    codes = []
    for seconds in (0, 29, 3):
        clock.now += seconds
        process.ensure()
        codes.append(reason_code(engine))
    assert codes == [None, None, "no_controller_service"], "a service that restarts is not worth a reason"
    assert not started
    with Session(engine) as session:
        assert store.take_lease(session, "service", "elsewhere", 1, False, 20.0, None)
        session.commit()
    clock.now += 3
    process.ensure()
    assert reason_code(engine) is None, "it runs again, so that is not why the task waits"


def test_a_controller_that_dies_at_once_is_started_within_a_minute(
    engine: Engine, settings: Settings, clock: Clock, started: list[subprocess.Popen[bytes]]
) -> None:
    process = ControllerProcess(StoreHost(engine), settings)
    pauses = []
    for _ in range(40):
        before, number = clock.now, len(started)
        while len(started) == number:
            process.ensure()
            clock.now += 1
        started[-1].wait()
        pauses.append(clock.now - before)
    assert pauses[1] < 5
    assert max(pauses) <= 62


def test_after_a_long_life_the_next_start_is_soon(
    engine: Engine, settings: Settings, clock: Clock, started: list[subprocess.Popen[bytes]]
) -> None:
    process = ControllerProcess(StoreHost(engine), settings)
    process.starts = 30
    process.ensure()
    started[-1].wait()
    clock.now += 61
    process.ensure()
    assert (len(started), process.starts) == (2, 1)
    started[-1].wait()
    clock.now += 2.5
    process.ensure()
    assert len(started) == 3
    started[-1].wait()


def test_after_one_that_was_killed_at_its_work_the_next_start_is_soon(
    engine: Engine, settings: Settings, clock: Clock, started: list[subprocess.Popen[bytes]]
) -> None:
    process = ControllerProcess(StoreHost(engine), settings)
    process.starts, process.started_at = 30, clock.now
    process.child = subprocess.Popen(["sleep", "600"])
    process.has_led = {process.child.pid}
    process.child.kill()
    process.child.wait()
    process.ensure()
    assert (len(started), process.starts) == (1, 1)
    started[-1].wait()


def test_the_last_output_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_line(log) == ""
    log.write_bytes(b"first\n  last \xff\0words\n\n")
    assert last_line(log) == "last \ufffdwords"
    log.write_bytes(b"x" * 100_000)
    assert len(last_line(log)) == 2000


@pytest.fixture
def living() -> Iterator[Callable[..., Lease]]:
    """Make the lease of a process that is a controller by its command, which it has when it has begun."""
    processes: list[subprocess.Popen[bytes]] = []

    def make(**columns: object) -> Lease:
        processes.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "controller"]))
        assert wait_until(lambda: controller_process.is_controller(processes[-1].pid), 60, 0.02)
        here = {"host": socket.gethostname(), "pid": processes[-1].pid, "managed": True}
        return Lease(name="controller", holder="a", expires_at=time.time() + 20, **{**here, **columns})

    yield make
    for process in processes:
        process.kill()
        process.wait()


def has_ended(lease: Lease) -> bool:
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(lease.pid, os.WNOHANG)[0] == lease.pid
    return True


def test_a_service_takes_the_place_of_an_executors_controller(living: Callable[..., Lease]) -> None:
    lease = living()
    controller_process.ask_to_make_way(lease)
    assert wait_until(lambda: has_ended(lease), 10)
    controller_process.ask_to_make_way(lease)  # the process is gone


def test_a_service_and_a_controller_elsewhere_are_left_alone(living: Callable[..., Lease]) -> None:
    leases = [living(managed=False), living(host="elsewhere")]
    stranger = subprocess.Popen(["sleep", "600"])
    leases.append(living(pid=stranger.pid))  # the pid belongs to another process by now
    for lease in leases:
        controller_process.ask_to_make_way(lease)
    time.sleep(0.5)
    assert not any(has_ended(lease) for lease in leases)
    stranger.kill()
    stranger.wait()


@pytest.mark.parametrize("managed", [True, False])
def test_only_a_service_asks_for_the_place(
    engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch, managed: bool
) -> None:
    with Session(engine) as session:
        store.take_lease(session, "other", "elsewhere", 1, True, 20.0, None)
        session.commit()
    asked: list[str] = []
    monkeypatch.setattr(leadership, "ask_to_make_way", lambda lease: asked.append(lease.holder))
    standing_by = leadership.Leadership(
        StoreHost(engine), (), managed, lambda: None, PluginMark(settings.controller_mark)
    )
    assert not standing_by.lead()
    assert asked == ([] if managed else ["other"])


def test_a_controller_that_has_lost_the_lease_ends(engine: Engine, settings: Settings) -> None:
    stopped: list[bool] = []
    acting = leadership.Leadership(
        StoreHost(engine), (), True, lambda: stopped.append(True), PluginMark(settings.controller_mark)
    )
    assert acting.lead()
    with Session(engine) as session:
        store.drop_lease(session, acting.holder)
        store.take_lease(session, "other", "elsewhere", 1, True, 20.0, None)
        session.commit()
    acting.renew_at = 0.0
    assert not acting.lead()
    assert stopped == [True]
    assert not acting.lead(), "it never takes it again"
    assert stopped == [True]


# A lease that does not run out, however long a test looks on.
LASTING = 3600.0


def lead(engine: Engine, pid: int, seconds: float, host: str | None = None) -> None:
    """Let a process have the lease for so many seconds more."""
    with Session(engine) as session:
        session.query(Lease).delete()
        expires_at = time.time() + seconds
        where = {"host": host or socket.gethostname(), "pid": pid}
        session.add(Lease(name="controller", holder="a", managed=True, expires_at=expires_at, **where))
        session.commit()


@pytest.fixture
def stopped() -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Make a controller that lives and does nothing."""
    processes: list[subprocess.Popen[bytes]] = []

    def make(*_: Any) -> subprocess.Popen[bytes]:
        processes.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "controller"]))
        assert wait_until(lambda: controller_process.is_controller(processes[-1].pid), 60)
        processes[-1].send_signal(signal.SIGSTOP)
        return processes[-1]

    yield make
    for process in processes:
        process.kill()
        process.wait()


def look_for(process: ControllerProcess, clock: Clock, seconds: int) -> None:
    for _ in range(seconds // 3):
        clock.now += 3
        process.ensure()


def test_a_controller_that_hangs_is_killed_and_replaced(
    engine: Engine,
    settings: Settings,
    clock: Clock,
    stopped: Callable[..., subprocess.Popen[bytes]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(controller_process, "spawn", stopped)
    process = ControllerProcess(StoreHost(engine), settings)
    process.ensure()
    first = process.child
    assert first is not None
    lead(engine, first.pid, LASTING)
    look_for(process, clock, 300)
    assert first.poll() is None, "it renews its lease"
    lead(engine, first.pid, -1)
    look_for(process, clock, 24)
    assert first.poll() is None, "the database may have been away"
    look_for(process, clock, 12)
    assert first.wait(120) == -signal.SIGKILL
    assert "hangs" in caplog.text
    look_for(process, clock, 6)
    assert process.child is not None
    assert process.child is not first


def test_a_controller_of_an_earlier_scheduler_that_hangs_is_replaced_at_once_and_killed(
    engine: Engine,
    settings: Settings,
    clock: Clock,
    stopped: Callable[..., subprocess.Popen[bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = stopped()
    monkeypatch.setattr(controller_process, "spawn", stopped)
    process = ControllerProcess(StoreHost(engine), settings)
    lead(engine, old.pid, 2.0)
    process.ensure()
    assert process.child is None
    lead(engine, old.pid, -1)
    look_for(process, clock, 3)
    assert process.child is not None
    lead(engine, process.child.pid, LASTING)
    look_for(process, clock, 40)
    assert old.wait(120) == -signal.SIGKILL
    assert process.child.poll() is None


def test_a_controller_that_stands_by_or_begins_is_left_alone(
    engine: Engine,
    settings: Settings,
    clock: Clock,
    stopped: Callable[..., subprocess.Popen[bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(controller_process, "spawn", stopped)
    process = ControllerProcess(StoreHost(engine), settings)
    process.ensure()
    child = process.child
    assert child is not None
    look_for(process, clock, 90)
    lead(engine, 1, LASTING, host="elsewhere")
    look_for(process, clock, 300)
    lead(engine, 1, -1, host="elsewhere")
    look_for(process, clock, 90)
    assert child.poll() is None
    look_for(process, clock, 120)
    assert child.wait(120) == -signal.SIGKILL


def test_a_database_that_is_away_is_no_reason_to_kill(
    engine: Engine,
    settings: Settings,
    clock: Clock,
    stopped: Callable[..., subprocess.Popen[bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(controller_process, "spawn", stopped)
    process = ControllerProcess(StoreHost(engine), settings)
    process.ensure()
    assert process.child is not None
    lead(engine, process.child.pid, LASTING)
    look_for(process, clock, 3)
    lead(engine, process.child.pid, -1)
    for _ in range(5):
        look_for(process, clock, 21)
        with monkeypatch.context() as away:
            away.setattr(controller_process, "current_lease", raising)
            clock.now += 3
            with pytest.raises(OSError, match="away"):
                process.ensure()
    assert process.child.poll() is None


def raising(host: AirflowHost) -> None:
    raise OSError("away")


def test_a_log_that_is_full_is_parted_before_the_next_controller_writes_into_it(tmp_path: Path) -> None:
    log = tmp_path / "controller.log"
    controller_process.part(log)
    log.write_bytes(b"x")
    controller_process.part(log)
    assert log.exists()
    os.truncate(log, controller_process.MOST_LOG_BYTES + 1)
    controller_process.part(log)
    assert [path.name for path in tmp_path.glob("controller.log*")] == ["controller.log.1"]


# A controller that takes a while to import Airflow, and then lets go of the machine in order.
BEGINS_SLOWLY = """
import pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
(folder / "begun").touch()
while not (folder / "imported").exists():
    time.sleep(0.01)
from lading.hooks.machines.agent_host import AgentHost
from lading.hooks.spool.rejected import RejectedFiles
from lading.hooks.spool.spool import Spool
spool = Spool(folder / "spool")
def stop(number, frame):
    AgentHost(spool, RejectedFiles(spool.rejected)).close("cancel", 30.0)
    (folder / "let_go").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
time.sleep(600)
"""


@pytest.fixture
def slow_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", BEGINS_SLOWLY, str(tmp_path), "controller"]
    monkeypatch.setattr(AirflowHost, "controller_command", lambda self: command)
    monkeypatch.setattr(controller_process, "another_scheduler_lives", lambda *_: False)
    monkeypatch.setattr(controller_process.ControllerProcess, "seconds_until_begun", 120.0)


@pytest.fixture
def left_agent(tmp_path: Path) -> Iterator[NodeAgent]:
    """The agent of a controller that was killed."""
    agent = NodeAgent(tmp_path)
    agent.start()
    assert wait_until(agent.spool.identity.exists, 60)
    yield agent
    NodeAgent.clean_up()


def killed_controller() -> int:
    """The pid of a process that is no more."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_no_agent_stays_when_the_controller_was_killed_right_before_an_orderly_stop(
    engine: Engine, settings: Settings, tmp_path: Path, slow_begin: None, left_agent: NodeAgent
) -> None:
    lead(engine, killed_controller(), 20)
    (tmp_path / "imported").touch()
    ControllerProcess(StoreHost(engine), settings).stop()
    assert (tmp_path / "let_go").exists(), "one was started that lets go of what is there"
    assert left_agent.process is not None
    assert left_agent.process.wait(120) == 0


def test_a_controller_that_was_started_this_moment_is_waited_for(
    engine: Engine,
    settings: Settings,
    tmp_path: Path,
    slow_begin: None,
    left_agent: NodeAgent,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between fork and execution a process has no command by which it could be known."""
    monkeypatch.setattr(controller_process.psutil.Process, "cmdline", lambda process: [])
    lead(engine, killed_controller(), 20)
    (tmp_path / "imported").touch()
    ControllerProcess(StoreHost(engine), settings).stop()
    assert (tmp_path / "let_go").exists()


def test_no_agent_stays_when_the_next_controller_is_stopped_while_it_begins(
    engine: Engine, settings: Settings, tmp_path: Path, slow_begin: None, left_agent: NodeAgent
) -> None:
    lead(engine, killed_controller(), 20)
    process = ControllerProcess(StoreHost(engine), settings)
    process.ensure()
    assert process.child is not None
    assert wait_until((tmp_path / "begun").exists, 60)
    stopping = threading.Thread(target=process.stop)
    stopping.start()
    # The signal is there before the controller can take it.
    pending = Path(f"/proc/{process.child.pid}/status")
    bit = 1 << (signal.SIGTERM - 1)
    shared = "ShdPnd:"
    assert wait_until(
        lambda: any(int(line.split()[1], 16) & bit for line in pending.read_text().splitlines() if shared in line), 60
    )
    (tmp_path / "imported").touch()
    stopping.join(120)
    assert not stopping.is_alive()
    assert (tmp_path / "let_go").exists()
    assert left_agent.process is not None
    assert left_agent.process.wait(120) == 0
    assert process.child.wait(120) == 0


def test_a_controller_that_was_killed_and_cannot_be_waited_for_yet_is_none(
    engine: Engine, settings: Settings, tmp_path: Path, slow_begin: None, left_agent: NodeAgent
) -> None:
    """Its first thread is gone, the others are about to."""
    pid = killed_controller()
    lead(engine, pid, 20)
    (tmp_path / "imported").touch()
    process = ControllerProcess(StoreHost(engine), settings)
    process.child = SimpleNamespace(pid=pid, poll=lambda: None)  # type: ignore[assignment]
    process.stop()
    assert (tmp_path / "let_go").exists()
    assert left_agent.process is not None
    assert left_agent.process.wait(120) == 0


def test_after_an_orderly_end_and_beside_another_scheduler_nothing_is_started(
    engine: Engine, settings: Settings, tmp_path: Path, slow_begin: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ControllerProcess(StoreHost(engine), settings).stop()
    monkeypatch.setattr(controller_process, "another_scheduler_lives", lambda *_: True)
    lead(engine, killed_controller(), 20)
    ControllerProcess(StoreHost(engine), settings).stop()
    assert not (tmp_path / "begun").exists()
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_controller_whose_lease_has_run_out_is_stopped_as_well(
    engine: Engine, settings: Settings, living: Callable[..., Lease], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller_process, "another_scheduler_lives", lambda *_: False)
    slow = living()
    lead(engine, slow.pid, -1)
    ControllerProcess(StoreHost(engine), settings).stop()
    assert wait_until(lambda: has_ended(slow), 10)


def test_one_of_a_killed_scheduler_that_begins_while_another_one_stops_is_stopped_as_well(
    engine: Engine,
    settings: Settings,
    living: Callable[..., Lease],
    tmp_path: Path,
    slow_begin: None,
) -> None:
    """Nothing shows it before it has the lease."""
    other = living()
    lead(engine, killed_controller(), -1)
    process = ControllerProcess(StoreHost(engine), settings)
    process.seconds_between_looks = 0.1
    process.ensure()
    assert wait_until((tmp_path / "begun").exists, 60)
    stopping = threading.Thread(target=process.stop)
    stopping.start()
    assert wait_until(settings.stopped.exists, 60), "one that begins later ends by it"
    lead(engine, other.pid, 20)
    assert wait_until(lambda: has_ended(other), 60)
    (tmp_path / "imported").touch()
    stopping.join(120)
    assert not stopping.is_alive()


def test_a_controller_learns_that_airflow_stops_even_if_a_second_signal_interrupts_the_executor(
    engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the terminal of ``airflow standalone`` sends its scheduler SIGINT and at once SIGTERM."""

    interruptions = iter([SystemExit(0)])

    def interrupted(*_: object) -> bool:
        for each in interruptions:
            raise each
        return False

    monkeypatch.setattr(controller_process, "another_scheduler_lives", interrupted)
    with pytest.raises(SystemExit):
        ControllerProcess(StoreHost(engine), settings).stop()
    assert settings.stopped.exists()


def test_an_agent_that_has_not_identified_itself_yet_ends_with_its_site(tmp_path: Path) -> None:
    """A controller was killed right after it had started it."""
    agent = NodeAgent(tmp_path)
    began = AgentHost(agent.spool, RejectedFiles(agent.spool.rejected))
    began.close("cancel", 5.0)  # of the next controller, which sees no agent
    agent.start()
    try:
        assert agent.process is not None
        assert agent.process.wait(120) == 0
    finally:
        NodeAgent.clean_up()
    AgentHost(Spool(tmp_path / "none"), RejectedFiles(tmp_path / "none")).close("cancel", 5.0)
    assert not (tmp_path / "none").exists()
