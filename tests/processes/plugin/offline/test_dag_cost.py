"""`lading plan --dag DAG`: what a run will cost before it begins, with the prices of a fake EC2."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.models.dagrun import DagRun
from airflow.utils.types import DagRunType
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.store import State
from lading.plugin import hint_checks
from lading.plugin.host import AirflowHost
from lading.plugin.offline.command import main
from tests.services.ec2 import FakeEC2

# A machine of EC2, with the 15 GiB of the double's image.
USD_PER_HOUR = 36.0
VOLUMES = 15 * 0.08 / 730
BOOT, IDLE = 30, 10

DAG = """
from airflow.sdk import DAG, task
from airflow.providers.standard.operators.bash import BashOperator
from lading.operators import resources, scatter


def bash(name, **hints):
    return BashOperator(task_id=name, bash_command="true", executor_config=resources(**hints))


@task
def samples():
    return [1, 2]


@task(executor_config=resources(site="lab", cpus=1, time="30m"))
def use(number):
    return number


with DAG("genomes", default_args={"executor_config": resources(max_usd=50, hurry="fast", finish_by="06:00")}):
    first = bash("first", site="cloud", cpus=2, memory="6 GiB", time="1h")
    many = BashOperator.partial(
        task_id="many", executor_config=resources(site="cloud", cpus=2, memory="6 GiB", time="1h")
    ).expand(bash_command=["a", "b", "c"])
    first >> many
    use.override(task_id="counted").expand(number=samples())
    use.override(task_id="never_ran").expand(number=samples())
    scatter(use.override(task_id="scattered"), number=list(range(10)), chunk_size=4)
    bash("here", time="1h")
    bash("too_large", site="cloud", memory="attempt * 300 GiB")
    bash("learns", site="lab", cpus=1, memory="attempt * 1 GiB", time="1h")
    BashOperator(task_id="elsewhere", bash_command="true", executor="LocalExecutor")
