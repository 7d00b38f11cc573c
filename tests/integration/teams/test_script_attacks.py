"""Deferred tasks whose triggers lie: a real Airflow with teams, a real SLURM, two accounts behind a real sshd."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.services import processes
from tests.services.account import Account, NeedsRootError
from tests.services.airflow import Airflow
from tests.services.debian import MissingPackagesError
from tests.services.slurm import Slurm
from tests.services.sshd import Sshd

TEAMS = ("genomics", "imaging")
SITES = """
[sites.hpc]
kind = "slurm"
work_dir = "{folder}/{{account}}/lading"
accounting = "off"
accounts = {{"team:genomics" = "hpc_genomics", "team:imaging" = "hpc_imaging"}}
"""
VICTIM = """
from airflow.sdk import dag
from lading.operators import JobScriptOperator

@dag(schedule=None)
def victim():
    body = "id -un; echo begun; until [ -e {go} ]; do sleep 0.3; done; echo done"
    JobScriptOperator(task_id="script", site="hpc", body=body, retries=0)

victim()
"""
# Any operator of any Dag can defer with any trigger.
ATTACK = """
from airflow.sdk import BaseOperator, dag
from lading.operators.job_script_trigger import JobScriptTrigger

class Hostile(BaseOperator):
    def execute(self, context):
        dag = self.get_dag()
        dag.fileloc = dag.fileloc.replace("imaging", "genomics")  # as if it were a file of the other team
        import os
        os.environ["LADING_TEAM"] = "genomics"
        self.defer(trigger=JobScriptTrigger(**context["dag_run"].conf), method_name="done")

    def done(self, context, event):
        return str(event)

@dag(schedule=None)
def {name}():
    Hostile(task_id="hostile", retries=0)

