"""Copies the logs that tasks write at a site into Airflow's own folder of logs, where its log page looks."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import NonNegativeInt, TypeAdapter

from lading.hooks.files.safe_files import NotReadable, open_regular, read_regular, write_atomically
from lading.hooks.polling.job_life import JobAtSite
from lading.hooks.polling.job_tracker import Job
from lading.hooks.ssh.answer import CommandResult
from lading.hooks.ssh.steps import FilePart, Parts
from lading.scheduling.text.nesting import parse_json

log = logging.getLogger(__name__)

# The most logs read in one look, and the most bytes of all of them; the rest is read in the next looks.
MOST_LOGS = 200
MOST_LOG_BYTES = 16 * 2**20


class TaskLogs:
    """The logs at a site and their copies on the controller.

    :param folder: returns the folder at the site that stands for Airflow's folder of logs, given a job's token
    """

    def __init__(self, folder: Callable[[str], str], copies: LogCopies) -> None:
        self.folder = folder
        self.copies = copies

    @staticmethod
    def choose(jobs: Iterable[Job]) -> list[Job]:
        """Choose the jobs whose logs are copied now: finished ones first, each group in its order."""
        jobs = list(jobs)
        ended = [job for job in jobs if job.ended and not job.log_done]
        for job in ended:
            job.log_done = not job.log_path
        running = [job for job in jobs if job.started and not job.ended and job.log_path]
        return ([job for job in ended if not job.log_done] + running)[:MOST_LOGS]

    def question(self, jobs: Sequence[JobAtSite]) -> Parts:
        """Return the step that reads what is new in the logs of these jobs, of which there must be at least one."""
        return Parts([FilePart(*part) for part in self.parts(jobs)], MOST_LOG_BYTES // len(jobs))

    def parts(self, jobs: Iterable[JobAtSite]) -> list[tuple[str, int]]:
        """Return the log files of these jobs, each with the number of bytes already copied."""
        return [(f"{self.folder(job.token)}/{job.log_path}", self.copies.offset(job.token)) for job in jobs]

    def copy(self, jobs: Sequence[JobAtSite], question: Parts, answer: CommandResult) -> None:
        self.add(jobs, question.contents(answer), question.most)

    def add(self, jobs: Sequence[JobAtSite], contents: Sequence[bytes | None], most: int) -> None:
        """Append new contents to the copies.

        :param contents: of each log from its offset, ``most`` bytes at most; None: the log does not exist
        """
        new = {job.token: job.log_path for job, data in zip(jobs, contents, strict=True) if data}
        self.copies.begin(new)
        for job, data in zip(jobs, contents, strict=True):
            try:
                if data:
                    self.copies.add(job.token, job.log_path, data)
            except (OSError, ValueError) as error:
                log.error("The log of job %s cannot be copied: %s", job.token, error)
                job.log_done = job.ended
                continue
            # The log of a job that had already finished is complete now, unless it was cut at the limit.
            job.log_done = job.ended and len(data or b"") < most
        self.copies.save_in_time()

    def keep(self, tokens: Collection[str]) -> None:
        """Forget all jobs but these; others were left by a controller that was killed."""
        self.copies.keep(tokens)

    def forget(self, tokens: Iterable[str]) -> None:
        for token in tokens:
            self.copies.forget(token)


# The copies on the controller.

# A larger file is not a record of copies.
MOST_MEMORY_BYTES = 2**26
# By token: the offset in our file at which the copy starts, and the bytes copied.
NOTES = TypeAdapter(dict[str, tuple[NonNegativeInt, NonNegativeInt]])
# Seconds between records of the progress. After a crash, everything since the last record is copied again, to the same
# offsets.
SAVE_INTERVAL = 5.0


@dataclass(slots=True)
class _Copied:
    """The progress of copying a log.

    :param base: offset of the copy in our file; it is not 0 if a deferred task continues its log
    :param path: of our file; None: not determined since this process started
    """

    base: int
    copied: int = 0
    path: Path | None = None


class LogCopies:
    """The copies of the logs of one site.

    :param folder: Airflow's folder of logs
    :param memory: file that records the progress across restarts; each of its lines adds to the lines before
    """

    def __init__(self, folder: Path, memory: Path) -> None:
        self.folder = folder
        self.memory = memory
        self._root = folder.resolve()
        self._copied: dict[str, _Copied] = {}
        self._saved_at = 0.0
        self._is_changed = False
        with contextlib.suppress(FileNotFoundError, NotReadable):
            for line in read_regular(memory, MOST_MEMORY_BYTES).splitlines():
                with contextlib.suppress(ValueError):  # a line that a full disk has truncated
                    noted = NOTES.validate_python(parse_json(line))
                    self._copied |= {token: _Copied(base, copied) for token, (base, copied) in noted.items()}

    def offset(self, token: str) -> int:
        """Return how many bytes of this job's log have been copied."""
        return self._copied[token].copied if token in self._copied else 0

    def begin(self, logs: Mapping[str, str]) -> None:
        """Record where the copies of these logs start, before anything is written to them.

        :param logs: their paths by token; a path outside of the folder is ignored here, and refused by :meth:`add`
        """
        new = {}
        for token in logs.keys() - self._copied.keys():
            with contextlib.suppress(OSError, ValueError):
                new[token] = self._beginning(logs[token])
        if new:
            self._note(new)

    def add(self, token: str, log_path: str, data: bytes) -> None:
        """Append to the copy of a log.

        :raises OSError: it cannot be written
        :raises ValueError: the path leads out of the folder
        """
        if token not in self._copied:
            self._note({token: self._beginning(log_path)})
        if not data:
            return
        known = self._copied[token]
        path = known.path = known.path or self._path(log_path)
        path.parent.mkdir(mode=0o775, parents=True, exist_ok=True)
        with os.fdopen(open_regular(path, os.O_WRONLY | os.O_CREAT, 0o664), "wb") as stream:
            stream.seek(known.base + known.copied)
            stream.write(data)
        known.copied += len(data)
        self._is_changed = True

    def _beginning(self, log_path: str) -> _Copied:
        path = self._path(log_path)
        return _Copied(path.stat().st_size if path.exists() else 0, path=path)

    def _note(self, new: Mapping[str, _Copied]) -> None:
        self.memory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Appended, because rewriting the whole file would keep the disk busy when jobs are short.
        with os.fdopen(open_regular(self.memory, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "w") as stream:
            stream.write(f"\n{_noted(new)}")
        self._copied |= new
        self._is_changed = True

    def _path(self, log_path: str) -> Path:
        path = (self._root / log_path).resolve()
        if not path.is_relative_to(self._root):
            raise ValueError(f"the log {log_path!r} is not below {self.folder}")
        return path

    def forget(self, token: str) -> None:
        self._is_changed |= self._copied.pop(token, None) is not None

    @property
    def tokens(self) -> frozenset[str]:
        return frozenset(self._copied)

    def keep(self, tokens: Collection[str]) -> None:
        """Forget all jobs but these."""
        self._copied = {token: copied for token, copied in self._copied.items() if token in tokens}

    def save_in_time(self) -> None:
        """Record the progress if it has changed and the last record is :data:`SAVE_INTERVAL` old."""
        if self._is_changed and time.monotonic() - self._saved_at > SAVE_INTERVAL:
            self.save()

    def save(self) -> None:
        self.memory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(self.memory, _noted(self._copied))
        self._saved_at, self._is_changed = time.monotonic(), False


def _noted(copied: Mapping[str, _Copied]) -> str:
    return json.dumps({token: [each.base, each.copied] for token, each in copied.items()})
