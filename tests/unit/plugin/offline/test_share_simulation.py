"""`lading simulate --shares`: what shares get of machines for which they contend."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from lading.plugin.offline.options import UsageError
from lading.plugin.offline.share_simulation import simulate_shares
from lading.plugin.offline.simulation.trace import Arrival
from lading.scheduling.model.catalogue import Catalogue, InstanceType, Offering
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.resources import Resources

OFFERED = Catalogue(
    {
        "small": InstanceType("small", Resources(1, 1000), (Offering(0.1),)),
        "large": InstanceType("large", Resources(8, 32_000), (Offering(0.4),)),
    }
)
TEAMS = '[[shares]]\nteam = "a"\n\n[[shares]]\nteam = "b"\n'


def arrivals() -> list[Arrival]:
    """Team a has queued all of its jobs before team b comes."""
    return [
        Arrival(PlannedJob(team, Resources(2, 1000), count=200, team=team), at, 60.0)
        for team, at in (("a", 0.0), ("b", 1.0))
    ]


def test_it_compares_a_trace_with_shares_and_without(tmp_path: Path) -> None:
    file, out = tmp_path / "sites.toml", io.StringIO()
    file.write_text(TEAMS)
    assert simulate_shares(arrivals(), str(file), 4, OFFERED, "json", out) == 0
    fair, without = json.loads(out.getvalue())["runs"]
    assert fair["jain"] >= 0.98 > without["jain"]
    assert fair["utilization"] >= 0.99 * without["utilization"]
    assert simulate_shares(arrivals(), str(file), 4, OFFERED, "table", out) == 0
    assert "team a: " in out.getvalue()


@pytest.mark.parametrize(
    ("text", "machines", "words"),
    [
        (TEAMS, None, "give --max-instances NUMBER"),
        ("[[shares]]\nweight = 0\n", 1, r"\[\[shares\]\] 1: weight"),
        ("[[share]]\n", 1, "unknown table share"),
    ],
)
def test_what_it_cannot_use_it_says(tmp_path: Path, text: str, machines: int | None, words: str) -> None:
    file = tmp_path / "sites.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=words):
        simulate_shares(arrivals(), str(file), machines, OFFERED, "json", io.StringIO())
