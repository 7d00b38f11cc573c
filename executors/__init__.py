"""The engine: the Airflow executor, the controller, the store and the node agent.

Only ``lading.hooks`` knows how to reach sites, and only ``lading.scheduling`` makes decisions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lading.executors.executor import LadingExecutor

__all__ = ["LadingExecutor"]


def __getattr__(name: str) -> Any:
    # The node agent also imports from this package, and must not import all of Airflow's executor for that.
    if name == "LadingExecutor":
        from lading.executors.executor import LadingExecutor

        return LadingExecutor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
