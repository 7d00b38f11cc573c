"""The engine: the Airflow executor, the controller, the store and the node agent.

How a site is reached is known in ``lading.hooks`` alone, what is decided in ``lading.scheduling``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lading.executors.executor import LadingExecutor

__all__ = ["LadingExecutor"]


def __getattr__(name: str) -> Any:
    # The node agent imports from this package as well and must not pay for the executor.
    if name == "LadingExecutor":
        from lading.executors.executor import LadingExecutor

        return LadingExecutor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
