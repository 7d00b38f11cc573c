"""How the executor checks its active jobs."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from snakemake_executor_plugin_lading.engine import Engine
from snakemake_executor_plugin_lading.executor import Executor
from snakemake_executor_plugin_lading.state_folder import StoreRemoved


@pytest.mark.parametrize("question", ["fetch_ended", "keep_controller", "wait_reasons", "acknowledge"])
def test_a_store_that_is_removed_at_any_moment_ends_the_workflow_once(question: str) -> None:
    def gone(*_: object) -> None:
        raise StoreRemoved("the store is gone")

    answers = {"fetch_ended": {}, "keep_controller": None, "wait_reasons": {}, "acknowledge": None}
    errors: list[str] = []
    executor: Any = Executor.__new__(Executor)
    executor.engine = SimpleNamespace(**{name: lambda *_, said=said: said for name, said in answers.items()})
    setattr(executor.engine, question, gone)
    executor.engine.explain = lambda error: error
    scheduler = SimpleNamespace(executor_error_callback=lambda error: errors.append(str(error)))
    executor.workflow = SimpleNamespace(scheduler=scheduler)
    executor.is_cancelled, executor.next_questions = False, 0.0
    job = SimpleNamespace(external_jobid="1")

    async def look() -> list[Any]:
        return [active async for active in executor.check_active_jobs([job])]

    assert asyncio.run(look()) == [job]
    executor.next_questions = 0.0
    assert asyncio.run(look()) == [job]
    assert errors == ["the store is gone"]


def test_similar_reasons_to_wait_are_logged_once_as_they_are() -> None:
    logged: list[str] = []
    engine: Any = Engine.__new__(Engine)
    engine._said, engine.logger = set(), SimpleNamespace(info=logged.append)
    for text, common in (("3 of 4 in /f3a/owner", " of  in /fa/owner"), ("2 of 4 in /f3a/owner", " of  in /fa/owner")):
        engine.say_once(text, common)
    assert logged == ["Lading: 3 of 4 in /f3a/owner"]


def test_the_end_of_a_job_that_is_not_active_yet_is_kept_until_it_is() -> None:
    end = SimpleNamespace(succeeded=True)
    unacknowledged, succeeded = {"1": end, "2": end}, list[str]()

    def acknowledge(ended: dict[str, Any]) -> None:
        for token in ended:
            del unacknowledged[token]

    executor: Any = Executor.__new__(Executor)
    executor.engine = SimpleNamespace(
        fetch_ended=lambda: dict(unacknowledged),
        acknowledge=acknowledge,
        keep_controller=lambda: None,
        wait_reasons=dict,
    )
    executor.report_job_success = lambda job: succeeded.append(job.external_jobid)
    executor.is_cancelled, executor.next_questions = False, 0.0
    executor.workflow = SimpleNamespace(scheduler=None)

    async def look(*tokens: str) -> list[Any]:
        return [each async for each in executor.check_active_jobs([SimpleNamespace(external_jobid=t) for t in tokens])]

    assert asyncio.run(look("1")) == []
    assert (succeeded, [*unacknowledged]) == (["1"], ["2"])
    assert asyncio.run(look("2")) == []
    assert (succeeded, [*unacknowledged]) == (["1", "2"], [])
