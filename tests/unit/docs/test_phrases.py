"""``make docs`` lists phrases to avoid, so that a writer sees them."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs"
SCRIPT = runpy.run_path(str(DOCS / "phrases.py"))
AVOIDED = SCRIPT["phrases"]("# a comment\nasks for\trequest\nis ended\tsay how: killed\n")


def found(page: str) -> list[tuple[int, str, str]]:
    return [(line, phrase, sentence) for line, phrase, sentence, _ in SCRIPT["found"](page, AVOIDED)]


def test_a_phrase_is_found_with_its_line_and_its_sentence() -> None:
    page = "# A title\n\nIt runs. A job asks\nfor `cpus`, and is ended. It runs.\n\n* It is ended\n* It runs\n"
    sentence = "A job asks for `cpus`, and is ended."
    assert found(page) == [(3, "asks for", sentence), (4, "is ended", sentence), (6, "is ended", "* It is ended")]


def test_code_and_links_are_not_prose() -> None:
    assert found("```sh\nit asks for it\n```\n\nSee `asks for` and [this](asks for.md).\n") == []


def test_each_line_of_the_file_is_a_phrase_and_what_to_write() -> None:
    assert all(instead for _, instead in SCRIPT["phrases"]((DOCS / "phrases.txt").read_text("utf-8")))
