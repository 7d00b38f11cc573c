"""What the page costs: ``python -m benchmarks.page [JOBS] [MACHINES]`` times each answer of the application, what the
cursor of its deltas costs a tick, and what a browser does with it. ``python -m benchmarks.page --keep [FOLDER]``
measures nothing: it starts an Airflow on a full house, to be walked through, until Ctrl-C.

On SQLite, PostgreSQL and MariaDB, the browser on SQLite; the jobs are made up (see tests/services/page_data.py). Only
the browser needs a whole Airflow: the answers are made of Lading's own tables.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
from playwright.sync_api import CDPSession
from pydantic import BaseModel

from tests.services.processes import end_in_order

ROUNDS = 15
RANGE = 3600.0
# A tick stores so many changes, committed together.
CHANGES = 200
# So many pairs of ticks, with the cursor and without it: what else the machine does meets both.
PAIRS = 60
# How long a page is open to measure what it costs the API server, seconds.
OPEN = 20.0
# So many windows are opened one after the other, in each of which so many deltas are waited for, to measure one.
WINDOWS = 3
DELTAS = 3
# When the page's chart was there, how long the last redraw took, and the longest that anything
# held up the browser once the chart was there, milliseconds.
PAINTED = """
globalThis.painted = {held: 0};
new PerformanceObserver((list) => { for (const each of list.getEntries())
  if (painted.chart && each.startTime > painted.chart + 1000) painted.held = Math.max(painted.held, each.duration);
}).observe({type: "longtask", buffered: true});
new MutationObserver(() => {
  const chart = document.querySelector("[data-testid=packing-chart]");
  if (chart?.dataset.redrawMs) { painted.chart ??= performance.now(); painted.redraw = Number(chart.dataset.redrawMs); }
}).observe(document, {subtree: true, childList: true, attributes: true});
"""
# When Airflow's own UI asked for the page: what came before is not Lading's, milliseconds.
BUNDLE = (
    "performance.getEntriesByType('resource').find(({name}) => name.endsWith('/lading/static/lading.js')).startTime"
)


def databases(folder: Path) -> Iterator[tuple[str, Callable[[str], str]]]:
    """The databases there are, one after the other, each with what makes an empty one of a name and says its URL."""
    from tests.services.postgres import Postgres

    yield "SQLite", lambda name: f"sqlite:///{folder}/{name}.db"
    with Postgres() as postgres:
        yield "PostgreSQL", postgres.create_database


def measure(name: str, jobs: int, machines: int) -> None:
    """Fill Lading's tables in Airflow's database and time what the page asks for."""
    from airflow.utils.session import create_session
    from fastapi.testclient import TestClient

    from lading.executors.store import Change, State, apply, metadata
    from lading.plugin.ui import access
    from lading.plugin.ui.app import create_app
    from lading.plugin.ui.queries.sight import EVERYTHING
    from tests.services.page_data import add_house

    now = time.time()
    with create_session(scoped=False) as session:
        metadata.create_all(session.connection())
        add_house(session, now, jobs, machines, 1000, RANGE)
    app = create_app()

    app.dependency_overrides[access.may_look.dependency] = lambda: None
    app.dependency_overrides[access.sight] = lambda: EVERYTHING
    app.dependency_overrides[access.acts] = lambda: True
    client = TestClient(app)
    window = {"since": now - RANGE, "until": now + 60}
    whole = client.get("/packing", params=window).json()
    running = [row[0] for row in whole["jobs"] if row[-1] == "running"][:100]
    cursor = time.time() + 10.5  # what was seeded is no news
    with create_session(scoped=False) as session:
        apply(
            session,
            [Change(token, {"state": State.SUCCEEDED, "ended_at": now, "changed_at": cursor}) for token in running],
        )
    asked = {
        "summary": ("/summary", {}),
        "waits": ("/waits", {}),
        "bill, today": ("/bill", {"since": now // 86400 * 86400, "until": now}),
        "packing, all": ("/packing", window),
        "packing, 100 new": ("/packing", {**window, "cursor": cursor}),
    }
    print(f"{name}: {len(whole['jobs'])} jobs, {len(whole['machines'])} machines")
    for what, (path, parameters) in asked.items():
        times, cpu = [], []
        for _ in range(ROUNDS):
            began, used = time.perf_counter(), time.process_time()
            answer = client.get(path, params=parameters).raise_for_status()
            times.append(time.perf_counter() - began)
            cpu.append(time.process_time() - used)
        size, packed = len(answer.content), len(gzip.compress(answer.content, 5))
        middle, most = statistics.median(times) * 1000, max(times) * 1000
        words = f"{middle:7.1f} ms, at most {most:.1f}, CPU {statistics.median(cpu) * 1000:.1f} ms"
        print(f"  {what:18} {words}, {size / 1024:.0f} KiB, compressed {packed / 1024:.0f} KiB", flush=True)


def measure_cursor(with_it: str, without: str, jobs: int, machines: int) -> None:
    """What it costs a tick that each change sets ``changed_at``, which has an index, beside doing without both: CPU
    time of this process and of that of the database which serves it.

    :param with_it: the URL of an empty database
    :param without: likewise, for the same rows without the index; ticks go to both in turn
    """
    from sqlalchemy import create_engine, select, text
    from sqlalchemy.orm import Session

    from lading.executors.store import Change, JobRow, State, apply, lanes, metadata
    from tests.services.page_data import add_house

    site, now = "hpc", time.time()
    column = JobRow.__table__.c.changed_at
    onupdate, index = (
        column.onupdate,
        next(each for each in JobRow.__table__.indexes if each.name == "lading_job_changed"),
    )
    engines = {True: create_engine(with_it), False: create_engine(without)}
    for engine in engines.values():
        metadata.create_all(engine)
        with Session(engine) as session:
            add_house(session, now, jobs, machines, 1000, RANGE)
            running = (
                select(JobRow.token).where(JobRow.state == State.RUNNING, JobRow.site == site).order_by(JobRow.token)
            )
            tokens = session.scalars(running.limit(CHANGES)).all()
    index.drop(engines[False])

    def tick(is_with: bool, number: int) -> float:
        """What a tick stores: jobs are given to machines, or, in the next one, their site says that they started."""
        placed = {"state": State.PLACED, "placed_at": now, "started_at": None, "lane": None}
        started = {"state": State.RUNNING, "started_at": now}
        column.onupdate = onupdate if is_with else None
        with Session(engines[is_with]) as session:
            server = session.scalar(text("SELECT pg_backend_pid()")) if with_it.startswith("postgresql") else None
            before = cpu_used(server)
            if number % 2:
                apply(session, [Change(token, started, report=True) for token in tokens], site)
                lanes.settle(session, site, tokens)
            else:
                apply(session, [Change(token, placed, report=True) for token in tokens])
            session.commit()
            return cpu_used(server) - before

    # Neither is always the later one of a pair. The first ones compile their statements.
    pairs = [
        {is_with: tick(is_with, number) for is_with in ((True, False) if number // 2 % 2 else (False, True))}
        for number in range(PAIRS + 4)
    ][4:]
    column.onupdate = onupdate
    there, absent = (statistics.median(pair[is_with] for pair in pairs) * 1000 for is_with in (True, False))
    ratios = statistics.quantiles((pair[True] / pair[False] for pair in pairs), n=4)
    words = f"{len(tokens)} changes {there:.1f} ms CPU, without it {absent:.1f} ms; {PAIRS} pairs: {ratios[1] - 1:+.1%}"
    print(f"  changed_at: {words} (quartiles {ratios[0] - 1:+.1%}, {ratios[2] - 1:+.1%})", flush=True)
    for engine in engines.values():
        engine.dispose()


def cpu_used(server: int | None) -> float:
    """Seconds of CPU that this process has used, and that process of a server (see proc_pid_schedstat(5))."""
    own = time.process_time()
    return own if server is None else own + int(Path(f"/proc/{server}/schedstat").read_text().split()[0]) / 1e9


def measure_mariadb(folder: str, jobs: int, machines: int) -> None:
    """The page's answers from Lading's own tables: Airflow itself does not support MariaDB."""
    from sqlalchemy import create_engine, select
    from sqlalchemy.orm import Session

    from lading.executors.store import Change, JobRow, State, apply, metadata
    from lading.plugin.ui.queries.bill import bill_page
    from lading.plugin.ui.queries.chart import packing
    from lading.plugin.ui.queries.now import summary, waits
    from lading.plugin.ui.queries.sight import EVERYTHING
    from lading.scheduling.insight.periods import Period
    from tests.services.mariadb import MariaDB
    from tests.services.page_data import add_house

    maria = MariaDB(Path(folder) / "mariadb")
    maria.start()
    try:
        engine = create_engine(maria.create_database("page"), isolation_level="READ COMMITTED")
        metadata.create_all(engine)
        now = time.time()
        with Session(engine) as session:
            add_house(session, now, jobs, machines, 1000, RANGE)
            running = session.scalars(select(JobRow.token).where(JobRow.state == State.RUNNING).limit(100)).all()
            cursor = time.time() + 10.5  # what was made up is no news
            ended = {"state": State.SUCCEEDED, "ended_at": now, "changed_at": cursor}
            apply(session, [Change(token, ended) for token in running])
            session.commit()
            asked: dict[str, Callable[[], BaseModel]] = {
                "summary": lambda: summary(session, EVERYTHING, now),
                "waits": lambda: waits(session, EVERYTHING, now),
                "bill, today": lambda: bill_page(
                    session, EVERYTHING, now // 86400 * 86400, now, Period.DAY, "dag", now
                ),
                "packing, all": lambda: packing(session, EVERYTHING, now - RANGE, now + 60, now),
                "packing, 100 new": lambda: packing(session, EVERYTHING, now - RANGE, now + 60, now, cursor),
            }
            print("MariaDB, without HTTP", flush=True)
            for what, look in asked.items():
                times = []
                for _ in range(ROUNDS):
                    session.rollback()
                    began = time.perf_counter()
                    answer = look().model_dump_json()
                    times.append((time.perf_counter() - began) * 1000)
                words = f"{statistics.median(times):7.1f} ms, at most {max(times):.1f}, {len(answer) / 1024:.0f} KiB"
                print(f"  {what:18} {words}", flush=True)
        engine.dispose()
    finally:
        maria.stop()


def cpu_seconds(pid: int) -> float:
    """That a process and those that it has started have used."""
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return sum(each.user + each.system for each in (process.cpu_times() for process in family))


def cpu_milliseconds(main_thread: CDPSession) -> float:
    """That the main thread of a page has used, Airflow's own part included."""
    metrics = {each["name"]: each["value"] for each in main_thread.send("Performance.getMetrics")["metrics"]}
    return 1000.0 * float(metrics["TaskDuration"])


