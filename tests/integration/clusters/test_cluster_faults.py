"""How the jobs of a batch cluster end when something fails. The jobs only ask an API server for its health."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lading.executors.agent.tasks import probe
from lading.hooks.cluster.site import ClusterSite
from lading.hooks.ssh.paramiko_transport import ReverseTunnel
from lading.plugin.manager import site_kinds
from lading.scheduling.model.reasons import free_text
from lading.scheduling.model.resources import Layout
from tests.clusters.asked import cancel, look
from tests.clusters.driven import HEALTH, Driven, asked, run_commands
from tests.reasons import message_in
from tests.services import node_python
from tests.services.account import Account
from tests.services.execution_api import ExecutionApi
from tests.services.gridengine import GridEngine
from tests.services.processes import wait_until
from tests.services.slurm import Slurm
from tests.services.sshd import Sshd

# What slurmctld logs of each refused submission.
REFUSED = "Job violates accounting/QOS policy"


class Site(Driven[ClusterSite]):
    """A controller's side of a cluster, and the events of the cluster."""

    patience = 90.0
    pause = 0.2

    def forget(self) -> None:
        """Stop without cleaning up, as a controller that is killed."""
        self.site.rounds.stop(60.0)


@pytest.fixture(scope="module")
def python(account: Account) -> Path:
    return node_python.make(account)


@pytest.fixture
def make(
    account: Account, python: Path, api: ExecutionApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Site]]:
    """Make controllers' sides of one cluster: of kind, login node and options."""
    made: list[Site] = []
    work_dir = f"{account.home}/{uuid.uuid4()}"

    def build(kind: str, login: Sshd, **options: Any) -> Site:
        monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", login.connection())
        site = site_kinds()[kind]
        table = {"ssh_conn_id": "cluster", "work_dir": work_dir, "python": str(python), "api_url": f"{api.url}"}
        table |= {"node_cpus": 8, "node_memory": 16000, "max_poll_interval": 3, "kill_grace": 2, "lost_after": 30}
        table["setup"] = f"export AIRFLOW_HOME={account.home}/airflow AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT=900"
        # Only Airflow's tasks find their way through a tunnel.
        workload = probe.workload() if "api" in options else run_commands(monkeypatch)
        config = site.config_model(kind=kind, **{**table, **options})
        made.append(Site(site("hpc", config, tmp_path / str(len(made))), workload))  # type: ignore[arg-type]
        return made[-1]

    yield build
    for each in made:
        each.site.close("leave", 1.0)


@pytest.fixture(scope="module")
def fragile(account: Account) -> Iterator[tuple[Slurm, Sshd]]:
    """A SLURM of the module's own, which may be killed."""
    with Slurm(account, nodes=2) as slurm, Sshd(account, environment=slurm.environment) as login:
        yield slurm, login


def test_a_controller_is_killed(make: Callable[..., Site], fragile: tuple[Slurm, Sshd], api: ExecutionApi) -> None:
    api.gates[HEALTH] = threading.Event()
    first = make("slurm", fragile[1])
    tokens = first.put(2)
    first.wait_for("started", tokens[:1])
    first.forget()
    second = make("slurm", fragile[1])
    second.look()
    assert wait_until(lambda: set(tokens) <= (look(second.site).known or set()), 60)
    api.gates[HEALTH].set()
    assert {event["cause"] for event in second.wait_for("finished", tokens)} == {None}
    assert asked(api) == len(tokens), "each ran once"


def test_daemons_are_killed_under_load(
    make: Callable[..., Site], fragile: tuple[Slurm, Sshd], api: ExecutionApi
) -> None:
    slurm, login = fragile
    api.gates[HEALTH] = threading.Event()
    site = make("slurm", login)
    tokens = site.put(2)
    site.wait_for("started", tokens[:1])
    [submission] = site.site.poller.tracker.submissions.values()
    assert submission.id is not None
    assert slurm.wait_until_saved(submission.id), "a slurmctld that has not saved a job kills it when it is back"
    login.restart()
    slurm.kill_controller()
    tokens += site.put(2)
    assert wait_until(lambda: "could not be queried" in (look(site.site).note or ""), 30, 0.2)
    api.gates[HEALTH].set()
    slurm.start_controller()
    assert {event["cause"] for event in site.wait_for("finished", tokens)} == {None}
    assert asked(api) == len(tokens), "each ran once"


