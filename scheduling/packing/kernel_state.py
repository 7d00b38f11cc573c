"""What the inner loop of insertion (:mod:`kernel`) works on, and how it is compiled.

Where Numba is installed (the extra ``fast``) the loop is compiled, at its first use, and some thirty times as quick.
Without it the same code runs on lists, with the same result for the same number of jobs that are put back. So it has
loops alone, and numbers that are the same in both: amounts are whole numbers below 2 ** 53, exact as floats, and chance
is a generator of its own (xorshift: Marsaglia, Journal of Statistical Software 8, 2003).
"""

from __future__ import annotations

import glob
import pickle
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

NUMBA: Any = import_module("numba") if find_spec("numba") else None
F = TypeVar("F", bound=Callable[..., Any])
# A sequence of numbers: an array where this is compiled, else a list.
Numbers = Any
WORD = 0xFFFFFFFF
EPSILON = 1e-9
COMPILED = NUMBA is not None


def loop(function: F) -> F:
    """Compile a function where that is possible.

    What was compiled is kept beside the module or in the user's cache folder, so that only the first use takes seconds;
    where neither can be written to, every process compiles again.
    """
    if not COMPILED:
        return function
    try:
        compiled = NUMBA.njit(cache=True, error_model="numpy")(function)
        _drop_unreadable(
            Path(compiled.stats.cache_path), f"{function.__module__.rpartition('.')[2]}.{function.__name__}-"
        )
    except (RuntimeError, OSError):  # no folder to keep it in, or one with files of another user
        compiled = NUMBA.njit(error_model="numpy")(function)
    return cast(F, compiled)


def _drop_unreadable(folder: Path, prefix: str) -> None:
    """Remove the indexes of a cache that Numba could not read.

    Numba unpickles all of an index before it asks whether that is of the same source, so one that another version of
    Lading has left, with a class that is called otherwise now, would raise at every call.
    """
    for index in folder.glob(f"{glob.escape(prefix)}*.nbi"):
        try:
            with index.open("rb") as lines:
                if pickle.load(lines) == NUMBA.__version__:
                    pickle.load(lines)
        except FileNotFoundError:
            continue  # another process has removed it
        except Exception:
            index.unlink(missing_ok=True)


@loop
def drawn(chance: int) -> int:
    """The next of numbers from 1 to 2 ** 32 - 1, as if by chance."""
    chance ^= (chance << 13) & WORD
    chance ^= chance >> 17
    chance ^= (chance << 5) & WORD
    return chance


def ints(values: Any) -> Numbers:
    """Whole numbers in the form that is quickest here."""
    array = np.array(values, np.int64).ravel()
    return array if COMPILED else array.tolist()


def floats(values: Any) -> Numbers:
    """Numbers in the form that is quickest here."""
    array = np.array(values, np.float64).ravel()
    return array if COMPILED else array.tolist()


class KernelOffers(NamedTuple):
    """What can be bought: t types, the cheapest first, for w kinds of wishes that are alike.

    :param capacity: of each resource, type by type (t × r)
    :param granted: 1 where a type grants a kind, kind by kind (w × t)
    :param both: the kind of two kinds together, or -1 (w × w)
    :param nothing: 0, where counting begins, and ``none``, -1: they are given, since Numba compiles a function once
        more for each constant that it is called with
    """

    resources: int
    types: int
    kinds: int
    price: Numbers
    capacity: Numbers
    granted: Numbers
    both: Numbers
    nothing: int = 0
    none: int = -1


class KernelJobs(NamedTuple):
    """n jobs.

    :param need: job by job (n × r)
    :param worth: USD per hour
    :param kind: of the wishes
    :param after: the job that came to the same machine before, or -1
    :param home: its machine, or -1
    """

    need: Numbers
    worth: Numbers
    kind: Numbers
    after: Numbers
    home: Numbers


