"""A job array of runs: several runs that ask for the same, submitted at once. Pure.

An array has a folder of its own, and is an attempt of each of its runs: ``attempt.N`` in the folder of a run is a link
to it (see :mod:`lading.hooks.job_scripts.layout`). A link is made by one of many, so a run is in one array at a time,
or was submitted by itself. A process with the token of a run finds there the outcome of its submission, as if it had
been submitted alone. In the folder are:

* ``members``: line i is the path of the attempt that element i stands for.
* ``name``: the name of the batch job if that is no other's, else ``-``.
* ``begun``: a folder; the process that makes it submits.
* ``out``, ``err``, ``status``: what the batch system has answered, as in any attempt.
* ``lading.sh``: what is submitted. Element i runs the ``lading.sh`` of its run.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from lading.hooks.batch.native import once, over
from lading.hooks.batch.system import ArrayRange, BatchJobRequest, BatchSystem, Profile
from lading.hooks.job_scripts import layout
from lading.hooks.job_scripts.local_script import interpreter
from lading.hooks.job_scripts.run import RunRecord, after_submission
from lading.hooks.job_scripts.script import JobScript
from lading.hooks.ssh.answer import CommandResult
from lading.hooks.ssh.steps import Put, RunCommand

MEMBERS, NAME = "members", "name"
# Native directives that no array can have. PBS Pro: "cannot submit non-rerunable Array Job".
WITHOUT_ARRAYS = {"pbspro": {"r": "n"}}

# The arguments "$@" submit. The first line of the output is the state, the second has the numbers of the elements
# whose run is in this array, the rest is the batch system's answer.
_SUBMIT = """\
array=$1; shift
cd -- "$array" && [ -f members ] && [ -f lading.sh ] || exit
lading_elements() {
  number=0
  while IFS= read -r attempt; do
    number=$((number + 1))
    if [ "$attempt/members" -ef members ]; then printf '%s ' "$number"; fi
  done <members
}
if [ ! -f status ]; then
  if mkdir begun 2>/dev/null; then
    while IFS= read -r attempt; do
      if [ ! -e "${attempt%/*}/cancelled" ] && [ ! -e "$attempt" ]; then ln -s -- "$array" "$attempt" 2>/dev/null; fi
    done <members
    if [ -z "$(lading_elements)" ]; then echo answered; rm -rf -- "$array"; exit; fi
    "$@" >out 2>err
    echo $? >status.new && mv -f status.new status || exit
  elif [ -d begun ]; then echo pending; exit
  else mkdir begun; exit
  fi
