"""Writes docs/reference/reasons.md from the table of reasons: python docs/generate_reasons.py."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from lading.scheduling.model.reason_codes import CAUSES, CODES, Actor, Code, Form

PAGE = Path(__file__).parent / "reference" / "reasons.md"

INTRODUCTION = """\
# Troubleshooting by message

<!-- Written by docs/generate_reasons.py from scheduling/model/reason_codes.py: run it again after a change. -->

This page lists all messages about jobs and machines. To find yours, paste it into the field above (only on the
documentation site). Or search this page for a part of the message, or for its code, which is the `reason_code` in
`airflow lading jobs --output json`.

In a message, "it" is the job or the machine. `{…}` stands for a part that differs from job to job. `…` at the end of a
message stands for the remedy. The line above each list says who can act, and what to do. *Author* is the author of the
Dag; *operator* is whoever operates the site, the account or Lading.

"""
PARTS = {
    Form.WAIT: (
        "Why a job waits",
        "The messages are grouped by what the job waits for.",
    ),
    Form.NEVER: (
        "Why a job can never run",
        "Waiting does not help in these cases. Where a message names a site, it applies only to that site.",
    ),
    Form.PHRASE: (
        "How a job or a machine ends",
        "Each of these messages belongs to one of the [causes](#causes), which metrics and retries depend on.",
    ),
}


def cell(text: str) -> str:
    """Text as one cell of a table."""
    shown = re.sub(r"\{(\w+)(?:!r)?(?::[\w.]+)?\}", r"{\1}", text).replace("|", "\\|").replace("<", "&lt;")
    return shown.replace("[[", "\\[\\[").replace("*", "\\*").strip() or " "


def who(actors: Iterable[Actor]) -> str:
    return ", ".join(actor.value for actor in actors)


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def message(code: Code) -> str:
    """The sentence of a code; a remedy at its end is not said again."""
    sentence, remedy = code.sentence, code.remedy.removesuffix(".")
    ending = f"; {remedy[:1].lower()}{remedy[1:]}"
    return cell(sentence.removesuffix(ending) + "; …" if sentence.endswith(ending) else sentence)


def codes(form: Form) -> str:
    """The codes of one form: those of one title together, and of these those of one remedy in one table."""
    titles: dict[str, dict[tuple[str, str], list[Code]]] = {}
    for code in CODES.values():
        if code.form is form:
            titles.setdefault(code.title, {}).setdefault((code.remedy, who(code.actors)), []).append(code)
    parts = []
    for title, groups in titles.items():
        parts.append(f"### {cell(title)}")
        for (remedy, actors), group in groups.items():
            messages = (f"* `{code.key}`: {message(code)}" for code in group)
            parts += [f"*{actors.capitalize()}.* {cell(remedy)}", "\n".join(messages)]
    return "\n\n".join(parts)


def page() -> str:
    """The whole page as Markdown."""
    causes = ((f"`{each.key}`", cell(each.title), cell(each.remedy), who(each.actors)) for each in CAUSES.values())
    parts = [f"## {title}\n\n{text}\n\n{codes(form)}" for form, (title, text) in PARTS.items()]
    ends = f"## Causes\n\n{table(('cause', 'what happened', 'what to do', 'who can act'), causes)}"
    return INTRODUCTION + "\n\n".join([ends, *parts]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
