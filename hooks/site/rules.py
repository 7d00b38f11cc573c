"""The ``[[bindings]]`` and ``[[rules]]`` of the sites file.

Bindings say which tasks go to which targets, though their Dags do not mention it; rules, what jobs may do without where
no location has room for all that they prefer.
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
    """One of the ``[[bindings]]``."""

    dag: str = Field("*", description="A pattern of Dag ids (`*`, `?`, `[...]`).")
    task: str = Field("*", description="A pattern of task ids; that of a task in a group is `group.task`.")
    group: str | None = Field(
        None, description="A pattern of ids of task groups; without it tasks count that are in any group, or in none."
    )
    targets: Annotated[tuple[str, ...], BeforeValidator(parse_targets)] = Field(
        description="A list of sites, queues of batch sites (`hpc/long`) and patterns of the instance types of others "
        "(`cloud/c7i.*`), in the order in which they are tried."
    )
    filters: Annotated[tuple[str, ...], BeforeValidator(parse_filters)] = Field(
        (), description="The names of binding filters, which choose among the targets; `shuffle` is built in."
    )
    matching: dict[str, dict[str, str] | list[dict[str, str]]] = Field(
        {},
        description="Of targets, the regular expressions that have to be found in inputs of a task for it to go there: "
        '`{"hpc/long" = {sample = "^big_"}}`; of a list of such tables one is enough.',
    )

    @field_validator("matching")
    @classmethod
    def _has_patterns(cls, value: dict[str, Any]) -> dict[str, Any]:
        if value:
            parse_matching(value)
        return value


def parse_bindings(tables: object, sites: Collection[str]) -> list[Binding]:
    """The bindings of a sites file, in its order, of which the first that is for a task counts.

    :param tables: what the file has under ``bindings``
    :param sites: the names of the sites there are
    :raises ValueError: a value is not valid; the message names it and the binding
    """

    def made(table: BindingTable) -> Binding:
        for target in table.targets:
            if Target.parse(target).site not in sites:
                raise ValueError(f"targets: there is no site of {target!r}; valid: {nearest_first(target, sites)}")
        if strange := sorted(name for name in table.matching if not any(covers(name, each) for each in table.targets)):
            raise ValueError(f"matching: {strange[0]!r} is no target of it; valid: {', '.join(table.targets)}")
        matching = parse_matching(table.matching) if table.matching else ()
        return Binding(table.targets, table.dag, table.task, table.group, table.filters, matching)

    return each_of("bindings", tables, BindingTable, made)


def published_bindings(bindings: Sequence[Binding]) -> list[dict[str, Any]]:
    """Bindings as JSON has them."""
    return [{**asdict(each), "matching": each.hints().get("matching", {})} for each in bindings]


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
            raise ValueError(f"plugin cannot be combined with {' and '.join(own)}; write a rule for each")
        return self


def parse_rules(tables: object, plugins: Mapping[str, Relax]) -> Sequence[Rule]:
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
