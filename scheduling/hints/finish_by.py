"""The deadline of a run: a time after its start, a time of day, or a date and time. Pure."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass

from lading.scheduling.text.printable import shortened
from lading.scheduling.text.units import UnitError, format_time, parse_time

VALID = 'a length of time, such as "2h", or a time of day in the time zone of the Dag, such as "06:00"'
VALID_MOMENT = ', or a date and time in ISO 8601, such as "2026-11-27T06:00" (in that time zone) or "2026-11-27T05:00Z"'
_TIME_OF_DAY = re.compile(r"([01]\d|2[0-3]):([0-5]\d)", re.ASCII)
_MOMENT = re.compile(r"20\d\d-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(Z|[+-]\d\d:\d\d)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class FinishBy:
    """The deadline of a run; exactly one of these is set.

    :param seconds: after the start of the run
    :param time_of_day: the next such time after the start of the run, in the time zone of its Dag
    :param moment: a date and time; without an offset, in the time zone of the Dag
    """

    seconds: int | None = None
    time_of_day: datetime.time | None = None
    moment: datetime.datetime | None = None

    def at(self, began: float, zone: datetime.tzinfo) -> float:
        """The deadline in epoch seconds.

        When clocks change, RFC 5545, 3.3.5 applies: a local time that occurs twice means the first one, and a local
        time that does not occur is interpreted with the offset before the change.

        :param began: when the first task of the run was queued, epoch seconds
        :param zone: the time zone of its Dag
        """
        if self.seconds is not None:
            return began + self.seconds
        if self.moment is not None:
            return (self.moment if self.moment.tzinfo is not None else self.moment.replace(tzinfo=zone)).timestamp()
        assert self.time_of_day is not None
        day = datetime.datetime.fromtimestamp(began, zone).date()
        while True:  # ends after at most one more day, or two where a day lacks that time
            found = datetime.datetime.combine(day, self.time_of_day, zone).timestamp()
            if found > began:
                return found
            day += datetime.timedelta(days=1)

    def __str__(self) -> str:
        if self.time_of_day is not None:
            return f"{self.time_of_day:%H:%M}"
        return format_time(self.seconds or 0) if self.moment is None else self.moment.isoformat()


def parse_finish_by(value: object, *, is_of_one_run: bool = False) -> FinishBy:
    """The deadline of a run.

    :param value: a length of time as :func:`lading.scheduling.text.units.parse_time` accepts it, a time of day
        ``"HH:MM"``, or, for a single run, a date and time in ISO 8601
    :raises UnitError: it is none of these
    """
    text = value.strip() if isinstance(value, str) else ""
    if clock := _TIME_OF_DAY.fullmatch(text):
        return FinishBy(time_of_day=datetime.time(int(clock[1]), int(clock[2])))
    if _MOMENT.fullmatch(text):
        if not is_of_one_run:
            raise UnitError(f"{shortened(value)} is a date and time, which all later runs would miss; valid: {VALID}")
        try:
            return FinishBy(moment=datetime.datetime.fromisoformat(text.replace("Z", "+00:00")))
        except ValueError as error:
            raise UnitError(
                f"{shortened(value)} is not a date and time: {error}; valid: {VALID}{VALID_MOMENT}"
            ) from None
    try:
        return FinishBy(seconds=parse_time(value))
    except UnitError:
        more = VALID_MOMENT if is_of_one_run else ""
        raise UnitError(f"{shortened(value)} is not a deadline for a run; valid: {VALID}{more}") from None
