"""The command `lading`: what can be done on paper, before anything is launched or submitted. Imports no Airflow.

Each command has a module of its own beside this. The options are in :mod:`lading.plugin.offline.options`, so that
`airflow lading` offers the same ones.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NoReturn

from lading.plugin.offline.options import COMMANDS, UsageError
from lading.plugin.offline.watch import INTERRUPTED
from lading.scheduling.text.csv_tables import TableError
from lading.scheduling.text.printable import printable


class OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {printable(message)} (--help lists the options)\n")


def guarded(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """``run`` with faults of the input as one line on stderr and status 2, and of the output with status 1."""

    def guard(args: argparse.Namespace) -> int:
        try:
            status = run(args)
            sys.stdout.flush()
            return status
        except (TableError, UsageError) as error:
            print(printable(" ".join(str(error).split("\n"))), file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print("Ctrl-C: ended before there was anything to print", file=sys.stderr)
            return INTERRUPTED
        except OSError as error:
            # What is left of the output has nowhere to go, and Python would say so once more at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if not isinstance(error, BrokenPipeError):  # `| head` is no fault
                print(f"the output cannot be written: {printable(error.strerror or error)}", file=sys.stderr)
            return 1

    return guard


def runner(command: str) -> Callable[[argparse.Namespace], int]:
    """What carries out a command."""
    # A job script needs nothing of the planner, and the planner nothing of batch systems.
    run: Callable[[argparse.Namespace], int] = getattr(import_module(f"{__package__}.{command}"), f"run_{command}")
    return guarded(run)


def parser() -> argparse.ArgumentParser:
    top = OneLineParser(prog="lading", description="Pack jobs on machines and render job scripts, on paper.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        each = commands.add_parser(name, help=command.text, description=command.text)
        for option in command.options:
            each.add_argument(*option.flags, **option.settings)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """The console script `lading`."""
    args = parser().parse_args(argv)
    return runner(args.command)(args)


def airflow_command(args: argparse.Namespace) -> None:
    """`airflow lading plan` and so on, by the name of the command."""
    sys.exit(runner(args.subcommand)(args))


if __name__ == "__main__":
    sys.exit(main())
