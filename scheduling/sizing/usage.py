"""Usage: what the tries of a task have used, as sums and a bounded sample that can be stored and merged. Pure.

The sample holds the newest tries, and of older ones the outermost: the corners of the upper hull of peak memory over
the size of inputs. So :func:`lading.scheduling.sizing.envelope.fit` sees every try that its line could touch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any

from lading.scheduling.sizing.envelope import upper_hull

# With this many tries, the summary of a task stays below 4 KiB.
MOST_NEWEST = 48
MOST_OUTERMOST = 12
# Shorter tries consist almost only of start-up, and do not show how many cpus the work keeps busy.
SHORTEST_SECONDS = 10.0
SUMS = ("tries", "short", "hours", "cpu_hours", "gib_hours")


@dataclass(frozen=True, slots=True)
class Use:
    """What one try requested and used. Memory is MiB.

    :param seconds: how long it ran
    :param peak_memory: None: unknown
    :param cpu_seconds: None: unknown
    :param cause: why it failed; None: it did not
    :param waited: seconds until it started
    :param input_size: bytes of its inputs; negative: they have no bytes, but this many elements in lists; None: unknown
    :param is_sampled: whether its memory was sampled so rarely that a short peak may have been missed
    """

    cpus: float
    memory: int
    seconds: float
    peak_memory: int | None = None
    cpu_seconds: float | None = None
    cause: str | None = None
    waited: float = 0.0
    input_size: int | None = None
    is_sampled: bool = False

    @property
    def memory_bound(self) -> int | None:
        """A lower bound of the memory that a failed try needed; None: it did not fail, or nothing is known.

        A try that ran out of memory needed more than everything it had.
        """
        if self.cause == "out_of_memory":
            return max(self.memory, self.peak_memory or 0)
        return None if self.cause is None else self.peak_memory

    @property
    def mean_cpus(self) -> float | None:
        """The average number of busy cpus, including start-up; None: unknown."""
        if self.cause is not None or self.cpu_seconds is None or self.seconds <= 0:
            return None
        return self.cpu_seconds / self.seconds

    @property
    def busy_cpus(self) -> float | None:
        """The average number of cpus that its work kept busy; None: unknown."""
        return self.mean_cpus if self.seconds >= SHORTEST_SECONDS else None


@dataclass(slots=True)
class Usage:
    """What a number of tries have used.

    :param tries: the number of tries
    :param short: how many of them had too little memory or time
    :param hours: how long they ran
    :param cpu_hours: cpus requested while they ran
    :param gib_hours: memory requested while they ran
    :param newest: the newest tries, oldest first
    :param outermost: of the tries before these, the corners of the upper hull of memory over the size of inputs
    """

    tries: int = 0
    short: int = 0
    hours: float = 0.0
    cpu_hours: float = 0.0
    gib_hours: float = 0.0
    newest: list[Use] = field(default_factory=list)
    outermost: list[Use] = field(default_factory=list)

    @property
    def sample(self) -> Sequence[Use]:
        """The tries whose details are kept, newest last."""
        return [*self.outermost, *self.newest]

    def add(self, use: Use) -> None:
        """Add a try that is newer than all others."""
        hours = use.seconds / 3600
        self.tries += 1
        self.short += use.cause in ("out_of_memory", "time_limit")
        self.hours += hours
        self.cpu_hours += use.cpus * hours
        self.gib_hours += use.memory / 1024 * hours
        self._keep([*self.newest, use], self.outermost)

    def add_older(self, older: Usage) -> None:
        """Add tries that are older than all of these."""
        for name in SUMS:
            setattr(self, name, getattr(self, name) + getattr(older, name))
        self._keep([*older.newest, *self.newest], [*older.outermost, *self.outermost])

    def _keep(self, newest: Sequence[Use], outermost: Sequence[Use]) -> None:
        self.newest = list(newest[-MOST_NEWEST:])
        if before := newest[:-MOST_NEWEST]:
            self.outermost = list(_outermost([*outermost, *before]))
        elif len(outermost) > len(self.outermost):
            self.outermost = list(_outermost(outermost))

    def dump(self) -> str:
        """JSON, with amounts rounded to three digits."""
        sums = {name: getattr(self, name) for name in SUMS}
        return json.dumps({**sums, "sample": [_as_list(use) for use in self.sample]}, separators=(",", ":"))

    @classmethod
    def load(cls, text: str) -> Usage:
        """Usage from the text of :meth:`dump`; from texts of development versions of 0.1.0, only the sums."""
        found = json.loads(text)
        sample = [Use(*each) for each in found.get("sample", ())]
        return cls(
            **{name: found[name] for name in SUMS}, outermost=sample[:-MOST_NEWEST], newest=sample[-MOST_NEWEST:]
        )


def _outermost(uses: Iterable[Use]) -> Iterator[Use]:
    """Yield the tries that the lowest line above all tries could touch; of many, those with larger inputs."""
    by_point = {(abs(float(use.input_size or 0)), float(use.memory_bound or use.peak_memory or 0)): use for use in uses}
    for corner in upper_hull(by_point)[-MOST_OUTERMOST:]:
        yield by_point[corner]


def _as_list(use: Use) -> list[Any]:
    rounded = replace(
        use,
        cpus=_rounded(use.cpus),
        seconds=_rounded(use.seconds),
        cpu_seconds=None if use.cpu_seconds is None else _rounded(use.cpu_seconds),
        waited=_rounded(use.waited),
    )
    values = list(astuple(rounded))
    while values[-1] is None or values[-1] is False:
        values.pop()
    return values


def _rounded(amount: float) -> float:
    return float(f"{amount:.3g}")
