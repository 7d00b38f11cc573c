from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta, timezone
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lading.scheduling.model.resources import NOT_KNOWN, Resources, format_resources
from lading.scheduling.text.units import (
    UnitError,
    format_count,
    format_memory,
    format_moment,
    format_time,
    format_usd,
    in_zone,
    parse_count,
    parse_memory,
    parse_time,
)

LARGEST = 2**31 - 1
ANYTHING = st.one_of(
    st.text(),
    st.text("0123456789.-:eE+ dhmsGiBkMT"),
    st.floats(),
    st.integers(),
    st.booleans(),
    st.none(),
    st.timedeltas(),
    st.lists(st.integers()),
)


@pytest.mark.parametrize(
    ("value", "mib"),
    [
        (512, 512),
        (512.0, 512),
        (0.1, 1),
        ("1024", 1024),
        ("8 GiB", 8192),
        ("8GiB", 8192),
        (" 8 gib ", 8192),
        ("8G", 8192),
        ("8g", 8192),
        ("8 GB", 7630),  # 8e9 bytes are 7629.4 MiB
        ("512 MiB", 512),
        ("512M", 512),
        ("1.5 TiB", 1536 * 1024),
        (".5 GiB", 512),
        ("1.1 GiB", 1127),
        ("2 PiB", None),
        ("1 KiB", 1),
        ("1 B", 1),
        (f"{2**20 + 1} B", 2),
    ],
)
def test_memory_as_people_write_it(value: object, mib: int | None) -> None:
    if mib is None:
        with pytest.raises(UnitError, match="must be less than 2 PiB"):
            parse_memory(value)
    else:
        assert parse_memory(value) == mib


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (90, 90),
        (0.2, 1),
        ("90", 90),
        ("45s", 45),
        ("2h", 7200),
        ("2 H", 7200),
        ("90 min", 5400),
        ("5m", 300),
        ("1h30m", 5400),
        ("1 h 30 min", 5400),
        ("1.5 hours", 5400),
        ("1 day", 86400),
        ("2 weeks", 1209600),
        ("1 day 2 h", 93600),
        ("02:30:00", 9000),
        ("100:00:01", 360001),
        ("1-12:00:00", 129600),
        (timedelta(hours=2), 7200),
        (timedelta(seconds=1, microseconds=1), 2),
    ],
)
def test_time_as_people_write_it(value: object, seconds: int) -> None:
    assert parse_time(value) == seconds


@pytest.mark.parametrize(("value", "count"), [(4, 4.0), (0.25, 0.25), ("4", 4.0), (" 0.5 ", 0.5), (".5", 0.5)])
def test_count_as_people_write_it(value: object, count: float) -> None:
    assert parse_count(value) == count


@pytest.mark.parametrize(
    "value",
    [True, False, None, math.nan, math.inf, -math.inf, -1, 0, "", "  ", "-1", "0", "nan", "inf", "1e3", "1,5", [1], 1j],
)
def test_what_is_no_amount_of_anything(value: object) -> None:
    for parse in (parse_memory, parse_time, parse_count):
        with pytest.raises(UnitError) as error:
            parse(value)
        assert repr(value) in str(error.value)
        assert "valid: for example" in str(error.value)


@pytest.mark.parametrize("value", ["8 Gob", "GiB", "8 8 GiB", "2h", "8 GiB of RAM", "9" * 5000])
def test_what_is_no_memory(value: str) -> None:
    with pytest.raises(UnitError, match='"8 GiB"'):
        parse_memory(value)


@pytest.mark.parametrize(
    "value",
    ["h", "2 fortnights", "1h 1h", "30m 1h", "1:30", "01:60:00", "1-24:00:00", "1-2", "8 GiB", "2h later", "00:00:00"],
)
def test_what_is_no_time(value: str) -> None:
    with pytest.raises(UnitError, match='"1h30m"'):
        parse_time(value)


def test_bytes_by_mistake_are_found() -> None:
    with pytest.raises(UnitError, match=r"8589934592 must be less than 2 PiB \(a plain number means MiB\)"):
        parse_memory(8 * 2**30)


def test_zero_only_where_it_is_allowed() -> None:
    assert parse_memory("0", zero=True) == 0
    assert parse_count(0, zero=True) == 0.0
    with pytest.raises(UnitError, match="0 or more"):
        parse_memory("-1 GiB", zero=True)


