"""The live suite for batch systems, as a third party runs it, against the real SLURM and Grid Engine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.services.account import Account
from tests.services.gridengine import GridEngine
from tests.services.slurm import Slurm
from tests.services.sshd import Sshd


def tried(name: str, login: Sshd, monkeypatch: pytest.MonkeyPatch, *more: str) -> subprocess.CompletedProcess[str]:
    monkeypatch.setenv(f"AIRFLOW_CONN_LIVE_{name.upper()}", login.connection())
    arguments = ["--live", name, "--ssh-conn-id", f"live_{name}", "--work-dir", "~/live", *more]
    command = [sys.executable, "-m", "lading.hooks.conformance", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)


def check(done: subprocess.CompletedProcess[str], account: Account, checks: int = 11) -> None:
    assert "FAILED" not in done.stdout, done.stdout
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "all checks passed"), (done.stdout, done.stderr)
    assert sum(line.startswith("ok") for line in done.stdout.splitlines()) == checks, done.stdout
    assert list((account.home / "live").iterdir()) == []


def test_slurm(slurm: Slurm, slurm_login: Sshd, account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    done = tried("slurm", slurm_login, monkeypatch, "--never", "dependency=afterok:{failed}")
    check(done, account, 12)
    assert "there is no accounting" not in done.stdout
    slurm.wait_until_free()


def test_gridengine(
    gridengine: GridEngine, gridengine_login: Sshd, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(tried("sge", gridengine_login, monkeypatch), account)


def test_a_translator_with_a_fault_is_found_out(
    slurm: Slurm, slurm_login: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_module.py").write_text(
        "from lading.hooks.batch.slurm.system import SLURM\n"
        "class Forgetful(SLURM):\n"
        "    def statuses(self, answer):\n"
        "        return super().statuses(answer)[:1]\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("AIRFLOW_CONN_LIVE_SLURM", slurm_login.connection())
    arguments = [
        "--live",
        "a_module:Forgetful",
        "--ssh-conn-id",
        "live_slurm",
        "--work-dir",
        "~/live",
        "--timeout",
        "20",
    ]
    command = [sys.executable, "-m", "lading.hooks.conformance", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 1, done
    assert "but classified as unknown" in done.stdout, done.stdout
    slurm.wait_until_free()
