"""The event that reports how a batch job ended."""

from __future__ import annotations

import pytest

from lading.hooks.batch.outcome import Outcome
from lading.hooks.cluster.jobs.end_event import finished

NOISE = "[2026-11-28T12:00:00.000+0000] Reading the config from /home/me/airflow/airflow.cfg\n"


@pytest.mark.parametrize(
    ("output", "said"), [(NOISE, ""), (f"{NOISE}no such module\n", "its last output: no such module")]
)
def test_what_airflow_prints_at_each_start_tells_nothing_of_an_end(output: str, said: str) -> None:
    reason = str(finished("a", Outcome(cause="error", exit_code=1, by="account"), None, output)["reason"])
    assert "Reading the config" not in reason
    assert reason.endswith(said)
    assert ("its last output" in reason) == bool(said)
