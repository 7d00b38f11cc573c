"""What a check has found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found.

    :param what: what was checked
    :param good: whether all is well
    :param words: the details, or what is wrong and what to do
    :param warns: whether all is well but could be better
    """

    what: str
    good: bool
    words: str
    warns: bool = False
