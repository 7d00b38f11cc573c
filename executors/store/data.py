"""Where files are, and which of them waiting jobs read: the table ``lading_data``, used by policies."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import BigInteger, Double, Index, String, Text, delete, func, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from lading.executors import store
from lading.executors.store import LIVE, JobRow
from lading.executors.store.tables import Base, StringID
from lading.hooks.staging.copying import key
from lading.scheduling.placing.policies import Files
from lading.scheduling.text.printable import storable


class Data(Base):
    """A file that a job left at a location and named in its result or its outlets."""

    __tablename__ = "lading_data"

    # The SHA-1 of the URI, which can be longer than a database can index.
    key: Mapped[str] = mapped_column(String(40), primary_key=True)
    site: Mapped[str] = mapped_column(String(64), primary_key=True)
    location: Mapped[str] = mapped_column(String(250), primary_key=True)
    uri: Mapped[str] = mapped_column(Text)
    bytes: Mapped[int] = mapped_column(BigInteger)
    # The Dag run of the job that left the file.
    dag_id: Mapped[str | None] = mapped_column(StringID())
    run_id: Mapped[str | None] = mapped_column(StringID())
    # When its size was last measured, in epoch seconds.
    at: Mapped[float] = mapped_column(Double)

    __table_args__ = (Index("lading_data_at", "at"),)


def note(session: Session, site: str, events: Iterable[Mapping[str, Any]]) -> None:
    """Store which files jobs have left, as reported when they ended.

    :param site: where the jobs ran
    """
    outputs = {each["token"]: each["outputs"] for each in events if each.get("outputs")}
    left: dict[tuple[str, str | None], Data] = {}
    for chunk in store.chunks([*outputs]):
        query = select(JobRow.token, JobRow.location, JobRow.dag_id, JobRow.run_id).where(
            JobRow.token.in_(chunk), JobRow.site == site
        )
        for token, location, dag_id, run_id in session.execute(query.where(JobRow.location.is_not(None))):
            for uri, size in outputs[token].items():
                if storable(uri) != uri:
                    continue  # databases cannot store such a URI
                run = {"dag_id": dag_id, "run_id": run_id}
                where = {"key": key(uri), "site": site, "location": location}
                left[key(uri), location] = Data(**where, **run, uri=uri, bytes=size, at=time.time())
    for each in left.values():  # one per file: merging an unflushed row twice would insert it twice
        session.merge(each)


def read(session: Session, tokens: Sequence[str]) -> Files:
    """Return the sizes and places of the input files of waiting jobs.

    :param tokens: the tokens of the jobs
    """
    inputs: dict[str, dict[str, int]] = {}
    for chunk in store.chunks(tokens):
        rows = session.execute(
            select(JobRow.token, JobRow.inputs).where(JobRow.token.in_(chunk), JobRow.inputs.is_not(None))
        )
        inputs |= {row.token: json.loads(str(row.inputs)) for row in rows}
    keys = {key(uri): uri for found in inputs.values() for uri in found}
    holders: dict[str, set[tuple[str, str]]] = {}
    sizes: dict[str, int] = {}
    for chunk in store.chunks(sorted(keys)):
        rows = session.execute(select(Data.key, Data.site, Data.location, Data.bytes).where(Data.key.in_(chunk)))
        for row in rows:
            uri = keys[row.key]
            holders.setdefault(uri, set()).add((row.site, row.location))
            sizes[uri] = max(row.bytes, sizes.get(uri, 0))
    # A size measured by the agent is preferred to the one the Dag declares, which may be older.
    weighed = {token: {uri: sizes.get(uri, size) for uri, size in each.items()} for token, each in inputs.items()}
    return Files(weighed, {uri: frozenset(places) for uri, places in holders.items()})


def needed(session: Session, site: str) -> dict[str, int]:
    """Return how many bytes each location of a site holds for runs that still have live jobs."""
    live = select(JobRow.dag_id, JobRow.run_id).where(JobRow.state.in_(LIVE)).distinct().subquery()
    same_run = (Data.dag_id == live.c.dag_id) & (Data.run_id == live.c.run_id)
    query = select(Data.location, func.sum(Data.bytes)).join(live, same_run).where(Data.site == site)
    return {location: int(size) for location, size in session.execute(query.group_by(Data.location))}


def forget(session: Session, before: float) -> None:
    """Delete files last measured before a time, in epoch seconds."""
    session.execute(delete(Data).where(Data.at < before))
