"""The runs of workflows that have not ended: whose they are, and the rules that are still to come."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Integer, MetaData, String, Text, delete, exists, select, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from lading.executors.orchestrator.presence import has_ended
from snakemake_executor_plugin_lading.state_folder import StateFolder

metadata = MetaData()


class Base(DeclarativeBase):
    """The tables that Lading itself has not."""

    metadata = metadata


class WorkflowRunRow(Base):
    """A run of a workflow, until its Snakemake and all of its jobs have ended."""

    __tablename__ = "snakemake_run"

    run_id: Mapped[str] = mapped_column(String(36), primary_key=True)
    # The number of its Snakemake, as jobs and the folder of presences have it.
    owner: Mapped[int] = mapped_column(Integer)
    # In which its Snakemake works, see path_key().
    workdir: Mapped[str] = mapped_column(Text)


class StructureRow(Base):
    """Which edition of what is to come a run has: a checkpoint makes another one."""

    __tablename__ = "snakemake_structure"

    run_id: Mapped[str] = mapped_column(String(36), primary_key=True)
    edition: Mapped[int] = mapped_column(Integer)


class RuleRow(Base):
    """A rule, or a group of jobs, of a run, with the jobs of it that have not ended."""

    __tablename__ = "snakemake_rule"

    run_id: Mapped[str] = mapped_column(String(36), primary_key=True)
    name: Mapped[str] = mapped_column(String(250), primary_key=True)
    # The rules that come right before it, as JSON; with those of which some jobs alone come before one of its jobs, and
    # the numbers of these, by the number of that job.
    upstream: Mapped[str] = mapped_column(Text)
    # What its jobs ask for, as JSON: each executor_config with the numbers of the jobs that have it.
    hints: Mapped[str] = mapped_column(Text)
    # The numbers of its jobs that have not ended, as JSON.
    left: Mapped[str] = mapped_column(Text)


def path_key(path: str) -> str:
    """Return what the store has for an absolute path: as text it takes none whose bytes are no UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return json.dumps(path)  # begins with no slash
    return path


def living_owners(schedulers_folder: Path) -> set[int]:
    """The numbers of the Snakemakes that live."""
    files = schedulers_folder.iterdir() if schedulers_folder.is_dir() else ()
    return {int(path.name) for path in files if path.name.isdecimal() and not has_ended(path)}


def killed_runs(session: Session, schedulers_folder: Path, workdir: str | None = None) -> list[WorkflowRunRow]:
    """The runs whose Snakemake was killed.

    :param workdir: of the one workflow; None: of all that share the state folder
    """
    query = select(WorkflowRunRow)
    rows = list(session.scalars(query if workdir is None else query.where(WorkflowRunRow.workdir == workdir)))
    # Looked at last: a run has its row only after its Snakemake has shown that it lives.
    alive = living_owners(schedulers_folder)
    return [row for row in rows if row.owner not in alive]


def forget_run(session: Session, state: StateFolder, run_id: str) -> None:
    """Remove what is kept of a run whose Snakemake ends, the variables of its jobs first.

    Whose it is stays as long as a job of it is at work, which may take its time to end: the next Snakemake in its
    folder waits for that, or takes the job over.
    """
    from lading.executors.store import LIVE, JobRow

    state.environment(run_id).unlink(missing_ok=True)
    for table in (RuleRow, StructureRow):
        session.execute(delete(table).where(table.run_id == run_id))
    is_at_work = exists().where(JobRow.run_id == run_id, JobRow.state.in_(LIVE))
    session.execute(delete(WorkflowRunRow).where(WorkflowRunRow.run_id == run_id, ~is_at_work))


def forget_killed_runs(session: Session, state: StateFolder) -> None:
    """Remove what is kept of runs whose Snakemake was killed and whose jobs have ended."""
    from lading.executors.store import LIVE, JobRow

    if not (killed := killed_runs(session, state.schedulers)):
        return
    its_jobs = JobRow.run_id.in_([row.run_id for row in killed]), JobRow.state.in_(LIVE)
    at_work: Collection[Any] = session.scalars(select(JobRow.run_id).where(*its_jobs).distinct()).all()
    for row in killed:
        if row.run_id not in at_work:
            forget_run(session, state, row.run_id)


@dataclass(slots=True)
class PlannedRule:
    """A rule, or a group of jobs, that is to come.

    :param upstream: the rules that come right before it
    :param before: by the number of one of its jobs: those of them of which not all jobs come before it, and the numbers
        of those that do
    :param hints: what its jobs ask for, each with the numbers of those that do
    :param left: the numbers of its jobs that have not ended
    """

    upstream: set[str] = field(default_factory=set)
    before: dict[int, dict[str, list[int]]] = field(default_factory=dict)
    hints: list[tuple[dict[str, Any], list[int]]] = field(default_factory=list)
    left: set[int] = field(default_factory=set)

    @classmethod
    def from_row(cls, row: RuleRow) -> PlannedRule:
        """Read one; numbers are no keys of JSON."""
        upstream, before = json.loads(row.upstream)
        by_number = {int(number): rules for number, rules in before.items()}
        return cls(set(upstream), by_number, json.loads(row.hints), set(json.loads(row.left)))


def save_rules(session: Session, run_id: str, rules: Mapping[str, PlannedRule]) -> None:
    """Store what is to come of a run, in the place of what was stored before.

    :param rules: by name
    """
    session.execute(delete(RuleRow).where(RuleRow.run_id == run_id))
    session.add_all(
        RuleRow(
            run_id=run_id,
            name=name,
            upstream=json.dumps([sorted(rule.upstream), rule.before]),
            hints=json.dumps(rule.hints),
            left=json.dumps(sorted(rule.left)),
        )
        for name, rule in rules.items()
    )
    known = session.get(StructureRow, run_id)
    session.merge(StructureRow(run_id=run_id, edition=1 if known is None else known.edition + 1))


def save_left(session: Session, run_id: str, left: Mapping[str, Iterable[int]]) -> None:
    """Store which jobs of a run have not ended.

    :param left: their numbers, by rule
    """
    for name, numbers in left.items():
        mine = RuleRow.run_id == run_id, RuleRow.name == name
        session.execute(update(RuleRow).where(*mine).values(left=json.dumps(sorted(numbers))))


def rules_of_run(session: Session, run_id: str) -> dict[str, PlannedRule]:
    """The rules of a run that are to come, by name."""
    rows = session.scalars(select(RuleRow).where(RuleRow.run_id == run_id))
    return {row.name: PlannedRule.from_row(row) for row in rows}


def jobs_left(session: Session, run_id: str) -> dict[str, list[int]]:
    """The numbers of the jobs of a run that have not ended, by rule."""
    rows = session.execute(select(RuleRow.name, RuleRow.left).where(RuleRow.run_id == run_id))
    return {name: json.loads(left) for name, left in rows}


def editions(session: Session, run_ids: Collection[str]) -> dict[str, int]:
    """Which edition of what is to come runs have, by their ids."""
    rows = session.scalars(select(StructureRow).where(StructureRow.run_id.in_(run_ids)))
    return {row.run_id: row.edition for row in rows}
