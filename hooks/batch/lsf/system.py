"""LSF and OpenLava: the options of bsub, all commands, the meaning of refusals, and the unit of memory limits.

Commands: IBM Spectrum LSF Command Reference, bsub, bjobs, bkill, bhist.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from lading.hooks.batch.directives import Exclusion, Unsupported, quoted
from lading.hooks.batch.lsf import output
from lading.hooks.batch.memory import MIB, MemoryUnit, Unit, amount, dialect, names
from lading.hooks.batch.refusals import Wording, any_of
from lading.hooks.batch.system import (
    BatchJobRequest,
    BatchSystem,
    CouldNotAsk,
    MemoryDialect,
    NativeJob,
    Profile,
)
from lading.hooks.ssh.answer import CommandResult
from lading.scheduling.text.printable import shortened

VARIABLES: Mapping[str, str] = {
    "ID": "$LSB_JOBID",
    "WORKDIR": "$LS_SUBCWD",
    "SUBMIT_HOST": "$LSB_SUB_HOST",
    "NAME": "$LSB_JOBNAME",
    "ARRAY_INDEX": "$LSB_JOBINDEX",
    "NODELIST": "$LSB_HOSTS",
}
# The options of more than one letter ("bsub", "Options"), including those of OpenLava. Any other long key is a
# one-letter option with its argument attached, as in -Etouch.
_OPTIONS = """
    Ep Full G Ip IS ISp ISs Is IX Jd Lp Ne Sla Ti Wd Wep Wp XF Zs alloc_flags app ar bw clusters cn_cu cn_mem
    core_isolation csm cwd data datachk datagrp env eo eptl ext extsched fd freq fwd gpu hl hostfile is jobaff jsdl
    jsdl_strict json jsm ln_mem ln_slots mig nnodes notify oo outdir pack ptl rn rnc sla smt sp spool ss stage
    step_cgroup ti tty ul un wa wt yaml
"""
OPTIONS = frozenset(_OPTIONS.split())
# One-letter options without an argument.
FLAGS = "BHIKNVhrx"
# Settings that are equivalent, or that cannot be given together.
SYNONYMS: Mapping[str, str] = {"oo": "o", "eo": "e", "R cu": "R span"}
EXCLUSION = Exclusion('-R "select[{}]"', "hname!='{}'", " && ")  # "Resource requirement strings", select

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
    # The cancellation of an array of which some elements have ended; the others are killed nevertheless.
    ending=any_of("operation is in progress"),
)

_SUBMITTED = re.compile(r"Job <(\d+)> is submitted to .*", re.IGNORECASE)
# OpenLava and old versions lack -o or some of its fields, and report that; then print fewer fields, or the plain table.
_STATUS = """\
TZ=UTC LC_ALL=C
export TZ LC_ALL
answer=$(bjobs -a -u "$0" -o "$1" 2>&1)
status=$?
case $status,$answer in
  0,*) ;;
  *[Ff]ield*) answer=$(bjobs -a -u "$0" -o "$2" 2>&1); status=$? ;;
esac
case $status,$answer in
  0,*) ;;
  *[Uu]sage*|*option*|*[Ff]ield*) exec bjobs -a -w -u "$0" ;;
  *) exec >&2 ;;
esac
printf '%s\\n' "$answer"
exit $status"""


def span(request: BatchJobRequest, profile: Profile) -> list[tuple[str, str]]:
    """Return how slots are distributed over hosts (IBM Spectrum LSF, "Span string"): a process's threads share one."""
    if profile.nodes is None:
        return [("R", f"span[ptile={request.cpus_per_node}]")]
    if request.processes == 1:
        return [("R", "span[hosts=1]")]
    return [("R", f"span[block={request.threads}]")] if (request.threads or 1) > 1 else []


