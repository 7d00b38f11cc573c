"""Text that is nested so deeply that it cannot be read: Python's parsers recurse into it until the stack is used up."""

from __future__ import annotations

import json
from typing import Any


def too_deep(what: str = "it", valid: str = "") -> str:
    """Return the message about something that is nested too deeply.

    :param valid: which depth is valid; empty: only Python's stack limits it
    """
    return f"{what} is nested too deeply" + (f"; valid: {valid}" if valid else "")


def parse_json(text: str | bytes) -> Any:
    """Parse a JSON text.

    :raises ValueError: it is not JSON
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(too_deep()) from None
