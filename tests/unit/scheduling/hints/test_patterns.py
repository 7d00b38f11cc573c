"""Regular expressions on inputs, which choose among targets."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest

from lading.executors.sizing.sizing import matched_targets
from lading.hooks.files.xcom_json import Unknown
from lading.hooks.site.rules import parse_bindings, published_bindings
from lading.operators import resources
from lading.scheduling.hints.expressions import ExpressionError
from lading.scheduling.hints.hints import HintError, Hints
from lading.scheduling.hints.patterns import (
    MOST_PATTERNS,
    MOST_SEARCHES,
    matching_targets,
    parse_matching,
    searches,
)
from lading.scheduling.matching.bindings import Binding
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
    "pattern",
    [
        "^big_", r"\.(bam|cram)$", "s[a-z(+]*_.{3}x+", r"\)*", "(?:a|b)c", ".*.*.*.*.*x", "[]+]*", "(a+)+b", "(a|a)*b",
        r"\w*\w*\w*" + r"\w" * 100 + "!", r"(?:a*a*)\w[ab]{0,99}(a)\Sa[ab]b[ab]", "(a?){100}(a){100}", r"[\w-]{0,250}x",
        "(?i)(a|b)(c|d)",
    ],
)  # fmt: skip
def test_patterns_that_take_no_long_time_are_taken(pattern: str) -> None:
    parse_matching({"hpc": {"sample": pattern}})
    begun = time.process_time()
    for text in ("a" * 250, "ab" * 250, "s" * 200 + "_", "x" * 100 + "!", "\ud800" * 250):
        matching_targets(("hpc",), parse_matching({"hpc": {"sample": pattern}}), {"sample": text})
    assert time.process_time() - begun < 5


@pytest.mark.parametrize(
    ("pattern", "part"),
    [
        (r"(a)\1", r"invalid escape sequence: \1; valid is the syntax of RE2"),
        ("(?=a)b", "invalid perl operator: (?=; valid"),
        ("(?<!a)b", "invalid perl operator: (?<!; valid"),
        ("(?P<n>a)(?P=n)", "invalid perl operator: (?P; valid"),
        ("a++", "bad repetition operator: ++; valid"),
        (r"a\Z", r"invalid escape sequence: \Z; valid"),
        (r"\pL{200}", "pattern too large"),
        ("a{1001}", "invalid repetition size: {1001}; valid"),
        ("a\ud800", "surrogates not allowed"),
        ("(", "missing ): ("),
        ("", "of input 'sample', is not a regular expression of 1 to 250 characters"),
        (5, "of input 'sample', is not a regular expression of 1 to 250 characters"),
        ("a" * 251, "of input 'sample', is not a regular expression of 1 to 250 characters"),
    ],
)
def test_what_is_no_pattern_of_re2_is_refused_with_the_part_that_is_wrong(
    pattern: object, part: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(HintError, match="hint matching: ") as refused:
        Hints.parse({"targets": ["hpc"], "matching": {"hpc": {"sample": pattern}}})
    assert part in str(refused.value)
    assert capfd.readouterr() == ("", "")  # RE2 would write it there itself


def test_there_are_only_so_many_patterns() -> None:
    tables = [{f"x{number}": "a" for number in range(MOST_PATTERNS // 2)}] * 2
    assert searches(parse_matching({"hpc": tables})) == MOST_PATTERNS
    with pytest.raises(HintError, match="hint matching: there are too many patterns; valid: at most 100"):
        Hints.parse({"targets": ["hpc", "local"], "matching": {"hpc": tables, "local": {"x": "a"}}})
    chunk = [{"x0": "a"}] * (MOST_SEARCHES // MOST_PATTERNS + 1)
    with pytest.raises(HintError, match="100 patterns for the inputs of 201 jobs require 20,100 searches"):
        matched_targets(Hints(targets=("hpc",), matching=parse_matching({"hpc": tables})), chunk)


def test_of_several_tables_one_is_enough() -> None:
    written = resources(targets=["hpc", "local"], matching={"hpc": [{"sample": "^big_"}, {"size": "^[5-9]", "n": "1"}]})
    matching = Hints.from_config(json.loads(json.dumps(written))).matching
    for inputs, left in (
        ({"sample": "big_1"}, ("hpc", "local")),
        ({"sample": "small", "size": 7, "n": 1}, ("hpc", "local")),
        ({"sample": "small", "size": 7, "n": 2}, ("local",)),
        ({}, ("local",)),
    ):
        assert matching_targets(("hpc", "local"), matching, inputs) == left
    with pytest.raises(HintError, match=r"hint matching: 'hpc' = .* has no inputs"):
        Hints.parse({"targets": ["hpc"], "matching": {"hpc": [{"sample": "a"}, {}]}})
    with pytest.raises(HintError, match=r"hint matching: 'hpc' = .* has no inputs"):
        Hints.parse({"targets": ["hpc"], "matching": {"hpc": []}})
    tables = [{"sample": "^big_"}, {"size": "^[5-9]"}]
    [binding] = parse_bindings([{"targets": ["hpc"], "matching": {"hpc": tables}}], ["hpc"])
    [again] = map(Binding.from_table, json.loads(json.dumps(published_bindings([binding]))))
    assert again == binding
    assert again.hints()["matching"] == {"hpc": tables}


def test_patterns_are_for_targets_of_the_task() -> None:
    written = resources(targets=["hpc/long", "local"], matching={"hpc/long": {"sample": "^big_"}})
    assert Hints.from_config(written).matching == (("hpc/long", ((("sample", "^big_"),),)),)
    with pytest.raises(HintError, match="hint matching: 'cloud' is not one of its targets; valid: hpc"):
        Hints.parse({"targets": ["hpc"], "matching": {"cloud": {"sample": "x"}}})
    for wrong in ({}, {"hpc": {}}, {"hpc": "x"}, 5):
        with pytest.raises(HintError, match="hint matching: "):
            Hints.parse({"targets": ["hpc"], "matching": wrong})
    [binding] = parse_bindings(
        [{"targets": ["hpc", "local"], "matching": {"hpc": {"sample": "^big_"}}}], ["hpc", "local"]
    )
    assert binding.hints() == {"targets": ["hpc", "local"], "matching": {"hpc": {"sample": "^big_"}}}
    with pytest.raises(ValueError, match=re.escape("[[bindings]] 1: matching: 'cloud' is not one of its targets")):
        parse_bindings([{"targets": ["hpc"], "matching": {"cloud": {"sample": "x"}}}], ["hpc"])


def test_of_a_large_input_no_more_is_written_as_json_than_is_looked_at() -> None:
    written: list[int] = []

    class Sample:
        def __str__(self) -> str:
            written.append(1)
            return "s"

    assert matching_targets(TARGETS, MATCHING, {"sample": [Sample()] * 100_000}) == ("local",)
    assert 0 < len(written) <= 250


def test_a_job_keeps_the_targets_that_all_its_inputs_match() -> None:
    hints = Hints(targets=TARGETS, filters=("shuffle",), matching=MATCHING)
    found = matched_targets(hints, [{"sample": "big_1", "lane": 1}, {"sample": "big_2.bam", "lane": 2}])
    assert of_text(found["targets"]) == (("hpc/long", "local"), ("shuffle",))
    only = Hints(targets=("hpc/long",), matching=MATCHING[:1])
    with pytest.raises(HintError, match="its inputs match none of its targets hpc/long"):
        matched_targets(only, [{"sample": "small", "lane": 1}])
    with pytest.raises(ExpressionError, match="input 'sample', which has to be matched, is unknown: it was deleted"):
        matched_targets(only, [{"sample": Unknown("it was deleted")}])
    with pytest.raises(HintError, match=r"targets hpc/long; it has no input 'sample'.*: its inputs are lane"):
        matched_targets(only, [{"lane": 1}])


def test_a_pattern_for_a_site_is_for_all_of_its_queues_that_have_none_of_their_own() -> None:
    targets = ("hpc/long", "hpc@genomics/short", "hpc/debug", "local")
    written = resources(targets=list(targets), matching={"hpc": {"sample": "^big_"}, "hpc/debug": {"sample": "^try_"}})
    matching = Hints.from_config(written).matching
    assert matching_targets(targets, matching, {"sample": "big_1"}) == ("hpc/long", "hpc@genomics/short", "local")
    assert matching_targets(targets, matching, {"sample": "try_1"}) == ("hpc/debug", "local")
    parse_bindings([{"targets": ["hpc/long"], "matching": {"hpc": {"sample": "^big_"}}}], ["hpc"])
