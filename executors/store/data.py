"""Where files are, and which of them waiting jobs read: what ``lading_data`` has, for policies."""

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
    """A file that a job has left at a location, which its result or its outlets name."""

    __tablename__ = "lading_data"

    # The SHA-1 of the URI, which may be longer than what databases find by.
    key: Mapped[str] = mapped_column(String(40), primary_key=True)
    site: Mapped[str] = mapped_column(String(64), primary_key=True)
    location: Mapped[str] = mapped_column(String(250), primary_key=True)
    uri: Mapped[str] = mapped_column(Text)
    bytes: Mapped[int] = mapped_column(BigInteger)
    # Of the Dag run whose job has left it.
    dag_id: Mapped[str | None] = mapped_column(StringID())
    run_id: Mapped[str | None] = mapped_column(StringID())
    # When it was measured last, seconds since the epoch.
    at: Mapped[float] = mapped_column(Double)

    __table_args__ = (Index("lading_data_at", "at"),)


def note(session: Session, site: str, events: Iterable[Mapping[str, Any]]) -> None:
    """Store which files jobs have left, as their ends report it.

    :param site: at which they ran
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
                    continue  # no database takes its name
                run = {"dag_id": dag_id, "run_id": run_id}
                where = {"key": key(uri), "site": site, "location": location}
                left[key(uri), location] = Data(**where, **run, uri=uri, bytes=size, at=time.time())
    for each in left.values():  # one for each file: what is not written yet would be added once more
        session.merge(each)


def read(session: Session, tokens: Sequence[str]) -> Files:
    """What is known of the inputs of waiting jobs.

    :param tokens: theirs
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
    # What the agent has measured is what is there; what a Dag says of it may be older.
    weighed = {token: {uri: sizes.get(uri, size) for uri, size in each.items()} for token, each in inputs.items()}
    return Files(weighed, {uri: frozenset(places) for uri, places in holders.items()})


def needed(session: Session, site: str) -> dict[str, int]:
    """By location of a site, the bytes of files that runs have left there which have jobs that have not ended."""
    live = select(JobRow.dag_id, JobRow.run_id).where(JobRow.state.in_(LIVE)).distinct().subquery()
    same_run = (Data.dag_id == live.c.dag_id) & (Data.run_id == live.c.run_id)
    query = select(Data.location, func.sum(Data.bytes)).join(live, same_run).where(Data.site == site)
    return {location: int(size) for location, size in session.execute(query.group_by(Data.location))}


def forget(session: Session, before: float) -> None:
    """Forget files that were measured before, seconds since the epoch."""
    session.execute(delete(Data).where(Data.at < before))
