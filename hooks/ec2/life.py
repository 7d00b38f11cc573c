"""The life of a machine from its order to its end: its phases, how long each may take, and why it ends. Pure.

| read | concluded | until |
|---|---|---|
| a phase for longer than it may take | it is ended, with what kept it from answering | for good |
| EC2 does not describe it, and it does not answer | gone, after 60 s, or 300 s if it never did | EC2 describes it |
| ended, and not said to be reclaimed | ``node_failure`` | for good |
| ended while no controller ran | ``lost``, or ``preempted`` | for good |
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from lading.hooks.ec2.client import EC2Error, EC2Instance
from lading.scheduling.machine_traits import SPOT
from lading.scheduling.reasons import Reason, because


class LifePhase(str, Enum):
    """Where a machine is in its life."""

    ORDERED = "ordered"
    """It is to be launched; EC2 was not asked for it, or refused it for now."""
    UNKNOWN = "unknown"
    """EC2 was asked and has not answered: it may be there."""
    PENDING = "pending"
    """EC2 has launched it; it does not run yet."""
    BOOTING = "booting"
    """It runs, and its node agent has not answered."""
    UP = "up"
    """It takes jobs."""
    DRAINING = "draining"
    """It takes none any more, and is terminated when the last one has ended."""
    TERMINATING = "terminating"
    """EC2 was asked to end it."""
    GONE = "gone"


# How long a phase may take, seconds; a machine boots within a multiple of what its table says.
LONGEST = {LifePhase.ORDERED: 600.0, LifePhase.UNKNOWN: 900.0, LifePhase.PENDING: 600.0}
LEAST_BOOT = 600.0
BOOTS = 5
# EC2 may not describe yet what it has just launched, and for a moment not what it has described before, seconds:
# https://docs.aws.amazon.com/ec2/latest/devguide/eventual-consistency.html
SECONDS_UNTIL_DESCRIBED = 300.0
SECONDS_UNTIL_MISSED = 60.0
# TerminateInstances is asked for again after this, seconds; where it is refused after ever longer pauses up to this.
SECONDS_UNTIL_REPEATED = 30.0
LONGEST_UNTIL_REPEATED = 900.0


@dataclass(frozen=True, slots=True)
class End:
    """Why a machine ended.

    :param cause: of the ends of its jobs that had begun; None: it had none
    """

    cause: str | None
    reason: Reason


def overdue(phase: LifePhase, seconds: float, boot_seconds: float, obstacle: Reason | None) -> Reason | None:
    """Why a machine that has been in a phase for so long is to be ended; None: it is not.

    :param obstacle: what keeps it from answering; None: nothing that is known
    """
    longest = max(LEAST_BOOT, BOOTS * boot_seconds) if phase is LifePhase.BOOTING else LONGEST.get(phase)
    if longest is None or seconds <= longest:
        return None
    return with_obstacle(because("machine_late", phase=phase.value, seconds=longest), obstacle)


def with_obstacle(reason: Reason, obstacle: Reason | None) -> Reason:
    """Why a machine is to be ended, with what kept it from answering, if that is known."""
    return reason if obstacle is None else reason.with_also(obstacle)


def ended(instance: EC2Instance) -> End | None:
    """The end of a machine that was not ended by Lading, as EC2 describes it; None: it lives."""
    if instance.lives:
        return None
    if instance.capacity_type == SPOT and "spot" in instance.reason.lower():
        return End("preempted", because("machine_reclaimed", text=instance.reason))
    return End("node_failure", because("machine_down", state=instance.state, text=instance.reason or None))


def unattended(instance: EC2Instance) -> End:
    """The end of a machine while no controller ran: all that is stored is that it was there."""
    end = ended(instance)
    why = end.reason if end is not None else because("machine_down", state=instance.state, text=None)
    is_preempted = end is not None and end.cause == "preempted"
    return End("preempted" if is_preempted else "lost", because("machine_ended_unobserved").with_also(why))


def remedied(error: EC2Error) -> str:
    """Why AWS does not end a machine, with its message, and what to do."""
    if error.code == "OperationNotPermitted":
        return f"{error}; switch off its termination protection (disableApiTermination) in EC2"
    return f"{error}; end it in EC2, or allow the site's credentials to"


MISSED = End("node_failure", because("machine_unknown_to_ec2"))
