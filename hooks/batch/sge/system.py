"""Grid Engine: the options of qsub, all commands, and the meaning of refusals.

Son of Grid Engine, Open Grid Scheduler, Univa and Altair: qsub(1), qstat(1), qdel(1), qacct(1).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from lading.hooks.batch.directives import Exclusion, Unsupported, clock, quoted
from lading.hooks.batch.memory import amount, dialect, names
from lading.hooks.batch.refusals import SubmitError, Wording, any_of
from lading.hooks.batch.sge import output
from lading.hooks.batch.system import (
    BatchJobRequest,
    BatchSystem,
    CouldNotAsk,
    MemoryDialect,
    NativeJob,
    Profile,
    gpu_type_resource,
)
from lading.hooks.ssh.answer import CommandResult
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
# Settings that are equivalent, or that cannot be given together.
SYNONYMS: Mapping[str, str] = {"l s_rt": "l h_rt", "l hostname": "l h"}
NO_REQUEUE: Mapping[str, str | bool] = {"r": "n"}
EXCLUSION = Exclusion("-l h=!({})", separator="|")  # complex(5), sge_types(1) "expression"
# Slots can be a list of ranges.
_ENVIRONMENT = re.compile(r"(\S+)\s+([0-9][0-9,-]*|-[0-9]+)")

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
# With -terse, a line has only the ID.
_SUBMITTED = re.compile(r"(?:Your job(?:-array)? )?(\d+)(?:\.\d+-\d+:\d+)?(?: \(.*\) has been submitted)?")
_TAKEN = re.compile(r"^Your job(?:-array)? (\d+).* has been submitted$", re.MULTILINE)
# qsub(1), "EXIT STATUS": a limit on jobs is reached, or the site's verifier asks to submit the job later.
_TRY_LATER = 25

_ARRAY = re.compile(r"\d+(?:-\d+(?::\d+)?)?")
# Reads all jobs of user $0 since $1 in one pass over the accounting file, because qacct accepts no list of IDs, and
# keeps only the records of the jobs in $2, since there may be a hundred thousand others. The exit status is that of
# qacct.
_QACCT = r"""exec 3>&1
exit "$({ { qacct -o "$0" -b "$1" -j; echo $? >&4; } | awk -v ids="$2" '
  function tell() { if (is_asked) printf "%s", record; record = ""; is_asked = 0 }
  BEGIN { is_asked = 1 }
  /^=+[ \t]*$/ { tell() }
  { record = record $0 "\n" }
  $1 == "jobnumber" && index(ids, " " $2 " ") { is_asked = 1 }
  END { tell() }' >&3; } 4>&1)"
