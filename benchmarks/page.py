"""What the page costs: ``python -m benchmarks.page [JOBS] [MACHINES]`` times each answer of the application, the cost
of its delta cursor per tick, and how long a browser takes to show the page.

``--browser`` measures the browser alone, in a window of ``--viewport`` pixels. ``--leak [MINUTES]`` keeps the page open
for that long while jobs finish and start, visits its views, and counts what the browser keeps after garbage collection.
``--keep [FOLDER]`` measures nothing: it starts an Airflow with many jobs, to explore until Ctrl-C.

It runs on SQLite, PostgreSQL and MariaDB; the browser only on SQLite. The jobs are synthetic (see
tests/services/page_data.py). Only the browser needs a complete Airflow, because the answers use only Lading's own
tables.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from playwright.sync_api import CDPSession
from pydantic import BaseModel

if TYPE_CHECKING:
    from tests.services.airflow import Airflow

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
# So many jobs end and so many begin every three seconds while a page is open: as many as 20,000 an hour.
ENDING = 17
# When the page's chart was there, how long each drawing of it took, and the longest that anything held up the browser
# once the chart was there, milliseconds.
PAINTED = """
globalThis.painted = {held: 0, drawings: []};
new PerformanceObserver((list) => { for (const each of list.getEntries())
  if (painted.chart && each.startTime > painted.chart + 1000) painted.held = Math.max(painted.held, each.duration);
}).observe({type: "longtask", buffered: true});
new MutationObserver(() => {
  const chart = document.querySelector("[data-testid=packing-chart]");
  if (!chart?.dataset.redrawMs) return;
  painted.chart ??= performance.now();
  if (painted.last !== chart.dataset.redrawMs) painted.drawings.push(Number(painted.last = chart.dataset.redrawMs));
}).observe(document, {subtree: true, childList: true, attributes: true, attributeFilter: ["data-redraw-ms"]});
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
    from airflow.utils.session import create_session
    from fastapi.testclient import TestClient
    from sqlalchemy import select

    from lading.executors.store import Change, JobRow, State, apply, metadata
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
    cursor = time.time() + 10.5  # what was seeded is no news
    with create_session(scoped=False) as session:
        running = session.scalars(select(JobRow.token).where(JobRow.state == State.RUNNING).limit(100)).all()
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
    print(f"{name}: {len(whole['jobs']['id'])} jobs, {len(whole['machines'])} machines")
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
    from lading.scheduling.accounting.periods import Period
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


