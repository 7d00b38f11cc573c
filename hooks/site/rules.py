"""The ``[[bindings]]`` and ``[[rules]]`` of the sites file.

Bindings assign targets to tasks without changes to their Dags. Rules relax the preferences of jobs when no location has
room for all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StrictBool, field_validator, model_validator

from lading.hooks.files.table_model import TableModel, Texts, each_of
from lading.scheduling.hints.patterns import covers, parse_matching
from lading.scheduling.hints.places import Target, parse_filters, parse_targets
from lading.scheduling.matching.bindings import Binding
from lading.scheduling.matching.rules import RULES, Relax, Rule
from lading.scheduling.text.nearest import nearest_first


class BindingTable(TableModel):
    """A table of ``[[bindings]]``."""

    dag: str = Field("*", description="A pattern of Dag ids (`*`, `?`, `[...]`).")
    task: str = Field("*", description="A pattern of task ids; a task in a group has the id `group.task`.")
    group: str | None = Field(
        None, description="A pattern of task group ids. If not set, tasks match whether or not they are in a group."
    )
    targets: Annotated[tuple[str, ...], BeforeValidator(parse_targets)] = Field(
        description="A list of places in the order in which they are tried: sites, queues of batch sites (`hpc/long`), "
        "and patterns of instance types of other sites (`cloud/c7i.*`)."
    )
    filters: Annotated[tuple[str, ...], BeforeValidator(parse_filters)] = Field(
        (), description="The names of binding filters, which choose among the targets; `shuffle` is built in."
    )
    matching: dict[str, dict[str, str] | list[dict[str, str]]] = Field(
        {},
        description="For each target, the regular expressions that the inputs of a task have to match so that the task "
        'can go there: `{"hpc/long" = {sample = "^big_"}}`. If a target has a list of such tables, it is '
        "enough if one of them matches.",
    )

    @field_validator("matching")
    @classmethod
    def _has_patterns(cls, value: dict[str, Any]) -> dict[str, Any]:
        if value:
            parse_matching(value)
        return value


def parse_bindings(tables: object, sites: Collection[str]) -> list[Binding]:
    """Read the bindings of a sites file, in order. The first one that matches a task applies.

    :param tables: the value of ``bindings`` in the file
    :param sites: the names of the existing sites
    :raises ValueError: a value is not valid; the message names the value and the binding
    """

    def made(table: BindingTable) -> Binding:
        for target in table.targets:
            if Target.parse(target).site not in sites:
                raise ValueError(f"targets: {target!r} names no existing site; valid: {nearest_first(target, sites)}")
        if strange := sorted(name for name in table.matching if not any(covers(name, each) for each in table.targets)):
            raise ValueError(f"matching: {strange[0]!r} is not one of its targets; valid: {', '.join(table.targets)}")
        matching = parse_matching(table.matching) if table.matching else ()
        return Binding(table.targets, table.dag, table.task, table.group, table.filters, matching)

    return each_of("bindings", tables, BindingTable, made)


def published_bindings(bindings: Sequence[Binding]) -> list[dict[str, Any]]:
    return [{**asdict(each), "matching": each.hints().get("matching", {})} for each in bindings]


class RuleTable(TableModel):
    """A table of ``[[rules]]``."""

    name: str = Field(
        min_length=1,
        max_length=64,
        description="The name of the rule. Lading stores it with each job that was placed by this rule.",
    )
    amounts: tuple[Literal["cpus", "memory", "disk", "gpus", "nodes"], ...] = Field(
        (),
        description=(
            "A list of amounts, such as `cpus`. If a task requests such an amount as a range, the preferred "
            "amount is halved step by step, down to the minimum."
        ),
    )
    features: Texts = Field(
        (),
        description=(
            "A list of patterns (`*`, `?`, `[...]`). Features in the hint `preferred` that match one of them can "
            "be missing."
        ),
    )
    on_demand: StrictBool = Field(False, description="Whether a task that requests spot can get an on-demand machine.")
    queues: dict[str, str] = Field(
        {}, description='For a queue, another queue that its tasks can use instead: `{short = "long"}`.'
    )
    plugin: str | None = Field(
        None, description="The name of a rule of a plugin, which is used instead of the other keys of this table."
    )

    @model_validator(mode="after")
    def _does_something(self) -> RuleTable:
        own = [name for name in ("amounts", "features", "on_demand", "queues") if getattr(self, name)]
        if self.plugin is None and not own:
            raise ValueError("the rule relaxes nothing; valid: amounts, features, on_demand, queues, or plugin")
        if self.plugin is not None and own:
            raise ValueError(f"plugin cannot be combined with {' and '.join(own)}; write a rule for each")
        return self


def parse_rules(tables: object, plugins: Mapping[str, Relax]) -> Sequence[Rule]:
    """Read the rules of a sites file, in order; without any, return the default rules.

    :param tables: the value of ``rules`` in the file; None: absent
    :param plugins: the rules of plugins by name
    :raises ValueError: a value is not valid; the message names the value and the rule
    """
    if tables is None:
        return RULES
    taken: set[str] = set()

    def made(table: RuleTable) -> Rule:
        if table.name in taken:
            raise ValueError(f"name = {table.name!r}: another rule already has this name")
        if table.plugin is not None and table.plugin not in plugins:
            valid = ", ".join(plugins) or "none"
            raise ValueError(f"plugin = {table.plugin!r}: no plugin has this rule; valid: {valid}")
        taken.add(table.name)
        relax = None if table.plugin is None else plugins[table.plugin]
        return Rule(table.name, table.amounts, table.features, table.on_demand, table.queues, relax)

    return each_of("rules", tables, RuleTable, made)
