"""What follows from what a site says of a run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lading.hooks.batch.lsf.system import LSF
from lading.hooks.batch.pbs.pbspro import PBSPro
from lading.hooks.batch.sge.system import SGE
from lading.hooks.batch.slurm.system import SLURM
from lading.hooks.batch.system import BatchSystem, NativeJob, Profile
from lading.hooks.job_scripts import array, layout
from lading.hooks.job_scripts.run import RunRecord, SiteReport, after_question, after_submission, looked_up
from lading.hooks.job_scripts.run_store import RunStore
from lading.hooks.job_scripts.script import JobScript
from lading.hooks.polling.job_life import ShownLife, ShownPhase
from lading.hooks.ssh.answer import CommandResult

NEW = RunRecord("token", "/scratch/token", "lading-token")
LIVE = replace(NEW, job_id="7", state="submitted", submitted_at=0.0)
NOW = 1000.0


def submitted(status: int | None, stdout: str = "", stderr: str = "", record: RunRecord = NEW) -> RunRecord:
    return after_submission(record, CommandResult(status, stdout, stderr), SLURM(), NOW)


def asked(record: RunRecord = LIVE, at: float = NOW, **facts: Any) -> RunRecord:
    return after_question(record, SiteReport(**{"asked": True, **facts}), at, deadline=120, patience=10, system=SLURM())


def job(state: Any = "ended", **fields: Any) -> NativeJob:
    return NativeJob(id="7", state=state, **fields)


def test_an_answer_with_an_id() -> None:
    record = submitted(0, "answered\n7\n")
    assert (record.job_id, record.state, record.submitted_at) == ("7", "submitted", NOW)


def test_a_job_that_has_begun_needs_no_answer() -> None:
    assert submitted(0, "claimed\n7\n").job_id == "7"


def test_a_refusal_for_ever() -> None:
    record = submitted(1, "answered\n", "sbatch: error: invalid partition specified: x")
    assert (record.state, record.cause, "invalid partition" in (record.reason or "")) == (
        "failed",
        "submit_rejected",
        True,
    )


def test_a_limit_is_waited_for() -> None:
    limited = submitted(1, "answered\n", "sbatch: error: AssocMaxSubmitJobLimit")
    assert (limited.state, limited.attempt, limited.look_up) == ("queued", 2, False)


def test_an_array_that_is_too_large_for_ever_is_not_waited_for() -> None:
    """A refusal of gathered arrays may be cured by smaller ones; one of an array that a script asks for may not."""
    record = replace(NEW, elements="1-5000")
    for words in (
        "qsub: Array job exceeds server or queue size limit",
        "Job array index too large. Job not submitted.",
    ):
        system = PBSPro() if words.startswith("qsub") else LSF()
        refused = after_submission(record, CommandResult(1, "answered\n", words), system, NOW)
        assert (refused.state, refused.cause, words in str(refused.reason)) == ("failed", "submit_rejected", True)
    full = after_submission(
        record, CommandResult(1, "answered\n", "qsub: would exceed complex's per-user limit"), PBSPro(), NOW
    )
    assert (full.state, full.cause) == ("queued", None)


def test_a_submission_that_may_have_been_accepted_is_looked_up_first() -> None:
    doubtful = submitted(1, "answered\n", "sbatch: error: Socket timed out on send/recv operation")
    assert (doubtful.attempt, doubtful.look_up) == (2, True)
    found = looked_up(doubtful, [NativeJob(id="9", name="lading-token", state="pending")], SLURM())
    assert (found.job_id, found.look_up) == ("9", False)
    missing = looked_up(doubtful, [NativeJob(id="9", name="other", state="pending")], SLURM())
    assert (missing.job_id, missing.look_up) == (None, False)
    unnamed = replace(doubtful, jobname=None, given_name="solve")
    assert looked_up(unnamed, [NativeJob(id="9", state="pending")], SLURM()).job_id is None


@pytest.mark.parametrize("listed", [None, 2])
def test_an_array_was_accepted_though_its_elements_are_not_listed_one_by_one(listed: int | None) -> None:
    """An element may have ended and be forgotten, or the batch system lists the array in one row."""
    doubtful = replace(NEW, array_name="lading-array", index=3, look_up=True)
    found = looked_up(doubtful, [NativeJob(id="9", index=listed, name="lading-array", state="pending")], SGE())
    assert (found.job_id, found.array_id, found.index, found.look_up) == ("9.3", "9", 3, False)


@pytest.mark.parametrize("answer", [(None, "", "connection cut"), (0, "pending\n", ""), (None, "answered\n7", "")])
def test_no_answer_changes_nothing(answer: tuple[int | None, str, str]) -> None:
    record = submitted(*answer)
    assert (record.state, record.attempt, record.look_up, record.doubtful_since) == ("queued", 1, False, NOW)


def test_a_submission_that_has_died_is_repeated() -> None:
    record = submitted(0, "pending\n", record=replace(NEW, doubtful_since=NOW - 500))
    assert (record.attempt, record.look_up) == (2, True)


def test_states_of_the_batch_system() -> None:
    assert asked(native=job("pending", reason="wait")).reason == "wait"
    assert asked(native=job("running", nodes="n1")).nodes == "n1"
    # what an earlier start of the same job has left does not count
    assert asked(native=job("pending"), sentinel="0").state == "submitted"


def test_could_not_ask_changes_nothing() -> None:
    gone = replace(LIVE, shown=ShownLife(ShownPhase.GONE))
    assert asked(gone, asked=False, sentinel="0") == gone


@pytest.mark.parametrize(
    ("facts", "state", "cause", "exit_code"),
    [
        ({"native": job(exit_code=0), "sentinel": "0"}, "succeeded", None, 0),
        ({"native": job(exit_code=3), "sentinel": "3"}, "failed", "error", 3),
        ({"native": job(exit_code=0, cause="out_of_memory"), "sentinel": "0"}, "failed", "out_of_memory", 0),
        ({"native": job(cause="time_limit")}, "failed", "time_limit", None),
        ({"native": job(cause="cancelled")}, "cancelled", "cancelled", None),
        ({"account": job(cause="out_of_memory", exit_code=137), "sentinel": "0"}, "failed", "out_of_memory", 137),
        ({"account": job(exit_code=0), "sentinel": "5"}, "failed", "error", 5),
        ({"sentinel": "0"}, "succeeded", None, 0),
        ({"sentinel": "9"}, "failed", "error", 9),
        ({"sentinel": "271"}, "failed", "error", 271),  # ksh, of a script that a signal has ended
        ({"native": job(), "sentinel": "0"}, "succeeded", None, 0),
        ({"sentinel": "1 1795307604 1795307605 out_of_memory"}, "failed", "out_of_memory", 1),
        ({"native": job(cause="error", exit_code=1), "sentinel": "1 0 0 out_of_memory"}, "failed", "out_of_memory", 1),
        ({"sentinel": "0 1795307604 1795307605 out_of_memory"}, "succeeded", None, 0),
    ],
)
def test_ends(facts: dict[str, Any], state: str, cause: str | None, exit_code: int | None) -> None:
    record = asked(**facts)
    assert (record.state, record.cause, record.exit_code) == (state, cause, exit_code)


def test_the_accounting_knows_why_a_job_has_failed() -> None:
    failed = job(cause="error", exit_code=1)
    first = asked(native=failed, sentinel="1", accounting=True)
    assert (first.state, first.gone_since) == ("submitted", NOW)
    known = job(cause="out_of_memory", exit_code=1)
    assert asked(first, NOW + 2, native=failed, account=known, accounting=True).cause == "out_of_memory"
    unfinished = asked(first, NOW + 2, native=failed, account=job("running"), accounting=True)
    assert not unfinished.ended
    late = asked(first, NOW + 11, native=failed, sentinel="1", accounting=True)
    assert (late.cause, late.exit_code) == ("error", 1)
    assert asked(native=job(cause="time_limit"), accounting=True).cause == "time_limit", "nothing is left to be asked"


@pytest.mark.parametrize(
    ("code", "words", "sentinel", "cause"),
    [
        (137, "slurmstepd: error: Exceeded job memory limit", None, "out_of_memory"),
        (None, "slurmstepd: error: Exceeded job memory limit", None, "out_of_memory"),
        (137, "Killed", None, "error"),
        (1, "slurmstepd: error: Exceeded job memory limit", None, "error"),
        (137, "slurmstepd: error: Exceeded job memory limit", "1", "error"),
    ],
)
def test_a_script_whose_log_says_that_it_was_killed_for_its_memory(
    code: int | None, words: str, sentinel: str | None, cause: str
) -> None:
    """As slurmstepd writes it without cgroups, where accounting has no record of memory."""
    gone = replace(LIVE, shown=ShownLife(ShownPhase.GONE, NOW))
    assert asked(gone, NOW + 11, native=job(cause="error", exit_code=code), log=words, sentinel=sentinel).cause == cause


def test_a_job_that_will_never_start() -> None:
    stuck = asked(native=job("pending", cause="error", reason="Eqw"))
    assert (stuck.state, stuck.hopeless, stuck.ended) == ("submitted", True, False)
    assert not asked(stuck, native=job("running")).hopeless, "it has been mended"
    assert not asked(replace(LIVE, cancelling=True), native=job("pending", cause="error")).hopeless


def test_a_later_submission_is_gone_to_at_once() -> None:
    record = submitted(0, "newer 7\n", record=replace(NEW, doubtful_since=NOW))
    assert (record.attempt, record.doubtful_since) == (7, None)
    assert submitted(None, "newer 7\n").attempt == 1, "the answer was cut"
    for odd in ("newer\n", "newer x\n", f"newer {'9' * 5000}\n", "newer \u00b2\n"):
        assert submitted(0, odd).attempt == 1


def test_the_accounting_is_waited_for() -> None:
    record = asked(sentinel="0", accounting=True)
    assert (record.state, record.gone_since) == ("submitted", NOW)
    assert asked(record, NOW + 11, sentinel="0", accounting=True).state == "succeeded"
    assert asked(record, NOW + 1, account=job(cause="node_failure"), accounting=True).cause == "node_failure"


@pytest.mark.parametrize("facts", [{}, {"native": job()}, {"native": job(exit_code=0)}, {"account": job(exit_code=0)}])
def test_missing_is_never_success(facts: dict[str, Any]) -> None:
    record = asked(**facts)
    assert not record.ended
    assert not asked(record, NOW + 119, **facts).ended
    lost = asked(record, NOW + 121, **facts)
    assert (lost.state, lost.cause) == ("failed", "lost")


def test_a_job_that_is_seen_again_was_never_gone() -> None:
    gone = asked()
    assert asked(gone, NOW + 60, native=job("running")).gone_since is None


def test_the_job_that_runs_it_is_the_one_to_follow() -> None:
    assert asked(job="6", native=job("pending")).job_id == "6"
    assert layout.same_job("7", "7;cluster")
    assert layout.same_job("7.server", "7.server.domain")
    assert not layout.same_job("7", "77")
    assert layout.same_job("7;far", "7;far")
    assert not layout.same_job("7;far", "7;near")


def test_a_cancellation_by_somebody_else_says_so() -> None:
    gone = {"native": job(cause="cancelled")}
    assert asked(**gone).reason == "the batch job was cancelled (not by Lading)"
    assert asked(**gone, cancelled=True).reason == "the batch job was cancelled"


def test_what_we_have_cancelled_was_cancelled() -> None:
    record = asked(replace(LIVE, cancelling=True), native=job(exit_code=143))
    assert (record.state, record.cause) == ("cancelled", "cancelled")
    assert asked(replace(LIVE, cancelling=True), native=job(exit_code=0), sentinel="0").state == "succeeded"


def test_records_survive_json() -> None:
    assert RunRecord.from_json(LIVE.to_json()) == LIVE
    killed = replace(LIVE, exit_code=-15, ended_at=NOW)
    assert RunRecord.from_json(killed.to_json()) == killed
    gone = asked(asked(native=job("pending")), NOW + 1)
    assert RunRecord.from_json(json.loads(json.dumps(gone.to_json()))) == gone


def test_a_record_of_before_the_first_version_can_still_be_read() -> None:
    former = {"gone_since": 1.0, "never_since": None, "strange_since": None, "waited": True, "not_before": 2.0}
    saved = {key: value for key, value in LIVE.to_json().items() if key != "shown"} | former
    assert RunRecord.from_json(saved) == LIVE, "the next look at the batch system tells the rest"


def test_the_first_to_save_wins(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")
    assert store.load("k") is None
    assert store.create("k", {"a": 1}) == {"a": 1}
    assert store.create("k", {"a": 2}) == {"a": 1}
    store.save("k", {"a": 3})
    assert store.load("k") == {"a": 3}
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["k.json"]
    assert (tmp_path / "runs").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "runs" / "k.json").stat().st_mode & 0o777 == 0o600
    store.remove("k")
    assert store.load("k") is None


def test_living_runs(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")
    assert store.living() == frozenset()
    for state in ("queued", "submitted", "running", "succeeded", "failed", "cancelled"):
        store.save(state, {"record": replace(LIVE, token=state, state=state).to_json()})
    (store.folder / "damaged.json").write_text("{")
    assert store.living() == {"queued", "submitted", "running"}


BEGAN = 1_795_307_000


@pytest.mark.parametrize(
    ("time", "sentinel", "cause"),
    [
        (60, f"143 {BEGAN} {BEGAN + 61}", "time_limit"),
        (60, f"143 {BEGAN} {BEGAN + 60}", "time_limit"),
        # The shell of the job began before the script, and both times are whole seconds.
        (60, f"143 {BEGAN} {BEGAN + 58}", "time_limit"),
        (60, f"143 {BEGAN} {BEGAN + 50}", "cancelled"),
        # SLURM counts minutes.
        (61, f"143 {BEGAN} {BEGAN + 70}", "cancelled"),
        (61, f"143 {BEGAN} {BEGAN + 120}", "time_limit"),
        (None, f"143 {BEGAN} {BEGAN + 60}", "cancelled"),
        (60, "143", "cancelled"),
        (60, f"7 {BEGAN} {BEGAN + 60}", "error"),
    ],
)
def test_sigterm_at_the_time_limit_where_no_history_is_kept(time: int | None, sentinel: str, cause: str) -> None:
    record = asked(replace(LIVE, state="running", time=time, shown=ShownLife(ShownPhase.GONE)), sentinel=sentinel)
    assert record.cause == cause
    assert asked(replace(record, state="running", cancelling=True), sentinel=sentinel).state == "cancelled"


def test_an_element_has_asked_for_the_time_of_its_array() -> None:
    array = replace(NEW, job_id="7", elements="1-3", time=60)
    assert array.element(2, SLURM()).time == 60


def test_what_can_never_start_as_things_are_has_failed_after_a_while() -> None:
    waits = NativeJob(id="7", state="pending", reason="Can Never Run", never=True)
    run = asked(native=waits)
    assert (run.state, run.hopeless) == ("submitted", False)
    assert not asked(run, NOW + 899.0, native=waits).hopeless
    assert asked(run, NOW + 900.0, native=waits).hopeless
    mended = asked(run, NOW + 10.0, native=replace(waits, never=False))
    assert not asked(mended, NOW + 900.0, native=waits).hopeless


def test_a_run_that_others_have_cancelled_is_one_that_is_to_be_cancelled_again() -> None:
    run = asked(native=NativeJob(id="7", state="running"), cancelled=True)
    assert run.is_shown_although_cancelled


def test_a_script_that_ran_to_its_limit_waits_for_the_accounting_whatever_its_exit_status() -> None:
    """OpenLava calls one DONE that traps the signal; its history has the times."""
    live = replace(LIVE, time=60, shown=ShownLife(ShownPhase.GONE, NOW))
    done = NativeJob(id="7", state="ended", exit_code=0)
    facts: dict[str, Any] = {"native": done, "accounting": True, "sentinel": "0 1700000100 1700000161"}
    assert not asked(live, **facts).ended
    ended = asked(live, **facts, account=replace(done, cause="time_limit", exit_code=None))
    assert (ended.state, ended.cause) == ("failed", "time_limit")
    assert asked(live, NOW + 10.0, **facts).state == "succeeded"


@pytest.mark.parametrize(
    ("system", "native", "expected"),
    [
        (PBSPro(), {}, ["#PBS -r n"]),
        (PBSPro(), {"r": "y"}, ["#PBS -r y"]),
        (SLURM(), {}, ["#SBATCH --no-requeue"]),
        (SLURM(), {"requeue": True}, ["#SBATCH --requeue"]),
        (SGE(), {}, ["#$ -r n"]),
    ],
)
def test_a_script_is_not_begun_twice_unless_its_author_says_so(
    system: BatchSystem, native: dict[str, Any], expected: list[str]
) -> None:
    script = JobScript("true", **native)
    files = layout.files(script, system, Profile(), "/scratch/token", jobname="lading-1")
    assert requeueing(files[layout.WRAPPER], system) == expected


def requeueing(text: str, system: BatchSystem) -> list[str]:
    """The directives of a batch script that say whether it may be started again."""
    lines = [line for line in text.splitlines() if line.startswith(system.prefix)]
    return [line for line in lines if "requeue" in line or " -r " in line]


@pytest.mark.parametrize(
    ("system", "native", "expected"),
    [
        (PBSPro(), {}, ["#PBS -r y"]),  # qsub: cannot submit non-rerunable Array Job
        (SLURM(), {}, ["#SBATCH --no-requeue"]),
        (SLURM(), {"requeue": True}, ["#SBATCH --requeue"]),
        (SGE(), {}, ["#$ -r n"]),
    ],
)
def test_nor_is_an_array_where_the_batch_system_takes_that(
    system: BatchSystem, native: dict[str, Any], expected: list[str]
) -> None:
    of_its_own = JobScript("true", array="1-3", **native)
    files = layout.files(of_its_own, system, Profile(), "/scratch/token", jobname="lading-1")
    assert requeueing(files[layout.WRAPPER], system) == expected
    shared = array.shared(JobScript("true", **native), system, "a task")
    assert shared is not None
    runs = [replace(NEW, token=f"t{number}", shared=shared.to_json()) for number in range(2)]
    gathered, _ = array.form(runs, "/scratch/array", "lading-2", system, Profile())
    assert requeueing(gathered.script, system) == expected


@pytest.mark.parametrize("status", ["321", "99999999999", "-1", "nine"])
def test_a_status_that_no_process_can_have_is_no_status(status: str) -> None:
    """A script can write into its own folder."""
    assert layout.sentinel(f"{status} 1795307604 1795307605") is None
    assert asked(native=job(exit_code=0), sentinel=f"{status} 1 2").exit_code in (None, 0)


@pytest.mark.parametrize(
    "values", [{"exit_code": 2**31}, {"exit_code": -(2**31)}, {"started_at": float("inf")}, {"ended_at": float("nan")}]
)
def test_a_record_with_an_implausible_number_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(values))):
        RunRecord.from_json(LIVE.to_json() | values)
