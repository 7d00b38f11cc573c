"""The events of jobs that a site's controller has not stored yet, and the files that they came in."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lading.hooks.polling.job_life import JobAtSite
from lading.hooks.spool import events
from lading.hooks.spool.rejected import RejectedFiles
from lading.scheduling.model.reasons import Reason

_NUMBER = re.compile(r"\d+")


def _kept(reason: Reason) -> tuple[object, ...]:
    """Return the part of a reason that distinguishes it from another one."""
    text = dict(reason.params).get("text")
    return (reason.group, _NUMBER.sub("", str(text)), *map(_kept, reason.also))


class EventBuffer:
    """Events that were read and not acknowledged. One thread adds them, another reads and acknowledges them.

    A file of events can be removed once its last event, and all events before that, were acknowledged, so the next
    controller still finds everything that was not stored.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: list[tuple[dict[str, Any], list[str]]] = []
        self._done: set[str] = set()
        self._seen: set[str] = set()

    def add(self, event: dict[str, Any], file: str | None = None) -> None:
        """Add an event.

        :param file: the file whose last event it is; None: it came in no file, or is not the last
        """
        with self._lock:
            self._items.append((event, [] if file is None else [file]))

    def add_reason(self, job: JobAtSite, reason: Reason, **more: str) -> None:
        """Report why a job waits, unless that was the last reason reported for it.

        Each report is a row of Airflow's event log, so reasons with equal codes, sites and limits count as equal. A
        batch system's own text must be equal, too, except for its numbers: PBS reports the free resources in every
        cycle.

        :param more: further fields of the event
        """
        if job.reported is None or _kept(job.reported) != _kept(reason):
            job.reported = reason
            self.add({"event": "waiting", "token": job.token, "reason": reason, **more})

    def unread(self) -> list[dict[str, Any]]:
        """Return the events that were not acknowledged yet."""
        with self._lock:
            return [event for event, _ in self._items]

    def acknowledge(self, count: int) -> list[dict[str, Any]]:
        """Note that the first ``count`` unread events have been stored, and return them."""
        with self._lock:
            over, self._items = self._items[:count], self._items[count:]
            self._done.update(file for _, files in over for file in files)
        return [event for event, _ in over]

    @property
    def seen(self) -> frozenset[str]:
        """The files that were read and still exist."""
        return frozenset(self._seen)

    def is_new(self, file: str) -> bool:
        """Whether a file of events was not read before; from now on it counts as read."""
        new = file not in self._seen
        self._seen.add(file)
        return new

    def new(self, files: Mapping[str, bytes], rejected: RejectedFiles) -> Iterator[tuple[dict[str, Any], str | None]]:
        """Yield the events of files that were not read before, each with the file if it is that file's last event.

        :param rejected: keeps lines that are not events
        """
        for file, content in files.items():
            if not self.is_new(file):
                continue
            found, faults = events.read(content)
            if faults:
                rejected.keep(file, b"\n".join(line for line, _ in faults), faults[0][1])
            if not found:
                self.drop(file)
            for number, event in enumerate(found, 1):
                yield event, file if number == len(found) else None

    def drop(self, file: str | None) -> None:
        """Release a file that has no further events; it is removed once the events before it are stored."""
        if file is None:
            return
        with self._lock:
            if self._items:
                self._items[-1][1].append(file)
            else:
                self._done.add(file)

    def done(self) -> list[str]:
        """Return the files that can be removed."""
        with self._lock:
            return sorted(self._done)

    def removed(self, files: Iterable[str]) -> None:
        gone = {*files}
        with self._lock:
            self._done -= gone
            self._seen -= gone
