"""The room that a controller wants held on a machine, on its way there."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from lading.hooks.spool.hold import Hold


class HoldsToSend:
    """What is to be held, and dropped, in the next exchange. The controller calls it, and the thread of the machine.

    What does not arrive is asked for again, and what is not dropped runs out.
    """

    def __init__(self) -> None:
        self._asked: dict[str, str] = {}
        self._dropped: set[str] = set()
        self._lock = threading.Lock()

    def ask(self, holds: Iterable[Hold]) -> None:
        """Hold room, or go on holding it."""
        with self._lock:
            self._asked |= {each.token: each.to_json() for each in holds}

    def drop(self, tokens: Iterable[str]) -> None:
        """Give room back."""
        with self._lock:
            for token in tokens:
                self._asked.pop(token, None)
                self._dropped.add(token)

    def add_to(self, request: dict[str, Any]) -> None:
        """Have it done by a request to the spool's server."""
        with self._lock:
            request["hold"], self._asked = self._asked, {}
            request["remove"] += [f"spool/holds/{token}.json" for token in sorted(self._dropped)]
            request["drops"], self._dropped = bool(self._dropped), set()
