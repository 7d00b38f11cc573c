"""Finds the valid names that a misspelt name most likely means."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(name: str, valid: Iterable[str], most: int = 1, cutoff: float = 0.6) -> list[str]:
    """The valid names most similar to a name, the most similar first.

    :param cutoff: the least similarity: 1 means equal, 0 includes all
    """
    import difflib  # imported late, because each batch job imports this module and compares no names

    # Only the beginning of a longer name is compared: the time grows with the product of both lengths.
    return difflib.get_close_matches(name[:250], list(valid), n=most, cutoff=cutoff)


def listed(what: str, name: str, valid: Iterable[str]) -> str:
    """The rest of an error: the name that was probably meant, then all valid names in their order.

    :param what: introduces the valid names: ``the keys are``
    """
    names = list(valid)
    meant = nearest(name, names)
    question = f"did you mean {meant[0]}? {what[0].upper()}{what[1:]}" if meant else what
    return f"; {question}: {', '.join(names)}"


def nearest_first(name: object, valid: Iterable[str]) -> str:
    """All valid names as text: first the one that was probably meant, then the others in their order."""
    names = list(valid)
    meant = nearest(name, names) if isinstance(name, str) else []
    return ", ".join([*meant, *(each for each in names if each not in meant)])
