"""A spool on another machine: the program that carries out a controller's requests there, and its protocol.

A controller starts one such program on each of its machines and uses it for as long as the connection lasts, so an
exchange starts no process. A request is a line of JSON, and so is its answer. While the machine has jobs, a further
line announces news at once, but only once until the next request. The controller sends the program itself
(:func:`lading.hooks.spool.connection.program`), so both sides have the same version, whatever is installed on the
machine, and the program needs only Python's standard library. That is why it imports nothing of Lading.

Files are written under a hidden name and then renamed, so that readers see them complete or not at all. A request may
be repeated, and may be interrupted after any of its :data:`STEPS`.
"""

from __future__ import annotations

import binascii
import contextlib
import json
import os
import select
import stat
import sys
import time

# Instead of typing's, because importing typing takes a tenth of this program's start.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    Message = dict[str, Any]

# The beginning of each line that a controller reads.
ANSWER = "lading-answer "
NEWS = "lading-news"
# Seconds between looks at the folder of events while there are jobs, until there is news.
INTERVAL = 0.05
# The resolution of a folder's modification time, seconds: a second change within it may not be visible. How long the
# time has been unchanged is measured by our own clock, because a file server's may differ.
CLOCK_TICK = 0.1
# Seconds without a request after which the controller is considered gone and its connection dead.
MOST_SILENCE = 600.0
# The most files of events, and bytes of all of them, read at once; the rest is read in the next exchange.
MOST_FILES = 1000
MOST_BYTES = 8 * 2**20
LARGEST = MOST_BYTES  # a larger file is not a file of events
# The file in a job's folder of logs that names the job's own log.
LOG_PATH = ".log_path"
# The file that names the deployment of Lading that a folder belongs to: an id, a blank, a name.
OWNER = "owner"
FOREIGN = (
    "it belongs to another deployment of Lading, {theirs}, and this one is {mine}: give each of the two "
    "{key} of its own; if the other one is gone for good, remove {file}"
)
# The fields of a request that are for the agent.
FOR_AGENT = "give", "renew", "cancel", "hold", "drops", "shutdown", "recall", "close"


def exchange(root: str, request: Message, steps: Sequence[Callable[[str, Message, Message], None]]) -> Message:
    """Carry out a request; an error that stops its steps is in the answer's ``failed``."""
    answer: Message = {}
    try:
        for step in steps:
            step(root, request, answer)
    except OSError as error:
        answer["failed"] = str(error)
    return answer


def own(root: str, request: Message, _: Message) -> None:
    """Mark the folder as the requesting deployment's if it has no mark; fail if it is another deployment's."""
    if owner := request.get("owner"):
        claim(root, owner["ids"], owner["name"])


def claim(root: str, ids: Sequence[str], name: str, key: str = "a work_dir", *, look: bool = False) -> None:
    """Mark a folder as a deployment's own if it has no mark.

    The mark is made atomically, even when several controllers make it at once. Other controllers of the deployment
    accept it as theirs.

    :param ids: of the deployment: the current one, which is written, then earlier ones; also its name if that is unique
    :param name: of the deployment, for display
    :param key: the setting that gives each deployment a folder of its own
    :param look: only check, and make no mark
    :raises OSError: the folder belongs to another deployment; or that cannot be determined
    """
    path, mine = f"{root}/{OWNER}", " ".join(f"{ids[0]} {name}".split())
    try:
        found = _read(path, 2**16)
    except FileNotFoundError:
        if look:
            return
        hidden = f"{root}/.{OWNER}.{os.getpid()}"
        _write(hidden, f"{mine}\n")
        try:
            os.link(hidden, path)
        except OSError:  # another controller was faster, or the file system has no links
            if not os.path.lexists(path):
                os.rename(hidden, path)
        finally:
            _remove(hidden)
        found = _read(path, 2**16)
    theirs = found.decode(errors="replace").partition("\n")[0]
    id, _, their_name = theirs.partition(" ")
    if id not in ids and their_name not in ids:
        raise OSError(FOREIGN.format(theirs=_owner(theirs), mine=_owner(mine), key=key, file=path))


