from __future__ import annotations

import ast
import json
import pickle
import string
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

import lading.scheduling
from lading.hooks.batch.system import Cause
from lading.scheduling.hints.retries import INFRASTRUCTURE
from lading.scheduling.model.reason_codes import CAUSES, CODES, Actor, Code, Form
from lading.scheduling.model.reasons import NEW, Reason, because, combined, free_text
from lading.scheduling.model.resources import Resources

NUMBERS = {
    *("after", "attempt", "attempts", "held", "here", "left", "members", "most", "number", "price", "seconds", "spent"),
    *(
        "tasks",
        "until",
        "used",
        "vcpus",
        "at",
        "asked",
        "count",
        "exit_code",
        "launched",
        "least",
        "limit",
        "jobs",
        "more",
        "number",
        "entitled",
        "half_life",
    ),
}
LISTS = {"failed", "lacking", "images", "indexes", "locations", "names", "nodes", "sites", "taken", "types"}
# What a code is about whose kind is no class of waits.
ENDS = {*CAUSES, "released"}
NO_WAITS = {*ENDS, "placed"}
SAMPLES = {
    "needs": Resources(2, 100),
    "wish": ("arch", "arm64", "features", "nvme"),
    "all": Resources(1, 100),
    "each": Resources(1, 100),
    "sizes": (2, 4, 1024, 0, 0, 1, 8, 2048, 0, 0),
    "has": Resources(1, 100),
    "lacks": ("cpus", 4, 2, "memory", 200, 100),
}


def fields(template: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(template) if name} - {"also", "code"}


def sample(code: Code) -> Reason:
    def value(name: str) -> Any:
        return SAMPLES.get(name) or (3 if name in NUMBERS else ("one", "two") if name in LISTS else f"the-{name}")

    return because(code.key, **{name: value(name) for name in fields(code.sentence) | fields(code.limit)})


@pytest.mark.parametrize("code", CODES.values(), ids=lambda code: code.key)
def test_each_code_has_all_that_people_are_shown(code: Code) -> None:
    assert all((code.key, code.kind, code.title, code.sentence, code.remedy, code.actors))
    assert all(isinstance(each, Actor) for each in code.actors)
    assert len(code.key) <= 40
    assert code.title[0].isupper()
    assert not code.title.endswith(".")
    assert code.remedy[0].isupper()
    assert code.remedy.endswith(".")
    assert not code.sentence.endswith(".")
    assert not code.sentence.startswith("waits: ")
    is_wait = code.kind not in {*NO_WAITS, "never"} and code.key not in ("free_text", "no_driver", "not_admitted")
    assert code.sentence.startswith("waits ") == (code.form is Form.PHRASE and is_wait)
    assert code.kind not in NO_WAITS or code.form is Form.PHRASE, "an end is no wait"


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
def test_each_cause_of_failure_has_all_that_people_are_shown(cause: Any) -> None:
    assert cause.title[0].isupper()
    assert not cause.title.endswith(".")
    assert cause.remedy[0].isupper()
    assert cause.remedy.endswith(".")
    assert cause.actors
    assert len(cause.key) <= 20


def test_each_cause_that_batch_systems_and_retries_name_is_in_the_table() -> None:
    assert {*get_args(Cause), *INFRASTRUCTURE} <= CAUSES.keys()


def test_each_cause_has_codes_of_ends_with_its_title_unless_they_say_better_ones() -> None:
    by_cause = {cause: [code for code in CODES.values() if code.kind == cause] for cause in CAUSES}
    assert all(by_cause.values())
    assert because("over_memory", used=2048, limit=1024).meaning.remedy == CAUSES["out_of_memory"].remedy
    assert CODES["hint_error"].title != CAUSES["error"].title


def test_refusals_of_aws_are_grouped_by_what_is_to_be_done() -> None:
    expired, other = (because("aws_expired", error=code, text="no") for code in ("RequestExpired", "ExpiredToken"))
    assert expired.group == other.group
    ended = because("launch_refused").with_also(expired)
    assert str(ended).startswith("RequestExpired: no; the credentials have expired")
    assert expired.group in ended.groups
    assert str(because("aws_refused", error="", text="no region").sentence) == "no region"
    remedies = {code.remedy for key, code in CODES.items() if key.startswith("aws_")}
    assert all(each[0].isupper() and each.endswith(".") and ".." not in each for each in remedies)


