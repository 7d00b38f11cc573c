"""A mistake that an administrator can make: hints that no task policy has seen."""

from __future__ import annotations

WRONG = {"wrong": {"cpus": "many"}, "greedy": {"cpus": 4000}}


def task_instance_mutation_hook(task_instance, dag_run=None):
    if task_instance.dag_id == "slipped" and task_instance.task_id in WRONG:
        task_instance.executor_config = {"lading": WRONG[task_instance.task_id]}
