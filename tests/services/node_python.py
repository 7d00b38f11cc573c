"""A Python with all that the tests have, which other users can run: ours may be below root's home."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.services.account import Account


def make(account: Account) -> Path:
    """The interpreter for the jobs of an account, which is made once.

    :raises RuntimeError: there is none of our version that the account can run
    """
    folder = account.folder / "python"
    made = folder / "bin" / "python"
    if made.exists():
        return made
    system = Path(f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}")
    for interpreter in (Path(sys.executable), system):
        if _can_run(account, interpreter):
            break
    else:
        raise RuntimeError(f"{account.name} can run neither {sys.executable} nor {system}: install the latter")
    if interpreter == Path(sys.executable):
        return interpreter
    subprocess.run([str(system), "-m", "venv", "--without-pip", str(folder)], check=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    # Not as PYTHONPATH: the .pth files of an editable install count, too.
    (packages / "tests.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    return made


def bare(account: Account) -> Path:
    """An interpreter that an account can run and that has nothing but the standard library."""
    folder = account.folder / "bare"
    subprocess.run([str(make(account)), "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / "bin" / "python"


def _can_run(account: Account, interpreter: Path) -> bool:
    try:
        done = subprocess.run(
            [str(interpreter), "-c", ""], user=account.uid, group=account.uid, extra_groups=[], cwd="/", env={}
        )
    except OSError:
        return False
    return done.returncode == 0 and os.access(interpreter, os.X_OK)
