"""The content of a folder: what counts, and what it costs to look again."""

from __future__ import annotations

import io
import os
import socket
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from lading.hooks.dags import snapshot
from lading.hooks.dags.snapshot import FolderChanged, Hashes, TooManyFiles, members, packed
from tests.services.outside_clocks import off


def make(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def hash_of(folder: Path) -> str:
    return Hashes().hash_folder(members(str(folder)))


def test_names_contents_and_the_right_to_execute_count(tmp_path: Path) -> None:
    one = make(tmp_path / "one", dag="a", lib__util="b")
    other = make(tmp_path / "other", lib__util="b", dag="a")
    os.utime(other / "dag", (1, 1))
    assert hash_of(one) == hash_of(other)
    seen = {hash_of(one)}
    (other / "dag").chmod(0o755)
    seen.add(hash_of(other))
    (other / "dag").write_text("c")
    seen.add(hash_of(other))
    (other / "dag").rename(other / "dog")
    seen.add(hash_of(other))
    assert len(seen) == 4


def test_what_is_no_part_of_it(tmp_path: Path) -> None:
    folder = make(tmp_path / "dags", dag="a")
    before = hash_of(folder)
    make(folder, **{".git__config": "x", "lib__.git__config": "x", "__pycache__": "x"})
    (folder / "dag.pyc").write_text("x")
    os.mkfifo(folder / "pipe")
    (folder / "nowhere").symlink_to("missing")
    (folder / "itself").symlink_to("itself")
    (folder / "above").symlink_to(".")
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(folder)  # the address of a socket is short
        try:
            server.bind("socket")
        finally:
            os.chdir(here)
        assert hash_of(folder) == before


def test_links_are_followed(tmp_path: Path) -> None:
    library = make(tmp_path / "library", util="b")
    folder = make(tmp_path / "dags", dag="a")
    (folder / "lib").symlink_to(library)
    (folder / "util").symlink_to(library / "util")
    assert [member.name for member in members(str(folder))] == ["dag", "lib/util", "util"]


def test_only_what_has_changed_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    digest = snapshot._digest

    def counted(member: snapshot.SnapshotFile) -> bytes:
        read.append(member.name)
        return digest(member)

    monkeypatch.setattr(snapshot, "_digest", counted)
    folder = make(tmp_path, one="1", two="2")
    hashes = Hashes()
    first = hashes.hash_folder(members(str(folder)))
    assert hashes.hash_folder(members(str(folder))) == first
    assert read == ["one", "two"] * 2, "they are so young that they may change unseen"
    hashes.young = 0
    for _ in range(2):
        assert hashes.hash_folder(members(str(folder))) == first
    assert read == ["one", "two"] * 3
    stamps = (folder / "two").stat()
    (folder / "two").write_text("3")
    os.utime(folder / "two", ns=(stamps.st_atime_ns, stamps.st_mtime_ns))
    assert hashes.hash_folder(members(str(folder))) != first, "the time of a file can be set, that of its entry cannot"
    assert read[6:] == ["two"]


def test_the_archive_holds_what_was_hashed(tmp_path: Path) -> None:
    folder = make(tmp_path / "dags", dag="a", lib__util="bb")
    (folder / "dag").chmod(0o755)
    archive, hash = packed(members(str(folder)))
    assert hash == hash_of(folder)
    with tarfile.open(fileobj=io.BytesIO(archive)) as found:
        assert [(each.name, each.mode, each.size) for each in found] == [("dag", 0o700, 1), ("lib/util", 0o600, 2)]
        found.extractall(tmp_path / "there", filter="data")
    assert hash_of(tmp_path / "there") == hash


def test_a_file_that_changes_while_it_is_read(tmp_path: Path) -> None:
    folder = make(tmp_path, dag="a")
    found = members(str(folder))
    (folder / "dag").write_text("longer")
    with pytest.raises(FolderChanged, match="dag has changed"):
        packed(found)
    (folder / "dag").write_text("b")
    assert packed(found)[1] != Hashes().hash_folder(found[:0])


def test_a_folder_that_is_none_of_dags(tmp_path: Path) -> None:
    assert len(members(str(make(tmp_path, a="", b="")), most=2)) == 2
    with pytest.raises(TooManyFiles, match="more than 2 files"):
        members(str(make(tmp_path, c="")), most=2)
    with pytest.raises(FileNotFoundError):
        members(str(tmp_path / "missing"))


@off
def test_a_file_that_was_just_seen_first_is_read_again_whatever_clock_dates_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    """A file server may date two changes alike."""
    folder, now = make(tmp_path, dag="1"), time.monotonic()
    hashes, (member,) = Hashes(), members(str(folder))
    stamp = time.time_ns() + int(ahead * 1e9)
    alike = replace(member, identity=(member.identity[0], stamp, stamp))
    monkeypatch.setattr(time, "monotonic", lambda: now)
    first = hashes.hash_folder([alike])
    make(tmp_path, dag="2")
    assert (second := hashes.hash_folder([alike])) != first
    now += snapshot.Hashes.young + 1
    assert hashes.hash_folder([alike]) == second
    monkeypatch.setattr(snapshot, "_digest", lambda member: b"it is read again and again")
    assert hashes.hash_folder([alike]) == second