def memory_option(name: str, number: int, unit: str | None) -> tuple[str, str | int]:
    """Return the option for an amount of memory: ``M``, the limit, or a resource to reserve.

    If LSF_UNIT_FOR_LIMITS is not set, limits are in KiB but reservations in MiB.
    """
    if name == "M":
        return "M", number
    return "R", f"rusage[{name}={-(-number // 2**10) if unit == 'K' else number}]"


def jobname(request: BatchJobRequest) -> str | None:
    """Return the job name, followed by the indices of an array, which LSF expects there.

    :raises Unsupported: the name has a bracket
    """
    if request.jobname and re.search(r"[\[\]]", request.jobname):
        raise Unsupported(
            f"jobname {shortened(request.jobname)} has a bracket, which LSF reads as an array; leave it out"
        )
    if request.array is None:
        return request.jobname
    running = f"%{request.array.max_running}" if request.array.max_running else ""
    return f"{request.jobname or 'array'}[{request.array.indices}]{running}"


# The unit of memory limits: LSF_UNIT_FOR_LIMITS in lsf.conf, KiB if it is not set
# (IBM Spectrum LSF Configuration Reference, "LSF_UNIT_FOR_LIMITS"; Command Reference, "badmin showconf", "bjobs -l").

_SETTING = re.compile(r"^\s*LSF_UNIT_FOR_LIMITS\s*=\s*\"?([KMGT])B?\b", re.MULTILINE | re.IGNORECASE)
# Start of showconf's output; a parameter that it does not list is not set.
_SHOWN = re.compile(r"^\s*MBD configuration at ", re.MULTILINE)
# The names of limits, and their values in the line below.
_LIMITS = re.compile(r"^((?: +[A-Z]+LIMIT)* +MEMLIMIT\b.*)\r?\n(.*)$", re.MULTILINE)
_VALUE = re.compile(r"(\d+(?:\.\d+)?) *([KMGT])B?\b")


def unit(text: str) -> Unit | None:
    """Return the unit in the output of ``badmin showconf`` and ``bparams -l``; None: they do not show it."""
    if match := _SETTING.search(text):
        found: dict[str, Unit] = {"K": "K", "M": "M", "G": "G", "T": "T"}
        return found[match[1].upper()]
    return "K" if _SHOWN.search(text) else None


def shown(text: str) -> float | None:
    """Return the MEMLIMIT, in MiB, in the output of ``bjobs -l``; None: there is none, or it cannot be parsed."""
    if (match := _LIMITS.search(text)) is None:
        return None
    names, values = match[1].split(), _VALUE.findall(match[2])
    number = names.index("MEMLIMIT")
    return float(values[number][0]) * MIB[values[number][1]] if number < len(values) else None


MEMORY_UNIT = MemoryUnit(
    # Some versions lack one of these commands, and showconf may be restricted to administrators.
    command=["sh", "-c", "badmin showconf mbd </dev/null 2>/dev/null; bparams -l 2>/dev/null; true"],
    read=unit,
    setting="LSF_UNIT_FOR_LIMITS",
    resource="M",
    default="M",
    directive=re.compile(r"^#BSUB -M (\d+)$", re.MULTILINE),
    job=lambda id: ["bjobs", "-l", id],
    shown=shown,
)


