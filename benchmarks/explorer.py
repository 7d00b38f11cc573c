"""How long the jobs explorer takes with a million jobs that have ended, on SQLite, PostgreSQL and MariaDB.

    python -m benchmarks.explorer [JOBS [DATABASE...]]

The jobs are of forty days, twelve Dags of twenty tasks, six sites and a thousand nodes; four of a hundred have failed.
One Dag has run thirty days ago alone, and has a hundred of them. Times are of the queries and of making JSON of what
they have found, without HTTP, from Lading's own tables. For bills of a year its other days are copies of one of these.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from sqlalchemy import Engine, create_engine, func, insert, literal, literal_column, select, text
from sqlalchemy.orm import Session

from tests.services.processes import end_in_order

ROUNDS = 7
BASE = 2_000
DAYS = 40
MOST_MS, MOST_MS_OF_BILL = 150.0, 300.0
# MariaDB reads past the operating system's cache: what its own does not hold comes from the disk, MiB.
BUFFER_POOL = 2_048
CAUSES = ("out_of_memory", "error", "time_limit", "node_failure")


def databases(folder: Path, stack: ExitStack) -> Iterator[tuple[str, str]]:
    """The databases there are, each with the URL of an empty one."""
    from tests.services.mariadb import MariaDB
    from tests.services.postgres import Postgres

    yield "SQLite", f"sqlite:///{folder}/explorer.db"
    yield "PostgreSQL", stack.enter_context(Postgres()).create_database("explorer")
    maria = MariaDB(folder / "mariadb", BUFFER_POOL)
    maria.start()
    stack.callback(maria.stop)
    yield "MariaDB", maria.create_database("explorer")


def base_rows(now: float) -> list[dict[str, Any]]:
    """The jobs of the last part of the time, which all earlier parts are like."""
    from lading.executors.store import State, reason_values
    from tests.services.page_data import job

    chance = random.Random(7)
    rows = []
    for number in range(BASE):
        row = job(chance, now - chance.uniform(100, 80_000))
        state = State.FAILED if chance.random() < 0.04 else State.SUCCEEDED
        started = row["queued_at"] + chance.uniform(1, 4000)
        site = f"site{chance.randrange(6)}"
        row |= {
            "token": f"{number:07d}", "subject": f"{number:07d}", "dag_id": f"dag{number % 12}",
            "task_id": f"task{chance.randrange(20)}", "site": site, "location": f"{site}-{chance.randrange(200)}",
            "node": f"n{chance.randrange(1000)}", "native_id": f"{number}", "state": state, "placed_at": started,
            "started_at": started, "ended_at": started + chance.uniform(1, 9000), "usd": chance.random(),
            "cause": chance.choice(CAUSES) if state == State.FAILED else None, "peak_memory": 1000,
            "cpu_seconds": 100.0, **reason_values(None),
        }  # fmt: skip
        rows.append(row)
    return rows


def fill(engine: Engine, jobs: int, now: float) -> None:
    """Fill the table, and make its indexes then."""
    from lading.executors.migrations import db_manager  # noqa: F401 - it names all modules that have tables
    from lading.executors.store import JobRow, metadata

    table = JobRow.__table__
    metadata.create_all(engine)
    indices = list(table.indexes)
    with engine.begin() as connection:
        for index in indices:
            index.drop(connection)
        rows = base_rows(now)
        connection.execute(insert(table), rows)
        numbers = [{"n": number} for number in range(1, max(2, jobs // BASE))]
        connection.execute(text("CREATE TABLE lading_numbers (n INTEGER)"))
        connection.execute(text("INSERT INTO lading_numbers VALUES (:n)"), numbers)
        step = DAYS * 86400.0 / len(numbers)
        n: Any = literal_column("lading_numbers.n")
        as_text = func.concat if engine.dialect.name != "sqlite" else lambda *parts: sum_of(parts)
        changed: dict[str, Any] = {
            name: table.c[name] - n * step for name in ("queued_at", "placed_at", "started_at", "ended_at")
        }
        changed |= {name: as_text(table.c[name], "-", n) for name in ("token", "subject", "native_id")}
        changed |= {"run_id": as_text("scheduled__", n), "changed_at": changed["ended_at"]}
        names = list(rows[0])
        copies = select(*(changed.get(name, table.c[name]) for name in names)).select_from(
            table, text("lading_numbers")
        )
        connection.execute(insert(table).from_select(names, copies))
        old = now - 30 * 86400
        rare = [
            {**row, "token": f"rare{row['token']}", "dag_id": "rare", "task_id": "once", "queued_at": old + number,
             "started_at": old + number + 5, "ended_at": old + number + 60}
            for number, row in enumerate(rows[:100])
        ]  # fmt: skip
        connection.execute(insert(table), rare)
        connection.execute(text("DROP TABLE lading_numbers"))
        for index in indices:
            index.create(connection)
    if engine.dialect.name == "sqlite":
        return  # nothing ever has it analyse a table
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("ANALYZE TABLE lading_job" if engine.dialect.name == "mysql" else "ANALYZE"))


def sum_of(parts: Any) -> Any:
    """Texts one after the other, as SQLite has it."""
    from sqlalchemy import String, cast, literal

    first, *others = (cast(literal(part) if isinstance(part, str) else part, String) for part in parts)
    for each in others:
        first = first.concat(each)
    return first


def questions(session: Session, now: float) -> dict[str, Callable[[], BaseModel]]:
    from lading.plugin.ui.queries.explorer import JobChoice, find_jobs
    from lading.plugin.ui.queries.failures import failures
    from lading.plugin.ui.queries.now import summary, waits
    from lading.plugin.ui.queries.sight import EVERYTHING, Sight

    def jobs(
        sight: Sight = EVERYTHING, sort: Any = "queued", order: Any = "desc", after: str | None = None, **choice: Any
    ) -> Any:
        return lambda: find_jobs(session, sight, JobChoice(**choice), now, sort, order, 50, after)

    middle = f"{now!r}:{now - 20 * 86400!r}:x"
    day, month = now - 86400, now - 30 * 86400
    return {
        "all, youngest first": jobs(),
        "all, oldest first": jobs(order="asc"),
        "all, a page in the middle": jobs(after=middle),
        "all, by USD": jobs(sort="usd"),
        "all, by wait": jobs(sort="waited"),
        "all, by end": jobs(sort="ended"),
        "of a day, by USD": jobs(sort="usd", since=day),
        "of a Dag": jobs(dag_id=("dag3",)),
        "of a Dag, by memory used": jobs(sort="memory_used", dag_id=("dag3",)),
        "of a task": jobs(dag_id=("dag3",), task_id="task5"),
        "of a run": jobs(dag_id=("dag3",), run_id="scheduled__77"),
        "of a rare Dag": jobs(dag_id=("rare",)),
        "of a rare Dag, failed": jobs(dag_id=("rare",), state=("failed",)),
        "of a site": jobs(site=("site4",)),
        "of a machine": jobs(location="site4-17"),
        "of a node": jobs(location="n17"),
        "failed": jobs(state=("failed",)),
        "failed by a cause": jobs(state=("failed",), cause=("node_failure",)),
        "by a cause": jobs(cause=("node_failure",)),
        "failed of a Dag and site": jobs(state=("failed",), dag_id=("dag3",), site=("site4",)),
        "failed of a rare Dag": jobs(state=("failed",), dag_id=("rare",), cause=("time_limit",)),
        "failed and succeeded of two Dags": jobs(state=("failed", "succeeded"), dag_id=("dag3", "rare")),
        "running": jobs(state=("running",)),
        "that wait for a reason": jobs(state=("queued",), reason_code=("max_allocations",)),
        "search: a task": jobs(q="task5"),
        "search: a rare task": jobs(q="once"),
        "search: a run": jobs(q="scheduled__77"),
        "search: a native id": jobs(q="1234-77"),
        "search: a node": jobs(q="n177"),
        "search: a machine": jobs(q="site4-17"),
        "search: two words": jobs(q="task5 scheduled__77"),
        "search: nothing": jobs(q="nothing"),
        "of who may read a rare Dag": jobs(Sight(frozenset({"rare"})), state=("succeeded",)),
        "search of who may read a rare Dag": jobs(Sight(frozenset({"rare"})), q="task5"),
        "failures of a day": lambda: failures(session, EVERYTHING, day, now),
        "failures of a month": lambda: failures(session, EVERYTHING, month, now),
        "summary": lambda: summary(session, EVERYTHING, now),
        "waits": lambda: waits(session, EVERYTHING, now),
    }  # fmt: skip


def bills(session: Session, now: float) -> dict[str, Callable[[], BaseModel]]:
    """What is asked for seldom."""
    from lading.executors.accounting.bill_days import SPLITS
    from lading.plugin.ui.queries.advice import savings
    from lading.plugin.ui.queries.bill import bill_page
    from lading.plugin.ui.queries.sight import EVERYTHING
    from lading.scheduling.accounting.periods import Period

    def billed(days: int, by: Period, split: Any) -> Any:
        return lambda: bill_page(session, EVERYTHING, now - days * 86400, now, by, split, now)

    spans = {Period.DAY: (30, 364), Period.WEEK: (364,), Period.MONTH: (364,)}
    asked: dict[str, Callable[[], BaseModel]] = {
        f"bill of {days} days by {by.value} and {split}": billed(days, by, split)
        for by, each in spans.items()
        for days in each
        for split in SPLITS
    }
    return asked | {"savings": lambda: savings(session, EVERYTHING, now)}


def keep_a_year(session: Session, now: float) -> None:
    """Sum up all days that are over, and make days of a year of them."""
    from lading.executors.accounting.bill_days import (
        BillDayRow,
        month_of,
        number_of,
        sum_up,
        sum_up_period,
        summed_up,
        week_of,
    )
    from lading.scheduling.accounting.periods import Period

    began, rounds = time.perf_counter(), 1
    while not sum_up(session, now):
        rounds += 1
    known = [*summed_up(session)]
    took = (time.perf_counter() - began) / len(known)
    table: Any = BillDayRow.__table__
    first = min(known)
    for day in range(first - 1, first - 326, -1):
        changed = {"day": literal(day), "week": literal(week_of(day)), "month": literal(month_of(day))}
        names = [column.name for column in table.columns]
        copied = select(*(changed.get(name, table.c[name]) for name in names))
        which = (table.c.level == "day", table.c.day == known[len(known) // 2], table.c.split != "checked")
        session.execute(insert(table).from_select(names, copied.where(*which)))
    for period in (Period.WEEK, Period.MONTH):
        for day in {number_of(each, period): each for each in range(first - 325, max(known) + 1)}.values():
            sum_up_period(session, day, period, now)
    session.commit()
    rows = session.scalar(select(func.count()).select_from(table))
    print(
        f"  {len(known)} days were summed up, each within {took * 1000:.0f} ms; {rows} rows with those of a year",
        flush=True,
    )


def measure(name: str, url: str, jobs: int) -> None:
    options = {} if url.startswith("sqlite") else {"isolation_level": "READ COMMITTED"}
    engine = create_engine(url, **options)  # type: ignore[arg-type]
    now = time.time()
    began = time.perf_counter()
    fill(engine, jobs, now)
    print(f"{name}: {jobs} jobs, made within {time.perf_counter() - began:.0f} s", flush=True)
    with Session(engine) as session:
        keep_a_year(session, now)
        asked = [(MOST_MS, each) for each in questions(session, now).items()]
        asked += [(MOST_MS_OF_BILL, each) for each in bills(session, now).items()]
        for most, (what, ask) in asked:
            times, size = [], 0
            for _ in range(ROUNDS):
                session.rollback()
                began = time.perf_counter()
                size = len(ask().model_dump_json())
                times.append((time.perf_counter() - began) * 1000)
            middle = statistics.median(times)
            mark = "  <-- slow" if middle > most else ""
            print(f"  {what:36} {middle:7.1f} ms, at most {max(times):7.1f}, {size / 1024:4.0f} KiB{mark}", flush=True)
    engine.dispose()


def main(jobs: int = 1_000_000, *names: str) -> None:
    with tempfile.TemporaryDirectory(prefix="lading-explorer-") as folder, ExitStack() as stack:
        for name, url in databases(Path(folder), stack):
            if not names or name in names:
                measure(name, url, jobs)


if __name__ == "__main__":
    end_in_order()
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000, *sys.argv[2:])
