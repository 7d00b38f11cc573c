"""The outputs of scattered jobs as downstream tasks see them: sequences that read only the elements that are used."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import attrs
from airflow.sdk.definitions.xcom_arg import PlainXComArg
from airflow.sdk.execution_time.lazy_sequence import LazyXComSequence

from lading.operators.scattering.shape import ScatterShape
from lading.scheduling.scatter import gather

OUTPUTS = "outputs"
# Stored instead of None: Airflow stores nothing for None, which would shift the outputs after it.
NOTHING: Mapping[str, Any] = {"lading": "None"}


def stored(output: object) -> object:
    return dict(NOTHING) if output is None else output


def restored(output: object) -> object:
    return None if output == NOTHING else output


class Pages(Sequence[Any]):
    """A sequence that reads its elements on demand: single ones, or pages of them when they are read in order.

    :param length: the number of elements
    :param read: returns the elements from a start to a stop
    :param indexes: the elements that belong to this sequence; None: all
    """

    def __init__(self, length: int, read: Callable[[int, int], Sequence[Any]], indexes: range | None = None) -> None:
        self._length = length
        self._read = read
        self._indexes = range(length) if indexes is None else indexes
        self._page: tuple[int, Sequence[Any]] = (-1, ())

    def __len__(self) -> int:
        return len(self._indexes)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Pages(self._length, self._read, self._indexes[index])
        try:
            position = self._indexes[index]
        except IndexError:
            raise IndexError(f"there is no output {index}: there are {len(self)}") from None
        return self._element(position)

    def __iter__(self) -> Iterator[Any]:
        return map(self._element, self._indexes)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self)} outputs>"

    def _element(self, position: int) -> Any:
        start, page = self._page
        if not start <= position < start + len(page):
            in_order = position == start + len(page)
            start = position
            page = self._read(start, min(start + (100 if in_order else 1), self._length))
            self._page = (start, page)
        return page[position - start]


@dataclass(frozen=True)
class OutputsReference:
    """Where the outputs of a scatter are stored.

    :param task_id: the mapped task
    :param shape: how the outputs are arranged
    :param missing: the task instances without an output, in ascending order
    """

    task_id: str
    shape: ScatterShape
    missing: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"task_id": self.task_id, "shape": self.shape.to_json(), "missing": list(self.missing)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> OutputsReference:
        return cls(fields["task_id"], ScatterShape.from_json(fields["shape"]), tuple(fields["missing"]))

    def open(self, stored_outputs: Sequence[Any]) -> Sequence[Any]:
        """Return the outputs in their shape.

        :param stored_outputs: the values pushed by the instances of the mapped task, without those that pushed nothing;
            read by slices
        """
        flat = Pages(self.shape.count, lambda start, stop: self._read(stored_outputs, start, stop))
        return gather(self.shape.method, self.shape.lengths, flat)

    def _read(self, stored_outputs: Sequence[Any], start: int, stop: int) -> list[Any]:
        size = self.shape.chunk_size
        first, last = start // size, (stop - 1) // size + 1
        found = iter(stored_outputs[self._rank(first) : self._rank(last)])
        outputs: list[Any] = []
        for instance in range(first, last):
            width = len(self.shape.jobs_of(instance))
            if instance in self.missing:
                outputs += [None] * width
            else:
                output = next(found)
                outputs += output if self.shape.chunked else [restored(output)]
        return outputs[start - first * size : stop - first * size]

    def _rank(self, instance: int) -> int:
        """Return how many instances before this one have an output."""
        return instance - bisect_left(self.missing, instance)


@attrs.define
class GatheredOutputs(PlainXComArg):
    """The XCom of a gather task, which downstream tasks receive as the outputs in their shape."""

    @property
    def first(self) -> Any:
        gather: Any = self.operator
        return gather.plan.operator

    @property
    def roots(self) -> list[Any]:
        """The first task, so that ``a >> scatter(...)`` puts ``a`` before the whole scatter."""
        return [self.first]

    def set_upstream(self, task_or_task_list: Any, edge_modifier: Any = None) -> None:
        self.first.set_upstream(task_or_task_list, edge_modifier)

    def resolve(self, context: Mapping[str, Any]) -> Any:
        reference = super().resolve(context)
        if reference is None:
            return None
        where = OutputsReference.from_json(reference)
        # Only the name of the task that pushed them is needed; the task may no longer be in the Dag.
        source = SimpleNamespace(task_id=where.task_id, dag_id=self.operator.dag_id)
        return where.open(LazyXComSequence(xcom_arg=PlainXComArg(source), ti=context["ti"]))  # type: ignore[arg-type]
