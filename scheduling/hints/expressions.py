"""Expressions: hints that depend on the job, such as ``"2 * input_size + 1 GiB"``.

They look like Python, but only numbers, names, comparisons, conditions and a few functions are supported, and
simpleeval evaluates them without ever running code. Numbers can have units, as in hints. Bytes and seconds are
distinguished from plain numbers, so that a forgotten unit is an error rather than a wrong amount.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from lading.scheduling.text.units import memory_unit, time_unit

Kind = Literal["memory", "time", "count"]

MOST_BITS = 1024  # of intermediate results: far beyond any resource, and still fast to compute
NAMES = ("input_size", "input_length", "inputs", "attempt", "map_index", "runtime")
# The names whose value depends on all inputs.
MEASURES = ("input_size", "input_length")
PARTS = ("size", "value")

_ALLOWED = (
    ast.Expression, ast.Expr, ast.Constant, ast.Name, ast.Load, ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.Compare,
    ast.IfExp, ast.Call, ast.Subscript, ast.Attribute, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod,
    ast.Pow, ast.USub, ast.UAdd, ast.Not, ast.And, ast.Or, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In,
    ast.NotIn,
)  # fmt: skip
_CONSTANTS = (int, float, str, bool, type(None))
# A number with a unit, or several as in 1h30m, but neither in quotes nor the function min.
_TOKEN = re.compile(
    r"""(?P<text>'[^'\\]*'|"[^"\\]*")|(?<![\w.])(?P<amount>(?:\d+(?:\.\d*)?|\.\d+)\s*[A-Za-z]+(?:\d+(?:\.\d*)?[A-Za-z]+)*)(?![\w(])"""
)
_PART = re.compile(r"([\d.]+)\s*([A-Za-z]+)")

BYTES = "bytes"
SECONDS = "seconds"
PLAIN = "a plain number"


class ExpressionError(ValueError):
    """An expression that is invalid or cannot be evaluated for a job. The message says what is valid."""


class ExpressionFacts(Protocol):
    """What an expression can ask about its job; every answer can raise :class:`ExpressionError`."""

    @property
    def attempt(self) -> int:
        """The number of this try, 1 for the first."""

    @property
    def map_index(self) -> int:
        """The map index of the job, -1 if the task is not mapped."""

    @property
    def runtime(self) -> float:
        """Seconds that the previous try ran, 0 on the first."""

    @property
    def input_size(self) -> int:
        """Bytes of all files among the inputs."""

    @property
    def input_length(self) -> int:
        """The total number of elements of all lists among the inputs."""

    def value(self, name: str) -> object:
        """The value of an input."""

    def size(self, name: str) -> int:
        """The total bytes of the files in an input."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A checked expression.

    :param text: as it was written
    :param kind: what its result is: an amount of memory, a time, or a count
    """

    text: str
    kind: Kind
    _tree: ast.Expression

    @classmethod
    def parse(cls, text: str, kind: Kind) -> Expression:
        """Check an expression as far as that is possible without a job.

        :raises ExpressionError: it is too long, has a syntax error, or uses something unsupported
        """
        if len(text) > 500:
            raise ExpressionError(f"the expression {text[:40]!r}... has {len(text)} characters; at most 500 are valid")
        try:
            tree = ast.parse(_with_amounts(text.strip(), kind), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            reason = getattr(error, "msg", None) or str(error)
            raise ExpressionError(f"{text!r} cannot be read: {reason}; {_VALID}") from error
        for node in ast.walk(tree):
            _check(node, text)
        return cls(text, kind, tree)

    def uses(self, name: str) -> bool:
        """Whether it uses one of :data:`NAMES`."""
        return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(self._tree))

    @property
    def inputs(self) -> frozenset[str]:
        return frozenset(_inputs(self._tree))

    @property
    def is_lone_word(self) -> bool:
        """Whether it is only the name of an input, which is more likely a typo than an expression."""
        return isinstance(self._tree.body, ast.Name) and self._tree.body.id not in NAMES

    def evaluate(self, facts: ExpressionFacts) -> float:
        """Return MiB, seconds or a count, depending on its kind; not yet checked against the limits of the hint.

        :raises ExpressionError: it cannot be evaluated for this job
        """
        from simpleeval import InvalidExpression, SimpleEval

        evaluator = SimpleEval(operators=_operators(), functions=_FUNCTIONS, names=_Names(facts))
        evaluator.ATTR_INDEX_FALLBACK = False
        evaluator.nodes = {node: handler for node, handler in evaluator.nodes.items() if issubclass(node, _ALLOWED)}
        try:
            return self._result(evaluator.eval(self.text, previously_parsed=self._tree.body))
        except (ExpressionError, AmountError) as error:
            raise ExpressionError(f"{self.text!r}: {error}") from error
        except InvalidExpression as error:
            raise ExpressionError(f"{self.text!r}: {error}; {_VALID}") from error
        except (ArithmeticError, TypeError, ValueError, LookupError, RecursionError) as error:
            raise ExpressionError(f"{self.text!r}: {type(error).__name__}: {error}") from error

    def _result(self, value: object) -> float:
        if isinstance(value, Amount):
            wanted = {"memory": BYTES, "time": SECONDS}.get(self.kind)
            if value.unit != wanted:
                raise ExpressionError(f"the result is {value.unit}, expected {wanted or unit_of(0)}")
            value = value.number / 2**20 if wanted == BYTES else value.number
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ExpressionError(f"the result is {unit_of(value)}, which is not a number")
        if not math.isfinite(value):
            raise ExpressionError(f"the result is {value}, which is not a valid amount")
        return value


