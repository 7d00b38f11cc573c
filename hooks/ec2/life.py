"""The life of a machine from order to termination: its phases, their time limits, and the reasons for its end. No I/O.

| read | concluded | until |
|---|---|---|
| a phase has lasted too long | it is terminated; the reason names what kept it from answering | permanent |
| EC2 does not describe it, and it does not answer | gone, after 60 s, or 300 s if it never did | EC2 describes it |
| terminated, but not reported as reclaimed | ``node_failure`` | permanent |
| terminated while no controller ran | ``lost``, or ``preempted`` | permanent |
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from lading.hooks.ec2.client import EC2Error, EC2Instance
from lading.hooks.ec2.limits import EC2Limits
from lading.scheduling.model.machine_traits import SPOT
from lading.scheduling.model.reasons import Reason, because


class LifePhase(str, Enum):
    ORDERED = "ordered"
    """It is ordered; EC2 was not asked to launch it yet, or refused for now."""
    UNKNOWN = "unknown"
    """EC2 was asked to launch it and did not answer, so it may exist."""
    PENDING = "pending"
    """EC2 has launched it; it does not run yet."""
    BOOTING = "booting"
    """It runs, but its node agent has not answered yet."""
    UP = "up"
    """It takes jobs."""
    DRAINING = "draining"
    """It takes no more jobs, and is terminated when the last one has finished."""
    TERMINATING = "terminating"
    """EC2 was asked to terminate it."""
    GONE = "gone"


# Seconds that a phase can last, except booting.
LONGEST = {LifePhase.ORDERED: 600.0, LifePhase.UNKNOWN: 900.0, LifePhase.PENDING: 600.0}


@dataclass(frozen=True, slots=True)
class End:
    """Why a machine ended.

    :param cause: that of its jobs that had started; None: it had none
    """

    cause: str | None
    reason: Reason


def overdue(
    phase: LifePhase, seconds: float, boot_seconds: float, obstacle: Reason | None, boot: float = EC2Limits.boot
) -> Reason | None:
    """Return why a machine that has been in a phase for this long is terminated; None if it is not.

    :param boot_seconds: the expected boot time; ``boot``: the limit unless five times that is more
    :param obstacle: what keeps it from answering; None: unknown
    """
    longest = max(boot, 5 * boot_seconds) if phase is LifePhase.BOOTING else LONGEST.get(phase)
    if longest is None or seconds <= longest:
        return None
    return with_obstacle(because("machine_late", phase=phase.value, seconds=longest), obstacle)


def with_obstacle(reason: Reason, obstacle: Reason | None) -> Reason:
    """Add to the reason for a termination what kept the machine from answering, if that is known."""
    return reason if obstacle is None else reason.with_also(obstacle)


def ended(instance: EC2Instance) -> End | None:
    """Return the end of a machine that Lading did not terminate, as EC2 describes it; None if it is live."""
    if instance.lives:
        return None
    if instance.capacity_type == SPOT and "spot" in instance.reason.lower():
        return End("preempted", because("machine_reclaimed", text=instance.reason))
    return End("node_failure", because("machine_down", state=instance.state, text=instance.reason or None))


def unattended(instance: EC2Instance) -> End:
    """Return the end of a machine that terminated while no controller ran; only that it existed is stored."""
    end = ended(instance)
    why = end.reason if end is not None else because("machine_down", state=instance.state, text=None)
    is_preempted = end is not None and end.cause == "preempted"
    return End("preempted" if is_preempted else "lost", because("machine_ended_unobserved").with_also(why))


def remedied(error: EC2Error) -> str:
    """Describe why AWS does not terminate a machine, with its message and the remedy."""
    if error.code == "OperationNotPermitted":
        return f"{error}; disable its termination protection (disableApiTermination) in EC2"
    return f"{error}; terminate it in EC2, or grant that right to the site's credentials"


MISSED = End("node_failure", because("machine_unknown_to_ec2"))
