"""The trigger of JobScriptOperator, with a batch system of three shell scripts."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lading.hooks.batch import canceller, script_jobs
from lading.hooks.batch.script_jobs import ScriptRequest
from lading.hooks.batch.system import Profile
from lading.hooks.job_scripts import batcher
from lading.hooks.job_scripts.profile import SiteOptions, SiteProfile
from lading.hooks.job_scripts.run import RunRecord
from lading.hooks.job_scripts.run_site import RunSite
from lading.hooks.job_scripts.script import JobScript, JobScriptError
from lading.hooks.job_scripts.task_run import new_run, token
from lading.hooks.ssh.answer import TransportError
from lading.operators import job_script_trigger
from lading.operators.job_output import Lines
from lading.operators.job_script_trigger import JobScriptTrigger, SiteWatch
from tests.clusters.toy_batch import Toy, ToyCluster


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, _: str, line: str) -> None:
        self.lines.append(line)

    def warning(self, *_: object) -> None:
        """There is no API server that would say the state of the task."""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunSite:
    options = SiteOptions(work_dir=str(tmp_path / "work"), max_poll_interval=0.1, lost_after=0.6)
    made = RunSite("toy", Toy(), SiteProfile(), options, ToyCluster(tmp_path / "toy"))
    monkeypatch.setattr(job_script_trigger, "open_site", lambda name, dag_id, team: made)
    monkeypatch.setattr(job_script_trigger, "SETTLING", 0.0)
    return made


class Task:
    """A task instance that has deferred, as Airflow names it to its trigger."""

    def __init__(self, map_index: int = -1) -> None:
        self.id, self.try_number, self.map_index = uuid.uuid4(), 1, map_index
        self.dag_id, self.run_id, self.task_id = "d", "r", "script"


def placed(site: RunSite, body: str, *, is_mapped: bool = False) -> tuple[Task, RunRecord]:
    """A task whose script is at the site, and its run."""
    task, script = Task(0 if is_mapped else -1), JobScript(body)
    record = new_run(site, script, task)
    site.place(record, script)
    return task, record


def submitted(site: RunSite, body: str, count: int = 1) -> list[tuple[Task, RunRecord]]:
    pairs = [placed(site, body) for _ in range(count)]
    sightings = site.advance([record for _, record in pairs])
    return [(task, sighting.record) for (task, _), sighting in zip(pairs, sightings, strict=True)]


def trigger(
    task: Task, job: dict[str, Any] | None = None, properties: dict[str, Any] | None = None
) -> tuple[JobScriptTrigger, Log]:
    made, log = JobScriptTrigger("toy", properties, job=job), Log()
    made._log, made.task_instance = log, task  # type: ignore[assignment]
    return made, log


async def idle() -> None:
    """Wait until nothing is watched any more."""
    while SiteWatch.shared.get(asyncio.get_running_loop()):
        await asyncio.sleep(0.05)


async def event(trigger: JobScriptTrigger) -> Any:
    async for each in trigger.run():
        return each.payload
    raise AssertionError("no event")


def test_a_trigger_says_how_the_job_has_ended(site: RunSite) -> None:
    [(task, _)] = submitted(site, "echo one; sleep 0.3; printf 'two\\nthree'; exit 3")
    made, log = trigger(task)

    async def told() -> Any:
        payload = await event(made)
        await idle()
        return payload

    payload = asyncio.run(told())
    assert (payload["record"]["state"], payload["record"]["exit_code"]) == ("failed", 3)
    assert payload["last_line"] == "three"
    assert [line for line in log.lines if "Batch job" not in line] == ["one", "two", "three"]


def test_one_question_for_all(site: RunSite) -> None:
    site.options = site.options.model_copy(update={"max_poll_interval": 0.2})
    tasks = submitted(site, "sleep 2", 12)
    cluster = site.transport
    assert isinstance(cluster, ToyCluster)
    before, began = cluster.exchanges, time.monotonic()

    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*(event(trigger(task)[0]) for task, _ in tasks))

    payloads = asyncio.run(all_of_them())
    assert {payload["record"]["state"] for payload in payloads} == {"succeeded"}
    # One every 0.2 s, and none for each task: its output came whole with its end.
    assert cluster.exchanges - before <= (time.monotonic() - began) / 0.2 + 2


def test_an_output_that_is_long_or_could_not_be_read(site: RunSite, monkeypatch: pytest.MonkeyPatch) -> None:
    [(task, _)] = submitted(site, "seq 200000; echo the last")
    whole, cuts = RunSite.rest, []

    def rest(site: RunSite, record: RunRecord, offset: int) -> bytes:
        cuts.append(offset)
        if len(cuts) == 1:
            raise TransportError("cut")
        return whole(site, record, offset)

    monkeypatch.setattr(RunSite, "rest", rest)
    assert isinstance(site.transport, ToyCluster)
    made, log = trigger(task)
    while site.transport.listed:  # so that the look that sees the end reads for the first time
        time.sleep(0.05)
    assert asyncio.run(event(made))["last_line"] == "the last"
    assert [line for line in log.lines if "atch job" not in line] == [*map(str, range(1, 200001)), "the last"]
    assert len(cuts) == 2


def test_mapped_tasks_are_a_job_array(site: RunSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batcher.Batcher, "window", (0.5, 5.0))
    body = 'echo "$CLUSTERJOB_ID.$CLUSTERJOB_ARRAY_INDEX"'
    tasks = [placed(site, body, is_mapped=True)[0] for _ in range(6)]

    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*(event(trigger(task)[0]) for task in tasks))

    payloads = asyncio.run(all_of_them())
    assert isinstance(site.transport, ToyCluster)
    assert site.transport.jobs == 1
    assert [payload["last_line"] for payload in payloads] == [f"1.{number}" for number in range(1, 7)]
    assert [payload["record"]["job_id"] for payload in payloads] == [f"1.{number}" for number in range(1, 7)]


def test_no_more_are_submitted_than_the_site_takes(site: RunSite) -> None:
    site.profile = SiteProfile(profile=Profile(max_submitted=1))
    tasks = [placed(site, "mkdir ../busy || exit 9; sleep 0.3; rmdir ../busy")[0] for _ in range(3)]
    logs: list[Log] = []

    async def all_of_them() -> list[Any]:
        made = [trigger(task) for task in tasks]
        logs.extend(log for _, log in made)
        return await asyncio.gather(*(event(each) for each, _ in made))

    payloads = asyncio.run(all_of_them())
    assert {payload["record"]["state"] for payload in payloads} == {"succeeded"}
    assert isinstance(site.transport, ToyCluster)
    assert site.transport.jobs == 3
    waits = "it waits to be submitted: 1 jobs are already submitted (max_submitted)"
    assert sum(any(waits in line for line in log.lines) for log in logs) == 2


def test_a_trigger_that_is_stopped_leaves_the_job_alone(site: RunSite) -> None:
    [(task, _)] = submitted(site, "sleep 0.6; echo done")
    made, _ = trigger(task)

    async def stopped() -> None:
        task = asyncio.create_task(event(made))
        await asyncio.sleep(0.2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(stopped())
    again = JobScriptTrigger(**made.serialize()[1])
    again._log, again.task_instance = Log(), task  # type: ignore[assignment]
    assert asyncio.run(event(again))["last_line"] == "done"


def test_a_trigger_that_is_killed_cancels_the_job(site: RunSite) -> None:
    [(task, record)] = submitted(site, "sleep 60")
    made, _ = trigger(task)

    async def killed() -> None:
        await made.on_kill()
        await idle()

    asyncio.run(killed())
    while not record.ended:
        (sighting,) = site.advance([record])
        record = sighting.record
    assert record.state == "cancelled"
    assert (Path(record.folder) / "cancelled").exists()


def test_many_are_cancelled_together(site: RunSite) -> None:
    tasks = submitted(site, "sleep 60", 10)
    triggers = [trigger(task)[0] for task, _ in tasks]

    async def killed() -> None:
        await asyncio.gather(*(each.on_kill() for each in triggers))
        await idle()

    asyncio.run(killed())
    assert asked_to_end(site) <= 2  # the first alone, then all others
    records = [record for _, record in tasks]
    while not all(record.ended for record in records):
        records = [sighting.record for sighting in site.advance(records)]
    assert {record.state for record in records} == {"cancelled"}


def asked_to_end(site: RunSite) -> int:
    """How often the batch system was asked to end jobs."""
    assert isinstance(site.transport, ToyCluster)
    killed = site.transport.folder / "killed"
    return len(killed.read_text().splitlines()) if killed.exists() else 0


async def until(reached: Callable[[], bool]) -> None:
    """Wait until something is so."""
    for _ in range(4800):
        if reached():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("not within four minutes")


def test_a_job_whose_node_does_not_hear_of_its_cancel_is_cancelled_until_it_is_gone(
    site: RunSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As qdel of TORQUE answers 0 for an array whose MOM is down, and does nothing."""
    monkeypatch.setattr(canceller.Canceller, "repeated_after", (0.1, 0.1))
    [(task, _)] = submitted(site, "sleep 60")
    made, _ = trigger(task)
    assert isinstance(site.transport, ToyCluster)
    cluster = site.transport
    cluster.set("deaf")

    async def killed() -> None:
        await made.on_kill()
        assert asked_to_end(site) >= 1
        await until(lambda: asked_to_end(site) > 2)
        assert cluster.listed, "it runs"
        cluster.unset("deaf")
        await idle()

    asyncio.run(killed())
    assert not cluster.listed


