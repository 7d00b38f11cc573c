"""The site of the documentation: `make docs` builds it into docs/_build.

Pages are plain Markdown, so that a code host shows them as well. What only the site has, it makes of their links: the
tree of pages, the files of other folders, and the docstrings.
"""

import os
import re
from importlib import import_module
from importlib.metadata import version as installed
from inspect import ismodule

from sphinx.application import Sphinx

# Airflow writes a configuration where it is imported; and before autodoc, which imports what only type checkers need.
os.environ["AIRFLOW_HOME"] = os.path.join(os.path.dirname(__file__), "_build", ".airflow")
import_module("lading.operators.job_script")

project = "Lading"
author = "The Lading authors"
copyright = author
version = release = installed("airflow-lading")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_static_path = ["_static"]
html_js_files = ["reasons.js"]  # finds a pasted message on the page of reasons
html_title = f"Lading {version}"
html_show_copyright = False
html_show_sphinx = False
html_theme_options = {"source_edit_link": "", "top_of_page_buttons": []}
pygments_style = "friendly"
pygments_dark_style = "monokai"

# Messages keep their quotation marks, so a search in the page finds what is pasted.
smartquotes = False

# Headings can be linked to as on GitHub, where the pages are read as they are.
myst_heading_anchors = 4

# Docstrings say their parameters as Sphinx has them; types stand in the signatures.
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100


# What the site makes of the lines of a page: of a list of pages in an index, of a page that is only a link to a file
# elsewhere in the repository, and of a list of what the API has.
PAGE = re.compile(r"^\* \[.+?\]\(([\w/]+)\.md\)", re.MULTILINE)
ELSEWHERE = re.compile(r"# .+\n\n\[.+\]\(((?:\.\./)+(?:\w+/)?\w+\.md)\)\n")
MEMBER = re.compile(r"^\* \[`(lading\.[\w.]+)`\]\([\w./]+\.py\)(.*(?:\n  .*)*)", re.MULTILINE)


def complete(app: Sphinx, name: str, source: list[str]) -> None:
    """Add to a page what only the site has."""
    text = source[0]
    if file := ELSEWHERE.fullmatch(text):
        folder = os.path.relpath(app.srcdir, (app.srcdir / name).parent / os.path.dirname(file[1]))
        text = f"```{{include}} {file[1]}\n:relative-docs: {folder}/\n:relative-images:\n```\n"
    elif name.endswith("index"):
        pages = "\n".join(PAGE.findall(text))
        text += f"\n```{{toctree}}\n:hidden:\n\n{pages}\n```\n"
    elif name.startswith("reference/api/"):
        text += "\n```{eval-rst}\n" + "\n".join(directive(*found) for found in MEMBER.findall(text)) + "```\n"
    source[0] = text


def directive(name: str, text: str) -> str:
    """The directive that shows the docstrings of a module, or of one of its members and the methods in ``text``."""
    module, _, member = name.rpartition(".")
    found = getattr(import_module(module), member, None)
    if found is None or ismodule(found):
        return f".. automodule:: {name}\n   :members:\n"
    if not isinstance(found, type):
        return f".. autofunction:: {name}\n"
    methods = ", ".join(re.findall(r"`(\w+)`", text))
    return f".. autoclass:: {name}\n   {f':members: {methods}' if methods else ':no-members:'}\n"


def skips(app: object, what: str, name: str, obj: object, skip: bool, options: object) -> bool | None:
    """Whether a member is left out: named tuples say of each field which number it has, and nothing else."""
    return True if type(obj).__name__ == "_tuplegetter" else None


def setup(app: Sphinx) -> None:
    app.connect("source-read", complete)
    app.connect("autodoc-skip-member", skips)
