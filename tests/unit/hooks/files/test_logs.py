"""Lasting trouble that is logged once."""

from __future__ import annotations

import logging
import re

import pytest

from lading.hooks.files.logs import VARYING, Trouble


@pytest.mark.parametrize(
    ("text", "sign"),
    [
        ("pid 17 at 12:30", "pid # at #:#"),
        ("job deadbeef-1, face", "job #, face"),
        ("x3fz", "x#z"),
        ("-1-", "#"),
        ("abc", "abc"),
    ],
)
def test_times_ids_and_counts_are_no_other_trouble(text: str, sign: str) -> None:
    assert re.sub(VARYING, "#", text) == sign


def test_long_texts_are_read_in_linear_time(caplog: pytest.LogCaptureFixture) -> None:
    """In quadratic time this takes an hour."""
    trouble = Trouble(logging.getLogger("lading.test"))
    for number in range(3):
        trouble.begin("It fails", ValueError(f"{'a' * 300_000} {number}"))
    assert caplog.text.count("It fails") == 1
