"""What a Dag author imports.

Nothing here knows on which machine a task will run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lading.operators.resources import resources
from lading.operators.scatter import scatter
from lading.operators.staged import staged
from lading.scheduling.scatter import ScatterError

if TYPE_CHECKING:
    from lading.operators.job_script import JobScriptOperator

__all__ = ["JobScriptOperator", "ScatterError", "resources", "scatter", "staged"]


def __getattr__(name: str) -> Any:
    # Loaded on demand, because it imports Airflow, which takes seconds; hints and scatters need it only when they are
    # used.
    if name == "JobScriptOperator":
        from lading.operators.job_script import JobScriptOperator

        return JobScriptOperator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
