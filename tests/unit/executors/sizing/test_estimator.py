"""The threads that find out what jobs ask for: nothing spins, and no Dag waits for another Dag's files."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from airflow.models.xcom import XComModel
from sqlalchemy import insert, select
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DataError, OperationalError
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.settings import Settings
from lading.executors.sizing import estimator, file_sizes, sizing
from lading.executors.sizing.estimator import Estimator
from lading.executors.sizing.file_sizes import FileSizes
from lading.executors.sizing.inputs import kept
from lading.executors.store import JobRow, State, strikes
from lading.plugin.host import AirflowHost
from lading.scheduling.model.reasons import Reason
from tests.reasons import told
from tests.services.processes import wait_until


class Conf:
    def get(self, section: str, key: str, *, fallback: Any) -> Any:
        return fallback


class House:
    """An estimator with its store, stepped as a controller does it."""

    def __init__(self, engine: Engine, holder: str = "first") -> None:
        self.engine = engine
        self.rings = 0
        self.starts = 0
        self.estimator = Estimator(AirflowHost(), Settings.load(Conf()), self.ring, lambda site: None, {}, holder)
        start = self.estimator._start

        def counted(jobs: Any, **options: Any) -> None:
            self.starts += 1
            start(jobs, **options)

        self.estimator._start = counted  # type: ignore[method-assign]

    def ring(self) -> None:
        self.rings += 1

    def add(self, token: str, hints: dict[str, Any], sources: dict[str, Any] | None = None, **columns: Any) -> None:
        defaults: dict[str, Any] = {
            "kind": "ExecuteTask", "subject": token, "workload": "{}", "state": State.QUEUED, "cpus": 1.0, "memory": 1,
            "disk": 0, "gpus": 0.0, "priority": 0, "queued_at": 1.0, "dag_id": "d", "run_id": "r", "task_id": "t",
            "map_index": -1, "try_number": 1, "sizing": json.dumps({"hints": hints, "sources": sources or {}}),
        }  # fmt: skip
        with Session(self.engine) as session:
            store.add_job(session, token=token, **{**defaults, **columns})
            session.commit()

    def push(self, value: Any, task_id: str = "before") -> None:
        ids = {"dag_run_id": 1, "dag_id": "d", "run_id": "r", "task_id": task_id, "map_index": -1}
        columns = {**ids, "key": "return_value", "value": value, "timestamp": datetime.now(timezone.utc)}
        with Session(self.engine) as session:
            session.execute(insert(XComModel.__table__), columns)
            session.commit()

    def step(self) -> None:
        with Session(self.engine) as session:
            changes, _ = self.estimator.step(session)
            sizing.stored(session, changes)
            session.commit()
        self.estimator.start()

    def take_over(self, holder: str) -> House:
        """The next controller, where this one was killed."""
        with Session(self.engine) as session:
            strikes.charge(session, holder)
            session.commit()
        return House(self.engine, holder)

    def job(self, token: str) -> JobRow:
        with Session(self.engine) as session:
            return session.scalars(select(JobRow).where(JobRow.token == token)).one()

    def is_known(self, token: str) -> bool:
        job = self.job(token)
        return job.sizing is None or job.state == State.FAILED

    def step_until(self, there: Callable[[], bool], seconds: float = 20.0) -> None:
        def stepped() -> bool:
            self.step()
            return there()

        assert wait_until(stepped, seconds, 0.05)


@pytest.fixture
def house(airflow_database: Engine) -> House:
    return House(airflow_database)


@pytest.fixture
def hung() -> Iterator[threading.Event]:
    """Set when what hangs shall go on."""
    event = threading.Event()
    yield event
    event.set()


def file(path: object) -> dict[str, Any]:
    return {"fixed": {"x": {"value": str(path)}}}


def test_a_retry_waits_for_the_end_of_its_earlier_try_and_no_longer(house: House) -> None:
    house.add("first", {}, state=State.RUNNING, sizing=None)
    house.add("second", {"memory": "1 GiB * attempt"}, try_number=2)
    until = time.monotonic() + 2
    while time.monotonic() < until:
        house.step()
        time.sleep(0.05)
    assert house.starts == 1
    assert house.rings == 0
    with Session(house.engine) as session:
        store.apply(session, [store.Change("first", {"state": State.FAILED, "cause": "error", "ended_at": 2.0})])
        session.commit()
    house.step_until(lambda: house.is_known("second"), 1.0)
    assert house.starts == 2
    assert house.job("second").memory == 2048


def test_of_inputs_that_were_deleted_only_those_jobs_fail_that_need_them(house: House) -> None:
    rows = {"rows": {"xcom": ["before", "return_value"], "mapped": False}}
    house.push([{"n": 2}])
    house.add("well", {"memory": "n * 1 GiB"}, rows, map_index=0)
    house.add("deleted", {"memory": "n * 1 GiB"}, rows, map_index=3)
    house.add("wrong", {"memory": "n * 1 GiB"}, {"rows": {"value": [7]}}, map_index=0, task_id="t2")
    mapped = {"method": None, "mapped": {"n": {"xcom": ["before", "return_value"], "mapped": False}}}
    house.add("beyond", {"memory": "len(n) * 1 GiB"}, mapped, map_index=1, task_id="t3")
    house.add("gone", {"memory": "len(n) * 1 GiB"}, mapped, map_index=0, task_id="t4", run_id="r2")
    house.step_until(lambda: all(map(house.is_known, ("well", "deleted", "wrong", "beyond", "gone"))))
    assert (house.job("well").state, house.job("well").memory) == (State.QUEUED, 2048)
    for token, words in {
        "deleted": "no inputs for map index 3 from what before returned: only 1 exist now",
        "wrong": "the inputs of map index 0 are 7; valid: a dict",
        "beyond": "no inputs for map index 1 from what before returned: only 1 exist now",
        "gone": "input n is None: task before returned nothing, or its output was deleted",
    }.items():
        assert house.job(token).state == State.FAILED
        assert words in (told(house.job(token).reason) or ""), token


def test_whatever_is_wrong_with_one_job_is_its_own(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    real = sizing.size_job

    def sized(job: Any, *rest: Any) -> Any:
        if job.token == "bad":
            raise RuntimeError("unheard of")
        return real(job, *rest)

    monkeypatch.setattr(sizing, "size_job", sized)
    for token in ("good", "bad"):
        house.add(token, {"memory": "1 GiB * attempt"})
    house.add("torn", {}, sizing='{"hints": ')
    house.step_until(lambda: all(map(house.is_known, ("good", "bad", "torn"))))
    assert house.job("good").state == State.QUEUED
    assert "RuntimeError: unheard of" in (told(house.job("bad").reason) or "")
    assert "its requests cannot be read" in (told(house.job("torn").reason) or "")


def test_a_size_that_no_column_takes_fails_its_job_alone(house: House) -> None:
    huge = {"class": "File", "location": "s3://bucket/x", "size": 10**30}
    sizes = {"method": None, "fixed": {}, "mapped": {"x": {"value": [huge, {**huge, "size": 7}]}}}
    for index, token in enumerate(("huge", "small")):
        house.add(token, {"memory": "1 GiB if input_size > 1 MiB else 2 GiB"}, sizes, map_index=index)
    house.step_until(lambda: all(map(house.is_known, ("huge", "small"))))
    assert "cannot be stored: OverflowError" in (told(house.job("huge").reason) or "")
    assert (house.job("small").state, house.job("small").memory) == (State.QUEUED, 2048)


@pytest.mark.parametrize("error", [RuntimeError("unheard of"), DataError("select", {}, Exception("no JSON"))])
def test_what_cannot_be_read_of_one_job_is_its_own(
    house: House, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    real = sizing.earlier_tries

    def earlier_tries(session: Session, jobs: Any) -> Any:
        if any(job.token == "bad" for job in jobs):
            raise error
        return real(session, jobs)

    monkeypatch.setattr(sizing, "earlier_tries", earlier_tries)
    for index, token in enumerate(("good", "bad", "well")):
        house.add(token, {"memory": "1 GiB"}, map_index=index)
    house.step_until(lambda: all(map(house.is_known, ("good", "bad", "well"))))
    assert [house.job(token).state for token in ("good", "bad", "well")] == [State.QUEUED, State.FAILED, State.QUEUED]


def test_a_row_that_is_damaged_takes_no_inputs_from_its_siblings(house: House) -> None:
    house.add("torn", {}, sizing='{"hints": ', map_index=0)
    sources = {"method": None, "mapped": {"n": {"value": [1, 2]}}}
    house.add("whole", {"memory": "n * 1 GiB"}, sources, map_index=1)
    house.step_until(lambda: all(map(house.is_known, ("torn", "whole"))))
    assert (house.job("torn").state, house.job("whole").memory) == (State.FAILED, 2048)


class Deadly:
    """Jobs over which a controller hangs until the test ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, hung: threading.Event, *tokens: str) -> None:
        self.tokens = tokens
        self.tried: list[str] = []
        real = sizing.answer

        def answer(question: Any, *rest: Any, **more: Any) -> Any:
            if question.job.token in self.tokens and not isinstance(question.inputs, (Exception, Reason)):
                self.tried.append(question.job.token)
                hung.wait()
            return real(question, *rest, **more)

        monkeypatch.setattr(sizing, "answer", answer)


