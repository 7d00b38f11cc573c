"""What machines have cost while runs were live."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.scheduling.forecast.forecast import Forecast, WorkflowStep
from lading.scheduling.forecast.spending import Spending
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.resources import Resources

HOUR = 3600.0


def live(**began: float) -> Forecast:
    steps = {run: WorkflowStep(PlannedJob(run, Resources(1, 1), run=run), 10.0) for run in began}
    return Forecast(steps, began={**began, "ended": 0.0})


def test_only_what_was_paid_since_the_first_live_run_has_begun_counts() -> None:
    spending = Spending()
    spending.see({"old": (0.0, 1.0), "new": (1.5 * HOUR, 4.0)}, 1.5 * HOUR)
    spending.see({"new": (1.5 * HOUR, 4.0)}, 2 * HOUR)
    assert spending.usd(live(r=0.0), 2 * HOUR) == pytest.approx(2.0 + 2.0)
    assert spending.usd(live(r=HOUR, s=1.9 * HOUR), 2 * HOUR) == pytest.approx(1.0 + 2.0)
    assert spending.usd(live(s=2 * HOUR), 3 * HOUR) == pytest.approx(4.0)
    assert spending.gone == [], "no live run has known it"
    assert spending.usd(live(), 4 * HOUR) == 0.0


@given(
    st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 1e4), st.floats(0.01, 10)), max_size=5),
    st.floats(0, 2e4),
)
def test_it_is_never_more_than_all_that_was_paid(machines: list[tuple[float, float, float]], began: float) -> None:
    spending, now = Spending(), 3e4
    for number, (since, seconds, usd) in enumerate(machines):
        spending.see({**spending.there, str(number): (since, usd)}, since)
        spending.see({name: its for name, its in spending.there.items() if name != str(number)}, since + seconds)
    paid = sum(seconds / HOUR * usd for _, seconds, usd in machines)
    assert 0 <= spending.usd(live(r=began), now) <= paid * 1.000001 + 1e-9
