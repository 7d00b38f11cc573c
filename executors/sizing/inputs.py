"""The inputs of jobs, read from Airflow's database for hints that depend on them.

Tasks wrote these values, so they are read as plain JSON, and no class that they name is imported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from lading.hooks.files.xcom_json import Unknown, plain
from lading.scheduling.hints.expressions import ExpressionError
from lading.scheduling.scatter import ScatterError, elements, expand
from lading.scheduling.text.printable import json_beginning

# The XCom back ends that store what tasks return as JSON in the database.
PLAIN_BACKENDS = ("airflow.sdk.execution_time.xcom.BaseXCom", "airflow.sdk.bases.xcom.BaseXCom")


def kept(inputs: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the values of inputs as JSON, for plugins; None: there are none.

    Values that are unknown, not JSON or longer than 1,000 characters are left out. Of a chunk, only the first elements
    that fit into 8,000 characters are returned.

    :param inputs: by name, for each job of a chunk
    """
    elements_as_json: list[str] = []
    for values in inputs:
        its_own = {name: text for name, value in values.items() if (text := _short_json(value)) is not None}
        element = "{" + ", ".join(f"{json.dumps(name)}: {text}" for name, text in its_own.items()) + "}"
        if sum(map(len, elements_as_json)) + len(element) > 8000:
            break
        elements_as_json.append(element)
    return f"[{', '.join(elements_as_json)}]" if elements_as_json else None


def _short_json(value: object) -> str | None:
    try:
        text = json_beginning(value, 1001)
    except (TypeError, ValueError, RecursionError):  # Unknown is not a JSON type
        return None
    return text if len(text) <= 1000 else None


class Inputs:
    """The inputs of the jobs of one task in one run; the results of tasks are read only once.

    :param sources: as recorded by the task policy, see ``lading.operators.scattering.input_sources``
    """

    def __init__(self, session: Session, dag_id: str, run_id: str, sources: Mapping[str, Any]) -> None:
        self.session = session
        self.dag_id = dag_id
        self.run_id = run_id
        self.sources = sources
        self._pulled: dict[tuple[str, str, bool], Any] = {}

    @property
    def tasks(self) -> set[str]:
        several = self.sources.get("fixed", {}), self.sources.get("mapped", {}), {"rows": self.sources.get("rows", {})}
        return {task for some in several for source in some.values() if (task := self._task(source))}

    def for_job(self, map_index: int) -> list[dict[str, Any]]:
        """Return the inputs of a task instance by name, for each job if it runs a chunk of a scatter.

        :raises ExpressionError: they are unknown
        """
        fixed = {name: self._value(source) for name, source in self.sources.get("fixed", {}).items()}
        if map_index < 0:
            return [fixed]
        if "rows" in self.sources:
            return [{**fixed, **self._row(map_index)}]
        jobs = self._jobs()
        size = self._chunk_size()
        found = [{**fixed, **job} for job in jobs[map_index * size : (map_index + 1) * size]]
        if not found:
            raise self._missing(map_index, len(jobs))
        return found

    def count(self) -> int:
        """Return the number of jobs of a mapped task.

        :raises ExpressionError: it is unknown
        """
        if "rows" not in self.sources:
            return len(self._jobs())
        rows = self._value(self.sources["rows"])
        if isinstance(rows, Unknown) or not isinstance(rows, Sequence):
            raise ExpressionError(f"the number of jobs is unknown: {getattr(rows, 'why', 'the inputs are not a list')}")
        return len(rows)

    def _row(self, map_index: int) -> Mapping[str, Any]:
        rows = self._value(self.sources["rows"])
        if isinstance(rows, Unknown):
            raise ExpressionError(f"the inputs are unknown: {rows.why}")
        if not isinstance(rows, Sequence) or isinstance(rows, str) or map_index >= len(rows):
            raise self._missing(map_index, len(rows) if isinstance(rows, Sequence) else 0)
        if not isinstance(row := rows[map_index], Mapping):
            raise ExpressionError(
                f"the inputs of map index {map_index} are {row!r:.80}; valid: a dict of inputs by name"
            )
        return row

    def _missing(self, map_index: int, count: int) -> ExpressionError:
        """Return the error for a job without inputs, whose task was expanded over other inputs."""
        sources = [self.sources["rows"]] if "rows" in self.sources else self.sources["mapped"].values()
        tasks = sorted({task for source in sources if (task := self._task(source))})
        where = f" from what {', '.join(tasks)} returned" if tasks else ""
        return ExpressionError(
            f"there are no inputs for map index {map_index}{where}: only {count} exist now. They were deleted "
            "or changed after the task was mapped, so clear the tasks that return them"
        )

    def _jobs(self) -> Sequence[dict[str, Any]]:
        columns = {name: self._value(source) for name, source in self.sources["mapped"].items()}
        unknown = [f"{name}: {value.why}" for name, value in columns.items() if isinstance(value, Unknown)]
        for name, value in columns.items():
            if value is None and (task := self._task(self.sources["mapped"][name])):
                unknown.append(f"input {name} is None: task {task} returned nothing, or its output was deleted")
        if unknown:
            raise ExpressionError(f"the inputs are unknown: {'; '.join(unknown)}")
        try:
            return expand(self.sources["method"], {name: elements(name, value) for name, value in columns.items()})
        except ScatterError as error:
            raise ExpressionError(str(error)) from error

    @staticmethod
    def _task(source: Mapping[str, Any]) -> str:
        """Return the task that an input comes from; empty: none."""
        return str((source.get("xcom") or source.get("outputs") or [""])[0])

    def _chunk_size(self) -> int:
        if "plan" not in self.sources:
            return 1
        shape = self._pull(self.sources["plan"], "shape", mapped=False)
        return 1 if shape is None else int(shape["chunk_size"])

    def _value(self, source: Mapping[str, Any]) -> Any:
        if "value" in source:
            return source["value"]
        if "xcom" in source:
            return self._pull(*source["xcom"], mapped=source["mapped"])
        if "outputs" in source:
            return self._outputs(*source["outputs"])
        return Unknown(source["unknown"])

    def _outputs(self, task_id: str, key: str) -> Any:
        """Return the outputs of a scatter, in their shape."""
        from lading.operators.scattering.outputs import OutputsReference

        fields = self._pull(task_id, key, mapped=False)
        if fields is None:
            return None
        reference = OutputsReference.from_json(fields)
        return reference.open(self._pull(reference.task_id, "return_value", mapped=True))

    def _pull(self, task_id: str, key: str, *, mapped: bool) -> Any:
        """Return what a task pushed; for a mapped task, a list with the value of each instance."""
        if (task_id, key, mapped) not in self._pulled:
            self._pulled[task_id, key, mapped] = self._read(task_id, key, mapped)
        return self._pulled[task_id, key, mapped]

    def _read(self, task_id: str, key: str, mapped: bool) -> Any:
        from airflow.configuration import conf
        from airflow.models.xcom import XComModel

        if (backend := conf.get("core", "xcom_backend", fallback=PLAIN_BACKENDS[0])) not in PLAIN_BACKENDS:
            raise ExpressionError(
                f"the output of task {task_id} is stored by [core] xcom_backend {backend}, which only tasks can read; "
                "use hints without inputs that come from tasks"
            )
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
        values = [plain(value) for (value,) in rows]
        return values if mapped else next(iter(values), None)
