"""A node agent on a spool of its own, whose jobs are functions of :mod:`tests.clusters.agent_runner`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from lading.executors.agent import process_tree
from lading.hooks.files.safe_files import write_atomically
from lading.hooks.spool.spool import Envelope, Spool
from lading.scheduling.model.resources import Resources
from tests.services import unprivileged
from tests.services.forked import Forked

RUNNER = "tests.clusters.agent_runner"
# What an agent may take for anything on a machine that is busy with something else, seconds.
PATIENCE = 180.0
ROOT = Path(__file__).parents[2]

# What ``python -m lading.executors.agent`` does, with other constants.
WITH_CONSTANTS = """
import importlib, json, sys
for name, value in json.loads(sys.argv.pop(1)).items():
    module, _, constant = name.rpartition(".")
    module = importlib.import_module(module)
    assert hasattr(module, constant)
    setattr(module, constant, value)
from lading.executors.agent.agent import main
sys.exit(main(sys.argv[1:]))
"""


class AgentError(AssertionError):
    """Something did not happen in time; the message holds the agent's log."""


class NodeAgent:
    """A spool and the agent that serves it.

    :param folder: where the spool is made
    :param capacity: what the location has
    """

    made: ClassVar[list[NodeAgent]] = []

    def __init__(self, folder: Path, *, capacity: Resources = Resources(4, 4096), gpu_devices: tuple[str, ...] = ()):
        self.spool = Spool(folder / "spool")
        self.spool.create()
        self.scratch = folder / "scratch"
        self.scratch.mkdir(exist_ok=True)
        self.events: list[dict[str, Any]] = []
        self.process: subprocess.Popen[bytes] | Forked | None = None
        NodeAgent.made.append(self)
        self.configure(capacity=capacity, gpu_devices=gpu_devices)

    def configure(
        self,
        *,
        capacity: Resources,
        gpu_devices: tuple[str, ...] = (),
        patience: float = 60,
        kill_grace: float = 0.5,
        measure_disk: bool = False,
        keep_failed: float = 0.0,
        is_spot: bool = False,
        idle_seconds: float | None = None,
    ) -> None:
        fields = {name: getattr(capacity, name) for name in ("cpus", "memory", "disk", "gpus")}
        settings: dict[str, Any] = {"capacity": fields, "gpu_devices": gpu_devices}
        settings |= {"patience": patience, "kill_grace": kill_grace}
        settings |= {"measure_disk": measure_disk, "scratch": str(self.scratch), "keep_failed": keep_failed}
        settings |= {"is_spot": is_spot, "idle_seconds": idle_seconds}
        write_atomically(self.spool.config, json.dumps(settings))

    def start(
        self,
        *,
        runner: str = RUNNER,
        privileged: bool = True,
        open_files: int | None = None,
        constants: Mapping[str, object] | None = None,
        **environment: str,
    ) -> None:
        """Start the agent; it has an interpreter of its own where anything but constants is asked for.

        :param privileged: whether it is root where the tests are
        :param open_files: its soft limit; None: that of the tests
        :param constants: of modules, to be changed for this agent: ``{"package.module.NAME": value}``
        """
        arguments = [str(self.spool.root), "--runner", runner]
        if runner == RUNNER and privileged and open_files is None and not environment:
            python_path = {"PYTHONPATH": str(ROOT)}
            self.process = Forked(
                "lading.executors.agent.agent",
                arguments,
                cwd=ROOT,
                log=self.spool.log,
                environment=python_path,
                constants=constants,
            )
            return
        command = [sys.executable, "-m", "lading.executors.agent"]
        if constants:
            command = [sys.executable, "-c", WITH_CONSTANTS, json.dumps(constants)]
        if not privileged:
            command = unprivileged.command(*command)
        if open_files is not None:
            command = ["sh", "-c", f'ulimit -S -n {open_files}; exec "$@"', "sh", *command]
        with self.spool.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kill the agent as a power cut would, its jobs live on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process = None

    def stop(self) -> int:
        """End the agent in order; its jobs are ended too."""
        if self.process is None:
            self.start()
        assert self.process is not None
        self.process.terminate()
        code = self.process.wait(120)
        self.process = None
        return code

    @classmethod
    def clean_up(cls) -> None:
        """Kill whatever a failed test has left."""
        while cls.made:
            node = cls.made.pop()
            if node.process is not None:
                pid = node.process.pid
                process_tree.send(process_tree.tree(pid), signal.SIGKILL)
                node.process.wait()

    def put(self, token: str, function: str, resources: Resources = Resources(1, 256), **more: Any) -> str:
        """Leave a job that calls a function of the runner; what is no field of an envelope goes to the function."""
        limits: dict[str, Any] = {name: more.pop(name, None) for name in ("memory_limit", "time_limit", "container")}
        limits["container_python"] = more.pop("container_python", "python")
        workload = {"function": function, "report_until": more.pop("report_until", None), "ti": more.pop("ti", None)}
        envelope = Envelope(
            token=token,
            resources=resources,
            priority=more.pop("priority", 1),
            queued_at=more.pop("queued_at", time.time()),
            expires_at=more.pop("expires_at", time.time() + 600),
            workload={**workload, "arguments": more},
            **limits,
        )
        self.spool.put([envelope])
        return token

    def read(self) -> list[dict[str, Any]]:
        """Read the journal as the controller does; returns all events so far."""
        for path, events in list(self.spool.journal()):
            self.events.extend(events)
            path.unlink()
        return self.events

    def events_of(self, token: str, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["token"] == token and event["event"] == kind]

    def wait(self, happened: Callable[[], Any]) -> Any:
        """Read the journal until something has happened, and return it."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            self.read()
            if found := happened():
                return found
            time.sleep(0.01)
        tail = self.spool.log.read_text()[-4000:]
        raise AgentError(f"nothing after {PATIENCE:g} s; events {self.events}; the agent's log:\n{tail}")

    def wait_for(self, token: str, kind: str = "finished") -> dict[str, Any]:
        """The first event of this kind of a job."""
        found: Mapping[str, Any] = self.wait(lambda: next(iter(self.events_of(token, kind)), None))
        return dict(found)
