"""Workflows without a shared file system, and rules with software of their own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from flows import Workflow

Make = Callable[[str], Workflow]

# The second rule reads what the first one has stored, and says where it ran.
STORED = """
rule all:
    input: "all.txt"
rule first:
    output: "first.txt"
    shell: "echo one > {output}"
rule second:
    input: "first.txt"
    output: "all.txt"
    shell: "cat {input} > {output}; pwd >> {output}"
"""

SOFTWARE = """
rule all:
    input: "module.txt", "image.txt"
rule by_module:
    output: "module.txt"
    envmodules: "bio/1.0"
    shell: "echo $LOADED > {output}"
rule in_an_image:
    output: "image.txt"
    container: "image.sif"
    shell: "echo $IMAGE > {output}"
"""
# It says with which version Snakemake can go on, and runs what it is given as if that were in the image.
APPTAINER = """#!/bin/sh
case "$1" in
    --version) echo "apptainer version 1.3.0"; exit;;
esac
for each; do
    case "$each" in *.sif) IMAGE=$(basename "$each"); export IMAGE;; esac
    last=$each
done
exec /bin/bash -c "$last"
"""
# No rule of the test has an environment of it: Snakemake only asks where it is.
CONDA = """#!/bin/sh
cat <<END
{"conda_prefix": "/nowhere", "root_prefix": "/nowhere", "conda_version": "25.1.0", "channels": [],
 "platform": "linux-64", "get": {"channel_priority": "strict"}}
END
"""


def test_files_go_through_storage_where_none_are_shared(make: Make, tmp_path: Path) -> None:
    flow = make(STORED)
    storage = tmp_path / "storage"
    storage.mkdir()
    flow.run(
        "--default-storage-provider", "fs", "--default-storage-prefix", str(storage), "--shared-fs-usage", "none",
        "--local-storage-prefix", str(tmp_path / "copies"),
    )  # fmt: skip
    assert sorted(flow.jobs()) == [("first", "succeeded", None), ("second", "succeeded", None)]
    [text] = [path.read_text() for path in storage.rglob("all.txt")]
    said, ran_in = text.splitlines()
    assert said == "one"
    assert ran_in != str(flow.folder), "a folder of this machine is none of the job's"
    assert not (flow.folder / "first.txt").exists()
    assert flow.processes() == []


def test_software_of_the_node_is_used_where_all_but_software_is_shared(make: Make) -> None:
    flow = make(STORED)
    shared = ("persistence", "input-output", "sources", "source-cache", "storage-local-copies")
    flow.run("--shared-fs-usage", *shared, PATH=os.defpath)
    [command, _] = [json.loads(text)["arguments"] for (text,) in flow.jobs("workload")]
    assert command[:3] == ["python", "-m", "snakemake"], "not that of this machine, nor what PATH has there"
    assert (flow.folder / "all.txt").read_text() == f"one\n{flow.folder}\n"


def test_rules_have_the_software_that_they_name(make: Make) -> None:
    flow = make(SOFTWARE)
    (flow.folder / "image.sif").touch()
    programs = flow.folder / "programs"
    programs.mkdir()
    for name in ("apptainer", "singularity"):
        (programs / name).write_text(APPTAINER)
        (programs / name).chmod(0o755)
    module = {"BASH_FUNC_module%%": "() { [ $1 != load ] || export LOADED=$2; }"}
    flow.run(
        "--software-deployment-method", "env-modules", "apptainer",
        PATH=f"{programs}:{os.environ['PATH']}", **module,
    )  # fmt: skip
    assert (flow.folder / "module.txt").read_text() == "bio/1.0\n"
    assert (flow.folder / "image.txt").read_text() == "image.sif\n"
    assert flow.processes() == []


@pytest.mark.parametrize("method", ["conda", "apptainer", "env-modules"])
def test_a_job_is_a_snakemake_that_has_the_method(make: Make, method: str) -> None:
    flow = make(STORED)
    programs = flow.folder / "programs"
    programs.mkdir()
    for name, text in (("conda", CONDA), ("apptainer", APPTAINER), ("singularity", APPTAINER)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    flow.run("--software-deployment-method", method, PATH=f"{programs}:{os.environ['PATH']}")
    commands = [json.loads(text)["arguments"] for (text,) in flow.jobs("workload")]
    assert [each[1:3] for each in commands] == 2 * [["-m", "snakemake"]]
    assert all(each[each.index("--deployment-method") + 1] == method for each in commands)