def test_a_job_over_which_two_controllers_have_died_is_not_tried_by_a_third(
    house: House, monkeypatch: pytest.MonkeyPatch, hung: threading.Event
) -> None:
    deadly = Deadly(monkeypatch, hung, "deadly")
    for index, token in enumerate(("before", "deadly", "behind")):
        house.add(token, {"memory": "1 GiB"}, map_index=index)
    house.add("elsewhere", {"memory": "1 GiB * attempt"}, dag_id="other")
    house.step_until(lambda: deadly.tried == ["deadly"])
    second = house.take_over("second")
    assert [second.job(token).strikes for token in ("before", "deadly", "behind")] == [1, 1, 1]
    second.step_until(lambda: len(deadly.tried) == 2)
    assert [work.tokens for work in second.estimator.under_way] == [{"deadly"}], "it is looked at alone"
    second.add("newcomer", {"memory": "1 GiB * attempt"}, dag_id="third")
    third = second.take_over("third")
    ended = third.job("deadly")
    assert (ended.state, ended.cause, ended.unreported) == (State.FAILED, "error", True)
    assert "2 controllers died or hung while determining its requests" in (told(ended.reason) or "")
    third.add("again", {"memory": "1 GiB"}, map_index=1, try_number=2)
    third.step_until(lambda: all(map(third.is_known, ("before", "behind", "elsewhere", "newcomer", "again"))))
    assert [third.job(token).state for token in ("before", "behind", "newcomer")] == [State.QUEUED] * 3
    assert [third.job(token).strikes for token in ("before", "behind", "newcomer")] == [None] * 3
    assert "it has the same requests as an earlier try" in (told(third.job("again").reason) or "")
    assert deadly.tried == ["deadly"] * 2


