"""What the controller counts."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml
from airflow.sdk._shared.observability.metrics.statsd_logger import SafeStatsdLogger
from airflow.sdk._shared.observability.metrics.validators import stat_name_otel_handler
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.accounting import share_rows
from lading.executors.controller.metrics import Metrics
from lading.executors.store import Change, State
from lading.executors.store.figures import LiveKey, count_live
from lading.executors.store.instances import InstanceRow
from lading.executors.store.queued import QueuedJobs
from lading.plugin.host import AirflowHost
from lading.scheduling.accounting.budgets import BudgetUse, PeriodBudget
from lading.scheduling.accounting.share_usage import Mean
from lading.scheduling.accounting.who import Who
from lading.scheduling.model.reason_codes import CAUSES, CODES
from lading.scheduling.model.reasons import because, free_text

DOCS = Path(__file__).parents[4] / "docs" / "reference"


class Recorder:
    """Takes the place of Airflow's ``Stats``."""

    def __init__(self) -> None:
        self.told: list[tuple[str, float, dict[str, str]]] = []

    def incr(self, name: str, tags: dict[str, str] | None = None) -> None:
        self.told.append((name, 1, tags or {}))

    def timing(self, name: str, value: float, tags: dict[str, str]) -> None:
        self.told.append((name, value, tags))

    gauge = timing

    @contextlib.contextmanager
    def timer(self, name: str) -> Iterator[None]:
        yield
        self.told.append((name, 0, {}))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float, dict[str, str]]]:
    recorder = Recorder()
    monkeypatch.setattr(AirflowHost, "metrics", lambda self: recorder)
    return recorder.told


@pytest.fixture
def session() -> Iterator[Session]:
    engine = create_engine("sqlite://")
    store.metadata.create_all(engine)
    with Session(engine) as session:
        yield session
    engine.dispose()


@pytest.mark.parametrize("team", [None, "genes"])
def test_a_job_is_counted_once_when_it_starts_and_once_when_it_ends(
    told: list[Any], session: Session, team: str | None
) -> None:
    job: dict[str, Any] = {"kind": "", "subject": "", "workload": "", "memory": 1, "disk": 0, "gpus": 0.0}
    store.add_job(session, token="a", team=team, state=State.FAILED, queued_at=1.0, cpus=1.0, priority=0, **job)
    session.flush()
    ended = {"state": State.FAILED, "cause": "out_of_memory", "cpu_seconds": 1.5}
    metrics = Metrics(AirflowHost().metrics())
    for values in ({"state": State.PLACED}, {"reason": free_text("waits")}, {"state": State.RUNNING}, ended):
        metrics.count([Change("a", values)])
    metrics.round(session, {})
    metrics.round(session, {})
    its = {} if team is None else {"team": team}
    tags = {"state": "failed", "cause": "out_of_memory", **its}
    counts = [each for each in told if each[0] in ("lading.jobs.started", "lading.jobs.ended", "lading.jobs.cpu")]
    assert counts == [("lading.jobs.started", 1, its), ("lading.jobs.ended", 1, tags), ("lading.jobs.cpu", 1500, tags)]


def test_the_gauge_goes_back_to_zero(told: list[Any], session: Session) -> None:
    gauges = Metrics(AirflowHost().metrics())
    gauges.round(session, {LiveKey("local", "running", None): 3})
    gauges.round(session, {})
    tags = {"site": "local", "state": "running"}
    assert told == [("lading.jobs.live", 3, tags), ("lading.jobs.live", 0, tags)]


