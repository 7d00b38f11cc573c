from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Asset, ObjectStoragePath

from lading.executors.sizing import file_sizes
from lading.executors.sizing.file_sizes import FileSizes, files
from lading.scheduling.hints.expressions import ExpressionError


def test_files_are_found_however_deep() -> None:
    value = {
        "reads": ["/data/a.fq", ["s3://bucket/b.fq"], {"x": "file:///c.fq"}],
        "no": ["text", "a/b", "http://example.org/x", 3, None, b"/bytes", "https://s3/x"],
        "cwl": {"class": "File", "location": "file:///d.bam", "secondaryFiles": [{"class": "File", "path": "/d.bai"}]},
        "known": {"class": "File", "location": "http://elsewhere", "size": 7},
        "asset": Asset(name="x", uri="s3://bucket/e"),
        "path": ObjectStoragePath("s3://bucket/f"),
    }
    assert sorted(map(str, files(value))) == sorted(
        [
            "/data/a.fq",
            "s3://bucket/b.fq",
            "file:///c.fq",
            "file:///d.bam",
            "/d.bai",
            "7",
            "s3://bucket/e",
            "s3://bucket/f",
        ]
    )


def test_sizes(tmp_path: Path) -> None:
    (tmp_path / "a b").write_bytes(b"x" * 100)
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    (tmp_path / "folder" / "deep" / "c").write_bytes(b"x" * 10)
    sizes = FileSizes()
    assert sizes.total_bytes(str(tmp_path / "a b")) == 100
    assert sizes.total_bytes(f"file://{tmp_path}/a%20b") == 100
    assert sizes.total_bytes([str(tmp_path / "folder"), {"class": "File", "path": "/x", "size": 1}]) == 11
    assert sizes.total_bytes([str(tmp_path / "a b")] * 3) == 100, "a file that is named twice counts once"
    assert sizes.total_bytes([1, "text"]) == 0


@pytest.mark.parametrize("form", ["{}/none", "file://{}/none"])
def test_a_missing_file(form: str, tmp_path: Path) -> None:
    with pytest.raises(ExpressionError, match=r"there is no file .*/none on the machine of Lading's controller"):
        FileSizes().total_bytes(form.format(tmp_path))


def test_what_cannot_be_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(address: str, count: Any) -> int:
        raise RuntimeError("no credentials")

    monkeypatch.setattr(file_sizes, "_object_size", refuse)
    with pytest.raises(
        ExpressionError, match="the size of s3://b/x cannot be determined: RuntimeError: no credentials"
    ):
        FileSizes().total_bytes("s3://b/x")
