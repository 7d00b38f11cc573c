"""Lading as an Airflow plugin: a page, tabs, and the application with their data.

Every Airflow process loads this module, so it imports little; only the API server asks for the application.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any
from urllib.parse import quote, urlsplit

from airflow.configuration import conf
from airflow.plugins_manager import AirflowPlugin
from airflow.sdk import BaseOperatorLink

PREFIX = "/lading"
# Relative, so that they hold below any base URL. One bundle has all components, each under its name.
BUNDLE = "lading/static/lading.js"
TASK_TAB = "lading-task"
ICONS = {"icon": "lading/static/lading.svg", "icon_dark_mode": "lading/static/lading-dark.svg"}


def react_app(name: str, destination: str, route: str, **more: Any) -> dict[str, Any]:
    """A part of the UI, as ``AirflowPlugin.react_apps`` takes it.

    :param name: of the component in ``globalThis``, and what the tab is called
    """
    return {"name": name, "bundle_url": BUNDLE, "destination": destination, "url_route": route, **ICONS, **more}


class WhereItRan(BaseOperatorLink):
    """The link among the details of each task instance that leads to its tab."""

    name = "Where and why there"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """The address of the tab, below the path that Airflow has."""
        dag, run, task = (quote(each, safe="") for each in (ti_key.dag_id, ti_key.run_id, ti_key.task_id))
        mapped = f"/mapped/{ti_key.map_index}" if ti_key.map_index >= 0 else ""
        base = urlsplit(conf.get("api", "base_url", fallback="")).path.rstrip("/")
        return f"{base}/dags/{dag}/runs/{run}/tasks/{task}{mapped}/plugin/{TASK_TAB}"


class LadingPlugin(AirflowPlugin):
    """What Airflow's UI shows of Lading."""

    name = "lading"
    react_apps = [  # noqa: RUF012 - the base class declares it so
        react_app("Lading", "nav", "lading", nav_top_level=True),
        react_app("Lading", "dag", "lading-dag"),
        react_app("Lading", "dag_run", "lading-run"),
        react_app("Lading", "task_instance", TASK_TAB),
        react_app("Lading today", "dashboard", "lading-today"),
    ]

    global_operator_extra_links = [WhereItRan()]  # noqa: RUF012 - likewise

    @cached_property
    def fastapi_apps(self) -> list[Any]:  # type: ignore[override]
        """The application, made when it is asked for."""
        from lading.plugin.ui.app import create_app

        return [{"app": create_app(), "url_prefix": PREFIX, "name": "Lading"}]
