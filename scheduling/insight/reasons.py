"""Reasons in classes: what jobs wait for, and what would change it. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reason:
    """A class of reasons for which jobs wait.

    :param key: its name for programs
    :param title: what is waited for, in words
    :param remedy: what would change it
    :param pattern: of the words of such a reason
    """

    key: str
    title: str
    remedy: str
    pattern: re.Pattern[str]


def _reason(key: str, title: str, remedy: str, pattern: str) -> Reason:
    return Reason(key, title, remedy, re.compile(pattern))


def _between(before: str, after: str) -> str:
    """A pattern for two pieces of text in a line, the one somewhere behind the other, that takes linear time."""
    return rf"{before}(?:(?!{before}).)*{after}"


# The first that matches counts.
REASONS = (
    _reason(
        "controller",
        "No controller looks after it",
        "Run: airflow lading check. What the reason says is the end of the controller's log.",
        r"no controller stays up|for the controller to renew",
    ),
    # What its last attempt has met is no reason any more: it sleeps.
    _reason(
        "attempted",
        "Its next attempt: the last one has found no room",
        "Free some room, then wake it: by the button on its task's tab, or by airflow lading wake.",
        _between("has found no room for ", "; the next is at"),
    ),
    _reason(
        "gang",
        "The others of its gang",
        "Look at what those wait for in Airflow: its pool and max_active_tasks need room for all of them.",
        _between("members of gang ", " are queued") + "|^waits: the others of ",
    ),
    _reason(
        "gang_room",
        "Room for all that start together",
        "Nothing: what was found is held. If it lasts, more or larger machines, or smaller requests.",
        r"^waits: room for .* is looked for at ",
    ),
    _reason(
        "staging",
        "Its inputs are brought to where it runs",
        "Nothing: it starts when they are there. What is in their way the words of the reason say.",
        r"is brought to where it runs",
    ),
    _reason(
        "paused",
        "Its site is paused",
        "Resume the site.",
        r"is paused",
    ),
    _reason(
        "max_instances",
        "A limit of its Dag's author",
        "Raise max_instances or max_jobs of the task or the Dag.",
        r"\(max_instances|at work at once \(max_jobs|instances of `",
    ),
    _reason(
        "site_instances",
        "All machines that may be launched are busy",
        "Raise max_instances of the site; where a type is named, allow other types.",
        _between(r"\d instances of ", " are busy"),
    ),
    _reason(
        "max_usd_per_hour",
        "What the site may cost per hour",
        "Raise max_usd_per_hour of the site, or allow cheaper types.",
        r"\(max_usd_per_hour\)",
    ),
    _reason(
        "quota",
        "A quota of the account",
        "Raise the quota in AWS, and max_vcpus of the site; or allow types of another family, or spot.",
        r"vCPUs of the quota|VcpuLimitExceeded|MaxSpotInstanceCountExceeded",
    ),
    _reason(
        "no_driver",
        "The image has no driver for GPUs",
        "Install the NVIDIA driver in the image or by `boot`, or name another image in `ami`.",
        r"has no NVIDIA driver",
    ),
    _reason(
        "capacity",
        "AWS has no such machine now",
        'Nothing: it is asked again. More instance_types, subnets, or "spot-with-fallback" leave more to choose from.',
        r"no capacity for |InsufficientInstanceCapacity",
    ),
    _reason(
        "max_usd",
        "What its run may cost is spent, or would be",
        "Raise max_usd of the Dag; what is there may be used all the same.",
        r"\(max_usd\)",
    ),
    _reason(
        "max_allocations",
        "All allocations are busy",
        "Raise max_allocations of the site, or its allocation size.",
        r"\(max_allocations\)",
    ),
    _reason(
        "max_jobs",
        "The site has as many jobs as it may",
        "Raise max_jobs or max_submitted of the site.",
        r"\(max_jobs\)|max_submitted",
    ),
    _reason(
        "batch_queue",
        "The queue of the batch system",
        "The batch system decides. Less time, memory or cpus, or another queue, may start earlier.",
        r"waits in (the )?queue",
    ),
    _reason(
        "site_limit",
        "The site takes no more for now",
        "Nothing: it is tried again after ever longer pauses. If it lasts, raise the limit that it names.",
        r"takes no more (jobs|requests)|did not say whether",
    ),
    _reason(
        "site_away",
        "Its site cannot be used now",
        "Look at the site's note above; run: airflow lading check SITE.",
        r"could not be asked|takes no jobs now|has not answered|cannot be written on this machine",
    ),
    _reason(
        "again",
        "It goes elsewhere, or is submitted again",
        "Nothing: where it was given to, it had not begun.",
        r"submitted again|its machine (is not there|is given up|was started anew|took)|node agent of its machine took"
        r"|^waits: (AWS has taken the machine away|the machine is )",
    ),
    _reason(
        "launching",
        "What was launched for it comes up",
        "Nothing: it starts when the machine or allocation is up.",
        r"has not begun yet|^waits: allocation |^waits: nothing answers at |is expected to have room",
    ),
    _reason(
        "inputs",
        "Its inputs are looked at",
        "Nothing, unless it lasts: then a file system or an earlier try hangs.",
        r"until it is known what it asks for",
    ),
    _reason(
        "kept_free",
        "Room is kept free for a larger job",
        "Raise patience of the site, or ask for less for the larger job.",
        r"room is kept free",
    ),
    _reason(
        "room",
        "No room",
        "More or larger machines, another site (takes_unnamed, burst_after), or smaller requests.",
        r"for room|has no room|nothing that is up|would outlast|^waits: .* (is|are) busy(;|$)",
    ),
    _reason(
        "turn",
        "Others come first",
        "Raise its priority_weight, or add room.",
        r"waits for its turn",
    ),
    # An error of AWS's that no time mends begins with its code.
    _reason(
        "refused",
        "What was to be launched for it is refused",
        "Look at the site's note above, and mend what it names; run: airflow lading check SITE.",
        r"^waits: (site '[^']*': )?[A-Z][A-Za-z]+(\.[A-Za-z]+)*: ",
    ),
)
OTHER = _reason("other", "Other reasons", "See the words of the reason.", "")
NEW = _reason("new", "It has just come, or starts in a moment", "Nothing.", "")


def reason_class(words: str | None) -> Reason:
    """The class of a reason.

    :param words: as jobs are told; None: nothing was said yet
    """
    if not words:
        return NEW
    return next((each for each in REASONS if each.pattern.search(words)), OTHER)
