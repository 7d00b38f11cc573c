"""Text of others on the user's terminal."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.hooks.files.logs import plain_formatter
from lading.plugin.host import AirflowHost
from lading.plugin.offline.command import main
from lading.scheduling.model.catalogue import COLUMNS
from lading.scheduling.text.printable import cut, json_beginning, printable, printable_lines, shortened

# C0, C1, a sequence that clears the screen, one that sets its title, a bidi override, an isolate, line ends, a mark
# without width, lone surrogates, markup of rich, an emoji of rich.
HOSTILE = [
    "\0", "\a", "\b", "\r", "\n", "\x0b", "\x7f", "\x80", "\x85", "\x9b2J", "\x1b[2J", "\x1b]0;owned\a",
    "\x1b]8;;http://x\x1b\\", "\u202e", "\u2066", "\u2028", "\u2029", "\u200b", "\ufeff", "\ud800", "\udcff",
    "[/red]", "[bold]", "[link=x]", ":smile:",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_no_character_does_anything(text: str) -> None:
    for shown in (printable(f"a{text}b"), shortened(f"a{text}b"), printable_lines(text).replace("\n", "")):
        assert shown.isprintable()
        shown.encode()
    assert printable(f"a{text}b").startswith("a")
    assert printable(f"a{text}b").endswith("b")


@given(st.text())
def test_what_can_be_read_stays(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert shown == text or not text.isprintable()
    assert printable(shown) == shown
    assert len(cut(text)) <= max(len(text), 503)


def test_what_people_write_stays() -> None:
    for text in ("align_ä[3]", "日本語", "naïve × 2", "\\n is no line", "🙂"):
        assert printable(text) == text
    assert printable("a\nb\x1bc\ud800") == "a\\nb\\x1bc\\ud800"
    assert printable_lines("a\n\tb\x1bc\n") == "a\n\tb\\x1bc\n"


HEADER = "name,cpus,memory_mib,arrival_seconds,duration_seconds\n"


def row(name: str) -> str:
    return '"' + name.replace('"', '""') + '",1,1,0,1\n'


IN_FILES = [each for each in HOSTILE if not "\ud800" <= each <= "\udfff"]


def test_names_of_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = tmp_path / "jobs.csv"
    jobs.write_text(HEADER + "".join(row(f"a{text}b") for text in IN_FILES), newline="")
    for command in (["plan", "--policy", "greedy"], ["simulate", "--compare", "greedy"]):
        assert main([*command, "--jobs", str(jobs), "--types", "c7i.*"]) == 0
        assert all(line.isprintable() for line in capsys.readouterr().out.split("\n"))
    assert main(["plan", "--policy", "greedy", "--jobs", str(jobs), "--output", "json"]) == 0
    instances = json.loads(capsys.readouterr().out)["instances"]
    # The reader of tables takes line ends and blanks off the ends of lines, and nothing else.
    assert sum(len(instance["jobs"]) for instance in instances) == len(IN_FILES)


@pytest.mark.parametrize("text", IN_FILES)
def test_names_of_wrong_jobs_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    jobs = tmp_path / "jobs.csv"
    jobs.write_text(HEADER + row(f"a{text}b").replace(",1,1,", ",1,x,"), newline="")
    catalogue = tmp_path / "catalogue.csv"
    catalogue.write_text(",".join(COLUMNS) + "\nsmall,2,4,x86_64,0,,0,0.1\n")
    for name in (str(jobs), f"{text}.csv".replace("\0", "")):
        assert main(["plan", "--jobs", name, "--catalogue", str(catalogue)]) == 2
    faults = capsys.readouterr().err
    assert "memory_mib 'x' is not a number" in faults
    assert all(line.isprintable() for line in faults.split("\n"))


def test_markup_in_a_table_is_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = tmp_path / "jobs.csv"
    jobs.write_text(HEADER + row("[/red]x"))
    assert main(["plan", "--policy", "greedy", "--jobs", str(jobs)]) == 0
    assert "[/red]x" in capsys.readouterr().out


@pytest.mark.parametrize("output", ["table", "plain", "json", "yaml"])
@pytest.mark.parametrize("text", HOSTILE)
def test_the_tables_of_commands(capsys: pytest.CaptureFixture[str], output: str, text: str) -> None:
    from airflow.utils import yaml

    from lading.plugin.subcommands.console import complain, show

    show(AirflowHost(), [{"task": f"a{text}b", "number": 1, "none": None}], output)
    complain(f"a{text}b")
    captured = capsys.readouterr()
    assert all(line.isprintable() for line in f"{captured.out}{captured.err}".split("\n"))
    assert captured.err.count("\n") == 1
    read: dict[str, Callable[[str], Any]] = {"json": json.loads, "yaml": yaml.safe_load}
    if output in read and text not in ("\ud800", "\udcff"):
        assert read[output](captured.out) == [{"task": f"a{text}b", "number": 1, "none": None}]
    if output == "json":
        assert json.loads(captured.out)[0]["task"] == f"a{text}b"


@pytest.mark.parametrize("text", HOSTILE)
def test_the_lines_of_logs(text: str) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(plain_formatter("%(levelname)s %(message)s"))
    log = logging.Logger("here")
    log.addHandler(handler)
    log.error("job %s", text)
    [line] = stream.getvalue().rstrip("\n").split("\n")
    assert line.startswith("ERROR job ")
    assert line.isprintable()
    try:
        raise ValueError(text)
    except ValueError:
        log.exception("job %s", text)
    assert all(line.isprintable() for line in stream.getvalue().split("\n"))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
)


@given(VALUES, st.integers(1, 50))
def test_the_beginning_of_json_is_that_of_all_of_it(value: object, most: int) -> None:
    assert json_beginning(value, most, str) == json.dumps(value, default=str)[:most]


class Terminal(io.TextIOWrapper):
    """A standard output that is a terminal, or is not."""

    def __init__(self, is_terminal: bool) -> None:
        self.bytes = io.BytesIO()
        self.bytes.isatty = lambda: is_terminal  # type: ignore[method-assign]
        super().__init__(self.bytes)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_script_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:
    body = tmp_path / "body.sh"
    body.write_bytes(b"echo \x1b[2J\xff\n\techo\n")
    output = Terminal(is_terminal)
    monkeypatch.setattr(sys, "stdout", output)
    assert main(["script", "--body", str(body), "--scheduler", "slurm"]) == 0
    shown = b"echo \\x1b[2J\\udcff\n\techo\n" if is_terminal else body.read_bytes()
    assert output.bytes.getvalue().endswith(shown)
