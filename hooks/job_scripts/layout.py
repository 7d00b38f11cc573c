"""The folder of a run at its site: its names and files, the submitted script and the shell commands that read it. Pure.

A run is one job script that is to be executed once. Its folder is named after its token. Everything that must not
happen twice is decided in that folder by renaming, linking or making a folder, because a file system lets only one
process succeed in that:

* ``attempt.N``: a submission. The process that makes the folder submits; any process can read the batch system's
  answer. It is a link if the run was submitted in a job array (see :mod:`lading.hooks.job_scripts.array`). The next
  attempt is made only when all earlier ones have failed for certain.
* ``job``: the id of the batch job that executes the script, and its element in an array. A second job, left by a
  submission whose answer was lost, exits at once.
* ``exit``: the sentinel: the exit status of the script, the seconds since the epoch at which it started and finished,
  and ``out_of_memory`` if it was refused more memory; written, then renamed.
* ``cancelled``: nothing may start any more.
* ``granted``: a controller has admitted the run, so it can be submitted (see :mod:`lading.hooks.batch.script_jobs`).
* ``epilogue``: the process that runs the epilogue.
* ``output``: what the script prints, unless the user has named a file; ``batch.log``: what the batch system adds.
* ``element.3``: in a run that is a job array, the folder of element 3, with its own ``job``, ``exit``, ``output``,
  ``batch.log`` and ``cancelled``. All elements run in the folder of the run, among its files.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import PurePosixPath

from lading.hooks.batch.native import once, over
from lading.hooks.batch.outcome import Sentinel
from lading.hooks.batch.script_jobs import CANCELLED, EXIT, GRANTED, JOB
from lading.hooks.batch.system import BatchJobRequest, BatchSystem, Profile
from lading.hooks.job_scripts.local_script import interpreter
from lading.hooks.job_scripts.script import JobScript, JobScriptError
from lading.hooks.ssh.answer import whole_number
from lading.hooks.ssh.steps import RunCommand

WRAPPER = "lading.sh"
OUTPUT, BATCH_LOG, EPILOGUE = "output", "batch.log", "epilogue"
OWN_NAMES = frozenset({WRAPPER, JOB, EXIT, OUTPUT, BATCH_LOG, CANCELLED, EPILOGUE, GRANTED})
# Submissions and elements of a job array, by number.
_NUMBERED = re.compile(r"(attempt|element)\.[0-9]+", re.ASCII)
# Seconds that a submit command may take; qsub waits long for a busy server.
SUBMIT_LIMIT = 90
# Native directives with which a user chooses the folder that a job starts in; the default is the run's folder.
FOLDER_DIRECTIVES = {
    "slurm": {"chdir", "D"},
    "torque": {"d", "w"},
    "lsf": {"cwd"},
    "sge": {"cwd", "wd"},
}
# Native directives that make a job an array. LSF puts the array in the job's name, where it is refused anyway.
ARRAY_DIRECTIVES = {"slurm": {"array", "a"}, "pbspro": {"J"}, "torque": {"t"}, "sge": {"t"}}
# The variable with the array's id on systems whose usual variable holds another id in an element.
ARRAY_IDS = {"slurm": "$SLURM_ARRAY_JOB_ID"}
# What a wrapper adds to the sentinel of a script that was refused more memory.
OUT_OF_MEMORY = "out_of_memory"
# A time in the sentinel: seconds since the epoch.
_SECONDS = re.compile("[0-9]{9,11}")
# The first argument of the wrapper in an element of an array of runs; the array's id and the element follow.
ELEMENT = "element"
_POSIX = frozenset({"sh", "ash", "bash", "dash", "ksh", "ksh93", "mksh", "zsh"})

# The state of a run that was not submitted because the run before it in the same round was refused.
HELD = "held"
# The arguments "$@" are the submit command. The first line of the output is the state, followed by the element and the
# name of the array if the attempt belongs to one; the rest is the batch system's answer.
_SUBMIT = """\
cd -- "$1" || exit
number=$2 before=$3
while [ -e "attempt.$((number + 1))" ] || [ -L "attempt.$((number + 1))" ]; do number=$((number + 1)); done
if [ "$number" != "$2" ]; then
  if [ -f job ]; then echo claimed; cat job; else echo "newer $number"; fi
  exit
