"""The process that has imported Airflow: what it forks has a session of its own, and ends with it in any case."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from lading.hooks.spool.command import COMMAND_RUNNER
from tests.services import forks, processes
from tests.services.airflow import AIRFLOW
from tests.services.commands import Commands
from tests.services.forks import Lent

# A command that lasts: no database answers there, and it asks once a minute.
LASTING = ("db", "check", "--retry", "100", "--retry-delay", "60")
DATABASE = "postgresql+psycopg2://nobody@127.0.0.1:1/nothing"
KILLED = f"""
import json, sys, time
from pathlib import Path
from tests.services.commands import Commands

folder = Path(sys.argv[1])
commands = Commands(folder, json.loads(sys.argv[2]))
started = commands.start({LASTING}, json.loads(sys.argv[2]), folder / "log", folder / "log")
print(started.pid, flush=True)
time.sleep(600)
"""

READ_BY_IMPORTS = """
import os

READ = set()

def record(method):
    def recorded(variables, name, *more):
        READ.add(name)
        return method(variables, name, *more)
    return recorded

for method in ("__contains__", "__getitem__", "get"):
    setattr(type(os.environ), method, record(getattr(type(os.environ), method)))

from tests.services import commands, forking

forking.preload()
print(*sorted(filter(commands.READ_LATE.fullmatch, READ)))
"""

DEAF = """
import runpy, signal, sys, time, weakref

class Thing: pass

sys.unraisablehook = runpy.run_path(sys.argv[1])["insist"]
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(5))
thing = Thing()
reference = weakref.ref(thing, lambda gone: signal.raise_signal(signal.SIGTERM))
del thing
print("goes on", flush=True)
time.sleep(60)
"""

LOGGING = """
import runpy, signal, sys

runpy.run_path(sys.argv[1])["let_signal_handlers_log"]()
from structlog import WriteLogger

class Output:
    def write(self, text):
        print(text, end="")
        if text == "before\\n":
            signal.raise_signal(signal.SIGTERM)

    def flush(self): pass

log = WriteLogger(Output())
signal.signal(signal.SIGTERM, lambda number, frame: log.info("within"))
log.info("before")
log.info("behind")
"""


def environment_of(folder: Path) -> dict[str, str]:
    others = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    return {**others, "AIRFLOW_HOME": str(folder), "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": DATABASE}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("commands")


@pytest.fixture(scope="module")
def environment(folder: Path) -> Mapping[str, str]:
    return environment_of(folder)


@pytest.fixture(scope="module")
def commands(folder: Path, environment: Mapping[str, str]) -> Iterator[Commands]:
    commands = Commands(folder, environment)
    yield commands
    commands.end()


def ended(folder: Path) -> bool:
    return processes.wait_until(lambda: not processes.belonging(folder, ()), 30)


def interrupt(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Ctrl-C come while an answer is awaited."""

    def hear(lent: Lent, *given: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(Lent, method, hear)


def test_a_command_prints_and_ends_like_one_of_its_own(
    commands: Commands, folder: Path, environment: Mapping[str, str]
) -> None:
    status, output, errors = commands.run(["config", "get-value", "core", "parallelism"], environment)
    assert (status, output) == (0, "32\n"), errors
    other = {**environment, "AIRFLOW__CORE__PARALLELISM": "7"}
    assert commands.run(["config", "get-value", "core", "parallelism"], other).output == "7\n"
    status, output, errors = commands.run(["nonsense"], environment)
    assert (status, output.split()[:2]) == (2, ["Usage:", "airflow"])
    assert "invalid choice: 'nonsense'" in errors
    assert not list(folder.glob("command-*"))


def test_what_is_started_has_a_session_of_its_own_and_can_be_ended(
    commands: Commands, folder: Path, environment: Mapping[str, str]
) -> None:
    log = folder / "log"
    first, second = (commands.start(LASTING, environment, log, log) for _ in range(2))
    assert os.getsid(first.pid) == first.pid
    assert first.poll() is None
    # Nothing waits for it: the process goes on answering.
    assert commands.run(["version"], environment).status == 0
    first.terminate()
    assert processes.wait_until(lambda: first.poll() is not None, 30)
    assert first.returncode == -signal.SIGTERM
    assert second.poll() is None
    second.send_signal(signal.SIGKILL)
    assert processes.wait_until(lambda: second.poll() is not None, 30)
    assert second.returncode == -signal.SIGKILL
    assert not processes.belonging(folder, ())


def test_a_node_agent_is_forked_and_outlives_the_process(tmp_path: Path) -> None:
    # Imports read that option, so that no other test has the process.
    environment = {**environment_of(tmp_path), "AIRFLOW__CORE__PARALLELISM": "3"}
    commands = Commands(tmp_path, environment)
    assert commands.run(["version"], environment).status == 0
    arguments = ["lading.executors.agent", "--runner", COMMAND_RUNNER]
    with (tmp_path / "log").open("wb") as log:
        first, second = (
            Lent(
                commands.process.pid,
                {
                    "module": "lading.executors.agent",
                    "command": [sys.executable, "-c", "", *arguments, str(tmp_path / name)],
                    "arguments": [*arguments, str(tmp_path / name)],
                    "environment": environment,
                    "folder": str(tmp_path),
                    "blocked": [],
                    "bound": False,
                },
                [log.fileno()] * 3,
            )
            for name in ("first", "second")
        )
    try:
        assert "lading.executors.agent" in Path(f"/proc/{first.pid}/cmdline").read_text().split("\0")
        assert os.getsid(first.pid) == first.pid
        for name in ("first", "second"):
            assert processes.wait_until((tmp_path / name / "agent.json").exists, 60), (tmp_path / "log").read_text()
        os.kill(first.pid, signal.SIGTERM)
        assert processes.wait_until(lambda: first.poll() is not None, 60)
        assert first.returncode == 0
        commands.process.kill()
        commands.process.wait()
        assert second.poll() is None
    finally:
        os.kill(second.pid, signal.SIGKILL)
    assert processes.wait_until(lambda: second.poll() is not None, 60)


def test_an_interrupted_command_is_killed(
    commands: Commands, folder: Path, environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*given: object) -> object:
        started = begin(*given)
        interrupt("poll", patch)
        return started

    begin = commands.start
    with monkeypatch.context() as patch:
        patch.setattr(commands, "start", start)
        with pytest.raises(KeyboardInterrupt):
            commands.run(LASTING, environment)
    assert ended(folder)
    assert commands.run(["version"], environment).status == 0


def test_what_an_interrupted_start_has_started_ends(
    commands: Commands, folder: Path, environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = folder / "log"
    with monkeypatch.context() as patch:
        interrupt("_hear", patch)
        with pytest.raises(KeyboardInterrupt):
            commands.start(LASTING, environment, log, log)
    assert ended(folder)
    assert commands.run(["nonsense"], environment).status == 2
    commands.end()
    assert ended(folder)


def test_nothing_outlives_tests_that_are_killed(tmp_path: Path) -> None:
    tests = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path), json.dumps(environment_of(tmp_path))],
        stdout=subprocess.PIPE,
        text=True,
    )
    with tests:
        assert tests.stdout is not None
        assert int(tests.stdout.readline()) in {each.pid for each in processes.belonging(tmp_path, ())}
        tests.kill()
    assert ended(tmp_path)


