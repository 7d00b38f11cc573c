"""To which deployment a folder belongs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lading.hooks.files.owner import Owner
from lading.hooks.spool import server


def test_an_owner_follows_from_the_key_else_from_the_database() -> None:
    first = Owner.from_key("key", "sqlite:///a.db", "here")
    assert Owner.from_key(" new , key ", "", "there").ids[1] == first.ids[0] != Owner.from_key("new", "", "here").ids[0]
    databases = [f"postgresql+psycopg2://{who}@db.example.org:5432/airflow" for who in ("me:old", "me:new", "other")]
    assert len({Owner.from_key("", each, "here").ids[0] for each in databases}) == 1, "its password was changed"
    assert (
        Owner.from_key("", "postgresql://db/a", "here").ids[0] != Owner.from_key("", "postgresql://db/b", "here").ids[0]
    )
    assert (
        Owner.from_key("", "sqlite:////home/a.db", "x").ids[0] != Owner.from_key("", "sqlite:////home/b.db", "x").ids[0]
    )


def test_a_file_system_without_links_has_marks_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: object) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", link)
    server.claim(str(tmp_path / "a" / "b"), ["1"], "one\nline")
    assert {path.name: path.read_text() for path in (tmp_path / "a" / "b").iterdir()} == {"owner": "1 one line\n"}
    with pytest.raises(OSError, match="another deployment of Lading"):
        server.claim(str(tmp_path / "a" / "b"), ["2"], "two")


def test_the_first_of_two_at_the_same_time_is_the_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.link

    def link(source: str, target: str) -> None:
        Path(target).write_text("1 one\n")
        real(source, target)

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(OSError, match=r"another deployment of Lading, one \(1\), and this one is two \(2\)"):
        server.claim(str(tmp_path), ["2"], "two")
    assert [path.name for path in tmp_path.iterdir()] == ["owner"]
