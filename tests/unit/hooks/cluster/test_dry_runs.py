"""What a cluster is asked about batch jobs before they are submitted, and what is concluded from its answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from lading.hooks.batch.slurm.system import SLURM
from lading.hooks.cluster.checks import dry_runs
from lading.hooks.cluster.jobs.config import ClusterConfig
from lading.hooks.site import RequestRefusal
from lading.hooks.spool.spool import Envelope
from lading.hooks.ssh.answer import CommandResult, TransportError
from lading.hooks.ssh.steps import RunCommand
from lading.scheduling.model.resources import Resources

CONFIG = ClusterConfig(
    kind="slurm", work_dir="/w", python="/p", node_cpus=8, node_memory=16000, api_url="http://airflow.invalid/"
)
NODES = "batch*|8|16000|4|idle\nshort|8|16000|4|idle\nPartitionName=short MaxTime=00:05:00 MaxNodes=4 TotalNodes=4\n"
UNSURE = "allocation failure: Requested node configuration is not available\n"


class Cluster:
    """Answers like SLURM.

    :param said: to dry runs, by a part of the script; no answer to others that have none of these parts
    :param answers: whether it can be reached
    """

    def __init__(self, said: dict[str, str], *, answers: bool = True) -> None:
        self.said, self.answers = said, answers
        self.trips: list[int] = []

    def exchange(self, steps: Sequence[RunCommand], timeout: float = 60.0) -> list[CommandResult]:
        if steps:
            self.trips.append(len(steps))
        return [self._answer(step) if self.answers else CommandResult(None, "", "unreachable") for step in steps]

    run = exchange

    def _answer(self, step: RunCommand) -> CommandResult:
        command = str(step.command)
        if "--test-only" in command:
            assert step.stdin is not None
            script = step.stdin.decode()
            refusal = next((text for part, text in self.said.items() if part in script), "")
            return CommandResult(1 if refusal else 0, "", refusal)
        return CommandResult(0, "gpu:a100:4,lscratch:100\n" if "%G" in command else NODES if "%P" in command else "")


def job(**given: Any) -> Envelope:
    asked = Resources(1, 1000, 0, given.get("gpus", 0))
    others = {name: value for name, value in given.items() if name not in ("gpus", "time")}
    return Envelope("a", {}, asked, None, given.get("time"), 0, 0.0, 0.0, **others)


def ask(cluster: Cluster, *jobs: Envelope) -> list[RequestRefusal | None]:
    return dry_runs.refusals(CONFIG, SLURM(), cluster, "http://airflow.invalid/", jobs)  # type: ignore[arg-type]


def test_accepted_jobs_take_two_round_trips() -> None:
    cluster = Cluster({})
    assert ask(cluster, job(), job(queue="short", time=290), job(time=7200)) == [None] * 3
    assert cluster.trips == [1, 3]


def test_a_refusal_has_the_name_that_was_probably_meant() -> None:
    cluster = Cluster({"--partition=shrot": "allocation failure: Invalid partition name specified\n"})
    [refusal] = ask(cluster, job(queue="shrot"))
    advice = "; did you mean short? Valid: batch, short"
    said = "Invalid partition name specified"
    assert refusal == RequestRefusal(said, "slurm", True, "partition", "shrot", advice)


@pytest.mark.parametrize(
    "given", [{"native": {"gres": "lscratch:100"}}, {"gpus": 2, "gpu_type": "a100"}, {"gpus": 3}, {"queue": "short"}]
)
def test_nodes_that_are_down_are_no_fault_of_a_request(given: dict[str, Any]) -> None:
    [refusal] = ask(Cluster({"#SBATCH": UNSURE}), job(**given))
    assert refusal is not None
    assert not refusal.is_final


def test_an_unknown_message_stops_nothing() -> None:
    [refusal] = ask(Cluster({"#SBATCH": "sbatch-site: only scripts are accepted here\n"}), job())
    assert refusal is not None
    assert not refusal.is_final


@pytest.mark.parametrize(
    ("given", "gres"),
    [({"native": {"gres": "lscrach:100"}}, "lscrach:100"), ({"gpus": 2, "gpu_type": "a101"}, "gpu:a101:2")],
)
def test_what_no_node_has_is_refused_for_good(given: dict[str, Any], gres: str) -> None:
    [refusal] = ask(Cluster({"--gres": UNSURE}), job(**given))
    assert refusal is not None
    assert refusal.is_final
    assert (refusal.option, refusal.value) == ("gres", gres)


def test_a_time_beyond_the_limit_of_its_queue_is_refused_by_lading() -> None:
    cluster = Cluster({})
    [refusal] = ask(cluster, job(queue="short", time=600))
    assert refusal is not None
    assert refusal.is_final
    assert (refusal.option, refusal.system) == ("time", None)
    assert cluster.trips == [1]


def test_without_an_answer_nothing_is_concluded() -> None:
    cluster = Cluster({}, answers=False)
    with pytest.raises(TransportError, match="unreachable"):
        ask(cluster, job())
    assert cluster.trips == [1], "it is not tried again"
    with pytest.raises(TransportError, match="slurm controller"):
        ask(Cluster({"--partition": "sbatch: error: Unable to contact slurm controller\n"}), job(), job(queue="short"))


def test_a_refusal_counts_although_others_were_not_answered() -> None:
    said = {"--partition=short": "sbatch: error: Unable to contact slurm controller\n"}
    said["--partition=long"] = "allocation failure: Invalid partition name specified\n"
    assert [each is None for each in ask(Cluster(said), job(queue="short"), job(queue="long"))] == [True, False]


def test_only_some_of_many_jobs_are_asked_about() -> None:
    cluster = Cluster({})
    with pytest.raises(TransportError, match=f"only {dry_runs.MOST_DRY_RUNS} of 200"):
        ask(cluster, *(job(time=60 * minutes) for minutes in range(1, 201)))
    assert cluster.trips == [1, dry_runs.MOST_DRY_RUNS]
