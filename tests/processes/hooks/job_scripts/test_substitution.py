"""What is put into the text of a script, and that nothing else in it changes."""

from __future__ import annotations

import re
import shlex
import string
import subprocess

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lading.hooks.job_scripts.substitution import CORE_VARIABLES, SubstitutedText, Substitution, SubstitutionError

PROPERTIES = {
    "jobname": "demo",
    "nodes": "2",
    "text": "a 'b' $c;",
    "rootdir": "~/jobs",
    "mail-type": "END",
    "empty": "",
}
SLURM = {
    "ID": "$SLURM_JOB_ID",
    "WORKDIR": "$SLURM_SUBMIT_DIR",
    "SUBMIT_HOST": "${SLURM_SUBMIT_HOST}",
    "NAME": "$SLURM_JOB_NAME",
    "ARRAY_INDEX": "$SLURM_ARRAY_TASK_ID",
    "NODELIST": '$(sort -u "$NODES_FILE")',
}
FILL = Substitution(PROPERTIES, SLURM, ("queue", "nodes"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run {jobname} on {nodes}", "run demo on 2"),
        ("{nodes}{nodes}x{nodes}", "22x2"),
        ("{{nodes}}", "{nodes}"),
        ("{{nodes!q}}", "{nodes!q}"),
        ("${{nodes}}", "${nodes}"),
        ("{{{nodes}}}", "{{nodes}}"),
        ('{"a": {"n": {nodes}}}', '{"a": {"n": 2}}'),
        ("{nodes}}", "2}"),
        ("{{nodes}", "{2"),
        ("{text!q}", shlex.quote(PROPERTIES["text"])),
        ("{nodes!q}", "2"),
        ("{empty}|{empty!q}", "|''"),
        ("{rootdir}/x {mail-type}", "~/jobs/x END"),
    ],
)
def test_placeholders(text: str, expected: str) -> None:
    assert FILL.fill(text).text == expected


@pytest.mark.parametrize(
    "text",
    [
        "${nodes} ${nodes:-4} ${#nodes} $nodes",
        "$${nodes}",
        "awk '{print $1}' | awk '{nodes = 2}'",
        '{"nodes": 2}',
        "find . -exec cat {} +; echo {a,b} {1..9} {unknown} {{unknown}}",
        "{ nodes }",
        "{Nodes} {nodes!r} {nodes:>5} {nodes.x} {nodes[0]} {!q} {nodes !q}",
        "f() { nodes; }",
        "{nodes\n}",
        "docker ps --format '{{.Names}}' '{{ nodes }}'",
    ],
)
def test_every_other_brace_stays(text: str) -> None:
    assert FILL.fill(text) == SubstitutedText(text)


@pytest.mark.parametrize("character", [*" \t\n\r;&|<>()$`\\\"'*?[]#!{}^", "\0", "\x1b", "\u00a0"])
def test_a_value_with_shell_characters_must_be_quoted(character: str) -> None:
    fill = Substitution({"x": f"a{character}b"})
    with pytest.raises(SubstitutionError, match=r"write \{x!q\} to have it quoted, or \{\{x\}\} for a literal \{x\}"):
        fill.fill("echo {x}")
    assert fill.fill("echo {x!q}").text == f"echo {shlex.quote(f'a{character}b')}"
    assert fill.fill("echo {{x}}").text == "echo {x}"


@pytest.mark.parametrize("value", ["x~y", "~root", "a ~/b"])
def test_only_the_own_home_folder_may_begin_a_value(value: str) -> None:
    with pytest.raises(SubstitutionError):
        Substitution({"x": value}).fill("{x}")


def test_letters_of_all_languages_are_plain() -> None:
    assert Substitution({"x": "Größe_λ.dat"}).fill("{x}").text == "Größe_λ.dat"


def test_what_was_put_in_is_not_looked_at_again() -> None:
    fill = Substitution({"x": "{y} $CLUSTERJOB_ID", "y": "1"}, SLURM)
    assert fill.fill("{x!q} {y}").text == "'{y} $CLUSTERJOB_ID' 1"
    assert Substitution({"PBS_NODEFILE": "1"}, {"NODELIST": "${PBS_NODEFILE}"}).fill("$LADING_NODELIST").text == (
        "$PBS_NODEFILE"
    )


def test_a_placeholder_without_a_value_is_reported() -> None:
    assert FILL.fill("{queue} {queue!q}") == SubstitutedText("{queue} {queue!q}", missing=frozenset({"queue"}))
    assert FILL.fill("{{queue}}") == SubstitutedText("{queue}")


@pytest.mark.parametrize("prefix", ["CLUSTERJOB", "LADING"])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$X_ID", "$SLURM_JOB_ID"),
        ("${X_ID}", "${SLURM_JOB_ID}"),
        ("${X_ID}abc", "${SLURM_JOB_ID}abc"),
        ("$X_ID.out", "$SLURM_JOB_ID.out"),
        ("$X_SUBMIT_HOST ${X_SUBMIT_HOST}", "$SLURM_SUBMIT_HOST ${SLURM_SUBMIT_HOST}"),
        ("${X_ID:-x}", "${SLURM_JOB_ID:-x}"),
        ("${X_ID:-{nodes}}", "${SLURM_JOB_ID:-2}"),
        ("${X_ID%%.*} ${#X_ID}", "${SLURM_JOB_ID%%.*} ${#SLURM_JOB_ID}"),
        ("${!X_ID} ${X_ID/a/b}", "${!SLURM_JOB_ID} ${SLURM_JOB_ID/a/b}"),
        ("${X_WORKDIR:-$X_ID}", "${SLURM_SUBMIT_DIR:-$SLURM_JOB_ID}"),
        ("$(( $X_ARRAY_INDEX + 1 ))", "$(( $SLURM_ARRAY_TASK_ID + 1 ))"),
        ('"$X_NODELIST"', '"$(sort -u "$NODES_FILE")"'),
        ("${X_NODELIST}", '$(sort -u "$NODES_FILE")'),
    ],
)
def test_core_variables(prefix: str, text: str, expected: str) -> None:
    assert FILL.fill(text.replace("X_", f"{prefix}_")).text == expected