def test_slurm_grants_what_there_is_of_a_range_of_nodes(
    make: Callable[..., Site], fragile: tuple[Slurm, Sshd], api: ExecutionApi
) -> None:
    slurm, login = fragile
    slurm.scontrol("update", "PartitionName=short", "MaxNodes=1")
    slurm.drain_node("n2")
    site = make("slurm", login)
    wide = Layout(nodes=8, ppn=2, least_nodes=1)
    try:
        tokens = site.put(2, layout=wide)
        assert {event["nodes"] for event in site.wait_for("started", tokens)} == {1}
        assert {event["cause"] for event in site.wait_for("finished", tokens)} == {None}
        most = dict(look(site.site).location.most_nodes or ())
        assert most == {"": 2, "batch": 2, "short": 1}, "what is drained now is counted"
    finally:
        slurm.resume_node("n2")
        slurm.scontrol("update", "PartitionName=short", "MaxNodes=UNLIMITED")
    [token] = site.put(1, layout=replace(wide, least_nodes=2))
    [event] = site.wait_for("started", [token])
    assert event["nodes"] == 2
    [token] = site.put(1, layout=Layout(nodes=2))
    [event] = site.wait_for("started", [token])
    assert event.get("nodes") is None, "what was asked for exactly it has"


def test_a_node_fails(make: Callable[..., Site], fragile: tuple[Slurm, Sshd], api: ExecutionApi) -> None:
    slurm, login = fragile
    api.delays[HEALTH] = 600
    site = make("slurm", login)
    tokens = site.put(2, cpus=5)  # one on each node
    site.wait_for("started", tokens)
    jobs = site.site.poller.tracker.jobs
    assert wait_until(lambda: {jobs[token].node for token in tokens} == {"n1", "n2"}, 20, 0.2)
    node = str(jobs[tokens[0]].node)
    slurm.kill_node(node)
    try:
        [event] = site.wait_for("finished", tokens[:1])
        assert event["cause"] == "node_failure", event
    finally:
        slurm.start_node(node)
    tokens += site.put(1)
    site.wait_for("started", tokens[2:])
    submission = jobs[tokens[2]].submission
    assert submission is not None
    assert f"ExcNodeList={node}" in slurm.scontrol("show", "job", str(submission.id))
    cancel(site.site, dict.fromkeys(tokens[1:], free_text("enough")))
    site.wait_for("finished", tokens[1:])


