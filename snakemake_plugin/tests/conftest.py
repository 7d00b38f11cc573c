"""Workflows in folders of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from flows import Workflow

pytest_plugins = ["tests.services.workers"]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Workflow]]:
    """Make a workflow; what is left of it is killed."""
    made: list[Workflow] = []

    def workflow(snakefile: str, name: str = "flow") -> Workflow:
        made.append(Workflow(tmp_path / f"{name}{len(made)}", snakefile))
        return made[-1]

    yield workflow
    for each in made:
        each.clean_up()
