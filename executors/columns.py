"""The columns of a job: what a workload and its hints say of it when it is queued."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lading.executors.settings import Settings
from lading.executors.store import State
from lading.executors.store.gangs.terms import GangTerms
from lading.hooks.files.addresses import fitting_path
from lading.scheduling.hints.hints import INPUTS_KEY, LAYOUT_HINTS, Hints, given
from lading.scheduling.insight import auto
from lading.scheduling.matching.rules import Soft
from lading.scheduling.matching.stops import as_text

if TYPE_CHECKING:
    from airflow.executors.workloads import ExecutorWorkload


# Of the tokens of gangs: the same jobs always make the same one.
GANGS = uuid.UUID("6e0f2b52-3c43-4f0e-9d0b-6f0c8f6a9a1e")


def job_columns(workload: ExecutorWorkload) -> dict[str, Any]:
    """The columns of a job that come from the workload itself; its JWT is left out, a new one is made at dispatch.

    When it is queued says the database's clock, as it is added.
    """
    content = {**json.loads(workload.model_dump_json()), "token": ""}
    if content.get("log_path"):
        # Airflow makes folders of the ids of Dag, run and task, each of which may have 250 characters.
        content["log_path"] = fitting_path(content["log_path"])
    columns: dict[str, Any] = {
        "kind": workload.type,
        "workload": json.dumps(content),
        "state": State.QUEUED,
        "priority": 0,
        "unreported": False,
        "news": 0,
        "map_index": -1,
        "try_number": 0,
    }
    if workload.type == "ExecuteTask":
        ti = workload.ti
        columns["token"] = ti.external_executor_id
        columns |= {"subject": str(ti.id), "dag_id": ti.dag_id, "task_id": ti.task_id, "run_id": ti.run_id}
        columns |= {"map_index": ti.map_index, "try_number": ti.try_number, "priority": ti.priority_weight}
    elif workload.type == "TestConnection":
        columns["token"] = columns["subject"] = str(workload.connection_test_id)
    else:
        columns["token"] = columns["subject"] = str(workload.callback.id)
        # Where a site does not take every Dag, one that names none must not pass for what belongs to none.
        columns["dag_id"] = str(workload.callback.data.get("dag_id") or "")
    return columns


def resource_columns(workload: ExecutorWorkload, settings: Settings) -> dict[str, Any]:
    """What a workload asks for.

    :raises HintError: its hints are wrong
    """
    config = workload.ti.executor_config if workload.type == "ExecuteTask" else None
    hints = Hints.from_config(config)
    return {
        **hint_columns(hints, settings),
        **chosen_columns(workload, hints, settings),
        **workload_sizing_columns(workload, hints),
        **gang_columns(workload, hints),
    }


def chosen_columns(workload: ExecutorWorkload, hints: Hints, settings: Settings) -> dict[str, Any]:
    """What of the amounts of a task its author leaves to Lading."""
    if workload.type != "ExecuteTask":
        return {}
    return {"chosen": auto.as_text(settings.choices(hints))}


def gang_columns(workload: ExecutorWorkload, hints: Hints) -> dict[str, Any]:
    """Which jobs start together with this one; a job with attempts of its own is a gang of one."""
    if workload.type != "ExecuteTask" or (hints.gang is None and hints.attempts is None):
        return {}
    ti = workload.ti
    together = [ti.dag_id, ti.run_id, hints.gang] if hints.gang is not None else [str(ti.id), str(ti.try_number)]
    tasks = hints.gang_tasks or {ti.task_id: ()}
    terms = GangTerms(
        hints.gang, hints.partial, hints.on_failure, hints.attempts, tasks, hints.gang_limits, hints.spread
    )
    return {"gang": str(uuid.uuid5(GANGS, json.dumps(together))), "gang_terms": terms.to_json()}


def hint_columns(hints: Hints, settings: Settings) -> dict[str, Any]:
    """The columns of a job that come from its hints, as far as they do not depend on its inputs."""
    asked = hints.resources(settings.default_resources)
    limits = hints.limits()
    return {
        "cpus": asked.cpus,
        "memory": asked.memory,
        "disk": asked.disk,
        "gpus": asked.gpus,
        "memory_limit": limits.memory,
        "time_limit": limits.time,
        "site_hint": hints.site,
        "instance_type": hints.instance_type,
        "arch": hints.arch,
        "os": hints.os,
        "features": ",".join(sorted(hints.features | hints.preferred)) or None,
        "soft": Soft(hints.least, hints.preferred - hints.features).as_text(),
        "capacity_type": hints.capacity_type,
        "container": hints.container,
        "queue_hint": hints.queue,
        "targets": as_text(hints.targets, hints.filters),
        "native_hint": json.dumps(dict(hints.native)) if hints.native else None,
        **({name: getattr(hints.layout, name) for name in LAYOUT_HINTS} if hints.layout else {}),
        "max_instances": hints.max_instances,
        "run_max_instances": hints.run_max_instances,
        "max_jobs": hints.max_jobs,
        "run_max_jobs": hints.run_max_jobs,
        "max_usd": hints.max_usd,
    }


def workload_sizing_columns(workload: ExecutorWorkload, hints: Hints) -> dict[str, Any]:
    """What makes a job wait until the controller knows what it asks for; ``{}`` where that is known."""
    if workload.type != "ExecuteTask":
        return {}
    config = workload.ti.executor_config
    sources = config.get(INPUTS_KEY, {}) if isinstance(config, dict) else {}
    return sizing_columns(hints, given(config), sources, workload.ti.try_number)


def sizing_columns(
    hints: Hints, config: Mapping[str, Any], sources: Mapping[str, Any], try_number: int
) -> dict[str, Any]:
    """The columns of a new job that make it wait for its sizing, ``{}`` for one that needs none.

    :param config: its hints as they were written
    :param sources: where its inputs come from, if a hint, a policy or a plugin needs them
    """
    if not (hints.expressions or hints.auto or hints.matching or hints.stage or sources or try_number > 1):
        return {}
    return {"sizing": json.dumps({"hints": dict(config), "sources": dict(sources)})}
