"""Lading's tables in Airflow's database, and the queries on them.

The store is the only state that executors, controllers and commands share. Its functions use the caller's session and
never commit, so the caller decides what is atomic: a job row, for example, is written in the transaction in which the
scheduler sets the task instance to QUEUED. The store makes no decisions.
"""

from __future__ import annotations

from lading.executors.store.capacity import SizeRow
from lading.executors.store.jobs import (
    CHUNK,
    Change,
    add_job,
    add_jobs,
    adopt,
    adopt_from,
    any_to_report,
    apply,
    chunks,
    cpu_hour,
    explain,
    explain_the_rest,
    explained,
    find,
    foreign_owners,
    forget_other_sites,
    forget_reasons,
    knows,
    live,
    locations,
    mark_reported,
    save_locations,
    tell,
    unreported,
    usd_until,
)
from lading.executors.store.leases import Lease, drop_lease, lease, lease_and_time, take_lease
from lading.executors.store.tables import (
    ENDED,
    LIVE,
    Capacity,
    JobRow,
    LocationRow,
    SiteRow,
    State,
    metadata,
    reason_values,
)
