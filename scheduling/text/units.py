"""Amounts as people write them, and back.

Everything from outside (a hint, a configuration option, a sites file) is converted here, once: memory and disk to whole
MiB and time to whole seconds, both rounded up so that no job gets less than it requests; counts stay fractional. An
invalid value raises :class:`UnitError`, which names the value and shows valid ones.
"""

from __future__ import annotations

import datetime
import math
import numbers
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from lading.scheduling.text.printable import shortened

if TYPE_CHECKING:
    from collections.abc import Iterator


class UnitError(ValueError):
    """A value that is not a valid amount."""


@dataclass(frozen=True, slots=True)
class _Quantity:
    """A measured quantity, and how messages name it."""

    name: str
    valid: str
    largest: int
    too_large: str

    def number(self, value: object) -> Fraction:
        # bool is an int in Python, but memory=True is a mistake; NaN and the infinities are not amounts.
        if isinstance(value, numbers.Rational) and not isinstance(value, bool):
            return Fraction(int(value.numerator), int(value.denominator))  # numpy's integers overflow
        if isinstance(value, float) and math.isfinite(value):
            return Fraction(value)
        raise self.error(value)

    def checked(self, amount: Fraction, value: object, *, zero: bool) -> Fraction:
        if amount < 0 or (amount == 0 and not zero):
            raise UnitError(f"{shortened(value)} must be {'0 or more' if zero else 'more than 0'}; valid: {self.valid}")
        if amount > self.largest:
            raise UnitError(f"{shortened(value)} must be less than {self.too_large}; valid: {self.valid}")
        return amount

    def error(self, value: object) -> UnitError:
        return UnitError(f"{shortened(value)} is not {self.name}; valid: {self.valid}")


_MOMENT = re.compile(r"\b(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) UTC\b", re.ASCII)
# The last second of the year 9999.
_LAST_MOMENT = 253_402_300_799.0

# 2**31 - 1 is the largest plain integer of every database. Anything larger is a mistake, most often bytes instead of
# MiB.
_MEMORY = _Quantity(
    "an amount of memory",
    'for example "8 GiB", "512 MiB", "1.5 TiB", "8 GB" (powers of 1000) or a number of MiB',
    2**31 - 1,
    "2 PiB (a plain number means MiB)",
)
_TIME = _Quantity(
    "a length of time",
    'for example "2h", "90 min", "1h30m", "1 day", "02:30:00", "1-12:00:00" or a number of seconds',
    2**31 - 1,
    "68 years (a plain number means seconds)",
)
_COUNT = _Quantity("a number", "for example 4 or 0.5", 999_999, "a million")

_MIB = 2**20
# "8G" means 8 GiB, as in batch schedulers; only a written B makes the prefix decimal.
_BYTES = {"": _MIB, "b": 1}
for _exponent, _prefix in enumerate("kmgtp", start=1):
    _BYTES |= {_prefix: 1024**_exponent, f"{_prefix}ib": 1024**_exponent, f"{_prefix}b": 1000**_exponent}

_SECONDS = {
    name: seconds
    for seconds, names in {
        1: "s sec secs second seconds",
        60: "m min mins minute minutes",
        3600: "h hr hrs hour hours",
        86400: "d day days",
        604800: "w week weeks",
    }.items()
    for name in names.split()
}

# The number of digits is limited because Python refuses to convert very long numbers, with an error of its own.
_UNSIGNED = r"(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})"
_PLAIN = re.compile(rf"-?{_UNSIGNED}")
_AMOUNT = re.compile(rf"(-?{_UNSIGNED})\s*([a-z]*)")
_SPAN = re.compile(rf"({_UNSIGNED})\s*([a-z]+)\s*")
_CLOCK = re.compile(r"(?:([0-9]{1,6})-)?([0-9]{1,6}):([0-5][0-9]):([0-5][0-9])")


def parse_memory(value: object, *, zero: bool = False) -> int:
    """Return ``value`` in MiB, rounded up.

    :param value: a number of MiB, or text such as ``"8 GiB"``
    :param zero: whether 0 is allowed
    :raises UnitError: it is not an amount of memory, is negative, or is 2 PiB or more
    """
    if isinstance(value, str):
        match = _AMOUNT.fullmatch(value.strip().lower())
        if match is None or match[2] not in _BYTES:
            raise _MEMORY.error(value)
        amount = Fraction(match[1]) * _BYTES[match[2]] / _MIB
    else:
        amount = _MEMORY.number(value)
    return math.ceil(_MEMORY.checked(amount, value, zero=zero))


