"""Which processes belong to a service's folder, as /proc tells."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Process:
    """:param started: in ticks since the boot; a pid alone may belong to another process by now"""

    pid: int
    parent: int
    session: int
    started: int
    command: str


def end_in_order() -> None:
    """Let SIGTERM end this process as Ctrl-C does, so that it stops what it has started.

    Ctrl-C ends it also where a shell has started it in the background, which lets it ignore SIGINT.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)


def living() -> dict[int, Process]:
    """Every process of this machine that has not ended, by pid."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended between the listing and the reading
            state, process = _read(folder)
            if state not in "ZX":
                found[process.pid] = process
    return found


def lives(pid: int | None) -> bool:
    """Whether a process has not ended: of one that is asked about often, without a look at all others."""
    with contextlib.suppress(OSError):
        return _read(Path("/proc", str(pid)))[0] not in "ZX"
    return False


def identify(pid: int) -> list[Process]:
    """The process that has this pid now, if there is one."""
    with contextlib.suppress(OSError):
        return [_read(Path("/proc", str(pid)))[1]]
    return []


def _read(folder: Path) -> tuple[str, Process]:
    # The name in parentheses may hold anything, so the fields are counted behind it.
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return fields[0], Process(int(folder.name), int(fields[1]), int(fields[3]), int(fields[19]), command)


def belonging(folder: Path, leaders: Iterable[Process]) -> list[Process]:
    """Processes that a service in ``folder`` started, and what those started in their turn.

    A process belongs by the folder's path in its environment, command or working directory, or by a session that one of
    ``leaders`` began. One sign alone would miss some: setproctitle may overwrite the environment, a daemon leaves its
    session.
    """
    everyone = living()
    # No pid is given again while a process of its session lives.
    sessions = {leader.pid for leader in leaders if everyone.get(leader.pid, leader).started == leader.started}
    ours = os.getsid(0)  # a command that we run in our own session must not make us one of them
    known = sessions - {ours}
    mine = {pid for pid, process in everyone.items() if process.session in known or _mentions(pid, str(folder))}
    while True:
        known |= {everyone[pid].session for pid in mine} - {ours}
        more = {p.pid for p in everyone.values() if p.session in known or p.parent in mine} - mine
        if not more:
            break
        mine |= more
    return [everyone[pid] for pid in sorted(mine - {os.getpid()})]


def _mentions(pid: int, text: str) -> bool:
    with contextlib.suppress(OSError):
        at = Path("/proc") / str(pid)
        raw = b"\0".join((at / name).read_bytes() for name in ("environ", "cmdline"))
        return text.encode() in raw or (os.readlink(at / "cwd") + "/").startswith(text + "/")
    return False


# How much slower than an ordinary machine one may be on which tests pass; what is there at once may be delayed as long
# there as what takes a minute.
SLOWEST = 3.0
SHORTEST = 60.0


def wait_until(reached: Callable[[], bool], seconds: float, interval: float = 0.1) -> bool:
    """Ask ``reached`` every ``interval`` seconds until it is true; say whether it was in time.

    :param seconds: that it may take, by far, on an ordinary machine, :data:`SHORTEST` at least; it ends after
        :data:`SLOWEST` times that, since a wait is no measurement: what must be fast is measured where it is
    """
    # Some tests move the other clocks themselves.
    end = time.perf_counter() + max(seconds, SHORTEST) * SLOWEST
    while not reached():
        if time.perf_counter() > end:
            return False
        time.sleep(interval)
    return True


def remove_cgroup(group: Path) -> None:
    """Remove a cgroup without living members; the kernel may count one that has ended for a moment longer."""

    def removed() -> bool:
        try:
            group.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return False
        return True

    assert wait_until(removed, 10), f"{group} has members"


def kill(processes: Iterable[Process]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def of_user(uid: int) -> list[Process]:
    """Living processes of a user."""
    found = []
    for process in living().values():
        with contextlib.suppress(OSError):
            if (Path("/proc") / str(process.pid)).stat().st_uid == uid:
                found.append(process)
    return found


def descendants(pid: int) -> list[Process]:
    """Living processes that a process started, directly or not, as far as those in between live."""
    everyone = living()
    known = {pid}
    while more := {each.pid for each in everyone.values() if each.parent in known} - known:
        known |= more
    return [everyone[each] for each in sorted(known - {pid}) if each in everyone]


def at_work(processes: Iterable[Process]) -> str:
    """What each process does now, and what all of this machine wait for: to find out why one does not end."""
    lines = []
    for process in processes:
        with contextlib.suppress(OSError):
            at = Path("/proc") / str(process.pid)
            fields = (at / "stat").read_text().rpartition(")")[2].split()
            signals = [line for line in (at / "status").read_text().splitlines() if line.startswith("Sig")]
            waits = (at / "wchan").read_text()
            lines.append(f"  {process.pid} {fields[0]} {waits} {process.command[:100]} ({' '.join(signals)})")
    for path in sorted(Path("/proc/pressure").glob("*")):
        with contextlib.suppress(OSError):
            lines.append(f"  {path}: {path.read_text().splitlines()[0]}")
    return "\n".join(lines)


def tails(logs: Iterable[Path], lines: int) -> str:
    """The last lines of some logs, to find out what went wrong."""
    return "\n".join(
        "\n".join([f"--- {path.name}", *path.read_text(errors="replace").splitlines()[-lines:]])
        for path in sorted(logs)
    )
