"""Linear programs, and those with whole numbers: the least cost of columns that meet what rows ask for.

HiGHS solves them (Huangfu and Hall, "Parallelizing the dual revised simplex method", Mathematical Programming
Computation 10, 2018), with one thread and a fixed seed, so that the same program has the same solution everywhere.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import highspy
import numpy as np
from numpy.typing import NDArray

Numbers: TypeAlias = NDArray[Any]


class Silent(highspy.Highs):
    """HiGHS greets on standard output from 1.16 on as soon as callbacks are enabled, which is when it is made."""

    def enableCallbacks(self) -> None:
        self.setOptionValue("output_flag", False)
        super().enableCallbacks()


class LinearProgram:
    """The least ``cost @ x`` for x >= 0 with ``lower <= A x <= upper``; columns of A may be added after a solution,
    from which the next one starts.

    :param lower: of each row
    :param upper: of each row; ``inf`` where there is no limit
    """

    def __init__(self, lower: Numbers, upper: Numbers) -> None:
        self.solver = Silent()
        self.solver.setOptionValue("threads", 1)
        rows = len(lower)
        nothing: Numbers = np.zeros(rows, np.int32)
        self.solver.addRows(rows, lower.astype(float), upper.astype(float), 0, nothing, nothing[:0], np.zeros(0))

    def add(self, cost: Numbers, size: Numbers, row: Numbers, value: Numbers) -> None:
        """Add columns.

        :param size: how many rows each has an entry in
        :param row: of the entries, one column after the other
        """
        columns = len(cost)
        starts = np.concatenate([[0], np.cumsum(size)[:-1]]).astype(np.int32)
        least, most = np.zeros(columns), np.full(columns, highspy.kHighsInf)
        self.solver.addCols(
            columns, cost.astype(float), least, most, len(row), starts, row.astype(np.int32), value.astype(float)
        )

    def solve(self) -> tuple[Numbers, Numbers]:
        """How much of each column, and by how much the cost grows with each row's limit.

        :raises RuntimeError: there is no solution, or none was found
        """
        self.solver.run()
        status = self.solver.getModelStatus()
        if status != highspy.HighsModelStatus.kOptimal:
            raise RuntimeError(f"a linear program was not solved: {self.solver.modelStatusToString(status)}")
        found = self.solver.getSolution()
        return np.array(found.col_value), np.array(found.row_dual)

    def solve_whole(self, nodes: int, gap: float) -> Numbers | None:
        """Whole amounts of each column; None: none were found within so many nodes.

        :param gap: part of the cost within which they may miss the least
        """
        columns = self.solver.getNumCol()
        every = np.arange(columns, dtype=np.int32)
        self.solver.changeColsIntegrality(columns, every, np.full(columns, highspy.HighsVarType.kInteger))
        self.solver.setOptionValue("mip_max_nodes", nodes)
        self.solver.setOptionValue("mip_rel_gap", gap)
        self.solver.run()
        if self.solver.getInfo().primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
            return None
        return np.round(self.solver.getSolution().col_value)
