"""A cluster of paper on which tasks are packed into allocations."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from lading.hooks.batch.slurm.system import SLURM
from lading.hooks.cluster.allocations.layout import AllocationFolder, Claim, Terms
from lading.hooks.cluster.allocations.mode import AllocationMode
from lading.hooks.cluster.layout import ClusterFolder
from lading.hooks.spool.log_mirror import LogCopies
from lading.hooks.ssh.local_transport import ShellTransport
from tests.clusters.paper import Paper


class Fleet(Paper):
    """A cluster of paper, and the controller's side of its allocations."""

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(folder, mode="allocation", **options)

    def controller(self) -> AllocationMode:  # type: ignore[override]
        transport = ShellTransport(setup=self.config.login_setup)
        logs = LogCopies(self.folder / "logs", self.folder / "logs.json")
        return AllocationMode(self.config, SLURM(), transport, "http://api/execution/", logs)

    @property
    def names(self) -> list[str]:
        """The allocations, in the order in which they were asked for."""
        return [line.rpartition("|")[2] for line in self.read("queue").split("\n") if line]

    def of(self, name: str) -> AllocationFolder:
        return AllocationFolder(ClusterFolder(str(self.root)), name)

    def terms(self, name: str) -> Terms:
        return Terms.from_json(Path(self.of(name).terms).read_text())

    def spool(self, name: str) -> Path:
        return Path(self.of(name).spool)

    def state(self, state: str, name: str) -> None:
        """What squeue says of an allocation."""
        lines = [line.split("|") for line in self.read("queue").split("\n") if line]
        for line in lines:
            if name == line[-1]:
                line[1:3] = [state, "" if state == "PENDING" else "n1"]
        self.write("queue", "".join("|".join(line) + "\n" for line in lines))

    def begin_all(self) -> list[str]:
        """What the agents do when their batch jobs start; the names."""
        for line in self.read("queue").split("\n"):
            if "|PENDING|" in line:
                name = line.rpartition("|")[2]
                self.state("RUNNING", name)
                for each in ("inbox", "cancel", "events", "jobs"):
                    (self.spool(name) / each).mkdir(parents=True)
                ends_at = time.time() + self.terms(name).seconds
                Path(self.of(name).up).write_text(json.dumps({"host": "n1", "ends_at": ends_at}))
        return self.names

    def inbox(self, name: str) -> list[str]:
        folder = self.spool(name) / "inbox"
        return sorted(path.stem for path in folder.iterdir()) if folder.exists() else []

    def start(self, name: str, token: str) -> None:
        """What an agent does when it starts a job."""
        assert Claim(name, f"dag/{token}.log").make(self.root / "claims", token)
        (self.spool(name) / "jobs" / token).mkdir()
        (self.spool(name) / "inbox" / f"{token}.json").unlink()
        self.tell(name, {"event": "started", "token": token, "at": 5.0, "pid": 1})

    def end(self, name: str, token: str, cause: str | None = None, exit_code: int | None = 0) -> None:
        (self.spool(name) / "jobs" / token).rmdir()
        amounts = {"peak_memory": 1, "cpu_seconds": 1.0, "exit_code": exit_code, "message": cause and "it failed"}
        self.tell(name, {"event": "finished", "token": token, "at": 9.0, "started_at": 5.0, "cause": cause, **amounts})

    def tell(self, name: str, event: dict[str, Any]) -> None:
        path = self.spool(name) / "events" / f"{time.time_ns()}.jsonl"
        path.write_text(json.dumps(event) + "\n")

    def running(self, *tokens: str, **options: Any) -> str:
        """Give jobs and let an allocation run them; its name."""
        self.give(*tokens, **options)
        self.go()
        [name] = self.begin_all()
        self.go()
        for token in tokens:
            self.start(name, token)
        self.go()
        return name
