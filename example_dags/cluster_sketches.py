"""Compute a tree of related Python packages from MinHash sketches, on a batch cluster.

Bioinformaticians compare thousands of genomes in the same way (Mash, https://doi.org/10.1186/s13059-016-0997-x). Each
sample is reduced to a sketch: the smallest hashes of its k-mers. The overlap of two sketches gives the distance of the
samples, and the distances give a tree. Few machines have genomes, but every machine has the sources of Python's
standard library. So the samples are the packages of the library, and k-mers are pieces of text instead of DNA.

Every task is a job of the batch system. The tasks that compute sketches do most of the work, and form one job array.

The site is a batch site of ``[lading] sites_file``. To choose the site, set the environment variable
``LADING_EXAMPLE_SITE`` where Airflow parses this file, or edit ``SITE`` here. The table of the site could be::

    [sites.hpc]
    kind = "slurm"              # or pbspro, torque, lsf, sge: the Dag stays the same
    ssh_conn_id = "hpc_login"
    work_dir = "/scratch/me/lading"
    python = "/apps/airflow/bin/python"
    node_cpus = 32
    node_memory = "120 GiB"
"""

from __future__ import annotations

import math
import os
import sysconfig
import zlib
from collections.abc import Mapping, Sequence
from datetime import timedelta
from heapq import nsmallest
from itertools import combinations
from pathlib import Path
from typing import TypedDict

from airflow.sdk import Param, dag, get_current_context, task

from lading.operators import resources

SITE = os.environ.get("LADING_EXAMPLE_SITE", "hpc")
LIBRARY = Path(sysconfig.get_path("stdlib"))
# These folders have third-party packages and the library's own tests.
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
KMER = 16  # characters
SKETCH = 1000  # hashes


class Sample(TypedDict):
    name: str
    files: list[str]


class Sketch(TypedDict):
    name: str
    kmers: int  # the number of distinct k-mers
    hashes: list[int]  # the smallest hashes, in ascending order


def largest(count: int) -> list[Sample]:
    """Return the packages of the library with the most source code, largest first."""
    found: list[tuple[int, Sample]] = []
    for folder in LIBRARY.iterdir():
        if folder.is_dir() and folder.name not in LEFT_OUT:
            files = [path for path in sorted(folder.rglob("*.py")) if not LEFT_OUT & set(path.parts)]
            size = sum(path.stat().st_size for path in files)
            found.append((size, Sample(name=folder.name, files=[str(path) for path in files])))
    return [sample for size, sample in sorted(found, key=lambda each: (-each[0], each[1]["name"]))[:count] if size]


def sketched(sample: Sample) -> Sketch:
    """Compute the sketch of a sample from the k-mers at every position of every file, ignoring runs of whitespace."""
    kmers: set[int] = set()
    for file in sample["files"]:
        text = b" ".join(Path(file).read_bytes().split())
        kmers.update(zlib.crc32(text[start : start + KMER]) for start in range(len(text) - KMER + 1))
    return Sketch(name=sample["name"], kmers=len(kmers), hashes=nsmallest(SKETCH, kmers))


def distance(left: Sketch, right: Sketch) -> float:
    """Return the Mash distance, from 0 for equal samples to 1 for samples that share nothing."""
    union = nsmallest(SKETCH, set(left["hashes"]) | set(right["hashes"]))
    shared = len(set(left["hashes"]) & set(right["hashes"]) & set(union))
    if not shared:
        return 1.0
    similarity = shared / len(union)
    return min(1.0, -math.log(2 * similarity / (1 + similarity)) / KMER)


def newick(distances: Mapping[frozenset[str], float], names: Sequence[str]) -> str:
    """Return the tree in Newick format, joining the clusters whose members are nearest on average (UPGMA)."""
    clusters = [([name], name, 0.0) for name in names]  # each with its members, text and height

    def apart(pair: tuple[int, int]) -> float:
        one, other = (clusters[index][0] for index in pair)
        return sum(distances[frozenset((a, b))] for a in one for b in other) / (len(one) * len(other))

    while len(clusters) > 1:
        pair = min(combinations(range(len(clusters)), 2), key=apart)
        height = apart(pair) / 2
        other, one = (clusters.pop(index) for index in reversed(pair))
        branches = ",".join(f"{text}:{max(height - below, 0.0):.4f}" for _, text, below in (one, other))
        clusters.append((one[0] + other[0], f"({branches})", height))
    return f"{clusters[0][1]};" if clusters else ";"


@dag(
    schedule=None,
    params={"samples": Param(8, type="integer", minimum=2, description="how many packages, largest first")},
    default_args={
        "executor_config": resources(site=SITE, cpus=1, memory="1 GiB * attempt", time="10 min"),
        "retries": 1,
        "retry_delay": timedelta(seconds=10),
    },
    max_active_tasks=1000,  # a high limit, so that only the batch system limits how many tasks run at once
    tags=["lading", "example"],
    doc_md=__doc__,
)
def cluster_sketches() -> None:
    @task
    def samples() -> list[Sample]:
        return largest(get_current_context()["params"]["samples"])

    @task(map_index_template="{{ sample['name'] }}")
    def sketch(sample: Sample) -> Sketch:
        made = sketched(sample)
        print(f"{made['name']}: {made['kmers']:,} different {KMER}-mers in {len(sample['files'])} files")
        return made

    @task
    def tree(sketches: Sequence[Sketch]) -> dict[str, object]:
        # A slice fetches all results of a mapped task at once. Iterating would fetch them one by one.
        made = sketches[:]
        pairs = {frozenset((a["name"], b["name"])): distance(a, b) for a, b in combinations(made, 2)}
        nearest = min(pairs, key=lambda pair: pairs[pair])
        text = newick(pairs, [each["name"] for each in made])
        print(text)
        return {"tree": text, "nearest": sorted(nearest), "distance": round(pairs[nearest], 4)}

    tree(sketch.expand(sample=samples()))  # type: ignore[arg-type]  # an XComArg stands for what the task will return


cluster_sketches()
