"""The trial jobs of ``airflow lading check`` on a cluster, and what is reported when one does not end well."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lading.hooks.api_tunnel.address import OPTION, VARIABLE
from lading.hooks.batch.slurm.system import SLURM
from lading.hooks.batch.system import NativeJob
from lading.hooks.cluster.checks import checks
from lading.hooks.cluster.checks.diagnosis import TrialSighting, explain
from lading.hooks.cluster.checks.early_request import MARK, URL, NoAnswerError, ask
from lading.hooks.cluster.jobs.config import ClusterConfig
from lading.hooks.cluster.jobs.layout import ClusterFolder
from lading.hooks.cluster.jobs.tracker import Submission, TrackedBatchJob
from lading.hooks.cluster.site import ClusterSite, cluster_kind
from lading.hooks.deployment.airflow import AIRFLOW
from lading.hooks.files.owner import Owner
from lading.hooks.site import Check
from lading.hooks.ssh.answer import CommandResult
from lading.hooks.ssh.local_transport import ShellTransport
from lading.plugin.subcommands import trial
from lading.plugin.subcommands.trial import trial_job, trial_jobs, trial_text, try_jobs
from tests.clusters.paper import Paper
from tests.services.execution_api import ExecutionApi

TABLE = {"kind": "slurm", "work_dir": "/w", "python": "/py", "node_cpus": 8, "node_memory": 16000}


def config(**options: Any) -> ClusterConfig:
    return ClusterConfig.model_validate({**TABLE, **options})


class Healthy(ExecutionApi):
    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        super().answer(method, path, body)
        return (200, {"status": "healthy"}) if path == "/execution/health" else (404, {})


# -- what is asked before a job is tried


def before_a_trial(paper: Paper, owner: Owner) -> dict[str, Check]:
    transport = ShellTransport(setup=paper.config.login_setup)
    return {each.what: each for each in checks.cluster_checks(paper.config, SLURM(), transport, "http://api/", owner)}


def test_jobs_that_have_ended_do_not_count(tmp_path: Path) -> None:
    paper = Paper(tmp_path)
    states = ("RUNNING", "PENDING", "COMPLETING", "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT")
    paper.write("queue", "".join(f"{number}|{state}|n1|None|x\n" for number, state in enumerate(states, 1)))
    found = before_a_trial(paper, Owner.from_key(*AIRFLOW.identity()))["batch system"]
    assert (found.good, found.message) == (True, "slurm answers; 3 jobs of this user wait or run")


def test_a_folder_of_another_deployment_is_refused_with_both_names(tmp_path: Path) -> None:
    paper = Paper(tmp_path)
    ours, theirs = (
        Owner.from_key("key", "", "https://airflow.example.org"),
        Owner.from_key("another", "", "http://laptop:8080"),
    )
    assert before_a_trial(paper, ours)["work_dir"].good
    assert list(paper.root.iterdir()) == [], "a look marks nothing"
    paper.poller.owner = ours
    paper.go()
    assert before_a_trial(paper, ours)["work_dir"].good
    found = before_a_trial(paper, theirs)["work_dir"]
    assert not found.good
    assert f"another deployment of Lading, {ours.name} ({ours.ids[0]}), and this one is {theirs.name}" in found.message


# -- the early request


def test_an_api_that_is_well(tmp_path: Path) -> None:
    with Healthy() as api:
        ask(api.url, None)
        ask(api.url.rstrip("/"), None)
        address = tmp_path / "address"
        address.write_text(f"127.0.0.1 {api.url.split(':')[2].partition('/')[0]}\n")
        ask("http://airflow.invalid/execution/", address)
        assert {path for _, path, _ in api.requests} == {"/execution/health"}


@pytest.mark.parametrize(
    ("url", "words", "line"),
    [
        (
            "http://airflow.invalid:8080/execution/",
            "cannot resolve the name 'airflow.invalid'",
            "http://ADDRESS:PORT/execution/",
        ),
        (
            "https://airflow.invalid/execution/",
            "cannot resolve the name 'airflow.invalid'",
            "http://ADDRESS:PORT/execution/",
        ),
        ("http://127.0.0.1:1/execution/", "Connection refused; start the API server", "http://ADDRESS:PORT/execution/"),
        ("http://127.0.0.1:{port}/", "it answers 404", "http://127.0.0.1:{port}/execution/"),
        ("http://127.0.0.1:{port}", "it answers 404", "http://127.0.0.1:{port}/execution/"),
        ("ftp://x/", "is not the URL of an API", "ftp://x/execution/"),
    ],
)
def test_an_api_that_is_not_reached(monkeypatch: pytest.MonkeyPatch, url: str, words: str, line: str) -> None:
    monkeypatch.setenv(OPTION, "api_url")
    with Healthy() as api:
        port = api.url.split(":")[2].partition("/")[0]
        with pytest.raises(NoAnswerError) as caught:
            ask(url.replace("{port}", port), None)
    assert words in str(caught.value)
    assert str(caught.value).endswith(f'api_url = "{line.replace("{port}", port)}"')


def test_a_tunnel_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NoAnswerError, match=r"does not know where .*tunnel_host|does not know where"):
        ask("http://a/execution/", tmp_path / "none")


def test_it_is_a_command_without_airflow() -> None:
    environment = {**os.environ, URL: "http://127.0.0.1:1/execution/", OPTION: "api_url"}
    environment.pop(VARIABLE, None)
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "lading.hooks.cluster.checks.early_request"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout.startswith(MARK), done.stderr) == (1, True, "")
    assert time.monotonic() - began < 100


# -- what is reported


def sighting(native: NativeJob | None, output: str | None, node: str | None = "n1") -> TrialSighting:
    job = TrackedBatchJob("t", submission=Submission("L1", ["t"], "17", 0.0), native=native, node=node)
    return TrialSighting(job, "17", output)


def test_a_folder_that_is_not_shared() -> None:
    ended = NativeJob(id="17", state="ended", reason="NonZeroExitCode")
    for words in (None, "the batch job ended before its task started"):
        told = explain(config(), [sighting(ended, None)], words, 60)
        assert told.startswith(
            "batch job 17 on n1 has ended (NonZeroExitCode), and none of its output has arrived at the lo"
        )
        assert told.endswith('work_dir = "/shared/..."')
    running = NativeJob(id="17", state="running")
    told = explain(config(), [sighting(running, None)], None, 60)
    assert "batch job 17 on n1 is running" in told
    assert told.endswith('work_dir = "/shared/..."')


@pytest.mark.parametrize(
    ("ended", "node", "state"),
    [
        ({"cause": "cancelled", "reason": "the partition is down"}, None, "has ended (the partition is down)"),
        ({"cause": "node_failure", "reason": "it could not be launched"}, "n1", "has ended (it could not be launched)"),
        ({"cause": "time_limit", "exit_code": 140}, "n1", "has ended with exit code 140"),
        ({}, None, "has ended"),
        ({"cause": "error", "reason": "it has never run"}, None, "has ended (it has never run)"),
    ],
)
def test_a_job_that_could_write_nothing_does_not_blame_the_folder(
    ended: dict[str, Any], node: str | None, state: str
) -> None:
    seen = [sighting(NativeJob(id="17", state="ended", **ended), None, node)]
    name = f"batch job 17{f' on {node}' if node else ''}"
    assert explain(config(), seen, "the batch job was cancelled", 60) == f"the batch job was cancelled ({name} {state})"
    assert "work_dir" not in explain(config(), seen, None, 60)


@pytest.mark.parametrize("cause", [None, "error"])
@pytest.mark.parametrize("ran", ["node", "exit code", "seen running"])
def test_a_job_that_ran_and_wrote_nothing_blames_the_folder(cause: Any, ran: str) -> None:
    native = NativeJob(id="17", state="ended", cause=cause, exit_code=1 if ran == "exit code" else None)
    seen = sighting(native, None, "n1" if ran == "node" else None)
    if ran == "seen running":
        seen.job.see(replace(native, state="running", cause=None, exit_code=None), time.monotonic())
        seen.job.see(native, time.monotonic())
    told = explain(config(), [seen], "the batch job ended", 60)
    assert told.startswith("batch job 17")
    assert told.endswith('work_dir = "/shared/..."')


def test_the_state_and_the_last_output_of_all_are_said() -> None:
    failed = NativeJob(id="17", state="ended", cause="error", exit_code=127)
    told = explain(config(), [sighting(failed, "bash: /py: not found\n")], "the batch job ended", 60)
    assert told == (
        "the batch job ended (batch job 17 on n1 has ended with exit code 127, its last output: bash: /py: not found)"
    )
    already = "the batch job ended; its last output: bash: /py: not found"
    told = explain(config(), [sighting(failed, "bash: /py: not found\n")], already, 60)
    assert told == f"{already} (batch job 17 on n1 has ended with exit code 127)"


def test_an_api_that_the_node_does_not_reach() -> None:
    said = f"noise\n{MARK}node n1 cannot resolve the name 'x': api_url = \"http://ADDRESS:PORT/execution/\"\n"
    told = explain(config(), [sighting(NativeJob(id="17", state="ended"), said)], "the batch job ended", 60)
    assert told.startswith("batch job 17 on n1: node n1 cannot resolve the name 'x'")
    assert told.endswith('api_url = "http://ADDRESS:PORT/execution/"')


def test_a_job_that_needs_more_time() -> None:
    waiting = NativeJob(id="17", state="pending", reason="jobs with a higher priority come first")
    told = explain(config(), [sighting(waiting, None, None)], None, 60)
    assert told == (
        "the trial job did not end within 1 min: batch job 17 waits in its queue (jobs with a higher priority come "
        "first); give more time: --timeout 600"
    )
    running = NativeJob(id="17", state="running")
    told = explain(config(), [sighting(running, "importing\n")], None, 900)
    assert "batch job 17 on n1 is running, its last output: importing" in told
    assert told.endswith("--timeout 1800")
    assert "the batch system has not accepted it" in explain(config(), [], None, 60)


# -- two submissions


def test_one_of_them_is_an_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paper = Paper(tmp_path, api_url="http://api/execution/")
    site = cluster_kind(SLURM())("hpc", paper.config, paper.folder / "state").trial(tmp_path / "trial")
    assert isinstance(site, ClusterSite)
    assert site.trial_sizes() == [1, 2]
    assert trial_text([1, 2]) == "a trial job and an array of 2"
    tracked = site.poller.tracker.jobs

    def monotonic() -> float:
        """Its time is over when all jobs have been seen in the queue."""
        return 100.0 if len(tracked) == 3 and all(job.native is not None for job in list(tracked.values())) else 0.0

    monkeypatch.setattr(trial, "mint", lambda: lambda *_: "")
    monkeypatch.setattr(trial, "time", SimpleNamespace(monotonic=monotonic, sleep=time.sleep, time=time.time))
    good, told = try_jobs(site, 4.0)
    scripts = sorted((paper.read(f"script.{number}") for number in (1, 2)), key=len)
    site.close("cancel", 5.0)
    assert not good
    assert ["--array=1-2" in script for script in scripts] == [False, True]
    assert all("-m lading.hooks.cluster.checks.early_request || exit 1\n" in script for script in scripts)
    assert all("/script ] || exit 1\n" in script for script in scripts)
    assert "batch job 1 waits in its queue" in told
    assert "batch job 2_2 waits in its queue" in told
    assert told.endswith("--timeout 600")


def test_no_array_where_there_are_none(tmp_path: Path) -> None:
    paper = Paper(tmp_path, api_url="http://api/execution/", max_array_size=1)
    assert cluster_kind(SLURM())("hpc", paper.config, tmp_path / "state").trial_sizes() == [1]
    packed = config(mode="allocation")
    assert cluster_kind(SLURM())("hpc", packed, tmp_path / "state").trial_sizes() == [1]
    make = partial(trial_job, jwt=lambda subject, _: f"the JWT of {subject}", seconds=60.0)
    assert [job.time_limit for number in range(2) for job in trial_jobs(number, 2, make)] == [None, None, 300, 300]


def test_jobs_that_are_no_trial_ask_nothing_first(tmp_path: Path) -> None:
    paper = Paper(tmp_path)
    paper.give("a")
    paper.go()
    assert "early_request" not in paper.read("script.1")


# -- what a tunnel shows


class Said(ShellTransport):
    def __init__(self, answer: CommandResult) -> None:
        super().__init__()
        self.answer = answer

    def exchange(self, steps: Any, timeout: float = 60) -> list[CommandResult]:
        return [self.answer for _ in steps]


@pytest.mark.parametrize(
    ("shown", "way", "warns"),
    [("all\n", " through the tunnel", True), ("execution\n", " through it", False), ("all\n", "", False)],
)
def test_a_tunnel_that_shows_more_than_the_execution_api(shown: str, way: str, warns: bool) -> None:
    folder = ClusterFolder("/w")
    found = checks._api_answer(config(), Said(CommandResult(0, shown)), "https://a/execution/", folder, way)
    assert (found.good, found.warns) == (True, warns)
    if warns:
        assert "airflow api-server --apps execution" in found.message
        assert found.message.endswith('api_url = "https://HOST:8081/execution/"')
