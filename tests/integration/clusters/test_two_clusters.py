"""Jobs that name the SLURM cluster that is to run them: two real clusters share a slurmdbd, and one login node submits
to both. The jobs only ask an API server for its health."""

from __future__ import annotations

import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lading.hooks.batch.slurm.system import SLURM
from lading.hooks.cluster.jobs.poller import ClusterPoller
from lading.hooks.cluster.site import ClusterSite
from lading.hooks.job_scripts import layout
from lading.hooks.job_scripts.profile import SiteOptions, SiteProfile
from lading.hooks.job_scripts.run_site import RunSite
from lading.hooks.job_scripts.script import JobScript
from lading.hooks.ssh.answer import TransportError
from lading.hooks.ssh.paramiko_transport import SSHTransport
from lading.plugin.manager import site_kinds
from lading.scheduling.model.reasons import because
from tests.clusters.asked import cancel
from tests.clusters.driven import HEALTH, Driven, asked, run_commands
from tests.clusters.runs import advanced, placed
from tests.services import node_python
from tests.services.account import Account
from tests.services.execution_api import ExecutionApi
from tests.services.processes import wait_until
from tests.services.slurm import Slurm
from tests.services.sshd import Sshd

FAR: dict[str, str | bool] = {"clusters": "far"}
HELD = {**FAR, "hold": True}


class Site(Driven[ClusterSite]):
    """A controller's side of the login node, and the events there."""

    patience = 90.0
    pause = 0.2

    def ids(self) -> dict[str, str | None]:
        """The native id of each job."""
        jobs = list(self.site.poller.tracker.jobs.values())
        return {job.token: job.native_id(self.site.system) for job in jobs}

    def forget(self) -> None:
        """Stop without cleaning up, as a controller that is killed."""
        self.site.rounds.stop(60.0)


@pytest.fixture(scope="module")
def far(account: Account, slurm: Slurm) -> Iterator[Slurm]:
    """The second cluster, with the folders of the first one."""
    with Slurm(account, nodes=1, name="far", other=slurm) as service:
        yield service


@pytest.fixture
def make(
    account: Account, slurm_login: Sshd, far: Slurm, api: ExecutionApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Site]]:
    """Make controllers of one site."""
    made: list[Site] = []
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", slurm_login.connection())
    work_dir = f"{account.home}/{uuid.uuid4()}"

    def build(**options: Any) -> Site:
        table = {"ssh_conn_id": "cluster", "work_dir": work_dir, "api_url": f"{api.url}", "node_cpus": 8}
        table |= {"python": str(node_python.make(account)), "node_memory": 16000, "max_poll_interval": 3}
        kind, workload = site_kinds()["slurm"], run_commands(monkeypatch)
        config = kind.config_model(kind="slurm", kill_grace=2, lost_after=30, **{**table, **options})
        site = kind("hpc", config, tmp_path / str(len(made)))
        made.append(Site(site, workload))  # type: ignore[arg-type]
        return made[-1]

    yield build
    for each in made:
        with suppress(OSError):
            each.site.close("cancel", 30.0)
    far.wait_until_free()


def test_jobs_run_in_the_cluster_that_they_name(
    make: Callable[..., Site], slurm: Slurm, far: Slurm, api: ExecutionApi
) -> None:
    site = make()
    [either], [here] = site.put(1, native={"M": "lading,far"}), site.put(1)
    assert {event["cause"] for event in site.wait_for("finished", [either, here])} == {None}
    assert str(site.events_of("finished")[either]["native_id"]).endswith((";lading", ";far"))
    assert str(site.events_of("finished")[here]["native_id"]).isdecimal()
    api.gates[HEALTH] = threading.Event()
    array = site.put(2, native=FAR)
    site.wait_for("started", array)
    first, second = (str(site.ids()[token]) for token in array)
    number = first.partition("_")[0]
    assert {first, second} == {f"{number}_1;far", f"{number}_2;far"}
    shown = slurm.command("scontrol", "-M", "far", "show", "job", first.partition(";")[0])
    assert "NodeList=far1" in shown
    cancel(site.site, {array[0]: because("airflow_stopped")})
    [event] = site.wait_for("finished", array[:1])
    assert (event["cause"], event["native_id"], event["node"]) == ("cancelled", first, "far1")
    far.kill_node("far1")
    try:
        [event] = site.wait_for("finished", array[1:])
        assert (event["cause"], event["native_id"]) == ("node_failure", second)
        assert not site.site.poller.nodes.reasons(), "a node of this name may be in order here"
    finally:
        far.start_node("far1")


def test_a_pending_job_is_cancelled_in_its_cluster(make: Callable[..., Site], far: Slurm) -> None:
    site = make()
    [token] = site.put(1, native=HELD)
    assert wait_until(lambda: (site.look(), str(site.ids().get(token)))[1].endswith(";far"), 60, 0.2)
    assert "PENDING" in far.command("squeue", "-h", "-o", "%T")
    cancel(site.site, {token: because("airflow_stopped")})
    [event] = site.wait_for("finished", [token])
    assert event["cause"] == "cancelled"
    assert wait_until(lambda: (site.look(), far.command("squeue", "-h"))[1] == "", 30, 0.2)


