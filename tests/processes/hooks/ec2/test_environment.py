"""The environment that a machine of a stock image makes for itself when it boots."""

from __future__ import annotations

import subprocess
from pathlib import Path

import yaml

from lading.hooks.ec2.boot import environment
from tests.unit.hooks.ec2.test_environment import table


def test_the_script_makes_the_environment_that_the_table_names(tmp_path: Path) -> None:
    folder = tmp_path / "an environment"
    text = environment(table(f"{folder}/bin/python"), ["--version"])
    assert text.startswith("#cloud-config\n")
    [[shell, option, script]] = yaml.safe_load(text)["runcmd"]
    # Without the package managers of the system, which are none of a test's business.
    script = script.replace("command -v dnf", "false").replace("command -v apt-get", "false")
    script = script.replace("pip install --no-input", "pip --no-input")
    subprocess.run([shell, option, script], check=True, timeout=300)
    assert (folder / ".lading-ready").exists()
    assert (folder / "bin" / "python").exists()
