"""Waits for batch jobs in Airflow's triggerer, with one query per site however many tasks are deferred.

The arguments of a trigger come from a task, and any task can defer with any trigger, so nothing that matters depends on
them. The run is that of the task instance that Airflow's database says has deferred, at the site and with the account
that its Dag and team are allowed to use (:func:`lading.hooks.job_scripts.run_site.open_site`).
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, ClassVar, TypeVar
from weakref import WeakKeyDictionary

from airflow.triggers.base import BaseTrigger, TriggerEvent
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from lading.hooks.batch.script_jobs import ScriptRequest
from lading.hooks.dags.teams import team_of_triggerer
from lading.hooks.job_scripts.batcher import Batcher
from lading.hooks.job_scripts.hook import REACH_TIMEOUT, pauses
from lading.hooks.job_scripts.run import RunRecord
from lading.hooks.job_scripts.run_site import RunSighting, RunSite, open_site
from lading.hooks.job_scripts.script import JobScript
from lading.hooks.job_scripts.task_run import full_script, new_run
from lading.hooks.ssh.answer import TransportError
from lading.operators.job_output import Lines

log = logging.getLogger(__name__)
T = TypeVar("T")

# How many seconds a trigger lives at least. Airflow fails a task that resumes before its scheduler has learnt from the
# executor that the deferring worker has exited (SchedulerJobRunner.process_executor_events).
SETTLING = 8.0
# The tasks that cancel runs whose triggers Airflow no longer waits for.
CANCELLING: set[asyncio.Task[None]] = set()


class Follower:
    """One run that a trigger follows.

    :param record: the latest record of the run
    """

    def __init__(self, record: RunRecord) -> None:
        self.record = record
        self.offset = 0
        self.news: asyncio.Queue[RunSighting] = asyncio.Queue()

    def receive(self, sighting: RunSighting) -> None:
        """Take a sighting, and pass it on if it is news."""
        changed = sighting.record != self.record
        self.record = sighting.record
        self.offset += len(sighting.output)
        if changed or sighting.output:
            self.news.put_nowait(sighting)


class SiteWatch:
    """All runs at one site that this triggerer follows, with one connection and one query at a time."""

    shared: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, SiteWatch]]] = WeakKeyDictionary()
    cancel_pause = 2.0
    """Seconds between attempts to cancel at a site that does not answer."""

    def __init__(self, site: RunSite) -> None:
        self.site = site
        self.gathering = Batcher(site)
        self.followers: dict[str, Follower] = {}
        self._doomed: dict[str, RunRecord] = {}
        self._leaving: dict[str, RunRecord] = {}
        self._users = 0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._cancelling: asyncio.Task[None] | None = None

    @classmethod
    @asynccontextmanager
    async def at(cls, name: str, dag_id: str, team: str | None) -> AsyncIterator[SiteWatch]:
        """Return the watch of a site for a Dag, shared by all triggers in this event loop that use the same account.

        :param name: the site as named by the Dag's author
        :raises ValueError: there is no such site, or it is not open to the Dag
        """
        watches = cls.shared.setdefault(asyncio.get_running_loop(), {})
        site = await asyncio.to_thread(open_site, name, dag_id, team)
        watch = watches.setdefault(site.name, cls(site))  # another trigger may have opened it in the meantime
        watch._users += 1
        try:
            yield watch
        finally:
            watch._users -= 1
            await watch._close_if_idle()

    @asynccontextmanager
    async def following(self, record: RunRecord) -> AsyncIterator[Follower]:
        follower = self.followers[record.token] = Follower(record)
        self._begin()
        try:
            yield follower
        finally:
            if self.followers.get(record.token) is follower:
                del self.followers[record.token]
            self._wake.set()

    async def cancel(self, record: RunRecord) -> None:
        """Cancel a run, repeatedly if necessary; runs to cancel that arrive meanwhile are cancelled together.

        Cancelling continues when the caller no longer waits. The run is polled until its site no longer shows it,
        because a batch system may accept a cancellation and do nothing; :meth:`RunSite.advance` then repeats it.
        """
        self._doomed[record.token] = record
        if self._cancelling is None:
            self._cancelling = contextvars.Context().run(asyncio.create_task, self._cancel_all())
        await asyncio.shield(self._cancelling)

    async def _cancel_all(self) -> None:
        what = f"site {self.site.name}: cancelling"
        while self._doomed:
            doomed = list(self._doomed.values())
            try:
                records = await asyncio.to_thread(self.site.cancel, doomed)
            except Exception as error:  # the error may be temporary
                self.site.trouble.begin(what, error)
                await asyncio.sleep(self.cancel_pause)
                continue
            self.site.trouble.end(what)
            for record in doomed:
                self._doomed.pop(record.token, None)
            self._leaving |= {record.token: record for record in records if not record.ended}
        self._cancelling = None
        if self._leaving:
            self._begin()
        await self._close_if_idle()

    def _begin(self) -> None:
        """Poll all runs soon."""
        self._wake.set()
        if self._task is None:
            # In a separate context, so that its log messages do not go to a task's log.
            self._task = contextvars.Context().run(asyncio.create_task, self._run())

    async def _run(self) -> None:
        waits: dict[str, Any] = {}
        while self.followers or self._leaving:
            self._wake.clear()
            followers = dict(self.followers)
            began = time.monotonic()
            try:
                await self._look(followers)
            except Exception:  # one bad answer must not make triggers wait forever
                log.exception("site %s could not be polled", self.site.name)
            records = self._leaving | {token: follower.record for token, follower in followers.items()}
            waits = {token: waits.get(token) or pauses(self.site.options) for token in records}
            pause = min((waits[token](record) for token, record in records.items()), default=0.0)
            if self.gathering.open:
                pause = min(pause, self.site.options.min_poll_interval)
            left = max(0.0, began + self.site.options.min_poll_interval - time.monotonic())
            await asyncio.sleep(left)
            with suppress(asyncio.TimeoutError):  # a new run is polled soon
                await asyncio.wait_for(self._wake.wait(), max(0.0, pause - left))
        self._task = None
        await self._close_if_idle()

    async def _close_if_idle(self) -> None:
        """Close the connection when nothing needs it; the next trigger reads the sites file again."""
        at_work = self._task or self._cancelling or self.followers or self._doomed or self._leaving
        if not (self._users or at_work):
            watches = self.shared[asyncio.get_running_loop()]
            if watches.get(self.site.name) is self:
                del watches[self.site.name]
            await asyncio.to_thread(self.site.close)

    async def _look(self, followers: dict[str, Follower]) -> None:
        records = self._leaving | {token: follower.record for token, follower in followers.items()}
        offsets = {token: follower.offset for token, follower in followers.items()}
        for sighting in await asyncio.to_thread(self.gathering.advance, list(records.values()), offsets):
            record = sighting.record
            if record.token in followers:
                followers[record.token].receive(sighting)
            if record.token in self._leaving:
                self._leaving[record.token] = record
                if record.ended or record.gone_since is not None:
                    del self._leaving[record.token]


class JobScriptTrigger(BaseTrigger):
    """Follows the run of the deferred task instance until it ends.

    :param site: as named by the task; of a cluster with several accounts, the Dag's account is used
    :param properties: the script's, as returned by :meth:`JobScript.options`
    :param record: passed by triggers of earlier versions instead; only values that a script can set are taken from it
    :param job: what Lading's controller must admit before the run is submitted, as
        :class:`lading.hooks.batch.script_jobs.ScriptRequest` writes it; None: no controller decides
    """

    def __init__(
        self,
        site: str,
        properties: Mapping[str, Any] | None = None,
        record: Mapping[str, Any] | None = None,
        job: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.site = site
        # Controllers look for triggers of this very class, so nothing would admit the run of another one.
        self.job = None if job is None or type(self) is not JobScriptTrigger else dict(job)
        self.properties = dict(properties or {})
        if record is not None:
            self.properties |= _in_script(record)
        self.record: RunRecord | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        given = {"site": self.site, "properties": self.properties}
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            given if self.job is None else {**given, "job": self.job},
        )

    @asynccontextmanager
    async def _own(self) -> AsyncIterator[tuple[SiteWatch, RunRecord]]:
        """Yield the watch of the site and the run of the task instance.

        :raises ValueError: the site is not open to the Dag, a property is invalid, or the script requests something
            else than a controller would admit
        """
        if (ti := self.task_instance) is None:
            raise ValueError("no task has deferred with this trigger, so there is no run to follow")
        dag_id, team = ti.dag_id, team_of_triggerer()
        async with SiteWatch.at(self.site, dag_id, team) as watch:
            if self.record is None:
                job = None if self.job is None else ScriptRequest.from_json(self.job)
                script = full_script(watch.site, JobScript("", **self.properties), dag_id, team)
                record = await _when_reached(new_run, watch.site, script, ti)
                if job is not None:
                    await _check_request(job, watch.site, script, record)
                self.record = replace(record, held=job is not None)
            yield watch, self.record

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Log the output and the state of the batch job; the event says how it ended."""
        settled = time.monotonic() + SETTLING
        lines = Lines(self.log)
        async with self._own() as (watch, first), watch.following(first) as follower:
            last = first
            while True:
                sighting = await follower.news.get()
                lines.show(last, sighting)
                self.record = last = sighting.record
                if last.ended:
                    if sighting.more:
                        lines.print(await self._rest(watch.site, last, lines.offset))
                    break
        lines.end()
        await asyncio.sleep(max(0.0, settled - time.monotonic()))
        yield TriggerEvent({"record": last.to_json(), "last_line": lines.last})

    async def _rest(self, site: RunSite, record: RunRecord, offset: int) -> bytes:
        """Return what an ended run has printed from an offset on.

        :raises TransportError: it could not be read within :data:`REACH_TIMEOUT`
        """
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(TransportError),
            wait=wait_random_exponential(1, max=30),
            stop=stop_after_delay(REACH_TIMEOUT),
            reraise=True,
        )
        return await retrying(asyncio.to_thread, site.rest, record, offset)

    async def on_kill(self) -> None:
        """Cancel the batch job, because a user has marked or cleared the task.

        Airflow does not call this when the triggerer stops or hands the trigger over, and waits for it for
        ``[triggerer] on_kill_timeout``. While the batch system shows the job, cancelling is repeated even after that.
        """
        cancelling = contextvars.Context().run(asyncio.create_task, self._cancel())
        CANCELLING.add(cancelling)
        cancelling.add_done_callback(CANCELLING.discard)
        await asyncio.shield(cancelling)

    async def _cancel(self) -> None:
        if await self._handed_over():
            return
        async with self._own() as (watch, record):
            await watch.cancel(record)

    async def _handed_over(self) -> bool:
        """Whether the task is still deferred.

        A triggerer that was considered dead also gets its triggers cancelled once another one has taken them over.
        """
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        ti = self.task_instance
        if ti is None:
            return False
        question = {"dag_id": ti.dag_id, "task_ids": [ti.task_id], "run_ids": [ti.run_id], "map_index": ti.map_index}
        try:
            states = await asyncio.to_thread(lambda: RuntimeTaskInstance.get_task_states(**question))  # type: ignore[arg-type]
        except Exception as error:  # the API server may answer with any error
            self.log.warning("The state of the task is unknown: %s", error)
            return False
        return any(state == "deferred" for each in states.values() for state in each.values())


