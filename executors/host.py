"""``python -m lading.executors.host ROOT``: reports the resources of an SSH machine, and starts its node agent.

A controller runs it on the machine and sends its request as one line of JSON on standard input: its version, how much
of the machine Lading can fill, and the agent's settings. The answer is one line of JSON on standard output, within a
second: the machine's resources, and what is wrong with the agent. If no agent is alive, one is started; it survives
this command, the connection and the session, and its lock ensures that each ROOT has only one. After that, the process
replaces itself by the server of the agent's spool (:mod:`lading.hooks.spool.server`), so that one session per machine
is enough.

This module imports neither Airflow nor any site.
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

from lading.hooks.files import hardware, host
from lading.hooks.files.child_processes import ARCHIVE
from lading.hooks.files.safe_files import make_private
from lading.hooks.files.version import VERSION
from lading.hooks.machines import agent_host
from lading.hooks.machines.agent_host import AgentHost
from lading.hooks.spool import server
from lading.hooks.spool.rejected import RejectedFiles
from lading.hooks.spool.spool import Spool
from lading.scheduling.model.resources import Resources

# How long to wait for a started agent to introduce itself, seconds; if it takes longer, the next call finds it.
SECONDS_TO_APPEAR = 0.8
# With KillUserProcesses=yes, systemd kills all processes of a session when it ends, except those in a scope of their
# own. Without lingering, a user's scopes end with the last session, so this would make matters worse.
# https://www.freedesktop.org/software/systemd/man/latest/systemd-run.html (its example with screen), loginctl(1)
SCOPE = ("systemd-run", "--user", "--scope", "--quiet", "--collect", "--")

# Contains a file for each user with lingering enabled.
LINGERING = Path("/var/lib/systemd/linger")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lading.executors.host", description=__doc__.partition("\n")[0])
    parser.add_argument("root", type=Path, help="the folder of the agent's spool")
    root = parser.parse_args(arguments).root.expanduser().absolute()
    wanted = json.loads(sys.stdin.readline())  # the controller sends nothing more before the answer
    if ARCHIVE is not None:
        with suppress(OSError):  # mark the archive as in use, because unused ones are removed after a while
            os.utime(ARCHIVE)
    try:
        found = answer(root, wanted)
    except OSError as error:  # for example, a full disk or another user's folder
        found = {"version": VERSION, "refused": f"{root} cannot be used: {error}"}
    print(f"{wanted['mark']}{json.dumps(found)}", flush=True)
    if not (wanted.get("look") or "refused" in found):
        # Replace this process and all its imports, as the server stays for as long as the connection.
        program = [server.__file__] if ARCHIVE is None else [ARCHIVE, server.__name__]
        os.execv(sys.executable, [sys.executable, "-I", "-S", *program, str(root.parent)])
    return 0


def answer(root: Path, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the machine's resources and the state of its agent, which is started if none is alive.

    :param wanted: the controller's request. ``version``: the controller's; ``mark``: the start of the answer's line;
        ``share``: the amounts of cpus, memory, disk and gpus that Lading can fill, as far as the sites file sets them;
        ``reserve``: the cpus and memory to leave free of the amounts it does not set; ``patience``, ``kill_grace``,
        ``idle_seconds``, ``switch_off``, ``scratch``, ``keep_failed``, ``is_spot``: settings of the agent; ``stamp``:
        the agent's ``--stamp``; ``logs``: the parent of the jobs' log folders; ``runner``: the agent's options for the
        module that runs jobs; ``look``: only report; ``owner``: the deployment that the spool's folder must belong to
    :raises OSError: the folder belongs to another deployment, or cannot be used
    """
    mine = VERSION
    if wanted["version"] != mine:
        message = (
            f"Lading {mine} is installed there, but the controller has {wanted['version']}: install the same "
            "version on both"
        )
        return {"version": mine, "refused": message}
    airflow = find_spec("airflow")
    # A module without an origin is just a folder on the path, such as the ~/airflow of configuration and logs.
    if not wanted.get("runner") and (airflow is None or airflow.origin is None):
        message = (
            f"{sys.executable} there has Lading but not Airflow, which tasks need: install the controller's version of "
            "apache-airflow into the same environment, or name another interpreter in the site's table, for example "
            "python = '/opt/airflow/bin/python'"
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
            f"nothing is left for jobs: the machine has {there.cpus:g} cpus and {there.memory} MiB; lower the reserve"
        )
        return {"version": mine, "refused": message}
    facts = {
        "version": mine,
        "host": socket.gethostname(),
        "boot_id": host.boot_id(),
        "now": time.time(),
        "arch": hardware.arch(),
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
    """Return the command prefix that lets the agent outlive the session; empty: not needed or not available."""
    if shutil.which(SCOPE[0]) is None or not (LINGERING / getpass.getuser()).exists():
        return ()
    try:
        works = subprocess.run([*SCOPE, "true"], capture_output=True, timeout=0.5, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return SCOPE if works else ()


if __name__ == "__main__":
    sys.exit(main())
