"""Pages are read on a code host as well, which shows the directives of the site as listings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DIRECTIVE = re.compile(r"^ *(?:`{3,}|:{3,}) *\{.*|(?<!`)\{[\w:]+\}`[\w~<].*", re.MULTILINE)
PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/[!_]*/**/*.md")), "docs/index.md"]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_plain_markdown(page: str) -> None:
    assert DIRECTIVE.findall((ROOT / page).read_text("utf-8")) == []
