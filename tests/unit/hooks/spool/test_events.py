"""Events as they are read: whatever lies in a file, those that are right count and nothing is raised."""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.hooks.api_tunnel.tunnel import RelayMessage
from lading.hooks.cluster.allocations.layout import AllocationTerms
from lading.hooks.cluster.jobs.remote_steps import loaded
from lading.hooks.files.safe_files import NotReadable, read_regular
from lading.hooks.spool import events, job_files, values
from lading.hooks.spool.rejected import RejectedFiles
from lading.hooks.spool.spool import Spool
from lading.hooks.ssh.answer import CommandResult
from lading.scheduling.model.reasons import Reason, because, free_text
from lading.scheduling.model.resources import Resources

STARTED = {"event": "started", "token": "good", "at": 5.0, "pid": 1}
FINISHED = {
    "event": "finished",
    "token": "x",
    "at": 9.0,
    "started_at": 5.0,
    "exit_code": 0,
    "cause": None,
    "reason": None,
    "peak_memory": 12,
    "cpu_seconds": 0.5,
}
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=3)
CODES = st.sampled_from(["over_memory", "sent_to_next_site", "moonlight"])
# Nearly right ones are found by chance too seldom.
NEARLY = st.fixed_dictionaries(
    {"event": st.sampled_from(["started", "waiting", "finished"])},
    optional={name: VALUES for name in [*FINISHED, "reason", "pid", "failed"] if name != "event"},
)
WRONG: list[Any] = [
    {"event": "finished", "token": "x", "cause": "cancelled"},
    {},
    [],
    5,
    None,
    True,
    FINISHED | {"exit_code": 10**30},
    FINISHED | {"exit_code": 10**400},
    FINISHED | {"exit_code": True},
    FINISHED | {"exit_code": "0"},
    FINISHED | {"cause": ["cancelled"]},
    FINISHED | {"cause": "x" * 21},
    FINISHED | {"cause": "a\nb"},
    FINISHED | {"reason": 5},
    FINISHED | {"token": ["x"]},
    FINISHED | {"token": "../x"},
    FINISHED | {"token": "x\n"},
    FINISHED | {"token": "x" * 65},
    FINISHED | {"at": "yesterday"},
    FINISHED | {"at": None},
    FINISHED | {"at": float("nan")},
    FINISHED | {"at": float("inf")},
    FINISHED | {"at": -1.0},
    FINISHED | {"at": 1e300},
    FINISHED | {"at": 10**400},
    FINISHED | {"peak_memory": -1},
    FINISHED | {"peak_memory": 2**31},
    FINISHED | {"cpu_seconds": "1"},
    STARTED | {"at": True},
    {"event": "waiting", "token": "x", "reason": None},
    {"event": "waiting", "token": "x", "reason": {"code": "paused"}},
    {"event": "waiting", "token": "x", "reason": {"code": "turn", "also": [5]}},
    {"event": "waiting", "token": "x", "reason": {"params": {}}},
    {"event": ["waiting"], "token": "x", "reason": "in words"},
    {"event": "e" * 1000},
]


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    spool = Spool(tmp_path / "spool")
    spool.create()
    return spool


def text(*found: object) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in found)


@pytest.mark.parametrize("value", WRONG, ids=lambda value: repr(value)[:60])
def test_a_wrong_event_is_set_aside_and_the_others_of_its_file_count(
    spool: Spool, value: object, caplog: pytest.LogCaptureFixture
) -> None:
    path = spool.events / "000000000007.jsonl"
    path.write_bytes(text(STARTED, value, FINISHED))
    rejected = RejectedFiles(spool.rejected)
    assert list(spool.journal(rejected)) == [(path, [STARTED, FINISHED])]
    assert "000000000007.jsonl" in caplog.text
    assert "000000000007.jsonl" in (rejected.note or "")
    assert (spool.rejected / path.name).read_bytes() == text(value).strip()
    caplog.clear()
    assert len(list(spool.journal(rejected))) == 1  # until it is stored it is read again, and that is not said again
    assert caplog.text == ""


@pytest.mark.parametrize("value", WRONG, ids=lambda value: repr(value)[:60])
def test_a_file_with_nothing_right_in_it_is_set_aside(spool: Spool, value: object) -> None:
    (spool.events / "1.jsonl").write_bytes(text(value))
    (spool.events / "2.jsonl").write_bytes(text(STARTED))
    assert [found for _, found in spool.journal()] == [[STARTED]]
    assert [path.name for path in spool.rejected.iterdir()] == ["1.jsonl"]
    assert [path.name for path in spool.events.iterdir()] == ["2.jsonl"]


