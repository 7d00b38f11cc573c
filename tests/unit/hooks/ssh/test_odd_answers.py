"""Whatever a site answers, its readers raise nothing but what they promise."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lading.hooks.machines import introduction
from lading.hooks.ssh.answer import CommandResult, TransportError
from lading.hooks.ssh.exchange import Exchange
from lading.hooks.ssh.steps import Get, GetAll, Put, RunCommand


def packed(name: str) -> str:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    return base64.b64encode(file.getvalue()).decode()


TAR = packed("a")
LETTERS = st.one_of(st.text("paunlx:", max_size=6), st.text(max_size=6))
CONTENTS = st.one_of(st.sampled_from(["", TAR, TAR[:-9], packed("../a"), packed("b")]), st.text(max_size=40))


@given(LETTERS, CONTENTS, st.text(max_size=20), st.sampled_from([0, 1, None, 255]))
def test_files(letters: str, content: str, said: str, status: int | None) -> None:
    answer = CommandResult(status, f"{letters}:{content}", f"lading-left {said}\n{said}")
    for step in (Get("/f", ["a"]), Get("/f", ["a", "b"]), GetAll("/f"), GetAll("/f", largest=5)):
        with contextlib.suppress(TransportError):
            step.files(answer)
        if isinstance(step, GetAll):
            step.left_out(answer)


def test_one_letter_for_each_file() -> None:
    for letters in ("", "p", "ppp", "px", "\ud800a"):
        with pytest.raises(TransportError):
            Get("/f", ["a", "b"]).files(CommandResult(0, f"{letters}:{TAR}", ""))


@given(st.text(), st.text(max_size=5))
def test_what_cannot_be_sent_is_a_value_error(text: str, name: str) -> None:
    for step in (RunCommand(text), RunCommand([text]), Put("/f", {name: b""}), Get(text, [name])):
        with contextlib.suppress(ValueError):
            Exchange([step])


PIECES = ("MARK:0", "MARK:1", "MARK:begin", "MARK:end", "\n", "\r\n", ":", "0", "12", "x", "-1", " ", "9" * 5000, "²")


@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=5)), max_size=20), st.booleans())
def test_exchanges(parts: list[str], errors: bool) -> None:
    exchange = Exchange([RunCommand("true"), RunCommand("false")])
    said = "".join(parts).replace("MARK", exchange.marker).encode(errors="surrogatepass")
    exchange.receive(stdout=said, stderr=said if errors else b"")
    answers = exchange.answers("cut")
    assert len(answers) == 2
    assert all(each.status is None or 0 <= each.status <= 999 for each in answers)
    assert exchange.silence()


@pytest.mark.parametrize("status", ["", "x", "1 2", "0x1", "-1", "9999", "²"])
def test_an_exit_status_that_is_none_is_no_answer(status: str) -> None:
    exchange = Exchange([RunCommand("true")])
    mark = f"{exchange.marker}:0"
    exchange.receive(stdout=f"{mark}\nout\n{mark}:{status}\n".encode())
    assert exchange.answers("cut")[0] == CommandResult(None, "", "cut")


WELL = {
    "version": "1", "host": "h", "boot_id": "b", "now": 5.0, "arch": "x86_64", "os": "linux",
    "capacity": {"cpus": 1.0, "memory": 5},
}  # fmt: skip
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just(10**400)),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.sampled_from(["cpus", "gpus"]), inner)),
    max_leaves=4,
)


@settings(max_examples=300)
@given(
    st.dictionaries(st.sampled_from([*WELL, "refused", "lives", "drains", "note"]), VALUES),
    st.sets(st.sampled_from(sorted(WELL))),
)
def test_introductions(odd: dict[str, object], missing: set[str]) -> None:
    fields = {name: value for name, value in {**WELL, **odd}.items() if name not in missing}
    with contextlib.suppress(TransportError):
        introduction.read_introduction(json.dumps(fields), 1.0, 2.0)


@given(st.text())
def test_introductions_that_are_no_json(line: str) -> None:
    with pytest.raises(TransportError):
        introduction.read_introduction("x" + line, 1.0, 2.0)
