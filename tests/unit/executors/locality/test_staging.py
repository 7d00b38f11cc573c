"""Which jobs wait for their files, how these are brought, and when the copies go."""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.locality import staging
from lading.executors.locality.staging import Fetch, Staging, StagingLimits
from lading.executors.store import JobRow, State, data
from lading.executors.turns import THREADS, THREADS_PER_DAG
from lading.hooks.site import SiteConfig, StagingArea
from lading.hooks.ssh.answer import CommandResult, TransportError
from lading.hooks.ssh.local_transport import ShellTransport
from lading.hooks.staging import copying, sources
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.model.resources import Resources
from tests.clusters.sites import FakeSite
from tests.reasons import told

READER = WaitingJob(name="reader", resources=Resources(), dag_id="d", run_id="r")


class Machine(ShellTransport):
    """A machine that may be away; its files are those of this one."""

    is_here = False

    def __init__(self) -> None:
        super().__init__()
        self.is_away = False
        self.asked = 0

    def exchange(self, steps: Any, timeout: float = 60.0) -> list[CommandResult]:
        self.asked += 1
        if self.is_away:
            return [CommandResult(None, "", "the machine does not answer") for _ in steps]
        return super().exchange(steps, timeout)


class Lab(FakeSite):
    """Machines with areas, all of them beside each other on this one."""

    def __init__(self, name: str, folder: Path, *machines: str) -> None:
        super().__init__(name, folder)
        self.config = SiteConfig(kind="fake", stage_schemes=("s3", "memory"))
        self.areas = {each: StagingArea(each, Machine(), str(folder / name / each)) for each in machines}

    def staging_area(self, location: str) -> StagingArea:
        return self.areas[location]


