"""The options of LSF's bsub (bsub(1)), how spans and the names of jobs are written in them, and a job's environment."""

from __future__ import annotations

import re
from collections.abc import Mapping

from lading.hooks.batch.directives import Exclusion, Unsupported
from lading.hooks.batch.system import BatchJobRequest, Profile
from lading.scheduling.text.printable import shortened

VARIABLES: Mapping[str, str] = {
    "ID": "$LSB_JOBID",
    "WORKDIR": "$LS_SUBCWD",
    "SUBMIT_HOST": "$LSB_SUB_HOST",
    "NAME": "$LSB_JOBNAME",
    "ARRAY_INDEX": "$LSB_JOBINDEX",
    "NODELIST": "$LSB_HOSTS",
}
# The options of more than one letter ("bsub", "Options"; OpenLava's are among them). Any other key is one of a letter
# with its argument attached, as in -Etouch.
_OPTIONS = """
    Ep Full G Ip IS ISp ISs Is IX Jd Lp Ne Sla Ti Wd Wep Wp XF Zs alloc_flags app ar bw clusters cn_cu cn_mem
    core_isolation csm cwd data datachk datagrp env eo eptl ext extsched fd freq fwd gpu hl hostfile is jobaff jsdl
    jsdl_strict json jsm ln_mem ln_slots mig nnodes notify oo outdir pack ptl rn rnc sla smt sp spool ss stage
    step_cgroup ti tty ul un wa wt yaml
"""
OPTIONS = frozenset(_OPTIONS.split())
# Those of one letter that take no argument.
FLAGS = "BHIKNVhrx"
# Settings that are the same, or that cannot be given together.
SYNONYMS: Mapping[str, str] = {"oo": "o", "eo": "e", "R cu": "R span"}
EXCLUSION = Exclusion('-R "select[{}]"', "hname!='{}'", " && ")  # "Resource requirement strings", select


def span(request: BatchJobRequest, profile: Profile) -> list[tuple[str, str]]:
    """How slots lie on hosts (IBM Spectrum LSF, "Span string"): the threads of a process on one of them."""
    if profile.nodes is None:
        return [("R", f"span[ptile={request.cpus_per_node}]")]
    if request.processes == 1:
        return [("R", "span[hosts=1]")]
    return [("R", f"span[block={request.threads}]")] if (request.threads or 1) > 1 else []


def limit(name: str, number: int, unit: str | None) -> tuple[str, str | int]:
    """The option for an amount of memory: ``M``, the limit, or a resource that is reserved.

    Where LSF_UNIT_FOR_LIMITS is not set, the limit is in KiB, but what is reserved is in MiB.
    """
    if name == "M":
        return "M", number
    return "R", f"rusage[{name}={-(-number // 2**10) if unit == 'K' else number}]"


def jobname(request: BatchJobRequest) -> str | None:
    """What a job is called, with the indices of an array, which LSF has behind its name."""
    if request.jobname and re.search(r"[\[\]]", request.jobname):
        raise Unsupported(
            f"jobname {shortened(request.jobname)} has a bracket, which LSF takes for an array; leave it out"
        )
    if request.array is None:
        return request.jobname
    running = f"%{request.array.max_running}" if request.array.max_running else ""
    return f"{request.jobname or 'array'}[{request.array.indices}]{running}"
