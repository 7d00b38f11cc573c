"""The ``[[bindings]]`` of the sites file: which tasks go to which targets, without a word of it in their Dags."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError, field_validator

from lading.hooks.files.table_model import TableModel, words
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
    matching: dict[str, dict[str, str]] = Field(
        {},
        description="Of targets, the regular expressions that have to be found in inputs of a task for it to go there: "
        '`{"hpc/long" = {sample = "^big_"}}`.',
    )

    @field_validator("matching")
    @classmethod
    def _has_patterns(cls, value: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
        if value:
            parse_matching(value)
        return value


def parse(tables: object, sites: Collection[str]) -> list[Binding]:
    """The bindings of a sites file, in its order, of which the first that is for a task counts.

    :param tables: what the file has under ``bindings``
    :param sites: the names of the sites there are
    :raises ValueError: a value is not valid; the message names it and the binding
    """
    if not isinstance(tables, list):
        raise ValueError("bindings is no list of tables; write [[bindings]] above each")
    found, faults = [], []
    for number, table in enumerate(tables, start=1):
        where = f"[[bindings]] {number}:"
        try:
            made = BindingTable(**table) if isinstance(table, dict) else None
        except ValidationError as error:
            keys = ", ".join(BindingTable.model_fields)
            faults += [f"{where} {words(each, f'{{}} is unknown; the keys are: {keys}')}" for each in error.errors()]
            continue
        if made is None:
            faults.append(f"{where} it is no table")
            continue
        for target in made.targets:
            if Target.parse(target).site not in sites:
                faults.append(f"{where} targets: there is no site of {target!r}; valid: {', '.join(sites)}")
        if strange := sorted(made.matching.keys() - {*made.targets}):
            faults.append(f"{where} matching: {strange[0]!r} is no target of it; valid: {', '.join(made.targets)}")
        matching = parse_matching(made.matching) if made.matching else ()
        found.append(Binding(made.targets, made.dag, made.task, made.group, made.filters, matching))
    if faults:
        raise ValueError("; ".join(faults))
    return found


def published(bindings: Sequence[Binding]) -> list[dict[str, Any]]:
    """Bindings as JSON has them."""
    return [{**asdict(each), "matching": each.hints().get("matching", {})} for each in bindings]
