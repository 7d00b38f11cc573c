"""Fit what the next try of a task needs to what earlier tries used and to the size of their inputs. Pure.

The fit is an envelope: a constant, or a line over the input size, above which only a small fraction of the tries lies,
plus a margin. Of all such lines it takes the one with the least expected waste. A try with too much wastes the
difference for as long as it runs; one with too little wastes everything it had, and is repeated. The best line that
leaves no try above it touches two adjacent corners of the upper hull of all tries, so it suffices to compare the slopes
of the hull's edges.

The margin follows from the tail of the residuals, which is assumed to be exponential: the next try exceeds the largest
of n tries with a probability of about 1 / n, and does so by more than m with exp(-m / scale) of that. So the margin
shrinks with the number of tries, and vanishes if all tries need the same.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

# The fraction of tries that are allowed to fall short: beyond it, repetitions cost more than smaller requests save.
MOST_SHORT = 0.0125
# Measurements vary by this fraction from one try to the next.
NOISE = 0.002


class Point(NamedTuple):
    """What one try needed.

    :param size: bytes of its inputs; None: unknown
    :param value: the amount that it used
    :param seconds: how long it ran
    """

    size: float | None
    value: float
    seconds: float


@dataclass(frozen=True, slots=True)
class FittedNeed:
    """What the next try of a task needs.

    :param constant: the amount for any input
    :param base: the value of the line at input size 0
    :param slope: the amount per byte; 0: inputs do not explain the need
    :param least: the lower bound of the line, the least that any try used
    :param farthest: the input size at which the line ends, bytes
    :param largest: the most that any try used, with the smallest margin
    :param tries: how many successful tries it is based on
    """

    constant: float
    base: float = 0.0
    slope: float = 0.0
    least: float = 0.0
    farthest: float = 0.0
    largest: float = 0.0
    tries: int = 0

    def at(self, size: float | None) -> float:
        """The amount for inputs of this many bytes; None: their size is unknown."""
        if size is None or not self.slope:
            return self.constant
        return max(self.base + self.slope * min(size, self.farthest), self.least)

    def after(self, too_little: float) -> float:
        """The amount for a try that repeats one with too little."""
        # Five percent are added because something about the try that fell short is new.
        return self.largest * 1.05 if too_little < self.largest else 2 * too_little

    def raised(self, size: float | None, amount: float) -> FittedNeed:
        """The same need with at least this amount for inputs of a size; the line rises in proportion."""
        factor = max(1.0, amount / self.at(size))
        line = {name: factor * getattr(self, name) for name in ("base", "slope", "least")}
        return replace(self, constant=max(self.constant, amount), **line)


def fit(
    points: Sequence[Point],
    number: int,
    *,
    bounds: Iterable[Point] = (),
    small: float = 0.0,
    most_short: float = MOST_SHORT,
) -> FittedNeed | None:
    """Fit the need of the next try to the usage of earlier tries; None: nothing is known.

    :param points: the successful tries, or a sample that includes the largest
    :param number: how many tries these stand for
    :param bounds: tries that failed with too little, or might have needed more; they only raise the fit
    :param small: the largest absolute margin for small amounts
    :param most_short: the fraction of tries that are allowed to need more
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
    # With fewer than five tries, two of them can produce any slope.
    if len(sized) < max(5, len(points) / 2):
        return flat
    line = _lines(sized, [each for each in floors if each.size is not None], number, most_short, [0.0, *_slopes(sized)])
    sizes, values = [each.size or 0.0 for each in sized], [each.value for each in sized]
    # A line ends at twice the largest input seen: nothing is known beyond. If a try failed there, the line does not
    # describe such inputs.
    end = 2.0 * max(sizes)
    if not line.slope or any((each.size or 0.0) > end for each in floors):
        return flat
    padding = _padding(line.amount, small)
    least = min(values) + padding
    return replace(flat, base=line.base + padding, slope=line.slope, least=least, farthest=end)


class _Line(NamedTuple):
    """A line over the input size.

    :param cost: per second of a try with inputs of mean size, in amounts: its request, plus the fraction of tries that
        fall short and are repeated
    :param amount: its request then
    """

    cost: float
    amount: float
    base: float
    slope: float


def _lines(
    points: Sequence[Point], floors: Sequence[Point], number: int, most_short: float, slopes: Iterable[float]
) -> _Line:
    weight = sum(each.seconds for each in points)
    mean = sum((each.size or 0.0) * (each.seconds if weight else 1.0) for each in points) / (weight or len(points))
    return min(
        line for slope in slopes for line in _with_slope(points, floors, number, most_short, slope, slope * mean)
    )


def _with_slope(
    points: Sequence[Point], floors: Sequence[Point], number: int, most_short: float, slope: float, rise: float
) -> Iterable[_Line]:
    """Yield the lines of a slope that leave 0, 1, 2 ... tries above them.

    :param rise: of the line between inputs of size 0 and of mean size
    """
    above = sorted((each.value - slope * (each.size or 0.0) for each in points), reverse=True)
    floor = max((each.value * (1 + NOISE) - slope * (each.size or 0.0) for each in floors), default=-math.inf)
    tail = max(1, len(above) // 3)
    # A line is fixed by two tries, a constant by one.
    independent = number - (1 if slope else 0)
    for left_out in range(min(1 + int(most_short * number), len(above))):
        amount = above[left_out] + rise
        end = left_out + tail
        scale = sum(above[left_out:end]) / tail - above[end] if end < len(above) else 0.0
        # A single try is raised by 15 percent; the margin shrinks with the square of the number of tries.
        margin = NOISE * amount + 0.15 * amount / number**2
        if scale > 0 and amount > 0:
            # If the spread is small, so is the benefit of allowing one more short try.
            share = min(most_short, scale / amount)
            margin += scale * max(0.0, math.log((left_out + 1) / (independent * share)))
        base = max(above[left_out] + margin, floor)
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
            hull.pop()  # the lower point
        while len(hull) > 1 and (hull[-1][0] - hull[-2][0]) * (y - hull[-2][1]) >= (hull[-1][1] - hull[-2][1]) * (
            x - hull[-2][0]
        ):
            hull.pop()
        hull.append((x, y))
    return hull


def _padding(amount: float, small: float) -> float:
    # A small addition costs little and saves small tasks most repetitions.
    return min(small, 0.015 * amount)
