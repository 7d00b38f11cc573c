"""The node agent as one file, for machines that have nothing but a Python: their jobs are commands, which need no more.

It is a zip of the sources of all that runs there, which Python executes: ``python ZIP MODULE ARGUMENT...``. Nothing has
to be installed, and what is installed there of Lading is not used: the agent is always the controller's. The name of
the file is the hash of what was sent, so that it is brought once, and what waits in a queue keeps the one that it was
made for. The Python there compiles the sources once and puts the bytecode beside them: to compile them at each start
would take three times as long as the start. A Python of another version reads the sources.
"""

from __future__ import annotations

import ast
import hashlib
import io
import shlex
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import lading
from lading.hooks.deployment import current
from lading.hooks.spool.command import COMMAND_RUNNER
from lading.hooks.ssh.answer import TransportError
from lading.hooks.ssh.steps import Put, RemoteStep, RunCommand

if TYPE_CHECKING:
    from lading.hooks.ssh.transport import Transport

# What is run by name, or imported when it is needed.
MODULES = (
    "lading.executors.agent.__main__",
    "lading.executors.agent.allocation_agent",
    "lading.executors.agent.batch_job",
    COMMAND_RUNNER,
    "lading.executors.agent.tasks.inside",
    "lading.executors.host",
)
# In Lading's folder at a site.
FOLDER = "agents"
# Python on a slow file server has started and read the file within this, seconds.
TIMEOUT = 60

# What any Python understands, also one that is too old for the rest.
LEAST_PYTHON = (3, 10)
_REFUSE_OLD = f"""\
import sys
if sys.version_info < {LEAST_PYTHON}:
    sys.exit("%s is Python %d.%d, and the node agent needs {".".join(map(str, LEAST_PYTHON))} or newer; \
name another one in the table of the site, such as python = '/usr/bin/python3.11'"
        % ((sys.executable,) + tuple(sys.version_info[:2])))
"""
MAIN = f"""{_REFUSE_OLD}del sys.argv[0]
import runpy
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
# Puts what has arrived into its place, with its bytecode. What is there already is not replaced: a process that runs
# from it finds its modules by where they lie in the file. Others are removed that have not been used for a week, and
# that no script names which may wait in a queue.
_PLACE = f"""{_REFUSE_OLD}if sys.path[:1] == [""]:
    del sys.path[0]  # the home of the login, where a stray hashlib.py may lie
import glob, hashlib, importlib.util, marshal, os, time, zipfile
root, part, digest = sys.argv[1:]
os.chdir(root)
place = os.path.join(os.path.dirname(part), digest + ".zip")
with open(part, "rb") as stream:
    found = hashlib.sha256(stream.read()).hexdigest()
if found != digest:
    os.unlink(part)
    sys.exit("what has arrived is not what was sent: is the disk full?")
if not os.path.exists(place) or not zipfile.is_zipfile(place):
    with zipfile.ZipFile(part, "a") as packed:
        for name in packed.namelist():
            source = packed.read(name)
            code = compile(source, os.path.join(root, place, name), "exec", dont_inherit=True)
            # PEP 552: by the hash of its source, which is not compared.
            head = importlib.util.MAGIC_NUMBER + bytes([1, 0, 0, 0]) + importlib.util.source_hash(source)
            packed.writestr(zipfile.ZipInfo(name + "c"), head + marshal.dumps(code))
    with open(part, "rb") as stream:
        os.fsync(stream.fileno())
    os.replace(part, place)
else:
    os.unlink(part)
os.chdir(os.path.dirname(part))
scripts = ""
for path in glob.glob("../submissions/*/script") + glob.glob("../allocations/*/script"):
    try:
        with open(path) as stream:
            scripts += stream.read()
    except (OSError, ValueError):
        pass
for name in os.listdir("."):
    try:
        if name != digest + ".zip" and name not in scripts and time.time() - os.stat(name).st_mtime > 7 * 86400:
            os.unlink(name)
    except OSError:
        pass  # another process was faster, or it is no file
