"""The test suites that every batch system and kind of site must pass, with recorded answers and against real servers.

Production code does not use them.
"""

from __future__ import annotations

from lading.hooks.conformance.suite import Conformance

__all__ = ["Conformance"]