def everything(
    session: Session, site: str = "hpc", team: str = "genes", budget: str = "team a", share: str = "team a"
) -> None:
    """Have every metric emitted that there is."""
    amounts = {"cpus": 4.0, "memory": 1, "gpus": 0.0}
    session.add(store.Capacity(site="local", name="host", since=0.0, usd_per_hour=0.4, **amounts))
    session.add(
        store.LocationRow(site=site, name="hpc", kind="slurm", seen_at=1.0, disk=0, usd_per_cpu_hour=0.05, **amounts)
    )
    now = time.time()
    job = {"kind": "", "subject": "", "workload": "", "memory": 1, "disk": 0, "gpus": 0.0, "priority": 0}
    times = {"queued_at": now - 90, "submitted_at": now - 60, "started_at": now - 20}
    said: dict[str, Any] = {"said_since": now - 30, "said_until": now - 10, "said_source": "forecast"}
    store.add_job(
        session,
        token="a",
        site=site,
        location="hpc",
        state=State.RUNNING,
        cpus=2.0,
        **times,
        **job,
        **said,
    )
    store.add_job(
        session,
        token="b",
        state=State.QUEUED,
        queued_at=now,
        cpus=1.0,
        reason=because("paused", site="x", by="y"),
        **job,
    )
    store.add_job(session, token="c", state=State.QUEUED, queued_at=now, cpus=1.0, team=team, **job)
    metrics = Metrics(AirflowHost().metrics())
    order = {"site": site, "kind": "", "disk": 0, "seconds": 60.0, "state": "draining", "usd_per_hour": None}
    session.add(InstanceRow(token="L", ordered_at=now + 29, ready_at=now + 60, **order, **{**amounts, "cpus": 0.0}))
    share_rows.save_means(session, {share: Mean(0.2, 0.5)}, now)
    budget = PeriodBudget(budget, Who(team="a"), 10.0)
    share_rows.save_spending(session, [BudgetUse(budget, 8.0, 60.0, 0.0, now + 60, hours_of_work=1.0)], now)
    session.flush()
    with metrics.tick():
        metrics.count([Change("a", {"state": State.RUNNING})])
    metrics.count([Change("x", {"state": State.SUCCEEDED, "cpu_seconds": 1.0})])
    metrics.round(session, count_live(session, QueuedJobs().read(session)))


def test_what_runs_waits_and_is_up_is_shown(told: list[Any], session: Session) -> None:
    everything(session)
    found = {(name, *tags.values()): value for name, value, tags in told}
    assert found["lading.jobs.waiting", "paused"] == 1
    assert (found["lading.cpus.used", "hpc"], found["lading.cpus.batch", "hpc"], found["lading.cpus.up", "local"]) == (
        0, 2, 4,
    ), "what is on a node of the batch system is not on one that is up"  # fmt: skip
    assert found["lading.usd_per_hour", "local"] == 0.4
    assert found["lading.jobs.expected", "forecast", "yes"] == 1
    assert found["lading.budget.expected", "team_a"] == pytest.approx(0.9), "a minute at the present rate"
    assert (found["lading.budget.used", "team_a"], found["lading.share.used", "team_a"]) == (0.8, 0.4)
    assert (found["lading.team.cpus", "genes"], found["lading.jobs.live", "none", "queued", "genes"]) == (0, 1)
    waits = [found[name, "hpc"] for name in ("lading.jobs.wait", "lading.jobs.queue", "lading.instances.boot")]
    assert waits == pytest.approx([70_000, 40_000, 31_000])


class Client:
    """A client of StatsD, as Airflow's logger uses it; keeps what it sends."""

    def __init__(self) -> None:
        self.sent: dict[str, float] = {}

    def incr(self, stat: str, count: float, rate: float) -> None:
        self.sent[stat] = count

    def gauge(self, stat: str, value: float, rate: float, delta: bool) -> None:
        self.sent[stat] = value

    def timing(self, stat: str, delta: float) -> None:
        self.sent[stat] = delta

    def timer(self, stat: str) -> Mock:
        self.sent[stat] = 0
        return Mock()


