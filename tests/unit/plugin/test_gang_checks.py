"""Gangs when a Dag is parsed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from airflow.exceptions import AirflowClusterPolicyViolation
from airflow.sdk import DAG, task

from lading.operators import resources
from lading.plugin import hint_checks, policies
from lading.plugin.published import PublishedSite
from lading.scheduling.hints.hints import HINT_KEY, Hints
from lading.scheduling.model.location import Location
from lading.scheduling.model.resources import Resources


@pytest.fixture(autouse=True)
def lading_is_the_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "lading.executors.LadingExecutor")
    monkeypatch.setattr(policies, "known_bindings", lambda: ())
    monkeypatch.setattr(hint_checks, "known_sites", lambda: ({}, Resources()))


def parsed(build: Callable[[], Any], **of_dag: Any) -> DAG:
    with DAG("d", schedule=None, **of_dag) as dag:
        build()
    for each in dag.tasks:
        policies.task_policy(each)
    return dag


def named(name: str, **more: Any) -> Any:
    @task(task_id=name, executor_config=resources(gang="ray", **more))
    def run(number: int = 0) -> None:
        pass

    return run


def test_each_member_knows_the_tasks_of_its_gang() -> None:
    def build() -> None:
        @task
        def before() -> list[int]:
            return [1]

        listed = before()
        listed >> named("head")()
        named("workers").expand(number=listed)

    dag = parsed(build)
    hints = {each.task_id: Hints.from_config(each.executor_config) for each in dag.tasks if each.task_id != "before"}
    assert {each.gang for each in hints.values()} == {"ray"}
    assert [each.gang_tasks for each in hints.values()] == [{"head": (), "workers": ()}] * 2
    assert "gang_tasks" not in dag.get_task("before").executor_config.get(HINT_KEY, {})


def test_a_limit_below_a_size_that_is_not_known_yet_goes_with_the_hints() -> None:
    def build() -> None:
        @task
        def before() -> list[int]:
            return [1]

        limits = {"max_active_tis_per_dagrun": 3, "max_active_tis_per_dag": 2}
        named("workers").override(**limits).expand(number=before())
        named("head")()

    hints = Hints.from_config(parsed(build).get_task("head").executor_config)
    assert hints.gang_limits == {"workers": ("max_active_tis_per_dag", 2)}


def test_a_gang_of_the_whole_dag() -> None:
    def build() -> None:
        for name in "ab":
            task(task_id=name)(lambda: None)()

    dag = parsed(build, default_args={"executor_config": resources(gang="all")})
    assert Hints.from_config(dag.get_task("b").executor_config).gang_tasks == {"a": (), "b": ()}


@pytest.mark.parametrize(
    ("of_dag", "of_task", "said"),
    [
        ({"max_active_tasks": 4}, {}, "max_active_tasks of the Dag is 4, fewer than the 5 members of gang 'ray'"),
        ({}, {"max_active_tis_per_dagrun": 3}, "max_active_tis_per_dagrun is 3, fewer than the 4 jobs of the task"),
        ({}, {"max_active_tis_per_dag": 2}, "max_active_tis_per_dag is 2, fewer than the 4 jobs of the task"),
    ],
)
def test_limits_below_the_size_are_import_errors(of_dag: Any, of_task: Any, said: str) -> None:
    def build() -> None:
        named("head")()
        named("workers").override(**of_task).expand(number=[1, 2, 3, 4])

    with pytest.raises(AirflowClusterPolicyViolation) as caught:
        parsed(build, **of_dag)
    assert said in str(caught.value)
    parsed(build, **dict.fromkeys(of_dag, 5)) if of_dag else None


def test_members_that_wait_for_each_other_are_an_import_error() -> None:
    def build() -> None:
        @task
        def between() -> None:
            pass

        named("a")() >> between() >> named("b")()

    with pytest.raises(AirflowClusterPolicyViolation) as caught:
        parsed(build)
    assert "the task is downstream of a, which is in gang 'ray' as well" in str(caught.value)


def test_gangs_that_wait_for_each_other_are_an_import_error() -> None:
    def build(crossed: bool) -> None:
        @task
        def between() -> None:
            pass

        def member(name: str, gang: str) -> Any:
            return task(task_id=name, executor_config=resources(gang=gang))(lambda: None)()

        one, two, three, four = (member(f"{gang}{n}", gang) for n in (1, 2) for gang in ("ray", "dask"))
        one >> between() >> two
        if crossed:
            four >> three
        else:
            three >> four

    parsed(lambda: build(crossed=False))
    with pytest.raises(AirflowClusterPolicyViolation) as caught:
        parsed(lambda: build(crossed=True))
    assert "gang 'ray' waits for gang 'dask', and gang 'dask' waits for gang 'ray'" in str(caught.value)


@pytest.mark.parametrize(
    ("hints", "said"),
    [
        ({"partial": True}, "hint partial: it only applies to a gang; add the hint gang"),
        ({"gang": "ray", "on_failure": "panic"}, "hint on_failure: 'panic' is not valid; valid: cancel or leave"),
        ({"gang": "ray", "partial": "yes"}, "hint partial: 'yes' is not valid; valid: True or False"),
        ({"gang": ""}, "hint gang: '' is not a name"),
        ({"gang": "ray", "max_jobs": 3}, "hint max_jobs: it cannot be combined with the hints gang and attempts"),
        ({"attempts": {"pauses": ["soon"]}}, "hint attempts: 'soon'"),
        ({"attempts": 3, "nodes": 2}, "hint nodes: it cannot be combined with the hints gang and attempts"),
    ],
)
def test_wrong_hints_are_import_errors(hints: Any, said: str) -> None:
    def build() -> None:
        task(task_id="t", executor_config=resources(**hints))(lambda: None)()

    with pytest.raises(AirflowClusterPolicyViolation) as caught:
        parsed(build)
    assert said in str(caught.value)


def test_what_a_task_says_of_asking_ahead_goes_before_what_its_dag_says() -> None:
    def build() -> None:
        @task
        def first() -> list[int]:
            return [1]

        @task(executor_config=resources(ahead=False))
        def second(number: int) -> int:
            return number

        @task
        def third(numbers: list[int]) -> None:
            pass

        third(second.expand(number=first()))

    dag = parsed(build, default_args={"executor_config": resources(ahead=True)})
    found = {each.task_id: Hints.from_config(each.executor_config) for each in dag.tasks}
    assert [each.ahead for each in found.values()] == [True, False, True]


def machine(cpus: float, memory: int = 64 * 1024, **more: Any) -> Location:
    return Location("", Resources(cpus, memory), **more)


LOCAL = PublishedSite((machine(16),), holds=True)
QUEUE = PublishedSite((machine(64),), holds=False)
CLOUD = PublishedSite((machine(8, instance_type="m"),), holds=True, launches=True, accept_untargeted=False)
UNNAMED = Resources(0.25, 512)


def ray(workers: int = 7, **more: Any) -> Callable[[], None]:
    """The gang with which the documentation begins: a head with 2 cpus, and workers with 4."""

    def build() -> None:
        named("head", cpus=2, memory="4 GiB", **more)()
        named("worker", cpus=4, memory="1 GiB", **more).expand(number=list(range(workers)))

    return build


@pytest.mark.parametrize(
    ("sites", "more", "words"),
    [
        (
            {"local": LOCAL},
            {},
            "hint gang: gang 'ray' can never start together: the 7 jobs of task 'worker' request 28 cpus, 7 GiB "
            "memory in total (4 cpus, 1 GiB memory each), and site 'local' can never hold more than 4 of them: "
            "local has 16 cpus, 64 GiB memory; request less, or name a site that has more",
        ),
        (
            {"local": PublishedSite((machine(16), machine(12)), holds=True)},
            {},
            "its 8 jobs request 30 cpus in total, and site 'local' can never provide more than 28 cpus",
        ),
        ({"local": PublishedSite((machine(16), machine(14)), holds=True)}, {}, None),
        ({"local": LOCAL, "queue": QUEUE}, {}, "site 'local' can never hold more than 4 of them"),
        ({"local": LOCAL, "other": PublishedSite((machine(14),), holds=True)}, {}, None),
        ({"local": LOCAL, "cloud": CLOUD}, {"site": "cloud"}, None),
        ({"local": LOCAL, "cloud": CLOUD}, {"targets": ["local", "cloud"]}, None),
        ({"local": LOCAL, "new": PublishedSite((), holds=True)}, {}, None),
        ({"local": PublishedSite((machine(16),))}, {}, None),  # published by an older version
        ({"local": PublishedSite((machine(32),), holds=True)}, {"spread": True}, "can never hold more than 1 of them"),
        (
            {"local": PublishedSite((machine(32),) * 7, holds=True)},
            {"spread": True},
            "its 8 jobs need a location each (spread)",
        ),
        ({"local": PublishedSite((machine(32),) * 8, holds=True)}, {"spread": True}, None),
        ({"local": PublishedSite((machine(28),), holds=True)}, {"partial": True}, None),
        ({"local": PublishedSite((machine(4),), holds=True)}, {"partial": True}, None),
        ({"local": PublishedSite((machine(3),), holds=True)}, {"partial": True}, "than site 'local' can ever give"),
    ],
)
def test_a_gang_that_asks_for_more_than_its_sites_can_ever_give_is_an_import_error(
    monkeypatch: pytest.MonkeyPatch, sites: dict[str, PublishedSite], more: dict[str, Any], words: str | None
) -> None:
    monkeypatch.setattr(hint_checks, "known_sites", lambda: (sites, UNNAMED))
    monkeypatch.setattr(policies, "known_sites", lambda: (sites, UNNAMED))
    if words is None:
        parsed(ray(**more))
        return
    with pytest.raises(AirflowClusterPolicyViolation) as caught:
        parsed(ray(**more))
    assert words in str(caught.value)


def test_what_is_known_when_members_run_counts_as_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hint_checks, "known_sites", lambda: ({"local": LOCAL}, UNNAMED))
    parsed(lambda: named("worker", cpus="len(inputs)", memory="2 * input_size").expand(number=[1, 2]))


def test_all_members_say_that_they_are_spread() -> None:
    def build() -> None:
        named("head", spread=True)()
        named("worker")()

    with pytest.raises(
        AirflowClusterPolicyViolation, match=r"hint spread: it is True for task 'head' .* not for worker"
    ):
        parsed(build)
