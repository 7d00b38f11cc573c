"""Spans: the phases of a try in the trace of its Dag run.

Airflow 3.3 has a span for each try that begins when its process runs; these spans show where the time before went.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

from airflow.configuration import conf
from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from lading.executors.store import ENDED, JobRow, instances
from lading.scheduling.insight.phases import Times, phases

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

ATTRIBUTES = ("site", "location", "node", "native_id", "state", "cause")

tracer = trace.get_tracer("lading")


def trace_ended(session: Session, jobs: Iterable[JobRow]) -> None:
    """Send the phases of ended jobs, if Airflow's traces are on; traces that are not sampled get none."""
    if not conf.getboolean("traces", "otel_on", fallback=False):
        return
    ended = [job for job in jobs if job.state in ENDED]
    names = {job.location for job in ended if job.location is not None}
    boots = instances.boots(session, names)
    for job in ended:
        send(job, boots.get(job.location or ""))


def send(job: JobRow, boot: tuple[float, float | None] | None) -> None:
    """Send a span for each phase of a job, as a child of its task's span.

    :param boot: when the job's instance was ordered, and when it was up; None: the job ran on no instance
    """
    carrier = (json.loads(job.workload).get("ti") or {}).get("context_carrier")
    if not carrier:
        return
    context = TraceContextTextMapPropagator().extract(carrier)
    attributes = {f"lading.{name}": str(value) for name in ATTRIBUTES if (value := getattr(job, name)) is not None}
    attributes |= {"lading.token": job.token, "airflow.task_instance.try_number": str(job.try_number)}
    times = Times(job.queued_at, job.placed_at, job.submitted_at, boot, job.started_at, job.ended_at)
    for phase in phases(times):
        span = tracer.start_span(
            f"lading.{phase.key}", context, attributes=attributes, start_time=int(phase.since * 1e9)
        )
        span.end(int((phase.until if phase.until is not None else phase.since) * 1e9))
