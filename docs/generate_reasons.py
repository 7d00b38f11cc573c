"""Writes docs/reference/reasons.md from the table of reasons: python docs/generate_reasons.py."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from lading.scheduling.reason_codes import CAUSES, CODES, Actor, Code, Form

PAGE = Path(__file__).parent / "reference" / "reasons.md"

INTRODUCTION = """\
# Troubleshooting by message

<!-- Written by docs/generate_reasons.py from scheduling/reason_codes.py: run it again after a change. -->

Every message about a job or a machine is one of these. The code is in `airflow lading jobs --output json`, in the
tooltip of the page and in the metrics; `{…}` stands for what differs from job to job. *Who* can act is the author of
the Dag, or the operator of the site, the account or Lading.

"""
PARTS = {
    Form.WAIT: (
        "Why a job waits",
        "These pass by themselves unless the table says otherwise.",
    ),
    Form.NEVER: (
        "Why a job can never run",
        "At a site, or anywhere: waiting does not help.",
    ),
    Form.PHRASE: (
        "How a job or a machine ends",
        "The cause is the class of an end that metrics and retries go by.",
    ),
}


def cell(text: str) -> str:
    """Text as one cell of a table."""
    shown = re.sub(r"\{(\w+)(?:!r)?(?::\w+)?\}", r"{\1}", text).replace("|", "\\|").replace("<", "&lt;")
    return shown.replace("[[", "\\[\\[").replace("*", "\\*").strip() or " "


def who(actors: Iterable[Actor]) -> str:
    return ", ".join(actor.value for actor in actors)


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def codes(form: Form) -> str:
    """The codes of one form, those of one kind and title together."""
    alike: Mapping[tuple[str, ...], list[Code]] = {}
    for code in CODES.values():
        if code.form is form:
            alike.setdefault((code.title, code.remedy, who(code.actors)), []).append(code)  # type: ignore[attr-defined]
    parts = []
    for (title, remedy, actors), group in alike.items():
        rows = ((f"`{code.key}`", cell(code.sentence)) for code in group)
        parts += [f"### {cell(title)}", f"*{actors.capitalize()}.* {cell(remedy)}", table(("code", "message"), rows)]
    return "\n\n".join(parts)


def page() -> str:
    """The whole page as Markdown."""
    causes = ((f"`{each.key}`", cell(each.title), cell(each.remedy), who(each.actors)) for each in CAUSES.values())
    parts = [f"## {title}\n\n{text}\n\n{codes(form)}" for form, (title, text) in PARTS.items()]
    ends = f"## Causes\n\n{table(('cause', 'what has happened', 'what to do', 'who'), causes)}"
    return INTRODUCTION + "\n\n".join([ends, *parts]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
