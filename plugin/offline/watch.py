"""A progress bar on stderr for long calculations, and Ctrl-C to stop them."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

# Seconds after which the bar appears.
SOON = 2.0
# The exit status that shells report for a command killed by Ctrl-C: 128 plus the number of SIGINT.
INTERRUPTED = 130


class ProgressWatch:
    """Receives the progress of a calculation, and shows it if the calculation takes more than two seconds.

    :param shown: whether to show it at all
    """

    def __init__(self, *, shown: bool) -> None:
        self.shown, self.since = shown, time.monotonic()
        self.bar: Progress | None = None
        self.asked = self.stopped = False

    def __enter__(self) -> ProgressWatch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.bar is not None:
            self.bar.stop()

    def __call__(self, what: str, part: float) -> bool:
        """Report progress, and return whether to continue.

        :param part: the part that is done, 0 to 1
        """
        if self.shown and time.monotonic() - self.since >= SOON:
            self.show(what, part)
        self.stopped = self.asked
        return not self.stopped

    def show(self, what: str, part: float) -> None:
        if self.bar is None:
            from rich.console import Console
            from rich.progress import Progress

            self.bar = Progress(console=Console(file=sys.stderr))
            self.bar.add_task(what, total=1.0)
            self.bar.start()
        self.bar.update(self.bar.task_ids[0], description=what, completed=part)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let the first Ctrl-C request the best result so far; the second one ends the command."""

        def ask(number: int, frame: FrameType | None) -> None:
            if self.asked:
                raise KeyboardInterrupt
            self.asked = True

        before = signal.signal(signal.SIGINT, ask)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
