"""Chunks, without Airflow's services: real processes, a supervisor that answers from a dict."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from airflow.sdk.execution_time import task_runner

from lading.operators.scattering import chunk
from lading.operators.scattering.checkpoint import FinishedOutputs
from lading.operators.scattering.chunk import Chunk, ChunkStopped, ElementsFailed, ElementsFailedForGood
from tests.services.processes import wait_until


class Store(dict[str, Any]):
    def set(self, key: str, value: Any) -> None:
        self[key] = value


class Task:
    def __init__(self) -> None:
        self.executor_config = {"lading": {"cpus": 3}}


def make(numbers: range, run: Any, store: Store | None = None) -> Chunk:
    return Chunk(numbers, run, {"task_state_store": Store() if store is None else store, "task": Task()})


def run(numbers: range, job: Any, store: Store | None = None) -> list[Any]:
    return make(numbers, job, store).run(lambda number: f"n={number}")


def test_outputs_are_in_order() -> None:
    def job(number: int) -> int | None:
        time.sleep(0.02 * (number % 3))
        return None if number == 12 else number * number

    assert run(range(10, 20), job) == [None if n == 12 else n * n for n in range(10, 20)]
    assert run(range(0), job) == []


def test_as_many_at_once_as_there_are_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full, marks = tmp_path / "full", tmp_path / "marks"
    marks.mkdir()

    def job(number: int) -> int:
        counts = [0]

        def is_full() -> bool:
            counts.append(len(list(marks.iterdir())))
            return full.exists() or counts[-1] >= 3

        mark = marks / str(number)
        mark.touch()
        wait_until(is_full, 60, 0.02)
        full.touch()
        time.sleep(0.2)
        is_full()
        mark.unlink()
        return max(counts)

    assert max(run(range(9), job)) == 3
    monkeypatch.setenv(chunk.CPUS_VARIABLE, "1.5")
    assert max(run(range(3), job)) == 1


def test_failures_are_reported_one_by_one_and_only_they_run_again(tmp_path: Path) -> None:
    store = Store()

    def job(number: int) -> int:
        with (tmp_path / "ran").open("a") as ran:
            ran.write(f"{number}\n")
        if not (tmp_path / "good").exists():
            if number == 3:
                raise ValueError("three is bad")
            if number == 5:
                os.kill(os.getpid(), signal.SIGKILL)
        return -number

    with pytest.raises(ElementsFailed) as error:
        run(range(8), job, store)
    assert "2 of 8 jobs failed" in str(error.value)
    assert "job 3 (n=3): ValueError: three is bad" in str(error.value)
    assert "job 5 (n=5): its process ended unexpectedly with signal 9" in str(error.value)
    (tmp_path / "good").touch()
    (tmp_path / "ran").unlink()
    assert run(range(8), job, store) == [-n for n in range(8)]
    assert sorted((tmp_path / "ran").read_text().split()) == ["3", "5"]


def test_when_trying_again_is_no_use() -> None:
    def job(number: int) -> None:
        raise AirflowFailException("never")

    with pytest.raises(ElementsFailedForGood, match=r"12 of 12 jobs failed: .*; and 2 more$"):
        run(range(12), job)


def test_a_skipped_job_has_no_output() -> None:
    def job(number: int) -> int:
        if number == 1:
            raise AirflowSkipException
        return number

    assert run(range(3), job) == [0, None, 2]


def test_an_output_that_cannot_be_passed_on_fails_its_job_alone() -> None:
    with pytest.raises(ElementsFailed, match=r"1 of 2 jobs failed: job 1 \(n=1\): its output cannot be pickled"):
        run(range(2), lambda number: (lambda: 1) if number else 0)


def test_requests_reach_the_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    class Supervisor:
        def send(self, msg: int) -> int:
            if msg == 4:
                raise KeyError(msg)
            return msg * 100

    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", Supervisor(), raising=False)

    def job(number: int) -> list[int]:
        return [task_runner.SUPERVISOR_COMMS.send(number) for _ in range(20)]  # type: ignore[arg-type]

    assert run(range(4), job) == [[n * 100] * 20 for n in range(4)]
    with pytest.raises(ElementsFailed, match="KeyError: 4"):
        run(range(4, 5), job)


def test_stop_ends_the_processes(tmp_path: Path) -> None:
    def job(number: int) -> None:
        (tmp_path / str(os.getpid())).touch()
        time.sleep(600)

    stopped = make(range(9), job)

    def stop() -> None:
        wait_until(lambda: len(list(tmp_path.iterdir())) == 3, 60, 0.05)
        stopped.stop()

    threading.Thread(target=stop).start()
    started = time.monotonic()
    with pytest.raises(ChunkStopped, match="stopped with 9 jobs unfinished"):
        stopped.run(str)
    assert time.monotonic() - started < 300
    pids = [int(path.name) for path in tmp_path.iterdir()]
    assert len(pids) == 3
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_what_is_kept_is_split_to_fit() -> None:
    store = Store()
    first = FinishedOutputs(store)
    for number in range(100):
        first.add(number, "x" * 2000)
    first.save()
    assert len(store) > 3
    assert all(sum(map(len, batch.values())) <= 48_000 for batch in store.values())
    again = FinishedOutputs(store)
    assert again.load() == dict.fromkeys(range(100), "x" * 2000)
    again.add(100, {"a": None})
    again.save()
    assert FinishedOutputs(store).load()[100] == {"a": None}


def test_a_store_that_refuses_fails_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Full(Store):
        def set(self, key: str, value: Any) -> None:
            raise RuntimeError("too large")

    with pytest.raises(ElementsFailed, match="1 of 2 jobs failed"):
        run(range(2), lambda number: 1 // number, Full())
    assert "not saved for the next try: too large" in caplog.text
