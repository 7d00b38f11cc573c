"""What LSF says: how jobs have ended (bjobs, "exit_reason"; lsbatch.h, TERM_*), why it refuses something."""

from __future__ import annotations

import re
from collections.abc import Mapping

from lading.hooks.batch.refusals import Wording, any_of
from lading.hooks.batch.system import Cause

_TERM: Mapping[str, Cause] = {
    **dict.fromkeys(("MEMLIMIT", "SWAP"), "out_of_memory"),
    **dict.fromkeys(("RUNLIMIT", "CPULIMIT", "DEADLINE", "REMOVE_HUNG_JOB"), "time_limit"),
    **dict.fromkeys(("PREEMPT", "LOAD", "WINDOW", "RC_RECLAIM", "CHKPNT", "MC_RECALL"), "preempted"),
    **dict.fromkeys(("REQUEUE_OWNER", "REQUEUE_ADMIN", "REQUEUE_RC"), "preempted"),
    **dict.fromkeys(("OWNER", "FORCE_OWNER", "ADMIN", "FORCE_ADMIN", "BUCKET_KILL", "ORPHAN_SYSTEM"), "cancelled"),
    **dict.fromkeys(("ZOMBIE", "RMS", "SLURM", "CTRL_PID"), "node_failure"),
}
_CODE = re.compile(r"\bTERM_([A-Z_]+)")
NO_CODE = "LSF says no exit code"

WORDING = Wording(
    permanent=any_of("cannot use the queue", "no such queue", "not a member", "bad resource requirement"),
    limit=any_of(
        "limit (?:has been |is )?(?:reached|exceeded)",
        "threshold (?:has been )?reached",
        "reached .*(?:limit|threshold)",
        "exceed\\w* .*(?:pending|job) .*(?:limit|threshold)",
        "array (?:index|size) .*(?:too large|exceed|larger)",
        r"maximum number of (?:pending )?jobs|limit of \d+ jobs",
        "(?:pending|too many) jobs? .*limit",
        "too many jobs|no job id can be used now",
        "queue (?:has been |is )?(?:closed|inactiv|disabled)",
    ),
    transient=any_of(
        "LSF is down",
        "openlava is down",
        "batch system (?:daemon )?(?:is )?not (?:responding|ready)|batch (?:daemon|library|protocol|system error)",
        "system call failed|server is not connected|appropriate port number",
        "mbatchd",
        "LIM is (?:down|not)",
        "LSF library call",
        "communication (?:time|error)",
        "failed in sending/receiving",
        "cannot (?:connect|contact)",
        "please wait",
        "(?:master|host) .*unknown",
        "internal library error",
        "XDR",
        "service not (?:ready|registered)",
        "external authentication failed",
        "license",
    ),
    gone=any_of(
        r"job <[^<>]*>:? [^<>]*(?:not found|no matching job found|already)",
        r"no (?:matching |unfinished |pending |running )*jobs? found",
    ),
    account=any_of(
        "cannot use the queue",
        "(?:bad|unknown) user",
        "permission denied",
        "not a member",
        "request from (?:a )?non-lsf",
    ),
    # Of an array, some of whose elements have ended; the others are killed all the same.
    ending=any_of("operation is in progress"),
)


def end(reason: str, exit_code: int | None) -> tuple[Cause, str | None]:
    """The cause of a job that LSF calls ``EXIT``, and the reason, from LSF's own words."""
    match = _CODE.search(reason)
    if match:
        return _TERM.get(match[1], "error"), " ".join(reason[match.start() :].split()).rstrip(".;")
    return "error", None if exit_code else NO_CODE
