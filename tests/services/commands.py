"""A process that has imported Airflow, and forks from there: nothing that it runs takes six seconds to begin."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.services import processes

PROGRAM = Path(__file__).with_name("forking.py")
# The folder of the program holds a module `airflow`, so it must not become one in which Python looks for modules.
START = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"


class Answer(NamedTuple):
    status: int
    output: str
    errors: str


class Commands:
    """The process. What it forks has a session of its own, and all else that ``python -m airflow`` would have.

    :param folder: where it works
    :param environment: of its own; what is forked reads the configuration anew, but not Airflow's home
    :param components: of Airflow that it will be asked to start
    """

    def __init__(self, folder: Path, environment: Mapping[str, str], components: Iterable[str] = ()) -> None:
        self.folder = folder
        self._numbers = itertools.count()
        self._heard = b""
        self._begun: dict[int, int] = {}
        self._ended: dict[int, int] = {}
        with (folder / "commands.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", START, str(PROGRAM), *components],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )

    def run(self, arguments: Sequence[str], environment: Mapping[str, str]) -> Answer:
        """Run ``airflow`` with these arguments, and wait until it has ended.

        :param environment: all of its variables
        :raises RuntimeError: the process has ended
        """
        number = next(self._numbers)
        output, errors = (self.folder / f"command-{number}.{name}" for name in ("out", "err"))
        started = self.start(arguments, environment, output, errors)
        try:
            while (status := started.poll()) is None:
                self._hear(1)
            return Answer(status, output.read_text(), errors.read_text())
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
            raise
        finally:
            output.unlink(missing_ok=True)
            errors.unlink(missing_ok=True)

    def start(self, arguments: Sequence[str], environment: Mapping[str, str], output: Path, errors: Path) -> Started:
        """Start ``airflow`` with these arguments, without waiting for it.

        What is interrupted here may have started all the same; it ends with :meth:`end`.

        :param environment: all of its variables
        :param output: what is printed is appended here; ``errors`` may be the same
        :raises RuntimeError: the process has ended
        """
        number = next(self._numbers)
        request = {
            "number": number,
            "arguments": [*arguments],
            "environment": {**environment},
            "output": str(output),
            "errors": str(errors),
        }
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        while number not in self._begun:
            if not self._hear(1) and not self.is_alive:
                log = processes.tails([self.folder / "commands.log"], 15)
                raise RuntimeError(f"the process for commands has ended with {self.process.wait()}\n{log}")
        return Started(self, self._begun[number])

    def poll(self, pid: int) -> int | None:
        """How what was started has ended, if it has. Only whether, where the process for commands was killed."""
        was_alive = self.is_alive
        self._hear(0)
        if pid in self._ended:
            return self._ended[pid]
        return None if was_alive or processes.lives(pid) else -signal.SIGKILL

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def _hear(self, seconds: float) -> bool:
        """Take in what the process says, for which this waits so long; whether it has said something."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            return False
        said = os.read(self.process.stdout.fileno(), 65536)
        *lines, self._heard = (self._heard + said).split(b"\n")
        for line in lines:
            answer = json.loads(line)
            if "number" in answer:
                self._begun[answer["number"]] = answer["pid"]
                self._ended.pop(answer["pid"], None)
            else:
                self._ended[answer["pid"]] = answer["status"]
        return bool(said)

    def end(self) -> None:
        """End the process. What it has started and still runs is asked to end."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if not self._begun:
            self.process.kill()  # it may still be importing
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


class Started:
    """A process that was started; to be used like a :class:`subprocess.Popen`."""

    def __init__(self, commands: Commands, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._commands = commands

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._commands.poll(self.pid)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)
