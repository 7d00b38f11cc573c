"""``python -m lading.executors.host ROOT``: what a machine that is reached over SSH has, and its node agent.

A controller runs it on the machine and writes what it wants on its standard input, as JSON: its version, what Lading
may fill there, and what the agent is told. The answer is one line of JSON on the standard output, within a second: what
there is, and what is wrong with the agent. An agent is started where none lives; it survives this command, the
connection and the session, and one of each ROOT is enough, which its lock sees to.

Neither Airflow nor any site is imported here.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lading.hooks.files import host
from lading.hooks.machines import agent_host
from lading.hooks.machines.agent_host import AgentHost
from lading.hooks.spool.rejected import Rejected
from lading.hooks.spool.spool import Spool
from lading.scheduling.resources import Resources

# An agent that was started has said who it is within this, seconds; else it is looked for the next time.
SECONDS_TO_APPEAR = 0.8
# How systemd is asked to start what shall outlive a session; it ends all of a user's processes with the last one where
# KillUserProcesses=yes. https://www.freedesktop.org/software/systemd/man/latest/systemd-run.html
SCOPE = ("systemd-run", "--user", "--scope", "--quiet", "--collect", "--")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lading.executors.host", description=__doc__.partition("\n")[0])
    parser.add_argument("root", type=Path, help="the folder of the agent's spool")
    root = parser.parse_args(arguments).root.expanduser().absolute()
    print(json.dumps(answer(root, json.load(sys.stdin))))
    return 0


def answer(root: Path, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """What there is, and what is wrong; an agent is started where none lives.

    :param wanted: ``version``: the controller's; ``share``: the amounts of cpus, memory, disk and gpus that Lading may
        fill, as far as the sites file says so; ``patience`` and ``kill_grace``, seconds
    """
    mine = version("airflow-lading")
    if wanted["version"] != mine:
        words = f"Lading {mine} is installed there, the controller is {wanted['version']}: install the same on both"
        return {"version": mine, "refused": words}
    there = host.usable(root)
    share = {name: amount for name, amount in wanted["share"].items() if amount is not None}
    capacity = Resources(**{name: share.get(name, getattr(there, name)) for name in ("cpus", "memory", "disk", "gpus")})
    settings = agent_host.settings(capacity, wanted["patience"], wanted["kill_grace"], measure_disk="disk" not in share)
    spool = Spool(root)
    agent = AgentHost(spool, Rejected(spool.rejected), scope=scope())
    note = agent.keep_alive(settings)
    appears_by = time.monotonic() + SECONDS_TO_APPEAR
    while note is None and not agent.lives() and time.monotonic() < appears_by:
        time.sleep(0.02)
    return {
        "version": mine,
        "host": socket.gethostname(),
        "boot_id": host.boot_id(),
        "since_boot": host.since_boot(),
        "now": time.time(),
        "arch": platform.machine(),
        "os": platform.system().lower(),
        "capacity": settings["capacity"],
        "lives": agent.lives(),
        "note": note,
    }


def scope() -> tuple[str, ...]:
    """What comes before the agent's command so that it outlives the session; nothing where that is not needed."""
    if shutil.which(SCOPE[0]) is None:
        return ()
    try:
        works = subprocess.run([*SCOPE, "true"], capture_output=True, timeout=0.5, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return SCOPE if works else ()


if __name__ == "__main__":
    sys.exit(main())
