"""The folders below which sizes are looked up, and what tasks return as plain JSON."""

from __future__ import annotations

import collections
import json
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from airflow.exceptions import AirflowConfigException
from airflow.sdk import Asset, ObjectStoragePath
from airflow.sdk.serde import serialize
from hypothesis import given
from hypothesis import strategies as st

from lading.executors.settings import Settings
from lading.executors.sizing import file_sizes
from lading.executors.sizing.file_sizes import FileSizes, files
from lading.hooks.files.xcom_json import Unknown, plain
from lading.scheduling.hints.expressions import ExpressionError

Pair = collections.namedtuple("Pair", "a b")


def stored(value: Any) -> Any:
    """A value as Airflow keeps it in the database."""
    return json.loads(json.dumps(serialize(value)))


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ([{"a": "/x", "n": 1.5}], [{"a": "/x", "n": 1.5}]),
        ((1, ("/x",)), [1, ["/x"]]),
        ({"/x"}, ["/x"]),
        (frozenset(["/x"]), ["/x"]),
        (Pair(1, "/x"), [1, "/x"]),
        ({"k": [Asset(name="x", uri="s3://b/x")]}, {"k": ["s3://b/x"]}),
        (ObjectStoragePath("s3://b/f"), "s3://b/f"),
        (ObjectStoragePath("s3://b/f", conn_id="c"), "s3://c@b/f"),
        (Decimal("1.5"), 1.5),
        (None, None),
    ],
)
def test_what_airflow_writes_is_read(value: Any, read: Any) -> None:
    assert plain(stored(value)) == read


def test_of_other_classes_only_the_name_is_known() -> None:
    when = plain(stored({"when": datetime.now(timezone.utc), "file": "/x"}))
    assert isinstance(when["when"], Unknown)
    assert list(files(when)) == ["/x"], "a time is no file"
    thing = plain({"x": [{"__classname__": "my.Thing", "__version__": 0, "__data__": {"path": "/etc/shadow"}}]})
    with pytest.raises(ExpressionError, match=r"a my\.Thing, which only the task can read"):
        list(files(thing))


NAMES = st.sampled_from(["__classname__", "__type", "__data__", "__var", "__version__"]) | st.text(max_size=5)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
        max_leaves=6,
    )
)
def test_any_json_is_read(value: Any) -> None:
    plain(value)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """``in`` is allowed, ``out`` is not."""
    for folder in ("in/deep", "out", "inside"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "in/deep/a").write_bytes(b"x" * 10)
    (tmp_path / "out/secret").write_bytes(b"x" * 99)
    (tmp_path / "inside/b").write_bytes(b"x")
    (tmp_path / "in/well").symlink_to(tmp_path / "in/deep/a")
    (tmp_path / "in/link").symlink_to(tmp_path / "out/secret")
    (tmp_path / "in/folder").symlink_to(tmp_path / "out")
    (tmp_path / "alias").symlink_to(tmp_path / "in")
    return tmp_path


@pytest.mark.parametrize("root", ["in", "alias", "in/"])
def test_sizes_below_the_roots(tree: Path, root: str) -> None:
    roots = (f"{tree}/{root}",)
    assert (
        FileSizes(roots).total_bytes([f"{tree}/in/deep", f"{tree}/alias/well", f"file://{tree}/out/../in/deep/a"]) == 30
    )


@pytest.mark.parametrize(
    "path",
    [
        "out/secret", "out/none", "out", "in/link", "in/folder/secret", "in/folder/none", "in/../out/secret",
        "in/%2e%2e/out/secret", "inside/b", "alias/../out", "in",
    ],
)  # fmt: skip
def test_of_other_files_nothing_is_reported(tree: Path, path: str) -> None:
    """Of the last one because it holds a link that leads out."""
    prefix = "file://" if "%" in path else ""
    with pytest.raises(ExpressionError, match=r"is not below \[lading\] input_roots.*CWL File"):
        FileSizes((f"{tree}/in",)).total_bytes(f"{prefix}{tree}/{path}")


def test_objects_below_the_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_sizes, "_object_size", lambda address, count: 5)
    sizes = FileSizes(("s3://b/reads", "/data"))
    assert sizes.total_bytes(["s3://b/reads/a", "s3://b/reads", "s3://b/x/../reads/c"]) == 15
    for address in ("s3://b/readsx", "s3://b/reads/../x", "s3://c/reads/a", "s3://conn@b/reads/a", "s3://b"):
        with pytest.raises(ExpressionError, match="input_roots"):
            sizes.total_bytes(address)
    assert FileSizes().total_bytes("s3://c/reads/a") == 5


class Conf:
    def __init__(self, roots: str) -> None:
        self.roots = roots

    def get(self, section: str, key: str, *, fallback: Any) -> Any:
        return self.roots if key == "input_roots" else fallback


def test_the_option() -> None:
    assert Settings.load(Conf("")).input_roots == ()
    assert Settings.load(Conf("/data, s3://b/x ,/")).input_roots == ("/data", "s3://b/x", "/")
    for wrong in ("data", "/data,", "s3://", "~/x"):
        with pytest.raises(
            AirflowConfigException, match=r"input_roots: .* is not a folder for inputs; valid: absolute"
        ):
            Settings.load(Conf(wrong))
