"""The tables of gangs and holds. Times are seconds since the epoch; memory and disk are in MiB."""

from __future__ import annotations

import time

from sqlalchemy import Double, Index, Integer, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from lading.executors.store.tables import Base, ReasonText, StringID
from lading.scheduling.model.reasons import Reason
from lading.scheduling.model.resources import Resources


class GangRow(Base):
    """Jobs that start together, kept while one of them lives; a job with attempts of its own is a gang of one."""

    __tablename__ = "lading_gang"

    token: Mapped[str] = mapped_column(String(36), primary_key=True)
    dag_id: Mapped[str] = mapped_column(StringID())
    run_id: Mapped[str] = mapped_column(StringID())
    # The name from its hint; None: a job alone.
    name: Mapped[str | None] = mapped_column(String(250))
    # See lading.scheduling.gangs.gang.Stage.
    stage: Mapped[str] = mapped_column(String(12))
    attempt: Mapped[int] = mapped_column(Integer, default=0)
    # When the next attempt begins; waking the gang sets it to 0.
    wake_at: Mapped[float | None] = mapped_column(Double)
    # The state of the current pass, as JSON (see lading.executors.gangs.tick).
    memory: Mapped[str] = mapped_column(Text)
    started_at: Mapped[float | None] = mapped_column(Double)
    changed_at: Mapped[float] = mapped_column(Double, default=time.time, onupdate=time.time)


class HoldRow(Base):
    """Room that a site holds, or is to hold, for a job; the row is stored before the site is contacted."""

    __tablename__ = "lading_hold"

    token: Mapped[str] = mapped_column(String(36), primary_key=True)
    gang: Mapped[str] = mapped_column(String(36))
    job: Mapped[str] = mapped_column(String(36))
    partition: Mapped[str] = mapped_column(StringID())
    site: Mapped[str] = mapped_column(String(64))
    location: Mapped[str] = mapped_column(String(250))
    cpus: Mapped[float] = mapped_column(Double)
    memory: Mapped[int] = mapped_column(Integer)
    disk: Mapped[int] = mapped_column(Integer)
    gpus: Mapped[float] = mapped_column(Double)
    # asked, or the event with which the site answered: held, refused, hold_lost.
    state: Mapped[str] = mapped_column(String(12))
    reason: Mapped[Reason | None] = mapped_column(ReasonText)
    created_at: Mapped[float] = mapped_column(Double)
    # When the site was last asked.
    asked_at: Mapped[float] = mapped_column(Double)

    __table_args__ = (Index("lading_hold_gang", "gang"),)

    @property
    def resources(self) -> Resources:
        return Resources(self.cpus, self.memory, self.disk, self.gpus)
