"""What the example for batch clusters reckons."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from lading.example_dags import cluster_sketches
from lading.example_dags.cluster_sketches import Sample, Sketch

TEXT = "".join(f"def function_{number}(argument):\n    return argument + {number}\n" for number in range(200))


def sketch_of(folder: Path, name: str, text: str) -> Sketch:
    path = folder / f"{name}.py"
    path.write_text(text)
    return cluster_sketches.sketched(Sample(name=name, files=[str(path)]))


def test_the_largest_packages_are_the_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in {"small": 1, "large/below": 9, "empty": 0, "test": 99, "middle": 5}.items():
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "code.py").write_text("x" * size)
    monkeypatch.setattr(cluster_sketches, "LIBRARY", tmp_path)
    assert [sample["name"] for sample in cluster_sketches.largest(9)] == ["large", "middle", "small"]
    [sample] = cluster_sketches.largest(1)
    assert sample == Sample(name="large", files=[str(tmp_path / "large/below/code.py")])


def test_distances_tell_kin_from_strangers(tmp_path: Path) -> None:
    sample = sketch_of(tmp_path, "sample", TEXT)
    indented = sketch_of(tmp_path, "indented", TEXT.replace("\n", "\n\t"))
    changed = sketch_of(tmp_path, "changed", TEXT.replace("argument + 1", "argument - 1"))
    stranger = sketch_of(tmp_path, "stranger", "".join(f"{number**5:x} " for number in range(2000)))
    assert sample["hashes"] == sorted(sample["hashes"])
    assert cluster_sketches.distance(sample, indented) < 0.001
    assert 0 < cluster_sketches.distance(sample, changed) < 0.1
    assert cluster_sketches.distance(sample, stranger) == 1.0


def test_the_nearest_are_joined_first() -> None:
    names = ["a", "b", "c"]
    distances = {frozenset(pair): 0.8 for pair in combinations(names, 2)} | {frozenset(("b", "c")): 0.2}
    assert cluster_sketches.newick(distances, names) == "(a:0.4000,(b:0.1000,c:0.1000):0.3000);"
    assert cluster_sketches.newick({}, ["alone"]) == "alone;"
