"""What Grid Engine says: why it refuses something."""

from __future__ import annotations

from lading.hooks.batch.refusals import Wording, words

WORDING = Wording(
    permanent=words(
        "unknown (?:resource|queue|parallel environment)", "unable to initialize environment", "max_aj_tasks"
    ),
    limit=words(
        r"only \d+ (?:jobs?|slots?|array)",
        r"jobs? (?:are|is) (?:not )?allowed (?:per|in)",
        "current job count",
        "no more jobs",
        "max_u?_?jobs",
        "exceeds? .*(?:quota|job limit)",
        "too many jobs",
    ),
    transient=words(
        "commlib",
        "got (?:select|read|write|send) error",
        "(?:can.?t|cannot|could not|unable to) (?:connect|contact|reach|send|receive|get)",
        "qmaster",
        "communication",
        "no answer",
    ),
    gone=words(
        r"job(?:-array task)? \"?[\d.-]+\"? does not exist",
        "following jobs do not exist",
        r"^\d+(?:[.,:-]\d+)*\s*$",
        "is already in deletion",
        r"job (?:id|name) \S+ not found",
        "no jobs? (?:found|running)",
    ),
    account=words(
        "access denied", "no (?:submit )?permissions?\\b", "(?:does not have|has no|no) access to", "no submit host"
    ),
)
