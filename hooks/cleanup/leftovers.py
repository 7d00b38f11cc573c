"""What is left behind in Lading's folder on a cluster, and how it is removed by age. Pure: the shell text, its answer.

Each sort of leftover is what lies in one folder below the root: a folder for each run, submission and so on, or a file.
One is removed when nothing in it has changed for so long, and when nothing that lives needs it. Changes are dated by
the file server and judged by the host that looks: an hour is allowed for between their clocks. Whether something lives
is found by tokens, names and native ids of jobs. A folder is in use if one of these is its name, the name of
something in it, or stands in a file in which Lading keeps the ids and tokens that belong to it.

Only names that Lading gives are looked at. Nothing is removed through symbolic links, neither through those in a folder
nor through one that has taken the place of a folder; an attempt that is a link to a job array is read, for the run
lives while the array does. Names are compared at the cluster, so nothing but numbers comes back, however many there
are, and nothing is written there: a full disk can be cleaned.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lading.hooks.batch.canceller import NOTES
from lading.hooks.batch.system import NativeJob
from lading.hooks.site import RemovedLeftovers
from lading.hooks.ssh.answer import CommandResult, TransportError
from lading.hooks.ssh.steps import RunCommand

# Seconds for all of it: a file server removes some hundred folders in a second.
LIMIT = 3600
# Less than this, in seconds, may be the age of what is on its way.
YOUNGEST = 3600
# By so much the clocks of a cluster may differ, seconds.
CLOCKS_DIFFER = 3600

_TOKEN = "-".join("?" * length for length in (8, 4, 4, 4, 12))
_SUBMISSION = "L" + "?" * 14
_NUMBER = re.compile(r"[0-9]+")
# What is one word for those who look for it; the list of words has one in each line.
_WORD = re.compile(r"[0-9A-Za-z_.-]+")


@dataclass(frozen=True, slots=True)
class LeftoverKind:
    """One sort of leftovers.

    :param kind: what people call it
    :param folder: below the root
    :param names: patterns of file names
    :param files: whether they are files, not folders
    :param deep: whether the names in such a folder, or the words in such a file, say what it belongs to
    :param needed: whether jobs name it in their own files
    """

    kind: str
    folder: str
    names: Sequence[str]
    files: bool = False
    deep: bool = False
    needed: bool = False

    def command(self) -> str:
        """The call of the shell function that removes them."""
        patterns = " -o ".join(f"-name {shlex.quote(name)}" for name in self.names)
        parts = [self.kind, self.folder, "f" if self.files else "d", "deep" if self.deep else ""]
        return f"{'lading_needed && ' if self.needed else ''}lading_clean {shlex.join(parts)} {patterns}"


RUNS = (
    LeftoverKind("runs", "scripts", [_TOKEN]),
    LeftoverKind("notes of cancelled runs", NOTES, [_TOKEN, f"{_TOKEN}.*"], files=True),
)
# The last ones, so that what names them has gone before.
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
# Of a machine's own folder: what its agent has in hand, and its events, are known to the agent alone.
MACHINE = tuple(
    each for each in JOBS if each.kind in ("logs", "envelopes", "cancel requests", "incoming", "torn writes")
)
TRIALS = tuple(each for each in JOBS if each.kind == "trials")

# The words that live are on standard input, one in each line.
_SCRIPT = r"""
root=$1 age=$2 dry=$3
LC_ALL=C; export LC_ALL
living=$(cat)
[ -d "$root" ] || { echo .; exit 0; }
root=$(cd -P -- "$root" && pwd -P) && cd -P -- "$root" || exit
# What belongs to a submission that lives lives, too.
for each in $(printf '%s\n' "$living" | grep '^L[0-9a-f]\{14\}$'); do
  if [ -f "submissions/$each/tasks" ]; then
    living="$living
$(cut -f 1 "submissions/$each/tasks")" || exit
  fi
done
# Lines of several lists, each with its letter: words that live (K), candidates (C), what has changed in them (N), what
# is in them (P), files of theirs that name what they belong to (R). A dot ends those that must be whole.
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
# Runs a command for the names on standard input; that one of them is gone meanwhile does no harm.
lading_each() { xargs -n 500 /bin/sh -c "$1" "$age"; [ $? -le 123 ] && echo .; }
# The Dag bundles that are named by what is still there live, too.
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
    """The names by which the jobs that the batch system has are known: their names, ids, and the numbers in these."""
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
    """Remove what is left behind.

    :param root: Lading's folder, absolute
    :param living: tokens, names and ids of what lives; those that can be no name of Lading's are left out
    :param older_than: seconds for which nothing in it has changed
    :param dry_run: only report what would be removed
    :raises ValueError: it is too young to be distinguished from what is being written
    """
    if older_than < YOUNGEST:
        raise ValueError(f"{older_than:g} s is not valid: what is younger than {YOUNGEST} s may be on its way")
    calls = [f"{sort.command()} || printf '%s\\t-\\n' {shlex.quote(sort.kind)}" for sort in sorts]
    text = "\n".join([_SCRIPT, *calls, "echo ."])
    command = [
        "/bin/sh",
        "-c",
        text,
        "lading",
        root,
        str(math.ceil((older_than + CLOCKS_DIFFER) / 60)),
        "yes" if dry_run else "no",
    ]
    lines = sorted({word for word in living if _WORD.fullmatch(word)})
    return RunCommand(command, stdin="".join(f"{line}\n" for line in lines).encode(), limit=LIMIT)


def swept(answer: CommandResult) -> list[RemovedLeftovers]:
    """What was removed, and of what it is not known.

    :raises TransportError: it was cut short; what was removed until then is gone
    """
    lines = [line for line in answer.lines if line]
    if answer.status != 0 or lines[-1:] != ["."]:
        raise TransportError(f"not all could be looked at, and what was removed before is gone: {answer.message}")
    reported = " / ".join(answer.stderr.strip().splitlines()[:3])
    try:
        return [_cleaned(*line.split("\t"), reported=reported) for line in lines[:-1]]
    except (TypeError, ValueError) as error:
        raise TransportError(f"what was removed is not known, the answer makes no sense: {answer.message}") from error


def _cleaned(kind: str, number: str, size: str = "0", left: str = "0", *, reported: str) -> RemovedLeftovers:
    if number == "-":
        return RemovedLeftovers(kind, 0, 0.0, f"they could not be examined: {reported}")
    trouble = f"{left} of {number} could not be removed: {reported}" if int(left) else None
    return RemovedLeftovers(kind, int(number) - int(left), int(size) / 1024, trouble)
