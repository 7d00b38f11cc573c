"""LSF and OpenLava (IBM Spectrum LSF Command Reference: bsub, bjobs, bkill, bhist)."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from lading.hooks.batch import surveys
from lading.hooks.batch.directives import quoted
from lading.hooks.batch.lsf import history, output
from lading.hooks.batch.lsf.limits import MEMORY_UNIT
from lading.hooks.batch.lsf.messages import WORDING
from lading.hooks.batch.lsf.options import EXCLUSION, FLAGS, OPTIONS, SYNONYMS, VARIABLES, jobname, limit, span
from lading.hooks.batch.memory import amount, dialect, names
from lading.hooks.batch.system import BatchJobRequest, BatchSystem, CouldNotAsk, MemoryDialect, NativeJob, Profile
from lading.hooks.ssh.answer import CommandResult

_SUBMITTED = re.compile(r"Job <(\d+)> is submitted to .*", re.IGNORECASE)
# OpenLava and old versions have no -o, or not all of its fields: they say so, and show their table then.
_STATUS = """\
answer=$(bjobs -a -u "$0" -o "$1" 2>&1)
status=$?
case $status,$answer in
  0,*) ;;
  *[Uu]sage*|*option*|*[Ff]ield*) exec bjobs -a -w -u "$0" ;;
  *) exec >&2 ;;
esac
printf '%s\\n' "$answer"
exit $status"""


class LSF(BatchSystem):
    name = "lsf"
    prefix = "#BSUB"
    grain = 60
    variables = VARIABLES
    # That a job is not run again is what LSF does where the queue says nothing else; OpenLava has no word for it.
    no_requeue = {}  # noqa: RUF012
    leaks = ("LSB_", "LS_", "LSF_PM_", "PMI", "PMIX_")
    first_index = 1
    synonyms = SYNONYMS
    exclusion = EXCLUSION
    wording = WORDING
    survey = surveys.LSF
    memory_unit = MEMORY_UNIT

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
            options += [limit(name, number, memory.unit) for name in names(memory)]
        options += [("gpu", request.gpus and f"num={request.gpus}"), ("o", request.stdout), ("e", request.stderr)]
        options += [("x", True)] if profile.whole_node else []
        return [self.native_directive(key, value) for key, value in options if value is not None]

    def native_directive(self, key: str, value: object) -> str:
        if value is True:
            return f"-{key}"
        text = str(value)
        # In what -R, -J and -gpu take, [ and = would be read again without quotes.
        always = re.search(r"[\[\]=]", text) and not re.search(r'["\\]', text)
        return f'-{key} "{text}"' if always else f"-{key} {quoted(text)}"

    def options(self, key: str) -> frozenset[str]:
        if len(key) == 1 or key in OPTIONS:
            return frozenset((key,))
        flags = len(key) - len(key.lstrip(FLAGS))  # which may stand together, before one with an argument
        return frozenset((key, *key[: flags + 1]))

    def submit(self, path: str) -> list[str]:
        # Where too many jobs wait, bsub would try again every minute, for ever.
        return ["sh", "-c", 'LSB_NTRIES=1; export LSB_NTRIES; exec bsub < "$0"', path]

    def submitted(self, answer: CommandResult) -> str:
        return self.wording.submitted(answer, _SUBMITTED)

    def element(self, id: str, index: int) -> str:
        return f"{id}[{index}]"

    def status(self, user: str, ids: Sequence[str] = ()) -> list[str]:
        # By user: LSF fails if one of many ids is not there.
        return ["sh", "-c", _STATUS, user, f"{' '.join(output.FIELDS)} delimiter='{output.SEPARATOR}'"]

    def statuses(self, answer: CommandResult) -> list[NativeJob]:
        self.wording.check_asked(answer)
        jobs = output.jobs(answer.lines)
        if jobs is not None:
            return jobs
        if self.wording.gone.search(f"{answer.stdout}\n{answer.stderr}"):
            return []
        raise CouldNotAsk(f"the answer of bjobs makes no sense: {answer.words}")

    def unknown(self, answer: CommandResult, ids: Sequence[str], *, listed: bool) -> Collection[str]:
        return set(super().unknown(answer, ids, listed=listed)) - output.unread(answer.lines, ids)

    def cancel(self, ids: Sequence[str]) -> list[str]:
        return ["bkill", *ids]

    def accounting(self, ids: Sequence[str], user: str, since: datetime) -> list[str] | None:
        # Two files, since LSF may have begun a new one after the job had ended.
        return ["bhist", "-l", "-n", "2", *ids]

    def accounted(self, answer: CommandResult) -> list[NativeJob]:
        self.wording.check_asked(answer)
        jobs = history.jobs(answer.stdout)
        # Those that it does not know bhist leaves out without a word; of those that have not ended it says so.
        if jobs or history.has_jobs(answer.stdout) or self.wording.gone.search(f"{answer.stdout}\n{answer.stderr}"):
            return jobs
        raise CouldNotAsk(f"the answer of bhist makes no sense: {answer.words}")
