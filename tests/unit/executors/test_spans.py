"""The phases of tries on the traces of Airflow."""

from __future__ import annotations

import json
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from lading.executors import spans, store
from lading.executors.store import JobRow, State
from lading.executors.store.instances import InstanceRow

TRACE, TASK = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(spans, "tracer", provider.get_tracer("lading"))
    monkeypatch.setenv("AIRFLOW__TRACES__OTEL_ON", "True")
    return exporter


def job(token: str = "t", *, flags: str = "01", **columns: Any) -> JobRow:
    workload = json.dumps({"ti": {"context_carrier": {"traceparent": f"00-{TRACE}-{TASK}-{flags}"}}})
    times = {"queued_at": 10.0, "placed_at": 20.0, "started_at": 50.0, "ended_at": 60.5}
    defaults = {"state": State.SUCCEEDED, "site": "hpc", "location": "L1", "try_number": 2, "workload": workload}
    return JobRow(token=token, **{**defaults, **times, **columns})


def tell(*jobs: JobRow) -> None:
    engine = create_engine("sqlite://")
    store.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(
            InstanceRow(
                token="L1", site="hpc", kind="", cpus=1.0, memory=1, disk=0, gpus=0.0, seconds=1.0, state="up",
                ordered_at=1.0, ready_at=45.0,
            )
        )  # fmt: skip
        session.flush()
        spans.trace_ended(session, jobs)
    engine.dispose()


def test_each_phase_is_a_child_of_the_task(sent: InMemorySpanExporter) -> None:
    tell(job())
    found = sent.get_finished_spans()
    seconds = [(each.name, (each.start_time or 0) / 1e9, (each.end_time or 0) / 1e9) for each in found]
    assert seconds == [
        ("lading.airflow", 10.0, 20.0), ("lading.boot", 20.0, 45.0), ("lading.sent", 45.0, 50.0),
        ("lading.runs", 50.0, 60.5),
    ]  # fmt: skip
    for each in found:
        assert each.parent is not None
        assert (f"{each.context.trace_id:032x}", f"{each.parent.span_id:016x}") == (TRACE, TASK)
        assert dict(each.attributes or {})["lading.location"] == "L1"


def test_nothing_is_sent_of_what_runs_is_not_sampled_has_no_trace_or_is_not_wanted(
    sent: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell(job("runs", state=State.RUNNING), job("unsampled", flags="00"), job("callback", workload="{}"))
    monkeypatch.setenv("AIRFLOW__TRACES__OTEL_ON", "False")
    tell(job("off"))
    assert sent.get_finished_spans() == ()
