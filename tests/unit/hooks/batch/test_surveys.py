"""What batch systems say of their nodes and queues, from recorded answers, and what is made of it by the check."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.hooks.batch.inventory import Inventory, Nodes, mib
from lading.hooks.batch.lsf.system import LSF
from lading.hooks.batch.pbs.pbspro import PBSPro
from lading.hooks.batch.pbs.torque import TORQUE
from lading.hooks.batch.sge.system import SGE
from lading.hooks.batch.slurm.system import SLURM
from lading.hooks.batch.system import BatchSystem, CouldNotAsk
from lading.hooks.cluster.checks import checks as node_checks
from lading.hooks.cluster.jobs.config import ClusterConfig
from lading.hooks.ssh.answer import CommandResult
from tests.recordings import recorded

SYSTEMS: dict[str, BatchSystem] = {each.name: each for each in (SLURM(), PBSPro(), TORQUE(), LSF(), SGE())}


def inventory(system: BatchSystem, answer: CommandResult) -> Inventory:
    assert system.survey is not None
    return system.survey.inventory(answer)


@pytest.mark.parametrize("name", SYSTEMS)
def test_no_answer_is_no_inventory(name: str) -> None:
    bad = [CommandResult(0, "{}"), CommandResult(0, "<a/>")]
    others = [CommandResult(0, recorded(f"{other}/nodes").stdout) for other in SYSTEMS if other != name]
    for answer in [*bad, *others]:
        with pytest.raises(CouldNotAsk, match=r"."):
            inventory(SYSTEMS[name], answer)


@given(st.sampled_from(sorted(SYSTEMS)), st.integers(0, 40), st.integers(0, 40), st.text(max_size=20))
def test_damaged_answers(name: str, start: int, end: int, noise: str) -> None:
    text = recorded(f"{name}/nodes").stdout
    damaged = text[: len(text) * start // 40] + noise + text[len(text) * end // 40 :]
    try:
        found = inventory(SYSTEMS[name], CommandResult(0, damaged))
    except CouldNotAsk:
        return
    assert found.nodes


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pbspro", '{"nodes":{"a":{"resources_available":{"ncpus":2,"mem":"' + "9" * 400 + 'gb"}}}}'),
        ("torque", f"n1\n  np = 4\n  status = physmem={'9' * 400}gb\n"),
    ],
)
def test_an_amount_beyond_measure_is_not_known(name: str, text: str) -> None:
    [nodes] = inventory(SYSTEMS[name], CommandResult(0, text)).nodes
    assert nodes.memory is None


def test_nesting_without_measure() -> None:
    with pytest.raises(CouldNotAsk, match="cannot be parsed"):
        inventory(PBSPro(), CommandResult(0, '{"nodes":' + "[" * 100_000))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("slurm", "q|8|16000|1|idle\nq|8|(null)|1|idle\nq|8|16000|n/a|idle\n"),
        ("pbspro", '{"nodes":{"a":{"resources_available":{"ncpus":8}},"b":7,"c":{"resources_available":7}}}'),
        ("torque", "n1\n  np = 8\n  state = free\n\nn2\n  np = -\n  state = free\n"),
    ],
)
def test_a_node_that_makes_no_sense_costs_itself_alone(name: str, text: str) -> None:
    assert [each.cpus for each in inventory(SYSTEMS[name], CommandResult(0, text)).nodes] == [8]


def test_queues_that_are_no_text() -> None:
    text = '{"nodes":{"a":{"queue":["q"],"resources_available":{"ncpus":2}}},"Server":{"s":{"default_queue":{}}}}'
    found = inventory(SYSTEMS["pbspro"], CommandResult(0, text))
    assert found.nodes_of_queues(["q"]) == []
    assert found.nodes_of_queues([]) == []


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


@pytest.mark.parametrize(
    "member",
    [
        '"comment":"HEALTH-CHECK: reboot "zaskly sdileny scratch" (Sep 04 14:13)"',
        '"comment":"it\\\'s a\\,b \\\\ \\"c\\""',
        '"comment":"a\nb"',
        '"partition":007',
        '"partition":inf',
        '"partition":.5',
        '"comment":"x",\n\t\t\t"comment":"y"',
    ],
)
def test_what_some_versions_of_pbs_write_in_place_of_json(member: str) -> None:
    """Each was reported of OpenPBS, or of PBS Pro 18 and 19."""
    good = recorded("pbspro/nodes")
    text = good.stdout.replace('"ntype":', f'{member},\n\t\t\t"ntype":', 1)
    assert text != good.stdout
    assert inventory(PBSPro(), CommandResult(0, text)) == inventory(PBSPro(), good)


def test_vnodes_of_one_host_are_one_node() -> None:
    vnodes = ", ".join(
        f'"v{each}": {{"resources_available": {{"host": "h", "ncpus": 4, "mem": "8gb"}}, "queue": "q"}}'
        for each in "ab"
    )
    off = '"off": {"state": "offline", "resources_available": {"host": "off"}}'
    text = f'{{"nodes": {{{vnodes}, {off}}}}}\n{{"Queue": {{"q": {{}}}}}}\n{{"Server": {{"s": {{}}}}}}\n'
    assert inventory(PBSPro(), CommandResult(0, text)) == Inventory([Nodes(8, 16384, "q", idle=0)], ["q"])


def test_how_many_nodes_a_job_can_ever_have() -> None:
    """Those that are down or drained are counted, and what the queue allows."""
    recording = recorded("slurm/nodes")
    slurm = inventory(SYSTEMS["slurm"], recording)
    assert slurm.most == {"batch": 4, "short": 2}
    all_down = CommandResult(0, recording.stdout.replace("|idle", "|down").replace("|mix", "|drain"))
    assert inventory(SYSTEMS["slurm"], all_down).most == slurm.most
    hidden = CommandResult(0, recording.stdout.replace("batch*|8|16000|2|mix\n", ""))
    assert hidden.stdout != recording.stdout
    assert inventory(SYSTEMS["slurm"], hidden).most == slurm.most, "sinfo shows no nodes of a cloud that are off"
    limited = CommandResult(0, recording.stdout.replace("MaxNodes=UNLIMITED", "MaxNodes=3"))
    assert inventory(SYSTEMS["slurm"], limited).most == {"batch": 3, "short": 2}
    silent = CommandResult(0, recording.stdout.partition("PartitionName")[0])
    assert inventory(SYSTEMS["slurm"], silent).most == {}, "scontrol has not answered"
    assert slurm.most_nodes([]) == {"": 4, "batch": 4, "short": 2}
    assert slurm.most_nodes(["short"])[""] == 2
    assert slurm.most_nodes(["short", "batch"])[""] == 4
    assert "" not in slurm.most_nodes(["batch", "nosuch"]), "of one it is not known"


def test_how_many_nodes_queues_allow_where_nodes_do_not_say_it() -> None:
    pbspro = recorded("pbspro/nodes")
    assert inventory(SYSTEMS["pbspro"], pbspro).most == {}, "chunks share hosts"
    assert '"queue_type":' in pbspro.stdout
    limit = '"resources_max":{"nodect":16,"walltime":"01:00:00"},"queue_type":'
    allowed = CommandResult(0, pbspro.stdout.replace('"queue_type":', limit, 1))
    assert set(inventory(SYSTEMS["pbspro"], allowed).most.values()) == {16}
    torque = recorded("torque/nodes").stdout
    assert inventory(SYSTEMS["torque"], CommandResult(0, torque)).most == {"batch": 1}
    assert "default_queue = " in torque
    more = torque.replace("    default_queue = ", "    resources_available.nodect = 2048\n    default_queue = ", 1)
    assert inventory(SYSTEMS["torque"], CommandResult(0, more)).most == {"batch": 2048}
    less = more.replace("    queue_type = ", "    resources_max.nodect = 8\n    queue_type = ", 1)
    assert inventory(SYSTEMS["torque"], CommandResult(0, less)).most == {"batch": 8}
    assert inventory(SYSTEMS["lsf"], recorded("lsf/nodes")).most == {"normal": 1}
    assert inventory(SYSTEMS["sge"], recorded("sge/nodes")).most == {}, "slots may all be on one host"


def test_how_many_nodes_are_idle() -> None:
    slurm, pbspro = (inventory(SYSTEMS[name], recorded(f"{name}/nodes")) for name in ("slurm", "pbspro"))
    assert slurm.count_nodes([]) == (4, 1), "the default queue's"
    assert slurm.count_nodes(["short"]) == (2, 0)
    assert slurm.count_nodes(["batch", "short"]) is None, "two queues may have the same nodes"
    assert slurm.count_nodes(["nosuch"]) is None
    assert pbspro.count_nodes(["workq"]) == (3, 1)
    assert Inventory([Nodes(8), Nodes(8, idle=1)]).count_nodes([]) == (2, None), "of one it is not said"
    busy = {
        "torque": ("state = offline", "state = free"),
        "lsf": ("      8      3 ", "      8      0 "),
        "sge": ("'slots_used'>0", "'slots_used'>1"),
    }
    for name, (before, after) in busy.items():
        text = recorded(f"{name}/nodes").stdout
        assert before in text
        idle = inventory(SYSTEMS[name], CommandResult(0, text.replace(before, after))).nodes[0].idle
        assert idle == (1 if name == "lsf" else 0), "a node of TORQUE that is up has its jobs still"
    drained = recorded("sge/nodes").stdout.replace("'state_string'>", "'state_string'>d")
    assert inventory(SYSTEMS["sge"], CommandResult(0, drained)).count_nodes([]) == (1, 0)


# sinfo(1), NODE STATE CODES; the others by the manuals of their systems. With which of them a node takes jobs.
STATES = {
    "slurm": (
        "idle idle~ idle#",
        "idle* idle! idle% idle$ idle@ idle^ idle- alloc alloc+ alloc# mix mix- mix~ comp drain drain* drain~ drng "
        "down down* down~ fail failg futr maint maint* npc plnd plnd- pow_dn pow_up resv resv* unk unk* inval boot^",
    ),
    "pbspro": (
        "free",
        "job-busy job-exclusive resv-exclusive offline down busy stale unresolvable state-unknown sleep maintenance "
        "provisioning wait-provisioning initializing offline,job-exclusive down,job-busy free,sleep state-unknown,down",
    ),
    "torque": (
        "free",
        "offline down reserve job-exclusive job-sharing busy time-shared state-unknown down,offline "
        "down,job-exclusive offline,job-exclusive",
    ),
    "lsf": (
        "ok",
        "unavail unreach unlicensed closed closed_Adm closed_Busy closed_cu_excl closed_EGO closed_Excl closed_Full "
        "closed_LIM closed_Lock closed_RC closed_RC_Wait closed_Wind",
    ),
    "sge": ("", "u au a A C d D E s S c o P adu dE auo"),
}
NODES = {
    "slurm": "q*|8|16000|1|{}\n",
    "pbspro": '{{"nodes": {{"n1": {{"state": "{}", "resources_available": {{"ncpus": 8}}}}}}}}',
    "torque": "n1\n     state = {}\n     power_state = Running\n     np = 8\n",
    "lsf": "HOST_NAME          STATUS       JL/U    MAX  NJOBS    RUN  SSUSP  USUSP    RSV\n"
    "n1              {}              -      8      0      0      0      0      0\n",
    "sge": "<qhost><host name='n1'><hostvalue name='num_proc'>8</hostvalue><queue name='a.q'><queuevalue "
    "name='slots_used'>0</queuevalue><queuevalue name='state_string'>{}</queuevalue></queue></host></qhost>",
}


@pytest.mark.parametrize("name", STATES)
def test_nodes_that_take_no_jobs_are_not_idle(name: str) -> None:
    free, other = STATES[name]

    def count_nodes(state: str) -> tuple[int, int | None] | None:
        return inventory(SYSTEMS[name], CommandResult(0, NODES[name].format(state))).count_nodes([])

    assert {state: count_nodes(state) for state in free.split(" ")} == dict.fromkeys(free.split(" "), (1, 1))
    assert {state: count_nodes(state) for state in other.split()} == dict.fromkeys(other.split(), (1, 0))


def test_states_of_a_real_slurm() -> None:
    assert inventory(SYSTEMS["slurm"], recorded("slurm/nodes_odd")).count_nodes(["batch"]) == (4, 1)


def test_nodes_that_are_down_are_counted_although_their_size_is_not_known() -> None:
    lsf = (
        "HOST_NAME          STATUS       JL/U    MAX  NJOBS    RUN  SSUSP  USUSP    RSV\n"
        "n1                 ok              -      8      0      0      0      0      0\n"
        "n2                 unavail         -      -      0      0      0      0      0\n"
        "HOST_NAME                       type       model  cpuf ncpus maxmem maxswp server RESOURCES\n"
        "n1                            X86_64      Intel  12.5     8  23.5G      -    Yes (cs)\n"
        "n2                           UNKNOWN    UNKNOWN_  1.0      -      -      -    Yes (cs)\n"
    )
    assert inventory(LSF(), CommandResult(0, lsf)).count_nodes([]) == (2, 1)
    down = NODES["sge"].format("au").replace("'num_proc'>8", "'num_proc'>-")
    down = down.replace("<queuevalue", "<queuevalue name='slots'>4</queuevalue><queuevalue", 1)
    assert inventory(SGE(), CommandResult(0, down)).nodes == [Nodes(4, idle=0)]


def config(**options: Any) -> ClusterConfig:
    table = {"kind": "slurm", "work_dir": "/w", "python": "/py", "node_cpus": 8, "node_memory": 16000}
    return ClusterConfig.model_validate({**table, **options})


def words(name: str, answer: CommandResult | None = None, **options: Any) -> dict[str, tuple[str, str]]:
    found = node_checks.node_checks(config(**options), SYSTEMS[name], answer or recorded(f"{name}/nodes"))
    return {each.what: ("warning" if each.warns else "ok" if each.good else "BAD", each.message) for each in found}


def test_nodes_that_are_large_enough() -> None:
    [nodes] = words("slurm").items()
    assert nodes == ("nodes", ("ok", "4 of the 4 nodes of the cluster have node_cpus = 8 and node_memory = 16000 MiB"))
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


def test_what_is_not_reported_is_a_warning() -> None:
    found = words("slurm", CommandResult(127, "", "sinfo: not found"))
    assert found["nodes"][0] == "warning"
    assert "were not compared with them: sinfo: not found" in found["nodes"][1]


def test_for_how_long_a_job_of_a_queue_may_run() -> None:
    recording = recorded("slurm/nodes")
    text = re.sub(r"MaxTime=\S+", "MaxTime=UNLIMITED", recording.stdout)
    assert inventory(SYSTEMS["slurm"], CommandResult(0, text)).longest == {}
    text = re.sub(r"(PartitionName=short .*?)MaxTime=\S+", r"\1MaxTime=1-00:05:00", text)
    slurm = inventory(SYSTEMS["slurm"], CommandResult(0, text))
    assert slurm.longest == {"short": 86400 + 300}
    assert slurm.longest_in("short") == 86700
    assert slurm.longest_in("batch,short") is None, "in one of them it may run for any time"
    queues = '{"Queue": {"q": {"resources_max": {"walltime": "02:00:00"}}, "r": {}}}'
    nodes = '{"nodes": {"n": {"resources_available": {"ncpus": 1}}}}'
    pbs = f'{nodes}\n{queues}\n{{"Server": {{"s": {{"resources_max": {{"walltime": "72:00:00"}}}}}}}}\n'
    assert inventory(PBSPro(), CommandResult(0, pbs)).longest == {"q": 7200, "r": 259200}
    torque = "n\n    np = 1\n\nQueue: q\n    resources_max.walltime = 00:10:00\n\nQueue: r\n    x = 1\n\nServer: s\n"
    found = inventory(SYSTEMS["torque"], CommandResult(0, torque + "    default_queue = q\n"))
    assert (found.longest, found.longest_in(None), found.longest_in("r")) == ({"q": 600}, 600, None)
