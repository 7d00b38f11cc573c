"""What a task without hints is packed by, from the options and the machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.exceptions import AirflowConfigException
from hypothesis import given
from hypothesis import strategies as st

from lading.executors.settings import Settings
from lading.hooks.files import host
from lading.scheduling.model.resources import Resources, cpus_of_one


class Conf:
    """A configuration."""

    def __init__(self, **options: str) -> None:
        self.options = options

    def get(self, section: str, key: str, *, fallback: Any) -> Any:
        return self.options.get(key, fallback)


@pytest.mark.parametrize(
    ("cpus", "parallelism", "each"),
    [(2.0, 32, 0.0625), (1.0, 32, 0.0312), (8.0, 32, 0.25), (64.0, 32, 0.25), (3.0, 7, 0.25), (1.5, 7, 0.2142)],
)
def test_a_task_without_hints_is_packed_so_that_as_many_run_as_airflow_allows(
    monkeypatch: pytest.MonkeyPatch, cpus: float, parallelism: int, each: float
) -> None:
    monkeypatch.setattr(host, "usable_cpus", lambda: cpus)
    assert Settings.load(Conf(parallelism=str(parallelism))).default_resources == Resources(each, 512)


def test_what_is_configured_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "usable_cpus", lambda: 2.0)
    assert Settings.load(Conf(parallelism="32", default_cpus="0.5")).default_resources.cpus == 0.5
    assert Settings.load(Conf(parallelism="0")).default_resources.cpus == 0.25


@pytest.mark.parametrize(
    ("tables", "each"),
    [
        ("", 0.25),  # there is no site, which is refused elsewhere
        ("[sites.local]\ncpus = 4", 0.125),
        ("[sites.local]\nreserve_cpus = 1", 0.0312),
        ("[sites.here]\nkind = 'local'", 0.0625),
        ("[sites.local]\nenabled = false\n[sites.hpc]\nkind = 'slurm'", 0.25),
        ("[sites.hpc]\nkind = 'slurm'", 0.0625),
        ("[sites.hpc]\nkind = 'slurm'\naccept_untargeted = true", 0.25),
        ("[sites.hpc]\nkind = 'slurm'\n[sites.local]", 0.25),
        ("[sites.local]\ncpus = 'many'", 0.25),
    ],
)
def test_it_follows_the_machine_that_alone_takes_tasks_which_name_no_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tables: str, each: float
) -> None:
    (tmp_path / "sites.toml").write_text(tables)
    monkeypatch.setattr(host, "usable_cpus", lambda: 2.0)
    found = Settings.load(Conf(parallelism="32", sites_file=str(tmp_path / "sites.toml")))
    assert found.default_resources.cpus == each


@given(st.floats(0.1, 512), st.integers(1, 2000), st.integers(512, 2**20))
def test_cpus_never_keep_as_many_from_running_and_memory_still_does(cpus: float, parallelism: int, memory: int) -> None:
    asked = Resources(cpus_of_one(cpus, parallelism, 0.25), 512)
    count = asked.copies(Resources(cpus, memory))
    assert count >= min(parallelism, memory // 512) or asked.cpus == 0.0001
    assert asked.memory * count <= memory
    assert asked.cpus <= 0.25


@pytest.mark.parametrize(("text", "starts"), [("True", True), ("False", False), ("false", False), ("TRUE", True)])
def test_a_service_may_be_the_controller(text: str, starts: bool) -> None:
    assert Settings.load(Conf()).starts_controller
    assert Settings.load(Conf(start_controller=text)).starts_controller is starts


def test_a_switch_is_on_or_off() -> None:
    with pytest.raises(AirflowConfigException, match="start_controller: 'no' is not a boolean; valid: True, False"):
        Settings.load(Conf(start_controller="no"))


@pytest.mark.parametrize(("cpus", "shares"), [(2.0, True), (64.0, False)])
def test_whether_tasks_without_hints_share_a_small_machine(
    monkeypatch: pytest.MonkeyPatch, cpus: float, shares: bool
) -> None:
    monkeypatch.setattr(host, "usable_cpus", lambda: cpus)
    assert Settings.load(Conf(parallelism="32")).shares_machine == shares
    assert not Settings.load(Conf(parallelism="32", default_cpus="0.01")).shares_machine, "somebody has decided so"


def test_what_tasks_without_hints_are_packed_by() -> None:
    assert Settings.load(Conf(parallelism="32")).packs_by_use
    assert not Settings.load(Conf(parallelism="32", sizing="hints")).packs_by_use
    with pytest.raises(
        AirflowConfigException, match=r"\[lading\] sizing: 'none' is not a way to size tasks; valid: auto, hints"
    ):
        Settings.load(Conf(parallelism="32", sizing="none"))


def test_the_order_of_jobs() -> None:
    assert Settings.load(Conf(parallelism="32")).order == "priority"
    assert Settings.load(Conf(parallelism="32", order="critical_path")).order == "critical_path"
    with pytest.raises(
        AirflowConfigException,
        match=r"\[lading\] order: 'fifo' is not an order of jobs; valid: priority, critical_path",
    ):
        Settings.load(Conf(parallelism="32", order="fifo"))
