"""The daemons of a service that is in a folder of its own: started as our children, awaited, and killed with all that
they have started."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.services import processes


class Daemons:
    """The daemons that run.

    :param folder: of the service; what mentions it belongs to the service
    :param environment: of each daemon
    :param logs: the log files that explain why something did not start
    """

    def __init__(
        self, folder: Path, environment: Callable[[], Mapping[str, str]], logs: Callable[[], Iterator[Path]]
    ) -> None:
        self.folder = folder
        self.environment = environment
        self.logs = logs
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._leaders: list[processes.Process] = []

    def __contains__(self, name: str) -> bool:
        return name in self._running

    def pid(self, name: str) -> int:
        return self._running[name].pid

    def start(self, name: str, command: Sequence[str], log: Path) -> None:
        """Start a daemon that does not run, in a session of its own; it must stay in the foreground."""
        if name in self._running:
            return
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.folder,
                env=self.environment(),
                start_new_session=True,
            )
        self._running[name] = process
        self._leaders += processes.identify(process.pid)

    def kill(self, name: str) -> None:
        """Kill one; what it has started lives on."""
        process = self._running.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def kill_all(self) -> None:
        """Kill all, and all that they have started."""
        for name in list(self._running):
            self.kill(name)
        while left := processes.belonging(self.folder, self._leaders):
            processes.kill(left)
            time.sleep(0.1)

    def wait(self, reached: Callable[[], bool], what: str, seconds: float = 30) -> None:
        """Wait until something is reached, and as long as all daemons live.

        :raises RuntimeError: one has ended, or it was not reached; with the ends of the logs
        """

        def over() -> bool:
            dead = [name for name, process in self._running.items() if process.poll() is not None]
            if dead:
                raise RuntimeError(f"{', '.join(dead)} ended:\n{self.log_tails()}")
            return reached()

        if not processes.wait_until(over, seconds):
            raise RuntimeError(f"{what} not ready after {seconds:g} s:\n{self.log_tails()}")

    def log_tails(self, lines: int = 15) -> str:
        return processes.tails(self.logs(), lines)
