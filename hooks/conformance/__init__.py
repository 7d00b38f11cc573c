"""The suites that every batch system and every kind of site must pass, with recorded answers and against real servers.

Nothing that runs in production needs it.
"""

from __future__ import annotations

from lading.hooks.conformance.suite import Conformance

__all__ = ["Conformance"]
