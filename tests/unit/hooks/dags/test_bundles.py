"""The Dag bundles of this machine, and what a job learns of its own."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.bundles.base import BaseDagBundle
from airflow.dag_processing.bundles.manager import DagBundlesManager

from lading.hooks.dags import bundles as dag_bundles
from lading.hooks.dags.bundles import AirflowBundles, Bundle, BundleRefused, BundleUnavailable, DagBundles

LOCAL = "airflow.dag_processing.bundles.local.LocalDagBundle"


class Commits(BaseDagBundle):
    """A bundle with versions, each of which is made when it is asked for."""

    supports_versioning = True
    made: list[str | None] = []  # noqa: RUF012

    def __init__(self, root: str, **fields: Any) -> None:
        super().__init__(**fields)
        self.root = Path(root)

    @property
    def path(self) -> Path:
        return self.root / (self.version or "latest")

    def initialize(self) -> None:
        self.made.append(self.version)
        if self.version == "unknown":
            raise RuntimeError("Version unknown not found in the repository")
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / "dag.py").write_text(f"{self.version} {len(self.made)}")
        super().initialize()

    def get_current_version(self) -> None:
        return None

    def refresh(self) -> None:
        """The test does that."""


@pytest.fixture
def configure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH", str(tmp_path / "storage"))
    monkeypatch.setattr(Commits, "made", [])

    def configure(*bundles: dict[str, Any]) -> None:
        monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST", json.dumps(bundles))

    return configure


def local(folder: Path, name: str = "mine") -> dict[str, Any]:
    return {"name": name, "classpath": LOCAL, "kwargs": {"path": str(folder)}}


def test_a_local_bundle_is_looked_at_again_each_time(configure: Any, tmp_path: Path) -> None:
    configure(local(tmp_path / "dags"))
    bundles = DagBundles(1)
    with pytest.raises(BundleUnavailable, match=r"'mine' cannot be read: .*No such file"):
        bundles.snapshot(Bundle("mine", None))
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags/dag.py").write_text("1")
    first = bundles.snapshot(Bundle("mine", None), pack=True)
    assert first is not None
    assert (first.files, first.size, first.archive is None) == (1, 1, False)
    again = bundles.snapshot(Bundle("mine", "v1"), {first.hash}, pack=True)
    assert again is not None
    assert (again.hash, again.archive) == (first.hash, None), "what is at the site is not packed"
    (tmp_path / "dags/dag.py").write_text("2")
    changed = bundles.snapshot(Bundle("mine", None))
    assert changed is not None
    assert changed.hash != first.hash


def test_a_version_is_fetched_once_and_never_changes(configure: Any, tmp_path: Path) -> None:
    configure({"name": "git", "classpath": f"{__name__}.Commits", "kwargs": {"root": str(tmp_path / "git")}})
    bundles = DagBundles(1)
    found = [bundles.snapshot(Bundle("git", version)) for version in ("a", "b", "a", "a", "b")]
    assert len({each.hash for each in found if each}) == 2
    assert Commits.made == ["a", "b"]
    with pytest.raises(BundleUnavailable, match="Version unknown not found"):
        bundles.snapshot(Bundle("git", "unknown"))


def test_without_a_version_it_is_fetched_again_after_its_interval(configure: Any, tmp_path: Path) -> None:
    kwargs = {"root": str(tmp_path / "git"), "refresh_interval": 3600}
    configure({"name": "git", "classpath": f"{__name__}.Commits", "kwargs": kwargs})
    bundles = DagBundles(1)
    first, second = (bundles.snapshot(Bundle("git", None)) for _ in range(2))
    assert first == second
    kwargs["refresh_interval"] = -1
    configure({"name": "git", "classpath": f"{__name__}.Commits", "kwargs": kwargs})
    bundles.source._manager = None
    third = bundles.snapshot(Bundle("git", None))
    assert third is not None
    assert first is not None
    assert third.hash != first.hash
    assert Commits.made == [None, None]


def test_examples_come_with_their_packages(configure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(local(tmp_path))
    monkeypatch.setenv("AIRFLOW__CORE__LOAD_EXAMPLES", "True")
    bundles = DagBundles(1)
    assert bundles.snapshot(Bundle("example_dags", None)) is None
    assert bundles.source.names() == ["mine"]
    with pytest.raises(BundleRefused, match=r"'other' is not in .*; valid: mine"):
        bundles.snapshot(Bundle("other", None))


def test_a_bundle_that_is_too_large(configure: Any, tmp_path: Path) -> None:
    configure(local(tmp_path))
    (tmp_path / "dag.py").write_text("x")
    (tmp_path / "data.bin").write_bytes(bytes(3 * 2**19))
    (tmp_path / "more.bin").write_bytes(bytes(2**19))
    with pytest.raises(BundleRefused, match=r"has 2.0 MiB, more than max_bundle_size = 1 MiB; .* data.bin \(1.5 MiB\)"):
        DagBundles(1).snapshot(Bundle("mine", None))
    assert DagBundles(3).snapshot(Bundle("mine", None)) is not None


def test_nothing_waits_for_a_slow_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dag_bundles.DagBundles, "patience", 0.01)
    fetched = threading.Event()

    class Slow(AirflowBundles):
        def is_installed(self, name: str) -> bool:
            return False

        @contextmanager
        def open(self, bundle: Bundle) -> Iterator[Path]:
            fetched.wait(120)
            yield tmp_path

    bundles = DagBundles(1, Slow())
    for _ in range(2):
        with pytest.raises(BundleUnavailable, match="'slow' is still being read"):
            bundles.snapshot(Bundle("slow", None))
    fetched.set()
    assert bundles.wait(Bundle("slow", None), 120).files == 0


def test_airflow_finds_the_bundle_of_a_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "$HOME/0a1b"
    workload = {"bundle_info": {"name": "git $USER", "version": "abc"}}
    for name, value in dag_bundles.environment(workload, str(folder)).items():
        monkeypatch.setenv(name, value)
    found = DagBundlesManager().get_bundle("git $USER", "abc")
    assert found.path == folder
    assert list(DagBundlesManager().get_all_bundle_names()) == ["git $USER"]


@pytest.mark.parametrize("workload", [{}, {"bundle_info": None}, {"bundle_info": {"name": None, "version": None}}])
def test_a_workload_without_a_bundle(workload: dict[str, Any]) -> None:
    assert dag_bundles.of_workload(workload) is None
