"""Parse the output of qstat and pbsnodes of PBS Pro and TORQUE into jobs and nodes.

States: PBS Professional Reference Guide, "Job States"; exit codes: "Job Exit Codes" there, and TORQUE Administrator
Guide, "Job Exit Status"; substates: job.h of OpenPBS.

How incomplete answers are interpreted, and what revises the conclusion:

| read | concluded | until |
|---|---|---|
| nothing about a queried ID | could not ask about that job | an answer, or ``Unknown Job Id`` with its ID |
| nothing from qselect | no jobs if ``qstat -B`` names the server, else could not ask | the next answer |
| an ID that two servers have, with the server's name in another notation | no job's | the exact ID |
| a job that is truncated before its state | could not ask | the next answer |
| a last line without a line end | a missing name may still exist | a complete answer |
| a state in no table, none, or ``M`` (moved) | running, ``strange`` | a known state; ``lost_after``, then exit file |
| ``Unknown Job Id``, also without a job history | gone | ``lost_after``: exit file, else lost |
| an array without its elements | unknown, unless it has ended | its elements |
| ended without exit status, never started | cancelled; if it had started, unknown | exit file |
| a negative exit status in no table | ``error``, with its number | final |
| ``too many failed attempts to run`` | will never start: ``error`` | it is cancelled |
| a node that cannot be parsed | skipped; no node at all: could not ask | the next survey |
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from itertools import zip_longest
from typing import Any

from lading.hooks.batch.inventory import Inventory, Nodes, Survey, mib, one_shell, time_limit
from lading.hooks.batch.system import Cause, NativeJob, State, unknown
from lading.hooks.ssh.answer import whole_number

Codes = Mapping[int, tuple[Cause, str]]
_ID = re.compile(r"(\d+)(?:\[(\d{0,18})\])?((?:\.[\w.-]+)?)")
_STATES: dict[str, State] = {
    **dict.fromkeys("QHWT", "pending"),
    **dict.fromkeys("BRESU", "running"),
    **dict.fromkeys("FXC", "ended"),
}
_HOLDS = {"u": "the user holds it", "o": "an operator holds it", "s": "the system holds it", "p": "its password is bad"}
_TERMINATED = "91"
# In TORQUE, "l" holds an element while the maximum number of elements of its array runs.
_HOLDS |= {"l": "the maximum number of elements of its array is running"}

# Negative exit codes: PBS itself has failed. In TORQUE, the same numbers have other meanings.
PBSPRO_EXIT_CODES: Codes = {
    -3: ("node_failure", "PBS could not run it and meant to try again"),
    -4: ("node_failure", "MoM was restarted while it ran"),
    -5: ("node_failure", "MoM was restarted while it ran"),
    -6: ("node_failure", "MoM was restarted while it ran"),
    -11: ("preempted", "it was killed to be rerun"),
    -12: ("preempted", "it was checkpointed and killed"),
    -14: ("node_failure", "a sister MoM failed"),
    -16: ("node_failure", "a hook failed, and the job was to be rerun"),
    -18: ("preempted", "a hook killed it to be rerun"),
    -19: ("cancelled", "a hook deleted it"),
    -20: ("node_failure", "its primary node was lost"),
    -24: ("error", "it used more cpus than requested"),
    -25: ("error", "it used more cpus than requested"),
    -26: ("out_of_memory", "it used more virtual memory than requested"),
    -27: ("out_of_memory", "it used more memory than requested"),
    -28: ("time_limit", "it used more cpu time than requested"),
    -29: ("time_limit", "it ran longer than requested"),
    -30: ("node_failure", "its nodes could not be joined"),
    -31: ("out_of_memory", "it used more memory in huge pages than requested"),
    -32: ("node_failure", "its node no longer knew it, and it was to be rerun"),
}
TORQUE_EXIT_CODES: Codes = {
    -3: ("node_failure", "TORQUE could not run it and meant to try again"),
    -4: ("node_failure", "MOM was restarted while it ran"),
    -5: ("node_failure", "MOM was restarted while it ran"),
    -6: ("node_failure", "MOM was restarted while it ran"),
    -10: ("out_of_memory", "it used more memory than requested"),
    -11: ("time_limit", "it ran longer than requested"),
    -12: ("time_limit", "it used more cpu time than requested"),
    -13: ("node_failure", "its cgroup could not be created, and TORQUE meant to try again"),
    -14: ("node_failure", "its prologue failed, and TORQUE meant to try again"),
}
# The server holds the job permanently because no node could start it.
_START_FAILED = re.compile("too many failed attempts to run", re.IGNORECASE)
# The comment of PBS Pro's scheduler on a request that no node or queue can ever meet.
_NEVER = re.compile("can never run", re.IGNORECASE)
_SIGTERM, _SIGKILL, _SIGXCPU = 15, 9, 24


def split(id: str) -> tuple[str, int | None]:
    """Split an ID into that of the submission and the index of an element: ``8[].pbs1`` and 3 for ``8[3].pbs1``.

    :raises ValueError: it is not an ID
    """
    match = _ID.fullmatch(id.strip())
    if match is None:
        raise ValueError(f"{id!r} is not the ID of a PBS job")
    number, index, server = match.groups()
    if index is None:
        return f"{number}{server}", None
    return f"{number}[]{server}", int(index) if index else None


def element(id: str, index: int) -> str:
    """Return the ID of an element: the inverse of :func:`split`."""
    return id.replace("[]", f"[{index}]", 1)


def jobs(found: Iterable[tuple[str, Mapping[str, Any]]], codes: Codes) -> list[NativeJob]:
    """Return the jobs with these IDs and attributes. An entry without a valid ID is skipped.

    An array is reported by its elements, or by itself if it has ended and no element is listed. An array that has not
    ended always has elements, so if none is listed, its state is unknown.
    """
    every: dict[tuple[str, int | None], Mapping[str, Any]] = {}
    for id, attributes in found:
        with suppress(ValueError):
            every[split(id)] = attributes
    arrays = {id for id, index in every if index is not None}
    reported = [
        _job(id, index, attributes, every.get((id, None), {}), codes)
        for (id, index), attributes in every.items()
        if index is not None or id not in arrays
    ]
    return [job for job in reported if job.index is not None or "[]" not in job.id or job.state == "ended"]


def _job(
    id: str, index: int | None, attributes: Mapping[str, Any], array: Mapping[str, Any], codes: Codes
) -> NativeJob:
    """Return a job or an element. ``array`` has the attributes of its array, and is empty if that is not listed."""
    word = _text(attributes, "job_state")
    state = _STATES.get(word, "running")
    common: dict[str, Any] = {
        "id": id,
        "index": index,
        "name": _text(attributes, "Job_Name") or None,
        "nodes": _text(attributes, "exec_host") or None,
    }
    comment = _text(attributes, "comment") or None
    if word not in _STATES:
        moved = "it was moved to another server, which Lading does not query"
        return NativeJob(**common, state=state, reason=moved if word == "M" else unknown("PBS", word), strange=True)
    if state == "pending":
        reason = None if index is not None and _is_of_array(comment, array) else comment
        cause: Cause | None = "error" if reason and _START_FAILED.search(reason) else None
        never = bool(reason and _NEVER.search(reason))
        estimated = attributes.get("estimated")
        starts_at = _moment(_text(estimated, "start_time")) if isinstance(estimated, Mapping) else None
        return NativeJob(
            **common, state=state, cause=cause, reason=reason or _held(attributes), never=never, starts_at=starts_at
        )
    if state == "running":
        return NativeJob(**common, state=state, reason="it is suspended" if word in "SU" else None)
    cause, exit_code, reason = (
        ("cancelled", None, "it was deleted before it started")
        if index is not None and _never_ran(attributes)
        else _end(attributes, codes, array="[]" in id and index is None)
    )
    return NativeJob(
        **common,
        state=state,
        cause=cause,
        exit_code=exit_code,
        reason=reason or comment,
    )


def _moment(text: str) -> float | None:
    """Parse a time of qstat: seconds since the epoch, or a text as ctime(3) returns it, in UTC as set for the query."""
    if (seconds := whole_number(text.strip())) is not None:
        return float(seconds) or None
    with suppress(ValueError):
        return (
            datetime.strptime(" ".join(text.split()), "%a %b %d %H:%M:%S %Y").replace(tzinfo=timezone.utc).timestamp()
        )
    return None


def _is_of_array(comment: str | None, array: Mapping[str, Any]) -> bool:
    """Whether a comment is about an array. Its pending elements show the array's comment as their own, which applies to
    them only while the array itself is pending.
    """
    if comment is None or comment.startswith("Job Array"):
        return True
    return comment == _text(array, "comment") and _STATES.get(_text(array, "job_state")) != "pending"


def _never_ran(attributes: Mapping[str, Any]) -> bool:
    """Whether an element was deleted while it was pending.

    PBS Pro then shows its array's attributes as its own, including an exit status, which says that another element has
    failed.
    """
    if any(_text(attributes, key) for key in ("exec_host", "session_id", "history_timestamp", "obittime")):
        return False
    comment, status = _text(attributes, "comment"), _text(attributes, "Exit_status")
    if comment == "Subjob failed" or status == "0":  # older versions keep only the exit status of an element
        return False
    return status != "" or comment.startswith("Subjob")


def _end(attributes: Mapping[str, Any], codes: Codes, *, array: bool) -> tuple[Cause | None, int | None, str | None]:
    status = _number(_text(attributes, "Exit_status") or _text(attributes, "exit_status"))
    cancelled = _text(attributes, "substate") == _TERMINATED
    if array:
        # An array's exit status only says whether an element has failed.
        return "cancelled" if cancelled else None, None, None
    if status is None:
        started = any(_text(attributes, key) for key in ("stime", "start_time", "exec_host"))
        # A job that never ran cannot have succeeded: it was deleted, or a job that it depends on has failed. But PBS
        # may have stripped all attributes from an element that ended before its array (X).
        never = not started and _text(attributes, "job_state") != "X"
        return ("cancelled", None, None) if cancelled or never else (None, None, None)
    if status < 0:
        cause, reason = codes.get(status, ("error", f"it could not be run (exit status {status})"))
        return cause, None, reason
    signal = status - 256 if status > 256 else 0
    exit_code = 128 + signal if signal else status
    if status == 0 and not cancelled:
        return None, 0, None
    limit = _limit_reached(attributes, exit_code)
    if limit is None and (cancelled or signal == _SIGTERM):
        limit = "cancelled", "it was deleted"
    return ("error", exit_code, None) if limit is None else (limit[0], exit_code, limit[1])


def _limit_reached(attributes: Mapping[str, Any], exit_code: int) -> tuple[Cause, str] | None:
    """Return the limit for which a job was killed, judging by its usage; None: no limit was reached."""
    comment = _text(attributes, "comment").lower()
    if "walltime" in comment and "exceed" in comment:
        return "time_limit", "it ran longer than requested"
    if exit_code not in (128 + _SIGTERM, 128 + _SIGKILL, 128 + _SIGXCPU):
        return None
    used, asked = (attributes.get(key) for key in ("resources_used", "Resource_List"))
    if not isinstance(used, Mapping) or not isinstance(asked, Mapping):
        return None
    for name, parse, cause, reason, share in (
        ("walltime", _seconds, "time_limit", "it ran longer than requested", 1.0),
        ("mem", _kib, "out_of_memory", "it used as much memory as requested", 0.98),
        ("vmem", _kib, "out_of_memory", "it used as much virtual memory as requested", 0.98),
        ("cput", _seconds, "time_limit", "it used as much cpu time as requested", 1.0),
    ):
        most, taken = parse(_text(asked, name)), parse(_text(used, name))
        if most and taken is not None and taken >= share * most:
            return cause, reason  # type: ignore[return-value]
    return None


def _held(attributes: Mapping[str, Any]) -> str | None:
    reasons = [_HOLDS[letter] for letter in _text(attributes, "Hold_Types") if letter in _HOLDS]
    return " and ".join(reasons) or ("it depends on other jobs" if _text(attributes, "depend") else None)


def _text(attributes: Mapping[str, Any], key: str) -> str:
    value = attributes.get(key)
    return value.strip() if isinstance(value, str) else ""


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"-?\d{1,9}", text) else None


def _seconds(text: str) -> int | None:
    match = re.fullmatch(r"(?:(\d{1,9}):)?(?:(\d{1,9}):)?(\d{1,9})", text)
    if match is None:
        return None
    total = 0
    for part in text.split(":"):
        total = total * 60 + int(part)
    return total


def _kib(text: str) -> int | None:
    match = re.fullmatch(r"(\d{1,18})([kmgtp]?)[bw]?", text.lower())
    return int(match[1]) * 1024 ** " kmgtp".index(match[2] or " ") // 1024 if match else None


# The output of `qstat -f -F dsv` of PBS Pro and OpenPBS: one job per line, with bars between its attributes. It is the
# only format that answers for each ID (`-F json` prints the first one only) and in which no value can be mistaken for
# an attribute: within a value, a bar, a backslash and a line end are escaped with a backslash, and other control
# characters are written as `^M`. Older versions do not escape line ends; such values are joined again. With -x, jobs
# that have ended are listed too, but a server without history then prints nothing. Versions before 18 lack -F: awk
# converts their output, in which an attribute is a line indented by four blanks and continued after a tab. A line end
# within a value and the text after it are dropped, as is a last job that is not followed by a blank line.
COMMAND = r"""TZ=UTC LC_ALL=C history=-x form='-F dsv'
export TZ LC_ALL
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
# A backslash escapes the next character.
_FIELD = re.compile(r"(?:[^\\|]+|\\.?)+", re.DOTALL)
_MORE = re.compile(r"(?<!\\)(?:\\\\)*\|[A-Za-z_][\w.]*=")
_ESCAPED = re.compile(r"\\([\\|nf])")
_MEANT = {"n": "\n", "f": "\f"}
_ENDED = ("F", "X")


