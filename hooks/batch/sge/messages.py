"""What Grid Engine says: which job it has taken, and why it refuses something."""

from __future__ import annotations

import re

from lading.hooks.batch.refusals import SubmitError, Wording, any_of
from lading.hooks.ssh.answer import CommandResult

WORDING = Wording(
    permanent=any_of(
        "unknown (?:resource|queue|parallel environment)",
        "unable to initialize environment",
        "max_aj_tasks",
        r"more than \d+ tasks",
    ),
    limit=any_of(
        r"only \d+ (?:jobs?|slots?|array)",
        r"jobs? (?:are|is) (?:not )?allowed (?:per|in)",
        "current job count",
        "no more jobs",
        "max_u?_?jobs",
        "exceeds? .*(?:quota|job limit)",
        "too many jobs",
    ),
    transient=any_of(
        "commlib",
        "got (?:select|read|write|send) error",
        "(?:can.?t|cannot|could not|unable to) (?:connect|contact|reach|send|receive|get)",
        "qmaster",
        "communication",
        "no (?:answer|response)",
        "cause it .* be written",
        "spooling",
    ),
    gone=any_of(
        r"job(?:-array task)? \"?[\d.-]+\"? does not exist",
        "following jobs do not exist",
        r"^\d+(?:[.,:-]\d+)*\s*$",
        "is already in deletion",
        r"job (?:id|name) \S+ not found",
        "no jobs? (?:found|running)",
    ),
    account=any_of(
        "access denied", "no (?:submit )?permissions?\\b", "(?:does not have|has no|no) access to", "no submit host"
    ),
)
# With -terse a line has the id alone.
_SUBMITTED = re.compile(r"(?:Your job(?:-array)? )?(\d+)(?:\.\d+-\d+:\d+)?(?: \(.*\) has been submitted)?")
_TAKEN = re.compile(r"^Your job(?:-array)? (\d+).* has been submitted$", re.MULTILINE)
# qsub(1), "EXIT STATUS": a limit on jobs is reached, or a verifier of the site's says that the job may be taken later.
_TRY_LATER = 25


def submitted(answer: CommandResult) -> str:
    """The native id in the answer to qsub.

    :raises SubmitError: there is none
    """
    # "Unable to run job: warning: ... your job is not allowed to run in any queue": it waits until one lets it.
    if answer.status and (taken := _TAKEN.search(f"{answer.stderr}\n{answer.stdout}")):
        return taken[1]
    if answer.status == _TRY_LATER:
        raise SubmitError("limit", answer.words)
    return WORDING.submitted(answer, _SUBMITTED)
