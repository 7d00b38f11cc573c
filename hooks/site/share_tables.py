"""The ``[[shares]]`` and ``[[budgets]]`` of the sites file: how much of what there is belongs to whom, and what it may
cost."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal
from unicodedata import combining, normalize
from zoneinfo import ZoneInfo

from pydantic import Field, StrictBool, field_validator, model_validator

from lading.hooks.files.table_model import CountOrZero, Memory, TableModel, each_of
from lading.scheduling.shares.budgets import PeriodBudget, Unit
from lading.scheduling.shares.table import OTHERS, Kept, Share, ShareAmounts, Shares
from lading.scheduling.shares.who import Who
from lading.scheduling.text.nearest import nearest_first
from lading.scheduling.text.printable import shortened

# What a database keeps of it is compared by every one of them.
LONGEST_NAME = 100


class WhoTable(TableModel):
    """Whose jobs a table is about: those for which all holds that is given."""

    name: str = Field(
        "",
        max_length=LONGEST_NAME,
        description="What it is called in reasons, metrics and on the page; without it what is given of team, dag, "
        "owner and tag.",
    )
    team: str | None = Field(None, min_length=1, max_length=50, description="The name of a team of Airflow.")
    dag: str | None = Field(None, min_length=1, description="A pattern of Dag ids (`*`, `?`, `[...]`).")
    owner: str | None = Field(None, min_length=1, description="An owner of any task of the Dag.")
    tag: str | None = Field(None, min_length=1, description="One of the tags of the Dag.")

    @property
    def who(self) -> Who:
        return Who(self.team, self.dag, self.owner, self.tag)

    @property
    def its_name(self) -> str:
        return (self.name or str(self.who))[:LONGEST_NAME]


class KeptTable(TableModel):
    """What is kept for a share, over all sites or, below ``sites``, at one."""

    cpus: CountOrZero | None = Field(None, description="How many cpus.")
    memory: Memory | None = Field(None, description="How much memory.")
    gpus: CountOrZero | None = Field(None, description="How many GPUs.")
    machines: CountOrZero | None = Field(
        None, description="How many machines; of one that it shares with others the part counts that its jobs use."
    )
    usd_per_hour: float | None = Field(None, gt=0, description="Machines for so many USD per hour.")

    @property
    def amounts(self) -> dict[str, float]:
        found = {name: getattr(self, name) for name in ShareAmounts._fields}
        return {name: float(amount) for name, amount in found.items() if amount is not None}


class SiteKeptTable(KeptTable):
    """What is kept at one site."""

    @model_validator(mode="after")
    def _keeps_something(self) -> SiteKeptTable:
        if not self.amounts:
            raise ValueError(f"it keeps nothing; valid: {', '.join(ShareAmounts._fields)}")
        return self


class ShareTable(WhoTable, KeptTable):
    """One of the ``[[shares]]``."""

    weight: float = Field(
        1.0,
        gt=0,
        description="Of what several shares wait for, each gets as much as its weight is of the sum of theirs.",
    )
    sites: dict[str, SiteKeptTable] = Field(
        {}, description="What is kept at single sites, by their names: `{hpc = {cpus = 64}}`."
    )
    lend: StrictBool = Field(
        True,
        description="Whether others may use what is kept for it while it does not. It comes back as their jobs end.",
    )
    borrow: StrictBool = Field(
        True,
        description="Whether it may use more than what is kept for it (where nothing is, than its part by weight) "
        "while others do not need it.",
    )

    @model_validator(mode="after")
    def _has_something_to_keep(self) -> ShareTable:
        if not self.lend and not self.amounts and not self.sites:
            raise ValueError("lend = false: it keeps nothing; give cpus, memory, gpus, machines or usd_per_hour")
        if _compared(self.its_name) == _compared(OTHERS) and self.who != Who():
            raise ValueError(
                f"name = {OTHERS!r} is that of the jobs that no share names; give another name, or leave out team, "
                "dag, owner and tag"
            )
        return self


class BudgetTable(WhoTable):
    """One of the ``[[budgets]]``."""

    usd: float | None = Field(None, gt=0, description="So many USD in each period; or:")
    cpu_hours: float | None = Field(None, gt=0, description="so many hours of cpus.")
    per: Literal["day", "week", "month"] = Field(
        "month", description="The period, by the calendar: `day`, `week` (from Monday) or `month`."
    )
    zone: str = Field("UTC", description="The time zone of the calendar, such as `Europe/Berlin`.")

    @field_validator("zone")
    @classmethod
    def _is_zone(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        except (ValueError, OSError) as error:  # ZoneInfoNotFoundError is a KeyError
            raise ValueError(
                f"{shortened(value)} is no time zone; valid: names such as UTC and Europe/Berlin"
            ) from error
        except KeyError as error:
            raise ValueError(
                f"{shortened(value)} is no time zone; valid: names such as UTC and Europe/Berlin"
            ) from error
        return value

    @model_validator(mode="after")
    def _has_one_amount(self) -> BudgetTable:
        if (self.usd is None) == (self.cpu_hours is None):
            raise ValueError("one of usd and cpu_hours is expected; write a budget for each")
        return self


def parse_shares(tables: object, sites: Collection[str], half_life: float) -> Shares:
    """The shares of a sites file, in its order, of which the first that is for a job counts.

    :param tables: what the file has under ``shares``
    :param sites: the names of the sites there are
    :param half_life: seconds after which what was used counts half
    :raises ValueError: a value is not valid; the message names it and the share
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
    """The budgets of a sites file, in its order; a job counts for each that is for it.

    :param tables: what the file has under ``budgets``
    :raises ValueError: a value is not valid; the message names it and the budget
    """
    taken: set[str] = set()

    def made(table: BudgetTable) -> PeriodBudget:
        name = _new(table.its_name, taken)
        if table.usd is not None:
            return PeriodBudget(name, table.who, table.usd, Unit.USD, table.per, table.zone)
        return PeriodBudget(name, table.who, table.cpu_hours or 0.0, Unit.CPU_HOURS, table.per, table.zone)

    return each_of("budgets", tables, BudgetTable, made)


def _new(name: str, taken: set[str]) -> str:
    """A name that no table before has.

    :raises ValueError: one has it
    """
    if (compared := _compared(name)) in taken:
        raise ValueError(
            f"name = {name!r}: another one has it already, or one that differs in case, accents or blanks alone; give "
            "each a name of its own"
        )
    taken.add(compared)
    return name


def _compared(name: str) -> str:
    """A name without what MySQL does not compare: case, accents, and blanks at the ends."""
    return "".join(each for each in normalize("NFKD", name.casefold()) if not combining(each)).strip()
