"""Why a job goes where it goes, step by step."""

from __future__ import annotations

import json
import re
from argparse import Namespace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.models.dagrun import DagRun
from airflow.models.log import Log
from airflow.models.taskinstancekey import TaskInstanceKey
from airflow.utils.types import DagRunType
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.columns import hint_columns
from lading.executors.store import JobRow, LocationRow, SiteRow, State, site_rows
from lading.executors.store.gangs.terms import GangTerms
from lading.executors.store.run_rows import RunForecastRow
from lading.operators import resources
from lading.plugin.host import AirflowHost
from lading.plugin.subcommands.explain import no_job, report
from lading.scheduling.hints.hints import Hints
from lading.scheduling.model.reasons import because
from tests.clusters.sites import make_settings

SITES = """
[sites.local]
enabled = false

[sites.ten]
kind = "slurm"
work_dir = "/shared"
python = "/python"
node_cpus = 16
node_memory = "64 GiB"
accept_untargeted = true

[sites.four]
kind = "pbspro"
work_dir = "/shared"
python = "/python"
node_cpus = 8
node_memory = "64 GiB"
accept_untargeted = true

[sites.small]
kind = "slurm"
work_dir = "/shared"
python = "/python"
node_cpus = 2
node_memory = "64 GiB"
accept_untargeted = true
"""


class Known:
    """A store with three clusters."""

    def __init__(self, engine: Engine, folder: Path, text: str = SITES) -> None:
        self.settings = make_settings(folder, sites_file=folder / "sites.toml")
        (folder / "sites.toml").write_text(text)
        self.session = Session(engine)
        for position, (name, nodes, idle) in enumerate((("ten", 10, 5), ("four", 4, 3), ("small", 9, 9))):
            row = {"site": name, "name": name, "state": "up", "kind": "slurm", "seen_at": 1.0}
            self.session.add(LocationRow(cpus=1.0, memory=1, disk=0, gpus=0.0, nodes=nodes, idle_nodes=idle, **row))
            self.session.add(SiteRow(name=name, kind="slurm", position=position, limits="{}"))

    def lines(self, state: State = State.QUEUED, hints: dict[str, Any] | None = None, **columns: Any) -> list[str]:
        asked = hint_columns(Hints.from_config(resources(**(hints or {}))), self.settings)
        store.add_job(
            self.session, owner=1, token="t", kind="ExecuteTask", workload="{}", subject="", dag_id="d",
            run_id="r", state=state, priority=1, unreported=False, news=0, try_number=1,
            **{"task_id": "t", "map_index": -1, "queued_at": 0.0, **asked, **columns},
        )  # fmt: skip
        host = AirflowHost()
        host.settings = lambda: self.settings  # type: ignore[method-assign]
        return report(host, self.session, self.session.get_one(JobRow, "t"))


@pytest.fixture
def known(airflow_database: Engine, tmp_path: Path) -> Known:
    return Known(airflow_database, tmp_path)


def test_each_step_says_what_came_of_it(known: Known) -> None:
    assert known.lines(hints={"cpus": (4, 16), "memory": "1 GiB"}) == [
        "d.t, try 1, requests 16 cpus, 1 GiB memory; at least 4 cpus, 1 GiB memory",
        "1. bindings: no place is named; the sites that accept such tasks: ten, four, small",
        "2. matching:",
        "   ten: it can run there",
        "   four: it can run there",
        "   small: it can never run there: requests 4 cpus, 1 GiB memory, more than any site can ever give: "
        "the closest location, 'small' of site 'small', has 2 cpus, 65152 MiB memory, which is not enough "
        "cpus",
        "3. ranking: four (3 of 4 nodes are idle), ten (5 of 10 nodes are idle)",
        "4. rules × matches:",
        "   the full request, 16 cpus, 1 GiB memory: ten has room now",
        "   rule 'less', 8 of 16 cpus: four has room now; ten has room now",
        "   rule 'less', 4 of 16 cpus: four has room now; ten has room now",
        "5. queued: waits for its turn",
    ]


