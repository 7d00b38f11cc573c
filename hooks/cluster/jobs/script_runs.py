"""The runs of job scripts that a controller has admitted at a cluster: granted, seen to start, and cancelled.

The triggerer submits and follows them (see :mod:`lading.hooks.batch.script_jobs`), and its record tells how they ended.
So nothing is concluded here from the absence of a run, and the state of its batch job is not queried.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lading.hooks.batch import script_jobs
from lading.hooks.cluster.jobs import end_event
from lading.hooks.spool.spool import Envelope
from lading.hooks.ssh.answer import CommandResult, TransportError
from lading.hooks.ssh.steps import RemoteStep
from lading.scheduling.reasons import Reason

# The names of the steps of a poll.
GRANTS, CANCELS, STARTS = "script grants", "script cancels", "script starts"


@dataclass(slots=True)
class ScriptRun:
    """A run that a controller has admitted.

    :param has_started: whether its start has been reported
    :param is_granted: whether its grant is at the site
    :param is_refused: whether the site has failed to write its grant or its cancellation, which each poll repeats
    :param cancel: why it is cancelled; None: it is not
    :param is_over: whether its cancellation has been reported
    """

    has_started: bool = False
    is_granted: bool = False
    is_refused: bool = False
    cancel: Reason | None = None
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class ScriptLook:
    """Actions for runs in a poll.

    :param admitted: runs to grant
    :param doomed: runs to cancel, with the reasons
    :param waiting: runs that may have started
    :param is_urgent: whether the site has not been asked yet to write one of the grants or cancellations
    """

    admitted: Sequence[str]
    doomed: Mapping[str, Reason]
    waiting: Sequence[str]
    is_urgent: bool

    @property
    def has_runs(self) -> bool:
        """Whether any run needs further polls."""
        return bool(self.waiting or self.doomed)


@dataclass(frozen=True, slots=True)
class ScriptNews:
    """What a poll has found about runs.

    :param has_granted: whether it has granted any
    :param trouble: what the site did not do; None: it did everything
    """

    events: Sequence[dict[str, Any]]
    has_granted: bool
    trouble: TransportError | None


class ScriptRuns:
    """The runs of one cluster. The thread that polls calls ``steps`` and ``read``, other threads the rest.

    :param work_dir: Lading's folder at the cluster
    """

    def __init__(self, work_dir: str) -> None:
        self._folder = f"{work_dir}/{script_jobs.RUNS}"
        self._lock = threading.Lock()
        self._runs: dict[str, ScriptRun] = {}

    def give(self, envelopes: Iterable[Envelope]) -> None:
        """Admit runs. One that is given again, as after a restart of the controller, is followed again."""
        with self._lock:
            for each in envelopes:
                has_started = each.workload.get(script_jobs.STARTED_AT) is not None
                self._runs.setdefault(each.token, ScriptRun(has_started))

    def cancel(self, reasons: Mapping[str, Reason]) -> bool:
        """Cancel those of these jobs that are runs; return whether any cancellation is new."""
        with self._lock:
            new = {token: run for token in reasons if (run := self._runs.get(token)) is not None and run.cancel is None}
            for token, run in new.items():
                run.cancel, run.is_refused = reasons[token], False
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
            admitted = [token for token, run in wanted.items() if not run.is_granted]
            doomed = {token: run.cancel for token, run in live.items() if run.cancel is not None}
            return ScriptLook(
                admitted,
                doomed,
                [token for token, run in wanted.items() if not run.has_started],
                any(not live[token].is_refused for token in (*admitted, *doomed)),
            )

    def steps(self, look: ScriptLook) -> dict[str, RemoteStep]:
        """Return the steps of a poll by name."""
        steps: dict[str, RemoteStep] = {}
        if look.admitted:
            steps[GRANTS] = script_jobs.grant(self._folder, look.admitted)
        if look.doomed:
            steps[CANCELS] = script_jobs.forbid(self._folder, look.doomed)
        if look.waiting:
            steps[STARTS] = script_jobs.ask_started(self._folder, look.waiting)
        return steps

    def read(self, look: ScriptLook, answers: Mapping[str, CommandResult]) -> ScriptNews:
        """Return what a poll has found. What the site did not do is done in a later poll."""
        found: list[dict[str, Any]] = []
        troubles: list[TransportError] = []
        with self._lock:
            granted = self._marked(look.admitted, answers.get(GRANTS), troubles)
            for token in granted:
                self._change(token, is_granted=True)
            for token in self._marked(look.doomed, answers.get(CANCELS), troubles):
                self._change(token, is_over=True)
                found.append(end_event.not_begun(token, "cancelled", look.doomed[token]))
            if look.waiting and (not look.admitted or answers[GRANTS].status == 0):
                step = script_jobs.ask_started(self._folder, look.waiting)
                try:
                    started, trouble = script_jobs.started(step, answers[STARTS])
                except TransportError as error:
                    started, trouble = {}, error
                if trouble is not None:
                    troubles.append(trouble)
                for token, id in started.items():
                    self._change(token, has_started=True)
                    found.append({"event": "started", "token": token, "at": time.time(), "native_id": id})
        return ScriptNews(found, bool(granted), next(iter(troubles), None))

    def _marked(
        self, tokens: Collection[str], answer: CommandResult | None, troubles: list[TransportError]
    ) -> list[str]:
        """Return the runs that the site has marked, and note which ones it has not."""
        if answer is None:
            return []
        missing, trouble = script_jobs.unmarked(tokens, answer)
        if trouble is not None:
            troubles.append(trouble)
        for token in missing:
            self._change(token, is_refused=True)
        return [token for token in tokens if token not in missing]

    def _change(self, token: str, **values: bool) -> None:
        if (run := self._runs.get(token)) is not None:
            for name, value in values.items():
                setattr(run, name, value)
