"""Whatever a job is called, its directive says that name and nothing else, or it is refused."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lading.hooks.batch.lsf.system import LSF
from lading.hooks.batch.pbs.pbspro import PBSPro
from lading.hooks.batch.pbs.torque import TORQUE
from lading.hooks.batch.sge.system import SGE
from lading.hooks.batch.slurm.system import SLURM
from lading.hooks.batch.system import ArrayRange, BatchJobRequest, BatchSystem, Profile, Unsupported

ODD = "a1\\\"'`$#%|;&<>[]{}()*?!~^=,:/@ \t\n\r\x00é"
NAMES = st.text(min_size=1, max_size=12) | st.text(st.sampled_from(ODD), min_size=1)


def _words(directive: str, escape: str) -> list[str]:
    """The directive as a reader takes it that knows both kinds of quotes, and maybe a backslash."""
    reader = shlex.shlex(directive, posix=True, punctuation_chars=False)
    reader.whitespace_split, reader.commenters, reader.escape, reader.escapedquotes = True, "", escape, "\"'"
    return list(reader)


def _sbatch_words(directive: str) -> list[str]:
    """The words as sbatch reads them (opt.c, "_get_argument"): a backslash escapes anywhere, # begins a comment."""
    words, word, quote, started = [], "", "", False
    characters = iter(directive)
    for each in characters:
        if each == "\\":
            word, started = word + next(characters), True
        elif quote:
            word, quote = (word, "") if each == quote else (word + each, quote)
        elif each in "\"'":
            quote, started = each, True
        elif each in " \t\n":
            words += [word] if started else []
            word, started = "", False
        elif each == "#":
            break
        else:
            word, started = word + each, True
    assert not quote, "unbalanced"
    return [*words, word] if started else words


def _readings(system: BatchSystem, directive: str) -> list[list[str]]:
    if system.name == "slurm":
        return [_sbatch_words(directive)]
    return [_words(directive, escape) for escape in ("", "\\")]


def _directive(system: BatchSystem, request: BatchJobRequest, option: str) -> str | None:
    try:
        directives = system.directives(request, Profile())
    except Unsupported:
        return None
    (directive,) = (each for each in directives if each.startswith(option))
    assert len(directive.splitlines()) == 1
    return directive


@pytest.mark.parametrize(
    ("system", "option"),
    [(SLURM(), "--job-name"), (PBSPro(), "-N"), (TORQUE(), "-N"), (LSF(), "-J"), (SGE(), "-N")],
    ids=lambda value: getattr(value, "name", None),
)
@given(name=NAMES)
@example(name="a\\")
@example(name="a b\\")
@example(name="a'\\\"b")
@example(name="a=b\\")
@example(name="a\\=b c")
@example(name="a\nb")
@example(name="#a")
def test_names_of_any_characters(system: BatchSystem, option: str, name: str) -> None:
    directive = _directive(system, BatchJobRequest(jobname=name), option)
    words = [f"{option}={name}"] if system.name == "slurm" else [option, name]
    assert directive is None or all(read == words for read in _readings(system, directive))


@given(name=NAMES)
@example(name="a\\")
def test_names_of_arrays(name: str) -> None:
    directive = _directive(LSF(), BatchJobRequest(jobname=name, array=ArrayRange("1-4", 2)), "-J")
    assert directive is None or all(read == ["-J", f"{name}[1-4]%2"] for read in _readings(LSF(), directive))


@pytest.mark.parametrize("system", [PBSPro(), TORQUE(), LSF(), SGE()], ids=lambda system: system.name)
def test_a_backslash_is_refused(system: BatchSystem) -> None:
    with pytest.raises(Unsupported, match="backslash"):
        system.directives(BatchJobRequest(stdout="/tmp/a\\"), Profile())
    with pytest.raises(Unsupported, match=r"backslash|must not begin"):
        system.directives(BatchJobRequest(jobname="a\\"), Profile())


@pytest.mark.parametrize("system", [SLURM(), PBSPro(), TORQUE(), LSF(), SGE()], ids=lambda system: system.name)
def test_a_directive_of_the_users_own_is_one_line(system: BatchSystem) -> None:
    with pytest.raises(Unsupported, match="control character"):
        system.directives(BatchJobRequest(native={"A": "a\nrm -rf /"}), Profile())