@pytest.mark.parametrize(
    "text",
    [
        "$CLUSTERJOB_IDENTIFIER ${CLUSTERJOB_IDENTIFIER} ${CLUSTERJOB_ID2:-x} $CLUSTERJOB_ID_",
        "$CLUSTERJOB_NAMES $CLUSTERJOB_WORKDIRS $LADING_NODELISTS",
        "$CLUSTERJOB $CLUSTERJOB_ $CLUSTERJOB_id $XCLUSTERJOB_ID CLUSTERJOB_ID=4",
        "${ CLUSTERJOB_ID } ${XCLUSTERJOB_ID}",
    ],
)
def test_other_variables_stay(text: str) -> None:
    assert FILL.fill(text) == SubstitutedText(text)


def test_a_computed_variable_that_is_taken_apart_needs_an_alias() -> None:
    filled = FILL.fill("${CLUSTERJOB_NODELIST%% *} ${#LADING_NODELIST} ${LADING_ID}")
    assert filled == SubstitutedText(
        "${LADING_NODELIST%% *} ${#LADING_NODELIST} ${SLURM_JOB_ID}", frozenset({"NODELIST"}), frozenset({"NODELIST"})
    )
    assert FILL.fill("$CLUSTERJOB_NODELIST").aliases == frozenset()


def test_without_variables_they_stay() -> None:
    text = "$CLUSTERJOB_ID ${CLUSTERJOB_ID} ${LADING_ID:-x}"
    assert Substitution({"a": "1"}).fill(text) == SubstitutedText(text)


NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,5}", fullmatch=True)
VALUES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SAFE = st.text(string.ascii_letters + string.digits + "@%+=:,./-_", max_size=12)
# Texts that are full of what might be taken for a placeholder.
PIECES = st.lists(
    st.one_of(
        st.sampled_from(
            [*"{}$!q \n\"'\\:", "{{", "}}", "${", "!q}", "{}", "$CLUSTERJOB_", "$LADING_", "${CLUSTERJOB_"]
        ),
        st.sampled_from(["ID", "IDS", "NAME", "nodes", "x", "nodes}", "{nodes", "{x}", "{{x}}", "{x!q}"]),
        st.text(max_size=4),
    ),
    max_size=12,
).map("".join)


@given(PIECES)
def test_a_text_without_placeholders_is_not_changed(text: str) -> None:
    assume(not re.search(r"\{(nodes|x)(!q)?\}", text))
    assume(not re.search(r"\$\{?[#!]?(CLUSTERJOB|LADING)_(" + "|".join(CORE_VARIABLES) + ")", text))
    assert Substitution({"nodes": "4", "x": "y"}, SLURM).fill(text) == SubstitutedText(text)


@given(PIECES, st.dictionaries(NAMES, SAFE, max_size=4))
def test_what_is_around_placeholders_is_not_changed(text: str, properties: dict[str, str]) -> None:
    """The oracle applies one rule at a time: it walks along the text and never looks back."""
    assert Substitution({**properties, "x": "1"}).fill(text).text == walked(text, {**properties, "x": "1"})


def walked(text: str, properties: dict[str, str]) -> str:
    result, position = "", 0
    while position < len(text):
        token, replacement = text[position], text[position]
        for name, value in properties.items():
            for bang in ("", "!q"):
                inner = "{" + name + bang + "}"
                if text.startswith("{" + inner + "}", position):
                    token, replacement = "{" + inner + "}", inner
                elif text.startswith(inner, position) and not text[:position].endswith("$"):
                    token, replacement = inner, shlex.quote(value) if bang else value
        result, position = result + replacement, position + len(token)
    return result


@given(NAMES, VALUES, PIECES, PIECES)
def test_a_quoted_value_is_one_word_whatever_it_is(name: str, value: str, before: str, after: str) -> None:
    text = f"{before.replace('{', '')}[{{{name}!q}}]{after.replace('{', '')}"
    filled = Substitution({name: value}).fill(text).text
    assert filled == text.replace(f"{{{name}!q}}", shlex.quote(value))
    assert shlex.split(shlex.quote(value)) == [value]


@given(PIECES)
def test_an_escaped_text_comes_out_as_it_was(text: str) -> None:
    """Doubling the braces of every placeholder gives the text back; a brace that touches one would be ambiguous."""
    assume(not re.search(r"\{\{(nodes|x)|(nodes|x)(!q)?\}\}|\$\{(nodes|x)", text))
    escaped = re.sub(r"\{(?:nodes|x)(?:!q)?\}", lambda match: "{" + match[0] + "}", text)
    assert Substitution({"nodes": "4", "x": "y"}).fill(escaped).text == text


def test_a_shell_reads_a_quoted_value_as_it_was() -> None:
    value = "a'b\"c $HOME `id` $(id) \\ * ~ ; # \n {x} !"
    text = Substitution({"x": value}).fill("printf %s {x!q}").text
    assert subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=True).stdout == value
