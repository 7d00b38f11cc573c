"""The table of reason codes: for each code its title, its sentence, its remedy and who can act on it. Pure.

The table covers why jobs wait and how jobs and machines end. :data:`CAUSES` classifies failures: the ``kind`` of a
code that ends a job is its cause, whose title and remedy it inherits unless it has more specific ones. A
:class:`~lading.scheduling.model.reasons.Reason` carries such a code, and :mod:`lading.scheduling.model.reason_text`
formats the parameters of its sentence.

Messages of a batch system, AWS or a plugin are quoted in the parameter ``text`` of a code that names their source. So
is the message of a hint error, which quotes what the Dag's author wrote and lists the valid values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum

from lading.scheduling.model.light_dataclasses import dataclass

# How remedies refer to the site of the reason; replaced by the site's name where that is known.
_THE_SITE = re.compile(r"\bthe site\b|(?<=airflow lading check )SITE\b")


class Actor(str, Enum):
    """Who can act on a reason: the author of the Dag, or the operator of the site, the account or Lading."""

    AUTHOR = "author"
    OPERATOR = "operator"


class Form(Enum):
    """How a sentence is completed when it is shown: after ``waits:``; unchanged; or, for what is true of the job
    forever, with ``it`` as its subject where a site's name precedes it."""

    WAIT = "waits: "
    PHRASE = ""
    NEVER = "it "


@dataclass(frozen=True, slots=True)
class Code:
    """What a reason code means.

    :param key: the code's name in the store and for programs
    :param kind: the class under which metrics count it; several codes can share one
    :param title: what is waited for, or what happened, in a few words
    :param sentence: a template with parameters in braces; ``SENTENCE`` in ``reason_text`` formats them
    :param remedy: what to do
    :param actors: who can do it
    :param limit: a template for the name of the limit that is reached; empty if there is none
    :param form: how the sentence is completed when it is shown
    """

    key: str
    kind: str
    title: str
    sentence: str
    remedy: str
    actors: tuple[Actor, ...]
    limit: str = ""
    form: Form = Form.WAIT

    @property
    def names_site(self) -> bool:
        return "{site" in self.sentence

    def remedy_at(self, site: str | None) -> str:
        """The remedy with the site's name filled in, if the reason is about one site."""
        return remedy_at(self.remedy, site)

    @property
    def has_also_within(self) -> bool:
        """Whether the sentence has a place for additional reasons; otherwise they are appended to it."""
        return "{also" in self.sentence


def remedy_at(remedy: str, site: str | None) -> str:
    """Fill the site's name into a remedy; None leaves the remedy unchanged."""
    if site is None:
        return remedy
    return _THE_SITE.sub(lambda found: site if found[0] == "SITE" else f"site {site}", remedy)


_AUTHOR, _OPERATOR, _BOTH = (Actor.AUTHOR,), (Actor.OPERATOR,), (Actor.AUTHOR, Actor.OPERATOR)
_CHECK = "Check the site's note, and run: airflow lading check SITE."
_NO_ROOM = (
    "Not enough free capacity",
    "Add more or larger machines, allow another site (accept_untargeted, burst_after), or request less.",
)
_GROUP_LIMIT = ("A limit set by its Dag is reached", "Raise max_instances or max_jobs of the task or the Dag.")
_LAUNCHING = ("Waiting for its machine to start", "Nothing to do: the job starts once the machine or allocation is up.")
_AGAIN = ("Waiting to be placed or submitted again", "Nothing to do: the job had not started, so it is placed again.")
_BUNDLE = (
    "Copying its Dag bundle to the site",
    "Nothing to do: the job starts once the bundle has arrived. If this persists, the reason names the problem.",
)
_AWAY = ("The site is unavailable", _CHECK)
_MAX_USD = (
    "The budget of its run is spent",
    "Raise max_usd of the Dag. Jobs can still use machines that are already running.",
)
_BUDGET = (
    "A budget is spent",
    "Wait for the next period of the budget. An operator can lift the budget until then (airflow lading "
    "budgets --lift NAME, or on the page), or raise it in the sites file. Jobs can still use machines that "
    "are already running.",
)
_CPU_HOURS = (
    _BUDGET[0],
    "Wait for the next period of the budget. An operator can lift the budget until then (airflow lading "
    "budgets --lift NAME, or on the page), or raise it in the sites file.",
)
_SHARE = (
    "Other shares come first",
    "Nothing to do: shares take turns, and other waiting shares have used less in proportion to their weights. Weights "
    "are set in [[shares]] of the sites file.",
)
_BOUND = (
    "Its share is fully used",
    "Nothing to do: the job starts as jobs of its share finish. To start it sooner, set borrow = true for the share, "
    "or reserve more for the share, in [[shares]] of the sites file.",
)
_MAX_JOBS = ("The site has reached its limit of jobs", "Raise max_jobs or max_submitted of the site.")
_INSTANCES = (
    "All machines that the site can launch are busy or booting",
    "Raise max_instances of the site, or allow other instance types.",
)
_QUEUE = (
    "Waiting in the queue of the batch system",
    (
        "The batch system decides when it starts. The job can start earlier if it requests less time, memory "
        "or CPUs, or another queue."
    ),
)
_LIMIT = (
    "The site accepts no more jobs for now",
    "Nothing to do: Lading retries with increasing pauses. If this persists, raise the limit that the reason names.",
)
_KEPT = (
    "Capacity is reserved for a larger job",
    "Raise patience of the site, or reduce the requests of the larger job.",
)
_GANG = (
    "Waiting for the other members of its gang",
    (
        "Check in Airflow why the other members are not queued yet: their pool and max_active_tasks must "
        "have room for all of them."
    ),
)
_GANG_ROOM = (
    "Reserving capacity for its gang",
    (
        "Nothing to do: Lading holds the room that it has found so far. If this persists, add more or larger "
        "machines, or request less."
    ),
)
_PLUGIN = ("A plugin's policy or filter fails", "Fix the plugin; its error is in the controller's log.")
_HOLDING = (
    "Name a site that can reserve capacity: one with machines, or a batch site with mode = 'allocation'.",
    _BOTH,
)
_REFUSED = (
    "The launch of its machine was refused",
    f"Fix the problem that the reason names. {_CHECK}",
)
_MORE_TYPES = (
    'Nothing to do: Lading tries again. More instance_types, more subnets or "spot-with-fallback" increase the chances.'
)
_ANSWERS = "Check the image, security groups and SSH access of the site. Then run: airflow lading check SITE."
_NEVER = (
    "No machine can ever run it",
    "Request less, or request a machine that a site has, or add a suitable machine to a site.",
)
_NAME_SITE = "Use the hint site to name a site that can run it."
_ALLOW_DAG = (
    "Name another site with the hint site, or add a pattern that matches the Dag to allowed_dags, allowed_teams or "
    "accounts of the site."
)
_NEXT = (
    "What happens next",
    (
        "Nothing to do. To let the job move to another site sooner, lower burst_after of the site, or name "
        "another site with the hint site."
    ),
)


@dataclass(frozen=True, slots=True)
class Cause:
    """What a cause of failure means.

    :param key: the cause's name in the store and in metrics
    :param title: what happened, in a few words
    :param remedy: what to do
    :param actors: who can do it
    """

    key: str
    title: str
    remedy: str
    actors: tuple[Actor, ...]


