"""Checks the links of README, changelog and documentation: files that are there, and headings that they have.

    python docs/check_links.py

Prints each that leads nowhere; the status is 1 then. What lies outside of the repository is not asked for.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[1]
HTML_ANCHOR = re.compile(r"<[^>]+\b(?:id|name)=[\"']([^\"']+)")


@cache
def tokens(path: Path) -> list[Token]:
    return MarkdownIt("gfm-like", {"linkify": False}).parse(path.read_text(encoding="utf-8"))


@cache
def anchors(path: Path) -> frozenset[str]:
    """The fragments that lead into a page, as GitHub makes them of its headings."""
    found: dict[str, int] = {}
    names = set(HTML_ANCHOR.findall(path.read_text(encoding="utf-8")))
    for opening, inline in zip(tokens(path), tokens(path)[1:], strict=False):
        if opening.type == "heading_open":
            text = "".join(part.content for part in inline.children or () if part.type in ("text", "code_inline"))
            slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            number = found[slug] = found.get(slug, -1) + 1
            names.add(f"{slug}-{number}" if number else slug)
    return frozenset(names)


def links(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a page with what they link to."""
    for block in tokens(path):
        for part in block.children or ():
            target = part.attrGet("href") or part.attrGet("src")
            if target is not None:
                yield (block.map or [0])[0] + 1, str(target)


def fault(path: Path, target: str) -> str | None:
    """What is wrong with a link; None: nothing, or it leads out of the repository."""
    parts = urlsplit(target)
    if parts.scheme or parts.netloc:
        return None
    there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not there.exists():
        return f"there is no {parts.path}"
    if parts.fragment and there.suffix == ".md" and parts.fragment not in anchors(there):
        return f"{there.relative_to(ROOT)} has no heading #{parts.fragment}"
    return None


def main() -> int:
    pages = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md")])
    faults = [
        f"{page.relative_to(ROOT)}:{line}: [{target}] leads nowhere: {why}"
        for page in pages
        for line, target in links(page)
        if (why := fault(page, target)) is not None
    ]
    print("\n".join(faults), end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
