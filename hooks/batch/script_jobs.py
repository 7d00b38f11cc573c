"""Job scripts as jobs of a controller: what the run of a script requests, and how the controller admits it.

The triggerer submits and follows the run. Where Lading's executor runs the task, a controller decides when that may
begin. Both reach the site, so the site carries what they tell each other, in the folder of the run:

* ``granted``: written by the controller; until then, the triggerer does not submit the run.
* ``cancelled``: nothing may start any more; the triggerer cancels what has started.
* ``job``: the id of the batch job that executes the script, written when it starts.
* ``exit``: how the script has ended, written when it has.

A file there can be written only by those who can log in as the account of the run, and could submit jobs anyway.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from lading.hooks.batch.request import BatchJobRequest
from lading.hooks.files.json_model import JsonModel, Longest, Matching, Within, checked
from lading.hooks.ssh.answer import CommandResult, TransportError
from lading.hooks.ssh.steps import Get, RunCommand, quoted
from lading.scheduling.hints.native import LONGEST_QUEUE
from lading.scheduling.hints.places import SITE_NAME
from lading.scheduling.model.light_dataclasses import as_dict, dataclass

# The kind of such a job, and the type of its workload.
JOB_SCRIPT = "JobScript"
# The key in the workload of its envelope: when it was seen to start, epoch seconds; None: it was not.
STARTED_AT = "started_at"
# The folder of all runs, in the site's work_dir.
RUNS = "scripts"
GRANTED, CANCELLED, JOB, EXIT = "granted", "cancelled", "job", "exit"

Count = Annotated[int, Within(1, 2**31 - 1)]
SiteName = Annotated[str, Matching(SITE_NAME)]
# One line, without control characters.
QueueName = Annotated[str, Longest(LONGEST_QUEUE), Matching(re.compile("[^\x00-\x1f\x7f-\x9f\u2028\u2029]+"))]


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptRequest(JsonModel):
    """What the batch job of a script requests, without native directives such as those for GPUs.

    It comes from a task, so nothing else may depend on it.

    :param site: the site, as the sites file names it for the account
    :param ppn: processes on each node
    :param threads: cpus of each process
    :param mem: MiB on each node; None: the batch system's default
    :param time: seconds; None: the batch system's default
    """

    site: SiteName
    nodes: Count = 1
    ppn: Count = 1
    threads: Count = 1
    mem: Count | None = None
    time: Count | None = None
    queue: QueueName | None = None

    @classmethod
    def of_request(cls, site: str, asked: BatchJobRequest) -> ScriptRequest:
        return cls(
            site=site,
            nodes=asked.nodes or 1,
            ppn=asked.ppn or 1,
            threads=asked.threads or 1,
            mem=asked.mem,
            time=asked.time,
            queue=asked.queue,
        )

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in as_dict(self).items() if value is not None}

    @classmethod
    def from_json(cls, found: object) -> ScriptRequest:
        """Read what :meth:`to_json` has written.

        :raises ValueError: it is not valid
        """
        return cls(**checked(cls, found))


def grant(runs: str, tokens: Iterable[str]) -> RunCommand:
    """Write the grants of runs. It can be repeated; :func:`unmarked` reads the answer.

    :param runs: the folder of all runs
    """
    return _mark(runs, tokens, f'true >"$each/{GRANTED}"')


def forbid(runs: str, tokens: Iterable[str]) -> RunCommand:
    """Prevent runs from starting, and have those that have started and not ended cancelled. It can be repeated;
    :func:`unmarked` reads the answer.
    """
    return _mark(runs, tokens, f'{{ [ -e "$each/{EXIT}" ] || true >"$each/{CANCELLED}"; }}')


def _mark(runs: str, tokens: Iterable[str], command: str) -> RunCommand:
    # The tokens are the input, because a kernel limits the length of an argument. A folder is made if the run has none,
    # because the marks must not depend on the order in which files arrive. `true` is no special builtin, so a shell
    # does not exit if it cannot write the file.
    root = quoted(runs)
    return RunCommand(
        f"umask 077; mkdir -p -- {root} && cd -- {root} || exit\n"
        "while IFS= read -r each; do\n"
        f'if {{ [ -d "$each" ] || mkdir -p -- "$each"; }} && {command}; then printf "%s\\n" "$each"; fi\n'
        "done",
        stdin="".join(f"{token}\n" for token in tokens).encode(),
    )


def unmarked(tokens: Iterable[str], answer: CommandResult) -> tuple[frozenset[str], TransportError | None]:
    """Return the runs that :func:`grant` or :func:`forbid` has not marked, with the reason; None: it has marked all."""
    asked = frozenset(tokens)
    missing = asked.difference(answer.stdout.splitlines())
    if not missing:
        return missing, None
    why = CommandResult(answer.status, stderr=answer.stderr).message
    return missing, TransportError(f"{len(missing)} of {len(asked)} runs could not be marked: {why}")


def ask_decided(runs: str, tokens: Sequence[str]) -> Get:
    """Ask which runs have been granted or cancelled."""
    return Get(runs, [f"{token}/{name}" for token in tokens for name in (GRANTED, CANCELLED)])


def decided(step: Get, answer: CommandResult) -> tuple[frozenset[str], TransportError | None]:
    """Return the runs that no longer wait for a controller, and why others could not be read; None: all could be.

    :param step: as :func:`ask_decided` returned it
    :raises TransportError: nothing could be read
    """
    contents, unreadable = step.readable_files(answer)
    found = frozenset(_token(name) for name, content in contents.items() if content is not None)
    return found, next(iter(unreadable.values()), None)


def ask_started(runs: str, tokens: Sequence[str]) -> Get:
    """Ask which runs have started."""
    return Get(runs, [f"{token}/{JOB}" for token in tokens])


def started(step: Get, answer: CommandResult) -> tuple[Mapping[str, str], TransportError | None]:
    """Return the native id of the batch job of each run that has started, and why others could not be read; None: all
    could be.

    :param step: as :func:`ask_started` returned it
    :raises TransportError: nothing could be read
    """
    contents, unreadable = step.readable_files(answer)
    ids = {_token(name): (content or b"").decode(errors="replace") for name, content in contents.items()}
    return {token: id.split()[0] for token, id in ids.items() if id.strip()}, next(iter(unreadable.values()), None)


def _token(name: str) -> str:
    return name.partition("/")[0]
