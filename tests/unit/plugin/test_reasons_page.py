"""The field of docs/reference/reasons.md: whoever pastes a message gets its row."""

from __future__ import annotations

import json
import re
import shutil
import string
import subprocess
from pathlib import Path

import pytest

from lading.scheduling.model.reason_codes import CODES, Form
from lading.scheduling.model.reasons import because
from tests.services import nodejs
from tests.services.debian import MissingPackagesError

DOCS = Path(__file__).parents[3] / "docs"
SCRIPT = DOCS / "_static" / "reasons.js"
# What of a sentence has to be the same in each message before it says which reason that is.
LEAST_LETTERS = 8
FINDS = """
const { rowsOf } = require(process.argv[1]);
const { rows, pasted } = JSON.parse(require("fs").readFileSync(0, "utf8"));
console.log(JSON.stringify(pasted.map((each) => rowsOf(each, rows).map((row) => row.code))));
"""


def rows() -> list[dict[str, str]]:
    """The rows of the page, as a browser shows them."""
    found, remedy = [], ""
    for line in (DOCS / "reference" / "reasons.md").read_text("utf-8").splitlines():
        shown = re.sub(r"\\([\[*|])", r"\1", line).replace("&lt;", "<")
        if said := re.match(r"\*[\w, ]+\.\* (.+)", shown):
            remedy = said[1]
        elif row := re.match(r"\* `(\w+)`: (.+)", shown):
            found.append({"code": row[1], "message": row[2], "remedy": remedy})
    return found


def find(pasted: list[str]) -> list[list[str]]:
    """The codes that the page answers for each pasted text, the likeliest first."""
    try:
        nodejs.npm()  # which brings Node.js
    except MissingPackagesError as error:
        pytest.skip(str(error))
    node = shutil.which("node")
    assert node is not None
    done = subprocess.run(
        [node, "-e", FINDS, str(SCRIPT)],
        input=json.dumps({"rows": rows(), "pasted": pasted}),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: list[list[str]] = json.loads(done.stdout)
    return found


def fixed_letters(sentence: str) -> int:
    return sum(len(literal.replace("`", "").strip()) for literal, *_ in string.Formatter().parse(sentence))


def test_the_page_has_every_code() -> None:
    assert {row["code"] for row in rows()} == {code.key for code in CODES.values() if code.form in Form}


def test_the_message_of_every_code_leads_to_its_row() -> None:
    distinct = [code for code in CODES.values() if fixed_letters(code.sentence) >= LEAST_LETTERS]
    assert len(distinct) > len(CODES) * 0.8
    names = {
        code.key: {name for _, name, _, _ in string.Formatter().parse(code.sentence) if name and name != "also"}
        for code in distinct
    }
    messages = [str(because(code.key, **dict.fromkeys(names[code.key], "x1"))) for code in distinct]
    found = find([f"[2026-11-26T21:00:00Z] genomes.align: {message}" for message in messages])
    assert {code.key: codes for code, codes in zip(distinct, found, strict=True) if code.key not in codes} == {}


@pytest.mark.parametrize(
    ("pasted", "code"),
    [
        ("waits: at most 2 jobs of task 'two' can be active at once (max_jobs)", "task_jobs"),
        ("waits: 5 of 5 instances of the site are busy or booting", "site_instances"),
        ("waits: site hpc accepts no jobs now: ssh: connect to host login port 22: Connection refused", "site_trouble"),
        ("waits: no capacity for m5.large, which is not requested again before 12:03", "no_capacity"),
        (
            "no controller is running; because of [lading] start_controller = False, a service has to start it",
            "no_controller_service",
        ),
        ("the task exceeded its time limit of 2h", "over_time"),
        ("task_jobs", "task_jobs"),
    ],
)
def test_a_pasted_message(pasted: str, code: str) -> None:
    [found] = find([pasted])
    assert found[0] == code


def test_what_is_no_message_has_no_row() -> None:
    assert find(["", "hello", "Task exited with return code 1"]) == [[], [], []]
