"""What every service of the tests is: a context manager that stops whatever it has started."""

from __future__ import annotations

from abc import ABC, abstractmethod

from typing_extensions import Self


class Service(ABC):
    """Something that is started and stopped, more than once if need be."""

    @abstractmethod
    def start(self) -> None:
        """Start all that does not run, and wait until it answers."""

    @abstractmethod
    def stop(self) -> None:
        """Stop all that runs, also after a start that has failed, and remove what it has written."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
