"""Files of one account, and jobs of another team that name them: real accounts behind a real sshd each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from lading.executors.store import State
from lading.hooks.site import SiteConfig, StagingArea
from lading.hooks.ssh.connect import connect
from tests.clusters.sites import FakeSite
from tests.reasons import told
from tests.services.account import Account, NeedsRootError
from tests.services.sshd import Sshd
from tests.unit.executors.locality.test_staging import House, hold

TEAMS = ("genomics", "imaging")


class Cluster(FakeSite):
    """A cluster of one team, whose account reads and writes there."""

    def __init__(self, team: str, folder: Path, account: Account) -> None:
        super().__init__(team, folder)
        self.account = account
        self.config = SiteConfig(kind="fake", allowed_teams=[team])
        self.transport = connect(f"hpc_{team}")

    def staging_area(self, location: str) -> StagingArea:
        return StagingArea("", self.transport, f"{self.account.home}/lading")

    def copies(self) -> list[str]:
        return [path.name for path in (self.account.home / "lading" / "inputs").glob("*/*")]


@pytest.fixture
def clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Cluster]]:
    with ExitStack() as stack:
        found = {}
        for team in TEAMS:
            try:
                account = stack.enter_context(Account())
            except NeedsRootError as error:
                pytest.skip(str(error))
            login = stack.enter_context(Sshd(account))
            monkeypatch.setenv(f"AIRFLOW_CONN_HPC_{team.upper()}", login.connection())
            found[team] = Cluster(team, tmp_path, account)
            stack.callback(found[team].transport.close)
        yield found


def test_a_team_is_not_given_what_another_teams_account_alone_can_read(
    clusters: dict[str, Cluster], tmp_path: Path
) -> None:
    genomics, imaging = clusters["genomics"], clusters["imaging"]
    secret = genomics.account.write("patients.csv", "the secret of genomics\n")
    secret.chmod(0o600)
    house = House(tmp_path)
    house.sites.update(clusters)
    for each in clusters:
        house.staging.waiting[each], house.staging.wanted[each] = {}, {}
    hold(house, "genomics", secret, dag="counts", run="r")
    house.job("theft", str(secret), site="imaging", location="Y", dag="counts", team="imaging", run="r")
    house.job("own", str(secret), site="genomics", location="Y", dag="counts", team="genomics", run="r")

    def ready(site: str, *tokens: str) -> Any:
        return house.staging.ready(house.session, site, {"Y": tokens} if tokens else {})[0]

    assert ready("imaging", "theft") == {}
    ready("genomics", "own")
    assert house.wait(lambda: ready("genomics")) == {"Y": ["own"]}
    house.wait(lambda: ready("imaging") or house.row("theft").state == State.FAILED)
    assert house.row("theft").state == State.FAILED
    assert "no task has left this file anywhere" in str(told(house.row("theft").reason))
    assert imaging.copies() == []
