"""Writes docs/reference/commands.md from the arguments of the commands: python docs/generate_commands.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from airflow.cli.cli_config import ARG_OUTPUT, ARG_VERBOSE, ARG_YES, ActionCommand, Arg

from lading.plugin.offline.options import COMMANDS
from lading.plugin.subcommands.cli import get_commands

PAGE = Path(__file__).parent / "reference" / "commands.md"

INTRODUCTION = f"""\
# Commands

<!-- Written by docs/generate_commands.py from the parsers of the commands: run it again after a change. -->

All commands start with `airflow lading`. The commands {", ".join(f"[`{name}`](#{name})" for name in COMMANDS)} need no
database. They are also commands of the program `lading`, which starts faster than `airflow`. Values in parentheses are
defaults.

Two options are common to many commands. `--output` chooses the format: `table`, `json`, `yaml` or `plain`. In JSON and
YAML, numbers stay numbers. `--verbose` shows Airflow's own log.
"""


def shown(command: ActionCommand) -> Iterator[Arg]:
    """Return the arguments of a command, without those that the introduction describes."""
    return (arg for arg in command.args if arg not in (ARG_OUTPUT, ARG_VERBOSE))


def usage(command: ActionCommand) -> str:
    """Return the usage line of a command."""
    words = ["airflow lading", command.name]
    for arg in shown(command):
        if not arg.flags[0].startswith("-"):
            name = str(arg.kwargs.get("metavar") or arg.flags[0]).upper()
            words.append({"*": f"[{name} ...]", "?": f"[{name}]"}.get(str(arg.kwargs.get("nargs")), name))
    return " ".join(words) + (" [options]" if any(arg.flags[0].startswith("-") for arg in command.args) else "")


def meaning(arg: Arg) -> str:
    said = str(arg.kwargs.get("help") or "").replace("|", "\\|").replace("%%", "%")
    choices = [f"`{each}`" for each in arg.kwargs.get("choices") or ()]
    return f"{said}: {', '.join(choices)}" if choices else said


def row(arg: Arg) -> str:
    # The help of Airflow's own argument does not fit here.
    said = "Do not ask for confirmation" if arg == ARG_YES else meaning(arg)
    return f"| {', '.join(f'`{flag}`' for flag in arg.flags)} | {said} |"


def section(command: ActionCommand, before: ActionCommand | None = None) -> str:
    """The part of the page that describes one command.

    :param before: arguments that it shares with this command are only named
    """
    known = [row(arg) for arg in shown(before)] if before else []
    rows = [row(arg) for arg in shown(command)]
    table = ["", "| argument | meaning |", "|---|---|", *(each for each in rows if each not in known)] if rows else []
    if before and (common := [each.split(" | ")[0].removeprefix("| ") for each in rows if each in known]):
        table += ["", f"The options {', '.join(common)} are the same as those of [`{before.name}`](#{before.name})."]
    text = f"{str(command.help).rstrip('.')}. {command.description or ''}".strip()
    return "\n".join([f"## {command.name}", "", text, "", "```sh", usage(command), "```", *table, ""])


def page() -> str:
    """The whole page as Markdown."""
    commands = {each.name: each for each in get_commands()[0].subcommands if isinstance(each, ActionCommand)}
    before = {"simulate": commands["plan"]}
    return "\n".join([INTRODUCTION, *(section(each, before.get(name)) for name, each in commands.items())])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
