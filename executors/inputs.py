"""The inputs of jobs, read from Airflow's database, for hints that depend on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from lading.scheduling.expressions import ExpressionError
from lading.scheduling.scatter import ScatterError, elements, expand

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


@dataclass(frozen=True, slots=True)
class Unknown:
    """An input that only the task itself knows.

    :param why: in words
    """

    why: str


class Inputs:
    """The inputs of the jobs of one task in one run; what tasks have returned is read once.

    :param sources: what the task policy noted, see ``lading.operators.sources``
    """

    def __init__(self, session: Session, dag_id: str, run_id: str, sources: Mapping[str, Any]) -> None:
        self.session = session
        self.dag_id = dag_id
        self.run_id = run_id
        self.sources = sources
        self._pulled: dict[tuple[str, str, bool], Any] = {}

    def of(self, map_index: int) -> list[dict[str, Any]]:
        """The inputs of a job by name; of several where it is a chunk of a scatter.

        :raises ExpressionError: they are not known
        """
        fixed = {name: self._value(source) for name, source in self.sources.get("fixed", {}).items()}
        if map_index < 0:
            return [fixed]
        if "rows" in self.sources:
            rows = self._value(self.sources["rows"])
            if isinstance(rows, Unknown):
                raise ExpressionError(f"the inputs are not known: {rows.why}")
            return [{**fixed, **rows[map_index]}]
        jobs = self._jobs()
        size = self._chunk_size()
        return [{**fixed, **job} for job in jobs[map_index * size : (map_index + 1) * size]]

    def _jobs(self) -> Sequence[dict[str, Any]]:
        columns = {name: self._value(source) for name, source in self.sources["mapped"].items()}
        unknown = [f"{name}: {value.why}" for name, value in columns.items() if isinstance(value, Unknown)]
        if unknown:
            raise ExpressionError(f"the inputs are not known: {'; '.join(unknown)}")
        try:
            return expand(self.sources["method"], {name: elements(name, value) for name, value in columns.items()})
        except ScatterError as error:
            raise ExpressionError(str(error)) from error

    def _chunk_size(self) -> int:
        if "plan" not in self.sources:
            return 1
        shape = self._pull(self.sources["plan"], "shape", mapped=False)
        return 1 if shape is None else int(shape["chunk_size"])

    def _value(self, source: Mapping[str, Any]) -> Any:
        """An input, from where it is."""
        if "value" in source:
            return source["value"]
        if "xcom" in source:
            return self._pull(*source["xcom"], mapped=source["mapped"])
        if "outputs" in source:
            return self._outputs(*source["outputs"])
        return Unknown(source["unknown"])

    def _outputs(self, task_id: str, key: str) -> Any:
        """The outputs of a scatter, in their shape."""
        from lading.operators.outputs import Reference

        fields = self._pull(task_id, key, mapped=False)
        if fields is None:
            return None
        reference = Reference.from_json(fields)
        return reference.open(self._pull(reference.task_id, "return_value", mapped=True))

    def _pull(self, task_id: str, key: str, *, mapped: bool) -> Any:
        """What a task has pushed; of a mapped one a list of what its instances have."""
        if (task_id, key, mapped) not in self._pulled:
            self._pulled[task_id, key, mapped] = self._read(task_id, key, mapped)
        return self._pulled[task_id, key, mapped]

    def _read(self, task_id: str, key: str, mapped: bool) -> Any:
        from airflow.models.xcom import XComModel
        from airflow.sdk.execution_time.xcom import XCom

        rows = self.session.execute(
            select(XComModel.value)
            .where(
                XComModel.dag_id == self.dag_id,
                XComModel.run_id == self.run_id,
                XComModel.task_id == task_id,
                XComModel.key == key,
                XComModel.map_index >= 0 if mapped else XComModel.map_index == -1,
            )
            .order_by(XComModel.map_index)
        )
        try:
            values = [XCom.deserialize_value(SimpleNamespace(value=value)) for (value,) in rows]
        except Exception as error:  # a custom XCom backend may raise anything
            raise ExpressionError(f"what task {task_id} has returned cannot be read: {error}") from error
        return values if mapped else next(iter(values), None)