def measure_browser(folder: Path, jobs: int, machines: int) -> None:
    """What Chromium does with the page of a real API server."""
    from tests.services.airflow import Airflow
    from tests.services.chromium import Window, chromium

    airflow = Airflow(folder / "browser", components=["api-server"])
    airflow.migrate()
    fill = "import time; from airflow.utils.session import create_session; from tests.services.page_data import seed\n"
    fill += (
        f"with create_session(scoped=False) as s: seed(s, time.time(), jobs={jobs}, machines={machines}, waiting=1000)"
    )
    environment = {**airflow.environment, "PYTHONPATH": str(Path(__file__).parents[1])}
    subprocess.run([sys.executable, "-c", fill], env=environment, check=True)
    airflow.start("api-server")
    try:
        airflow.wait_until_healthy()
        with chromium() as browser:
            found: list[dict[str, float]] = []
            for _ in range(WINDOWS):
                window = Window(browser, airflow.url)
                window.open("/plugin/lading").wait_for_selector("[data-tile]")
                first = window.page.evaluate("performance.now()") - window.page.evaluate(BUNDLE)
                window.page.add_init_script(PAINTED)
                main_thread = window.page.context.new_cdp_session(window.page)
                main_thread.send("Performance.enable", {"timeDomain": "threadTicks"})
                page = window.open("/plugin/lading?view=machines")
                page.wait_for_selector("[data-testid=packing-chart][data-redraw-ms]")
                used = cpu_milliseconds(main_thread)
                page.wait_for_timeout(DELTAS * 3000)
                deltas = (cpu_milliseconds(main_thread) - used) / DELTAS
                found.append(
                    page.evaluate("painted")
                    | {"bundle": page.evaluate(BUNDLE), "tiles": first, "cpu": used, "deltas": deltas}
                )
                page.close()
            pid = airflow.pid("api-server")
            shares = []
            for is_open in (False, True):
                window = Window(browser, airflow.url)
                if is_open:
                    window.open("/plugin/lading?view=machines").wait_for_selector(
                        "[data-testid=packing-chart][data-redraw-ms]"
                    )
                    window.page.wait_for_timeout(5000)
                used = cpu_seconds(pid)
                window.page.wait_for_timeout(OPEN * 1000)
                shares.append((cpu_seconds(pid) - used) / OPEN)
                window.page.close()
    finally:
        airflow.stop()
    print(f"API server: {shares[1]:.1%} of a CPU with an open page, {shares[0]:.1%} with none", flush=True)
    names = {
        "bundle": "Airflow's UI asked for the page",
        "tiles": "first tile, after that",
        "chart": "chart drawn",
        "redraw": "last drawing of the chart",
        "held": "longest task then",
        "cpu": "CPU time until the chart was drawn",
        "deltas": "CPU time for each three seconds then",
    }
    for what, words in names.items():
        times = sorted(each[what] for each in found)
        print(f"Chromium: {words} {statistics.median(times):.0f} ms, at most {times[-1]:.0f} ms", flush=True)


