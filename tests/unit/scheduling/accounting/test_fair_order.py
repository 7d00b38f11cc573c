"""Who goes next: the share that has least for its weight, or less than is kept for it."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.scheduling.accounting.fair_order import Candidate, fair_order
from lading.scheduling.accounting.share_table import Kept, Share, ShareAmounts, Shares
from lading.scheduling.accounting.share_usage import Standing
from lading.scheduling.accounting.who import Who

TOTAL = ShareAmounts(100, 400_000, 8, 10, 10)


def table(*shares: Share) -> Shares:
    return Shares(shares)


def share(name: str, weight: float = 1.0, **kept: float) -> Share:
    return Share(name, Who(team=name), weight, (Kept(None, kept),) if kept else ())


def job(name: str, cpus: float = 1, gpus: float = 0, **columns: object) -> Candidate:
    return Candidate(name, (cpus, 0.0, gpus), **columns)  # type: ignore[arg-type]


def shares_in_order(jobs: list[Candidate], shares: Shares, standing: Standing) -> list[str]:
    return [jobs[number].share for number in fair_order(jobs, shares, standing)]


CANDIDATES = st.lists(
    st.builds(
        Candidate,
        st.sampled_from("abc"),
        st.tuples(st.sampled_from([0.5, 1.0, 4.0]), st.sampled_from([100.0, 8000.0]), st.sampled_from([0.0, 1.0])),
        st.integers(0, 2),
        st.sampled_from([None, 1, 2]),
        st.sampled_from([None, "hpc"]),
    ),
    max_size=40,
)


@given(CANDIDATES, st.booleans(), st.integers(0, 120))
def test_each_job_has_one_place_and_those_of_a_share_keep_their_order(
    jobs: list[Candidate], are_kept: bool, used: int
) -> None:
    kept = {"cpus": 5.0} if are_kept else {}
    shares = table(share("a", 2, **kept), share("b"), share("c"))
    order = fair_order(jobs, shares, Standing(TOTAL, {"a": {"hpc": ShareAmounts(used)}}))
    assert sorted(order) == list(range(len(jobs)))
    assert [jobs[number].level for number in order] == sorted((each.level for each in jobs), reverse=True)
    for name in "abc":
        for level in range(3):
            for apart in (None, 1, 2):
                mine = [n for n in order if jobs[n].share == name and jobs[n].level == level and jobs[n].apart == apart]
                assert mine == sorted(mine)


@given(st.lists(st.integers(1, 8), min_size=2, max_size=5), st.integers(20, 60))
def test_of_jobs_that_are_alike_shares_get_as_their_weights_are(weights: list[int], number: int) -> None:
    shares = table(*(share(f"s{n}", weight) for n, weight in enumerate(weights)))
    jobs = [job(f"s{n % len(weights)}") for n in range(len(weights) * number)]
    first = Counter(shares_in_order(jobs, shares, Standing(TOTAL))[:number])
    for n, weight in enumerate(weights):
        assert abs(first[f"s{n}"] - number * weight / sum(weights)) <= len(weights)


def test_what_is_dominant_counts() -> None:
    """The example of Ghodsi et al.: 9 cpus and 18 GB; jobs of 1 cpu and 4 GB, and of 3 cpus and 1 GB."""
    jobs = [Candidate("a", (1, 4, 0)) for _ in range(9)] + [Candidate("b", (3, 1, 0)) for _ in range(9)]
    first = shares_in_order(jobs, table(share("a"), share("b")), Standing(ShareAmounts(9, 18)))[:5]
    assert Counter(first) == {"a": 3, "b": 2}


def test_what_was_used_lately_counts() -> None:
    jobs = [job("a") for _ in range(10)] + [job("b") for _ in range(10)]
    standing = Standing(TOTAL, {}, {"a": 0.05, "b": 0.0})
    assert shares_in_order(jobs, table(share("a"), share("b")), standing)[:6] == ["b"] * 5 + ["a"]


def test_what_is_kept_for_a_share_comes_first_until_it_has_that() -> None:
    shares = table(share("a", cpus=4), share("b", 100))
    jobs = [job("b") for _ in range(10)] + [job("a", 2) for _ in range(10)]
    standing = Standing(TOTAL, {"a": {"hpc": ShareAmounts(0.0)}, "b": {}})
    assert shares_in_order(jobs, shares, standing)[:3] == ["a", "a", "b"]
    assert shares_in_order(jobs, shares, Standing(TOTAL, {"a": {"hpc": ShareAmounts(3)}}))[:2] == ["b", "b"]


def test_what_is_kept_at_one_site_is_for_jobs_that_may_go_there() -> None:
    shares = table(Share("a", Who(), 1, (Kept("hpc", {"cpus": 4}),)), share("b", 100))
    jobs = [job("b"), job("a", site="lab"), job("a", site="hpc")]
    assert fair_order(jobs[:2], shares, Standing(TOTAL, {"a": {"x": ShareAmounts(9)}})) == [0, 1]
    assert fair_order([jobs[0], jobs[2]], shares, Standing(TOTAL, {"a": {"lab": ShareAmounts(9)}})) == [1, 0]
    assert fair_order([jobs[0], jobs[2]], shares, Standing(TOTAL, {"a": {"hpc": ShareAmounts(4)}})) == [0, 1]


def test_jobs_that_found_no_place_do_not_count_for_others_of_their_share() -> None:
    """A hundred that wait for a GPU, and one that needs a cpu: it does not go after all of another share."""
    shares = table(share("a"), share("b"))
    gpus = [job("a", gpus=4) for _ in range(100)]
    rest = [job("a"), *(job("b") for _ in range(100))]
    late = fair_order([*gpus, *rest], shares, Standing(TOTAL)).index(100)
    soon = fair_order([*(each._replace(apart=7) for each in gpus), *rest], shares, Standing(TOTAL)).index(100)
    assert late > 100
    assert soon <= 2


@pytest.mark.parametrize("level", [0, 5])
def test_without_a_table_the_dags_are_the_shares(level: int) -> None:
    jobs = [job("dag1", level=level) for _ in range(3)] + [job("dag2") for _ in range(3)]
    expected = ["dag1", "dag2"] * 3 if not level else ["dag1"] * 3 + ["dag2"] * 3
    assert shares_in_order(jobs, Shares(), Standing(TOTAL)) == expected


def test_what_is_kept_at_a_cluster_covers_jobs_of_its_accounts() -> None:
    def first(kept_at: str, hint: str, used_at: str = "other", used: float = 0.0) -> str:
        a = Share("a", Who(team="a"), 0.01, (Kept(kept_at, {"cpus": 4.0}),))
        standing = Standing(TOTAL, {"a": {"other": ShareAmounts(50), used_at: ShareAmounts(used)}})
        return shares_in_order([job("b"), job("a", site=hint)], table(a, share("b")), standing)[0]

    assert first("hpc", "hpc@genes") == "a"
    assert first("hpc@genes", "hpc") == "a", "it may go to that account"
    assert first("hpc", "hpc", "hpc@genes", 4.0) == "b", "what it has as an account is of the cluster"
    assert first("hpc@genes", "hpc@loads") == "b"
    assert first("hpc", "hpc2") == "b"


def test_shares_go_in_turn_where_no_machine_is_there_yet() -> None:
    jobs = [job("a") for _ in range(6)] + [job("b") for _ in range(6)]
    order = shares_in_order(jobs, table(share("a", 2), share("b")), Standing())
    assert Counter(order[:6]) == {"a": 4, "b": 2}


def test_a_large_job_that_found_no_place_comes_before_later_small_ones_of_its_share() -> None:
    """Else those that come for an hour would all overtake it."""
    shares = table(share("a"), share("b"))
    large = [job("a", 4)._replace(apart=1) for _ in range(3)]
    jobs = [*large, *(job("a") for _ in range(5)), *(job("b") for _ in range(5))]
    order = fair_order(jobs, shares, Standing(TOTAL))
    assert order.index(0) < order.index(3), "the first large one before the first small one"
    assert order.index(1) > order.index(3), "one at a time"
    assert sorted(order) == list(range(len(jobs)))


def test_jobs_that_wait_at_a_machine_do_not_use_up_what_is_kept_for_their_share() -> None:
    """Twice as many jobs as there is room were given to the machines: half of them wait there."""
    shares = table(share("a", cpus=40), share("b", 100))
    jobs = [job("b"), job("a")]
    given = {"a": {"hpc": ShareAmounts(60)}, "b": {"hpc": ShareAmounts(2 * TOTAL.cpus - 60)}}
    assert fair_order(jobs, shares, Standing(TOTAL, given)) == [1, 0], "30 of the 40 run"
    given["a"] = {"hpc": ShareAmounts(90)}
    given["b"] = {"hpc": ShareAmounts(2 * TOTAL.cpus - 90)}
    assert fair_order(jobs, shares, Standing(TOTAL, given)) == [0, 1]
