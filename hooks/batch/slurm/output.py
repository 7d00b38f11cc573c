"""Parse the output of squeue, sacct and sinfo into jobs and nodes.

States: squeue, "JOB STATE CODES"; reasons of pending jobs: squeue, "JOB REASON CODES". Exit codes ``code:signal``:
sacct, "ExitCode"; there, signal 125 stands for out of memory and 53 for a job that could not be launched.

How incomplete answers are interpreted, and what revises the conclusion:

| read | concluded | until |
|---|---|---|
| no column titles: no output, an error, a banner | could not ask about jobs that are not listed | titles |
| titles of some clusters only (``CLUSTER:``), even if squeue fails | the same for jobs of the others | their titles |
| a truncated row, ``7_[1,3,...]`` | the same for that ID; a last line without end: for all | the next answer |
| a state in no table, or none | running, ``strange`` | a known state; ``lost_after``, then exit file and accounting |
| ``...fail... requeued held``, ``JobHoldMaxRequeue`` | never launched: ``pending``, ``node_failure`` | it is gone |
| ``CANCELLED by 0``, and no exit code of its batch step | never launched: ``node_failure`` | final |
| ``SPECIAL_EXIT``, ``BadConstraints``... | ``never`` under this configuration | released; ``cancel_unrunnable_after`` |
| any other reason to wait, known or unknown | waiting, with SLURM's message | another reason or state |
| ``REVOKED`` only | running in another cluster | its row there, or the job's own report |
| ended without exit code; sacct without the job | ended, result unknown | exit file, ``lost_after`` |
| a row of sinfo or scontrol that cannot be parsed | skipped; no node at all: could not ask | the next survey |
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

# The expected start has a marker: in recordings without it, the name is in its place, which can contain anything.
SQUEUE_FORMAT = "%i|%T|%N|%r|start=%S|%j"
# Seconds since the epoch, because the time zone of the host is unknown.
TIME_FORMAT = "SLURM_TIME_FORMAT=%s"
SACCT_FIELDS = "JobID,State,ExitCode,End,NodeList,MaxRSS,ReqMem,JobName"

Key = tuple[str, int | None]
_ID = r"(\d+)(?:_(\d{1,18})|_\[([^\]|]*)\])?(\+\d+)?"
_SQUEUE = re.compile(rf"{_ID}\|((?:[A-Z_]+(?=[^|]*\|))?)([^|]*)\|([^|]*)\|([^|]*)\|(?:start=([^|]*)\|)?(.*)")
_ROW = re.compile(rf"{_ID}\|")
_TITLES = re.compile(r"JOBID\|(?:[^|]*\|){3,4}[^|]*")
_SIZE = r"(?:\d[\d.]*[KMGTP]?)?"
_CODE = r"\d{1,9}"
# The two amounts of memory are optional: earlier versions of Lading did not query them.
_SACCT = re.compile(
    rf"(?:([^|]+)\|)?{_ID}(\.[^|]+)?\|([A-Z_]+)([^|]*)\|(?:({_CODE}):({_CODE}))?\|([^|]*)\|([^|]*)\|"
    rf"(?:({_SIZE})\|({_SIZE}[cn]?)\|)?(.*)"
)
_UNITS = {"": 2**-20, "K": 2**-10, "M": 1.0, "G": 2.0**10, "T": 2.0**20, "P": 2.0**30}
_CLUSTER = re.compile(r"CLUSTER: (\S+)")
# What squeue says about clusters that it cannot list. It prints the titles of a list only after loading its jobs.
_UNREACHED = re.compile("can't be reached now|No cluster .* known by database|slurm_load_jobs error:")
# Exit code, as a shell reports it, of a process killed by SIGKILL.
KILLED = 137
_NO_NODES = ("", "(null)", "None assigned")
# If squeue cannot resolve a user name, it lists no jobs and does not fail, although the directory service may only be
# unavailable for a moment.
_NOBODY = "invalid user: "
# State of a job in the other clusters of a federation while one cluster runs it.
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
    "CONFIGURING": "its nodes are being prepared",
    "REQUEUE_HOLD": "it was requeued and is held",
    "RESV_DEL_HOLD": "its reservation was deleted, so it is held",
    "SPECIAL_EXIT": "it exited with a special exit code and is held",
    "REQUEUED": "it was requeued",
    "SUSPENDED": "it is suspended",
    "STOPPED": "it is stopped",
    _ELSEWHERE: "another cluster of the federation has it",
}


def queued(answer: CommandResult) -> list[NativeJob]:
    """Return the jobs that squeue lists.

    :raises CouldNotAsk: there are neither jobs nor column titles, or squeue could not resolve the user
    """
    if _NOBODY in answer.stderr.lower():
        raise CouldNotAsk(answer.message)
    jobs: dict[Key, NativeJob] = {}
    cluster = None
    for line in answer.lines:
        if match := _SQUEUE.fullmatch(line):
            word, rest, nodes, reason, start, name = match.groups()[4:]
            word = word or rest  # a state that does not look like SLURM's is reported as unknown
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
        raise CouldNotAsk(f"squeue shows neither jobs nor its column titles: {answer.message}")
    return list(jobs.values())


def _titled(answer: CommandResult) -> dict[str | None, bool]:
    """Return the clusters in an answer, each with whether its list has column titles. Without titles, squeue has not
    queried that cluster, whatever started it. None is the local cluster, whose list has no heading.
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
    """Return the name in a row; empty: it is truncated with the answer, and too short to identify a job."""
    is_cut = line == answer.cut_line and (len(name) < SHORTEST_BEGINNING or name.startswith("start="))
    return "" if is_cut else name


