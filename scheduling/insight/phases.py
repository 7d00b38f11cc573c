"""Phases: the parts of a try's life, from being queued by Airflow to its end. Pure."""

from __future__ import annotations

from dataclasses import dataclass

TITLES = {
    "airflow": "waits for a place",
    "sent": "waits at its site",
    "queue": "waits in the queue of the site",
    "boot": "waits for its machine",
    "runs": "runs",
}


@dataclass(frozen=True, slots=True)
class Times:
    """The times of a try's events, epoch seconds; None: it has not happened.

    :param submitted: when its own batch job was first reported
    :param boot: when its instance was ordered, and when that came up (None while it is not up); None: it has no
        instance
    """

    queued: float
    placed: float | None = None
    submitted: float | None = None
    boot: tuple[float, float | None] | None = None
    started: float | None = None
    ended: float | None = None


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a try's life.

    :param key: a key of :data:`TITLES`
    :param until: None: it is the current phase
    """

    key: str
    since: float
    until: float | None


def phases(times: Times) -> list[Phase]:
    """The phases of a try, without gaps: each ends when the next starts."""
    placed = times.placed
    marks: list[tuple[str, float | None]] = [("airflow", times.queued)]
    ordered, ready = times.boot or (times.queued, None)
    if placed is not None:
        if ready is not None and times.queued < ready <= placed:
            marks.append(("boot", max(times.queued, ordered)))
        marks.append(("sent", placed))
        if times.submitted is not None:
            marks.append(("queue", times.submitted))
        elif ready is not None and ready > placed:
            marks[-1] = ("boot", placed)
            marks.append(("sent", ready))
    marks.append(("runs", times.started))
    known = [(key, at) for key, at in marks if at is not None]
    # Clocks of nodes differ; a phase must not end before it starts.
    ends = [*(at for _, at in known[1:]), times.ended]
    return [Phase(key, at, None if end is None else max(end, at)) for (key, at), end in zip(known, ends, strict=True)]
