"""Which of the valid names somebody meant who wrote another one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# Of a longer name only the beginning is compared, which takes time that grows with the product of both lengths.
LONGEST = 250


def nearest(name: str, valid: Iterable[str], most: int = 1, cutoff: float = 0.6) -> list[str]:
    """The valid names that are close to a name, the closest first.

    :param cutoff: how close they are at least: 1 means equal, 0 all of them
    """
    return difflib.get_close_matches(name[:LONGEST], list(valid), n=most, cutoff=cutoff)


def nearest_first(name: object, valid: Iterable[str]) -> str:
    """All valid names as text: first the one that was probably meant, then the others in their order."""
    names = list(valid)
    meant = nearest(name, names) if isinstance(name, str) else []
    return ", ".join([*meant, *(each for each in names if each not in meant)])