def wholly_told(answer: CommandResult, ids: Iterable[str]) -> list[str]:
    """Return the IDs about which squeue knows no more than it lists.

    This excludes IDs in truncated rows and those of clusters that have not answered. If no ID has a cluster but the
    lists have headings, which a site's environment can cause, the jobs can be in any of these lists.
    """
    if answer.cut_line:
        return []
    ids, cut = list(ids), _cut_ids(answer)
    titled = _titled(answer)
    told = {cluster for cluster, is_titled in titled.items() if is_titled}
    if titled and all(titled.values()) and all(split_cluster(id)[1] is None for id in ids):
        told.add(None)
    return [id for id in ids if id not in cut and split_cluster(id)[1] in told]


def lists_all(answer: CommandResult, clusters: Iterable[str] = ()) -> bool:
    """Whether squeue lists all jobs of its user in the local cluster and in these clusters.

    It omits the heading of a cluster that cannot be reached, and succeeds if another one answers. If no list is without
    a heading, which a site's environment can cause, all lists together are that of the local cluster.
    """
    titled = _titled(answer)
    is_local_whole = bool(titled) and (titled[None] if None in titled else all(titled.values()))
    return is_local_whole and all(map(titled.get, clusters)) and not answer.cut_line and not _cut_ids(answer)


def lists_local(answer: CommandResult) -> bool:
    """Whether one of the lists is that of the local cluster, without a heading."""
    return None in _titled(answer)


def lacks_only_clusters(answer: CommandResult) -> bool:
    """Whether squeue failed only because it could not reach some of the clusters, and lists the jobs of others."""
    said = [line for line in answer.stderr.splitlines() if line.strip()]
    return bool(_titled(answer)) and bool(said) and all(_UNREACHED.search(line) for line in said)


