"""From which addresses files are staged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.hooks.files.stage_addresses import checked_scheme, refusal, scheme_of
from lading.hooks.site import SiteConfig

DEFAULT = SiteConfig(kind="x").stage_schemes


@pytest.mark.parametrize(
    "address", ["s3://b/k", "S3://b/k", "s3a://b/k", "GCS://b/k", "gs://b/k", "abfss://c@a/k", "/x"]
)
def test_object_stores_are_taken_by_any_of_their_names(address: str) -> None:
    assert refusal(address, DEFAULT) is None


@given(st.text(), st.sampled_from(["file", "local", "FILE", "Local", "http", "memory", "zip", "simplecache"]))
def test_nothing_else_is(text: str, scheme: str) -> None:
    for address in (text, f"{scheme}://{text}", f"s3://{text}::{scheme}:///x", f"{scheme}::s3://{text}"):
        if refusal(address, DEFAULT) is None:
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
    assert refusal("s3a://bucket/in/x", DEFAULT, ["s3://bucket/in"]) is None
    assert refusal("s3://bucket/in", DEFAULT, ["s3a://bucket/in/"]) is not None
    assert "input_roots" in str(refusal("s3://bucket/inner", DEFAULT, ["s3://bucket/in"]))
    assert "input_roots" in str(refusal("/data/../etc/passwd", DEFAULT, ["/data"]))
    assert refusal("/data//x", DEFAULT, ["/data/"]) is None
