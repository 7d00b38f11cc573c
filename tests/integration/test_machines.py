"""Machines behind SSH: real sshds of unprivileged users, on each a node agent. Jobs only ask an API for its health."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from lading.executors.agent.tasks import probe
from lading.hooks.machines import introduction
from lading.hooks.machines.fixed import FixedSite
from lading.hooks.machines.fixed_config import SSHConfig
from lading.hooks.site import LocationState, ObservedLocation
from lading.scheduling.model.reasons import free_text
from tests.clusters.driven import HEALTH, Driven, asked, run_commands
from tests.services import debian, node_python
from tests.services.account import Account
from tests.services.execution_api import ExecutionApi
from tests.services.processes import wait_until
from tests.services.small_disk import small_disk
from tests.services.sshd import Sshd

SETUP = "export AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT=900"


class Host:
    """A machine: an account and an sshd of its own."""

    def __init__(self, name: str, account: Account, sshd: Sshd) -> None:
        self.name = name
        self.account = account
        self.sshd = sshd
        self.python = node_python.make(account)


class Lab(Driven[FixedSite]):
    """A controller's side of some machines, and the events of these."""

    is_forgotten = False

    def states(self) -> dict[str, LocationState]:
        return {each.name: each.state for each in self.site.observe().locations}

    def forget(self) -> None:
        """Stop without cleaning up, as a controller that is killed."""
        self.is_forgotten = True
        for each in self.site.connections.values():
            each.rounds.stop(60)


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    with ExitStack() as stack:
        found = []
        for number in range(2):
            account = stack.enter_context(Account())
            found.append(Host(f"lab{number + 1}", account, stack.enter_context(Sshd(account))))
        yield found


@pytest.fixture
def make(
    hosts: list[Host], api: ExecutionApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Lab]]:
    """Make controllers' sides of the machines."""
    made: list[Lab] = []
    shared = Path(tempfile.mkdtemp(prefix="lading-machines-", dir="/var/tmp"))
    shared.chmod(0o1777)  # the machines of the tests are one

    def build(more: Sequence[Host] = (), **options: Any) -> Lab:
        for host in (*hosts, *more):
            monkeypatch.setenv(f"AIRFLOW_CONN_{host.name.upper()}", host.sshd.connection())
        table: dict[str, Any] = {
            "kind": "ssh",
            "hosts": [{"ssh_conn_id": host.name, "cpus": 2, "memory": 4000} for host in hosts],
            "work_dir": str(shared),
            "python": str(hosts[0].python),
            "api_url": api.url,
            "kill_grace": 2,
            "setup": SETUP,
        }
        # Only Airflow's tasks find their way through a tunnel.
        workload = probe.workload() if "api" in options else run_commands(monkeypatch)
        config = SSHConfig(**{**table, **options})
        made.append(Lab(FixedSite("lab", config, tmp_path / str(len(made))), workload))
        return made[-1]

    yield build
    for each in made:
        each.site.close("cancel", 0.0 if each.is_forgotten else 20.0)

    def is_gone() -> bool:
        shutil.rmtree(shared, ignore_errors=True)  # an agent that was forgotten may still write into it
        return not shared.exists()

    assert wait_until(is_gone, 60)


def agent_of(lab: Lab, host: Host) -> int:
    """The pid of its node agent."""
    root = Path(lab.site.connections[host.name].machine.root)
    return int(json.loads((root / "spool/agent.json").read_text())["pid"])


def test_jobs_run_on_all_machines(make: Callable[..., Lab], hosts: list[Host], api: ExecutionApi) -> None:
    lab = make()
    assert wait_until(lambda: set(lab.states().values()) == {LocationState.UP}, 30)
    assert set(lab.states()) == {"lab1", "lab2"}
    api.delays[HEALTH] = 2
    tokens = lab.put(8)
    lab.look()
    assert {given.location for given in lab.solo.given.values()} == {"lab1", "lab2"}
    assert {event["cause"] for event in lab.wait_for("finished", tokens)} == {None}
    assert lab.events_of("started").keys() == set(tokens)
    assert asked(api) == len(tokens), "each ran once"
    for host in hosts:
        machine = lab.site.connections[host.name].machine
        root = Path(machine.root)
        assert root.stat().st_uid == host.account.uid
        assert (root.stat().st_mode & 0o777, (root / "spool").stat().st_mode & 0o777) == (0o700, 0o700)
        assert wait_until(lambda root=root: not list((root / "spool/events").iterdir()), 10), "what is stored goes"  # type: ignore[misc]
        assert machine.tracker.known() == frozenset()


