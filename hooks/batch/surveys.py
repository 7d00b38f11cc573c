"""How the batch systems that are built in tell which nodes and queues they have. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from lading.hooks.batch import xml
from lading.hooks.batch.inventory import Inventory, Nodes, Survey
from lading.hooks.ssh.answer import whole_number

_SIZE = re.compile(r"([0-9]+)(?:\.([0-9]+))?\s*([kmgtp]?)([bw]?)", re.IGNORECASE)
# A node that is powered off (``~``) or being powered up (``#``) takes jobs. With any other mark it gets none now: it
# is silent, goes down, will be rebooted, or is reserved or planned for others.
_SLURM_IDLE = re.compile(r"idle[~#]?")
_START = re.compile(r"^\{", re.MULTILINE)
# A member of an object in a line of its own, as PBS writes them, whose value may be no JSON.
_MEMBER = re.compile(r'^(\s*"[^"\n]*":\s*)(?:"(.*)"|([^\s"{\[].*?))(,?)\r?$', re.MULTILINE)
_ESCAPE = re.compile(r'\\.|"')
# MiB in one of each; without a letter they are bytes.
_MIB = {"": 2.0**-20, "k": 2.0**-10, "m": 1.0, "g": 2.0**10, "t": 2.0**20, "p": 2.0**30}


def mib(text: str) -> int | None:
    """An amount of memory such as ``24684092kb`` or ``23.5G``, MiB; None: it is none, or beyond all measure.

    What was rounded to some digits may have been as much more as half of the last one.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    whole, digits, letter, _ = match.groups()
    rounded = 0.5 * 10.0 ** -len(digits) if digits else 0.0
    amount = (float(f"{whole}.{digits or 0}") + rounded) * _MIB[letter.lower()]
    return int(amount) if math.isfinite(amount) else None


def slurm(text: str) -> Inventory:
    """sinfo(1): ``%P``, a ``*`` after the default one; ``%c``; ``%m`` in MiB; ``%D``; ``%t``, a line for each state."""
    rows = [line.strip().split("|") for line in text.splitlines() if line.count("|") == 4]
    kinds: dict[tuple[str, int, int], list[int]] = {}
    for name, cpus, memory, count, state in rows:
        with suppress(ValueError):  # a line that makes no sense costs itself alone
            of_kind = kinds.setdefault((name.rstrip("*"), int(cpus.rstrip("+")), int(memory.rstrip("+"))), [0, 0])
            of_kind[0] += int(count)
            of_kind[1] += int(count) if _SLURM_IDLE.fullmatch(state) else 0
    nodes = [Nodes(cpus, memory, name, count, idle) for (name, cpus, memory), (count, idle) in kinds.items() if count]
    default = next((name.rstrip("*") for name, *_ in rows if name.endswith("*")), None)
    return Inventory(nodes, list(dict.fromkeys(name.rstrip("*") for name, *_ in rows)), default)


def pbspro(text: str) -> Inventory:
    """PBS Professional Reference Guide, pbsnodes and qstat: vnodes of one host are one node."""
    whole = {key: value for each in _documents(text) for key, value in each.items()}
    hosts: dict[str, tuple[int, int | None, str | None, bool]] = {}
    for name, vnode in whole.get("nodes", {}).items():
        with suppress(AttributeError, TypeError, ValueError):  # one that makes no sense costs itself alone
            available = vnode.get("resources_available", {})
            if not (cpus := int(available.get("ncpus", 0))):
                continue
            host = str(available.get("host", name))
            memory = mib(str(available["mem"])) if "mem" in available else None
            # It is busy, offline, down, stale, reserved, asleep or provisioned in any other state, or in several.
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
    )


def _name(values: dict[str, Any], key: str) -> str | None:
    return None if values.get(key) is None else str(values[key])


