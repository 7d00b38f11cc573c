"""What a site's controller has not stored yet: the events of jobs, and the files in which they came."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lading.hooks.polling.job_life import JobAtSite
from lading.hooks.spool import events
from lading.hooks.spool.rejected import RejectedFiles
from lading.scheduling.reasons import Reason

_NUMBER = re.compile(r"\d+")


def _kept(reason: Reason) -> tuple[object, ...]:
    """What has to differ for a reason to be another one."""
    text = dict(reason.params).get("text")
    return (reason.group, _NUMBER.sub("", str(text)), *map(_kept, reason.also))


class EventBuffer:
    """The events that were read and not acknowledged. One thread adds them, another reads and acknowledges.

    A file of events is removed when the last event in it, and all events before it, were acknowledged: what a
    controller has not stored is there for the next one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: list[tuple[dict[str, Any], list[str]]] = []
        self._done: set[str] = set()
        self._seen: set[str] = set()

    def add(self, event: dict[str, Any], file: str | None = None) -> None:
        """Add an event.

        :param file: whose last event it is; None: it came in no file, or is not the last
        """
        with self._lock:
            self._items.append((event, [] if file is None else [file]))

    def add_reason(self, job: JobAtSite, reason: Reason, **more: str) -> None:
        """Say why a job waits, unless that was the last that was said of it.

        One of the same codes, sites and limits is the same, but for a batch system's own text: each report is a row
        of Airflow's event log. Of those only the numbers do not count: PBS counts what is free again in every cycle.

        :param more: what else the event says
        """
        if job.reported is None or _kept(job.reported) != _kept(reason):
            job.reported = reason
            self.add({"event": "waiting", "token": job.token, "reason": reason, **more})

    def unread(self) -> list[dict[str, Any]]:
        """The events that were not acknowledged yet."""
        with self._lock:
            return [event for event, _ in self._items]

    def acknowledge(self, count: int) -> list[dict[str, Any]]:
        """The first so many of the unread events have been stored; returns them."""
        with self._lock:
            over, self._items = self._items[:count], self._items[count:]
            self._done.update(file for _, files in over for file in files)
        return [event for event, _ in over]

    @property
    def seen(self) -> frozenset[str]:
        """The files that were read and are still there."""
        return frozenset(self._seen)

    def is_new(self, file: str) -> bool:
        """Whether a file of events was not read before; it counts as read from now on."""
        new = file not in self._seen
        self._seen.add(file)
        return new

    def new(self, files: Mapping[str, bytes], rejected: RejectedFiles) -> Iterator[tuple[dict[str, Any], str | None]]:
        """The events of files that were not read before, each with the file whose last one it is.

        :param rejected: keeps what is no event
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
        """Nothing in a file, or nothing more, is of use; its events are stored before it is removed."""
        if file is None:
            return
        with self._lock:
            if self._items:
                self._items[-1][1].append(file)
            else:
                self._done.add(file)

    def done(self) -> list[str]:
        """The files that can be removed."""
        with self._lock:
            return sorted(self._done)

    def removed(self, files: Iterable[str]) -> None:
        """These files are gone."""
        gone = {*files}
        with self._lock:
            self._done -= gone
            self._seen -= gone
