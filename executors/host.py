"""``python -m lading.executors.host ROOT``: what a machine that is reached over SSH has, and its node agent.

A controller runs it on the machine and writes its request on its standard input, as a line of JSON: its version, what
Lading may fill there, and the settings of the agent. The answer is one line of JSON on the standard output, within a
second: what there is, and what is wrong with the agent. An agent is started where none lives; it survives this command,
the connection and the session, and one of each ROOT is enough, which its lock sees to. Then it gives way to what serves
the agent's spool (:mod:`lading.hooks.spool.server`), so that a machine is talked to by one session.

Neither Airflow nor any site is imported here.
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lading.hooks.files import host
from lading.hooks.files.child_processes import ARCHIVE
from lading.hooks.files.safe_files import make_private
from lading.hooks.files.version import VERSION
from lading.hooks.machines import agent_host
from lading.hooks.machines.agent_host import AgentHost
from lading.hooks.spool import server
from lading.hooks.spool.rejected import RejectedFiles
from lading.hooks.spool.spool import Spool
from lading.scheduling.resources import Resources

# An agent that was started has said who it is within this, seconds; else it is looked for the next time.
SECONDS_TO_APPEAR = 0.8
# How systemd is asked to start what shall outlive a session, where KillUserProcesses=yes ends all others with it. The
# units of a user who does not linger end with the last session, so without lingering it would make matters worse.
# https://www.freedesktop.org/software/systemd/man/latest/systemd-run.html (its example with screen), loginctl(1)
SCOPE = ("systemd-run", "--user", "--scope", "--quiet", "--collect", "--")

# Has a file for each user who lingers.
LINGERING = Path("/var/lib/systemd/linger")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lading.executors.host", description=__doc__.partition("\n")[0])
    parser.add_argument("root", type=Path, help="the folder of the agent's spool")
    root = parser.parse_args(arguments).root.expanduser().absolute()
    wanted = json.loads(sys.stdin.readline())  # nothing more is said before the answer
    if ARCHIVE is not None:
        with suppress(OSError):  # it is in use: what has not been for long is removed
            os.utime(ARCHIVE)
    try:
        found = answer(root, wanted)
    except OSError as error:  # a full disk, another user's folder
        found = {"version": VERSION, "refused": f"{root} cannot be used: {error}"}
    print(f"{wanted['mark']}{json.dumps(found)}", flush=True)
    if not (wanted.get("look") or "refused" in found):
        # Without what this process has imported: the other one stays as long as the connection.
        program = [server.__file__] if ARCHIVE is None else [ARCHIVE, server.__name__]
        os.execv(sys.executable, [sys.executable, "-I", "-S", *program, str(root.parent)])
    return 0


def answer(root: Path, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """What there is, and what is wrong; an agent is started where none lives.

    :param wanted: ``version``: the controller's; ``mark``: what the answer begins with; ``share``: the amounts of
        cpus, memory, disk and gpus that Lading may fill, as far as the sites file says so; ``reserve``: the cpus and
        the memory that are left of what it does not say; ``patience``, ``kill_grace``, ``idle_seconds``,
        ``switch_off``, ``scratch``, ``keep_failed``, ``is_spot``; ``stamp``: what the agent is started with; ``logs``:
        the folder below which each job has its logs; ``runner``: the options that say by which module it runs jobs;
        ``look``: whether only to report what there is; ``owner``: the deployment to which the folder of the spool is
        to belong
    :raises OSError: it belongs to another one
    """
    mine = VERSION
    if wanted["version"] != mine:
        message = f"Lading {mine} is installed there, the controller is {wanted['version']}: install the same on both"
        return {"version": mine, "refused": message}
    airflow = find_spec("airflow")
    # Without an origin it is a folder beside this process, such as the ~/airflow of configuration and logs.
    if not wanted.get("runner") and (airflow is None or airflow.origin is None):
        message = (
            f"{sys.executable} there has Lading and no Airflow, without which no task runs: install apache-airflow in "
            "the controller's version beside it, or name another one in the table of the site, such as python = "
            "'/opt/airflow/bin/python'"
        )
        return {"version": mine, "refused": message}
    look = bool(wanted.get("look"))
    if owner := wanted.get("owner"):
        if not look:
            make_private(root.parent)
        server.claim(str(root.parent), owner["ids"], owner["name"], look=look)
    there = host.usable(host.scratch(wanted["scratch"]))
    share = {name: amount for name, amount in wanted["share"].items() if amount is not None}
    left = there - Resources(cpus=wanted["reserve"]["cpus"], memory=wanted["reserve"]["memory"])
    capacity = Resources(**{name: share.get(name, getattr(left, name)) for name in ("cpus", "memory", "disk", "gpus")})
    if capacity.cpus <= 0 or capacity.memory <= 0:
        message = (
            f"nothing is left to fill: the machine has {there.cpus:g} cpus and {there.memory} MiB; lower the reserve"
        )
        return {"version": mine, "refused": message}
    facts = {
        "version": mine,
        "host": socket.gethostname(),
        "boot_id": host.boot_id(),
        "now": time.time(),
        "arch": host.arch(),
        "os": platform.system().lower(),
        "capacity": {name: getattr(capacity, name) for name in ("cpus", "memory", "disk", "gpus")},
    }
    if look:
        return facts | {"note": host.excess(share, host.hardware(host.scratch(wanted["scratch"])))}
    settings = agent_host.settings(
        capacity,
        wanted["patience"],
        wanted["kill_grace"],
        measure_disk="disk" not in share,
        idle_seconds=wanted["idle_seconds"],
        switch_off=wanted.get("switch_off", ""),
        scratch=wanted["scratch"],
        keep_failed=wanted["keep_failed"],
        is_spot=wanted.get("is_spot", False),
    )
    spool = Spool(root)
    options = ["--logs", wanted["logs"], *wanted.get("runner", ())]
    agent = AgentHost(spool, RejectedFiles(spool.rejected), scope(), options, wanted["stamp"])
    note = agent.keep_alive(settings)
    appears_by = time.monotonic() + SECONDS_TO_APPEAR
    while note is None and not agent.is_introduced and time.monotonic() < appears_by:
        time.sleep(0.02)
    lives = agent.lives()
    return {**facts, "lives": lives, "drains": agent.is_another, "note": note}


def scope() -> tuple[str, ...]:
    """What comes before the agent's command so that it outlives the session; nothing where that is not needed."""
    if shutil.which(SCOPE[0]) is None or not (LINGERING / getpass.getuser()).exists():
        return ()
    try:
        works = subprocess.run([*SCOPE, "true"], capture_output=True, timeout=0.5, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return SCOPE if works else ()


if __name__ == "__main__":
    sys.exit(main())
