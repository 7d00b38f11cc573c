"""What a look at a site has found, and what was removed there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """What a check of a site, or of all that it needs, found.

    :param what: what was checked
    :param good: whether all is well
    :param words: the details, or what is wrong and what to do
    :param warns: whether all is well but could be better, or could not be looked at
    """

    what: str
    good: bool
    words: str
    warns: bool = False


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What was removed at a site of one sort of things that were left behind.

    :param kind: the sort, in words: ``runs``, ``logs``
    :param number: how many were removed, or would be
    :param mib: MiB that they took
    :param trouble: what could not be removed, and why, in words; None: nothing
    """

    kind: str
    number: int
    mib: float
    trouble: str | None = None