def _owner(mark: str) -> str:
    id, _, name = mark.partition(" ")
    return f"{name} ({id})"


def remove(root: str, request: Message, answer: Message) -> None:
    """Remove what the controller has stored, folders recursively; ``kept``: files that could not be removed."""
    answer["kept"] = []
    for name in request.get("remove", ()):
        try:
            _remove(f"{root}/{name}")
        except OSError:
            answer["kept"].append(name)


def write(root: str, request: Message, answer: Message) -> None:
    """Write envelopes, cancellations, holds and other requests to the agent; ``fault``: why not all were written.

    Envelopes of jobs that have started are skipped, and so are renewed ones of jobs that do not wait: nothing runs
    twice.
    """
    try:
        for token, (text, log_path) in request.get("give", {}).items():
            if not _has_begun(root, token):
                if log_path:
                    _write(f"{root}/logs/{token}/{LOG_PATH}", log_path)
                _write(f"{root}/spool/inbox/{token}.json", text)
        for token, text in request.get("renew", {}).items():
            path = f"{root}/spool/inbox/{token}.json"
            if os.path.isfile(path) and not _has_begun(root, token):
                _write(path, text)
        for token, reason in request.get("cancel", {}).items():
            _write(f"{root}/spool/cancel/{token}", reason)
        for token, text in request.get("hold", {}).items():
            _write(f"{root}/spool/holds/{token}.json", text)
        if how := request.get("shutdown"):
            _write(f"{root}/spool/shutdown", how)
        if request.get("probe"):
            _write(f"{root}/probe", " " * 4096)  # a full disk has room for empty files
            _remove(f"{root}/probe")
    except OSError as error:
        answer["fault"] = str(error)


def recall(root: str, request: Message, answer: Message) -> None:
    """Take back jobs that have not started; ``returned``: all jobs taken back whose return is not stored yet."""
    folder = f"{root}/spool/returned"
    for token in request.get("recall", ()):
        try:
            os.makedirs(folder, exist_ok=True)
            os.rename(f"{root}/spool/inbox/{token}.json", f"{folder}/{token}.json")
        except OSError:
            continue  # the agent was faster, or nothing can be written: the job stays
    answer["returned"] = _tokens(folder) if os.path.isdir(folder) else []


def close_inbox(root: str, request: Message, answer: Message) -> None:
    """Close the inbox on request, and take back jobs that have not started.

    The inbox is renamed: a file that another process writes at this moment is taken back, or its writing fails.
    """
    if not request.get("close"):
        return
    inbox, closed, returned = (f"{root}/spool/{name}" for name in ("inbox", "closed", "returned"))
    with contextlib.suppress(OSError):  # already closed
        os.rename(inbox, closed)
    os.makedirs(returned, exist_ok=True)
    for folder in filter(os.path.isdir, (inbox, closed)):
        for token in _tokens(folder):
            with contextlib.suppress(FileNotFoundError):  # the agent was faster
                os.rename(f"{folder}/{token}.json", f"{returned}/{token}.json")
    with contextlib.suppress(OSError):
        os.rmdir(inbox)  # an agent that was started in the meantime has created it
    answer["returned"] = _tokens(returned)


