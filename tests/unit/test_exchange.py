"""The script of an exchange, run by real shells, and what is read from its answers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.hooks.batch import Answer
from lading.hooks.exchange import COMMAND, Exchange, Get, GetAll, Put, Remove, Run, TransportError
from lading.hooks.transport import Backoff, Turns

SHELLS = [shell for shell in ("dash", "bash", "ksh", "mksh", "busybox") if shutil.which(shell)]
STEPS = [Run("echo one; echo two >&2; exit 3"), Run(["printf", "%s", "x"])]


def spoken(exchange: Exchange, statuses: dict[int, int], said: bytes = b"") -> tuple[bytes, bytes]:
    """What a shell would say to an exchange whose steps print ``said``."""
    lines = [f"{exchange.marker}:begin\n".encode()]
    for number, status in statuses.items():
        lines.append(
            f"{exchange.marker}:{number}\n".encode() + said + f"{exchange.marker}:{number}:{status}\n".encode()
        )
    text = b"".join([*lines, f"{exchange.marker}:end\n".encode()])
    return text, text


def run(exchange: Exchange, script: bytes, shell: str = "sh") -> list[Answer]:
    command = ["busybox", "sh"] if shell == "busybox" else [shell]
    done = subprocess.run([*command, "-c", 'eval "$(cat)"'], input=script, capture_output=True)
    exchange.hear(done.stdout, done.stderr)
    return exchange.answers("cut")


@pytest.mark.parametrize("shell", SHELLS)
def test_shells_agree(shell: str, tmp_path: Path) -> None:
    get = Get(str(tmp_path / "x"), ["a b/c", "absent"])
    get_all = GetAll(str(tmp_path / "x"))
    files = {"a b/c": b"\0\xff", "d'\n\"": b"", **{f"many {number}": b"x" for number in range(1100)}}
    steps = [*STEPS, Put(str(tmp_path / "x"), files), get, get_all, Remove(str(tmp_path / "x"), ["a b"]), get]
    exchange = Exchange(steps)
    first, second, put, got, got_all, removed, gone = run(exchange, exchange.script, shell)
    assert exchange.complete
    assert (first, second) == (Answer(3, "one\n", "two\n"), Answer(0, "x", ""))
    assert (put, removed) == (Answer(0), Answer(0))
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
        Run(["touch", str(tmp_path / "run")]),
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
    exchange.hear(noise + stdout[:cut], noise + stderr)
    for answer, status in zip(exchange.answers("cut"), (0, 7), strict=True):
        assert answer.status in {None, status}
        if answer.status is not None:
            assert answer.stdout == answer.stderr == said.decode(errors="replace")
        else:
            assert (answer.stdout, answer.stderr) == ("", "cut")
    exchange.hear(stdout[cut:] + noise, noise)
    assert [answer.status for answer in exchange.answers("")] == [0, 7]
    assert exchange.complete


@given(said=st.text(alphabet="ab\n", max_size=30))
def test_translated_line_ends_are_translated_back(said: str) -> None:
    exchange = Exchange(STEPS)
    stdout, stderr = spoken(exchange, {0: 0, 1: 0}, said.encode())
    exchange.hear(stdout.replace(b"\n", b"\r\n"), stderr)
    assert exchange.answers("")[0] == Answer(0, said, said)


def test_line_ends_of_the_command_itself_stay() -> None:
    exchange = Exchange(STEPS)
    exchange.hear(*spoken(exchange, {0: 0, 1: 0}, b"a\r\nb"))
    assert exchange.answers("")[0].stdout == "a\r\nb"


def test_too_much_output_ends_the_exchange() -> None:
    exchange = Exchange(STEPS, most=1000)
    exchange.hear(b"x" * 600, b"y" * 400)
    with pytest.raises(TransportError, match="1000 bytes"):
        exchange.hear(b"x")


def test_a_time_out_is_no_answer() -> None:
    exchange = Exchange([Run(["squeue"]), Put("/x", {"a": b""})])
    exchange.hear(*spoken(exchange, {0: 124, 1: 124}))
    first, second = exchange.answers("")
    assert first.status is None
    assert first.stderr.startswith("squeue")
    assert second.status == 124


@pytest.mark.parametrize(
    "answer",
    [
        Answer(None, "", "cut"),
        Answer(1, "", "no such folder"),
        Answer(0, "", ""),
        Answer(0, "p:\n%%%", ""),
        Answer(0, "p:"),
    ],
)
def test_a_bad_answer_is_no_absence(answer: Answer) -> None:
    with pytest.raises(TransportError):
        Get("/x", ["a"]).files(answer)
    with pytest.raises(TransportError):
        GetAll("/x").files(answer)


@pytest.mark.parametrize("state", ["u", "n"])
def test_what_is_there_and_cannot_be_read_is_told(state: str) -> None:
    with pytest.raises(TransportError, match="'a'"):
        Get("/x", ["a"]).files(Answer(0, f"{state}:\n"))


def test_contents_do_not_show_in_logs() -> None:
    assert "secret" not in repr([Put("/x", {"a": b"secret"}), Run(["cat"], stdin=b"secret")])


def test_pauses_grow_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("lading.hooks.transport.time.monotonic", lambda: now)
    backoff = Backoff(first=1, longest=8)
    pauses = []
    for _ in range(6):
        backoff.failed("down")
        pauses.append(backoff.not_before - now)
        with pytest.raises(TransportError, match="down; tried again in"):
            backoff.check()
        now = backoff.not_before
        backoff.check()
    assert all(most / 2 <= pause <= most for pause, most in zip(pauses, [1, 2, 4, 8, 8, 8], strict=True))
    backoff.failed("login refused", at_least=60)
    assert backoff.not_before - now >= 30
    backoff.succeeded()
    backoff.check()


def test_turns_are_learned() -> None:
    turns = Turns(4)
    with turns.taken(1), turns.taken(1):
        turns.lower()
        assert turns.most == 2
        with pytest.raises(TransportError, match="2 other exchanges"), turns.taken(0.01):
            pass
    turns.lower()
    assert turns.most == 1
