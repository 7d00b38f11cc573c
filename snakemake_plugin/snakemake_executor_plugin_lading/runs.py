"""The unfinished runs of workflows: their Snakemake processes, and their remaining rules."""

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
    """The tables that only the Snakemake plugin has."""

    metadata = metadata


class WorkflowRunRow(Base):
    """A run of a workflow, kept until its Snakemake and all of its jobs have ended."""

    __tablename__ = "snakemake_run"

    run_id: Mapped[str] = mapped_column(String(36), primary_key=True)
    # The number of its Snakemake, which is also in the rows of its jobs and in StateFolder.schedulers.
    owner: Mapped[int] = mapped_column(Integer)
    # The working directory of its Snakemake, see path_key().
    workdir: Mapped[str] = mapped_column(Text)


class StructureRow(Base):
    """The edition of the remaining rules of a run. It increases when a checkpoint changes them."""

    __tablename__ = "snakemake_structure"

    run_id: Mapped[str] = mapped_column(String(36), primary_key=True)
    edition: Mapped[int] = mapped_column(Integer)


class RuleRow(Base):
    """A rule, or a group of jobs, of a run, with its unfinished jobs."""

    __tablename__ = "snakemake_rule"

    run_id: Mapped[str] = mapped_column(String(36), primary_key=True)
    name: Mapped[str] = mapped_column(String(250), primary_key=True)
    # JSON: the upstream rules; and by job number, the upstream rules of which only some jobs come before that job, with
    # the numbers of those jobs.
    upstream: Mapped[str] = mapped_column(Text)
    # JSON: the hints of its jobs, each executor_config with the numbers of the jobs that have it.
    hints: Mapped[str] = mapped_column(Text)
    # JSON: the numbers of its unfinished jobs.
    left: Mapped[str] = mapped_column(Text)


def path_key(path: str) -> str:
    """Convert an absolute path to text for the store, which cannot take bytes that are not valid UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return json.dumps(path)  # does not start with a slash, so it differs from all other paths
    return path


def living_owners(schedulers_folder: Path) -> set[int]:
    """Return the numbers of the running Snakemake processes."""
    files = schedulers_folder.iterdir() if schedulers_folder.is_dir() else ()
    return {int(path.name) for path in files if path.name.isdecimal() and not has_ended(path)}


def killed_runs(session: Session, schedulers_folder: Path, workdir: str | None = None) -> list[WorkflowRunRow]:
    """Return the runs whose Snakemake was killed.

    :param workdir: only runs in this working directory; None: all runs of the state folder
    """
    query = select(WorkflowRunRow)
    rows = list(session.scalars(query if workdir is None else query.where(WorkflowRunRow.workdir == workdir)))
    # Read after the rows: a row is added only after its Snakemake has registered as running.
    alive = living_owners(schedulers_folder)
    return [row for row in rows if row.owner not in alive]


def forget_run(session: Session, state: StateFolder, run_id: str) -> None:
    """Remove the records of a run whose Snakemake exits, starting with the environment variables of its jobs.

    The row of the run stays while one of its jobs is still running, because the next Snakemake in its folder waits for
    that job or takes it over.
    """
    from lading.executors.store import LIVE, JobRow

    state.environment(run_id).unlink(missing_ok=True)
    for table in (RuleRow, StructureRow):
        session.execute(delete(table).where(table.run_id == run_id))
    is_at_work = exists().where(JobRow.run_id == run_id, JobRow.state.in_(LIVE))
    session.execute(delete(WorkflowRunRow).where(WorkflowRunRow.run_id == run_id, ~is_at_work))


def forget_killed_runs(session: Session, state: StateFolder) -> None:
    """Remove the records of runs whose Snakemake was killed and whose jobs have ended."""
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
    """A remaining rule, or group of jobs.

    :param upstream: the rules right before it
    :param before: by the number of one of its jobs, the upstream rules of which only some jobs come before that job,
        with the numbers of those jobs
    :param hints: the hints of its jobs, each with the numbers of the jobs that have them
    :param left: the numbers of its unfinished jobs
    """

    upstream: set[str] = field(default_factory=set)
    before: dict[int, dict[str, list[int]]] = field(default_factory=dict)
    hints: list[tuple[dict[str, Any], list[int]]] = field(default_factory=list)
    left: set[int] = field(default_factory=set)

    @classmethod
    def from_row(cls, row: RuleRow) -> PlannedRule:
        """Read a row. Keys of JSON are strings, so they are converted to numbers."""
        upstream, before = json.loads(row.upstream)
        by_number = {int(number): rules for number, rules in before.items()}
        return cls(set(upstream), by_number, json.loads(row.hints), set(json.loads(row.left)))


def save_rules(session: Session, run_id: str, rules: Mapping[str, PlannedRule]) -> None:
    """Replace the stored remaining rules of a run.

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
    """Store the unfinished jobs of a run.

    :param left: their numbers, by rule
    """
    for name, numbers in left.items():
        mine = RuleRow.run_id == run_id, RuleRow.name == name
        session.execute(update(RuleRow).where(*mine).values(left=json.dumps(sorted(numbers))))


def rules_of_run(session: Session, run_id: str) -> dict[str, PlannedRule]:
    rows = session.scalars(select(RuleRow).where(RuleRow.run_id == run_id))
    return {row.name: PlannedRule.from_row(row) for row in rows}


def jobs_left(session: Session, run_id: str) -> dict[str, list[int]]:
    """Read the numbers of the unfinished jobs of a run, by rule."""
    rows = session.execute(select(RuleRow.name, RuleRow.left).where(RuleRow.run_id == run_id))
    return {name: json.loads(left) for name, left in rows}


def editions(session: Session, run_ids: Collection[str]) -> dict[str, int]:
    """Read the editions of the remaining rules of runs, by run ID."""
    rows = session.scalars(select(StructureRow).where(StructureRow.run_id.in_(run_ids)))
    return {row.run_id: row.edition for row in rows}