def test_a_controller_is_killed(make: Callable[..., Lab], api: ExecutionApi) -> None:
    api.gates[HEALTH] = threading.Event()
    first = make()
    tokens = first.put(4)
    first.wait_for("started", tokens)
    first.forget()
    second = make()
    second.take_over(first)

    def known() -> set[str]:
        second.look()
        return {token for seen in second.solo.seen for token in seen.known or ()}

    assert wait_until(lambda: known() == set(tokens), 60)
    api.gates[HEALTH].set()
    assert {event["cause"] for event in second.wait_for("finished", tokens)} == {None}
    assert asked(api) == len(tokens), "each ran once"


def test_an_agent_is_killed(make: Callable[..., Lab], hosts: list[Host], api: ExecutionApi) -> None:
    api.gates[HEALTH] = threading.Event()
    lab = make()
    tokens = lab.put(4)
    lab.wait_for("started", tokens)
    before = {host.name: agent_of(lab, host) for host in hosts}
    for pid in before.values():
        os.kill(pid, signal.SIGKILL)
    api.gates[HEALTH].set()
    assert {event["cause"] for event in lab.wait_for("finished", tokens)} == {None}
    assert asked(api) == len(tokens), "its jobs live on, and none begins anew"
    # Supervisors report the ends of jobs themselves.
    assert wait_until(lambda: all(agent_of(lab, host) != before[host.name] for host in hosts), 60)


def test_a_machine_that_hangs_holds_up_no_other(make: Callable[..., Lab], hosts: list[Host], api: ExecutionApi) -> None:
    lab = make()
    lab.wait_for("finished", lab.put(4))
    api.gates[HEALTH] = threading.Event()
    tokens = lab.put(4)
    lab.wait_for("started", tokens)
    hosts[0].sshd.freeze()
    try:
        on_the_other = [token for token, given in lab.solo.given.items() if given.location == hosts[1].name]
        assert on_the_other
        api.gates[HEALTH].set()
        lab.wait_for("finished", on_the_other)
    finally:
        hosts[0].sshd.thaw()
    assert {event["cause"] for event in lab.wait_for("finished", tokens)} == {None}


def test_connections_are_cut_again_and_again(make: Callable[..., Lab], hosts: list[Host], api: ExecutionApi) -> None:
    api.delays[HEALTH] = 0.5
    lab = make()
    tokens: list[str] = []
    end = time.monotonic() + 12
    while time.monotonic() < end:
        tokens += lab.put(2)
        with suppress(OSError):
            lab.look()
        time.sleep(random.uniform(0.05, 0.4))
        random.choice(hosts).sshd.cut()
    assert {event["cause"] for event in lab.wait_for("finished", tokens)} == {None}
    assert asked(api) == len(tokens), "nothing is lost, and nothing runs twice"


def test_a_machine_that_stays_away_is_gone_after_the_deadline(
    make: Callable[..., Lab], hosts: list[Host], api: ExecutionApi
) -> None:
    lab = make(lost_after=8)
    lab.look()
    api.gates[HEALTH] = threading.Event()
    tokens = lab.put(4)
    lab.wait_for("started", tokens)
    hosts[0].sshd.halt()
    away: list[ObservedLocation] = []

    def is_away() -> bool:
        away[:] = [each for each in lab.site.observe().locations if each.name == "lab1"]
        return away[0].state is LocationState.UNREACHABLE

    try:
        assert wait_until(is_away, 20, 0.05)
        assert away[0].known is None, "nothing is concluded"
        assert wait_until(lambda: lab.states() == {"lab2": LocationState.UP}, 20)
        assert "lab1 has not been reached for 8 s, so its jobs count as lost" in str(lab.site.observe().note)
    finally:
        hosts[0].sshd.start()
    assert wait_until(lambda: lab.states() == {"lab1": LocationState.UP, "lab2": LocationState.UP}, 30)
    lab.solo.cancel(dict.fromkeys(tokens, free_text("over")))
    assert {event["cause"] for event in lab.wait_for("finished", tokens)} == {"cancelled"}


def test_through_a_tunnel(make: Callable[..., Lab], hosts: list[Host], api: ExecutionApi) -> None:
    lab = make(api="tunnel")
    lab.look()
    assert {event["cause"] for event in lab.wait_for("finished", lab.put(4))} == {None}
    hosts[0].sshd.cut()
    hosts[1].sshd.cut()
    connected = [reached.machine.transport for reached in lab.site.connections.values()]
    assert wait_until(lambda: [lab.look(), all(host.sshd.connections_of_now() for host in hosts)][1], 60), connected
    tunnels = [reached.rounds.tunnel for reached in lab.site.connections.values()]
    assert wait_until(lambda: all(tunnel is not None and tunnel.stands for tunnel in tunnels), 60), "it is built again"
    assert {event["cause"] for event in lab.wait_for("finished", lab.put(4))} == {None}
    texts = [(Path(lab.site.connections[host.name].machine.root) / "api_address").read_text() for host in hosts]
    assert all(text.startswith("127.0.0.1 ") for text in texts)


