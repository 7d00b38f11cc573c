"""Names of files, and the addresses from which they are staged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.hooks.files.addresses import checked_scheme, fitting, fitting_path, scheme_of, staging_refusal
from lading.hooks.job_scripts.hook import BatchHook
from lading.hooks.job_scripts.script import JobScript, JobScriptError
from lading.hooks.site import SiteConfig
from tests.clusters.toy_batch import Toy, ToyCluster

DEFAULT = SiteConfig(kind="x").stage_schemes


@given(st.text(max_size=600), st.integers(64, 255))
def test_a_name_fits(name: str, longest: int) -> None:
    short = fitting(name, longest)
    assert len(short.encode(errors="surrogateescape")) <= longest
    assert short == name or len(name.encode(errors="surrogateescape")) > longest


def test_long_names_stay_apart() -> None:
    assert fitting("x" * 300 + "a") != fitting("x" * 300 + "b")
    assert fitting("x" * 255) == "x" * 255
    assert fitting("é" * 128).startswith("é" * 100)


def test_the_log_of_a_task_with_long_ids(tmp_path: Path) -> None:
    path = fitting_path(f"dag_id={'d' * 250}/run_id={'r' * 250}/task_id={'t' * 250}/attempt=1.log")
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text("a log")
    assert path.endswith("/attempt=1.log")
    ordinary = "dag_id=d/run_id=manual__2026-01-01T00:00:00+00:00/task_id=t/attempt=1.log"
    assert fitting_path(ordinary) == ordinary


@pytest.mark.parametrize("key", ["r" * 250, "é" * 250, "dag " * 250])
def test_a_run_is_saved_under_any_key(tmp_path: Path, key: str) -> None:
    cluster = ToyCluster(tmp_path / "toy")
    with BatchHook(Toy(), work_dir=str(tmp_path / "work"), transport=cluster, runs_folder=tmp_path / "runs") as hook:
        run = hook.submit(JobScript("true"), key=key)
        assert hook.submit(JobScript("true"), key=key).token == run.token
        assert hook.submit(JobScript("true"), key=f"{key}2").token != run.token
    assert len(list((tmp_path / "runs").glob("*.json"))) == 2
    assert all(json.loads(path.read_text()) for path in (tmp_path / "runs").glob("*.json"))


def test_the_file_of_a_job_with_a_long_name() -> None:
    for name in ("r" * 250, "é" * 250, "...", "-"):
        filename = JobScript("true", jobname=name).filename
        assert len(filename.encode()) <= 203
        assert filename.endswith(".sh")
        assert not filename.startswith((".", "-"))
    with pytest.raises(JobScriptError, match="is too long; it can have 200 bytes at most"):
        _ = JobScript("true", filename="x" * 300).filename


@pytest.mark.parametrize(
    "address", ["s3://b/k", "S3://b/k", "s3a://b/k", "GCS://b/k", "gs://b/k", "abfss://c@a/k", "/x"]
)
def test_object_stores_are_taken_by_any_of_their_names(address: str) -> None:
    assert staging_refusal(address, DEFAULT) is None


@given(st.text(), st.sampled_from(["file", "local", "FILE", "Local", "http", "memory", "zip", "simplecache"]))
def test_nothing_else_is(text: str, scheme: str) -> None:
    for address in (text, f"{scheme}://{text}", f"s3://{text}::{scheme}:///x", f"{scheme}::s3://{text}"):
        if staging_refusal(address, DEFAULT) is None:
            assert scheme_of(address) in DEFAULT or address.startswith("/") or address[:7].lower() == "file://"


@pytest.mark.parametrize("scheme", ["file", "LOCAL", "simplecache", "zip", "s3://", "a b", "", "s3::file"])
def test_what_no_table_may_list(scheme: str) -> None:
    with pytest.raises(ValueError, match="valid: "):
        checked_scheme(scheme)
    with pytest.raises(ValueError, match="valid: "):
        SiteConfig(kind="x", stage_schemes=(scheme,))


def test_a_table_names_a_store_by_any_of_its_names() -> None:
    assert SiteConfig(kind="x", stage_schemes=("S3A", "s3", "gcs")).stage_schemes == ("s3", "gs")
    assert SiteConfig(kind="x", stage_schemes=()).stage_schemes == ()


def test_roots_name_stores_by_any_of_their_names() -> None:
    assert staging_refusal("s3a://bucket/in/x", DEFAULT, ["s3://bucket/in"]) is None
    assert staging_refusal("s3://bucket/in", DEFAULT, ["s3a://bucket/in/"]) is not None
    assert "input_roots" in str(staging_refusal("s3://bucket/inner", DEFAULT, ["s3://bucket/in"]))
    assert "input_roots" in str(staging_refusal("/data/../etc/passwd", DEFAULT, ["/data"]))
    assert staging_refusal("/data//x", DEFAULT, ["/data/"]) is None
