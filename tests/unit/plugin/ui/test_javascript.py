"""The pure parts of the page's JavaScript, in Node.js."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import lading.plugin.ui
from tests.services import nodejs
from tests.services.debian import MissingPackagesError

TESTS = Path(__file__).with_name("javascript")
STATIC = Path(lading.plugin.ui.__file__).with_name("static")


def test_the_modules_of_the_page(tmp_path: Path) -> None:
    """Each file of tests beside the page's modules, which are no package of Node.js where they are installed."""
    try:
        node = nodejs.node()
    except MissingPackagesError as error:
        pytest.skip(str(error))
    shutil.copytree(TESTS, tmp_path, dirs_exist_ok=True)
    shutil.copytree(STATIC, tmp_path / "static", ignore=shutil.ignore_patterns("vendor"))
    (tmp_path / "package.json").write_text('{"type": "module"}')
    files = sorted(path.name for path in tmp_path.glob("*.test.mjs"))
    assert files
    done = subprocess.run([node, "--test", *files], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
