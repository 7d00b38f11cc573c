"""What a tick decides is data: it can be looked at, compared and recorded."""

from __future__ import annotations

from dataclasses import fields

from lading.executors.decisions import Decision
from lading.executors.store.gangs.rows import GangChanges


def test_a_decision_carries_nothing_that_runs() -> None:
    assert [each.name for each in fields(Decision) if "Callable" in str(each.type)] == []


def test_a_decision_about_nothing_changes_nothing() -> None:
    assert Decision() == Decision(gangs=GangChanges((), (), (), (), ()), notes=())