def test_what_else_is_so_is_said_within_a_sentence_that_has_a_place_for_it() -> None:
    full = because("site_full", site="lab")
    sent = because("sent_to_next_site").with_also(full)
    assert str(sent) == "sent here because site 'lab' has no room"
    assert str(sent.with_also(because("turn"))).endswith(
        "has no room; waits for its turn: jobs that were already sent to a machine, have a higher priority or arrived "
        "earlier come first"
    )
    last = because("gang_out_of_attempts", attempts=2)
    assert (str(last), str(last.with_also(full))) == (
        "no room was found, tried 2 times",
        "no room was found, tried 2 times; the last time: site 'lab' has no room",
    )
    nested = because("had_succeeded").with_also(
        because("batch_ended", exit_code=3).with_also(because("batch_says", text="x"))
    )
    assert str(nested) == (
        "it had succeeded before this happened: the batch job ended with exit code 3 and its task reported "
        "nothing; the batch system says: x"
    )
    assert Reason.of_json(nested.to_json()) == nested
    assert Reason.of_data({"code": "sent_to_next_site"}) == because("sent_to_next_site"), (
        "what else is so is no parameter"
    )


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
    assert str(busy) == "waits: site 'cloud': 2 of 2 instances of the site are busy or booting"
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
    assert str(both) == "waits: site 'b' is paused by me; site 'a' has no room; its hint site allows no other site"
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
    with pytest.raises(ValueError, match="is not a reason"):
        Reason.of_data(data)


def test_texts_of_others_are_a_parameter_and_no_template() -> None:
    assert str(free_text("{0} {code} {")) == "{0} {code} {"
    assert json.loads(free_text("it is").to_json()) == {"code": "free_text", "params": {"text": "it is"}}


def test_a_code_of_a_newer_agent_is_shown_by_its_name() -> None:
    newer = Reason.of_data({"code": "moonlight", "params": {"phase": 3}})
    assert str(newer) == "waits: moonlight: a reason of another version of Lading"
    assert newer.meaning.kind == "other"
    assert str(NEW) == "waits: no reason is known yet"


def test_what_another_version_has_stored_is_shown_all_the_same() -> None:
    stored = '{"code": "paused", "params": {"site": "hpc", "since": 3}}'
    assert str(Reason.of_json(stored)) == "waits: site 'hpc' is paused by ?"
    assert str(Reason.of_json('{"code": "quota", "params": {"used": "many"}}')).startswith("waits: many of ? vCPUs")


def test_a_reason_of_very_many_parts_is_one_that_a_column_takes() -> None:
    large = free_text("\N{FIRE}" * 100_000 + "\0\udcff")
    for reason in (large.with_also(*[large] * 1000), large.with_also(large.with_also(large.with_also(large)))):
        text = reason.to_json()
        assert len(text.encode()) < 65_535
        assert "\0" not in text
        assert Reason.of_json(text).code == "free_text"
    nested: dict[str, Any] = {"code": "turn"}
    for _ in range(10):
        nested = {"code": "turn", "also": [nested]}
    with pytest.raises(ValueError, match="nested too deeply"):
        Reason.of_data(nested)


def made(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """The reasons that a module makes, by the code that is written there."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "because":
            for each in ast.walk(node.args[0]):
                if isinstance(each, ast.Constant) and isinstance(each.value, str):
                    yield each.value, node


def test_reasons_are_made_of_codes_of_the_table_with_all_their_parameters() -> None:
    root = Path(lading.scheduling.__file__).parents[1]
    calls = [(path, *each) for path in root.rglob("*.py") for each in made(path)]
    assert len(calls) > 50
    for path, code, call in calls:
        assert code in CODES, f"{path}:{call.lineno}"
        given = {each.arg for each in call.keywords}
        needed = fields(CODES[code].sentence) | fields(CODES[code].limit)
        assert None in given or needed <= given, f"{path}:{call.lineno}: {code} needs {needed}"
    texts = "\n".join(
        path.read_text() for path in root.rglob("*.py") if path != root / "scheduling/model/reason_codes.py"
    )
    assert not [code for code in CODES if f'"{code}"' not in texts and code not in ("free_text", "new")], (
        "no module makes it"
    )


def test_a_reason_is_the_same_in_another_process() -> None:
    reason = because("paused", site="hpc", by="me").with_also(because("turn"))
    code = f"import pickle, sys; sys.stdout.buffer.write(pickle.dumps({{pickle.loads({pickle.dumps(reason)!r}): 1}}))"
    other = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    assert pickle.loads(other.stdout) == {reason: 1}
