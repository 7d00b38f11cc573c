"""What each code of a reason means: one table of titles, sentences, remedies, and who can act. Pure.

Why jobs wait and how they end is one table. :data:`CAUSES` are the classes of ends: each code of an end has its cause
as its kind, and the title and remedy of that where it has no better ones of its own. How the parameters of a sentence
are written, and what a :class:`~lading.scheduling.reasons.Reason` is, is in :mod:`lading.scheduling.reasons`.

What a batch system, AWS or a plugin says in a language of its own is a parameter, ``text``, of a code that says whose
it is. So is the message of a hint error: it quotes what the Dag's author has written, and names what is valid there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

# As remedies speak of the one site that a reason is about.
_THE_SITE = re.compile(r"\bthe site\b|(?<=airflow lading check )SITE\b")


class Actor(str, Enum):
    """Who can change what a job waits for: the author of its Dag, or who operates the site, the account or Lading."""

    AUTHOR = "author"
    OPERATOR = "operator"


class Form(Enum):
    """How a sentence stands alone: as what a waiting job ``waits:`` for, as a sentence of its own that begins with a
    verb, or as what is true of the job forever (``it`` is its subject)."""

    WAIT = "waits: "
    PHRASE = ""
    NEVER = "it "


@dataclass(frozen=True, slots=True)
class Code:
    """What a code means.

    :param key: its name for programs
    :param kind: the class by which metrics count it; several codes may share one
    :param title: what is waited for, in short
    :param sentence: with its parameters in braces, and how each is written: see ``_Sentence`` of reasons
    :param remedy: what to do
    :param actors: who can do it
    :param limit: the name of the limit that is reached, with parameters likewise; empty: none is
    :param form: how its sentence stands alone
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
        """Whether its sentence says at which site that is."""
        return "{site" in self.sentence

    def remedy_at(self, site: str | None) -> str:
        """What to do, naming the site that it is about.

        :param site: None: it is about no certain one
        """
        return remedy_at(self.remedy, site)

    @property
    def has_also_within(self) -> bool:
        """Whether its sentence says where to say what else is so; else that is said after it."""
        return "{also" in self.sentence


def remedy_at(remedy: str, site: str | None) -> str:
    """A remedy that names the site which it is about; None: it is about no certain one."""
    if site is None:
        return remedy
    return _THE_SITE.sub(lambda found: site if found[0] == "SITE" else f"site {site}", remedy)


_AUTHOR, _OPERATOR, _BOTH = (Actor.AUTHOR,), (Actor.OPERATOR,), (Actor.AUTHOR, Actor.OPERATOR)
_CHECK = "Look at the site's note; run: airflow lading check SITE."
_NO_ROOM = (
    "Not enough free capacity",
    "More or larger machines, another site (accept_untargeted, burst_after), or smaller requests.",
)
_GROUP_LIMIT = ("A limit that its Dag sets", "Raise max_instances or max_jobs of the task or the Dag.")
_LAUNCHING = ("Waiting for its machine to start", "Nothing: it starts when the machine or allocation is up.")
_AGAIN = ("Waiting for another machine, or to be submitted again", "Nothing: it had not started where it was sent.")
_BUNDLE = (
    "Copying its Dag to where it runs",
    "Nothing: it starts when the bundle is there. If it lasts, the reason says what is in its way.",
)
_AWAY = ("The site is unavailable", _CHECK)
_MAX_USD = (
    "The budget of its run is spent",
    "Raise max_usd of the Dag; what is there may be used all the same.",
)
_BUDGET = (
    "The budget of its team is spent",
    "It begins anew then. Who operates Lading can lift it (airflow lading budgets --lift NAME, or the page), or raise "
    "it in the sites file; what is there may be used all the same.",
)
_CPU_HOURS = (
    _BUDGET[0],
    "It begins anew then. Who operates Lading can lift it (airflow lading budgets --lift NAME, or the page), or raise "
    "it in the sites file.",
)
_SHARE = (
    "The turn of other shares",
    "Nothing: it starts when its share has less for its weight than others that wait. Weights are in [[shares]] of the "
    "sites file.",
)
_BOUND = (
    "The share of its team is in use",
    "Nothing: it starts as jobs of its share end. Or let the share borrow, or raise what is kept for it, in [[shares]] "
    "of the sites file.",
)
_MAX_JOBS = ("The site has reached its number of jobs", "Raise max_jobs or max_submitted of the site.")
_INSTANCES = (
    "All machines that the site may launch are busy",
    "Raise max_instances of the site; where a type is named, allow other types.",
)
_QUEUE = (
    "Waiting in the queue of the batch system",
    "The batch system decides. Less time, memory or cpus, or another queue, may start earlier.",
)
_LIMIT = (
    "The site accepts no more jobs for now",
    "Nothing: it is tried again after ever longer pauses. If it lasts, raise the limit that it names.",
)
_KEPT = (
    "Capacity is reserved for a larger job",
    "Raise patience of the site, or ask for less for the larger job.",
)
_GANG = (
    "Waiting for the other members of its gang",
    "Look at what those wait for in Airflow: its pool and max_active_tasks need room for all of them.",
)
_GANG_ROOM = (
    "Reserving capacity for all that start together",
    "Nothing: what was found is held. If it lasts, more or larger machines, or smaller requests.",
)
_PLUGIN = ("A policy or filter of a plugin fails", "Fix the plugin; its error is in the controller's log.")
_HOLDING = ("Name a site that can: machines, or a batch site with mode = 'allocation'.", _BOTH)
_REFUSED = (
    "The launch of its machine is refused",
    f"Correct what the reason names. {_CHECK}",
)
_MORE_TYPES = (
    'Nothing: it is asked again. More instance_types, subnets, or "spot-with-fallback" leave more to choose from.'
)
_ANSWERS = "Check the image, security groups and SSH access of the site; run: airflow lading check SITE."
_NEVER = (
    "No machine can ever run it",
    "Ask for less, or for a machine that there is; or add such a machine to a site.",
)
_NAME_SITE = "Name a site that can run it with the hint site."
_ALLOW_DAG = (
    "Name another site with the hint site, or have its pattern added to the site: allowed_dags, allowed_teams, or "
    "accounts."
)
_NEXT = ("What happens next", "Nothing, or let it go to another site sooner: burst_after of the site, hint site.")


