"""What the tutorials let a reader type, for the tests that have the sites at which it works."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

from tests.services.airflow import Airflow

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"


def examples(page: str) -> list[str]:
    """The example Dags that a tutorial shows, which it has the reader copy."""
    text = (TUTORIALS / page).read_text(encoding="utf-8")
    return sorted(set(re.findall(r"\(../../example_dags/(\w+)\.py\)", text)))


def commands(page: str) -> list[list[str]]:
    """The ``airflow`` commands of a tutorial for a running Airflow, without ``airflow``."""
    text = (TUTORIALS / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    lines = [line.strip() for line in "\n".join(blocks).splitlines()]
    found = [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("airflow ")]
    return [command for command in found if command != ["standalone"]]


def follow(airflow: Airflow, page: str, run_of: Callable[[str], str]) -> list[str]:
    """Run a tutorial's commands in the order of the page.

    :param run_of: called with a Dag where the page triggers it; returns the id of a run that has succeeded
    :return: what each of the other commands printed
    :raises AirflowError: a command failed
    """
    names: dict[str, str] = {}  # the ids of runs, by what the page calls them
    printed = []
    for command in commands(page):
        if command[:2] == ["dags", "trigger"]:
            dag, *options = command[2:]
            run = run_of(dag)
            if options:
                assert options[0] == "--run-id", f"{page}: {command}"
                names[options[1]] = run
        else:
            words = [names.get(word, word) for word in command]
            printed.append(airflow.lading(*words[1:]) if words[0] == "lading" else airflow.cli(*words))
    return printed
