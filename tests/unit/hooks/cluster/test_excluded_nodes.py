"""The nodes to which nothing is submitted."""

from __future__ import annotations

from pathlib import Path

import pytest

from lading.hooks.batch.system import BatchJobRequest, Profile, Unsupported
from lading.hooks.cluster.jobs.excluded_nodes import MOST_EXCLUDED, ExcludedNodes, one_node
from lading.plugin.manager import batch_systems

SYSTEMS = batch_systems()


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def nodes(seconds: float = 60, path: Path | None = None, known: int = 4) -> tuple[ExcludedNodes, Clock]:
    clock = Clock()
    made = ExcludedNodes(seconds, path, clock)
    for number in range(1, known + 1):
        made.seen(f"n{number}")
    return made, clock


def test_a_failed_node_is_excluded_for_a_while() -> None:
    made, clock = nodes()
    made.failed("n2", "it failed")
    assert made.reasons() == {"n2": "it failed"}
    clock.now += 59
    assert list(made.reasons()) == ["n2"]
    clock.now += 1
    assert made.reasons() == {}


def test_a_clock_that_jumps_back_excludes_no_node_for_ever() -> None:
    made, clock = nodes()
    made.failed("n2", "it failed")
    clock.now -= 1e6
    assert made.reasons() == {}


def test_two_deaths_one_after_the_other_exclude_a_node() -> None:
    made, _ = nodes()
    made.died("n1")
    made.seen("n1")
    made.died("n1")
    assert made.reasons() == {}
    made.died("n1")
    assert "2 jobs have died there" in made.reasons()["n1"]


def test_half_of_the_nodes_stay() -> None:
    made, clock = nodes(known=5)
    for number in range(1, 6):
        clock.now += 1
        made.failed(f"n{number}", "the power is off")
    assert list(made.reasons()) == ["n4", "n5"], "those that failed last"
    alone, _ = nodes(known=0)
    alone.failed("n1", "it failed")
    assert alone.reasons() == {}, "it may be the only one"


def test_no_more_than_some_are_excluded() -> None:
    made, _ = nodes(known=MOST_EXCLUDED)
    for number in range(3 * MOST_EXCLUDED):
        made.failed(f"n{number}", "it failed")
    assert len(made.reasons()) == MOST_EXCLUDED


def test_zero_excludes_none() -> None:
    made, _ = nodes(seconds=0)
    made.failed("n1", "it failed")
    assert made.reasons() == {}


def test_they_are_kept_for_the_next_controller(tmp_path: Path) -> None:
    path = tmp_path / "hpc" / "nodes.json"
    made, _ = nodes(path=path)
    made.failed("n1", "it failed")
    assert ExcludedNodes(60, path, Clock()).reasons() == {"n1": "it failed"}
    path.write_text("[")
    assert ExcludedNodes(60, path, Clock()).reasons() == {}
    path.unlink()
    path.mkdir()
    made.failed("n2", "it cannot be kept")
    assert set(made.reasons()) == {"n1", "n2"}


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ("n1", "n1"),
        ("4*host.example.org", "host.example.org"),
        ("host1:host1", "host1"),
        ("n[1-2]", None),
        ("a:b", None),
        ("", None),
        (None, None),
        ("n1;rm", None),
        ("--uid=0", None),
    ],
)
def test_the_name_of_a_node(text: str | None, node: str | None) -> None:
    assert one_node(text) == node


@pytest.mark.parametrize(
    ("name", "directive"),
    [
        ("slurm", "--exclude=n1,n2"),
        ("lsf", "-R \"select[hname!='n1' && hname!='n2']\""),
        ("sge", "-l h=!(n1|n2)"),
    ],
)
def test_each_batch_system_has_one_directive_for_it(name: str, directive: str) -> None:
    assert SYSTEMS[name].directives(BatchJobRequest(excluded_nodes=("n1", "n2")), Profile()) == [directive]


@pytest.mark.parametrize(
    ("name", "native"), [("slurm", {"x": "n9"}), ("sge", {"hostname": "n9"}), ("sge", {"l": "h=n9"})]
)
def test_what_an_author_says_of_nodes_goes_before_it(name: str, native: dict[str, str | bool | None]) -> None:
    found = SYSTEMS[name].directives(BatchJobRequest(excluded_nodes=("n1",), native=native), Profile())
    assert len(found) == 1
    assert "n9" in found[0]


@pytest.mark.parametrize("name", ["pbspro", "torque"])
def test_the_others_say_that_they_have_none(name: str) -> None:
    assert SYSTEMS[name].exclusion is None
    with pytest.raises(Unsupported, match=f"n1: {name} has no option"):
        SYSTEMS[name].directives(BatchJobRequest(excluded_nodes=("n1",)), Profile())


def test_only_names_of_machines_can_be_excluded() -> None:
    with pytest.raises(ValueError, match="'n1\\\\n--uid=0' is not a valid host name"):
        BatchJobRequest(excluded_nodes=("n1\n--uid=0",))
