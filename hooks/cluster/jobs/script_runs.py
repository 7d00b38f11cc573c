"""The runs of job scripts that a controller has admitted at a cluster: granted, seen to start, and cancelled.

The triggerer submits and follows them (see :mod:`lading.hooks.batch.script_jobs`), and its record tells how they ended.
So nothing is concluded here from the absence of a run, and the state of its batch job is not queried.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lading.hooks.batch import script_jobs
from lading.hooks.cluster.jobs import end_event
from lading.hooks.cluster.jobs.context import ClusterContext, ClusterPart
from lading.hooks.polling.job_life import JobAtSite, JobPhase
from lading.hooks.polling.job_tracker import JobTracker
from lading.hooks.spool.spool import Envelope
from lading.hooks.ssh.answer import CommandResult, TransportError
from lading.hooks.ssh.steps import RemoteStep
from lading.scheduling.model.reasons import Reason

# The names of the steps of a poll.
GRANTS, CANCELS, STARTS = "script grants", "script cancels", "script starts"


@dataclass(slots=True)
class ScriptRun(JobAtSite):
    """A run that a controller has admitted. It is submitted once its grant is at the site, and ends here with its
    cancellation.

    :param cancel: why it is cancelled; None: it is not
    :param is_refused: whether the site has failed to write its grant or its cancellation, which each poll repeats
    """

    cancel: Reason | None = None
    is_refused: bool = False


class ScriptRuns(ClusterPart):
    """The runs of one cluster. The thread that polls calls ``steps`` and ``read``, other threads the rest."""

    def __init__(self, context: ClusterContext) -> None:
        super().__init__(context)
        self._runs_folder = f"{self.folder.root}/{script_jobs.RUNS}"
        self._runs = JobTracker(ScriptRun)
        # What the steps of the current poll grant, cancel, and ask for their start.
        self._granted: list[ScriptRun] = []
        self._doomed: list[ScriptRun] = []
        self._asked: list[ScriptRun] = []

    def give(self, envelopes: Iterable[Envelope]) -> None:
        """Admit runs. One that is given again, as after a restart of the controller, is followed again."""
        with self._runs.lock:
            for each in envelopes:
                run = self._runs.job(each.token)
                if each.workload.get(script_jobs.STARTED_AT) is not None:
                    run.begin()

    def cancel(self, reasons: Mapping[str, Reason]) -> bool:
        """Cancel those of these jobs that are runs; return whether any cancellation is new."""
        with self._runs.lock:
            new = [run for token, run in self._runs.jobs.items() if token in reasons and run.cancel is None]
            for run in new:
                run.cancel, run.is_refused = reasons[run.token], False
        return bool(new)

    def known(self) -> frozenset[str]:
        with self._runs.lock:
            return frozenset(self._runs.jobs)

    def forget(self, tokens: Iterable[str]) -> None:
        """Forget runs whose end has been stored."""
        with self._runs.lock:
            for token in tokens:
                self._runs.jobs.pop(token, None)

    def _unsettled(self) -> list[ScriptRun]:
        """Return the runs that need further polls."""
        with self._runs.lock:
            runs = self._runs.jobs.values()
            return [run for run in runs if not run.ended and (run.cancel is not None or not run.started)]

    @property
    def has_runs(self) -> bool:
        return bool(self._unsettled())

    @property
    def is_urgent(self) -> bool:
        """Whether the site has not been asked yet to write a grant or a cancellation."""
        runs = [run for run in self._unsettled() if run.cancel is not None or run.phase is JobPhase.WAITING]
        return not all(run.is_refused for run in runs)

    def steps(self) -> dict[str, RemoteStep]:
        """Return the steps of a poll by name."""
        runs = self._unsettled()
        self._doomed = [run for run in runs if run.cancel is not None]
        self._asked = [run for run in runs if run.cancel is None]
        self._granted = [run for run in self._asked if run.phase is JobPhase.WAITING]
        steps: dict[str, RemoteStep] = {}
        if self._granted:
            steps[GRANTS] = script_jobs.grant(self._runs_folder, _tokens(self._granted))
        if self._doomed:
            steps[CANCELS] = script_jobs.forbid(self._runs_folder, _tokens(self._doomed))
        if self._asked:
            steps[STARTS] = script_jobs.ask_started(self._runs_folder, _tokens(self._asked))
        return steps

    def read(self, answers: Mapping[str, CommandResult]) -> TransportError | None:
        """Report what a poll has found; return what the site did not do, which is done in a later poll."""
        granted, trouble = _marked(self._granted, answers.get(GRANTS))
        doomed, fault = _marked(self._doomed, answers.get(CANCELS))
        found: Mapping[str, str] = {}
        troubles = [trouble, fault]
        if self._asked and (not self._granted or answers[GRANTS].status == 0):
            step = script_jobs.ask_started(self._runs_folder, _tokens(self._asked))
            try:
                found, fault = script_jobs.started(step, answers[STARTS])
            except TransportError as error:
                fault = error
            troubles.append(fault)
        for run in granted:
            run.submit()
        for run in doomed:
            run.end()
            assert run.cancel is not None
            self.event_buffer.add(end_event.not_begun(run.token, "cancelled", run.cancel))
        for run in self._asked:
            if run.token in found:
                run.begin()
                event = {"event": "started", "token": run.token, "at": time.time(), "native_id": found[run.token]}
                self.event_buffer.add(event)
        if granted or doomed or found:
            self.interval.changed()
        return next((each for each in troubles if each is not None), None)


def _tokens(runs: Sequence[ScriptRun]) -> list[str]:
    return [run.token for run in runs]


def _marked(runs: Sequence[ScriptRun], answer: CommandResult | None) -> tuple[list[ScriptRun], TransportError | None]:
    """Return the runs that the site has marked, and why it has not marked the others."""
    if answer is None:
        return [], None
    missing, trouble = script_jobs.unmarked(_tokens(runs), answer)
    for run in runs:
        run.is_refused = run.token in missing
    return [run for run in runs if not run.is_refused], trouble
