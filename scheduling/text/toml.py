"""Reads TOML that people write: the catalogue, the sites file, profiles. Any text yields its tables or a one-line
error."""

from __future__ import annotations

import re
import sys
from typing import Any

from lading.scheduling.text.nesting import too_deep
from lading.scheduling.text.printable import shortened

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEEPEST = 20
VALID_DEPTH = f"at most {DEEPEST} tables or lists in each other"
# Strings and comments (up to the end of their line if they are unterminated), and the characters that separate parts of
# keys or end keys.
_DOTTING = re.compile(
    r'''"""(?:[^"\\]+|\\[\s\S]|"(?!""))*(?:"{3,5}|\\?\Z)'''
    r"""|'''[\s\S]*?(?:'{3,5}|\Z)"""
    r"""|"(?:[^"\\\n]+|\\[^\n])*"?"""
    r"""|'[^'\n]*'?|#[^\n]*|[.=,\[\]{}\n]"""
)
_ENDS_OF_KEYS = frozenset("=,[]{}\n")
OPEN_STRING = r"Illegal character '\n'"
_PLACE = re.compile(r"at line (\d+)")


class TomlError(ValueError):
    """Text that is not TOML, or that Lading cannot use; the message is one line.

    :param line: the line, counted from 1; 1 if unknown
    """

    def __init__(self, message: str, line: int = 1) -> None:
        super().__init__(message)
        self.line = line


def parse(text: str) -> dict[str, Any]:
    """The tables of a TOML document (https://toml.io/en/v1.0.0).

    :raises TomlError: it is invalid, has more than 4 Mi characters, is nested more than 20 levels deep, has an integer
        of more than 64 bits, which TOML does not guarantee, or has a NUL character, which no text of Lading's can have
    """
    # Far more than a manually written file has, and still read within seconds.
    if len(text) > 2**22:
        raise TomlError(f"it has {len(text):,} characters; valid: at most 4,194,304")
    _count_dots(text)
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise TomlError(too_deep("it", VALID_DEPTH)) from None
    except ValueError as error:  # an integer with too many digits raises a plain ValueError
        place = _PLACE.search(str(error))
        message = " ".join(str(error).split())
        # The parser says no more if a string on one line is not closed.
        message += "; a quote is probably missing at the end of this line" if OPEN_STRING in message else ""
        raise TomlError(message, int(place[1]) if place else 1) from None
    _check(document)
    return document


def _count_dots(text: str) -> None:
    """Reject a key with too many parts. Dots in strings, comments and numbers do not count.

    :raises TomlError: there is one
    """
    dots = 0
    for match in _DOTTING.finditer(text):
        found = match[0]
        if found in _ENDS_OF_KEYS:
            dots = 0
        dots += found == "."
        # The parser takes quadratic time in them.
        if dots > 200:
            number = text.count("\n", 0, match.start()) + 1
            raise TomlError(f"line {number} has more than 200 dots in one key; split it into tables", number)


def _check(document: dict[str, Any]) -> None:
    """Reject what code that reads the tables could not handle.

    :raises TomlError: there is something
    """
    waiting: list[tuple[tuple[str, ...], Any]] = [((), document)]
    while waiting:
        place, value = waiting.pop()
        where = ".".join(place)
        if len(place) > DEEPEST:
            raise TomlError(too_deep(where[:80], VALID_DEPTH))
        if isinstance(value, dict):
            waiting += [((*place, key), each) for key, each in value.items()]
            value = "".join(value)
        elif isinstance(value, list):
            waiting += [((*place, str(i)), each) for i, each in enumerate(value, 1)]
        if isinstance(value, str) and "\0" in value:
            raise TomlError(f"{where} = {shortened(value)} has a NUL character; leave it out")
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise TomlError(f"{where} is a number of more than 64 bits; valid: a smaller one")
