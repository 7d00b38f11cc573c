"""What squeue, sacct and sinfo print, as jobs and nodes.

States: squeue, "JOB STATE CODES"; why a job waits: squeue, "JOB REASON CODES". Exit codes ``code:signal``: sacct,
"ExitCode"; there signal 125 stands for out of memory and 53 for a job that could not be launched.

What follows where an answer does not say it all:

| read | concluded | until |
|---|---|---|
| no titles of columns: nothing, an error, a banner | could not ask: nothing of jobs that it lacks | titles are there |
| titles of some clusters only (``CLUSTER:``) | the same of jobs of the others | theirs are there |
| a row that is cut, ``7_[1,3,...]`` | the same of that id; of a last line without its end, of all | the next answer |
| a state in no table, or none | runs, ``strange`` | a known state; ``lost_after``, then exit file and accounting |
| ``...fail... requeued held``, ``JobHoldMaxRequeue`` | never launched: ``pending``, ``node_failure`` | it is gone |
| ``CANCELLED by 0``, and no exit code of its batch step | never launched: ``node_failure`` | for good |
| ``SPECIAL_EXIT``, ``BadConstraints``... | ``never`` starts as things are | released; ``cancel_unrunnable_after`` |
| any other reason to wait, known or not | waits, with SLURM's words | another reason or state |
| ``REVOKED`` alone | runs in another cluster | its row there, or what the job reports |
| ended without exit code; sacct without the job | not known how | exit file, ``lost_after`` |
| a row of sinfo or scontrol that makes no sense | costs itself alone; no node at all: could not ask | the next survey |
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

from lading.hooks.batch.inventory import Inventory, Nodes, Survey, one_shell, time_limit
from lading.hooks.batch.status_query import SHORTEST_BEGINNING
from lading.hooks.batch.system import ArrayRange, Cause, CouldNotAsk, NativeJob, State, unknown
from lading.hooks.ssh.answer import CommandResult, whole_number

# The expected start is marked: what was recorded without it has the name there, which may hold anything.
SQUEUE_FORMAT = "%i|%T|%N|%r|start=%S|%j"
# As seconds since the epoch: the time zone of the host is not known.
TIME_FORMAT = "SLURM_TIME_FORMAT=%s"
SACCT_FIELDS = "JobID,State,ExitCode,End,NodeList,MaxRSS,ReqMem,JobName"

Key = tuple[str, int | None]
_ID = r"(\d+)(?:_(\d{1,18})|_\[([^\]|]*)\])?(\+\d+)?"
_SQUEUE = re.compile(rf"{_ID}\|((?:[A-Z_]+(?=[^|]*\|))?)([^|]*)\|([^|]*)\|([^|]*)\|(?:start=([^|]*)\|)?(.*)")
_ROW = re.compile(rf"{_ID}\|")
_TITLES = re.compile(r"JOBID\|(?:[^|]*\|){3,4}[^|]*")
_SIZE = r"(?:\d[\d.]*[KMGTP]?)?"
_CODE = r"\d{1,9}"
# Without its two amounts of memory, as it was asked for before.
_SACCT = re.compile(
    rf"(?:([^|]+)\|)?{_ID}(\.[^|]+)?\|([A-Z_]+)([^|]*)\|(?:({_CODE}):({_CODE}))?\|([^|]*)\|([^|]*)\|"
    rf"(?:({_SIZE})\|({_SIZE}[cn]?)\|)?(.*)"
)
_UNITS = {"": 2**-20, "K": 2**-10, "M": 1.0, "G": 2.0**10, "T": 2.0**20, "P": 2.0**30}
_CLUSTER = re.compile(r"CLUSTER: (\S+)")
# The exit code, as a shell has it, of what SIGKILL has ended.
KILLED = 137
_NO_NODES = ("", "(null)", "None assigned")
# A user whose name is not resolved has no jobs, and squeue no fault: directories and their caches fail in passing.
_NOBODY = "invalid user: "
# What a federation leaves of a job in a cluster while another one runs it.
_ELSEWHERE = "REVOKED"

_STATES: dict[str, tuple[State, Cause | None]] = {
    **dict.fromkeys(("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD"), ("pending", None)),
    **dict.fromkeys(("RESV_DEL_HOLD", "SPECIAL_EXIT", "POWER_UP_NODE", "EXPEDITING"), ("pending", None)),
    **dict.fromkeys(("RUNNING", "COMPLETING", "SIGNALING", "STAGE_OUT", "STOPPED"), ("running", None)),
    **dict.fromkeys(("SUSPENDED", "RESIZING", "UPDATE_DB", _ELSEWHERE), ("running", None)),
    "COMPLETED": ("ended", None),
    "BOOT_FAIL": ("ended", "node_failure"),
    "CANCELLED": ("ended", "cancelled"),
    "DEADLINE": ("ended", "time_limit"),
    "FAILED": ("ended", "error"),
    "LAUNCH_FAILED": ("ended", "node_failure"),
    "NODE_FAIL": ("ended", "node_failure"),
    "OUT_OF_MEMORY": ("ended", "out_of_memory"),
    "PREEMPTED": ("ended", "preempted"),
    "RECONFIG_FAIL": ("ended", "node_failure"),
    "TIMEOUT": ("ended", "time_limit"),
}
_STATE_TEXTS = {
    "CONFIGURING": "its nodes are being made ready",
    "REQUEUE_HOLD": "it was requeued and is held",
    "RESV_DEL_HOLD": "its reservation was deleted, so it is held",
    "SPECIAL_EXIT": "it ended with a special exit code and is held",
    "REQUEUED": "it was requeued",
    "SUSPENDED": "it is suspended",
    "STOPPED": "it is stopped",
    _ELSEWHERE: "another cluster of the federation has it",
}


def queued(answer: CommandResult) -> list[NativeJob]:
    """The jobs that squeue lists.

    :raises CouldNotAsk: there is neither a job nor the titles of the columns; or squeue does not know whose jobs it was
        asked for
    """
    if _NOBODY in answer.stderr.lower():
        raise CouldNotAsk(answer.message)
    jobs: dict[Key, NativeJob] = {}
    cluster = None
    for line in answer.lines:
        if match := _SQUEUE.fullmatch(line):
            word, rest, nodes, reason, start, name = match.groups()[4:]
            word = word or rest  # a state that is none of SLURM's is one that Lading does not know
            id, indices = _elements(match.groups()[:4], cluster)
            for index in indices:
                job = _job(
                    id, index, word, nodes, _whole_name(answer, line, name), reason, 0 if word == "COMPLETED" else None
                )
                if job.state == "pending":
                    job = replace(job, starts_at=whole_number(start or ""))
                _take(jobs, job, match[4], word)
        elif match := _CLUSTER.fullmatch(line.strip()):
            cluster = match[1]
    if not jobs and answer.status == 0 and not _titled(answer):
        raise CouldNotAsk(f"squeue shows neither jobs nor the titles of its columns: {answer.message}")
    return list(jobs.values())


def _titled(answer: CommandResult) -> dict[str | None, bool]:
    """The clusters of which an answer has a list, each with whether that has its titles; without them squeue has not
    asked that cluster, whatever it was started by. None is the own one, whose list has no heading.
    """
    found: dict[str | None, bool] = {}
    cluster: str | None = None
    for line in answer.lines:
        if match := _CLUSTER.fullmatch(line.strip()):
            cluster = match[1]
            found.setdefault(cluster, False)
        elif _TITLES.fullmatch(line):
            found[cluster] = True
    return found if any(found.values()) else {}


def _whole_name(answer: CommandResult, line: str, name: str) -> str:
    """The name in a row; empty: it is cut with the answer, and too short to tell a job by."""
    is_cut = line == answer.cut_line and (len(name) < SHORTEST_BEGINNING or name.startswith("start="))
    return "" if is_cut else name


def wholly_told(answer: CommandResult, ids: Iterable[str]) -> list[str]:
    """Those of the ids of which squeue knows no more than it lists: not those in rows that are cut, nor those of
    clusters that have not answered. Where all ids are without a cluster and the lists have headings, as the site's
    environment may have it, they are in any of those.
    """
    if answer.cut_line:
        return []
    ids, cut = list(ids), _cut_ids(answer)
    titled = _titled(answer)
    told = {cluster for cluster, is_titled in titled.items() if is_titled}
    if titled and all(titled.values()) and all(split_cluster(id)[1] is None for id in ids):
        told.add(None)
    return [id for id in ids if id not in cut and split_cluster(id)[1] in told]


def lists_all(answer: CommandResult) -> bool:
    """Whether an answer lists all jobs of the user."""
    titled = _titled(answer)
    return bool(titled) and all(titled.values()) and not answer.cut_line and not _cut_ids(answer)


def _cut_ids(answer: CommandResult) -> set[str]:
    """The ids of which rows cannot be read, or leave out indices."""
    cut: set[str] = set()
    cluster: str | None = None
    for line in answer.lines:
        if match := _CLUSTER.fullmatch(line.strip()):
            cluster = match[1]
        elif match := _ROW.match(line):
            id, indices = _elements(match.groups(), cluster)
            if not list(indices) or not _SQUEUE.fullmatch(line):
                cut.add(id)
    return cut


def accounted(answer: CommandResult) -> list[NativeJob]:
    """The jobs that sacct lists, each with the cause that one of its steps knows better.

    :raises CouldNotAsk: there are lines, but none is a job
    """
    jobs: dict[Key, NativeJob] = {}
    most: dict[Key, float | None] = {}
    by_root: set[Key] = set()
    for line in answer.lines:
        if (match := _SACCT.fullmatch(line)) is None:
            continue
        step, word, by, code, signal, _end, nodes, used, asked, name = match.groups()[5:]
        id, indices = _elements(match.groups()[1:5], match[1])
        for index in indices:
            if not step:
                _take(jobs, _with_exit(_job(id, index, word, nodes, name), code, signal), match[5], word)
                if word == "CANCELLED" and by.split() == ["by", "0"]:
                    by_root.add((id, index))
                most[id, index] = _mib(asked) or most.get((id, index))
            elif (id, index) in by_root and step == ".batch" and word == "CANCELLED" and code is None:
                # What slurmd makes of a job that it cannot start, where that may not be requeued; scancel leaves 0:15.
                jobs[id, index] = replace(jobs[id, index], cause="node_failure", reason="it could not be launched")
            elif (id, index) in jobs:
                jobs[id, index] = _with_step(jobs[id, index], word, _mib(used), most.get((id, index)))
    if not jobs and answer.stdout.strip():
        raise CouldNotAsk(f"no line of the answer is a job: {CommandResult(0, answer.stdout).message}")
    return list(jobs.values())


def split_cluster(id: str) -> tuple[str, str | None]:
    """The number and the cluster of an id such as ``123;far``, which sbatch gives where there are several clusters."""
    number, _, cluster = id.partition(";")
    return number, cluster or None


def joined(number: str, cluster: str | None) -> str:
    """The opposite of :func:`split_cluster`."""
    return f"{number};{cluster}" if cluster else number


def clusters(ids: Iterable[str]) -> list[str]:
    """The option that names the clusters of ids; none where they have none."""
    named = sorted({cluster for id in ids if (cluster := split_cluster(id)[1])})
    return ["-M", ",".join(named)] if named else []


def by_cluster(ids: Iterable[str]) -> list[list[str]]:
    """The ids without a cluster, and those with one: with ``-M`` a command is about those that it names alone."""
    parts: dict[bool, list[str]] = {False: [], True: []}
    for id in ids:
        parts[";" in id].append(id)
    return [part for part in parts.values() if part]


def cancelling(ids: Iterable[str]) -> list[str]:
    """The command that cancels jobs: a ``scancel`` for each cluster, since a number is another job in another one."""
    numbers: dict[str | None, list[str]] = {}
    for id in ids:
        number, cluster = split_cluster(id)
        numbers.setdefault(cluster, []).append(number)
    return together([["scancel", *(["-M", name] if name else []), *those] for name, those in numbers.items()])


def together(commands: list[list[str]]) -> list[str]:
    """One command for several, which fails if one of them does."""
    if len(commands) == 1:
        return commands[0]
    lines = [f"{shlex.join(command)} || status=$?" for command in commands]
    return ["sh", "-c", "\n".join(["status=0", *lines, "exit $status"])]


def _job(
    id: str,
    index: int | None,
    word: str,
    nodes: str,
    name: str,
    reason: str = "",
    exit_code: int | None = None,
) -> NativeJob:
    """The job of a row. What its state says is a better reason than the row's, unless that ends its waiting."""
    state, cause = _STATES.get(word, ("running", None))
    text, never = explain_reason(reason), False
    if state == "pending":
        cause, never = _verdict(word, reason)
    if word not in _STATES:
        text = unknown("SLURM", word)
    elif cause is None or state == "ended":
        text = _STATE_TEXTS.get(word) or text
    return NativeJob(
        id=id,
        index=index,
        state=state,
        cause=cause,
        reason=text,
        name=name,
        nodes=_nodes(nodes),
        exit_code=exit_code,
        never=never,
        strange=word not in _STATES,
    )


