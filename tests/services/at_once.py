"""An executor without threads, so that what a test expects does not depend on how fast they are."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class AtOnce(Executor):
    """Does what it is given before it goes on."""

    def submit(self, do: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(do(*args, **options))
        except Exception as error:
            future.set_exception(error)
        return future
