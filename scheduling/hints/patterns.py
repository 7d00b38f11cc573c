"""Regular expressions of Dag authors on inputs: only such as take no long time for any text. Pure.

Python's engine holds up the whole process while it tries one, so those that may try exponentially many ways are refused
when they are read: repetitions of repetitions or of alternatives, which take a group, and references back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from lading.scheduling.hints.place_words import MOST_TARGETS, Target
from lading.scheduling.text.printable import shortened
from lading.scheduling.text.units import UnitError

LONGEST_PATTERN = 250
# So many characters of an input are looked at, and so many repetitions and alternatives are in a pattern: the time
# grows with the one to the power of the other.
LONGEST_INPUT = 250
MOST_CHOICES = 3
VALID = 'valid: inputs with regular expressions, by target: {"hpc/long": {"sample": "^big_"}}'
_ONE_CHARACTER = re.compile(r"\\.|\[\^?\]?(?:[^\]\\]|\\.)*\]", re.DOTALL)
_REFERENCE = re.compile(r"\\[1-9]")
_CHOICE = re.compile(r"[*+{|]|(?<!\()\?")
_SLOW = re.compile(r"\)[*+?{]|\(\?(?!:)")

# By target, the pattern of each input.
Matching = tuple[tuple[str, tuple[tuple[str, str], ...]], ...]


def parse_matching(value: object) -> Matching:
    """Which inputs a job must have to go to which target.

    :raises UnitError: it is something else, or a pattern may take too long
    """
    if not isinstance(value, Mapping) or not 0 < len(value) <= MOST_TARGETS:
        raise UnitError(f"{shortened(value)} is no such table; {VALID}")
    found = {}
    for target, inputs in value.items():
        if not isinstance(inputs, Mapping) or not inputs:
            raise UnitError(f"{shortened(target)} = {shortened(inputs)} has no inputs; {VALID}")
        found[str(Target.parse(target))] = tuple((_name(name), _pattern(each)) for name, each in inputs.items())
    return tuple(found.items())


def matching_targets(targets: tuple[str, ...], matching: Matching, inputs: Mapping[str, object]) -> tuple[str, ...]:
    """The targets that a job may go to: those of which every pattern is found in its input, and those without any.

    :param inputs: by name; in one that is not there nothing is found
    """
    patterns = dict(matching)

    def is_found(name: str, pattern: str) -> bool:
        return name in inputs and re.search(pattern, _text(inputs[name])) is not None

    return tuple(target for target in targets if all(is_found(*each) for each in patterns.get(target, ())))


def _text(value: object) -> str:
    return (value if isinstance(value, str) else json.dumps(value, default=str))[:LONGEST_INPUT]


def _name(name: object) -> str:
    if not isinstance(name, str) or not name or len(name) > LONGEST_PATTERN:
        raise UnitError(f"{shortened(name)} is not the name of an input; {VALID}")
    return name


def _pattern(text: object) -> str:
    if not isinstance(text, str) or not 0 < len(text) <= LONGEST_PATTERN:
        raise UnitError(f"{shortened(text)} is no regular expression of at most {LONGEST_PATTERN} characters")
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise UnitError(f"{shortened(text)} is no regular expression: {error}") from None
    # What is escaped, or in square brackets, is one character.
    bare = _ONE_CHARACTER.sub("x", text)
    if _REFERENCE.search(text) or _SLOW.search(bare) or len(_CHOICE.findall(bare)) > MOST_CHOICES:
        raise UnitError(
            f"{shortened(text)} may take too long; valid: at most {MOST_CHOICES} of *, +, ?, {{}} and |, none of them "
            "after a group in parentheses, no look ahead or behind, and no reference to a group"
        )
    return text
