"""What is left behind and removed by age, and what is never removed."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lading.hooks.batch import canceller
from lading.hooks.batch.canceller import Cancellation
from lading.hooks.batch.slurm.system import SLURM
from lading.hooks.cleanup.cleaning import clean_files
from lading.hooks.cleanup.leftovers import RUNS, YOUNGEST, job_identifiers, sweep
from lading.hooks.cluster.site import ClusterSite, cluster_kind
from lading.hooks.job_scripts.hook import BatchHook
from lading.hooks.job_scripts.script import JobScript
from lading.hooks.machines.local import LocalConfig, LocalSite
from lading.hooks.polling.task_logs import LogCopies
from lading.hooks.spool.rejected import RejectedFiles
from lading.hooks.ssh.answer import TransportError
from tests.clusters.paper import Paper
from tests.clusters.toy_batch import Toy, ToyCluster
from tests.services import processes
from tests.services.outside_clocks import off, set_clock

DAY = 86400.0


def age(path: Path, days: float = 40) -> Path:
    """Let nothing have changed there for so many days."""
    then = time.time() - days * DAY
    for folder, folders, files in os.walk(path, topdown=False):
        for name in (*folders, *files):
            os.utime(Path(folder, name), (then, then), follow_symlinks=False)
    os.utime(path, (then, then), follow_symlinks=False)
    return path


def token() -> str:
    return str(uuid.uuid4())


def submission() -> str:
    return f"L{uuid.uuid4().hex[:14]}"


@pytest.fixture
def paper(tmp_path: Path) -> Paper:
    return Paper(tmp_path, api_url="http://api/execution/")


@pytest.fixture
def site(paper: Paper) -> ClusterSite:
    return cluster_kind(SLURM())("hpc", paper.config, paper.folder / "state")


Make = Callable[..., Path]


@pytest.fixture
def make(paper: Paper) -> Make:
    """Makes files below the work folder; what they are in is old."""

    def make(top: str, *names: str, text: str = "x" * 5000, days: float = 40) -> Path:
        path = paper.root / top
        for name in names:
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text(text)
        if not names:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return age(path, days)

    return make


def clean(site: ClusterSite, *keep: str, dry_run: bool = False, days: float = 30) -> dict[str, int]:
    """How many of each kind were removed; all is well."""
    found = list(site.clean(days * DAY, frozenset(keep), dry_run))
    assert all(each.trouble is None for each in found), found
    return {each.kind: each.number for each in found}


def everything(make: Make) -> dict[str, tuple[str, Path]]:
    """One of each sort, with the kind and what has to be known of it for it to be kept."""
    one = {name: token() for name in ("run", "job", "half", "log", "envelope", "cancel", "event", "claim")}
    name, staged, allocation = submission(), token(), submission()
    listed = token()
    return {
        "runs": (one["run"], make(f"scripts/{one['run']}", "lading.sh", "output", "results/a")),
        "submissions": (listed, make(f"submissions/{name}", "tasks", text=f"{listed}\tdag/x.log\n")),
        "jobs": (one["job"], make(f"spool/jobs/{one['job']}", "exit.json")),
        "logs": (one["log"], make(f"logs/{one['log']}", "dag/attempt=1.log")),
        "envelopes": (one["envelope"], make(f"spool/inbox/{one['envelope']}.json")),
        "cancel requests": (one["cancel"], make(f"spool/cancel/{one['cancel']}")),
        "events": (one["event"], make(f"spool/events/123.000001.{one['event']}.jsonl")),
        "incoming": (staged, make(f"incoming/{submission()}", f"{staged}.json")),
        "claims": (one["claim"], make(f"claims/{one['claim']}", text=f"{allocation}\tdag/x.log\n")),
        "allocations": (one["half"], make(f"allocations/{allocation}", f"spool/inbox/{one['half']}.json")),
    }


def test_all_sorts_are_removed_by_age(site: ClusterSite, make: Make) -> None:
    made = everything(make)
    trial, put = make("lading-check-abc", "spool/inbox/x.json"), make(".put-end-1", "spool/inbox/x.json")
    young = make(f"scripts/{token()}", "exit", days=20)
    expected = {**dict.fromkeys(made, 1), "trials": 1, "torn writes": 1}
    assert clean(site, dry_run=True) == expected
    assert all(path.exists() for _, path in made.values())
    assert clean(site) == expected
    assert not [path for path in (*(path for _, path in made.values()), trial, put) if path.exists()]
    assert young.exists()
    assert clean(site) == {}


def test_what_airflow_has_at_work_is_kept(site: ClusterSite, make: Make) -> None:
    made = everything(make)
    assert clean(site, *(known for known, _ in made.values())) == {}
    assert all(path.exists() for _, path in made.values())


def test_what_the_batch_system_has_is_kept(site: ClusterSite, paper: Paper, make: Make) -> None:
    """A batch job of which nothing is in the store, for whatever reason."""
    live, member, gone = submission(), token(), submission()
    kept = [
        make(f"submissions/{live}", "tasks", text=f"{member}\tdag/x.log\n"),
        make(f"spool/jobs/{member}", "supervisor.json"),
        make(f"logs/{member}", "a.log"),
        make(f"submissions/{submission()}", "answer", text="4712\n"),
        make(f"scripts/{token()}", "job", text="4711\n"),
        make(f"scripts/{token()}", "attempt.2/out", text="4713;cluster\n"),
        make(f"allocations/{live}", "script"),
        make(f"claims/{token()}", text=f"{live}\tdag/x.log\n"),
        make(f"scripts/{token()}", "out", text="4713\n"),
    ]
    over = [make(f"submissions/{gone}", "answer", text="99\n"), make(f"scripts/{token()}", "job", text="471\n")]
    paper.write("queue", f"1|RUNNING||None|{live}\n4711|RUNNING||None|mine\n4712|PENDING||Priority|\n")
    paper.write("queue", paper.read("queue") + f"4713|PENDING||Priority|x\n99|COMPLETED||None|{gone}\n")
    assert clean(site) == {"submissions": 1, "runs": 1}
    assert all(path.exists() for path in kept)
    assert not any(path.exists() for path in over)


def test_bundles_that_a_job_reads_are_kept(site: ClusterSite, make: Make) -> None:
    """An old content of a Dag bundle, long after it was sent."""
    live = token()
    hashes = [uuid.uuid4().hex * 2 for _ in range(4)]
    kept, waiting, running, gone = (make(f"bundles/{each}", "dag.py") for each in hashes)
    make(f"submissions/{submission()}", "tasks", text=f"{live}\tdag/x.log\t{hashes[0]}\n")
    make(f"submissions/{submission()}", "tasks", text=f"{token()}\tdag/x.log\t{hashes[3]}\n")
    make(f"spool/inbox/{live}.json", text=f'{{"dags": "/scratch/bundles/{hashes[1]}"}}')
    make(f"allocations/{submission()}", f"spool/jobs/{live}/a.json", text=f'{{"dags": "/scratch/bundles/{hashes[2]}"}}')
    half = make(f"bundles/.{uuid.uuid4().hex}", "part.000000")
    assert clean(site, live) == {"submissions": 1, "bundles": 2}
    assert [path.exists() for path in (kept, waiting, running, gone, half)] == [True, True, True, False, False]


def test_what_still_changes_is_kept(site: ClusterSite, make: Make) -> None:
    """Results that are still being used, deep in the folder of a run that ended long ago."""
    run = make(f"scripts/{token()}", "exit", "results/deep/er/table")
    os.utime(run / "results/deep/er/table")
    assert clean(site) == {}
    assert run.exists()


def test_what_was_written_this_moment_is_young(site: ClusterSite, paper: Paper) -> None:
    """A note that a job was asked to end stays until the batch system no longer shows the job."""
    name = token()
    transport = site.connect()
    (answer,) = transport.exchange([canceller.note(str(paper.root), {name: Cancellation("4711")})])
    transport.close()
    assert answer.status == 0
    assert clean(site) == {}
    assert (paper.root / canceller.NOTES / name).read_text().startswith("4711")


def test_nothing_else_is_touched(site: ClusterSite, paper: Paper, make: Make, tmp_path: Path) -> None:
    """Names that are not Lading's, and links in place of files and of folders."""
    outside = tmp_path / "outside"
    (outside / token()).mkdir(parents=True)
    (outside / "precious").write_text("x")
    age(outside)
    mine = [
        make("scripts/my results", "a"),
        make("scripts/solve", "a"),
        make("scripts/-rf", "a"),
        make("logs/2019", "a"),
        make("results", "a"),
        make(f"scripts/{token()[:-1]}\n", "a"),
        make("spool/events/$(touch pwned).jsonl"),
    ]
    link = paper.root / "scripts" / token()
    link.symlink_to(outside)
    run = make(f"scripts/{token()}", "exit")
    (run / "link").symlink_to(outside)
    (run / "a\nb 'c' \"$(touch pwned)\"").write_text("x")
    os.mkfifo(run / "job")
    for each in (link, run):
        age(each) if each is run else os.utime(each, (0, 0), follow_symlinks=False)
    assert clean(site) == {"runs": 1}
    assert all(path.exists() for path in mine)
    assert link.is_symlink()
    assert (outside / "precious").exists()
    assert not list(tmp_path.rglob("pwned"))


