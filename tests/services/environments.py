"""Virtual environments next to ``.venv``, in which something is installed as a user installs it.

uv resolves and installs, from the index that is configured. Where a requirement leaves a choice, the version that
a lock (``requirements.lock``) names is taken, so that two environments differ by what is asked for and by nothing else.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".environments"
TOOLS = FOLDER / "tools" / "bin"
# The oldest that Lading supports comes first.
PYTHONS = ("3.10", "3.11", "3.12", "3.13")


class InstallationError(RuntimeError):
    """Something cannot be resolved or installed; the message is what the tool has printed."""


class Environment:
    """One environment, made anew.

    :param name: of its folder
    :param python: the interpreter
    :param lock: a file of requirements, whose versions are taken where there is a choice
    """

    def __init__(self, name: str, python: Path, lock: Path = ROOT / "requirements.lock") -> None:
        self.lock = lock
        self.folder = FOLDER / name
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.bin = self.folder / "venv" / "bin"
        tool("uv", "venv", "--python", str(python), str(self.bin.parent))

    @property
    def python(self) -> Path:
        return self.bin / "python"

    def install(
        self, requirements: Sequence[str], *, constraints: str | None = None, prereleases: bool = False
    ) -> None:
        """Install what is required with all that it depends on.

        :param requirements: as pip takes them; a wheel as ``name @ file://...``
        :param constraints: path or URL of a file that fixes versions; None: the lock is followed
        :param prereleases: whether versions that are not final are taken where a requirement asks for them
        :raises InstallationError: there are no such versions, or one cannot be installed
        """
        asked, resolved = self.folder / "requirements.in", self.folder / "requirements.txt"
        asked.write_text("\n".join(requirements) + "\n")
        if constraints is None:
            resolved.write_text("\n".join(locked_versions(self.lock)) + "\n")
        options = ["--constraint", constraints] if constraints else []
        options += ["--prerelease", "allow"] if prereleases else []
        to = ("--quiet", "--no-header", "--no-annotate", "--no-emit-index-url", "--python", str(self.python))
        tool("uv", "pip", "compile", *to, *options, "--output-file", str(resolved), str(asked))
        tool("uv", "pip", "install", "--quiet", "--no-deps", "--python", str(self.python), "-r", str(resolved))
        tool("uv", "pip", "check", "--python", str(self.python))

    def run(self, *command: str, **variables: str) -> str:
        """Run Python of the environment in its folder; what it printed.

        :raises InstallationError: it failed
        """
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PYTHON"))}
        return printed([str(self.python), *command], self.folder, {**inherited, **variables})

    @property
    def mib(self) -> int:
        """What the files of its packages take."""
        files = (path.lstat().st_size for path in (self.bin.parent / "lib").rglob("*") if path.is_file())
        return round(sum(files) / 2**20)


def locked_versions(lock: Path) -> Iterator[str]:
    """The lines of a file of requirements, without hashes."""
    for line in lock.read_text().splitlines():
        if line and not line.startswith((" ", "#")):
            yield line.removesuffix("\\").rstrip()


def interpreter(version: str) -> Path | None:
    """A Python of this version (``3.12``) on PATH or of pyenv; None: there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    on_path = shutil.which(f"python{version}")
    candidates = [*([Path(on_path)] if on_path else []), *sorted(pyenv.glob(f"versions/{version}.*/bin/python3"))]
    return next((path for path in candidates if _is(path, version)), None)


def tool(name: str, *arguments: str) -> str:
    """Run one of the tools that ``make`` has installed; what it printed.

    :raises InstallationError: it failed
    """
    return printed([str(TOOLS / name), *arguments], ROOT, dict(os.environ))


def printed(command: Sequence[str], cwd: Path, environment: dict[str, str]) -> str:
    """What a command prints on standard output.

    :raises InstallationError: it failed; the message has all that it printed
    """
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise InstallationError(f"{' '.join(command)} ended with status {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def _is(python: Path, version: str) -> bool:
    """Whether it runs and is that version: a shim of pyenv stands for one that may not be chosen."""
    asked = [str(python), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    done = subprocess.run(asked, capture_output=True, text=True)
    return done.returncode == 0 and re.fullmatch(re.escape(version), done.stdout.strip()) is not None
