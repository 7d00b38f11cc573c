"""A job that a real SLURM cannot launch, for a prolog fails, is gone before it is submitted again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lading.hooks.batch.slurm.system import SLURM
from lading.hooks.job_scripts.profile import SiteOptions, SiteProfile
from lading.hooks.job_scripts.run_site import RunSite
from lading.hooks.ssh.paramiko_transport import SSHTransport
from tests.clusters.runs import advanced, placed
from tests.services import processes
from tests.services.account import Account
from tests.services.slurm import Slurm
from tests.services.sshd import Sshd


@pytest.fixture
def site(account: Account, slurm: Slurm, slurm_login: Sshd, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunSite]:
    monkeypatch.setenv("AIRFLOW_CONN_SLURM", slurm_login.connection())
    with SSHTransport("slurm") as transport:
        options = SiteOptions(work_dir=f"{account.home}/launches")
        yield RunSite("hpc", SLURM(), SiteProfile(), options, transport)
        transport.run(["scancel -u $(id -un)"])
    slurm.wait_until_free()


def test_a_run_whose_node_cannot_launch_it_is_submitted_again_to_another_one(site: RunSite, slurm: Slurm) -> None:
    slurm.fail_launches("n1")
    try:
        (record,) = advanced(site, placed(site, "sleep 1; hostname", requeue=True))
        first, seen = record.job_id, []

        def has_ended() -> bool:
            nonlocal record
            (record,) = advanced(site, [record])
            seen.append((record.job_id, record.reason))
            return record.ended

        assert processes.wait_until(has_ended, 120, 0.5), seen
    finally:
        slurm.fail_launches("n1", failing=False)
        slurm.resume_node("n1")
    held = [reason for id, reason in seen if id == first and reason]
    assert any("launch failed requeued held" in reason for reason in held), seen
    assert (record.state, record.job_id != first, record.not_launched) == ("succeeded", True, 1), seen
    assert "CANCELLED" in slurm.command("squeue", "-h", "-t", "all", "-j", str(first), "-o", "%T")
