"""The ``[[bindings]]`` of the sites file: which tasks go to which targets, without a word of it in their Dags."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator

from lading.hooks.files.table_model import TableModel, each_of
from lading.scheduling.hints.patterns import parse_matching
from lading.scheduling.hints.place_words import Target, parse_filters, parse_targets
from lading.scheduling.matching.bindings import Binding


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


def parse(tables: object, sites: Collection[str]) -> list[Binding]:
    """The bindings of a sites file, in its order, of which the first that is for a task counts.

    :param tables: what the file has under ``bindings``
    :param sites: the names of the sites there are
    :raises ValueError: a value is not valid; the message names it and the binding
    """

    def made(table: BindingTable) -> Binding:
        for target in table.targets:
            if Target.parse(target).site not in sites:
                raise ValueError(f"targets: there is no site of {target!r}; valid: {', '.join(sites)}")
        if strange := sorted(table.matching.keys() - {*table.targets}):
            raise ValueError(f"matching: {strange[0]!r} is no target of it; valid: {', '.join(table.targets)}")
        matching = parse_matching(table.matching) if table.matching else ()
        return Binding(table.targets, table.dag, table.task, table.group, table.filters, matching)

    return each_of("bindings", tables, BindingTable, made)


def published(bindings: Sequence[Binding]) -> list[dict[str, Any]]:
    """Bindings as JSON has them."""
    return [{**asdict(each), "matching": each.hints().get("matching", {})} for each in bindings]