@given(ANYTHING)
@example(10**5000)
@example("9" * 5000 + ":00:00")
def test_anything_is_a_whole_amount_or_an_error(value: object) -> None:
    for parse, largest in ((parse_memory, LARGEST), (parse_time, LARGEST), (parse_count, 999_999)):
        try:
            amount = parse(value)
        except ValueError:
            continue
        assert 0 < amount <= largest
        assert parse is parse_count or isinstance(amount, int)


@given(st.integers(1, 2**50))
def test_memory_is_rounded_up_by_less_than_a_mib(size: int) -> None:
    mib = parse_memory(f"{size} B")
    assert (mib - 1) * 2**20 < size <= mib * 2**20


@given(st.decimals(min_value="0.001", max_value=1000, places=3))
def test_units_agree(number: object) -> None:
    assert parse_memory(f"{number} TiB") == parse_memory(f"{number}t") == math.ceil(Fraction(str(number)) * 2**20)
    assert parse_time(f"{number} h") == parse_time(f"{number}hours") == math.ceil(Fraction(str(number)) * 3600)


@given(st.integers(1, LARGEST))
@example(367632896)
def test_formatted_amounts_are_exact(amount: int) -> None:
    assert parse_memory(format_memory(amount)) == amount
    assert parse_time(format_time(amount)) == amount


@given(st.floats(1e-9, 1e6))
def test_nothing_is_formatted_as_zero(number: float) -> None:
    assert float(format_count(number)) == pytest.approx(number, rel=0.5, abs=0.0005)
    assert float(format_count(number)) > 0
    assert float(format_usd(number).replace(",", "")) == pytest.approx(number, rel=0.05, abs=0.005)
    assert float(format_usd(number).replace(",", "")) > 0
    assert not format_time(number).startswith("0 ")


@pytest.mark.parametrize(
    ("formatted", "text"),
    [
        (format_memory(16384), "16 GiB"),
        (format_memory(1536), "1.5 GiB"),
        (format_memory(1437), "1437 MiB"),
        (format_memory(2 * 2**20), "2 TiB"),
        (format_memory(0), "0 MiB"),
        (format_time(7200), "2 h"),
        (format_time(90061), "1 day 1 h 1 min 1 s"),
        (format_time(2 * 86400), "2 days"),
        (format_time(0), "0 s"),
        (format_time(0.25), "0.25 s"),
        (format_time(75.4), "1 min 15 s"),
        (format_count(4.0), "4"),
        (format_count(0.1 + 0.2), "0.3"),
        (format_count(0.00004), "4e-05"),
        (format_usd(0), "0.00"),
        (format_usd(25.1), "25.10"),
        (format_usd(1234567.891), "1,234,567.89"),
        (format_usd(0.05), "0.05"),
        (format_usd(0.0321), "0.0321"),
        (format_usd(0.0000412), "0.000041"),
        (format_usd(-0.004), "-0.004"),
        (format_resources(Resources(4, 16384, 0, 1)), "4 cpus, 16 GiB memory, 1 gpu"),
        (format_resources(Resources(1, 512, 2048, 0.5)), "1 cpu, 512 MiB memory, 2 GiB disk, 0.5 gpus"),
        (format_resources(Resources()), "nothing"),
        (format_resources(replace(NOT_KNOWN, cpus=4)), "4 cpus"),
        (format_resources(NOT_KNOWN), "an unknown amount"),
    ],
)
def test_amounts_as_text(formatted: str, text: str) -> None:
    assert formatted == text


def test_moments_are_found_and_written_in_another_zone() -> None:
    moment = format_moment(1_795_435_200.7)
    assert moment == "2026-11-23 12:00:00 UTC"
    kathmandu = timezone(timedelta(hours=5, minutes=45))
    assert in_zone(f"the next is at {moment}, or at {moment}.", kathmandu) == (
        "the next is at 2026-11-23 17:45:00+05:45, or at 2026-11-23 17:45:00+05:45."
    )
    assert in_zone(moment, timezone.utc) == moment
    for other in ("2026-13-40 12:00:00 UTC", "9999-12-31 23:59:59 UTC", "12:00:00 UTC", "x"):
        assert in_zone(other, kathmandu) == other
    for far in (-1.0, 1e30, float("inf")):
        assert format_moment(far).endswith(" UTC")
