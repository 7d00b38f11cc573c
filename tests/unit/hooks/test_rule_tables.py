"""The [[rules]] of the sites file."""

from __future__ import annotations

from pathlib import Path

import pytest

from lading.executors.controller.sites_file import rules_of
from lading.hooks.files.sites_file import SitesError
from lading.hooks.site.rules import parse_rules
from lading.scheduling.matching.rules import RULES, Rule


def test_rules_are_tried_in_the_order_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "sites.toml"
    file.write_text(
        """
        [sites.local]
        [[rules]]
        name = "a longer queue"
        queues = {short = "long"}
        [[rules]]
        name = "anything"
        amounts = ["cpus"]
        features = ["a*"]
        on_demand = true
        """
    )
    assert rules_of(file, {}) == [
        Rule("a longer queue", queues={"short": "long"}),
        Rule("anything", ("cpus",), ("a*",), True),
    ]
    file.write_text("[sites.local]\n")
    assert (rules_of(file, {}), rules_of(None, {})) == (RULES, RULES)
    file.write_text('[sites.local]\nrules = 5\n[[rules]]\nname = "x"')
    with pytest.raises(SitesError, match="relaxes nothing"):
        rules_of(file, {})
    assert parse_rules([], {}) == []


def test_a_rule_of_a_plugin_is_named() -> None:
    def half(job: object) -> list[dict[str, object]]:
        return []

    assert parse_rules([{"name": "half", "plugin": "halve"}], {"halve": half}) == [Rule("half", relax=half)]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"name": "x"}, "the rule relaxes nothing; valid: amounts, features"),
        ({"name": "x", "plugin": "half"}, "plugin = 'half': no plugin has this rule; valid: halve"),
        ({"name": "x", "plugin": "halve", "on_demand": True}, "plugin cannot be combined with on_demand"),
        ({"name": "x", "amounts": ["time"]}, "amounts"),
        ({"name": "x", "site": "hpc"}, "site is unknown; the keys are: name, amounts"),
        ({"amounts": ["cpus"]}, "name"),
        (5, "it is not a table"),
    ],
)
def test_what_is_no_rule_is_refused_with_its_number(table: object, words: str) -> None:
    with pytest.raises(ValueError, match=rf"^\[\[rules\]\] 1: .*{words}"):
        parse_rules([table], {"halve": lambda job: []})
    both = [{"name": "x", "on_demand": True}] * 2
    with pytest.raises(ValueError, match=r"^\[\[rules\]\] 2: name = 'x': another rule already has this name$"):
        parse_rules(both, {})
