"""Insertion: every job has its room, rounds make it cheaper, and the same is found compiled and not."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.sizes import mixed
from lading.scheduling.model.catalogue import bundled
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.plan import InstanceLimits, Objective
from lading.scheduling.packing import insertion, kernel_state
from lading.scheduling.packing.arrays import PackingArrays, packing_arrays
from lading.scheduling.packing.filling import Pattern, cost
from lading.scheduling.packing.insertion import Kinds, kinds, pack
from lading.scheduling.packing.problem import pose


def posed(jobs: list[PlannedJob]) -> tuple[PackingArrays, Kinds]:
    problem = pose(jobs, (), bundled().select(), InstanceLimits(), Objective(), 0.0, None)
    arrays = packing_arrays(problem, problem.counts(), 0.0, frozenset())
    found = kinds(problem, arrays)
    assert found is not None
    return arrays, found


def some() -> tuple[PackingArrays, Kinds]:
    jobs = mixed(60, 2)
    return posed([*jobs[:-1], replace(jobs[-1], arch=None)])


def test_every_job_is_on_one_machine_that_holds_it_and_rounds_make_it_cheaper() -> None:
    arrays, wishes = some()
    first, later = pack(arrays, wishes, (0, 0)), pack(arrays, wishes, (1_500, 1_500))
    for patterns in (first, later):
        packed = np.zeros(len(arrays.count), np.int64)
        for pattern in patterns:
            np.add.at(packed, pattern.shapes, pattern.each * pattern.times)
            used = pattern.each @ arrays.need[pattern.shapes]
            assert (used <= arrays.capacity[pattern.bin]).all()
            assert arrays.fits[pattern.bin, pattern.shapes].all()
        assert (packed == arrays.count).all()
    assert cost(arrays, later) < 0.98 * cost(arrays, first)
    assert of(pack(arrays, wishes, (1_500, 1_500))) == of(later), "chance has a fixed seed"


@pytest.mark.parametrize(("number", "looks"), [(1, 1), (10, 1), (20, 4), (60, 4)])
def test_few_jobs_are_not_searched_as_long_as_many(number: int, looks: int) -> None:
    """A look after every 50,000 jobs that were put back: of 200,000, ten jobs get a quarter, and one job 500."""
    arrays, wishes = posed(mixed(number, 1))
    seen: list[tuple[str, float]] = []

    def going(what: str, part: float) -> bool:
        seen.append((what, part))
        return True

    pack(arrays, wishes, (0, 200_000), going)
    assert len(seen) == looks


def test_without_numba_it_finds_the_same() -> None:
    code = (
        "import importlib.util, json, sys; sys.modules['numba'] = None; sys.path.insert(0, '.')\n"
        f"spec = importlib.util.spec_from_file_location('here', {__file__!r})\n"
        "here = importlib.util.module_from_spec(spec); spec.loader.exec_module(here)\n"
        "from lading.scheduling.packing import kernel_state\n"
        "assert not kernel_state.COMPILED\n"
        "print(json.dumps(here.of(here.pack(*here.some(), (1_500, 0)))))"
    )
    answer = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert json.loads(answer.stdout) == of(pack(*some(), (0, 1_500)))


def test_of_many_machines_one_of_each_stride_is_looked_at_and_those_that_were_changed() -> None:
    number, turn, changed = 1000, 7, [3, 500, 999]
    blank, marked = np.zeros(number), np.zeros(number)
    marked[changed] = turn
    kind = np.where(np.arange(number) == 500, -1, 0)  # which is empty now
    machines = kernel_state.KernelMachines(
        *map(kernel_state.ints, (blank, blank, blank, kind, blank, marked)), *[kernel_state.ints(blank)] * 4
    )
    ways = set()
    for chance in (insertion.SEED, insertion.SEED + 1):
        among = kernel_state.ints(np.arange(number))
        round_state = kernel_state.RoundState(*[kernel_state.ints(blank)] * 3, among, kernel_state.ints(changed))
        few, _ = kernel_state.looked_at(machines, round_state, kernel_state.WAY, number, len(changed), turn, chance)
        found = [int(machine) for machine in among[:few]]
        assert found[-2:] == [3, 999]
        strides = [machine // 20 for machine in found[:-2]]
        assert strides == sorted(set(strides)), "no stride twice"
        assert set(range(50)) - set(strides) <= {0, 25, 49}, "where a machine that was changed may have been drawn"
        ways.add(tuple(found))
    assert len(ways) == 2


def test_wishes_that_have_nothing_in_common_share_no_machine() -> None:
    _, wishes = some()
    kind = wishes.of_shape
    assert len(np.unique(kind)) == 3, "x86_64, aarch64 and either"
    names = {tuple(wishes.granted[k]): k for k in np.unique(kind)}
    assert len(names) == 3
    apart = [(i, j) for i in names.values() for j in names.values() if wishes.both[i, j] < 0]
    assert len(apart) == 2, "x86_64 and aarch64, both ways"


def test_too_many_kinds_of_wishes_are_left_to_filling() -> None:
    problem = pose(mixed(20, 1), (), bundled(), InstanceLimits(), Objective(), 0.0, None)
    arrays = packing_arrays(problem, problem.counts(), 0.0, frozenset())
    assert kinds(problem, arrays, most=2) is None


def of(patterns: list[Pattern]) -> list[list[object]]:
    return [[pattern.bin, pattern.shapes.tolist(), pattern.each.tolist()] for pattern in patterns]