CAUSES: Mapping[str, Cause] = {
    each.key: each
    for each in (
        Cause(
            "out_of_memory",
            "It exceeded its memory limit",
            'Raise the memory that the task requests, or set the hint memory to "auto".',
            _AUTHOR,
        ),
        Cause("time_limit", "It exceeded its time limit", "Raise the time that the task requests.", _AUTHOR),
        Cause(
            "preempted",
            "Its machine was reclaimed",
            (
                "Nothing to do: the task is retried. To avoid this, use on-demand machines (capacity_type = "
                '"on-demand") or queues without preemption.'
            ),
            _BOTH,
        ),
        Cause(
            "node_failure",
            "Its machine failed",
            "Nothing to do: the task is retried. If this persists, exclude the machine.",
            _OPERATOR,
        ),
        Cause(
            "submit_rejected",
            "The site rejected it",
            "Correct what the reason names, in the task's hints or the site's table.",
            _BOTH,
        ),
        Cause("lost", "Its outcome is unknown", f"Clear the task to run it again. {_CHECK}", _OPERATOR),
        Cause("cancelled", "It was cancelled", "Clear the task to run it again.", _AUTHOR),
        Cause("error", "It failed", "Read the log of the task.", _AUTHOR),
        Cause(
            "no_capacity",
            "There was no capacity for the machine",
            "Nothing to do: Lading launches another machine. More instance_types or subnets increase the chances.",
            _OPERATOR,
        ),
    )
}


_LESS = (
    "It got less than it prefers",
    "Nothing to do. To change this, raise the minimum in its hints, or change [[rules]] of the sites file.",
)
_CLEAR = "then clear the task."
_INPUTS = (
    "Its requests cannot be determined",
    f"Correct the inputs that the reason names, or request amounts that do not depend on them; {_CLEAR}",
)
_SHORTEN = (
    "Check the expressions and patterns in its hints and the size of its inputs, simplify or shorten them, and "
    "start a new run"
)
_STRUCK = ("Controllers died or hung while handling it", f"{_SHORTEN}.")
_ROW = ("Its row in the store cannot be read", "Clear the task, which rewrites its row.")
_STAGE = (
    "Its input files cannot be copied to the site",
    f"Correct what the reason names in the hint stage, or name a site that has the files; {_CLEAR}",
    _BOTH,
)
_TOGETHER = (
    "There was no room for its whole gang",
    "Add more or larger machines, request less, or allow more attempts; then clear the tasks.",
    _BOTH,
)
_MEMBER = (
    "Another job of its gang failed",
    "Find out why the other job failed; then clear the tasks of the gang.",
)
_VERSIONS = (
    "The machine cannot read what it was sent",
    ("Install the same versions of Airflow and Lading at the site as on the scheduler's machine; then clear the task."),
    _OPERATOR,
)
_CONTAINER = (
    "Its container failed",
    f"Check the image or the container engine on the machine, depending on the reason; {_CLEAR}",
    _BOTH,
)


def _end(
    key: str, cause: str, sentence: str, title: str = "", remedy: str = "", actors: tuple[Actor, ...] = ()
) -> Code:
    """A code for how a job or machine ended, with the title, remedy and actors of its cause unless it has its own."""
    its = CAUSES[cause]
    title, remedy, actors = title or its.title, remedy or its.remedy, actors or its.actors
    return Code(key, cause, title, sentence, remedy, actors, form=Form.PHRASE)


def _never(key: str, sentence: str, form: Form = Form.PHRASE, remedy: str = _NEVER[1]) -> Code:
    return Code(key, "never", "No site can ever run it", sentence, remedy, _BOTH, form=form)


def _gang_sum(key: str, sentence: str) -> Code:
    """A code for why no site can ever have room for the whole gang."""
    remedy = "Request less, or name a site that has more."
    return Code(key, "never", _TOGETHER[0], sentence, remedy, _BOTH, form=Form.PHRASE)


def _gang_try(key: str, sentence: str) -> Code:
    """A code for why an attempt to find room for the whole gang failed."""
    remedy = (
        "Free some room, or wait for the next attempt. If this persists, add more or larger machines, or request less."
    )
    return Code(key, "gang_room", "There was no room for its whole gang", sentence, remedy, _BOTH)


def _aws(key: str, advice: str, title: str = _REFUSED[0], kind: str = "refused", remedy: str = "") -> Code:
    """A code for a launch that AWS rejected: the sentence quotes the error code and message of AWS.

    :param advice: what to do, as the end of the sentence; if empty, only the remedy says it
    """
    sentence = "{error:code}{text}" + (f"; {advice}" if advice else "")
    return Code(key, kind, title, sentence, remedy or f"{advice[0].upper()}{advice[1:]}.", _OPERATOR)


def _release(key: str, sentence: str) -> Code:
    """A code for why a machine was released, which is not a failure."""
    remedy = "Nothing to do: Lading launches another machine when jobs need one."
    return Code(key, "released", "It was released", sentence, remedy, _OPERATOR, form=Form.PHRASE)


