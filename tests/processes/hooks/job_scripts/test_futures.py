"""Runs as futures: with ``concurrent.futures`` itself, and a batch system of three shell scripts."""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
import threading
from collections.abc import Callable
from concurrent import futures
from pathlib import Path

import pytest

from lading.hooks.batch.system import CancelError
from lading.hooks.job_scripts.hook import BatchHook, JobCancelled, JobFailed, JobRun
from lading.hooks.job_scripts.local_script import NearScriptError
from lading.hooks.job_scripts.script import JobScript
from tests.clusters.toy_batch import ToyCluster
from tests.processes.hooks.job_scripts.test_hook import cluster, hook, make_hook

__all__ = ["cluster", "hook", "make_hook"]  # fixtures

PATIENCE = 180.0


def waits_for(name: str) -> JobScript:
    """A script that ends when a file of that name is in the folder above its own."""
    return JobScript(f"while [ ! -e ../{name} ]; do sleep 0.05; done; echo {name}")


def let_go(run: JobRun, name: str) -> None:
    (Path(run.folder).parent / name).touch()


def watchers() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("lading-runs-")]


def test_as_completed_gives_runs_as_they_end(hook: BatchHook) -> None:
    runs = {name: hook.submit(waits_for(name)) for name in ("a", "b", "c")}
    order = ["c", "a", "b"]
    found = []
    let_go(runs[order[0]], order[0])
    for number, run in enumerate(futures.as_completed(runs.values(), timeout=PATIENCE), start=1):
        found.append(next(name for name, each in runs.items() if each is run))
        assert len(watchers()) <= 1, "one thread for all runs"
        if number < len(order):
            let_go(runs[order[number]], order[number])
    assert found == order
    assert [run.result() for run in runs.values()] == [0, 0, 0]
    assert list(futures.as_completed(runs.values())) != [], "those that have ended are given again"


def test_wait_returns_at_the_first_that_has_failed(hook: BatchHook) -> None:
    bad, slow = hook.submit(JobScript("exit 3")), hook.submit(waits_for("slow"))
    done, pending = futures.wait([bad, slow], PATIENCE, futures.FIRST_EXCEPTION)
    assert (done, pending) == ({bad}, {slow})
    error = bad.exception()
    assert isinstance(error, JobFailed)
    assert error.record.exit_code == 3
    assert (bad.done(), bad.running(), bad.cancelled()) == (True, False, False)
    assert not slow.done()
    let_go(slow, "slow")
    assert futures.wait([bad, slow], PATIENCE).not_done == set()
    assert slow.exception() is None


def test_a_time_out_is_that_of_either_library(hook: BatchHook) -> None:
    run = hook.submit(waits_for("later"))
    for kind in (futures.TimeoutError, multiprocessing.TimeoutError):
        with pytest.raises(kind, match="is still"):
            run.result(0)
    with pytest.raises(futures.TimeoutError):
        run.exception(0)
    with pytest.raises(futures.TimeoutError):
        list(futures.as_completed([run], timeout=0.1))
    let_go(run, "later")
    assert run.result(PATIENCE) == 0


def test_callbacks_are_called_once_each_wherever_the_end_is_seen(
    hook: BatchHook, caplog: pytest.LogCaptureFixture
) -> None:
    run, called, over = hook.submit(waits_for("end")), [], threading.Event()

    def fails(_: JobRun) -> None:
        raise ValueError("this callback is wrong")

    run.add_done_callback(fails)
    run.add_done_callback(called.append)
    run.add_done_callback(lambda _: over.set())
    threads = [threading.Thread(target=run.wait, args=[PATIENCE]) for _ in range(3)]
    for each in threads:
        each.start()
    let_go(run, "end")
    assert over.wait(PATIENCE)
    for each in threads:
        each.join()
    assert called == [run]
    assert "this callback is wrong" in caplog.text
    run.add_done_callback(called.append)
    assert called == [run, run], "one that comes late is called at once"


