"""Whose jobs are meant."""

from __future__ import annotations

import pytest

from lading.scheduling.accounting.who import Tenant, Who, dag_pattern

TENANT = Tenant.from_columns("a", "etl_daily", "ann, bob", '["prod", "x,y"]')


@pytest.mark.parametrize(
    "who",
    [
        Who(),
        Who(team="a"),
        Who(dag="etl_*"),
        Who(owner="ann"),
        Who(owner="bob"),
        Who(tag="prod"),
        Who(tag="x,y"),
        Who("a", "etl_?aily", "bob", "prod"),
    ],
)
def test_all_that_is_given_must_hold(who: Who) -> None:
    assert who.meets(TENANT)


@pytest.mark.parametrize(
    "who",
    [Who(team="b"), Who(dag="ETL_*"), Who(owner="an"), Who(tag="x"), Who(team="a", owner="eve")],
)
def test_what_differs_in_one_of_them_is_not_meant(who: Who) -> None:
    assert not who.meets(TENANT)


def test_a_job_without_dag_is_met_by_no_pattern_of_dags() -> None:
    tenant = Tenant.from_columns(None, "", None, None)
    assert tenant == Tenant()
    assert Who().meets(tenant)
    assert not Who(dag="*").meets(tenant)
    assert not Who(team="a").meets(tenant)


def test_it_is_shown_with_what_is_given() -> None:
    assert str(Who(team="a", dag="etl_*")) == "team a, Dags etl_*"
    assert str(Who()) == "everyone"


@pytest.mark.parametrize("pattern", [None, "etl_*", "[a,b]*", "x"])
@pytest.mark.parametrize("team", [None, "a"])
@pytest.mark.parametrize("owner", [None, "ann"])
@pytest.mark.parametrize("tag", [None, "prod"])
def test_the_pattern_of_dags_is_found_in_the_text(
    pattern: str | None, team: str | None, owner: str | None, tag: str | None
) -> None:
    who = Who(team, pattern, owner, tag)
    assert dag_pattern(str(who)) == pattern
    assert Who.parse(str(who)) == who
