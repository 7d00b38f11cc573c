"""What the documentation shows: each sites file is valid, and each Dag can be imported, each command exists."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from airflow.cli.cli_parser import get_parser
from airflow.dag_processing import dagbag

from lading.hooks.files.sites_file import TABLES
from lading.plugin import hint_checks
from lading.plugin.published import PublishedSite
from lading.plugin.sites import known_sites, load_sites
from lading.scheduling.model.location import Location
from lading.scheduling.model.resources import Resources
from lading.scheduling.text import toml
from tests.clusters.sites import make_settings

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Their sites files are there to be copied: none needs what another page says.
COMPLETE = ("concepts.md", "gallery.md", "gpus.md", "debug_batch.md", "other_executors.md")


def blocks(language: str) -> Iterator[tuple[Path, str]]:
    """The blocks of a language in all pages."""
    for page in PAGES:
        for _, text in re.findall(rf"^( *)```{language}\b[^\n]*\n(.*?)^\1```$", page.read_text("utf-8"), re.M | re.S):
            yield page, textwrap.dedent(text)


def tables(text: str) -> dict[str, Any] | None:
    """A sites file, or a part of one; None: it is another TOML file."""
    found = toml.parse(text)
    return found if found.keys() & {*TABLES} else None


FILES = [(page, found) for page, text in blocks("toml") if (found := tables(text))]
SHOWN = [pair for page, found in FILES if page.name not in COMPLETE for pair in found.get("sites", {}).items()]
# Other pages show the keys that they are about: by name, the table that has the most.
WHOLE: dict[str, dict[str, Any]] = dict(sorted(SHOWN, key=lambda pair: len(pair[1])))
# A module beside a Dag has its name in the first line.
MODULES = [(page, text) for page, text in blocks("python") if re.match(r"# \w+\.py\b", text)]
DAGS = [(page, text) for page, text in blocks("python") if "from airflow.sdk import" in text and "DAG(" in text.upper()]

# What a reader types. commands.md, which is generated from the parsers, shows how each command is called.
TYPED = [
    (page, line)
    for page, text in blocks("(?:sh|shell|console)")
    for line in text.replace("\\\n", "").splitlines()
    if re.match(r"(?:\$ )?airflow ", line) and page.name != "commands.md"
]


def written(value: object) -> str:
    """A value as TOML has it."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)} = {written(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(written, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def continued(name: str, table: dict[str, Any]) -> dict[str, Any]:
    """A site's table, of which a page may show only what it is about."""
    whole = WHOLE.get(name, {})
    if "control_master" in table:  # in place of it
        whole = {key: value for key, value in whole.items() if key != "ssh_conn_id"}
    return {**whole, **table}


def named(cases: list[tuple[Path, Any]]) -> list[str]:
    return [f"{page.name}-{[each for each, _ in cases[:number]].count(page)}" for number, (page, _) in enumerate(cases)]


@pytest.mark.parametrize(("page", "found"), FILES, ids=named(FILES))
def test_a_sites_file(page: Path, found: dict[str, Any], tmp_path: Path) -> None:
    if page.name not in COMPLETE:
        sites = {**WHOLE, **found.get("sites", {})}
        found = {**found, "sites": {name: continued(name, table) for name, table in sites.items()}}
    assert load_sites(make_settings(tmp_path / "state", sites_file=write(found, tmp_path)))


def write(found: dict[str, Any], folder: Path) -> Path:
    path = folder / "sites.toml"
    path.write_text("\n".join(f"{name} = {written(value)}" for name, value in found.items()), "utf-8")
    return path


@pytest.mark.parametrize(("page", "text"), DAGS, ids=named(DAGS))
def test_a_dag(page: Path, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a page that shows sites it is one for these, else for a machine that has everything."""
    sites: Mapping[str, PublishedSite] = {"local": PublishedSite((Location("", Resources(64, 2**20, 2**20, 8)),))}
    if shown := [found for each, found in FILES if each == page and page.name in COMPLETE]:
        settings = make_settings(tmp_path / "state", sites_file=write(shown[0], tmp_path))
        sites = known_sites(settings)
    monkeypatch.setattr(hint_checks, "known_sites", lambda: (sites, Resources()))
    # Airflow's own is settled once in a process; the executors of the page are those that it lets a reader configure.
    listed = re.findall(r"^ *executor = (.*)$", page.read_text("utf-8"), re.M)
    aliases = {name.partition(":")[0] for line in listed for name in line.split(",")}
    monkeypatch.setattr(dagbag, "_executor_exists", lambda executor, team: executor in aliases)
    monkeypatch.syspath_prepend(tmp_path)
    for each, module in MODULES:
        if each == page:
            (tmp_path / module.split()[1].rstrip(",")).write_text(module, "utf-8")
    (tmp_path / "shown.py").write_text(text, "utf-8")
    bag = dagbag.BundleDagBag(dag_folder=tmp_path / "shown.py", bundle_path=tmp_path, bundle_name="docs")
    assert not bag.import_errors
    assert bag.dags


@pytest.mark.parametrize(("page", "line"), TYPED, ids=named(TYPED))
def test_a_command(page: Path, line: str) -> None:
    command = re.split(r" (?:[|>]|\|\||&&) ", line.removeprefix("$ "))[0]
    assert get_parser().parse_args(shlex.split(command, comments=True)[1:])
