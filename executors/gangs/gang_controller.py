"""The keeper of gangs: in each tick every one of them has its turn, in the order in which they should start."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from lading.executors.gangs import roster
from lading.executors.gangs.ahead import Ahead
from lading.executors.gangs.outcome import GangOutcome
from lading.executors.gangs.tick import Files, ReadRoster, Tick
from lading.executors.gangs.turn import Turn
from lading.executors.store.gangs import rows
from lading.hooks.files.logs import Trouble
from lading.scheduling.gangs.gang import Stage
from lading.scheduling.gangs.room import GangRoom, Ways, Where
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.reasons import because
from lading.scheduling.resources import Resources

log = logging.getLogger(__name__)


class GangController:
    """
    :param ways: how places are found for members
    :param read_roster: says which members Airflow is still to bring
    :param files: says which files of jobs are still to be brought to where room is held for them
    :param ahead: says what is to come of runs whose Dags ask ahead; None: nothing
    """

    def __init__(
        self,
        ways: Ways | None = None,
        read_roster: ReadRoster = roster.read,
        ahead: Ahead | None = None,
        files: Files = lambda site, location, text, dag: None,
    ) -> None:
        self.ways = ways or Ways()
        self.read_roster = read_roster
        self.ahead = ahead
        self.files = files
        self.trouble = Trouble(log)

    def decide(
        self, session: Session, sites: Sequence[SiteView], now: float, *, by_dag: bool, database_ahead: float = 0.0
    ) -> GangOutcome:
        """What is to be done about gangs.

        :param sites: all of them, in their order
        :param now: epoch seconds
        :param by_dag: whether some site does not take every Dag
        :param database_ahead: by how many seconds the database's clock is before ours
        """
        known = rows.load(session, by_dag=by_dag, database_ahead=database_ahead)
        held: dict[Where, Resources] = {}
        for row in known.holds:
            if row.state in ("asked", "held"):
                held[row.site, row.location] = held.get((row.site, row.location), Resources()) + row.resources
        tick = Tick(session, sites, now, known, GangRoom(sites, held), held, self.read_roster, self.ways, self.files)
        outcome = tick.outcome
        active: set[str] = set()
        for memory, members in tick.gangs():
            try:
                Turn(tick, memory, members).take()
            except SQLAlchemyError:
                raise
            except Exception as error:  # what authors and plugins have said of its members
                self.trouble.begin(f"The turn of gang {memory.row.token} has failed", error, traceback=True)
                outcome.forget(memory.row.token, members, known.holds)
                reason = because("gang_error", gang=memory.called, text=f"{type(error).__name__}: {error}")
                outcome.fail([each for each in members if each.is_ready], reason, now)
                continue
            if memory.gang.stage not in (Stage.ATTEMPTED, Stage.FAILED):
                active.update(each.token for each in members)
        outcome.active = frozenset(active)
        outcome.sites = tick.room.with_held()
        if self.ahead is not None:
            outlook = self.ahead.look(session, outcome.sites, now, by_dag=by_dag, database_ahead=database_ahead)
            outcome.notes += outlook.notes
            for site, jobs in outlook.wanted.items():
                outcome.wanted.setdefault(site, []).extend(jobs)
        return outcome