class _Names(Mapping[str, Any]):
    """The values of the names in an expression, looked up when they are used."""

    def __init__(self, facts: ExpressionFacts) -> None:
        self.facts = facts

    def __getitem__(self, name: str) -> Any:
        match name:
            case "inputs":
                return _Inputs(self.facts)
            case "input_size":
                return Amount(self.facts.input_size, BYTES)
            case "runtime":
                return Amount(self.facts.runtime, SECONDS)
            case "input_length" | "attempt" | "map_index":
                return getattr(self.facts, name)
        return self.facts.value(name)

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)


@dataclass(frozen=True, slots=True)
class _Inputs:
    facts: ExpressionFacts

    def __getitem__(self, name: str) -> _Input:
        return _Input(self.facts, name)


@dataclass(frozen=True, slots=True)
class _Input:
    facts: ExpressionFacts
    name: str

    @property
    def value(self) -> object:
        return self.facts.value(self.name)

    @property
    def size(self) -> Amount:
        return Amount(self.facts.size(self.name), BYTES)


def _amount(number: float, unit: str) -> Amount:
    return Amount(number, unit)


def _power(base: Any, exponent: Any) -> Any:
    if isinstance(base, (int, float)) and isinstance(exponent, (int, float)):
        if abs(exponent) * math.log2(abs(base) + 2) > MOST_BITS:
            raise ExpressionError(f"{base} ** {exponent} is too large")
        return base**exponent
    raise ExpressionError(f"{unit_of(base)} cannot be raised to the power of {unit_of(exponent)}")


def _times(a: Any, b: Any) -> Any:
    if not all(isinstance(factor, (int, float, Amount)) for factor in (a, b)):
        raise ExpressionError(f"{unit_of(a)} cannot be multiplied by {unit_of(b)}")
    if all(isinstance(factor, int) for factor in (a, b)) and a.bit_length() + b.bit_length() > MOST_BITS:
        raise ExpressionError("the product is too large")
    return a * b


def _modulo(a: Any, b: Any) -> Any:
    if isinstance(a, str):  # Python would format the text
        raise ExpressionError("text cannot be divided")
    return a % b


def _ceil(value: Any) -> Any:
    return Amount(math.ceil(value.number), value.unit) if isinstance(value, Amount) else math.ceil(value)


def _floor(value: Any) -> Any:
    return Amount(math.floor(value.number), value.unit) if isinstance(value, Amount) else math.floor(value)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": min, "max": max, "sum": sum, "len": len, "ceil": _ceil, "floor": _floor, "_amount": _amount,
}  # fmt: skip
FUNCTIONS = tuple(name for name in _FUNCTIONS if not name.startswith("_"))
_VALID = (
    f"valid: numbers, units such as GiB or min, + - * / // % **, comparisons, `a if b else c`, the functions "
    f'{", ".join(FUNCTIONS)}, and the names input_size, input_length, attempt, map_index, runtime, inputs["x"].size, '
    'inputs["x"].value, and the inputs themselves'
)


def _operators() -> dict[type[ast.AST], Callable[..., Any]]:
    from simpleeval import DEFAULT_OPERATORS

    return {**DEFAULT_OPERATORS, ast.Pow: _power, ast.Mult: _times, ast.Mod: _modulo}


def _with_amounts(text: str, kind: Kind) -> str:
    """Replace amounts with units by calls that Python can parse: ``1 KiB`` becomes ``_amount(1024,'bytes')``."""
    if "_amount" in text:
        raise ValueError("_amount is no name")

    def amount(match: re.Match[str]) -> str:
        if match["text"]:
            return match[0]
        total, unit = 0.0, None
        for number, name in _PART.findall(match["amount"]):
            size = _unit(name, kind)
            if size is None or unit not in (None, size.unit):
                return match[0]  # Python's parser reports the error
            total, unit = total + float(number) * size.number, size.unit
        return f"_amount({int(total) if total.is_integer() else total!r},{unit!r})"

    return _TOKEN.sub(amount, text)


def _unit(name: str, kind: Kind) -> Amount | None:
    """The amount that a unit stands for; "m" means minutes in a time and MiB elsewhere, as in plain hints."""
    size, seconds = memory_unit(name), time_unit(name)
    if seconds is not None and (size is None or kind == "time"):
        return Amount(seconds, SECONDS)
    return None if size is None else Amount(size, BYTES)