def test_nodes_that_reach_only_the_login_node(
    make: Callable[..., Site],
    fragile: tuple[Slurm, Sshd],
    account: Account,
    api: ExecutionApi,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passed: list[str] = []
    serve = ReverseTunnel._serve
    monkeypatch.setattr(ReverseTunnel, "_serve", lambda *each: (passed.append("one"), serve(*each)))
    with Sshd(account, environment=fragile[0].environment, options={"GatewayPorts": "no"}) as login:
        site = make("slurm", login, api="tunnel", tunnel_host="127.0.0.5")
        [event] = site.wait_for("finished", site.put(1))
        assert (event["cause"], asked(api), len(passed)) == (None, 1, 1)
        tunnel = site.site.tunnel
        assert tunnel is not None
        address = tunnel.address
        login.restart()
        assert wait_until(lambda: not tunnel.stands, 60, 0.1)
        assert wait_until(lambda: tunnel.stands, 60, 0.1)
        assert tunnel.address == address, "jobs that run know this one"
        found = {check.what: check for check in site.site.checks()}
        assert found["api"].good, found["api"]
        assert f"through the tunnel at {address}" in found["api"].message
        # One request from this machine for the execution API, and one more through the tunnel.
        assert (asked(api), len(passed)) == (2, 3), "the check takes the tunnel that stands"


def test_a_login_node_that_forwards_nothing(
    make: Callable[..., Site], fragile: tuple[Slurm, Sshd], account: Account
) -> None:
    with Sshd(account, environment=fragile[0].environment, options={"AllowTcpForwarding": "no"}) as login:
        site = make("slurm", login, api="tunnel", tunnel_host="127.0.0.5")
        [token] = site.put(1)

        def told() -> bool:
            site.look()
            return "AllowTcpForwarding" in site.solo.reasons.get(token, "")

        assert wait_until(told, 90, 0.2), site.solo.reasons
        reason = site.solo.reasons[token]
        assert "accepts no jobs now: no tunnel leads to Airflow's API: the SSH server refuses" in reason
        assert "AllowTcpForwarding" in reason
        assert "AllowTcpForwarding" in (look(site.site).note or "")
        assert not list(site.site.poller.tracker.live()), "nothing is submitted"
        [found] = [check for check in site.site.checks() if check.what == "api"]
        assert not found.good
        assert "AllowTcpForwarding" in found.message


def test_a_user_may_have_few_jobs(
    make: Callable[..., Site], slurm: Slurm, slurm_login: Sshd, api: ExecutionApi
) -> None:
    log = slurm.folder / "logs" / "slurmctld"
    before, began = log.read_text().count(REFUSED), time.monotonic()
    slurm.limit_jobs(4)
    try:
        site = make("slurm", slurm_login)
        tokens = site.put(20)
        assert {event["cause"] for event in site.wait_for("finished", tokens, 600)} == {None}
        assert any(
            "4 jobs are submitted, and AssocMaxSubmitJobLimit allows 4" in message_in(event)
            for event in site.events_of("waiting").values()
        )
        refused = log.read_text().count(REFUSED) - before
        assert 1 <= refused <= 2 + (time.monotonic() - began) / 60 + len(tokens) / 4, "no storm"
        assert asked(api) >= len(tokens)
    finally:
        slurm.limit_jobs(None)


def test_a_task_of_nearly_all_the_time_of_its_partition_starts(
    make: Callable[..., Site], slurm: Slurm, slurm_login: Sshd, api: ExecutionApi
) -> None:
    slurm.scontrol("update", "PartitionName=short", "MaxTime=5")
    try:
        site = make("slurm", slurm_login, queue="short", time_limit=180)
        tokens = site.put(1)
        assert {event["cause"] for event in site.wait_for("finished", tokens)} == {None}
        too_long = make("slurm", slurm_login, queue="short", time_limit=400)
        [token] = too_long.put(1)
        [event] = too_long.wait_for("finished", [token])
        assert event["cause"] == "submit_rejected"
        assert "time = 6 min 40 s, but a job in queue 'short' can run for at most 5 min" in str(event["reason"])
    finally:
        slurm.scontrol("update", "PartitionName=short", "MaxTime=UNLIMITED")


def test_grid_engine(
    make: Callable[..., Site], gridengine: GridEngine, gridengine_login: Sshd, api: ExecutionApi
) -> None:
    site = make("sge", gridengine_login, node_cpus=1)
    assert [check.good for check in site.site.checks()] == [True] * 6
    tokens = site.put(2)
    assert {event["cause"] for event in site.wait_for("finished", tokens)} == {None}
    host, nodes = gridengine.host, site.site.poller.nodes
    for node in (host, "x1", "x2", "x3"):
        nodes.seen(node)
    nodes.failed("x1", "test")
    nodes.failed(host, "test")
    [kept_away] = site.put(1)
    site.look()
    jobs = site.site.poller.tracker.jobs
    assert wait_until(lambda: kept_away in jobs and jobs[kept_away].native is not None, 30, 0.2)
    nodes.failed("x2", "test")
    nodes.failed("x3", "test")
    assert {event["cause"] for event in site.wait_for("finished", site.put(1))} == {None}, "!(x2|x3) is for any other"
    assert kept_away not in site.events_of("started"), "though it came first"
    cancel(site.site, {kept_away: free_text("enough")})
    site.wait_for("finished", [kept_away])
    gridengine.close_queue()
    [waiting] = site.put(1)
    site.look()
    native = site.site.poller.tracker
    assert wait_until(lambda: waiting in native.jobs and native.jobs[waiting].native is not None, 30, 0.2)
    cancel(site.site, {waiting: free_text("enough")})
    [event] = site.wait_for("finished", [waiting])
    assert (event["cause"], str(event["reason"])) == ("cancelled", "enough")
    gridengine.open_queue()
    api.delays[HEALTH] = 600
    [running] = site.put(1)
    site.wait_for("started", [running])
    cancel(site.site, {running: free_text("marked failed")})
    [event] = site.wait_for("finished", [running])
    assert event["cause"] == "cancelled"
