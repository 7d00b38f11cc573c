"""Makes foreign text safe for a terminal, a log or a database.

On a terminal and in a log such text must not move the cursor, hide anything or start a line.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Callable, Sequence
from typing import Any

# MySQL's TEXT holds 65,535 bytes, and nobody reads more characters of a message than this.
LONGEST_TEXT = 4000
_LINE_END = re.compile(r"[ \t]*[\r\n]+[ \t]*")
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 100


def printable(text: object) -> str:
    """The text on one line, with everything that is neither a visible character nor a space escaped as in Python, such
    as ``\x1b``.

    These are control characters (C0 and C1, hence every terminal sequence), line breaks, marks that change the writing
    direction or have no width, lone surrogates, and characters that Unicode has not assigned.
    """
    return "".join(each if each.isprintable() else _escape(each) for each in str(text))


def one_line(text: object) -> str:
    """The same, with line breaks and the spaces around them replaced by one space."""
    return printable(_LINE_END.sub(" ", str(text).strip()))


def printable_lines(text: str) -> str:
    """The same for text of several lines, keeping line breaks and tabs."""
    return "".join(each if each.isprintable() or each in "\n\t" else _escape(each) for each in text)


def storable(text: str) -> str:
    """The text as every database accepts it: no NUL, no lone surrogate, at most :data:`LONGEST_TEXT` characters."""
    return text.replace("\0", "\ufffd").encode(errors="replace").decode()[:LONGEST_TEXT]


def shortened(value: object) -> str:
    """A value as messages quote it: its ``repr``, cut to about a hundred characters."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # Python refuses to convert integers with thousands of digits
        return "a very large number"


def json_beginning(value: object, most: int, default: Callable[[Any], object] | None = None) -> str:
    """The first characters of a value as JSON, without serializing the rest, which can be megabytes.

    :param most: how many characters
    :param default: converts what JSON does not support
    :raises TypeError: the value is not supported, and there is no default
    """
    parts: list[str] = []
    length = 0
    for part in json.JSONEncoder(default=default).iterencode(value):
        parts.append(part)
        if (length := length + len(part)) >= most:
            break
    return "".join(parts)[:most]


def first_few(texts: Sequence[str], most: int, separator: str = ", ") -> str:
    """The first texts, and how many more there are: ``a, b and 3 more``."""
    more = f"{'' if separator == ', ' else separator.strip()} and {len(texts) - most} more" if len(texts) > most else ""
    return separator.join(texts[:most]) + more


def cut(text: str) -> str:
    """A message that quotes foreign text, cut to a readable length."""
    return text if len(text) <= 500 else f"{text[:500]}..."


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
