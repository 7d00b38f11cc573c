"""What machines cost, and which jobs are charged for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.scheduling.accounting.billing import LEAST_SECONDS, Stay, cost, divided, dominant_share, metered, minimum
from lading.scheduling.model.resources import Resources


@pytest.mark.parametrize(
    ("asked", "share"),
    [
        (Resources(1, 1000), 0.25),
        (Resources(1, 12_000), 0.75),
        (Resources(1, 1000, 100, 1), 1.0),
        (Resources(8, 0), 1.0),
        (Resources(), 0.0),
    ],
)
def test_the_dominant_share_is_that_of_the_resource_of_which_most_is_taken(asked: Resources, share: float) -> None:
    assert dominant_share(asked, Resources(4, 16_000, 1000, 1)) == share


def test_a_life_is_billed_by_the_second_and_for_a_minute_at_least() -> None:
    assert cost(3.6, 100, 160) == pytest.approx(0.06)
    assert minimum(3.6, 100, 130) == pytest.approx(0.03)
    assert minimum(3.6, 100, 100 + LEAST_SECONDS) == 0


def test_a_life_is_billed_at_the_price_of_each_second() -> None:
    prices = [(50.0, 3.6), (200.0, 7.2), (280.0, 36.0), (900.0, 1.0)]
    assert metered(prices, 0.0, 100, 300) == pytest.approx(0.1 + 0.16 + 0.2)
    assert metered(prices, 3.6, 100, 300) == pytest.approx(0.46 + 0.2), "with what is paid besides"
    assert metered(prices[:1], 0.0, 100, 130) == pytest.approx(0.06), "a minute at least"
    assert metered(prices[1:], 0.0, 100, 300) == pytest.approx(0.36 + 0.2), "the first that is known holds before, too"
    assert metered(prices, 0.0, 250, 300) == pytest.approx(0.06 + 0.3 + 0.0), "what was before it counts for nothing"


def test_jobs_pay_their_share_of_the_time_and_the_rest_is_idle() -> None:
    stays = [Stay("a", 0.5, 100, 300), Stay("b", 0.25, 200, 400), Stay("dies", 0.5, 450, 900)]
    charged, idle = divided(40.0, 100, 500, stays)
    assert charged == pytest.approx({"a": 10.0, "b": 5.0, "dies": 2.5})
    assert idle == pytest.approx(22.5)


def test_where_shares_are_more_than_the_machine_each_pays_its_part_of_them() -> None:
    charged, idle = divided(10.0, 0, 100, [Stay("cpus", 0.9, 0, 100), Stay("memory", 0.6, 0, 100)])
    assert charged == pytest.approx({"cpus": 6.0, "memory": 4.0})
    assert idle == pytest.approx(0)


@given(
    st.floats(0, 1e4),
    st.lists(st.tuples(st.floats(0, 1), st.floats(-100, 1000), st.floats(0, 1000)), max_size=8),
    st.floats(0, 500),
)
def test_what_is_charged_and_what_is_idle_is_the_bill(
    usd: float, jobs: list[tuple[float, float, float]], life: float
) -> None:
    stays = [Stay(str(i), share, since, since + seconds) for i, (share, since, seconds) in enumerate(jobs)]
    charged, idle = divided(usd, 0, life, stays)
    assert sum(charged.values()) + idle == pytest.approx(usd)
    assert all(part >= 0 for part in charged.values())
    assert idle >= -1e-6 * max(usd, 1)