def _cut_ids(answer: CommandResult) -> set[str]:
    """Return the IDs whose rows cannot be parsed, or omit indices."""
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
    """Return the jobs that sacct lists. The cause comes from one of a job's steps if that is more precise.

    :raises CouldNotAsk: there are lines, but none of them is a job
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
                # slurmd reports this if it cannot start a job that must not be requeued; scancel leaves 0:15.
                jobs[id, index] = replace(jobs[id, index], cause="node_failure", reason="it could not be launched")
            elif (id, index) in jobs:
                jobs[id, index] = _with_step(jobs[id, index], word, _mib(used), most.get((id, index)))
    if not jobs and answer.stdout.strip():
        raise CouldNotAsk(f"no line of the answer is a job: {CommandResult(0, answer.stdout).message}")
    return list(jobs.values())


def split_cluster(id: str) -> tuple[str, str | None]:
    """Split an ID such as ``123;far`` into number and cluster; sbatch prints the cluster if there are several."""
    number, _, cluster = id.partition(";")
    return number, cluster or None


def joined(number: str, cluster: str | None) -> str:
    """Return the ID: the inverse of :func:`split_cluster`."""
    return f"{number};{cluster}" if cluster else number


def cluster_option(clusters: Iterable[str | None]) -> list[str]:
    """Return the option that names these clusters; empty if there is none."""
    named = sorted({cluster for cluster in clusters if cluster})
    return ["-M", ",".join(named)] if named else []


def by_cluster(ids: Iterable[str]) -> list[list[str]]:
    """Group IDs into those without and with a cluster: with ``-M``, a command only covers the named clusters."""
    parts: dict[bool, list[str]] = {False: [], True: []}
    for id in ids:
        parts[";" in id].append(id)
    return [part for part in parts.values() if part]


def cancelling(ids: Iterable[str]) -> list[str]:
    """Return the command that cancels jobs: one ``scancel`` per cluster, because job numbers repeat across clusters."""
    numbers: dict[str | None, list[str]] = {}
    for id in ids:
        number, cluster = split_cluster(id)
        numbers.setdefault(cluster, []).append(number)
    return together([["scancel", *(["-M", name] if name else []), *those] for name, those in numbers.items()])


def together(commands: list[list[str]]) -> list[str]:
    """Combine several commands into one, which fails if one of them does."""
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
    """Return the job of a row. The text of its state takes precedence over the row's reason, unless the job is pending
    with a cause.
    """
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
    """Return a job updated by one of its steps; memory in MiB."""
    if job.cause == "error" and job.exit_code == KILLED and used and asked and used >= asked:
        # Without cgroups, slurmstepd itself kills the job (OverMemoryKill) and reports it as failed.
        return replace(job, cause="out_of_memory", reason="it used more memory than requested")
    # A job whose script survived a step that ran out of memory has completed, and stays a success.
    return replace(job, cause="out_of_memory") if job.cause == "error" and word == "OUT_OF_MEMORY" else job


def _mib(text: str | None) -> float | None:
    """Parse an amount of memory per node, in MiB; None: there is none, or it is per cpu."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGTP]?)n?", text or "")
    return float(match[1]) * _UNITS[match[2]] if match else None


def _elements(id: tuple[str | None, ...], cluster: str | None) -> tuple[str, Iterable[int | None]]:
    """Return the ID and the indices in a row; the index None stands for a job that is not an array."""
    number, index, span, _component = id
    indices = (int(index) if index else None,) if span is None else _indices(span)
    return joined(number or "", cluster), indices


def _indices(span: str) -> Iterable[int]:
    """Parse the indices of elements that are not listed one by one; empty if SLURM abbreviates the list with dots."""
    try:
        return ArrayRange(span.split("%", maxsplit=1)[0])
    except ValueError:
        return ()


def _take(jobs: dict[Key, NativeJob], job: NativeJob, component: str | None, word: str) -> None:
    """Store the job of a row: the last run of a requeued job counts, and the first component of a heterogeneous one.

    A row that a federation leaves in another cluster only counts if there is no other row.
    """
    if (job.id, job.index) not in jobs or (component in (None, "+0") and word != _ELSEWHERE):
        jobs[job.id, job.index] = job


# Reasons of pending jobs.

_REASONS = {
    "AccountNotAllowed": "the partition does not admit the account",
    "AssocGrpJobsLimit": "the account runs its maximum number of jobs",
    "AssocMaxJobsLimit": "the user runs the maximum number of jobs that the account allows",
    "BadConstraints": "no node can ever meet its constraints",
    "BeginTime": "its start time has not been reached",
    "BurstBufferResources": "the burst buffer has no room",
    "Cleaning": "it was requeued, and its last run is being cleaned up",
    "Dependency": "a job that it depends on has not finished yet",
    "DependencyNeverSatisfied": "a job that it depends on has failed, so it can never start",
    "InvalidAccount": "its account is not valid",
    "InvalidQOS": "its QOS is not valid",
    "JobArrayTaskLimit": "the maximum number of elements of its array is running",
    "JobHeldAdmin": "an administrator holds it",
    "JobHeldUser": "the user holds it",
    "job requeued in held state": "it was requeued and is held",
    "job requeued in special exit state": "it exited with a special exit code and is held",
    "Licenses": "it waits for a licence",
    "NodeDown": "a node that it needs is down",
    "NonZeroExitCode": "it exited with a non-zero exit code",
    "OutOfMemory": "it needed more memory than requested",
    "PartitionConfig": "it requests more than the partition has",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition is not active",
    "PartitionNodeLimit": "it requests more nodes than the partition allows",
    "PartitionTimeLimit": "it requests more time than the partition allows",
    "Priority": "jobs with a higher priority come first",
    "ReqNodeNotAvail": "nodes that it needs are not available",
    "Reservation": "its reservation has not started yet",
    "ReservationDeleted": "its reservation was deleted",
    "Resources": "it waits for resources to become free",
    "SystemFailure": "a failure of SLURM, a file system or the network",
    "TimeLimit": "it ran longer than requested",
    "JobLaunchFailure": "it could not be launched, or was killed",
    "RaisedSignal": "it was killed by a signal",
}
# The job will never start, whatever changes in the cluster.
HOPELESS = frozenset({"DependencyNeverSatisfied"})
# The job will not start unless an administrator changes the partition or the nodes, or releases it.
NEVER = frozenset({"BadConstraints", "PartitionTimeLimit", "job requeued in special exit state"})
# A node could not start the job, and it is held until somebody releases it: it has never run. Examples: "launch failed
# requeued held", "user env retrieval failed requeued held", "UserEnv retrieval failed, requeued held".
_NOT_LAUNCHED = re.compile(r"(?:.*fail.*requeued held|JobHoldMaxRequeue)", re.IGNORECASE)
_LIMIT = re.compile(r"(QOS|Assoc)\w+")


