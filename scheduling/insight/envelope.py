"""Fit what the next try of a task needs to what earlier tries used and to the size of their inputs. Pure.

The fit is an envelope: the constant, or the line over the input size, above which only a small part of the tries lies,
plus a margin. Of all such lines it takes the one that is expected to waste least. A try that gets too much wastes the
difference for as long as it runs; one that gets too little wastes all that it had and is repeated. The best line that
leaves no try above it touches two neighbouring corners of the upper hull of all tries, so it is enough to compare the
slopes of the hull's edges.

The margin follows from the tail of the residuals, which is taken to be exponential: the next try exceeds the
largest of n tries with a probability of about 1 / n, and by more than m with exp(-m / scale) of that. So the margin
shrinks with the number of tries, and vanishes where all tries need the same.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

# The part of the tries that may fall short: more cost more in repetitions than they save.
MOST_SHORT = 0.0125
# With fewer tries two of them make any slope.
FEWEST_FOR_A_LINE = 5
# Added to what a single try used, as a part of it; divided by the square of the number of tries.
LONE_MARGIN = 0.15
# Measurements vary by this part from one try to the next.
NOISE = 0.002
# Added besides, as a part, up to an absolute amount: it costs little and saves small tasks most repetitions.
SMALL_MARGIN = 0.015
# Added to the most that a try used, for one that repeats a try which fell short: there is something new about it.
AGAIN_MARGIN = 0.05
# A line ends at this many times the largest input seen: nothing is known beyond.
FARTHEST = 2.0


class Point(NamedTuple):
    """What one try needed.

    :param size: bytes of its inputs; None: not known
    :param value: the amount that it used
    :param seconds: how long it ran
    """

    size: float | None
    value: float
    seconds: float


@dataclass(frozen=True, slots=True)
class FittedNeed:
    """What the next try of a task needs.

    :param constant: whatever its inputs are
    :param base: of the line over the size of inputs
    :param slope: amount per byte; 0: inputs do not explain what is needed
    :param least: the line never asks for less, which is the least that any try used
    :param farthest: the line ends at inputs of so many bytes
    :param largest: the most that any try used, with the least margin
    :param tries: how many of the tries that ended well tell of it
    """

    constant: float
    base: float = 0.0
    slope: float = 0.0
    least: float = 0.0
    farthest: float = 0.0
    largest: float = 0.0
    tries: int = 0

    def at(self, size: float | None) -> float:
        """The amount for inputs of so many bytes; None: their size is not known."""
        if size is None or not self.slope:
            return self.constant
        return max(self.base + self.slope * min(size, self.farthest), self.least)

    def after(self, too_little: float) -> float:
        """The amount for a try that repeats one which had too little."""
        return self.largest * (1 + AGAIN_MARGIN) if too_little < self.largest else 2 * too_little


def fit(
    points: Sequence[Point],
    number: int,
    *,
    bounds: Iterable[Point] = (),
    small: float = 0.0,
    most_short: float = MOST_SHORT,
) -> FittedNeed | None:
    """Fit what the next try needs to what earlier tries used; None: nothing is known.

    :param points: the tries that ended well, or a sample that has the largest of them
    :param number: how many tries these stand for
    :param bounds: tries that failed with too little or might have needed more; they only raise the fit
    :param small: the largest absolute margin of small amounts
    :param most_short: the part of the tries that may need more
    """
    floors = list(bounds)
    if not points:
        # Each of the failed tries needed more than it had.
        largest = max((each.value for each in floors), default=0.0)
        return FittedNeed(2 * largest, largest=largest) if largest else None
    largest = max(each.value for each in points) * (1 + NOISE)
    constant = _lines(points, floors, number, most_short, [0.0])
    flat = FittedNeed(constant.base + _padding(constant.base, small), largest=largest, tries=len(points))
    sized = [each for each in points if each.size is not None]
    if len(sized) < max(FEWEST_FOR_A_LINE, len(points) / 2):
        return flat
    line = _lines(sized, [each for each in floors if each.size is not None], number, most_short, [0.0, *_slopes(sized)])
    sizes, values = [each.size or 0.0 for each in sized], [each.value for each in sized]
    # Where a try failed beyond the end of the line, that says nothing of what such inputs need.
    if not line.slope or any((each.size or 0.0) > FARTHEST * max(sizes) for each in floors):
        return flat
    padding = _padding(line.amount, small)
    least, farthest = min(values) + padding, FARTHEST * max(sizes)
    return replace(flat, base=line.base + padding, slope=line.slope, least=least, farthest=farthest)


class _Line(NamedTuple):
    """A line over the size of inputs.

    :param cost: of a second of a try with inputs of mean size, in amounts: what it asks for, and the part of the tries
        that fall short, which are repeated
    :param amount: that it asks for then
    """

    cost: float
    amount: float
    base: float
    slope: float


def _lines(
    points: Sequence[Point], floors: Sequence[Point], number: int, most_short: float, slopes: Iterable[float]
) -> _Line:
    """Return the line of least cost."""
    weight = sum(each.seconds for each in points)
    mean = sum((each.size or 0.0) * (each.seconds if weight else 1.0) for each in points) / (weight or len(points))
    return min(
        line for slope in slopes for line in _with_slope(points, floors, number, most_short, slope, slope * mean)
    )


def _with_slope(
    points: Sequence[Point], floors: Sequence[Point], number: int, most_short: float, slope: float, rise: float
) -> Iterable[_Line]:
    """Yield the lines of a slope that leave none, one, two ... of the tries above them.

    :param rise: of the line up to inputs of mean size
    """
    above = sorted((each.value - slope * (each.size or 0.0) for each in points), reverse=True)
    floor = max((each.value - slope * (each.size or 0.0) for each in floors), default=-math.inf)
    tail = max(1, len(above) // 3)
    # A line rests on two tries, a constant on one.
    independent = number - (1 if slope else 0)
    for left_out in range(min(1 + int(most_short * number), len(above))):
        amount = above[left_out] + rise
        end = left_out + tail
        scale = sum(above[left_out:end]) / tail - above[end] if end < len(above) else 0.0
        margin = NOISE * amount + LONE_MARGIN * amount / number**2
        if scale > 0 and amount > 0:
            # Where the spread is small, so is what one more short try is worth.
            share = min(most_short, scale / amount)
            margin += scale * max(0.0, math.log((left_out + 1) / (independent * share)))
        base = max(above[left_out] + margin, floor * (1 + NOISE) if floor > 0 else floor)
        repeated = sum(each + rise for each in above[:left_out]) / len(above)
        yield _Line(base + rise + repeated, base + rise, base, slope)


def _slopes(points: Sequence[Point]) -> Iterable[float]:
    """Yield the rising slopes of the edges of the upper hull."""
    hull = upper_hull([(each.size or 0.0, each.value) for each in points])
    for (x, y), (next_x, next_y) in itertools.pairwise(hull):
        if next_y > y:
            yield (next_y - y) / (next_x - x)


def upper_hull(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the corners of the upper convex hull, from left to right.

    Andrew, Another efficient algorithm for convex hulls in two dimensions, 1979.
    """
    hull: list[tuple[float, float]] = []
    for x, y in sorted(points):
        if hull and hull[-1][0] == x:
            hull.pop()  # it is lower
        while len(hull) > 1 and (hull[-1][0] - hull[-2][0]) * (y - hull[-2][1]) >= (hull[-1][1] - hull[-2][1]) * (
            x - hull[-2][0]
        ):
            hull.pop()
        hull.append((x, y))
    return hull


def _padding(amount: float, small: float) -> float:
    return min(small, SMALL_MARGIN * amount)