class House:
    """A store, sites, and what stages files at them."""

    def __init__(self, folder: Path) -> None:
        engine = create_engine(f"sqlite:///{folder}/store.db")
        store.metadata.create_all(engine)
        self.session = Session(engine)
        self.lab = Lab("lab", folder, "X", "Y")
        self.sites = {"lab": self.lab, "bare": FakeSite("bare", folder)}
        self.staging = Staging(self.sites, lambda: None)

    def job(self, token: str, *files: str, site: str = "lab", location: str = "Y", **columns: Any) -> None:
        amounts = {"cpus": 1.0, "memory": 512, "disk": 0, "gpus": 0.0}
        run = columns.pop("run", "r")
        named = {
            "kind": "ExecuteTask",
            "subject": "s",
            "workload": "{}",
            "dag_id": columns.pop("dag", "d"),
            "run_id": run,
            "task_id": "t",
        }
        numbers = {"priority": 1, "queued_at": 1.0, "map_index": -1, "try_number": 1, "news": 0, "unreported": False}
        stage = {"stage": json.dumps(dict.fromkeys(files))} if files else {}
        state = columns.pop("state", State.PLACED)
        self.session.add(
            JobRow(
                token=token,
                site=site,
                location=location,
                state=state,
                **amounts,
                **named,
                **numbers,
                **stage,
                **columns,
            )
        )
        self.session.flush()

    def left(self, path: Path, location: str = "X") -> None:
        """A task has left a file at a machine."""
        self.job(f"left-{path.name}-{location}", location=location, run="over", state=State.SUCCEEDED)
        event = {"event": "finished", "token": f"left-{path.name}-{location}", "outputs": {str(path): 1}}
        data.note(self.session, "lab", [event])

    def ready(self, **placed: list[str]) -> dict[str, list[str]]:
        found, _ = self.staging.ready(self.session, "lab", placed)
        return {location: list(tokens) for location, tokens in found.items()}

    def row(self, token: str) -> JobRow:
        self.session.expire_all()
        return self.session.get_one(JobRow, token)

    def paths(self, token: str) -> dict[str, str]:
        return dict(json.loads(str(self.row(token).stage)))

    def wait(self, is_over: Callable[[], Any], seconds: float = 120.0) -> Any:
        end = time.monotonic() + seconds
        while not (found := is_over()):
            assert time.monotonic() < end, "it takes too long"
            time.sleep(0.01)
        return found

    def fetch(self, file: Path) -> Fetch:
        """The file as it was requested last."""
        return [each for (_, address, _), each in self.staging.fetches.items() if address == str(file)][-1]

    def copies(self, location: str) -> list[str]:
        return [path.name for path in Path(self.lab.areas[location].folder).glob("*/*")]


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machines share no folder, so nothing is there as it is."""
    found = copying.find_file
    monkeypatch.setattr(copying, "find_file", lambda area, address, version: found(area, f"X{address}", version))
    place = copying.place
    monkeypatch.setattr(copying, "place", lambda address, version: place(address.removeprefix("X"), version))


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (copying, sources):
        monkeypatch.setattr(module, "PART", 2**20)


@pytest.mark.usefixtures("apart", "small_parts")
def test_a_file_is_brought_once_for_all_jobs_of_a_machine_and_is_what_it_was(house: House, tmp_path: Path) -> None:
    file = tmp_path / "it's a file; $(touch x)\n"
    content = os.urandom(3 * 2**20 + 5)
    file.write_bytes(content)
    empty = tmp_path / "empty"
    empty.touch()
    for path in (file, empty):
        house.left(path)
    house.job("plain")
    for number in range(20):
        house.job(f"t{number}", str(file), str(empty))
    tokens = [f"t{number}" for number in range(20)]
    assert house.ready(Y=["plain", *tokens]) == {"Y": ["plain"]}, "what needs no files need not wait"
    house.session.expire_all()
    assert str(told(house.row("t3").reason)) == f"waits: {empty} is being copied to the site"
    came: list[str] = []
    house.wait(lambda: (came.extend(house.ready().get("Y", [])), len(came) == 20)[1])
    assert sorted(came) == sorted(tokens), "they need not be requested again"
    paths = house.paths("t7")
    assert Path(paths[str(file)]).read_bytes() == content
    assert Path(paths[str(file)]).name == file.name
    assert Path(paths[str(empty)]).read_bytes() == b""
    assert stat.S_IMODE(os.stat(paths[str(file)]).st_mode) == 0o400, "what others read is not changed"
    assert told(house.row("t7").reason) is None
    assert sorted(house.copies("Y")) == sorted([file.name, "empty"])
    assert not [each for each in os.listdir(house.lab.areas["Y"].folder) if each.startswith(".")]
    house.job("later", str(file))
    asked = house.lab.areas["Y"].transport.asked  # type: ignore[attr-defined]
    assert house.ready(Y=["later"]) == {"Y": ["later"]}
    assert house.lab.areas["Y"].transport.asked == asked  # type: ignore[attr-defined]
    again = Staging(house.sites, lambda: None)  # another controller finds it there
    house.job("after", str(file))
    house.staging = again
    assert house.ready(Y=["after"]) == {}
    assert house.wait(house.ready) == {"Y": ["after"]}
    assert house.paths("after")[str(file)] == paths[str(file)]
    assert len(house.copies("Y")) == 2


@pytest.mark.usefixtures("apart")
def test_files_are_brought_to_where_room_is_held_before_the_job_is_placed(house: House, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    house.left(file)
    text = json.dumps({str(file): None})
    staging = house.staging

    def missing() -> tuple[str, bool] | None:
        staging.sweep(house.session)
        return told(staging.missing(house.session, "lab", "Y", text, READER))

    assert missing() == (f"waits: {file} is being copied to the site", False)
    assert house.copies("Y") == []
    house.wait(lambda: missing() is None)
    assert house.copies("Y") == ["file"]
    house.job("a", str(file))
    assert house.ready(Y=["a"]) == {"Y": ["a"]}, "it need not wait when its gang begins"
    gone = json.dumps({str(tmp_path / "gone"): None})
    staging.missing(house.session, "lab", "Y", gone, READER)
    staging.sweep(house.session)
    reason, never = house.wait(
        lambda: (found := staging.missing(house.session, "lab", "Y", gone, READER)) and found[1] and found
    )
    assert ("no task has left this file anywhere" in str(reason), never) == (True, True)


@pytest.mark.usefixtures("apart")
def test_a_file_that_was_written_anew_is_brought_anew(house: House, tmp_path: Path) -> None:
    house.staging.limits = StagingLimits(seconds_known=0.0)
    file = tmp_path / "file"
    file.write_text("old")
    house.left(file)
    house.job("a", str(file))
    house.ready(Y=["a"])
    fetch = house.fetch(file)
    house.wait(lambda: fetch.thread is None)
    fetch.limits = StagingLimits()
    first = str(fetch.path)
    file.write_text("newer")
    house.ready()
    house.wait(house.ready)
    assert Path(first).read_text() == "old", "a reader goes on reading that"
    assert Path(house.paths("a")[str(file)]).read_text() == "newer"


def test_what_is_there_as_it_is_is_not_brought(house: House, tmp_path: Path) -> None:
    """Both machines see the same file system."""
    file = tmp_path / "file"
    file.write_text("shared")
    house.left(file)
    nobody_has_left_it = tmp_path / "reference"
    nobody_has_left_it.mkdir()
    folder = tmp_path / "folder"
    folder.mkdir()
    house.left(folder)
    house.job("a", str(file), str(nobody_has_left_it), str(folder))
    house.ready(Y=["a"])
    house.wait(house.ready)
    assert house.paths("a") == {
        str(file): str(file),
        str(nobody_has_left_it): str(nobody_has_left_it),
        str(folder): str(folder),
    }
    assert house.copies("Y") == []


def test_what_is_in_an_object_store_is_brought(house: House, tmp_path: Path) -> None:
    from airflow.sdk import ObjectStoragePath
    from airflow.sdk.io.store import attach
    from fsspec.implementations.memory import MemoryFileSystem

    attach("memory", fs=MemoryFileSystem())
    address = f"memory://bucket/{tmp_path.name}/object.bin"
    ObjectStoragePath(address).write_bytes(b"x" * (8 * 2**20 + 3))
    house.job("a", address)
    house.ready(Y=["a"])
    house.wait(house.ready)
    assert Path(house.paths("a")[address]).read_bytes() == b"x" * (8 * 2**20 + 3)
    assert house.copies("Y") == ["object.bin"]
    missing = f"memory://bucket/{tmp_path.name}/none"
    house.job("b", missing)
    house.ready(Y=["b"])
    house.wait(lambda: house.ready() or house.row("b").state == State.FAILED)
    assert told(house.row("b").reason) == (
        f"{missing} cannot be copied to the site: it no longer exists at its object store"
    )


def test_what_cannot_be_brought_fails_its_job_and_no_other(house: House, tmp_path: Path) -> None:
    gone, good = tmp_path / "gone", tmp_path / "good"
    good.touch()
    house.left(gone)
    house.job("a", str(gone))
    house.job("b", "/nowhere/ever")
    house.job("good", str(good))
    house.ready(Y=["a", "b", "good"])
    assert house.wait(house.ready) == {"Y": ["good"]}
    house.wait(lambda: house.ready() or State.FAILED == house.row("a").state == house.row("b").state)
    start = "cannot be copied to the site"
    assert told(house.row("a").reason) == f"{gone} {start}: it no longer exists at lab/X"
    assert told(house.row("b").reason) == f"/nowhere/ever {start}: no task has left this file anywhere"
    assert house.row("a").unreported, "Airflow is told"
    assert house.staging.waiting["lab"] == {}


def test_a_site_without_staging_areas_says_so(house: House) -> None:
    house.job("a", "/file", site="bare", location="here")
    found, changes = house.staging.ready(house.session, "bare", {"here": ["a"]})
    assert found == {}
    assert [told(each.values["reason"]) for each in changes] == [
        "hint stage: files cannot be copied to site 'bare' of kind 'fake'"
    ]


@pytest.mark.usefixtures("apart")
def test_a_machine_that_is_away_is_waited_for_and_another_that_has_the_file_is_asked(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lading.hooks.ssh.backoff.pause", lambda *_: 0.0)
    house.lab.areas["Z"] = StagingArea("Z", Machine(), str(tmp_path / "Z"))
    file = tmp_path / "file"
    file.write_text("content")
    house.left(file)
    house.lab.areas["X"].transport.is_away = True  # type: ignore[attr-defined]
    house.job("a", str(file))
    house.ready(Y=["a"])
    house.wait(lambda: house.fetch(file).backoff.failures > StagingLimits().failures or house.ready())
    assert house.ready() == {}
    assert "the machine does not answer" in str(told(house.row("a").reason))
    house.left(file, "Z")
    assert house.wait(house.ready) == {"Y": ["a"]}


@pytest.mark.usefixtures("apart")
def test_copies_go_when_no_run_needs_them(house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "SWEEP_INTERVAL", 0.0)
    for name, run in (("one", "r"), ("two", "s")):
        (tmp_path / name).write_text(name)
        house.left(tmp_path / name)
        house.job(name, str(tmp_path / name), run=run)
    house.ready(Y=["one", "two"])
    house.wait(lambda: [house.ready(), len(house.copies("Y")) == 2][1])
    house.wait(lambda: (house.ready(), not house.staging.waiting["lab"])[1])

    def sweep() -> list[str]:
        house.staging.sweep(house.session)
        for thread in house.staging._sweeps.values():
            thread.join()
        return sorted(house.copies("Y"))

    assert sweep() == ["one", "two"]
    house.row("one").state = State.SUCCEEDED
    house.job("of the same run", run="r", state=State.QUEUED)
    assert sweep() == ["one", "two"], "another task of the run may read it"
    house.row("of the same run").state = State.FAILED
    assert sweep() == ["two"]
    assert {address for _, address, _ in house.staging.fetches} == {str(tmp_path / "two")}
    house.row("two").state = State.SUCCEEDED
    house.session.flush()
    house.staging = Staging(house.sites, lambda: None)  # what one controller has left another removes
    assert sweep() == []
    assert house.staging._is_swept


def test_what_has_ended_or_gone_elsewhere_is_not_given(house: House, tmp_path: Path) -> None:
    house.lab.areas["X"].transport.is_away = True  # type: ignore[attr-defined]
    house.left(tmp_path / "file")
    house.job("a", str(tmp_path / "file"))
    house.job("sent", str(tmp_path / "file"), expires_at=5.0)
    assert house.ready(Y=["a", "sent"]) == {"Y": ["sent"]}, "it is there, and gets a new JWT"
    house.row("a").state = State.CANCELLED
    assert house.ready() == {}
    assert house.staging.waiting["lab"] == {}


@pytest.mark.usefixtures("apart")
def test_files_that_no_job_waits_for_any_more_are_not_brought(house: House, tmp_path: Path) -> None:
    files = [tmp_path / f"{number}" for number in range(9)]
    for each in files:
        each.write_text(each.name)
        house.left(each)
    house.job("a", *map(str, files))
    house.job("b", str(files[-1]))
    house.ready(Y=["a"])
    house.row("a").state = State.CANCELLED
    house.session.flush()
    house.wait(lambda: house.ready(Y=["b"]))
    house.wait(lambda: not any(each.thread for each in house.staging.fetches.values()))
    assert "8" in house.copies("Y")
    assert len(house.copies("Y")) <= 1 + StagingLimits().files_per_area, "but for what was on its way"


@pytest.mark.parametrize("text", ["{", "7", "[]"])
def test_a_damaged_row_costs_its_own_job_alone(house: House, tmp_path: Path, text: str) -> None:
    house.lab.areas["X"].transport.is_away = True  # type: ignore[attr-defined]
    house.left(tmp_path / "file")
    house.job("well", str(tmp_path / "file"))
    house.job("damaged", str(tmp_path / "file"))
    house.row("damaged").stage = text
    house.session.flush()
    assert house.ready(Y=["well", "damaged"]) == {}
    assert house.row("damaged").state == State.FAILED
    assert "cannot be read" in str(told(house.row("damaged").reason))
    assert house.staging.waiting["lab"].keys() == {"well"}
    house.row("well").stage = text
    house.staging.sweep(house.session)  # which raises nothing


@pytest.fixture
def own_file(tmp_path: Path) -> Path:
    """A file of the controller's machine, as airflow.cfg is."""
    path = tmp_path / "airflow.cfg"
    path.write_text("fernet_key = secret")
    return path


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("local://{}", "the site accepts no files from local://"),
        ("LOCAL://{}", "the site accepts no files from local://"),
        ("file:{}", "has no scheme"),
        ("airflow.cfg", "has no scheme"),
        ("simplecache::file://{}", "has no scheme"),
        ("memory://x::file://{}", "is an address within another one"),
        ("zip://a::file://{}", "is an address within another one"),
        ("http://127.0.0.1:9/x", "the site accepts no files from http://"),
        ("webhdfs://127.0.0.1/x", "the site accepts no files from webhdfs://"),
        ("ftp://127.0.0.1/x", "the site accepts no files from ftp://"),
        ("gs://bucket/x", "valid: absolute paths, memory://, s3://"),
    ],
)
def test_an_address_that_the_site_does_not_list_is_never_opened(
    house: House, own_file: Path, monkeypatch: pytest.MonkeyPatch, address: str, words: str
) -> None:
    monkeypatch.chdir(own_file.parent)
    opened: list[str] = []
    monkeypatch.setattr(sources.StoredObject, "version", lambda self: opened.append(self.address))
    address = address.format(own_file)
    house.job("a", address)
    assert house.ready(Y=["a"]) == {}
    assert house.row("a").state == State.FAILED
    assert words in str(told(house.row("a").reason))
    assert (opened, house.staging.fetches, house.copies("Y")) == ([], {}, [])
    found, never = house.staging.missing(house.session, "lab", "Y", json.dumps({address: None}), READER) or (
        None,
        False,
    )
    assert (words in str(found), never) == (True, True)


