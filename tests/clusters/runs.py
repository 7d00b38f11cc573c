"""Runs of job scripts at a toy cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lading.hooks.job_scripts.run import RunRecord
from lading.hooks.job_scripts.run_site import RunSite
from lading.hooks.job_scripts.script import JobScript


def placed(site: RunSite, body: str, count: int = 1, **resources: Any) -> list[RunRecord]:
    script = JobScript(body, **resources)
    records = [site.new_record(f"t{number}-{number:032d}", script) for number in range(count)]
    for record in records:
        site.place(record, script)
    return records


def advanced(site: RunSite, records: Sequence[RunRecord], now: float | None = None) -> list[RunRecord]:
    return [sighting.record for sighting in site.advance(records, now=now)]
