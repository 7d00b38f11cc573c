"""A fake EC2 with a real sshd and node agent on each of its machines, and sites that launch there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lading.hooks.ec2.config import EC2Config
from lading.hooks.ec2.limits import EC2Limits
from lading.hooks.ec2.site import EC2Site
from tests.clusters.driven import run_commands
from tests.clusters.ec2_drive import Drive
from tests.services import node_python
from tests.services.ec2 import FakeEC2
from tests.services.execution_api import ExecutionApi


@pytest.fixture(scope="module")
def service() -> Iterator[FakeEC2]:
    with FakeEC2(boot_seconds=0.5) as service:
        yield service


@pytest.fixture
def api() -> Iterator[ExecutionApi]:
    with ExecutionApi() as found:
        yield found


@pytest.fixture
def make(
    service: FakeEC2, api: ExecutionApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Drive]]:
    """Make controllers' sides of the site. Whatever a test does, no machine is left."""
    made: list[Drive] = []
    run_commands(monkeypatch)
    for name, value in service.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "cGxlYXNlIGRvIG5vdCB1c2UgdGhpcyBrZXkgZXZlcjE=")

    def build(folder: str = "spool", name: str = "cloud", limits: EC2Limits = EC2Limits(), **options: Any) -> Drive:
        table: dict[str, Any] = {
            **service.table,
            "python": str(node_python.make(service.account)),
            "api_url": api.url,
            "kill_grace": 2,
        }
        made.append(Drive(EC2Site(name, EC2Config(**{**table, **options}), tmp_path / folder)))
        made[-1].site.limits = limits
        return made[-1]

    yield build
    service.allow()
    for gate in api.gates.values():
        gate.set()
    for each in made:
        each.site.close("cancel", 120)
        if "price_rounds" in vars(each.site):  # a site that closes does not wait for an answer about prices
            each.site.price_rounds.stop(120)
            assert not each.site.price_rounds.is_alive
    assert service.living() == []
