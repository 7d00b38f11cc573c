"""Insertion: every job has its room, and rounds make it cheaper."""

from __future__ import annotations

import numpy as np

from benchmarks.sizes import mixed
from lading.scheduling.catalogue import bundled
from lading.scheduling.packing.arrays import goods
from lading.scheduling.packing.filling import Pattern, cost
from lading.scheduling.packing.insertion import pack
from lading.scheduling.packing.problem import pose
from lading.scheduling.plan import Limits, Objective


def test_every_job_is_on_one_machine_that_holds_it_and_rounds_make_it_cheaper() -> None:
    problem = pose(mixed(60, 1), (), bundled(), Limits(), Objective(), 0.0, None)
    material = goods(problem, problem.counts(), 0.0, frozenset())
    first, later = pack(material, 0), pack(material, 1_500)
    for patterns in (first, later):
        packed = np.zeros(len(material.count), np.int64)
        for pattern in patterns:
            np.add.at(packed, pattern.shapes, pattern.each * pattern.times)
            used = pattern.each @ material.need[pattern.shapes]
            assert (used <= material.capacity[pattern.bin]).all()
            assert material.fits[pattern.bin, pattern.shapes].all()
        assert (packed == material.count).all()
    assert cost(material, later) < 0.98 * cost(material, first)
    assert [of(each) for each in pack(material, 1_500)] == [of(each) for each in later], "chance has a fixed seed"


def of(pattern: Pattern) -> tuple[int, list[int]]:
    return pattern.bin, pattern.shapes.tolist()
