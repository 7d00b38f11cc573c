"""Decide how a batch job ended, from all available evidence. Pure; the same order of trust for tasks and job scripts.

1. The cause for which the job's own supervisor killed it: only that process can record it.
2. The cause given by the batch system or its accounting, which record what was killed and why, whatever the exit code.
3. The exit codes given by the batch system or its accounting and by the sentinel: if either is a failure, the job
   failed.
4. The sentinel, if the batch system gives no exit code.
5. Nothing. Missing evidence is never success: after a deadline the job is lost, or cancelled where that can be
   inferred.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from typing import Literal

from lading.hooks.batch.system import NativeJob
from lading.scheduling.model.reasons import because

# Causes that mean: something outside killed the job or its task, for an unknown reason.
UNCERTAIN = frozenset({"lost", "terminated"})
# How many bytes to read from the end of a job's output.
TAIL_BYTES = 2000
# How often a job is submitted, including the first time, if nodes could not launch it or it was cancelled before it
# ran.
MOST_TRIES = 4
# Reasons for causes that the batch system reports, or about which it knows best.
REASONS = {
    "out_of_memory": because("batch_out_of_memory"),
    "time_limit": because("batch_time_limit"),
    "preempted": because("batch_preempted"),
    "node_failure": because("batch_node_failure"),
    "cancelled": because("batch_cancelled_there"),
}

By = Literal["system", "job", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentinel:
    """What a job's own files say about how it ended.

    :param cause: None: success; ``error``: it failed by itself; ``terminated``: another process sent it a termination
        signal; ``lost``: its supervisor does not know; any other: the cause for which its supervisor killed it
    :param exit_code: as a shell reports it, or the negative number of a signal; None: unknown
    """

    cause: str | None
    exit_code: int | None = None

    @classmethod
    def of_status(cls, status: int) -> Sentinel:
        """The sentinel of a script, which only leaves its exit status."""
        return cls(cause="error" if status else None, exit_code=status)

    @property
    def is_certain(self) -> bool:
        """Whether it is conclusive unless the batch system contradicts it.

        The task itself has reported a success to Airflow, or a failure with an exit code. The supervisor knows why it
        killed a task. But if another process killed it with a signal, the cause may be a different one.
        """
        if self.cause == "error":
            return (self.exit_code or 0) >= 0
        return self.cause not in UNCERTAIN

    @property
    def is_terminated(self) -> bool:
        """Whether it received a termination signal, which is what a batch system sends to a deleted job."""
        return self.cause == "terminated" or (
            self.cause == "error" and self.exit_code in (128 + signal.SIGTERM, -signal.SIGTERM)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All evidence about a job that is no longer listed as running.

    :param native: the batch system's report; None: it does not know the job
    :param account: the accounting's report; None: there is none
    :param accounting: whether the accounting may still report something
    :param sentinel: what the job's own files say; None: nothing
    :param cancelled: whether Lading was asked to cancel the job
    :param says_memory: whether the batch system wrote into the job's output that it killed the job for its memory
    :param waited: whether the job was pending when last seen, and has left no sign of having started since
    :param at_limit: whether it ran for its whole requested time, after which the batch system kills it
    :param gone: seconds since it was found to be gone
    :param patience: seconds to wait for more evidence once there is some, since files and accounting can be late
    :param deadline: seconds to wait if there is no evidence at all
    """

    native: NativeJob | None = None
    account: NativeJob | None = None
    accounting: bool = False
    sentinel: Sentinel | None = None
    cancelled: bool = False
    says_memory: bool = False
    waited: bool = False
    at_limit: bool = False
    gone: float = 0.0
    patience: float = 0.0
    deadline: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a job ended.

    :param cause: None: success
    :param exit_code: as in :class:`Sentinel`; None: unknown
    :param reason: the batch system's message
    :param by: source of the cause
    """

    cause: str | None
    exit_code: int | None = None
    reason: str | None = None
    by: By = "none"


def decide(facts: Evidence) -> Outcome | None:
    """Return how the job ended; None: undecided, and more evidence may arrive."""
    reported, said = _reported_end(facts), facts.sentinel
    if said is not None and said.cause not in {None, "error", *UNCERTAIN}:
        return Outcome(cause=said.cause, exit_code=said.exit_code, by="job")
    code = (said.exit_code if said is not None else None) or (reported.exit_code if reported is not None else None)
    if reported is not None and has_cause(reported):
        return Outcome(cause=reported.cause, exit_code=code, reason=reported.reason, by="system")
    outcome, seconds = _of_codes(facts, reported, code), _seconds(facts, reported)
    if outcome.cause is not None and facts.cancelled:
        outcome = replace(outcome, cause="cancelled")
        seconds = min(seconds, facts.patience) if reported is None else 0.0
    return None if facts.gone < seconds else outcome


def has_cause(job: NativeJob) -> bool:
    """Whether the batch system knows why a job ended, and not only that it failed."""
    return job.cause not in (None, "error")


def has_ended(job: NativeJob) -> bool:
    """Whether the batch system reports that a job has ended, or that it can never start."""
    return job.state == "ended" or job.cause is not None


def is_unclear(job: NativeJob | None) -> bool:
    """Whether the accounting may know more about a job than the batch system reports.

    For a job that was cancelled on a node, the accounting may know that the node could not launch it.
    """
    return job is None or job.state != "ended" or not has_cause(job) or (job.cause == "cancelled" and bool(job.nodes))


def _reported_end(facts: Evidence) -> NativeJob | None:
    """Return the report of the batch system or the accounting: the one with a cause, else the one with an exit code."""
    parts = [job for job in (facts.account, facts.native) if job is not None and has_ended(job)]
    if facts.says_memory and facts.sentinel is None:
        parts = [replace(job, cause="out_of_memory") if _is_killed(job) else job for job in parts]
    ranked = sorted(parts, key=lambda job: (not has_cause(job), job.exit_code is None, job.cause is None))
    return ranked[0] if ranked else None


def _is_killed(job: NativeJob) -> bool:
    return job.state == "ended" and job.cause == "error" and job.exit_code in (None, 137)


def _of_codes(facts: Evidence, reported: NativeJob | None, code: int | None) -> Outcome:
    said, reason = facts.sentinel, reported.reason if reported is not None else None
    forgotten = reported is None and facts.native is None
    if said is not None and said.cause is None:
        if reported is None or not reported.exit_code:
            return Outcome(cause=None, exit_code=0, by="job")
        return Outcome(cause="error", exit_code=code, reason=reason, by="system")
    if forgotten and (facts.waited if said is None else said.is_terminated):
        return Outcome(cause="time_limit" if said is not None and facts.at_limit else "cancelled", exit_code=code)
    if said is not None and (said.cause == "error" or reported is not None):
        return Outcome(cause="error", exit_code=code, reason=reason, by="job")
    if reported is None:
        return Outcome(cause="lost")
    failed = reported.exit_code or reported.cause is not None
    return Outcome(cause="error" if failed else "lost", exit_code=reported.exit_code, reason=reason, by="system")


def _seconds(facts: Evidence, reported: NativeJob | None) -> float:
    """Return for how many seconds to wait for more evidence."""
    said = facts.sentinel
    if facts.at_limit and facts.accounting and facts.account is None:
        # A script that traps the signal may exit with 0, and the batch system may then report success.
        return facts.patience
    succeeded = reported is not None and reported.succeeded is True
    if said is None and (reported is None or succeeded or reported.succeeded is None):
        return facts.deadline
    if facts.accounting and not succeeded and (facts.account is None or not has_ended(facts.account)):
        return facts.patience
    # The sentinel may arrive late. If it does not say why the job ended, the batch system may.
    return facts.patience if said is None or not said.is_certain or said.is_terminated else 0.0
