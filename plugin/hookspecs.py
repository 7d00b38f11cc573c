"""What third parties can add to Lading, by an entry point of the group ``lading``.

An entry point names a module (or an object) with functions marked by ``hookimpl``::

    [project.entry-points.lading]
    nomad = "lading_nomad.plugin"

    # lading_nomad/plugin.py
    from lading.plugin.hookspecs import hookimpl

    @hookimpl
    def site_kinds():
        return [NomadSite]

Everything built in is registered the same way. Pluggy (https://pluggy.readthedocs.io) calls the implementations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pluggy

from lading.hooks.batch.registry import GROUP

if TYPE_CHECKING:
    from lading.hooks.batch.system import BatchSystem
    from lading.hooks.site import Site
    from lading.scheduling.job import PlannedJob
    from lading.scheduling.matching.bindings import GetTargets
    from lading.scheduling.matching.ranking import Match
    from lading.scheduling.matching.rules import Relax
    from lading.scheduling.matching.sites import SiteView
    from lading.scheduling.matching.waiting import WaitingJob
    from lading.scheduling.placing.assignment import Assignment
    from lading.scheduling.placing.placement import AtWork
    from lading.scheduling.placing.policies import Policy

hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)


@hookspec
def site_kinds() -> Sequence[type[Site[Any]]]:  # type: ignore[empty-body]
    """Kinds of sites: classes derived from ``lading.hooks.site.Site``; ``kind`` is their name in the sites file."""


@hookspec
def batch_systems() -> Sequence[type[BatchSystem]]:  # type: ignore[empty-body]
    """Batch systems: classes derived from ``lading.hooks.batch.system.BatchSystem``; ``name`` names them."""


@hookspec
def binding_filters() -> Mapping[str, GetTargets]:  # type: ignore[empty-body]
    """Binding filters by name: functions ``get_targets(job, targets)``, called when a job with targets is placed.

    ``job`` is a :class:`lading.scheduling.job.PlannedJob`: its ``name`` is unique; ``dag_id``, ``run_id``,
    ``task_id`` and ``map_index`` say which task instance it runs, ``inputs`` are the values of its inputs.
    ``targets`` are texts such as ``hpc/long``; the answer are those of
    them that the job may go to, in the order in which they are tried. What a filter raises fails the job.
    """


@hookspec(firstresult=True)
def rank_matches(job: PlannedJob, matches: Sequence[Match]) -> Sequence[Match] | None:
    """The sites that can run a job which names no place, in the order in which it goes to them; None: Lading's order.

    It is asked for each such job in every tick.

    :param job: with its task instance and the values of its inputs, see :class:`lading.scheduling.job.PlannedJob`
    :param matches: in the order of the sites file, see :class:`lading.scheduling.matching.ranking.Match`
    """


@hookspec
def rules() -> Mapping[str, Relax]:  # type: ignore[empty-body]
    """Rules by name, for ``plugin`` in ``[[rules]]``: functions from a job to what it may ask for instead, best first.

    A rule is asked once for all jobs that ask for the same, so it may go by what they ask for alone.

    An answer is a list of mappings such as ``{"cpus": 8}``: amounts, or ``nodes``, within the range that the job has,
    ``features`` without some that it only prefers, ``capacity_type`` ``on-demand`` for ``spot``, another ``queue``.
    What else it names, or raises, fails the job.
    """


@hookspec
def policies() -> Mapping[str, Policy]:  # type: ignore[empty-body]
    """Policies by name, for ``policy`` of a site: objects with the method of
    :class:`lading.scheduling.placing.policies.Policy`, called for each job that waits and could have a place there.

    An exception keeps the job waiting, and is shown as the reason.
    """


@hookspec(firstresult=True)
def assign_jobs(
    jobs: Sequence[WaitingJob], sites: Sequence[SiteView], at_work: Sequence[AtWork], now: float
) -> Assignment | None:
    """Where all waiting jobs go, in place of all that Lading decides about that; None: Lading decides.

    :param jobs: in the order in which they should start
    :param sites: in their order, with what is on their locations
    :param at_work: the jobs that have been given to sites, of groups whose machines are limited
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
    """A job has got another state; called in the controller after the change was stored.

    :param token: identifies the try: the task instance's ``external_executor_id``
    :param state: placed, running, succeeded, failed or cancelled
    :param cause: why it failed, see the glossary in the documentation; None: it did not
    :param reason: why, as it is shown; None: no reason is known
    :param reason_code: the same as a code of :data:`lading.scheduling.reason_codes.CODES`; ``free_text`` is a text of a
        third party
    :param reason_params: the parameters of the code, by name
    """
