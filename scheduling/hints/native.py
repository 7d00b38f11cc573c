"""Hints for one batch system: a queue, and native directives. Pure."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Mapping

from lading.scheduling.text.printable import shortened
from lading.scheduling.text.units import UnitError

# The longest values that fit into their columns and lines, characters.
LONGEST_QUEUE = 250

_KEY = re.compile(r"-{0,2}([A-Za-z][A-Za-z0-9_.-]{0,63})", re.ASCII)
# Directives that a task cannot set, and what sets them instead.
_TAKEN = {
    "jobname": "Lading gives its batch jobs their names",
    "queue": "write the hint queue",
    "time": "write the hint time",
    "nodes": "write the hint nodes",
    "ppn": "write the hint ppn",
    "threads": "write the hint threads",
    "mem": "write the hint memory",
    "stdout": "Lading reads the output of its batch jobs",
    "stderr": "Lading reads the output of its batch jobs",
}


def parse_queue(value: object) -> str:
    """The name of a queue (SLURM: partition); several, with commas between them, where the batch system accepts that.

    :raises UnitError: it is not a name
    """
    if not isinstance(value, str) or not value.strip() or len(value) > LONGEST_QUEUE or not is_one_line(value):
        raise UnitError(f"{shortened(value)} is not a queue; valid: a name such as 'long', in one line")
    return value.strip()


def parse_native(value: object) -> dict[str, str | bool]:
    """Native directives by key, without leading dashes. True is a flag without a value; False removes a default of the
    site.

    :raises UnitError: it is not such a mapping, or a key or a value cannot be part of a directive
    """
    if not isinstance(value, Mapping):
        raise UnitError(
            f'{shortened(value)} is not a mapping; valid: directives by key, such as {{"account": "astro"}}'
        )
    if len(value) > 50:
        raise UnitError(f"there are {len(value)} directives; valid: at most 50")
    directives: dict[str, str | bool] = {}
    for written, text in value.items():
        match = _KEY.fullmatch(written) if isinstance(written, str) else None
        if match is None:
            raise UnitError(
                f"{shortened(written)} is not a directive; valid: a letter, then letters, digits, '-', '_' and '.'"
            )
        if match[1] in _TAKEN:
            raise UnitError(f"{match[1]} cannot be a directive of a task: {_TAKEN[match[1]]}")
        if match[1] in directives:
            raise UnitError(f"{match[1]} is given twice; give it once")
        directives[match[1]] = _value(match[1], text)
    # Characters of all directives together as JSON: MySQL's TEXT holds 65,535 bytes.
    if len(json.dumps(directives)) > 20_000:
        raise UnitError("the directives are too long; valid: at most 20000 characters in total")
    return directives


def _value(key: str, value: object) -> str | bool:
    if isinstance(value, bool):
        return value
    number = (isinstance(value, int) and abs(value) < 2**63) or (isinstance(value, float) and math.isfinite(value))
    if not number and not isinstance(value, str):
        raise UnitError(f"{key} is {shortened(value)}; valid: text, a number, True (a bare flag) or False")
    text = str(value)
    if not text.strip() or len(text) > 1000 or not is_one_line(text):
        raise UnitError(f"{key} is {shortened(text)}; valid: one line of text of at most 1000 characters")
    return text


def is_one_line(text: str) -> bool:
    """Whether the text has neither line breaks nor control characters."""
    return not any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in text)