def test_of_mapped_siblings_two_are_tried_and_no_more(
    house: House, monkeypatch: pytest.MonkeyPatch, hung: threading.Event
) -> None:
    tokens = [f"deadly{number}" for number in range(6)]
    deadly = Deadly(monkeypatch, hung, *tokens)
    for index, token in enumerate(tokens):
        house.add(token, {"memory": "1 GiB"}, map_index=index)
    holders = iter(["second", "third", "fourth"])
    for tried in range(1, 4):
        house.step_until(lambda tried=tried: len(deadly.tried) == tried)  # type: ignore[misc]
        house = house.take_over(next(holders))
    house.step_until(lambda: all(map(house.is_known, tokens)))
    assert {house.job(token).state for token in tokens} == {State.FAILED}
    assert "as 2 other mapped instances of its task" in (told(house.job("deadly5").reason) or "")
    assert deadly.tried == ["deadly0", "deadly0", "deadly1"]


def test_struck_jobs_and_the_others_take_turns(house: House) -> None:
    for index in range(3):
        house.add(f"struck{index}", {"memory": "1 GiB * attempt"}, task_id=f"t{index}", strikes=1)
        house.add(f"other{index}", {"memory": "1 GiB * attempt"}, dag_id=f"d{index}")
    begun: list[list[str]] = []
    start = house.estimator.start

    def started() -> None:
        if house.estimator.beginning:
            begun.append(sorted(token for work in house.estimator.beginning for token in work.tokens))
        start()

    house.estimator.start = started  # type: ignore[method-assign]
    tokens = [f"{what}{index}" for what in ("struck", "other") for index in range(3)]
    house.step_until(lambda: all(map(house.is_known, tokens)))
    assert begun[:2] == [["struck0"], ["other0", "other1", "other2"]]
    assert sorted(begun[2:]) == [["struck1"], ["struck2"]]