fi
echo answered
lading_elements; echo
cat out; cat err >&2
exit "$(cat status)"
"""
# A run is identified by its folder; one whose attempt is taken already is not submitted in an array.
_TAKEN = 'while IFS= read -r each; do if [ -e "$each" ] || [ -L "$each" ]; then echo taken; else echo free; fi; done'

_SCRIPT = """\
# Made by Lading: element i runs the job script that line i of the file "members" belongs to.
lading_array={folder}
lading_index={index}
lading_attempt=$(sed -n "${{lading_index}}p" "$lading_array/members") || exit
[ "$lading_attempt/members" -ef "$lading_array/members" ] || exit 0
lading_folder=${{lading_attempt%/*}}
exec >>"$lading_folder/{log}" 2>&1 </dev/null
{workdir}exec {shell} "$lading_folder/{wrapper}" {element} {id} "$lading_index"
"""


@dataclass(frozen=True, slots=True)
class ArrayKey:
    """What runs have in common that may share an array.

    :param group: whose runs they are; those of others ask for the same by chance
    :param shell: what runs the script of the batch job
    :param request: what each of them asks for
    """

    group: str
    shell: str
    request: BatchJobRequest

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> ArrayKey:
        return cls(**{**fields, "request": BatchJobRequest(**fields["request"])})


@dataclass(frozen=True, slots=True)
class RunArray:
    """An array that is submitted.

    :param folder: at the site, absolute
    :param name: of its batch job, if that is no other's
    :param members: for each element, the path of the attempt that it is
    :param script: what is submitted
    """

    folder: str
    name: str | None
    members: tuple[str, ...]
    script: str

    def put(self) -> Put:
        """Write its files, whatever of them is there already."""
        texts = {
            MEMBERS: "\n".join([*self.members, ""]),
            NAME: f"{self.name or '-'}\n",
            layout.WRAPPER: self.script,
        }
        contents = {name: text.encode(errors="surrogateescape") for name, text in texts.items()}
        return Put(self.folder, contents, (layout.WRAPPER,))

    def submit(self, system: BatchSystem) -> RunCommand:
        """Submit it, unless that was done already; either way, what has come of it is said."""
        message = system.submit(f"{self.folder}/{layout.WRAPPER}")
        return RunCommand(["/bin/sh", "-c", _SUBMIT, "lading", self.folder, *message], limit=layout.SUBMIT_LIMIT)

    def after(self, record: RunRecord, answer: CommandResult, system: BatchSystem, now: float) -> RunRecord:
        """One of its runs after it was tried to submit it.

        :param answer: to :meth:`submit`
        """
        reported, _, rest = answer.stdout.partition("\n")
        elements, _, rest = rest.partition("\n")
        if reported == "answered" and str(record.index) not in elements.split():
            # Another process has submitted or cancelled it; its folder shows with which result.
            return record.by_itself()
        said = (
            f"{reported} {record.index} {self.name or '-'}\n{rest}"
            if reported in ("answered", "pending")
            else answer.stdout
        )
        return after_submission(record, replace(answer, stdout=said), system, now)


def shared(script: JobScript, system: BatchSystem, group: str) -> ArrayKey | None:
    """What a run shares with others; None: it has to be submitted by itself.

    That is so where the script chooses the files or the folder of its batch job: those of an array are the same for all
    of its elements.
    """
    request = script.request()
    chosen = {key: value for key, value in request.native.items() if value}
    alone = WITHOUT_ARRAYS.get(system.name, {})
    if request.stdout is not None or request.stderr is not None:
        return None
    if layout.FOLDER_DIRECTIVES.get(system.name, set()) & chosen.keys() or alone.items() & chosen.items():
        return None
    return ArrayKey(group, layout.shell(script), request)


def key(record: RunRecord) -> str:
    """The same for runs that may share an array."""
    return json.dumps(record.shared, sort_keys=True)


def attempt(record: RunRecord) -> str:
    """The path of the attempt that comes next."""
    return f"{record.folder}/attempt.{record.attempt}"


def ask_taken(records: Sequence[RunRecord]) -> RunCommand:
    """Ask of each run whether its next attempt was made already, ``taken`` or ``free``."""
    return RunCommand(["/bin/sh", "-c", _TAKEN], stdin="".join(f"{attempt(each)}\n" for each in records).encode())


def form(
    records: Sequence[RunRecord], folder: str, jobname: str, system: BatchSystem, profile: Profile
) -> tuple[RunArray, list[RunRecord]]:
    """An array of runs with the same :func:`key`, and the runs as its elements, numbered from 1.

    :param folder: of the array, absolute
    :param jobname: what its batch job is called where the scripts do not say
    :raises ValueError: the batch system has no option for such an array
    """
    common = ArrayKey.from_json(records[0].shared or {})
    name = None if common.request.jobname else jobname
    request = replace(
        common.request,
        jobname=common.request.jobname or jobname,
        stdout="/dev/null",
        stderr="/dev/null",
        array=ArrayRange(f"1-{len(records)}"),
        native=over(
            {key: value for key, value in common.request.native.items() if value is not None},
            once(system, array=True),
            system,
        ),
    )
    text = _script(folder, request, common.shell, system, profile)
    array = RunArray(folder, name, tuple(map(attempt, records)), text)
    return array, [replace(record, array=folder, index=number) for number, record in enumerate(records, 1)]


def _script(folder: str, request: BatchJobRequest, shell: str, system: BatchSystem, profile: Profile) -> str:
    # What is submitted by itself is submitted from its run's folder.
    workdir = re.fullmatch(r"\$(\w+)", system.variables["WORKDIR"])
    lines = _SCRIPT.format(
        folder=shlex.quote(folder),
        index=f'"{system.variables["ARRAY_INDEX"]}"',
        log=layout.BATCH_LOG,
        workdir=f"{workdir[1]}=$lading_folder; export {workdir[1]}\n" if workdir else "",
        shell=shlex.join(interpreter(f"#!{shell}")),
        wrapper=layout.WRAPPER,
        element=layout.ELEMENT,
        id=f'"{layout.array_id(system)}"',
    )
    return "\n".join([*system.header(request, profile, shell), lines])