def test_a_callback_needs_no_caller_that_waits(hook: BatchHook) -> None:
    run, over = hook.submit(JobScript("true")), threading.Event()
    run.add_done_callback(lambda _: over.set())
    assert over.wait(PATIENCE)


def test_a_run_that_is_cancelled(hook: BatchHook) -> None:
    run, other = hook.submit(waits_for("never")), hook.submit(JobScript("true"))
    assert other.result(PATIENCE) == 0
    assert other.cancel() is False, "it has ended"
    assert not other.cancelled()
    assert run.cancel() is True
    done, _ = futures.wait([run], PATIENCE)
    assert done == {run}
    assert run.cancelled()
    assert run.cancel() is True
    with pytest.raises(futures.CancelledError):
        run.result()
    with pytest.raises(JobCancelled):
        run.exception()


def test_a_run_that_could_not_be_cancelled_goes_on(hook: BatchHook, cluster: ToyCluster) -> None:
    run = hook.submit(waits_for("end"))
    (cluster.folder / "bin" / "toy-kill").write_text("#!/bin/sh\necho 'cannot connect' >&2; exit 1\n")
    with pytest.raises(CancelError, match="cannot connect"):
        run.cancel()
    let_go(run, "end")
    assert futures.wait([run], PATIENCE).done == {run}


def test_elements_of_an_array_are_futures_too(hook: BatchHook) -> None:
    array = hook.submit(JobScript("[ $CLUSTERJOB_ARRAY_INDEX != 2 ]", array="1-3"))
    found = list(futures.as_completed([array, *array], timeout=PATIENCE))
    assert {*found} == {array, *array}
    assert len(found) == 4
    assert [element.exception() is None for element in array] == [True, False, True]
    assert isinstance(array.exception(), JobFailed)


def test_an_epilogue_that_fails_is_the_exception(hook: BatchHook) -> None:
    run = hook.submit(JobScript("true", epilogue="exit 7"))
    assert futures.wait([run], PATIENCE).done == {run}
    assert run.done()
    assert isinstance(run.exception(), NearScriptError)


def test_an_epilogue_runs_once_though_several_threads_see_the_end(hook: BatchHook) -> None:
    run = hook.submit(JobScript("true", epilogue="sleep 0.3; echo ran >> epilogue"))
    seen = []

    def look() -> None:
        run.wait(PATIENCE)
        seen.append(Path("epilogue").read_text())

    threads = [threading.Thread(target=look) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert seen == ["ran\n"] * 4, "each has waited until it was over"


def test_asyncio_takes_runs(hook: BatchHook) -> None:
    async def wait() -> int:
        return await asyncio.wait_for(asyncio.wrap_future(hook.submit(JobScript("true"))), PATIENCE)

    assert asyncio.run(wait()) == 0


def test_what_is_wrong_with_one_look_ends_no_wait(
    make_hook: Callable[..., BatchHook], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from lading.hooks.job_scripts import hook

    monkeypatch.setattr(hook.Watcher, "seconds_after_error", 0.05)
    hook = make_hook()
    run = hook.submit(waits_for("end"))
    whole, faults = hook.refresh, [RuntimeError("the disk is full")]

    def refresh(*, at_once: bool = False) -> None:
        if faults:
            raise faults.pop()
        whole(at_once=at_once)

    monkeypatch.setattr(hook, "refresh", refresh)
    over = threading.Event()
    run.add_done_callback(lambda _: over.set())
    let_go(run, "end")
    assert over.wait(PATIENCE)
    assert "the disk is full" in caplog.text


def test_a_failure_can_be_pickled_and_a_run_says_why_not(hook: BatchHook) -> None:
    run = hook.submit(JobScript("exit 3"))
    error = run.exception(PATIENCE)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.record) == (str(error), run.record)
    with pytest.raises(TypeError, match="submit the same script"):
        pickle.dumps(run)