def test_what_was_not_committed_is_begun_anew(house: House) -> None:
    house.add("a", {"memory": "1 GiB * attempt"})
    with Session(house.engine) as session:
        house.estimator.step(session)
        session.rollback()
    house.step_until(lambda: house.is_known("a"))


def test_a_failure_of_the_database_fails_no_job(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = iter([OperationalError("select", {}, Exception("away"))] * 2)
    real = sizing.earlier_tries

    def earlier_tries(*arguments: Any) -> Any:
        if error := next(errors, None):
            raise error
        return real(*arguments)

    monkeypatch.setattr(sizing, "earlier_tries", earlier_tries)
    house.add("a", {"memory": "1 GiB * attempt"})
    house.step_until(lambda: house.is_known("a"))
    assert house.job("a").state == State.QUEUED
    assert house.starts == 3


def test_nothing_waits_for_another_dags_folders(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hung: threading.Event
) -> None:
    def slow(self: FileSizes, root: str, address: str) -> int:
        hung.wait()
        return 2**20

    monkeypatch.setattr(FileSizes, "_folder", slow)
    for number in range(8):
        (tmp_path / str(number)).mkdir()
        house.add(f"slow{number}", {"memory": "input_size"}, file(tmp_path / str(number)), task_id=f"t{number}")
    house.step()
    house.add("quick", {"memory": "1 GiB * attempt"}, dag_id="other")
    house.step_until(lambda: house.is_known("quick"), 5)
    assert len(house.estimator.under_way) == estimator.THREADS_PER_DAG
    hung.set()
    house.step_until(lambda: all(house.is_known(f"slow{number}") for number in range(8)))


def test_a_file_system_that_hangs_fails_the_job_and_takes_only_the_dags_own_threads(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hung: threading.Event
) -> None:
    real = FileSizes._path

    def path(self: FileSizes, address: str) -> int:
        if "mount" in address:
            hung.wait()
        return real(self, address)

    monkeypatch.setattr(FileSizes, "_path", path)
    monkeypatch.setattr(estimator.SizingWork, "seconds_until_hanging", 0.4)
    for number in range(4):
        house.add(f"hung{number}", {"memory": "input_size"}, file(f"/mount/{number}"), task_id=f"t{number}")
    house.step_until(lambda: len(house.estimator.hanging) == estimator.THREADS_PER_DAG)
    ended = [house.job(f"hung{number}") for number in range(4)]
    reasons = [told(job.reason) for job in ended if job.state == State.FAILED]
    assert len(reasons) == estimator.THREADS_PER_DAG
    assert "could not be determined within the limit of 20 s; the last one was that of /mount/" in (reasons[0] or "")
    assert '"class": "File"' in (reasons[0] or "")
    house.add("quick", {"memory": "1 GiB * attempt"}, dag_id="other")
    house.step_until(lambda: house.is_known("quick"), 5)
    kept = [thread for thread in threading.enumerate() if thread.name == "sizing" and not thread.daemon]
    assert kept == [], "none of them keeps the process"
    monkeypatch.setattr(FileSizes, "_path", lambda self, address: 2**20)
    hung.set()
    house.step_until(lambda: all(house.is_known(f"hung{number}") for number in range(4)))


@pytest.fixture
def mount(monkeypatch: pytest.MonkeyPatch, hung: threading.Event) -> None:
    """All below ``/mount`` hangs."""
    real = FileSizes._path

    def path(self: FileSizes, address: str) -> int:
        if address.startswith("/mount"):
            hung.wait()
        return real(self, address)

    monkeypatch.setattr(FileSizes, "_path", path)
    monkeypatch.setattr(file_sizes, "mount_points", lambda: ["/mount"])
    monkeypatch.setattr(estimator.SizingWork, "seconds_until_hanging", 0.4)


@pytest.mark.usefixtures("mount")
def test_one_mount_that_hangs_for_many_dags_stops_no_other_place(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hung: threading.Event
) -> None:
    house.estimator.most_hanging = 4 + estimator.THREADS
    tokens = [f"hung{number}" for number in range(30)]
    for number, token in enumerate(tokens):
        house.add(token, {"memory": "input_size"}, file(f"/mount/{number}/a"), dag_id=f"d{number // 2}", task_id=token)
    house.step_until(lambda: all(map(house.is_known, tokens)), 30)
    assert all("the last one was that of /mount/" in (told(house.job(token).reason) or "") for token in tokens)
    assert len(house.estimator.hanging) < house.estimator.most_hanging
    monkeypatch.setattr(
        estimator.SizingWork, "seconds_until_hanging", 1200.0
    )  # a busy machine is slow with what does not hang
    (tmp_path / "a").write_bytes(b"x" * 2**21)
    for number in range(15):
        house.add(f"well{number}", {"memory": "input_size"}, file(tmp_path / "a"), dag_id=f"d{number}")
    house.step_until(lambda: all(house.is_known(f"well{number}") for number in range(15)), 10)
    assert {house.job(f"well{number}").memory for number in range(15)} == {2}
    monkeypatch.setattr(FileSizes, "_path", lambda self, address: 2**20)
    hung.set()
    house.step_until(lambda: not house.estimator.hanging)
    house.add("healed", {"memory": "input_size"}, file("/mount/0/a"))
    house.step_until(lambda: house.is_known("healed"))
    assert house.job("healed").memory == 1


@pytest.mark.usefixtures("mount")
def test_a_plain_retry_waits_for_no_look_that_hangs(house: House) -> None:
    house.estimator.most_hanging = 2
    for number in range(3):
        house.add(f"hung{number}", {"memory": "input_size"}, file(f"/mount/{number}/a"), task_id=f"t{number}")
    house.step_until(lambda: len(house.estimator.hanging) == house.estimator.most_hanging)
    for dag in ("d", "other"):
        house.add(f"retry of {dag}", {"memory": "1 GiB"}, dag_id=dag, task_id="plain", try_number=2)
    house.step_until(lambda: house.is_known("retry of d") and house.is_known("retry of other"), 5)
    assert house.job("retry of d").memory == 1024
    assert len(house.estimator.hanging) == house.estimator.most_hanging


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("/nfs/a/b", "/nfs"),
        ("/nfs", "/nfs"),
        ("file:///nfs/a", "/nfs"),
        ("/nfs/deep/a", "/nfs/deep"),
        ("/x/../nfs/a", "/nfs"),
        ("/nfs2/a/b", "/nfs2/a"),
        ("s3://bucket/a/b", "s3://bucket"),
    ],
)
def test_what_hangs_together(address: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_sizes, "mount_points", lambda: ["/proc", "/nfs", "/nfs/deep"])
    assert file_sizes.place(address) == expected


