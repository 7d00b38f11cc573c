"""Which deployment this process works for: Airflow's, unless another was named."""

from __future__ import annotations

from lading.hooks.deployment.airflow import AirflowDeployment
from lading.hooks.deployment.deployment import Deployment

_named: list[Deployment] = [AirflowDeployment()]


def deployment() -> Deployment:
    """The deployment that this process works for."""
    return _named[0]


def use(other: Deployment) -> None:
    """Name the deployment that this process works for, before the store is imported, whose tables it shapes."""
    _named[0] = other
