"""Scatter as in CWL v1.2: from lists of inputs to jobs, and from the jobs' outputs to the shape of the result.

The methods are those of the Common Workflow Language. ``dotproduct`` takes the first element of every input, then the
second, and so on; the crossproducts combine every element with every other, the first input varying slowest. A nested
crossproduct nests the outputs one level per input, a flat one does not. Pure and lazy: combinations are only computed
when they are used.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

DOTPRODUCT = "dotproduct"
FLAT_CROSSPRODUCT = "flat_crossproduct"
NESTED_CROSSPRODUCT = "nested_crossproduct"
METHODS = (DOTPRODUCT, FLAT_CROSSPRODUCT, NESTED_CROSSPRODUCT)


class ScatterError(ValueError):
    """A scatter that is not possible. The message names the inputs or the method, and the valid ones."""


class ScatterJobs(Sequence[dict[str, Any]]):
    """The inputs of every job in order, each ``{name: value}``, computed on use.

    :param columns: the elements of each input
    :param dotproduct: whether elements are paired rather than combined
    :param indexes: the indexes of the jobs, among all jobs of the scatter
    """

    __slots__ = ("_columns", "_dotproduct", "_indexes")

    def __init__(self, columns: Mapping[str, Sequence[Any]], dotproduct: bool, indexes: range) -> None:
        self._columns = columns
        self._dotproduct = dotproduct
        self._indexes = indexes

    def __len__(self) -> int:
        return len(self._indexes)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> ScatterJobs: ...

    def __getitem__(self, index: int | slice) -> dict[str, Any] | ScatterJobs:
        if isinstance(index, slice):
            return ScatterJobs(self._columns, self._dotproduct, self._indexes[index])
        try:
            return self._job(self._indexes[index])
        except IndexError:
            raise IndexError(f"there is no job {index}: there are {len(self)}") from None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self._indexes != range(_count([len(column) for column in self._columns.values()], self._dotproduct)):
            return map(self._job, self._indexes)
        combine = zip if self._dotproduct else itertools.product
        names = tuple(self._columns)
        return (dict(zip(names, values, strict=True)) for values in combine(*self._columns.values()))

    def __repr__(self) -> str:
        return f"<{len(self)} jobs scattered over {', '.join(self._columns)}>"

    def _job(self, index: int) -> dict[str, Any]:
        if self._dotproduct:
            return {name: column[index] for name, column in self._columns.items()}
        digits = []
        for column in reversed(list(self._columns.values())):  # the last input is the fastest
            index, digit = divmod(index, len(column))
            digits.append(digit)
        return {
            name: column[digit] for (name, column), digit in zip(self._columns.items(), reversed(digits), strict=True)
        }


def expand(method: str | None, inputs: Mapping[str, object]) -> ScatterJobs:
    """Return the inputs of every job, in the order of the jobs, as a lazy sequence of ``{name: value}``.

    :param method: one of :data:`METHODS`; None is allowed for exactly one input
    :param inputs: by name, in scatter order, a list, tuple or other sequence of any values, or a mapping, whose
        elements are its (key, value) pairs; never text
    :raises ScatterError: no input, no method or an unknown one, an input that is not a list, or unequal lengths for a
        dotproduct
    """
    check_method(method, inputs)
    columns = {name: elements(name, value) for name, value in inputs.items()}
    count = job_count(method, {name: len(column) for name, column in columns.items()})
    return ScatterJobs(columns, _is_dotproduct(method), range(count))


def gather(method: str | None, lengths: Mapping[str, int], outputs: Sequence[Any]) -> Sequence[Any]:
    """Return the outputs of all jobs in the shape of the method.

    The innermost lists are slices of ``outputs``: nothing of a lazy sequence is read here.

    :param method: as for :func:`expand`
    :param lengths: by name, in scatter order, how many elements each input has
    :param outputs: one per job, in the order of the jobs
    :raises ScatterError: as for :func:`expand`, or the number of outputs is wrong
    """
    check_method(method, lengths)
    count = job_count(method, lengths)
    if len(outputs) != count:
        raise ScatterError(f"there are {len(outputs)} outputs, but {_sizes(lengths)} make {count} jobs")
    flat = list(outputs) if isinstance(outputs, tuple) else outputs
    if method != NESTED_CROSSPRODUCT:
        return flat[:]
    return _nest(list(lengths.values()), flat)


def check_method(method: str | None, inputs: Mapping[str, object]) -> None:
    """Check the method before the elements are known.

    :raises ScatterError: no input, no method or an unknown one
    """
    if not inputs:
        raise ScatterError("there is nothing to scatter over; valid: at least one input, such as sample=[...]")
    if method is None and len(inputs) > 1:
        names = ", ".join(map(str, inputs))
        raise ScatterError(f"scatter over {names} needs a method; valid: {', '.join(METHODS)}")
    if method is not None and method not in METHODS:
        raise ScatterError(f"method {method!r} is unknown; valid: {', '.join(METHODS)}")


def elements(name: str, value: object) -> Sequence[Any]:
    """Return the elements of one input.

    :raises ScatterError: the input is not a list
    """
    if isinstance(value, Mapping):
        return tuple(value.items())
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray, memoryview)):
        return value
    raise not_a_list(name, value)


def not_a_list(name: str, value: object) -> ScatterError:
    shown = repr(value)
    if len(shown) > 80:
        shown = f"{shown[:77]}..."
    return ScatterError(
        f"input {name} is {shown}, of type {type(value).__name__}; valid: a list, a tuple, or a dict, "
        "whose elements are its key-value pairs"
    )


def job_count(method: str | None, lengths: Mapping[str, int]) -> int:
    """Return the number of jobs.

    :raises ScatterError: unequal lengths for a dotproduct, or too many jobs
    """
    for name, length in lengths.items():
        if isinstance(length, bool) or not isinstance(length, int) or length < 0:
            raise ScatterError(f"the length of input {name} is {length!r}; valid: a whole number, 0 or more")
    sizes = list(lengths.values())
    if method == DOTPRODUCT and len(set(sizes)) > 1:
        raise ScatterError(f"a dotproduct needs inputs of equal length, but {_sizes(lengths)}")
    count = _count(sizes, _is_dotproduct(method))
    if count > sys.maxsize:
        raise ScatterError(f"{_sizes(lengths)} make {count} jobs, which is too many")
    return count


def _is_dotproduct(method: str | None) -> bool:
    return method in (None, DOTPRODUCT)


def _count(sizes: Sequence[int], dotproduct: bool) -> int:
    return sizes[0] if dotproduct else math.prod(sizes)


def _sizes(lengths: Mapping[str, int]) -> str:
    """The lengths as text: ``sample has 3 elements, region has 1``."""
    parts = [f"{name} has {length}" for name, length in lengths.items()]
    parts[0] += " element" if next(iter(lengths.values())) == 1 else " elements"
    return ", ".join(parts)


def _nest(sizes: Sequence[int], outputs: Sequence[Any]) -> Sequence[Any]:
    """One level of lists per size; an empty list for a size of 0."""
    if len(sizes) == 1:
        return outputs[:]
    below = math.prod(sizes[1:])
    return [_nest(sizes[1:], outputs[row * below : (row + 1) * below]) for row in range(sizes[0])]
