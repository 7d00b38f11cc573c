"""The failed nodes of a cluster, which get no jobs for a while."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lading.hooks.files.safe_files import read_regular, write_atomically
from lading.scheduling.text.nesting import parse_json

log = logging.getLogger(__name__)

# If more nodes than this fail at once, the cluster has another problem than its nodes.
MOST_EXCLUDED = 20
# How many working nodes are remembered: enough to distinguish a failing node from a failing cluster.
MOST_KNOWN = 2 * MOST_EXCLUDED

# LSF prefixes a node with the number of the job's slots: 4*node1.
_SLOTS = re.compile(r"\d+\*")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Excluded:
    """A failed node.

    :param until: end of its exclusion, seconds since the epoch
    :param why: as text
    """

    until: float
    why: str


class ExcludedNodes:
    """The nodes to which nothing is submitted now. Used by one thread only.

    At most half of the nodes on which jobs were seen are excluded. If all of them fail, the fault is elsewhere, and
    jobs should fail with its message instead of waiting for a working node.

    :param seconds: for how long a node is excluded; 0: never
    :param path: file that keeps the nodes for the next controller; None: they are not kept
    :param clock: seconds since the epoch
    """

    def __init__(self, seconds: float, path: Path | None = None, clock: Callable[[], float] = time.time) -> None:
        self.seconds = seconds
        self.path = path
        self.clock = clock
        self._known: dict[str, None] = {}
        self._excluded: dict[str, _Excluded] = {}
        self._deaths: dict[str, int] = {}
        if path is not None and seconds:
            self._load(path)

    def seen(self, nodes: str | None) -> None:
        """Note that a job's task has started on a node, given in the batch system's notation."""
        if nodes in self._known and nodes not in self._deaths:
            return  # the common case, for nearly every job in every poll
        node = one_node(nodes)
        if node is None or not self.seconds:
            return
        self._deaths.pop(node, None)
        if node not in self._known and len(self._known) < MOST_KNOWN:
            self._know(node)
            self._save()

    def failed(self, nodes: str | None, why: str) -> None:
        node = one_node(nodes)
        if node is None or not self.seconds:
            return
        self._deaths.pop(node, None)
        self._know(node)
        self._excluded[node] = _Excluded(self.clock() + self.seconds, why)
        log.warning("node %s is excluded for %d s: %s", node, self.seconds, why)
        self._save()

    def died(self, nodes: str | None) -> None:
        node = one_node(nodes)
        if node is None or not self.seconds:
            return
        self._deaths[node] = self._deaths.get(node, 0) + 1
        # A node on which two jobs in a row have died before their task started cannot start any.
        if self._deaths[node] >= 2:
            self.failed(node, "2 jobs have died there before their tasks started")

    def reasons(self) -> dict[str, str]:
        """Return the nodes that are excluded now, the latest failures only, each with the reason as text."""
        now = self.clock()
        excluded = {node: each for node, each in self._excluded.items() if now < each.until <= now + self.seconds}
        if len(excluded) < len(self._excluded):
            log.info("nodes are used again: %s", ", ".join(sorted(self._excluded.keys() - excluded.keys())))
            self._excluded = excluded
            self._save()
        most = min(MOST_EXCLUDED, len(self._known) // 2)
        latest = sorted(excluded, key=lambda node: (-excluded[node].until, node))[:most]
        return {node: excluded[node].why for node in sorted(latest)}

    def _know(self, node: str) -> None:
        self._known[node] = None
        good = [each for each in self._known if each not in self._excluded]
        for each in good[: max(0, len(self._known) - MOST_KNOWN)]:
            del self._known[each]

    def _save(self) -> None:
        if self.path is None:
            return
        excluded = {node: {"until": each.until, "why": each.why} for node, each in self._excluded.items()}
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(self.path, json.dumps({"known": list(self._known), "excluded": excluded}))
        except OSError as error:
            log.warning("the excluded nodes cannot be saved in %s: %s", self.path, error)

    def _load(self, path: Path) -> None:
        try:
            found: Any = parse_json(read_regular(path, 2**20))
            self._known = {str(node): None for node in found["known"]}
            self._excluded = {
                str(node): _Excluded(float(each["until"]), str(each["why"])) for node, each in found["excluded"].items()
            }
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            log.warning("%s cannot be read, so no node is excluded: %s", path, error)
            self._known, self._excluded = {}, {}


def one_node(nodes: str | None) -> str | None:
    """Return the only node in the batch system's list of a job's nodes; None: there is none, or more than one."""
    names = {_SLOTS.sub("", name) for name in re.split(r"[:,+\s]+", nodes or "") if name}
    name = names.pop() if len(names) == 1 else ""
    return name if _NAME.fullmatch(name) else None