def test_a_job_whose_answer_was_lost_is_looked_up_in_every_cluster_that_it_names(
    make: Callable[..., Site], far: Slurm, api: ExecutionApi
) -> None:
    first = make()
    api.gates[HEALTH] = threading.Event()
    [there], [here] = first.put(1, native=HELD), first.put(1)
    first.wait_for("started", [here])
    assert wait_until(lambda: (first.look(), first.ids()[there])[1] is not None, 60, 0.2)
    id = str(first.ids()[there])
    assert far.wait_until_saved(id.partition(";")[0])
    first.forget()
    for token in (there, here):
        submission = first.site.poller.tracker.jobs[token].submission
        assert submission is not None
        Path(first.site.config.work_dir, "submissions", submission.name, "answer").unlink()
    far.kill_controller()
    try:
        second = make()
        second.take_over(first)
        [late] = second.put(1, native=FAR)
        began = time.monotonic()
        assert wait_until(lambda: (second.look(), second.ids().get(here))[1] is not None, 60, 0.2)
        until = began + ClusterPoller.seconds_until_repeated + 5
        assert wait_until(lambda: (second.look(), time.monotonic() > until)[1], 60, 0.2)
        assert second.ids()[there] is None, "nothing is known of it while its cluster is silent"
        [more] = second.put(1)
        second.wait_for("started", [more])
        assert second.site.poller.unasked is None, "the other cluster answers"
        assert not second.events_of("finished"), "what cannot be submitted now is not refused"
    finally:
        far.start_controller()
    assert wait_until(lambda: (second.look(), second.ids()[there])[1] == id, 60, 0.2)
    far.scontrol("release", id.partition(";")[0])
    api.gates[HEALTH].set()
    assert {event["cause"] for event in second.wait_for("finished", [there, here, more, late])} == {None}
    assert asked(api) == 4, "each ran once"


def test_a_job_that_a_silent_cluster_accepts_later_runs_once(
    make: Callable[..., Site], far: Slurm, api: ExecutionApi
) -> None:
    site = make()
    with far.frozen_controller():
        [there] = site.put(1, native=FAR)
        assert wait_until(lambda: (site.look(), site.site.poller.submitter.pressure.held())[1] is not None, 60, 0.2)
        [here] = site.put(1)
        site.wait_for("finished", [here])
        assert site.ids()[there] is None
        submission = site.site.poller.tracker.jobs[there].submission
        name = "" if submission is None else submission.name
    [event] = site.wait_for("finished", [there])
    assert (event["cause"], event["native_id"].endswith(";far")) == (None, True)
    assert asked(api) == 2, "each ran once"
    names = far.command("squeue", "-h", "-t", "all", "-o", "%j").split()
    assert names.count(name) == 1, "it was submitted once"


def test_an_allocation_of_another_cluster_gets_the_jobs_that_name_it(
    make: Callable[..., Site], api: ExecutionApi
) -> None:
    site = make(mode="allocation", idle_seconds=2)
    tokens, [here] = site.put(2, native=FAR), site.put(1)
    assert {event["cause"] for event in site.wait_for("finished", [*tokens, here])} == {None}
    ids = {token: event["native_id"] for token, event in site.events_of("finished").items()}
    assert all(ids[token].endswith(";far") for token in tokens)
    assert ids[here].isdecimal()


def test_a_cluster_that_does_not_exist_is_named_in_the_error(make: Callable[..., Site]) -> None:
    site = make()
    [token] = site.put(1, native={"clusters": "nowhere"})
    [event] = site.wait_for("finished", [token])
    assert event["cause"] == "submit_rejected"
    assert "nowhere" in str(event["reason"])


def test_a_job_script_in_another_cluster(
    account: Account, slurm_login: Sshd, far: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SLURM", slurm_login.connection())
    with SSHTransport("slurm") as transport:
        options = SiteOptions(work_dir=f"{account.home}/two_clusters")
        site = RunSite("hpc", SLURM(), SiteProfile(), options, transport)
        begun = placed(site, "sleep 2; echo $SLURM_CLUSTER_NAME", **FAR)
        (record,) = advanced(site, begun)
        assert str(record.job_id).endswith(";far")
        job = Path(record.folder, layout.JOB)
        assert wait_until(job.exists, 30)
        assert job.read_text().strip() == record.job_id
        Path(record.folder, "attempt.1", "status").unlink()  # the process that submitted it was killed
        (found,) = advanced(site, begun)
        assert found.job_id == record.job_id

        def has_ended() -> bool:
            nonlocal found
            (found,) = advanced(site, [found])
            return found.ended

        assert wait_until(has_ended, 60, 0.5)
        assert (found.state, found.nodes, site.printed(found, 100)) == ("succeeded", "far1", "far\n")


def test_files_of_a_job_that_waits_in_another_cluster_are_kept(
    account: Account, slurm_login: Sshd, far: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SLURM", slurm_login.connection())
    with SSHTransport("slurm") as transport:
        options = SiteOptions(work_dir=f"{account.home}/kept")
        site = RunSite("hpc", SLURM(), SiteProfile(), options, transport)
        script = JobScript("exit", **HELD)
        record = site.new_record(str(uuid.uuid4()), script)
        site.place(record, script)
        (record,) = advanced(site, [record])
        folder = Path(record.folder)

        def clean() -> None:
            subprocess.run(["find", folder, "-exec", "touch", "-h", "-d", "40 days ago", "{}", "+"], check=True)
            list(site.clean(86400.0, (), dry_run=False))

        clean()
        assert folder.exists()
        far.kill_controller()
        try:
            with pytest.raises(TransportError, match="did not report the running jobs of far"):
                clean()
        finally:
            far.start_controller()
        assert folder.exists()
        far.command("scancel", "-u", account.name)
        assert wait_until(lambda: far.command("squeue", "-h") == "", 30, 0.2)
        clean()
        assert not folder.exists()
