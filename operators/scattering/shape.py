"""The shape of a scatter: how many jobs it has, and which task instance runs which of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lading.scheduling.scatter import job_count

# The XCom of the planning task that holds the shape.
SHAPE = "shape"


@dataclass(frozen=True)
class ScatterShape:
    """The result of a planning task.

    :param method: how the inputs are combined
    :param lengths: the number of elements of each input, in scatter order
    :param chunk_size: how many jobs one task instance runs
    """

    method: str | None
    lengths: Mapping[str, int]
    chunk_size: int

    @classmethod
    def plan(
        cls, method: str | None, lengths: Mapping[str, int], chunk_size: int | None, most_instances: int
    ) -> ScatterShape:
        """Choose the chunk size.

        :param chunk_size: requested by the author; None: as small as possible
        :param most_instances: how many instances a task can have
        :raises ScatterError: the lengths do not match
        """
        count = job_count(method, lengths)
        return cls(method, dict(lengths), max(chunk_size or 1, math.ceil(count / most_instances)))

    @classmethod
    def pull(cls, plan: Any, context: Any) -> ScatterShape | None:
        """Read the shape from the planning task of this run; None: it was skipped.

        :param plan: the XCom of the planning task
        """
        fields = context["ti"].xcom_pull(task_ids=plan.operator.task_id, key=SHAPE)
        return None if fields is None else cls.from_json(fields)

    @property
    def count(self) -> int:
        return job_count(self.method, self.lengths)

    @property
    def instances(self) -> int:
        return math.ceil(self.count / self.chunk_size)

    @property
    def chunked(self) -> bool:
        return self.chunk_size > 1

    def jobs_of(self, instance: int) -> range:
        return range(instance * self.chunk_size, min((instance + 1) * self.chunk_size, self.count))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> ScatterShape:
        return cls(**fields)

    def __str__(self) -> str:
        lengths = ", ".join(f"{name}: {length}" for name, length in self.lengths.items())
        chunks = f" in {self.instances} chunks of up to {self.chunk_size}" if self.chunked else ""
        return f"{self.count} jobs{chunks} ({self.method or 'one input'}; {lengths})"