@pytest.mark.usefixtures("apart")
def test_a_file_address_is_a_path_of_machines_whatever_its_capitals(house: House, own_file: Path) -> None:
    house.job("a", f"FILE://{own_file}")
    house.ready(Y=["a"])
    house.wait(lambda: house.ready() or house.row("a").state == State.FAILED)
    assert "no task has left this file anywhere" in str(told(house.row("a").reason))
    assert house.copies("Y") == []


def test_a_store_of_the_list_that_reads_this_disk_is_refused(house: House, own_file: Path) -> None:
    from airflow.sdk.io.store import attach
    from fsspec.implementations.local import LocalFileSystem

    attach("memory", conn_id="disk", fs=LocalFileSystem())
    house.job("a", f"memory://disk@{own_file}")
    house.ready(Y=["a"])
    house.wait(lambda: house.ready() or house.row("a").state == State.FAILED)
    assert "its store (LocalFileSystem) reads the disk of the controller's machine" in str(told(house.row("a").reason))
    assert house.copies("Y") == []


def test_a_store_is_looked_through(tmp_path: Path) -> None:
    import zipfile

    from fsspec.implementations.cached import SimpleCacheFileSystem
    from fsspec.implementations.dirfs import DirFileSystem
    from fsspec.implementations.local import LocalFileSystem
    from fsspec.implementations.memory import MemoryFileSystem
    from fsspec.implementations.zip import ZipFileSystem

    with zipfile.ZipFile(tmp_path / "z.zip", "w") as archive:
        archive.writestr("a", "b")
    disk = LocalFileSystem()
    wrapped = [disk, SimpleCacheFileSystem(fs=disk), DirFileSystem("/", fs=DirFileSystem("/", fs=disk))]
    for each in (*wrapped, ZipFileSystem(str(tmp_path / "z.zip"))):
        with pytest.raises(PermissionError):
            sources.refuse_local("s3://x", each)
    sources.refuse_local("s3://x", DirFileSystem("/", fs=MemoryFileSystem()))
    deep: Any = MemoryFileSystem()
    for _ in range(8):
        deep = DirFileSystem("/", fs=deep)
    with pytest.raises(PermissionError, match="wraps more than"):
        sources.refuse_local("s3://x", deep)


