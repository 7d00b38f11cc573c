"""Scatter by the rules of CWL v1.2: https://www.commonwl.org/v1.2/Workflow.html#WorkflowStep."""

from __future__ import annotations

import itertools
import re
import time
import tracemalloc
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.scheduling.scatter import METHODS, ScatterError, expand, gather

CROSSPRODUCTS = ("flat_crossproduct", "nested_crossproduct")
columns = st.lists(st.lists(st.integers() | st.lists(st.none()), max_size=4), min_size=1, max_size=4).map(
    lambda lists: {f"input{number}": values for number, values in enumerate(lists)}
)


def by_definition(inputs: list[tuple[str, list[Any]]], given: dict[str, Any]) -> Any:
    """A nested crossproduct by definition: a scatter over the first input of a scatter over the rest."""
    if not inputs:
        return given
    (name, values), *rest = inputs
    return [by_definition(rest, {**given, name: value}) for value in values]


def flattened(value: Any, levels: int) -> list[Any]:
    for _ in range(levels):
        value = [inner for outer in value for inner in outer]
    return value


@given(columns)
def test_nested_crossproduct_by_definition(inputs: dict[str, list[Any]]) -> None:
    jobs = expand("nested_crossproduct", inputs)
    lengths = {name: len(values) for name, values in inputs.items()}
    expected = by_definition(list(inputs.items()), {})
    assert gather("nested_crossproduct", lengths, list(jobs)) == expected


@given(columns)
def test_flat_crossproduct_is_the_nested_one_without_nesting(inputs: dict[str, list[Any]]) -> None:
    jobs = list(expand("flat_crossproduct", inputs))
    lengths = {name: len(values) for name, values in inputs.items()}
    assert jobs == flattened(by_definition(list(inputs.items()), {}), len(inputs) - 1)
    assert gather("flat_crossproduct", lengths, jobs) == jobs


@given(st.integers(1, 4), st.lists(st.lists(st.integers(), min_size=4, max_size=4), max_size=5))
def test_dotproduct_takes_elements_side_by_side(width: int, rows: list[list[int]]) -> None:
    inputs = {f"input{number}": [row[number] for row in rows] for number in range(width)}
    jobs = expand("dotproduct", inputs)
    assert [list(job.values()) for job in jobs] == [row[:width] for row in rows]
    assert gather("dotproduct", {name: len(rows) for name in inputs}, list(jobs)) == list(jobs)


@given(columns, st.sampled_from(CROSSPRODUCTS), st.slices(300))
def test_a_sequence_like_any_other(inputs: dict[str, list[Any]], method: str, part: slice) -> None:
    jobs = expand(method, inputs)
    everything = list(jobs)
    assert len(jobs) == len(everything)
    assert [jobs[index] for index in range(len(jobs))] == everything
    assert [jobs[index - len(jobs)] for index in range(len(jobs))] == everything
    assert list(jobs[part]) == everything[part]
    assert list(reversed(jobs)) == everything[::-1]
    for beyond in (len(jobs), -len(jobs) - 1):
        with pytest.raises(IndexError):
            jobs[beyond]


def test_names_keep_the_scatter_order() -> None:
    jobs = expand("flat_crossproduct", {"b": [1, 2], "a": ["x", "y"]})
    assert list(jobs) == [{"b": 1, "a": "x"}, {"b": 1, "a": "y"}, {"b": 2, "a": "x"}, {"b": 2, "a": "y"}]
    assert [list(job) for job in jobs] == [["b", "a"]] * 4


@pytest.mark.parametrize("method", [None, *METHODS])
def test_one_input_needs_no_method_and_takes_any(method: str | None) -> None:
    assert list(expand(method, {"x": [1, [2], None]})) == [{"x": 1}, {"x": [2]}, {"x": None}]
    assert gather(method, {"x": 3}, ["a", None, [1]]) == ["a", None, [1]]
    assert gather(method, {"x": 0}, []) == []