class LSF(BatchSystem):
    name = "lsf"
    prefix = "#BSUB"
    grain = 60
    variables = VARIABLES
    # LSF does not rerun jobs unless the queue says so; OpenLava has no option to prevent it.
    no_requeue = {}  # noqa: RUF012
    leaks = ("LSB_", "LS_", "LSF_PM_", "PMI", "PMIX_")
    first_index = 1
    synonyms = SYNONYMS
    exclusion = EXCLUSION
    wording = WORDING
    survey = output.LSF_SURVEY
    memory_unit = MEMORY_UNIT
    in_titles = "_="

    def resource_directives(self, request: BatchJobRequest, profile: Profile) -> list[str]:
        options: list[tuple[str, Any]] = [
            ("J", jobname(request)),
            ("q", request.queue),
            ("W", request.time and -(-request.time // self.grain)),
        ]
        if request.shaped:
            options.append(("n", request.cpus))
        if request.shaped and request.cpus > 1:
            options += span(request, profile)
        memory = dialect(profile, MemoryDialect(per="job" if profile.nodes else "node", resource="M"))
        if (number := amount(request, memory)) is not None:
            options += [memory_option(name, number, memory.unit) for name in names(memory)]
        gmodel = f":gmodel={request.gpu_type}" if request.gpu_type else ""
        options += [
            ("gpu", request.gpus and f"num={request.gpus}{gmodel}"),
            ("o", request.stdout),
            ("e", request.stderr),
            ("Jd", request.comment),
        ]
        options += [("x", True)] if profile.whole_node else []
        return [self.native_directive(key, value) for key, value in options if value is not None]

    def native_directive(self, key: str, value: object) -> str:
        if value is True:
            return f"-{key}"
        text = str(value)
        # In the values of -R, -J and -gpu, [ and = would be interpreted again without quotes.
        always = re.search(r"[\[\]=]", text) and not re.search(r'["\\]', text)
        return f'-{key} "{text}"' if always else f"-{key} {quoted(text)}"

    def options(self, key: str) -> frozenset[str]:
        if len(key) == 1 or key in OPTIONS:
            return frozenset((key,))
        flags = len(key) - len(key.lstrip(FLAGS))  # flags can be combined, before an option with an argument
        return frozenset((key, *key[: flags + 1]))

    def submit(self, path: str) -> list[str]:
        # If too many jobs are pending, bsub would retry every minute, forever.
        return ["sh", "-c", 'LSB_NTRIES=1; export LSB_NTRIES; exec bsub < "$0"', path]

    def submitted(self, answer: CommandResult) -> str:
        return self.wording.submitted(answer, _SUBMITTED)

    def element(self, id: str, index: int) -> str:
        return f"{id}[{index}]"

    def status(self, user: str, ids: Sequence[str] = ()) -> list[str]:
        # By user: LSF fails if one of several IDs does not exist.
        with_start, without = (
            f"{' '.join(fields)} delimiter='{output.SEPARATOR}'" for fields in (output.MORE_FIELDS, output.FIELDS)
        )
        return ["sh", "-c", _STATUS, user, with_start, without]

    def statuses(self, answer: CommandResult) -> list[NativeJob]:
        self.wording.check_asked(answer)
        jobs = output.jobs(answer.lines)
        if jobs and answer.cut_line:  # the last name is truncated too
            jobs[-1] = replace(jobs[-1], name=None)
        if jobs is not None:
            return jobs
        if self.wording.gone.search(f"{answer.stdout}\n{answer.stderr}"):
            return []
        raise CouldNotAsk(f"the answer of bjobs cannot be parsed: {answer.message}")

    def unknown(self, answer: CommandResult, ids: Sequence[str], *, listed: bool) -> Collection[str]:
        # It is unknown which jobs a truncated answer lacks.
        unread = ids if answer.cut_line else output.unread(answer.lines)
        return set(super().unknown(answer, ids, listed=listed)) - set(unread)

    def lists_all(self, answer: CommandResult, clusters: Sequence[str] = ()) -> bool:
        return not (answer.cut_line or output.unread(answer.lines))

    def cancel(self, ids: Sequence[str]) -> list[str]:
        return ["bkill", *ids]

    def accounting(self, ids: Sequence[str], user: str, since: datetime) -> list[str] | None:
        # Two files, since LSF may have started a new one after the job ended.
        return ["bhist", "-l", "-n", "2", *ids]

    def accounted(self, answer: CommandResult) -> list[NativeJob]:
        self.wording.check_asked(answer)
        jobs = output.ended_jobs(answer.stdout)
        # bhist silently omits jobs that it does not know, but names those that have not ended.
        if jobs or output.has_jobs(answer.stdout) or self.wording.gone.search(f"{answer.stdout}\n{answer.stderr}"):
            return jobs
        raise CouldNotAsk(f"the answer of bhist cannot be parsed: {answer.message}")
