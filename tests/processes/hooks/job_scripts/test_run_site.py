"""Runs of job scripts at their site, with a batch system of three shell scripts."""

from __future__ import annotations

import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lading.hooks.batch.slurm.system import SLURM
from lading.hooks.batch.submit_limits import BackPressure
from lading.hooks.batch.system import NativeJob, Profile
from lading.hooks.job_scripts import run, run_site
from lading.hooks.job_scripts.profile import SiteOptions, SiteProfile
from lading.hooks.job_scripts.run import RunRecord
from lading.hooks.job_scripts.run_site import RunSite
from lading.hooks.ssh.answer import CommandResult, TransportError
from tests.clusters.runs import advanced, placed
from tests.clusters.toy_batch import Toy, ToyCluster
from tests.recordings import FOLDER
from tests.services.processes import wait_until


@pytest.fixture
def cluster(tmp_path: Path) -> ToyCluster:
    return ToyCluster(tmp_path / "toy")


def site_at(cluster: ToyCluster, system: Toy | None = None, *, setup: str = "", **profile: Any) -> RunSite:
    options = SiteOptions(work_dir=str(cluster.folder.parent / "work"), lost_after=0.6, setup=setup)
    return RunSite("toy", system or Toy(), SiteProfile(profile=Profile(**profile)), options, cluster)


@pytest.fixture
def site(cluster: ToyCluster) -> RunSite:
    return site_at(cluster)


@pytest.mark.parametrize("accepted", [True, False])
def test_refusals_are_not_waited_for_again(site: RunSite, cluster: ToyCluster, accepted: bool) -> None:
    """After a restart what is known is from before the first submission, which was refused like others after it."""
    (fresh,) = [record] = placed(site, "sleep 60")
    cluster.set("refuse", "too many jobs")
    for number in range(5):
        site.pressure.clock = lambda number=number: 100.0 * number  # type: ignore[misc]
        (record,) = advanced(site, [record], now=time.time() + 100 * number)
    assert record.attempt == 6
    cluster.unset("refuse")
    site.pressure = BackPressure(1)  # that of another process
    if accepted:
        (record,) = advanced(site, [record], now=time.time() + 1000)
    for _ in range(2):
        (fresh,) = advanced(site, [fresh])
    if not accepted:  # the pause after the last refusal is kept
        assert (fresh.attempt, fresh.job_id) == (6, None)
        site.pressure.clock = lambda: time.monotonic() + 100
        (fresh,) = advanced(site, [fresh], now=time.time() + 100)
    assert (fresh.job_id, cluster.jobs) == ("1", 1)
    site.cancel([fresh])


def test_a_later_submission_that_runs_is_reported_at_once(site: RunSite, cluster: ToyCluster) -> None:
    (fresh,) = [record] = placed(site, "sleep 60")
    cluster.set("refuse", "too many jobs")
    (record,) = advanced(site, [record])
    cluster.unset("refuse")
    site.pressure.clock = lambda: time.monotonic() + 100
    advanced(site, [record], now=time.time() + 100)
    while not (Path(record.folder) / "job").exists():
        time.sleep(0.05)
    (fresh,) = advanced(site, [fresh])
    assert fresh.job_id == "1"
    site.cancel([fresh])


def test_a_file_that_cannot_be_read_costs_its_own_run_only(site: RunSite, caplog: pytest.LogCaptureFixture) -> None:
    records = placed(site, "exit 3", 2)
    (records[0],) = advanced(site, records[:1])
    (records[1],) = advanced(site, records[1:])
    assert wait_until(lambda: all((Path(record.folder) / "exit").exists() for record in records), 60)
    file = Path(records[1].folder) / "cancelled"
    file.mkdir()
    ended, spoiled = advanced(site, records)
    assert (ended.state, ended.exit_code, spoiled.ended) == ("failed", 3, False)
    assert f"{spoiled.token}/cancelled' in" in caplog.text
    file.rmdir()
    assert [each.exit_code for each in advanced(site, [spoiled])] == [3]


class Killing(Toy):
    """Has killed every job, and says neither why nor that it does not know."""

    wording = replace(Toy.wording, memory=SLURM.wording.memory)

    def statuses(self, answer: Any) -> list[NativeJob]:
        ended = {"state": "ended", "cause": "error", "exit_code": 137}
        return [replace(each, **ended) for each in super().statuses(answer)]