def keep(folder: Path) -> None:
    """Serve a full house (see tests/services/full_house.py) until Ctrl-C."""
    from tests.services.full_house import LOGINS, full_house

    with full_house(folder) as airflow:
        users = ", ".join(f"{user} ({sees})" for user, sees in LOGINS.items())
        print(f"{airflow.url}/plugin/lading until Ctrl-C; users, whose passwords are their names: {users}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


def main(jobs: int = 20_000, machines: int = 300) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="lading-page-") as folder,
        contextlib.closing(databases(Path(folder))) as found,
    ):
        os.environ["AIRFLOW_HOME"] = folder  # where nothing else of Airflow is
        for number, (name, create) in enumerate(found):
            home = Path(folder) / str(number)
            environment = {
                **os.environ, "AIRFLOW_HOME": str(home), "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": create("page"),
                "AIRFLOW__CORE__LOAD_EXAMPLES": "False", "AIRFLOW__CORE__EXECUTOR": "lading.executors.LadingExecutor",
            }  # fmt: skip
            code = f"from benchmarks.page import measure; measure({name!r}, {jobs}, {machines})"
            subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=environment, check=True)
            measure_cursor(create("with_it"), create("without"), jobs, machines)
        measure_mariadb(folder, jobs, machines)
        measure_browser(Path(folder), jobs, machines)


if __name__ == "__main__":
    end_in_order()
    if sys.argv[1:2] == ["--keep"]:
        with tempfile.TemporaryDirectory(prefix="lading-page-") as folder:
            keep(Path(sys.argv[2] if sys.argv[2:] else folder))
    else:
        main(*map(int, sys.argv[1:]))