def parse_time(value: object) -> int:
    """Return ``value`` in seconds, rounded up.

    :param value: a number of seconds, a ``timedelta``, or text such as ``"1h30m"`` or ``"HH:MM:SS"``
    :raises UnitError: it is not a length of time, is not positive, or is 68 years or more
    """
    if isinstance(value, datetime.timedelta):
        amount = Fraction(value // datetime.timedelta(microseconds=1), 1_000_000)
    elif isinstance(value, str):
        amount = _seconds(value)
    else:
        amount = _TIME.number(value)
    return math.ceil(_TIME.checked(amount, value, zero=False))


def parse_count(value: object, *, zero: bool = False) -> float:
    """Return ``value`` as a number of cpus or gpus, which can be a fraction.

    :param value: a number, or text that is one
    :param zero: whether 0 is allowed
    :raises UnitError: it is not a number, is negative, or is a million or more
    """
    if isinstance(value, str):
        if not _PLAIN.fullmatch(value.strip()):
            raise _COUNT.error(value)
        amount = Fraction(value.strip())
    else:
        amount = _COUNT.number(value)
    return float(_COUNT.checked(amount, value, zero=zero))


def memory_unit(name: str) -> int | None:
    """Return the bytes of a unit of memory; None: there is no such unit."""
    return _BYTES.get(name.lower()) if name else None


def time_unit(name: str) -> int | None:
    """Return the seconds of a unit of time; None: there is no such unit."""
    return _SECONDS.get(name.lower())


def format_memory(mib: int) -> str:
    """Format MiB for people, never rounded: ``"16 GiB"``, ``"1.5 GiB"``, ``"1437 MiB"``."""
    for unit, size in (("TiB", 1024**2), ("GiB", 1024)):
        if mib >= size and mib * 10 % size == 0:
            whole, tenth = divmod(mib * 10 // size, 10)
            return f"{whole}.{tenth} {unit}" if tenth else f"{whole} {unit}"
    return f"{mib} MiB"


def format_time(seconds: float) -> str:
    """Format seconds for people: ``"2 h"``, ``"1 h 30 min"``, ``"0.25 s"``.

    Whole seconds are never rounded, fractions only from 10 s on.
    """
    if abs(seconds) < 10:
        return f"{format_count(seconds)} s"
    return " ".join(_spans(round(seconds)))


def format_moment(at: float) -> str:
    """A time as reasons contain it, ``2026-11-23 12:00:00 UTC``; whatever shows a reason converts it to the reader's
    time zone.

    :param at: epoch seconds
    """
    moment = datetime.datetime.fromtimestamp(max(0.0, min(at, _LAST_MOMENT)), datetime.timezone.utc)
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def in_zone(text: str, zone: datetime.tzinfo) -> str:
    """Convert the times of :func:`format_moment` in a text to a time zone, each with its offset from UTC."""

    def moved(found: re.Match[str]) -> str:
        try:
            moment = datetime.datetime.fromisoformat(f"{found[1]}+00:00").astimezone(zone)
        except (ValueError, OverflowError):  # digits that are not a date
            return found[0]
        return moment.isoformat(sep=" ") if moment.utcoffset() else found[0]

    return _MOMENT.sub(moved, text)


def format_count(count: float) -> str:
    """Format a number for people: ``"4"``, ``"0.25"``, with three decimals unless that would show 0."""
    text = f"{count:.3f}".rstrip("0").rstrip(".")
    return text if float(text) or not count else f"{count:.1g}"


def format_usd(amount: float) -> str:
    """Format USD for people: ``"25.10"``, ``"1,250.00"``. Less than ten cents get more digits, so that they are never
    rounded to nothing: ``"0.0321"``, ``"0.00004"``."""
    least = abs(amount)
    if not 0 < least < 0.1:
        return f"{amount:,.2f}"
    whole, _, part = f"{amount:.{max(4, 1 - math.floor(math.log10(least)))}f}".partition(".")
    return f"{whole}.{part.rstrip('0').ljust(2, '0')}"


def _seconds(text: str) -> Fraction:
    """The seconds in ``text``: a plain number, a clock time ("D-HH:MM:SS"), or spans from large to small ("1h30m")."""
    stripped = text.strip().lower()
    if _PLAIN.fullmatch(stripped):
        return Fraction(stripped)
    if clock := _CLOCK.fullmatch(stripped):
        days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        if clock[1] and hours > 23:
            raise _TIME.error(text)
        return Fraction(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    total, smallest, position = Fraction(0), math.inf, 0
    while (span := _SPAN.match(stripped, position)) and _SECONDS.get(span[2], math.inf) < smallest:
        smallest, position = _SECONDS[span[2]], span.end()
        total += Fraction(span[1]) * _SECONDS[span[2]]
    if position == 0 or position < len(stripped):
        raise _TIME.error(text)
    return total


def _spans(seconds: int) -> Iterator[str]:
    for name, size in (("days", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        amount, seconds = divmod(seconds, size)
        if amount:
            yield f"{amount} {'day' if name == 'days' and amount == 1 else name}"