def test_a_job_is_cancelled_although_the_site_answers_after_airflow_has_stopped_waiting(
    site: RunSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_script_trigger.SiteWatch, "cancel_pause", 0.05)
    [(task, _)] = submitted(site, "sleep 60")
    made, _ = trigger(task)
    whole, tries = RunSite.cancel, []

    def cancel(site: RunSite, records: Any) -> Any:
        tries.append(1)
        if len(tries) < 3 or not stopped:
            raise TransportError("cut")
        return whole(site, records)

    monkeypatch.setattr(RunSite, "cancel", cancel)
    stopped: list[bool] = []

    async def killed() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(made.on_kill(), 0.5)
        stopped.append(True)
        await idle()

    asyncio.run(killed())
    assert isinstance(site.transport, ToyCluster)
    assert not site.transport.listed


def test_lines_come_whole() -> None:
    log = Log()
    lines = Lines(log)
    for part in ("ä€".encode()[:3], "ä€".encode()[3:] + b"\nse", b"cond\r\n\nlast"):
        lines.print(part)
    assert log.lines == ["ä€", "second", ""]
    lines.end()
    assert (log.lines[-1], lines.last) == ("last", "last")


def test_a_run_that_an_earlier_version_has_deferred_goes_on(site: RunSite) -> None:
    """Of its record counts what its script could say."""
    task, script = Task(), JobScript("sleep 0.5; echo done", jobname="mine")
    record = new_run(site, script, task)
    site.place(record, script)
    [sighting] = site.advance([record])
    made = JobScriptTrigger(site="toy", record=sighting.record.to_json())
    made._log, made.task_instance = Log(), task  # type: ignore[assignment]
    assert made.serialize()[1] == {"site": "toy", "properties": {"jobname": "mine"}}
    assert asyncio.run(event(made))["last_line"] == "done"


