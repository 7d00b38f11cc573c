"""What batch systems say of their nodes and queues, from recorded answers, and what is made of it by the check."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.hooks.batch.inventory import Inventory, Nodes
from lading.hooks.batch.lsf.system import LSF
from lading.hooks.batch.pbs.pbspro import PBSPro
from lading.hooks.batch.pbs.torque import TORQUE
from lading.hooks.batch.sge.system import SGE
from lading.hooks.batch.slurm.system import SLURM
from lading.hooks.batch.surveys import mib
from lading.hooks.batch.system import BatchSystem, CouldNotAsk
from lading.hooks.cluster.checks import nodes as node_checks
from lading.hooks.cluster.config import ClusterConfig
from lading.hooks.ssh.answer import Answer
from tests.recordings import recorded

SYSTEMS: dict[str, BatchSystem] = {each.name: each for each in (SLURM(), PBSPro(), TORQUE(), LSF(), SGE())}


def inventory(system: BatchSystem, answer: Answer) -> Inventory:
    assert system.survey is not None
    return system.survey.inventory(answer)


@pytest.mark.parametrize("name", SYSTEMS)
def test_no_answer_is_no_inventory(name: str) -> None:
    bad = [Answer(0, "{}"), Answer(0, "<a/>")]
    others = [Answer(0, recorded(f"{other}/nodes").stdout) for other in SYSTEMS if other != name]
    for answer in [*bad, *others]:
        with pytest.raises(CouldNotAsk, match=r"."):
            inventory(SYSTEMS[name], answer)


@given(st.sampled_from(sorted(SYSTEMS)), st.integers(0, 40), st.integers(0, 40), st.text(max_size=20))
def test_damaged_answers(name: str, start: int, end: int, noise: str) -> None:
    text = recorded(f"{name}/nodes").stdout
    damaged = text[: len(text) * start // 40] + noise + text[len(text) * end // 40 :]
    try:
        found = inventory(SYSTEMS[name], Answer(0, damaged))
    except CouldNotAsk:
        return
    assert found.nodes


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pbspro", '{"nodes":' + "[" * 100_000),
        ("pbspro", '{"nodes":{"a":{"resources_available":{"ncpus":2,"mem":"' + "9" * 400 + 'gb"}}}}'),
        ("torque", f"n1\n  np = 4\n  status = physmem={'9' * 400}gb\n"),
    ],
)
def test_nesting_and_numbers_without_measure(name: str, text: str) -> None:
    with pytest.raises(CouldNotAsk, match="makes no sense"):
        inventory(SYSTEMS[name], Answer(0, text))


def test_queues_that_are_no_text() -> None:
    text = '{"nodes":{"a":{"queue":["q"],"resources_available":{"ncpus":2}}},"Server":{"s":{"default_queue":{}}}}'
    found = inventory(SYSTEMS["pbspro"], Answer(0, text))
    assert found.of(["q"]) == []
    assert found.of([]) == []


def test_amounts_of_memory() -> None:
    amounts = {
        "24684092kb": 24105,
        "16gb": 16384,
        "23.5G": 24115,
        "1048576": 1,
        "24110M": 24110,
        "1tb": 2**20,
        "-": None,
    }
    assert {text: mib(text) for text in amounts} == amounts


def test_vnodes_of_one_host_are_one_node() -> None:
    vnodes = ", ".join(
        f'"v{each}": {{"resources_available": {{"host": "h", "ncpus": 4, "mem": "8gb"}}, "queue": "q"}}'
        for each in "ab"
    )
    off = '"off": {"state": "offline", "resources_available": {"host": "off"}}'
    text = f'{{"nodes": {{{vnodes}, {off}}}}}\n{{"Queue": {{"q": {{}}}}}}\n{{"Server": {{"s": {{}}}}}}\n'
    assert inventory(PBSPro(), Answer(0, text)) == Inventory([Nodes(8, 16384, "q", idle=0)], ["q"])


def test_how_many_nodes_are_idle() -> None:
    slurm, pbspro = (inventory(SYSTEMS[name], recorded(f"{name}/nodes")) for name in ("slurm", "pbspro"))
    assert slurm.census([]) == (4, 1), "the default queue's"
    assert slurm.census(["short"]) == (2, 0)
    assert slurm.census(["batch", "short"]) is None, "two queues may have the same nodes"
    assert slurm.census(["nosuch"]) is None
    assert pbspro.census(["workq"]) == (3, 1)
    assert Inventory([Nodes(8), Nodes(8, idle=1)]).census([]) == (2, None), "of one it is not said"
    busy = {
        "torque": ("state = offline", "state = free"),
        "lsf": ("      8      3 ", "      8      0 "),
        "sge": ("'slots_used'>0", "'slots_used'>1"),
    }
    for name, (before, after) in busy.items():
        text = recorded(f"{name}/nodes").stdout
        assert before in text
        idle = inventory(SYSTEMS[name], Answer(0, text.replace(before, after))).nodes[0].idle
        assert idle == (1 if name == "lsf" else 0), "a node of TORQUE that is up has its jobs still"
    drained = recorded("sge/nodes").stdout.replace("'state_string'>", "'state_string'>d")
    assert inventory(SYSTEMS["sge"], Answer(0, drained)).census([]) == (1, 0)


def config(**options: Any) -> ClusterConfig:
    table = {"kind": "slurm", "work_dir": "/w", "python": "/py", "node_cpus": 8, "node_memory": 16000}
    return ClusterConfig.model_validate({**table, **options})


def words(name: str, answer: Answer | None = None, **options: Any) -> dict[str, tuple[str, str]]:
    found = node_checks.checks(config(**options), SYSTEMS[name], answer or recorded(f"{name}/nodes"))
    return {each.what: ("warning" if each.warns else "ok" if each.good else "BAD", each.words) for each in found}


def test_nodes_that_are_large_enough() -> None:
    [nodes] = words("slurm").items()
    assert nodes == ("nodes", ("ok", "4 of the 4 nodes there have node_cpus = 8 and node_memory = 16000 MiB"))
    found = words("pbspro", queue="workq", node_memory="16 GiB")
    assert found["queue"] == ("ok", "pbspro has workq")
    assert found["nodes"][1].startswith("2 of the 3 nodes of queue workq have node_cpus = 8")


@pytest.mark.parametrize(
    ("name", "options", "line"),
    [
        ("slurm", {"node_cpus": 9}, "the largest have 8 cpus and 16000 MiB; set node_cpus = 8"),
        ("slurm", {"node_memory": "16 GiB"}, 'set node_cpus = 8, node_memory = "16000 MiB"'),
        ("slurm", {"node_cpus": 4, "node_memory": "1 TiB"}, 'set node_cpus = 4, node_memory = "16000 MiB"'),
        ("pbspro", {"node_memory": "20 GiB"}, 'set node_cpus = 8, node_memory = "16 GiB"'),
        ("torque", {"node_cpus": 16}, "set node_cpus = 8"),
        ("lsf", {"node_cpus": 16, "queue": "normal"}, "set node_cpus = 8"),
        ("sge", {}, "set node_cpus = 2"),
    ],
)
def test_nodes_that_are_too_small(name: str, options: dict[str, Any], line: str) -> None:
    result, said = words(name, **options)["nodes"]
    assert result == "BAD"
    assert said.endswith(line), said


@pytest.mark.parametrize(
    ("name", "options", "there"),
    [
        ("slurm", {"queue": "nosuch"}, 'its queues are: batch, short; set queue = "batch"'),
        ("slurm", {"queue": "batch,nosuch"}, 'its queues are: batch, short; set queue = "batch"'),
        ("slurm", {"resources": {"p": "nosuch"}}, 'its queues are: batch, short; set queue = "batch"'),
        ("slurm", {"resources": {"partition": "nosuch"}}, 'its queues are: batch, short; set queue = "batch"'),
        ("pbspro", {"queue": "nosuch@server"}, 'set queue = "workq"'),
        ("torque", {"queue": "nosuch"}, 'set queue = "batch"'),
        ("lsf", {"queue": "nosuch normal"}, 'set queue = "normal"'),
        ("sge", {"resources": {"q": "nosuch@@hosts"}}, 'set queue = "batch.q"'),
    ],
)
def test_an_unknown_queue(name: str, options: dict[str, Any], there: str) -> None:
    found = words(name, **options)
    assert list(found) == ["queue"]
    assert found["queue"][0] == "BAD"
    assert f"{name} has no queue 'nosuch'; its queues are: " in found["queue"][1]
    assert found["queue"][1].endswith(there)


def test_queues_that_are_there() -> None:
    assert words("slurm", queue="short")["nodes"][1].startswith("2 of the 2 nodes of queue short")
    assert words("slurm", queue="batch,short")["queue"][0] == "ok"
    assert "queue" not in words("sge", queue="*.q@@big", node_cpus=2)


def test_what_is_not_told_is_a_warning() -> None:
    found = words("slurm", Answer(127, "", "sinfo: not found"))
    assert found["nodes"][0] == "warning"
    assert "were not compared with them: sinfo: not found" in found["nodes"][1]