def _check(node: ast.AST, text: str) -> None:
    """Reject unsupported syntax.

    :raises ExpressionError: the node is not supported
    """
    if not isinstance(node, _ALLOWED):
        raise ExpressionError(f"{text!r}: {type(node).__name__} is not supported; {_VALID}")
    if isinstance(node, ast.Constant) and not isinstance(node.value, _CONSTANTS):
        raise ExpressionError(f"{text!r}: {node.value!r} is not supported; {_VALID}")
    if isinstance(node, ast.Call) and (
        node.keywords or not isinstance(node.func, ast.Name) or node.func.id not in _FUNCTIONS
    ):
        raise ExpressionError(f"{text!r}: there is no function {ast.unparse(node.func)}; valid: {', '.join(FUNCTIONS)}")
    if isinstance(node, ast.Attribute) and not (_input_of(node.value) and node.attr in PARTS):
        raise ExpressionError(
            f'{text!r}: {ast.unparse(node)} is not supported; valid after a dot: inputs["x"].size, inputs["x"].value'
        )
    if isinstance(node, ast.Name) and node.id.startswith("_") and node.id not in _FUNCTIONS:
        raise ExpressionError(f"{text!r}: there is no name {node.id}; {_VALID}")


def _input_of(node: ast.AST) -> str | None:
    """The name of the input, if the node is ``inputs["name"]``."""
    if not (isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "inputs"):
        return None
    key = node.slice.value if isinstance(node.slice, ast.Constant) else None
    return key if isinstance(key, str) else None


def _inputs(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if name := _input_of(node):
            yield name
        elif isinstance(node, ast.Name) and node.id not in NAMES and node.id not in _FUNCTIONS:
            yield node.id


class AmountError(ValueError):
    """An operation on two amounts that do not go together."""


@dataclass(frozen=True, slots=True)
class Amount:
    """A number of bytes or seconds. It can be multiplied by a plain number, and added to amounts of its own unit.

    :param number: how many
    :param unit: :data:`BYTES` or :data:`SECONDS`
    """

    number: float
    unit: str

    def __add__(self, other: object) -> Amount:
        return Amount(self.number + self._same(other, "added to"), self.unit)

    def __radd__(self, other: object) -> Amount:
        # `sum` starts with 0, which has no unit.
        return self if other == 0 and not isinstance(other, Amount) else self + other

    def __sub__(self, other: object) -> Amount:
        return Amount(self.number - self._same(other, "subtracted from"), self.unit)

    def __rsub__(self, other: object) -> Amount:
        raise AmountError(f"{self.unit} cannot be subtracted from {unit_of(other)}; write a unit, such as GiB or min")

    def __mul__(self, other: object) -> Amount:
        return Amount(self.number * self._plain(other, "multiplied by"), self.unit)

    __rmul__ = __mul__

    def __truediv__(self, other: object) -> Any:
        if isinstance(other, Amount):
            return self.number / self._same(other, "divided by")
        return Amount(self.number / self._plain(other, "divided by"), self.unit)

    def __floordiv__(self, other: object) -> Any:
        if isinstance(other, Amount):
            return self.number // self._same(other, "divided by")
        return Amount(self.number // self._plain(other, "divided by"), self.unit)

    def __mod__(self, other: object) -> Amount:
        return Amount(self.number % self._same(other, "divided by"), self.unit)

    def __neg__(self) -> Amount:
        return Amount(-self.number, self.unit)

    def __pos__(self) -> Amount:
        return self

    def __lt__(self, other: object) -> bool:
        return self._compared(operator.lt, other)

    def __le__(self, other: object) -> bool:
        return self._compared(operator.le, other)

    def __gt__(self, other: object) -> bool:
        return self._compared(operator.gt, other)

    def __ge__(self, other: object) -> bool:
        return self._compared(operator.ge, other)

    def _compared(self, compare: Callable[[float, float], bool], other: object) -> bool:
        return compare(self.number, 0.0 if _is_nothing(other) else self._same(other, "compared with"))

    def _same(self, other: object, verb: str) -> float:
        if isinstance(other, Amount) and other.unit == self.unit:
            return other.number
        raise AmountError(f"{self.unit} cannot be {verb} {unit_of(other)}; write a unit, such as GiB or min")

    def _plain(self, other: object, verb: str) -> float:
        if isinstance(other, (int, float)):
            return other
        raise AmountError(f"{self.unit} cannot be {verb} {unit_of(other)}")


def unit_of(value: object) -> str:
    if isinstance(value, Amount):
        return value.unit
    return PLAIN if isinstance(value, (int, float)) else f"{value!r}"[:80]


def _is_nothing(value: object) -> bool:
    return isinstance(value, (int, float)) and value == 0
