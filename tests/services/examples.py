"""How many examples a property is tried with: a number for all, and less of it where one takes long."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from hypothesis import settings

EXAMPLES = int(os.environ.get("LADING_EXAMPLES", "100"))
"""Of each property; ``LADING_EXAMPLES=1000`` looks more closely."""


def part(share: float, others: settings | None = None) -> Callable[[Any], Any]:
    """Let a property be tried with so large a share of the examples.

    :param others: what else is set for it
    """
    return settings(others, max_examples=max(1, round(EXAMPLES * share)))