@pytest.mark.skipif(not Path("/proc/self/mountinfo").exists(), reason="this machine has no /proc/self/mountinfo")
def test_mounts_are_found_without_a_look_at_them() -> None:
    found = file_sizes.mount_points()
    assert "/proc" in found
    assert "/" not in found


def test_folders_are_looked_at_once_in_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = file_sizes.KnownSizes()
    (tmp_path / "a").write_bytes(b"x" * 10)
    assert FileSizes((), known).total_bytes(str(tmp_path)) == 10
    (tmp_path / "b").write_bytes(b"x" * 5)
    assert FileSizes((), known).total_bytes([str(tmp_path), str(tmp_path / "b")]) == 15, (
        "a file itself is looked at each time"
    )
    monkeypatch.setattr(file_sizes.time, "monotonic", lambda now=time.monotonic: now() + file_sizes.SECONDS_KEPT + 1)
    assert FileSizes((), known).total_bytes(str(tmp_path)) == 15


class Few(FileSizes):
    most_entries = 20


class NoTime(FileSizes):
    most_seconds = -1.0


def test_many_files_are_too_many(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / str(number)).touch()
    known = file_sizes.KnownSizes()
    for _ in range(2):
        with pytest.raises(sizing.ExpressionError, match=r'the limit of 20 files .*"size": BYTES'):
            Few((), known).total_bytes(str(tmp_path))
    (tmp_path / "few").mkdir()
    (tmp_path / "few" / "a").write_bytes(b"x")
    assert Few((), known).total_bytes(str(tmp_path / "few")) == 1
    assert Few((), known).total_bytes({"class": "File", "location": str(tmp_path), "size": 7}) == 7
    with pytest.raises(sizing.ExpressionError, match=r"could not be determined within the limit of"):
        NoTime((), known).total_bytes(str(tmp_path / "few"))


