"""The three ways to a site, against a real sshd where there is one."""

from __future__ import annotations

import contextlib
import http.server
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lading.hooks.ssh import paramiko_transport
from lading.hooks.ssh.answer import TransportError
from lading.hooks.ssh.backoff import Backoff
from lading.hooks.ssh.local_transport import ShellTransport
from lading.hooks.ssh.openssh_transport import ControlMasterTransport
from lading.hooks.ssh.paramiko_transport import SSHTransport
from lading.hooks.ssh.steps import GetAll, Put, RunCommand
from lading.hooks.ssh.transport import Transport
from tests.services import debian, processes
from tests.services.small_disk import small_disk
from tests.services.sshd import Sshd

REMOTE = ("ssh", "control_master")
ALL = ("shell", *REMOTE)
NOISE = "echo 'Welcome to the cluster'; echo 'quota exceeded' >&2; printf 'no line end'\n"
# File names that a careless line of shell would trip over.
NAMES = [
    "plain",
    "with blanks",
    'it\'s "quoted"',
    "-rf",
    "$(touch x) `id`",
    "new\nline",
    "späte Äpfel",
    "*",
    "a/b/c",
    "a/d",
]


class Site:
    """What a test needs of one way to a site."""

    def __init__(self, kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kind = kind
        self.home = folder / "home"
        self.home.mkdir()
        self.folder = folder
        self.monkeypatch = monkeypatch
        self.opened = contextlib.ExitStack()
        self.server: Sshd | None = None

    def open(self, *, setup: str = "", patience: int = 60, options: dict[str, str] | None = None) -> Transport:
        """The transport; starts the sshd where it needs one.

        :param options: of the sshd
        """
        if self.kind == "shell":
            self.monkeypatch.setenv("HOME", str(self.home))
            return self.opened.enter_context(ShellTransport(setup=setup))
        if self.server is None:
            server = Sshd(options=options, environment={"HOME": str(self.home)})
            self.server = self.opened.enter_context(server)
        made: Transport
        backoff = Backoff(first=0.2, longest=0.4)
        if self.kind == "ssh":
            self.monkeypatch.setenv("AIRFLOW_CONN_SITE", self.server.connection())
            made = SSHTransport("site", setup=setup, connect_timeout=patience, backoff=backoff)
        else:
            made = ControlMasterTransport(
                "site",
                config_file=self.server.client_config,
                folder=self.folder / "control",
                setup=setup,
                connect_timeout=patience,
                backoff=backoff,
            )
        return self.opened.enter_context(made)

    @property
    def sshd(self) -> Sshd:
        assert self.server is not None
        return self.server


@pytest.fixture
def make_site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Site]]:
    made: list[Site] = []

    def make(kind: str) -> Site:
        # The folders of pytest may have names that are too long for a socket's.
        made.append(Site(kind, Path(tempfile.mkdtemp(prefix="lading-")), monkeypatch))
        return made[-1]

    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    yield make
    for site in made:
        site.opened.close()
        shutil.rmtree(site.folder, ignore_errors=True)


@pytest.fixture(params=ALL)
def site(request: pytest.FixtureRequest, make_site: Callable[[str], Site]) -> Site:
    return make_site(request.param)


@pytest.fixture(params=REMOTE)
def remote(request: pytest.FixtureRequest, make_site: Callable[[str], Site]) -> Site:
    return make_site(request.param)


