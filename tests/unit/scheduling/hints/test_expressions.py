"""Expressions of hints."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.scheduling.hints.expressions import Expression, ExpressionError, Kind

GIB = 2**30


@dataclass
class Job:
    attempt: int = 2
    map_index: int = 3
    runtime: float = 100.0
    input_size: int = GIB
    values: dict[str, Any] = field(default_factory=lambda: {"samples": [1] * 12, "n": 5, "name": "A1"})

    def value(self, name: str) -> object:
        return self.values[name]

    def size(self, name: str) -> int:
        if name == "gone":
            raise ExpressionError("there is no file /gone")
        return 3 * GIB


def evaluate(text: str, kind: Kind) -> float:
    return Expression.parse(text, kind).evaluate(Job())


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("memory", "2 * input_size + 1 GiB", 3072),
        ("memory", "512 * 2", 1024),  # as a hint without a unit: MiB
        ("memory", "512M * 2", 1024),
        ("memory", 'inputs["n"].size + 0.5GiB', 3584),
        ("memory", "max(1 GiB, 0)", 1024),
        ("memory", "input_size if n > 3 else 1 TiB", 1024),
        ("memory", 'inputs["n"].value * 1 GiB', 5120),
        ("memory", "(attempt + map_index) * 2 ** 10", 5120),
        ("memory", 'len("3 GiB") * 1 MiB', 5),  # no unit within quotes
        ("memory", "2 GiB if name == 'A1' else 1 GiB", 2048),
        ("count", "min(8, len(samples))", 8),
        ("count", "ceil(input_size / 300 MiB)", 4),
        ("count", "input_size // 300 MiB", 3),
        ("count", "sum(samples) / 2", 6),
        ("count", "4 if runtime > 1 min else 2", 4),
        ("time", "30 min * attempt", 3600),
        ("time", "1h30m + runtime", 5500),
        ("time", "2 * runtime", 200),
        ("time", "30m * attempt", 3600),
        ("time", "60 * attempt", 120),
    ],
)
def test_results(kind: Kind, text: str, expected: float) -> None:
    assert evaluate(text, kind) == expected


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("memory", "8 Gob", "cannot be read"),
        ("memory", "2 *", "cannot be read"),
        ("memory", "x = 3", "cannot be read"),
        ("memory", "", "cannot be read"),
        ("memory", "1 GiB 2 s", "cannot be read"),
        ("memory", "lambda: 3", "Lambda is not supported"),
        ("memory", "[1, 2]", "List is not supported"),
        ("memory", "sum(x for x in samples)", "GeneratorExp is not supported"),
        ("memory", 'f"{n}"', "is not supported"),
        ("memory", "b'x'", "is not supported"),
        ("memory", "1j", "is not supported"),
        ("memory", "1 << 99999", "LShift is not supported"),
        ("memory", "().__class__", "not supported"),
        ("memory", "name.upper()", "there is no function name.upper"),
        ("memory", "name.size", "not supported"),
        ("memory", 'inputs["n"].__class__', "not supported"),
        ("memory", "open('x')", "there is no function open; valid: min, max, sum, len, ceil, floor"),
        ("memory", "max(1, key=len)", "there is no function max"),
        ("memory", "__import__", "there is no name __import__"),
        ("memory", "_amount(1, 'x')", "cannot be read"),
        ("memory", "1 + " * 200 + "1", "has 801 characters; at most 500"),
        ("memory", "(" * 400 + ")" * 100, "cannot be read"),
    ],
)
def test_what_is_refused_without_a_job(kind: Kind, text: str, words: str) -> None:
    with pytest.raises(ExpressionError, match=re.escape(words)):
        Expression.parse(text, kind)


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("memory", "input_size + 100", "bytes cannot be added to a plain number; write a unit"),
        ("memory", "100 + input_size", "bytes cannot be added to a plain number"),
        ("memory", "100 - input_size", "bytes cannot be subtracted from a plain number"),
        ("memory", "input_size + 1 h", "bytes cannot be added to seconds"),
        ("memory", "input_size > 3", "bytes cannot be compared with a plain number"),
        ("memory", "input_size * input_size", "bytes cannot be multiplied by bytes"),
        ("memory", "input_size ** 2", "bytes cannot be raised"),
        ("memory", "30 min", "the result is seconds, expected bytes"),
        ("count", "input_size", "the result is bytes, expected a plain number"),
        ("time", "1 GiB * 2", "the result is bytes, expected seconds"),
        ("memory", "9 ** 9 ** 9", "9 ** 387420489 is too large"),
        ("memory", "2 ** -99999", "too large"),
        ("memory", "'a' * 10", "cannot be multiplied"),
        ("memory", "10 ** 9 * samples", "cannot be multiplied"),
        ("memory", "'%9999999999d' % 1", "text cannot be divided"),
        ("memory", "nope * 2", "nope"),
        ("memory", 'inputs["gone"].size * 2', "there is no file /gone"),
        ("memory", "1 / 0", "division by zero"),
        ("memory", "1e308 * 10", "the result is inf"),
        ("memory", "samples[99] * 2", "index"),
        ("memory", "name", "which is not a number"),
        ("memory", "n > 3", "which is not a number"),
        ("memory", "None", "which is not a number"),
        ("memory", "inputs", "which is not a number"),
        ("memory", "*".join(["9 ** 300"] * 40), "too large"),
    ],
)
def test_what_fails_for_a_job(kind: Kind, text: str, words: str) -> None:
    expression = Expression.parse(text, kind)
    started = time.process_time()
    with pytest.raises(ExpressionError, match=re.escape(words)):
        expression.evaluate(Job())
    assert time.process_time() - started < 1


def test_names_tell_what_is_used() -> None:
    expression = Expression.parse('min(8, len(samples)) + inputs["n"].size / input_size * attempt', "count")
    assert expression.inputs == {"samples", "n"}
    assert expression.uses("input_size")
    assert expression.uses("attempt")
    assert not expression.uses("runtime")
    assert Expression.parse("many", "count").is_lone_word
    assert not Expression.parse("input_size", "memory").is_lone_word


@given(st.text(max_size=60), st.sampled_from(["memory", "time", "count"]))
def test_any_text_is_refused_or_evaluated(text: str, kind: Kind) -> None:
    try:
        result = Expression.parse(text, kind).evaluate(Job())
    except ExpressionError:
        pass
    else:
        assert isinstance(result, (int, float))
