"""Survey this machine's Python standard library with a task for each package, and write a report.

Tasks of three sizes share the machine. Each small package takes a quarter of a core, each medium package half a core,
and each large package a whole core. Another task holds the whole library in memory and looks for duplicate functions.

The mapped tasks request no memory. Lading plans with its default until a few of them have finished, and after that with
the memory that the finished tasks used. Other executors can run the same Dag, and ignore its hints.
"""

from __future__ import annotations

import ast
import os
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

from airflow.sdk import Param, TriggerRule, dag, get_current_context, task

from lading.operators import resources

LIBRARY = Path(sysconfig.get_path("stdlib"))
# These folders have third-party packages, the library's own tests, and sources that are broken on purpose.
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests"}
KILOBYTE = 1000


class Package(TypedDict):
    name: str
    files: list[str]
    size: int  # bytes


class Survey(TypedDict):
    name: str
    files: int
    size: int  # bytes
    lines: int
    functions: int
    classes: int
    longest_function: tuple[int, str]  # the number of lines, and the location
    imports: dict[str, int]  # how often each module is imported


def packages(every: int = 1) -> list[Package]:
    """Return every n-th package of the library. Modules of a single file are grouped by their first letter."""
    files: dict[str, list[Path]] = {}
    for path in sorted(LIBRARY.rglob("*.py")):
        top, *below = path.relative_to(LIBRARY).parts
        if not LEFT_OUT & {top, *below}:
            files.setdefault(top if below else f"modules {top.lstrip('_')[0].lower()}*", []).append(path)
    return [
        Package(name=name, files=[str(path) for path in paths], size=sum(path.stat().st_size for path in paths))
        for name, paths in list(files.items())[::every]
    ]


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def survey(package: Package) -> Survey:
    lines = classes = count = 0
    longest = (0, "")
    imports: Counter[str] = Counter()
    for file in package["files"]:
        source = Path(file).read_bytes()
        tree = ast.parse(source, file)
        lines += source.count(b"\n")
        classes += sum(isinstance(node, ast.ClassDef) for node in ast.walk(tree))
        for function in functions(tree):
            count += 1
            where = f"{Path(file).relative_to(LIBRARY)}:{function.lineno} {function.name}"
            longest = max(longest, (length(function), where))
        imports.update(imported(tree))
    return Survey(
        name=package["name"],
        files=len(package["files"]),
        size=package["size"],
        lines=lines,
        functions=count,
        classes=classes,
        longest_function=longest,
        imports=dict(imports),
    )


def duplicates(shortest: int = 10, every: int = 1) -> list[list[str]]:
    """Return the locations of functions with equal bodies and at least ``shortest`` lines, a list for each body."""
    trees = {file: ast.parse(Path(file).read_bytes(), file) for package in packages(every) for file in package["files"]}
    places: dict[str, list[str]] = {}
    for file, tree in trees.items():
        for function in functions(tree):
            if length(function) >= shortest:
                body = "".join(map(ast.dump, function.body))
                where = f"{Path(file).relative_to(LIBRARY)}:{function.lineno} {function.name}"
                places.setdefault(body, []).append(where)
    return sorted(group for group in places.values() if len(group) > 1)


def report(surveys: list[Survey], duplicated: list[list[str]]) -> str:
    """Format the survey as Markdown."""
    imports: Counter[str] = Counter()
    for each in surveys:
        imports.update(each["imports"])
    total = {key: sum(each[key] for each in surveys) for key in ("files", "lines", "functions", "classes")}
    longest, where = max(each["longest_function"] for each in surveys)
    return "\n".join(
        [
            f"# The standard library in {LIBRARY}",
            "",
            f"* {total['lines']:,} lines in {total['files']:,} files of {len(surveys)} packages",
            f"* {total['functions']:,} functions and {total['classes']:,} classes",
            f"* longest function: `{where}` with {longest:,} lines",
            f"* most imported: {', '.join(f'{name} ({count})' for name, count in imports.most_common(8))}",
            f"* {len(duplicated)} functions of ten lines and more occur more than once",
            "",
            "| package | kB | files | lines | functions | classes |",
            "| --- | ---: | ---: | ---: | ---: | ---: |",
            *(
                f"| {each['name']} | {each['size'] // KILOBYTE:,} | {each['files']} | {each['lines']:,} "
                f"| {each['functions']:,} | {each['classes']:,} |"
                for each in sorted(surveys, key=lambda each: -each["size"])
            ),
            "",
            "## Functions that occur more than once",
            "",
            *(f"* {', '.join(f'`{place}`' for place in group)}" for group in duplicated),
            "",
        ]
    )


@dag(
    schedule=None,
    params={
        "folder": Param("", type="string", description="folder of the report; empty: stdlib_survey in AIRFLOW_HOME"),
        "every": Param(1, type="integer", minimum=1, description="survey only every n-th package"),
    },
    max_active_tasks=1000,  # a high limit, so that only resources limit how many tasks run at once
    tags=["lading", "example"],
    doc_md=__doc__,
)
def stdlib_survey() -> None:
    @task(executor_config=resources(cpus=0.25, memory="128 MiB"))
    def sized(at_least: int, below: int) -> list[Package]:
        """Return the packages whose size in bytes is within a range, largest first."""
        return sorted(
            (
                package
                for package in packages(get_current_context()["params"]["every"])
                if at_least <= package["size"] < below
            ),
            key=lambda package: -package["size"],
        )

    @task(executor_config=resources(cpus=0.25, time="5m"))
    def small(package: Package) -> Survey:
        return survey(package)

    @task(executor_config=resources(cpus=0.5, time="5m"))
    def medium(package: Package) -> Survey:
        return survey(package)

    @task(executor_config=resources(cpus=1, time="5m"))
    def large(package: Package) -> Survey:
        return survey(package)

    @task(executor_config=resources(cpus=1, memory="1 GiB", time="5m"))
    def duplicated() -> list[list[str]]:
        return duplicates(every=get_current_context()["params"]["every"])

    # If there are no packages of a size, the mapped task of this size is skipped. The report must be written anyway.
    @task(executor_config=resources(cpus=0.25, memory="128 MiB"), trigger_rule=TriggerRule.NONE_FAILED)
    def gather(parts: list[list[Survey]], groups: list[list[str]]) -> dict[str, str]:
        """Write the report; return its folder, its path and its summary."""
        context = get_current_context()
        home = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser()
        folder = Path(context["params"]["folder"] or home / "stdlib_survey")
        folder.mkdir(parents=True, exist_ok=True)
        # A slice fetches all results of a mapped task at once. Iterating would fetch them one by one.
        text = report([survey for part in parts if part for survey in part[:]], groups)
        path = folder / "report.md"
        path.write_text(text)
        return {"folder": str(folder), "report": str(path), "summary": text.partition("\n| ")[0].strip()}

    shapes = [
        (small, 0, 100 * KILOBYTE),
        (medium, 100 * KILOBYTE, 400 * KILOBYTE),
        (large, 400 * KILOBYTE, 1000**4),
    ]
    parts = []
    for shape, at_least, below in shapes:
        found = sized.override(task_id=f"{shape.function.__name__}_packages")(at_least, below)
        parts.append(shape.expand(package=found))
    gather(parts, duplicated())  # type: ignore[arg-type]  # XComArgs stand for what the tasks will return


stdlib_survey()
