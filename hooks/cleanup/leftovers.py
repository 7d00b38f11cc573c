"""The shell script that removes old leftovers from Lading's folder on a cluster, and the parser of its answer.

Each kind of leftover is stored in one folder below the root, as a folder or file for each run, submission and so on. A
leftover is removed once nothing in it has changed for the given age and no live job or run needs it. The file server
dates changes and the host that runs the script judges them, so an hour is allowed for differing clocks. Live jobs and
runs are given by their tokens, names and native ids. A folder is in use if one of these is its own name, the name of
something in it, or a word in one of the files in which Lading keeps the ids and tokens that belong to it.

Only names that Lading assigns are considered. Nothing is removed through a symbolic link, neither one inside a folder
nor one that has replaced a folder. An attempt that is a link to a job array is read, because the run lives as long as
the array. Names are compared on the cluster, so the answer contains only numbers, even if there are many leftovers. The
script writes no files, so it can clean up a full disk.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lading.hooks.batch import script_jobs
from lading.hooks.batch.canceller import NOTES
from lading.hooks.batch.system import NativeJob
from lading.hooks.site import RemovedLeftovers
from lading.hooks.ssh.answer import CommandResult, TransportError
from lading.hooks.ssh.steps import RunCommand

# The time limit of the whole script in seconds; a file server removes a few hundred folders per second.
LIMIT = 3600
# The smallest valid age in seconds; anything younger may still be in transfer.
YOUNGEST = 3600

_TOKEN = "-".join("?" * length for length in (8, 4, 4, 4, 12))
_SUBMISSION = "L" + "?" * 14
_NUMBER = re.compile(r"[0-9]+")
# What the script compares as one word; the list of words has one per line.
_WORD = re.compile(r"[0-9A-Za-z_.-]+")


@dataclass(frozen=True, slots=True)
class LeftoverKind:
    """One kind of leftover.

    :param kind: the name shown to people
    :param folder: below the root
    :param names: patterns of names
    :param files: whether they are files; otherwise folders
    :param deep: whether the names inside such a folder, or the words in such a file, tell what it belongs to
    :param needed: whether jobs refer to it in their own files
    """

    kind: str
    folder: str
    names: Sequence[str]
    files: bool = False
    deep: bool = False
    needed: bool = False

    def command(self) -> str:
        patterns = " -o ".join(f"-name {shlex.quote(name)}" for name in self.names)
        parts = [self.kind, self.folder, "f" if self.files else "d", "deep" if self.deep else ""]
        return f"{'lading_needed && ' if self.needed else ''}lading_clean {shlex.join(parts)} {patterns}"


RUNS = (
    LeftoverKind("runs", script_jobs.RUNS, [_TOKEN]),
    LeftoverKind("notes of cancelled runs", NOTES, [_TOKEN, f"{_TOKEN}.*"], files=True),
)
# Cleaned last, after everything that refers to them.
BUNDLES = (LeftoverKind("bundles", "bundles", ["*"], needed=True),)
JOBS = (
    LeftoverKind("submissions", "submissions", [_SUBMISSION]),
    LeftoverKind("jobs", "spool/jobs", [_TOKEN, f".{_TOKEN}"]),
    LeftoverKind("logs", "logs", [_TOKEN]),
    LeftoverKind("envelopes", "spool/inbox", [f"{_TOKEN}.json", f".{_TOKEN}.json.*"], files=True),
    LeftoverKind("cancel requests", "spool/cancel", [_TOKEN, f".{_TOKEN}.*"], files=True),
    LeftoverKind("events", "spool/events", ["*.jsonl", ".*.jsonl.*"], files=True),
    LeftoverKind("incoming", "incoming", [_SUBMISSION, "given-*", "renewed-*"], deep=True),
    LeftoverKind("allocations", "allocations", [_SUBMISSION], deep=True),
    LeftoverKind("claims", "claims", [_TOKEN, f".{_TOKEN}.*"], files=True, deep=True),
    LeftoverKind("trials", ".", ["lading-check-*"], deep=True),
    LeftoverKind("torn writes", ".", [".put-*"], deep=True),
)
# Kinds that are safe in a machine's own folder: only its agent knows which jobs and events it still has in hand.
MACHINE = tuple(
    each for each in JOBS if each.kind in ("logs", "envelopes", "cancel requests", "incoming", "torn writes")
)
TRIALS = tuple(each for each in JOBS if each.kind == "trials")

# Standard input holds the words of live jobs, one per line.
_SCRIPT = r"""
root=$1 age=$2 dry=$3
LC_ALL=C; export LC_ALL
living=$(cat)
[ -d "$root" ] || { echo .; exit 0; }
root=$(cd -P -- "$root" && pwd -P) && cd -P -- "$root" || exit
# Whatever belongs to a live submission is live, too.
for each in $(printf '%s\n' "$living" | grep '^L[0-9a-f]\{14\}$'); do
  if [ -f "submissions/$each/tasks" ]; then
    living="$living
