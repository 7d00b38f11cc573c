"""A batch system tried against a server: what is found there, and that nothing is left behind."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lading.hooks.batch.refusals import CancelError, SubmitError, Wording, any_of
from lading.hooks.batch.system import NativeJob
from lading.hooks.conformance import __main__ as command
from lading.hooks.conformance import live
from lading.hooks.conformance.live import Trial
from lading.hooks.ssh.answer import CommandResult
from tests.clusters.toy_batch import SUBMIT, Toy, ToyCluster
from tests.services import processes


class Good(Toy):
    """The toy with what a real one has: nodes, queues, messages about jobs that are gone, elements from 1."""

    first_index = 1
    no_requeue = {}  # noqa: RUF012

    def statuses(self, answer: CommandResult) -> list[NativeJob]:
        return [
            NativeJob(id=job.id, state=job.state, name=job.name, index=job.index, nodes="here")
            for job in super().statuses(answer)
        ]


class FirstAlone(Good):
    """Is queried by ids, and answers for the first alone, as a real one does."""

    def status(self, user: str, ids: Sequence[str] = ()) -> list[str]:
        return ["sh", "-c", 'toy-list | { [ $# -eq 0 ] && cat || grep -e "^ID " -e "^$1 "; }', "sh", *ids]


class Mute(Good):
    """Leaves out jobs that are gone."""

    def unknown(self, answer: CommandResult, ids: Sequence[str], *, listed: bool) -> Sequence[str]:
        return []


class Faulty(Good):
    def statuses(self, answer: CommandResult) -> list[NativeJob]:
        raise KeyError("state")


class TakesRefusals(Good):
    """Every refusal is to be tried again."""

    wording = Wording(any_of("never"), any_of("never"), any_of("no such queue"), any_of("no such job"))


class Unreadable(Good):
    def submitted(self, answer: CommandResult) -> str:
        raise SubmitError("permanent", "no id")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ToyCluster:
    monkeypatch.setattr(live.Trial, "pause", 0.1)
    monkeypatch.setattr(live.Trial, "patience", 3.0)
    toy = ToyCluster(tmp_path / "toy")
    refusing = SUBMIT.replace(
        "size=", 'if grep -q "queue=lading" "$1"; then echo "no such queue" >&2; exit 1; fi\nsize=', 1
    )
    (toy.folder / "bin/toy-submit").write_text(f"#!/bin/sh\n{refusing}")
    kill = 'cd "$TOY"; for each; do id=${each%.*}; for pid in jobs/$id/pid${each#$id}*; do kill -s KILL -- -$(cat $pid)'
    (toy.folder / "bin/toy-kill").write_text(f"#!/bin/sh\n{kill} 2>/dev/null; done; done; true\n")
    return toy


def tried(cluster: ToyCluster, system: Toy, seconds: float = 20.0) -> tuple[int, list[str]]:
    said: list[str] = []
    trial = Trial(system, cluster, f"{cluster.folder.parent}/a work", seconds=seconds, say=said.append)
    return trial.run(), said


def failures(said: Sequence[str]) -> str:
    return "\n".join(line for line in said if line.startswith("FAILED"))


def living(cluster: ToyCluster) -> str:
    return cluster.listed


def test_all_goes_well(cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live.Trial, "patience", 60.0)
    failed, said = tried(cluster, Good(), seconds=120.0)
    assert (failed, failures(said)) == (0, ""), said
    assert sum(line.startswith("ok") for line in said) == 11
    assert (living(cluster), list((cluster.folder.parent / "a work").iterdir())) == ("", [])


class Patient(Good):
    """Has jobs that never start: they live, and wait."""

    told: dict[str, Any] = {"never": True}  # noqa: RUF012

    def statuses(self, answer: CommandResult) -> list[NativeJob]:
        return [
            replace(job, state="pending", reason="Can Never Run", **self.told) if "never" in str(job.name) else job
            for job in super().statuses(answer)
        ]


class Silent(Patient):
    """Does not say that they never do."""

    told: dict[str, Any] = {}  # noqa: RUF012


@pytest.mark.parametrize(
    ("system", "wrong", "seconds"), [(Patient(), "", 120.0), (Silent(), "can never start, but is pending", 10.0)]
)
def test_a_job_that_can_never_start(
    cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch, system: Toy, wrong: str, seconds: float
) -> None:
    monkeypatch.setattr(live.Trial, "patience", 60.0)
    submit = cluster.folder / "bin/toy-submit"
    submit.write_text(submit.read_text().replace('exec setsid sh "$1"', 'exec setsid sh -c "$run" x "$1"'))
    submit.write_text(submit.read_text().replace("size=", RUN, 1))
    said: list[str] = []
    work, never = f"{cluster.folder.parent}/a work", ("after", "{failed}")
    failed = Trial(system, cluster, work, seconds=seconds, say=said.append, never=never).run()
    assert (failed, wrong in failures(said)) == (1 if wrong else 0, True), said
    assert processes.wait_until(lambda: living(cluster) == "", 10, 0.1)


# What waits for a job of a number never starts.
RUN = """run='exec sh "$1"'; if grep -q '^#TOY --after=[0-9]' "$1"; then run='exec sleep 3600'; fi
size="""


class Forgiving(Good):
    """Fails an order that is given a second time."""

    def cancelled(self, answer: CommandResult) -> None:
        if "already" in answer.stderr:
            raise CancelError(answer.message)


def test_an_order_to_cancel_that_cannot_be_repeated_is_found_out(cluster: ToyCluster) -> None:
    kill = cluster.folder / "bin/toy-kill"
    again = 'mkdir "$TOY/asked.$1" 2>/dev/null || { echo "already being ended" >&2; exit 1; }'
    kill.write_text(kill.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\n{again}\n", 1))
    failed, said = tried(cluster, Forgiving(), seconds=3.0)
    assert failed
    assert "again while it terminates counts as a failure" in failures(said), said


@pytest.mark.parametrize(
    ("system", "words"),
    [
        (FirstAlone(), r"the answer omits .*\(fails\).*in one command"),
        (Mute(), "unknown, but the class does not understand this answer.*`unknown`"),
        (Faulty(), "KeyError: 'state'"),
        (TakesRefusals(), "'transient'.*`wording.permanent`.*no such queue"),
    ],
)
def test_what_goes_wrong_is_said(cluster: ToyCluster, system: Toy, words: str) -> None:
    failed, said = tried(cluster, system, seconds=3.0)
    assert failed
    assert re.search(words, failures(said), re.DOTALL), said
    assert processes.wait_until(lambda: living(cluster) == "", 10, 0.1)


def test_nothing_can_be_tried_where_nothing_is_submitted(cluster: ToyCluster) -> None:
    failed, said = tried(cluster, Unreadable())
    assert failed == 1
    assert "no job was submitted" in said[-1]
    assert "no id" in failures(said)


def test_the_command(cluster: ToyCluster, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(live.Trial, "patience", 60.0)
    setup = f"TOY={cluster.folder} PATH={cluster.folder}/bin:$PATH; export TOY PATH"
    options = ["--work-dir", str(tmp_path / "work"), "--login-setup", setup, "--timeout", "120 s"]
    arguments = ["--live", f"{__name__}:Good", *options, "--queue", "short", "--native", "colour=red"]
    assert command.main(arguments) == 0
    assert capsys.readouterr().out.endswith("all checks passed\n")
    assert command.main(["--live", f"{__name__}:TakesRefusals", *options]) == 1
    assert capsys.readouterr().out.endswith("1 failed\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--live", "condor"], "'condor' is unknown; the systems are: slurm"),
        (["--live", "no.such:System"], "No module named 'no'"),
        (["--live", "lading.hooks.batch.slurm.system:Slurm"], "has no attribute 'Slurm'"),
        (["--live", "pathlib:Path"], "not a class derived from"),
        (["--live", "lading.hooks.batch.system:BatchSystem"], "abstract"),
        (["--live", "slurm", "--profile", "/no/such/file"], "/no/such/file cannot be read"),
        (["--live", "slurm", "--native", "=x"], "KEY=VALUE"),
        (["--live", "slurm", "--work-dir", "relative"], "work_dir = 'relative'"),
        (["--live", "slurm", "--work-dir", "/proc/nothing"], "'/proc/nothing' cannot be used"),
    ],
)
def test_wrong_options_are_one_line(arguments: list[str], words: str, capsys: Any) -> None:
    assert command.main(arguments) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["--live", "slurm", "--timeout", "soon"]])
def test_usage(arguments: list[str], capsys: Any) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(arguments)
    assert caught.value.code == 2
    assert "Traceback" not in capsys.readouterr().err
