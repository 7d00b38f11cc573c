"""The question to the accounting, whose times are those of the cluster."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from lading.hooks.batch.sge.system import SGE
from lading.hooks.batch.slurm.system import SLURM
from lading.hooks.batch.system import BatchSystem
from tests.services.outside_clocks import off

# Between the first time zone and the last one, hours.
ZONES = 26


@off
@pytest.mark.parametrize("hour", [0, 12, 23])
@pytest.mark.parametrize(
    ("system", "option", "format"), [(SLURM(), "-S", "%Y-%m-%d"), (SGE(), "me", "%Y%m%d%H%M")], ids=["slurm", "sge"]
)
def test_a_job_is_found_whatever_the_cluster_has_for_a_clock_and_zone(
    system: BatchSystem, option: str, format: str, hour: int, ahead: float
) -> None:
    submitted = datetime(2026, 11, 25, hour, 30)
    command = system.accounting(["7"], "me", submitted)
    assert command is not None
    asked = datetime.strptime(command[command.index(option) + 1], format)
    assert asked <= submitted + timedelta(hours=-ZONES, seconds=ahead)
