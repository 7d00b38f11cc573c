"""How a batch job has ended, from all that is known: one order of trust, for tasks and for job scripts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.executors.controller.answers import change_by_event
from lading.hooks.batch import outcome
from lading.hooks.batch.outcome import Evidence, Sentinel, decide
from lading.hooks.batch.slurm.system import SLURM
from lading.hooks.batch.system import NativeJob
from lading.hooks.cluster.jobs import end_event
from lading.hooks.job_scripts import run as run_record
from lading.hooks.job_scripts.run import RunRecord, after_question
from lading.hooks.polling.job_life import ShownLife, ShownPhase
from lading.hooks.spool import job_files
from lading.hooks.spool.values import reason_of
from lading.scheduling.model.reasons import because, free_text

LATE = 1e9
CAUSES = ("out_of_memory", "time_limit", "preempted", "node_failure", "cancelled")


def job(cause: Any = None, exit_code: int | None = None, state: Any = "ended", **more: Any) -> NativeJob:
    return NativeJob(id="7", state=state, cause=cause, exit_code=exit_code, **more)


def ended(
    *, native: NativeJob | None = None, status: int | None = None, gone: float = LATE, **facts: Any
) -> tuple[str | None, int | None] | None:
    """The cause and the exit code; None: it is not known yet."""
    said = None if status is None else Sentinel.of_status(status)
    found = decide(
        Evidence(**{"native": native, "sentinel": said, "gone": gone, "patience": 10, "deadline": 120, **facts})
    )
    return None if found is None else (found.cause, found.exit_code)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        # The batch system's cause, or its accounting's, beats every exit code.
        *(({"native": job(cause, 0), "status": 0}, (cause, 0)) for cause in CAUSES),
        *(({"account": job(cause, 137), "status": 0}, (cause, 137)) for cause in CAUSES),
        ({"native": job("time_limit"), "status": 143}, ("time_limit", 143)),
        ({"native": job("error", 1), "account": job("out_of_memory", 1)}, ("out_of_memory", 1)),
        ({"native": job(None, 0), "account": job("out_of_memory"), "status": 0}, ("out_of_memory", None)),
        # Then exit codes: a failure of either is a failure.
        ({"native": job(None, 0), "status": 0}, (None, 0)),
        ({"native": job(None, 0), "status": 5}, ("error", 5)),
        ({"native": job("error", 3), "status": 0}, ("error", 3)),
        ({"native": job(None, 3), "status": 0}, ("error", 3)),
        ({"native": job("error", 3), "status": 5}, ("error", 5)),
        ({"native": job("error", 3)}, ("error", 3)),
        ({"native": job("error"), "account": job("error", 4)}, ("error", 4)),
        # Where the batch system gives no code, the sentinel decides.
        ({"native": job("error"), "status": 0}, (None, 0)),
        ({"native": job("error"), "status": 9}, ("error", 9)),
        ({"native": job(), "status": 0}, (None, 0)),
        ({"status": 0}, (None, 0)),
        ({"status": 9}, ("error", 9)),
        ({"native": job("error")}, ("error", None)),
        # Missing is never success.
        ({}, ("lost", None)),
        ({"native": job()}, ("lost", None)),
        ({"native": job(None, 0)}, ("lost", 0)),
        # A job that lives, or waits, in the accounting has not ended.
        ({"account": job(state="running"), "status": 0}, (None, 0)),
        # One that was cancelled has not failed; one that was over before has succeeded.
        ({"cancelled": True}, ("cancelled", None)),
        ({"cancelled": True, "status": 143}, ("cancelled", 143)),
        ({"cancelled": True, "native": job("error", 143)}, ("cancelled", 143)),
        ({"cancelled": True, "native": job(None, 0)}, ("cancelled", 0)),
        ({"cancelled": True, "native": job(None, 0), "status": 0}, (None, 0)),
        ({"cancelled": True, "status": 0}, (None, 0)),
        # Deleted, and forgotten by a batch system that keeps no history.
        ({"status": 143}, ("cancelled", 143)),
        ({"waited": True}, ("cancelled", None)),
        # Ended by such a one at its time limit.
        ({"status": 143, "at_limit": True}, ("time_limit", 143)),
        ({"status": 143, "at_limit": True, "cancelled": True}, ("cancelled", 143)),
        ({"status": 0, "at_limit": True}, (None, 0)),
        ({"status": 7, "at_limit": True}, ("error", 7)),
        ({"native": job("cancelled", 143), "status": 143, "at_limit": True}, ("cancelled", 143)),
        ({"waited": True, "at_limit": True}, ("cancelled", None)),
        ({"waited": True, "status": 7}, ("error", 7)),
        ({"native": job(), "status": 143}, ("error", 143)),
        # What never can start has failed.
        ({"native": job("error", state="pending")}, ("error", None)),
        # Its own supervisor has recorded why it ended it; where it has not, the batch system may have.
        ({"sentinel": Sentinel(cause="time_limit", exit_code=-15), "native": job("cancelled")}, ("time_limit", -15)),
        ({"sentinel": Sentinel(cause="cancelled", exit_code=-15), "native": job("error", 1)}, ("cancelled", -15)),
        ({"sentinel": Sentinel(cause="error", exit_code=-9), "native": job("out_of_memory")}, ("out_of_memory", -9)),
        ({"sentinel": Sentinel(cause="error", exit_code=1), "native": job("node_failure")}, ("node_failure", 1)),
        ({"sentinel": Sentinel(cause="terminated"), "native": job("preempted", 143)}, ("preempted", 143)),
        ({"sentinel": Sentinel(cause="terminated"), "native": job(None, 0)}, ("error", 0)),
        ({"sentinel": Sentinel(cause="terminated")}, ("cancelled", None)),
        ({"sentinel": Sentinel(cause="lost")}, ("lost", None)),
    ],
)
def test_the_order(facts: dict[str, Any], expected: tuple[str | None, int | None]) -> None:
    assert ended(**facts) == expected


@pytest.mark.parametrize(
    ("facts", "seconds"),
    [
        ({"native": job("time_limit")}, 0),
        ({"native": job(None, 0), "status": 0}, 0),
        ({"native": job(None, 0), "status": 0, "accounting": True}, 0),
        ({"native": job("error", 1), "status": 1, "accounting": True}, 10),
        ({"native": job("error", 1), "status": 1, "accounting": True, "account": job("error", 1)}, 0),
        ({"native": job("error", 1), "status": 1, "accounting": True, "account": job(state="running")}, 10),
        ({"native": job("error", 1), "status": 1}, 0),
        ({"native": job("error")}, 10),
        ({"status": 0}, 0),
        ({"status": 0, "accounting": True}, 10),
        ({"status": 143}, 10),
        ({}, 120),
        ({"waited": True}, 120),
        ({"native": job()}, 120),
        ({"native": job(None, 0)}, 120),
        ({"cancelled": True}, 10),
        ({"cancelled": True, "native": job("error", 143)}, 0),
        ({"sentinel": Sentinel(cause="terminated"), "native": job("error", 1)}, 10),
        ({"sentinel": Sentinel(cause="time_limit")}, 0),
    ],
)
def test_for_how_long_more_is_waited_for(facts: dict[str, Any], seconds: float) -> None:
    assert (ended(gone=0.0, **facts) is None) == (seconds > 0)
    assert seconds == 0 or ended(gone=seconds - 0.1, **facts) is None
    assert ended(gone=seconds, **facts) is not None


natives = st.none() | st.builds(
    NativeJob,
    id=st.just("7"),
    state=st.just("ended"),
    cause=st.sampled_from([None, "error", *CAUSES]),
    exit_code=st.sampled_from([None, 0, 1, 137, 143]),
    reason=st.sampled_from([None, "some words"]),
)
statuses = st.sampled_from([None, 0, 1, 137, 143])
seconds = st.sampled_from([0.0, 5.0, 50.0, LATE])


@given(natives, natives, statuses, st.booleans(), st.booleans(), st.booleans(), seconds)
def test_both_engines_give_the_same_answer(
    native: NativeJob | None,
    account: NativeJob | None,
    status: int | None,
    accounting: bool,
    cancelled: bool,
    waited: bool,
    gone: float,
) -> None:
    facts = Evidence(
        native=native,
        account=account,
        accounting=accounting,
        cancelled=cancelled,
        waited=waited,
        gone=gone,
        patience=10,
        deadline=120,
    )
    own = (
        None
        if status is None
        else {"cause": "error" if status else None, "exit_code": status, "reason": free_text("words")}
    )
    event = end_event.judged("token", facts, own)
    record = RunRecord(
        "token", "/token", job_id="7", state="submitted", shown=ShownLife(ShownPhase.GONE, ran=not waited)
    )
    said = run_record.SiteReport(
        asked=True,
        native=native,
        account=account,
        accounting=accounting,
        sentinel=None if status is None else str(status),
        cancelled=cancelled,
    )
    run = after_question(record, said, gone, deadline=120, patience=10, system=SLURM())
    assert (event is None) == (not run.ended)
    if event is not None:
        assert (event["cause"], run.state == "succeeded") == (run.cause, event["cause"] is None)


@given(natives, natives, statuses, st.booleans(), st.booleans(), seconds)
def test_nothing_succeeds_without_evidence_and_no_cause_is_left_out(
    native: NativeJob | None,
    account: NativeJob | None,
    status: int | None,
    cancelled: bool,
    waited: bool,
    gone: float,
) -> None:
    found = ended(native=native, account=account, status=status, cancelled=cancelled, waited=waited, gone=gone)
    causes = {each.cause for each in (native, account) if each is not None} & set(CAUSES)
    if found is not None and found[0] is None:
        assert status == 0
        assert causes == set()
    if causes:
        assert found is not None
        assert found[0] in causes


def test_what_is_said_of_a_job_that_lives_is_no_end() -> None:
    for state in ("pending", "running"):
        assert not outcome.has_ended(job(state=state))
        assert ended(native=job(state=state), gone=5.0) is None
    assert outcome.has_ended(job("error", state="pending"))


def own(cause: str | None, exit_code: int | None = None, words: str = "words") -> dict[str, Any]:
    return {"cause": cause, "exit_code": exit_code, "reason": reason_of(words)}


def told(
    native: NativeJob | None = None, said: dict[str, Any] | None = None, *more: str, **facts: Any
) -> dict[str, Any]:
    event = end_event.judged("a", Evidence(**{"native": native, "gone": LATE, **facts}), said, *more)
    assert event is not None
    return event


@pytest.mark.parametrize(
    ("said", "certain"),
    [
        (own(None, 0), True),
        (own("error", 1), True),
        (own("error", -9), False),
        (own("terminated"), False),
        (own("lost"), False),
        (own("cancelled"), True),
        (own("out_of_memory", -9), True),
    ],
)
def test_what_a_job_can_know_itself(said: dict[str, Any], certain: bool) -> None:
    sentinel = end_event.sentinel(said)
    assert sentinel is not None
    assert sentinel.is_certain == certain


def test_the_reason_of_an_end() -> None:
    assert str(told(job(None, 0), own("out_of_memory", -9, "its limit"))["reason"]) == "its limit"
    event = told(job(None, 0), None, "last line")
    assert (event["cause"], "its task reported nothing" in str(event["reason"])) == ("lost", True)
    assert str(event["reason"]).endswith("last output: last line")
    assert "no longer knows the job" in str(told()["reason"])
    spoilt = told(job("error", 1), own(None, 0, ""))["reason"]
    assert str(spoilt) == "the batch job ended with exit code 1, although its task succeeded"
    killed = told(job("out_of_memory", reason="step 0"), own(None, 0))["reason"]
    assert killed == because("batch_out_of_memory").with_also(because("batch_says", text="step 0"))
    assert str(killed).endswith("requested; the batch system says: step 0")


def test_who_has_cancelled_a_job() -> None:
    for native in (job("cancelled", 143), None):
        event = told(native, own("terminated"))
        assert str(event["reason"]).startswith("the batch job was cancelled, but not by Lading")
        change = change_by_event(event)
        assert change is not None
        assert change.values["state"] == "failed", "it was not requested in Airflow"
    event = told(None, own("terminated"), cancelled=True)
    change = change_by_event(event)
    assert change is not None
    assert (str(event["reason"]), change.values["state"]) == ("the batch job was cancelled", "cancelled")


def test_a_sentinel_with_a_cause_of_the_agent() -> None:
    left = {"exit_code": -15, "reason": free_text("it"), "ended_at": 1.0, "cpu_seconds": 2.0, "peak_memory": 3}
    event = job_files.of_sentinel(left, {"cause": "time_limit", "reason": free_text("too long")})
    assert (event["cause"], str(event["reason"]), event["exit_code"]) == ("time_limit", "too long", -15)
    assert job_files.of_sentinel({**left, "reason": None}, None)["cause"] is None


def test_a_task_that_airflow_did_not_let_start_has_not_failed() -> None:
    left = {
        "exit_code": 1,
        "reason": free_text("it was cleared"),
        "ended_at": 1.0,
        "cpu_seconds": 2.0,
        "peak_memory": 3,
    }
    event = told(job(None, 0), job_files.of_sentinel({**left, "cause": "cancelled"}, None))
    assert (event["cause"], event["started_at"]) == ("cancelled", None)
    change = change_by_event(event)
    assert change is not None
    assert (change.values["state"], change.values["started_at"]) == ("cancelled", None)
    assert "started_at" not in job_files.of_sentinel({**left, "cause": "error"}, None)


def test_a_run_that_waited_and_vanished_was_deleted() -> None:
    record = RunRecord("token", "/token", job_id="7", state="submitted")
    for facts, expected in (({}, "cancelled"), ({"job": "7"}, "lost"), ({"sentinel": "0"}, None)):
        held = run_record.SiteReport(asked=True, native=job(state="pending", reason="the user holds it"))
        seen = after_question(record, held, 0.0, deadline=120, patience=10, system=SLURM())
        gone = run_record.SiteReport(asked=True, **facts)
        for now in (1.0, 500.0):
            seen = after_question(seen, gone, now, deadline=120, patience=10, system=SLURM())
        assert seen.cause == expected
    fresh = after_question(
        replace(record, shown=ShownLife(ShownPhase.GONE)),
        run_record.SiteReport(asked=True),
        500.0,
        deadline=120,
        patience=10,
        system=SLURM(),
    )
    assert fresh.cause == "lost", "it was never seen"