@pytest.mark.parametrize(("log", "cause"), [(True, "out_of_memory"), (False, "error")])
def test_a_script_that_was_killed_for_its_memory_says_so_where_only_its_log_does(
    cluster: ToyCluster, log: bool, cause: str
) -> None:
    """As slurmstepd writes it without cgroups, where accounting has no record of memory."""
    site = site_at(cluster, Killing())
    (record,) = advanced(site, placed(site, "sleep 60"))
    said = (FOLDER / "slurm/overmemorykill-25.11.7.txt").read_text().partition("batch.log of the job:\n")[2]
    (Path(record.folder) / "batch.log").write_text(said if log else "Killed\n")
    for seconds in (1, 10):
        (record,) = advanced(site, [record], now=time.time() + seconds)
    assert (record.state, record.cause, record.exit_code) == ("failed", cause, 137)
    cluster.run([["toy-kill", str(record.job_id)]])


def test_the_rest_of_an_output(site: RunSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_site, "AT_ONCE", 1000)
    monkeypatch.setattr(run_site, "LAST", 100)
    output = tmp_path / "output"
    record = RunRecord("t", str(tmp_path), output=str(output))
    assert site.rest(record, 0) == b""
    text = b"".join(b"line %04d\n" % number for number in range(500))
    output.write_bytes(text)
    assert site.rest(record, 0) == text
    assert site.rest(record, 4321) == text[4321:]
    monkeypatch.setattr(run_site, "MOST_REST", 2000)
    left_out = f"\n({5000 - 10 - 2000 - 100} bytes are left out here; the whole output is in {output})\n".encode()
    assert site.rest(record, 10) == text[10:2010] + left_out + text[-100:]
    assert site.rest(record, 2950) == text[2950:], "nothing is left out where the end follows"


def test_an_output_that_cannot_be_read_has_no_end(
    site: RunSite, cluster: ToyCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_: Any) -> list[CommandResult]:
        raise TransportError("cut")

    record = RunRecord("t", str(tmp_path), output=str(tmp_path / "output"), state="succeeded")
    monkeypatch.setattr(cluster, "exchange", cut)
    with pytest.raises(TransportError):
        site.rest(record, 0)
    assert [sighting.more for sighting in site.advance([record], {"t": 0})] == [True]


def test_whether_there_is_more_of_an_output(site: RunSite, tmp_path: Path) -> None:
    output = tmp_path / "output"
    record = RunRecord("t", str(tmp_path), output=str(output), state="succeeded")
    for size, more in ((0, False), (2**18 - 1, False), (2**18, True), (2**18 + 1, True)):
        output.write_bytes(b"x" * size)
        (sighting,) = site.advance([record], {"t": 0})
        assert (len(sighting.output), sighting.more) == (min(size, 2**18), more)


class Stuck(Toy):
    """Says of every job that it could not be started."""

    def statuses(self, answer: CommandResult) -> list[NativeJob]:
        return [replace(job, state="pending", cause="error", reason="Eqw") for job in super().statuses(answer)]


def test_what_will_never_start_is_cancelled(cluster: ToyCluster) -> None:
    site = site_at(cluster, Stuck())
    records = advanced(site, placed(site, "sleep 60", 2))
    assert {record.state for record in records} == {"submitted"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stuck, "cancel", lambda self, ids: ["false"])
        records = advanced(site, records)
    assert [(record.state, record.hopeless) for record in records] == [("submitted", True)] * 2, "it is tried again"
    records = advanced(site, records)
    assert [(record.state, record.cause, "Eqw" in str(record.reason)) for record in records] == [
        ("failed", "error", True)
    ] * 2
    assert all((Path(record.folder) / "cancelled").exists() for record in records)
    while cluster.listed:
        time.sleep(0.05)


def test_no_more_are_submitted_than_may_be(cluster: ToyCluster) -> None:
    site = site_at(cluster, max_submitted=2)
    records = advanced(site, placed(site, "sleep 60", 5))
    assert [record.job_id for record in records] == ["1", "2", None, None, None]
    assert "max_submitted" in str(records[4].reason)
    records = advanced(site, records)
    assert cluster.jobs == 2
    records = [*records[:4], *site.cancel([records[4]])]
    assert records[4].state == "cancelled", "what is cancelled waits for no room"
    records[0] = replace(records[0], state="succeeded")
    records = advanced(site, records)
    assert [record.job_id for record in records] == ["1", "2", "3", None, None]
    site.cancel([replace(record, state="running") for record in records[:3]])


