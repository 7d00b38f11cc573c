"""What is left on a disk that jobs and others fill, and the folders of jobs on it."""

from __future__ import annotations

import os
import shutil
import stat
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from lading.executors.agent.scratch import MIB, SWEPT, JobScratch, Scratch, remove, root, sweep, sweep_for_batch_jobs
from tests.services.outside_clocks import off, set_clock


class Disk:
    """A file system with so many MiB free."""

    def __init__(self) -> None:
        self.free = 100

    def usage(self, folder: Path) -> SimpleNamespace:
        return SimpleNamespace(free=self.free * MIB)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(shutil, "disk_usage", disk.usage)
    return disk


def test_what_is_promised_is_not_promised_again_used_or_not(disk: Disk, tmp_path: Path) -> None:
    scratch = Scratch(str(tmp_path))
    assert scratch.measure(0) == 100
    assert scratch.measure(60) == 40
    disk.free = 50  # the job has used 50 of its 60
    assert scratch.measure(60) == 40


def test_what_others_write_is_gone(disk: Disk, tmp_path: Path) -> None:
    scratch = Scratch(str(tmp_path))
    assert scratch.measure(0) == 100
    disk.free = 10
    assert scratch.measure(30) == 10
    assert scratch.measure(0) == 10
    assert scratch.measure(30) == 0


def test_after_a_new_start_nothing_is_known_of_what_jobs_have_used(disk: Disk, tmp_path: Path) -> None:
    assert Scratch(str(tmp_path)).measure(60) == 40


def test_what_others_delete_comes_free(disk: Disk, tmp_path: Path) -> None:
    scratch = Scratch(str(tmp_path))
    assert scratch.measure(30) == 70
    disk.free = 500
    assert scratch.measure(30) == 470


def test_the_folder_of_a_job_is_its_own_and_goes(tmp_path: Path) -> None:
    made = JobScratch(str(tmp_path), "a")
    assert made.path.stat().st_mode & 0o777 == 0o700
    sub = made.path / "modules"
    sub.mkdir()
    (sub / "file").write_text("x")
    sub.chmod(0o500)  # as Go's module cache is
    assert sweep(root(str(tmp_path)), 0.0, time.time() + 1e6) == ([], []), "it lives"
    assert made.path.exists()
    made.end(keep=0.0, disk=5)
    assert list(root(str(tmp_path)).iterdir()) == []


def test_the_folder_of_a_failed_job_stays_for_a_while_and_counts(tmp_path: Path) -> None:
    made, parent = JobScratch(str(tmp_path), "a"), root(str(tmp_path))
    made.end(keep=100.0, disk=5)
    ((kept,), hidden) = sweep(parent, 0.0, time.time() + 90)
    assert (kept.disk, hidden, made.path.exists()) == (5, [], True)
    assert sweep(parent, 0.0, time.time() + 101) == ([], [parent / ".a"])
    assert not made.path.exists()


def test_a_job_that_died_without_a_report_has_failed(tmp_path: Path) -> None:
    made, parent = JobScratch(str(tmp_path), "a"), root(str(tmp_path))
    os.close(made._held)  # as its end does
    found = time.time() + 1000
    ((kept,), _) = sweep(parent, 100.0, found)
    assert kept.mark.name == "a.kept"
    assert sweep(parent, 100.0, found + 90)[0] == [kept]
    assert sweep(parent, 100.0, found + 101)[0] == []


@off
def test_folders_are_kept_by_the_clock_that_dates_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    """Nodes share the scratch space: the clock of the one whose job failed is right, that of the one that looks is off;
    and the other way round."""
    for token, here in (("there", 0.0), ("here", ahead)):
        with monkeypatch.context() as clock:
            set_clock(clock, here)
            JobScratch(str(tmp_path), token).end(keep=1800.0, disk=10)
    JobScratch(str(tmp_path), "over").end(keep=0.001, disk=10)
    over = root(str(tmp_path)) / "over.kept"
    os.utime(over, (over.stat().st_mtime - 2,) * 2)
    set_clock(monkeypatch, ahead)
    scratch = Scratch(str(tmp_path), 1800.0)
    scratch.expire()
    assert sorted(each.mark.name for each in scratch.kept) == ["here.kept", "there.kept"]
    assert abs(scratch.kept[0].until - scratch.kept[1].until) < 600
    if scratch._remover is not None:
        scratch._remover.wait(120)