def test_a_folder_that_is_a_link_is_not_followed(site: ClusterSite, paper: Paper, make: Make, tmp_path: Path) -> None:
    outside = tmp_path / "outside" / token()
    outside.mkdir(parents=True)
    age(outside)
    gone = make(f"logs/{token()}", "a.log")
    (paper.root / "scripts").symlink_to(tmp_path / "outside")
    found = {each.kind: each for each in site.clean(30 * DAY, frozenset(), False)}
    assert found["runs"].number == 0
    assert "symbolic link" in str(found["runs"].trouble)
    assert outside.exists()
    assert not gone.exists()


@pytest.mark.parametrize(
    ("command", "words"), [("awk", "could not be checked"), ("find", "could not be checked"), ("rm", "1 of 1")]
)
def test_what_cannot_be_done_is_reported(site: ClusterSite, paper: Paper, make: Make, command: str, words: str) -> None:
    run = make(f"scripts/{token()}", "exit")
    path = paper.folder / "bin" / command
    path.write_text("#!/bin/sh\necho 'Stale file handle' >&2; exit 2\n")
    path.chmod(0o755)
    [told] = [each for each in site.clean(30 * DAY, frozenset(), False) if each.kind == "runs"]
    assert told.number == 0
    assert words in str(told.trouble)
    assert "Stale file handle" in str(told.trouble)
    assert run.exists()