def test_a_record_names_no_other_run(site: RunSite, tmp_path: Path) -> None:
    [(_, other)] = submitted(site, "sleep 60")
    (tmp_path / "secret").write_text("secret")
    forged = replace(other, output=str(tmp_path / "secret"), state="running")
    task, _ = placed(site, "echo mine")
    made = JobScriptTrigger(site="toy", record={**forged.to_json(), "output": None})
    made._log, made.task_instance = Log(), task  # type: ignore[assignment]

    async def followed_and_killed() -> Any:
        payload = await event(made)
        await made.on_kill()
        await idle()
        return payload

    payload = asyncio.run(followed_and_killed())
    assert (payload["last_line"], payload["record"]["token"]) == ("mine", token(task))
    assert site.transport.listed.split()[0] == other.job_id, "it runs on"
    site.cancel([other])


def test_a_job_of_another_name_is_not_cancelled_by_its_id(site: RunSite) -> None:
    """A native id that is in a folder, by whomever, or that the batch system has given anew."""
    [(_, other), (_, own)] = submitted(site, "sleep 60", 2)
    site.cancel([replace(own, job_id=other.job_id)])
    assert asked_to_end(site) == 0
    site.cancel([own, other])
    assert asked_to_end(site) == 1


JOB = ScriptRequest(site="toy").to_json()


def test_a_run_is_submitted_once_a_controller_admits_it(site: RunSite) -> None:
    tasks = [placed(site, "echo done") for _ in range(2)]
    cluster = site.transport
    assert isinstance(cluster, ToyCluster)
    runs = site.folder("").rstrip("/")

    async def followed() -> tuple[Any, list[str]]:
        (first, log), (second, _) = (trigger(task, JOB) for task, _ in tasks)
        both = asyncio.gather(event(first), event(second))
        await asyncio.sleep(1)
        held = cluster.jobs
        cluster.run([script_jobs.grant(runs, [tasks[0][1].token])])
        await until(lambda: cluster.jobs > held)
        assert (held, cluster.jobs) == (0, 1), "the other one still waits"
        cluster.run([script_jobs.forbid(runs, [tasks[1][1].token])])
        payloads = await both
        await idle()
        return payloads, log.lines

    (granted, forbidden), lines = asyncio.run(followed())
    assert (granted["record"]["state"], granted["last_line"]) == ("succeeded", "done")
    assert (forbidden["record"]["state"], forbidden["record"]["cause"]) == ("cancelled", "cancelled")
    assert cluster.jobs == 1
    assert lines[0] == "The batch job is queued: waiting for Lading's controller to admit it"


