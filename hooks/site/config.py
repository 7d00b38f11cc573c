"""What every kind of site takes from its table in the sites file."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field, StrictBool

from lading.hooks.files.table_model import DurationOrZero, TableModel, Texts
from lading.scheduling.resources import Resources


class SiteConfig(TableModel):
    """What every kind of site takes from its table in the sites file."""

    kind: str
    takes_unnamed: StrictBool | None = Field(
        None,
        description="Whether tasks that name no site may run here; without it those do at the first site of the file "
        "alone.",
    )
    burst_after: DurationOrZero = Field(
        0,
        description="How long a task that names no site, and finds no room here, waits before it may go to the next "
        "site that takes such tasks.",
    )
    allowed_dags: Texts | None = Field(
        None,
        description="A list of patterns of Dag ids (`*`, `?`, `[...]`): only these may run here; without it every Dag.",
    )

    @property
    def limits(self) -> dict[str, str]:
        """What the table limits that may make jobs wait, by option, in words."""
        return {}

    def cpu_hour(self, capacity: Resources) -> float | None:
        """What an hour of one cpu costs of a location that has so much, USD; None: that is not known."""
        return None


def taking_unnamed(configs: Mapping[str, SiteConfig], is_implicit: bool = False) -> frozenset[str]:
    """The sites that take tasks which name none: those that say so, and the first one unless it says no.

    :param is_implicit: whether the first is this machine without a table; it gives way to a site that says so
    """
    said = {name: config.takes_unnamed for name, config in configs.items()}
    if not (is_implicit and True in said.values()):
        said |= {first: takes is not False for first, takes in list(said.items())[:1]}
    return frozenset(name for name, takes in said.items() if takes)
