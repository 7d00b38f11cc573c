"""Where the inputs of a task come from, in plain JSON, so that its hints can be evaluated outside the task.

A source is one of ``{"value": ...}``, ``{"xcom": [task_id, key], "mapped": bool}``, ``{"outputs": [task_id, key]}`` (of
a scatter), and ``{"unknown": why}``.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping
from typing import Any

Source = dict[str, Any]


def parameters(task: Any) -> dict[str, Any]:
    """Return the named arguments of a task, except those it is mapped over."""
    from airflow.sdk.definitions.mappedoperator import MappedOperator

    mapped = isinstance(task, MappedOperator)
    arguments = task.partial_kwargs if mapped else {name: getattr(task, name, None) for name in task.template_fields}
    if hasattr(task, "python_callable"):
        known = inspect.signature(task.python_callable).parameters
        # None stands for what Airflow passes itself, such as the parameter ti.
        defaults = {name: each.default for name, each in known.items() if each.default not in (None, each.empty)}
        positional = dict(zip(known, arguments.get("op_args") or (), strict=False))
        return {**defaults, **positional, **(arguments.get("op_kwargs") or {})}
    return {name: arguments[name] for name in task.template_fields if name in arguments}


def names(task: Any) -> set[str]:
    """Return the names of all inputs that an expression can use."""
    return set(parameters(task)) | set(mapped_over(task))


def declared(task: Any) -> set[str]:
    """Return the names of all inputs that a task accepts, including those it was not given."""
    from airflow.sdk.definitions.context import KNOWN_CONTEXT_KEYS

    if not hasattr(task, "python_callable"):
        return names(task) | set(task.template_fields)
    taken = inspect.signature(task.python_callable).parameters.values()
    named = {each.name for each in taken if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)}
    return names(task) | (named - KNOWN_CONTEXT_KEYS)


def of_task(task: Any, used: Iterable[str] | None) -> dict[str, Any]:
    """Return where the inputs of a task come from.

    :param used: the inputs that are needed; None: all
    """
    wanted = (names(task) if used is None else set(used)) - set(mapped_over(task))
    fixed = {name: source(value) for name, value in parameters(task).items() if name in wanted}
    return {"fixed": fixed, **_mapped_sources(task)}


def mapped_over(task: Any) -> Mapping[str, Any]:
    """Return the inputs that a mapped task is mapped over, by name; empty if their names are unknown."""
    expansion = _expansion(task)
    if expansion is None:
        return {}
    if (scatter := getattr(expansion, "scatter", None)) is not None:
        return dict(scatter.inputs)
    return dict(expansion.value) if isinstance(expansion.value, Mapping) else {}


def takes_rows(task: Any) -> bool:
    """Whether the input names of a mapped task are only known when it runs, as with ``expand_kwargs``."""
    expansion = _expansion(task)
    return expansion is not None and not hasattr(expansion, "scatter") and not isinstance(expansion.value, Mapping)


def _expansion(task: Any) -> Any:
    from airflow.sdk.definitions.mappedoperator import MappedOperator

    return task._get_specified_expand_input() if isinstance(task, MappedOperator) else None


def _mapped_sources(task: Any) -> dict[str, Any]:
    expansion = _expansion(task)
    if expansion is None:
        return {}
    if takes_rows(task):
        return {"rows": source(expansion.value)}
    columns = {name: source(value) for name, value in mapped_over(task).items()}
    scatter = getattr(expansion, "scatter", None)
    if scatter is None:
        return {"method": "flat_crossproduct", "mapped": columns}
    return {"method": scatter.method, "mapped": columns, "plan": scatter.plan.operator.task_id}


def source(value: Any) -> Source:
    from airflow.sdk import Asset
    from airflow.sdk.definitions.xcom_arg import PlainXComArg, XComArg

    from lading.operators.scattering.outputs import GatheredOutputs

    if isinstance(value, GatheredOutputs):
        return {"outputs": [value.operator.task_id, value.key]}
    if isinstance(value, PlainXComArg):
        if value.operator.get_closest_mapped_task_group() is not None:
            return {"unknown": f"task {value.operator.task_id} is in a mapped task group"}
        return {"xcom": [value.operator.task_id, value.key], "mapped": bool(value.operator.is_mapped)}
    if isinstance(value, XComArg):
        return {"unknown": "it is computed from XComs by map, zip or concat within the task itself"}
    if isinstance(value, Asset):
        return {"value": value.uri}
    return _literal(value)


def _literal(value: Any) -> Source:
    try:
        text = json.dumps(value, default=_uri)
    except (TypeError, ValueError):
        return {"unknown": f"it is of type {type(value).__name__}, or contains something that JSON cannot hold"}
    if "{{" in text or "{%" in text:
        return {"unknown": "it is a template, which is rendered within the task itself"}
    return {"value": json.loads(text)}


def _uri(value: Any) -> str:
    """Return the address of an asset or a path, which stands for it in JSON."""
    from os import PathLike, fspath

    if isinstance(uri := getattr(value, "uri", None), str):
        return uri
    if isinstance(value, PathLike):
        return str(fspath(value))
    if "://" in str(value):  # ObjectStoragePath
        return str(value)
    raise TypeError(type(value).__name__)