"""


@pytest.fixture(scope="module")
def service() -> Iterator[FakeEC2]:
    with FakeEC2() as service:
        service.price("m5.*", USD_PER_HOUR)
        yield service


@pytest.fixture
def home(service: FakeEC2, airflow_database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """A folder with a Dag and sites, and a database in which runs may be."""
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "genomes.py").write_text(DAG)
    (tmp_path / "sites.toml").write_text(f"""
        [sites.local]
        kind = "local"
        accept_untargeted = true

        [sites.lab]
        kind = "slurm"
        work_dir = "/scratch"
        python = "/apps/python"
        node_cpus = 16
        node_memory = "32 GiB"
        api_url = "http://airflow:8080/execution/"
        usd_per_cpu_hour = 0.5

        [sites.cloud]
        kind = "ec2"
        aws_conn_id = ""
        accept_untargeted = true
        subnets = {list(service.subnets.values())}
        ami = {{x86_64 = "{service.ami["x86_64"]}"}}
        instance_types = ["m5.large"]
        expected_boot_time = {BOOT}
        idle_seconds = {IDLE}
        work_dir = "/var/lading"
        python = "/usr/bin/python3"
        user = "nobody"
        """)
    local = "airflow.dag_processing.bundles.local.LocalDagBundle"
    bundles = [{"name": "mine", "classpath": local, "kwargs": {"path": str(tmp_path / "dags")}}]
    for name, value in {
        "CORE__EXECUTOR": "lading.executors.LadingExecutor,LocalExecutor",
        "CORE__FERNET_KEY": "cGxlYXNlIGRvIG5vdCB1c2UgdGhpcyBrZXkgZXZlcjE=",
        "CORE__LOAD_EXAMPLES": "False",
        "DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(bundles),
        "LADING__SITES_FILE": str(tmp_path / "sites.toml"),
        "LADING__STATE_FOLDER": str(tmp_path / "state"),
    }.items():
        monkeypatch.setenv(f"AIRFLOW__{name}", value)
    for name, value in service.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", "")  # which Airflow leaves behind
    monkeypatch.setattr(hint_checks, "_read_sites", hint_checks._read_sites.__wrapped__)
    monkeypatch.setattr(AirflowHost, "store_fault", lambda self, session: None)  # its tables have no mark of alembic's
    return airflow_database


def ran(engine: Engine, run_id: str, task_id: str, count: int, seconds: float, conf: dict[str, Any]) -> None:
    """A run in which a task became so many jobs, each of which took so long."""
    at = 1000.0 if run_id == "old" else 2000.0
    amounts = {"cpus": 1.0, "memory": 1024, "disk": 0, "gpus": 0.0, "priority": 0, "state": State.SUCCEEDED}
    what = {"kind": "ExecuteTask", "subject": "s", "workload": "{}", "dag_id": "genomes", "run_id": run_id}
    with Session(engine) as session:
        session.add(DagRun(dag_id="genomes", run_id=run_id, run_type=DagRunType.MANUAL, conf=conf))
        for index in range(count):
            times = {"queued_at": at, "started_at": at, "ended_at": at + seconds}
            name = {"token": f"{run_id}-{index}", "task_id": task_id, "map_index": index}
            store.add_job(session, **what, **amounts, **times, **name)
        session.commit()


def shown(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert main(["plan", "--dag", "genomes", "--output", "json", *options]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_what_a_run_will_cost(home: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    ran(home, "old", "counted", 6, 7200, {"samples": 6})
    ran(home, "new", "counted", 8, 7200, {})
    found = shown(capsys)
    lines = {line["task"]: line for line in found["lines"]}
    usd = {name: line["usd"] for name, line in lines.items()}

    # Each job fills a machine; the second task takes over the first one's, and the others boot in time for it.
    price = USD_PER_HOUR + VOLUMES
    assert usd["first"] + usd["many"] == pytest.approx(price * (4 * 3600 + 3 * BOOT) / 3600, rel=0.001)
    assert usd["many"] == pytest.approx(3 * usd["first"])
    assert (lines["many"]["jobs"], lines["many"]["seconds"], lines["many"]["site"]) == (3, 3600, "cloud")

    assert (lines["counted"]["jobs"], lines["counted"]["notes"][0]) == (8, "jobs: as in run new")
    assert "14 jobs of genomes.counted" in lines["counted"]["notes"][1]
    assert usd["counted"] == pytest.approx(0.5 * 8 * lines["counted"]["seconds"] / 3600)
    assert (lines["never_ran"]["jobs"], usd["never_ran"]) == (None, None)
    assert "is known only in a run" in lines["never_ran"]["notes"][0]
    assert (lines["scattered"]["jobs"], lines["scattered"]["site"]) == (3, "lab"), "ten in chunks of four"
    assert usd["learns"] == pytest.approx(0.5)
    assert (usd["here"], lines["here"]["notes"][-1]) == (None, "site local: it has no price")
    assert "more than any site can ever give" in lines["too_large"]["notes"][0]
    assert "LocalExecutor" in lines["elsewhere"]["notes"][0]

    assert found["usd"] == pytest.approx(sum(each for each in usd.values() if each is not None))
    assert set(found["unknown"]) == {name for name, each in usd.items() if each is None}
    assert found["elsewhere"]["cloud"] > usd["first"] + usd["many"], "what may go there beside"
    assert found["max_usd"] == 50
    assert (found["hurry"], found["finish_by"], found["runs"]) == (10.0, ["06:00"], {})
    assert found["prices"]["cloud"].startswith("AWS Price List of 20")


@pytest.mark.parametrize(
    ("conf", "jobs", "words"),
    [
        ('{"samples": 6}', 6, "jobs: as in run old"),
        ("{}", 8, "jobs: as in run new"),
        ('{"samples": 7}', 8, "jobs: as in run new, which had another conf"),
    ],
)
def test_runs_with_the_same_conf_count_first(
    home: Engine, capsys: pytest.CaptureFixture[str], conf: str, jobs: int, words: str
) -> None:
    ran(home, "old", "counted", 6, 7200, {"samples": 6})
    ran(home, "new", "counted", 8, 7200, {})
    [line] = [each for each in shown(capsys, "--conf", conf)["lines"] if each["task"] == "counted"]
    assert (line["jobs"], line["notes"][0]) == (jobs, words)


@pytest.mark.usefixtures("home")
def test_the_frontier_of_a_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Two machines do what one does in less time, and one costs no more than an hour for each job and its boot."""
    plot = tmp_path / "frontier.svg"
    found = shown(capsys, "--frontier", "--plot", str(plot))
    cheap, *_, fast = found["by_hurry"]
    # An hour for the first, and for the others one after the other, or three at once.
    assert cheap["seconds"] == pytest.approx(4 * 3600 + BOOT, rel=0.01)
    assert fast["seconds"] == pytest.approx(2 * 3600 + BOOT, rel=0.01)
    assert cheap["usd"] == pytest.approx(4 * (USD_PER_HOUR + VOLUMES), rel=0.01)
    assert [each["machines"] for each in found["equal"]] == [1, 2, 3]
    assert plot.read_text().startswith("<svg")
    assert "hurry 10" in plot.read_text()
    main(["plan", "--dag", "genomes", "--frontier"])
    assert "Site cloud:" in capsys.readouterr().out


