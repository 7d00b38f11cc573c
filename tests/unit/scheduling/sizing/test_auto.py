"""What an author leaves to Lading."""

from __future__ import annotations

from typing import Any

import pytest

from lading.scheduling.hints.hints import Hints
from lading.scheduling.model.resources import Resources
from lading.scheduling.sizing.auto import SizeChoice, as_text, at_least_default, choices, from_text, resized
from lading.scheduling.sizing.right_size import NOTHING_KNOWN, Sizes, sizes
from lading.scheduling.sizing.usage import Usage, Use

DEFAULTS = Resources(0.0625, 512)


def known(*uses: Use) -> Sizes:
    found = Usage()
    for use in uses:
        found.add(use)
    return sizes(found)


def tries(count: int, peak: int | None = 100, cpu_seconds: float | None = 10.0, **values: Any) -> list[Use]:
    return [Use(0.0625, 512, 100.0, peak, cpu_seconds, **values)] * count


@pytest.mark.parametrize(
    ("hints", "names"),
    [
        ({}, {"cpus", "memory"}),
        ({"site": "lab", "time": "1h", "gpus": 1}, {"cpus", "memory"}),
        ({"cpus": 2}, {"memory"}),
        ({"memory": "1 GiB"}, {"cpus"}),
        ({"memory": "input_size", "cpus": "len(x)"}, set()),
        ({"nodes": 2, "ppn": 4}, {"memory"}),
        ({"gang": "g"}, set()),
        ({"gang": "g", "memory": "auto"}, {"memory"}),
    ],
)
def test_what_an_author_wrote_is_not_left_to_lading(hints: dict[str, Any], names: set[str]) -> None:
    assert choices(Hints.parse(hints), DEFAULTS, is_auto=True).keys() == names


def test_with_hints_alone_only_what_is_auto_is_left_to_lading() -> None:
    assert choices(Hints(), DEFAULTS, is_auto=False) == {}
    found = choices(Hints.parse({"memory": "auto(8 GiB)", "cpus": "auto"}), DEFAULTS, is_auto=False)
    assert found == {"cpus": SizeChoice(0.0625, is_asked=True), "memory": SizeChoice(8192, is_asked=True)}
    assert from_text(as_text(found)) == found
    assert (as_text({}), from_text(None)) == (None, {})


def test_a_task_without_hints_is_packed_by_its_use_from_its_third_try_on() -> None:
    left = choices(Hints(), DEFAULTS, is_auto=True)

    def after(*uses: Use, largest: Resources | None = None) -> Resources:
        return resized(DEFAULTS, left, known(*uses), largest, None)

    assert resized(DEFAULTS, left, NOTHING_KNOWN, None, None) == after(*tries(1)) == DEFAULTS
    assert after(*tries(2)).memory < 120
    assert 0.1 < after(*tries(2)).cpus < 0.125
    assert after(*tries(9, cause="error")) == DEFAULTS, "of what it needs where it succeeds that says nothing"
    assert after(*tries(9, None, None)) == DEFAULTS, "its site does not measure"
    assert after(*tries(9, 100, None)).cpus == DEFAULTS.cpus
    assert after(*tries(9, 9000, 900.0), largest=Resources(4, 8192)) == Resources(4.0, 8192)


@pytest.mark.parametrize(("cpu_seconds", "cpus"), [(0.25, 0.05078125), (4.0, 0.0625)])
def test_short_tries_may_show_that_a_task_waits_but_not_that_it_works(cpu_seconds: float, cpus: float) -> None:
    short = [Use(0.0625, 512, 5.0, 100, cpu_seconds)] * 9
    assert resized(DEFAULTS, choices(Hints(), DEFAULTS, is_auto=True), known(*short), None, None).cpus == cpus


def test_one_that_waits_is_packed_by_a_little() -> None:
    idle, few = tries(9, 20, 0.1), Resources(0.01, 16)
    assert resized(DEFAULTS, choices(Hints(), DEFAULTS, is_auto=True), known(*idle), None, None) == Resources(0.02, 32)
    assert resized(few, choices(Hints(), few, is_auto=True), known(*idle), None, None).cpus <= few.cpus


def test_one_that_takes_few_machines_is_not_packed_by_more_than_they_may_have() -> None:
    left = choices(Hints.parse({"instance_type": "t3.small"}), DEFAULTS, is_auto=True)
    assert resized(DEFAULTS, left, known(*tries(9, 9000, 900.0)), None, None) == DEFAULTS
    assert resized(DEFAULTS, left, known(*tries(9)), None, None).memory < 120


def test_where_tasks_share_one_machine_none_is_packed_by_more_cpus_than_the_default() -> None:
    left = choices(Hints(), DEFAULTS, is_auto=True, shares_machine=True)
    found = resized(DEFAULTS, left, known(*tries(9, 900, 100.0)), None, None)
    assert (found.cpus, found.memory > 900) == (DEFAULTS.cpus, True)
    assert resized(DEFAULTS, left, known(*tries(9, 900, 2.0)), None, None).cpus < 0.03


def test_one_in_docker_is_not_packed_by_less_than_the_default() -> None:
    """It would get no more cpus than that."""
    left = choices(Hints.parse({"container": "docker://python"}), DEFAULTS, is_auto=True)
    assert resized(DEFAULTS, left, known(*tries(9, 20, 1.0)), None, None) == DEFAULTS
    assert resized(DEFAULTS, left, known(*tries(9, 20, 100.0)), None, None).cpus == 1.0


def test_packed_cpus_follow_the_size_of_inputs() -> None:
    used = [Use(1.0, 512, 100.0, 100, 100.0 * n, input_size=n * 2**30) for n in range(1, 9)]
    left = choices(Hints(), DEFAULTS, is_auto=True)
    assert resized(DEFAULTS, left, known(*used), None, 2 * 2**30).cpus < 2.5
    assert resized(DEFAULTS, left, known(*used), None, 8 * 2**30).cpus > 7.5


def test_what_has_hardly_changed_stays_as_it_is() -> None:
    left = {"memory": SizeChoice(8192, is_asked=True)}
    fitted = known(*tries(30, 1000))
    assert resized(Resources(1, 1041), left, fitted, None, None).memory == 1041
    assert resized(Resources(1, 1200), left, fitted, None, None).memory == 1020
    assert resized(Resources(1, 1019), left, fitted, None, None).memory == 1020


def test_a_request_that_is_a_limit_is_never_below_the_default() -> None:
    left = choices(Hints(), DEFAULTS, is_auto=True)
    assert at_least_default(Resources(0.02, 100), left) == DEFAULTS
    assert at_least_default(Resources(2, 900), left) == Resources(2, 900)
    asked = choices(Hints.parse({"memory": "auto(8 GiB)", "cpus": 1}), DEFAULTS, is_auto=True)
    assert at_least_default(Resources(1, 900), asked) == Resources(1, 900), "whose author asks to be held to it"
