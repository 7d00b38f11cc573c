"""The ``airflow`` commands of an Airflow by a process that has imported it: a command takes no six seconds to begin."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

# Each command runs in a fork, with the command line's own parser and a configuration that is read anew.
SERVER = """
import json, os, sys, traceback
from airflow.cli import cli_parser
import lading.plugin.subcommands.check
import lading.plugin.subcommands.clean
import lading.plugin.subcommands.cost
import lading.plugin.subcommands.jobs
import lading.plugin.subcommands.sites

parser = cli_parser.get_parser()


def run(arguments):
    try:
        found = parser.parse_args(arguments)
        found.func(found)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


for line in sys.stdin:
    arguments, environment, *files = json.loads(line)
    pid = os.fork()
    if pid == 0:
        for descriptor, path in enumerate([os.devnull, *files]):
            os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), descriptor)
        os.environ.update(environment)
        status = 1
        try:
            status = run(arguments)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)
    answer = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    print(f"ended with {answer}", flush=True)
"""


class Answer(NamedTuple):
    status: int
    output: str
    errors: str


class Commands:
    """A process that runs commands one after the other.

    :param folder: where it works
    :param environment: of its own
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )

    def run(self, arguments: Sequence[str], **environment: str) -> Answer:
        """Run ``airflow`` with these arguments.

        :param environment: further variables
        :raises RuntimeError: the process has ended
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        files = [self.folder / "command.out", self.folder / "command.err"]
        self.process.stdin.write(json.dumps([list(arguments), environment, *map(str, files)]) + "\n")
        self.process.stdin.flush()
        while not (said := self.process.stdout.readline()).startswith("ended with "):
            if not said:
                raise RuntimeError(f"the process for commands has ended with {self.process.wait()}")
        status = int(said.removeprefix("ended with "))
        return Answer(status, *(path.read_text() for path in files))

    def end(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
