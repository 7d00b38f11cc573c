"""A run that is a job array: one submission whose elements are runs themselves."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from lading.hooks.batch.refusals import CancelError
from lading.hooks.batch.system import ArrayRange
from lading.hooks.job_scripts import layout
from lading.hooks.job_scripts.result import JobRun, RunKeeper, SavedRun
from lading.hooks.job_scripts.run import RunRecord
from lading.scheduling.text.printable import first_few


class JobArrayRun(JobRun):
    """A job array at a batch site::

        run = hook.submit(JobScript("./solve part.$CLUSTERJOB_ARRAY_INDEX", array="1-10%4"))
        run[3].status

    The array has finished when all of its elements have, and has succeeded if all of them have; its ``exit_code`` is
    that of the first failed element. Prologue and epilogue run once for the whole array.
    """

    @cached_property
    def indices(self) -> tuple[int, ...]:
        """The indices of the elements, in the order of the request."""
        return tuple(ArrayRange(str(self.record.elements)))

    def __getitem__(self, index: int) -> ElementRun:
        """Return the run of an element.

        :raises IndexError: no element has this index
        """
        if index not in self.indices:
            raise IndexError(f"the array has no element {index}; the elements are {self.record.elements}")
        return self._runs[index]

    def __iter__(self) -> Iterator[ElementRun]:
        return iter(self._runs.values())

    @cached_property
    def _runs(self) -> dict[int, ElementRun]:
        """The runs of the elements by index, created once because each keeps its own callbacks."""
        return {index: ElementRun(self._hook, self, index) for index in self.indices}

    def __len__(self) -> int:
        return len(self.indices)

    @cached_property
    def elements(self) -> dict[int, RunRecord]:
        """The record of each element by its index; empty before the batch system has accepted the array."""
        records = (RunRecord.from_json(fields) for fields in self._saved.elements)
        return dict(zip(self.indices, records, strict=False))

    def living(self) -> Sequence[RunRecord]:
        return [each for each in self.elements.values() if not each.ended] if self.elements else super().living()

    def update(self, records: Sequence[RunRecord]) -> None:
        known = {record.token: record for record in (self.record, *self.elements.values())}
        if all(known[record.token] == record for record in records):
            return
        now, system = time.time(), self._hook.site.system
        known |= {record.token: record.timed(None, now) for record in records}
        array, *elements = known.values()
        if array.job_id is not None:
            elements = elements or [array.element(index, system) for index in self.indices]
            array = summary(array, elements)
        self.elements = dict(zip(self.indices, elements, strict=False))
        self._save(replace(self._saved, record=array.to_json(), elements=[each.to_json() for each in elements]))

    def _cancel(self) -> None:
        living = [each for each in self.elements.values() if not each.ended]
        # The job id of the array does not cover elements that belong to another submission of it, whose answer was
        # lost.
        others = [each for each in living if each.array_id != self.job_id]
        self._cancelling(living)
        found = {record.token: record for record in self._hook.site.cancel([self.record, *others])}
        if living:
            self.update([found.get(each.token, replace(each, cancelling=True)) for each in living])
        else:
            self.update([found[self.token]] if self.token in found else [])

    def output(self, most: int = 1_000_000) -> str:
        """Return what the elements have printed so far, one after the other, at most ``most`` bytes of each.

        :raises TransportError: it could not be read
        """
        return "".join(element.output(most) for element in self)

    def __repr__(self) -> str:
        return f"<JobArrayRun {self.key} [{self.record.elements}] {self.record.state} job_id={self.record.job_id}>"


class ElementRun(JobRun):
    """An element of a job array; its record is saved with the array."""

    def __init__(self, hook: RunKeeper, array: JobArrayRun, index: int) -> None:
        super().__init__(hook, f"{array.key}[{index}]", SavedRun({}))
        self.array, self.index = array, index

    @property
    def record(self) -> RunRecord:
        known = self.array.elements.get(self.index)
        if known is not None:
            return known
        array = self.array.record
        token, folder = (layout.of_element(run, self.index) for run in (array.token, array.folder))
        return replace(array, token=token, folder=folder, elements=None)

    def _cancel(self) -> None:
        """Cancel this element.

        :raises CancelError: before the batch system has accepted the array, only the whole array can be cancelled
        """
        record = self.record
        if record.job_id is None:
            raise CancelError(
                f"{self.array} has not been accepted yet, so its elements cannot be cancelled; cancel the whole array"
            )
        self._cancelling([record])
        self.update(self._hook.site.cancel([record]))

    def update(self, records: Sequence[RunRecord]) -> None:
        self.array.update(records)

    def _finish(self) -> None:
        """Do nothing: the epilogue belongs to the array."""

    def __repr__(self) -> str:
        return f"<ElementRun {self.key} {self.record.state} job_id={self.record.job_id}>"


def summary(array: RunRecord, elements: Sequence[RunRecord]) -> RunRecord:
    """Derive the record of an array from the records of its elements. Pure."""
    started = [each.started_at for each in elements if each.started_at is not None]
    array = replace(array, started_at=min(started, default=None), cancelling=False)
    states = {each.state for each in elements}
    if not all(each.ended for each in elements):
        begun = any(each.ended or each.state == "running" for each in elements)
        waiting = next((each.reason for each in elements if each.state == "submitted" and each.reason), None)
        return replace(array, state="running" if begun else "submitted", reason=None if begun else waiting)
    array = replace(array, ended_at=max((each.ended_at or 0.0 for each in elements), default=None))
    if states == {"succeeded"}:
        return replace(array, state="succeeded", reason=None, exit_code=0)
    failed = [each for each in elements if each.state == "failed"]
    if not failed:
        return replace(
            array, state="cancelled", cause="cancelled", reason=_named("were cancelled", elements, "cancelled")
        )
    causes = {each.cause for each in failed}
    return replace(
        array,
        state="failed",
        cause=causes.pop() if len(causes) == 1 else "error",
        reason=_named("have failed", elements, "failed"),
        exit_code=next((each.exit_code for each in failed if each.exit_code), None),
    )


def _named(verb: str, elements: Sequence[RunRecord], state: str) -> str:
    """Return how many elements are in a state, with the reasons of the first ones."""
    found = [each for each in elements if each.state == state]
    named = first_few([f"element {each.index}: {each.reason}" for each in found], 10, "; ")
    return f"{len(found)} of {len(elements)} elements {verb}: {named}"