def test_a_batch_system_that_cannot_be_asked_is_no_answer(site: ClusterSite, paper: Paper, make: Make) -> None:
    run = make(f"scripts/{token()}", "exit")
    paper.write("status", "1")
    with pytest.raises(TransportError, match="did not report the running jobs"):
        clean(site)
    assert run.exists()


def test_a_folder_that_was_never_used(site: ClusterSite) -> None:
    assert clean(site) == {}


@off
def test_what_is_on_its_way_stays_whatever_clock_dates_it(site: ClusterSite, make: Make, ahead: float) -> None:
    young = make(f"scripts/{token()}", "exit", days=(600 - ahead) / DAY)
    old = make(f"scripts/{token()}", "exit", days=(3 * YOUNGEST - ahead) / DAY)
    clean(site, days=YOUNGEST / DAY)
    assert young.exists()
    assert not old.exists() or ahead > 0, "a clock that is ahead makes it stay for longer"


def test_many(site: ClusterSite, paper: Paper, make: Make) -> None:
    """More than one command line takes, and no name of theirs comes back."""
    top = paper.root / "scripts"
    top.mkdir(parents=True)
    names = [token() for _ in range(2000)]
    for name in names:
        (top / name).mkdir()
        os.utime(top / name, (0, 0))
    assert clean(site, *names[:3]) == {"runs": 1997}
    assert sorted(path.name for path in top.iterdir()) == sorted(names[:3])


def test_ages_of_less_than_an_hour_are_refused() -> None:
    with pytest.raises(ValueError, match="may still be in use"):
        sweep("/x", RUNS, (), YOUNGEST - 1, dry_run=True)


