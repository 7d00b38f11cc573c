"""The rooms of the code: imports run one way, and nothing imports in a circle."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("scheduling", "hooks", "operators", "executors", "plugin")
# A floor imports from those before it; rooms of one floor do not know each other.
FLOORS = (
    ("files",),
    ("ssh",),
    ("batch", "spool", "api_tunnel"),
    ("dags", "polling", "site"),
    ("cleanup", "staging", "site_conformance"),
    ("cluster", "machines", "job_scripts"),
    ("ec2", "conformance"),
)

Imports = Mapping[str, frozenset[str]]


@cache
def imports() -> Imports:
    """What each module imports of Lading, wherever in it the statement stands."""
    files = {name(path): path for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    return {module: frozenset(imported(path, files)) - {module} for module, path in files.items()}


def name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported(path: Path, modules: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (each.name.removeprefix("lading.") for each in node.names if each.name.startswith("lading."))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lading."):
            base = str(node.module).removeprefix("lading.")
            for each in node.names:
                module = f"{base}.{each.name}"
                yield module if module in modules else base


def floor(module: str) -> tuple[int, str] | None:
    """The floor of a module of hooks, and the room on it."""
    room = module.split(".")[1] if module.startswith("hooks.") else None
    return next(((number, room) for number, rooms in enumerate(FLOORS) if room in rooms), None)


def test_every_module_of_hooks_has_a_floor() -> None:
    assert [module for module in imports() if module.startswith("hooks.") and floor(module) is None] == []


def test_no_arrow_points_upward() -> None:
    order = {room: number for number, room in enumerate(ROOMS)}
    wrong = []
    for module, found in imports().items():
        for other in found:
            mine, its = module.split(".")[0], other.split(".")[0]
            here, there = floor(module), floor(other)
            if order[its] > order[mine] or (here and there and here[1] != there[1] and there[0] >= here[0]):
                wrong.append(f"{module} -> {other}")
    assert wrong == []


def test_nothing_imports_in_a_circle() -> None:
    try:
        TopologicalSorter(imports()).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_decisions_keep_nothing_beside_what_they_return() -> None:
    """What one of them leaves to the next is passed on."""
    wrong = []
    for path in (ROOT / "scheduling").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            module = node.module if isinstance(node, ast.ImportFrom) else None
            if isinstance(node, ast.Global) or {"contextvars", "threading"} & {*names, module}:
                wrong.append(f"{name(path)}:{node.lineno}")
    assert wrong == []


def rooms() -> dict[str, Path]:
    """The folders of the code, each with what says what it is for; migrations are a chain of steps and no room."""
    found = (init for room in ROOMS for init in (ROOT / room).rglob("__init__.py") if "migrations" not in init.parts)
    return {init.parent.relative_to(ROOT).as_posix(): init for init in found}


def test_every_room_says_what_lives_in_it() -> None:
    said = {
        room: ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) or "" for room, init in rooms().items()
    }
    assert [room for room, text in said.items() if not text] == []


def test_the_map_has_every_room_and_no_other() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = text.partition("\n## The rooms\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    drawn = {path for row in rows for path in re.findall(r"`([\w/]+)/`", row)}
    assert {room for room in drawn if not (ROOT / room).is_dir()} == set()
    families = {room for room in rooms() if room.startswith("hooks/batch/")}
    assert rooms().keys() - drawn - families == {"hooks", "plugin/airflow_lading"}  # no modules, and a name for Airflow
