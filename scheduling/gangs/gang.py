"""A gang, and the pass that finds room for it: a state machine. Pure: what sites answer are events, what is to be done
are effects.

The partitions of a gang are tried one after the other: at each of its matches, then at each of them by each rule that
asks for less. What is held stays held until all are; then they start. The pass ends at the first partition that has
found no room anywhere. Room that the gang does not have in ``held`` or ``trying`` any more is given back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple, TypeAlias

from lading.scheduling.hints.gang_hints import AttemptSchedule
from lading.scheduling.reasons import Reason, because

# The rule by which a partition is tried first: exactly what it asks for.
NO_RULE = ""
# A gang whose last pass has failed over more than room is tried again after so long, if there is room, seconds.
SECONDS_UNTIL_LOOKED_AGAIN = 60.0


class Stage(str, Enum):
    """Where a gang is on its way."""

    GATHERING = "gathering"
    """Not all of its members are there."""
    TRYING = "trying"
    """A pass looks for room."""
    ATTEMPTED = "attempted"
    """The last pass has failed, and it sleeps until the next."""
    STARTED = "started"
    """All of its partitions have room, and begin."""
    FAILED = "failed"
    """The last attempt has failed."""


class Partition(NamedTuple):
    """The members of a gang that are alike.

    :param name: their task
    :param after: the partitions of the gang that come before it; none: it is a root
    """

    name: str
    after: frozenset[str] = frozenset()


class RoomAttempt(NamedTuple):
    """An attempt to find room for a partition.

    :param rule: what it asks for less of; empty: nothing
    :param match: where
    """

    partition: str
    rule: str
    match: str


class Choices(NamedTuple):
    """Where a partition may be tried, best chance first, and by which rules; the first rule is the empty one."""

    matches: Sequence[str]
    rules: Sequence[str] = (NO_RULE,)
    why: Reason | None = None
    """Why there is no match."""
    never: Callable[[], Reason | None] = lambda: None
    """Says why there can never be room; None: there may be. Asked where there is none now."""
    is_costly: bool = False
    """Whether to try it launches something, so that this is asked before."""


@dataclass(frozen=True, slots=True)
class Gang:
    """A gang.

    :param partitions: in the order in which they are tried
    :param partial: whether what has found room starts even where the others have not
    :param attempt: how many passes have begun
    :param wake_at: epoch seconds at which the next one begins, of a gang that sleeps
    :param until: epoch seconds at which the time of this pass is over
    :param trying: what is tried now
    :param tried: what this pass has tried without success of partitions that have no room yet
    :param held: what has found room
    :param why: why the last try has failed; None: none has
    :param look_at: epoch seconds from when room for all of it is a reason to try a gang that sleeps before its next
        attempt
    :param doubted: whether this pass has failed, or the last one, over more than room: what seemed free was not
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
        """The first partition without room."""
        names = {each.partition for each in self.held}
        return next((each for each in self.partitions if each.name not in names), None)

    def wakes_by_room(self, now: float) -> bool:
        """Whether room for all of it is a reason to try it before its next attempt.

        :param now: epoch seconds
        """
        return self.stage is Stage.ATTEMPTED and now >= self.look_at

    @property
    def roots(self) -> tuple[str, ...]:
        """The partitions that wait for no other one."""
        names = {each.name for each in self.partitions}
        return tuple(each.name for each in self.partitions if not each.after & names)


class Gathered(NamedTuple):
    """All members are there."""


class Freed(NamedTuple):
    """All of it has room now, at sites where nothing is launched."""


class RoomFound(NamedTuple):
    """What is tried has room."""

    partition: str


class NoRoomFound(NamedTuple):
    """What is tried has none, and why."""

    partition: str
    why: Reason | None = None


class Lost(NamedTuple):
    """What a partition had, or was tried, is not there any more."""

    partition: str
    why: Reason | None = None


Event: TypeAlias = "Gathered | Freed | RoomFound | NoRoomFound | Lost"


class Start(NamedTuple):
    """These partitions begin where they have room."""

    partitions: tuple[str, ...]


class Sleep(NamedTuple):
    """These partitions become ATTEMPTED, until then (epoch seconds)."""

    partitions: tuple[str, ...]
    until: float


class Alone(NamedTuple):
    """These partitions are tried each for itself from now on, when they are there."""

    partitions: tuple[str, ...]


class Fail(NamedTuple):
    """These partitions fail: the last attempt has failed."""

    partitions: tuple[str, ...]
    why: Reason


Effect: TypeAlias = "RoomAttempt | Start | Sleep | Alone | Fail"
Found: TypeAlias = tuple[Gang, list[Effect]]


def step(gang: Gang, events: Iterable[Event], now: float, choices: Callable[[str], Choices]) -> Found:
    """Take a gang as far as it gets by what has happened.

    :param events: those that are of no matter where the gang is now change nothing, so they may be repeated
    :param now: epoch seconds
    :param choices: where a partition may be tried; asked when it is its turn
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
        # It is no attempt of its own: the next one comes when it was to come.
        gang = replace(gang, stage=Stage.TRYING, until=now + gang.attempts.timeout, why=None, doubted=False)
    if gang.stage is not Stage.TRYING:
        return gang, []
    if gang.until is not None and now >= gang.until and gang.pending is not None:
        why = _with_last(because("gang_timeout", seconds=gang.attempts.timeout), gang)
        return _over(replace(gang, trying=None, why=why, doubted=True), now, is_hopeless=False)
    return (gang, []) if gang.trying is not None else _go_on(gang, now, choices)


def _answered(gang: Gang, event: Event) -> Gang:
    """What a site has said of a try, or of what it held."""
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
    """Try the next place, or end the pass."""
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

    :param is_hopeless: whether there was no match at all, over which everything is given back
    :param is_final: whether there can never be room, so that no further attempt follows
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
    """A gang by the clock of who decides now: no sleep and no pass ends later than one that begins now.

    It was dated by a controller of another machine, whose clock may have been ahead of this one's.
    """
    pause = gang.attempts.pause(gang.attempt)
    wake_at = gang.wake_at if gang.wake_at is None or pause is None else min(gang.wake_at, now + pause)
    until = None if gang.until is None else min(gang.until, now + gang.attempts.timeout)
    look_at = min(gang.look_at, now + SECONDS_UNTIL_LOOKED_AGAIN)
    if (wake_at, until, look_at) == (gang.wake_at, gang.until, gang.look_at):
        return gang
    return replace(gang, wake_at=wake_at, until=until, look_at=look_at)


def asleep(gang: Gang, now: float, pause: float) -> Gang:
    """A gang that sleeps until its next attempt; after a pass in between, until the one that was to come anyway.

    Where it did not get what seemed free, it looks for room again a minute later: else it would be tried without
    success in every tick.
    """
    look_at = now + SECONDS_UNTIL_LOOKED_AGAIN if gang.doubted else 0.0
    wake_at = now + pause if gang.wake_at is None else gang.wake_at
    return replace(gang, stage=Stage.ATTEMPTED, wake_at=wake_at, look_at=look_at)


def _failure(gang: Gang, *, is_final: bool) -> Reason:
    """Why a gang has failed: there can never be room, or its last attempt has failed."""
    if is_final and gang.why is not None:
        return gang.why
    return _with_last(because("gang_out_of_attempts", attempts=gang.attempt), gang)


def _with_last(reason: Reason, gang: Gang) -> Reason:
    return reason if gang.why is None else reason.with_also(gang.why)


def _parted(gang: Gang, pending: Partition, now: float, *, is_final: bool) -> Found:
    """What has room begins; the partition that has none sleeps, and the others are tried alone."""
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
