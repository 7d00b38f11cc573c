"""What ``airflow lading top`` shows."""

from __future__ import annotations

import io
import time

from rich.console import Console
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.store import SiteRow, State
from lading.plugin.host import AirflowHost
from lading.plugin.subcommands.top import screen
from lading.plugin.ui.queries.now import summary, waits
from lading.plugin.ui.queries.sight import EVERYTHING
from lading.scheduling.model.reasons import because


def test_the_waiting_jobs_of_sites_and_those_of_none_add_up() -> None:
    engine = create_engine("sqlite://")
    store.metadata.create_all(engine)
    now = time.time()
    with Session(engine) as session:
        session.add(SiteRow(name="hpc", kind="slurm", position=0, limits="{}", contact_at=now))
        for number, site in enumerate(("hpc", None, None, None)):
            store.add_job(
                session, token=f"{number}", kind="ExecuteTask", subject="s", workload="{}", cpus=1.0, memory=1, disk=0,
                gpus=0.0, priority=0, state=State.QUEUED, queued_at=now - 61, dag_id="d", site_hint=site,
            )  # fmt: skip
        session.flush()
        things = summary(session, EVERYTHING, now)
        shown = screen(AirflowHost(), things, waits(session, EVERYTHING, now))
    assert (things.waiting, [site.waiting for site in things.sites], things.waiting_for_any) == (4, [1], 3)
    output = io.StringIO()
    Console(file=output, width=200).print(shown)
    assert "0 running, 4 waiting" in output.getvalue()
    assert "Waiting jobs that name no site and are not assigned to one yet: 3" in output.getvalue()


def test_sites_and_waits_in_a_terminal() -> None:
    engine = create_engine("sqlite://")
    store.metadata.create_all(engine)
    now = time.time()
    with Session(engine) as session:
        trouble = "it hangs [bold]here[/bold] \x1b[2J in /srv/airflow/lading/configuration/sites.toml"
        session.add(SiteRow(name="hpc", kind="slurm", position=0, limits="{}", contact_at=now - 90, trouble=trouble))
        for number in range(3):
            store.add_job(
                session, token=f"{number}", kind="ExecuteTask", subject="s", workload="{}", cpus=1.0, memory=1, disk=0,
                gpus=0.0, priority=0, state=State.QUEUED, queued_at=now - 61, dag_id="d", site_hint="hpc",
                reason=because("max_allocations", used=4, most=4),
            )  # fmt: skip
        session.flush()
        shown = screen(AirflowHost(), summary(session, EVERYTHING, now), waits(session, EVERYTHING, now))
    output = io.StringIO()
    Console(file=output, width=200).print(shown)
    said = output.getvalue()
    assert "name no site" not in said, "all of them name the site"
    for words in (
        "0 running, 3 waiting",
        "No controller is running",
        "down",
        "1 min 30 s ago",
        "All allocations are busy (max_allocations)",
    ):
        assert words in said
    assert "[bold]here[/bold]" in said, "text of others is not markup"
    assert "\x1b" not in said
    narrow = io.StringIO()
    Console(file=narrow, width=80).print(shown)
    for heading in ("running", "waiting", "cpus requested"):
        assert heading in narrow.getvalue(), "no number is cut"
    assert "…" not in narrow.getvalue(), "no path is cut"