"""


@dataclass(frozen=True, slots=True)
class AgentArchive:
    """The file.

    :param digest: SHA-256 of the content, hexadecimal
    """

    content: bytes
    digest: str

    def path(self, root: str) -> str:
        """Its path at a site.

        :param root: Lading's folder there
        """
        return f"{root}/{FOLDER}/{self.digest}.zip"


class AgentNotBrought(TransportError):
    """The site is reached, but the node agent cannot be brought there, or not be run by its Python."""


def brought() -> AgentArchive | None:
    """What machines get from here; None: Lading is installed there, beside what its jobs need."""
    return archive() if current.deployment().brings_agent() else None


@cache
def archive() -> AgentArchive:
    """The archive; the same sources always make the same one."""
    # No namespace as where it is installed: what is on a machine of another Lading is not found beside it.
    files = sources() | {"lading/__init__.py": b"", "__main__.py": MAIN.encode()}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name in sorted(files):
            # Dated 1980, whenever it is made.
            archive.writestr(zipfile.ZipInfo(name), files[name], zipfile.ZIP_DEFLATED)
    content = packed.getvalue()
    return AgentArchive(content, hashlib.sha256(content).hexdigest())


def command(python: str, root: str, module: str) -> list[str]:
    """The command that runs a module of the node agent at a site, without its arguments.

    :param root: Lading's folder there
    """
    found = brought()
    return [python, *(("-m", module) if found is None else (found.path(root), module))]


def bring(transport: Transport, python: str, root: str, setup: str = "") -> None:
    """Have the archive lie at a site, of which nothing is sent where it is there.

    :param python: that is to run it
    :param root: Lading's folder there
    :param setup: shell text before the command
    :raises AgentNotBrought: it cannot be written there, or that Python cannot run it; with what was said
    :raises TransportError: there is no answer
    """
    found = archive()
    path = shlex.quote(found.path(root))
    # A crash of a file system may leave less than the whole of it, which ends with the end of a zip's directory.
    whole = f'[ -f {path} ] && [ "$(tail -c 22 {path} | head -c 4)" = "$(printf "PK\\005\\006")" ]'
    (present,) = transport.exchange([RunCommand(whole)])
    if present.status is None:
        raise TransportError(present.message)
    if present.status == 0:
        return
    part = f"{FOLDER}/.{uuid4().hex}"
    run = shlex.join([python, "-c", _PLACE, root, part, found.digest])
    unused = f"{{ status=$?; rm -f -- {shlex.quote(f'{root}/{part}')}; exit $status; }}"
    place = RunCommand(f"{setup}\n{run} || {unused}", limit=TIMEOUT)
    steps: list[RemoteStep] = [Put(root, {part: found.content}), place]
    for answer in transport.exchange(steps, 2 * TIMEOUT):
        if answer.status is None:
            raise TransportError(answer.message)
        if answer.status != 0:
            raise AgentNotBrought(f"the node agent cannot be brought to {root}/{FOLDER}: {answer.message}")


def sources() -> dict[str, bytes]:
    """The source of each module of the archive by its path, such as ``lading/hooks/spool/tokens.py``."""
    found: dict[str, bytes] = {}
    names = list(MODULES)
    while names:
        name = names.pop()
        if (file := _file(name)) is None:  # what is imported from a module, and is none itself
            continue
        path = f"{name.replace('.', '/')}{'/__init__' if file.name == '__init__.py' else ''}.py"
        if path not in found:
            found[path] = file.read_bytes()
            names += [*_packages(name), *_imported(found[path])]
    return found


def _file(name: str) -> Path | None:
    """The file of a module of Lading; None: there is none."""
    _, *parts = name.split(".")
    places = [Path(each, *parts) for each in lading.__path__] if parts else []
    files = [file for place in places for file in (place / "__init__.py", place.with_suffix(".py"))]
    return next((file for file in files if file.is_file()), None)


def _packages(name: str) -> Iterator[str]:
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _imported(content: bytes) -> Iterator[str]:
    """What a module imports of Lading when it is imported itself, and what it takes from there, which may be a module.

    What is imported in a function is there for Airflow's jobs, or imported by others anyway.
    """
    for node in ast.parse(content).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "lading":
            yield str(node.module)
            yield from (f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name.partition(".")[0] == "lading")
