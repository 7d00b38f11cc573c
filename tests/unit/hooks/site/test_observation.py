"""What a site answers is compared with what it answered before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lading.hooks.site import LocationState, Observation, ObservedLocation
from lading.scheduling.model.location import Location
from lading.scheduling.model.reasons import free_text
from lading.scheduling.model.resources import Resources


def seen(name: str, ends_at: float | None = None, note: str | None = None) -> ObservedLocation:
    return ObservedLocation(Location(name, Resources(4, 4096), ends_at=ends_at), note=note)


@pytest.mark.parametrize("wrong", [{"trouble": "away"}, {"barred": {"": "no"}}, {"barred": {1: free_text("no")}}])
def test_why_a_site_takes_no_jobs_is_a_reason(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"^{next(iter(wrong))} is .*; valid: "):
        Observation([], **wrong)


BEFORE = Observation([seen("a", 10.0), seen("b")])


@pytest.mark.parametrize(
    ("now", "same"),
    [
        (Observation([seen("a", 10.0), seen("b")]), True),
        (Observation([seen("a", 20.0), seen("b", 5.0)]), True),
        (Observation([seen("a", 20.0)]), False),
        (Observation([seen("a", 10.0), seen("b"), seen("c")]), False),
        (Observation([seen("b"), seen("a", 10.0)]), False),
        (Observation([seen("a", 10.0, "it is slow"), seen("b")]), False),
        (Observation([seen("a", 10.0), replace(seen("b"), state=LocationState.DRAINING)]), False),
        (replace(BEFORE, trouble=free_text("away")), False),
        (replace(BEFORE, note="held"), False),
    ],
)
def test_an_answer_is_like_another_whatever_the_ends_of_its_locations(now: Observation, same: bool) -> None:
    assert BEFORE.looks_like(now) is same
    assert now.looks_like(BEFORE) is same


def test_a_name_stands_once() -> None:
    with pytest.raises(TypeError, match="locations has 'a', 'b' twice; valid: unique names"):
        Observation([seen(each) for each in "bacabad"])