@pytest.mark.parametrize(
    ("hints", "ranking"),
    [
        ({"site": "four"}, "the hint names four"),
        ({"cpus": 9}, "only ten can run it"),
        ({"cpus": 2}, None),
    ],
)
def test_a_job_whose_place_is_certain_says_why(known: Known, hints: dict[str, Any], ranking: str | None) -> None:
    lines = known.lines(hints=hints, map_index=3)
    assert lines[0].startswith("d.t[3], try 1, requests ")
    [found] = [line.partition("ranking: ")[2] for line in lines if "ranking: " in line]
    assert found.startswith("not needed: ") == (ranking is not None)
    assert ranking is None or found == f"not needed: {ranking}"


def test_what_the_run_goes_by(known: Known) -> None:
    known.session.add(DagBundleModel(name="b"))
    known.session.flush()
    known.session.add(DagModel(dag_id="d", bundle_name="b"))
    known.session.flush()
    known.session.add(DagRun(dag_id="d", run_id="r", run_type=DagRunType.MANUAL, state="running"))
    known.session.add(RunForecastRow(dag_id="d", run_id="r", hurry=10.0, finish_by=0.0, ends_at=2400.0, at=0.0))
    known.session.flush()
    assert known.lines()[-4:-1] == [
        "5. run:",
        "   hurry 10, as its Dag says",
        "   cannot end by 1970-01-01 00:00:00 UTC: about 1970-01-01 00:40:00 UTC at the earliest",
    ]


def test_targets_are_tried_in_their_order_and_nothing_is_asked(known: Known) -> None:
    lines = known.lines(hints={"targets": ["ten/long", "four"]}, reason=because("site_full", site="four"))
    assert lines[1] == "1. bindings: its Dag, or a binding, names the targets ten/long, four"
    assert lines[5] == "3. ranking: not needed: the targets are tried in their order"
    assert "ten/long has room now; four has room now" in lines[6]
    assert lines[7] == "5. queued:"
    assert lines[8].endswith("waits: site 'four' has no room")
    assert "What to do: Add more or larger machines" in lines[9]


def test_what_a_rule_gave_is_reported_beside_what_was_wished(known: Known) -> None:
    asked = {"cpus": 16.0, "memory": 1024, "disk": 0, "gpus": 0.0, "memory_limit": 1024, "features": None}
    before = json.dumps({**asked, "capacity_type": None})
    less = because("by_rule", rule="less", asks="8 of 16 cpus")
    why = because("sent_to_next_site").with_also(because("site_full", site="ten"), less)
    lines = known.lines(
        State.RUNNING, {"cpus": (4, 16), "memory": "1 GiB"}, cpus=8.0, asked=before, rule="less", site="four",
        location="four", placed_because=why,
    )  # fmt: skip
    assert lines[0] == "d.t, try 1, requests 16 cpus, 1 GiB memory; at least 4 cpus, 1 GiB memory"
    assert not [line for line in lines if "now" in line], "what has room now had no part in it"
    assert [re.sub(r"(?<=place) for .* so far", "", line) for line in lines[-6:]] == [
        "4. policy: greedy chooses the location at site four",
        "5. decision:",
        "   site four, location four",
        "   sent here because site 'ten' has no room; by rule 'less': 8 of 16 cpus",
        "6. phases: waits for a place, from 1970-01-01 00:00:00 UTC",
        "7. running: at four/four",
    ]