def _nodes(text: str) -> str | None:
    return None if text in _NO_NODES else text


def _with_exit(job: NativeJob, code: str | None, signal: str | None) -> NativeJob:
    if job.state != "ended" or code is None or signal is None:
        return job
    if signal == "125":
        return replace(job, cause="out_of_memory")
    if signal == "53":
        return replace(job, reason="it could not be launched")
    exit_code = 128 + int(signal) if int(signal) else int(code)
    if job.cause is not None and exit_code == 0:
        return job
    return replace(job, exit_code=exit_code)


def _with_step(job: NativeJob, word: str, used: float | None, asked: float | None) -> NativeJob:
    """A job with what one of its steps says; MiB."""
    if job.cause == "error" and job.exit_code == KILLED and used and asked and used >= asked:
        # Without cgroups it is slurmstepd that kills (OverMemoryKill), and calls it a failure.
        return replace(job, cause="out_of_memory", reason="it used more memory than it had asked for")
    # A job whose script has got over a step without memory has completed, and stays so.
    return replace(job, cause="out_of_memory") if job.cause == "error" and word == "OUT_OF_MEMORY" else job


def _mib(text: str | None) -> float | None:
    """An amount of memory of a node; None: there is none, or it is one of each cpu."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGTP]?)n?", text or "")
    return float(match[1]) * _UNITS[match[2]] if match else None


def _elements(id: tuple[str | None, ...], cluster: str | None) -> tuple[str, Iterable[int | None]]:
    """The id, and the indices that a row names; None is that of a job that is no array."""
    number, index, span, _component = id
    indices = (int(index) if index else None,) if span is None else _indices(span)
    return joined(number or "", cluster), indices


def _indices(span: str) -> Iterable[int]:
    """The indices of elements that were not listed one by one. SLURM cuts long lists by dots; then it has not said."""
    try:
        return ArrayRange(span.split("%", maxsplit=1)[0])
    except ValueError:
        return ()


def _take(jobs: dict[Key, NativeJob], job: NativeJob, component: str | None, word: str) -> None:
    """Take in what a row says of a job: the last of its runs counts, and the first of its components.

    What a federation has left of it is the least that is said.
    """
    if (job.id, job.index) not in jobs or (component in (None, "+0") and word != _ELSEWHERE):
        jobs[job.id, job.index] = job


# Why a job waits.

_REASONS = {
    "AccountNotAllowed": "the partition does not admit the account",
    "AssocGrpJobsLimit": "the account runs as many jobs as it may",
    "AssocMaxJobsLimit": "the user runs as many jobs as the account allows",
    "BadConstraints": "no node can ever meet its constraints",
    "BeginTime": "its start time has not come yet",
    "BurstBufferResources": "the burst buffer has no room",
    "Cleaning": "it was requeued, and what its last run has left is being cleaned up",
    "Dependency": "a job that it depends on has not ended yet",
    "DependencyNeverSatisfied": "a job that it depends on has failed, so it can never start",
    "InvalidAccount": "its account is not valid",
    "InvalidQOS": "its QOS is not valid",
    "JobArrayTaskLimit": "as many elements of its array run as may at once",
    "JobHeldAdmin": "an administrator holds it",
    "JobHeldUser": "the user holds it",
    "job requeued in held state": "it was requeued and is held",
    "job requeued in special exit state": "it ended with a special exit code and is held",
    "Licenses": "it waits for a licence",
    "NodeDown": "a node that it needs is down",
    "NonZeroExitCode": "it ended with an exit code other than 0",
    "OutOfMemory": "it needed more memory than it had asked for",
    "PartitionConfig": "it asks for more than the partition has",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition is not active",
    "PartitionNodeLimit": "it asks for more nodes than the partition allows",
    "PartitionTimeLimit": "it asks for more time than the partition allows",
    "Priority": "jobs with a higher priority come first",
    "ReqNodeNotAvail": "nodes that it needs are not available",
    "Reservation": "its reservation has not begun yet",
    "ReservationDeleted": "its reservation was deleted",
    "Resources": "it waits for resources to become free",
    "SystemFailure": "a failure of SLURM, a file system or the network",
    "TimeLimit": "it ran longer than it had asked for",
    "JobLaunchFailure": "it could not be launched, or was killed",
    "RaisedSignal": "it was ended by a signal",
}
# Whatever changes at the cluster, it will not start.
HOPELESS = frozenset({"DependencyNeverSatisfied"})
# It will not, unless an administrator changes the partition or the nodes, or releases it.
NEVER = frozenset({"BadConstraints", "PartitionTimeLimit", "job requeued in special exit state"})
# A node could not start it, and it is held until somebody releases it: it has never begun. There are "launch failed
# requeued held", "user env retrieval failed requeued held", "UserEnv retrieval failed, requeued held" and others.
_NOT_LAUNCHED = re.compile(r"(?:.*fail.*requeued held|JobHoldMaxRequeue)", re.IGNORECASE)
_LIMIT = re.compile(r"(QOS|Assoc)\w+")


def normalised(reason: str) -> str:
    """The reason that squeue gives, as the tables have it; empty: there is none.

    squeue writes those of several words with blanks, scontrol with underscores, and %R in parentheses.
    """
    text = " ".join(re.split(r"[\s_]+", reason.strip()))
    text = text[1:-1] if text.startswith("(") and text.endswith(")") else text
    return "" if text in ("None", "null") else text


def explain_reason(reason: str) -> str | None:
    """The reason that squeue gives, as text and in SLURM's own; None: there is none."""
    if not (text := normalised(reason)):
        return None
    code = re.split("[,:]", text)[0]
    known = "it could not be launched, and is held" if _NOT_LAUNCHED.fullmatch(text) else _REASONS.get(code)
    if known is None and (match := _LIMIT.fullmatch(code)):
        known = f"a limit of the {'QOS' if match[1] == 'QOS' else 'account'} is reached"
    said = " ".join(reason.split())
    return f"{known} ({said})" if known else said


