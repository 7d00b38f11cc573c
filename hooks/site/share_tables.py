"""The ``[[shares]]`` and ``[[budgets]]`` of the sites file: who is entitled to how much, and what they can spend."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal
from unicodedata import combining, normalize
from zoneinfo import ZoneInfo

from pydantic import Field, StrictBool, field_validator, model_validator

from lading.hooks.files.table_model import CountOrZero, Memory, TableModel, each_of
from lading.scheduling.accounting.budgets import PeriodBudget, Unit
from lading.scheduling.accounting.share_table import OTHERS, Kept, Share, ShareAmounts, Shares
from lading.scheduling.accounting.who import Who
from lading.scheduling.text.nearest import nearest_first
from lading.scheduling.text.printable import shortened

# Characters, short enough that every database compares the whole name.
LONGEST_NAME = 100


class WhoTable(TableModel):
    """Selects the jobs that a table applies to: those that match all given keys."""

    name: str = Field(
        "",
        max_length=LONGEST_NAME,
        description="The name shown in reasons, in metrics and on the page. Default: the values of `team`, `dag`, "
        "`owner` and `tag`.",
    )
    team: str | None = Field(None, min_length=1, max_length=50, description="The name of an Airflow team.")
    dag: str | None = Field(None, min_length=1, description="A pattern of Dag ids (`*`, `?`, `[...]`).")
    owner: str | None = Field(None, min_length=1, description="The owner of at least one task of the Dag.")
    tag: str | None = Field(None, min_length=1, description="A tag of the Dag.")

    @property
    def who(self) -> Who:
        return Who(self.team, self.dag, self.owner, self.tag)

    @property
    def its_name(self) -> str:
        return (self.name or str(self.who))[:LONGEST_NAME]


class KeptTable(TableModel):
    """What is reserved for a share, over all sites or, below ``sites``, at one."""

    cpus: CountOrZero | None = Field(None, description="Number of CPUs reserved for the share.")
    memory: Memory | None = Field(None, description="Amount of memory reserved for the share.")
    gpus: CountOrZero | None = Field(None, description="Number of GPUs reserved for the share.")
    machines: CountOrZero | None = Field(
        None,
        description=(
            "Number of machines reserved for the share. If several shares use a machine, each share counts "
            "the part that its jobs use."
        ),
    )
    usd_per_hour: float | None = Field(
        None, gt=0, description="Machines reserved for the share, whose prices add up to this many USD per hour."
    )

    @property
    def amounts(self) -> dict[str, float]:
        found = {name: getattr(self, name) for name in ShareAmounts._fields}
        return {name: float(amount) for name, amount in found.items() if amount is not None}


class SiteKeptTable(KeptTable):
    @model_validator(mode="after")
    def _keeps_something(self) -> SiteKeptTable:
        if not self.amounts:
            raise ValueError(f"the table reserves nothing; valid: {', '.join(ShareAmounts._fields)}")
        return self


class ShareTable(WhoTable, KeptTable):
    """A table of ``[[shares]]``."""

    weight: float = Field(
        1.0,
        gt=0,
        description=(
            "The weight of this share. If several shares wait for the same resources, these are divided in "
            "proportion to the weights."
        ),
    )
    sites: dict[str, SiteKeptTable] = Field(
        {},
        description=(
            "The resources that are reserved for this share at single sites, by site name: `{hpc = {cpus = 64}}`."
        ),
    )
    lend: StrictBool = Field(
        True,
        description="Whether other shares can use the resources reserved for this share while it does not need "
        "them. It gets them back as the jobs of the other shares finish.",
    )
    borrow: StrictBool = Field(
        True,
        description="Whether this share can use more than is reserved for it while other shares do not need the "
        "rest. If nothing is reserved for it: whether it can use more than its part by weight.",
    )

    @model_validator(mode="after")
    def _has_something_to_keep(self) -> ShareTable:
        if not self.lend and not self.amounts and not self.sites:
            raise ValueError(
                "lend = false: the share reserves nothing; give cpus, memory, gpus, machines or usd_per_hour"
            )
        if _compared(self.its_name) == _compared(OTHERS) and self.who != Who():
            raise ValueError(
                f"name = {OTHERS!r} is the name for all jobs that match no share; give another name, or "
                "remove team, dag, owner and tag"
            )
        return self


class BudgetTable(WhoTable):
    """A table of ``[[budgets]]``."""

    usd: float | None = Field(None, gt=0, description="The budget of each period in USD. Set this or `cpu_hours`.")
    cpu_hours: float | None = Field(None, gt=0, description="The budget of each period in CPU hours.")
    per: Literal["day", "week", "month"] = Field(
        "month", description="The calendar period: `day`, `week` (from Monday) or `month`."
    )
    zone: str = Field("UTC", description="The time zone of the calendar, such as `Europe/Berlin`.")

    @field_validator("zone")
    @classmethod
    def _is_zone(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        except (ValueError, OSError) as error:  # ZoneInfoNotFoundError is a KeyError
            raise ValueError(
                f"{shortened(value)} is not a time zone; valid: names such as UTC and Europe/Berlin"
            ) from error
        except KeyError as error:
            raise ValueError(
                f"{shortened(value)} is not a time zone; valid: names such as UTC and Europe/Berlin"
            ) from error
        return value

    @model_validator(mode="after")
    def _has_one_amount(self) -> BudgetTable:
        if (self.usd is None) == (self.cpu_hours is None):
            raise ValueError("either usd or cpu_hours is expected; write one budget for each")
        return self


def parse_shares(tables: object, sites: Collection[str], half_life: float) -> Shares:
    """Read the shares of a sites file, in order. The first one that matches a job applies.

    :param tables: the value of ``shares`` in the file
    :param sites: the names of the existing sites
    :param half_life: seconds after which past usage counts half
    :raises ValueError: a value is not valid; the message names the value and the share
    """
    taken: set[str] = set()

    def made(table: ShareTable) -> Share:
        name = _new(table.its_name, taken)
        if strange := sorted(table.sites.keys() - {*sites}):
            raise ValueError(f"sites: there is no site {strange[0]!r}; valid: {nearest_first(strange[0], sites)}")
        kept = [Kept(None, table.amounts)] if table.amounts else []
        kept += [Kept(site, each.amounts) for site, each in table.sites.items()]
        return Share(name, table.who, table.weight, tuple(kept), table.lend, table.borrow)

    return Shares(tuple(each_of("shares", tables, ShareTable, made)), half_life)


def parse_budgets(tables: object) -> list[PeriodBudget]:
    """Read the budgets of a sites file, in order. A job is charged to every budget that it matches.

    :param tables: the value of ``budgets`` in the file
    :raises ValueError: a value is not valid; the message names the value and the budget
    """
    taken: set[str] = set()

    def made(table: BudgetTable) -> PeriodBudget:
        name = _new(table.its_name, taken)
        if table.usd is not None:
            return PeriodBudget(name, table.who, table.usd, Unit.USD, table.per, table.zone)
        return PeriodBudget(name, table.who, table.cpu_hours or 0.0, Unit.CPU_HOURS, table.per, table.zone)

    return each_of("budgets", tables, BudgetTable, made)


def _new(name: str, taken: set[str]) -> str:
    """Return the name after adding it to those taken.

    :raises ValueError: an earlier table has it
    """
    if (compared := _compared(name)) in taken:
        raise ValueError(
            f"name = {name!r}: another table already has this name, or one that differs only in case, accents or "
            "blanks; give each its own name"
        )
    taken.add(compared)
    return name


def _compared(name: str) -> str:
    """Reduce a name to what MySQL compares: without case, accents, and blanks at either end."""
    return "".join(each for each in normalize("NFKD", name.casefold()) if not combining(each)).strip()
