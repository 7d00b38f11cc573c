"""Text that others wrote, as a terminal or a log gets it: it moves no cursor, hides nothing and begins no line."""

from __future__ import annotations

LONGEST = 100


def printable(text: object) -> str:
    """The text in one line, with all that is not a visible character or a blank as Python writes it, such as ``\\x1b``.

    That is control characters (C0, C1, so every terminal sequence), line ends, marks that change the direction of
    writing or have no width, lone surrogates, and characters that Unicode has not assigned.
    """
    return "".join(each if each.isprintable() else _escape(each) for each in str(text))


def printable_lines(text: str) -> str:
    """The same for text of several lines, which stay lines, tabs included."""
    return "".join(each if each.isprintable() or each in "\n\t" else _escape(each) for each in text)


def shortened(value: object, longest: int = LONGEST) -> str:
    """A value as messages quote it: its ``repr``, of which no more than the beginning is shown."""
    text = repr(value[: longest + 1] if isinstance(value, str) else value)
    return text if len(text) <= longest else f"{text[:longest]}..."


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
