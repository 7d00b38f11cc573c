"""What ``qstat -f -F dsv`` of PBS Pro and OpenPBS prints: a job in a line, with bars between its attributes.

It is the one form that answers for each id (``-F json`` prints the first one alone) and in which no value can pass for
an attribute: within a value a bar, a backslash and the end of a line have a backslash before them, and other control
characters are written as ``^M``. Older versions leave the end of a line as it is; such values are put together again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

# With -x those that have ended are shown, too; a server without history shows nothing then. Versions before 18 have no
# -F: awk makes the same form of theirs, in which an attribute is a line after four blanks and goes on after a tab. The
# end of a line within a value, and what is after it, is left out; so is the last job where it has no blank line behind.
COMMAND = r"""history=-x form='-F dsv'
ask() { { said=$(qstat -t $history -f $form "$@" 2>&1 >&3 3>&-); status=$?; } 3>&1; }
tell() {
  ask "$@"
  case $said in *"not configured to maintain job history"*) history=; ask "$@" ;; esac
  case $form$said in -F*[Uu]sage:*) return 1 ;; esac
  [ -z "$said" ] || printf '%s\n' "$said" >&2
}
if tell "$@"; then exit $status; fi
form=
{ tell "$@"; echo "status $status"; } | awk '
  function add(text) { gsub(/[\\|]/, "\\\\&", text); job = job text }
  /^status [0-9]+$/ { status = $2; next }
  { blank = $0 == "" }
  /^Job Id: / { if (job) print job; job = "Job Id: " $3; next }
  /^    [A-Za-z_][A-Za-z0-9_.-]* = / {
    at = index($0, " = "); job = job "|" substr($0, 5, at - 5) "="; add(substr($0, at + 3))
  }
  /^\t/ { add(substr($0, 2)) }
  END { if (job && blank) print job; exit status }'"""
_JOB = re.compile(r"^Job Id: (\S+?)\|(?=[A-Za-z_][\w.]*=)", re.MULTILINE)
# A backslash takes away the meaning of what comes after it.
_FIELD = re.compile(r"(?:[^\\|]+|\\.?)+", re.DOTALL)
_MORE = re.compile(r"(?<!\\)(?:\\\\)*\|[A-Za-z_][\w.]*=")
_ESCAPED = re.compile(r"\\([\\|nf])")
_MEANT = {"n": "\n", "f": "\f"}
_ENDED = ("F", "X")


def jobs(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The id and the attributes of each job in an answer; those of ``resources_used.mem`` in a dictionary of their own.

    :raises ValueError: it is cut before what a job has to say
    """
    starts = list(_JOB.finditer(text))
    for start, after in zip_longest(starts, starts[1:]):
        section = text[start.end() : after.start() if after else len(text)]
        lines = [line.removesuffix("\r") for line in section.split("\n")]
        # What a site prints after the last job is no part of it.
        kept = 1 + max((number for number, line in enumerate(lines) if _MORE.search(line)), default=0)
        fields = _FIELD.findall("\n".join(lines[:kept]))
        whole = kept < len(lines)
        attributes = _attributes(fields if whole or fields[-1].startswith("job_state=") else fields[:-1])
        if not whole and not _tells(attributes):
            raise ValueError(f"it is cut at job {start[1]}")
        yield start[1], attributes


def _attributes(fields: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in fields:
        name, _, value = field.partition("=")
        group, _, part = name.partition(".")
        value = _ESCAPED.sub(lambda match: _MEANT.get(match[1], match[1]), value)
        if part:
            if isinstance(parts := found.setdefault(group, {}), dict):
                parts.setdefault(part, value)
        else:
            found.setdefault(name, value)
    return found


def _tells(attributes: dict[str, Any]) -> bool:
    """Whether the first attributes of a job say enough: that it lives, or how it has ended."""
    state = attributes.get("job_state", "")
    return len(state) == 1 and (state not in _ENDED or "Exit_status" in attributes)
