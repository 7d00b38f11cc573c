"""Lading as an Airflow plugin: the page, its tabs, and the application that serves their data.

Every Airflow process loads this module, so it imports little; only the API server creates the application.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any
from urllib.parse import quote, urlsplit

from airflow.configuration import conf
from airflow.plugins_manager import AirflowPlugin
from airflow.sdk import BaseOperatorLink

PREFIX = "/lading"
# Paths are relative, so they work under any base URL. One bundle contains all components, each under its name.
BUNDLE = "lading/static/lading.js"
TASK_TAB = "lading-task"
ICONS = {"icon": "lading/static/lading.svg", "icon_dark_mode": "lading/static/lading-dark.svg"}


def react_app(name: str, destination: str, route: str, **more: Any) -> dict[str, Any]:
    """Describe a component of the UI in the format of ``AirflowPlugin.react_apps``.

    :param name: the component's name in ``globalThis``, also the title of its tab
    """
    return {"name": name, "bundle_url": BUNDLE, "destination": destination, "url_route": route, **ICONS, **more}


class WhereItRan(BaseOperatorLink):
    """The link in the details of a task instance that opens its Lading tab."""

    name = "Where it ran and why"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the path of the tab, prefixed with the path of Airflow's base URL."""
        dag, run, task = (quote(each, safe="") for each in (ti_key.dag_id, ti_key.run_id, ti_key.task_id))
        mapped = f"/mapped/{ti_key.map_index}" if ti_key.map_index >= 0 else ""
        base = urlsplit(conf.get("api", "base_url", fallback="")).path.rstrip("/")
        return f"{base}/dags/{dag}/runs/{run}/tasks/{task}{mapped}/plugin/{TASK_TAB}"


class LadingPlugin(AirflowPlugin):
    """Registers Lading's page, tabs, link and application with Airflow."""

    name = "lading"
    react_apps = [  # noqa: RUF012 - the base class declares it so
        react_app("Lading", "nav", "lading", nav_top_level=True),
        react_app("Lading", "dag", "lading-dag"),
        react_app("Lading", "dag_run", "lading-run"),
        react_app("Lading", "task_instance", TASK_TAB),
        react_app("Lading today", "dashboard", "lading-today"),
    ]

    global_operator_extra_links = [WhereItRan()]  # noqa: RUF012 - the base class declares it so

    @cached_property
    def fastapi_apps(self) -> list[Any]:  # type: ignore[override]
        """The application, created on first access."""
        from lading.plugin.ui.app import create_app

        return [{"app": create_app(), "url_prefix": PREFIX, "name": "Lading"}]
