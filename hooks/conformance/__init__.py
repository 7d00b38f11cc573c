"""The suite that every batch system must pass, with recorded answers and against a real server.

Nothing that runs in production needs it.
"""

from __future__ import annotations

from lading.hooks.conformance.suite import Conformance

__all__ = ["Conformance"]
