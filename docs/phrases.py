"""Lists the sentences of the docs with a phrase of docs/phrases.txt: python docs/phrases.py. It never fails."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).parent
WRITTEN = {"commands.md", "configuration.md", "reasons.md"}  # by the generators here, from texts of the code
CODE = re.compile(r"^ *```.*?^ *```|`[^`\n]*`|\]\([^)]*\)", re.MULTILINE | re.DOTALL)


def phrases(text: str) -> list[tuple[re.Pattern[str], str]]:
    """The phrases of the file, and what to write instead of each."""
    rows = (line.split("\t") for line in text.splitlines() if not line.startswith("#"))
    return [(re.compile(rf"\b{phrase}", re.IGNORECASE), instead) for phrase, instead in rows]


def found(page: str, avoided: list[tuple[re.Pattern[str], str]]) -> Iterator[tuple[int, str, str, str]]:
    """The line of each phrase in the prose of a page, the phrase, its sentence, and what to write instead."""
    prose = CODE.sub(lambda code: re.sub(r"[^\n]", "_", code[0]), page)
    for sentence in re.finditer(r"\S.*?(?:[.:?!](?=\s)|(?=\n\n)|(?=\n *[*\d|])|\Z)", prose, re.DOTALL):
        for phrase, instead in avoided:
            for match in phrase.finditer(re.sub(r"\s", " ", sentence[0])):
                line = prose.count("\n", 0, sentence.start() + match.start()) + 1
                shown = " ".join(page[sentence.start() : sentence.end()].split())
                yield line, match[0].strip(), shown, instead


def main() -> None:
    avoided = phrases((DOCS / "phrases.txt").read_text("utf-8"))
    for path in [DOCS.parent / "README.md", *sorted(DOCS.glob("**/[!_]*.md"))]:
        if path.name not in WRITTEN:
            for line, phrase, sentence, instead in found(path.read_text("utf-8"), avoided):
                print(f"{path.relative_to(DOCS.parent)}:{line}: {phrase!r} ({instead}): {sentence}")


if __name__ == "__main__":
    main()
