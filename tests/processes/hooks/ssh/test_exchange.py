"""The script of an exchange, run by real shells, and what is read from its answers."""

from __future__ import annotations

import base64
import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.hooks.ssh.answer import CommandResult, TransportError
from lading.hooks.ssh.backoff import Backoff
from lading.hooks.ssh.exchange import COMMAND, Exchange
from lading.hooks.ssh.steps import Get, GetAll, Put, Remove, RunCommand
from lading.hooks.ssh.transport import ExchangeSlots

SHELLS = [shell for shell in ("dash", "bash", "ksh", "mksh", "busybox") if shutil.which(shell)]
STEPS = [RunCommand("echo one; echo two >&2; exit 3"), RunCommand(["printf", "%s", "x"])]


def spoken(exchange: Exchange, statuses: dict[int, int], said: bytes = b"") -> tuple[bytes, bytes]:
    """What a shell would say to an exchange whose steps print ``said``."""
    lines = [f"{exchange.marker}:begin\n".encode()]
    for number, status in statuses.items():
        lines.append(
            f"{exchange.marker}:{number}\n".encode() + said + f"{exchange.marker}:{number}:{status}\n".encode()
        )
    text = b"".join([*lines, f"{exchange.marker}:end\n".encode()])
    return text, text


def run(exchange: Exchange, script: bytes, shell: str = "sh") -> list[CommandResult]:
    command = ["busybox", "sh"] if shell == "busybox" else [shell]
    done = subprocess.run([*command, "-c", 'eval "$(cat)"'], input=script, capture_output=True)
    exchange.receive(done.stdout, done.stderr)
    return exchange.answers("cut")


@pytest.mark.parametrize("shell", SHELLS)
def test_what_is_put_is_dated_by_the_file_system(shell: str, tmp_path: Path) -> None:
    """``lading clean`` removes by age."""
    before = (tmp_path / "clock").write_text("") or (tmp_path / "clock").stat().st_mtime
    exchange = Exchange([Put(str(tmp_path / "x"), {"a": b"1", "b/c": b"2"})])
    assert run(exchange, exchange.script, shell) == [CommandResult(0)]
    assert all((tmp_path / "x" / name).stat().st_mtime >= before for name in ("a", "b", "b/c"))


@pytest.mark.parametrize("shell", SHELLS)
def test_shells_agree(shell: str, tmp_path: Path) -> None:
    get = Get(str(tmp_path / "x"), ["a b/c", "absent"])
    get_all = GetAll(str(tmp_path / "x"))
    files = {"a b/c": b"\0\xff", "d'\n\"": b"", **{f"many {number}": b"x" for number in range(1100)}}
    steps = [*STEPS, Put(str(tmp_path / "x"), files), get, get_all, Remove(str(tmp_path / "x"), ["a b"]), get]
    exchange = Exchange(steps)
    first, second, put, got, got_all, removed, gone = run(exchange, exchange.script, shell)
    assert exchange.complete
    assert (first, second) == (CommandResult(3, "one\n", "two\n"), CommandResult(0, "x", ""))
    assert (put, removed) == (CommandResult(0), CommandResult(0))
    assert get.files(got) == {"a b/c": b"\0\xff", "absent": None}
    assert get_all.files(got_all).keys() == {*files} - {"a b/c"} or len(get_all.files(got_all)) == get_all.most
    assert get.files(gone) == {"a b/c": None, "absent": None}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_file_that_comes_while_its_folder_is_read_is_left_for_the_next_time(shell: str, tmp_path: Path) -> None:
    (tmp_path / "early").write_text("1")
    get_all = GetAll(str(tmp_path))
    # lading_get prints a p for each file that is there, before lading_pack packs them.
    setup = f'printf() {{ if [ "$1" = p ]; then : >{tmp_path}/late; fi; command printf "$@"; }}'
    exchange = Exchange([get_all], setup=setup)
    [answer] = run(exchange, exchange.script, shell)
    assert (tmp_path / "late").exists()
    assert get_all.files(answer) == {"early": b"1"}


def test_a_script_cut_short_does_nothing(tmp_path: Path) -> None:
    steps = [
        RunCommand(["touch", str(tmp_path / "run")]),
        Put(str(tmp_path / "put"), {"a": b"1"}),
        Remove(str(tmp_path), ["z"]),
    ]
    (tmp_path / "z").touch()
    whole = Exchange(steps).script
    # Every end of a line near the end, and places all over.
    ends = [*range(0, len(whole) - 1, 211), *range(len(whole) - 40, len(whole) - 1)]
    for end in ends:
        exchange = Exchange(steps)
        assert {answer.status for answer in run(exchange, whole[:end])} == {None}
        assert [path.name for path in tmp_path.iterdir()] == ["z"], whole[:end][-60:]