@pytest.mark.parametrize("keeps_inputs", [False, True])
def test_the_values_of_inputs_are_kept_where_plugins_ask_for_them(house: House, keeps_inputs: bool) -> None:
    house.estimator.keeps_inputs = keeps_inputs
    house.push([1, {"b": None}])
    fixed = {
        "x": {"xcom": ["before", "return_value"], "mapped": False},
        "long": {"value": "y" * 1000},
        "there": {"value": "z"},
        "strange": {"unknown": "it is a template"},
    }
    house.add("a", {}, {"fixed": fixed})
    house.step_until(lambda: house.is_known("a"))
    values = house.job("a").input_values
    assert (None if values is None else json.loads(values)) == (
        [{"x": [1, {"b": None}], "there": "z"}] if keeps_inputs else None
    )


def test_of_a_chunk_the_first_elements_are_kept_as_far_as_they_are_short() -> None:
    many = [{"x": str(number) * 990} for number in range(10)]
    assert json.loads(kept(many) or "") == many[:8]
    assert kept([]) is None


def test_of_a_value_that_is_too_long_no_more_is_written_than_says_that() -> None:
    written: list[int] = []

    class Large(dict[str, int]):
        def items(self) -> Any:
            for number in range(100_000):
                written.append(number)
                yield str(number), number

    assert kept([{"x": Large(any=1), "y": 1}]) == '[{"y": 1}]'
    assert 0 < len(written) <= 1000


def test_no_class_is_imported_that_the_data_names(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    house.push({"rows": [1], "x": {"__classname__": "trap.Trap", "__version__": 1, "__data__": {"uri": "/etc/shadow"}}})
    source = {"fixed": {"x": {"xcom": ["before", "return_value"], "mapped": False}}}
    house.add("a", {"memory": "input_size"}, source)
    house.step_until(lambda: house.is_known("a"))
    assert "trap.Trap, which only the task can read" in (told(house.job("a").reason) or "")
    assert "trap" not in sys.modules
