"""When a run is to have ended, as users write it, and where clocks are changed."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.scheduling.hints.finish_by import FinishBy, parse_finish_by
from lading.scheduling.hints.hints import HintError, Hints
from lading.scheduling.text.units import UnitError

BERLIN = ZoneInfo("Europe/Berlin")
APIA = ZoneInfo("Pacific/Apia")
ZONES = st.sampled_from(
    ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Kathmandu"]
)


def moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def due(value: object, began: str, zone: ZoneInfo = BERLIN) -> str:
    at = parse_finish_by(value, is_of_one_run=True).at(moment(began), zone)
    return datetime.fromtimestamp(at, zone).isoformat()


@pytest.mark.parametrize(
    ("value", "began", "expected"),
    [
        ("2h", "2026-11-26T22:30+01:00", "2026-11-27T00:30:00+01:00"),
        (timedelta(minutes=90), "2026-11-26T22:30+01:00", "2026-11-27T00:00:00+01:00"),
        ("06:00:00", "2026-11-26T22:30+01:00", "2026-11-27T04:30:00+01:00"),
        ("06:00", "2026-11-26T22:30+01:00", "2026-11-27T06:00:00+01:00"),
        (" 23:00 ", "2026-11-26T22:30+01:00", "2026-11-26T23:00:00+01:00"),
        ("22:30", "2026-11-26T22:30+01:00", "2026-11-27T22:30:00+01:00"),
        ("00:00", "2026-11-26T23:59+00:00", "2026-11-28T00:00:00+01:00"),
        ("2026-11-27T06:00", "2026-11-26T22:30+01:00", "2026-11-27T06:00:00+01:00"),
        ("2026-11-27 06:00:30Z", "2026-11-26T22:30+01:00", "2026-11-27T07:00:30+01:00"),
        ("2026-11-27T06:00-05:00", "2026-11-26T22:30+01:00", "2026-11-27T12:00:00+01:00"),
    ],
)
def test_a_length_of_time_a_time_of_day_or_a_moment(value: object, began: str, expected: str) -> None:
    assert due(value, began) == expected


@pytest.mark.parametrize(
    ("value", "began", "expected"),
    [
        # 02:00 to 03:00 does not occur on 29 March 2026: it is as long after midnight as on other days
        ("02:30", "2026-03-29T00:10+01:00", "2026-03-29T03:30:00+02:00"),
        ("02:30", "2026-03-29T03:10+02:00", "2026-03-29T03:30:00+02:00"),
        ("2026-03-29T02:30", "2026-03-29T00:10+01:00", "2026-03-29T03:30:00+02:00"),
        # and occurs twice on 25 October: the first one counts
        ("02:30", "2026-10-25T01:00+02:00", "2026-10-25T02:30:00+02:00"),
        ("02:30", "2026-10-25T02:40+02:00", "2026-10-26T02:30:00+01:00"),
        ("02:30", "2026-10-25T02:10+01:00", "2026-10-26T02:30:00+01:00"),
        ("2026-10-25T02:30", "2026-10-25T01:00+02:00", "2026-10-25T02:30:00+02:00"),
    ],
)
def test_clocks_that_are_changed(value: str, began: str, expected: str) -> None:
    assert due(value, began) == expected


def test_a_day_that_a_zone_has_left_out() -> None:
    assert due("06:00", "2011-12-29T20:00-10:00", APIA).startswith("2011-12-31T06:00:00"), "Samoa had no 30 December"


@given(
    st.times().map(lambda time: time.replace(second=0, microsecond=0)),
    st.datetimes(datetime(2001, 1, 1), datetime(2099, 1, 1)),
    ZONES,
)
def test_a_time_of_day_is_within_the_next_two_days_and_is_shown_by_the_clock(
    time: object, began: datetime, name: str
) -> None:
    finish_by, zone, start = parse_finish_by(f"{time:%H:%M}"), ZoneInfo(name), began.replace(tzinfo=timezone.utc)
    at = finish_by.at(start.timestamp(), zone)
    assert start.timestamp() < at <= start.timestamp() + 49 * 3600
    shown = datetime.fromtimestamp(at, zone).time()
    naive = datetime.fromtimestamp(at, zone).replace(tzinfo=None)
    is_missing = any(
        naive - timedelta(minutes=minutes) == datetime.combine(naive.date(), finish_by.time_of_day or naive.time())
        for minutes in (30, 60)
    )
    assert shown == finish_by.time_of_day or is_missing


@given(
    st.one_of(
        st.integers(1, 10**6).map(lambda seconds: FinishBy(seconds=seconds)),
        st.times().map(lambda time: FinishBy(time_of_day=time.replace(second=0, microsecond=0))),
        st.datetimes(datetime(2000, 1, 1), datetime(2099, 1, 1), timezones=st.sampled_from([None, timezone.utc])).map(
            lambda at: FinishBy(moment=at.replace(microsecond=0))
        ),
    )
)
def test_what_is_stored_says_the_same_again(finish_by: FinishBy) -> None:
    assert parse_finish_by(str(finish_by), is_of_one_run=True) == finish_by


@pytest.mark.parametrize(
    "value", ["", "6:00", "24:00", "06:60", "6 o'clock", "0", -1, True, None, "06:00+01:00", "٠٦:٠٠"]
)
def test_what_is_none_of_them_is_refused_with_what_is_valid(value: object) -> None:
    with pytest.raises(UnitError, match=r'is not a deadline for a run; valid: .*"2h".*"06:00"'):
        parse_finish_by(value)


@pytest.mark.parametrize("value", ["2026-13-01T06:00", "2026-02-30T06:00Z", "2026-11-27T25:00", "2026-11-27"])
def test_a_moment_that_is_none_is_refused(value: str) -> None:
    with pytest.raises(UnitError, match=f"'{value}' .*; valid: .*ISO 8601"):
        parse_finish_by(value, is_of_one_run=True)


def test_a_hint_holds_for_later_runs_too_so_it_names_no_moment() -> None:
    with pytest.raises(
        HintError, match=r"hint finish_by: '2026-11-27T06:00' is a date and time, which all later runs would miss"
    ):
        Hints.parse({"finish_by": "2026-11-27T06:00"})
    assert Hints.parse({"finish_by": "06:00"}).finish_by == parse_finish_by("06:00")
