"""The upcoming tasks of a run and its critical path, if some tasks have no jobs."""

from __future__ import annotations

from lading.scheduling.insight.run_path import Stretch, critical, to_come, without

# a and b, then a task without a job, then another one, then c.
UPSTREAM = {"a": (), "b": (), "join": ("a", "b"), "fork": ("join",), "c": ("fork",)}


def test_what_is_before_a_task_without_a_job_is_before_what_comes_behind_it() -> None:
    assert without(UPSTREAM, "abc") == {"a": set(), "b": set(), "c": {"a", "b"}}
    assert without(UPSTREAM, "bc") == {"b": set(), "c": {"b"}}
    assert without({}, "c") == {"c": set()}
    circle = {"a": ("b",), "b": ("a",)}
    assert without(circle, "ab") == {"a": {"b"}, "b": {"a"}}


def test_what_is_to_come_begins_behind_tasks_without_a_job_and_the_critical_path_leads_through_them() -> None:
    tasks = {
        "a": Stretch(0.0, 0.0, 40.0, 50.0),
        "b": Stretch(0.0, 10.0, None, 200.0),
        "c": Stretch(None, None, None, 9),
    }
    before = without(UPSTREAM, tasks)
    expected = to_come(tasks, before, 100.0)
    assert expected == {"b": (10.0, 210.0), "c": (210.0, 219.0)}
    assert critical({"a": 40.0, "b": 210.0, "c": 219.0}, before) == ["b", "c"]