class KernelMachines(NamedTuple):
    """Machines, of which those without a type are empty, and what they were before the present round.

    :param first: the job that came last, or -1
    :param type: -1: empty
    :param held: what the jobs are worth
    :param marked: the round in which it was changed last
    """

    first: Numbers
    load: Numbers
    kind: Numbers
    type: Numbers
    held: Numbers
    marked: Numbers
    load_before: Numbers
    kind_before: Numbers
    type_before: Numbers
    held_before: Numbers


class RoundState(NamedTuple):
    """What a round is worked out on.

    :param off: jobs that were taken off
    :param origin: where from
    :param key: by which they are put back, the largest first
    :param among: machines that are looked at
    :param changed: machines that were changed
    """

    off: Numbers
    origin: Numbers
    key: Numbers
    among: Numbers
    changed: Numbers


class SearchTerms(NamedTuple):
    """How it is searched.

    :param gathered: how much it is worth at first that what is left is left on few machines, in parts of its price
    :param gathered_until: the part of the search until which that falls to nothing
    :param threshold: how much dearer a round may make it at first, in parts of a machine's mean price
    :param threshold_until: as before
    :param part: the part of the machines on which jobs are put back, another one in each round
    :param looked_at: so many machines at most are that part; more of them cost more time than they save
    :param noise: by how much the order of the jobs differs from that of their worth
    :param most: so many machines at most are taken apart at once
    :param choice: each is the one that loses most of so many
    :param some: the part of a machine's jobs that stay, in every other round
    """

    gathered: float
    gathered_until: float
    threshold: float
    threshold_until: float
    part: float
    looked_at: float
    noise: float
    most: int
    choice: int
    some: float


WAY = SearchTerms(
    gathered=1.5,
    gathered_until=0.9,
    threshold=0.05,
    threshold_until=0.85,
    part=0.1,
    looked_at=50.0,
    noise=0.4,
    most=3,
    choice=3,
    some=0.5,
)


class Progress(NamedTuple):
    """How far a search is.

    :param chance: see :func:`drawn`
    :param turn: rounds so far
    :param done: jobs that were put back
    :param top: machines from this one on were never used
    :param cost: USD per hour
    :param least: the least so far
    """

    chance: int
    turn: int
    done: int
    top: int
    cost: float
    least: float


@loop
def looked_at(
    machines: KernelMachines, round_state: RoundState, way: SearchTerms, up: int, changed: int, turn: int, chance: int
) -> tuple[int, int]:
    """Choose the machines on which jobs are put back, some and those that this round has changed: how many, chance.

    :param up: so many machines were not empty, the first ones of its arrays, where the chosen ones are then
    """
    few = 0
    if way.part * up <= way.looked_at:
        for i in range(up):
            machine = round_state.among[i]
            chance = drawn(chance)
            if machines.type[machine] >= 0 and (machines.marked[machine] == turn or chance < way.part * WORD):
                round_state.among[few] = machine
                few += 1
        return few, chance
    # One of each stride: to ask chance about each of thousands takes longer than all the rest.
    stride = up / way.looked_at
    for i in range(int(way.looked_at)):
        chance = drawn(chance)
        machine = round_state.among[int((i + chance / (WORD + 1)) * stride)]
        if machines.marked[machine] != turn:
            round_state.among[few] = machine
            few += 1
    for i in range(changed):
        machine = round_state.changed[i]
        if machines.type[machine] >= 0:
            round_state.among[few] = machine
            few += 1
    return few, chance


@loop
def sort(round_state: RoundState, number: int) -> None:
    """Order the jobs that are off, the largest key first."""
    for i in range(1, number):
        key, job, origin = round_state.key[i], round_state.off[i], round_state.origin[i]
        j = i - 1
        while j >= 0 and round_state.key[j] < key:
            round_state.key[j + 1], round_state.off[j + 1], round_state.origin[j + 1] = (
                round_state.key[j],
                round_state.off[j],
                round_state.origin[j],
            )
            j -= 1
        round_state.key[j + 1], round_state.off[j + 1], round_state.origin[j + 1] = key, job, origin