def test_a_job_that_has_waited_is_explained_by_what_was_recorded(known: Known) -> None:
    at = datetime(2026, 11, 28, 12, 0, tzinfo=timezone.utc)
    key = TaskInstanceKey("d", "t", "r", 1, -1)
    for event, text, seconds in (
        ("lading waits", "waits: site 'ten' has no room", 1),
        ("lading waits", "waits: max_jobs", 120),
        ("lading asks for more", "memory 2 GiB", 130),
        ("cli_task_run", "no word of ours", 140),
        ("lading out_of_memory", "the task used 2 GiB of memory", 150),
    ):
        entry = Log(event=event, task_instance=key, extra=text)
        entry.dttm = at + timedelta(seconds=seconds)
        known.session.add(entry)
        known.session.flush()
    began = at.timestamp()
    lines = known.lines(
        State.SUCCEEDED, site="ten", location="ten", queued_at=began, placed_at=began + 287, started_at=began + 290,
        ended_at=began + 350, placed_because=because("site_full", site="four"),
    )  # fmt: skip
    text = "\n".join(lines)
    assert "has room now" not in text
    assert "waits for a place for 4 min 47 s, from 2026-11-28 12:00:00 UTC" in text
    assert "waits at its site for 3 s" in text
    assert "runs for 1 min" in text
    assert "site ten, location ten, at 2026-11-28 12:04:47 UTC" in text
    start = next(number for number, line in enumerate(lines) if "reasons it had" in line) + 1
    assert lines[start : start + 4] == [
        "   2026-11-28 12:00:01 UTC: waits: site 'ten' has no room",
        "   2026-11-28 12:02:00 UTC: waits: max_jobs",
        "   2026-11-28 12:02:10 UTC: asks for more: memory 2 GiB",
        "   2026-11-28 12:02:30 UTC: out_of_memory: the task used 2 GiB of memory",
    ]


def test_a_finished_job_has_no_advice_on_placement_but_what_it_used(
    known: Known, capsys: pytest.CaptureFixture[str]
) -> None:
    known.session.query(LocationRow).delete()
    known.settings.sites_file.write_text("not valid")
    at = datetime(2026, 11, 28, 12, 0, tzinfo=timezone.utc).timestamp()
    lines = known.lines(
        State.FAILED, {"cpus": 2, "memory": "1 GiB"}, site="ten", location="ten", node="n1", native_id="17",
        queued_at=at, placed_at=at + 1, started_at=at + 2, ended_at=at + 62, exit_code=1, cause="error", usd=0.012,
        reason=because("task_exited", exit_code=1), peak_memory=300, cpu_seconds=30.0,
    )  # fmt: skip
    assert lines == [
        "d.t, try 1, requested 2 cpus, 1 GiB memory",
        "1. decision: site ten, location ten, at 2026-11-28 12:00:01 UTC",
        "2. phases:",
        "   waits for a place for 1 s, from 2026-11-28 12:00:00 UTC",
        "   waits at its site for 1 s, from 2026-11-28 12:00:01 UTC",
        "   runs for 1 min, from 2026-11-28 12:00:02 UTC",
        "3. usage:",
        "   memory: peak 300 MiB, 1 GiB requested",
        "   cpus: 30 s of cpu time in 1 min, 2 requested",
        "   cost: 0.012 USD",
        "4. failed:",
        "   at ten/ten, node n1, batch job 17, ended at 2026-11-28 12:01:02 UTC, exit code 1",
        "   error: the task's process exited with exit code 1",
        "   What to do: Read the log of the task.",
    ]
    assert capsys.readouterr().err == "", "that no site is up does not matter any more"


def test_a_job_that_can_never_start_is_promised_nothing(known: Known) -> None:
    never = because("batch_never", queue="short", text="asks for too much time", at=1000.0)
    lines = known.lines(
        State.PLACED, site="ten", location="ten", placed_at=1.0, submitted_at=2.0, native_start=900.0, reason=never,
        reason_code="batch_never",
    )  # fmt: skip
    assert not [line for line in lines if "has room" in line]
    [start] = [line for line in lines if "expected start" in line]
    held_by = "Its batch job cannot start unless something changes: ten"
    assert start.endswith(f"expected start: none while it is held: {held_by}")
    assert "if nothing changes, it is cancelled at 1970-01-01 00:16:40 UTC" in "\n".join(lines)


def test_a_job_that_nothing_can_run_and_a_site_that_is_silent(known: Known) -> None:
    known.session.get_one(SiteRow, "ten").trouble = "it is down"
    lines = known.lines(hints={"cpus": 99})
    assert lines[6].startswith("3. refused: requests 99 cpus")
    known.session.delete(known.session.get_one(JobRow, "t"))
    known.session.flush()
    lines = known.lines(hints={"site": "ten"})
    assert "ten has none (site 'ten' could not be queried: it is down)" in lines[4]


