"""Linear and integer programs: the cheapest combination of columns that satisfies all rows.

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
    """HiGHS without its banner, which version 1.16 and later print when callbacks are enabled on construction."""

    def enableCallbacks(self) -> None:
        self.setOptionValue("output_flag", False)
        super().enableCallbacks()


class LinearProgram:
    """Minimise ``cost @ x`` for x >= 0 with ``lower <= A x <= upper``. Columns of A can be added after a solution, from
    which the next one starts.

    :param lower: of each row
    :param upper: of each row; ``inf``: no limit
    """

    def __init__(self, lower: Numbers, upper: Numbers) -> None:
        self.solver = Silent()
        self.solver.setOptionValue("threads", 1)
        rows = len(lower)
        nothing: Numbers = np.zeros(rows, np.int32)
        self.solver.addRows(rows, lower.astype(float), upper.astype(float), 0, nothing, nothing[:0], np.zeros(0))

    def add(self, cost: Numbers, size: Numbers, row: Numbers, value: Numbers) -> None:
        """Add columns.

        :param size: the number of entries of each column
        :param row: the rows of the entries, column by column
        :param value: the entries, in the same order
        """
        columns = len(cost)
        starts = np.concatenate([[0], np.cumsum(size)[:-1]]).astype(np.int32)
        least, most = np.zeros(columns), np.full(columns, highspy.kHighsInf)
        self.solver.addCols(
            columns, cost.astype(float), least, most, len(row), starts, row.astype(np.int32), value.astype(float)
        )

    def solve(self) -> tuple[Numbers, Numbers]:
        """Return the amount of each column, and each row's dual: how much the cost grows with the row's limit.

        :raises RuntimeError: there is no solution, or none was found
        """
        self.solver.run()
        status = self.solver.getModelStatus()
        if status != highspy.HighsModelStatus.kOptimal:
            raise RuntimeError(f"HiGHS did not solve a linear program: {self.solver.modelStatusToString(status)}")
        found = self.solver.getSolution()
        return np.array(found.col_value), np.array(found.row_dual)

    def solve_whole(self, nodes: int, gap: float) -> Numbers | None:
        """Return integer amounts of each column; None if none were found within the node limit.

        :param gap: relative distance from the lowest cost at which the search stops
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