@pytest.fixture
def black_hole() -> Iterator[int]:
    """A port that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def all_files(transport: Transport, folder: str, most: int = 1000) -> dict[str, bytes]:
    step = GetAll(folder, most)
    (answer,) = transport.exchange([step])
    assert answer.status == 0, answer.stderr
    return step.files(answer)


def only(transport: Transport, command: str, timeout: float = 120) -> tuple[int | None, str, str]:
    (answer,) = transport.run([command], timeout)
    return answer.status, answer.stdout, answer.stderr


# -- commands


def test_answers_come_back_apart(site: Site) -> None:
    answers = site.open().run(
        ["echo out; echo err >&2; exit 3", ["printf", "%s", "a 'b' $c"], "", "no-such-command", "if", "kill -9 $$"]
    )
    assert [answer.status for answer in answers] == [3, 0, 0, 127, 2, 137]
    assert (answers[0].stdout, answers[0].stderr) == ("out\n", "err\n")
    assert (answers[1].stdout, answers[1].stderr) == ("a 'b' $c", "")
    assert "not found" in answers[3].stderr or "No such file" in answers[3].stderr


def test_commands_have_input_and_folder(site: Site) -> None:
    (site.home / "a folder").mkdir()
    answers = site.open().run(
        [
            RunCommand(["cat"], stdin=b"#!/bin/sh\n'\"$x\n"),
            RunCommand("pwd; cat", stdin=b"x", folder="~/a folder"),
            ["cat"],
            "read x",
        ]
    )
    assert answers[0].stdout == "#!/bin/sh\n'\"$x\n"
    assert answers[1].stdout == f"{site.home}/a folder\nx"
    assert (answers[2].status, answers[2].stdout, answers[3].status) == (0, "", 1)


def test_a_missing_folder_fails_its_command_alone(site: Site) -> None:
    first, second = site.open().run([RunCommand("echo here", folder="/no/such/folder"), "echo there"])
    assert first.status
    assert not first.stdout
    assert (second.status, second.stdout) == (0, "there\n")


def test_setup_goes_before_all_commands(site: Site) -> None:
    transport = site.open(setup="echo noise; set -euf; IFS=x; SITE=hpc\nexport SITE  # no line end")
    assert only(transport, "false; echo $SITE '*'") == (0, "hpc *\n", "")
    transport.put(str(site.home / "folder"), {"name": b"x"})
    assert all_files(transport, str(site.home / "folder")) == {"name": b"x"}


def test_setup_that_fails_is_no_answer(site: Site) -> None:
    status, _, words = only(site.open(setup=". /no/such/settings.sh"), "echo here")
    assert status is None
    assert "/no/such/settings.sh" in words


@pytest.mark.parametrize("shell", ["bash", "tcsh"])
def test_noise_does_no_harm(remote: Site, shell: str) -> None:
    (remote.home / ".bashrc").write_text(NOISE)
    (remote.home / ".tcshrc").write_text(NOISE.replace("; echo 'quota exceeded' >&2", ""))
    (remote.home / "banner").write_text("AUTHORISED USE ONLY\n")
    options = {"Banner": str(remote.home / "banner")}
    if shell == "tcsh":
        if not Path("/bin/tcsh").exists():
            debian.install("tcsh")
        options["ForceCommand"] = '/bin/tcsh -c "$SSH_ORIGINAL_COMMAND"'
    transport = remote.open(options=options)
    assert only(transport, "echo out; echo err >&2") == (0, "out\n", "err\n")
    transport.put("~/x", {name: name.encode() for name in NAMES})
    assert transport.get("~/x", NAMES) == {name: name.encode() for name in NAMES}


def test_translated_line_ends_do_no_harm(remote: Site) -> None:
    command = "/bin/sh -c \"$SSH_ORIGINAL_COMMAND\" | sed 's/$/\\r/'"
    transport = remote.open(options={"ForceCommand": command})
    assert only(transport, "printf 'a\\nb\\n'")[:2] == (0, "a\nb\n")
    transport.put("~/x", {"binary": b"\r\n\0\n\xff"})
    assert transport.get("~/x", ["binary"]) == {"binary": b"\r\n\0\n\xff"}


def test_a_command_run_wild_is_abandoned(site: Site) -> None:
    transport = site.open()
    first, second, third = transport.run(["echo before", "cat /dev/zero", "echo after"])
    assert (first.status, first.stdout) == (0, "before\n")
    assert second.status is third.status is None
    assert str(64 * 1024 * 1024) in second.stderr
    assert only(transport, "echo again")[1] == "again\n"


def test_much_output_on_both_streams_arrives(site: Site) -> None:
    text = "head -c 5000000 /dev/zero | tr '\\0' 'x'"
    status, stdout, stderr = only(site.open(), f"{text}; {text} >&2; {text}")
    assert (status, len(stdout), len(stderr)) == (0, 10_000_000, 5_000_000)


def test_a_hanging_command_is_ended_over_there(site: Site) -> None:
    transport = site.open()
    answers = transport.run([RunCommand(["sleep", "98765.4"], limit=1), "echo after"], 120)
    assert answers[0].status is None
    assert "too long" in answers[0].stderr
    assert (answers[1].status, answers[1].stdout) == (0, "after\n")

    def lives() -> bool:
        return any(process.command == "sleep 98765.4" for process in processes.living().values())

    assert processes.wait_until(lambda: not lives(), 60)


def test_a_time_out_is_no_answer(site: Site) -> None:
    transport = site.open()
    assert only(transport, "true")[0] == 0  # it is connected
    first, second = transport.run(["echo done", "trap '' TERM; sleep 60; sleep 60"], 8)
    assert (first.status, first.stdout) == (0, "done\n")
    assert second.status is None
    assert "8 s" in second.stderr
    assert only(transport, "echo again")[1] == "again\n"


def test_what_a_command_leaves_running_delays_no_other(site: Site) -> None:
    assert only(site.open(), "sleep 200 & echo $!", 120)[0] == 0


def test_many_commands_are_one_session(remote: Site) -> None:
    transport = remote.open()
    answers = transport.run([f"echo {number}" for number in range(300)])
    assert [answer.stdout for answer in answers] == [f"{number}\n" for number in range(300)]
    assert (remote.sshd.accepted, remote.sshd.sessions) == (1, 1)


def test_passwords_of_airflow_stay_here(make_site: Callable[[str], Site], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "postgresql://me:secret@db")
    assert "me:secret@db" not in only(make_site("shell").open(), "env")[1]


# -- files


def test_files_arrive_as_they_are(site: Site) -> None:
    transport = site.open()
    files = {name: bytes(range(256)) + name.encode() for name in NAMES} | {"empty": b""}
    transport.put("~/x y", files, executable=["plain"])
    assert transport.get("~/x y", [*NAMES, "empty", "absent", "a/absent"]) == {
        **files,
        "absent": None,
        "a/absent": None,
    }
    assert all_files(transport, "~/x y") == {name: content for name, content in files.items() if "/" not in name}
    modes = {path.name: path.stat().st_mode & 0o777 for path in (site.home / "x y").rglob("*")}
    assert modes.pop("plain") == modes.pop("a") == modes.pop("b") == 0o700
    assert set(modes.values()) == {0o600}
    assert (site.home / "x y").stat().st_mode & 0o777 == 0o700


def test_files_are_replaced_and_folders_filled(site: Site) -> None:
    transport = site.open()
    transport.put("~/x", {"a/b": b"1", "c": b"2", ".hidden": b"3"})
    before = (site.home / "x" / "c").stat().st_ino
    transport.put("~/x", {"a/e": b"4", "c": b"5"})
    assert transport.get("~/x", ["a/b", "a/e", "c", ".hidden"]) == {
        "a/b": b"1",
        "a/e": b"4",
        "c": b"5",
        ".hidden": b"3",
    }
    assert (site.home / "x" / "c").stat().st_ino != before  # renamed, never half written
    assert sorted(path.name for path in (site.home / "x").iterdir()) == [".hidden", "a", "c"]


def test_a_thousand_files_are_a_few_commands(remote: Site) -> None:
    transport = remote.open()
    files = {f"{number:04d}": os.urandom(200) for number in range(1000)}
    transport.put("~/x", files)
    assert transport.get("~/x", list(files)) == files
    assert all_files(transport, "~/x", most=300) == dict(list(files.items())[:300])
    transport.remove("~/x", list(files))
    assert all_files(transport, "~/x") == {}
    assert (remote.sshd.accepted, remote.sshd.sessions) == (1, 5)


def test_large_files_arrive(site: Site) -> None:
    content = os.urandom(8_000_000)
    transport = site.open()
    transport.put("~/x", {"large": content})
    assert transport.get("~/x", ["large"]) == {"large": content}


def test_what_cannot_be_written_leaves_nothing(site: Site) -> None:
    transport = site.open()
    transport.put("~/x", {"a/b": b"1"})
    with pytest.raises(TransportError, match=r"a.*directory|directory.*a"):
        transport.put("~/x", {"a": b"a file where a folder is"})
    with pytest.raises(TransportError):
        transport.put("/proc/no/such/folder", {"a": b"1"})
    assert [path.name for path in (site.home / "x").iterdir()] == ["a"]
    assert transport.get("~/x", ["a/b"]) == {"a/b": b"1"}


def test_a_full_disk_is_reported(site: Site) -> None:
    with small_disk(site.home / "disk", mebibytes=1) as disk:
        transport = site.open()
        with pytest.raises(TransportError, match=r"No space left|Wrote only"):
            transport.put(str(disk / "x"), {"large": b"x" * 2_000_000})
        assert all_files(transport, str(disk / "x")) == {}
        assert not list((disk / "x").iterdir())
        assert only(transport, "echo fine")[1] == "fine\n"


def test_what_cannot_be_read_is_no_absence(site: Site) -> None:
    transport = site.open()
    transport.put("~/x", {"a/b": b"1"})
    with pytest.raises(TransportError, match="no/such"):
        transport.get("/no/such/folder", ["a"])
    (answer,) = transport.exchange([GetAll("/no/such/folder")])
    assert answer.status
    assert "no/such" in answer.stderr
    with pytest.raises(TransportError, match="'a'"):
        transport.get("~/x", ["a"])
    with pytest.raises(TransportError, match="no/such"):
        transport.remove("/no/such/folder", ["a"])


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../x", "a/../../x", "a\0b"])
def test_names_stay_in_their_folder(site: Site, name: str) -> None:
    transport = site.open()
    with pytest.raises(ValueError, match="name"):
        transport.put("~/x", {name: b""})
    with pytest.raises(ValueError, match="name"):
        transport.remove("~/x", [name])
    with pytest.raises(ValueError, match="absolute"):
        transport.put("x", {"a": b""})


def test_contents_are_on_no_command_line(site: Site) -> None:
    secret = "token-7e2f"
    steps = [
        Put("~/x", {"token": secret.encode()}),
        RunCommand(["cat"], stdin=secret.encode()),
        RunCommand("cat /proc/*/cmdline"),
    ]
    _, echo, lines = site.open().exchange(steps)
    assert echo.stdout == secret
    assert "cmdline" in lines.stdout
    assert secret not in lines.stdout


# -- connections


def test_one_connection_serves_many_threads(remote: Site) -> None:
    transport = remote.open(options={"MaxSessions": "10", "MaxStartups": "10"})
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda number: only(transport, f"echo {number}"), range(60)))
    assert answers == [(0, f"{number}\n", "") for number in range(60)]
    assert remote.sshd.accepted == 1


def test_a_server_that_allows_one_session_is_enough(remote: Site) -> None:
    transport = remote.open(options={"MaxSessions": "1"})
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: only(transport, f"sleep 0.1; echo {number}"), range(16)))
    assert answers == [(0, f"{number}\n", "") for number in range(16)]
    assert remote.sshd.accepted == 1


def test_a_restarted_server_is_found_again(remote: Site) -> None:
    transport = remote.open()
    assert only(transport, "echo 1")[1] == "1\n"
    remote.sshd.restart()
    assert only(transport, "echo 2")[1] == "2\n"
    assert remote.sshd.accepted == 2


def test_a_killed_server_whose_connections_live_is_no_trouble(remote: Site) -> None:
    transport = remote.open()
    assert only(transport, "echo 1")[1] == "1\n"
    remote.sshd.kill()
    assert only(transport, "echo 2")[1] == "2\n"


def test_a_connection_cut_in_the_middle_is_no_answer(remote: Site) -> None:
    transport = remote.open()
    started = remote.home / "started"
    with ThreadPoolExecutor(1) as pool:
        answers = pool.submit(transport.run, ["echo done", f"echo half; touch {started}; sleep 600", "echo never"], 600)
        assert processes.wait_until(started.exists, 60)
        remote.sshd.cut()
        first, second, third = answers.result(120)
    assert (first.status, first.stdout) == (0, "done\n")
    assert second.status is third.status is None
    assert second.stdout == third.stdout == ""
    assert "cut" in second.stderr or "lost" in second.stderr
    assert only(transport, "echo again")[1] == "again\n"


def test_files_cut_in_the_middle_are_an_error(remote: Site) -> None:
    transport = remote.open()
    (remote.home / ".bashrc").write_text(f"touch {remote.home}/started; sleep 600")
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(transport.put, "~/x", {"a": b"1"})
        assert processes.wait_until((remote.home / "started").exists, 10)
        remote.sshd.cut()
        with pytest.raises(TransportError):
            written.result(120)
    assert not (remote.home / "x").exists()


def test_a_frozen_connection_is_abandoned(remote: Site) -> None:
    transport = remote.open(patience=10)
    assert only(transport, "echo 1")[1] == "1\n"
    remote.sshd.freeze()
    status, stdout, _ = only(transport, "echo 2", 2)
    assert (status, stdout) in {(None, ""), (0, "2\n")}  # a dead session may be found out before anything is sent
    assert only(transport, "echo 3", 120)[1] == "3\n"


def test_a_server_that_hangs_before_it_begins_a_command_is_abandoned(
    make_site: Callable[[str], Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make_site("ssh")
    transport = site.open(patience=6)
    assert isinstance(transport, SSHTransport)
    assert only(transport, "true")[0] == 0  # it is connected
    real = transport._opened

    def opened(client: Any) -> Any:
        channel = real(client)
        site.sshd.freeze()
        return channel

    monkeypatch.setattr(transport, "_opened", opened)
    status, _, words = only(transport, "echo 1", 2)
    assert (status, "no answer within 2 s" in words) == (None, True)
    with pytest.raises(TransportError, match="the command did not start within 6 s"):
        transport.session(["echo"])
    monkeypatch.setattr(transport, "_opened", real)
    assert only(transport, "echo 2", 120)[1] == "2\n"


def test_closing_a_connection_does_not_wait_for_a_silent_server(
    make_site: Callable[[str], Site], monkeypatch: pytest.MonkeyPatch, black_hole: int
) -> None:
    site = make_site("ssh")
    transport = site.open(patience=600)
    monkeypatch.setenv("AIRFLOW_CONN_SITE", site.sshd.connection(port=black_hole))
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(only, transport, "echo 1")
        assert processes.wait_until(
            lambda: transport._login is not None and "host_proxy" in vars(transport._login.hook), 10
        )
        begun = time.monotonic()
        transport.close()
        assert time.monotonic() - begun < 60
        assert asked.result(120)[0] is None, "nor the one that has opened it"
    monkeypatch.setenv("AIRFLOW_CONN_SITE", site.sshd.connection())
    assert processes.wait_until(lambda: only(transport, "echo 2")[1] == "2\n", 120), "it can be opened again"


def test_a_connection_that_stands_after_it_was_closed_is_abandoned(
    make_site: Callable[[str], Site], monkeypatch: pytest.MonkeyPatch, black_hole: int
) -> None:
    site = make_site("ssh")
    transport = site.open(patience=30)
    monkeypatch.setenv("AIRFLOW_CONN_SITE", site.sshd.connection(port=black_hole))
    connected, begun, closed = paramiko_transport.connected, threading.Event(), threading.Event()

    def late(host: str, port: int, timeout: float) -> paramiko_transport.UnblockingSocket:
        begun.set()
        closed.wait(120)
        return connected(host, port, timeout)

    monkeypatch.setattr(paramiko_transport, "connected", late)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(only, transport, "echo 1")
        assert begun.wait(120)
        transport.close()
        closed.set()
        assert asked.result(120)[0] is None, "it does not wait for what the server never sends"


def test_a_server_that_is_down_is_not_knocked_at_all_the_time(remote: Site) -> None:
    transport = remote.open()
    remote.sshd.halt()
    answers = [only(transport, "echo 1") for _ in range(5)]
    assert {status for status, _, _ in answers} == {None}
    assert "refused" in answers[0][2]
    assert "tried again in" in answers[1][2]
    remote.sshd.start()
    assert processes.wait_until(lambda: only(transport, "echo 2")[1] == "2\n", 120)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"host_key": "OTHER"}, "does not match"),
        ({"host_key": None}, "known_hosts"),
        ({"key_file": "OTHER"}, "Authentication failed"),
        ({"login": "no-such-user"}, "Authentication failed"),
    ],
)
def test_wrong_keys_and_users_are_refused(
    make_site: Callable[[str], Site], monkeypatch: pytest.MonkeyPatch, changes: dict[str, str | None], words: str
) -> None:
    site = make_site("ssh")
    transport = site.open()
    others = {"host_key": site.sshd.other_key, "key_file": str(site.sshd.folder / "other_key")}
    changed = {name: others[name] if value == "OTHER" else value for name, value in changes.items()}
    monkeypatch.setenv("AIRFLOW_CONN_SITE", site.sshd.connection(**changed))
    monkeypatch.setenv("HOME", str(site.home))
    status, _, said = only(transport, "echo here")
    assert status is None
    assert words in said
    assert said.count("SSH connection 'site'") == 1
    if "host_key" in changes:
        assert f"ssh-keyscan -p {site.sshd.port} 127.0.0.1" in said
        assert said.strip().endswith('"host_key": "ssh-ed25519 AAAA..."')
    assert site.sshd.sessions == 0
    only(transport, "echo here")
    assert site.sshd.accepted == 1  # many failed logins lock an account
    assert processes.wait_until(lambda: not site.sshd.connections_of_now(), 5)  # and an open one counts for MaxStartups


@pytest.mark.parametrize(
    ("options", "words"),
    [({"HostKeyAlias": "other"}, "verification failed"), ({"IdentityFile": "OTHER"}, "Permission denied")],
)
def test_a_master_with_wrong_keys_is_refused(
    make_site: Callable[[str], Site], options: dict[str, str], words: str
) -> None:
    site = make_site("control_master")
    site.open()
    options = {name: value.replace("OTHER", str(site.sshd.folder / "other_key")) for name, value in options.items()}
    with open(site.sshd.client_config) as stream:
        lines = stream.read().replace("IdentityFile", "#IdentityFile") if "IdentityFile" in options else None
    if lines:
        site.sshd.client_config.write_text(lines)
    transport = ControlMasterTransport(
        "site", config_file=site.sshd.client_config, folder=site.folder / "other", options=options
    )
    status, _, said = only(transport, "echo here")
    assert status is None
    assert words in said
    assert "ControlMaster=yes" in said  # what a user has to type
    assert site.sshd.sessions == 0


def test_a_black_hole_is_left(remote: Site, monkeypatch: pytest.MonkeyPatch, black_hole: int) -> None:
    transport = remote.open(patience=1)
    if isinstance(transport, ControlMasterTransport):
        transport.options["Port"] = str(black_hole)
    else:
        monkeypatch.setenv("AIRFLOW_CONN_SITE", remote.sshd.connection(port=black_hole))
    status, stdout, words = only(transport, "echo here")
    assert (status, stdout) == (None, "")
    assert str(black_hole) in words


def test_an_unknown_connection_is_no_answer(make_site: Callable[[str], Site], monkeypatch: pytest.MonkeyPatch) -> None:
    transport = make_site("ssh").open()
    monkeypatch.delenv("AIRFLOW_CONN_SITE")
    status, _, words = only(transport, "echo here")
    assert status is None
    assert "'site'" in words


def test_a_users_connection_is_used_and_left_alone(make_site: Callable[[str], Site]) -> None:
    site = make_site("control_master")
    site.open()
    path = site.folder / "mine"
    base = ["ssh", "-F", str(site.sshd.client_config), "-o", f"ControlPath={path}"]
    subprocess.run([*base, "-o", "ControlMaster=yes", "-Nf", "site"], check=True, stderr=subprocess.DEVNULL)
    try:
        transport = ControlMasterTransport("site", config_file=site.sshd.client_config, control_path=path)
        assert only(transport, "echo here")[1] == "here\n"
        transport.close()
        assert subprocess.run([*base, "-O", "check", "site"], capture_output=True).returncode == 0
        assert site.sshd.accepted == 1
    finally:
        subprocess.run([*base, "-O", "exit", "site"], check=True, capture_output=True)


def test_the_path_of_the_control_socket_may_come_from_ssh_config(make_site: Callable[[str], Site]) -> None:
    site = make_site("control_master")
    site.open()
    with site.sshd.client_config.open("a") as config:
        config.write(f"ControlPath {site.folder}/%r@%h:%p\n")
    transport = ControlMasterTransport("site", config_file=site.sshd.client_config)
    with transport:
        assert only(transport, "echo here")[1] == "here\n"
        assert list(site.folder.glob("*@127.0.0.1:*"))
    assert processes.wait_until(lambda: not list(site.folder.glob("*@127.0.0.1:*")), 5)


def test_a_destination_cannot_be_an_option() -> None:
    with pytest.raises(ValueError, match="-oProxyCommand"):
        ControlMasterTransport("-oProxyCommand=touch x")


def test_closing_leaves_no_connection(remote: Site) -> None:
    transport = remote.open()
    only(transport, "echo 1")
    assert remote.sshd.connections_of_now()
    transport.close()
    assert processes.wait_until(lambda: not remote.sshd.connections_of_now(), 5)
    assert only(transport, "echo 2")[1] == "2\n"


# -- tunnels


@pytest.fixture
def page() -> Iterator[int]:
    """A web server here; returns its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body[::-1])

        def log_message(self, *arguments: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


def fetch(transport: Transport, port: int, size: int = 10) -> tuple[int | None, str, str]:
    code = f"import urllib.request as u; print(len(u.urlopen('http://127.0.0.1:{port}', b'x' * {size}).read()))"
    (answer,) = transport.run([[sys.executable, "-c", code]], 120)
    return answer.status, answer.stdout, answer.stderr


def test_a_tunnel_leads_back_here(site: Site, page: int) -> None:
    transport = site.open()
    port = transport.tunnel("127.0.0.1", page)
    assert transport.tunnel("127.0.0.1", page) == port
    assert fetch(transport, port) == (0, "10\n", "")
    assert fetch(transport, port, 3_000_000)[1] == "3000000\n"
    with ThreadPoolExecutor(8) as pool:
        assert {status for status, _, _ in pool.map(lambda _: fetch(transport, port), range(8))} == {0}


def test_a_tunnel_is_built_again_on_the_same_port(remote: Site, page: int) -> None:
    transport = remote.open()
    port = transport.tunnel("127.0.0.1", page)
    remote.sshd.restart()
    assert transport.tunnel("127.0.0.1", page) == port
    assert fetch(transport, port) == (0, "10\n", "")
    assert remote.sshd.accepted == 2


def test_a_taken_port_is_reported(remote: Site, page: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(TransportError, match="port"):
        remote.open().tunnel("127.0.0.1", page, taken.getsockname()[1])


def test_a_tunnel_to_nothing_closes(remote: Site) -> None:
    transport = remote.open()
    with socket.create_server(("127.0.0.1", 0)) as server:
        nothing = server.getsockname()[1]
    assert fetch(transport, transport.tunnel("127.0.0.1", nothing))[0] == 1
    assert only(transport, "echo fine")[1] == "fine\n"
