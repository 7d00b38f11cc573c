"""The hooks by which third parties extend Lading, with an entry point in the group ``lading``.

An entry point names a module (or an object) with functions decorated with ``hookimpl``::

    [project.entry-points.lading]
    nomad = "lading_nomad.plugin"

    # lading_nomad/plugin.py
    from lading.plugin.hookspecs import hookimpl

    @hookimpl
    def site_kinds():
        return [NomadSite]

All built-in parts are registered the same way. Pluggy (https://pluggy.readthedocs.io) calls the implementations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pluggy

from lading.hooks.batch.registry import GROUP

if TYPE_CHECKING:
    from lading.hooks.batch.system import BatchSystem
    from lading.hooks.site import Site
    from lading.scheduling.matching.bindings import GetTargets
    from lading.scheduling.matching.ranking import Match
    from lading.scheduling.matching.rules import Relax
    from lading.scheduling.matching.sites import SiteView
    from lading.scheduling.matching.waiting import WaitingJob
    from lading.scheduling.model.job import PlannedJob
    from lading.scheduling.placing.assignment import Assignment
    from lading.scheduling.placing.placement import AtWork
    from lading.scheduling.placing.policies import Policy

hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)


@hookspec
def site_kinds() -> Sequence[type[Site[Any]]]:  # type: ignore[empty-body]
    """Return kinds of sites: subclasses of ``lading.hooks.site.Site``. ``kind`` is their name in the sites file."""


@hookspec
def batch_systems() -> Sequence[type[BatchSystem]]:  # type: ignore[empty-body]
    """Return batch systems: subclasses of ``lading.hooks.batch.system.BatchSystem``. ``name`` is their name."""


@hookspec
def binding_filters() -> Mapping[str, GetTargets]:  # type: ignore[empty-body]
    """Return binding filters by name: functions ``get_targets(job, targets)``, called to place a job with targets.

    ``job`` is a :class:`lading.scheduling.model.job.PlannedJob`: its ``name`` is unique; ``dag_id``, ``run_id``,
    ``task_id`` and ``map_index`` identify the task instance that it runs, and ``inputs`` are the values of its inputs.
    ``targets`` are strings such as ``hpc/long``. The filter returns the targets where the job can run, in the order in
    which they are tried. If it raises an exception, the job fails.
    """


@hookspec(firstresult=True)
def rank_matches(job: PlannedJob, matches: Sequence[Match]) -> Sequence[Match] | None:
    """Order the sites that can run a job without a site or targets, best first; None: Lading's own order.

    Called for each such job in every tick.

    :param job: the job, with its task instance and the values of its inputs
    :param matches: the matching sites, in the order of the sites file
    """


@hookspec
def rules() -> Mapping[str, Relax]:  # type: ignore[empty-body]
    """Return rules by name, for ``plugin`` in ``[[rules]]``: functions from a job to alternative requests, best first.

    A rule is called once for all jobs with equal requests, so its answer has to depend on the request alone.

    A rule returns a list of mappings such as ``{"cpus": 8}``. A mapping can have amounts or ``nodes`` within the range
    of the job, ``features`` without some that the job only prefers, ``capacity_type`` ``on-demand`` for ``spot``, or
    another ``queue``. Anything else in it, or an exception, fails the job.
    """


@hookspec
def policies() -> Mapping[str, Policy]:  # type: ignore[empty-body]
    """Return policies by name, for ``policy`` of a site: objects with the method of
    :class:`lading.scheduling.placing.policies.Policy`, called for each waiting job that the site could run.

    If it raises an exception, the job keeps waiting, and the exception is shown as the reason.
    """


@hookspec(firstresult=True)
def assign_jobs(
    jobs: Sequence[WaitingJob], sites: Sequence[SiteView], at_work: Sequence[AtWork], now: float
) -> Assignment | None:
    """Place all waiting jobs, in place of Lading's own placement; None: Lading places them.

    :param jobs: in the order in which they should start
    :param sites: in the order of the sites file, with the jobs on their locations
    :param at_work: the jobs that sites already have, for groups whose machines are limited
    :param now: epoch seconds
    """


@hookspec
def job_changed(
    token: str,
    state: str,
    cause: str | None,
    reason: str | None,
    reason_code: str | None,
    reason_params: Mapping[str, Any],
) -> None:
    """Called in the controller when the state of a job has changed, after the change was stored.

    :param token: identifies the try: the task instance's ``external_executor_id``
    :param state: placed, running, succeeded, failed or cancelled
    :param cause: why it failed, see the glossary in the documentation; None: it did not fail
    :param reason: the reason as text; None: unknown
    :param reason_code: the reason as a code of :data:`lading.scheduling.model.reason_codes.CODES`; ``free_text`` stands
        for a text of a third party
    :param reason_params: the parameters of the code, by name
    """