def test_a_limit_that_is_met_is_no_storm(cluster: ToyCluster) -> None:
    cluster.set("limit", "3")
    site, now = site_at(cluster), 1000.0
    site.pressure.clock = lambda: now
    records = placed(site, "sleep 60", 9)

    def refused() -> int:
        path = cluster.folder / "refused"
        return path.read_text().count("x") if path.exists() else 0

    for _ in range(5):
        records = advanced(site, records)
    assert [record.job_id for record in records if record.job_id] == ["1", "2", "3"]
    assert refused() == 1, "the round ended with the first refusal, and nothing was tried since"
    assert "3 jobs are submitted, and job limit allows 3" in str(records[8].reason)
    now += 61
    for _ in range(3):
        records = advanced(site, records)
    assert refused() == 2, "one was tried after a minute"
    cluster.set("limit", "5")
    now += 61
    for _ in range(6):
        records = advanced(site, records)
    assert len([record for record in records if record.job_id]) == 5, "it has proved to be higher"
    assert refused() == 3
    site.cancel([record for record in records if record.job_id])


def test_an_array_of_a_script_that_is_too_large_says_nothing_of_other_jobs(site: RunSite, cluster: ToyCluster) -> None:
    (first,) = advanced(site, placed(site, "sleep 60"))
    cluster.set("refuse", "too many jobs in one array")
    _, array = placed(site, "true", 2, array="1-9")
    _, refused = advanced(site, [first, array])
    assert refused.cause == "submit_rejected"
    assert site.pressure.most is None
    site.cancel([first])


@pytest.mark.parametrize("early", [False, True], ids=["late", "early"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_reach_the_script(site: RunSite, number: int, early: bool) -> None:
    """What a shell starts in the background ignores some; the batch system's own shell is bash by default.

    A busy machine may run the script before the wrapper knows its pid.
    """
    (record,) = placed(
        site, f"trap 'echo caught; exit 5' {signal.Signals(number).name[3:]}; echo ready; sleep 60 & wait"
    )
    wrapper, output = Path(record.folder) / "lading.sh", Path(record.folder) / "output"
    text = wrapper.read_text()
    assert text.startswith("#!/bin/bash\n")
    if early:
        assert text.count("lading_child=$!\n") == 1
        pause = "until [ -e go ]; do sleep 0.05; done\n"
        wrapper.write_text(text.replace("lading_child=$!\n", f"{pause}lading_child=$!\n"))
    job = subprocess.Popen(["/bin/bash", wrapper], env={"TOY_ID": "1", "PATH": "/usr/bin:/bin"})
    assert wait_until(lambda: output.exists() and "ready" in output.read_text(), 60, 0.02)
    job.send_signal(number)
    (Path(record.folder) / "go").touch()
    assert job.wait(120) == 5
    assert output.read_text() == "ready\ncaught\n"
    assert (Path(record.folder) / "exit").read_text().split()[0] == "5"


def test_a_signal_during_the_setup_ends_the_script(cluster: ToyCluster, tmp_path: Path) -> None:
    waits = f"touch {tmp_path}/begun; until [ -e {tmp_path}/go ]; do sleep 0.05; done"
    site = site_at(cluster, setup=waits)
    (record,) = placed(site, "sleep 600")
    environment = {"TOY_ID": "1", "PATH": "/usr/bin:/bin"}
    job = subprocess.Popen(["/bin/bash", Path(record.folder) / "lading.sh"], env=environment)
    assert wait_until((tmp_path / "begun").exists, 60, 0.02)
    job.terminate()
    (tmp_path / "go").touch()
    assert job.wait(120) == 143
    assert (Path(record.folder) / "exit").read_text().split()[0] == "143"


def test_a_run_that_is_ended_at_its_time_limit_where_no_history_is_kept(
    site: RunSite, cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that the test need not last a minute.
    monkeypatch.setattr(run, "HEAD_START", 60)
    (record,) = advanced(site, placed(site, "echo ready; sleep 600", time=60))
    assert record.time == 60
    pid = (cluster.folder / "jobs" / "1" / "pid").read_text().strip()
    output = Path(record.folder) / "output"
    assert wait_until(lambda: output.exists() and "ready" in output.read_text(), 60, 0.05)
    subprocess.run(["kill", "-TERM", "--", f"-{pid}"], check=True)
    end = time.time() + 120
    while not record.ended and time.time() < end:
        (record,) = advanced(site, [record])
        time.sleep(0.1)
    assert (record.state, record.cause, record.exit_code) == ("failed", "time_limit", 143)