def test_of_the_processes_that_nobody_uses_few_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "start", lambda *_: subprocess.Popen(["cat"], stdin=subprocess.PIPE))
    monkeypatch.setattr("tests.services.commands.LENDERS", {})
    made = [Commands(tmp_path, {"AIRFLOW__CORE__PARALLELISM": "0"}).process]
    for number in range(1, 5):
        each = Commands(tmp_path, {"AIRFLOW__CORE__PARALLELISM": str(number)})
        made.append(each.process)
        each.end()
    assert [each.poll() is None for each in made] == [True, False, False, True, True]
    again = Commands(tmp_path, {"AIRFLOW__CORE__PARALLELISM": "4", "AIRFLOW__LADING__SITES_FILE": "another"})
    assert again.process is made[-1]
    for process in made:
        process.kill()
        process.communicate()


def test_what_imports_read_of_the_configuration_is_the_same_in_a_fork_or_read_again(tmp_path: Path) -> None:
    environment = {**environment_of(tmp_path), "_AIRFLOW__AS_LIBRARY": "1"}
    done = subprocess.run([sys.executable, "-c", READ_BY_IMPORTS], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    read = {name for name in done.stdout.split() if not name.endswith(("_CMD", "_SECRET"))}
    assert {name for name in read if not name.startswith("AIRFLOW__METRICS__")} == {
        "AIRFLOW__API__BASE_URL",
        "AIRFLOW__API__PORT",
        "AIRFLOW__CORE__DAGS_FOLDER",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN",
    }


def test_a_signal_that_comes_at_a_moment_in_which_python_ignores_its_exception_comes_again() -> None:
    done = subprocess.run([sys.executable, "-c", DEAF, AIRFLOW], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (5, "goes on\n"), done.stderr
    assert "Exception ignored in" in done.stderr


def test_a_signal_is_logged_while_something_else_is() -> None:
    logged = subprocess.run([sys.executable, "-c", LOGGING, AIRFLOW], capture_output=True, text=True, timeout=600)
    assert logged.stdout.split() == ["before", "within", "behind"], logged.stderr
