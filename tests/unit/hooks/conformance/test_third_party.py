"""A sixth batch system, as docs/how_to/new_batch_system.md says one is added, against the suite as it shows."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy
import pytest

from lading.hooks.batch.memory import amount, dialect
from lading.hooks.batch.refusals import Wording, any_of
from lading.hooks.batch.system import (
    BatchJobRequest,
    BatchSystem,
    CouldNotAsk,
    MemoryDialect,
    NativeJob,
    Profile,
    State,
    unknown,
)
from lading.hooks.ssh.answer import CommandResult
from lading.plugin import hookspecs, manager
from lading.plugin.hookspecs import hookimpl

PAGE = Path(__file__).parents[4] / "docs" / "how_to" / "new_batch_system.md"
NODE = MemoryDialect(per="node")
ROW = re.compile(r"(\d+) (\w+) (.*)")
STATES: dict[str, State] = {"running": "running", "waiting": "pending"}


class Nomad(BatchSystem):
    name = "nomad"
    prefix = "#NOMAD"
    variables = dict.fromkeys(("ID", "WORKDIR", "SUBMIT_HOST", "NAME", "ARRAY_INDEX", "NODELIST"), "$NOMAD")
    no_requeue = {}  # noqa: RUF012
    leaks = ("NOMAD",)
    wording = Wording(any_of("no such queue"), any_of("too many jobs"), any_of("cannot connect"), any_of("no such job"))

    def resource_directives(self, request: BatchJobRequest, profile: Profile) -> list[str]:
        names = ("jobname", "queue", "time", "nodes", "ppn", "threads", "stdout", "stderr", "gpus", "array")
        options = {name: getattr(request, name) for name in names}
        options["mem"] = amount(request, dialect(profile, NODE))
        return [self.native_directive(key, str(value)) for key, value in options.items() if value is not None]

    def native_directive(self, key: str, value: str | bool) -> str:
        return f"--{key}" if value is True else f"--{key}={value}"

    def submit(self, path: str) -> list[str]:
        return ["nomad-submit", path]

    def submitted(self, answer: CommandResult) -> str:
        for line in answer.lines:
            if answer.status == 0 and (match := re.fullmatch(r"Submitted (\d+)", line.strip())):
                return match[1]
        raise self.wording.submit_error(answer)

    def element(self, id: str, index: int) -> str:
        return f"{id}:{index}"

    def status(self, user: str, ids: Sequence[str] = ()) -> list[str]:
        return ["nomad-list", "--user", user]

    def statuses(self, answer: CommandResult) -> list[NativeJob]:
        self.wording.check_asked(answer)
        rows = [match for line in answer.lines if (match := ROW.fullmatch(line))]
        if answer.status == 0 and not rows and "ID STATE NAME" not in answer.lines:
            raise CouldNotAsk(answer.message)
        return [_job(*row.groups()) for row in rows]

    def cancel(self, ids: Sequence[str]) -> list[str]:
        return ["nomad-kill", *ids]

    def accounted(self, answer: CommandResult) -> list[NativeJob]:
        raise CouldNotAsk("none")


def _job(id: str, state: str, name: str) -> NativeJob:
    if state in STATES:
        return NativeJob(id=id, state=STATES[state], name=name)
    return NativeJob(id=id, state="running", name=name, reason=unknown("Nomad", state), strange=True)


def _suite() -> Any:
    """The class in the page's example, with the module that it imports."""
    (code,) = re.findall(r"```python\n# tests/test_nomad.py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    package, module = ModuleType("lading_nomad"), ModuleType("lading_nomad.batch")
    module.__dict__["Nomad"] = Nomad
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "lading_nomad", package)
        patch.setitem(sys.modules, "lading_nomad.batch", module)
        namespace: dict[str, Any] = {}
        exec(code, namespace)
    return namespace["TestNomad"]


TestNomad = _suite()


class _Plugin:
    def __init__(self, *systems: type[BatchSystem]) -> None:
        self.systems = systems

    @hookimpl
    def batch_systems(self) -> Sequence[type[BatchSystem]]:
        return self.systems


def _manager(*systems: type[BatchSystem]) -> pluggy.PluginManager:
    plugins = pluggy.PluginManager(hookspecs.GROUP)
    plugins.add_hookspecs(hookspecs)
    for system in systems:
        plugins.register(_Plugin(system))
    return plugins


def test_it_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "plugin_manager", lambda: _manager(Nomad))
    assert isinstance(manager.batch_systems()["nomad"], Nomad)


def test_two_of_the_same_name(monkeypatch: pytest.MonkeyPatch) -> None:
    other = type("Other", (Nomad,), {})
    monkeypatch.setattr(manager, "plugin_manager", lambda: _manager(Nomad, other))
    with pytest.raises(ValueError, match="'nomad' is offered by"):
        manager.batch_systems()
