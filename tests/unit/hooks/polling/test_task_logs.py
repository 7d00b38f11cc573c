"""Copies of logs in Airflow's folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from lading.hooks.polling import task_logs
from lading.hooks.polling.task_logs import LogCopies


def copies(folder: Path) -> LogCopies:
    return LogCopies(folder / "logs", folder / "memory.json")


def test_a_copy_goes_on_after_a_restart_and_behind_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "logs/dag/attempt=1.log"
    path.parent.mkdir(parents=True)
    path.write_text("before the deferral\n")
    made = copies(tmp_path)
    made.add("a", "dag/attempt=1.log", b"one\n")
    made.save()
    made = copies(tmp_path)
    assert made.offset("a") == 4
    made.add("a", "dag/attempt=1.log", b"two\n")
    assert path.read_text() == "before the deferral\none\ntwo\n"
    made.forget("a")
    assert made.offset("a") == 0


def test_a_copy_that_was_not_noted_is_made_again_in_its_place(tmp_path: Path) -> None:
    made = copies(tmp_path)
    made.add("a", "a.log", b"one\n")
    again = copies(tmp_path)
    again.add("a", "a.log", b"one\n")
    assert (tmp_path / "logs/a.log").read_text() == "one\n"


def test_no_log_leaves_the_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not below"):
        copies(tmp_path).add("a", "../elsewhere", b"x")


def test_jobs_that_are_not_there_any_more_are_forgotten(tmp_path: Path) -> None:
    made = copies(tmp_path)
    for token in ("a", "b"):
        made.add(token, f"{token}.log", b"words")
    made.keep(["b", "c"])
    made.save()
    assert copies(tmp_path).tokens == {"b"}


def test_a_note_that_a_full_disk_has_torn_hides_no_other(tmp_path: Path) -> None:
    made = copies(tmp_path)
    made.begin({"a": "a.log"})
    made.memory.write_text(made.memory.read_text() + '\n{"b": [0')
    made.begin({"c": "c.log"})
    assert copies(tmp_path).tokens == {"a", "c"}
    made.save()
    assert (copies(tmp_path).tokens, made.memory.read_text().count("\n")) == ({"a", "c"}, 0)


def test_how_far_copies_are_is_noted_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = copies(tmp_path)
    made.begin({"a": "a.log"})
    made.save()
    made.add("a", "a.log", b"one\n")
    made.save_in_time()
    assert (copies(tmp_path).tokens, copies(tmp_path).offset("a")) == ({"a"}, 0), "that was just done"
    monkeypatch.setattr(task_logs, "SAVE_INTERVAL", 0.0)
    made.save_in_time()
    assert copies(tmp_path).offset("a") == 4
    made.memory.unlink()
    made.save_in_time()
    assert not made.memory.exists(), "nothing has changed"
    made.forget("a")
    made.save_in_time()
    assert copies(tmp_path).tokens == frozenset()