@pytest.mark.usefixtures("home")
def test_a_run_is_simulated_at_the_site_that_buys_machines_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    """One task and three behind it, an hour each, with the types and the boots of the site."""
    asked = ["simulate", "--dag", "genomes", "--compare", "forecast", "--lengths", "known", "--output", "json"]
    assert main([*asked, "--hurry", "fast"]) == 0
    found = json.loads(capsys.readouterr().out)
    [run] = found["runs"]
    assert (run["jobs"], run["unplaced"]) == (4, 0)
    assert run["makespan_seconds"] == pytest.approx(2 * 3600 + BOOT, rel=0.01)
    assert found["workflows"][0]["file"] == "genomes"
    assert main([*asked, "--starts", "0", "600", "--scale", "0.5"]) == 0
    twice = json.loads(capsys.readouterr().out)["runs"][0]
    assert (twice["jobs"], twice["makespan_seconds"] < 2 * 3600) == (8, True)
    for words in (["--dag", "genomes", "--types", "c7i.*"], ["--dag", "genomes", "--workflow", "x.json"]):
        assert main(["simulate", *words]) == 2
        assert f"--dag cannot be combined with {words[2]}" in capsys.readouterr().err


@pytest.mark.usefixtures("home")
def test_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--dag", "genomes"]) == 0
    out = capsys.readouterr().out
    assert "A run of genomes costs about " in out
    assert ", whose cost is unknown." in out
    assert (
        "That is more than max_usd, 50 USD. Once the run has cost that much, no more machines are launched for it."
    ) in out
    assert "Its hurry is 10." in out
    assert "It has to finish by: 06:00 (finish_by)." in out
    assert "If all its tasks that can run at site cloud ran there, they would cost " in out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--dag", "genome"], "--dag 'genome': there is no such Dag; similar: genomes"),
        (["--dag", "genomes", "--conf", "[1]"], "--conf is list; valid: a JSON object"),
        (["--dag", "genomes", "--conf", "{"], "--conf: Expecting"),
        (["--dag", "genomes", "--jobs", "jobs.csv"], "--dag cannot be combined with --jobs"),
        (["--conf", "{}"], "--conf needs --dag"),
        ([], "there is nothing to plan; give --jobs FILE, or --dag DAG"),
    ],
)
@pytest.mark.usefixtures("home")
def test_what_cannot_be_used_is_said(capsys: pytest.CaptureFixture[str], options: list[str], words: str) -> None:
    assert main(["plan", *options]) == 2
    assert words in capsys.readouterr().err