def test_room_that_a_job_needs_is_made_by_giving_up_the_oldest_first(tmp_path: Path) -> None:
    for token, keep in (("later", 200.0), ("first", 100.0)):
        JobScratch(str(tmp_path), token).end(keep, disk=10)
    scratch = Scratch(str(tmp_path), 100.0)
    scratch.expire()
    assert scratch.counted == 20
    scratch.make_room()
    assert [each.mark.name for each in scratch.kept] == ["later.kept"]
    assert scratch._remover is not None
    assert scratch._remover.wait(120) == 0
    assert sorted(path.name for path in root(str(tmp_path)).iterdir()) == ["later", "later.kept"]


@pytest.mark.parametrize(("age", "is_swept"), [(None, True), (5.0, False), (61.0, True), (-3600.0, True)])
def test_of_the_batch_jobs_of_a_minute_one_removes_what_killed_jobs_left(
    tmp_path: Path, age: float | None, *, is_swept: bool
) -> None:
    killed, parent = JobScratch(str(tmp_path), "killed"), root(str(tmp_path))
    os.close(killed._held)
    if age is not None:
        (parent / SWEPT).touch()
        os.utime(parent / SWEPT, (time.time() - age,) * 2)
    sweep_for_batch_jobs(str(tmp_path), 600.0)
    assert (parent / "killed.kept").exists() == is_swept
    assert (time.time() - (parent / SWEPT).stat().st_mtime < 4) == is_swept
    sweep_for_batch_jobs(str(tmp_path / "missing"), 600.0)
    assert not (tmp_path / "missing").exists()


def test_a_folder_that_others_may_use_is_not_used(tmp_path: Path) -> None:
    (tmp_path / f"lading-{os.geteuid()}").symlink_to(tmp_path)
    other = JobScratch(str(tmp_path), "a").path.parent
    assert other.name.startswith(f"lading-{os.geteuid()}-")
    assert other == root(str(tmp_path))
    other.chmod(0o770)
    assert root(str(tmp_path)) != other


def test_a_variable_of_the_machine_leads_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAST", str(tmp_path))
    assert JobScratch("$FAST", "a").path.parent.parent == tmp_path
    monkeypatch.delenv("FAST")
    with pytest.raises(OSError, match="its variable is not set"):
        JobScratch("$FAST/x", "a")


def test_links_that_a_job_has_left_lead_nowhere(tmp_path: Path) -> None:
    other, folder = tmp_path / "other", tmp_path / "folder"
    other.mkdir(mode=0o500)
    folder.mkdir()
    (folder / "link").symlink_to(other)
    remove(folder)
    assert not folder.exists()
    assert other.stat().st_mode & 0o777 == 0o500


def test_what_is_hidden_and_no_folder_goes_and_its_target_stays_as_it_is(tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "inside").mkdir(parents=True)
    for folder in (other / "inside", other):
        folder.chmod(0o755)
    (tmp_path / ".link").symlink_to(other)
    os.mkfifo(tmp_path / ".fifo")
    (tmp_path / ".file").touch()
    for name in (".link", ".fifo", ".file", ".gone"):
        remove(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in (other, other / "inside")} == {0o755}


@pytest.mark.parametrize("make", ["fifo", "folder", "link"])
def test_a_lock_that_is_no_file_is_no_lock_to_wait_for(tmp_path: Path, make: str) -> None:
    JobScratch(str(tmp_path), "a").end(0.0, 0)
    lock = root(str(tmp_path)) / "b.lock"
    {"fifo": os.mkfifo, "folder": os.mkdir, "link": lambda path: os.symlink("/etc/passwd", path)}[make](lock)
    with pytest.raises(OSError, match=r"b\.lock exists and is not a file: remove it"):
        JobScratch(str(tmp_path), "b")


@pytest.mark.parametrize("make", ["fifo", "text", "folder", "negative", "huge", "link", "binary"])
def test_what_a_job_leaves_beside_the_folders_neither_stops_nor_misleads(tmp_path: Path, make: str) -> None:
    JobScratch(str(tmp_path), "a").end(100.0, disk=5)
    parent = root(str(tmp_path))
    for name in ("x.kept", "y.lock"):
        path = parent / name
        if make == "fifo":
            os.mkfifo(path)
        elif make == "folder":
            path.mkdir()
        elif make == "link":
            path.symlink_to("/dev/zero" if name == "x.kept" else "/etc/passwd")
        elif make == "huge":
            with path.open("wb") as stream:
                stream.truncate(2**40)
        else:
            path.write_bytes({"text": b"many", "negative": b"-99999999", "binary": b"\xff\xb2"}[make])
    found, hidden = sweep(parent, 100.0, time.time())
    assert {each.mark.name for each in found} <= {"a.kept", "y.kept"}
    assert sum(each.disk for each in found) == 5
    assert hidden == []
    scratch = Scratch(str(tmp_path), 100.0)
    scratch.expire()
    assert scratch.counted == 5
    scratch.make_room()
    assert scratch.counted == 0
