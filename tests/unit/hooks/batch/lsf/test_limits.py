"""In which unit LSF counts memory, and what ``airflow lading check`` says of it.

IBM Spectrum LSF Command Reference shows what the commands print; no LSF is at hand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lading.hooks.batch.lsf.system import LSF, MEMORY_UNIT
from lading.hooks.cluster.checks import checks
from lading.hooks.cluster.jobs.config import ClusterConfig
from lading.hooks.cluster.site import ClusterSite, cluster_kind
from lading.hooks.ssh.answer import CommandResult
from lading.hooks.ssh.local_transport import ShellTransport
from lading.plugin.subcommands import trial
from lading.plugin.subcommands.trial import trial_job

SHOWCONF = """\
MBD configuration at Tue Nov 24 10:27:52 2026
	LSB_SHAREDIR = /lsf/work
	LSF_CONFDIR = /lsf/conf
"""
JOB = """\

Job <114>, Job Name <L1>, User <hpc>, Project <default>, Status <DONE>, Command <#!/bin/bash; #BSUB -M 9>
Tue Nov 24 10:30:01: Submitted from host <lsf1>, CWD </home/hpc>;

 RUNLIMIT
 60.0 min of lsf1

 CORELIMIT MEMLIMIT
      0 M  {limit}
Tue Nov 24 10:30:05: Started 1 Task(s) on Host(s) <lsf1>;
"""


def config(**options: Any) -> ClusterConfig:
    table = {"kind": "lsf", "work_dir": "/w", "python": "/py", "node_cpus": 8, "node_memory": 16000}
    return ClusterConfig.model_validate({**table, "api_url": "http://api/execution/", **options})


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        (SHOWCONF, "K"),
        (f"{SHOWCONF}\tLSF_UNIT_FOR_LIMITS = MB\n", "M"),
        (f'{SHOWCONF}LSF_UNIT_FOR_LIMITS="gb"\n', "G"),
        ("Default Queues:  normal\nLSF_UNIT_FOR_LIMITS = T\n", "T"),
        ("Default Queues:  normal\nMBD_SLEEP_TIME used for calculations:  20 seconds\n", None),
        (f"{SHOWCONF}\tLSF_UNIT_FOR_LIMITS_OF_OTHERS = MB\n", "K"),
        ("", None),
    ],
)
def test_the_unit_that_is_configured(text: str, unit: str | None) -> None:
    assert MEMORY_UNIT.read(text) == unit


@pytest.mark.parametrize(
    ("limit", "mib"),
    [("500 K", 500 / 1024), ("500 M", 500.0), ("1.5 G", 1536.0), ("1 T", 2.0**20), ("2 GB", 2048.0), ("500", None)],
)
def test_the_limit_of_a_job(limit: str, mib: float | None) -> None:
    assert MEMORY_UNIT.shown(JOB.replace("{limit}", limit)) == mib
    assert MEMORY_UNIT.shown(JOB.partition(" CORELIMIT")[0]) is None
    assert MEMORY_UNIT.shown(f" MEMLIMIT\r\n   {limit} \r\n") == mib


def words(text: str, **options: Any) -> list[tuple[bool, str]]:
    found = checks.memory_checks(config(**options), LSF(), MEMORY_UNIT, CommandResult(0, text))
    return [(each.good, each.message) for each in found]


def test_a_table_with_another_unit_than_the_cluster_is_reported_with_both() -> None:
    remedy = 'set unit = "K" in [sites.NAME.memory]'
    told = f"lsf counts memory in KiB (LSF_UNIT_FOR_LIMITS), but the table of the site in MiB; {remedy}"
    assert words(SHOWCONF) == [(False, told)]
    [(good, _)] = words(SHOWCONF, memory={"per": "job", "unit": "K"})
    assert good
    assert words("") == words(SHOWCONF, memory={"per": "none"}) == []
    assert words(SHOWCONF, memory={"per": "job", "resource": "mem"}) == [], "only -M is counted so"


@pytest.mark.parametrize(
    ("limit", "unit", "told"),
    [
        ("1408 M", None, None),
        ("1.4 G", None, None),
        ("1408 K", None, ("1408 MiB of memory", "as 1 MiB: it counts in KiB", '"K" in [sites.hpc.memory]')),
        ("1408 G", None, ("as 1408 GiB: it counts in GiB", '"G" in [sites.hpc.memory]')),
        ("1408 G", "K", ("it counts in MiB", '"M" in [sites.hpc.memory]')),
        ("1408 M", "K", None),
        ("none", None, None),
    ],
)
def test_a_trial_job_shows_the_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, unit: str | None, told: tuple[str, ...] | None
) -> None:
    asked: list[Any] = []

    def run(_: Any, commands: Any, **__: Any) -> list[CommandResult]:
        asked.extend(commands)
        return [CommandResult(0, JOB.replace("{limit}", limit))]

    options = {"memory": {"per": "job", "unit": unit}} if unit else {}
    site = cluster_kind(LSF())("hpc", config(time="1h", **options), tmp_path)
    assert isinstance(site, ClusterSite)
    monkeypatch.setattr(ShellTransport, "run", run)
    envelope = trial_job("00000000-0000-4000-8000-000000000000", None, jwt=lambda *_: "", seconds=60.0)
    number = 1408 * (1024 if unit == "K" else 1)
    script = site.script(envelope)
    assert script is not None
    monkeypatch.setattr(site, "script", lambda _: MEMORY_UNIT.directive.sub(f"#BSUB -M {number}", script))
    said = site.misunderstanding({"native_id": "114[2]"}, envelope)
    assert asked == [["bjobs", "-l", "114[2]"]]
    assert (said is None) == (told is None), said
    assert all(each in str(said) for each in told or ())
    assert site.misunderstanding({}, envelope) is None, "no batch job is known"


def test_a_trial_that_was_misunderstood_has_not_gone_well(monkeypatch: pytest.MonkeyPatch) -> None:
    class Done:
        seen = ()

        def __init__(self, site: Any) -> None:
            self.jobs: list[Any] = []

        def put(self, jobs: Any) -> None:
            self.jobs = list(jobs)

        def tick(self) -> list[dict[str, Any]]:
            return [{"event": "finished", "token": job.token, "cause": None, "native_id": "7"} for job in self.jobs]

    class Site:
        message: str | None = "it counts in KiB"

        jwt_seconds = 60.0

        def trial_sizes(self) -> list[int]:
            return [1]

        def misunderstanding(self, event: Any, envelope: Any) -> str | None:
            assert (event["native_id"], event["token"]) == ("7", envelope.token)
            return self.message

    monkeypatch.setattr(trial, "SiteDriver", Done)
    monkeypatch.setattr(trial, "mint", lambda: lambda *_: "")
    site: Any = Site()
    assert trial.try_jobs(site, 60.0) == (False, "it counts in KiB")
    Site.message = None
    good, told = trial.try_jobs(site, 60.0)
    assert (good, told.startswith("a trial job ran")) == (True, True)
