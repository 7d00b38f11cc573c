"""What docs/how_to/snakemake.md lets a reader copy works, and its table of options is complete."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

from flows import Workflow
from snakemake_executor_plugin_lading import ExecutorSettings

PAGE = (Path(__file__).parents[2] / "docs/how_to/snakemake.md").read_text("utf-8")


def block(heading: str, language: str) -> str:
    """The first block of a language below a heading."""
    found = re.search(rf"^```{language}\n(.*?)^```$", PAGE[PAGE.index(f"\n## {heading}\n") :], re.M | re.S)
    assert found, heading
    return found[1]


def test_the_table_of_options() -> None:
    rows = re.findall(r"^\| `--lading-([a-z-]+)` \| (.*?) \|", PAGE, re.M)
    fields = dataclasses.fields(ExecutorSettings)
    assert [name for name, _ in rows] == [field.name.replace("_", "-") for field in fields]
    for (name, default), field in zip(rows, fields, strict=True):
        if field.default is False:
            assert default == "off", name
        elif field.default is not None:
            assert default == f"`{field.default}`", name


def test_the_first_workflow_and_its_profile(make: Callable[[str], Workflow]) -> None:
    flow = make(block("A first workflow", "python"))
    (flow.folder / "sites.toml").write_text(block("A first workflow", "toml"))
    (flow.folder / "profile").mkdir()
    (flow.folder / "profile/config.yaml").write_text(block("A profile to copy", "yaml"))
    for sample in "AB":
        (flow.folder / f"{sample}.txt").write_text("b\na\n")
    planned = flow.run("--dry-run", "--profile", "profile")
    assert "slurm_partition=compute, slurm_account=my_project" in planned
    flow.run()
    assert sorted(flow.jobs("task_id, state")) == [("sort", "succeeded")] * 2
    assert (flow.folder / "A.sorted").read_text() == "a\nb\n"
