"""The batch clusters that these tests share, and the user as whom they come in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.services.account import Account, NeedsRootError
from tests.services.debian import MissingPackagesError
from tests.services.gridengine import GridEngine
from tests.services.slurm import Slurm
from tests.services.sshd import Sshd


@pytest.fixture(scope="package")
def account() -> Iterator[Account]:
    """An unprivileged user, as whom the tests come in through sshd."""
    with _skipping(), Account() as user:
        yield user


@pytest.fixture(scope="package")
def slurm(account: Account) -> Iterator[Slurm]:
    """A SLURM with accounting, started when the first test needs it: leave it as you found it."""
    with _skipping(), Slurm(account, accounting=True) as service:
        yield service


@pytest.fixture(scope="package")
def slurm_login(account: Account, slurm: Slurm) -> Iterator[Sshd]:
    """The sshd of SLURM's login node."""
    with Sshd(account, environment=slurm.environment) as service:
        yield service


@pytest.fixture(scope="package")
def gridengine(account: Account) -> Iterator[GridEngine]:
    """A Grid Engine, started when the first test needs it: leave it as you found it."""
    with _skipping(), GridEngine(account) as service:
        yield service


@pytest.fixture(scope="package")
def gridengine_login(account: Account, gridengine: GridEngine) -> Iterator[Sshd]:
    """The sshd of Grid Engine's login node."""
    with Sshd(account, environment=gridengine.environment) as service:
        yield service


@contextmanager
def _skipping() -> Iterator[None]:
    """Skip the tests of a service that the current user may not install or run."""
    try:
        yield
    except (MissingPackagesError, NeedsRootError) as error:
        pytest.skip(str(error))
