"""When a run shall have ended: so long after it has begun, at a time of day, or at a moment. Pure."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass

from lading.scheduling.text.printable import shortened
from lading.scheduling.text.units import UnitError, format_time, parse_time

VALID = 'how long it may take, such as "2h", or a time of day in the time zone of the Dag, such as "06:00"'
VALID_MOMENT = ', or a moment in ISO 8601, such as "2026-11-27T06:00" (in that time zone) or "2026-11-27T05:00Z"'
_TIME_OF_DAY = re.compile(r"([01]\d|2[0-3]):([0-5]\d)", re.ASCII)
_MOMENT = re.compile(r"20\d\d-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(Z|[+-]\d\d:\d\d)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class FinishBy:
    """When a run shall have ended; one of these is given.

    :param seconds: after it has begun
    :param time_of_day: in the time zone of its Dag, the next one after it has begun
    :param moment: without an offset in the time zone of its Dag
    """

    seconds: int | None = None
    time_of_day: datetime.time | None = None
    moment: datetime.datetime | None = None

    def at(self, began: float, zone: datetime.tzinfo) -> float:
        """That moment, epoch seconds.

        Where clocks are changed it goes by RFC 5545, 3.3.5: a local time that occurs twice is the first of both, and
        one that does not occur is that which the clock would show had it not been changed yet.

        :param began: when the first task of the run was queued, epoch seconds
        :param zone: the time zone of its Dag
        """
        if self.seconds is not None:
            return began + self.seconds
        if self.moment is not None:
            return (self.moment if self.moment.tzinfo is not None else self.moment.replace(tzinfo=zone)).timestamp()
        assert self.time_of_day is not None
        day = datetime.datetime.fromtimestamp(began, zone).date()
        while True:  # the day after at the latest, or where that has no such time the next one
            found = datetime.datetime.combine(day, self.time_of_day, zone).timestamp()
            if found > began:
                return found
            day += datetime.timedelta(days=1)

    def __str__(self) -> str:
        """As it can be written."""
        if self.time_of_day is not None:
            return f"{self.time_of_day:%H:%M}"
        return format_time(self.seconds or 0) if self.moment is None else self.moment.isoformat()


def parse_finish_by(value: object, *, is_of_one_run: bool = False) -> FinishBy:
    """When a run shall have ended.

    :param value: a length of time as :func:`lading.scheduling.text.units.parse_time` takes it, a time of day
        ``"HH:MM"``, or of one run a moment in ISO 8601
    :raises UnitError: it is none of them
    """
    text = value.strip() if isinstance(value, str) else ""
    if clock := _TIME_OF_DAY.fullmatch(text):
        return FinishBy(time_of_day=datetime.time(int(clock[1]), int(clock[2])))
    if _MOMENT.fullmatch(text):
        if not is_of_one_run:
            raise UnitError(f"{shortened(value)} is a moment, which is past in later runs; valid: {VALID}")
        try:
            return FinishBy(moment=datetime.datetime.fromisoformat(text.replace("Z", "+00:00")))
        except ValueError as error:
            raise UnitError(f"{shortened(value)} is no moment: {error}; valid: {VALID}{VALID_MOMENT}") from None
    try:
        return FinishBy(seconds=parse_time(value))
    except UnitError:
        more = VALID_MOMENT if is_of_one_run else ""
        raise UnitError(f"{shortened(value)} does not say when a run shall have ended; valid: {VALID}{more}") from None
