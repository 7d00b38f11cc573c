"""What the page costs: ``python -m benchmarks.page [JOBS] [MACHINES]`` times each answer of the application.

On SQLite and PostgreSQL; the jobs are made up (see tests/services/page_data.py).
"""

from __future__ import annotations

import contextlib
import gzip
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROUNDS = 15
RANGE = 3600.0


def databases(folder: Path) -> Iterator[tuple[str, str]]:
    """The databases there are, with their URLs, one after the other."""
    from tests.services.postgres import Postgres

    yield "SQLite", f"sqlite:///{folder}/airflow.db"
    with Postgres() as postgres:
        yield "PostgreSQL", postgres.create_database("page")


def measure(name: str, jobs: int, machines: int) -> None:
    """Fill Airflow's database and time what the page asks for."""
    from airflow.utils.session import create_session
    from fastapi.testclient import TestClient

    from lading.executors.store import Change, State, apply
    from lading.plugin.ui import access
    from lading.plugin.ui.app import create_app
    from lading.plugin.ui.queries.sight import EVERYTHING
    from tests.services.page_data import seed

    now = time.time()
    with create_session(scoped=False) as session:
        seed(session, now, jobs=jobs, machines=machines, waiting=1000, seconds=RANGE)
    app = create_app()

    app.dependency_overrides[access.may_look.dependency] = lambda: None
    app.dependency_overrides[access.sight] = lambda: EVERYTHING
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
        "costs, today": ("/costs", {"since": now - 86400}),
        "packing, all": ("/packing", window),
        "packing, 100 new": ("/packing", {**window, "cursor": cursor}),
    }
    print(f"{name}: {len(whole['jobs'])} jobs, {len(whole['machines'])} machines")
    for what, (path, parameters) in asked.items():
        times, cpu = [], []
        for _ in range(ROUNDS):
            began, used = time.perf_counter(), time.process_time()
            answer = client.get(path, params=parameters)
            times.append(time.perf_counter() - began)
            cpu.append(time.process_time() - used)
        size, packed = len(answer.content), len(gzip.compress(answer.content, 5))
        middle, most = statistics.median(times) * 1000, max(times) * 1000
        words = f"{middle:7.1f} ms, at most {most:.1f}, CPU {statistics.median(cpu) * 1000:.1f} ms"
        print(f"  {what:18} {words}, {size / 1024:.0f} KiB, compressed {packed / 1024:.0f} KiB", flush=True)


def main(jobs: int = 20_000, machines: int = 300) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="lading-page-") as folder,
        contextlib.closing(databases(Path(folder))) as found,
    ):
        for number, (name, url) in enumerate(found):
            home = Path(folder) / str(number)
            environment = {
                **os.environ, "AIRFLOW_HOME": str(home), "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": url,
                "AIRFLOW__CORE__LOAD_EXAMPLES": "False", "AIRFLOW__CORE__EXECUTOR": "lading.executors.LadingExecutor",
            }  # fmt: skip
            subprocess.run(
                [sys.executable, "-m", "airflow", "db", "migrate"], env=environment, check=True, stdout=-3, stderr=-3
            )
            code = f"from benchmarks.page import measure; measure({name!r}, {jobs}, {machines})"
            subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=environment, check=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