$(cut -f 1 "submissions/$each/tasks")" || exit
  fi
done
# The lines of several lists, each with its letter: words of live jobs (K), candidates (C), what has changed in them
# (N), what they contain (P), their files that name what they belong to (R). A dot ends each list that must be complete.
used='
function known(text,  words, i) {
  if (text in alive) return 1
  for (i = split(text, words, "."); i > 0; i--) if (words[i] in alive) return 1
  return 0
}
{ letter = substr($0, 1, 1); text = substr($0, 3) }
letter == "K" { if (text != "") alive[text]; next }
text == "." { whole[letter]; next }
substr(text, 1, 2) != "./" { next }
{ depth = split(text, part, "/"); name = part[2] }
letter == "C" { candidates[++count] = name }
letter == "N" { inuse[name] }
letter == "P" { for (i = 3; i <= depth; i++) if (known(part[i])) inuse[name] }
letter == "R" {
  while ((getline line < text) > 0) {
    for (i = split(line, words, /[^0-9A-Za-z_.-]+/); i > 0; i--) if (words[i] in alive) inuse[name]
    for (i = split(line, words, /[^0-9]+/); i > 0; i--) if (words[i] in alive) inuse[name]
  }
  close(text)
}
END {
  if (!("N" in whole) || !("P" in whole) || !("R" in whole)) exit 1
  for (i = 1; i <= count; i++) {
    name = candidates[i]
    if (!(name in inuse) && !known(name)) print "./" name
  }
}'
# Runs a command for the names on standard input; it is harmless if one of them has vanished meanwhile.
lading_each() { xargs -n 500 /bin/sh -c "$1" "$age"; [ $? -le 123 ] && echo .; }
# Dag bundles named by anything that is left are live, too.
lading_needed() {
  [ -d bundles ] || return 0
  for each in submissions allocations incoming spool/inbox spool/jobs; do
    [ -d "$each" ] || continue
    living="$living
$(find "$each" -type f -name tasks -exec cut -f 3 {} +)
$(find "$each" -type f -name '*.json' -exec grep -ho 'bundles/[0-9A-Za-z-]*' {} + | sed 's:^bundles/::')"
  done
}
lading_clean() (
  kind=$1 folder=$2 type=$3 deep=$4; shift 4
  [ -e "$folder" ] || [ -L "$folder" ] || exit 0
  path=$root; [ "$folder" = . ] || path=$root/$folder
  cd -P -- "$folder" || exit
  [ "$(pwd -P)" = "$path" ] || { echo "$path is a symbolic link, which is not followed" >&2; exit 1; }
  old=$(find . ! -name . -prune -type "$type" ! -name '*[!0-9A-Za-z._-]*' \( "$@" \) -mmin +"$age")
  [ $? -le 1 ] || exit
  [ -n "$old" ] || exit 0
  unused=$({
    printf '%s\n' "$living" | sed 's/^/K /'
    printf '%s\n' "$old" | sed 's/^/C /'
    if [ "$type" = d ]; then
      printf '%s\n' "$old" | lading_each 'exec find "$@" ! -mmin +"$0"' | sed 's/^/N /'
      printf '%s\n' "$old" |
        lading_each 'exec find -L "$@" -maxdepth 2 -type f \( -name job -o -name out -o -name answer -o -name tasks \
          -o -name members \)' | sed 's/^/R /'
    else
      if [ "$deep" ]; then printf '%s\n' "$old" | sed 's/^/R /'; fi
      printf 'N .\nR .\n'
    fi
    if [ "$deep" ]; then printf '%s\n' "$old" | lading_each 'exec find "$@" -maxdepth 5' | sed 's/^/P /'
    else echo 'P .'
    fi
  } | awk "$used") || exit
  [ -n "$unused" ] || exit 0
  number=$(printf '%s\n' "$unused" | wc -l)
  size=$(printf '%s\n' "$unused" | xargs -n 500 du -sk | awk '{ sum += $1 } END { printf "%.0f", sum }')
  left=0
  if [ "$dry" = no ]; then
    printf '%s\n' "$unused" | xargs -n 500 rm -rf --
    left=$(printf '%s\n' "$unused" |
      lading_each 'for each; do if [ -e "$each" ] || [ -L "$each" ]; then echo "$each"; fi; done' | grep -c /)
  fi
  printf '%s\t%d\t%d\t%d\n' "$kind" "$number" "$size" "$left"
)
"""


def job_identifiers(jobs: Iterable[NativeJob]) -> frozenset[str]:
    """Return every word that identifies a job in the batch system: names, ids, and the numbers in ids."""
    found = set()
    for job in jobs:
        if job.state == "ended":
            continue
        found.add(job.id)
        found |= set(_NUMBER.findall(job.id)[:1])
        if job.name:
            found |= {job.name, job.name.removesuffix(f"-{job.index}")}
    return frozenset(found)


def sweep(
    root: str, sorts: Iterable[LeftoverKind], living: Iterable[str], older_than: float, *, dry_run: bool
) -> RunCommand:
    """Return the step that removes leftovers.

    :param root: Lading's folder, absolute
    :param living: tokens, names and ids of live jobs; those that Lading cannot have assigned are dropped
    :param older_than: seconds since the last change to anything in them
    :param dry_run: only report what would be removed
    :raises ValueError: the age is too small to spare what is being written
    """
    if older_than < YOUNGEST:
        raise ValueError(f"{older_than:g} s is not valid: files younger than {YOUNGEST} s may still be in use")
    calls = [f"{sort.command()} || printf '%s\\t-\\n' {shlex.quote(sort.kind)}" for sort in sorts]
    text = "\n".join([_SCRIPT, *calls, "echo ."])
    # The clocks of a cluster can differ by up to an hour.
    command = [
        "/bin/sh",
        "-c",
        text,
        "lading",
        root,
        str(math.ceil((older_than + 3600) / 60)),
        "yes" if dry_run else "no",
    ]
    lines = sorted({word for word in living if _WORD.fullmatch(word)})
    return RunCommand(command, stdin="".join(f"{line}\n" for line in lines).encode(), limit=LIMIT)


def swept(answer: CommandResult) -> list[RemovedLeftovers]:
    """Return what was removed, and which kinds could not be checked.

    :raises TransportError: the script was cut short; some leftovers may have been removed
    """
    lines = [line for line in answer.lines if line]
    if answer.status != 0 or lines[-1:] != ["."]:
        raise TransportError(f"the clean-up was interrupted after it had removed some files: {answer.message}")
    reported = " / ".join(answer.stderr.strip().splitlines()[:3])
    try:
        return [_cleaned(*line.split("\t"), reported=reported) for line in lines[:-1]]
    except (TypeError, ValueError) as error:
        raise TransportError(f"the answer of the clean-up cannot be parsed: {answer.message}") from error


def _cleaned(kind: str, number: str, size: str = "0", left: str = "0", *, reported: str) -> RemovedLeftovers:
    if number == "-":
        return RemovedLeftovers(kind, 0, 0.0, f"they could not be checked: {reported}")
    trouble = f"{left} of {number} could not be removed: {reported}" if int(left) else None
    return RemovedLeftovers(kind, int(number) - int(left), int(size) / 1024, trouble)
