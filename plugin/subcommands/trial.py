"""Trial jobs, which show whether jobs can run at a site and reach the API server."""

from __future__ import annotations

import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from airflow.exceptions import AirflowConfigException

from lading.executors.agent.tasks import probe
from lading.executors.controller.site_driver import SiteDriver
from lading.hooks.site import Check, ElasticSite, ObservedLocation, Site
from lading.hooks.spool.spool import Envelope
from lading.plugin.service import mint
from lading.scheduling.model.resources import Resources, format_resources


def trial_finding(what: str, site: Site[Any], timeout: float) -> Check:
    """Run trial jobs at a site, in a temporary folder that no controller uses.

    Whatever was launched for them is released afterwards, even if they fail.

    :param what: the name of the finding
    """
    folder = Path(tempfile.mkdtemp(prefix="lading-check-"))
    trial = site.trial(folder)
    try:
        good, message = try_jobs(trial, timeout)
        bill = trial.bill()
        return Check(what, good, f"{message}; {bill}" if bill else message)
    except (OSError, ValueError, AirflowConfigException) as error:
        return Check(what, False, str(error))
    finally:
        trial.close("cancel", 120.0 if trial.trial_costs else 10.0)
        shutil.rmtree(folder, ignore_errors=True)


def try_jobs(site: Site[Any], timeout: float) -> tuple[bool, str]:
    """Run jobs that call the API server like tasks do, and wait until all have finished or one has failed.

    :returns: whether all succeeded, and the text of the finding
    """
    deadline, solo = time.monotonic() + timeout, SiteDriver(site)
    make = partial(trial_job, jwt=mint(), seconds=site.jwt_seconds)
    jobs = [job for number, size in enumerate(site.trial_sizes()) for job in trial_jobs(number, size, make)]
    solo.put(jobs)
    waiting = {job.token for job in jobs}
    while time.monotonic() < deadline:
        for event in solo.tick():
            if event["event"] == "finished" and event["token"] in waiting:
                if event["cause"] is not None:
                    return False, site.diagnosis(event, timeout)
                waiting.discard(event["token"])
                if not waiting:
                    [envelope] = [job for job in jobs if job.token == event["token"]]
                    if (message := site.misunderstanding(event, envelope)) is not None:
                        return False, message
        if not waiting:
            room = largest(site, solo.seen)
            return True, f"{trial_text(site.trial_sizes())} ran; there is room for {format_resources(room)}"
        if (message := site.failing()) is not None:
            return False, site.diagnosis({"reason": message}, timeout)
        time.sleep(0.1)
    return False, site.diagnosis(None, timeout)


def largest(site: Site[Any], seen: Sequence[ObservedLocation]) -> Resources:
    """Return the capacity of the largest location that a site has, or that it could launch."""
    locations = site.potential() if isinstance(site, ElasticSite) else [each.location for each in seen]
    return max((each.capacity for each in locations), key=lambda each: (each.cpus, each.memory), default=Resources())


def trial_text(sizes: Sequence[int]) -> str:
    """Describe what was tried, for example ``a trial job and an array of 2``."""
    return " and ".join("a trial job" if size == 1 else f"an array of {size}" for size in sizes)


def trial_jobs(number: int, size: int, make: Callable[[str, int | None], Envelope]) -> list[Envelope]:
    """Return the jobs of one submission. Different time limits keep the submissions apart.

    :param number: the number of the submission, from 0
    """
    limit = 300 * number or None  # the first submission has no time limit
    return [make(str(uuid.uuid4()), limit) for _ in range(size)]


def trial_job(token: str, time_limit: int | None, *, jwt: Callable[[str, float], str], seconds: float) -> Envelope:
    """Return a job that only checks whether a task could run: it calls Airflow's execution API like a starting task.

    :param jwt: creates the JWT that the job sends, for a subject and a number of seconds
    :param seconds: how long the JWT is valid
    """
    return Envelope(
        token=token,
        workload=probe.workload(token, jwt(token, seconds)),
        resources=Resources(),
        memory_limit=None,
        time_limit=time_limit,
        priority=0,
        queued_at=time.time(),
        expires_at=time.time() + seconds,
    )