@pytest.mark.parametrize("content", [b"[" * 100_000, b"9" * 5000, b'{"a":' * 50_000, b"\xff", b"\0" * 10])
def test_what_is_no_json_is_set_aside(content: bytes) -> None:
    found, faults = events.read(content + b"\n" + text(STARTED))
    assert found == [STARTED]
    assert [line for line, _ in faults] == [content]


def test_a_newer_agents_events_change_nothing_and_are_no_fault() -> None:
    newer = {"event": "hibernated", "until": {"some": "thing"}}
    assert events.read(text(newer, STARTED | {"mood": "fine"})) == ([STARTED], [])


def test_texts_that_are_no_unicode_are_taken() -> None:
    odd = FINISHED | {"cause": "error", "reason": "a\udc80b\0"}
    assert events.read(text(odd)) == ([odd | {"reason": free_text("a?b\ufffd")}], [])


def test_the_reason_of_an_end_travels_as_data_and_a_text_of_a_third_party_is_free_text() -> None:
    why = because("batch_ended", exit_code=3).with_also(because("last_output", text="no such file"))
    [found], faults = events.read(values.to_json(FINISHED | {"cause": "error", "reason": why}).encode())
    assert (found["reason"], faults) == (why, [])
    [found], _ = events.read(text(FINISHED | {"cause": "error", "reason": "by hand"}))
    assert found["reason"] == free_text("by hand")
    [found], _ = events.read(text(FINISHED | {"reason": ""}))
    assert found["reason"] is None


def test_an_end_counts_though_another_version_left_parameters_of_its_reason_out() -> None:
    less = {"code": "over_memory", "params": {"used": 2048, "since": 3}}
    [found], faults = events.read(text(FINISHED | {"cause": "out_of_memory", "reason": less}))
    assert faults == []
    assert str(found["reason"]) == "the task used 2 GiB of memory; its limit is ?"
    _, faults = events.read(text({"event": "waiting", "token": "x", "reason": less}))
    assert len(faults) == 1, "a wait is reported again"


@given(VALUES | st.fixed_dictionaries({"code": CODES | VALUES, "also": VALUES}))
def test_whatever_the_reason_of_an_end_is_it_does_the_others_no_harm(reason: object) -> None:
    found, faults = events.read(text(STARTED, FINISHED | {"reason": reason}, FINISHED))
    assert (found[0], found[-1]) == (STARTED, FINISHED)
    for each in found[1:-1]:
        assert each["reason"] is None or Reason.of_json(each["reason"].to_json()) == each["reason"]
        assert each["reason"] is None or str(each["reason"])
    assert len(found) + len(faults) == 3


@given(st.binary())
def test_any_bytes_beside_an_event_do_it_no_harm(content: bytes) -> None:
    found, _ = events.read(text(STARTED) + content + b"\n" + text(FINISHED))
    assert found[0] == STARTED
    assert found[-1] == FINISHED


@given(st.lists(VALUES | NEARLY, max_size=3))
def test_any_values_beside_an_event_do_it_no_harm(values: list[object]) -> None:
    found, faults = events.read(text(STARTED, *values, FINISHED))
    assert found[0] == STARTED
    assert found[-1] == FINISHED
    assert len(found) - 2 + len(faults) <= len(values)
    assert events.sift([STARTED, *values, FINISHED])[0][-1] == FINISHED


