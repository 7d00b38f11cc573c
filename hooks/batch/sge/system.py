"""Grid Engine: Son of Grid Engine, Open Grid Scheduler, Univa and Altair (qsub(1), qstat(1), qdel(1), qacct(1))."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from lading.hooks.batch import surveys
from lading.hooks.batch.directives import Unsupported, clock, quoted
from lading.hooks.batch.memory import amount, dialect, names
from lading.hooks.batch.sge import messages, options, output
from lading.hooks.batch.sge.options import EXCLUSION, NO_REQUEUE, OPTIONS, SYNONYMS, VARIABLES, environment
from lading.hooks.batch.system import BatchJobRequest, BatchSystem, CouldNotAsk, MemoryDialect, NativeJob, Profile
from lading.hooks.ssh.answer import CommandResult

_ARRAY = re.compile(r"\d+(?:-\d+(?::\d+)?)?")
# Asks for all jobs of user $0 since $1, in one pass over the file, for qacct takes no list of ids; and lets through the
# records of those in $2 alone: there may be a hundred thousand others. The exit status is that of qacct.
_QACCT = r"""exec 3>&1
exit "$({ { qacct -o "$0" -b "$1" -j; echo $? >&4; } | awk -v ids="$2" '
  function tell() { if (is_asked) printf "%s", record; record = ""; is_asked = 0 }
  BEGIN { is_asked = 1 }
  /^=+[ \t]*$/ { tell() }
  { record = record $0 "\n" }
  $1 == "jobnumber" && index(ids, " " $2 " ") { is_asked = 1 }
  END { tell() }' >&3; } 4>&1)"
"""


class SGE(BatchSystem):
    name = "sge"
    prefix = "#$"
    variables = VARIABLES
    no_requeue = NO_REQUEUE
    leaks = ("SGE_", "JOB_", "PE_", "NSLOTS", "NQUEUES", "NHOSTS", "PMI", "PMIX_")
    first_index = 1
    synonyms = SYNONYMS
    exclusion = EXCLUSION
    wording = messages.WORDING
    survey = surveys.SGE

    def resource_directives(self, request: BatchJobRequest, profile: Profile) -> list[str]:
        memory = dialect(profile, MemoryDialect(per="none"))
        number = amount(request, memory, options.slots_per_node(request, profile))
        if number is not None and not memory.resource:
            raise Unsupported(f"mem = {request.mem} MiB: memory.resource of the profile is not set, such as 'h_vmem'")
        if request.gpus and profile.gpu_resource is None:
            raise Unsupported(f"gpus = {request.gpus}: set gpu_resource in the profile to what the site calls them")
        unit = "" if memory.unit == "B" else memory.unit or "M"
        same = request.stdout is not None and request.stdout == request.stderr
        directives: list[tuple[str, Any]] = [
            ("N", request.jobname and options.name(request.jobname)),
            ("q", request.queue),
            ("h_rt", request.time and clock(request.time)),
            ("pe", options.slots(request, profile)),
            *(("l", f"{name}={number}{unit}") for name in names(memory) if number is not None),
            ("l", request.gpus and f"{profile.gpu_resource}={request.gpus}"),
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
        written = environment(str(value)) if key == "pe" else quoted(str(value))
        return f"-{key}" if value is True else f"-{key} {written}"

    def interpreter_directives(self, path: str) -> list[str]:
        # Queues run scripts with a shell of theirs, most often csh, unless they are set up as unix_behavior.
        return [f"-S {quoted(path)}"]

    def submit(self, path: str) -> list[str]:
        return ["qsub", "-terse", path]

    def submitted(self, answer: CommandResult) -> str:
        return messages.submitted(answer)

    def element(self, id: str, index: int) -> str:
        return f"{id}.{index}"

    def status(self, user: str, ids: Sequence[str] = ()) -> list[str]:
        return ["qstat", "-u", user, "-g", "d", "-xml"]

    def statuses(self, answer: CommandResult) -> list[NativeJob]:
        self.wording.check_asked(answer)
        try:
            return output.queued(answer.stdout)
        except ValueError as error:
            raise CouldNotAsk(f"the answer of qstat makes no sense: {error}; {answer.words}") from None

    def cancel(self, ids: Sequence[str]) -> list[str]:
        return ["qdel", *ids]

    def accounting(self, ids: Sequence[str], user: str, since: datetime) -> list[str] | None:
        # Days of slack: the site's time zone may be another by 26 hours, and its clock as well.
        start = (since - timedelta(days=2)).strftime("%Y%m%d%H%M")
        return ["sh", "-c", _QACCT, user, start, f" {' '.join(ids)} "]

    def accounted(self, answer: CommandResult) -> list[NativeJob]:
        self.wording.check_asked(answer)
        return output.accounted(answer.stdout)