def test_a_site_that_does_not_admit_its_account_says_why(known: Known) -> None:
    reasons = {queue: because("not_admitted", system="slurm", queue=queue or None, text="no") for queue in ("", "long")}
    known.session.get_one(SiteRow, "ten").barred = site_rows.to_text(reasons)
    lines = known.lines(hints={"cpus": 4, "memory": "1 GiB", "targets": ["ten", "ten/short", "ten/long", "four"]})
    why = "it cannot run there: site 'ten': slurm does not allow its account"
    assert lines[2:7] == [
        "2. matching:",
        f"   ten: {why}: no",
        "   ten/short: it can run there",
        f"   ten/long: {why} in queue 'long': no",
        "   four: it can run there",
    ]


LAB = """
[sites.local]
enabled = false

[sites.lab]
kind = "ssh"
work_dir = "/shared"
python = "/python"
hosts = [{ssh_conn_id = "m1", cpus = 16, memory = "64 GiB"}]
accept_untargeted = true
"""


@pytest.mark.parametrize(
    ("workers", "lines"),
    [
        (
            7,
            [
                "   its 8 waiting jobs request 30 cpus, 8 GiB memory in total",
                "   that is impossible: the 7 jobs of task 'worker' request 28 cpus, 7 GiB memory in total (4 "
                "cpus, 1 GiB memory each), and site 'lab' can never hold more than 4 of them: lab has 16 cpus, 64 "
                "GiB memory",
                "   task 'head': lab has room for 1 of 1 now",
                "   task 'worker': lab has room for 3 of 7 now",
            ],
        ),
        (
            3,
            [
                "   its 4 waiting jobs request 14 cpus, 4 GiB memory in total",
                "   task 'head': lab has room for 1 of 1 now",
                "   task 'worker': lab has room for 3 of 3 now",
            ],
        ),
    ],
)
def test_a_gang_is_explained_with_all_its_members(
    airflow_database: Engine, tmp_path: Path, workers: int, lines: list[str]
) -> None:
    known = Known(airflow_database, tmp_path, LAB)
    row = {"site": "lab", "name": "m1", "state": "up", "kind": "ssh", "seen_at": 1.0}
    known.session.add(LocationRow(cpus=16.0, memory=64 * 1024, disk=0, gpus=0.0, **row))
    terms = GangTerms("ray", tasks={"head": (), "worker": ()}).to_json()
    for number in range(workers):
        asked = hint_columns(Hints.from_config(resources(cpus=4, memory="1 GiB")), known.settings)
        store.add_job(
            known.session, owner=1, token=f"w{number}", kind="ExecuteTask", workload="{}", subject="", queued_at=1.0,
            dag_id="d", task_id="worker", run_id="r", state=State.QUEUED, priority=1, unreported=False, news=0,
            map_index=number, try_number=1, gang="g", gang_terms=terms, **asked,
        )  # fmt: skip
    found = known.lines(hints={"cpus": 2, "memory": "1 GiB"}, task_id="head", gang="g", gang_terms=terms)
    assert "4. rules × matches: the full request, 2 cpus, 1 GiB memory: lab has room for this job alone" in found
    start = found.index("5. gang 'ray':") + 1
    assert found[start : start + len(lines)] == lines
    assert found[-1] == "6. queued: waits for its turn"


@pytest.mark.parametrize(
    ("index", "indexes", "said"),
    [
        (-1, [], "Lading has no job of d.t in run r"),
        (7, [], "Lading has no job of d.t[7] in run r"),
        (7, [0, 1], "Lading has no job of d.t[7] in run r"),
        (-1, [3, 0, 11], "d.t is mapped: add the index of one of its jobs, 0 to 11"),
    ],
)
def test_a_mapped_task_is_asked_for_with_an_index(index: int, indexes: list[int], said: str) -> None:
    assert no_job(Namespace(dag_id="d", task_id="t", run_id="r", map_index=index), indexes) == said