"""


def parallel_environment(value: str) -> str:
    """Return a parallel environment and its slots, which are two words of a directive (qsub(1), "-pe").

    :raises Unsupported: the value is something else
    """
    match = _ENVIRONMENT.fullmatch(value)
    if match is None:
        raise Unsupported(
            f"pe = {value!r} is not valid; give an environment and its slots, such as 'smp 4' or 'mpi 4-16'"
        )
    return f"{quoted(match[1])} {match[2]}"


def valid_jobname(jobname: str) -> str:
    """Return the job name unchanged if ``-N`` accepts it.

    :raises Unsupported: it does not
    """
    if re.match(r"\d", jobname) or re.search(r"[\s/:@\\*?]", jobname):
        raise Unsupported(
            f"jobname {shortened(jobname)} is not valid: it must not begin with a digit or contain "
            "blanks or / : @ \\ * ?"
        )
    return jobname


def slots_per_node(request: BatchJobRequest, profile: Profile) -> int:
    """Return how many slots a job gets on each of its nodes; on whole nodes, all of them."""
    return profile.whole_node.cpus if profile.whole_node else request.cpus_per_node


def slots(request: BatchJobRequest, profile: Profile) -> str | None:
    """Return the parallel environment and its slots; None: a single slot needs no environment.

    :raises Unsupported: the profile has no parallel environment
    """
    number = (request.nodes or 1) * slots_per_node(request, profile)
    if number == 1 or (profile.parallel_environment is None and request.native.get("pe")):
        return None
    if profile.parallel_environment is None:
        raise Unsupported(f"{number} slots need a parallel_environment in the profile; qconf -spl lists the site's")
    return f"{profile.parallel_environment} {number}"


def submitted_id(answer: CommandResult) -> str:
    """Return the native ID in the answer to qsub.

    :raises SubmitError: there is none
    """
    # "Unable to run job: warning: ... your job is not allowed to run in any queue": it was accepted, and waits for one.
    taken = set(_TAKEN.findall(f"{answer.stderr}\n{answer.stdout}"))
    if answer.status and len(taken) == 1:
        return str(taken.pop())
    if len(taken) > 1:
        raise SubmitError("transient", answer.message)
    if answer.status == _TRY_LATER:
        raise SubmitError("limit", answer.message)
    return WORDING.submitted(answer, _SUBMITTED)


class SGE(BatchSystem):
    name = "sge"
    prefix = "#$"
    variables = VARIABLES
    no_requeue = NO_REQUEUE
    leaks = ("SGE_", "JOB_", "PE_", "NSLOTS", "NQUEUES", "NHOSTS", "PMI", "PMIX_")
    first_index = 1
    synonyms = SYNONYMS
    exclusion = EXCLUSION
    wording = WORDING
    survey = output.SGE_SURVEY
    in_titles = "_"

    def resource_directives(self, request: BatchJobRequest, profile: Profile) -> list[str]:
        memory = dialect(profile, MemoryDialect(per="none"))
        number = amount(request, memory, slots_per_node(request, profile))
        if number is not None and not memory.resource:
            raise Unsupported(f"mem = {request.mem} MiB: memory.resource is missing in the profile, such as 'h_vmem'")
        if request.gpus and profile.gpu_resource is None:
            raise Unsupported(f"gpus = {request.gpus}: set gpu_resource in the profile to the site's name for GPUs")
        unit = "" if memory.unit == "B" else memory.unit or "M"
        same = request.stdout is not None and request.stdout == request.stderr
        directives: list[tuple[str, Any]] = [
            ("N", request.jobname and valid_jobname(request.jobname)),
            ("q", request.queue),
            ("h_rt", request.time and clock(request.time)),
            ("pe", slots(request, profile)),
            *(("l", f"{name}={number}{unit}") for name in names(memory) if number is not None),
            ("l", request.gpus and f"{profile.gpu_resource}={request.gpus}"),
            ("l", request.gpu_type and f"{gpu_type_resource(request, profile)}={request.gpu_type}"),
            ("o", request.stdout),
            ("j", "y") if same else ("e", request.stderr),
        ]
        if request.array is not None:
            if not _ARRAY.fullmatch(request.array.indices):
                raise Unsupported(f"array {request.array}: Grid Engine takes one range such as 1-9 or 1-9:2")
            directives += [("t", request.array.indices), ("tc", request.array.max_running)]
        return [self.native_directive(key, value) for key, value in directives if value is not None]

    def native_directive(self, key: str, value: object) -> str:
        if len(key) > 1 and key not in OPTIONS:
            return f"-l {key}={'true' if value is True else quoted(str(value))}"
        written = parallel_environment(str(value)) if key == "pe" else quoted(str(value))
        return f"-{key}" if value is True else f"-{key} {written}"

    def interpreter_directives(self, path: str) -> list[str]:
        # Queues run scripts with a shell of their own, usually csh, unless they are configured as unix_behavior.
        return [f"-S {quoted(path)}"]

    def submit(self, path: str) -> list[str]:
        return ["qsub", "-terse", path]

    def submitted(self, answer: CommandResult) -> str:
        return submitted_id(answer)

    def element(self, id: str, index: int) -> str:
        return f"{id}.{index}"

    def status(self, user: str, ids: Sequence[str] = ()) -> list[str]:
        return ["qstat", "-u", user, "-g", "d", "-xml"]

    def statuses(self, answer: CommandResult) -> list[NativeJob]:
        self.wording.check_asked(answer)
        try:
            return output.queued(answer.stdout)
        except ValueError as error:
            raise CouldNotAsk(f"the answer of qstat cannot be parsed: {error}; {answer.message}") from None

    def cancel(self, ids: Sequence[str]) -> list[str]:
        return ["qdel", *ids]

    def accounting(self, ids: Sequence[str], user: str, since: datetime) -> list[str] | None:
        # Two days of slack: the site's time zone can differ by up to 26 hours, and its clock may be wrong.
        start = (since - timedelta(days=2)).strftime("%Y%m%d%H%M")
        return ["sh", "-c", _QACCT, user, start, f" {' '.join(ids)} "]

    def accounted(self, answer: CommandResult) -> list[NativeJob]:
        self.wording.check_asked(answer)
        return output.accounted(answer.stdout)
