"""The table of a site of machines behind SSH, and what is said of machines that do not answer."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from lading.executors.settings import Settings
from lading.hooks.machines.connection import NO_ANSWER
from lading.hooks.machines.fixed import FixedSite
from lading.hooks.machines.fixed_config import SSHConfig
from lading.hooks.machines.introduction import MachineFacts
from lading.hooks.site import LocationState
from lading.plugin.sites import SitesError, load_sites
from lading.scheduling.model.resources import NOT_KNOWN, Resources

FACTS = MachineFacts("big", "b", "x86_64", "linux", Resources(8, 16000, 100))


def table(**changes: Any) -> dict[str, Any]:
    hosts = [{"ssh_conn_id": "lab1"}, {"ssh_conn_id": "lab2", "cpus": 64, "memory": "256 GiB", "instance_type": "big"}]
    return {"kind": "ssh", "hosts": hosts, "work_dir": "/w", "python": "/p", **changes}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hosts": []}, "hosts"),
        ({"hosts": [{"ssh_conn_id": "a"}, {"ssh_conn_id": "a"}]}, "hosts lists 'a' twice; keep one of each"),
        ({"hosts": [{"ssh_conn_id": "a/b"}]}, "the id of a connection is expected"),
        ({"hosts": [{"ssh_conn_id": "a", "cpus": 0}]}, "cpus"),
        ({"hosts": [{"ssh_conn_id": "a", "cores": 4}]}, "cores"),
        ({"hosts": [{"ssh_conn_id": "a", "usd_per_hour": -1}]}, "usd_per_hour"),
        ({"work_dir": "lading"}, "an absolute path is expected"),
        ({"max_bundle_size": 5}, "max_bundle_size cannot be used without dags = 'sync'"),
        ({"api_url": "airflow"}, "not the URL of an API"),
        ({"idle_seconds": 0}, "idle_seconds"),
        ({"idle_seconds": 45}, "too short: agents would exit between two polls; give 60 or more"),
    ],
)
def test_tables_that_are_wrong(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        SSHConfig(**table(**changes))


def sites(tmp_path: Path, text: str) -> Settings:
    path = tmp_path / "sites.toml"
    path.write_text(text)
    loaded = Settings.load()
    return type(loaded)(**{**{name: getattr(loaded, name) for name in loaded.__dataclass_fields__}, "sites_file": path})


SITE = '[sites.{}]\nkind = "ssh"\nhosts = [{}]\nwork_dir = "/w"\npython = "/p"\n'


def test_a_machine_is_in_one_site(tmp_path: Path) -> None:
    host = '{ssh_conn_id = "lab1"}'
    with pytest.raises(SitesError, match=r"\[sites.b\] has SSH connection 'lab1', which \[sites.a\] has already"):
        load_sites(sites(tmp_path, SITE.format("a", host) + SITE.format("b", host)))
    found = load_sites(sites(tmp_path, SITE.format("a", host) + SITE.format("b", '{ssh_conn_id = "lab2"}')))
    assert list(found) == ["local", "a", "b"]


def test_a_fault_in_a_host_names_it(tmp_path: Path) -> None:
    with pytest.raises(SitesError, match=re.escape("[sites.a] hosts.0.cpus")):
        load_sites(sites(tmp_path, SITE.format("a", '{ssh_conn_id = "lab1", cpus = "many"}')))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FixedSite:
    """Its machines are never contacted."""
    monkeypatch.setattr("lading.hooks.polling.rounds.Rounds.start", lambda self: None)
    made = FixedSite("lab", SSHConfig(**table(lost_after=100)), tmp_path)
    made._first_answer = 0.0
    return made


def answer(site: FixedSite, name: str) -> None:
    machine = site.connections[name].machine
    machine.reached_at = time.monotonic()
    machine.facts, machine.is_loaded, machine.lives = FACTS, True, True


def test_before_any_answer_nothing_is_concluded(site: FixedSite) -> None:
    with pytest.raises(OSError, match="lab1: it has not answered yet"):
        site.observe()
    first, second = site.potential()
    assert first.capacity == NOT_KNOWN
    assert (second.capacity.cpus, second.capacity.memory, second.capacity.disk) == (64, 262144, NOT_KNOWN.disk)
    assert second.instance_type == "big"


def test_one_that_has_not_answered_is_out_of_reach_and_refuses_nothing(site: FixedSite) -> None:
    answer(site, "lab1")
    first, second = site.observe().locations
    assert (first.state, first.known, first.node, first.location.capacity) == (
        LocationState.UP,
        frozenset(),
        "big",
        FACTS.capacity,
    )
    assert (second.state, second.known, second.note) == (LocationState.UNREACHABLE, None, NO_ANSWER)


def test_one_that_is_away_for_too_long_is_named_no_more_until_it_is_back(
    site: FixedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(site, "lab1")
    answer(site, "lab2")
    site.connections["lab2"].rounds.trouble = "no route"
    assert [each.state for each in site.observe().locations] == [LocationState.UP, LocationState.UNREACHABLE]
    now = time.monotonic
    monkeypatch.setattr("lading.hooks.machines.fixed.time.monotonic", lambda: now() + 101)
    found = site.observe()
    assert [each.name for each in found.locations] == ["lab1"]
    assert found.note == "lab2 has not been reached for 1 min 40 s, so its jobs count as lost: no route"
    site.connections["lab2"].rounds.trouble = None
    assert [each.state for each in site.observe().locations] == [LocationState.UP, LocationState.UP]


def test_machines_that_have_never_answered_are_abandoned_as_well(
    site: FixedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OSError, match="has not answered"):
        site.observe()
    now = time.monotonic
    monkeypatch.setattr("lading.hooks.machines.fixed.time.monotonic", lambda: now() + 101)
    found = site.observe()
    assert found.locations == ()
    assert "lab1 has not been reached" in str(found.note)


def test_one_that_is_behind_with_its_events_says_not_what_it_has(site: FixedSite) -> None:
    answer(site, "lab1")
    site.connections["lab1"].machine.is_behind = True
    assert site.observe().locations[0].known is None


def test_one_whose_answer_takes_long_is_given_no_jobs(site: FixedSite) -> None:
    answer(site, "lab1")
    site.connections["lab1"].rounds.under_way_since = time.monotonic() - 30
    [first, _] = site.observe().locations
    assert (first.state, first.known, first.note) == (
        LocationState.UNREACHABLE,
        None,
        "it has not answered for 20 s",
    )


def test_whoever_observes_the_site_hears_when_a_machine_begins_or_ceases_to_take_jobs(site: FixedSite) -> None:
    heard: list[str] = []
    connection = site.connections["lab1"]
    site.on_news = lambda: heard.append("news")

    def after_a_round() -> int:
        heard.clear()
        connection.rounds.finished()
        return len(heard)

    assert after_a_round() == 0, "it has not answered yet, as before"
    answer(site, "lab1")
    assert [after_a_round(), after_a_round()] == [1, 0], "it takes jobs"
    connection.machine.no_api = "no tunnel leads to Airflow's API"
    assert [after_a_round(), after_a_round()] == [1, 0], "it takes none"
    connection.machine.event_buffer.add({"event": "started", "token": "t", "at": 1.0})
    assert after_a_round() == 0, "where jobs are short, that is so after every round"


def test_what_keeps_a_machine_from_taking_jobs_is_said(site: FixedSite) -> None:
    answer(site, "lab1")
    machine = site.connections["lab1"].machine
    machine.no_api = "no tunnel leads to Airflow's API"
    [first, _] = site.observe().locations
    assert (first.state, first.known, first.note) == (LocationState.UNREACHABLE, frozenset(), machine.no_api)
    machine.no_api, machine.drains = None, True
    assert site.observe().locations[0].state is LocationState.DRAINING


def test_the_agent_of_a_machine_that_has_not_answered_yet_is_ended_as_well(
    site: FixedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A controller is stopped right after it began; the one before it was killed and has left the agent."""
    connection = site.connections["lab1"]
    machine, rounds = connection.machine, []
    connection.rounds.stopping = True

    def answer() -> None:
        rounds.append(machine._shutdown)
        machine.is_loaded, machine.lives = True, len(rounds) < 3

    monkeypatch.setattr(machine, "round", answer)
    connection.let_go("cancel", time.monotonic() + 60)
    assert rounds == ["cancel", "cancel", "cancel"], "until it has ended"


def test_one_that_is_handed_over_is_asked_nothing(site: FixedSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site.connections["lab1"].machine, "round", lambda: 1 / 0)
    site.connections["lab1"].let_go("hand_over", time.monotonic() + 60)
