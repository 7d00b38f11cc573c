"""Room that an agent holds for upcoming jobs."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from lading.hooks.spool.hold import Hold
from lading.hooks.spool.spool import Spool
from lading.scheduling.model.resources import Resources
from tests.services.agent import NodeAgent

ALL = Resources(4, 4096)


def hold(job: str, resources: Resources = ALL, seconds: float = 60.0) -> Hold:
    return Hold(f"hold-{uuid.uuid4()}", job, resources, seconds)


def told(agent: NodeAgent, each: Hold, event: str) -> bool:
    return bool(agent.events_of(each.token, event))


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    NodeAgent.clean_up()


@pytest.fixture
def here(tmp_path: Path) -> NodeAgent:
    agent = NodeAgent(tmp_path)
    agent.start()
    return agent


def test_the_room_is_kept_for_the_job_it_is_held_for(here: NodeAgent) -> None:
    held, other = hold("awaited", Resources(3, 1024)), hold("late", Resources(2, 1024))
    here.spool.keep_room([held])
    here.wait_for(held.token, "held")
    here.spool.keep_room([other])
    here.wait_for(other.token, "refused")
    here.put("passing", "sleep", seconds=60, resources=Resources(2, 128))
    here.put("small", "sleep", seconds=60, resources=Resources(1, 128))
    here.wait_for("small", "started")
    here.put("awaited", "sleep", seconds=60, resources=Resources(3, 1024))
    here.wait_for("awaited", "started")
    assert here.events_of("passing", "started") == []
    here.wait(lambda: os.listdir(here.spool.holds) == [])


def test_what_is_dropped_is_free_again(here: NodeAgent) -> None:
    held = hold("never")
    here.spool.keep_room([held])
    here.wait_for(held.token, "held")
    here.put("next", "succeed", resources=ALL)
    here.spool.drop_holds([held.token])
    here.wait_for("next", "finished")
    assert not told(here, held, "hold_lost")


def test_a_hold_that_is_not_renewed_runs_out(here: NodeAgent) -> None:
    # That which is asked for again all the time lasts for longer than its seconds.
    short, renewed = hold("never", Resources(1, 128), 1.0), hold("later", Resources(1, 128), 5.0)
    here.spool.keep_room([short, renewed])
    here.wait_for(renewed.token, "held")
    held_at = time.monotonic()

    def runs_out() -> bool:
        here.spool.keep_room([renewed])
        return told(here, short, "hold_lost") and time.monotonic() > held_at + renewed.seconds

    here.wait(runs_out)
    assert not told(here, renewed, "hold_lost")
    here.wait_for(renewed.token, "hold_lost")
    here.wait(lambda: os.listdir(here.spool.holds) == [])


def test_a_new_agent_knows_the_holds_of_the_one_before(here: NodeAgent) -> None:
    held = hold("awaited", Resources(3, 1024))
    here.spool.keep_room([held])
    here.wait_for(held.token, "held")
    here.kill()
    here.put("passing", "sleep", seconds=60, resources=Resources(2, 128))
    here.put("small", "sleep", seconds=60, resources=Resources(1, 128))
    here.start()
    here.wait_for("small", "started")
    assert here.events_of("passing", "started") == []


def test_gpus_are_held_as_devices(tmp_path: Path) -> None:
    agent = NodeAgent(tmp_path, capacity=Resources(4, 4096, 0, 2), gpu_devices=("0", "1"))
    agent.start()
    half, whole = hold("half", Resources(1, 128, 0, 0.5)), hold("whole", Resources(1, 128, 0, 1))
    agent.spool.keep_room([half])
    agent.wait_for(half.token, "held")
    agent.spool.keep_room([whole])
    agent.wait_for(whole.token, "held")
    third = hold("third", Resources(1, 128, 0, 1))
    agent.spool.keep_room([third])
    agent.wait_for(third.token, "refused")
    agent.put("whole", "sleep", seconds=60, resources=Resources(1, 128, 0, 1))
    agent.wait_for("whole", "started")


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"token": 5}', '{"token": "other", "job": "j", "resources": {}}'])
def test_what_is_no_hold_is_set_aside(here: NodeAgent, text: str) -> None:
    spool: Spool = here.spool
    (spool.holds / "strange.json").write_text(text)
    (spool.holds / "a name.json").write_text(text)
    held = hold("awaited")
    spool.keep_room([held])
    here.wait_for(held.token, "held")
    here.wait(lambda: sorted(os.listdir(spool.holds)) == [f"{held.token}.json"])
    here.wait(lambda: len(os.listdir(spool.rejected)) >= 2)
