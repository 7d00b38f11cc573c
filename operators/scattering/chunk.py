"""A chunk: several jobs of a scatter in one task instance, which run in as many processes at once as it has cpus.

The processes are forked, so that one that crashes does not affect the others. The outputs of finished jobs are kept in
Airflow's task state store, so that a retry does not run those jobs again.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException, TaskDeferred

from lading.operators.scattering.checkpoint import FinishedOutputs
from lading.scheduling.hints.hints import given
from lading.scheduling.model.resources import CPUS_VARIABLE
from lading.scheduling.text.printable import first_few

log = logging.getLogger(__name__)


class ElementsFailed(AirflowException):
    """Some of the jobs of a chunk failed. The message lists them."""


class ElementsFailedForGood(AirflowFailException):
    """Some of the jobs of a chunk failed, none of which would succeed in another try."""


class ChunkStopped(AirflowException):
    """The task instance was stopped before its jobs had finished."""


class Channel(Protocol):
    """The connection from a task's process to its supervisor, which answers one request at a time."""

    def send(self, msg: Any) -> Any: ...


@dataclass(frozen=True)
class ChunkJobOutcome:
    """How one job ended.

    :param error: why it failed, as text; None: it succeeded
    :param final: whether another try would fail too
    """

    number: int
    output: Any = None
    error: str | None = None
    final: bool = False


class Child:
    """A forked process that runs jobs one after the other.

    :param run: runs the job with a given number
    """

    def __init__(self, run: Callable[[int], Any], others: Sequence[Child]) -> None:
        self.connection, theirs = multiprocessing.Pipe()
        self.number: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                self.connection.close()
                for other in others:
                    other.connection.close()
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                serve(run, theirs)
                code = 0
            finally:
                os._exit(code)
        theirs.close()

    def give(self, number: int) -> None:
        self.number = number
        self.connection.send(number)

    def end(self) -> str:
        """Wait for the process to exit; return as text how it ended."""
        self.connection.close()
        _, status = os.waitpid(self.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        return f"signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"exit code {code}"

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.end()


def serve(run: Callable[[int], Any], parent: Connection) -> None:
    """Run the jobs that the parent sends, until it closes the connection."""
    from airflow.sdk.execution_time import task_runner

    task_runner.SUPERVISOR_COMMS = Relay(parent)  # type: ignore[assignment]
    while True:
        try:
            number = parent.recv()
        except EOFError:
            return
        outcome = attempt(run, number)
        try:
            parent.send(("ended", outcome))
        except Exception as error:  # pickling an output can raise anything
            parent.send(("ended", ChunkJobOutcome(number, error=f"its output cannot be pickled: {error}")))


def attempt(run: Callable[[int], Any], number: int) -> ChunkJobOutcome:
    try:
        return ChunkJobOutcome(number, run(number))
    except AirflowSkipException:
        return ChunkJobOutcome(number)
    except TaskDeferred:
        return ChunkJobOutcome(
            number, error="it defers itself, which jobs in chunks cannot do; use chunk_size=1", final=True
        )
    except BaseException as error:
        log.error("Job %d failed:\n%s", number, traceback.format_exc())
        return ChunkJobOutcome(
            number, error=f"{type(error).__name__}: {error}", final=isinstance(error, AirflowFailException)
        )


class Relay:
    """Replaces the connection to the supervisor in a child: the parent forwards its requests."""

    def __init__(self, parent: Connection) -> None:
        self.parent = parent

    def send(self, msg: Any) -> Any:
        self.parent.send(("ask", msg))
        answer, error = self.parent.recv()
        if error is not None:
            raise error
        return answer

    async def asend(self, msg: Any) -> Any:
        return self.send(msg)


class Chunk:
    """The jobs of one task instance.

    :param numbers: the numbers of the jobs
    :param run_job: runs one of them and returns its output
    :param context: the context of the task instance
    """

    def __init__(self, numbers: range, run_job: Callable[[int], Any], context: Any) -> None:
        self.numbers = numbers
        self.run_job = run_job
        self.finished = FinishedOutputs(context["task_state_store"])
        self.parallel = cpus(context)
        self.stopping = False

    def run(self, label: Callable[[int], str]) -> list[Any]:
        """Run all jobs that have not finished in an earlier try, and return the outputs of all.

        :param label: returns the label of a job
        :raises ElementsFailed: at least one job failed
        """
        outputs = {number: output for number, output in self.finished.load().items() if number in self.numbers}
        todo = [number for number in self.numbers if number not in outputs]
        if outputs:
            log.info("%d of %d jobs finished in an earlier try", len(outputs), len(self.numbers))
        failures = []
        try:
            for outcome in self._outcomes(todo):
                if outcome.error is None:
                    outputs[outcome.number] = outcome.output
                    self.finished.add(outcome.number, outcome.output)
                else:
                    log.error("Job %d (%s): %s", outcome.number, label(outcome.number), outcome.error)
                    failures.append(outcome)
        finally:
            if len(outputs) < len(self.numbers):
                self.finished.save()
        if failures:
            # The log has all of them.
            named = first_few(
                [f"job {each.number} ({label(each.number)}): {each.error}" for each in failures], 10, "; "
            )
            kind = ElementsFailedForGood if all(each.final for each in failures) else ElementsFailed
            raise kind(f"{len(failures)} of {len(self.numbers)} jobs failed: {named}")
        return [outputs[number] for number in self.numbers]

    def stop(self) -> None:
        """Stop all jobs; called by the handler of SIGTERM."""
        self.stopping = True

    def _outcomes(self, numbers: Sequence[int]) -> Iterator[ChunkJobOutcome]:
        """Run jobs, each as soon as a process is free, and yield how they end."""
        waiting = list(reversed(numbers))
        children: list[Child] = []
        try:
            while waiting or children:
                if self.stopping:
                    raise ChunkStopped(f"stopped with {len(waiting) + len(children)} jobs unfinished")
                while waiting and len(children) < self.parallel:
                    child = Child(self.run_job, children)
                    child.give(waiting.pop())
                    children.append(child)
                ready = wait([child.connection for child in children], timeout=1.0)
                for child in [child for child in children if child.connection in ready]:
                    outcome = self._read_outcome(child)
                    if outcome is None:
                        continue
                    if child.number is None or not waiting:
                        children.remove(child)
                        if child.number is not None:
                            child.end()
                    else:
                        child.give(waiting.pop())
                    yield outcome
        finally:
            for child in children:
                child.kill()

    def _read_outcome(self, child: Child) -> ChunkJobOutcome | None:
        """Answer a child's request, or return the outcome of its job; a child that has died means a failure."""
        try:
            what, content = child.connection.recv()
        except (EOFError, ConnectionResetError):
            number, child.number = child.number, None
            assert number is not None
            return ChunkJobOutcome(number, error=f"its process ended unexpectedly with {child.end()}")
        if what == "ended":
            outcome: ChunkJobOutcome = content
            return outcome
        child.connection.send(ask(content))
        return None


def ask(msg: Any) -> tuple[Any, Exception | None]:
    """Forward a request to the supervisor; return its answer, or its error."""
    from airflow.sdk.execution_time import task_runner

    channel: Channel = task_runner.SUPERVISOR_COMMS
    try:
        return channel.send(msg), None
    except Exception as error:
        return None, error


def cpus(context: Any) -> int:
    """Return how many jobs run at once: the number of whole cpus of the task instance, at least one."""
    amount: Any = os.environ.get(CPUS_VARIABLE) or given(context["task"].executor_config).get("cpus")
    try:
        return max(int(float(amount)), 1)
    except (TypeError, ValueError):
        return 1
