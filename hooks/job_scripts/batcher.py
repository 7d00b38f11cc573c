"""Decides which runs are submitted together as a job array: those with equal requests that arrive within a short time.

Sites limit submissions, and a scattered task has hundreds of runs. A process that follows many runs of a site (the
trigger of JobScriptOperator) uses a batcher to collect the runs that are to share an array. The files of each run are
at the site already, and none has been submitted. The batcher keeps only what makes this efficient: the site holds the
state of each run, so after a crash the runs alone are enough to continue (see :mod:`lading.hooks.job_scripts.array`).
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace

from lading.hooks.batch.submit_limits import chunks
from lading.hooks.job_scripts.array import RunArray, form, key
from lading.hooks.job_scripts.run import RunRecord
from lading.hooks.job_scripts.run_site import HELD, RunSighting, RunSite, jobname
from lading.hooks.ssh.answer import TransportError

log = logging.getLogger(__name__)


class Batcher:
    """The runs at one site that wait to be submitted with others."""

    window = (3.0, 15.0)
    """Runs are gathered until none has arrived for the first number of seconds, but for no longer than the second."""

    def __init__(self, site: RunSite) -> None:
        self.site = site
        self.pressure = site.pressure
        self._came: dict[str, float] = {}
        self._free: dict[str, int] = {}
        self._arrays: dict[str, RunArray] = {}
        self._alone: str | None = None

    @property
    def open(self) -> bool:
        """Whether runs are being gathered or submitted in an array, so that the next look is due soon."""
        newest = max(self._came.values(), default=0.0)
        return bool(self._arrays) or time.monotonic() < newest + self.window[1]

    def advance(self, records: Sequence[RunRecord], offsets: Mapping[str, int] | None = None) -> list[RunSighting]:
        """Advance runs as :meth:`RunSite.advance` does, and submit the gathered ones together."""
        before = self._gathered(records)
        sightings = self.site.advance(before, offsets, arrays=list(self._arrays.values()))
        self._learn(before, [sighting.record for sighting in sightings])
        return sightings

    def _gathered(self, records: Sequence[RunRecord]) -> list[RunRecord]:
        """Return the runs; those whose window is over are now elements of arrays, or to be submitted by themselves."""
        now = time.monotonic()
        self._dissolve(records)
        # An array that is missing here belongs to another process, which exited before it had submitted it.
        known = {None, *self._arrays}
        records = [each if each.array in known or not each.waiting else replace(each, array=None) for each in records]
        waiting = [record for record in records if record.gathering and not record.look_up]
        self._came = {record.token: self._came.get(record.token, now) for record in waiting}
        self._free = {record.token: self._free.get(record.token, 0) for record in waiting}
        groups: dict[str, list[RunRecord]] = {}
        for record in waiting:
            groups.setdefault(key(record), []).append(record)
        due = [group for group in groups.values() if self._is_whole(group, now)]
        ready = [record for group in due for record in group]
        try:
            taken = self._taken(ready)
        except TransportError as error:
            log.warning("%s", error)
            return records
        new = {record.token: record.by_itself() for record in ready if record.token in taken}
        going = self._within_limits([record for record in ready if record.token not in taken], records, new)
        for group in groups.values():
            self._form([record for record in group if record.token in going], new)
        return [new.get(record.token, record) for record in records]

    def _dissolve(self, records: Sequence[RunRecord]) -> None:
        """Return the runs of arrays that were not submitted to gathering if a limit has left no room for them since."""
        room = self.pressure.room(sum(record.job_id is not None and not record.ended for record in records))
        for folder in list(self._arrays):
            members = [record for record in records if record.array == folder and record.waiting]
            if len(members) > room and all(record.doubtful_since is None for record in members):
                del self._arrays[folder]

    def _taken(self, ready: Sequence[RunRecord]) -> frozenset[str]:
        """Return the tokens of runs that another process has submitted, such as a triggerer that was killed.

        Each attempt is checked once; if another process takes it later, the array is made without it.
        """
        unknown = [record for record in ready if self._free[record.token] != record.attempt]
        if not unknown:
            return frozenset()
        self.site.login()
        taken = self.site.taken(unknown)
        self._free |= {record.token: record.attempt for record in unknown}
        return taken

    def _is_whole(self, group: Sequence[RunRecord], now: float) -> bool:
        came = [self._came[record.token] for record in group]
        quiet, longest = self.window
        return now >= max(came) + quiet or now >= min(came) + longest or len(group) >= self.pressure.largest

    def _within_limits(
        self, ready: Sequence[RunRecord], records: Sequence[RunRecord], new: dict[str, RunRecord]
    ) -> frozenset[str]:
        """Return the tokens of the runs that can be submitted now; the others are given the reason why they wait."""
        another = f"{HELD}: another job is submitted first"
        submitted = sum(not (record.ended or record.gathering or record.held) for record in records)
        room, why = self.pressure.allow(self.site.system.name, self.site.profile.profile, submitted)
        most, message = min(len(ready), room), f"{HELD}: {why.sentence}"
        if self.pressure.chunk == 1 < self.pressure.largest:
            # The site did not accept even two at once: submit one, and the others once it has been accepted.
            ahead = next((record for record in records if record.token == self._alone and record.waiting), None)
            if ahead is not None:
                most, message = 0, f"{HELD}: {ahead.reason}" if ahead.reason else another
            elif most:
                most, message = 1, another
                self._alone = next((record.token for record in ready), None)
        for record in ready[most:]:
            new[record.token] = replace(record, reason=message)
        return frozenset(record.token for record in ready[:most])

    def _form(self, group: Sequence[RunRecord], new: dict[str, RunRecord]) -> None:
        for members in chunks(group, self.pressure.chunk, self.site.system):
            if len(members) > 1 and (elements := self._array(members)):
                new |= {record.token: record for record in elements}
            else:
                new |= {record.token: record.by_itself() for record in members}

    def _array(self, members: Sequence[RunRecord]) -> list[RunRecord]:
        """Return the runs as elements of a new array; empty if the batch system has no option for it."""
        token = str(uuid.uuid4())
        site, folder = self.site, self.site.folder(token)
        try:
            array, elements = form(members, folder, jobname(token), site.system, site.profile.profile)
        except ValueError as error:
            log.warning("site %s: %d jobs are submitted one by one: %s", site.name, len(members), error)
            return []
        log.info("site %s: %d jobs are submitted as a job array, %s", site.name, len(members), folder)
        self._arrays[folder] = array
        return elements

    def _learn(self, before: Sequence[RunRecord], after: Sequence[RunRecord]) -> None:
        """Drop arrays whose submission is settled, and forget the run that was submitted first once it is accepted."""
        for folder in list(self._arrays):
            members = [new for old, new in zip(before, after, strict=True) if old.array == folder]
            if any(record.array == folder and record.waiting for record in members):
                continue
            del self._arrays[folder]
        if any(record.token == self._alone and record.job_id is not None for record in after):
            self._alone = None