@pytest.mark.parametrize(
    ("method", "sizes", "expected"),
    [
        ("dotproduct", (0, 0), []),
        ("flat_crossproduct", (2, 0), []),
        ("nested_crossproduct", (0, 2), []),
        ("nested_crossproduct", (2, 0), [[], []]),
        ("nested_crossproduct", (2, 0, 3), [[], []]),
        ("nested_crossproduct", (2, 1, 0), [[[]], [[]]]),
        ("nested_crossproduct", (0, 0), []),
    ],
)
def test_empty_lists_give_the_empty_output_of_the_right_nesting(
    method: str, sizes: tuple[int, ...], expected: Any
) -> None:
    inputs = {f"x{number}": list(range(size)) for number, size in enumerate(sizes)}
    assert list(expand(method, inputs)) == []
    assert gather(method, {name: len(values) for name, values in inputs.items()}, []) == expected


def test_a_dict_is_its_pairs_and_a_tuple_a_list() -> None:
    jobs = expand("flat_crossproduct", {"pair": {"a": 1, "b": 2}, "x": (3,)})
    assert list(jobs) == [{"pair": ("a", 1), "x": 3}, {"pair": ("b", 2), "x": 3}]
    assert gather("nested_crossproduct", {"a": 1, "b": 2}, (1, 2)) == [[1, 2]]


@pytest.mark.parametrize("value", ["text", b"bytes", bytearray(b"x"), 7, None, {1, 2}, iter([1])])
def test_what_is_no_list(value: object) -> None:
    with pytest.raises(ScatterError, match=f"input sample is .*of type {type(value).__name__}; valid: a list, a tuple"):
        expand(None, {"sample": value})


@pytest.mark.parametrize(
    ("method", "inputs", "words"),
    [
        (None, {}, "nothing to scatter over"),
        ("dotproduct", {}, "nothing to scatter over"),
        (
            None,
            {"a": [1], "b": [1]},
            "scatter over a, b needs a method; valid: dotproduct, flat_crossproduct, nested_crossproduct",
        ),
        ("zip", {"a": [1]}, "method 'zip' is unknown; valid: dotproduct, flat_crossproduct, nested_crossproduct"),
        ("dotproduct", {"a": [1, 2], "b": [1], "c": [1]}, "equal length, but a has 2 elements, b has 1, c has 1"),
        ("dotproduct", {"a": [1], "b": []}, "equal length, but a has 1 element, b has 0"),
        ("flat_crossproduct", {str(n): range(10**9) for n in range(3)}, "too many"),
    ],
)
def test_wrong_use_is_named(method: str | None, inputs: dict[str, Any], words: str) -> None:
    with pytest.raises(ScatterError, match=re.escape(words)):
        expand(method, inputs)
    with pytest.raises(ScatterError, match=re.escape(words)):
        gather(method, {name: len(values) for name, values in inputs.items()}, [])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("count", [0, 3, 5])
def test_a_wrong_number_of_outputs(method: str, count: int) -> None:
    lengths = {"a": 4} if method == "dotproduct" else {"a": 2, "b": 2}
    with pytest.raises(ScatterError, match=f"there are {count} outputs, but a has . elements.* make 4 jobs"):
        gather(method, lengths, [None] * count)


@pytest.mark.parametrize("length", [-1, 1.0, True, "1"])
def test_a_length_that_is_none(length: Any) -> None:
    with pytest.raises(ScatterError, match="the length of input a is"):
        gather(None, {"a": length}, [])


class Unread(Sequence[int]):
    """A sequence that can be sliced but whose elements must not be read."""

    def __init__(self, indexes: range) -> None:
        self.indexes = indexes

    def __len__(self) -> int:
        return len(self.indexes)

    def __getitem__(self, index: Any) -> Any:
        assert isinstance(index, slice)
        return Unread(self.indexes[index])


def test_gather_reads_no_output() -> None:
    nested = gather("nested_crossproduct", {"a": 2, "b": 3}, Unread(range(6)))
    assert [row.indexes for row in nested] == [range(3), range(3, 6)]
    assert gather("flat_crossproduct", {"a": 2, "b": 3}, Unread(range(6)))[1:].indexes == range(1, 6)


def test_a_million_combinations() -> None:
    inputs = {"a": range(100), "b": range(100), "c": range(100)}
    tracemalloc.start()
    try:
        started = time.process_time()
        assert sum(1 for _ in itertools.islice(expand("flat_crossproduct", inputs), 10_000)) == 10_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**20
    started = time.process_time()
    last = None
    for last in expand("flat_crossproduct", inputs):  # noqa: B007 - only the last one is looked at
        pass
    assert time.process_time() - started < 2
    assert last == {"a": 99, "b": 99, "c": 99}
