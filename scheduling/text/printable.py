"""Text that others wrote, as a terminal, a log or a database gets it.

On a terminal and in a log it moves no cursor, hides nothing and begins no line.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Callable
from typing import Any

# MySQL's TEXT holds 65,535 bytes; more characters than these of a message would not be read.
LONGEST_TEXT = 4000
_LONGEST = 500
_LINE_END = re.compile(r"[ \t]*[\r\n]+[ \t]*")
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 100


def printable(text: object) -> str:
    """The text in one line, with all that is not a visible character or a blank as Python writes it, such as ``\\x1b``.

    That is control characters (C0, C1, so every terminal sequence), line ends, marks that change the direction of
    writing or have no width, lone surrogates, and characters that Unicode has not assigned.
    """
    return "".join(each if each.isprintable() else _escape(each) for each in str(text))


def one_line(text: object) -> str:
    """The same, with a blank for line ends and the blanks around them, as people read text of several lines."""
    return printable(_LINE_END.sub(" ", str(text).strip()))


def printable_lines(text: str) -> str:
    """The same for text of several lines, which stay lines, tabs included."""
    return "".join(each if each.isprintable() or each in "\n\t" else _escape(each) for each in text)


def storable(text: str) -> str:
    """The text as every database takes it: no NUL, no lone surrogate, at most :data:`LONGEST_TEXT` characters."""
    return text.replace("\0", "\ufffd").encode(errors="replace").decode()[:LONGEST_TEXT]


def shortened(value: object) -> str:
    """A value as messages quote it: its ``repr``, at most about a hundred characters of it."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # Python does not write whole numbers of thousands of digits
        return "a very large number"


def json_beginning(value: object, most: int, default: Callable[[Any], object] | None = None) -> str:
    """The first characters of a value as JSON; what comes behind them, which may be megabytes, is not written at all.

    :param most: how many characters
    :param default: what is written for what is no JSON
    :raises TypeError: it is none, and there is no default
    """
    parts: list[str] = []
    length = 0
    for part in json.JSONEncoder(default=default).iterencode(value):
        parts.append(part)
        if (length := length + len(part)) >= most:
            break
    return "".join(parts)[:most]


def cut(text: str) -> str:
    """Text in which others' text stands, such as another reader's message, of a length that one can read."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
