"""The deployment that this process works for: Airflow's, unless another one was set."""

from __future__ import annotations

from lading.hooks.deployment.airflow import AirflowDeployment
from lading.hooks.deployment.deployment import Deployment

_named: list[Deployment] = [AirflowDeployment()]


def deployment() -> Deployment:
    return _named[0]


def use(other: Deployment) -> None:
    """Set the deployment of this process. Call it before importing the store, whose tables depend on it."""
    _named[0] = other
