"""The run of a task's try.

Worker and triggerer derive the same run from the task instance, the site that the Dag may use, and the properties of
its script.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import replace
from typing import Any

from lading.hooks.batch.script_jobs import ScriptRequest
from lading.hooks.job_scripts import array, layout
from lading.hooks.job_scripts.run import RunRecord
from lading.hooks.job_scripts.run_site import RunSite
from lading.hooks.job_scripts.script import JobScript, JobScriptError
from lading.hooks.spool.tokens import TASK_VARIABLE


def token(ti: Any) -> str:
    """Return the identifier of a try: equal if a worker repeats the try, and different from that of every other try."""
    return str(uuid.uuid5(uuid.UUID(str(ti.id)), str(ti.try_number)))


def full_script(site: RunSite, script: JobScript, dag_id: str, team: str | None) -> JobScript:
    """Return a task's script over the site's own properties.

    :raises NotAllowed: the Dag is not allowed to use the site, or the site forbids a directive
    :raises JobScriptError: it is a job array
    """
    full = site.admitted(script, dag_id, team)
    refuse_array(full.properties.resources.get("array"))
    layout.refuse_arrays(full.request(), site.system)
    return full


def new_run(site: RunSite, script: JobScript, ti: Any) -> RunRecord:
    """Return the initial record of a try's run, which is the same in worker and triggerer.

    :param script: as :func:`full_script` returns it; its body does not matter
    :param ti: the task instance as Airflow passes it to this process
    :raises TransportError: the site could not be asked
    """
    record = site.new_record(token(ti), script)
    if ti.map_index is None or ti.map_index < 0:
        return record
    shared = array.shared(script, site.system, f"{ti.dag_id} {ti.run_id} {ti.task_id}")
    if shared is None:
        return record
    return replace(record, shared=shared.to_json(), reason="elements of the task are being collected for a job array")


def controller_request(site: RunSite, script: JobScript, ti: Any) -> ScriptRequest | None:
    """Return what a controller must admit before the run of the task in this process is submitted.

    None: no controller decides, because another executor runs the task, or because the site's controller has its own
    allocations instead of batch jobs.

    :param script: as :func:`full_script` returns it
    :param ti: the task instance as Airflow passes it to this process
    """
    if os.environ.get(TASK_VARIABLE) != str(ti.id) or not site.has_queue:
        return None
    return ScriptRequest.of_request(site.name, script.request())


def refuse_array(given: object) -> None:
    """Refuse the property that makes a script a job array.

    :raises JobScriptError: it is given
    """
    if given:
        raise JobScriptError(
            f"array = {given!r}: a task submits one job. To submit a job array, scatter or map the "
            "JobScriptOperator: each element is then a task of its own"
        )