def test_an_agent_of_another_setup_gives_way(make: Callable[..., Lab], hosts: list[Host], api: ExecutionApi) -> None:
    first = make()
    api.gates[HEALTH] = threading.Event()
    tokens = first.put(1)
    first.wait_for("started", tokens)
    busy = next(host for host in hosts if host.name == next(iter(first.solo.given.values())).location)
    before = agent_of(first, busy)
    first.forget()
    second = make(setup=f"echo noise; export NEW=1\n{SETUP}")
    second.take_over(first)
    second.look()
    assert wait_until(lambda: second.states()[busy.name] is LocationState.DRAINING, 60)
    api.gates[HEALTH].set()
    assert [event["cause"] for event in second.wait_for("finished", tokens)] == [None]
    assert wait_until(lambda: second.states()[busy.name] is LocationState.UP, 20)
    assert wait_until(lambda: agent_of(second, busy) != before, 20)


def test_versions_refuse_each_other(make: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(introduction, "VERSION", "9.9")
    lab = make()
    with pytest.raises(OSError, match=r"Lading 0.1.0 is installed there, but the controller has 9.9: install the same"):
        lab.look()
    assert [check.good for check in lab.site.checks()] == [False, False]


def test_what_is_checked(make: Callable[..., Lab], hosts: list[Host]) -> None:
    lab = make()
    found = list(lab.site.checks())
    assert [(check.what, check.good) for check in found] == [("machine lab1", True), ("machine lab2", True)]
    assert "2 cpus" in found[0].message
    assert not (Path(lab.site.config.work_dir) / "lab1").exists(), "no agent is started by a look"
    trial = lab.site.trial(lab.site.folder / "trial")
    assert isinstance(trial, FixedSite)
    tried = Lab(trial)
    assert [event["cause"] for event in tried.wait_for("finished", tried.put(1))] == [None]
    trial.close("cancel", 20)
    assert not any((Path(trial.config.work_dir) / host.name).exists() for host in hosts)


def test_a_folder_that_cannot_be_used(make: Callable[..., Lab], hosts: list[Host]) -> None:
    lab = make()
    theirs = Path(lab.site.config.work_dir) / "lab1"
    theirs.mkdir(mode=0o700)

    def told() -> dict[str, tuple[LocationState, str]]:
        with suppress(OSError):  # neither has answered
            return {each.name: (each.state, str(each.note)) for each in lab.site.observe().locations}
        return {}

    def is_told() -> bool:
        state, note = told().get("lab1", (None, ""))
        return state is LocationState.UNREACHABLE and "cannot be used" in note

    assert wait_until(is_told, 60), told()
    assert wait_until(lambda: told()["lab2"][0] is LocationState.UP, 60), told()
    theirs.rmdir()
    assert wait_until(lambda: lab.states()["lab1"] is LocationState.UP, 20), "it is tried again"


@pytest.mark.parametrize("shell", ["fish", "csh", "bash"])  # of which bash reads its .bashrc for a command, too
def test_unlike_shells_and_noise(make: Callable[..., Lab], hosts: list[Host], shell: str) -> None:
    debian.install(shell)
    host = hosts[0]
    host.account.write(".bashrc", "echo lading-host noise; echo more >&2\n")
    host.account.write(".cshrc", "echo noise of csh\n")
    subprocess.run(["usermod", "--shell", f"/usr/bin/{shell}", host.account.name], check=True)
    try:
        lab = make(login_setup="echo setup speaks", hosts=[{"ssh_conn_id": host.name, "cpus": 2, "memory": 4000}])
        assert {event["cause"] for event in lab.wait_for("finished", lab.put(3))} == {None}
    finally:
        subprocess.run(["usermod", "--shell", "/bin/bash", host.account.name], check=True)
        for name in (".bashrc", ".cshrc"):
            (host.account.home / name).unlink()


def test_a_machine_is_rebooted_and_its_folder_is_lost(
    make: Callable[..., Lab], hosts: list[Host], api: ExecutionApi
) -> None:
    host = Host("lab3", hosts[0].account, Sshd(hosts[0].account, boots=True))
    with host.sshd as sshd:
        lab = make(hosts=[{"ssh_conn_id": host.name, "cpus": 2, "memory": 4000}], more=[host])
        api.delays[HEALTH] = 600
        tokens = lab.put(2)
        lab.wait_for("started", tokens)
        sshd.halt()
        shutil.rmtree(lab.site.connections[host.name].machine.root)
        sshd.reboot()
        assert {event["cause"] for event in lab.wait_for("finished", tokens)} == {"node_failure"}
        api.delays[HEALTH] = 0
        assert {event["cause"] for event in lab.wait_for("finished", lab.put(2))} == {None}
        lab.site.close("cancel", 20)


def test_a_full_disk_holds_jobs_up_and_loses_none(make: Callable[..., Lab], hosts: list[Host]) -> None:
    with small_disk() as folder:
        lab = make(work_dir=str(folder))
        assert {event["cause"] for event in lab.wait_for("finished", lab.put(2))} == {None}
        filler = folder / "filler"

        def held_up() -> bool:
            with suppress(OSError), filler.open("ab", buffering=0) as stream:
                while stream.write(b"x" * 65536):  # also what comes free meanwhile
                    pass
            return LocationState.UNREACHABLE in lab.states().values()

        def left_over() -> list[Path]:
            """What is there of the first jobs: what would go with it makes room for the next ones."""
            lab.look()
            return [each for name in ("events", "jobs", "logs") for each in folder.glob(f"lab*/**/{name}/*")]

        assert wait_until(lambda: not left_over(), 60, 0.2)
        held_up()
        tokens = lab.put(3)
        lab.look()

        def is_told() -> bool:
            return held_up() and any("could not be written" in str(each.note) for each in lab.site.observe().locations)

        assert wait_until(is_told, 30)
        filler.unlink()
        assert {event["cause"] for event in lab.wait_for("finished", tokens)} == {None}
        lab.site.close("cancel", 20)


def test_a_key_that_is_not_known_is_refused_with_the_line_to_add(
    make: Callable[..., Lab], hosts: list[Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = make()
    monkeypatch.setenv(f"AIRFLOW_CONN_{hosts[0].name.upper()}", hosts[0].sshd.connection(host_key=None))

    def both_are_known() -> bool:
        with suppress(OSError):  # neither has answered
            found = {each.name: each for each in lab.site.observe().locations}
            refused, other = (found[host.name] for host in hosts)
            return other.state is LocationState.UP and "ssh-keyscan" in str(refused.note)
        return False

    assert wait_until(both_are_known, 60)
    [refused] = [each for each in lab.site.observe().locations if each.name == hosts[0].name]
    assert (refused.state, refused.known) == (LocationState.UNREACHABLE, None)
    assert f"`ssh-keyscan -p {hosts[0].sshd.port} 127.0.0.1` prints it" in str(refused.note)
    assert '"host_key": "ssh-ed25519 ' in str(refused.note)
    check = next(check for check in lab.site.checks() if check.what.endswith(hosts[0].name))
    assert not check.good
    assert "ssh-keyscan" in check.message


def test_a_key_that_has_changed_is_refused_with_what_to_do(
    make: Callable[..., Lab], hosts: list[Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = make(max_poll_interval=1)
    assert wait_until(lambda: set(lab.states().values()) == {LocationState.UP}, 30)
    wrong = hosts[0].sshd.connection(host_key=hosts[0].sshd.other_key)
    monkeypatch.setenv(f"AIRFLOW_CONN_{hosts[0].name.upper()}", wrong)
    hosts[0].sshd.cut()
    refused: list[ObservedLocation] = []

    def is_refused() -> bool:  # at first it is only known that the connection is lost
        refused[:] = [each for each in lab.site.observe().locations if each.name == hosts[0].name]
        return refused[0].state is LocationState.UNREACHABLE and "host_key" in str(refused[0].note)

    assert wait_until(is_refused, 30), refused
    assert refused[0].known is None, "nothing is concluded"
    assert {event["cause"] for event in lab.wait_for("finished", lab.put(1))} == {None}, "the other one works"


def test_a_clock_that_is_wrong(make: Callable[..., Lab], hosts: list[Host], tmp_path: Path) -> None:
    """It is an hour ahead for the commands, and for the agent that they start."""
    debian.install("faketime")
    library = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    shift = f"export LD_PRELOAD={library} FAKETIME=+1h DONT_FAKE_MONOTONIC=1"
    lab = make(login_setup=shift, hosts=[{"ssh_conn_id": hosts[0].name, "cpus": 2, "memory": 4000}])
    begun = time.time()
    tokens = lab.put(2)
    ends = lab.wait_for("finished", tokens)
    assert {event["cause"] for event in ends} == {None}
    times = [event["at"] for event in (*ends, *lab.events_of("started").values())]
    # By the controller's clock, as well as one look can tell what the other one says.
    assert all(begun - 60 < at < time.time() + 60 for at in times), times