@dataclass(frozen=True, slots=True)
class Cause:
    """What a cause of failure means.

    :param key: as the store and metrics have it
    :param title: what has happened
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
            "It used more memory than it may",
            "Raise memory of the task, or let auto learn it.",
            _AUTHOR,
        ),
        Cause("time_limit", "It ran for longer than it may", "Raise time of the task.", _AUTHOR),
        Cause(
            "preempted",
            "Its machine was reclaimed",
            'Nothing: it is tried again. capacity_type = "on-demand", or another queue, is not preempted.',
            _BOTH,
        ),
        Cause(
            "node_failure",
            "Its machine failed",
            "Nothing: it is tried again. If it lasts, exclude the machine.",
            _OPERATOR,
        ),
        Cause(
            "submit_rejected",
            "The site rejected it",
            "Correct what the reason names in the hints of the task or the table of the site.",
            _BOTH,
        ),
        Cause("lost", "How it ended is not known", f"Clear the task. {_CHECK}", _OPERATOR),
        Cause("cancelled", "It was cancelled", "Clear the task to run it again.", _AUTHOR),
        Cause("error", "It failed", "Look at the log of the task, and at the reason.", _AUTHOR),
        Cause(
            "no_capacity",
            "There was no capacity for the machine",
            "Nothing: another one is launched. More instance_types or subnets leave more to choose from.",
            _OPERATOR,
        ),
    )
}


_LESS = (
    "It has less than it prefers",
    "Nothing, or look at [[rules]] of the sites file and at the minimum that its hints name.",
)
_CLEAR = "then clear the task."
_INPUTS = (
    "What it asks for cannot be determined",
    f"Correct the inputs that the reason names, or ask for amounts that do not depend on them; {_CLEAR}",
)
_SHORTEN = (
    "Look at the expressions and patterns of its hints and at the size of its inputs, fix or shorten them, and start "
    "a new run"
)
_STRUCK = ("Controllers have died or hung over it", f"{_SHORTEN}.")
_ROW = ("Its row in the store cannot be read", "Clear the task: its row is written again.")
_STAGE = (
    "Its files cannot be brought to where it runs",
    f"Correct what the reason names in the hint stage, or name a site that has the files; {_CLEAR}",
    _BOTH,
)
_TOGETHER = (
    "There was no room for all that start together",
    "More or larger machines, smaller requests, or more attempts; then clear the tasks.",
    _BOTH,
)
_MEMBER = (
    "Another job of its gang has failed",
    "Look at why the other one has failed; then clear the tasks of the gang.",
)
_VERSIONS = (
    "What was sent to the machine cannot be read there",
    "Use the same versions of Airflow and Lading at the site and beside the scheduler; then clear the task.",
    _OPERATOR,
)
_CONTAINER = (
    "Its container failed",
    f"Look at the image and at the engine on the machine, as the reason says; {_CLEAR}",
    _BOTH,
)


def _end(
    key: str, cause: str, sentence: str, title: str = "", remedy: str = "", actors: tuple[Actor, ...] = ()
) -> Code:
    """How a job ends, or a machine: it has the title and the remedy of its cause, unless it says better ones."""
    its = CAUSES[cause]
    title, remedy, actors = title or its.title, remedy or its.remedy, actors or its.actors
    return Code(key, cause, title, sentence, remedy, actors, form=Form.PHRASE)


def _never(key: str, sentence: str, form: Form = Form.PHRASE, remedy: str = _NEVER[1]) -> Code:
    """Why no site can ever run a job."""
    return Code(key, "never", "No site can ever run it", sentence, remedy, _BOTH, form=form)


def _gang_sum(key: str, sentence: str) -> Code:
    """Why no site can ever have room for all that start together."""
    remedy = "Ask for less, or name a site that has more."
    return Code(key, "never", _TOGETHER[0], sentence, remedy, _BOTH, form=Form.PHRASE)


def _gang_try(key: str, sentence: str) -> Code:
    """Why an attempt to find room for all that start together has failed."""
    remedy = "Free some room, or wait: it is tried again. If it lasts, more or larger machines, or smaller requests."
    return Code(key, "gang_room", "There was no room for all that start together", sentence, remedy, _BOTH)


def _aws(key: str, advice: str, title: str = _REFUSED[0], kind: str = "refused", remedy: str = "") -> Code:
    """Why AWS launches nothing, or not that: with the code and the message of its error, and what to do.

    :param advice: what to do, as the end of the sentence; empty: the sentence leaves it to the remedy
    """
    sentence = "{error:code}{text}" + (f"; {advice}" if advice else "")
    return Code(key, kind, title, sentence, remedy or f"{advice[0].upper()}{advice[1:]}.", _OPERATOR)


def _release(key: str, sentence: str) -> Code:
    """Why a machine is released, which is no failure."""
    remedy = "Nothing: another one is launched when jobs need it."
    return Code(key, "released", "It was released", sentence, remedy, _OPERATOR, form=Form.PHRASE)


# Where several reasons hold the first in this table is the one by which jobs are grouped.
_TABLE = (
    Code(
        "no_controller",
        "controller",
        "No controller is running",
        "no controller stays up: {text}; see {log} on {host}",
        "Run: airflow lading check. The reason has the end of the controller's log.",
        _OPERATOR,
    ),
    Code(
        "no_controller_service",
        "controller",
        "The service that is the controller is not running",
        "no controller runs, and [lading] start_controller = False leaves it to a service",
        "Start the service: airflow lading controller. Its log says why it has ended.",
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
        "Nothing, once it answers: no try is used up. Look whether the API server is up and how loaded it is (more "
        "[api] workers), and at api_url and the tunnel of the site.",
        _OPERATOR,
    ),
    # What its last attempt has met is no reason any more: it sleeps.
    Code(
        "attempted",
        "attempted",
        "Waiting for its next attempt",
        "attempt {attempt} of {attempts} has found no room for {gang}{also:within}; the next is at {until:moment}, "
        "or when it is woken (airflow lading wake)",
        "Free some room, then wake it: by the button on its task's tab, or by airflow lading wake.",
        _BOTH,
    ),
    Code(
        "attempted_or_freed",
        "attempted",
        "Waiting for its next attempt",
        "attempt {attempt} of {attempts} has found no room for {gang}{also:within}; the next is at {until:moment}, "
        "when jobs that end have left room for all of it, or when it is woken (airflow lading wake)",
        "Free some room, then wake it: by the button on its task's tab, or by airflow lading wake.",
        _BOTH,
    ),
    Code("gang_members", "gang", _GANG[0], "{here} of {members} members of gang {gang!r} are queued", _GANG[1], _BOTH),
    Code(
        "gang_pool",
        "gang",
        _GANG[0],
        "its pool {pool!r} has {there} slots, and all of them take {slots}",
        "Raise the slots of the pool.",
        _OPERATOR,
    ),
    Code(
        "gang_pool_shared",
        "gang",
        _GANG[0],
        "its pool {pool!r} has {there} slots, {theirs} of which other tasks have, and all of them take {slots}",
        "Raise the slots of the pool, or use a pool of its own.",
        _BOTH,
    ),
    Code("gang_active_tasks", "gang", _GANG[0], "max_active_tasks of the Dag is {most}", "Raise it.", _AUTHOR),
    Code("gang_limit", "gang", _GANG[0], "{name} of task {task!r} is {most}", "Raise it.", _AUTHOR),
    _gang_try("gang_timeout", "no room was held within {seconds} s{also:after}"),
    _gang_try("gang_no_room", "{place}: no room for {left} of {jobs} jobs of task {task!r}"),
    _gang_try(
        "gang_no_room_apart",
        "{place}: no room for {left} of {jobs} jobs of task {task!r}, each at a location of its own",
    ),
    _gang_try("gang_no_room_for_one", "{place}: no room for the job of task {task!r}"),
    _gang_try("hold_lost", "location {location!r} of site {site!r}{also:after_or_lost}"),
    _gang_try("hold_unanswered", "location {location!r} of site {site!r} has not answered for {seconds:.0f} s"),
    Code(
        "no_site_holds",
        "gang_room",
        "No site reserves capacity",
        "no site can hold room for a gang; valid: machines, and batch sites with mode = 'allocation'",
        *_HOLDING,
    ),
    Code(
        "site_holds_none",
        "gang_room",
        "Its site reserves no capacity",
        "site {site!r} cannot hold room for a gang; valid: machines, and batch sites with mode = 'allocation'",
        *_HOLDING,
    ),
    Code(
        "gang_others",
        "gang",
        _GANG[0],
        "the other jobs of {gang} that have started must end first",
        "Nothing: it starts when they have ended.",
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
        "Copying its inputs to where it runs",
        "{address} is being copied to where it runs",
        "Nothing: it starts when they are there. If it lasts, the reason says what is in their way.",
        _BOTH,
    ),
    Code("staging_fails", "staging", "Copying its inputs to where it runs", "{text}", _CHECK, _OPERATOR),
    Code("bundle", "staging", _BUNDLE[0], "{text}", _BUNDLE[1], _OPERATOR),
    Code(
        "bundle_sending",
        "staging",
        _BUNDLE[0],
        "Dag bundle {bundle!r} is being sent to the site",
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
    Code("policy_failed", "plugin", _PLUGIN[0], "its policy has failed: {text}", _PLUGIN[1], _OPERATOR),
    Code(
        "policy_misnames",
        "plugin",
        _PLUGIN[0],
        "its policy answers {answer}; valid: {locations:names}, or None",
        _PLUGIN[1],
        _OPERATOR,
    ),
    Code("plugin_failed", "plugin", _PLUGIN[0], "{text}", _PLUGIN[1], _OPERATOR),
    Code("paused", "paused", "Its site is paused", "site {site!r} is paused by {by}", "Resume the site.", _OPERATOR),
    Code(
        "task_jobs",
        "max_instances",
        _GROUP_LIMIT[0],
        "{most} jobs of task {task!r} may be at work at once (max_jobs)",
        "Raise max_jobs of the task.",
        _AUTHOR,
        "max_jobs of task {task}",
    ),
    Code(
        "run_jobs",
        "max_instances",
        _GROUP_LIMIT[0],
        "{most} jobs of this run may be at work at once (max_jobs of the Dag)",
        "Raise max_jobs of the Dag.",
        _AUTHOR,
        "max_jobs of the Dag",
    ),
    Code(
        "task_machines",
        "max_instances",
        _GROUP_LIMIT[0],
        "jobs of task {task!r} may use {most:machines} at once, which have no room (max_instances)",
        "Raise max_instances of the task.",
        _AUTHOR,
        "max_instances of task {task}",
    ),
    Code(
        "run_machines",
        "max_instances",
        _GROUP_LIMIT[0],
        "jobs of this run may use {most:machines} at once, which have no room (max_instances of the Dag)",
        "Raise max_instances of the Dag.",
        _AUTHOR,
        "max_instances of the Dag",
    ),
    Code(
        "group_instances",
        "max_instances",
        _GROUP_LIMIT[0],
        "{used} of {most} instances of `{group}` are busy",
        _GROUP_LIMIT[1],
        _AUTHOR,
        "max_instances of {group}",
    ),
    Code(
        "site_instances",
        "site_instances",
        _INSTANCES[0],
        "{used} of {most} instances of the site are busy",
        _INSTANCES[1],
        _OPERATOR,
        "max_instances",
    ),
    Code(
        "type_instances",
        "site_instances",
        _INSTANCES[0],
        "{used} of {most} instances of {types:some} are busy",
        _INSTANCES[1],
        _OPERATOR,
        "max_instances of {types:some}",
    ),
    Code(
        "max_usd_per_hour",
        "max_usd_per_hour",
        "The hourly budget of the site is used",
        "{type} costs {price:g} USD per hour, and of {most:g} that may be spent {used:g} are (max_usd_per_hour)",
        "Raise max_usd_per_hour of the site, or allow cheaper types.",
        _OPERATOR,
        "max_usd_per_hour",
    ),
    Code(
        "quota",
        "quota",
        "A quota of the account is reached",
        "{used:g} of {most:g} vCPUs of the quota {quota} are in use, and {type} has {vcpus:g}",
        "Raise the quota in AWS, and max_vcpus of the site; or allow types of another family, or spot.",
        _OPERATOR,
        "quota {quota}",
    ),
    _aws(
        "aws_volume_quota",
        "raise the quotas of EBS storage and its IOPS in Service Quotas, delete volumes that are "
        "not used, or lower `disk`",
        "A limit of the account",
        "quota",
    ),
    _aws(
        "aws_quota", "", "A limit of the account", "quota", "Raise the quota in AWS, or allow types of another family."
    ),
    Code(
        "no_driver",
        "no_driver",
        "The image has no driver for GPUs",
        "the image has no NVIDIA driver ({images:names}), for machines of it show no GPU; install one in the image or "
        "by `boot_script`, or name another image in `ami`",
        "Install the NVIDIA driver in the image or by `boot_script`, or name another image in `ami`.",
        _OPERATOR,
        form=Form.PHRASE,
    ),
    Code(
        "no_capacity",
        "capacity",
        "AWS has no capacity for such a machine",
        "no capacity for {type} until {until:moment}{also:after}",
        _MORE_TYPES,
        _OPERATOR,
        "capacity of {type}",
    ),
    Code(
        "launch_withheld",
        "refused",
        _REFUSED[0],
        "{type} is not launched until {until:moment}{also:after}",
        _REFUSED[1],
        _OPERATOR,
        "launches of {type}",
    ),
    Code(
        "max_usd",
        "max_usd",
        _MAX_USD[0],
        "its run has cost {spent:usd} of the {most:usd} USD that it may cost (max_usd)",
        _MAX_USD[1],
        _AUTHOR,
        "max_usd",
    ),
    Code(
        "max_usd_rate",
        "max_usd",
        _MAX_USD[0],
        "its run has machines for {used:usd} USD per hour, and {left:usd} of its {most:usd} USD are left: no more than "
        "these pay for an hour (max_usd)",
        _MAX_USD[1],
        _AUTHOR,
        "max_usd",
    ),
    Code(
        "budget_spent",
        "budget",
        _BUDGET[0],
        "{spent:usd} of the {most:usd} USD of the budget {budget} are spent: nothing more is launched until "
        "{until:moment}",
        _BUDGET[1],
        _OPERATOR,
        "budget {budget}",
    ),
    Code(
        "budget_spent_cpu_hours",
        "budget",
        _BUDGET[0],
        "{spent:count} of the {most:count} cpu-hours of the budget {budget} are used: nothing more starts until "
        "{until:moment}",
        _CPU_HOURS[1],
        _OPERATOR,
        "budget {budget}",
    ),
    Code(
        "budget_promised",
        "budget",
        "The budget of its team is promised to jobs that run or are about to",
        "{spent:count} of the {most:count} cpu-hours of the budget {budget} are used, and jobs that run or are about "
        "to start will use {promised:count} more: it starts when these use less than foreseen, or from {until:moment} "
        "on",
        _CPU_HOURS[1],
        _OPERATOR,
        "budget {budget}",
    ),
    Code(
        "budget_rate",
        "budget",
        _BUDGET[0],
        "there are machines for {used:usd} USD per hour for the budget {budget}, of whose {most:usd} USD {spent:usd} "
        "are spent: no more than what is left pays for an hour, until {until:moment}",
        _BUDGET[1],
        _OPERATOR,
        "budget {budget}",
    ),
    Code(
        "share_bound",
        "share",
        _BOUND[0],
        "share {share} has {used:g} of the {most:g} {what} that are kept for it, and does not borrow",
        _BOUND[1],
        _OPERATOR,
        "share {share}",
    ),
    Code(
        "share_by_weight",
        "share",
        _BOUND[0],
        "share {share} has {used:g} of the {most:g} {what} that its weight gives it, and does not borrow",
        _BOUND[1],
        _OPERATOR,
        "share {share}",
    ),
    Code(
        "share_closed",
        "share",
        "What is free is kept for another share",
        "share {share} keeps its {most:g} {what} for itself, and does not lend",
        "Nothing: it starts as jobs of other shares end. Or let that share lend, in [[shares]] of the sites file.",
        _OPERATOR,
        "share {share}",
    ),
    Code(
        "gang_share",
        "share",
        _BOUND[0],
        "its {jobs} jobs ask for {all:resources} together, more than their share may have at any one site now: {also}",
        "It starts as jobs of its share end. One that asks for more than its share may ever have at one site never "
        "starts: raise what is kept for it, or let it borrow, in [[shares]] of the sites file, or ask for less.",
        _BOTH,
        "share {share}",
    ),
    Code(
        "max_allocations",
        "max_allocations",
        "All allocations are busy",
        "{used} of {most} allocations are busy (max_allocations)",
        "Raise max_allocations of the site, or its allocation size.",
        _OPERATOR,
        "max_allocations",
    ),
    Code(
        "max_jobs",
        "max_jobs",
        _MAX_JOBS[0],
        "site {site!r} has {most} jobs already (max_jobs)",
        _MAX_JOBS[1],
        _OPERATOR,
        "max_jobs",
    ),
    Code(
        "max_submitted",
        "max_jobs",
        _MAX_JOBS[0],
        "max_submitted = {most} jobs are submitted already",
        _MAX_JOBS[1],
        _OPERATOR,
        "max_submitted",
    ),
    Code(
        "submit_limit",
        "max_jobs",
        _MAX_JOBS[0],
        "{submitted} submitted of {most} allowed by {limit}",
        "Nothing: as many are submitted as end, and one more is tried each minute. The cluster sets this limit.",
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
        "Its batch job can never start as things are",
        "its batch job{queue:in_queue} can never start as things are: {text}; it is cancelled at {at:moment} unless "
        "that changes",
        "Ask for what the queue gives, or name another queue; or let the administrators of the cluster change it.",
        _BOTH,
    ),
    Code(
        "nodes_avoided",
        "batch_queue",
        "Nodes where jobs have failed are avoided",
        "it is kept away from {nodes:some}, where jobs have failed",
        "Repair these nodes; the site tries them again after a while.",
        _OPERATOR,
    ),
    Code("site_limit", "site_limit", _LIMIT[0], "{system} takes no more jobs now: {text}", _LIMIT[1], _OPERATOR),
    Code(
        "submit_unanswered",
        "site_limit",
        _LIMIT[0],
        "{system} did not say whether it has taken what was submitted: {text}",
        "Nothing: it is looked up before anything is submitted again.",
        _OPERATOR,
    ),
    # Also why a job is refused that names such a queue alone.
    Code(
        "not_admitted",
        "refused",
        "The batch system does not admit its account",
        "{system} does not admit its account{queue:in_queue}: {text}",
        f"Let the batch system admit the account, or name another queue. {_CHECK}",
        _BOTH,
        form=Form.PHRASE,
    ),
    Code("site_trouble", "site_away", _AWAY[0], "site {site!r} takes no jobs now: {also}", _AWAY[1], _OPERATOR),
    Code("unreachable", "site_away", _AWAY[0], "{text}", _AWAY[1], _OPERATOR),
    Code("batch_unasked", "site_away", _AWAY[0], "its batch system could not be asked: {text}", _AWAY[1], _OPERATOR),
    Code(
        "api_unreachable",
        "site_away",
        "Its machines do not reach Airflow's execution API",
        "{text}",
        "Look at api_url and the tunnel of the site.",
        _OPERATOR,
    ),
    Code(
        "agent_not_brought",
        "site_away",
        _AWAY[0],
        "{text}",
        "Free space in the folder that is named, or name a Python of 3.10 or newer as python in the site's table.",
        _OPERATOR,
    ),
    Code("no_market", "site_away", _AWAY[0], "it does not say what it can launch", _AWAY[1], _OPERATOR),
    Code("no_locations", "site_away", _AWAY[0], "it has no locations", _AWAY[1], _OPERATOR),
    Code("location_note", "site_away", _AWAY[0], "{text}", _AWAY[1], _OPERATOR),
    Code("location_state", "site_away", _AWAY[0], "{location} is {state}", _AWAY[1], _OPERATOR),
    Code("site_silent", "site_away", _AWAY[0], "site {site!r} could not be asked: {text}", _AWAY[1], _OPERATOR),
    Code(
        "cannot_write",
        "site_away",
        "Its files cannot be written where it is to run",
        "files could not be written to {folder}: {text}",
        "Free space there, or fix the permissions of the folder.",
        _OPERATOR,
    ),
    Code(
        "cannot_start",
        "site_away",
        "Its files cannot be written where it is to run",
        "its files cannot be written on this machine, see the node agent's log",
        "Free space there, or fix the permissions of the folder.",
        _OPERATOR,
    ),
    Code("machine_gone", "again", _AGAIN[0], "its machine is not there", _AGAIN[1], _OPERATOR),
    Code("machine_ended", "again", _AGAIN[0], "its machine has ended{also:after}", _AGAIN[1], _OPERATOR),
    Code("machine_being_released", "again", _AGAIN[0], "its machine is being released", _AGAIN[1], _OPERATOR),
    Code("machine_restarted", "again", _AGAIN[0], "its machine was restarted", _AGAIN[1], _OPERATOR),
    Code("hold_no_room", "room", _NO_ROOM[0], "there is no room for it now", _NO_ROOM[1], _BOTH),
    Code("hold_expired", "again", _AGAIN[0], "the reservation was not renewed", _AGAIN[1], _OPERATOR),
    Code("stopped", "again", _AGAIN[0], "the scheduler was stopped", _AGAIN[1], _OPERATOR),
    Code("not_started_there", "again", _AGAIN[0], "it had not started where it was sent", _AGAIN[1], _OPERATOR),
    Code("agent_leaves", "again", _AGAIN[0], "the node agent of its machine took no more jobs", _AGAIN[1], _OPERATOR),
    Code("allocation_full", "again", _AGAIN[0], "its allocation takes no more jobs", _AGAIN[1], _OPERATOR),
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
        "Waiting for the first machine with GPUs to show them",
        "the first machine with GPUs boots: more are launched when it shows that the image has a driver for them",
        _LAUNCHING[1],
        _OPERATOR,
    ),
    Code(
        "machine_launched",
        "launching",
        _LAUNCHING[0],
        "a machine is being launched for it, ready in about {seconds} s",
        _LAUNCHING[1],
        _OPERATOR,
    ),
    Code(
        "machine_boots",
        "launching",
        _LAUNCHING[0],
        "{location} is booting, and can run it in about {seconds} s",
        _LAUNCHING[1],
        _OPERATOR,
    ),
    Code(
        "room_soon",
        "launching",
        "Waiting for capacity that frees up soon",
        "{location} has room in about {seconds} s: waiting for it does not delay its run, or costs less",
        "Nothing: it starts there. Another hurry of the Dag weighs time against money otherwise.",
        _AUTHOR,
    ),
    Code(
        "inputs",
        "inputs",
        "Examining its inputs",
        "waits for its inputs and its earlier tries to be examined, which determine what it asks for",
        "Nothing, unless it lasts: then a file system or an earlier try hangs.",
        _OPERATOR,
        form=Form.PHRASE,
    ),
    Code(
        "kept_free", "kept_free", _KEPT[0], "room is kept free for a larger job that has waited longer", _KEPT[1], _BOTH
    ),
    Code("next_here", "kept_free", _KEPT[0], "next on {location}, where room is kept free for it", _KEPT[1], _BOTH),
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
        "waits for room on this machine: needs {needs:resources}; no whole gpu is free",
        _NO_ROOM[1],
        _BOTH,
        form=Form.PHRASE,
    ),
    Code(
        "outlasts",
        "room",
        _NO_ROOM[0],
        "a job {seconds:length} would outlast {location:place}",
        "Give it a shorter time limit, or let allocations last longer.",
        _BOTH,
    ),
    Code("busy", "room", _NO_ROOM[0], "{locations:are_busy}", _NO_ROOM[1], _BOTH),
    Code(
        "share_turn",
        "share",
        _SHARE[0],
        "{share} has used {used:.0f} % of {entitled:.0f} % in the last {half_life:last}",
        _SHARE[1],
        _OPERATOR,
        "share {share}",
    ),
    Code(
        "turn",
        "turn",
        "Waiting for its turn",
        "waits for its turn: jobs with a higher priority or an earlier arrival come first",
        "Raise its priority_weight, or add room.",
        _BOTH,
        form=Form.PHRASE,
    ),
    _aws(
        "aws_subnet_full",
        "the subnet has no free address; give a larger one in `subnets`, or end what holds its addresses",
    ),
    _aws("aws_profile", "correct `instance_profile`"),
    _aws("aws_subnet", "correct `subnets`"),
    _aws(
        "aws_plan_image", "the account's plan has only images of the free tier: name such in `ami`, or change the plan"
    ),
    _aws(
        "aws_plan_type",
        "the account's plan has only types of the free tier: name such in `instance_types`, or change the plan",
    ),
    _aws(
        "aws_image_unsuited",
        "the image does not suit the type: give another one in `ami`, or leave the type out (`exclude_types`)",
    ),
    _aws("aws_no_spot_image", 'give another image in `ami`, or take `capacity_type = "on-demand"`'),
    _aws("aws_type", "exclude the type (`exclude_types`)"),
    _aws("aws_not_in_zone", "", remedy="Nothing: another zone or type is taken. Or name other `subnets`."),
    _aws(
        "aws_marketplace_image",
        "the image is a product of AWS Marketplace that is not for this type: give another one "
        "in `ami`, or leave the type out (`exclude_types`)",
    ),
    _aws("aws_configuration", "if no type can be launched, see whether the tenancy of the subnets' VPC is `default`"),
    _aws(
        "aws_spot_role",
        "make the role once, by `aws iam create-service-linked-role --aws-service-name spot.amazonaws.com`",
    ),
    _aws(
        "aws_verification",
        "AWS verifies the account for this region, which takes up to 4 hours; after that write to its support",
    ),
    _aws("aws_subscription", "subscribe the account to EC2, or enable the region"),
    _aws(
        "aws_organization", "a service control policy of the organization forbids it: its administrator has to allow it"
    ),
    _aws("aws_boundary", "widen the permissions boundary of the site's role"),
    _aws("aws_permission", "allow what `airflow lading check SITE --policy` prints"),
    _aws(
        "aws_expired",
        "the credentials have expired, or the clock of this machine is wrong: renew or correct it",
    ),
    _aws("aws_credentials", "correct the credentials of the connection that `aws_conn_id` names"),
    _aws("aws_image", "correct `ami` of the table"),
    _aws("aws_table", "correct the table of the site"),
    _aws("aws_volume_image", "the volumes cannot be made as the image says: give another one in `ami`"),
    _aws(
        "aws_volume_key",
        "the volumes cannot be made: let the site's credentials use the KMS key of the image, and see "
        "that its snapshots are there",
    ),
    _aws("aws_refused", "", remedy=_REFUSED[1]),
    _aws("aws_no_capacity", "", "AWS has no capacity for such a machine", "capacity", _MORE_TYPES),
    Code(
        "aws_throttle",
        "site_limit",
        _LIMIT[0],
        "AWS takes no more requests for now: {error:code}{text}",
        "Nothing: it is asked again after ever longer pauses.",
        _OPERATOR,
    ),
    Code(
        "aws_new_profile",
        "site_limit",
        _LIMIT[0],
        "AWS does not know the instance profile yet; a new one takes a moment",
        "Nothing: it is asked again.",
        _OPERATOR,
    ),
    _aws("aws_silent", "", _AWAY[0], "site_away", _CHECK),
    Code(
        "machine_silent",
        "refused",
        "New machines do not answer",
        "the last one never answered: {also}",
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
    # What is added to another reason.
    Code(
        "closed_count",
        "site_instances",
        "Machines that take no more jobs count until they are gone",
        "{number} more that take no jobs count until they are gone",
        "Nothing: they go when their jobs have ended.",
        _OPERATOR,
    ),
    Code(
        "may_go_to_next_site",
        "room",
        _NEXT[0],
        "after {after:time} it may go to site {next!r} (burst_after)",
        _NEXT[1],
        _BOTH,
    ),
    Code("only_site", "room", _NEXT[0], "its hint site allows no other", _NEXT[1], _AUTHOR),
    # Why a gang can never have room together.
    _gang_sum(
        "gang_job_too_large",
        "the job of task {task!r} asks for {each:resources}, more than {sites:sites} can ever hold: {also}",
    ),
    _gang_sum(
        "gang_too_many",
        "the {jobs} jobs of task {task!r} ask for {all:resources} together ({each:resources} each), and {sites:sites} "
        "can never hold more than {most:.0f} of them: {also}",
    ),
    _gang_sum(
        "gang_too_many_apart",
        "the {jobs} jobs of task {task!r} ask for {all:resources} together ({each:resources} each, on a location of "
        "its own), and {sites:sites} can never hold more than {most:.0f} of them: {also}",
    ),
    _gang_sum(
        "gang_too_large",
        "its {jobs} jobs ask for {all:resources} together, and {sites:sites} can never give more than {has:resources}",
    ),
    _gang_sum(
        "gang_too_few_locations",
        "its {jobs} jobs need a location each (spread), and {sites:sites} never has more than {most:.0f}",
    ),
    _gang_sum("site_has", "{site} has {sizes:sizes}{more:more_sizes}"),
    _gang_sum("site_launches", "{site} has {most:up_to} {sizes:sizes_alone}{more:more_sizes}"),
    _gang_sum("site_has_nothing", "{site} has nothing that suits"),
    # What can never be.
    Code(
        "gpu_unsupported",
        "never",
        "Its GPUs are not supported",
        "its {model} is not supported: GPUs are NVIDIA's",
        "Name a type with GPUs of NVIDIA, or another site.",
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
        "fits no machine: none {wish:wish}; there are {names:names}",
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
        "can never start on this machine: needs {needs:resources}, but all of the machine is {all:resources}; ask for "
        "less, or for another site",
        _NEVER[1],
        _BOTH,
        form=Form.NEVER,
    ),
    _never(
        "no_rule_for_less",
        "less than it prefers would do, but no rule of the sites file allows it less; see [[rules]]",
    ),
    _never("no_such_site", "there is no site {name!r}; the sites are: {names}", remedy=_NAME_SITE),
    _never(
        "dag_not_allowed",
        "Dag {dag} is not allowed there: {tables}; name another site, or have the pattern added",
        remedy=_ALLOW_DAG,
    ),
    _never(
        "team_not_allowed",
        "Dag {dag} of team {team} is not allowed there: {tables}; name another site, or have the pattern added",
        remedy=_ALLOW_DAG,
    ),
    _never(
        "no_dag_not_allowed",
        "a job that belongs to no Dag is not allowed there: {tables}; name another site, or have the pattern added",
        remedy=_ALLOW_DAG,
    ),
    _never("names_no_site", "it names no site", remedy=_NAME_SITE),
    _never(
        "name_a_site",
        "no site may run tasks that name no site: name one of {others} with the hint site",
        remedy=_NAME_SITE,
    ),
    _never(
        "name_another_site",
        "only {only} may run tasks that name no site: name one of {others} with the hint site",
        remedy=_NAME_SITE,
    ),
    _never("target_refused", "target {target!r}: {also}"),
    _never("no_type_of_target", "no instance type of the site is {type!r}, {valid}"),
    _never(
        "needs_batch_system",
        "its hints queue and native are for a batch system, which {names} is not{nodes:of_one_node}; name another site",
        remedy=_NAME_SITE,
    ),
    _never(
        "needs_batch_jobs",
        "its hints nodes, ppn and threads are for a batch site with mode = 'job', which {names} is not"
        "{nodes:of_one_node}; name another site",
        remedy=_NAME_SITE,
    ),
    _never("hint_unavailable", "hint {hint}: {value} cannot be had, {valid}"),
    _never("no_machine_has_all", "no machine {wish}; there are: {machines}"),
    _never(
        "too_many_nodes", "asks for {nodes} nodes, more than {place} can ever give to a job: {most}", form=Form.NEVER
    ),
    _never(
        "too_large_anywhere",
        "asks for {needs:resources}, more than any site can ever give: the closest location, {closest!r} of site "
        "{place!r}, has {has:resources}, too little {lacking:and}{gpu:unsupported}",
        form=Form.NEVER,
    ),
    _never(
        "too_large_for_type",
        "asks for {needs:resources}, more than any machine of type {type!r} can ever give: the closest location, "
        "{closest!r} of site {place!r}, has {has:resources}, too little {lacking:and}{gpu:unsupported}",
        form=Form.NEVER,
    ),
    Code("nowhere", "never", "No site can ever run it", "{text}", _NEVER[1], _BOTH, form=Form.NEVER),
    # Why machines are released, and how they end.
    _release("released_by", "{by} asked for it ({kind})"),
    _release("drained", "it is drained and empty"),
    _release("period_ends", "it is empty and its next billing period begins in {seconds:.0f} s"),
    _release("idle", "it has been empty for {seconds:.0f} s"),
    _release("empty", "it is empty"),
    _release("not_wanted", "no waiting job needs it"),
    _release("not_needed", "nothing is expected to need it"),
    _release("not_needed_for", "nothing is expected to need it for {seconds:.0f} s, and another one boots sooner"),
    _release(
        "allocation_not_needed_for",
        "nothing is expected to need it for {seconds:time}, and another one waits in the queue for less",
    ),
    _release("gang_gone", "the gang for which it was requested no longer looks for room"),
    _release("makes_way", "it makes way for waiting jobs that cannot run there"),
    _release("limit_needed", "it is empty, and waiting jobs need another machine within the limits"),
    _release("makes_way_for_larger", "it makes way for a larger one, which more of the waiting jobs can use"),
    _release("machine_closing", "it was closing already"),
    _release("orders_dropped", "the scheduler was stopped, or another controller continues"),
    _end("nothing_launched", "lost", "its site launches no machines, or is no longer in the sites file"),
    _end("allocation_unknown", "lost", "the batch system does not know it"),
    _end("machine_forgotten", "lost", "its site no longer knows it"),
    _end("machine_unknown_to_ec2", "node_failure", "EC2 no longer knows the machine"),
    _end("machine_reclaimed", "preempted", "AWS has reclaimed the machine{text:after}"),
    _end("machine_interrupted", "preempted", "AWS reclaims it: its jobs are asked to end at {at:moment}"),
    _end("machine_down", "node_failure", "the machine is {state}{text:after}"),
    _end("machine_ended_unobserved", "lost", "it ended while no controller was running{also:after}"),
    _end("machine_unreached", "node_failure", "it has not been reached for {seconds:time}{also:after}"),
    _end("machine_takes_no_jobs", "node_failure", "it has taken no jobs for {seconds:time}{text:after}"),
    _end("machine_late", "node_failure", "it was {phase} for more than {seconds:time}{also:after}"),
    _end("launched_in_part", "no_capacity", "EC2 had capacity for {launched} of {asked} that were requested together"),
    _end("launch_refused", "no_capacity", "{also}"),
    # How jobs end that never begin.
    _end(
        "hint_error",
        "error",
        "{text}",
        "A hint is wrong",
        "Correct the hint that the reason names, and clear the task.",
    ),
    _end(
        "inputs_unknown",
        "error",
        "what it asks for cannot be determined from its inputs: {text}",
        *_INPUTS,
    ),
    _end("hints_unreadable", "error", "what it asks for cannot be read: {text}", *_ROW),
    _end("sizing_failed", "error", "what it asks for could not be determined: {text}", *_INPUTS),
    _end("sizing_not_stored", "error", "what it asks for cannot be stored: {text}", *_INPUTS),
    _end(
        "controllers_died_sizing",
        "error",
        "{count} controllers have died or hung while they determined what it asks for. " + _SHORTEN + ": in this one a "
        "retry that asks for the same fails at once",
        *_STRUCK,
    ),
    _end(
        "controllers_died_sizing_try",
        "error",
        "it asks for the same as an earlier try of its task in this run under which controllers have died or hung, so "
        "it is not tried. " + _SHORTEN,
        *_STRUCK,
    ),
    _end(
        "controllers_died_sizing_alike",
        "error",
        "it asks for the same as {count} mapped instances of its task in this run under which controllers have died or "
        "hung (map index {indexes:names}), so it is not tried. " + _SHORTEN,
        *_STRUCK,
    ),
    _end(
        "controllers_died_placing",
        "error",
        "{count} controllers have died or hung while they looked for a place for it. Look at the binding filters, "
        "rules and policies of plugins that it met: the log of a controller that hung says where it was. Fix that, "
        "then clear the task",
        "Controllers have died or hung over it",
        "Fix the binding filter, rule or policy at which the controller hung, as its log says; then clear the task.",
        _OPERATOR,
    ),
    _end("row_unreadable", "error", "its row cannot be read, so it was not sent: {text}; clear the task", *_ROW),
    _end(
        "gang_row_unreadable",
        "error",
        "the part of its row about its gang cannot be read ({text}); clear the task, and it is written again",
        *_ROW,
    ),
    _end(
        "stage_unsupported",
        "error",
        "hint stage: no files can be brought to site {site!r}, whose kind is {kind!r}",
        *_STAGE,
    ),
    _end("stage_refused", "error", "hint stage: at site {site!r}, {text}", *_STAGE),
    _end("stage_unreadable", "error", "what is stored of its files cannot be read: {text}", *_ROW),
    _end("stage_failed", "error", "{address} cannot be brought to where the job runs: {text}", *_STAGE),
    _end(
        "stage_hangs",
        "error",
        "{address} is not brought to where it runs, for {number} reads{what} hang; it is tried again when one of them "
        "completes, or after a restart of the controller",
        *_STAGE,
    ),
    _end(
        "stage_slow",
        "error",
        "{address} could not be brought to where the job runs: {what} took longer than {seconds:g} s",
        *_STAGE,
    ),
    _end("gang_error", "error", "looking for room for {gang} failed: {text}", *_TOGETHER),
    _end(
        "gang_never",
        "error",
        "{gang} can never start together: {also}; ask for less, or name a site that has more",
        *_TOGETHER,
    ),
    _end("gang_out_of_attempts", "error", "no room was found, tried {attempts:times}{also:last_time}", *_TOGETHER),
    _end(
        "gang_task_failed",
        "error",
        "task {failed:some} of its gang {gang!r} has failed",
        *_MEMBER,
    ),
    _end("submit_refused", "submit_rejected", "{system} does not take the job: {text}"),
    _end("allocation_refused", "submit_rejected", "{system} does not take the allocation for it: {text}"),
    _end("script_refused", "submit_rejected", "{text}"),
    _end("bundle_refused", "submit_rejected", "{text}"),
    # How jobs are ended.
    _end("cancelled", "cancelled", "it was cancelled"),
    _end("unwanted", "cancelled", "its task was cleared, ended or deleted"),
    _end("unknown_job", "cancelled", "Lading does not know this job"),
    _end("machine_terminated", "cancelled", "its machine {machine} was terminated by {by}"),
    _end("agent_shut_down", "cancelled", "the node agent was shut down"),
    _end("airflow_stopped", "cancelled", "the scheduler was stopped"),
    _end(
        "gang_member_failed",
        "cancelled",
        "the job of task {task!r} in its gang {gang!r} has failed (on_failure = cancel)",
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
        "the job of task {task!r} in its gang {gang!r} has not started at site {site!r} within {seconds} s "
        "(on_failure = cancel)",
        *_MEMBER,
    ),
    # How jobs end that have begun, as the node agent says.
    _end("over_time", "time_limit", "the task has run for longer than its time limit of {limit:time}"),
    _end("over_memory", "out_of_memory", "the task has used {used:memory} of memory, its limit is {limit:memory}"),
    _end(
        "container_out_of_memory",
        "out_of_memory",
        "the kernel has killed a process of the container: it has used more than the task may",
    ),
    _end(
        "machine_out_of_memory",
        "out_of_memory",
        "the kernel has killed the task's process: its machine, or the group of processes that it runs in, had no "
        "memory left",
    ),
    _end(
        "allocation_over",
        "time_limit",
        "its allocation is over, in which the task had no time limit of its own and at least {least:time}: give it one "
        "with resources(time=...), then it gets as much; or raise allocation_time of the site",
        remedy="Give the task a time limit with resources(time=...), or raise allocation_time of the site.",
        actors=_BOTH,
    ),
    _end("spot_interrupted", "preempted", "AWS reclaims the spot machine at {at:moment}"),
    _end("machine_rebooted", "node_failure", "the machine was restarted while the task ran"),
    _end(
        "api_out_of_reach",
        "node_failure",
        "Airflow's execution API was out of reach from this machine: {text}",
        "Airflow's execution API was out of reach",
        f"Nothing: it is tried again. If it lasts, look at api_url of the site. {_CHECK}",
    ),
    _end(
        "api_silent_at_start",
        "node_failure",
        "Airflow's execution API did not answer in time for the task to begin: {text}",
        "Airflow's execution API was out of reach",
        f"Nothing: none of the task has run, and it is tried again. {_CHECK}",
    ),
    _end("batch_asked_to_end", "lost", "the batch system has asked the job to end"),
    _end("supervisor_gone", "lost", "the process that supervised the task is gone"),
    _end("supervisor_killed", "lost", "the process that supervised the task ended unexpectedly with signal {signal}"),
    _end(
        "supervisor_exited",
        "lost",
        "the process that supervised the task ended unexpectedly with exit code {exit_code}",
    ),
    _end("task_failed", "error", "the task failed, as its log says"),
    _end("details_lost", "error", "the task failed; the details could not be written to the disk of the machine"),
    _end("task_exited", "error", "the task's process ended with exit code {exit_code}"),
    _end("task_killed", "error", "the task's process was ended by signal {signal}"),
    _end("job_error", "error", "{text}"),
    _end("api_error", "error", "the API server answered {status}: {text}"),
    _end(
        "token_refused",
        "error",
        "the API server refuses the task's token ({status}: {text}); give it the same [api_auth] jwt_secret as the "
        "schedulers and controllers",
        "The API server refuses the tokens of tasks",
        "Give the API server, the schedulers and the controllers the same [api_auth] jwt_secret, or keys that belong "
        "together, the same jwt_issuer and [execution_api] jwt_audience, compare their clocks, and restart them. Then "
        "run: airflow lading check.",
        _OPERATOR,
    ),
    _end("start_refused", "cancelled", "the API server answered {status}: {text}"),
    _end("runs_elsewhere", "cancelled", "{text} elsewhere"),
    _end(
        "task_ended_in_airflow",
        "cancelled",
        "Airflow has ended the task: its task instance was cleared, marked or deleted while it ran",
    ),
    _end("workload_unreadable", "error", "Airflow cannot read the workload: {text}", *_VERSIONS),
    _end("envelope_unreadable", "error", "the envelope of the job cannot be read: {text}", *_VERSIONS),
    _end(
        "probe_failed",
        "error",
        "{text}",
        "The machine does not reach Airflow's execution API",
        "Look at api_url and the tunnel of the site.",
        _OPERATOR,
    ),
    _end(
        "no_scratch",
        "node_failure",
        "the job has no scratch folder (scratch of its site): {text}",
        "It has no scratch folder",
        "Free space there, fix the permissions of the folder, or name another one with scratch of the site.",
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
        "{engine} was ended by signal {signal} before the task had ended in its container",
        *_CONTAINER,
    ),
    _end(
        "container_exited",
        "error",
        "{engine} ended with exit code {exit_code} before the task had ended in its container",
        *_CONTAINER,
    ),
    _end("container_unreadable", "error", "what the job has left in its container cannot be read: {text}", *_CONTAINER),
    # The same, as the batch system or the site says.
    _end(
        "batch_out_of_memory",
        "out_of_memory",
        "the batch system has ended the job: it used more memory than it had asked for",
    ),
    _end(
        "batch_time_limit", "time_limit", "the batch system has ended the job: it ran for longer than it had asked for"
    ),
    _end("batch_preempted", "preempted", "the batch system has ended the job to make room for another"),
    _end("batch_node_failure", "node_failure", "the node on which the job ran has failed"),
    _end("batch_cancelled", "cancelled", "the batch job was cancelled"),
    _end("batch_cancelled_there", "cancelled", "the batch job was cancelled, and not by Lading"),
    _end("batch_failed_after_task", "error", "the batch job ended{exit_code:exit}, although its task has succeeded"),
    _end("batch_ended", "error", "the batch job ended{exit_code:exit} and its task reported nothing"),
    _end("batch_ended_early", "error", "the batch job ended{exit_code:exit} before its task started"),
    _end(
        "batch_unknown",
        "lost",
        "the batch system no longer knows the job, and the job did not report how it ended",
    ),
    _end("location_gone", "lost", "location {location!r} of site {site!r} is gone"),
    _end("lost_at_site", "lost", "its site has not listed it for {seconds:.0f} s"),
    _end("had_succeeded", "lost", "it had succeeded before this{also:after}"),
    # What is said of ends besides.
    _end("batch_says", "error", "the batch system says: {text}"),
    _end("in_allocation", "error", "it ran in allocation {allocation}"),
    _end("last_output", "error", "its last output: {text}"),
    # Why a job was placed as it is.
    Code(
        "sent_to_next_site",
        "placed",
        "Sent to a site after its first one",
        "sent here because {also}",
        "Nothing, or name its site with the hint site, where it waits then.",
        _BOTH,
        form=Form.PHRASE,
    ),
    Code("by_rule", "placed", _LESS[0], "by rule {rule!r}: {asks}", _LESS[1], _BOTH, form=Form.PHRASE),
    Code(
        "most_there",
        "placed",
        _LESS[0],
        "asks for {asks}, the most that a job can have there",
        _LESS[1],
        _BOTH,
        form=Form.PHRASE,
    ),
    # What nothing is known of.
    Code("new", "new", "Queued just now, or about to start", "no reason is known yet", "Nothing.", _BOTH),
    Code(
        "free_text",
        "other",
        "In the terms of a plugin or the site",
        "{text}",
        "See the reason; it is the text of the site or plugin.",
        _BOTH,
        form=Form.PHRASE,
    ),
)
UNKNOWN = Code(
    "unknown",
    "other",
    "Other reasons",
    "{code}: a reason of another version of Lading",
    "Use the same version of Lading at the site and beside the scheduler.",
    _OPERATOR,
)
CODES: Mapping[str, Code] = {each.key: each for each in _TABLE}
