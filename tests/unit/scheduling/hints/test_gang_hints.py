"""When a gang is tried again."""

from __future__ import annotations

import pytest

from lading.scheduling.hints.gang_hints import AttemptSchedule
from lading.scheduling.text.units import UnitError


def test_the_usual_pauses() -> None:
    assert [AttemptSchedule().pause(number) for number in (1, 2, 3, 4, 5)] == [900, 900, 1800, 3600, None]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (3, AttemptSchedule(count=3)),
        ({"pauses": ["1m"]}, AttemptSchedule((60,), 2)),
        ({"pauses": ["10s", "1h"], "count": 5, "timeout": "90s"}, AttemptSchedule((10, 3600), 5, 90)),
        ({"timeout": "1h"}, AttemptSchedule(timeout=3600)),
    ],
)
def test_how_they_are_written(written: object, meant: AttemptSchedule) -> None:
    found = AttemptSchedule.parse(written)
    assert found == meant
    assert AttemptSchedule.from_json(found.to_json()) == found
    assert AttemptSchedule.parse(found) == found


def test_the_last_pause_is_repeated() -> None:
    found = AttemptSchedule.parse({"pauses": ["1m", "2m"], "count": 5})
    assert [found.pause(number) for number in range(1, 6)] == [60, 120, 120, 120, None]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (0, "0 is not a number of attempts; valid: 1 to 1000"),
        (True, "True is not a number of attempts"),
        ("often", "'often' is not a number of attempts"),
        ({"pauses": "15m"}, "pauses is '15m'; valid: a list of times"),
        ({"pauses": []}, "pauses is "),
        ({"pauses": ["1m"] * 1000}, '"1h"], of 999 at most'),
        ({"pauses": ["soon"]}, "'soon'"),
        ({"breaks": ["15m"]}, "there is no 'breaks'; valid: pauses, count, timeout"),
        ({"count": 1001}, "1001 is not a number of attempts"),
    ],
)
def test_what_is_wrong_is_said(written: object, said: str) -> None:
    with pytest.raises(UnitError) as caught:
        AttemptSchedule.parse(written)
    assert said in str(caught.value)
