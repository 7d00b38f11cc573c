"""``airflow lading controller``: a controller as a service."""

from __future__ import annotations

from argparse import Namespace

from airflow.utils.providers_configuration_loader import providers_configuration_loaded

from lading.plugin.service import serve


@providers_configuration_loaded
def controller(args: Namespace) -> None:
    """Run a controller until it is told to end."""
    serve(managed=False)
