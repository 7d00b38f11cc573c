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


# The first that matches counts.
REASONS = (
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
        r"\(max_instances|at work at once \(max_jobs",
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
        r"takes no more jobs now|did not say whether",
    ),
    _reason(
        "site_away",
        "Its site cannot be used now",
        "Look at the site's note above; run: airflow lading check SITE.",
        r"could not be asked|takes no jobs now|has not answered",
    ),
    _reason(
        "launching",
        "What was launched for it comes up",
        "Nothing: it starts when the machine or allocation is up.",
        r"has not begun yet|^waits: allocation ",
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
        r"for room|has no room|nothing that is up|needs .* (is|are) taken",
    ),
    _reason(
        "turn",
        "Others come first",
        "Raise its priority_weight, or add room.",
        r"waits for its turn",
    ),
    _reason(
        "again",
        "It is submitted again",
        "Nothing: its earlier batch job was lost.",
        r"submitted again",
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
