"""A simulated cluster: a folder, and mocks of SLURM's commands that answer according to its content."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from lading.hooks.batch.slurm.system import SLURM
from lading.hooks.cluster.jobs.config import ClusterConfig
from lading.hooks.cluster.jobs.job_mode import JobMode
from lading.hooks.polling.task_logs import LogCopies
from lading.hooks.spool.spool import Envelope
from lading.hooks.ssh.local_transport import ShellTransport
from lading.scheduling.model.resources import Resources

# Each answers by what the test has written: sbatch counts its jobs, squeue and sacct print a file.
COMMANDS = {
    "sbatch": """
echo x >> "$PAPER/submissions"
case $(cat "$PAPER/mode") in
  accept|mute) id=$(grep -c x "$PAPER/submissions"); cp "$2" "$PAPER/script.$id"; name=$(sed -n 's/.*job-name=//p' "$2")
    last=$(sed -n 's/.*array=1-//p' "$2")
    if [ -n "$last" ]; then for i in $(seq "$last"); do echo "${id}_$i|PENDING||Priority|$name"; done
    else echo "$id|PENDING||Priority|$name"; fi >> "$PAPER/queue"
    if grep -q mute "$PAPER/mode"; then echo 'sbatch: error: Socket timed out on send/recv operation' >&2; exit 1; fi
    echo "$id";;
  most:*) last=$(sed -n 's/.*array=1-//p' "$2"); most=$(cut -d: -f2 "$PAPER/mode")
    if [ $(($(grep -c . "$PAPER/queue") + ${last:-1})) -gt "$most" ]; then echo x >> "$PAPER/refused"
      echo 'sbatch: error: AssocMaxSubmitJobLimit' >&2
      echo 'sbatch: error: Batch job submission failed: Job violates accounting/QOS policy' >&2; exit 1; fi
    id=$(grep -c x "$PAPER/submissions"); name=$(sed -n 's/.*job-name=//p' "$2"); cp "$2" "$PAPER/script.$id"
    if [ -n "$last" ]; then for i in $(seq "$last"); do echo "${id}_$i|PENDING||Priority|$name"; done
    else echo "$id|PENDING||Priority|$name"; fi >> "$PAPER/queue"
    echo "$id";;
  few) if grep -q 'array=1-[3-9]' "$2"; then echo 'sbatch: error: AssocMaxSubmitJobLimit' >&2
    echo 'sbatch: error: Batch job submission failed: Job violates accounting/QOS policy' >&2; exit 1; fi
    id=$(grep -c x "$PAPER/submissions"); echo "$id";;
  small) if grep -q 'array=1-[3-9]' "$2"; then
    echo 'sbatch: error: Batch job submission failed: Invalid job array specification' >&2; exit 1; fi
    id=$(grep -c x "$PAPER/submissions"); echo "$id";;
  full) echo 'sbatch: error: AssocMaxSubmitJobLimit' >&2
    echo 'sbatch: error: Batch job submission failed: Job violates accounting/QOS policy' >&2; exit 1;;
  away) echo 'sbatch: error: Batch job submission failed: Unable to contact slurm controller' >&2; exit 1;;
  account) echo x >> "$PAPER/asked"
    echo 'sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified' >&2
    exit 1;;
  refuse) echo 'sbatch: error: invalid partition specified: batch' >&2; exit 1;;
esac
""",
    "sinfo": 'echo x >> "$PAPER/surveys"; cat "$PAPER/nodes"',
    "scontrol": 'cat "$PAPER/partitions"',
    "squeue": 'echo squeue >> "$PAPER/asked_states"\n'
    'echo "JOBID|STATE|NODELIST|REASON|NAME"; cat "$PAPER/queue"; exit "$(cat "$PAPER/status")"',
    "sacct": 'echo sacct >> "$PAPER/asked_states"; cat "$PAPER/accounts"',
    "scancel": 'echo "$*" >> "$PAPER/cancelled"',
}


class Paper:
    """A simulated cluster and the controller's side of it."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.root = folder / "work"
        binaries = folder / "bin"
        binaries.mkdir()
        for name, text in COMMANDS.items():
            (binaries / name).write_text(f"#!/bin/sh\n{text}")
            (binaries / name).chmod(0o755)
        for name, text in {
            "mode": "accept",
            "queue": "",
            "status": "0",
            "accounts": "",
            "submissions": "",
            "refused": "",
            "nodes": "",
            "partitions": "",
        }.items():
            (folder / name).write_text(text)
        self.config = ClusterConfig(
            kind="slurm",
            work_dir=str(self.root),
            python="/usr/bin/python3",
            node_cpus=8,
            node_memory="16 GiB",
            login_setup=f"PAPER={folder} PATH={binaries}:$PATH; export PAPER PATH",
            **{"lost_after": 1, **options},
        )
        self.poller = self.controller()

    def controller(self) -> JobMode:
        """A controller without any state."""
        transport = ShellTransport(setup=self.config.login_setup)
        logs = LogCopies(self.folder / "logs", self.folder / "logs.json")
        return JobMode(self.config, SLURM(), transport, "http://api/execution/", logs)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def read(self, name: str) -> str:
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def go(self) -> list[dict[str, Any]]:
        """Run a round in which everything is polled, and return the news."""
        self.poller.interval.at_once()
        self.poller.questions.at_once()
        self.poller.round()
        event_buffer = self.poller.unread()
        self.poller.acknowledge(len(event_buffer))
        return event_buffer

    def give(self, *tokens: str, cpus: float = 1) -> None:
        self.poller.give(envelope(token, cpus) for token in tokens)

    def begin(self, token: str) -> None:
        """What the batch job does when it starts."""
        folder = self.root / "spool/jobs" / token
        folder.mkdir()
        (self.root / "spool/inbox" / f"{token}.json").rename(folder / "workload.json")
        self.say(token, {"event": "started", "at": 5.0, "pid": 1})

    def say(self, token: str, event: dict[str, Any]) -> None:
        path = self.root / "spool/events" / f"{time.time_ns()}.{token}.jsonl"
        path.write_text(json.dumps({"token": token, **event}) + "\n")

    def finish(self, token: str, cause: str | None = None, exit_code: int | None = 0, message: str = "") -> None:
        amounts = {"peak_memory": 1, "cpu_seconds": 1.0}
        event = {"event": "finished", "at": 9.0, "started_at": 5.0, "cause": cause, "reason": message}
        self.say(token, {**event, "exit_code": exit_code, **amounts})


def envelope(token: str, cpus: float = 1, expires_at: float = 2000.0) -> Envelope:
    workload = {"token": "secret", "log_path": f"dag/{token}.log"}
    return Envelope(token, workload, Resources(cpus, 1000), None, None, 0, 1.0, expires_at)


def only(events: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    [event] = [event for event in events if event["event"] == kind]
    return event