@pytest.mark.usefixtures("apart")
def test_input_roots_count_for_staging(house: House, tmp_path: Path) -> None:
    inside, outside = tmp_path / "in" / "file", tmp_path / "out" / "secret"
    for path in (inside, outside):
        path.parent.mkdir()
        path.write_text(path.name)
        house.left(path)
    link = tmp_path / "in" / "link"
    link.symlink_to(outside)
    house.left(link)
    house.staging = Staging(house.sites, lambda: None, (f"{tmp_path}/in", "s3://bucket/in"))
    house.job("good", str(inside))
    refused = {
        "path": str(outside),
        "beside": f"{tmp_path}/inner",
        "key": "s3://bucket/other",
        "dots": "s3://bucket/in/../other",
        "other": "s3://else@bucket/in/x",
    }
    for token, address in refused.items():
        house.job(token, address)
    house.job("link", str(link))
    house.ready(Y=["good", "link", *refused])
    for token in refused:
        assert "is not below [lading] input_roots" in str(told(house.row(token).reason)), token
    assert house.wait(house.ready) == {"Y": ["good"]}
    house.wait(lambda: house.ready() or house.row("link").state == State.FAILED)
    assert "leads out of [lading] input_roots" in str(told(house.row("link").reason))
    assert house.copies("Y") == ["file"]


