from __future__ import annotations

import pytest

from lading.executors.agent.inbox import STALE_TOKEN
from lading.executors.controller.dispatch import BEHIND_OTHERS
from lading.executors.controller.views import NOT_BEGUN
from lading.executors.estimation.appraisal import UNKNOWN
from lading.scheduling.catalogue import InstanceType, Offering
from lading.scheduling.insight.reasons import OTHER, REASONS, reason_class
from lading.scheduling.job import Budget
from lading.scheduling.matching.groups import Group
from lading.scheduling.packing.limits import Instances, busy
from lading.scheduling.packing.problem import Bin, vector
from lading.scheduling.plan import Limits
from lading.scheduling.provisioning.budgets import words as over_budget
from lading.scheduling.queueing import KEPT_FREE, no_room
from lading.scheduling.resources import Resources

OFFERING = Offering(0.5)
LARGE = InstanceType("c7i.large", Resources(2, 4096), (OFFERING,))
BOUGHT = Bin(LARGE, OFFERING, vector(LARGE.capacity), None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (None, "new"),
        ("", "new"),
        (BEHIND_OTHERS, "turn"),
        (UNKNOWN, "inputs"),
        (KEPT_FREE, "kept_free"),
        (no_room(Resources(2, 100), Resources(1, 100)), "room"),
        (Group(("d", "r"), "t", 2, None).reason({("d", "r"): {"t": 2}}), "max_instances"),
        (Group(("d", "r"), "t", None, 2).reason({("d", "r"): {"t": 2}}), "max_instances"),
        (f"waits: {NOT_BEGUN}", "launching"),
        ("waits: 4 of 4 allocations are busy (max_allocations)", "max_allocations"),
        ("waits: site 'hpc' has 1000 jobs already (max_jobs)", "max_jobs"),
        ("waits: max_submitted = 10 jobs are submitted already", "max_jobs"),
        ("waits: site 'hpc' has no room; its hint site allows no other", "room"),
        ("waits: site 'hpc' could not be asked: it has not answered yet", "site_away"),
        ("waits in queue 'batch' of the batch system: (Priority)", "batch_queue"),
        ("waits: allocation L1 waits in the queue of the batch system: (Resources)", "batch_queue"),
        ("waits: SLURM takes no more jobs now: QOSMaxSubmitJobPerUserLimit", "site_limit"),
        ("waits: it is submitted again, for its node failed", "again"),
        ("waits: its machine was started anew", "again"),
        ("waits: s3://bucket/key is brought to where it runs: it could not be asked", "staging"),
        ("waits: AWS has taken the machine away: no capacity", "again"),
        ("waits: no controller stays up: [Errno 13] Permission denied", "controller"),
        (STALE_TOKEN, "controller"),
        (
            "waits: 7 of 8 members of gang 'ray' are queued; its pool 'small' has 4 slots, and all of them take 8",
            "gang",
        ),
        ("waits: the others of gang 'ray' that have begun are to end first", "gang"),
        ("waits: room for gang 'ray' is looked for at hpc; 1 of 2 tasks have room (attempt 1 of 5)", "gang_room"),
        (
            "waits: attempt 2 of 5 has found no room for gang 'ray' (site 'lab' is paused by me); the next is at "
            "14:15:00 UTC, or when it is woken (airflow lading wake)",
            "attempted",
        ),
        (f"waits: site 'cloud': {busy(3, 'of the site').removeprefix('waits: ')}", "site_instances"),
        (busy(2, "of c7i.large", 2), "site_instances"),
        (busy(2, "of `align`", 2), "max_instances"),
        (Instances(Limits(usd_per_hour=0.4)).reason([BOUGHT]), "max_usd_per_hour"),
        (Instances(Limits(vcpus={"standard on-demand": 1})).reason([BOUGHT]), "quota"),
        ("waits: site 'cloud': no capacity for c7i.large until 2026-11-23 12:00:00 UTC", "capacity"),
        (f"waits: {over_budget(Budget('r', 5.0, 5.0, 0.0), 0.0)}", "max_usd"),
        ("waits: site 'cloud': UnauthorizedOperation: You are not authorized", "refused"),
        ("waits: AWS takes no more requests for now: RequestLimitExceeded: slowly", "site_limit"),
        ("waits: host is busy", "room"),
        ("the moon is in the wrong house", "other"),
    ],
)
def test_the_reasons_that_jobs_are_told_have_their_classes(words: str | None, key: str) -> None:
    assert reason_class(words).key == key


def test_each_class_says_what_would_change_it() -> None:
    assert len({each.key for each in REASONS}) == len(REASONS)
    assert all(each.title and each.remedy for each in REASONS)


@pytest.mark.parametrize("piece", ["has found no room for ", "members of gang ", "3 instances of ", "its machine "])
def test_the_class_of_words_that_repeat_a_beginning_is_found_in_linear_time(piece: str) -> None:
    """In quadratic time this takes hours."""
    assert reason_class(piece * 100_000) is OTHER


def test_the_last_of_several_beginnings_may_be_the_one() -> None:
    assert reason_class("3 instances of 4 instances of x are busy").key == "site_instances"
    assert reason_class("3 instances of\nx are busy").key == "other"