def test_the_command_has_nothing_that_a_shell_reads_differently() -> None:
    quoted = COMMAND.split("'")
    assert len(quoted) == 3
    assert not set(quoted[1]) & set("!\\\n`")


@given(noise=st.binary(max_size=50), said=st.binary(max_size=50), cut=st.integers(0, 300))
def test_noise_and_cuts_never_make_an_answer(noise: bytes, said: bytes, cut: int) -> None:
    exchange = Exchange(STEPS)
    stdout, stderr = spoken(exchange, {0: 0, 1: 7}, said)
    exchange.receive(noise + stdout[:cut], noise + stderr)
    for answer, status in zip(exchange.answers("cut"), (0, 7), strict=True):
        assert answer.status in {None, status}
        if answer.status is not None:
            assert answer.stdout == answer.stderr == said.decode(errors="replace")
        else:
            assert (answer.stdout, answer.stderr) == ("", "cut")
    exchange.receive(stdout[cut:] + noise, noise)
    assert [answer.status for answer in exchange.answers("")] == [0, 7]
    assert exchange.complete


@given(said=st.text(alphabet="ab\n", max_size=30))
def test_translated_line_ends_are_translated_back(said: str) -> None:
    exchange = Exchange(STEPS)
    stdout, stderr = spoken(exchange, {0: 0, 1: 0}, said.encode())
    exchange.receive(stdout.replace(b"\n", b"\r\n"), stderr)
    assert exchange.answers("")[0] == CommandResult(0, said, said)


def test_line_ends_of_the_command_itself_stay() -> None:
    exchange = Exchange(STEPS)
    exchange.receive(*spoken(exchange, {0: 0, 1: 0}, b"a\r\nb"))
    assert exchange.answers("")[0].stdout == "a\r\nb"


def test_too_much_output_ends_the_exchange() -> None:
    exchange = Exchange(STEPS, most=1000)
    exchange.receive(b"x" * 600, b"y" * 400)
    with pytest.raises(TransportError, match="1000 bytes"):
        exchange.receive(b"x")


def test_a_time_out_is_no_answer() -> None:
    exchange = Exchange([RunCommand(["squeue"]), Put("/x", {"a": b""})])
    exchange.receive(*spoken(exchange, {0: 124, 1: 124}))
    first, second = exchange.answers("")
    assert first.status is None
    assert first.stderr.startswith("squeue")
    assert second.status == 124


@pytest.mark.parametrize(
    "answer",
    [
        CommandResult(None, "", "cut"),
        CommandResult(1, "", "no such folder"),
        CommandResult(0, "", ""),
        CommandResult(0, "p:\n%%%", ""),
        CommandResult(0, "p:"),
    ],
)
def test_a_bad_answer_is_no_absence(answer: CommandResult) -> None:
    with pytest.raises(TransportError):
        Get("/x", ["a"]).files(answer)
    with pytest.raises(TransportError):
        GetAll("/x").files(answer)


@pytest.mark.parametrize("state", ["u", "n"])
def test_what_is_there_and_cannot_be_read_is_reported(state: str) -> None:
    with pytest.raises(TransportError, match="'a'"):
        Get("/x", ["a"]).files(CommandResult(0, f"{state}:\n"))


def test_contents_do_not_show_in_logs() -> None:
    assert "secret" not in repr([Put("/x", {"a": b"secret"}), RunCommand(["cat"], stdin=b"secret")])


def test_pauses_grow_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("lading.hooks.ssh.backoff.time.monotonic", lambda: now)
    backoff = Backoff(first=1, longest=8)
    pauses = []
    for _ in range(6):
        backoff.failed("down")
        pauses.append(backoff.not_before - now)
        with pytest.raises(TransportError, match="down; tried again in") as raised:
            backoff.check()
        assert raised.value.retry_in == pauses[-1]
        now = backoff.not_before
        backoff.check()
    assert all(most / 2 <= pause <= most for pause, most in zip(pauses, [1, 2, 4, 8, 8, 8], strict=True))
    backoff.failed("login refused", at_least=60)
    assert backoff.not_before - now >= 30
    backoff.succeeded()
    backoff.check()


def test_turns_are_learned() -> None:
    turns = ExchangeSlots(4)
    with turns.taken(1), turns.taken(1):
        turns.lower()
        assert turns.most == 2
        with pytest.raises(TransportError, match="2 other exchanges"), turns.taken(0.01):
            pass
    turns.lower()
    assert turns.most == 1


def sent(packed: bytes, found: str = "p") -> CommandResult:
    """An answer with a tar in it."""
    return CommandResult(0, f"{found}:\n{base64.encodebytes(packed).decode()}")


