"""Regular expressions on inputs, which choose among targets."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from lading.executors.estimation.matched_targets import matched
from lading.executors.estimation.xcom_json import Unknown
from lading.hooks.site.bindings import parse
from lading.operators import resources
from lading.scheduling.hints.expressions import ExpressionError
from lading.scheduling.hints.hints import HintError, Hints
from lading.scheduling.hints.patterns import LONGEST_INPUT, matching_targets, parse_matching
from lading.scheduling.matching.stops import of_text

TARGETS = ("hpc/long", "hpc/short", "local")
MATCHING = parse_matching({"hpc/long": {"sample": "^big_", "lane": "[12]"}, "hpc/short": {"sample": r"\.bam$"}})


@pytest.mark.parametrize(
    ("inputs", "left"),
    [
        ({"sample": "big_1.bam", "lane": 1}, TARGETS),
        ({"sample": "big_1.cram", "lane": [2, 3]}, ("hpc/long", "local")),
        ({"sample": "big_1.cram", "lane": 3}, ("local",)),
        ({"sample": "small.bam"}, ("hpc/short", "local")),
        ({}, ("local",)),
    ],
)
def test_of_a_target_every_pattern_has_to_be_found_and_one_without_is_for_all(
    inputs: dict[str, Any], left: tuple[str, ...]
) -> None:
    assert matching_targets(TARGETS, MATCHING, inputs) == left


@pytest.mark.parametrize(
    "pattern", ["^big_", r"\.(bam|cram)$", "s[a-z(+]*_.{3}x+", r"\)*", "(?:a|b)c", ".*.*.*x", "[]+]*"]
)
def test_patterns_that_take_no_long_time_are_taken(pattern: str) -> None:
    parse_matching({"hpc": {"sample": pattern}})
    begun = time.process_time()
    for text in ("a" * LONGEST_INPUT, "ab" * LONGEST_INPUT, "s" * 200 + "_"):
        matching_targets(("hpc",), parse_matching({"hpc": {"sample": pattern}}), {"sample": text})
    assert time.process_time() - begun < 5


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+b",
        "(a|a)*b",
        r"(a)\1",
        "(?=a)b",
        "(?P<n>a)(?P=n)",
        ".*.*.*.*x",
        "a?a?a?a?",
        "(a|b)(c|d)(e|f)(g|h)",
        "(",
        "",
        5,
        "(a{9}){9}",
        "a" * 251,
    ],
)
def test_a_pattern_that_may_take_long_or_is_none_is_refused(pattern: object) -> None:
    with pytest.raises(HintError, match="hint matching: "):
        Hints.parse({"targets": ["hpc"], "matching": {"hpc": {"sample": pattern}}})


def test_patterns_are_for_targets_of_the_task() -> None:
    written = resources(targets=["hpc/long", "local"], matching={"hpc/long": {"sample": "^big_"}})
    assert Hints.of(written).matching == (("hpc/long", (("sample", "^big_"),)),)
    with pytest.raises(HintError, match="hint matching: 'cloud' is none of its targets; valid: hpc"):
        Hints.parse({"targets": ["hpc"], "matching": {"cloud": {"sample": "x"}}})
    for wrong in ({}, {"hpc": {}}, {"hpc": "x"}, 5):
        with pytest.raises(HintError, match="hint matching: "):
            Hints.parse({"targets": ["hpc"], "matching": wrong})
    [binding] = parse([{"targets": ["hpc", "local"], "matching": {"hpc": {"sample": "^big_"}}}], ["hpc", "local"])
    assert binding.hints() == {"targets": ["hpc", "local"], "matching": {"hpc": {"sample": "^big_"}}}
    with pytest.raises(ValueError, match=re.escape("[[bindings]] 1: matching: 'cloud' is no target of it")):
        parse([{"targets": ["hpc"], "matching": {"cloud": {"sample": "x"}}}], ["hpc"])


def test_a_job_keeps_the_targets_that_all_its_inputs_match() -> None:
    hints = Hints(targets=TARGETS, filters=("shuffle",), matching=MATCHING)
    found = matched(hints, [{"sample": "big_1", "lane": 1}, {"sample": "big_2.bam", "lane": 2}])
    assert of_text(found["targets"]) == (("hpc/long", "local"), ("shuffle",))
    only = Hints(targets=("hpc/long",), matching=MATCHING[:1])
    with pytest.raises(HintError, match="its inputs match none of its targets hpc/long"):
        matched(only, [{"sample": "small", "lane": 1}])
    with pytest.raises(ExpressionError, match="is not known: it was deleted"):
        matched(only, [{"sample": Unknown("it was deleted")}])
