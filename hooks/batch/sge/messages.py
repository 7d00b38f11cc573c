"""What Grid Engine says, and the options of its qsub (qsub(1), sge_accounting(5))."""

from __future__ import annotations

import re
from collections.abc import Mapping

from lading.hooks.batch.directives import Exclusion, Unsupported, quoted
from lading.hooks.batch.refusals import Wording, words

VARIABLES: Mapping[str, str] = {
    "ID": "$JOB_ID",
    "WORKDIR": "$SGE_O_WORKDIR",
    "SUBMIT_HOST": "$SGE_O_HOST",
    "NAME": "$JOB_NAME",
    "ARRAY_INDEX": "$SGE_TASK_ID",
    # Only jobs in a parallel environment have a file of hosts.
    "NODELIST": '$(if [ -n "$PE_HOSTFILE" ]; then cut -d" " -f1 "$PE_HOSTFILE"; else hostname; fi)',
}
# Any other key of more than one letter is the name of a resource.
_OPTIONS = """
    ac ar binding bgio ckpt clear cwd dc dl hard hold_jid hold_jid_ad inherit jc js jsv masterq mbind notify now ot pe
    pty shell soft sync tc terse verify wd
"""
OPTIONS = frozenset(_OPTIONS.split())
# Settings that are the same, or that cannot be given together.
SYNONYMS: Mapping[str, str] = {"l s_rt": "l h_rt", "l hostname": "l h"}
EXCLUSION = Exclusion("-l h=!({})", separator="|")  # complex(5), sge_types(1) "expression"
# The slots may be a list of ranges.
_ENVIRONMENT = re.compile(r"(\S+)\s+([0-9][0-9,-]*|-[0-9]+)")

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
)


def environment(value: str) -> str:
    """A parallel environment and its slots, which are two words of a directive (qsub(1), "-pe").

    :raises Unsupported: it is something else
    """
    match = _ENVIRONMENT.fullmatch(value)
    if match is None:
        raise Unsupported(
            f"pe = {value!r} is not valid; an environment and its slots are, such as 'smp 4' or 'mpi 4-16'"
        )
    return f"{quoted(match[1])} {match[2]}"