def tar(*members: tuple[tarfile.TarInfo, bytes], **options: Any) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", **options) as archive:
        for member, content in members:
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def member(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE, **pax: str) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.size, made.type = size, kind
    made.pax_headers = {key.replace("_", "."): value for key, value in pax.items()}
    return made


HUGE = 4 * 2**30
MAP = {"GNU_sparse_size": str(HUGE), "GNU_sparse_numblocks": "1", "GNU_sparse_map": f"{HUGE},0"}
BOMBS: dict[str, bytes | bytearray] = {
    "sparse, pax": tar((member("a", **MAP), b""), format=tarfile.PAX_FORMAT),
    "sparse, old": bytearray(tar((member("a", kind=tarfile.GNUTYPE_SPARSE), b""))),
    "a device": tar((member("a", kind=tarfile.CHRTYPE), b"")),
    "a link": tar((member("a", kind=tarfile.SYMTYPE), b"")),
    "a link to nothing": tar((member("a", kind=tarfile.LNKTYPE), b"")),
    "headers for all": tar((member("a"), b""), pax_headers={"key": "value"}, format=tarfile.PAX_FORMAT),
    "long headers": tar((member("x" * 10**6), b""), format=tarfile.GNU_FORMAT),
    "no tar": b"x" * 5000,
}
# The real size of a sparse file of the old kind stands in its header, in base 256.
BOMBS["sparse, old"][483:495] = b"\x80" + HUGE.to_bytes(11, "big")
BOMBS["sparse, old"][148:156] = b"%06o\0 " % tarfile.calc_chksums(bytes(BOMBS["sparse, old"][:512]))[0]


@pytest.mark.parametrize("name", BOMBS)
def test_what_would_grow_without_end_is_refused(name: str, tmp_path: Path) -> None:
    code = (
        "import resource, sys\n"
        "from lading.hooks.batch.system import CommandResult\n"
        "from lading.hooks.ssh.answer import TransportError\n"
        "from lading.hooks.ssh.steps import GetAll\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))\n"
        "try:\n"
        "    print(len(GetAll('/x').files(CommandResult(0, sys.stdin.read()))))\n"
        "except TransportError as error:\n"
        "    print('refused', error)\n"
    )
    text = sent(bytes(BOMBS[name])).stdout.encode()
    done = subprocess.run([sys.executable, "-c", code], input=text, capture_output=True, timeout=60)
    assert done.stdout.startswith(b"refused"), done


def test_two_names_of_one_file_are_two_files() -> None:
    link = member("./b", 0, tarfile.LNKTYPE)
    link.linkname = "./a"
    packed = tar((member("./a", 3), b"abc"), (link, b""))
    assert GetAll("/x").files(sent(packed, "pp")) == {"a": b"abc", "b": b"abc"}


def test_a_file_of_many_names_is_no_way_to_send_more_than_comes() -> None:
    links = [member(f"./{number}", 0, tarfile.LNKTYPE) for number in range(100)]
    for link in links:
        link.linkname = "./a"
    packed = tar((member("./a", 2**20), b"x" * 2**20), *((link, b"") for link in links))
    with pytest.raises(TransportError, match="hard links"):
        GetAll("/x").files(sent(packed, "p" * 101))


@given(st.binary() | st.binary(max_size=600).map(lambda junk: tar((member("a", 3), b"abc"))[: 600 - len(junk)] + junk))
def test_whatever_a_site_sends_is_files_or_an_error(packed: bytes) -> None:
    try:
        found = GetAll("/x").files(sent(packed))
    except TransportError:
        return
    assert sum(map(len, found.values())) <= len(packed)


@pytest.mark.parametrize("name", ["../x", ".hidden", "a/b", "x" * 90 + "/y"])
def test_a_name_that_was_not_asked_for_is_refused(name: str) -> None:
    with pytest.raises(TransportError, match="not the name of a file"):
        GetAll("/x").files(sent(tar((member(name, 0), b""))))


@pytest.mark.parametrize("shell", SHELLS)
def test_what_is_no_file_of_a_fit_size_is_left_out_and_named(shell: str, tmp_path: Path) -> None:
    (tmp_path / "1").write_bytes(b"one")
    with (tmp_path / "2 giant").open("wb") as giant:
        giant.truncate(2**40)
    os.mkfifo(tmp_path / "3")
    (tmp_path / "4").mkdir()
    (tmp_path / "5").symlink_to(tmp_path / "nowhere")
    for name in "6789":
        (tmp_path / name).write_bytes(name.encode() * 20_000)
    step = GetAll(str(tmp_path), largest=2**20)
    exchange = Exchange([step])
    [answer] = run(exchange, exchange.script, shell)
    assert {name: len(content) for name, content in step.files(answer).items()} == {"1": 3, "6": 20_000, "7": 20_000}
    assert list(step.left_out(answer)) == ["2 giant", "3", "4", "5"]