def _documents(text: str) -> list[dict[str, Any]]:
    """The documents in an answer. Versions of PBS differ in what they forget to escape, and in which numbers they write
    as JSON has none (``007``).
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


def torque(text: str) -> Inventory:
    """TORQUE Administrator Guide, pbsnodes and qstat: blocks of ``key = value`` below a name."""
    nodes, queues, default = [], [], None
    for name, values in _blocks(text):
        if name.startswith("Queue:"):
            queues.append(name.partition(":")[2].strip())
        elif name.startswith("Server:"):
            default = values.get("default_queue")
        elif (cpus := whole_number(values.get("np", ""))) is not None:
            status = dict(each.partition("=")[::2] for each in values.get("status", "").split(","))
            is_idle = values.get("state") == "free" and not values.get("jobs")
            nodes.append(Nodes(cpus, mib(status.get("physmem", "")), idle=int(is_idle)))
    return Inventory(nodes, queues, default)


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


def lsf(text: str) -> Inventory:
    """IBM Spectrum LSF Command Reference: bqueues, bhosts, lshosts, bparams, each with its heading."""
    queues, machines, default = [], dict[str, tuple[str, str]](), None
    slots = dict[str, tuple[str, bool]]()
    section = ""
    for line in text.splitlines():
        words = line.split()
        if line.startswith("Default Queue"):
            default = next(iter(line.partition(":")[2].split()), None)
        elif words[:1] == ["QUEUE_NAME"] or words[:1] == ["HOST_NAME"]:
            section = " ".join(words[:2])
        elif section.startswith("QUEUE_NAME") and words:
            queues.append(words[0])
        elif section == "HOST_NAME STATUS" and len(words) > 4:
            slots[words[0]] = words[3], words[1] == "ok" and words[4] == "0"
        elif section == "HOST_NAME type" and len(words) > 5:
            machines[words[0]] = words[4], words[5]
    nodes = []
    for name, (most, is_idle) in slots.items():
        cpus, memory = machines.get(name, ("-", "-"))
        # Of a host that is down it may not be known how large it is, but it is one of them.
        known = [number for each in (most, cpus) if (number := whole_number(each)) is not None]
        nodes.append(Nodes(next(iter(known), 0), mib(memory), idle=int(is_idle)))
    return Inventory(nodes, queues, default)


def sge(text: str) -> Inventory:
    """qhost(1) with queues in XML, then qconf(1) -sql: a name in each line. Jobs that name no queue run in any."""
    document, end, rest = text[max(0, text.find("<qhost")) :].partition("</qhost>")
    nodes = []
    for host in xml.parse(document + end).iter("host"):
        values = {str(each.get("name")): each.text or "" for each in host.iter("hostvalue")}
        queues = [{each.get("name"): each.text for each in queue.iter("queuevalue")} for queue in host.iter("queue")]
        # Of a host that is down it is not said how large it is, but how many slots its queues have.
        slots = [each for queue in queues if (each := whole_number(queue.get("slots") or "")) is not None]
        number = whole_number(values.get("num_proc", ""))
        if (cpus := number if number is not None else max(slots, default=None)) is not None:
            # A state is a letter for what keeps jobs away: unknown, disabled, suspended, alarm, error.
            is_open = any(not queue.get("state_string") for queue in queues)
            is_idle = is_open and all(queue.get("slots_used") == "0" for queue in queues)
            nodes.append(Nodes(cpus, mib(values.get("mem_total", "")), idle=int(is_idle)))
    return Inventory(nodes, [line.strip() for line in rest.splitlines() if re.fullmatch(r"\s*[\w.-]+\s*", line)])


def _sh(*commands: str) -> list[str]:
    return ["sh", "-c", " && ".join(commands)]


# By configuration, not by node: thousands of nodes are a few lines.
SLURM = Survey(["sinfo", "-h", "-a", "-e", "-o", "%P|%c|%m|%D|%t"], slurm)
PBSPRO = Survey(_sh("pbsnodes -a -F json", "qstat -Q -f -F json", "qstat -B -f -F json"), pbspro)
TORQUE = Survey(_sh("pbsnodes -a", "qstat -Q -f", "qstat -B -f"), torque)
LSF = Survey(_sh("bqueues -w", "bhosts -w", "lshosts -w", "bparams"), lsf)
SGE = Survey(_sh("qhost -q -xml", "qconf -sql"), sge)
