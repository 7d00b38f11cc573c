"""An API server that hangs, or is away, or that has another secret; and tasks that die, with their callbacks."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from tests.services.airflow import Airflow
from tests.services.diary import Diary
from tests.services.processes import wait_until

SOURCE = """
import os, signal, time
from datetime import timedelta
from pathlib import Path
from airflow.sdk import dag, task

FOLDER = Path({folder!r})


def note(what, context):
    with (FOLDER / "callbacks").open("a") as page:
        print(context["ti"].task_id, what, file=page)


TOLD = {{f"on_{{what}}_callback": lambda context, what=what: note(what, context) for what in ("failure", "retry")}}


@dag(schedule=None)
def long():
    @task(retries=0)
    def wait():
        while not (FOLDER / "go").exists():
            time.sleep(0.1)

    wait()


@dag(schedule=None)
def many():
    @task(retries=0)
    def quick(number):
        return number

    quick.expand(number=list(range(16)))


@dag(schedule=None)
def dying():
    @task(**TOLD, retries=1, retry_delay=timedelta(0))
    def killed():
        os.kill(os.getpid(), signal.SIGKILL)

    @task(**TOLD)
    def aborted():
        os.abort()

    @task(**TOLD)
    def vanished():
        os._exit(7)

    @task(**TOLD)
    def raised():
        raise ValueError("no good")

    for each in (killed, aborted, vanished, raised):
        each()


long(), many(), dying()
"""


def hang(airflow: Airflow) -> bool:
    """Halt the API server, but not while it has the one lock of SQLite, by which everything else would hang as well."""
    os.kill(airflow.pid("api-server"), signal.SIGSTOP)
    try:
        with closing(sqlite3.connect(airflow.home / "airflow.db", timeout=5, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError:
        os.kill(airflow.pid("api-server"), signal.SIGCONT)
        return False
    return True


def test_an_api_server_that_is_away_uses_up_no_try(start_airflow: Callable[..., Airflow], tmp_path: Path) -> None:
    constants = {"lading.executors.agent.running.SECONDS_UNTIL_REPORTED": 1.0}
    airflow = start_airflow(config={"workers.execution_api_timeout": 15}, constants=constants)
    airflow.add_dag("outage", SOURCE.format(folder=str(tmp_path)))

    # Tasks that die.
    dying, diary = airflow.trigger("dying"), Diary(tmp_path)
    assert airflow.wait_for_run("dying", dying) == "failed"
    died = ["killed retry", *(f"{name} failure" for name in ("killed", "aborted", "vanished", "raised"))]
    called = airflow.wait_for_callbacks("outage", lambda: len(diary.lines("callbacks")) >= len(died))
    assert called, diary.lines("callbacks")

    # Another secret than the API server's.
    answer = airflow.run("lading", "check", "local", AIRFLOW__API_AUTH__JWT_SECRET="x" * 64)
    assert answer.status == 1
    assert "rejects the task's token (403: Invalid auth token); give it the same [api_auth] jwt_secret" in answer.errors
    api_log = airflow.log_file("api-server")
    before = api_log.read_text().count("JWT")
    assert "a trial job ran" in airflow.lading("check", "local")
    assert api_log.read_text().count("JWT") == before, "it has understood all that it was asked"

    # Tasks that find no API server, or one that hangs.
    long = airflow.trigger("long")
    airflow.wait_for_task("long", long, "wait", "running")
    runs = []
    for hangs in (True, False):
        if hangs:
            assert wait_until(lambda: hang(airflow), 60, 0.1)
        else:
            airflow.kill("api-server")
        runs.append(f"outage{len(runs)}")
        airflow.cli("dags", "trigger", "many", "-r", runs[-1])

        def waiting(run: str = runs[-1]) -> bool:
            with closing(sqlite3.connect(f"file:{airflow.home}/airflow.db?mode=ro", uri=True, timeout=60)) as database:
                query = "select count(*) from lading_job where run_id = ? and reason_code = 'api_away'"
                return bool(database.execute(query, [run]).fetchone()[0])

        try:
            # A command each second would keep the machine busy.
            assert wait_until(waiting, 120, 0.5), airflow.lading("jobs")
            jobs = json.loads(airflow.lading("jobs", "--limit", "1000", "-o", "json"))
            assert any("Airflow's API server has not answered since" in (job["reason"] or "") for job in jobs), jobs
        finally:
            if hangs:
                os.kill(airflow.pid("api-server"), signal.SIGCONT)
        if not hangs:
            airflow.start("api-server")
            airflow.wait_until_healthy()
        assert airflow.wait_for_run("many", runs[-1]) == "success"
    diary.write("go")
    assert airflow.wait_for_run("long", long) == "success"
    tries = [each["try_number"] for run in runs for each in airflow.task_instances("many", run)]
    tries += [each["try_number"] for each in airflow.task_instances("long", long)]
    assert tries == [1] * 33
    assert Counter(diary.lines("callbacks")) == Counter(died), "each is called once"
