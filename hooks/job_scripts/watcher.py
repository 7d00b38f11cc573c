"""The watcher of a hook's runs: one thread for all whose end a callback, ``as_completed`` or ``wait`` waits for."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lading.hooks.job_scripts.result import JobRun
    from lading.hooks.job_scripts.run import RunRecord

log = logging.getLogger(__name__)

# After an error that no look was to raise the next one comes so much later, seconds.
SECONDS_AFTER_ERROR = 10.0


class Watcher:
    """Looks at runs until each has ended, all of them in one exchange; its thread lives only as long as there are any.

    It is a daemon: a program that ends does not wait for it.

    :param name: of the site
    :param pauses: makes what says how long to wait between looks at one run, in seconds
    """

    def __init__(self, name: str, pauses: Callable[[], Callable[[RunRecord], float]]) -> None:
        self.name = name
        self._pauses = pauses
        self._watched: dict[JobRun, Callable[[RunRecord], float]] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def watch(self, run: JobRun) -> None:
        """Look at a run until it has ended, and resolve it then; one that is watched already stays so."""
        with self._changed:
            if run in self._watched:
                return
            self._watched[run] = self._pauses()
            # In a process that was forked the thread is there and does not live.
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name=f"lading-runs-{self.name}", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                runs = list(self._watched)
                if not runs:
                    self._thread = None
                    return
            pause, over = SECONDS_AFTER_ERROR, []
            try:
                over = [run for run in runs if run.done()]
                pause = min((self._watched[run](run.record) for run in runs if run not in over), default=0.0)
            except Exception:  # whatever it is, those who wait are not to wait for ever for want of a thread
                log.exception("The runs of site %s could not be looked at; they are looked at again", self.name)
            end = time.monotonic() + pause
            with self._changed:
                for run in over:
                    del self._watched[run]
                there = len(self._watched)
                # A run that is new is looked at before the pause is over.
                while there == len(self._watched) and (left := end - time.monotonic()) > 0:
                    self._changed.wait(left)
