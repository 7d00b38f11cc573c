"""What SLURM says: why a job waits (squeue, "JOB REASON CODES") and why it refuses something (slurm_errno.h)."""

from __future__ import annotations

import re

from lading.hooks.batch.refusals import Wording, any_of

_REASONS = {
    "AccountNotAllowed": "the partition does not admit the account",
    "AssocGrpJobsLimit": "the account runs as many jobs as it may",
    "AssocMaxJobsLimit": "the user runs as many jobs as the account allows",
    "BadConstraints": "no node can ever meet its constraints",
    "BeginTime": "its start time has not come yet",
    "BurstBufferResources": "the burst buffer has no room",
    "Cleaning": "it was requeued, and what its last run has left is being cleaned up",
    "Dependency": "a job that it depends on has not ended yet",
    "DependencyNeverSatisfied": "a job that it depends on has failed, so it can never start",
    "InvalidAccount": "its account is not valid",
    "InvalidQOS": "its QOS is not valid",
    "JobArrayTaskLimit": "as many elements of its array run as may at once",
    "JobHeldAdmin": "an administrator holds it",
    "JobHeldUser": "the user holds it",
    "JobHoldMaxRequeue": "it was requeued as often as it may be, and is held",
    "launch_failed_requeued_held": "it could not be launched, and is held",
    "Licenses": "it waits for a licence",
    "NodeDown": "a node that it needs is down",
    "NonZeroExitCode": "it ended with an exit code other than 0",
    "OutOfMemory": "it needed more memory than it had asked for",
    "PartitionConfig": "it asks for more than the partition has",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition is not active",
    "PartitionNodeLimit": "it asks for more nodes than the partition allows",
    "PartitionTimeLimit": "it asks for more time than the partition allows",
    "Priority": "jobs with a higher priority come first",
    "ReqNodeNotAvail": "nodes that it needs are not available",
    "Reservation": "its reservation has not begun yet",
    "ReservationDeleted": "its reservation was deleted",
    "Resources": "it waits for resources to become free",
    "SystemFailure": "a failure of SLURM, a file system or the network",
    "TimeLimit": "it ran longer than it had asked for",
    "JobLaunchFailure": "it could not be launched, or was killed",
    "RaisedSignal": "it was ended by a signal",
}
# Whatever changes at the cluster, it will not start.
HOPELESS = frozenset({"DependencyNeverSatisfied"})
# It will not, unless an administrator changes the partition or the nodes.
NEVER = frozenset({"BadConstraints", "PartitionTimeLimit"})
WORDING = Wording(
    permanent=any_of(
        r"(?:QOS|Assoc)\w*(?:Wall|CPU|Node|Mem|GRES|Billing|PerJob)\w*", "node configuration is not available"
    ),
    limit=any_of(
        r"(?:QOS|Assoc)\w*(?:Submit|Jobs)\w*",
        "violates accounting/QOS policy",
        "QOS usage threshold",
        "MaxJobCount",
        "unable to create job record",  # what older versions say at MaxJobCount
        "too many jobs",
        "submissions disabled",
        "presently disabled",
        "licenses currently unavailable",
        "reservation not usable now",
        "nodes? (?:are busy|not available)",
        "partition (?:configuration )?not available",
        "partition .*(?:down|inactive|drain)",
    ),
    transient=any_of(
        "unable to contact slurm",
        "slurm temporarily unable",
        "zero bytes were transmitted",
        "munge",
        "standby mode",
        "controller (?:is )?not responding",
        "authentication (?:error|failure|credential)",
        "unpack credential",
        "job credential",
        "rate limit",
        "unexpected message",
        "(?:message|communication|connection) (?:send|receive|connection|shutdown|rejected)",
        "missing socket",
        "socket error",
        "shutting down",
        "incompatible versions",
        "protocol version",
        "configuration (?:source|file)",  # it could not be fetched, or a name in it not be resolved
        "unable to resolve",
        "writing script",
        "connect to database",
        "locked by another sibling",
        "slurmdbd",
        "transport endpoint",
        "connect failure",
        "lost, unable to",
    ),
    memory=any_of("exceeded (?:job )?memory limit"),
    gone=any_of("invalid job id", "already completing or completed", "no active jobs match"),
    account=any_of(
        "invalid account",
        "unknown association",
        "(?:account|group) not permitted to use this partition",
        "access/permission denied",
        "invalid user id",
    ),
)  # fmt: skip
_LIMIT = re.compile(r"(QOS|Assoc)\w+")


def explain_reason(reason: str) -> str | None:
    """The reason that squeue gives, in words and in SLURM's own; None: there is none."""
    code = reason.strip()
    if code in ("", "None", "(null)"):
        return None
    known = _REASONS.get(re.split("[,:]", code)[0])
    if known is None and (match := _LIMIT.fullmatch(code)):
        known = f"a limit of the {'QOS' if match[1] == 'QOS' else 'account'} is reached"
    return f"{known} ({code})" if known else code