def parse_dsv(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the ID and the attributes of each job in an answer. Those such as ``resources_used.mem`` are in a
    dictionary of their own.

    :raises ValueError: the answer is truncated before the relevant attributes of a job
    """
    starts = list(_JOB.finditer(text))
    for start, after in zip_longest(starts, starts[1:]):
        section = text[start.end() : after.start() if after else len(text)]
        lines = [line.removesuffix("\r") for line in section.split("\n")]
        # Text that a site prints after the last job does not belong to the job.
        kept = 1 + max((number for number, line in enumerate(lines) if _MORE.search(line)), default=0)
        fields = _FIELD.findall("\n".join(lines[:kept]))
        whole = kept < len(lines)
        attributes = _attributes(fields if whole or fields[-1].startswith("job_state=") else fields[:-1])
        if not whole and not _is_informative(attributes):
            raise ValueError(f"it is truncated at job {start[1]}")
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


def _is_informative(attributes: dict[str, Any]) -> bool:
    """Whether the first attributes of a job suffice: it has not ended, or its exit status is known."""
    state = attributes.get("job_state", "")
    return len(state) == 1 and (state not in _ENDED or "Exit_status" in attributes)


# Parsers of nodes and queues: pbsnodes and qstat.

_START = re.compile(r"^\{", re.MULTILINE)
# A member of a JSON object, which PBS writes in a line of its own; its value may be invalid JSON.
_MEMBER = re.compile(r'^(\s*"[^"\n]*":\s*)(?:"(.*)"|([^\s"{\[].*?))(,?)\r?$', re.MULTILINE)
_ESCAPE = re.compile(r'\\.|"')


def pbspro_inventory(text: str) -> Inventory:
    """Parse nodes and queues (PBS Professional Reference Guide, pbsnodes and qstat). Vnodes of a host form one node."""
    whole = {key: value for each in _documents(text) for key, value in each.items()}
    hosts: dict[str, tuple[int, int | None, str | None, bool]] = {}
    for name, vnode in whole.get("nodes", {}).items():
        with suppress(AttributeError, TypeError, ValueError):  # a node that cannot be parsed does not affect the others
            available = vnode.get("resources_available", {})
            if not (cpus := int(available.get("ncpus", 0))):
                continue
            host = str(available.get("host", name))
            memory = mib(str(available["mem"])) if "mem" in available else None
            # Every other state, or combination of states, is not idle: busy, offline, down, stale, reserved, asleep ...
            is_idle = vnode.get("state") == "free" and not vnode.get("jobs")
            before = hosts.get(host)
            if before is not None:
                cpus += before[0]
                memory = None if memory is None or before[1] is None else memory + before[1]
                is_idle = is_idle and before[3]
            hosts[host] = cpus, memory, _name(vnode, "queue"), is_idle
    servers = list(whole.get("Server", {}).values())
    default = _name(servers[0], "default_queue") if servers else None
    return Inventory(
        [Nodes(cpus, memory, queue, idle=int(is_idle)) for cpus, memory, queue, is_idle in hosts.values()],
        list(whole.get("Queue", {})),
        default,
        _most_chunks(whole),
        _longest(whole),
    )


def _longest(whole: dict[str, Any]) -> dict[str, int]:
    """Return the maximum run time of a job in each queue, in seconds."""
    servers, found = list(whole.get("Server", {}).values()), {}
    for name, queue in whole.get("Queue", {}).items():
        limits = [each.get("resources_max") for each in (queue, *servers) if isinstance(each, dict)]
        known = [time_limit(str(each.get("walltime"))) for each in limits if isinstance(each, dict)]
        if seconds := [each for each in known if each is not None]:
            found[name] = seconds[0]  # the limit of a queue overrides the server's
    return found


def _most_chunks(whole: dict[str, Any]) -> dict[str, int]:
    """Return the maximum number of chunks by queue. The physical maximum is unknown: a host can run several chunks."""
    servers = [_nodect(each) for each in whole.get("Server", {}).values()]
    found = {}
    for name, queue in whole.get("Queue", {}).items():
        known = [each for each in (_nodect(queue), *servers) if each is not None]
        if known:
            found[name] = min(known)
    return found


def _nodect(values: Any) -> int | None:
    """Return the maximum number of nodes that a server or queue allows; None: unlimited, or not readable."""
    limits = values.get("resources_max", {}) if isinstance(values, dict) else {}
    return whole_number(str(limits.get("nodect", ""))) if isinstance(limits, dict) else None


def _name(values: dict[str, Any], key: str) -> str | None:
    return None if values.get(key) is None else str(values[key])


def _documents(text: str) -> list[dict[str, Any]]:
    """Parse the JSON documents in an answer, and repair them if necessary: some versions of PBS fail to escape
    characters and write numbers that are invalid in JSON (``007``).
    """
    try:
        return list(_decoded(text))
    except ValueError:
        return list(_decoded(_MEMBER.sub(_mended, text)))


def _mended(member: re.Match[str]) -> str:
    def escaped(found: re.Match[str]) -> str:
        if found[0] == '"':
            return '\\"'
        return found[0] if found[0][1] in '"\\/bfnrtu' else found[0][1]

    return f'{member[1]}"{_ESCAPE.sub(escaped, member[2] or member[3] or "")}"{member[4]}'


def _decoded(text: str) -> Iterator[dict[str, Any]]:
    decoder, end = json.JSONDecoder(strict=False), 0
    while match := _START.search(text, end):
        value, end = decoder.raw_decode(text, match.end() - 1)
        yield value


def torque_inventory(text: str) -> Inventory:
    """Parse nodes and queues, blocks of ``key = value`` below a name (TORQUE Administrator Guide, pbsnodes, qstat)."""
    nodes, queues, default = [], dict[str, dict[str, str]](), None
    server: dict[str, str] = {}
    for name, values in _blocks(text):
        if name.startswith("Queue:"):
            queues[name.partition(":")[2].strip()] = values
        elif name.startswith("Server:"):
            server, default = values, values.get("default_queue")
        elif (cpus := whole_number(values.get("np", ""))) is not None:
            status = dict(each.partition("=")[::2] for each in values.get("status", "").split(","))
            is_idle = values.get("state") == "free" and not values.get("jobs")
            nodes.append(Nodes(cpus, mib(status.get("physmem", "")), idle=int(is_idle)))
    most = {name: _torque_most(len(nodes), server, values) for name, values in queues.items() if nodes}
    longest = {name: time_limit((server | values).get("resources_max.walltime")) for name, values in queues.items()}
    known = {name: seconds for name, seconds in longest.items() if seconds is not None}
    return Inventory(nodes, list(queues), default, most, known)


def _torque_most(count: int, server: dict[str, str], queue: dict[str, str]) -> int:
    """Return the maximum number of nodes of a job: the number of nodes, unless an administrator sets more or fewer."""
    there = [whole_number(each.get("resources_available.nodect", "")) or 0 for each in (server, queue)]
    allowed = [whole_number(each.get("resources_max.nodect", "")) for each in (server, queue)]
    return min([max(count, *there), *(each for each in allowed if each is not None)])


def _blocks(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    name, values = "", dict[str, str]()
    for line in text.splitlines():
        if line.strip() and not line[0].isspace():
            if name:
                yield name, values
            name, values = line.strip(), {}
        elif " = " in line:
            key, _, value = line.strip().partition(" = ")
            values[key] = value
    if name:
        yield name, values


PBSPRO_SURVEY = Survey(one_shell("pbsnodes -a -F json", "qstat -Q -f -F json", "qstat -B -f -F json"), pbspro_inventory)
TORQUE_SURVEY = Survey(one_shell("pbsnodes -a", "qstat -Q -f", "qstat -B -f"), torque_inventory)
