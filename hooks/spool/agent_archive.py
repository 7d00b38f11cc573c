"""The node agent as one file, for machines that only have Python: their jobs are commands, which need nothing else.

It is a zip of the sources of all modules that run on the machine, which Python executes: ``python ZIP MODULE
ARGUMENT...``. Nothing has to be installed, and an installed Lading is ignored: the agent always has the controller's
version. The file is named after the hash of what was sent, so that it is sent only once, and jobs in a queue keep the
version that they were submitted with. The machine's Python compiles the sources once and adds the bytecode to the file:
compiling at each start would take three times as long as the start itself. A Python of another version reads the
sources.
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
from lading.hooks.deployment.deployment import Deployment
from lading.hooks.spool.command import COMMAND_RUNNER
from lading.hooks.ssh.answer import TransportError
from lading.hooks.ssh.steps import Put, RemoteStep, RunCommand

if TYPE_CHECKING:
    from lading.hooks.ssh.transport import Transport

# Modules that are run by name, or imported late.
MODULES = (
    "lading.executors.agent.__main__",
    "lading.executors.agent.allocation_agent",
    "lading.executors.agent.batch_job",
    "lading.executors.agent.batch_task",
    COMMAND_RUNNER,
    "lading.executors.agent.tasks.inside",
    "lading.hooks.dags.teams",
    "lading.hooks.files.addresses",
    "lading.scheduling.model.reason_text",
    "lading.executors.host",
)
# The folder of the archives, within Lading's folder at a site.
FOLDER = "agents"

# Code that any Python understands, including versions that are too old for the agent.
LEAST_PYTHON = (3, 10)
_REFUSE_OLD = f"""\
import sys
if sys.version_info < {LEAST_PYTHON}:
    sys.exit("%s is Python %d.%d, and the node agent needs {".".join(map(str, LEAST_PYTHON))} or newer; \
name another one in the table of the site, such as python = '/usr/bin/python3.11'"
        % ((sys.executable,) + tuple(sys.version_info[:2])))
"""
MAIN = f"""{_REFUSE_OLD}del sys.argv[0]
import gc, runpy
gc.set_threshold(10_000)  # with the default of 700, collections would take a tenth of the start
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
# Installs the received archive with its bytecode. An existing archive is not replaced: a process that runs from it
# locates its modules by their offsets in the file. Other archives are removed once they have not been used for a week
# and no script that may wait in a queue names them.
_PLACE = f"""{_REFUSE_OLD}if sys.path[:1] == [""]:
    del sys.path[0]  # the user's home, which may contain a stray hashlib.py
import glob, hashlib, importlib.util, marshal, os, time, zipfile
root, part, digest = sys.argv[1:]
os.chdir(root)
place = os.path.join(os.path.dirname(part), digest + ".zip")
with open(part, "rb") as stream:
    found = hashlib.sha256(stream.read()).hexdigest()
if found != digest:
    os.unlink(part)
    sys.exit("the archive was damaged on its way: is the disk full?")
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
        pass  # another process was faster, or it is not a file
"""


@dataclass(frozen=True, slots=True)
class AgentArchive:
    """The archive.

    :param digest: SHA-256 of the content, hexadecimal
    """

    content: bytes
    digest: str

    def path(self, root: str) -> str:
        """Return its path at a site.

        :param root: Lading's folder at the site
        """
        return f"{root}/{FOLDER}/{self.digest}.zip"


class AgentNotBrought(TransportError):
    """The site is reachable, but the node agent cannot be copied there or run by the site's Python."""


def brought(deployment: Deployment) -> AgentArchive | None:
    """Return the archive if machines get it from here; None: Lading is installed there, with what its jobs need."""
    return archive() if deployment.brings_agent() else None


@cache
def archive() -> AgentArchive:
    """Build the archive; equal sources give equal archives."""
    # A regular package, unlike the namespace of the installed Lading: modules of another Lading on the machine must not
    # be found.
    files = sources() | {"lading/__init__.py": b"", "__main__.py": MAIN.encode()}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name in sorted(files):
            # ZipInfo dates files 1980, so the content does not depend on the time.
            archive.writestr(zipfile.ZipInfo(name), files[name], zipfile.ZIP_DEFLATED)
    content = packed.getvalue()
    return AgentArchive(content, hashlib.sha256(content).hexdigest())


def command(deployment: Deployment, python: str, root: str, module: str, *, without_site: bool = False) -> list[str]:
    """Return the command that runs a module of the node agent at a site, without its arguments.

    :param root: Lading's folder at the site
    :param without_site: whether the module needs no packages in addition to the archive. Python then starts without its
        module ``site``, which finds installed packages and takes a third of Python's start
    """
    found = brought(deployment)
    if found is None:
        return [python, "-m", module]
    return [python, *(["-S"] if without_site else ()), found.path(root), module]


def bring(transport: Transport, python: str, root: str, setup: str = "") -> None:
    """Copy the archive to a site unless it exists there.

    :param python: the site's Python that is to run it
    :param root: Lading's folder at the site
    :param setup: shell text before the command
    :raises AgentNotBrought: it cannot be written there, or that Python cannot run it; with the output
    :raises TransportError: there is no answer
    """
    found = archive()
    path = shlex.quote(found.path(root))
    # A crash of the file system may truncate the file; a complete one ends with the end record of a zip's directory.
    whole = f'[ -f {path} ] && [ "$(tail -c 22 {path} | head -c 4)" = "$(printf "PK\\005\\006")" ]'
    (present,) = transport.exchange([RunCommand(whole)])
    if present.status is None:
        raise TransportError(present.message)
    if present.status == 0:
        return
    part = f"{FOLDER}/.{uuid4().hex}"
    run = shlex.join([python, "-c", _PLACE, root, part, found.digest])
    unused = f"{{ status=$?; rm -f -- {shlex.quote(f'{root}/{part}')}; exit $status; }}"
    # Python starts, even from a slow file server, and reads the file within a minute.
    place = RunCommand(f"{setup}\n{run} || {unused}", limit=60)
    steps: list[RemoteStep] = [Put(root, {part: found.content}), place]
    for answer in transport.exchange(steps, timeout=120):
        if answer.status is None:
            raise TransportError(answer.message)
        if answer.status != 0:
            raise AgentNotBrought(f"the node agent cannot be copied to {root}/{FOLDER}: {answer.message}")


def sources() -> dict[str, bytes]:
    """Return the source of each module of the archive by its path, such as ``lading/hooks/spool/tokens.py``."""
    found: dict[str, bytes] = {}
    names = list(MODULES)
    while names:
        name = names.pop()
        if (file := _file(name)) is None:  # a name imported from a module, not a module itself
            continue
        path = f"{name.replace('.', '/')}{'/__init__' if file.name == '__init__.py' else ''}.py"
        if path not in found:
            found[path] = file.read_bytes()
            names += [*_packages(name), *_imported(found[path])]
    return found


def _file(name: str) -> Path | None:
    """Return the file of a module of Lading; None: the module does not exist."""
    _, *parts = name.split(".")
    places = [Path(each, *parts) for each in lading.__path__] if parts else []
    files = [file for place in places for file in (place / "__init__.py", place.with_suffix(".py"))]
    return next((file for file in files if file.is_file()), None)


def _packages(name: str) -> Iterator[str]:
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _imported(content: bytes) -> Iterator[str]:
    """Yield what a module imports from Lading at import time: modules, and names in them, which may be modules.

    Imports within functions are for Airflow's jobs, or of modules that the archive contains anyway.
    """
    for node in ast.parse(content).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "lading":
            yield str(node.module)
            yield from (f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name.partition(".")[0] == "lading")