def test_only_regular_files_are_read_and_the_others_are_out_of_the_way(
    spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").write_bytes(text(FINISHED))
    os.mkfifo(spool.events / "1.jsonl")
    (spool.events / "2.jsonl").mkdir()
    (spool.events / "2.jsonl" / "inside").touch()
    (spool.events / "3.jsonl").symlink_to(tmp_path / "nowhere")
    (spool.events / "4.jsonl").symlink_to(tmp_path / "elsewhere")
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(spool.events)  # the path of a socket must be short
        listener.bind("5.jsonl")
    with (spool.events / "6.jsonl").open("wb") as giant:
        giant.truncate(8 * 2**40)
    (spool.events / "7.jsonl").write_bytes(text(STARTED))
    rejected = RejectedFiles(spool.rejected)
    begun = time.monotonic()
    assert [found for _, found in spool.journal(rejected)] == [[STARTED]]
    assert time.monotonic() - begun < 100, "what has no end, or would be waited for, is not read"
    assert [path.name for path in spool.events.iterdir()] == ["7.jsonl"]
    assert len(list(spool.rejected.iterdir())) == 6
    assert (tmp_path / "elsewhere").exists()
    assert rejected.note is not None


def test_what_cannot_be_set_aside_stays_and_delays_no_other(spool: Spool) -> None:
    spool.rejected.touch()
    os.mkfifo(spool.events / "1.jsonl")
    (spool.events / "2.jsonl").write_bytes(b"{")
    (spool.events / "3.jsonl").write_bytes(text(STARTED, 5))
    assert [found for _, found in spool.journal()] == [[STARTED]]


def test_of_what_was_set_aside_the_latest_is_kept_whatever_it_is(spool: Spool) -> None:
    rejected = RejectedFiles(spool.rejected)
    for number in range(105):
        path = spool.events / f"{number:03}.jsonl"
        path.mkdir() if number % 2 else path.symlink_to("nowhere")
        if number % 2:
            (path / "inside").touch()
        rejected.move(path, "it is no file")
    assert len(list(spool.rejected.iterdir())) == 100


def test_a_file_of_very_many_lines_takes_no_long_time() -> None:
    begun = time.process_time()
    found, faults = events.read(text(STARTED) + b"x\n" * (events.MOST_BYTES // 2))
    assert found == [STARTED]
    assert "20000" in faults[0][1]
    assert time.process_time() - begun < 5


@pytest.mark.parametrize("size", [0, 99, 100, 101])
def test_a_file_is_read_up_to_its_limit(tmp_path: Path, size: int) -> None:
    (tmp_path / "file").write_bytes(b"x" * size)
    if size > 100:
        with pytest.raises(NotReadable, match="at most 100"):
            read_regular(tmp_path / "file", 100)
    else:
        assert read_regular(tmp_path / "file", 100) == b"x" * size


TERMS = AllocationTerms(
    Resources(4.0, 8000, 0, 1.0), 3600.0, 600.0, 60.0, 10.0, '["long", [["account", "x"], ["exclusive", true]]]'
)


def test_the_terms_of_an_allocation_are_read_as_they_were_written() -> None:
    assert AllocationTerms.from_json(TERMS.to_json()) == TERMS
    assert AllocationTerms.from_json(replace(TERMS, kind="").to_json()).kind == ""


@pytest.mark.parametrize(
    "wrong",
    [
        {"capacity": {"cpus": "4", "memory": 1}},
        {"capacity": []},
        {"seconds": -1},
        {"idle": None},
        {"kind": "5"},
        {"kind": "[1]"},
        {"kind": '["q", [["a"]]]'},
        {"kind": "[" * 10**5},
        {"kind": 5},
    ],
    ids=lambda wrong: repr(wrong)[:40],
)
def test_terms_that_make_no_sense_are_none(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        AllocationTerms.from_json(json.dumps({**json.loads(TERMS.to_json()), **wrong}))


@given(st.binary(max_size=50) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_whatever_lies_in_a_file_of_a_job_it_is_read_or_left_alone(content: bytes) -> None:
    for model in (job_files.SentinelFile, job_files.CauseFile, job_files.UpFile, job_files.TermsFile, RelayMessage):
        found = job_files.remains(model, content)
        assert found is None or isinstance(found, dict)


@pytest.mark.parametrize("text", ["../x", "a\tb\tc\td", "a b", "[]", ".", "/", "=\tx"])
def test_a_list_of_tasks_that_is_damaged_is_left_alone(text: str, caplog: pytest.LogCaptureFixture) -> None:
    lines = ["me", "submission\tsubmissions/L1/", f"task\t{text}", "submission\tsubmissions/L2/"]
    lines += ["task\tgood\tdag/good.log", "answer\t.", "answer\t17", f"begun\t{text}", "."]
    user, found, begun = loaded(CommandResult(0, "\n".join(lines)))
    assert (user, [each.name for each in found], begun) == ("me", ["L2"], frozenset([text]))
    assert found[0].answer == ".\n17"
    assert "L1" in caplog.text