def test_a_run_that_waits_for_a_controller_is_cancelled(site: RunSite) -> None:
    task, record = placed(site, "echo done")
    made, _ = trigger(task, JOB)

    async def killed() -> None:
        following = asyncio.create_task(event(made))
        await asyncio.sleep(0.5)
        following.cancel()
        await made.on_kill()
        await idle()

    asyncio.run(killed())
    assert Path(record.folder, "cancelled").exists()
    assert isinstance(site.transport, ToyCluster)
    assert site.transport.jobs == 0


def test_a_request_that_no_controller_would_admit_fails_at_once(site: RunSite) -> None:
    task, _ = placed(site, "echo done")
    made, _ = trigger(task, {**JOB, "nodes": -1})
    with pytest.raises(ValueError, match="nodes"):
        asyncio.run(event(made))


@pytest.mark.parametrize(
    ("job", "properties", "message"),
    [
        (JOB, {"nodes": 1000}, "nodes is 1, but the script has 1000"),
        ({**JOB, "site": "other"}, {}, "site is other, but the script has toy"),
        ({**JOB, "time": 60}, {"queue": "long"}, "queue is None, but the script has long; time is 60, but .* None"),
    ],
)
def test_a_request_that_differs_from_the_script_fails_at_once(
    site: RunSite, job: dict[str, Any], properties: dict[str, Any], message: str
) -> None:
    task, _ = placed(site, "echo done")
    with pytest.raises(ValueError, match=message):
        asyncio.run(event(trigger(task, job, properties)[0]))
    assert isinstance(site.transport, ToyCluster)
    assert site.transport.jobs == 0


def test_a_submitted_run_continues_although_its_site_has_other_defaults_now(site: RunSite) -> None:
    [(task, record)] = submitted(site, "sleep 0.5; echo done")
    site.transport.run([script_jobs.grant(site.folder("").rstrip("/"), [record.token])])
    made, log = trigger(task, JOB, {"queue": "new"})
    assert asyncio.run(event(made))["last_line"] == "done"
    assert not [line for line in log.lines if "admit" in line], "it no longer waits"


def test_no_controller_is_asked_about_another_trigger(site: RunSite) -> None:
    class Other(JobScriptTrigger):
        pass

    task, _ = placed(site, "echo done")
    made = Other("toy", {}, job=JOB)
    assert made.serialize()[1] == {"site": "toy", "properties": {}}
    made._log, made.task_instance = Log(), task  # type: ignore[assignment]
    assert asyncio.run(event(made))["last_line"] == "done"


def test_mapped_runs_that_are_granted_together_are_one_array(site: RunSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batcher.Batcher, "window", (0.3, 5.0))
    tasks = [placed(site, "echo done", is_mapped=True) for _ in range(3)]
    cluster = site.transport
    assert isinstance(cluster, ToyCluster)

    async def followed() -> list[Any]:
        all_of_them = asyncio.gather(*(event(trigger(task, JOB)[0]) for task, _ in tasks))
        await asyncio.sleep(1)
        cluster.run([script_jobs.grant(site.folder("").rstrip("/"), [record.token for _, record in tasks])])
        payloads = await all_of_them
        await idle()
        return payloads

    payloads = asyncio.run(followed())
    assert {payload["record"]["state"] for payload in payloads} == {"succeeded"}
    assert cluster.jobs == 1


def test_a_trigger_of_no_task_follows_nothing(site: RunSite) -> None:
    with pytest.raises(ValueError, match="no task has deferred with this trigger"):
        asyncio.run(event(JobScriptTrigger("toy", {})))


def test_a_shell_cannot_bring_directives(site: RunSite) -> None:
    made, _ = trigger(Task(0))
    made.properties = {"shell": "/bin/sh\n#TOY --queue=root"}
    with pytest.raises(JobScriptError, match="control character"):
        asyncio.run(event(made))
