"""The command `lading`: planning and previews that launch and submit nothing. Imports no Airflow.

Each subcommand has its own module in this folder. The options are in :mod:`lading.plugin.offline.options`, so that
`airflow lading` has the same ones.
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
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {printable(message)} (--help lists the options)\n")


def guarded(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """Wrap ``run`` so that input errors return status 2 and output errors status 1, with one line on stderr."""

    def guard(args: argparse.Namespace) -> int:
        try:
            status = run(args)
            sys.stdout.flush()
            return status
        except (TableError, UsageError) as error:
            print(printable(" ".join(str(error).split("\n"))), file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print("Ctrl-C: stopped before there was a result to print", file=sys.stderr)
            return INTERRUPTED
        except OSError as error:
            # Discard the buffered output; otherwise Python would report the same error again on exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if not isinstance(error, BrokenPipeError):  # for example `| head`, which is not an error
                print(f"the output cannot be written: {printable(error.strerror or error)}", file=sys.stderr)
            return 1

    return guard


def runner(command: str) -> Callable[[argparse.Namespace], int]:
    # Imported late: job scripts do not need the planner, and plans do not need the batch systems.
    run: Callable[[argparse.Namespace], int] = getattr(import_module(f"{__package__}.{command}"), f"run_{command}")
    return guarded(run)


def parser() -> argparse.ArgumentParser:
    top = OneLineParser(
        prog="lading",
        description="Plan machines for jobs, simulate them, and print job scripts. Nothing is launched or submitted.",
    )
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
    sys.exit(runner(args.subcommand)(args))


if __name__ == "__main__":
    sys.exit(main())
