"""What is still to come of runs: the rules of their workflows, as the forecast needs them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import MetaData, String, Text, delete, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

metadata = MetaData()


class Base(DeclarativeBase):
    """The tables that Lading itself has not."""

    metadata = metadata


class RuleRow(Base):
    """A rule, or a group of jobs, of a run, with the jobs of it that have not ended."""

    __tablename__ = "snakemake_rule"

    run_id: Mapped[str] = mapped_column(String(36), primary_key=True)
    name: Mapped[str] = mapped_column(String(250), primary_key=True)
    # The rules that come right before it, as JSON.
    upstream: Mapped[str] = mapped_column(Text)
    # What its jobs ask for, as an executor_config, as JSON.
    hints: Mapped[str] = mapped_column(Text)
    # The numbers of its jobs that have not ended, as JSON.
    left: Mapped[str] = mapped_column(Text)


def save(
    session: Session, run_id: str, rules: Mapping[str, tuple[Iterable[str], Mapping[str, Any], Iterable[int]]]
) -> None:
    """Store what is to come of a run.

    :param rules: by name: those that come before, what its jobs ask for, and their numbers
    """
    for name, (upstream, hints, left) in rules.items():
        session.merge(
            RuleRow(
                run_id=run_id,
                name=name,
                upstream=json.dumps(sorted(upstream)),
                hints=json.dumps(hints),
                left=json.dumps(sorted(left)),
            )
        )


def drop(session: Session, run_id: str) -> None:
    """Nothing of a run is to come any more."""
    session.execute(delete(RuleRow).where(RuleRow.run_id == run_id))


def of_run(session: Session, run_id: str) -> list[RuleRow]:
    """The rules of a run."""
    return list(session.scalars(select(RuleRow).where(RuleRow.run_id == run_id)))
