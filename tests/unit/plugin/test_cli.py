"""The command line, which must not import the store only to know its states."""

from __future__ import annotations

from lading.executors.store import State
from lading.plugin.cli import STATES


def test_the_states_of_the_command_line_are_those_of_the_store() -> None:
    assert tuple(state.value for state in State) == STATES
