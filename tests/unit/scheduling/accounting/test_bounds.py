"""What is left for the jobs of a share at the accounts of a cluster."""

from __future__ import annotations

import pytest

from lading.scheduling.accounting.bounds import ShareBounds
from lading.scheduling.accounting.share_table import Kept, Share, ShareAmounts, Shares
from lading.scheduling.accounting.share_usage import Standing
from lading.scheduling.accounting.who import Who

NEED = ShareAmounts(cpus=1.0)
SITES = ("hpc", "hpc@genes", "hpc@loads", "lab")


def bounds(*, lends: bool, borrows: bool) -> ShareBounds:
    kept = (Kept("hpc", {"cpus": 4.0}),)
    shares = Shares((Share("a", Who(team="a"), 1.0, kept, lends, borrows), Share("b", Who(team="b"))))
    used = {"a": {"hpc@genes": ShareAmounts(cpus=2.0)}, "b": {"hpc@loads": ShareAmounts(cpus=3.0)}}
    totals = dict.fromkeys(SITES, ShareAmounts(cpus=4.0)) | {"hpc": ShareAmounts()}
    return ShareBounds(shares, Standing(ShareAmounts(cpus=12.0), used), totals)


@pytest.mark.parametrize("site", ["hpc", "hpc@genes", "hpc@loads"])
def test_a_share_that_does_not_borrow_has_no_more_of_all_accounts_than_is_kept_at_the_cluster(site: str) -> None:
    left = bounds(lends=True, borrows=False)
    for _ in range(2):
        assert left.admits("a", site, NEED) is None
        left.put("a", site, NEED)
    reason = left.admits("a", site, NEED)
    assert reason is not None
    assert reason.code == "share_bound"
    assert left.admits("a", "lab", NEED) is not None, "nothing is kept for it there"


def test_what_a_share_does_not_lend_of_a_cluster_is_free_at_all_its_accounts_together() -> None:
    left = bounds(lends=False, borrows=True)
    # Eight cpus, of which it has two and others three; it keeps two more.
    assert left.admits("b", "hpc@loads", NEED) is None
    left.put("b", "hpc@genes", NEED)
    reason = left.admits("b", "hpc@loads", NEED)
    assert reason is not None
    assert reason.code == "share_closed"
    assert left.admits("b", "lab", NEED) is None
