"""The columns of a new job, from its workload and hints."""

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
from lading.scheduling.matching.rules import Soft
from lading.scheduling.matching.stops import as_text
from lading.scheduling.sizing import auto

if TYPE_CHECKING:
    from airflow.executors.workloads import ExecutorWorkload


# Namespace of gangs' tokens, so that the same jobs always get the same token.
GANGS = uuid.UUID("6e0f2b52-3c43-4f0e-9d0b-6f0c8f6a9a1e")


def job_columns(workload: ExecutorWorkload) -> dict[str, Any]:
    """Return the columns that come from the workload itself.

    The JWT is left out, because dispatch makes a new one. The time of queueing is set when the row is added, by the
    database's clock.
    """
    content = {**json.loads(workload.model_dump_json()), "token": ""}
    if content.get("log_path"):
        # Airflow uses the ids of Dag, run and task as folder names, and each can have 250 characters.
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
        # Never None: at a site with admission rules, a callback without a Dag must not pass for a job outside Dags.
        columns["dag_id"] = str(workload.callback.data.get("dag_id") or "")
    return columns


def resource_columns(workload: ExecutorWorkload, settings: Settings) -> dict[str, Any]:
    """Return the columns for a workload's requests.

    :raises HintError: its hints are invalid
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
    """Return the column that says which amounts a task's author leaves to Lading."""
    if workload.type != "ExecuteTask":
        return {}
    return {"chosen": auto.as_text(settings.choices(hints))}


def gang_columns(workload: ExecutorWorkload, hints: Hints) -> dict[str, Any]:
    """Return the columns for the gang of a job; a job with an attempt schedule of its own is a gang of one."""
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
    """Return the columns that come from hints and do not depend on inputs."""
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
    """Return the column that makes a job wait until the controller has sized it; ``{}``: it needs no sizing."""
    if workload.type != "ExecuteTask":
        return {}
    config = workload.ti.executor_config
    sources = config.get(INPUTS_KEY, {}) if isinstance(config, dict) else {}
    return sizing_columns(hints, given(config), sources, workload.ti.try_number)


def sizing_columns(
    hints: Hints, config: Mapping[str, Any], sources: Mapping[str, Any], try_number: int
) -> dict[str, Any]:
    """Return the column that makes a new job wait for its sizing; ``{}``: it needs none.

    :param config: its hints as written
    :param sources: where its inputs come from, if a hint, a policy or a plugin needs them
    """
    if not (hints.expressions or hints.auto or hints.matching or hints.stage or sources or try_number > 1):
        return {}
    return {"sizing": json.dumps({"hints": dict(config), "sources": dict(sources)})}
