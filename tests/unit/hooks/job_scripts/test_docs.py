"""docs/how_to/job_scripts.md: its commands print what it says, its tables are true."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from lading.hooks.batch.directives import ATTRIBUTES, COMMON_RESOURCES
from lading.hooks.batch.system import Profile
from lading.hooks.job_scripts.properties import REPLACED, WITHOUT_EFFECT
from lading.hooks.job_scripts.script import JobScript
from lading.hooks.job_scripts.substitution import CORE_VARIABLES
from lading.plugin.manager import batch_systems
from lading.plugin.offline.command import main

PAGE = (Path(__file__).parents[4] / "docs" / "how_to" / "job_scripts.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [(match[1], match[2], match[3]) for match in BLOCK.finditer(PAGE)]


def commands() -> list[tuple[str, str]]:
    found = []
    for kind, _, text in BLOCKS:
        if kind == "console":
            found += [tuple(part.split("\n", 1)) for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]]
    return found


@pytest.mark.parametrize(("command", "printed"), commands())
def test_commands(
    command: str, printed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for _, name, text in BLOCKS:
        if name:
            (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    lading, *arguments = shlex.split(command)
    assert lading == "lading"
    status = main(arguments)
    captured = capsys.readouterr()
    assert captured.err + captured.out == printed
    assert status == (0 if captured.out else 2)


def test_the_example_in_python() -> None:
    code = next(text for kind, _, text in BLOCKS if kind == "python")
    names: dict[str, JobScript] = {}
    exec(code, names)
    script = names["script"].render(batch_systems()["slurm"], Profile())
    assert "#SBATCH --nodes=2\n" in script
    assert script.endswith("mpirun ./solve --input 'my data.h5'\n")


def test_the_table_of_the_parallel_model() -> None:
    lines = PAGE[PAGE.index("## The parallel model") :].splitlines()
    names, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines[: lines.index("## The script")]
        if line.startswith("|") and not line.startswith("|---")
    ]
    assert len(rows) == 3
    for row in rows:
        resources = {key: int(value) for key, value in re.findall(r"(nodes|ppn|threads)=(\d+)", row[0])}
        for name, cell in zip(names[1:], row[1:], strict=True):
            system = batch_systems()[name.lower().replace(" ", "")]
            expected = re.findall(r"`([^`]+)`", cell)
            lines = JobScript("true", **resources).render(system, Profile()).splitlines()
            assert sorted(lines[1:-2]) == sorted(f"{system.prefix} {directive}" for directive in expected)


@pytest.mark.parametrize("name", [*COMMON_RESOURCES, *ATTRIBUTES, *REPLACED, *WITHOUT_EFFECT, *Profile.model_fields])
def test_every_name_is_explained(name: str) -> None:
    assert re.search(rf"`{re.escape(name)}`|\[{name}\]", PAGE)


@pytest.mark.parametrize("name", CORE_VARIABLES)
def test_every_core_variable_is_explained(name: str) -> None:
    assert f"`$CLUSTERJOB_{name}`" in PAGE
