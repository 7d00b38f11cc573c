"""The runs of job scripts that a controller has let start at a cluster: granted, seen to start, and cancelled.

The triggerer submits and follows them (see :mod:`lading.hooks.batch.script_jobs`), and its record tells how they ended.
So nothing is concluded here from the absence of a run, and the state of its batch job is not queried.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lading.hooks.batch import script_jobs
from lading.hooks.cluster.jobs import end_event
from lading.hooks.spool.spool import Envelope
from lading.hooks.ssh.answer import CommandResult
from lading.hooks.ssh.steps import RemoteStep
from lading.scheduling.reasons import Reason

# The names of the steps of a poll.
GRANTS, CANCELS, STARTS = "script grants", "script cancels", "script starts"


@dataclass(slots=True)
class ScriptRun:
    """A run that a controller has let start.

    :param has_started: whether its start has been reported
    :param is_granted: whether the site knows that it can start
    :param cancel: why it is cancelled; None: it is not
    :param is_over: whether its cancellation has been reported
    """

    has_started: bool = False
    is_granted: bool = False
    cancel: Reason | None = None
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class ScriptLook:
    """What a poll does about runs.

    :param granted: those to let start
    :param doomed: those to cancel, with the reasons
    :param waiting: those that may have started
    """

    granted: Sequence[str]
    doomed: Mapping[str, Reason]
    waiting: Sequence[str]


class ScriptRuns:
    """The runs of one cluster. The thread that polls calls ``steps`` and ``read``, other threads the rest.

    :param work_dir: Lading's folder at the cluster
    """

    def __init__(self, work_dir: str) -> None:
        self._folder = f"{work_dir}/{script_jobs.RUNS}"
        self._lock = threading.Lock()
        self._runs: dict[str, ScriptRun] = {}

    def give(self, envelopes: Iterable[Envelope]) -> None:
        """Let runs start. One that is given again, as after a restart of the controller, is followed again."""
        with self._lock:
            for each in envelopes:
                has_started = each.workload.get(script_jobs.STARTED_AT) is not None
                self._runs.setdefault(each.token, ScriptRun(has_started))

    def cancel(self, reasons: Mapping[str, Reason]) -> bool:
        """Cancel those of these jobs that are runs; return whether any cancellation is new."""
        with self._lock:
            new = {token: run for token in reasons if (run := self._runs.get(token)) is not None and run.cancel is None}
            for token, run in new.items():
                run.cancel = reasons[token]
        return bool(new)

    def known(self) -> frozenset[str]:
        with self._lock:
            return frozenset(self._runs)

    def forget(self, tokens: Iterable[str]) -> None:
        """Forget runs whose end has been stored."""
        with self._lock:
            for token in tokens:
                self._runs.pop(token, None)

    def due_actions(self) -> ScriptLook:
        with self._lock:
            live = {token: run for token, run in self._runs.items() if not run.is_over}
            wanted = {token: run for token, run in live.items() if run.cancel is None}
            return ScriptLook(
                [token for token, run in wanted.items() if not run.is_granted],
                {token: run.cancel for token, run in live.items() if run.cancel is not None},
                [token for token, run in wanted.items() if not run.has_started],
            )

    def steps(self, look: ScriptLook) -> dict[str, RemoteStep]:
        """Return the steps of a poll by name."""
        steps: dict[str, RemoteStep] = {}
        if look.granted:
            steps[GRANTS] = script_jobs.grant(self._folder, look.granted)
        if look.doomed:
            steps[CANCELS] = script_jobs.forbid(self._folder, look.doomed)
        if look.waiting:
            steps[STARTS] = script_jobs.ask_started(self._folder, look.waiting)
        return steps

    def read(self, look: ScriptLook, answers: Mapping[str, CommandResult]) -> list[dict[str, Any]]:
        """Return the events of a poll. What the site did not do is done in the next poll.

        :raises TransportError: what has started could not be read
        """
        found: list[dict[str, Any]] = []
        with self._lock:
            if look.granted and answers[GRANTS].status == 0:
                for token in look.granted:
                    self._change(token, is_granted=True)
            if look.doomed and answers[CANCELS].status == 0:
                for token, reason in look.doomed.items():
                    self._change(token, is_over=True)
                    found.append(end_event.not_begun(token, "cancelled", reason))
            if look.waiting and (not look.granted or answers[GRANTS].status == 0):
                step = script_jobs.ask_started(self._folder, look.waiting)
                for token, id in script_jobs.started(step, answers[STARTS]).items():
                    self._change(token, has_started=True)
                    found.append({"event": "started", "token": token, "at": time.time(), "native_id": id})
        return found

    def _change(self, token: str, **values: bool) -> None:
        if (run := self._runs.get(token)) is not None:
            for name, value in values.items():
                setattr(run, name, value)