def _verdict(word: str, reason: str) -> tuple[Cause | None, bool]:
    """The cause for which a job that waits will never start, and whether it will not as things are."""
    text = normalised(reason)
    code = re.split("[,:]", text)[0]
    if _NOT_LAUNCHED.fullmatch(text):
        return "node_failure", False
    return "error" if code in HOPELESS else None, code in NEVER or word == "SPECIAL_EXIT"


# Nodes and partitions: sinfo and scontrol.

# A node that is powered off (``~``) or being powered up (``#``) takes jobs. With any other mark it gets none now: it
# is silent, goes down, will be rebooted, or is reserved or planned for others.
_SLURM_IDLE = re.compile(r"idle[~#]?")


def slurm_inventory(text: str) -> Inventory:
    """sinfo(1): ``%P``, a ``*`` after the default one; ``%c``; ``%m`` in MiB; ``%D``; ``%t``, a line for each state.

    Then scontrol(1), a line for each partition: sinfo leaves out nodes of a cloud that are powered off.
    """
    rows = [line.strip().split("|") for line in text.splitlines() if line.count("|") == 4]
    kinds: dict[tuple[str, int, int], list[int]] = {}
    for name, cpus, memory, count, state in rows:
        with suppress(ValueError):  # a line that makes no sense costs itself alone
            of_kind = kinds.setdefault((name.rstrip("*"), int(cpus.rstrip("+")), int(memory.rstrip("+"))), [0, 0])
            of_kind[0] += int(count)
            of_kind[1] += int(count) if _SLURM_IDLE.fullmatch(state) else 0
    nodes = [Nodes(cpus, memory, name, count, idle) for (name, cpus, memory), (count, idle) in kinds.items() if count]
    default = next((name.rstrip("*") for name, *_ in rows if name.endswith("*")), None)
    return Inventory(nodes, list(dict.fromkeys(name.rstrip("*") for name, *_ in rows)), default, *_partitions(text))


def _partitions(text: str) -> tuple[dict[str, int], dict[str, int]]:
    """How many nodes a job can have in each partition: all that it has, and no more than its ``MaxNodes``; and for how
    many seconds it can run.
    """
    found, longest = {}, {}
    for line in text.splitlines():
        values = dict(word.partition("=")[::2] for word in line.split() if "=" in word)
        total, most = whole_number(values.get("TotalNodes", "")), whole_number(values.get("MaxNodes", ""))
        if "PartitionName" in values and total:
            found[values["PartitionName"]] = total if most is None else min(total, most)
        if "PartitionName" in values and (seconds := time_limit(values.get("MaxTime"))) is not None:
            longest[values["PartitionName"]] = seconds
    return found, longest


# By configuration, not by node: thousands of nodes are a few lines.
# Where scontrol has no answer, it is not known how many nodes a job can have.
SLURM_SURVEY = Survey(
    one_shell("sinfo -h -a -e -o '%P|%c|%m|%D|%t'", "{ scontrol -a -o show partition || :; }"), slurm_inventory
)
