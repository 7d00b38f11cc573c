"""Processes that have imported Airflow, and fork from there: nothing that they run takes six seconds to begin."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from tests.services import forks

# The command of a component or any other command of Airflow.
AIRFLOW = Path(__file__).parent / "bin" / "airflow"
# Of what forks: a thread that sends metrics or traces would not be there in the fork. Of commands: Airflow greets a
# metrics backend on standard output, in front of their own.
UNHEARD = {"AIRFLOW__METRICS__OTEL_ON": "False", "AIRFLOW__TRACES__OTEL_ON": "False"}
# The options that are read where they are used, or once more in a fork; of the URL, imports read the path.
READ_LATE = re.compile(
    r"AIRFLOW__(?:LADING__.*|METRICS__.*|TRACES__.*|LOGGING__\w+_PORT|API__(?:PORT|BASE_URL)|API_AUTH__JWT_SECRET"
    r"|CORE__(?:DAGS_FOLDER|EXECUTION_API_SERVER_URL|FERNET_KEY|MAX_MAP_LENGTH|SIMPLE_AUTH_MANAGER_.*|TEST_CONNECTION)"
    r"|DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST|DATABASE__SQL_ALCHEMY_CONN|DATABASE__SQL_ALCHEMY_MAX_OVERFLOW"
    r"|SCHEDULER__(?:SCHEDULER_HEALTH_CHECK_SERVER_PORT|TASK_QUEUED_TIMEOUT.*))"
)
# So many processes stay that nobody uses, each of which takes a quarter of a GiB.
MOST_IDLE = 2


@dataclass
class Lender:
    """A process that forks, and how many :class:`Commands` use it."""

    process: subprocess.Popen[bytes]
    users: int = 0

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


# By their options; that which was used last is the last one. They end with the tests.
LENDERS: dict[frozenset[tuple[str, str]], Lender] = {}


def find_lender(environment: Mapping[str, str], log: Path) -> Lender:
    """Find or start the process that forks what has the options of an environment, but for those of :data:`READ_LATE`.

    :param log: takes its output, if it is started now
    """
    options = {
        name: value
        for name, value in environment.items()
        if name.startswith("AIRFLOW__") and not READ_LATE.fullmatch(name)
    }
    path = urlsplit(environment.get("AIRFLOW__API__BASE_URL", "")).path
    options |= {"AIRFLOW__API__BASE_URL": f"http://127.0.0.1{path}", **UNHEARD}
    key = frozenset(options.items())
    found = LENDERS.pop(key, None)
    if found is None or found.process.poll() is not None:
        idle = [each for each, lender in LENDERS.items() if not lender.users]
        for each in idle[: 1 - MOST_IDLE]:
            LENDERS.pop(each).end()
        others = {name: value for name, value in environment.items() if not name.startswith("AIRFLOW")}
        # Nothing is set up before there is a fork.
        own = {"AIRFLOW_HOME": "/nonexistent", "_AIRFLOW__AS_LIBRARY": "1"}
        with log.open("ab") as output:
            variables = {**others, **options, **own}
            found = Lender(forks.start("tests.services.forking", [], variables, Path("/"), output.fileno()))
    LENDERS[key] = found
    return found


class Answer(NamedTuple):
    status: int
    output: str
    errors: str


class Commands:
    """What is forked for one folder. It has a session of its own, and all else that ``python -m airflow`` would have.

    :param folder: where it works
    :param environment: whose options, but for those of :data:`READ_LATE`, are those of all that is forked
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self._numbers = itertools.count()
        self._started: list[forks.Lent] = []
        self._lender = find_lender(environment, folder / "commands.log")
        self._lender.users += 1
        self.process = self._lender.process

    def run(self, arguments: Sequence[str], environment: Mapping[str, str]) -> Answer:
        """Run ``airflow`` with these arguments, and wait until it has ended.

        :param environment: all of its variables
        :raises OSError: the process has ended
        """
        number = next(self._numbers)
        output, errors = (self.folder / f"command-{number}.{name}" for name in ("out", "err"))
        started = self.start(arguments, environment, output, errors)
        try:
            while (status := started.poll(None)) is None:
                pass
            return Answer(status, output.read_text(), errors.read_text())
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
            raise
        finally:
            output.unlink(missing_ok=True)
            errors.unlink(missing_ok=True)

    def start(self, arguments: Sequence[str], environment: Mapping[str, str], output: Path, errors: Path) -> forks.Lent:
        """Start ``airflow`` with these arguments, without waiting for it; it ends with :meth:`end`.

        :param environment: all of its variables
        :param output: what is printed is appended here; ``errors`` may be the same
        :raises OSError: the process has ended
        """
        request = {
            "command": [sys.executable, str(AIRFLOW), *arguments],
            "arguments": [str(AIRFLOW), *arguments],
            "environment": {**environment},
            "folder": str(self.folder),
            "blocked": [],
            "bound": True,
        }
        with open(os.devnull, "rb") as nothing, output.open("ab") as out, errors.open("ab") as err:
            started = forks.Lent(self.process.pid, request, [nothing.fileno(), out.fileno(), err.fileno()])
        self._started.append(started)
        return started

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def end(self) -> None:
        """Ask what was started and still runs to end."""
        for each in self._started:
            each.leave()
        self._started.clear()
        self._lender.users -= 1
