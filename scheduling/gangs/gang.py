"""A gang and its search for room, as a state machine. Pure: answers of sites are events, and actions are effects.

The partitions of a gang are tried one after the other: first at each of their matches, then at each match by each rule
that reduces their requests. Found room is held until all partitions have room; then they start. A pass ends at the
first partition that finds no room anywhere. Room that is no longer in the gang's ``held`` or ``trying`` is given back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple, TypeAlias

from lading.scheduling.hints.gang_hints import AttemptSchedule
from lading.scheduling.model.reasons import Reason, because

# A partition is first tried without a rule, with its full requests.
NO_RULE = ""
# If room that seemed free was not, the gang is not tried again before this, seconds.
SECONDS_UNTIL_LOOKED_AGAIN = 60.0


class Stage(str, Enum):
    GATHERING = "gathering"
    """Not all of its members are queued."""
    TRYING = "trying"
    """A pass is looking for room."""
    ATTEMPTED = "attempted"
    """The last pass failed, and the gang sleeps until the next."""
    STARTED = "started"
    """All of its partitions have room, and start."""
    FAILED = "failed"
    """The last attempt failed."""


class Partition(NamedTuple):
    """The members of a gang that belong to one task.

    :param name: the task
    :param after: the partitions of the gang that come before it; empty: it is a root
    """

    name: str
    after: frozenset[str] = frozenset()


class RoomAttempt(NamedTuple):
    """An attempt to find room for a partition.

    :param rule: the rule that reduces its requests; empty: the full requests
    :param match: the place that is tried
    """

    partition: str
    rule: str
    match: str


class Choices(NamedTuple):
    """Where a partition can be tried, best chance first, and by which rules; the first rule is the empty one."""

    matches: Sequence[str]
    rules: Sequence[str] = (NO_RULE,)
    why: Reason | None = None
    """Why there is no match."""
    never: Callable[[], Reason | None] = lambda: None
    """Returns why there can never be room, or None if there can. Called when there is none now."""
    is_costly: bool = False
    """Whether trying launches something, in which case ``never`` is called before."""


@dataclass(frozen=True, slots=True)
class Gang:
    """A gang.

    :param partitions: in the order in which they are tried
    :param partial: whether partitions with room start even if others have none
    :param attempt: the number of passes so far
    :param wake_at: when the next pass starts while the gang sleeps, epoch seconds
    :param until: when this pass times out, epoch seconds
    :param trying: the current attempt
    :param tried: failed attempts of this pass, for partitions that have no room yet
    :param held: the attempts that found room
    :param why: why the last attempt failed; None: none has
    :param look_at: from when on a sleeping gang is tried before its next pass if there is room for all of it, epoch
        seconds
    :param doubted: whether this pass, or the last one, failed although there seemed to be room
    """

    partitions: tuple[Partition, ...]
    partial: bool = False
    attempts: AttemptSchedule = AttemptSchedule()  # noqa: RUF009 (frozen)
    stage: Stage = Stage.GATHERING
    attempt: int = 0
    wake_at: float | None = None
    until: float | None = None
    trying: RoomAttempt | None = None
    tried: tuple[RoomAttempt, ...] = ()
    held: tuple[RoomAttempt, ...] = ()
    why: Reason | None = None
    look_at: float = 0.0
    doubted: bool = False

    @property
    def pending(self) -> Partition | None:
        names = {each.partition for each in self.held}
        return next((each for each in self.partitions if each.name not in names), None)

    def wakes_by_room(self, now: float) -> bool:
        """Whether the gang is tried before its next pass if there is room for all of it.

        :param now: epoch seconds
        """
        return self.stage is Stage.ATTEMPTED and now >= self.look_at

    @property
    def roots(self) -> tuple[str, ...]:
        """The partitions that wait for no other partition."""
        names = {each.name for each in self.partitions}
        return tuple(each.name for each in self.partitions if not each.after & names)


class Gathered(NamedTuple):
    """All members are queued."""


class Freed(NamedTuple):
    """There is room for the whole gang now, at sites that launch nothing."""


class RoomFound(NamedTuple):
    """The current attempt found room."""

    partition: str


class NoRoomFound(NamedTuple):
    """The current attempt found no room, and why."""

    partition: str
    why: Reason | None = None


class Lost(NamedTuple):
    """The room that a partition held or was being tried at is gone."""

    partition: str
    why: Reason | None = None


Event: TypeAlias = "Gathered | Freed | RoomFound | NoRoomFound | Lost"


class Start(NamedTuple):
    """These partitions start where they have room."""

    partitions: tuple[str, ...]


class Sleep(NamedTuple):
    """These partitions become ATTEMPTED until the given time (epoch seconds)."""

    partitions: tuple[str, ...]
    until: float


class Alone(NamedTuple):
    """The members of these partitions are placed individually from now on."""

    partitions: tuple[str, ...]


class Fail(NamedTuple):
    """These partitions fail, because the last attempt failed."""

    partitions: tuple[str, ...]
    why: Reason


Effect: TypeAlias = "RoomAttempt | Start | Sleep | Alone | Fail"
Found: TypeAlias = tuple[Gang, list[Effect]]


def step(gang: Gang, events: Iterable[Event], now: float, choices: Callable[[str], Choices]) -> Found:
    """Advance a gang as far as the events allow.

    :param events: events that do not matter in the current state are ignored, so they can be repeated
    :param now: epoch seconds
    :param choices: where a partition can be tried; called when its turn comes
    """
    gang = _dated_by(gang, now)
    begins = gang.stage is Stage.ATTEMPTED and gang.wake_at is not None and now >= gang.wake_at
    is_between = False
    for event in events:
        if isinstance(event, Freed):
            is_between = is_between or gang.wakes_by_room(now)
        elif isinstance(event, Gathered):
            begins = begins or gang.stage is Stage.GATHERING
        elif gang.stage is Stage.TRYING:
            gang = _answered(gang, event)
    if begins:
        gang = replace(
            gang,
            stage=Stage.TRYING,
            attempt=gang.attempt + 1,
            wake_at=None,
            until=now + gang.attempts.timeout,
            why=None,
            doubted=False,
        )
    elif is_between:
        # This is not a numbered attempt: the next one stays scheduled as it was.
        gang = replace(gang, stage=Stage.TRYING, until=now + gang.attempts.timeout, why=None, doubted=False)
    if gang.stage is not Stage.TRYING:
        return gang, []
    if gang.until is not None and now >= gang.until and gang.pending is not None:
        why = _with_last(because("gang_timeout", seconds=gang.attempts.timeout), gang)
        return _over(replace(gang, trying=None, why=why, doubted=True), now, is_hopeless=False)
    return (gang, []) if gang.trying is not None else _go_on(gang, now, choices)


def _answered(gang: Gang, event: Event) -> Gang:
    trying = gang.trying
    if isinstance(event, (RoomFound, NoRoomFound, Lost)) and trying is not None and event.partition == trying.partition:
        if isinstance(event, RoomFound):
            others = tuple(each for each in gang.tried if each.partition != trying.partition)
            return replace(gang, trying=None, tried=others, held=(*gang.held, trying))
        doubted = gang.doubted or isinstance(event, Lost)
        return replace(gang, trying=None, tried=(*gang.tried, trying), why=event.why or gang.why, doubted=doubted)
    if isinstance(event, Lost):
        kept = tuple(each for each in gang.held if each.partition != event.partition)
        return gang if kept == gang.held else replace(gang, held=kept, why=event.why or gang.why, doubted=True)
    return gang


def _go_on(gang: Gang, now: float, choices: Callable[[str], Choices]) -> Found:
    pending = gang.pending
    if pending is None:
        started: list[Effect] = [Start(tuple(each.partition for each in gang.held))]
        return replace(gang, stage=Stage.STARTED, until=None), started
    options = choices(pending.name)
    if not options.matches:
        never = options.never()
        why = never or options.why or gang.why
        return _over(replace(gang, why=why), now, is_hopeless=True, is_final=bool(never))
    if options.is_costly and (never := options.never()):
        return _over(replace(gang, why=never), now, is_hopeless=False, is_final=True)
    for rule in options.rules:
        for match in options.matches:
            chosen = RoomAttempt(pending.name, rule, match)
            if chosen not in gang.tried:
                return replace(gang, trying=chosen), [chosen]
    never = options.never()
    return _over(replace(gang, why=never or gang.why), now, is_hopeless=False, is_final=bool(never))


def _over(gang: Gang, now: float, *, is_hopeless: bool, is_final: bool = False) -> Found:
    """End a pass in which a partition has found no room.

    :param is_hopeless: whether there was no match at all, in which case all held room is given back
    :param is_final: whether there can never be room, so that no further pass follows
    """
    pending = gang.pending
    assert pending is not None
    if gang.partial and not is_hopeless and len(gang.partitions) > 1:
        return _parted(gang, pending, now, is_final=is_final)
    gang = replace(gang, held=(), tried=(), until=None)
    pause = None if is_final else gang.attempts.pause(gang.attempt)
    if pause is None:
        names = tuple(each.name for each in gang.partitions)
        return replace(gang, stage=Stage.FAILED), [Fail(names, _failure(gang, is_final=is_final))]
    return asleep(gang, now, pause), [Sleep(gang.roots, gang.wake_at or now + pause)]


def _dated_by(gang: Gang, now: float) -> Gang:
    """Limit the gang's times by the current clock: no sleep and no pass ends later than one that starts now.

    A controller on another machine, whose clock may have been ahead, could have set them.
    """
    pause = gang.attempts.pause(gang.attempt)
    wake_at = gang.wake_at if gang.wake_at is None or pause is None else min(gang.wake_at, now + pause)
    until = None if gang.until is None else min(gang.until, now + gang.attempts.timeout)
    look_at = min(gang.look_at, now + SECONDS_UNTIL_LOOKED_AGAIN)
    if (wake_at, until, look_at) == (gang.wake_at, gang.until, gang.look_at):
        return gang
    return replace(gang, wake_at=wake_at, until=until, look_at=look_at)


def asleep(gang: Gang, now: float, pause: float) -> Gang:
    """Put a gang to sleep until its next pass; an extra pass in between does not postpone that.

    If the room that seemed free was not, the gang is not tried again for a minute. Otherwise it would be tried in vain
    in every tick.
    """
    look_at = now + SECONDS_UNTIL_LOOKED_AGAIN if gang.doubted else 0.0
    wake_at = now + pause if gang.wake_at is None else gang.wake_at
    return replace(gang, stage=Stage.ATTEMPTED, wake_at=wake_at, look_at=look_at)


def _failure(gang: Gang, *, is_final: bool) -> Reason:
    """Why a gang has failed: there can never be room, or its last attempt failed."""
    if is_final and gang.why is not None:
        return gang.why
    return _with_last(because("gang_out_of_attempts", attempts=gang.attempt), gang)


def _with_last(reason: Reason, gang: Gang) -> Reason:
    return reason if gang.why is None else reason.with_also(gang.why)


def _parted(gang: Gang, pending: Partition, now: float, *, is_final: bool) -> Found:
    """Partitions with room start, the one without sleeps, and the others are placed individually."""
    held = tuple(each.partition for each in gang.held)
    others = tuple(each.name for each in gang.partitions if each.name not in (*held, pending.name))
    effects: list[Effect] = [Start(held)] if held else []
    pause = None if is_final else gang.attempts.pause(gang.attempt)
    if pause is None:
        effects.append(Fail((pending.name,), _failure(gang, is_final=is_final)))
    else:
        effects.append(Sleep((pending.name,), now + pause))
    if others:
        effects.append(Alone(others))
    return replace(gang, stage=Stage.STARTED, tried=(), until=None), effects
