"""A real node agent whose jobs are commands, where Airflow cannot be imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from lading.hooks.spool.command import CommandWork
from lading.hooks.spool.spool import Envelope
from lading.scheduling.model.prediction import SHORTEST_SAMPLED
from lading.scheduling.model.reasons import free_text
from lading.scheduling.model.resources import Resources
from tests.services.agent import PATIENCE, NodeAgent
from tests.services.processes import wait_until

# Found before the real one: whoever imports it fails.
NO_AIRFLOW = 'raise ModuleNotFoundError("No module named \'airflow\'", name="airflow")'


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[NodeAgent]:
    blocked = tmp_path / "blocked"
    (blocked / "airflow").mkdir(parents=True)
    (blocked / "airflow" / "__init__.py").write_text(NO_AIRFLOW)
    node = NodeAgent(tmp_path)
    node.start(runner="lading.executors.agent.tasks.command_runner", PYTHONPATH=str(blocked))
    yield node
    node.stop()
    NodeAgent.clean_up()


@pytest.fixture
def put(agent: NodeAgent, tmp_path: Path) -> Callable[..., None]:
    def leave(token: str, workload: CommandWork | dict[str, Any], **limits: Any) -> None:
        is_command = isinstance(workload, CommandWork)
        agent.spool.put(
            [
                Envelope(
                    token=token,
                    workload=workload.to_workload() if is_command else workload,
                    resources=Resources(1, 256),
                    memory_limit=limits.get("memory_limit"),
                    time_limit=limits.get("time_limit"),
                    priority=1,
                    queued_at=time.time(),
                    expires_at=time.time() + 600,
                )
            ]
        )

    return leave


def shell(script: str, **others: Any) -> CommandWork:
    return CommandWork(["sh", "-c", script], **others)


def test_a_command_has_its_folder_its_environment_and_its_log(
    agent: NodeAgent, put: Callable[..., None], tmp_path: Path
) -> None:
    logs = {"log_folder": str(tmp_path / "logs"), "log_path": "rule/1.log"}
    put(
        "one",
        shell("pwd; echo $COLOUR >&2; echo done > out", folder=str(tmp_path), environment={"COLOUR": "red"}, **logs),
    )
    ended = agent.wait_for("one")
    assert (ended["cause"], ended["exit_code"]) == (None, 0)
    assert (tmp_path / "logs/rule/1.log").read_text() == f"{tmp_path}\nred\n"
    assert (tmp_path / "out").read_text() == "done\n"


def test_it_ends_with_its_exit_code_or_signal(agent: NodeAgent, put: Callable[..., None]) -> None:
    put("code", shell("exit 7"))
    put("signal", shell("kill -9 $$"))
    put("nothing", CommandWork(["/there/is/none"]))
    put("another", {"type": "ExecuteTask"})
    ends = {token: agent.wait_for(token) for token in ("code", "signal", "nothing", "another")}
    assert {token: (each["cause"], each["exit_code"]) for token, each in ends.items()} == {
        "code": ("error", 7),
        "signal": ("error", -9),
        "nothing": ("error", 1),
        "another": ("error", 1),
    }
    assert str(ends["nothing"]["reason"]).startswith("/there/is/none cannot be started in ")
    assert "its workload has the type 'ExecuteTask', but this machine only runs 'Command'" in str(
        ends["another"]["reason"]
    )


def test_limits_hold_for_all_that_it_has_started(agent: NodeAgent, put: Callable[..., None], tmp_path: Path) -> None:
    put("time", shell("sleep 600 & sleep 600"), time_limit=1)
    hungry = "import time; kept = bytearray(300 * 2**20); time.sleep(600)"
    put("memory", CommandWork(["sh", "-c", f"python3 -c '{hungry}'; exit 0"]), memory_limit=100)
    assert agent.wait_for("time")["cause"] == "time_limit"
    assert agent.wait_for("memory")["cause"] == "out_of_memory"


def test_a_short_one_tells_what_it_used_after_the_last_look(agent: NodeAgent, put: Callable[..., None]) -> None:
    program = "import time; time.sleep(0.3); kept = bytes([1]) * (60 * 2**20)"

    def is_short(number: int) -> bool:
        """Whether a busy machine has run one within the time in which it is short."""
        put(f"short{number}", CommandWork([sys.executable, "-c", program]), memory_limit=500)
        end = agent.wait_for(f"short{number}")
        assert end["cause"] is None
        if end["at"] - end["started_at"] >= SHORTEST_SAMPLED:
            return False
        assert end["peak_memory"] >= 60
        return True

    numbers = count()
    assert wait_until(lambda: sum(is_short(next(numbers)) for _ in range(3)) > 0, 300)


def test_a_job_that_uses_most_of_its_memory_at_its_end_tells_so(agent: NodeAgent, put: Callable[..., None]) -> None:
    """Samples are up to a second apart."""
    wait = "import time; time.sleep(4.3)"
    put("late", CommandWork([sys.executable, "-c", f"{wait}; kept = bytes([1]) * (60 * 2**20)"]))
    put("idle", CommandWork([sys.executable, "-c", wait]))
    late, idle = agent.wait_for("late"), agent.wait_for("idle")
    assert (late["cause"], idle["cause"]) == (None, None)
    assert 60 <= late["peak_memory"] < 100
    assert (idle["peak_memory"] or 0) < 30


def test_a_runner_that_jobs_name_is_preloaded_once_in_the_agent(
    agent: NodeAgent, put: Callable[..., None], tmp_path: Path
) -> None:
    (tmp_path / "blocked" / "own_runner.py").write_text(
        "import os\n"
        f"def preload(runner=''):\n    open({str(tmp_path / 'preloaded')!r}, 'a').write(f'{{os.getpid()}}\\n')\n"
        "def run(workload, job):\n    assert workload['arguments'] == ['never started']\n"
    )
    for token in ("one", "two"):
        put(token, CommandWork(["never started"], runner="own_runner"))
        assert agent.wait_for(token)["cause"] is None
    put("plain", shell("exit 0"))
    assert agent.wait_for("plain")["cause"] is None
    assert (tmp_path / "preloaded").read_text() == f"{json.loads(agent.spool.identity.read_text())['pid']}\n"


def test_a_cancelled_one_may_tidy_up(agent: NodeAgent, put: Callable[..., None], tmp_path: Path) -> None:
    pid, tidied = tmp_path / "pid", tmp_path / "tidied"
    agent.configure(capacity=Resources(4, 4096), kill_grace=PATIENCE)  # it has whatever time a busy machine needs
    # The command is what the shell waits for: it gets the signal itself, once it has said that it is ready for it.
    put("one", shell(f"trap 'touch {tidied}; exit 3' TERM; echo $$ > {pid}; while :; do sleep 0.1; done"))
    agent.wait(pid.exists)
    agent.spool.ask_to_cancel({"one": free_text("nobody wants it")})
    assert agent.wait_for("one")["cause"] == "cancelled"
    assert tidied.exists()
    agent.wait(lambda: not os.path.exists(f"/proc/{pid.read_text().strip()}"))


ASKED_WHILE_IT_STARTS = """
import os, signal, sys, time
from lading.executors.agent.supervisor import AgentJobFailed
from lading.executors.agent.tasks import command_runner
from lading.hooks.spool.command import CommandWork

