"""What a site takes: from which Dags, and with which directives of its batch system."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.executors.workloads import ExecuteCallback
from airflow.models.callback import CallbackKey
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.columns import job_columns
from lading.executors.executor import job_key
from lading.executors.store import State, queue
from lading.hooks.batch.native import refuse
from lading.hooks.batch.site_config import BatchSiteConfig, NotAllowed, SiteRules
from lading.hooks.batch.system import Profile
from lading.hooks.job_scripts.profile import ProfileError, SiteOptions
from lading.hooks.job_scripts.run_site import RunSite
from lading.hooks.job_scripts.script import JobScript
from lading.plugin.manager import batch_systems
from lading.scheduling.matching.admission import Admission
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.model.job import PlannedJob as Planned
from lading.scheduling.model.location import Location
from lading.scheduling.model.resources import Resources
from lading.scheduling.placing.placement import assign
from tests.clusters.toy_batch import Toy, ToyCluster

SYSTEMS = batch_systems()
PROFILES = {"sge": Profile(parallel_environment="smp")}
OF_PBS = [
    {"W": "stagein=a@host:b"},
    {"W": "umask=077,stageout=a@host:b"},
    {"W": "'stagein=a@host:b'"},
    {"W": "StageIn=a@host:b"},
    {"stagein": "a@host:b"},
    {"u": "root"},
    {"-u": "root@host"},
]
ALWAYS = {
    "slurm": [
        *({key: "/f"} for key in ("export-file", "--export-file", "export_file", "export-f", "bbf", "--bbf", "-bbf")),
        *({key: True} for key in ("get-user-env", "--get-user-env", "get_user_env", "get-user", "ge")),
        {"get-user-env": "10L"},
    ],
    "pbspro": OF_PBS,
    "torque": [
        *OF_PBS,
        *({key: "root"} for key in ("P", "-P", "T", "D")),
        *({"W": value} for value in ("proxy_user=root", "Proxy_User=root", "umask=077,User_List=root")),
        *({"l": value} for value in ("prologue=/p", "nodes=1,Epilogue=/e")),
    ],
    "lsf": [
        *(
            {key: True}
            for key in ("Etouch", "-Etouch", "Eptouch", "fx", "f/etc/passwd", "ua@b", "xEtouch", "rxNftouch")
        ),
        *({key: "x"} for key in ("stage", "data", "hostfile", "E", "-xE", "Ef", "i", "-is", "L", "rnc")),
        *({key: True} for key in ("i/etc/passwd", "xi/etc/passwd", "is/etc/passwd", "L/bin/sh", "-xi/f")),
        {"E": "id"},
        {"-E": "id"},
        {"Ep": "id"},
        {"-Ep": "id"},
        {"f": "a > b"},
        {"u": "a@b"},
        {"-f": "a < b"},
    ],
    "sge": [
        {"stagein": "x"},
        {"u": "root"},
        {"E": "x"},
        {"@": "/f"},
        {"-@": "/f"},
        *({key: "-v /:/host"} for key in ("xd", "-xd", "xdv", "xd_run_as_image_user")),
    ],
}


@pytest.mark.parametrize(("name", "native"), [(name, native) for name, each in ALWAYS.items() for native in each])
@pytest.mark.parametrize("rules", [SiteRules(), SiteRules(allowed_native=("*",))])
def test_directives_that_reach_beyond_the_job_are_taken_at_no_site(
    name: str, native: dict[str, Any], rules: SiteRules
) -> None:
    with pytest.raises(NotAllowed, match="is accepted at no site, because"):
        refuse(native, SYSTEMS[name], PROFILES.get(name, Profile()), rules)
    with pytest.raises(NotAllowed, match="is accepted at no site, because"):
        rules.check_script({key.lstrip("-"): value for key, value in native.items()}, SYSTEMS[name])


@pytest.mark.parametrize(
    ("name", "native"),
    [
        ("slurm", {"account": "a", "bb": "capacity=1", "exclusive": True, "comment": "f", "nice": "5"}),
        ("pbspro", {"A": "a", "l": "software=f", "W": "umask=077"}),
        ("torque", {"A": "a", "l": "software=f"}),
        ("lsf", {"P": "a", "R": "select[f]", "app": "E", "freq": "2", "ul": True, "Lp": "x"}),
        ("pbspro", {"P": "project"}),
        ("sge", {"P": "a", "l": "f=1,u=2"}),
    ],
)
def test_other_directives_are_taken(name: str, native: dict[str, Any]) -> None:
    refuse(native, SYSTEMS[name], PROFILES.get(name, Profile()), SiteRules())


@pytest.mark.parametrize(
    ("name", "rules", "taken", "refused"),
    [
        ("slurm", SiteRules(allowed_native=("account",)), {"A": "a", "account": "a"}, {"qos": "q"}),
        ("slurm", SiteRules(allowed_native=("-A", "mail*")), {"account": "a", "mail_type": "END"}, {"comment": "a"}),
        ("slurm", SiteRules(allowed_native=()), {}, {"account": "a"}),
        ("slurm", SiteRules(refused_native=("reservation",)), {"account": "a"}, {"reserv": "x"}),
        ("slurm", SiteRules(refused_native=("account",)), {"qos": "a"}, {"A": "x"}),
        ("slurm", SiteRules(refused_native=("res*",)), {"qos": "a"}, {"reservation": False}),
        ("pbspro", SiteRules(allowed_native=("software",)), {"software": "x", "l": "software=x"}, {"l": "arch=x"}),
        ("pbspro", SiteRules(refused_native=("arch",)), {"l": "software=x"}, {"l": "software=x,arch=y"}),
        ("pbspro", SiteRules(refused_native=("arch",)), {"arch2": "x"}, {"l": "'arch=y'"}),
        ("lsf", SiteRules(allowed_native=("R",)), {"R": "select[big]"}, {"app": "x"}),
    ],
)
def test_a_site_says_which_directives_it_takes(
    name: str, rules: SiteRules, taken: dict[str, Any], refused: dict[str, Any]
) -> None:
    for key, value in taken.items():
        rules.check_native({key: value}, SYSTEMS[name])
    with pytest.raises(NotAllowed, match=r"is not accepted here: (allowed|refused)_native = \["):
        rules.check_native(refused, SYSTEMS[name])


def test_a_site_says_which_dags_it_takes() -> None:
    rules = SiteRules(allowed_dags=("etl_*", "report?"))
    for dag in ("etl_", "etl_x", "report1", None):
        rules.check_dag("hpc", dag)
    for dag in ("etl", "ETL_x", "report", "x\netl_"):
        with pytest.raises(NotAllowed, match=r"site 'hpc' has allowed_dags = \['etl_\*', 'report\?'\]"):
            rules.check_dag("hpc", dag)


@pytest.mark.parametrize(("data", "dag"), [({"dag_id": "etl_x"}, "etl_x"), ({"dag_id": "other"}, "other"), ({}, "")])
def test_a_callback_goes_only_where_its_dag_may_and_one_that_names_none_where_all_may(
    data: dict[str, str], dag: str
) -> None:
    callback = {"id": "c", "fetch_method": "import_path", "data": {"path": "os.getpid", "kwargs": {}, **data}}
    parts = {"token": "", "dag_rel_path": "d.py", "bundle_info": {"name": "b"}, "log_path": "l", "callback": callback}
    columns = job_columns(ExecuteCallback.model_validate(parts))
    assert columns["dag_id"] == dag
    assert job_key(store.JobRow(**columns)) == CallbackKey(id="c")


@pytest.mark.parametrize("turn", range(3))
def test_many_jobs_of_a_dag_hide_none_of_another_that_can_run_elsewhere(
    turn: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "MOST_JOBS_PER_TICK", 5)
    engine = create_engine(f"sqlite:///{tmp_path}/store.db")
    store.metadata.create_all(engine)
    with Session(engine) as session:
        for number, dag in enumerate([*["alpha"] * 8, None, "beta"]):
            asked = {"cpus": 1.0, "memory": 100, "disk": 0, "gpus": 0.0}
            store.add_job(
                session, owner=1, token=f"{number}{dag}", dag_id=dag, kind="ExecuteTask", workload="{}", subject="",
                queued_at=float(number), state=State.QUEUED, priority=1, unreported=False, news=0, map_index=-1,
                try_number=1, **asked,
            )  # fmt: skip
        session.commit()
        jobs = queue.waiting(session, turn, by_dag=True)
        assert {job.dag_of_shape for job in queue.waiting(session, turn)} == {None}, (
            "without rules all are of one shape"
        )
    node = Location("node", Resources(4, 4000))
    busy = node.given([Planned(f"x{i}", Resources(1, 100)) for i in range(8)])
    one = SiteView(name="one", locations=[busy], possible=[node], admission=Admission(("alpha",)))
    two = SiteView(name="two", locations=[node], possible=[node], admission=Admission(("beta",)))
    found = assign(jobs, [one, two], now=0.0)
    assert [token for token, (site, _) in found.placed.items() if site == "two"] == ["8None", "9beta"]


def test_job_scripts_are_checked_before_they_are_submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = SiteOptions.of_table({"allowed_dags": ["etl"], "refused_native": ["qos"]}, "hpc")
    site = RunSite("hpc", Toy(), options=options, given_transport=ToyCluster(tmp_path))
    site.admitted(JobScript("true", account="a", mem=5), "etl")
    site.admitted(JobScript("true"), None)
    with pytest.raises(NotAllowed, match="Dag 'other' is not allowed there: site 'hpc'"):
        site.admitted(JobScript("true"), "other")
    with pytest.raises(NotAllowed, match="qos is not accepted here"):
        site.admitted(JobScript("true", qos="a"), "etl")
    for empty in (None, ""):  # it takes the site's own away
        site.admitted(JobScript("true", qos=empty), "etl")
    with pytest.raises(NotAllowed, match="bbf is accepted at no site"):
        site.admitted(JobScript("true", bbf="/f"), "etl")


@pytest.mark.parametrize("given", ["etl", 5, [1], {"a": 1}])
def test_rules_that_are_no_lists(given: object) -> None:
    with pytest.raises(ProfileError, match=r"allowed_dags = .*: a list of texts is expected"):
        SiteOptions.of_table({"allowed_dags": given}, "hpc")


def test_a_large_question_is_asked_more_seldom_and_one_to_the_accounting_counts() -> None:
    config = BatchSiteConfig()
    after = [config.seconds_after_questions(*each) for each in ((1, 1000), (2, 1000), (1, 1001), (2, 1001))]
    assert after == [5.0, 10.0, 15.0, 30.0]
    assert config.model_copy(update={"max_poll_interval": 3}).seconds_after_questions(1, 1001) == 3, "as the table says"
