"""What a Dag author writes."""

from __future__ import annotations

from lading.operators.resources import resources
from lading.operators.scatter import scatter
from lading.scheduling.scatter import ScatterError

__all__ = ["ScatterError", "resources", "scatter"]