@pytest.mark.parametrize("handler", [None, partial(stat_name_otel_handler, "airflow")], ids=["statsd", "otel"])
def test_airflow_takes_every_metric_whatever_teams_and_budgets_are_called(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, session: Session, handler: Any
) -> None:
    client = Client()
    backend = SafeStatsdLogger(
        client,  # type: ignore[arg-type]
        influxdb_tags_enabled=handler is None,
        statsd_influxdb_enabled=handler is None,
        stat_name_handler=handler,
    )
    monkeypatch.setattr(AirflowHost, "metrics", lambda self: backend)
    long = 50 * "lång, "
    everything(session, site="hpc, old", team=f"team genomics={long}", budget="hpc@hpc_genomics", share="")
    assert caplog.text == "", "a metric that is not taken is logged and lost"
    sent = {name.split(",")[0].removeprefix("airflow.") for name in client.sent}
    documented = re.findall(r"^\| `(lading\.[a-z_.]+)` \|", (DOCS / "metrics.md").read_text(), re.MULTILINE)
    assert sent == {*documented}
    if handler is None:
        assert client.sent["lading.budget.used,budget=hpc_hpc_genomics"] == 0.8
        assert client.sent["lading.share.used,share=none"] == 0.4


def test_names_that_become_the_same_tag_show_the_larger_value(told: list[Any], session: Session) -> None:
    metrics = Metrics(AirflowHost().metrics())
    metrics.round(session, {LiveKey("local", "running", "team a"): 3, LiveKey("local", "running", "team@a"): 2})
    metrics.round(session, {LiveKey("local", "running", "team@a"): 2})
    tags = {"site": "local", "state": "running", "team": "team_a"}
    shown = [each for each in told if each[0] == "lading.jobs.live"]
    assert shown == [("lading.jobs.live", 3, tags), ("lading.jobs.live", 2, tags)]


def alert_rules() -> list[dict[str, Any]]:
    """The alerts that Grafana may be given."""
    [group] = yaml.safe_load((DOCS / "grafana_alerts.yaml").read_text())["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def test_alerts_are_about_reasons_and_causes_that_there_are() -> None:
    kinds = {code.kind for code in CODES.values()}
    for rule in alert_rules():
        is_of_controller = "tick" in rule["data"][0]["model"]["expr"]
        assert rule["noDataState"] == ("Alerting" if is_of_controller else "OK"), rule["title"]
        for query in rule["data"]:
            assert query["refId"] == rule["condition"]
            expr = query["model"]["expr"]
            for label, known in (("reason", kinds), ("cause", {*CAUSES}), ("state", {*State})):
                for names in re.findall(rf'{label}=~?"([^"]+)"', expr):
                    assert set(names.split("|")) <= known, rule["title"]


def test_the_page_on_monitoring_lists_the_alerts() -> None:
    rows = re.findall(
        r"^\| (.+?) \| (\d+) min \|", (DOCS.parent / "how_to" / "monitoring.md").read_text(), re.MULTILINE
    )
    assert rows == [(rule["title"], rule["for"].removesuffix("m")) for rule in alert_rules()]


def test_the_docs_and_the_dashboard_know_what_is_reported_and_nothing_else(told: list[Any], session: Session) -> None:
    everything(session)
    names = {name for name, _, _ in told}
    documented = set(re.findall(r"^\| `(lading\.[a-z_.]+)` \|", (DOCS / "metrics.md").read_text(), re.MULTILINE))
    assert documented == names
    dashboard = json.loads((DOCS / "grafana.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    rules = alert_rules()
    assert len({rule["uid"] for rule in rules}) == len(rules)
    asked += [query["model"]["expr"] for rule in rules for query in rule["data"]]
    used = {name for expr in asked for name in re.findall(r"airflow_(lading_[a-z_]+)", expr)}
    as_prometheus = {
        f"{name.replace('.', '_')}{end}"
        for name in names
        for end in ("", "_total", "_milliseconds_sum", "_milliseconds_count")
    }
    assert used <= as_prometheus
    assert {name for name in names if not any(each.startswith(name.replace(".", "_")) for each in used)} == set()