@contextlib.contextmanager
def served_house(folder: Path, jobs: int, machines: int) -> Iterator[Airflow]:
    """A real API server on a house whose jobs end and begin as long as it is served."""
    from sqlalchemy import create_engine
    from sqlalchemy.orm import Session

    from tests.services.airflow import Airflow
    from tests.services.page_data import go_on, seed

    airflow = Airflow(folder / "browser", components=["api-server"])
    airflow.migrate()
    engine = create_engine(airflow.environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"])
    with Session(engine) as session:
        seed(session, time.time(), jobs=jobs, machines=machines, waiting=1000)
    ended, chance = threading.Event(), random.Random(1)

    def change() -> None:
        while not ended.wait(3):
            with Session(engine) as session:
                go_on(session, chance, time.time(), ENDING)

    changing = threading.Thread(target=change)
    airflow.start("api-server")
    try:
        airflow.wait_until_healthy()
        changing.start()
        yield airflow
    finally:
        ended.set()
        if changing.ident is not None:
            changing.join()
        airflow.stop()
        engine.dispose()


CHART = "[data-testid=packing-chart][data-redraw-ms]"
OPENED = "/plugin/lading?view=machines&open=hpc:machines"


def measure_browser(folder: Path, jobs: int, machines: int, size: tuple[int, int]) -> None:
    from tests.services.chromium import Window, chromium

    width, height = size
    with served_house(folder, jobs, machines) as airflow, chromium() as browser:
        found: list[dict[str, float]] = []
        drawings: dict[str, list[float]] = {"folded": [], "opened": []}
        for _ in range(WINDOWS):
            window = Window(browser, airflow.url, width=width, height=height)
            window.open("/plugin/lading").wait_for_selector("[data-tile]")
            first = window.page.evaluate("performance.now()") - window.page.evaluate(BUNDLE)
            window.page.add_init_script(PAINTED)
            main_thread = window.page.context.new_cdp_session(window.page)
            main_thread.send("Performance.enable", {"timeDomain": "threadTicks"})
            page = window.open("/plugin/lading?view=machines")
            page.wait_for_selector(CHART)
            used = cpu_milliseconds(main_thread)
            page.wait_for_timeout(DELTAS * 3000)
            deltas = (cpu_milliseconds(main_thread) - used) / DELTAS
            painted, asked = page.evaluate("painted"), page.evaluate(BUNDLE)
            found.append(
                {"bundle": asked, "tiles": first, "chart": painted["chart"], "after": painted["chart"] - asked}
                | {"held": painted["held"], "cpu": used, "deltas": deltas}
            )
            drawings["folded"] += painted["drawings"]
            page = window.open(OPENED)
            page.wait_for_selector(CHART)
            page.wait_for_timeout(DELTAS * 3000)
            drawings["opened"] += page.evaluate("painted.drawings")
            page.close()
        pid = airflow.pid("api-server")
        shares = []
        for is_open in (False, True):
            window = Window(browser, airflow.url, width=width, height=height)
            if is_open:
                window.open("/plugin/lading?view=machines").wait_for_selector(CHART)
                window.page.wait_for_timeout(5000)
            used = cpu_seconds(pid)
            window.page.wait_for_timeout(OPEN * 1000)
            shares.append((cpu_seconds(pid) - used) / OPEN)
            window.page.close()
    print(f"Chromium, {width} x {height}, load {os.getloadavg()[0]:.0f}")
    print(f"  API server: {shares[1]:.1%} of a CPU with an open page, {shares[0]:.1%} with none", flush=True)
    names = {
        "bundle": "Airflow's UI asked for the page",
        "tiles": "first tile, after that",
        "chart": "chart drawn",
        "after": "chart drawn, after Airflow's UI asked for the page",
        "held": "longest task then",
        "cpu": "CPU time until the chart was drawn",
        "deltas": "CPU time for each three seconds then",
    }
    measured = {words: [each[what] for each in found] for what, words in names.items()}
    measured |= {f"a drawing of the chart, its large site {how}": times for how, times in drawings.items()}
    for words, times in measured.items():
        print(f"  {words} {statistics.median(times):.0f} ms, at most {max(times):.0f} ms", flush=True)


VIEWS = ("Overview", "Waits", "Jobs", "Cost", "Machines")
# What the browser keeps of a page: bytes of JavaScript's heap, nodes of documents, listeners of events.
KEPT = {"JSHeapUsedSize": "KiB of JavaScript's heap", "Nodes": "nodes", "JSEventListeners": "listeners"}
# By then all that is loaded once has been, minutes.
WARM = 2.0


def measure_leak(folder: Path, jobs: int, machines: int, minutes: float) -> None:
    """What the browser keeps of a page that is open for so long, each minute after garbage collection.

    :raises SystemExit: it keeps more of something at the end than in the second minute, by more than a tenth
    """
    from tests.services.chromium import Window, chromium

    def kept(window: Window) -> dict[str, float]:
        for _ in range(3):  # what a finalizer lets go is collected by the next one
            main_thread.send("HeapProfiler.collectGarbage")
        metrics = {each["name"]: each["value"] for each in main_thread.send("Performance.getMetrics")["metrics"]}
        return {name: metrics[name] / (1024 if name == "JSHeapUsedSize" else 1) for name in KEPT}

    found: list[dict[str, float]] = []
    with served_house(folder, jobs, machines) as airflow, chromium() as browser:
        window = Window(browser, airflow.url)
        main_thread = window.page.context.new_cdp_session(window.page)
        main_thread.send("Performance.enable")
        page = window.open("/plugin/lading?view=machines")
        chart = page.locator(CHART)  # a handle of an element would keep it
        chart.wait_for()
        end = time.monotonic() + minutes * 60
        while (left := end - time.monotonic()) > 0:
            for view in VIEWS:
                page.get_by_role("navigation", name="Lading").get_by_role("link", name=view, exact=True).click()
                page.wait_for_timeout(2000)
            chart.wait_for()
            page.wait_for_timeout(max(0, min(left, 60) - 2 * len(VIEWS)) * 1000)
            found.append(kept(window))
            minute = (minutes * 60 - end + time.monotonic()) / 60
            amounts = ", ".join(f"{found[-1][name]:,.0f} {words}" for name, words in KEPT.items())
            print(f"minute {minute:4.1f}: {amounts}", flush=True)
        faults = window.faults
    first = found[min(round(WARM) - 1, len(found) - 1)]
    grown = [
        f"{words} by {found[-1][name] / first[name] - 1:.0%}"
        for name, words in KEPT.items()
        if found[-1][name] > 1.1 * first[name]
    ]
    if grown or faults:
        raise SystemExit(f"the page has kept more: {', '.join(grown) or 'nothing'}; errors: {faults or 'none'}")


def keep(folder: Path) -> None:
    """Serve a full house (see tests/services/full_house.py) until Ctrl-C."""
    # Airflow reads them when it is imported, here to fill the tables.
    os.environ |= {"AIRFLOW_HOME": str(folder), "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING"}
    from tests.services.full_house import LOGINS, full_house

    with full_house(folder) as airflow:
        users = ", ".join(f"{user} ({sees})" for user, sees in LOGINS.items())
        print(f"{airflow.url}/plugin/lading until Ctrl-C; users, whose passwords are their names: {users}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


def measure_answers(folder: Path, jobs: int, machines: int) -> None:
    with contextlib.closing(databases(folder)) as found:
        for number, (name, create) in enumerate(found):
            home = folder / str(number)
            environment = {
                **os.environ, "AIRFLOW_HOME": str(home), "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": create("page"),
                "AIRFLOW__CORE__LOAD_EXAMPLES": "False", "AIRFLOW__CORE__EXECUTOR": "lading.executors.LadingExecutor",
            }  # fmt: skip
            code = f"from benchmarks.page import measure; measure({name!r}, {jobs}, {machines})"
            subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=environment, check=True)
            measure_cursor(create("with_it"), create("without"), jobs, machines)
        measure_mariadb(str(folder), jobs, machines)


def pixels(text: str) -> tuple[int, int]:
    """A size such as 3840x2160."""
    width, height = text.split("x")
    return int(width), int(height)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=__doc__)
    parser.add_argument("jobs", nargs="?", type=int, default=20_000)
    parser.add_argument("machines", nargs="?", type=int, default=300)
    parser.add_argument("--browser", action="store_true", help="measure only the browser")
    parser.add_argument("--viewport", type=pixels, default=(1280, 800), metavar="WIDTHxHEIGHT")
    parser.add_argument("--leak", nargs="?", type=float, const=10.0, metavar="MINUTES")
    parser.add_argument("--keep", nargs="?", const="", metavar="FOLDER")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lading-page-") as name:
        folder = Path(name)
        if asked.keep is not None:
            keep(Path(asked.keep or folder))
            return
        os.environ["AIRFLOW_HOME"] = name  # where nothing else of Airflow is
        if asked.leak is not None:
            measure_leak(folder, asked.jobs, asked.machines, asked.leak)
            return
        if not asked.browser:
            measure_answers(folder, asked.jobs, asked.machines)
        measure_browser(folder, asked.jobs, asked.machines, asked.viewport)


if __name__ == "__main__":
    end_in_order()
    main()
