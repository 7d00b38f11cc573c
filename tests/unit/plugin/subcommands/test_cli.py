"""The command line, which must not import the store only to know its states."""

from __future__ import annotations

import argparse
from importlib import import_module

import pytest
from airflow.cli.cli_config import ActionCommand

from lading.executors.store import State
from lading.plugin.subcommands.cli import MODULES, get_commands
from lading.plugin.subcommands.options import STATES


def test_the_states_of_the_command_line_are_those_of_the_store() -> None:
    assert tuple(state.value for state in State) == STATES


@pytest.mark.parametrize(("command", "module"), sorted(MODULES.items()))
def test_a_command_that_has_no_module_of_its_own_is_where_it_is_looked_for(command: str, module: str) -> None:
    assert command in [each.name for each in get_commands()[0].subcommands]
    assert callable(getattr(import_module(module), command))


def parsed(command: str, words: list[str]) -> argparse.Namespace:
    """What one of the commands is given."""
    [found] = [each for each in get_commands()[0].subcommands if each.name == command]
    assert isinstance(found, ActionCommand)
    parser = argparse.ArgumentParser(exit_on_error=False)
    for arg in found.args:
        arg.add_to_parser(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("jobs", ["--limit", "9" * 20]),
        ("jobs", ["--limit", "9" * 5000]),
        ("jobs", ["--limit", "0"]),
        ("jobs", ["--limit", "x"]),
        ("jobs", ["--dag-id", "\udcff"]),
        ("jobs", ["--run-id", "\udcff"]),
        ("explain", ["d", "r", "t", str(2**31)]),
        ("explain", ["d", "r", "t", "x"]),
        ("explain", ["\udcff", "r", "t"]),
        ("explain", ["d", "\udcff", "t"]),
        ("explain", ["d", "r", "\udcff"]),
        ("cost", ["\udcff"]),
        ("cost", ["d", "\udcff"]),
        ("cost", ["d", "--limit", "9" * 20]),
        ("wake", ["d", "\udcff"]),
        ("wake", ["d", "--gang", "\udcff"]),
        ("hurry", ["d", "\udcff"]),
        ("top", ["--seconds", "9" * 20]),
    ],
)
def test_what_no_database_can_be_asked_for_is_refused_in_a_line(command: str, words: list[str]) -> None:
    with pytest.raises(argparse.ArgumentError, match=r"whole number from|not valid UTF-8"):
        parsed(command, words)


def test_names_of_any_script_and_instances_that_are_not_mapped_are_asked_for() -> None:
    found = parsed("explain", ["größe", "手", "t", "7"])
    assert (found.dag_id, found.run_id, found.map_index) == ("größe", "手", 7)
    assert parsed("explain", ["d", "r", "t"]).map_index == -1
    assert parsed("jobs", ["--limit", "1000"]).limit == 1000
