"""The clock of a site, by which a script notes when it began and ended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lading.hooks.job_scripts.run import RunRecord
from tests.services.outside_clocks import off

SUBMITTED, SEEN, NOW, LASTED = 1_790_000_000.0, 1_790_000_010.0, 1_790_000_050.0, 30


@off
@pytest.mark.parametrize("seen", [SEEN + 10, None])
def test_a_script_began_and_ended_by_our_clock_and_took_as_long(seen: float | None, ahead: float) -> None:
    end = int(NOW - 2 + ahead)
    run = RunRecord("t", "/f", submitted_at=SUBMITTED, started_at=seen, state="succeeded")
    found = run.timed(f"0 {end - LASTED} {end}", NOW)
    assert found.started_at is not None
    assert found.ended_at is not None
    assert SUBMITTED <= found.started_at <= found.ended_at <= NOW
    assert found.ended_at - found.started_at == LASTED


def test_what_fits_stays() -> None:
    run = RunRecord("t", "/f", submitted_at=SUBMITTED, started_at=SEEN, state="succeeded")
    found = run.timed(f"0 {int(SEEN - 1)} {int(NOW - 5)}", NOW)
    assert found == replace(run, started_at=SEEN - 1, ended_at=NOW - 5)
