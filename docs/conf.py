"""The site of the documentation: `make docs` builds it into docs/_build."""

import os
from importlib import import_module
from importlib.metadata import version as installed

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


def skips(app: object, what: str, name: str, obj: object, skip: bool, options: object) -> bool | None:
    """Whether a member is left out: named tuples say of each field which number it has, and nothing else."""
    return True if type(obj).__name__ == "_tuplegetter" else None


def setup(app: Sphinx) -> None:
    app.connect("autodoc-skip-member", skips)
