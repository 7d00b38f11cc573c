"""Runs that share a job array, with a batch system of three shell scripts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lading.hooks.batch.lsf.system import LSF
from lading.hooks.batch.pbs.pbspro import PBSPro
from lading.hooks.batch.pbs.torque import TORQUE
from lading.hooks.batch.sge.system import SGE
from lading.hooks.batch.slurm.system import SLURM
from lading.hooks.batch.system import BatchSystem, NativeJob, Profile
from lading.hooks.cleanup import leftovers
from lading.hooks.job_scripts import array as run_array
from lading.hooks.job_scripts import batcher
from lading.hooks.job_scripts.batcher import Batcher
from lading.hooks.job_scripts.profile import SiteOptions, SiteProfile
from lading.hooks.job_scripts.run import RunRecord, SiteReport, after_question
from lading.hooks.job_scripts.run_site import RunSite
from lading.hooks.job_scripts.script import JobScript, JobScriptError
from lading.hooks.ssh.answer import CommandResult
from tests.clusters.toy_batch import Toy, ToyCluster

SYSTEMS: list[tuple[BatchSystem, str, str]] = [
    (SLURM(), "#SBATCH --array=1-2", '"$SLURM_ARRAY_JOB_ID" "$lading_index"'),
    (PBSPro(), "#PBS -J 1-2", '"$PBS_JOBID" "$lading_index"'),
    (TORQUE(), "#PBS -t 1-2", '"$PBS_JOBID" "$lading_index"'),
    (LSF(), '#BSUB -J "lading-a[1-2]"', '"$LSB_JOBID" "$lading_index"'),
    (SGE(), "#$ -t 1-2", '"$JOB_ID" "$lading_index"'),
]
MakeSite = Callable[..., RunSite]


@pytest.fixture(autouse=True)
def no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batcher.Batcher, "window", (0.0, 0.0))


@pytest.fixture
def cluster(tmp_path: Path) -> ToyCluster:
    return ToyCluster(tmp_path / "toy")


@pytest.fixture
def make_site(cluster: ToyCluster, tmp_path: Path) -> MakeSite:
    def make(**profile: Any) -> RunSite:
        options = SiteOptions(work_dir=str(tmp_path / "work"), max_poll_interval=0.1, lost_after=0.6)
        return RunSite("toy", Toy(), SiteProfile(profile=Profile(**profile)), options, cluster)

    return make


def placed(site: RunSite, bodies: Sequence[str], group: str = "g", **resources: Any) -> list[RunRecord]:
    """Runs whose files are at the site, and that wait for each other."""
    records = []
    for number, body in enumerate(bodies):
        script = JobScript(f"echo run >>../times\n{body}", **resources)
        record = site.new_record(f"{group}{number}-{number:032d}", script)
        shared = run_array.shared(script, site.system, group)
        site.place(record, script)
        records.append(replace(record, shared=shared.to_json() if shared else None))
    return records


def followed(
    gathering: Batcher, records: Sequence[RunRecord], until: Callable[[RunRecord], bool] = lambda record: record.ended
) -> list[RunRecord]:
    """The runs when all of them have come so far."""
    end = time.monotonic() + 120
    while not all(map(until, records)):
        assert time.monotonic() < end, records
        records = [sighting.record for sighting in gathering.advance(records)]
        time.sleep(0.05)
    return list(records)


# A body that lasts until :func:`let_go`.
HELD = "while [ ! -e ../go ]; do sleep 0.05; done"


def let_go(records: Sequence[RunRecord]) -> None:
    (Path(records[0].folder).parent / "go").touch()


def times(records: Sequence[RunRecord]) -> int:
    """How often a script has begun."""
    return len((Path(records[0].folder).parent / "times").read_text().split())


def test_one_submission_and_an_end_for_each(make_site: MakeSite, cluster: ToyCluster) -> None:
    site = make_site()
    records = placed(site, [f"echo out {number}; exit {number}" for number in range(5)])
    ended = followed(Batcher(site), records)
    assert cluster.jobs == 1
    assert [record.job_id for record in ended] == [f"1.{number}" for number in range(1, 6)]
    assert [(record.state, record.exit_code) for record in ended][:2] == [("succeeded", 0), ("failed", 1)]
    assert [record.exit_code for record in ended] == [0, 1, 2, 3, 4]
    assert [site.printed(record, 100) for record in ended] == [f"out {number}\n" for number in range(5)]
    assert times(ended) == 5


def test_a_run_alone_is_a_job(make_site: MakeSite, cluster: ToyCluster) -> None:
    site = make_site()
    (record,) = followed(Batcher(site), placed(site, ["true"]))
    assert (record.state, record.job_id, record.array_id, cluster.jobs) == ("succeeded", "1", None, 1)


def test_an_element_finds_what_a_job_finds(make_site: MakeSite) -> None:
    site = make_site()
    records = followed(Batcher(site), placed(site, ["pwd; echo $CLUSTERJOB_WORKDIR"] * 2))
    for record in records:
        assert site.printed(record, 500).splitlines() == [record.folder] * 2


def test_others_ask_for_something_else(make_site: MakeSite, cluster: ToyCluster) -> None:
    site = make_site()
    records = [
        *placed(site, ["true"] * 2),
        *placed(site, ["true"] * 2, "h"),
        *placed(site, ["true"] * 2, "i", queue="q"),
    ]
    followed(Batcher(site), records)
    assert cluster.jobs == 3


def test_the_window(make_site: MakeSite, cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batcher.Batcher, "window", (0.5, 60.0))
    site = make_site()
    gathering, records = Batcher(site), placed(site, ["true"] * 3)
    gathering.advance(records[:1])
    gathering.advance(records)
    assert (cluster.jobs, gathering.open) == (0, True)
    followed(gathering, records)
    assert cluster.jobs == 1


@pytest.mark.parametrize(("profile", "submissions"), [({"max_array_size": 2}, 3), ({"max_array_size": 1}, 5)])
def test_arrays_are_as_large_as_the_site_allows(
    make_site: MakeSite, cluster: ToyCluster, profile: dict[str, int], submissions: int
) -> None:
    site = make_site(**profile)
    followed(Batcher(site), placed(site, ["true"] * 5))
    assert cluster.jobs == submissions


@pytest.mark.parametrize(("most", "submissions"), [(1, 4), (2, 3)])
def test_what_is_too_large_is_divided(make_site: MakeSite, cluster: ToyCluster, most: int, submissions: int) -> None:
    cluster.set("most", str(most))
    site = make_site()
    records = followed(Batcher(site), placed(site, ["true"] * 4), lambda record: record.state != "queued")
    assert cluster.jobs == submissions
    ended = followed(Batcher(site), records)
    assert {record.state for record in ended} == {"succeeded"}
    assert times(ended) == 4


def test_no_more_are_submitted_than_may_be(make_site: MakeSite, cluster: ToyCluster) -> None:
    site = make_site(max_submitted=2)
    gathering = Batcher(site)
    records = followed(
        gathering, placed(site, [HELD] * 4), lambda record: record.job_id is not None or bool(record.reason)
    )
    assert [record.job_id for record in records] == ["1.1", "1.2", None, None]
    assert "max_submitted" in str(records[3].reason)
    let_go(records)
    assert {record.state for record in followed(gathering, records)} == {"succeeded"}
    assert cluster.jobs in (2, 3)  # the first two may end in two looks


def test_what_waits_costs_no_exchange(make_site: MakeSite, cluster: ToyCluster) -> None:
    site = make_site(max_submitted=1)
    gathering = Batcher(site)
    records = followed(
        gathering, placed(site, ["sleep 60"] * 5), lambda record: record.job_id is not None or bool(record.reason)
    )
    before = cluster.exchanges
    sightings = gathering.advance(records)
    assert cluster.exchanges == before + 1
    assert [sighting.record.reason for sighting in sightings] == [record.reason for record in records]
    site.cancel([sightings[0].record])


def test_a_permanent_refusal_fails_all_runs(make_site: MakeSite, cluster: ToyCluster) -> None:
    cluster.set("refuse", "no such queue")
    site = make_site()
    records = followed(Batcher(site), placed(site, ["true"] * 3))
    assert {(record.cause, record.reason) for record in records} == {
        ("submit_rejected", "the batch system rejects it (no such queue)")
    }


def test_the_next_process_goes_on_after_a_crash(make_site: MakeSite, cluster: ToyCluster) -> None:
    """All that is left of what the first one knew are the runs as they were placed."""
    site = make_site()
    records = placed(site, ["sleep 0.5"] * 4)
    Batcher(site).advance(records)
    ended = followed(Batcher(site), records)
    assert {record.state for record in ended} == {"succeeded"}
    assert (cluster.jobs, times(ended)) == (1, 4)


def test_two_at_once(make_site: MakeSite) -> None:
    site, other = make_site(), make_site()
    records = placed(site, ["sleep 0.2"] * 6)
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda each: followed(Batcher(each), records), (site, other)))
    assert {record.state for ended in both for record in ended} == {"succeeded"}
    assert times(records) == 6


def test_an_answer_that_never_came(make_site: MakeSite, cluster: ToyCluster) -> None:
    cluster.set("mute")
    site = make_site()
    records = followed(Batcher(site), placed(site, [HELD] * 3), lambda record: record.job_id is not None)
    let_go(records)
    ended = followed(Batcher(site), records)
    assert [record.job_id for record in ended] == ["1.1", "1.2", "1.3"]
    assert (cluster.jobs, times(ended)) == (1, 3)


def test_single_jobs_that_keep_coming_do_not_hold_up_an_array(make_site: MakeSite, cluster: ToyCluster) -> None:
    site = make_site()
    gathering, records = Batcher(site), placed(site, [HELD] * 3)
    for number in range(4):
        (single,) = placed(site, [HELD], f"single{number}")
        records = [sighting.record for sighting in gathering.advance([*records, single.by_itself()])]
    assert all(record.job_id is not None for record in records)
    assert len({record.array_id for record in records[:3]}) == 1
    let_go(records)
    assert {record.state for record in followed(gathering, records)} == {"succeeded"}


class Whole(Toy):
    """It lists an array in one row, without its elements."""

    def statuses(self, answer: CommandResult) -> list[NativeJob]:
        return list({job.id: replace(job, index=None) for job in super().statuses(answer)}.values())


def test_a_waiting_array_that_is_listed_in_one_row_is_not_submitted_again(
    make_site: MakeSite, cluster: ToyCluster
) -> None:
    cluster.set("mute")
    cluster.set("hold")
    site = make_site()
    site.system = Whole()
    records = followed(Batcher(site), placed(site, ["true"] * 3), lambda record: record.job_id is not None)
    assert [record.job_id for record in records] == ["1.1", "1.2", "1.3"]
    cluster.unset("hold")
    ended = followed(Batcher(site), records)
    assert {record.state for record in ended} == {"succeeded"}
    assert (cluster.jobs, times(ended)) == (1, 3)


def test_one_element_is_cancelled_and_the_others_go_on(make_site: MakeSite, cluster: ToyCluster) -> None:
    site = make_site()
    gathering = Batcher(site)
    records = followed(gathering, placed(site, [HELD] * 3), lambda record: record.job_id is not None)
    (cancelled,) = site.cancel([RunRecord(records[1].token, records[1].folder)])  # by its token alone
    assert cancelled.job_id == "1.2"
    records[1] = cancelled
    let_go(records)
    assert [record.state for record in followed(gathering, records)] == ["succeeded", "cancelled", "succeeded"]


def test_what_was_cancelled_before_is_left_out(make_site: MakeSite, cluster: ToyCluster) -> None:
    site = make_site()
    records = placed(site, ["true"] * 3)
    (cancelled,) = site.cancel(records[:1])
    assert cancelled.state == "cancelled"
    ended = followed(Batcher(site), records)
    assert [record.state for record in ended] == ["cancelled", "succeeded", "succeeded"]
    assert (cluster.jobs, times(ended)) == (1, 2)


@pytest.mark.parametrize(
    ("system", "resources"),
    [(SLURM(), {"stdout": "mine"}), (SLURM(), {"chdir": "/x"}), (SGE(), {"cwd": True}), (PBSPro(), {"r": "n"})],
)
def test_what_cannot_share_an_array(system: BatchSystem, resources: dict[str, Any]) -> None:
    assert run_array.shared(JobScript("true", **resources), system, "g") is None


@pytest.mark.parametrize(("system", "directive", "id"), SYSTEMS)
def test_arrays_of_every_batch_system(system: BatchSystem, directive: str, id: str) -> None:
    shared = run_array.shared(JobScript("true", nodes=1, ppn=2, time="1h"), system, "g")
    assert shared is not None
    assert run_array.ArrayKey.from_json(shared.to_json()) == shared
    records = [RunRecord(f"t{number}", f"/w/t{number}", shared=shared.to_json()) for number in range(2)]
    profile = Profile(parallel_environment="smp")
    array, elements = run_array.form(records, "/w/a", "lading-a", system, profile)
    assert directive in array.script.splitlines()
    assert array.script.endswith(f'exec /bin/bash "$lading_folder/lading.sh" element {id}\n')
    assert array.members == ("/w/t0/attempt.1", "/w/t1/attempt.1")
    assert [(record.array, record.index) for record in elements] == [("/w/a", 1), ("/w/a", 2)]


@pytest.mark.parametrize(
    ("system", "answer", "element", "in_job"),
    [
        (SLURM(), "7;far", "7_2;far", "7 2"),
        (PBSPro(), "7[].pbs1", "7[2].pbs1", "7[2].pbs1.domain 2"),
        (TORQUE(), "7[].tq1", "7[2].tq1", "7[2].tq1 2"),
        (LSF(), "Job <7> is submitted to queue <q>.", "7[2]", "7 2"),
        (SGE(), "7.1-2:1", "7.2", "7 2"),
    ],
)
def test_ids_of_elements(system: BatchSystem, answer: str, element: str, in_job: str) -> None:
    record = replace(RunRecord("t", "/w/t"), array="/w/a", index=2)
    array = run_array.RunArray("/w/a", "lading-a", ("/w/s/attempt.1", "/w/t/attempt.1"), "")
    accepted = array.after(record, CommandResult(0, f"answered\n1 2 \n{answer}\n"), system, 0.0)
    assert (accepted.job_id, accepted.array, accepted.index) == (element, None, 2)
    native = NativeJob(id=accepted.submission[0], index=2, state="running", nodes="n1")

    def asked(job: str) -> RunRecord:
        facts = SiteReport(asked=True, native=native, job=job)
        return after_question(accepted, facts, 1.0, deadline=9, patience=1, system=system)

    assert (asked(in_job).state, asked(in_job).job_id) == ("running", element)
    assert asked("8").submission == ("8", None)
    assert asked(in_job.replace("2", "3")).index == 3


def test_an_array_that_others_have_submitted_in_part(make_site: MakeSite) -> None:
    record = replace(RunRecord("t", "/w/t", shared={"x": 1}), array="/w/a", index=2)
    array = run_array.RunArray("/w/a", "lading-a", ("/w/s/attempt.1", "/w/t/attempt.1"), "")
    assert array.after(record, CommandResult(0, "answered\n1 \n7\n"), SLURM(), 0.0) == record.by_itself()


def test_a_directive_that_makes_an_array_is_refused(make_site: MakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    site = make_site()
    monkeypatch.setattr(site, "system", SLURM())
    script = JobScript("true", a="1-9")
    with pytest.raises(JobScriptError, match="1-10%4"):
        site.rendered(RunRecord("t", "/w/t"), script)


@pytest.mark.parametrize(("living", "removed"), [(["4713"], 0), ([], 2)])
def test_an_element_that_waits_is_no_leftover(
    cluster: ToyCluster, tmp_path: Path, living: list[str], removed: int
) -> None:
    """Its folder says that it is in an array, the array's folder which."""
    run, array = (tmp_path / "scripts" / f"{number:08d}-0000-0000-0000-000000000000" for number in (1, 2))
    for folder in (run, array):
        folder.mkdir(parents=True)
    (array / "out").write_text("4713\n")
    (run / "attempt.1").symlink_to(array)
    for path in (run / "attempt.1", array / "out", run, array):
        os.utime(path, (0, 0), follow_symlinks=False)
    (answer,) = cluster.exchange([leftovers.sweep(str(tmp_path), leftovers.RUNS, living, 86400, dry_run=False)])
    assert sum(each.number for each in leftovers.swept(answer)) == removed
    assert (array / "out").exists() == (not removed)
