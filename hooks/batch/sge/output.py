"""Parse the output of ``qstat -xml``, ``qacct -j`` and ``qhost -xml`` of Grid Engine into jobs and nodes.

States: qstat(1), "state"; accounting: sge_accounting(5), "failed".

How incomplete answers are interpreted, and what revises the conclusion:

| read | concluded | until |
|---|---|---|
| no complete ``<job_info>``, or a job without its number | could not ask | the next answer |
| a job that a complete list lacks | gone | ``lost_after``: exit file, qacct, else lost |
| letters in no table, or none | running, ``strange`` | known ones; ``lost_after``, then exit file and qacct |
| ``E`` among them (``Eqw``) | will never start: ``error`` | it is cleared or cancelled |
| ``d`` (``dr``, ``dt``) | running: it is being deleted | it is gone |
| ``z`` | ended, result unknown | exit file, qacct |
| a record of qacct that is truncated, or of a process on another host | skipped | the next one |
| ``failed`` 24, 25 | pending: it is being restarted | another record |
| ``failed`` in no table | ``error``, with Grid Engine's message | final |
| a host without its size | the size of its largest queue; no host at all: could not ask | the next survey |
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lading.hooks.batch import xml
from lading.hooks.batch.inventory import Inventory, Nodes, Survey, mib, one_shell
from lading.hooks.batch.system import ArrayRange, Cause, NativeJob, State, unknown
from lading.hooks.ssh.answer import whole_number

_BLOCK = re.compile(r"^=+[ \t]*$", re.MULTILINE)
_SIZE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([KMGTkmgt]?)[Bb]?s?")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
# Codes of a job that stopped but continues later: it was migrated or rescheduled.
_GOES_ON = ("24", "25")
_LIMIT, _SIGNAL = "37", "100"
# End time in a second record that some versions write next to the real one; it may claim a success.
_NEVER = "-/-"
# The shepherd died, or its host did.
_NODE = ("18", "19")


def queued(text: str) -> list[NativeJob]:
    """Return the jobs in the XML of qstat.

    :raises ValueError: there is no XML, or it is truncated
    """
    start, end = text.find("<job_info"), text.rfind("</job_info>")
    if start < 0 or end < start:
        raise ValueError("it contains no list of jobs")
    root = xml.parse(text[start : end + len("</job_info>")])
    jobs = []
    for row in root.iter("job_list"):
        number = xml.text_of(row, "JB_job_number")
        if whole_number(number) is None:
            raise ValueError(f"{number!r} is not a job number")
        host = xml.text_of(row, "queue_name").partition("@")[2] or None
        name = xml.text_of(row, "JB_name") or xml.text_of(row, "full_job_name") or None
        described = _described(xml.text_of(row, "state"))
        jobs += [
            NativeJob(id=number, index=index, name=name, nodes=host, **described)
            for index in _indices(xml.text_of(row, "tasks"))
        ]
    # A task on several hosts may be listed once for each; the running entry is more informative than a pending rest.
    return list({(job.id, job.index): job for job in reversed(jobs)}.values())[::-1]


def accounted(text: str) -> list[NativeJob]:
    """Return the jobs in the records of qacct, which are in the order in which the jobs ended."""
    found: dict[tuple[str, int | None], NativeJob] = {}
    for block in _BLOCK.split(text.replace("\r\n", "\n"))[1:]:
        record = {key: value.strip() for key, _, value in (line.partition(" ") for line in block.split("\n"))}
        # A process of a parallel job on another host has a record of its own. A record without these keys is truncated.
        is_whole = whole_number(record.get("jobnumber", "")) is not None and record.get("failed", "")[:1].isdecimal()
        if is_whole and record.get("pe_taskid", "NONE") in ("NONE", "undefined", ""):
            job = _of_record(record)
            if record.get("end_time") != _NEVER or (job.id, job.index) not in found:
                found[job.id, job.index] = job
    return list(found.values())


def _described(letters: str) -> dict[str, Any]:
    if not letters or set(letters) - set("dEhrRsStTqwPNz"):
        return {"state": "running", "reason": unknown("Grid Engine", letters), "strange": True}
    state, reason, cause = _state(letters)
    return {"state": state, "reason": reason, "cause": cause}


def _state(letters: str) -> tuple[State, str | None, Cause | None]:
    if "E" in letters:
        return "pending", f"it could not be started and stays in its queue until it is deleted ({letters})", "error"
    if "z" in letters:
        return "ended", None, None
    if "d" in letters:
        return "running", "it is being deleted", None
    if "q" in letters or "w" in letters:
        held = "it is held, by a user or for jobs that it depends on" if "h" in letters else None
        return "pending", held or ("it is being restarted" if "R" in letters else None), None
    return "running", "it is suspended" if set(letters) & set("sST") else None, None


def _indices(tasks: str) -> Iterable[int | None]:
    """Return the tasks in a row; None: the job is not an array, or its tasks are not listed one by one."""
    try:
        return ArrayRange(tasks.replace(" ", "")) if tasks else (None,)
    except ValueError:
        return (None,)


def _of_record(record: Mapping[str, str]) -> NativeJob:
    common: dict[str, Any] = {
        "id": record["jobnumber"],
        "index": whole_number(record.get("taskid", "")),
        "name": record.get("jobname") or None,
        "nodes": record.get("hostname") or None,
    }
    code, _, message = record["failed"].partition(":")
    code = code.strip().split(" ")[0]
    if code in _GOES_ON:
        return NativeJob(**common, state="pending", reason="it is being restarted")
    status = re.match(r"\d+", record.get("exit_status", ""))
    exit_code = whole_number(status[0]) if status and record.get("end_time") != _NEVER else None
    cause = _cause(record, code, exit_code)
    if cause is not None and exit_code == 0:
        exit_code = None
    return NativeJob(
        **common,
        state="ended",
        cause=cause,
        exit_code=exit_code,
        reason=message.strip() or None,
    )


def _cause(record: Mapping[str, str], failed: str, exit_code: int | None) -> Cause | None:
    if record.get("deleted_by", "NONE") not in ("NONE", "", "undefined"):
        return "cancelled"
    if failed == "0" and not exit_code:  # without an exit code, the result is unknown
        return None
    if failed in _NODE:
        return "node_failure"
    limits = dict(_limits(record.get("category", "")))
    memory, asked = _bytes(record.get("maxvmem", "")), _bytes(limits.get("h_vmem", ""))
    if failed in (_LIMIT, _SIGNAL) or (exit_code or 0) > 128:
        if memory and asked and memory >= 0.98 * asked * _slots(record):
            return "out_of_memory"
        wall, longest = _bytes(record.get("ru_wallclock", "")), _seconds(limits.get("h_rt", ""))
        if failed == _LIMIT or (wall and longest and wall >= longest):
            return "time_limit"
    return "error"


def _slots(record: Mapping[str, str]) -> int:
    slots = whole_number(record.get("slots", ""))
    return 1 if slots is None else slots


def _limits(category: str) -> Iterator[tuple[str, str]]:
    for request in re.findall(r"-l (\S+)", category):
        for pair in request.split(","):
            name, equals, value = pair.partition("=")
            if equals:
                yield name, value


def _seconds(text: str) -> float | None:
    """Parse a duration such as ``3600`` or ``1:00:00``; its parts can be empty (sge_types(1), "time_specifier")."""
    if not re.fullmatch(r"\d{1,9}|\d{0,9}:\d{0,9}:\d{0,9}", text):
        return None
    hours, minutes, seconds = ["0", "0", *text.split(":")][-3:]
    return 3600.0 * int(hours or 0) + 60 * int(minutes or 0) + int(seconds or 0)


def _bytes(text: str) -> float | None:
    match = _SIZE.fullmatch(text.strip())
    return float(match[1]) * _UNITS[match[2]] if match else None


# Parsers of hosts and queues: qhost and qconf.


def sge_inventory(text: str) -> Inventory:
    """Parse qhost(1) with queues in XML, then qconf(1) -sql, one name per line. Jobs without a queue can run in any.

    A job requests slots, which can all be on one host, so it needs no minimum number of hosts.
    """
    document, end, rest = text[max(0, text.find("<qhost")) :].partition("</qhost>")
    nodes = []
    for host in xml.parse(document + end).iter("host"):
        values = {str(each.get("name")): each.text or "" for each in host.iter("hostvalue")}
        queues = [{each.get("name"): each.text for each in queue.iter("queuevalue")} for queue in host.iter("queue")]
        # A host that is down does not report its size, but its queues report their slots.
        slots = [each for queue in queues if (each := whole_number(queue.get("slots") or "")) is not None]
        number = whole_number(values.get("num_proc", ""))
        if (cpus := number if number is not None else max(slots, default=None)) is not None:
            # Each letter of a state is a reason to refuse jobs: unknown, disabled, suspended, alarm, error.
            is_open = any(not queue.get("state_string") for queue in queues)
            is_idle = is_open and all(queue.get("slots_used") == "0" for queue in queues)
            nodes.append(Nodes(cpus, mib(values.get("mem_total", "")), idle=int(is_idle)))
    return Inventory(nodes, [line.strip() for line in rest.splitlines() if re.fullmatch(r"\s*[\w.-]+\s*", line)])


SGE_SURVEY = Survey(one_shell("qhost -q -xml", "qconf -sql"), sge_inventory)