async def _when_reached(do: Callable[..., T], *arguments: Any) -> T:
    """Call a function in a thread, again and again while its site cannot be reached."""
    retrying = AsyncRetrying(retry=retry_if_exception_type(TransportError), wait=wait_random_exponential(1, max=30))
    done: T = await retrying(asyncio.to_thread, do, *arguments)
    return done


async def _check_request(job: ScriptRequest, site: RunSite, script: JobScript, record: RunRecord) -> None:
    """Refuse a run whose script requests something else than a controller would admit.

    A run that has been submitted continues: the properties of its site may have changed since.

    :param script: as :func:`full_script` returns it
    """
    named, requested = job.to_json(), ScriptRequest.of_request(site.name, script.request()).to_json()
    if named == requested:
        return
    submitted = await _when_reached(site.taken, [record])
    if submitted:
        return
    differences = [
        f"{name} is {named.get(name)}, but the script has {requested.get(name)}"
        for name in sorted({*named, *requested})
        if named.get(name) != requested.get(name)
    ]
    raise ValueError(f"the request for Lading's controller differs from the script: {'; '.join(differences)}")


def _in_script(record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Return the script properties that a run's record tells; its output is read from the run's folder."""
    told = {"jobname": record.get("given_name"), "time": record.get("time")}
    return ((key, value) for key, value in told.items() if value is not None)
