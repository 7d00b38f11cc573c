"""A job array of runs: several runs with equal requests, submitted at once. Pure.

An array has a folder of its own and is an attempt of each of its runs: ``attempt.N`` in the folder of a run is a link
to it (see :mod:`lading.hooks.job_scripts.layout`). Only one process can make that link, so a run is in one array at a
time or was submitted by itself. Any process that has the token of a run finds the outcome of its submission there, as
if it had been submitted alone. The folder contains:

* ``members``: line i is the path of the attempt that element i stands for.
* ``name``: the name of the batch job if no other job has that name, else ``-``.
* ``begun``: a folder; the process that makes it submits.
* ``out``, ``err``, ``status``: the answer of the batch system, as in any attempt.
* ``lading.sh``: the script that is submitted. Element i runs the ``lading.sh`` of its run.
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
# Native directives that an array must not have. PBS Pro: "cannot submit non-rerunable Array Job".
WITHOUT_ARRAYS = {"pbspro": {"r": "n"}}

# The arguments "$@" are the submit command. The first line of the output is the state, the second lists the numbers of
# the elements whose run is in this array, and the rest is the batch system's answer.
_SUBMIT = """\
array=$1 before=$2; shift 2
cd -- "$array" && [ -f members ] && [ -f lading.sh ] || exit
lading_elements() {
  number=0
  while IFS= read -r attempt; do
    number=$((number + 1))
    if [ "$attempt/members" -ef members ]; then printf '%s ' "$number"; fi
  done <members
}
if [ ! -f status ]; then
  if [ -n "$before" ] && [ ! -d begun ] && [ "$(cat "$before/status" 2>/dev/null)" != 0 ]; then echo held; exit; fi
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
# A run whose attempt exists already is left out of the array.
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
    """The properties that runs must have in common to share an array.

    :param group: whose runs share arrays: the task of a Dag run; equal requests of other tasks are a coincidence
    :param shell: the interpreter of the batch job's script
    :param request: what each run requests
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
    """An array to submit.

    :param folder: at the site, absolute
    :param name: of its batch job if no other job has that name, else None
    :param members: for each element, the path of the attempt that it stands for
    :param script: the text that is submitted
    """

    folder: str
    name: str | None
    members: tuple[str, ...]
    script: str

    def put(self) -> Put:
        """Write its files, replacing those that exist."""
        texts = {
            MEMBERS: "\n".join([*self.members, ""]),
            NAME: f"{self.name or '-'}\n",
            layout.WRAPPER: self.script,
        }
        contents = {name: text.encode(errors="surrogateescape") for name, text in texts.items()}
        return Put(self.folder, contents, (layout.WRAPPER,))

    def submit(self, system: BatchSystem, before: str) -> RunCommand:
        """Submit the array unless that was done already; in both cases the answer tells the outcome.

        :param before: as in :func:`layout.submit`
        """
        message = system.submit(f"{self.folder}/{layout.WRAPPER}")
        return RunCommand(
            ["/bin/sh", "-c", _SUBMIT, "lading", self.folder, before, *message], limit=layout.SUBMIT_LIMIT
        )

    def after(self, record: RunRecord, answer: CommandResult, system: BatchSystem, now: float) -> RunRecord:
        """Return one of the array's runs after the attempt to submit it.

        :param answer: the answer to :meth:`submit`
        """
        reported, _, rest = answer.stdout.partition("\n")
        elements, _, rest = rest.partition("\n")
        if reported == "answered" and str(record.index) not in elements.split():
            # Another process has submitted or cancelled the run; its folder shows the result.
            return record.by_itself()
        said = (
            f"{reported} {record.index} {self.name or '-'}\n{rest}"
            if reported in ("answered", "pending")
            else answer.stdout
        )
        return after_submission(record, replace(answer, stdout=said), system, now)


def shared(script: JobScript, system: BatchSystem, group: str) -> ArrayKey | None:
    """Return what a run must have in common with others to share an array; None: it has to be submitted by itself.

    It is submitted by itself if the script chooses the output files or the folder of its batch job, because all
    elements of an array have the same ones.
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
    """Return a key that is equal for runs that can share an array."""
    return json.dumps(record.shared, sort_keys=True)


def attempt(record: RunRecord) -> str:
    """Return the path of the run's next attempt."""
    return f"{record.folder}/attempt.{record.attempt}"


def ask_taken(records: Sequence[RunRecord]) -> RunCommand:
    """Ask for each run whether its next attempt exists already: ``taken`` or ``free``, one line per run."""
    return RunCommand(["/bin/sh", "-c", _TAKEN], stdin="".join(f"{attempt(each)}\n" for each in records).encode())


def form(
    records: Sequence[RunRecord], folder: str, jobname: str, system: BatchSystem, profile: Profile
) -> tuple[RunArray, list[RunRecord]]:
    """Form an array of runs with the same :func:`key`; return it and the runs as its elements, numbered from 1.

    :param folder: of the array, absolute
    :param jobname: name of the batch job if the scripts do not set one
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
    # A run on its own is submitted from its folder, which WORKDIR then names; an element is given the same value.
    workdir = re.fullmatch(r"\$(\w+)", system.variables["WORKDIR"])
    lines = _SCRIPT.format(
        folder=shlex.quote(folder),
        index=f'"{system.variables["ARRAY_INDEX"]}"',
        log=layout.BATCH_LOG,
        workdir=f"{workdir[1]}=$lading_folder; export {workdir[1]}\n" if workdir else "",
        shell=shlex.join(interpreter(f"#!{shell}")),
        wrapper=layout.WRAPPER,
        element=layout.ELEMENT,
        id=f'"{layout.own_id(system, request)}"',
    )
    return "\n".join([*system.header(request, profile, shell), lines])
