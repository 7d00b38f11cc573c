"""A simulated cluster on which tasks are packed into allocations."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lading.executors.controller.site_driver import SiteDriver
from lading.hooks.batch.slurm.system import SLURM
from lading.hooks.cluster.allocations.layout import AllocationFolder, AllocationTerms, Claim
from lading.hooks.cluster.allocations.mode import AllocationMode
from lading.hooks.cluster.jobs.config import ClusterConfig
from lading.hooks.cluster.jobs.layout import ClusterFolder
from lading.hooks.polling.task_logs import LogCopies
from lading.hooks.site import ElasticSite, Observation, Order
from lading.hooks.spool.spool import Envelope
from lading.hooks.ssh.local_transport import ShellTransport
from lading.scheduling.model.location import Location
from lading.scheduling.model.reasons import Reason
from tests.clusters.paper import Paper, envelope


class RoundsSite(ElasticSite[ClusterConfig]):
    """A site that looks at the cluster in each observation, in no thread of its own."""

    kind = "paper"
    config_model = ClusterConfig

    def __init__(self, poller: AllocationMode, folder: Path) -> None:
        super().__init__("hpc", poller.config, folder)
        self.poller = poller

    def potential(self) -> list[Location]:
        return []

    def observe(self) -> Observation:
        self.poller.interval.at_once()
        self.poller.questions.at_once()
        self.poller.round()
        events = self.poller.unread()
        market, trouble, note = self.poller.submitter.market(), self.poller.unasked, self.poller.failing
        return Observation(
            self.poller.seen(), events, lambda: self.poller.acknowledge(len(events)), market, trouble, note
        )

    def put(self, envelopes: Mapping[str, Sequence[Envelope]]) -> None:
        for name, here in envelopes.items():
            self.poller.submitter.take_for(name, here)

    def cancel(self, reasons: Mapping[str, Mapping[str, Reason]]) -> None:
        for here in reasons.values():
            self.poller.ask_to_cancel(here)

    def launch(self, orders: Sequence[Order]) -> None:
        self.poller.submitter.order(orders)

    def release(self, reasons: Mapping[str, Reason]) -> None:
        self.poller.submitter.release(reasons)

    def recall(self, tokens: Mapping[str, Sequence[str]]) -> None:
        self.poller.recall.ask(tokens)

    def close(self, how: str, timeout: float) -> None:
        """Nothing is held."""


class Fleet(Paper):
    """A simulated cluster, and the controller's side of its allocations."""

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(folder, mode="allocation", **options)
        self.solo = SiteDriver(RoundsSite(self.poller, folder))

    def controller(self) -> AllocationMode:  # type: ignore[override]
        transport = ShellTransport(setup=self.config.login_setup)
        logs = LogCopies(self.folder / "logs", self.folder / "logs.json")
        return AllocationMode(self.config, SLURM(), transport, "http://api/execution/", logs)

    def give(self, *tokens: str, cpus: float = 1) -> None:
        self.solo.put(envelope(token, cpus) for token in tokens)

    def go(self) -> list[dict[str, Any]]:
        """A tick, and what the site does after it; the events."""
        if self.solo.site.poller is not self.poller:  # another controller on the same store
            self.solo.site = RoundsSite(self.poller, self.folder)
        events = self.solo.tick()
        self.poller.round()
        return events

    def look(self) -> None:
        """A look at the cluster, about which nothing is decided."""
        self.poller.interval.at_once()
        self.poller.questions.at_once()
        self.poller.round()

    @property
    def names(self) -> list[str]:
        """The allocations, in the order in which they were requested."""
        return [line.rpartition("|")[2] for line in self.read("queue").split("\n") if line]

    def folder_of(self, name: str) -> AllocationFolder:
        return AllocationFolder(ClusterFolder(str(self.root)), name)

    def terms(self, name: str) -> AllocationTerms:
        return AllocationTerms.from_json(Path(self.folder_of(name).terms).read_text())

    def spool(self, name: str) -> Path:
        return Path(self.folder_of(name).spool)

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
                left = self.terms(name).seconds
                Path(self.folder_of(name).up).write_text(json.dumps({"host": "n1", "now": time.time(), "left": left}))
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
        amounts = {"peak_memory": 1, "cpu_seconds": 1.0, "exit_code": exit_code, "reason": cause and "it failed"}
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
