"""Jobs of a node agent whose runner is in a container."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lading.executors.agent import container
from lading.executors.agent.job_folder import Supervisor
from lading.hooks.spool.spool import Spool
from lading.scheduling.model.reasons import free_text
from lading.scheduling.model.resources import Resources
from tests.services import containers, debian
from tests.services.agent import ROOT, RUNNER, NodeAgent
from tests.services.podman import IMAGE, podman
from tests.services.processes import wait_until

ENGINES = ["docker://image:1", "apptainer:///images/one.sif"]


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    return containers.make(tmp_path / "bin")


@contextmanager
def agent(folder: Path, commands: Path) -> Iterator[NodeAgent]:
    """A node agent that finds these commands first."""
    node = NodeAgent(folder)
    node.start(PATH=f"{commands}:{os.environ['PATH']}", LADING_SECRET="not on a command line")
    yield node
    assert node.stop() == 0
    NodeAgent.clean_up()


@pytest.fixture
def node(tmp_path: Path, commands: Path) -> Iterator[NodeAgent]:
    with agent(tmp_path, commands) as node:
        yield node


def put(node: NodeAgent, token: str, function: str, container: str, **more: Any) -> None:
    node.put(token, function, container=container, container_python=sys.executable, **more)


def calls(commands: Path) -> list[list[str]]:
    return [json.loads(line) for line in (commands / "calls").read_text().splitlines()]


@pytest.mark.parametrize("container", ENGINES)
def test_a_job_runs_in_its_container_and_finds_what_it_finds_outside(
    node: NodeAgent, commands: Path, tmp_path: Path, container: str
) -> None:
    put(node, "a", "variables", container, path=str(tmp_path / "seen"))
    finished = node.wait_for("a")
    assert (finished["cause"], finished["exit_code"]) == (None, 0)
    assert finished["cpu_seconds"] > 0
    assert finished["peak_memory"] > 0
    seen = json.loads((tmp_path / "seen").read_text())
    assert seen["IMAGE"] in ("image:1", "/images/one.sif")
    assert seen["LADING_SCRATCH"] == seen["TMPDIR"] == str(node.scratch / f"lading-{os.geteuid()}" / "a")
    assert seen["LADING_SECRET"] == "not on a command line"
    words = calls(commands)[0]
    assert not any("not on a command line" in word for word in words)
    mounted = [word.partition(":")[0] for word in words if word.endswith((":" + word.partition(":")[0],))]
    assert {str(node.spool.root), seen["TMPDIR"]} <= set(mounted)


@pytest.mark.parametrize("container", ENGINES)
def test_a_failure_inside_is_that_of_the_job(node: NodeAgent, container: str) -> None:
    put(node, "a", "fail", container)
    finished = node.wait_for("a")
    assert (finished["cause"], finished["exit_code"], str(finished["reason"])) == ("error", 3, "the task ended with 3")


@pytest.mark.parametrize("container", ENGINES)
@pytest.mark.parametrize("function", ["sleep", "sleep_deaf"])
def test_a_job_that_is_cancelled_takes_its_container_with_it(
    node: NodeAgent, tmp_path: Path, commands: Path, container: str, function: str
) -> None:
    more = {"started": str(tmp_path / "started")} if function == "sleep_deaf" else {}
    (commands / "is_slow").touch()  # what ends the container must not be killed with what the job has started
    put(node, "a", function, container, seconds=61, **more)
    node.wait_for("a", "started")
    assert wait_until(lambda: sleeping(tmp_path), 30), "the runner has started in it"
    node.spool.ask_to_cancel({"a": free_text("enough")})
    assert node.wait_for("a")["cause"] == "cancelled"
    assert not (commands / "lading-a").exists()
    assert wait_until(lambda: not sleeping(tmp_path), 10)


def test_a_container_ends_with_the_process_that_has_started_it(node: NodeAgent, tmp_path: Path) -> None:
    put(node, "a", "sleep", "docker://image", seconds=61)
    node.wait_for("a", "started")
    assert wait_until(lambda: sleeping(tmp_path), 30)
    supervisor = Supervisor.read(node.spool.job("a"))
    assert supervisor is not None
    os.kill(supervisor.pid, signal.SIGKILL)
    assert node.wait_for("a")["cause"] == "lost"
    assert wait_until(lambda: not sleeping(tmp_path), 10)


@pytest.mark.parametrize(("function", "counts"), [("allocate", 128), ("map_file", 0)])
def test_its_peak_is_measured_inside_for_an_agent_that_sees_no_process_of_it(
    tmp_path: Path, function: str, counts: int
) -> None:
    spool = Spool(tmp_path / "spool")
    spool.create()
    spool.job("a").root.mkdir()
    arguments = {"path": str(tmp_path / "array")} if function == "map_file" else {}
    workload = {"function": function, "arguments": {"mebibytes": 128, "seconds": 2, **arguments}}
    command = [sys.executable, "-m", container.INSIDE, str(spool.root), "a", RUNNER, str(time.time() + 600)]
    subprocess.run(command, input=json.dumps(workload).encode(), cwd=ROOT, check=True)
    outcome = json.loads(container.path_of(spool.job("a").root).read_text())
    assert counts <= outcome["peak"] // 1024 < counts + 60, "with the interpreter, which the container has to hold too"


def test_what_the_kernel_has_killed_for_its_memory_is_reported_so(node: NodeAgent, commands: Path) -> None:
    (commands / "killed_for_memory").touch()
    put(node, "a", "fail", "docker://image", resources=Resources(0.5, 256), memory_limit=300)
    finished = node.wait_for("a")
    assert finished["cause"] == "out_of_memory"
    assert "exceeded the memory limit of the task" in str(finished["reason"])
    assert {"--cpus=0.5", "--cpu-shares=512", "--memory=300m"} <= set(calls(commands)[0])


def test_a_container_that_cannot_be_started_fails_the_job_with_a_reason(node: NodeAgent, commands: Path) -> None:
    put(node, "a", "succeed", "docker://missing")
    message = str(node.wait_for("a")["reason"])
    assert message.startswith(
        "docker exited with exit code 1 before the task in its container finished; its last output: "
    )
    assert message.endswith("Unable to find image 'missing:latest' locally")
    (commands / "apptainer").unlink()
    put(node, "b", "succeed", "apptainer:///images/one.sif")
    assert "apptainer, which runs the container, cannot be started here" in str(node.wait_for("b")["reason"])


@pytest.fixture(scope="module")
def docker() -> Iterator[Path]:
    try:
        with podman() as commands:
            yield commands
    except debian.MissingPackagesError as error:
        pytest.skip(str(error))


@pytest.fixture
def real(tmp_path: Path, docker: Path) -> Iterator[NodeAgent]:
    with agent(tmp_path, docker) as node:
        yield node

    def left() -> bytes:
        ps = [docker / "docker", "ps", "--all", "--quiet"]
        return subprocess.run(ps, capture_output=True, check=True, timeout=120).stdout

    # Podman removes one after its end, in a process of its own.
    assert wait_until(lambda: not left(), 60), "a container is left"


def test_in_a_real_container_a_job_has_what_it_has_outside(real: NodeAgent) -> None:
    put(real, "a", "variables", f"docker://{IMAGE}", path=str(real.spool.root / "seen"))
    finished = real.wait_for("a")
    assert (finished["cause"], finished["exit_code"]) == (None, 0)
    assert finished["cpu_seconds"] > 0
    seen = json.loads((real.spool.root / "seen").read_text())
    assert seen["container"] == "podman", "it reports itself in what it runs"
    assert seen["LADING_SCRATCH"] == seen["TMPDIR"]
    assert seen["LADING_SECRET"] == "not on a command line"
    put(real, "b", "fail", f"docker://{IMAGE}")
    assert real.wait_for("b")["exit_code"] == 3


def test_a_real_container_goes_with_its_job(real: NodeAgent, tmp_path: Path) -> None:
    put(real, "a", "sleep", f"docker://{IMAGE}", seconds=61)
    real.wait_for("a", "started")
    assert wait_until(lambda: sleeping(tmp_path), 30)
    real.spool.ask_to_cancel({"a": free_text("enough")})
    assert real.wait_for("a")["cause"] == "cancelled"
    assert wait_until(lambda: not sleeping(tmp_path), 10)


def test_a_real_container_has_the_memory_of_its_job(real: NodeAgent) -> None:
    for token in "abcde":
        put(
            real,
            token,
            "allocate",
            f"docker://{IMAGE}",
            mebibytes=300,
            seconds=30,
            resources=Resources(1, 100),
            memory_limit=120,
        )
        finished = real.wait_for(token)
        assert finished["cause"] == "out_of_memory"
        if "exceeded the memory limit of the task" in str(finished["reason"]):
            return  # written by the kernel; the agent's own measurement may come before it
    pytest.fail("no container was ended by the kernel")


def sleeping(folder: Path) -> list[str]:
    """The processes of runners of this test's spool that are in a container."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = process.read_text().split("\0")
        except OSError:
            continue
        if (
            "lading.executors.agent.tasks.inside" in words
            and str(folder / "spool") in words
            and words[0] == sys.executable
        ):
            found.append(process.parent.name)
    return found
