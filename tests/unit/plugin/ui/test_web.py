"""The page's sources in ``web``: what was built from them is in the wheel, and their own tests pass."""

from __future__ import annotations

import gzip
import importlib.util
import json
import shutil
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import lading.plugin.ui
from tests.services import nodejs
from tests.services.debian import MissingPackagesError

WEB = Path(__file__).parents[4] / "web"
STATIC = Path(lading.plugin.ui.__file__).with_name("static")
# What a browser loads, compressed, bytes.
MOST = 500 * 1024


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    """``web/generate.py``, which belongs to no package."""
    spec = importlib.util.spec_from_file_location("generate_web", WEB / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_built_from_its_sources(generate: ModuleType) -> None:
    assert generate.DIGEST.read_text() == generate.digest(), "web/ or plugin/ui/static has changed: make ui"


def test_the_wheel_has_what_was_built(generate: ModuleType) -> None:
    for path in (*generate.built(), generate.DIGEST):
        assert (STATIC / path.name).read_bytes() == path.read_bytes(), path.name


def test_the_types_of_the_page_are_those_of_the_api(generate: ModuleType) -> None:
    kept, now = json.loads(generate.OPENAPI.read_text()), json.loads(generate.text_of(generate.openapi()))
    assert kept == now, "a route of the page has changed: make ui"


def test_a_browser_loads_little() -> None:
    sizes = {path.name: len(gzip.compress(path.read_bytes())) for path in STATIC.glob("*.js")}
    assert sum(sizes.values()) < MOST, sizes


def test_the_lock_names_no_registry() -> None:
    packages: dict[str, dict[str, Any]] = json.loads((WEB / "package-lock.json").read_text())["packages"]
    assert [name for name, package in packages.items() if "resolved" in package] == []
    assert [name for name, package in packages.items() if name and "integrity" not in package] == []


def test_the_modules_of_the_page(tmp_path: Path) -> None:
    try:
        nodejs.install_locked(WEB)
        npm = nodejs.npm()
    except MissingPackagesError as error:
        pytest.skip(str(error))
    shutil.copytree(WEB, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("node_modules"))
    (tmp_path / "node_modules").symlink_to(WEB / "node_modules")
    for script in ("check", "test"):
        done = subprocess.run([npm, "run", script], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
