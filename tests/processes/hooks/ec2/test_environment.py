"""The environment that a machine of a stock image makes for itself when it boots."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from lading.hooks.ec2.boot import environment, user_data
from lading.hooks.ec2.identity import Identity
from tests.unit.hooks.ec2 import test_launch as launch
from tests.unit.hooks.ec2.test_environment import table


def test_the_script_makes_the_environment_that_the_table_names(tmp_path: Path) -> None:
    folder = tmp_path / "an environment"
    text = environment(table(f"{folder}/bin/python"), ["--version"])
    assert text.startswith("#cloud-config\n")
    [[shell, option, script]] = yaml.safe_load(text)["runcmd"]
    # Without the package managers of the system, which are none of a test's business.
    script = script.replace("command -v dnf", "false").replace("command -v apt-get", "false")
    script = script.replace('pip" install --no-input', 'pip" --no-input')
    folder.mkdir()
    (folder / ".lading-failed").write_text("the time before")
    done = subprocess.run([shell, option, script], check=True, timeout=300, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == f"airflow lading bootstrap: {folder} is ready"
    assert not (folder / ".lading-failed").exists()
    setup = table(f"{folder}/bin/python").agent_setup
    assert subprocess.run(["sh", "-c", setup], timeout=60).returncode == 0
    assert (folder / ".lading-ready").exists()
    assert (folder / "bin" / "python").exists()


def test_what_fails_is_said_in_the_folder_in_which_the_reader_waits_for_the_end(tmp_path: Path) -> None:
    folder = tmp_path / "environment"
    [[shell, option, script]] = yaml.safe_load(environment(table(f"{folder}/bin/python"), ["x"]))["runcmd"]
    script = script.replace("command -v dnf", "false").replace("command -v apt-get", "false")
    script = script.replace('"$python" -m venv "$folder"', "echo there is no pip; exit 3")
    done = subprocess.run([shell, option, script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 3
    assert not (folder / ".lading-ready").exists()
    assert "there is no pip" in (folder / ".lading-failed").read_text()
    assert "there is no pip" in done.stdout, "for cloud-init and the console"
    ended = f"airflow lading bootstrap: {folder} could not be made, status 3; see {folder}/.lading-failed"
    assert done.stdout.splitlines()[-1] == ended
    setup = table(f"{folder}/bin/python").agent_setup
    asked = subprocess.run(["sh", "-c", setup], capture_output=True, text=True, timeout=60)
    assert asked.returncode == 1
    assert "the user data of `airflow lading bootstrap` failed on this machine" in asked.stderr, "in the site's note"
    assert "there is no pip" in asked.stderr
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin/python").unlink(missing_ok=True)
    (folder / "bin/python").symlink_to("/bin/true")  # it was mended by hand, and has Lading
    assert subprocess.run(["sh", "-c", setup], timeout=60).returncode == 0


@pytest.mark.parametrize(("script", "fails"), [("echo no such image; exit 3", True), ("echo fine", False)])
def test_a_boot_that_has_failed_is_shown_by_the_machine(tmp_path: Path, script: str, fails: bool) -> None:
    options = {"work_dir": str(tmp_path / "lading"), "boot_script": script, "python": str(tmp_path / "no python")}
    config = launch.config(**options)
    document = json.loads(user_data(config, Identity.from_secret("ours"), "L1").partition("\n")[2])
    [command] = document["runcmd"]
    assert subprocess.run(command, capture_output=True, timeout=60).returncode == (3 if fails else 0)
    asked = subprocess.run(["sh", "-c", config.agent_setup], capture_output=True, text=True, timeout=60)
    assert asked.returncode == (1 if fails else 0)
    assert ("boot_script of the site's table has failed with status 3" in asked.stderr) == fails
    assert ("no such image" in asked.stderr) == fails
    there = launch.config(**{**options, "python": sys.executable})
    assert subprocess.run(["sh", "-c", there.agent_setup], timeout=60).returncode == 0, "it works all the same"
