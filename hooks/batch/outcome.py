"""How a batch job has ended, from all that is known of it. Pure; one order of trust for tasks and for job scripts.

1. What the job's own supervisor has ended it for: only that process can record it.
2. The cause that the batch system or its accounting gives: it records what was killed and why, whatever the exit code.
3. The exit code that the batch system or its accounting gives, with the sentinel's: a failure of either is a failure.
4. The sentinel, where the batch system gives no code.
5. Nothing. Missing is never success: after a deadline the job is lost, or was cancelled where that can be known.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from typing import Literal

from lading.hooks.batch.system import NativeJob
from lading.scheduling.reasons import because

# Causes that say that something outside ended the job or its task, but not why.
UNCERTAIN = frozenset({"lost", "terminated"})
# Bytes that are read of the end of what a job has printed.
TAIL_BYTES = 2000
# A job that nodes could not launch, or that was ended before it began, is submitted so often, the first included.
MOST_TRIES = 4
# Where it is the batch system that ends a job, or that knows better, by cause.
REASONS = {
    "out_of_memory": because("batch_out_of_memory"),
    "time_limit": because("batch_time_limit"),
    "preempted": because("batch_preempted"),
    "node_failure": because("batch_node_failure"),
    "cancelled": because("batch_cancelled_there"),
}
_SIGTERM = (128 + signal.SIGTERM, -signal.SIGTERM)

By = Literal["system", "job", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentinel:
    """What a job has left of its end.

    :param cause: None: it has succeeded; ``error``: it has failed by itself; ``terminated``: another process has asked
        it to end; ``lost``: its supervisor does not know; any other: what its supervisor has ended it for
    :param exit_code: as a shell has it, or the negative number of a signal; None: not known
    """

    cause: str | None
    exit_code: int | None = None

    @classmethod
    def of_status(cls, status: int) -> Sentinel:
        """That of a script, which leaves its exit status alone."""
        return cls(cause="error" if status else None, exit_code=status)

    @property
    def is_certain(self) -> bool:
        """Whether it needs no word of the batch system's, if that says nothing against it.

        A success has been reported to Airflow by the task itself; so has a failure with an exit code. What its
        supervisor has ended was ended for its cause. What another process has ended by a signal may have been ended for
        another cause.
        """
        if self.cause == "error":
            return (self.exit_code or 0) >= 0
        return self.cause not in UNCERTAIN

    @property
    def is_terminated(self) -> bool:
        """Whether it was asked to end, as the batch system does with a job that is deleted."""
        return self.cause == "terminated" or (self.cause == "error" and self.exit_code in _SIGTERM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known of a job that has gone.

    :param native: what the batch system says of it; None: it does not know it
    :param account: what its accounting says; None: nothing
    :param accounting: whether the accounting may say more
    :param sentinel: what the job has left; None: nothing
    :param cancelled: whether Lading was asked to end it
    :param says_memory: whether the batch system has written into its output that it ended it for its memory
    :param waited: whether it waited when it was seen last, and has left nothing that says that it has begun since
    :param at_limit: whether it ran for all the time that it had asked for, after which the batch system ends it
    :param gone: seconds since it was found to be gone
    :param patience: seconds for which more is waited for where something is known: files and accounts are late
    :param deadline: seconds for which nothing may be known
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
    """How a job has ended.

    :param cause: None: it has succeeded
    :param exit_code: as in :class:`Sentinel`; None: not known
    :param reason: the batch system's message
    :param by: the source of that
    """

    cause: str | None
    exit_code: int | None = None
    reason: str | None = None
    by: By = "none"


def decide(facts: Evidence) -> Outcome | None:
    """How the job has ended; None: it is not known yet, and more may come."""
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
    """Whether the batch system knows why a job has ended, and not only that it has failed."""
    return job.cause not in (None, "error")


def has_ended(job: NativeJob) -> bool:
    """Whether the batch system says that a job has ended, or that it can never start."""
    return job.state == "ended" or job.cause is not None


def is_unclear(job: NativeJob | None) -> bool:
    """Whether the accounting may know more of a job than the batch system says.

    Of one that was cancelled on a node it may know that the node could not launch it.
    """
    return job is None or job.state != "ended" or not has_cause(job) or (job.cause == "cancelled" and bool(job.nodes))


def _reported_end(facts: Evidence) -> NativeJob | None:
    """The word of the batch system or of its accounting: the one with a cause, else the one with an exit code."""
    parts = [job for job in (facts.account, facts.native) if job is not None and has_ended(job)]
    if facts.says_memory and facts.sentinel is None:
        parts = [replace(job, cause="out_of_memory") if _is_killed(job) else job for job in parts]
    ranked = sorted(parts, key=lambda job: (not has_cause(job), job.exit_code is None, job.cause is None))
    return ranked[0] if ranked else None


def _is_killed(job: NativeJob) -> bool:
    return job.state == "ended" and job.cause == "error" and job.exit_code in (None, 137)


def _of_codes(facts: Evidence, reported: NativeJob | None, code: int | None) -> Outcome:
    """The outcome where no source has a cause."""
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
    """For how long more is waited for."""
    said = facts.sentinel
    if facts.at_limit and facts.accounting and facts.account is None:
        return (
            facts.patience
        )  # a script that traps the signal may exit with 0, and the batch system call that a success
    succeeded = reported is not None and reported.succeeded is True
    if said is None and (reported is None or succeeded or reported.succeeded is None):
        return facts.deadline
    if facts.accounting and not succeeded and (facts.account is None or not has_ended(facts.account)):
        return facts.patience
    # The sentinel may be seen late, and where it does not know why it has ended, the batch system may.
    return facts.patience if said is None or not said.is_certain or said.is_terminated else 0.0