def ring(root: str, request: Message, answer: Message) -> None:
    """Wake the agent if there is something for it to do, or to tell it that a controller is active."""
    if answer["known"] and not any(map(request.get, FOR_AGENT)):
        return
    try:
        bell = os.open(f"{root}/spool/bell", os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return  # no agent listens
    try:
        with contextlib.suppress(BlockingIOError):  # enough rings are pending
            if stat.S_ISFIFO(os.fstat(bell).st_mode):
                os.write(bell, b"!")
    finally:
        os.close(bell)


def pulse(root: str, _: Message, answer: Message) -> None:
    """Report the boot id, the clock, whether the last agent is running, and when the machine is reclaimed, if known."""
    answer["boot_id"] = _read("/proc/sys/kernel/random/boot_id", 100).decode().strip()
    answer["now"] = time.time()
    answer["lives"] = False
    try:
        identity = json.loads(_read(f"{root}/spool/agent.json", 2**16))
        content = _read(f"/proc/{int(identity['pid'])}/stat", 2**16)
        state, *fields = content.decode(errors="replace").rpartition(")")[2].split()  # proc_pid_stat(5)
        is_same = identity["boot_id"] == answer["boot_id"] and identity["started"] == int(fields[18])
        answer["lives"] = is_same and state != "Z"
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        pass  # no agent has written its identity, or the file was removed
    with contextlib.suppress(OSError, ValueError):
        answer["ends_at"] = float(_read(f"{root}/spool/ends_at", 100))


def known(root: str, _: Message, answer: Message) -> None:
    """Report all jobs on the machine.

    The order matters, and so does listing before reading events: a job that moves from one folder to the next is found
    at least once, and its end is read last.
    """
    inbox, closed = f"{root}/spool/inbox", f"{root}/spool/closed"
    answer["closed"] = os.path.isdir(closed) and not os.path.isdir(inbox)
    waiting = _tokens(closed if answer["closed"] else inbox)
    answer["waiting"] = waiting
    answer["known"] = sorted({*waiting, *_tokens(f"{root}/spool/jobs"), *answer["returned"]})


def read_events(root: str, request: Message, answer: Message) -> None:
    """Read the files of events that the controller has not seen, in order; ``more``: whether there are further ones."""
    seen, size = {*request.get("seen", ())}, 0
    answer["events"] = events = dict[str, str]()
    answer["left_out"] = left_out = dict[str, str]()
    answer["more"] = False
    folder = f"{root}/spool/events"
    for name in sorted(_visible(folder)):
        if name in seen:
            continue
        if len(events) >= MOST_FILES or size >= MOST_BYTES:
            answer["more"] = True
            return
        try:
            content = _read(f"{folder}/{name}", LARGEST)
        except FileNotFoundError:
            continue
        except OSError as error:
            left_out[name] = str(error)
            continue
        size += len(content)
        events[name] = _packed(content)


def read_logs(root: str, request: Message, answer: Message) -> None:
    """Read what is new in logs, each from an offset; None: the log does not exist. On request, list all logs."""
    answer["logs"] = [_part(f"{root}/{path}", offset, request["most"]) for path, offset in request.get("logs", ())]
    if request.get("found"):
        answer["found"] = found = dict[str, str]()
        for token in _visible(f"{root}/logs") if os.path.isdir(f"{root}/logs") else ():
            try:
                found[token] = os.fsdecode(_read(f"{root}/logs/{token}/{LOG_PATH}", 2**16))
            except OSError:
                continue  # it has none, or is not a job's folder


STEPS = (own, remove, write, recall, close_inbox, pulse, known, ring, read_events, read_logs)


def _has_begun(root: str, token: str) -> bool:
    return os.path.lexists(f"{root}/spool/jobs/{token}")


def _visible(folder: str) -> list[str]:
    return [name for name in os.listdir(folder) if not name.startswith(".")]


def _tokens(folder: str) -> list[str]:
    return [name[:-5] if name.endswith(".json") else name for name in _visible(folder)]


def _write(path: str, text: str) -> None:
    folder, _, name = path.rpartition("/")
    hidden = f"{folder}/.{name}.{os.getpid()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        try:
            descriptor = os.open(hidden, flags, 0o600)
        except FileNotFoundError:
            if name.endswith(".json") and os.path.isdir(f"{os.path.dirname(folder)}/closed"):
                raise  # the inbox was closed
            os.makedirs(folder, mode=0o700, exist_ok=True)
            descriptor = os.open(hidden, flags, 0o600)
        with open(descriptor, "wb") as stream:
            stream.write(text.encode(errors="surrogateescape"))
        os.rename(hidden, path)
    except OSError:
        _remove(hidden)  # free the space on a full disk
        raise


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except IsADirectoryError:
        for each in os.listdir(path):
            _remove(f"{path}/{each}")
        os.rmdir(path)


def _bytes(path: str, offset: int, most: int) -> bytes:
    """Read a regular file from an offset, at most ``most`` bytes; never block on a FIFO."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("it is not a regular file")
        os.lseek(descriptor, offset, os.SEEK_SET)
        content = b""
        while part := os.read(descriptor, min(most - len(content), 1 << 20)):
            content += part
        return content
    finally:
        os.close(descriptor)


def _read(path: str, most: int) -> bytes:
    content = _bytes(path, 0, most + 1)
    if len(content) > most:
        raise OSError(f"it has more than {most} bytes")
    return content


def _part(path: str, offset: int, most: int) -> str | None:
    try:
        return _packed(_bytes(path, offset, most))
    except OSError:
        return None


def _packed(content: bytes) -> str:
    return binascii.b2a_base64(content, newline=False).decode()


def _now(root: str) -> float:
    """Return the time of the clock that dates the files: that of a file server may differ from ours."""
    path = f"{root}/spool/.now.{os.getpid()}"
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
    try:
        return os.stat(path).st_mtime
    finally:
        os.unlink(path)


def _remove_torn(root: str) -> None:
    before = _now(root) - 3600.0  # the writing of older ones was interrupted
    for folder in ("inbox", "cancel", "holds", "events"):
        for entry in os.scandir(f"{root}/spool/{folder}"):
            if entry.name.startswith(".") and entry.stat(follow_symlinks=False).st_mtime < before:
                _remove(entry.path)


class _Seen:
    """When a machine's events were last modified, and since when that has been observed here."""

    def __init__(self, root: str) -> None:
        self.paths = f"{root}/spool/events", f"{root}/spool/ends_at"
        self.modified, self.since, self.looked_at = 0, 0.0, 0.0

    def may_have_changed(self) -> bool:
        now = time.monotonic()
        modified = max((os.stat(path).st_mtime_ns for path in filter(os.path.exists, self.paths)), default=0)
        may_be_more = modified != self.modified or self.looked_at < self.since + CLOCK_TICK
        if modified != self.modified:
            self.modified, self.since = modified, now
        self.looked_at = now
        return may_be_more


def _told(root: str) -> set[str]:
    """Return what a machine reports: its files of events, and whether it is being reclaimed."""
    return {*_visible(f"{root}/spool/events"), *(["ends_at"] if os.path.exists(f"{root}/spool/ends_at") else [])}


def _say(text: str) -> None:
    data = f"{text}\n".encode()
    while data:
        data = data[os.write(1, data) :]


def serve(root: str) -> None:
    """Answer requests from standard input until it is closed."""
    os.umask(0o077)
    with contextlib.suppress(OSError):  # no spool yet, or another process does it
        _remove_torn(root)
    seen, read, watches, heard, heard_at = _Seen(root), set[str](), False, b"", time.monotonic()
    while True:
        pause = INTERVAL if watches else MOST_SILENCE
        if select.select([0], [], [], pause)[0]:
            if not (data := os.read(0, 1 << 20)):
                return
            heard, heard_at = heard + data, time.monotonic()
            while b"\n" in heard:
                line, _, heard = heard.partition(b"\n")
                request = json.loads(line)
                seen.may_have_changed()
                answer = exchange(root, request, STEPS)
                _say(ANSWER + json.dumps(answer))
                read = {*request.get("seen", ()), *answer.get("events", ()), *answer.get("left_out", ()), *answer}
                watches = bool(answer.get("known") or request.get("hold"))
        elif time.monotonic() - heard_at > MOST_SILENCE:
            return
        elif watches and seen.may_have_changed() and _told(root) - read:
            _say(NEWS)
            watches = False  # until the next request


if __name__ == "__main__":
    serve(sys.argv[1])