def test_identifiers_of_live_jobs() -> None:
    system = SLURM()
    jobs = [
        system.statuses(system_answer(row))[0]
        for row in ("12|RUNNING||None|lading-1", "13_4|PENDING||Priority|La", "14|COMPLETED||None|Lb")
    ]
    assert job_identifiers(jobs) >= {"12", "lading-1", "13", "La"}
    assert not job_identifiers(jobs) & {"14", "Lb"}


def system_answer(row: str) -> Any:
    from lading.hooks.ssh.answer import CommandResult

    return CommandResult(0, f"{row}\n")


def test_positions_in_logs_that_are_not_needed(site: ClusterSite, tmp_path: Path) -> None:
    known = token()
    copies = LogCopies(tmp_path / "logs", site.folder / "logs.json")
    copies.add(known, "a.log", b"words")
    copies.save()
    age(copies.memory)
    assert clean(site, known) == {}
    assert clean(site) == {"positions in logs": 1}
    assert not copies.memory.exists()


def test_files_of_this_machine(tmp_path: Path) -> None:
    site = LocalSite("local", LocalConfig(), tmp_path / "spool")
    assert list(site.clean(30 * DAY, frozenset(), False)) == []
    site.spool.create()
    bad = site.spool.events / "1.jsonl"
    for _ in range(2):
        bad.write_text("{")
        RejectedFiles(site.spool.rejected).move(bad, "it is damaged")
    age(site.spool.rejected / "1.jsonl")
    torn = site.spool.inbox / ".a.json.12"
    torn.write_text("{")
    (site.spool.rejected / "2.jsonl").write_text("young")
    (site.spool.rejected / "3.jsonl").symlink_to(tmp_path)
    age(torn)
    os.utime(site.spool.rejected / "3.jsonl", (0, 0), follow_symlinks=False)
    found = {each.kind: each.number for each in site.clean(30 * DAY, frozenset(), False)}
    assert found == {"rejected files": 1, "torn writes": 1}
    assert not torn.exists()
    assert {path.name for path in site.spool.rejected.iterdir()} == {"2.jsonl", "3.jsonl"}


@off
def test_the_age_of_a_file_is_judged_by_the_clock_that_dates_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    """Here that is a file server's, which is right; ours is off."""
    (young := tmp_path / ".torn").write_text("x")
    (old := tmp_path / "old").write_text("x")
    age(young, 600 / DAY)
    age(old, (YOUNGEST + 600) / DAY)
    set_clock(monkeypatch, ahead)
    [cleaned] = clean_files("files", [young, old], older_than=YOUNGEST, dry_run=False)
    assert (cleaned.number, cleaned.trouble) == (1, None)
    assert young.exists()
    assert not old.exists()


@pytest.fixture
def hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BatchHook]:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    folders = {"work_dir": str(tmp_path / "work"), "runs_folder": tmp_path / "runs"}
    speed: Any = {"max_poll_interval": 0.1, "lost_after": 0.6}
    with BatchHook(Toy(), transport=ToyCluster(tmp_path / "toy"), **folders, **speed) as made:  # type: ignore[arg-type]
        yield made


def test_runs_of_a_hook(hook: BatchHook, tmp_path: Path) -> None:
    old, young, live = (hook.submit(JobScript(body)) for body in ("echo 1", "echo 2", "sleep 600"))
    for run in (old, young):
        assert run.get(180) == 0
    assert processes.wait_until(lambda: live.status == "running", 180, 0.1)
    age(tmp_path / "runs" / f"{old.key}.json")
    torn = tmp_path / "runs" / ".key.0a1b"
    torn.write_text("{")
    age(torn)
    for run in (old, live):
        age(Path(run.folder))
        age(tmp_path / "runs" / f"{run.key}.json")
    told = [(each.kind, each.number) for each in hook.clean("30d", dry_run=True)]
    assert told == [("runs", 1), ("records of runs", 2)]
    assert [(each.kind, each.number) for each in hook.clean()] == told
    assert not Path(old.folder).exists()
    assert young.output() == "2\n"
    assert live.status == "running"
    live.cancel()
    with pytest.raises(ValueError, match="may still be in use"):
        hook.clean(60)
