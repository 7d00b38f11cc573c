"""The rooms of the code and their folders: imports run one way, and nothing imports in a circle."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("scheduling", "hooks", "operators", "executors", "plugin")
# The folders of each room, from the lowest floor up: one imports from those of lower floors, and from the rooms before
# its own. Folders of one floor do not import each other.
FLOORS: Mapping[str, Sequence[Sequence[str]]] = {
    "scheduling": (
        ("scheduling/text",),
        ("scheduling/model", "scheduling"),
        ("scheduling/hints", "scheduling/packing", "scheduling/accounting", "scheduling/insight"),
        ("scheduling/matching", "scheduling/sizing", "scheduling/starts"),
        ("scheduling/forecast",),
        ("scheduling/gangs", "scheduling/provisioning"),
        ("scheduling/placing",),
    ),
    "hooks": (
        ("hooks/deployment", "hooks/files"),
        ("hooks/ssh",),
        ("hooks/batch", "hooks/spool", "hooks/api_tunnel"),
        (
            "hooks/batch/lsf",
            "hooks/batch/pbs",
            "hooks/batch/sge",
            "hooks/batch/slurm",
            "hooks/dags",
            "hooks/polling",
            "hooks/site",
        ),
        ("hooks/cleanup", "hooks/staging", "hooks/cluster/jobs"),
        ("hooks/cluster/allocations", "hooks/cluster/checks", "hooks/machines", "hooks/job_scripts"),
        ("hooks", "hooks/cluster", "hooks/ec2", "hooks/conformance"),
    ),
    "operators": (
        ("operators/scattering",),
        ("operators",),
    ),
    "executors": (
        ("executors/store", "executors/agent"),
        ("executors/store/gangs", "executors/migrations/versions", "executors/accounting"),
        ("executors/starts",),
        ("executors/migrations", "executors/orchestrator"),
        ("executors",),
        ("executors/sizing", "executors/locality", "executors/gangs"),
        ("executors/forecast",),
        ("executors/controller", "executors/agent/tasks"),
    ),
    "plugin": (
        ("plugin", "plugin/ui/queries"),
        ("plugin/offline/simulation",),
        ("plugin/offline", "plugin/ui", "plugin/airflow_lading"),
        ("plugin/subcommands",),
    ),
}

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


def folder(module: str) -> str:
    """The folder in which a module is; a package is the folder itself."""
    path = module.replace(".", "/")
    return path if (ROOT / path).is_dir() else path.rpartition("/")[0]


def floors() -> dict[str, int]:
    """The floor of each folder, the lowest is 1."""
    return {path: number for room in FLOORS.values() for number, there in enumerate(room, 1) for path in there}


def test_every_folder_has_a_floor() -> None:
    assert {folder(module) for module in imports()} == floors().keys()


def test_the_map_of_the_code_names_every_folder() -> None:
    rows = [line for line in (ROOT / "docs/explanation/architecture.md").read_text().splitlines() if line[:3] == "| `"]
    named = {name for row in rows for name in row.split("|")[1].replace("`", "").replace(",", " ").split()}
    assert [path for path in floors() if not {path, path.rpartition("/")[2]} & named] == []


def test_no_arrow_points_upward() -> None:
    """Neither between rooms nor between folders of a room, also where an import stands in a function."""
    height = {path: (ROOMS.index(path.split("/")[0]), number) for path, number in floors().items()}
    wrong = [
        f"{module} -> {other}"
        for module, found in imports().items()
        for other in found
        if folder(other) != folder(module) and height[folder(other)] >= height[folder(module)]
    ]
    assert wrong == []


def test_nothing_imports_in_a_circle() -> None:
    try:
        TopologicalSorter(imports()).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_no_two_public_classes_share_a_name() -> None:
    """One name for one thing, so that a reader need not look up which one is meant."""
    where: dict[str, list[str]] = {}
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    where.setdefault(node.name, []).append(name(path))
    assert {each: modules for each, modules in where.items() if len(modules) > 1} == {}


# Names of functions that say nothing of what these do, or of what they return.
EMPTY_NAMES = frozenset({
    "of", "look", "found", "words", "do", "handle", "said", "stuff", "thing", "things", "it", "process", "perform",
    "work", "helper", "util", "misc", "data", "info", "go", "doit",
})  # fmt: skip


def test_the_name_of_a_public_function_says_what_it_does() -> None:
    empty = [
        f"{name(path)}:{node.lineno}: {node.name}"
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name in EMPTY_NAMES
    ]
    assert empty == []


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
