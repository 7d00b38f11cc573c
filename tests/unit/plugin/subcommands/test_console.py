"""What the subcommands print."""

from __future__ import annotations

import json
from zoneinfo import ZoneInfo

import pytest
from airflow import settings

from lading.plugin.host import AirflowHost
from lading.plugin.subcommands.console import show

REASON = "waits: attempt 1 of 5 found no room for gang 'g' (no match); the next is at 2026-11-23 12:00:00 UTC"


def test_people_read_times_in_the_zone_of_airflow_and_programs_in_utc(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(settings, "TIMEZONE", ZoneInfo("Asia/Kathmandu"))
    show(AirflowHost(), [{"reason": REASON}], "plain")
    assert "the next is at 2026-11-23 17:45:00+05:45" in " ".join(capsys.readouterr().out.split())
    show(AirflowHost(), [{"reason": REASON}], "json")
    assert json.loads(capsys.readouterr().out) == [{"reason": REASON}]
