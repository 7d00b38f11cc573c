"""The workflow of Snakemake's tutorial, with its programs."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from flows import Workflow

from tests.services import debian

EXAMPLE = Path(__file__).parents[1] / "examples/tutorial"
PROGRAMS = ("bwa", "samtools", "bcftools")


@pytest.fixture(scope="module", autouse=True)
def programs() -> None:
    if not all(map(shutil.which, PROGRAMS)):
        try:
            debian.install(*PROGRAMS)
        except debian.MissingPackagesError as error:
            pytest.skip(str(error))


def test_the_tutorials_workflow_finds_the_variants(make: Callable[[str], Workflow]) -> None:
    flow = make((EXAMPLE / "Snakefile").read_text())
    shutil.copytree(EXAMPLE, flow.folder, dirs_exist_ok=True)
    (flow.folder / "sites.toml").write_text('[sites.local]\nkind = "local"\ncpus = 4\nmemory = "4 GiB"\n')
    flow.run("--lading-sites-file", "sites.toml")
    assert Counter(flow.jobs("task_id, state")) == {
        ("make_data", "succeeded"): 1,
        ("bwa_index", "succeeded"): 1,
        ("bwa_map", "succeeded"): 3,
        ("samtools_sort", "succeeded"): 3,
        ("samtools_index", "succeeded"): 3,
        ("bcftools_call", "succeeded"): 1,
        ("plot_quals", "succeeded"): 1,
    }
    found = {line.split("\t")[0] for line in (flow.folder / "plots/quals.tsv").read_text().splitlines()}
    assert found == set((flow.folder / "data/variants.txt").read_text().split())
    assert not (flow.folder / "mapped_reads/A.bam").exists(), "what is temporary is removed"
    assert flow.processes() == []