begun, tidied, cause = sys.argv[1:]
start = os.posix_spawnp

class Job:
    cause = staticmethod(lambda: cause or None)
    task_has_ended = staticmethod(lambda: None)

def asked_meanwhile(*given, **options):
    pid = start(*given, **options)
    while not os.path.exists(begun):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)
    return pid

os.posix_spawnp = asked_meanwhile
# A second signal would end what the shell starts to tidy up.
script = f"trap 'sleep 0.2 && touch {tidied}; exit 3' TERM; touch {begun}; while :; do sleep 0.1; done"
try:
    command_runner.run(CommandWork(["sh", "-c", script]).to_workload(), Job())
except AgentJobFailed as error:
    sys.exit(error.exit_code)
"""


@pytest.mark.parametrize("cause", ["cancelled", ""])
def test_one_that_is_cancelled_while_it_starts_may_tidy_up(tmp_path: Path, cause: str) -> None:
    """Its command may have begun before its process has the pid; and a second signal would end what tidies up."""
    tidied = tmp_path / "tidied"
    given = [str(tmp_path / "begun"), str(tidied), cause]
    process = subprocess.run([sys.executable, "-c", ASKED_WHILE_IT_STARTS, *given], timeout=PATIENCE)
    assert process.returncode == 3
    assert tidied.exists()


RUNS_A_COMMAND = """
import os, sys
from lading.executors.agent.tasks import command_runner
from lading.hooks.spool.command import CommandWork

class Job:
    cause = staticmethod(lambda: None)
    task_has_ended = staticmethod(lambda: None)

os.set_inheritable(os.open("/dev/null", os.O_RDONLY), True)
folder, programs = sys.argv[1:]
environment = {"PATH": f"{programs}:{os.environ['PATH']}"}
command_runner.run(CommandWork(["mine"], folder=folder, environment=environment).to_workload(), Job())
"""


def test_a_command_gets_its_folder_its_path_and_no_open_files(tmp_path: Path) -> None:
    programs, folder = tmp_path / "programs", tmp_path / "folder"
    programs.mkdir()
    folder.mkdir()
    (programs / "mine").write_text("#!/bin/sh\npwd; ls /proc/self/fd; head -c 1; yes | head -n 1\n")
    (programs / "mine").chmod(0o755)
    command = [sys.executable, "-c", RUNS_A_COMMAND, str(folder), str(programs)]
    done = subprocess.run(command, input="x", capture_output=True, text=True, timeout=PATIENCE)
    # The last descriptor is that of ls, and SIGPIPE ends yes without a message.
    assert done.stdout.split() == [str(folder), "0", "1", "2", "3", "y"]
    assert (done.returncode, done.stderr) == (0, "")


def test_an_agent_that_was_killed_has_its_commands_adopted(
    agent: NodeAgent, put: Callable[..., None], tmp_path: Path
) -> None:
    begun, end = tmp_path / "begun", tmp_path / "end"
    put("one", shell(f"echo x >> {begun}; until [ -e {end} ]; do sleep 0.1; done"))
    agent.wait(begun.exists)
    agent.kill()
    agent.start(runner="lading.executors.agent.tasks.command_runner")
    end.touch()
    assert agent.wait_for("one")["exit_code"] == 0
    assert begun.read_text() == "x\n", "it has run once"
