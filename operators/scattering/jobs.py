"""The jobs of a scatter as seen by the process that runs one: inputs, label and output."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import attrs
from airflow.sdk.configuration import conf
from airflow.sdk.definitions._internal.expandinput import ListOfDictsExpandInput
from airflow.sdk.definitions.xcom_arg import XComArg
from airflow.sdk.execution_time.lazy_sequence import LazyXComSequence

from lading.operators.scattering.chunk import Chunk
from lading.operators.scattering.outputs import Pages, stored
from lading.operators.scattering.shape import ScatterShape
from lading.scheduling.scatter import ScatterError, elements, expand

# Keys in the context of a task instance: the number of the job, and its label.
JOB = "scatter_job"
LABEL = "scatter_label"


@dataclass
class Scatter:
    """One call of ``scatter``.

    :param inputs: by name, in scatter order
    :param method: how they are combined
    :param chunk_size: how many jobs one task instance runs; None: as few as possible
    """

    inputs: Mapping[str, Any]
    method: str | None
    chunk_size: int | None
    plan: Any = None
    mapped: Any = None
    _planned: tuple[object, ScatterShape, Mapping[str, Sequence[Any]]] | None = field(default=None, repr=False)

    def measure(self, context: Any) -> ScatterShape:
        """Determine the shape from the lengths of the inputs.

        :raises ScatterError: an input is not a list, or the lengths do not match
        """
        lengths = {name: len(column) for name, column in self.resolve(context).items()}
        return ScatterShape.plan(self.method, lengths, self.chunk_size, conf.getint("core", "max_map_length"))

    def resolve(self, context: Any) -> dict[str, Sequence[Any]]:
        return {name: column(name, value, context) for name, value in self.inputs.items()}

    def planned(self, context: Any) -> tuple[ScatterShape, Mapping[str, Sequence[Any]]]:
        """Return the planned shape and the elements of every input, computed once per task instance.

        :raises ScatterError: the inputs have changed since they were planned
        """
        instance = context["ti"].id
        if self._planned is None or self._planned[0] != instance:
            shape = ScatterShape.pull(self.plan, context)
            columns = self.resolve(context)
            lengths = {name: len(each) for name, each in columns.items()}
            if shape is None or dict(shape.lengths) != lengths:
                raise ScatterError(
                    f"the lengths of the inputs have changed since they were planned: {lengths}; "
                    f"clear {self.plan.operator.task_id} and the tasks after it"
                )
            self._planned = (instance, shape, columns)
        return self._planned[1:]

    def job(self, context: Any, number: int) -> dict[str, Any]:
        """Return the inputs of one job."""
        shape, columns = self.planned(context)
        return expand(shape.method, columns)[number]


def column(name: str, value: Any, context: Any) -> Sequence[Any]:
    """Return the elements of one input.

    :raises ScatterError: it is not a list
    """
    if isinstance(value, XComArg):
        value = value.resolve(context)
    if isinstance(value, LazyXComSequence):
        outputs = value
        return Pages(len(outputs), lambda start, stop: outputs[start:stop])
    return elements(name, value)


@attrs.define
class ScatterInput(ListOfDictsExpandInput):
    """The arguments of the mapped task; to Airflow's scheduler, they are the list that was planned."""

    scatter: Scatter

    def resolve(self, context: Any) -> tuple[Mapping[str, Any], set[int]]:
        shape, _ = self.scatter.planned(context)
        jobs = shape.jobs_of(context["ti"].map_index)
        values = self.scatter.job(context, context.get(JOB, jobs[0]))
        context[LABEL] = f"elements {jobs[0]} to {jobs[-1]}" if shape.chunked and JOB not in context else label(values)
        # The output of a task is not rendered as a template, while a value written by the author may be one.
        returned = {id(values[name]) for name, given in self.scatter.inputs.items() if isinstance(given, XComArg)}
        return values, returned


class Scattered:
    """The mixin that makes an operator run the jobs of a scatter."""

    scatter: Scatter
    _chunk: Chunk | None = None

    def execute(self, context: Any) -> Any:
        shape, _ = self.scatter.planned(context)
        if not shape.chunked:
            return stored(super().execute(context))  # type: ignore[misc]
        self.multiple_outputs = False
        self._chunk = Chunk(
            shape.jobs_of(context["ti"].map_index), lambda number: self.run_job(context, number), context
        )
        return self._chunk.run(lambda number: label(self.scatter.job(context, number)))

    def run_job(self, context: Any, number: int) -> Any:
        """Run one job of a chunk, in a separate process."""
        own = {**context, JOB: number}
        self.scatter.mapped.render_template_fields(own)
        task = own["task"]
        return task._execute_once(own)

    def _execute_once(self, context: Any) -> Any:
        from airflow.sdk.bases.operator import ExecutorSafeguard

        ExecutorSafeguard.tracker.set(self)  # type: ignore[arg-type]
        return super().execute(context)  # type: ignore[misc]

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Any) -> Any:
        return stored(super().resume_execution(next_method, next_kwargs, context))  # type: ignore[misc]

    def on_kill(self) -> None:
        if self._chunk is not None:
            self._chunk.stop()
        else:
            super().on_kill()  # type: ignore[misc]


def scattered(operator_class: type, scatter: Scatter) -> type:
    """Derive an operator class with :class:`Scattered` mixed in, under the same name and module."""
    namespace = {"__module__": operator_class.__module__, "__doc__": operator_class.__doc__, "scatter": scatter}
    return type(operator_class)(operator_class.__name__, (Scattered, operator_class), namespace)


def label(values: Mapping[str, Any]) -> str:
    """Return the label of a job, such as ``sample=A1, region=chr2``."""
    text = ", ".join(f"{name}={shown(value)}" for name, value in values.items())
    return text if len(text) <= 250 else f"{text[:249]}…"  # Airflow stores no longer labels


def shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    if len(text) <= 60:
        return text
    return f"…{text[-59:]}" if "/" in text else f"{text[:59]}…"