def test_a_link_that_is_turned_after_the_look_leads_to_nothing_else(tmp_path: Path) -> None:
    for name in ("in", "out"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name.ljust(3))
    link = tmp_path / "in" / "link"
    link.symlink_to("file")
    source = sources.MachineFile(ShellTransport(), str(link), (f"{tmp_path}/in",))
    size = source.version().size
    assert b"".join(source.parts(size)) == b"in "
    link.unlink()
    link.symlink_to(tmp_path / "out" / "file")
    with pytest.raises(PermissionError, match="leads out of"):
        list(source.parts(size))


def test_slow_sources_of_one_dag_leave_threads_to_others(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, begun = threading.Event(), []

    def version(source: sources.StoredObject) -> sources.FileVersion:
        begun.append(source.address)
        assert slow.wait(60)
        raise FileNotFoundError(source.address)

    monkeypatch.setattr(sources.StoredObject, "version", version)
    areas = {each: StagingArea(each, Machine(), house.lab.areas["Y"].root) for each in ("A", "B", "C", "D")}
    house.lab.areas.update(areas)
    try:
        for number, place in enumerate(areas):
            house.job(f"slow{number}", f"s3://slow/{number}", location=place)
        house.job("other", "s3://other/0", location="A", dag="e")
        house.ready(**{place: [f"slow{number}"] for number, place in enumerate(areas)})
        house.ready(A=["other"])
        house.wait(lambda: len(begun) == THREADS_PER_DAG + 1)
        assert "s3://other/0" in begun
        assert sum(each.thread is not None for each in house.staging.fetches.values()) == THREADS_PER_DAG + 1
    finally:
        slow.set()
        house.wait(lambda: not any(each.thread for each in house.staging.fetches.values()))


@pytest.fixture
def hung(house: House, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Buckets whose name begins with ``hangs`` do not answer until this is set; an object of any other is there."""
    goes_on, real = threading.Event(), sources.StoredObject.version

    def version(source: sources.StoredObject) -> sources.FileVersion:
        if source.address.startswith("s3://hangs"):
            assert goes_on.wait(120)
            raise FileNotFoundError(source.address)
        return sources.FileVersion(3, "x")

    monkeypatch.setattr(sources.StoredObject, "version", version)
    monkeypatch.setattr(sources.StoredObject, "parts", lambda *_: iter([b"abc"]))
    yield goes_on
    goes_on.set()
    monkeypatch.setattr(sources.StoredObject, "version", real)
    for thread in [each for each in threading.enumerate() if each.name == "staging"]:
        thread.join(60)


def let_time_pass(house: House, number: int, what: str = "reading its version from s3://hangs") -> None:
    """So many reads begin to hang, and are late."""

    def hang() -> list[Fetch]:
        fetches = [each for each in house.staging.fetches.values() if each.thread is not None]
        return [each for each in fetches if (reads := each.reads) is not None and reads[0].startswith(what)]

    house.wait(lambda: len(hang()) == number)
    for each in hang():
        assert each.reads is not None
        each.reads = (*each.reads[:2], 0.0)


def test_stores_that_hang_for_two_dags_take_no_thread_from_a_third(house: House, hung: threading.Event) -> None:
    house.lab.areas.update({each: StagingArea(each, Machine(), house.lab.areas["Y"].root) for each in ("A", "B")})
    tokens = {f"{dag}{number}": (dag, number) for dag in ("a", "b") for number in (0, 1)}
    for token, (dag, number) in tokens.items():
        house.job(token, f"s3://hangs-{dag}/{number}", location="AB"[number], dag=dag)
    house.ready(A=["a0", "b0"], B=["a1", "b1"])
    fetches = list(house.staging.fetches.values())
    assert len([each for each in fetches if each.thread is not None]) == THREADS, "there is none left"
    house.job("other", "s3://well/0", location="Y", dag="c")
    assert house.ready(Y=["other"]) == {}
    let_time_pass(house, THREADS)
    assert house.wait(lambda: house.ready(Y=["other"]).get("Y")) == ["other"]
    for token, (dag, number) in tokens.items():
        house.wait(lambda token=token: house.ready() or house.row(token).state == State.FAILED)
        assert str(told(house.row(token).reason)) == (
            f"s3://hangs-{dag}/{number} could not be copied to the site: reading its version from "
            f"s3://hangs-{dag} took longer than 60 s"
        )
    hung.set()
    house.wait(lambda: house.ready() or not any(each.name == "staging" for each in threading.enumerate()))
    assert {each.failure for each in fetches if "hangs" in each.address} == {
        house.row(token).reason for token in tokens
    }, "their later results do not count any more"


def test_one_store_takes_no_more_than_its_threads_whichever_dags_ask(house: House, hung: threading.Event) -> None:
    house.lab.areas.update({each: StagingArea(each, Machine(), house.lab.areas["Y"].root) for each in "ABCD"})
    for place in "ABCD":
        house.job(f"slow{place}", f"s3://hangs/{place}", location=place, dag=place)
        house.ready(**{place: [f"slow{place}"]})
    house.job("other", "s3://well/0", location="Y", dag="e")
    assert house.wait(lambda: house.ready(Y=["other"]).get("Y")) == ["other"]
    at_work = [each.address for each in house.staging.fetches.values() if each.thread is not None]
    assert len(at_work) == StagingLimits().files_per_host


@pytest.mark.parametrize(
    ("limits", "what"),
    [
        (StagingLimits(hanging_at_host=2, hanging_of_dag=64), "2 reads from s3://hangs"),
        (StagingLimits(hanging_at_host=64, hanging_of_dag=2), "2 reads for Dag 'd'"),
    ],
)
def test_where_reads_hang_no_further_one_is_begun_until_they_go_on(
    house: House, hung: threading.Event, limits: StagingLimits, what: str
) -> None:
    house.staging.limits = limits
    for number in range(2):
        house.job(f"hung{number}", f"s3://hangs/{number}")
    house.ready(Y=["hung0", "hung1"])
    let_time_pass(house, 2)
    house.ready()
    assert len(house.staging._hanging) == 2
    house.job("next", "s3://hangs/2")
    house.ready(Y=["next"])
    house.ready()
    words = f"s3://hangs/2 is not copied to the site, because {what} hang; Lading tries again when"
    assert str(told(house.row("next").reason)).startswith(words)
    house.job("other", "s3://well/0", dag="e")
    assert house.wait(lambda: house.ready(Y=["other"]).get("Y")) == ["other"]
    hung.set()
    house.wait(lambda: house.ready() or not house.staging._hanging)
    house.job("again", "s3://well/1")
    assert house.wait(lambda: house.ready(Y=["again"]).get("Y")) == ["again"]


def test_a_part_that_comes_too_late_leaves_nothing(
    house: House, monkeypatch: pytest.MonkeyPatch, hung: threading.Event
) -> None:
    began = threading.Event()

    def parts(*_: object) -> Iterator[bytes]:
        yield b"abc"
        began.set()
        assert hung.wait(120)
        yield b"def"

    monkeypatch.setattr(sources.StoredObject, "parts", parts)
    monkeypatch.setattr(sources.StoredObject, "version", lambda _: sources.FileVersion(6, "x"))
    house.job("a", "s3://well/0")
    house.ready(Y=["a"])
    assert began.wait(60)
    let_time_pass(house, 1, "reading a part of it from s3://well")
    house.ready()
    house.ready()
    assert str(told(house.row("a").reason)).endswith("reading a part of it from s3://well took longer than 180 s")
    hung.set()
    (thread, _, _) = house.staging._hanging[0]
    thread.join(60)
    assert os.listdir(house.lab.areas["Y"].folder) == []


def test_what_arrives_damaged_is_no_copy(tmp_path: Path) -> None:
    class Lies(sources.MachineFile):
        def parts(self, size: int) -> Any:
            yield b"1234"

    class Torn(Machine):
        def exchange(self, steps: Any, timeout: float = 60.0) -> list[CommandResult]:
            torn = [sources.RunCommand(each.command, stdin=each.stdin and b"1235") for each in steps]
            return super().exchange(torn, timeout)

    file = tmp_path / "file"
    file.write_bytes(b"1234")
    source = Lies(Machine(), str(file))
    area = StagingArea("Y", Torn(), str(tmp_path / "Y"))
    with pytest.raises(OSError, match="what arrived is not what was sent"):
        copying.brought(area, str(file), source, source.version())
    assert os.listdir(area.folder) == []
    file.write_bytes(b"changed")
    with pytest.raises(OSError, match="has changed while it was read"):
        copying.brought(
            StagingArea("Y", Machine(), str(tmp_path / "Y")), str(file), source, sources.FileVersion(4, "0")
        )
    away = Machine()
    away.is_away = True
    with pytest.raises(TransportError):
        sources.MachineFile(away, str(file)).version()


# Whose file is brought.


def hold(house: House, site: str, path: Path, location: str = "L", dag: str = "other", run: str = "over") -> None:
    """A task has left a file at a location of some site."""
    token = f"left-{site}-{location}-{path.name}-{dag}-{run}"
    house.job(token, site=site, location=location, dag=dag, run=run, state=State.SUCCEEDED)
    data.note(house.session, site, [{"event": "finished", "token": token, "outputs": {str(path): 1}}])


def more_sites(house: House, folder: Path, *names: str, **options: Any) -> None:
    for name in names:
        house.sites[name] = Lab(name, folder, "L", "M")
        house.sites[name].config = SiteConfig(kind="fake", **options)


def order(house: House, path: Path, dag: str = "d", team: str | None = None, run: str = "r") -> list[str]:
    """By which places a job may read a file, the first one first."""
    reader = WaitingJob(name="reader", resources=Resources(), dag_id=dag, team=team, run_id=run)
    return [each.name for each in house.staging._places(house.session, "lab", str(path), reader)[0]]


def test_a_file_is_read_only_at_sites_that_are_open_to_the_dag_that_reads_it(house: House, tmp_path: Path) -> None:
    file = tmp_path / "patients.csv"
    more_sites(house, tmp_path, "genomics", allowed_teams=["genes"])
    more_sites(house, tmp_path, "etl", allowed_dags=["etl_*"])
    more_sites(house, tmp_path, "open")
    for site in ("genomics", "etl", "open"):
        hold(house, site, file)
    assert order(house, file, "d", "imaging") == ["open/L"]
    assert order(house, file, "d", "genes") == ["genomics/L", "open/L"]
    assert order(house, file, "etl_a") == ["etl/L", "open/L"]


@pytest.mark.usefixtures("apart")
def test_what_only_a_closed_site_holds_fails_the_job_and_is_not_opened(house: House, tmp_path: Path) -> None:
    file = tmp_path / "patients.csv"
    file.write_text("name")
    more_sites(house, tmp_path, "genomics", allowed_teams=["genes"])
    hold(house, "genomics", file)
    house.job("theft", str(file), team="imaging")
    house.job("own", str(file), team="genes")
    house.ready(Y=["theft", "own"])
    assert house.wait(house.ready) == {"Y": ["own"]}
    house.wait(lambda: house.ready() or house.row("theft").state == State.FAILED)
    assert "no task has left this file anywhere" in str(told(house.row("theft").reason))


def test_nothing_is_brought_to_a_site_that_is_closed_to_the_dag(house: House, tmp_path: Path) -> None:
    house.lab.config = SiteConfig(kind="fake", allowed_teams=["genes"])
    file = tmp_path / "file"
    house.left(file)
    house.job("a", str(file), team="imaging")
    assert house.ready(Y=["a"]) == {}
    assert "allowed_teams = ['genes']" in str(told(house.row("a").reason))
    found, never = house.staging.missing(house.session, "lab", "Y", json.dumps({str(file): None}), READER) or ("", 0)
    assert ("allowed_teams" in str(found), never, house.staging.fetches) == (True, True, {})


def test_ones_own_file_counts_before_that_of_others_wherever_it_is(house: House, tmp_path: Path) -> None:
    file = tmp_path / "reference.fa"
    more_sites(house, tmp_path, "aaa", "zzz")
    hold(house, "aaa", file, "L", dag="hostile")
    hold(house, "aaa", file, "M", dag="d", run="before")
    hold(house, "lab", file, "X", dag="hostile")
    hold(house, "lab", file, "Y", dag="d", run="before")
    hold(house, "zzz", file, "L", dag="d", run="r")
    hold(house, "zzz", file, "M", dag="hostile", run="r")
    assert order(house, file) == ["zzz/L", "lab/Y", "aaa/M", "lab/X", "aaa/L", "zzz/M"]


@pytest.mark.usefixtures("apart")
def test_another_dags_file_does_not_stand_in_for_ones_own_that_cannot_be_reached(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lading.hooks.ssh.backoff.pause", lambda *_: 0.0)
    file = tmp_path / "reference.fa"
    file.write_text("own")
    more_sites(house, tmp_path, "aaa", "zzz")
    hold(house, "aaa", file, dag="hostile")
    hold(house, "zzz", file, dag="d", run="r")
    machine = house.sites["zzz"].areas["L"].transport  # type: ignore[attr-defined]
    machine.is_away = True
    house.job("a", str(file))
    house.ready(Y=["a"])
    house.wait(lambda: (house.ready(), house.fetch(file).backoff.failures > StagingLimits().failures)[1])
    assert "the machine does not answer" in str(told(house.row("a").reason))
    assert house.sites["aaa"].areas["L"].transport.asked == 0  # type: ignore[attr-defined]
    machine.is_away = False
    assert house.wait(house.ready) == {"Y": ["a"]}


@pytest.mark.usefixtures("apart")
def test_the_controllers_own_disk_is_read_for_other_sites_only_below_input_roots(house: House, own_file: Path) -> None:
    more_sites(house, own_file.parent, "here")
    house.sites["here"].areas["L"].transport.is_here = True  # type: ignore[attr-defined]
    hold(house, "here", own_file, dag="d", run="r")
    house.job("a", str(own_file))
    house.ready(Y=["a"])
    house.wait(lambda: house.ready() or house.row("a").state == State.FAILED)
    why = "here/L is the controller's own machine, whose files are copied only from folders that [lading] input_roots"
    assert why in str(told(house.row("a").reason))
    assert house.copies("Y") == []
    house.staging = Staging(house.sites, lambda: None, (str(own_file.parent),))
    house.job("b", str(own_file))
    house.ready(Y=["b"])
    assert house.wait(house.ready) == {"Y": ["b"]}
