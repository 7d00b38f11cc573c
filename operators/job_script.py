"""``JobScriptOperator``: run a job script on a batch cluster whose nodes need neither Airflow nor Lading."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from types import NoneType
from typing import Any, ClassVar

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException, TaskDeferralTimeout

from lading.hooks.batch.refusals import CancelError
from lading.hooks.dags.teams import team_of_process
from lading.hooks.job_scripts import layout
from lading.hooks.job_scripts.hook import REACH_TIMEOUT, patiently, pauses
from lading.hooks.job_scripts.local_script import NearScriptError, run_near
from lading.hooks.job_scripts.result import JobFailed, SubmitRejected, variables
from lading.hooks.job_scripts.run import RunRecord
from lading.hooks.job_scripts.run_site import RunSite, open_site
from lading.hooks.job_scripts.script import JobScript, JobScriptError
from lading.hooks.job_scripts.task_run import controller_request, full_script, new_run, refuse_array, token
from lading.hooks.ssh.answer import TransportError
from lading.operators.job_output import Lines
from lading.scheduling.text.printable import shortened

# The XCom that describes the batch job.
BATCH_JOB = "batch_job"
# The key in Airflow's task state store, which outlives a try, for the run of a try that has not finished.
RUN = "lading_run"


class JobRejected(SubmitRejected, AirflowFailException):
    """The batch system rejects the job; another try would not help."""


class JobScriptOperator(BaseOperator):
    """Run a job script at a batch site, and wait for it without occupying a worker::

        JobScriptOperator(
            task_id="solve",
            site="hpc",
            body="mpirun ./solve --input {input!q}",
            properties={"nodes": 2, "ppn": 32, "time": "2h", "account": "astro"},
            attributes={"input": "{{ params.input }}"},
        )

    The output of the job is copied to the task's log. The task returns the last line of it, and its XCom ``batch_job``
    has ``job_id``, ``state``, ``cause``, ``exit_code``, ``nodes`` and ``folder``. A retry submits the job again, after
    cancelling any job left by a try whose worker died. Marking or clearing the task cancels the job. The triggerer
    submits mapped and scattered tasks with equal requests as job arrays; they stay separate tasks. With
    Lading's executor, the task itself runs on the machine that has the sites file, unless its ``executor_config`` names
    a site.

    :param body: the script, with the placeholders and core variables of job scripts; or the name of a file that ends
        with .sh, in the folder of the Dag or below ``template_searchpath``
    :param site: a site of ``[lading] sites_file`` with a batch system
    :param properties: ``jobname``, ``queue``, ``time``, ``nodes``, ``ppn``, ``threads``, ``mem``, ``stdout``,
        ``stderr``, ``shell``, ``prologue``, ``epilogue``, ``filename``, and directives of the scheduler
    :param attributes: more properties, for placeholders
    :param aux_scripts: other scripts by file name, placed next to the main one
    :param deferrable: let the triggerer submit the job and wait for it, with one poll for all tasks of a site;
        otherwise the worker does
    """

    template_fields: Sequence[str] = ("body", "site", "properties", "attributes", "aux_scripts")
    template_ext: Sequence[str] = (".sh", ".bash")
    template_fields_renderers: ClassVar[dict[str, str]] = {
        "body": "bash",
        "properties": "json",
        "attributes": "json",
        "aux_scripts": "json",
    }
    ui_color = "#e8f1e4"
    # Its own task runs where the sites file is, unless its executor_config names a site.
    needs_sites_file = True
    _left: dict[str, Any] | None = None

    def __init__(
        self,
        *,
        body: str,
        site: str,
        properties: Mapping[str, Any] | None = None,
        attributes: Mapping[str, Any] | None = None,
        aux_scripts: Mapping[str, str] | None = None,
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if isinstance(properties, Mapping):
            refuse_array(properties.get("array"))
            _refuse_range(properties.get("nodes"))
        self.body = body
        self.site = site
        self.properties = properties
        self.attributes = attributes
        self.aux_scripts = aux_scripts
        self.deferrable = deferrable

    def _open(self, name: str | None = None) -> RunSite:
        """Open a site as the task's Dag is allowed to use it.

        :param name: another site than the task's own
        :raises ValueError: it does not exist, or is not open to the Dag
        """
        return open_site(name or self.site, self.dag_id, team_of_process())

    def execute(self, context: Any) -> str | None:
        """Submit the script and wait for the job to finish, or leave both to the triggerer.

        :raises JobRejected: the batch system rejects it
        :raises JobFailed: it failed or was cancelled
        :raises NearScriptError: the prologue or the epilogue failed
        """
        from lading.operators.scattering.jobs import JOB

        if JOB in context:
            raise AirflowFailException("each element is a separate batch job here; scatter with chunk_size=1")
        site = self._open()
        try:
            asked = self._asked()
            script = self._take_over(site, asked, context)
            record = self._placed(site, script, context["ti"])
            if self.deferrable:
                from lading.operators.job_script_trigger import SETTLING, JobScriptTrigger

                request = controller_request(site, script, context["ti"])
                job = None if request is None else request.to_json()
                self.defer(
                    trigger=JobScriptTrigger(self.site, asked.options(), job=job),
                    method_name="execute_complete",
                    # With a shorter timeout, Airflow would consider the task killed and its job would not be cancelled.
                    timeout=self.execution_timeout and max(self.execution_timeout, timedelta(seconds=SETTLING)),
                )
            record, last_line = self._followed(site, record.by_itself())
            return self._finished(site, record, last_line, context)
        finally:
            site.close()

    def execute_complete(self, context: Any, event: dict[str, Any]) -> str | None:
        """Continue after the trigger has seen the job finish.

        :raises JobFailed: it failed or was cancelled
        """
        site = self._open()
        try:
            return self._finished(site, RunRecord.from_json(event["record"]), event["last_line"], context)
        finally:
            site.close()

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Any) -> Any:
        """Do as Airflow does, but first cancel the job if the trigger failed or timed out."""
        if next_method == "__fail__":
            own = {"site": self.site, "token": token(context["ti"])}
            left = context["task_state_store"].get(RUN) or own
            self._end_own(left if left["token"] == own["token"] else own)
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except TaskDeferralTimeout:
            self.log.error(
                "The task exceeded its execution_timeout of %s, which includes the time for which the batch job waited",
                self.execution_timeout,
            )
            raise

    def _end_own(self, left: Mapping[str, Any]) -> None:
        site = self._open(left["site"])
        try:
            end_run(site, left)
        except (CancelError, TransportError) as error:
            self.log.error("The batch job %s may still run: %s", left["token"], error)
        finally:
            site.close()

    def on_kill(self) -> None:
        """Cancel the batch job; called when the task is killed while it runs in a worker.

        The worker itself is killed a few seconds later, so the cancellation is not verified here:
        :meth:`RunSite.cancel` leaves that to a controller of Lading's, and the next try cancels what is left.
        """
        if (left := self._left) is None:
            return
        # On a separate connection, because this is called by a signal handler and the other one may be in use.
        site = self._open()
        try:
            # Airflow waits no longer for a task that it kills.
            patiently(lambda: site.cancel([run_left(site, left)]), 30.0)
        except (CancelError, TransportError) as error:
            self.log.error("The batch job %s may still run: %s", left["token"], error)
        finally:
            site.close()

    def _take_over(self, site: RunSite, asked: JobScript, context: Any) -> JobScript:
        """Cancel the run left by an earlier try whose worker died, and record the run of this try.

        :returns: the script, completed by the site's own properties
        :raises TransportError: the earlier run may still exist
        :raises CancelError: the earlier run may still exist
        :raises NotAllowed: the site is not open to the Dag, or does not accept a directive
        """
        # Not at the top, so that parsing a Dag does not import what runs a task.
        from airflow.sdk.execution_time.context import NEVER_EXPIRE

        store, own = context["task_state_store"], token(context["ti"])
        left = store.get(RUN)
        if left is not None and left["token"] != own:
            self.log.info("Cancelling the batch job that an earlier try left behind: %s", left["token"])
            self._end_earlier(site, left)
        script = full_script(site, asked, self.dag_id, team_of_process())
        request = script.request()
        self._left = {"site": site.name, "token": own, "jobname": request.jobname}
        if clusters := site.system.native_clusters(request.native):
            self._left["clusters"] = [*clusters]
        if left != self._left:
            store.set(RUN, self._left, retention=NEVER_EXPIRE)
        return script

    def _end_earlier(self, site: RunSite, left: Mapping[str, Any]) -> None:
        try:
            there = site if left["site"] == site.name else self._open(left["site"])
        except ValueError as error:
            self.log.warning("The batch job of an earlier try may still run: %s", error)
            return
        try:
            end_run(there, left)
        finally:
            if there is not site:
                there.close()

    def _asked(self) -> JobScript:
        for name in ("properties", "attributes", "aux_scripts"):
            if not isinstance(value := getattr(self, name), (Mapping, NoneType)):
                raise JobScriptError(
                    f"{name}: {shortened(value)} is not valid; valid: a dict; a template becomes text, unless its Dag "
                    "has render_template_as_native_obj=True"
                )
        properties = dict(self.properties or {})
        return JobScript(self.body, attributes=self.attributes, aux_scripts=self.aux_scripts, **properties)

    def _placed(self, site: RunSite, script: JobScript, ti: Any) -> RunRecord:
        """Write the files of the run, after its prologue has run, and return the record of the run.

        It is submitted by the process that follows it. The triggerer follows all deferred runs of a site, so that it
        can form job arrays of them and submit no more of them than the site accepts.
        """
        name = token(ti)
        record = patiently(lambda: new_run(site, script, ti), REACH_TIMEOUT)
        site.rendered(record, script)
        if not patiently(lambda: site.placed(name), REACH_TIMEOUT):
            if (prologue := script.render_prologue()) is not None:
                self.log.info("%s", run_near("prologue", prologue, variables(record)))
            patiently(lambda: site.place(record, script), REACH_TIMEOUT)
        self.log.info("Its folder at site %s is %s", self.site, record.folder)
        return record

    def _followed(self, site: RunSite, record: RunRecord) -> tuple[RunRecord, str | None]:
        """Submit the run, and wait for it to end; return its record and the last line it printed."""
        lines, pause = Lines(self.log), pauses(site.options)
        while True:
            (sighting,) = site.advance([record], {record.token: lines.offset})
            lines.show(record, sighting)
            record = sighting.record
            if record.ended:
                if sighting.more:
                    lines.print(patiently(partial(site.rest, record, lines.offset), REACH_TIMEOUT))
                lines.end()
                return record, lines.last
            time.sleep(pause(record))

    def _finished(self, site: RunSite, record: RunRecord, last_line: str | None, context: Any) -> str | None:
        ti = context["ti"]
        fields = ("job_id", "state", "cause", "exit_code", "nodes", "folder")
        ti.xcom_push(BATCH_JOB, {"site": self.site, **{name: getattr(record, name) for name in fields}})
        context["task_state_store"].delete(RUN)
        try:
            self._run_epilogue(site, record, str(ti.id))
        except (NearScriptError, TransportError) as error:
            if record.state == "succeeded":
                raise
            self.log.error("%s", error)  # the failure of the job matters more
        if record.cause == "submit_rejected":
            raise JobRejected(record)
        if record.state != "succeeded":
            raise JobFailed(record, self._last_output(site, record))
        return last_line

    def _run_epilogue(self, site: RunSite, record: RunRecord, who: str) -> None:
        epilogue = full_script(site, self._asked(), self.dag_id, team_of_process()).render_epilogue()
        if epilogue is None or record.job_id is None:
            return
        name = f"{who}.{uuid.uuid4().hex}"
        if patiently(lambda: site.claim(record, layout.EPILOGUE, name), REACH_TIMEOUT):
            self.log.info("%s", run_near("epilogue", epilogue, variables(record)))

    def _last_output(self, site: RunSite, record: RunRecord) -> str:
        try:
            message = site.last_output(record)
        except TransportError as error:
            message = f"(could not be read: {error})"
        return f"\nIts last output:\n{message}" if message else ""


def _refuse_range(nodes: object) -> None:
    if isinstance(nodes, (list, tuple)):
        raise JobScriptError(
            f"nodes = {nodes!r}: a job script takes one number of nodes, such as 4; only the hint nodes of a task can "
            "be a range, at a batch site with mode = 'job'"
        )


def run_left(site: RunSite, left: Mapping[str, Any]) -> RunRecord:
    """Return the run that a try recorded: its token, and the name and the clusters of its batch job if its script gave
    them.

    :raises TransportError: the site could not be reached
    """
    return site.named_run(left["token"], left.get("jobname"), left.get("clusters") or ())


def end_run(site: RunSite, left: Mapping[str, Any]) -> None:
    """Cancel a run, repeatedly if necessary, and wait until its job has gone, for at most :data:`REACH_TIMEOUT`.

    :param left: see :func:`run_left`
    :raises TransportError: the outcome is unknown
    :raises CancelError: the outcome is unknown, or the batch system still shows the job
    """
    (record,) = patiently(lambda: site.cancel([run_left(site, left)]), REACH_TIMEOUT)
    pause, latest = pauses(site.options), time.monotonic() + REACH_TIMEOUT
    while not record.ended and record.gone_since is None:
        if time.monotonic() > latest:
            raise CancelError(
                f"site {site.name}: {site.system.name} still shows job {record.job_id} {REACH_TIMEOUT:.0f} s after "
                "Lading cancelled the job; check the node on which the job runs"
            )
        time.sleep(pause(record))
        record = site.advance([record])[0].record
