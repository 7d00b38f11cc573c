"""Amounts: numbers that know whether they are bytes or seconds, so that an expression cannot mix them up."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

BYTES = "bytes"
SECONDS = "seconds"
PLAIN = "a plain number"


class AmountError(ValueError):
    """Two amounts that do not go together."""


@dataclass(frozen=True, slots=True)
class Amount:
    """A number of bytes or seconds. With a plain number it can be multiplied, with its own kind also added.

    :param number: how many
    :param unit: :data:`BYTES` or :data:`SECONDS`
    """

    number: float
    unit: str

    def __add__(self, other: object) -> Amount:
        return Amount(self.number + self._same(other, "added to"), self.unit)

    def __radd__(self, other: object) -> Amount:
        # `sum` starts with 0, which is nothing of anything.
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
    """What a value is a number of, in words."""
    if isinstance(value, Amount):
        return value.unit
    return PLAIN if isinstance(value, (int, float)) else f"{value!r}"[:80]


def _is_nothing(value: object) -> bool:
    return isinstance(value, (int, float)) and value == 0
