"""The tasks of a scatter: one that plans, the mapped one that does the work, and one that gathers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import attrs
from airflow.sdk import BaseOperator, TaskGroup, XComArg
from airflow.sdk.bases.decorator import _TaskDecorator
from airflow.sdk.definitions.mappedoperator import OperatorPartial, validate_mapping_kwargs
from airflow.sdk.definitions.xcom_arg import PlainXComArg
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from airflow.sdk.execution_time.lazy_sequence import LazyXComSequence

from lading.operators.scattering.jobs import LABEL, Scatter, ScatterInput, scattered
from lading.operators.scattering.outputs import OUTPUTS, GatheredOutputs, OutputsReference
from lading.operators.scattering.shape import SHAPE, ScatterShape
from lading.scheduling.hints.hints import HINT_KEY, given, merge
from lading.scheduling.scatter import ScatterError


class Unplannable(ScatterError, AirflowFailException):
    """A scatter that is impossible, which another try would not change."""


@dataclass(frozen=True)
class Template:
    """The task to scatter.

    :param partial: a TaskFlow function or an operator, with the arguments that all jobs share
    """

    partial: Any

    @classmethod
    def from_task(cls, task: object) -> Template:
        """:raises ScatterError: the task is neither a TaskFlow function nor the result of ``.partial(...)``"""
        if not isinstance(task, (_TaskDecorator, OperatorPartial)):
            raise ScatterError(
                f"{task!r:.80} cannot be scattered; valid: a function with @task, or the result of .partial(...) on "
                "one or on an operator class, as in scatter(align.partial(ref=REF), sample=[...])"
            )
        if isinstance(task, OperatorPartial):
            task._expand_called = True  # otherwise Airflow warns that it was never mapped
        return cls(task)

    @property
    def fixed(self) -> Mapping[str, Any]:
        """The arguments that all jobs share."""
        if isinstance(self.partial, _TaskDecorator):
            return cast("Mapping[str, Any]", self.partial.kwargs.get("op_kwargs", {}))
        return cast("Mapping[str, Any]", self.partial.kwargs)

    def check_inputs(self, inputs: Mapping[str, object]) -> None:
        """:raises ScatterError: the task has no such parameter, or already gets it in ``partial``"""
        twice = [name for name in inputs if name in self.fixed]
        if twice:
            raise ScatterError(f"{', '.join(twice)}: cannot be both scattered over and given in partial")
        if self.partial.kwargs.get("do_xcom_push") is False:
            raise ScatterError("do_xcom_push=False leaves no outputs to gather; use .expand(), or remove it")
        try:
            if isinstance(self.partial, _TaskDecorator):
                self.partial._validate_arg_names("expand", dict(inputs))
            else:
                validate_mapping_kwargs(self.partial.operator_class, "expand", dict(inputs))
        except (TypeError, ValueError) as error:
            raise ScatterError(f"the task cannot be scattered over {', '.join(inputs)}: {error}") from error

    def mapped(self, task_id: str, group: TaskGroup, plan: XComArg, scatter: Scatter, hints: Mapping[str, Any]) -> Any:
        own = self.partial.kwargs.get("executor_config") or {}
        kwargs = {**self.partial.kwargs, "task_id": task_id, "task_group": group}
        if hints:
            kwargs["executor_config"] = {**own, HINT_KEY: merge(given(own), hints)}
        kwargs["map_index_template"] = kwargs.get("map_index_template") or f"{{{{ {LABEL} }}}}"
        operator_class = scattered(self.partial.operator_class, scatter)
        expanded: Any = attrs.evolve(self.partial, operator_class=operator_class, kwargs=kwargs).expand_kwargs(plan)
        mapped = getattr(expanded, "operator", expanded)  # a TaskFlow function returns its XCom
        setattr(mapped, mapped._expand_input_attr, ScatterInput(plan, scatter))
        return mapped


class PlanScatter(BaseOperator):
    """Counts the inputs and decides which task instance runs which jobs. If that is impossible, no job starts."""

    ui_color = "#f4f4f4"
    takes_hints = False

    def __init__(self, *, scatter: Scatter, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.scatter = scatter
        XComArg.apply_upstream_relationship(self, scatter.inputs)

    def execute(self, context: Any) -> list[int]:
        """Return the number of the first job of each task instance.

        :raises Unplannable: an input is not a list, or the lengths do not match
        """
        try:
            shape = self.scatter.measure(context)
        except ScatterError as error:
            raise Unplannable(str(error)) from error
        context["ti"].xcom_push(SHAPE, shape.to_json())
        self.log.info("%s", shape)
        return list(range(0, shape.count, shape.chunk_size))


class Gather(BaseOperator):
    """Counts the outputs and tells downstream tasks where they are, without reading them."""

    ui_color = "#f4f4f4"
    takes_hints = False

    def __init__(self, *, plan: XComArg, jobs: Any, **kwargs: Any) -> None:
        super().__init__(trigger_rule="none_failed", **kwargs)
        self.plan = plan
        self.jobs = jobs

    def execute(self, context: Any) -> None:
        shape = ScatterShape.pull(self.plan, context)
        if shape is None:
            raise AirflowSkipException("nothing was planned, so there is nothing to gather")
        ti = context["ti"]
        count = len(LazyXComSequence(xcom_arg=PlainXComArg(self.jobs), ti=ti))
        missing = () if count == shape.instances else self.skipped(ti)
        if count + len(missing) != shape.instances:
            raise ScatterError(
                f"{count} of {shape.instances} instances of {self.jobs.task_id} have an output; clear the others"
            )
        ti.xcom_push(OUTPUTS, OutputsReference(self.jobs.task_id, shape, tuple(missing)).to_json())
        self.log.info("%d outputs of %s", shape.count, self.jobs.task_id)

    def skipped(self, ti: Any) -> list[int]:
        """Return the instances that were skipped; their outputs are None."""
        states = ti.get_task_states(dag_id=ti.dag_id, task_ids=[self.jobs.task_id], run_ids=[ti.run_id])
        return sorted(
            int(name.rpartition("_")[2]) for name, state in states.get(ti.run_id, {}).items() if state == "skipped"
        )


def build(
    template: Template, inputs: Mapping[str, Any], method: str | None, hints: Mapping[str, Any], chunk_size: int | None
) -> XComArg:
    """Add the tasks of a scatter to the Dag; return their gathered outputs."""
    kwargs = template.partial.kwargs
    name = kwargs["task_id"].rpartition(".")[2]
    # A Dag passed to an operator outside of a `with` block also contains the group.
    dag = {"dag": kwargs["dag"]} if kwargs.get("dag") is not None else {}
    parent = {"parent_group": kwargs["task_group"]} if kwargs.get("task_group") is not None else {}
    try:
        group = TaskGroup(
            f"scatter_{name}",
            prefix_group_id=False,
            add_suffix_on_collision=True,
            tooltip=f"{name}, scattered",
            **dag,
            **parent,
        )
    except RuntimeError as error:
        raise ScatterError(
            f"{name} is scattered outside of a Dag; valid: inside `with DAG(...)` or a @dag function"
        ) from error
    prefix = group.parent_group.child_id if group.parent_group else str
    task_id = unused(prefix(name), group.dag)
    label = task_id.removeprefix(prefix(""))
    shared = {key: kwargs[key] for key in ("executor", "queue", "pool", "owner") if kwargs.get(key) is not None}
    # Drop the hints of the Dag's default_args, which are meant for the jobs.
    shared |= {"dag": group.dag, "task_group": group, "executor_config": {}}
    scatter = Scatter(dict(inputs), method, chunk_size)
    scatter.plan = XComArg(PlanScatter(task_id=prefix(f"plan_{label}"), scatter=scatter, **shared))
    scatter.mapped = template.mapped(task_id, group, scatter.plan, scatter, hints)
    gather = Gather(task_id=prefix(f"gather_{label}"), plan=scatter.plan, jobs=scatter.mapped, **shared)
    gather.set_upstream(scatter.mapped)
    return GatheredOutputs(gather, OUTPUTS)


def unused(task_id: str, dag: Any) -> str:
    """Return a task id that is not in the Dag yet, numbered as Airflow does for a function called twice."""
    number, candidate = 0, task_id
    while dag.has_task(candidate):
        number += 1
        candidate = f"{task_id}__{number}"
    return candidate
