"""Jobs that were asked to end, and when each is asked again; one for tasks and for job scripts.

That a command has succeeded says that the batch system has heard of it, and no more: ``qdel`` of an array whose node
does not answer exits with 0, and its elements run on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lading.hooks.ssh.backoff import Backoff

# A job that is still shown is asked to end again after so many seconds at most, doubled up to the second number: what
# is being ended properly is left that time.
REPEATED_AFTER = (60.0, 600.0)


class Canceller:
    """The jobs of a site that were asked to end, by their native ids; on the monotonic clock."""

    def __init__(self) -> None:
        self._asked: dict[str, Backoff] = {}

    def ask(self, ids: Iterable[str]) -> None:
        """Note that jobs are asked to end now."""
        for id in ids:
            self._asked.setdefault(id, Backoff(*REPEATED_AFTER)).failed("it is still there")

    def due(self, ids: Sequence[str]) -> list[str]:
        """Those of the jobs, which are shown although they are to end, that are to be asked again now.

        One that was not asked from here, but by another process or as part of an array, has its time from now on.
        """
        self.ask(id for id in ids if id not in self._asked)
        return [id for id in ids if self._asked[id].left <= 0]

    def was_asked(self, id: str) -> bool:
        """Whether a job was asked to end from here."""
        return id in self._asked

    def forget(self, id: str) -> None:
        """A job is over."""
        self._asked.pop(id, None)
