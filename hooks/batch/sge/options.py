"""The options of Grid Engine's qsub (qsub(1)), and what it sets in the environment of a job."""

from __future__ import annotations

import re
from collections.abc import Mapping

from lading.hooks.batch.directives import Exclusion, Unsupported, quoted
from lading.hooks.batch.request import BatchJobRequest, Profile
from lading.scheduling.text.printable import shortened

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
    ac ar binding bgio ckpt clear clearp cwd dc dl hard hold_jid hold_jid_ad inherit jc js jsv masterl masterq mbind
    notify now ot par pe pty rdi rou sc shell si soft sync tc tcon terse umask verify wd xdv xd_run_as_image_user
"""
OPTIONS = frozenset(_OPTIONS.split())
# Settings that are the same, or that cannot be given together.
SYNONYMS: Mapping[str, str] = {"l s_rt": "l h_rt", "l hostname": "l h"}
NO_REQUEUE: Mapping[str, str | bool] = {"r": "n"}
EXCLUSION = Exclusion("-l h=!({})", separator="|")  # complex(5), sge_types(1) "expression"
# The slots may be a list of ranges.
_ENVIRONMENT = re.compile(r"(\S+)\s+([0-9][0-9,-]*|-[0-9]+)")


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


def name(jobname: str) -> str:
    """The name of a job, as ``-N`` takes it.

    :raises Unsupported: it would not
    """
    if re.match(r"\d", jobname) or re.search(r"[\s/:@\\*?]", jobname):
        raise Unsupported(
            f"jobname {shortened(jobname)} begins with a digit or has a blank or one of / : @ \\ * ?; leave them out"
        )
    return jobname


def slots_per_node(request: BatchJobRequest, profile: Profile) -> int:
    """How many slots a job gets on each of its nodes, whatever it has asked for of a whole one."""
    return profile.whole_node.cpus if profile.whole_node else request.cpus_per_node


def slots(request: BatchJobRequest, profile: Profile) -> str | None:
    """The parallel environment and the slots in it; None: one slot needs none.

    :raises Unsupported: there is no parallel environment
    """
    number = (request.nodes or 1) * slots_per_node(request, profile)
    if number == 1 or (profile.parallel_environment is None and request.native.get("pe")):
        return None
    if profile.parallel_environment is None:
        raise Unsupported(f"{number} slots need a parallel_environment in the profile; qconf -spl lists the site's")
    return f"{profile.parallel_environment} {number}"
