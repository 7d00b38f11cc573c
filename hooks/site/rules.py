"""The ``[[rules]]`` of the sites file: what jobs may do without where nothing has room for all that they wish."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field, StrictBool, model_validator

from lading.hooks.files.table_model import TableModel, Texts, each_of
from lading.scheduling.matching.rules import RULES, Relax, Rule


class RuleTable(TableModel):
    """One of the ``[[rules]]``."""

    name: str = Field(
        min_length=1, max_length=64, description="What it is called where a job is stored that was placed by it."
    )
    amounts: tuple[Literal["cpus", "memory", "disk", "gpus", "nodes"], ...] = Field(
        (), description="A list of amounts that are halved, step by step, where a task gives them as ranges."
    )
    features: Texts = Field(
        (), description="A list of patterns (`*`, `?`, `[...]`) of `preferred` features that may be missing."
    )
    on_demand: StrictBool = Field(
        False, description="Whether a task that asks for spot may get a machine that is paid for on demand."
    )
    queues: dict[str, str] = Field(
        {}, description='By queue, the one to which a task that names it may go: `{short = "long"}`.'
    )
    plugin: str | None = Field(None, description="The name of a plugin's rule, in place of all of these.")

    @model_validator(mode="after")
    def _does_something(self) -> RuleTable:
        own = [name for name in ("amounts", "features", "on_demand", "queues") if getattr(self, name)]
        if self.plugin is None and not own:
            raise ValueError("it relaxes nothing; valid: amounts, features, on_demand, queues, or plugin")
        if self.plugin is not None and own:
            raise ValueError(f"plugin does not go with {' and '.join(own)}; write a rule for each")
        return self


def parse(tables: object, plugins: Mapping[str, Relax]) -> Sequence[Rule]:
    """The rules of a sites file, in its order; without any those that are tried by default.

    :param tables: what the file has under ``rules``; None: nothing
    :param plugins: the rules of plugins, by their names
    :raises ValueError: a value is not valid; the message names it and the rule
    """
    if tables is None:
        return RULES
    taken: set[str] = set()

    def made(table: RuleTable) -> Rule:
        if table.name in taken:
            raise ValueError(f"name = {table.name!r}: another rule has it already")
        if table.plugin is not None and table.plugin not in plugins:
            valid = ", ".join(plugins) or "none"
            raise ValueError(f"plugin = {table.plugin!r}: no plugin has this rule; valid: {valid}")
        taken.add(table.name)
        relax = None if table.plugin is None else plugins[table.plugin]
        return Rule(table.name, table.amounts, table.features, table.on_demand, table.queues, relax)

    return each_of("rules", tables, RuleTable, made)
