"""Linear programs, and those with whole numbers."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from lading.scheduling.packing.linear_program import LinearProgram

SAY_NOTHING = """
import numpy as np
from lading.scheduling.packing.linear_program import LinearProgram
program = LinearProgram(np.ones(1), np.full(1, np.inf))
program.add(np.ones(1), np.ones(1), np.zeros(1), np.ones(1))
program.solve()
"""


def two_jobs() -> LinearProgram:
    """Three of one sort and five of another are to be covered, by columns of one of them alone, for 2 and 3."""
    program = LinearProgram(np.array([3, 5]), np.full(2, np.inf))
    program.add(np.array([2.0, 3.0]), np.array([1, 1]), np.array([0, 1]), np.array([1.0, 1.0]))
    return program


def test_amounts_and_what_one_more_costs() -> None:
    amounts, worth = two_jobs().solve()
    assert amounts.tolist() == [3.0, 5.0]
    assert worth.tolist() == [2.0, 3.0]


def test_a_column_that_joins_later_is_used() -> None:
    program = two_jobs()
    program.solve()
    program.add(np.array([4.0]), np.array([2]), np.array([0, 1]), np.array([1.0, 2.0]))
    amounts, worth = program.solve()
    assert amounts.tolist() == pytest.approx([0.5, 0.0, 2.5])
    assert worth.tolist() == pytest.approx([2.0, 1.0])


def test_whole_amounts() -> None:
    program = two_jobs()
    program.add(np.array([4.0]), np.array([2]), np.array([0, 1]), np.array([1.0, 2.0]))
    amounts = program.solve_whole(100, 0.0)
    assert amounts is not None
    assert amounts @ [2.0, 3.0, 4.0] == 12.0
    assert amounts.tolist() == np.round(amounts).tolist()


def test_what_cannot_be_covered_is_an_error() -> None:
    program = LinearProgram(np.ones(1), np.full(1, np.inf))
    program.add(np.ones(1), np.ones(1), np.zeros(1), np.zeros(1))
    with pytest.raises(RuntimeError, match="Infeasible"):
        program.solve()
    assert program.solve_whole(100, 0.0) is None


def test_the_solver_prints_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", SAY_NOTHING], check=True, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("", "")