{name}()
"""


@pytest.fixture(scope="module")
def accounts() -> Iterator[dict[str, Account]]:
    with ExitStack() as stack:
        try:
            yield {team: stack.enter_context(Account()) for team in TEAMS}
        except NeedsRootError as error:
            pytest.skip(str(error))


@pytest.fixture(scope="module")
def slurm(accounts: dict[str, Account]) -> Iterator[Slurm]:
    try:
        with Slurm(accounts["genomics"], nodes=1) as service:
            yield service
    except (MissingPackagesError, NeedsRootError) as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def airflow(accounts: dict[str, Account], slurm: Slurm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    home = tmp_path_factory.mktemp("airflow-attacks")
    bundles = [
        {
            "name": f"of_{team}",
            "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
            "kwargs": {"path": str(home / "dags" / team), "refresh_interval": 1},
            "team_name": team,
        }
        for team in TEAMS
    ]
    (home / "sites.toml").write_text(SITES.format(folder=slurm.folder))
    config: dict[str, object] = {
        "core.multi_team": True,
        "core.parallelism": 4,
        "dag_processor.dag_bundle_config_list": json.dumps(bundles),
        "lading.sites_file": home / "sites.toml",
    }
    parts = ("api-server", "dag-processor", "scheduler")
    service = Airflow(home, executor="LocalExecutor", config=config, components=parts, preloaded=True)
    with ExitStack() as stack:
        for team, account in accounts.items():
            login = stack.enter_context(Sshd(account, environment=slurm.environment))
            service.environment[f"AIRFLOW_CONN_HPC_{team.upper()}"] = login.connection()
            for folder in (slurm.folder / f"hpc_{team}", slurm.folder / f"hpc_{team}" / "lading"):
                folder.mkdir(mode=0o700)
                account.own(folder)
            dags = home / "dags" / team
            dags.mkdir(parents=True)
            (dags / f"attack_{team}.py").write_text(ATTACK.format(name=f"attack_{team}"))
        (home / "dags" / "genomics" / "victim.py").write_text(VICTIM.format(go=slurm.folder / "hpc_genomics" / "go"))
        service.migrate()
        for team in TEAMS:
            service.cli("teams", "create", team)
        stack.enter_context(service)
        for team in TEAMS:
            options = ("--team-name", team, "--skip-serve-logs")
            service.start_apart("triggerer", service.environment, home / f"triggerer-{team}.log", *options)
        try:
            yield service
        finally:
            service.stop(orphans=True)


def eventually(reached: Callable[[], object], seconds: float = 120) -> bool:
    return processes.wait_until(lambda: bool(reached()), seconds, 0.5)


def scripts(slurm: Slurm, team: str) -> set[Path]:
    return set((slurm.folder / f"hpc_{team}" / "lading" / "scripts").glob("*"))


def deferred(airflow: Airflow, dag: str, conf: dict[str, Any]) -> str:
    """A hostile run, whose task has deferred with these arguments of a trigger."""
    airflow.wait_for_dag(dag)
    run = airflow.trigger(dag, conf)
    airflow.wait_for_task(dag, run, "hostile", "deferred")
    return run


def test_a_deferred_task_has_no_run_but_its_own(airflow: Airflow, slurm: Slurm, accounts: dict[str, Account]) -> None:
    genomics, imaging = accounts["genomics"], accounts["imaging"]
    secret = genomics.write("patients.csv", "the secret of genomics\n")
    secret.chmod(0o600)
    evil = slurm.folder / "evil"
    evil.mkdir()
    evil.chmod(0o777)
    script = evil / "lading.sh"
    script.write_text(f"#!/bin/bash\nid -un >{evil}/ran_as\ncat {secret} >{evil}/stolen\n")
    script.chmod(0o755)

    airflow.wait_for_dag("victim")
    victim = airflow.trigger("victim")
    airflow.wait_for_task("victim", victim, "script", "deferred")
    assert eventually(lambda: "begun" in airflow.logs("victim", victim, "script")), airflow.log_tails()
    assert genomics.name in airflow.logs("victim", victim, "script").splitlines()
    [folder] = scripts(slurm, "genomics")
    [job] = slurm.command("squeue", "-h", "-o", "%i").split()
    its_own = {"token": folder.name, "folder": str(folder), "jobname": f"lading-{folder.name[:8]}", "job_id": job}
    its_own |= {"state": "running", "output": str(secret)}
    made_up = {"token": str(uuid.uuid4()), "folder": str(evil), "jobname": "x", "output": str(secret)}

    # By the name of the other team's account: refused.
    for record in (made_up, its_own):
        run = airflow.trigger("attack_imaging", {"site": "hpc@hpc_genomics", "record": record})
        assert airflow.wait_for_run("attack_imaging", run) == "failed"
        assert "is not allowed there" in airflow.logs("attack_imaging", run, "hostile"), record
    # By that of the cluster: its own account and its own run, of which nothing is there; that is cancelled when marked.
    attacks = [("imaging", made_up), ("imaging", its_own), ("genomics", made_up), ("genomics", its_own)]
    for team, record in attacks:
        dag, before = f"attack_{team}", scripts(slurm, team)
        run = deferred(airflow, dag, {"site": "hpc", "record": record})
        assert eventually(lambda dag=dag, run=run: "cd: " in airflow.logs(dag, run, "hostile")), record
        assert secret.read_text().strip() not in airflow.logs(dag, run, "hostile")
        airflow.rest("PATCH", f"dags/{dag}/dagRuns/{run}/taskInstances/hostile", {"new_state": "failed"})
        assert eventually(lambda team=team, before=before: scripts(slurm, team) - before), record
        [made] = scripts(slurm, team) - before
        assert eventually((made / "cancelled").exists)
    assert not (folder / "cancelled").exists()
    assert slurm.command("squeue", "-h", "-t", "RUNNING", "-o", "%i %u").split() == [job, genomics.name]
    assert sorted(each.name for each in evil.iterdir()) == ["lading.sh"], "nothing has run, and no try was made"
    (slurm.folder / "hpc_genomics" / "go").touch()
    assert airflow.wait_for_run("victim", victim) == "success"
    assert airflow.xcom("victim", victim, "script") == "done"
    assert imaging.name not in airflow.logs("victim", victim, "script")