def normalised(reason: str) -> str:
    """Normalise a reason to the spelling of the tables; empty: there is none.

    squeue separates words with blanks, scontrol with underscores, and %R adds parentheses.
    """
    text = " ".join(re.split(r"[\s_]+", reason.strip()))
    text = text[1:-1] if text.startswith("(") and text.endswith(")") else text
    return "" if text in ("None", "null") else text


def explain_reason(reason: str) -> str | None:
    """Return a reason as text, followed by SLURM's own; None: there is none."""
    if not (text := normalised(reason)):
        return None
    code = re.split("[,:]", text)[0]
    known = "it could not be launched, and is held" if _NOT_LAUNCHED.fullmatch(text) else _REASONS.get(code)
    if known is None and (match := _LIMIT.fullmatch(code)):
        known = f"a limit of the {'QOS' if match[1] == 'QOS' else 'account'} is reached"
    said = " ".join(reason.split())
    return f"{known} ({said})" if known else said


def _verdict(word: str, reason: str) -> tuple[Cause | None, bool]:
    """Return the cause for which a pending job will never start, and whether the configuration prevents its start."""
    text = normalised(reason)
    code = re.split("[,:]", text)[0]
    if _NOT_LAUNCHED.fullmatch(text):
        return "node_failure", False
    return "error" if code in HOPELESS else None, code in NEVER or word == "SPECIAL_EXIT"


# Parsers of nodes and partitions: sinfo and scontrol.

# A node that is powered off (``~``) or being powered up (``#``) accepts jobs. A node with any other suffix does not: it
# is silent, is going down, will be rebooted, or is reserved or planned for other jobs.
_SLURM_IDLE = re.compile(r"idle[~#]?")


def slurm_inventory(text: str) -> Inventory:
    """Parse sinfo(1): ``%P``, with ``*`` after the default; ``%c``; ``%m`` in MiB; ``%D``; ``%t``, a line for each
    state.

    Then scontrol(1), a line for each partition, because sinfo omits cloud nodes that are powered off.
    """
    rows = [line.strip().split("|") for line in text.splitlines() if line.count("|") == 4]
    kinds: dict[tuple[str, int, int], list[int]] = {}
    for name, cpus, memory, count, state in rows:
        with suppress(ValueError):  # a line that cannot be parsed does not affect the others
            of_kind = kinds.setdefault((name.rstrip("*"), int(cpus.rstrip("+")), int(memory.rstrip("+"))), [0, 0])
            of_kind[0] += int(count)
            of_kind[1] += int(count) if _SLURM_IDLE.fullmatch(state) else 0
    nodes = [Nodes(cpus, memory, name, count, idle) for (name, cpus, memory), (count, idle) in kinds.items() if count]
    default = next((name.rstrip("*") for name, *_ in rows if name.endswith("*")), None)
    return Inventory(nodes, list(dict.fromkeys(name.rstrip("*") for name, *_ in rows)), default, *_partitions(text))


def _partitions(text: str) -> tuple[dict[str, int], dict[str, int]]:
    """Return, by partition, the maximum number of nodes of a job (all of them, or ``MaxNodes``) and its maximum run
    time in seconds.
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


# Grouped by configuration, not listed by node: thousands of nodes are a few lines.
# If scontrol fails, the maximum number of nodes of a job is unknown.
SLURM_SURVEY = Survey(
    one_shell("sinfo -h -a -e -o '%P|%c|%m|%D|%t'", "{ scontrol -a -o show partition || :; }"), slurm_inventory
)
