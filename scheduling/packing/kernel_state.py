"""The data of insertion's inner loop (:mod:`kernel`), and its compilation.

If Numba is installed (the extra ``fast``) the loop is compiled at its first use and runs some thirty times as fast.
Without it the same code runs on lists, with the same result for the same number of placed jobs. So the code consists
only of loops over numbers that are equal in both: amounts are integers below 2 ** 53, which floats represent exactly,
and randomness comes from a generator of its own (xorshift: Marsaglia, Journal of Statistical Software 8, 2003).
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
# A sequence of numbers: an array if the code is compiled, else a list.
Numbers = Any
WORD = 0xFFFFFFFF
EPSILON = 1e-9
COMPILED = NUMBA is not None


def loop(function: F) -> F:
    """Compile a function if Numba is installed.

    Compiled code is cached next to the module or in the user's cache folder, so that only the first use takes seconds.
    If neither is writable, every process compiles again.
    """
    if not COMPILED:
        return function
    try:
        compiled = NUMBA.njit(cache=True, error_model="numpy")(function)
        _drop_unreadable(
            Path(compiled.stats.cache_path), f"{function.__module__.rpartition('.')[2]}.{function.__name__}-"
        )
    except (RuntimeError, OSError):  # no writable cache folder, or one with another user's files
        compiled = NUMBA.njit(error_model="numpy")(function)
    return cast(F, compiled)


def _drop_unreadable(folder: Path, prefix: str) -> None:
    """Remove the cache indexes that Numba cannot read.

    Numba unpickles a whole index before it checks whether the index belongs to the same source. An index left by
    another version of Lading, with a class that has been renamed since, would therefore raise at every call.
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
    """Return the next pseudo-random number, from 1 to 2 ** 32 - 1."""
    chance ^= (chance << 13) & WORD
    chance ^= chance >> 17
    chance ^= (chance << 5) & WORD
    return chance


def ints(values: Any) -> Numbers:
    """Convert to the form that is fastest here: an array with Numba, else a list."""
    array = np.array(values, np.int64).ravel()
    return array if COMPILED else array.tolist()


def floats(values: Any) -> Numbers:
    array = np.array(values, np.float64).ravel()
    return array if COMPILED else array.tolist()


class KernelOffers(NamedTuple):
    """What can be bought: t types, the cheapest first, for w kinds of wishes.

    :param capacity: of each resource, type by type (t × r)
    :param granted: 1 where a type grants a kind, kind by kind (w × t)
    :param both: the kind of two kinds together, or -1 (w × w)
    :param nothing: 0, the start of counting. It and ``none`` (-1) are passed as values, because Numba compiles a
        function again for each constant it is called with
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
    :param kind: the kind of the job's wishes
    :param after: the job that was put on the same machine before it, or -1
    :param home: its machine, or -1
    """

    need: Numbers
    worth: Numbers
    kind: Numbers
    after: Numbers
    home: Numbers


class KernelMachines(NamedTuple):
    """Machines, and their state before the present round.

    :param first: the job that was put on it last, or -1
    :param type: -1: the machine is empty
    :param held: worth of its jobs
    :param marked: the round in which it was last changed
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
    """The working memory of a round.

    :param off: jobs that were taken off
    :param origin: the machine each was taken from
    :param key: sort key by which they are placed again, the largest first
    :param among: machines on which they are tried
    :param changed: machines that were changed
    """

    off: Numbers
    origin: Numbers
    key: Numbers
    among: Numbers
    changed: Numbers


class SearchTerms(NamedTuple):
    """The parameters of the search.

    :param gathered: initial weight of gathering waste on few machines, relative to its price
    :param gathered_until: fraction of the search after which that weight is zero
    :param threshold: how much a round can initially add to the cost, relative to a machine's mean price
    :param threshold_until: fraction of the search after which that threshold is zero
    :param part: fraction of the machines on which jobs are tried again, chosen anew in each round
    :param looked_at: upper limit on the number of those machines; more would cost more time than they save
    :param noise: how far the order of the jobs deviates from the order of their worth
    :param most: upper limit on the number of machines emptied in one round
    :param choice: each emptied machine is the most wasteful of this many random ones
    :param some: fraction of a machine's jobs that stay, in half of the rounds
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
    """The state of a search.

    :param chance: random state, see :func:`drawn`
    :param turn: rounds so far
    :param done: jobs placed so far
    :param top: machines from this one on have never been used
    :param cost: USD per hour now
    :param least: lowest USD per hour so far
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
    """Choose the machines on which jobs are tried: a sample, and those that this round has changed.

    Return how many, and the new random state. The chosen machines come first in ``round_state.among``.

    :param up: how many machines were not empty at the start; they come first in ``round_state.among``
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
    # One machine of each stride: drawing a number for each of thousands would take longer than everything else.
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
    """Order the jobs taken off, the largest key first."""
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
