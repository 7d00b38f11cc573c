"""Run public workflows of snakemake-workflows with Snakemake's own executor and with Lading's, and compare them.

``make test-snakemake-workflows``, or for some ``.environments/snakemake/bin/python
snakemake_plugin/upstream/workflows.py [NAME ...] [--sources FOLDER] [--cores 4]``. ``workflows.toml`` has the commits.
Their tools need not be there: every rule writes into its outputs what its command would have been (``stubbed.smk``), so
the same files mean the same commands. Files that a workflow expects and that are not in its repository are made empty.
Both runs are at the same path, one after the other, with as many cores.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomllib

HERE = Path(__file__).resolve().parent
REPOSITORY = "https://github.com/snakemake-workflows/{name}"
SITES = '[sites.local]\nkind = "local"\ncpus = {cores}\nmemory = "256 GiB"\n'
# What Snakemake says of inputs that no rule makes.
MISSING = re.compile(r"affected files:\n((?:[ \t]+.*\n?)+)")
# Where each Snakemake has the sources of a workflow, which commands may name.
OF_ONE_RUN = re.compile(rb"(?<=snakemake-runtime-cache/)tmp\w+")
# How the file of a benchmark begins.
BENCHMARK = b"s\th:m:s\t"
MOST_ROUNDS = 50


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="the workflows to run (default: all)")
    parser.add_argument("--sources", help="a folder with a clone of each workflow (default: clone them from GitHub)")
    parser.add_argument("--cores", type=int, default=4, help="number of cpus for each of the two runs (default: 4)")
    parser.add_argument("--seconds", type=float, default=1800, help="for one run")
    options = parser.parse_args()
    known: Mapping[str, Mapping[str, Any]] = tomllib.loads((HERE / "workflows.toml").read_text())
    if unknown := set(options.names) - known.keys():
        parser.error(f"unknown: {', '.join(sorted(unknown))}; valid: {', '.join(known)}")
    faults = 0
    for name in options.names or known:
        with tempfile.TemporaryDirectory(prefix="lading-workflow-") as folder:
            source = f"{options.sources}/{name}" if options.sources else REPOSITORY.format(name=name)
            try:
                said = compare(Path(folder), source, known[name], options.cores, options.seconds)
            except subprocess.CalledProcessError as error:
                said = f"no sources: {error}"
        faults += said is not None
        print(f"{name}: {said or 'the same'}", flush=True)
    return 1 if faults else 0


def compare(folder: Path, source: str, terms: Mapping[str, Any], cores: int, seconds: float) -> str | None:
    """Run one workflow twice; what is wrong with it, or None.

    :param terms: its table of ``workflows.toml``
    """
    clone, at = folder / "clone", folder / "run"
    subprocess.run(["git", "clone", "--quiet", "--no-checkout", source, clone], check=True)
    subprocess.run(["git", "-C", clone, "checkout", "--quiet", terms["commit"]], check=True)
    (folder / "sites.toml").write_text(SITES.format(cores=cores))
    snakefile = clone / terms.get("snakefile", "workflow/Snakefile")
    shutil.copy(HERE / "stub.py", snakefile.parent)
    with snakefile.open("a") as file:  # at its end, so that its first rule stays its target
        file.write((HERE / "stubbed.smk").read_text())
    command = [sys.executable, "-m", "snakemake", "--snakefile", at / snakefile.relative_to(clone)]
    command += ["--directory", at / terms.get("directory", "."), *terms.get("options", ())]
    command += ["--scheduler", "greedy"]  # which jobs run at once is of no matter here, and takes the other one minutes
    command += ["--cores", cores]  # with both: workflows can compute threads from it
    ways = {
        "--cores": [],
        "lading": ["--executor", "lading", "--jobs", "1000", "--lading-sites-file", folder / "sites.toml"],
    }
    environment = {**os.environ, **terms.get("environment", {})}
    found: dict[str, tuple[int, dict[str, bytes | None]]] = {}
    said = ""
    make_missing(clone, at, command, terms.get("directory", "."), environment)
    for way, options in ways.items():
        clone.rename(at) if way == "lading" else shutil.copytree(clone, at, symlinks=True)
        done = run(at, *command, *options, environment=environment, seconds=seconds)
        said = said if done.returncode == 0 else f"{said}\n{way}: {done.stdout[-3000:]}"
        found[way] = done.returncode, read_files(at)
        if way != "lading":
            shutil.rmtree(at)
    (status, files), (its_status, its_files) = found.values()
    if status != its_status:
        return f"exit code {its_status} instead of {status}{said}"
    if status:  # which jobs had ended by then is chance
        return f"it fails with both: exit code {status}{said}"
    if differing := sorted(
        each for each in files.keys() | its_files.keys() if files.get(each, 0) != its_files.get(each, 0)
    ):
        shown = [
            f"{each}: {files.get(each, 'missing')!r:.300}, {its_files.get(each, 'missing')!r:.300}"
            for each in differing
        ]
        return "\n  ".join([f"{len(differing)} files differ", *shown[:20]])
    return None


def make_missing(clone: Path, at: Path, command: list[Any], directory: str, environment: Mapping[str, str]) -> None:
    """Make the inputs of a workflow that are not in its repository, as far as Snakemake says which; they are empty."""
    for _ in range(MOST_ROUNDS):
        clone.rename(at)
        done = run(at, *command, "--dry-run", "--quiet", environment=environment)
        at.rename(clone)
        names = [line.strip() for block in MISSING.findall(done.stdout) for line in block.splitlines()]
        if not names:
            return
        for name in names:
            path = clone / directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()


def run(
    folder: Path, *command: object, environment: Mapping[str, str], seconds: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder, with all that it says as one text."""
    arguments, output = [str(each) for each in command], {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    try:
        done = subprocess.run(arguments, cwd=folder, env=environment, timeout=seconds, check=False, **output)
    except subprocess.TimeoutExpired as late:
        done = subprocess.CompletedProcess(
            arguments, 124, (late.stdout or b"") + f"It has not ended in {seconds} s".encode()
        )
    return subprocess.CompletedProcess(arguments, done.returncode, done.stdout.decode(errors="replace"))


def read_files(folder: Path) -> dict[str, bytes | None]:
    """What each file of a folder has, but for Snakemake's own; None: it is a folder, or a link to nowhere."""
    paths = [each for each in folder.rglob("*") if not {".snakemake", ".git", "__pycache__"} & set(each.parts)]
    return {str(each.relative_to(folder)): compared(each.read_bytes()) if each.is_file() else None for each in paths}


def compared(content: bytes) -> bytes:
    """What is the same in every run of a workflow; of a benchmark that is its first line."""
    return content.partition(b"\n")[0] if content.startswith(BENCHMARK) else OF_ONE_RUN.sub(b"", content)


if __name__ == "__main__":
    sys.exit(main())
