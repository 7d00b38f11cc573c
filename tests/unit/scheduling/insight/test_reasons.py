from __future__ import annotations

import pytest

from lading.executors.controller.dispatch import BEHIND_OTHERS
from lading.executors.controller.views import NOT_BEGUN
from lading.executors.estimation.appraisal import UNKNOWN
from lading.scheduling.groups import Group
from lading.scheduling.insight.reasons import REASONS, reason_class
from lading.scheduling.queueing import KEPT_FREE, no_room
from lading.scheduling.resources import Resources


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
        ("the moon is in the wrong house", "other"),
    ],
)
def test_the_reasons_that_jobs_are_told_have_their_classes(words: str | None, key: str) -> None:
    assert reason_class(words).key == key


def test_each_class_says_what_would_change_it() -> None:
    assert len({each.key for each in REASONS}) == len(REASONS)
    assert all(each.title and each.remedy for each in REASONS)
