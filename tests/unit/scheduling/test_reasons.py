from __future__ import annotations

import json
import string
from typing import Any

import pytest

from lading.scheduling.reasons import CAUSES, CODES, NEW, Actor, Code, Form, Reason, because, combined, free_text
from lading.scheduling.resources import Resources

NUMBERS = {
    *("after", "attempt", "attempts", "held", "here", "left", "members", "most", "number", "price", "seconds", "spent"),
    *("tasks", "until", "used", "vcpus"),
}
LISTS = {"images", "locations", "names", "nodes", "taken", "types"}
SAMPLES = {"needs": Resources(2, 100), "all": Resources(1, 100), "lacks": ("cpus", 4, 2, "memory", 200, 100)}


def fields(template: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(template) if name}


def sample(code: Code) -> Reason:
    def value(name: str) -> Any:
        return SAMPLES.get(name) or (3 if name in NUMBERS else ("one", "two") if name in LISTS else f"the-{name}")

    return because(code.key, **{name: value(name) for name in fields(code.sentence) | fields(code.limit)})


@pytest.mark.parametrize("code", CODES.values(), ids=lambda code: code.key)
def test_each_code_has_all_that_people_are_told(code: Code) -> None:
    assert all((code.key, code.kind, code.title, code.sentence, code.remedy, code.actors))
    assert all(isinstance(each, Actor) for each in code.actors)
    assert len(code.key) <= 40
    assert code.title[0].isupper()
    assert not code.title.endswith(".")
    assert code.remedy[0].isupper()
    assert code.remedy.endswith(".")
    assert not code.sentence.endswith(".")
    assert not code.sentence.startswith("waits: ")
    assert code.sentence.startswith("waits ") == (
        code.form is Form.PHRASE and code.key not in ("free_text", "no_driver")
    )


@pytest.mark.parametrize("code", CODES.values(), ids=lambda code: code.key)
def test_the_sentence_of_each_code_is_made_of_its_parameters(code: Code) -> None:
    reason = sample(code)
    assert "{" not in str(reason) + (reason.limit or "")
    assert "}" not in str(reason)
    assert all(
        f"the-{name}" in str(reason) for name in fields(code.sentence) if f"the-{name}" in dict(reason.params).values()
    )
    assert Reason.of_json(reason.to_json()) == reason
    assert str(Reason.of_json(reason.to_json())) == str(reason)


@pytest.mark.parametrize("cause", CAUSES.values(), ids=lambda cause: cause.key)
def test_each_cause_of_failure_has_all_that_people_are_told(cause: Any) -> None:
    assert cause.title[0].isupper()
    assert not cause.title.endswith(".")
    assert cause.remedy[0].isupper()
    assert cause.remedy.endswith(".")
    assert cause.actors
    assert len(cause.key) <= 20


def test_numbers_make_no_other_reason_and_limits_do() -> None:
    two, three = (because("site_instances", used=each, most=3) for each in (2, 3))
    assert two != three
    assert two.group == three.group
    assert because("quota", quota="g", used=1, most=2, type="g4", vcpus=4).group != three.group
    quotas = [because("quota", quota=each, used=1, most=2, type="t", vcpus=4).limit for each in ("g", "p")]
    assert quotas == ["quota g", "quota p"]


def test_what_is_so_at_a_site_says_so_once() -> None:
    full = because("site_full", site="hpc")
    assert str(full) == "waits: site 'hpc' has no room"
    assert full.at("lab") == full
    busy = because("site_instances", used=2, most=2).at("cloud")
    assert str(busy) == "waits: site 'cloud': 2 of 2 instances of the site are busy"
    never = because("no_machines")
    assert (str(never), never.at("cloud").sentence) == (
        "has no place to run: there is no location and no instance type",
        "site 'cloud': it has no place to run: there is no location and no instance type",
    )


def test_of_several_reasons_the_first_in_the_table_is_its_code() -> None:
    full, paused = because("site_full", site="a"), because("paused", site="b", by="me")
    both = combined([full, paused, because("only_site")])
    assert both.code == "paused"
    assert both.limit is None
    assert str(both) == "waits: site 'b' is paused by me; site 'a' has no room; its hint site allows no other"
    assert Reason.of_json(both.to_json()) == both
    assert combined([full]) is full


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        "waits",
        {},
        {"code": "paused"},
        {"code": "busy", "params": {"locations": {}}},
        {"code": "quota", "also": [1]},
    ],
)
def test_what_is_no_reason_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match="is no reason"):
        Reason.of_data(data)


def test_words_of_others_are_a_parameter_and_no_template() -> None:
    assert str(free_text("{0} {code} {")) == "{0} {code} {"
    assert json.loads(free_text("it is").to_json()) == {"code": "free_text", "params": {"text": "it is"}}


def test_a_code_of_a_newer_agent_is_shown_by_its_name() -> None:
    newer = Reason.of_data({"code": "moonlight", "params": {"phase": 3}})
    assert str(newer) == "waits: moonlight: a reason of another version of Lading"
    assert newer.meaning.kind == "other"
    assert str(NEW) == "waits: nothing was said yet"