# The order matters: a job with several reasons is grouped by the one whose code comes first.
_TABLE = (
    Code(
        "no_controller",
        "controller",
        "No controller is running",
        "the controller keeps exiting: {text}; see {log} on {host}",
        "Run: airflow lading check. The reason quotes the end of the controller's log.",
        _OPERATOR,
    ),
    Code(
        "no_controller_service",
        "controller",
        "The controller service is not running",
        "no controller is running; because of [lading] start_controller = False, a service has to start it",
        "Start the service: airflow lading controller. Its log says why it stopped.",
        _OPERATOR,
    ),
    Code(
        "stale_token",
        "controller",
        "Waiting for the controller to renew its access token",
        "waits for the controller to renew its access token",
        "Run: airflow lading check. If a controller is running, its log says why it cannot reach the machine.",
        _OPERATOR,
        form=Form.PHRASE,
    ),
    Code(
        "api_away",
        "api_away",
        "Airflow's API server does not answer",
        "Airflow's API server has not answered since {since:moment}; {jobs:jobs_wait} on this machine",
        "Nothing to do if the API server recovers: no try is used up. Otherwise, check that it is running "
        "and not overloaded (more [api] workers help), and check api_url and the tunnel of the site.",
        _OPERATOR,
    ),
    # The gang sleeps until its next attempt; what stopped the last attempt may no longer hold.
    Code(
        "attempted",
        "attempted",
        "Waiting for its next attempt",
        "attempt {attempt} of {attempts} found no room for {gang}{also:within}; the next attempt is at "
        "{until:moment}, or when somebody wakes it (airflow lading wake)",
        (
            "Free some room. Then wake the gang or task with the button on the tab of its task, or with airflow "
            "lading wake."
        ),
        _BOTH,
    ),
    Code(
        "attempted_or_freed",
        "attempted",
        "Waiting for its next attempt",
        "attempt {attempt} of {attempts} found no room for {gang}{also:within}; the next attempt is at "
        "{until:moment}, or earlier: as soon as finished jobs leave room for all of it, or when somebody "
        "wakes it (airflow lading wake)",
        (
            "Free some room. Then wake the gang or task with the button on the tab of its task, or with airflow "
            "lading wake."
        ),
        _BOTH,
    ),
    Code("gang_members", "gang", _GANG[0], "{here} of {members} members of gang {gang!r} are queued", _GANG[1], _BOTH),
    Code(
        "gang_pool",
        "gang",
        _GANG[0],
        "pool {pool!r} has {there} slots, but the members of the gang need {slots}",
        "Increase the slots of the pool.",
        _OPERATOR,
    ),
    Code(
        "gang_pool_shared",
        "gang",
        _GANG[0],
        (
            "pool {pool!r} has {there} slots, {theirs} of them used by other tasks, but the members of the gang "
            "need {slots}"
        ),
        "Increase the slots of the pool, or give the gang a pool of its own.",
        _BOTH,
    ),
    Code(
        "gang_active_tasks",
        "gang",
        _GANG[0],
        "max_active_tasks of the Dag is {most}, but the gang has more members",
        "Raise max_active_tasks of the Dag.",
        _AUTHOR,
    ),
    Code(
        "gang_limit",
        "gang",
        _GANG[0],
        "{name} of task {task!r} is {most}, but the gang has more members of this task",
        "Raise the limit that the reason names.",
        _AUTHOR,
    ),
    _gang_try("gang_timeout", "room for all members was not found within {seconds} s{also:after}"),
    _gang_try("gang_no_room", "{place}: no room for {left} of {jobs} jobs of task {task!r}"),
    _gang_try(
        "gang_no_room_apart",
        "{place}: no room for {left} of {jobs} jobs of task {task!r}; each needs a location of its own",
    ),
    _gang_try("gang_no_room_for_one", "{place}: no room for the job of task {task!r}"),
    _gang_try("hold_lost", "location {location!r} of site {site!r}{also:after_or_lost}"),
    _gang_try("hold_unanswered", "location {location!r} of site {site!r} has not answered for {seconds:.0f} s"),
    Code(
        "no_site_holds",
        "gang_room",
        "No site can reserve capacity",
        "no site can hold room for a gang; valid: sites with machines, and batch sites with mode = 'allocation'",
        *_HOLDING,
    ),
    Code(
        "site_holds_none",
        "gang_room",
        "Its site cannot reserve capacity",
        (
            "site {site!r} cannot hold room for a gang; valid: sites with machines, and batch sites with mode = "
            "'allocation'"
        ),
        *_HOLDING,
    ),
    Code(
        "gang_others",
        "gang",
        _GANG[0],
        "the other jobs of {gang} that have started must finish first",
        "Nothing to do: it starts once these jobs have finished.",
        _AUTHOR,
    ),
    Code(
        "gang_room",
        "gang_room",
        _GANG_ROOM[0],
        "looking for room for {gang} at {place} (attempt {attempt} of {attempts})",
        _GANG_ROOM[1],
        _BOTH,
    ),
    Code(
        "gang_room_partly",
        "gang_room",
        _GANG_ROOM[0],
        "looking for room for {gang} at {place}; {held} of {tasks} tasks have room (attempt {attempt} of {attempts})",
        _GANG_ROOM[1],
        _BOTH,
    ),
    Code(
        "gang_attempt",
        "gang_room",
        _GANG_ROOM[0],
        "attempt {attempt} of {attempts}",
        _GANG_ROOM[1],
        _BOTH,
    ),
    Code(
        "staging",
        "staging",
        "Copying its input files to the site",
        "{address} is being copied to the site",
        "Nothing to do: the job starts once the files have arrived. If this persists, the reason names the problem.",
        _BOTH,
    ),
    Code("staging_fails", "staging", "Copying its input files to the site", "{text}", _CHECK, _OPERATOR),
    Code("bundle", "staging", _BUNDLE[0], "{text}", _BUNDLE[1], _OPERATOR),
    Code(
        "bundle_sending",
        "staging",
        _BUNDLE[0],
        "Dag bundle {bundle!r} is being copied to the site",
        _BUNDLE[1],
        _OPERATOR,
    ),
    Code(
        "bundle_not_written",
        "staging",
        _BUNDLE[0],
        "Dag bundle {bundle!r} could not be written to {folder}: {text}",
        "Free space there, or fix the permissions of the folder.",
        _OPERATOR,
    ),
    Code("policy_failed", "plugin", _PLUGIN[0], "its policy failed: {text}", _PLUGIN[1], _OPERATOR),
    Code(
        "policy_misnames",
        "plugin",
        _PLUGIN[0],
        "its policy returned {answer}; valid: {locations:names}, or None",
        _PLUGIN[1],
        _OPERATOR,
    ),
    Code("plugin_failed", "plugin", _PLUGIN[0], "{text}", _PLUGIN[1], _OPERATOR),
    Code(
        "paused",
        "paused",
        "Its site is paused",
        "site {site!r} is paused by {by}",
        "Resume the site on the page.",
        _OPERATOR,
    ),
    Code(
        "task_jobs",
        "max_instances",
        _GROUP_LIMIT[0],
        "at most {most} jobs of task {task!r} can be active at once (max_jobs)",
        "Raise max_jobs of the task.",
        _AUTHOR,
        "max_jobs of task {task}",
    ),
    Code(
        "run_jobs",
        "max_instances",
        _GROUP_LIMIT[0],
        "at most {most} jobs of this run can be active at once (max_jobs of the Dag)",
        "Raise max_jobs of the Dag.",
        _AUTHOR,
        "max_jobs of the Dag",
    ),
    Code(
        "task_machines",
        "max_instances",
        _GROUP_LIMIT[0],
        "jobs of task {task!r} can use at most {most:machines} at once, and these have no room left (max_instances)",
        "Raise max_instances of the task.",
        _AUTHOR,
        "max_instances of task {task}",
    ),
    Code(
        "run_machines",
        "max_instances",
        _GROUP_LIMIT[0],
        (
            "jobs of this run can use at most {most:machines} at once, and these have no room left "
            "(max_instances of the Dag)"
        ),
        "Raise max_instances of the Dag.",
        _AUTHOR,
        "max_instances of the Dag",
    ),
    Code(
        "group_instances",
        "max_instances",
        _GROUP_LIMIT[0],
        "{used} of {most} instances of `{group}` are busy or booting",
        _GROUP_LIMIT[1],
        _AUTHOR,
        "max_instances of {group}",
    ),
    Code(
        "site_instances",
        "site_instances",
        _INSTANCES[0],
        "{used} of {most} instances of the site are busy or booting",
        _INSTANCES[1],
        _OPERATOR,
        "max_instances",
    ),
    Code(
        "type_instances",
        "site_instances",
        _INSTANCES[0],
        "{used} of {most} instances of {types:some} are busy or booting",
        _INSTANCES[1],
        _OPERATOR,
        "max_instances of {types:some}",
    ),
    Code(
        "max_usd_per_hour",
        "max_usd_per_hour",
        "One more machine would exceed the spending limit per hour of the site",
        (
            "{type} costs {price:g} USD per hour, and machines already cost {used:g} of at most {most:g} USD "
            "per hour (max_usd_per_hour)"
        ),
        "Raise max_usd_per_hour of the site, or allow cheaper types.",
        _OPERATOR,
        "max_usd_per_hour",
    ),
    Code(
        "quota",
        "quota",
        "A quota of the account is reached",
        "{used:g} of {most:g} vCPUs of the quota {quota} are in use, and {type} needs {vcpus:g}",
        "Raise the quota in AWS and max_vcpus of the site. Or allow machines that count against another "
        "quota: types of another family, or spot instances.",
        _OPERATOR,
        "quota {quota}",
    ),
    _aws(
        "aws_volume_quota",
        "raise the quotas for EBS storage and IOPS in Service Quotas, delete unused volumes, or lower `disk`",
        "A quota of the account is reached",
        "quota",
    ),
    _aws(
        "aws_quota",
        "",
        "A quota of the account is reached",
        "quota",
        "Raise the quota in AWS, or allow types of another family.",
    ),
    Code(
        "no_driver",
        "no_driver",
        "The image has no GPU driver",
        "the image ({images:names}) has no GPU driver: machines launched from it show no GPU; install the NVIDIA "
        "driver in the image or with `boot_script`, or name another image in `ami`",
        "Install the NVIDIA driver in the image or with `boot_script`, or name another image in `ami`.",
        _OPERATOR,
        form=Form.PHRASE,
    ),
    Code(
        "no_capacity",
        "capacity",
        "AWS has no capacity for such a machine",
        "no capacity for {type}, which is not requested again before {until:moment}{also:after}",
        _MORE_TYPES,
        _OPERATOR,
        "capacity of {type}",
    ),
    Code(
        "launch_withheld",
        "refused",
        _REFUSED[0],
        "{type} is not launched before {until:moment}{also:after}",
        _REFUSED[1],
        _OPERATOR,
        "launches of {type}",
    ),
    Code(
        "max_usd",
        "max_usd",
        _MAX_USD[0],
        "its run has spent {spent:usd} of its {most:usd} USD (max_usd)",
        _MAX_USD[1],
        _AUTHOR,
        "max_usd",
    ),
    Code(
        "max_usd_rate",
        "max_usd",
        _MAX_USD[0],
        "the machines of its run cost {used:usd} USD per hour, and {left:usd} of its {most:usd} USD are "
        "left: with more machines, the rest would last less than an hour (max_usd)",
        _MAX_USD[1],
        _AUTHOR,
        "max_usd",
    ),
    Code(
        "budget_spent",
        "budget",
        _BUDGET[0],
        "{spent:usd} of the {most:usd} USD of budget {budget} are spent: no more machines are launched until "
        "{until:moment}",
        _BUDGET[1],
        _OPERATOR,
        "budget {budget}",
    ),
    Code(
        "budget_spent_cpu_hours",
        "budget",
        _BUDGET[0],
        "{spent:count} of the {most:count} cpu-hours of budget {budget} are used: no more jobs start until "
        "{until:moment}",
        _CPU_HOURS[1],
        _OPERATOR,
        "budget {budget}",
    ),
    Code(
        "budget_promised",
        "budget",
        "The rest of its budget is committed to other jobs",
        "{spent:count} of the {most:count} cpu-hours of budget {budget} are used, and jobs that run or are "
        "about to start are expected to use {promised:count} more: this job starts if they use less than "
        "expected, or after {until:moment}",
        _CPU_HOURS[1],
        _OPERATOR,
        "budget {budget}",
    ),
    Code(
        "budget_rate",
        "budget",
        _BUDGET[0],
        "the machines of budget {budget} cost {used:usd} USD per hour, and {spent:usd} of its {most:usd} USD "
        "are spent: with more machines, the rest would last less than an hour; the next period starts at "
        "{until:moment}",
        _BUDGET[1],
        _OPERATOR,
        "budget {budget}",
    ),
    Code(
        "share_bound",
        "share",
        _BOUND[0],
        "share {share} uses {used:g} of the {most:g} {what} reserved for it, and cannot use more (borrow = false)",
        _BOUND[1],
        _OPERATOR,
        "share {share}",
    ),
    Code(
        "share_by_weight",
        "share",
        _BOUND[0],
        "share {share} uses {used:g} of the {most:g} {what} that its weight entitles it to, "
        "and cannot use more (borrow = false)",
        _BOUND[1],
        _OPERATOR,
        "share {share}",
    ),
    Code(
        "share_closed",
        "share",
        "The free capacity is reserved for another share",
        "{most:g} {what} are reserved for share {share}, and other shares cannot use them (lend = false)",
        (
            "Nothing to do: the job starts as jobs of other shares finish. To start it sooner, set lend = true for "
            "that share, in [[shares]] of the sites file."
        ),
        _OPERATOR,
        "share {share}",
    ),
    Code(
        "gang_share",
        "share",
        _BOUND[0],
        ("its {jobs} jobs request {all:resources} in total, more than their share can use at any one site now: {also}"),
        "The gang starts as jobs of its share finish. A gang that requests more than its share can ever use "
        "at one site never starts. In that case, request less, or reserve more for the share, or set "
        "borrow = true, in [[shares]] of the sites file.",
        _BOTH,
        "share {share}",
    ),
    Code(
        "max_allocations",
        "max_allocations",
        "All allocations are busy",
        "{used} of {most} allocations are busy (max_allocations)",
        "Raise max_allocations of the site, or the size of its allocations.",
        _OPERATOR,
        "max_allocations",
    ),
    Code(
        "max_jobs",
        "max_jobs",
        _MAX_JOBS[0],
        "site {site!r} already has {most} jobs (max_jobs)",
        _MAX_JOBS[1],
        _OPERATOR,
        "max_jobs",
    ),
    Code(
        "max_submitted",
        "max_jobs",
        _MAX_JOBS[0],
        "{most} jobs are already submitted (max_submitted)",
        _MAX_JOBS[1],
        _OPERATOR,
        "max_submitted",
    ),
    Code(
        "submit_limit",
        "max_jobs",
        _MAX_JOBS[0],
        "{submitted} jobs are submitted, and {limit} allows {most}",
        (
            "Nothing to do: a job is submitted whenever another finishes, and every minute Lading tries one "
            "more. The cluster sets this limit."
        ),
        _OPERATOR,
        "{limit}",
    ),
    Code(
        "batch_queue",
        "batch_queue",
        _QUEUE[0],
        "waits in queue {queue!r} of the batch system: {text}",
        _QUEUE[1],
        _BOTH,
        "queue {queue}",
        form=Form.PHRASE,
    ),
    Code(
        "batch_default_queue",
        "batch_queue",
        _QUEUE[0],
        "waits in the queue of the batch system: {text}",
        _QUEUE[1],
        _BOTH,
        form=Form.PHRASE,
    ),
    Code(
        "allocation_queue",
        "batch_queue",
        _QUEUE[0],
        "allocation {allocation} waits in queue {queue!r} of the batch system: {text}",
        _QUEUE[1],
        _BOTH,
        "queue {queue}",
    ),
    Code(
        "allocation_default_queue",
        "batch_queue",
        _QUEUE[0],
        "allocation {allocation} waits in the queue of the batch system: {text}",
        _QUEUE[1],
        _BOTH,
    ),
    Code(
        "batch_never",
        "batch_queue",
        "Its batch job cannot start unless something changes",
        "its batch job{queue:in_queue} cannot start unless something changes: {text}; if nothing changes, it is "
        "cancelled at {at:moment}",
        (
            "Request what the queue offers, or name another queue; or ask the administrators of the cluster to change "
            "its limits."
        ),
        _BOTH,
    ),
    Code(
        "nodes_avoided",
        "batch_queue",
        "Nodes where jobs failed are avoided",
        "nodes where jobs failed are avoided: {nodes:some}",
        "Repair these nodes. Lading uses them again after the time exclude_nodes_for of the site.",
        _OPERATOR,
    ),
    Code("site_limit", "site_limit", _LIMIT[0], "{system} accepts no more jobs for now: {text}", _LIMIT[1], _OPERATOR),
    Code(
        "submit_unanswered",
        "site_limit",
        _LIMIT[0],
        "{system} did not confirm the submission: {text}",
        "Nothing to do: Lading looks for the batch job before it submits again.",
        _OPERATOR,
    ),
    # Also the reason for refusing a job that names only such a queue.
    Code(
        "not_admitted",
        "refused",
        "The batch system does not allow its account",
        "{system} does not allow its account{queue:in_queue}: {text}",
        f"Have the batch system allow the account, or name another queue. {_CHECK}",
        _BOTH,
        form=Form.PHRASE,
    ),
    Code("site_trouble", "site_away", _AWAY[0], "site {site!r} accepts no jobs now: {also}", _AWAY[1], _OPERATOR),
    Code("unreachable", "site_away", _AWAY[0], "{text}", _AWAY[1], _OPERATOR),
    Code("batch_unasked", "site_away", _AWAY[0], "its batch system could not be queried: {text}", _AWAY[1], _OPERATOR),
    Code(
        "api_unreachable",
        "site_away",
        "Its machines cannot reach Airflow's execution API",
        "{text}",
        "Check api_url and the tunnel of the site.",
        _OPERATOR,
    ),
    Code(
        "agent_not_brought",
        "site_away",
        _AWAY[0],
        "{text}",
        (
            "Free space in the folder that the reason names, or set python in the site's table to a Python 3.10 or "
            "newer."
        ),
        _OPERATOR,
    ),
    Code("no_market", "site_away", _AWAY[0], "it does not report which machines it can launch", _AWAY[1], _OPERATOR),
    Code("no_locations", "site_away", _AWAY[0], "it has no locations", _AWAY[1], _OPERATOR),
    Code("location_note", "site_away", _AWAY[0], "{text}", _AWAY[1], _OPERATOR),
    Code("location_state", "site_away", _AWAY[0], "{location} is {state}", _AWAY[1], _OPERATOR),
    Code("site_silent", "site_away", _AWAY[0], "site {site!r} could not be queried: {text}", _AWAY[1], _OPERATOR),
    Code(
        "cannot_write",
        "site_away",
        "Its files cannot be written on its machine",
        "files could not be written to {folder}: {text}",
        "Free space there, or fix the permissions of the folder.",
        _OPERATOR,
    ),
    Code(
        "cannot_start",
        "site_away",
        "Its files cannot be written on its machine",
        "the files of the job cannot be written on this machine; see the node agent's log",
        "Free space there, or fix the permissions of the folder.",
        _OPERATOR,
    ),
    Code("machine_gone", "again", _AGAIN[0], "its machine is gone", _AGAIN[1], _OPERATOR),
    Code("machine_ended", "again", _AGAIN[0], "its machine has stopped{also:after}", _AGAIN[1], _OPERATOR),
    Code("machine_being_released", "again", _AGAIN[0], "its machine is being released", _AGAIN[1], _OPERATOR),
    Code("machine_restarted", "again", _AGAIN[0], "its machine was restarted", _AGAIN[1], _OPERATOR),
    Code("hold_no_room", "room", _NO_ROOM[0], "there is no room for it now", _NO_ROOM[1], _BOTH),
    Code("hold_expired", "again", _AGAIN[0], "the reservation was not renewed", _AGAIN[1], _OPERATOR),
    Code("stopped", "again", _AGAIN[0], "the scheduler was stopped", _AGAIN[1], _OPERATOR),
    Code(
        "not_started_there",
        "again",
        _AGAIN[0],
        "it did not start at the location that it was sent to",
        _AGAIN[1],
        _OPERATOR,
    ),
    Code(
        "agent_leaves",
        "again",
        _AGAIN[0],
        "the node agent of its machine no longer accepted jobs",
        _AGAIN[1],
        _OPERATOR,
    ),
    Code("allocation_full", "again", _AGAIN[0], "its allocation accepts no more jobs", _AGAIN[1], _OPERATOR),
    Code("submitted_again", "again", _AGAIN[0], "it is being submitted again{also:after}", _AGAIN[1], _OPERATOR),
    Code(
        "not_begun",
        "launching",
        _LAUNCHING[0],
        "the machine launched for it has not started yet",
        _LAUNCHING[1],
        _OPERATOR,
    ),
    Code("booting", "launching", _LAUNCHING[0], "{text}", _LAUNCHING[1], _OPERATOR),
    Code("no_ssh_yet", "launching", _LAUNCHING[0], "nothing answers at {host}:{port}", _LAUNCHING[1], _OPERATOR),
    Code(
        "first_gpu_machine",
        "launching",
        "Waiting for the first GPU machine to show its GPUs",
        "the first GPU machine is booting: more are launched once it has shown that the image has a GPU driver",
        _LAUNCHING[1],
        _OPERATOR,
    ),
    Code(
        "machine_launched",
        "launching",
        _LAUNCHING[0],
        "a machine is being launched for it, and will be ready in about {seconds} s",
        _LAUNCHING[1],
        _OPERATOR,
    ),
    Code(
        "machine_boots",
        "launching",
        _LAUNCHING[0],
        "{location} is booting, and will be ready for it in about {seconds} s",
        _LAUNCHING[1],
        _OPERATOR,
    ),
    Code(
        "room_soon",
        "launching",
        "Waiting for capacity that frees up soon",
        (
            "{location} will have room in about {seconds} s: waiting for that room does not delay the run, or is "
            "cheaper than a new machine"
        ),
        (
            "Nothing to do: the job starts when that room is free. To spend more money for an earlier start, "
            "raise hurry of the Dag."
        ),
        _AUTHOR,
    ),
    Code(
        "inputs",
        "inputs",
        "Examining its inputs",
        "waits until Lading has examined its inputs and earlier tries, from which it computes the requests",
        "Nothing to do. If this persists, look for a file system that hangs.",
        _OPERATOR,
        form=Form.PHRASE,
    ),
    Code(
        "kept_free", "kept_free", _KEPT[0], "room is kept free for a larger job that has waited longer", _KEPT[1], _BOTH
    ),
    Code(
        "next_here", "kept_free", _KEPT[0], "it is next on {location}, where room is kept free for it", _KEPT[1], _BOTH
    ),
    Code("site_full", "room", _NO_ROOM[0], "site {site!r} has no room", _NO_ROOM[1], _BOTH),
    Code(
        "too_small_now",
        "room",
        _NO_ROOM[0],
        "no running machine of site {site!r} is large enough for it",
        _NO_ROOM[1],
        _BOTH,
    ),
    Code(
        "machine_full",
        "room",
        _NO_ROOM[0],
        "waits for room on this machine: needs {needs:resources}; {taken:are_taken}",
        _NO_ROOM[1],
        _BOTH,
        form=Form.PHRASE,
    ),
    Code(
        "no_whole_gpu",
        "room",
        _NO_ROOM[0],
        "waits for room on this machine: needs {needs:resources}; no whole GPU is free",
        _NO_ROOM[1],
        _BOTH,
        form=Form.PHRASE,
    ),
    Code(
        "outlasts",
        "room",
        _NO_ROOM[0],
        "a job {seconds:length} would outlast {location:place}",
        "Set a shorter time limit, or let allocations last longer.",
        _BOTH,
    ),
    Code("busy", "room", _NO_ROOM[0], "{locations:are_busy}", _NO_ROOM[1], _BOTH),
    Code(
        "share_turn",
        "share",
        _SHARE[0],
        (
            "share {share} used {used:.0f} % of the capacity in the last {half_life:last}, and is entitled to "
            "{entitled:.0f} %"
        ),
        _SHARE[1],
        _OPERATOR,
        "share {share}",
    ),
    Code(
        "turn",
        "turn",
        "Waiting for its turn",
        (
            "waits for its turn: jobs that were already sent to a machine, have a higher priority or arrived earlier "
            "come first"
        ),
        (
            "Add capacity, or raise its priority_weight. A higher weight does not let it pass jobs that were already "
            "sent to a machine."
        ),
        _BOTH,
        form=Form.PHRASE,
    ),
    _aws(
        "aws_subnet_full",
        "the subnet has no free IP address: name a larger one in `subnets`, or release some of its addresses",
    ),
    _aws("aws_profile", "correct `instance_profile`"),
    _aws("aws_subnet", "correct `subnets`"),
    _aws("aws_plan_image", "the account's plan allows only free-tier images: name one in `ami`, or upgrade the plan"),
    _aws(
        "aws_plan_type",
        ("the account's plan allows only free-tier instance types: name some in `instance_types`, or upgrade the plan"),
    ),
    _aws(
        "aws_image_unsuited",
        (
            "the image does not support the instance type: name another image in `ami`, or exclude the type "
            "(`exclude_types`)"
        ),
    ),
    _aws("aws_no_spot_image", 'name another image in `ami`, or set `capacity_type = "on-demand"`'),
    _aws("aws_type", "exclude the type (`exclude_types`)"),
    _aws(
        "aws_not_in_zone",
        "",
        remedy="Nothing to do: Lading tries another zone or type. You can also name other `subnets`.",
    ),
    _aws(
        "aws_marketplace_image",
        "the image is an AWS Marketplace product that does not support the instance type: name another image in "
        "`ami`, or exclude the type (`exclude_types`)",
    ),
    _aws("aws_configuration", "if no type can be launched, check that the tenancy of the subnets' VPC is `default`"),
    _aws(
        "aws_spot_role",
        "create the role once, with `aws iam create-service-linked-role --aws-service-name spot.amazonaws.com`",
    ),
    _aws(
        "aws_verification",
        "AWS is verifying the account for this region, which takes up to 4 hours; after that, contact AWS Support",
    ),
    _aws("aws_subscription", "subscribe the account to EC2, or enable the region"),
    _aws(
        "aws_organization",
        ("a service control policy of the organization denies this: ask the organization's administrator to allow it"),
    ),
    _aws("aws_boundary", "widen the permissions boundary of the site's role"),
    _aws("aws_permission", "grant the permissions that `airflow lading check SITE --policy` prints"),
    _aws(
        "aws_expired",
        (
            "the credentials have expired, or the clock of this machine is wrong: renew the credentials, or set the "
            "clock"
        ),
    ),
    _aws("aws_credentials", "correct the credentials of the connection that `aws_conn_id` names"),
    _aws("aws_image", "correct `ami` in the site's table"),
    _aws("aws_table", "correct the site's table"),
    _aws("aws_volume_image", "the volumes that the image specifies cannot be created: name another image in `ami`"),
    _aws(
        "aws_volume_key",
        "the volumes cannot be created: allow the site's credentials to use the KMS key of the image, and check "
        "that its snapshots exist",
    ),
    _aws("aws_refused", "", remedy=_REFUSED[1]),
    _aws("aws_no_capacity", "", "AWS has no capacity for such a machine", "capacity", _MORE_TYPES),
    Code(
        "aws_throttle",
        "site_limit",
        _LIMIT[0],
        "AWS accepts no more requests for now: {error:code}{text}",
        "Nothing to do: Lading retries with increasing pauses.",
        _OPERATOR,
    ),
    Code(
        "aws_new_profile",
        "site_limit",
        _LIMIT[0],
        "AWS cannot find the instance profile yet; a new one takes a moment to become available",
        "Nothing to do: Lading tries again.",
        _OPERATOR,
    ),
    _aws("aws_silent", "", _AWAY[0], "site_away", _CHECK),
    Code(
        "machine_silent",
        "refused",
        "New machines do not answer",
        "the last machine that was launched never answered: {also}",
        _ANSWERS,
        _OPERATOR,
    ),
    Code(
        "machines_silent",
        "refused",
        "New machines do not answer",
        "the last {number} machines that were launched never answered; the last one: {also}",
        _ANSWERS,
        _OPERATOR,
    ),
    Code(
        "allocation_failed",
        "refused",
        "Its allocations end before they run a job",
        "allocation {allocation} ended before it could run a job{also:after}",
        _REFUSED[1],
        _OPERATOR,
    ),
    # Codes that only supplement another reason.
    Code(
        "closed_count",
        "site_instances",
        "Machines being drained still count towards the limit",
        "the limit also counts {number:machines} being drained",
        "Nothing to do: they are released once their jobs have finished.",
        _OPERATOR,
    ),
    Code(
        "may_go_to_next_site",
        "room",
        _NEXT[0],
        "after {after:time} it can move to site {next!r} (burst_after)",
        _NEXT[1],
        _BOTH,
    ),
    Code(
        "only_site",
        "room",
        _NEXT[0],
        "its hint site allows no other site",
        "Nothing to do. To let the job run at other sites, too, remove the hint site.",
        _AUTHOR,
    ),
    # Why no site can ever have room for the whole gang.
    _gang_sum(
        "gang_job_too_large",
        "the job of task {task!r} requests {each:resources}, more than {sites:sites} can ever hold: {also}",
    ),
    _gang_sum(
        "gang_too_many",
        "the {jobs} jobs of task {task!r} request {all:resources} in total ({each:resources} each), and "
        "{sites:sites} can never hold more than {most:.0f} of them: {also}",
    ),
    _gang_sum(
        "gang_too_many_apart",
        "the {jobs} jobs of task {task!r} request {all:resources} in total ({each:resources} each, and each needs "
        "its own location), and {sites:sites} can never hold more than {most:.0f} of them: {also}",
    ),
    _gang_sum(
        "gang_too_large",
        (
            "its {jobs} jobs request {all:resources} in total, and {sites:sites} can never provide more than "
            "{has:resources}"
        ),
    ),
    _gang_sum(
        "gang_too_few_locations",
        "its {jobs} jobs need a location each (spread), and {sites:sites} can never provide more than {most:.0f}",
    ),
    _gang_sum("site_has", "{site} has {sizes:sizes}{more:more_sizes}"),
    _gang_sum("site_launches", "{site} can launch {most:up_to} {sizes:sizes_alone}{more:more_sizes}"),
    _gang_sum("site_has_nothing", "{site} has nothing suitable"),
    # Why a job can never run.
    Code(
        "gpu_unsupported",
        "never",
        "Its GPUs are not supported",
        "its {model} is not supported: only NVIDIA GPUs are",
        "Name a type with NVIDIA GPUs, or another site.",
        _BOTH,
    ),
    Code(
        "no_machines",
        "never",
        _NEVER[0],
        "has no place to run: there is no location and no instance type",
        _NEVER[1],
        _OPERATOR,
        form=Form.NEVER,
    ),
    Code(
        "no_such_machine",
        "never",
        _NEVER[0],
        "fits no machine: none {wish:wish}; available: {names:names}",
        _NEVER[1],
        _BOTH,
        form=Form.NEVER,
    ),
    Code(
        "too_large",
        "never",
        _NEVER[0],
        "is too large for every machine{wish:that}; the closest is {closest}: {lacks:lacks}",
        _NEVER[1],
        _BOTH,
        form=Form.NEVER,
    ),
    Code(
        "too_large_here",
        "never",
        _NEVER[0],
        "can never start on this machine: it needs {needs:resources}, but the whole machine has {all:resources}; "
        "request less, or name another site",
        _NEVER[1],
        _BOTH,
        form=Form.NEVER,
    ),
    _never(
        "no_rule_for_less",
        "it could run with less than its preferred amounts, but no rule of the sites file allows that; see [[rules]]",
    ),
    _never("no_such_site", "there is no site {name!r}; the sites are: {names}", remedy=_NAME_SITE),
    _never(
        "dag_not_allowed",
        "Dag {dag} is not allowed there: {tables}; name another site, or ask the operator to add a matching pattern",
        remedy=_ALLOW_DAG,
    ),
    _never(
        "team_not_allowed",
        (
            "Dag {dag} of team {team} is not allowed there: {tables}; name another site, or ask the operator "
            "to add a matching pattern"
        ),
        remedy=_ALLOW_DAG,
    ),
    _never(
        "no_dag_not_allowed",
        (
            "a job that belongs to no Dag is not allowed there: {tables}; name another site, or ask the "
            "operator to add a matching pattern"
        ),
        remedy=_ALLOW_DAG,
    ),
    _never("names_no_site", "it names no site", remedy=_NAME_SITE),
    _never(
        "name_a_site",
        "no site accepts tasks that name no site: name one of {others} with the hint site",
        remedy=_NAME_SITE,
    ),
    _never(
        "name_another_site",
        "tasks that name no site can only run at {only}: name one of {others} with the hint site",
        remedy=_NAME_SITE,
    ),
    _never("target_refused", "target {target!r}: {also}"),
    _never("no_type_of_target", "the site has no instance type {type!r}, {valid}"),
    _never(
        "needs_batch_system",
        (
            "its hints queue and native require a batch system, which {names} is not{nodes:of_one_node}; name another "
            "site"
        ),
        remedy=_NAME_SITE,
    ),
    _never(
        "needs_batch_jobs",
        "its hints nodes, ppn and threads require a batch site with mode = 'job', which {names} is "
        "not{nodes:of_one_node}; name another site",
        remedy=_NAME_SITE,
    ),
    _never("hint_unavailable", "hint {hint}: {value} is not available, {valid}"),
    _never("no_machine_has_all", "no machine {wish}; available: {machines}"),
    _never(
        "too_many_nodes", "requests {nodes} nodes, more than {place} can ever give to a job: {most}", form=Form.NEVER
    ),
    _never(
        "too_large_anywhere",
        "requests {needs:resources}, more than any site can ever give: the closest location, {closest!r} of "
        "site {place!r}, has {has:resources}, which is not enough {lacking:and}{gpu:unsupported}",
        form=Form.NEVER,
    ),
    _never(
        "too_large_for_type",
        "requests {needs:resources}, more than any machine of type {type!r} can ever give: the closest "
        "location, {closest!r} of site {place!r}, has {has:resources}, which is not enough "
        "{lacking:and}{gpu:unsupported}",
        form=Form.NEVER,
    ),
    Code("nowhere", "never", "No site can ever run it", "{text}", _NEVER[1], _BOTH, form=Form.NEVER),
    # Why machines are released, and how they fail.
    _release("released_by", "{by} requested it ({kind})"),
    _release("drained", "it is drained and empty"),
    _release("period_ends", "it is empty and its next billing period begins in {seconds:.0f} s"),
    _release("idle", "it has been empty for {seconds:.0f} s"),
    _release("empty", "it is empty"),
    _release("not_wanted", "no waiting job needs it"),
    _release("not_needed", "no job is expected to need it"),
    _release("not_needed_for", "no job is expected to need it for {seconds:time}, and a new one would be ready sooner"),
    _release("gang_gone", "the gang for which it was requested no longer looks for room"),
    _release("makes_way", "it makes way for a machine on which the waiting jobs can run"),
    _release(
        "limit_needed",
        "it is empty, and waiting jobs need another machine, which the limits allow only once this one is gone",
    ),
    _release("makes_way_for_larger", "it makes way for a larger machine, which more of the waiting jobs can use"),
    _release("machine_closing", "it was already closing"),
    _release("orders_dropped", "the scheduler was stopped, or another controller took over"),
    _end("nothing_launched", "lost", "its site launches no machines, or is no longer in the sites file"),
    _end("allocation_unknown", "lost", "the batch system does not know it"),
    _end("machine_forgotten", "lost", "its site no longer knows it"),
    _end("machine_unknown_to_ec2", "node_failure", "EC2 no longer knows the machine"),
    _end("machine_reclaimed", "preempted", "AWS reclaimed the machine{text:after}"),
    _end("machine_interrupted", "preempted", "AWS is reclaiming the machine: its jobs are told to stop at {at:moment}"),
    _end("machine_down", "node_failure", "the machine is {state}{text:after}"),
    _end("machine_ended_unobserved", "lost", "it stopped while no controller was running{also:after}"),
    _end("machine_unreached", "node_failure", "it has been unreachable for {seconds:time}{also:after}"),
    _end("machine_takes_no_jobs", "node_failure", "it has accepted no jobs for {seconds:time}{text:after}"),
    _end("machine_late", "node_failure", "it was {phase} for more than {seconds:time}{also:after}"),
    _end(
        "launched_in_part",
        "no_capacity",
        "EC2 had capacity for only {launched} of the {asked} machines requested together",
    ),
    _end("launch_refused", "no_capacity", "{also}"),
    # How jobs end that never start.
    _end(
        "hint_error",
        "error",
        "{text}",
        "A hint is invalid",
        "Correct the hint that the reason names, then clear the task.",
    ),
    _end(
        "inputs_unknown",
        "error",
        "its requests cannot be determined from its inputs: {text}",
        *_INPUTS,
    ),
    _end("hints_unreadable", "error", "its requests cannot be read: {text}", *_ROW),
    _end("sizing_failed", "error", "its requests could not be determined: {text}", *_INPUTS),
    _end("sizing_not_stored", "error", "its requests cannot be stored: {text}", *_INPUTS),
    _end(
        "controllers_died_sizing",
        "error",
        "{count} controllers died or hung while determining its requests. "
        + _SHORTEN
        + ": in this run, a retry with the same requests fails at once",
        *_STRUCK,
    ),
    _end(
        "controllers_died_sizing_try",
        "error",
        "it has the same requests as an earlier try of its task in this run, and controllers died or hung "
        "while handling that try, so it is not tried again. " + _SHORTEN,
        *_STRUCK,
    ),
    _end(
        "controllers_died_sizing_alike",
        "error",
        "it has the same requests as {count} other mapped instances of its task in this run (map index "
        "{indexes:names}), and controllers died or hung while handling these, so it is not tried. " + _SHORTEN,
        *_STRUCK,
    ),
    _end(
        "controllers_died_placing",
        "error",
        "{count} controllers died or hung while looking for a place for it. Check the binding filters, rules "
        "and policies of plugins: the log of a controller that hung says where it hung. Fix that, then clear "
        "the task",
        "Controllers died or hung while handling it",
        (
            "Find out from the controller's log in which binding filter, rule or policy it hung, and fix that; "
            "then clear the task."
        ),
        _OPERATOR,
    ),
    _end("row_unreadable", "error", "its row cannot be read, so it was not sent: {text}; clear the task", *_ROW),
    _end(
        "gang_row_unreadable",
        "error",
        "the gang's part of its row cannot be read ({text}); clear the task, which rewrites its row",
        *_ROW,
    ),
    _end(
        "stage_unsupported",
        "error",
        "hint stage: files cannot be copied to site {site!r} of kind {kind!r}",
        *_STAGE,
    ),
    _end("stage_refused", "error", "hint stage: at site {site!r}, {text}", *_STAGE),
    _end("stage_unreadable", "error", "the stored list of its files cannot be read: {text}", *_ROW),
    _end("stage_failed", "error", "{address} cannot be copied to the site: {text}", *_STAGE),
    _end(
        "stage_hangs",
        "error",
        "{address} is not copied to the site, because {number} reads{what} hang; Lading tries again when one "
        "of them completes, or after a restart of the controller",
        *_STAGE,
    ),
    _end(
        "stage_slow",
        "error",
        "{address} could not be copied to the site: {what} took longer than {seconds:g} s",
        *_STAGE,
    ),
    _end("gang_error", "error", "looking for room for {gang} failed: {text}", *_TOGETHER),
    _end(
        "gang_never",
        "error",
        "{gang} can never start together: {also}; request less, or name a site that has more",
        *_TOGETHER,
    ),
    _end("gang_out_of_attempts", "error", "no room was found, tried {attempts:times}{also:last_time}", *_TOGETHER),
    _end(
        "gang_task_failed",
        "error",
        "task {failed:some} of its gang {gang!r} failed",
        *_MEMBER,
    ),
    _end("submit_refused", "submit_rejected", "{system} rejected the job: {text}"),
    _end("allocation_refused", "submit_rejected", "{system} rejected the allocation for it: {text}"),
    _end("script_refused", "submit_rejected", "{text}"),
    _end("bundle_refused", "submit_rejected", "{text}"),
    # How jobs are cancelled.
    _end("cancelled", "cancelled", "it was cancelled"),
    _end("unwanted", "cancelled", "its task was cleared, marked or deleted"),
    _end("unknown_job", "cancelled", "Lading has no record of this job"),
    _end("machine_terminated", "cancelled", "its machine {machine} was terminated by {by}"),
    _end("agent_shut_down", "cancelled", "the node agent was shut down"),
    _end("airflow_stopped", "cancelled", "the scheduler was stopped"),
    _end(
        "gang_member_failed",
        "cancelled",
        "the job of task {task!r} in its gang {gang!r} failed (on_failure = cancel)",
        *_MEMBER,
    ),
    _end(
        "gang_member_back",
        "cancelled",
        "the job of task {task!r} in its gang {gang!r} was returned before it started (on_failure = cancel)",
        *_MEMBER,
    ),
    _end(
        "gang_member_late",
        "cancelled",
        "the job of task {task!r} in its gang {gang!r} did not start at site {site!r} within {seconds} s "
        "(on_failure = cancel)",
        *_MEMBER,
    ),
    # How running jobs end, as the node agent reports it.
    _end("over_time", "time_limit", "the task exceeded its time limit of {limit:time}"),
    _end("over_memory", "out_of_memory", "the task used {used:memory} of memory; its limit is {limit:memory}"),
    _end(
        "container_out_of_memory",
        "out_of_memory",
        "the kernel killed a process in the container, which exceeded the memory limit of the task",
    ),
    _end(
        "machine_out_of_memory",
        "out_of_memory",
        "the kernel killed the task's process: its machine, or the control group that it runs in, was out of memory",
    ),
    _end(
        "allocation_over",
        "time_limit",
        "its allocation reached its time limit: the task has no time limit of its own, so it was guaranteed "
        "only {least:time}; to get more, set a time limit with resources(time=...), or raise allocation_time "
        "of the site",
        remedy="Set a time limit for the task with resources(time=...), or raise allocation_time of the site.",
        actors=_BOTH,
    ),
    _end("spot_interrupted", "preempted", "AWS reclaims the spot instance at {at:moment}"),
    _end("machine_rebooted", "node_failure", "the machine was restarted while the task ran"),
    _end(
        "api_out_of_reach",
        "node_failure",
        "Airflow's execution API was unreachable from this machine: {text}",
        "Airflow's execution API was unreachable",
        f"Nothing to do: the task is retried. If this persists, check api_url of the site. {_CHECK}",
    ),
    _end(
        "api_silent_at_start",
        "node_failure",
        "Airflow's execution API did not answer in time for the task to start: {text}",
        "Airflow's execution API was unreachable",
        f"Nothing to do: the task had not started, and it is retried. {_CHECK}",
    ),
    _end("batch_asked_to_end", "lost", "the batch system asked the job to stop"),
    _end("supervisor_gone", "lost", "the process that supervised the task is gone"),
    _end("supervisor_killed", "lost", "the process that supervised the task was killed by signal {signal}"),
    _end(
        "supervisor_exited",
        "lost",
        "the process that supervised the task exited unexpectedly with exit code {exit_code}",
    ),
    _end("task_failed", "error", "the task failed; see its log"),
    _end("task_raised", "error", "the task failed: {text}"),
    _end("details_lost", "error", "the task failed; the details could not be written to the disk of the machine"),
    _end("task_exited", "error", "the task's process exited with exit code {exit_code}"),
    _end("task_killed", "error", "the task's process was killed by signal {signal}"),
    _end("job_error", "error", "{text}"),
    _end("api_error", "error", "the API server answered {status}: {text}"),
    _end(
        "token_refused",
        "error",
        "the API server rejects the task's token ({status}: {text}); give it the same [api_auth] jwt_secret as the "
        "schedulers and controllers",
        "The API server rejects the tokens of tasks",
        "Give the API server, the schedulers and the controllers the same [api_auth] jwt_secret (or matching keys) "
        "and jwt_issuer, and the same [execution_api] jwt_audience; compare their clocks, and restart them. Then "
        "run: airflow lading check.",
        _OPERATOR,
    ),
    _end("start_refused", "cancelled", "the API server answered {status}: {text}"),
    _end("runs_elsewhere", "cancelled", "{text} elsewhere"),
    _end(
        "task_ended_in_airflow",
        "cancelled",
        "Airflow stopped the task: its task instance was cleared, marked or deleted while it ran",
    ),
    _end("workload_unreadable", "error", "Airflow cannot read the workload: {text}", *_VERSIONS),
    _end("envelope_unreadable", "error", "the envelope of the job cannot be read: {text}", *_VERSIONS),
    _end(
        "probe_failed",
        "error",
        "{text}",
        "The machine cannot reach Airflow's execution API",
        "Check api_url and the tunnel of the site.",
        _OPERATOR,
    ),
    _end(
        "no_scratch",
        "node_failure",
        "the job has no scratch folder (scratch of its site): {text}",
        "It has no scratch folder",
        "Free space there, fix the permissions of the folder, or set scratch of the site to another folder.",
        _OPERATOR,
    ),
    _end(
        "container_not_started",
        "error",
        "{engine}, which runs the container, cannot be started here: {text}",
        *_CONTAINER,
    ),
    _end(
        "container_killed",
        "error",
        "{engine} was killed by signal {signal} before the task in its container finished",
        *_CONTAINER,
    ),
    _end(
        "container_exited",
        "error",
        "{engine} exited with exit code {exit_code} before the task in its container finished",
        *_CONTAINER,
    ),
    _end("container_unreadable", "error", "the outcome that the container left cannot be read: {text}", *_CONTAINER),
    # The same, as the batch system or the site reports it.
    _end(
        "batch_out_of_memory",
        "out_of_memory",
        "the batch system killed the job: it used more memory than it had requested",
    ),
    _end("batch_time_limit", "time_limit", "the batch system killed the job: it ran longer than it had requested"),
    _end("batch_preempted", "preempted", "the batch system stopped the job to make room for another"),
    _end("batch_node_failure", "node_failure", "the node on which the job ran failed"),
    _end("batch_cancelled", "cancelled", "the batch job was cancelled"),
    _end("batch_cancelled_there", "cancelled", "the batch job was cancelled, but not by Lading"),
    _end("batch_failed_after_task", "error", "the batch job ended{exit_code:exit}, although its task succeeded"),
    _end("batch_ended", "error", "the batch job ended{exit_code:exit} and its task reported nothing"),
    _end("batch_ended_early", "error", "the batch job ended{exit_code:exit} before its task started"),
    _end(
        "batch_unknown",
        "lost",
        "the batch system no longer knows the job, and the job did not report how it ended",
    ),
    _end("location_gone", "lost", "location {location!r} of site {site!r} is gone"),
    _end("lost_at_site", "lost", "its site has not listed it for {seconds:.0f} s"),
    _end("had_succeeded", "lost", "it had succeeded before this happened{also:after}"),
    # Details appended to how a job ended.
    _end("batch_says", "error", "the batch system says: {text}"),
    _end("in_allocation", "error", "it ran in allocation {allocation}"),
    _end("last_output", "error", "its last output: {text}"),
    # Why a job was placed where it is, and with less than it prefers.
    Code(
        "sent_to_next_site",
        "placed",
        "Sent to a site other than its first choice",
        "sent here because {also}",
        "Nothing to do. To make the task wait for one site, name that site with the hint site.",
        _BOTH,
        form=Form.PHRASE,
    ),
    Code("by_rule", "placed", _LESS[0], "by rule {rule!r}: {asks}", _LESS[1], _BOTH, form=Form.PHRASE),
    Code(
        "most_there",
        "placed",
        _LESS[0],
        "requests {asks}, which is the most that a job can get there",
        _LESS[1],
        _BOTH,
        form=Form.PHRASE,
    ),
    # No reason of its own, or one outside this table.
    Code("new", "new", "Queued just now, or about to start", "no reason is known yet", "Nothing to do.", _BOTH),
    Code(
        "free_text",
        "other",
        "A message from a plugin or the site",
        "{text}",
        "Read the reason: the site or a plugin wrote it.",
        _BOTH,
        form=Form.PHRASE,
    ),
)
UNKNOWN = Code(
    "unknown",
    "other",
    "Other reasons",
    "{code}: a reason of another version of Lading",
    "Install the same version of Lading at the site as on the scheduler's machine.",
    _OPERATOR,
)
CODES: Mapping[str, Code] = {each.key: each for each in _TABLE}
# The place of each code in the table.
RANKS: Mapping[str, int] = {key: number for number, key in enumerate(CODES)}