fi
attempt=attempt.$2 member=/${1##*/}/attempt.$2; shift 3
lading_told() {
  if [ -f "$attempt/members" ]; then
    echo "$1 $(grep -nF -e "$member" "$attempt/members" | cut -d: -f1) $(cat "$attempt/name")"
  else echo "$1"
  fi
}
if [ ! -f "$attempt/status" ]; then
  if [ -f job ]; then echo claimed; cat job; exit; fi
  if [ -f cancelled ]; then
    if [ -d "$attempt" ]; then lading_told pending; else echo cancelled; fi
    exit
  fi
  if [ -n "$before" ] && [ ! -d "$attempt" ] && [ "$(cat "$before/status" 2>/dev/null)" != 0 ]; then
    echo held; exit
  fi
  if mkdir "$attempt" 2>/dev/null; then
    "$@" >"$attempt/out" 2>"$attempt/err"
    echo $? >"$attempt/status.new" && mv -f "$attempt/status.new" "$attempt/status" || exit
  elif [ -d "$attempt" ]; then lading_told pending; exit
  else mkdir "$attempt"; exit
  fi
fi
lading_told answered
cat "$attempt/out"; cat "$attempt/err" >&2
exit "$(cat "$attempt/status")"
"""
# Making a hard link is atomic and can be repeated: the first process to make it keeps the claim.
_CLAIM = """\
cd -- "$1" || exit
echo "$3" >"$2.$3" && { ln -- "$2.$3" "$2" 2>/dev/null || [ -f "$2" ]; } && cat "$2" && rm -f -- "$2.$3"
"""

# A shell starts background commands with INT and QUIT ignored; bash, ksh and zsh undo that before they execute the
# command. A signal that arrives before the script has a pid is kept, and passed on once the script has had a second to
# start.
_WRAPPER = """\
# Made by Lading: runs {script} once, and leaves its exit status in the file "exit".
lading_folder={folder}
lading_own=$lading_folder lading_new=job.$$
if [ "$1" = {element} ]; then lading_id="$2 $3"; else lading_id={id}; fi
cd -- "$lading_folder" || exit
[ ! -e cancelled ] || exit 1
lading_claim() {{
  printf '%s\\n' "$lading_id" >"$lading_own/$lading_new" &&
    {{ ln -- "$lading_own/$lading_new" "$lading_own/job" 2>/dev/null || [ -f "$lading_own/job" ]; }} || exit
  rm -f -- "$lading_own/$lading_new"
  if [ "$(cat "$lading_own/job")" != "$lading_id" ]; then
    echo "lading: job $(cat "$lading_own/job") runs this already"
    exit 0
  fi
}}
{array}lading_claim
rm -f -- "$lading_own/exit"
lading_started=$(date +%s)
lading_child= lading_early= lading_cause=
lading_pass() {{
  if [ -n "$lading_child" ]; then kill -s "$1" "$lading_child" 2>/dev/null
  else lading_early="${{lading_early}}lading_pass $1;"
  fi
}}
for lading_signal in TERM INT HUP USR1 USR2 XCPU; do
  trap "lading_pass $lading_signal" "$lading_signal" 2>/dev/null
done
{setup}{chdir}( trap - INT QUIT; exec {command} ) </dev/null{output} &
lading_child=$!
[ -z "$lading_early" ] || {{ sleep 1; eval "$lading_early"; }}
while wait "$lading_child"; lading_status=$?; [ "$lading_status" -gt 128 ] && kill -0 "$lading_child" 2>/dev/null; do
  :
done
if [ "$lading_status" -gt 128 ]; then
  wait "$lading_child" 2>/dev/null
  lading_last=$?
  # bash loses the status if the script exits at the moment of the signal, and reports -1.
  [ "$lading_last" -eq 127 ] || [ "$lading_last" -lt 0 ] || lading_status=$lading_last
fi
{refused}printf '%s %s %s%s\\n' "$lading_status" "$lading_started" "$(date +%s)" "$lading_cause" \\
  >"$lading_own/exit.new" && mv -f -- "$lading_own/exit.new" "$lading_own/exit"
exit "$lading_status"
"""


# A program that was refused memory exits with an error message of its language's runtime.
_REFUSED = """\
if [ "$lading_status" -ne 0 ] && [ "$(ulimit -d) $(ulimit -v)" != "unlimited unlimited" ] &&
  tail -c 4000 -- "$lading_own/{output}" |
  grep -qE 'MemoryError|std::bad_alloc|OutOfMemoryError|[Oo]ut of memory|[Cc]annot allocate (memory|vector)'; then
  lading_cause=' out_of_memory'
fi
"""


# An element first claims the run for its whole array, then itself. PBS gives each element an id of its own.
_ARRAY = """\
lading_index={index}
lading_id=$(printf '%s\\n' "$lading_id" | sed 's/\\[[0-9]*\\]/[]/') lading_new=job.$lading_index.$$
lading_claim
lading_own={own}
lading_id="$lading_id $lading_index"
mkdir -p -- "$lading_own" && exec >>"$lading_own/{log}" 2>&1 </dev/null || exit
[ ! -e "$lading_own/cancelled" ] || exit 1
"""


def files(
    script: JobScript, system: BatchSystem, profile: Profile, folder: str, *, jobname: str, setup: str = ""
) -> dict[str, str]:
    """Return all files of a run by name.

    :param folder: that of the run, absolute
    :param jobname: name of the batch job if the script does not set one
    :param setup: shell lines before the script
    :raises JobScriptError: as :meth:`JobScript.files`, or a file name is reserved
    """
    rendered = script.files(system, profile)
    taken = sorted(name for name in rendered if name in OWN_NAMES or _NUMBERED.fullmatch(name))
    if taken:
        raise JobScriptError(f"a script is called {taken[0]!r}, a name that Lading reserves for itself; rename it")
    return {**rendered, WRAPPER: _wrapper(script, rendered[script.filename], system, profile, folder, jobname, setup)}


def of_element(run: str, index: int | str) -> str:
    """Return the folder or the token of one element of a run that is a job array.

    :param run: the folder of the run, or its token
    :param index: of the element, or a shell expression for it
    """
    return f"{run}/element.{index}"


def output(script: JobScript, folder: str) -> str | None:
    """Return the file with what the script prints; None: only the batch system knows its name.

    For a job array, the file of an element has the same name in the folder of the element.
    """
    request = script.request()
    stdout = request.stdout
    if stdout is None:
        return f"{folder}/{OUTPUT}" if request.stderr is None else f"{folder}/{BATCH_LOG}"
    if request.array is not None:
        return None
    if any(character in stdout for character in "%$:{*"):
        return None
    return str(PurePosixPath(folder, stdout))


def submit(system: BatchSystem, folder: str, attempt: int, before: str = "") -> RunCommand:
    """Submit, unless that attempt exists already; in both cases the answer tells the outcome.

    :param before: the path of the attempt that must be accepted first, so that a round stops at the first refusal
    """
    message = system.submit(f"{folder}/{WRAPPER}")
    command = ["/bin/sh", "-c", _SUBMIT, "lading", folder, str(attempt), before, *message]
    return RunCommand(command, folder=folder, limit=SUBMIT_LIMIT)


def claim(folder: str, what: str, who: str) -> RunCommand:
    """Claim something that only one process may do; the answer names the process that has the claim."""
    return RunCommand(["/bin/sh", "-c", _CLAIM, "lading", folder, what, who])


def _wrapper(
    script: JobScript, rendered: str, system: BatchSystem, profile: Profile, folder: str, jobname: str, setup: str
) -> str:
    request = script.request()
    refuse_arrays(request, system)
    own_output = request.stdout is None and request.stderr is None
    # Elements of an array would all write to one file, so each opens its own.
    log = f"{folder}/{BATCH_LOG}" if request.array is None else "/dev/null"
    request = replace(request, jobname=request.jobname or jobname, stdout=request.stdout or log)
    if own_output:
        request = replace(request, stderr=request.stdout)
    chooses = FOLDER_DIRECTIVES.get(system.name, set()) & {key for key, value in request.native.items() if value}
    # Without this, a node failure would start the script again amid the files of its first start.
    given = {key: value for key, value in request.native.items() if value is not None}
    request = replace(request, native=over(given, once(system, array=request.array is not None), system))
    text = _WRAPPER.format(
        script=shlex.quote(script.filename),
        folder=shlex.quote(folder),
        id=f'"{own_id(system, request)}"',
        element=ELEMENT,
        array=_array(system) if request.array is not None else "",
        setup=f"{setup.rstrip()}\n" if setup.strip() else "",
        chdir='cd -- "$lading_began" || exit\n' if chooses else "",
        command=shlex.join([*interpreter(rendered), f"{folder}/{script.filename}"]),
        output=f' >>"$lading_own/{OUTPUT}" 2>&1' if own_output else "",
        refused=_REFUSED.format(output=OUTPUT) if own_output and system.memory_is_refused else "",
    )
    began = "lading_began=$PWD\n" if chooses else ""
    whole = "\n".join([*system.header(request, profile, shell(script)), began + text])
    system.refuse_script(whole)
    return whole


def refuse_arrays(request: BatchJobRequest, system: BatchSystem) -> None:
    """Refuse native directives that make an array, because Lading has to know the elements.

    :raises JobScriptError: the request has such a directive
    """
    chosen = {key: value for key, value in request.native.items() if value}
    for key in sorted(ARRAY_DIRECTIVES.get(system.name, set()) & chosen.keys()):
        raise JobScriptError(
            f"{key} = {chosen[key]!r} makes the job an array, whose elements a run cannot distinguish; give "
            "array='1-10%4' instead, or scatter a JobScriptOperator, which submits its elements as a job array"
        )


def shell(script: JobScript) -> str:
    """Return the shell that runs the wrapper: the script's own if it is a POSIX shell, else ``/bin/sh``."""
    shell = script.shell()
    return shell if PurePosixPath(shell.split(maxsplit=1)[0]).name in _POSIX else "/bin/sh"


def _array(system: BatchSystem) -> str:
    own = of_element("$lading_folder", "$lading_index")
    return _ARRAY.format(index=f'"{system.variables["ARRAY_INDEX"]}"', own=own, log=BATCH_LOG)


def own_id(system: BatchSystem, request: BatchJobRequest) -> str:
    """Return the shell expression for the native id of a submission in its job; in an array, in one of its elements."""
    variable = system.variables["ID"]
    if request.array is not None:
        variable = ARRAY_IDS.get(system.name, variable)
    return system.own_id(variable, system.native_clusters(request.native))


def in_job(text: str) -> tuple[str, int | None]:
    """Read the id and the element from the file ``job``. In an array, PBS gives a job the id of its element."""
    id, _, index = text.strip().partition(" ")
    element = whole_number(index)
    return (id, None) if element is None else (re.sub(r"\[\d+\]", "[]", id), element)


def same_job(reported: str, job_id: str) -> bool:
    """Whether the id in a job's environment is the one that its submission was answered with.

    SLURM appends the name of a cluster after a semicolon, unless it is the only one; PBS appends the server's name
    after a dot, in full or shortened.
    """
    (number, there), (other, here) = (id.partition(";")[::2] for id in (reported, job_id))
    is_same_cluster = not (there and here) or there.lower() == here.lower()
    return is_same_cluster and number.partition(".")[0] == other.partition(".")[0]


def times(sentinel: str | None) -> tuple[int, int] | None:
    """Read from the file ``exit`` when a script started and finished; None: it does not say so."""
    times = [int(word) for word in (sentinel or "").split()[1:] if _SECONDS.fullmatch(word)]
    return (times[0], times[1]) if len(times) == 2 else None


def sentinel(text: str | None) -> Sentinel | None:
    """Read the file ``exit``; None: it has no status yet, or none that a process can have, as a script could write."""
    words = (text or "").split()
    # ksh reports a signal as 256 and its number; other shells report no status above 255.
    if not words or (status := whole_number(words[0])) is None or status > 256 + 64:
        return None
    if status and OUT_OF_MEMORY in words[1:]:
        return Sentinel(cause=OUT_OF_MEMORY, exit_code=status)
    return Sentinel.of_status(status)
