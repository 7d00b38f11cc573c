"""Runs of job scripts on a real SLURM and a real Grid Engine, through a real sshd, with its faults."""

from __future__ import annotations

import multiprocessing
import re
import shutil
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lading.hooks.job_scripts import array as run_array
from lading.hooks.job_scripts.array_result import JobArrayRun
from lading.hooks.job_scripts.batcher import Batcher
from lading.hooks.job_scripts.hook import BatchHook
from lading.hooks.job_scripts.profile import SiteProfile
from lading.hooks.job_scripts.result import JobFailed, SubmitRejected
from lading.hooks.job_scripts.run import RunRecord
from lading.hooks.job_scripts.script import JobScript
from lading.hooks.ssh.backoff import Backoff
from lading.hooks.ssh.paramiko_transport import SSHTransport
from tests.services import debian, processes
from tests.services.account import Account
from tests.services.gridengine import GridEngine
from tests.services.slurm import Slurm
from tests.services.sshd import Sshd

# A submit command that takes its time, before it asks the batch system and after.
SLOW = """\
#!/bin/sh
if [ -e ~/slow-before ]; then touch ~/reached; sleep 3; fi
{command} "$@"
status=$?
echo submitted >> ~/submissions
if [ -e ~/slow-after ]; then touch ~/reached; sleep 3; fi
exit $status
"""

# What a run may take on a machine that is busy with something else, seconds.
PATIENCE = 300.0

MakeHook = Callable[..., BatchHook]

# The scripts of docs/how_to/submit_scripts.md, "Recipes", by name.
PAGE = (Path(__file__).parents[3] / "docs" / "how_to" / "submit_scripts.md").read_text(encoding="utf-8")
RECIPES = dict(re.findall(r"^```python (\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
# What the recipes run.
SOLVE = """\
rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-none}}
size=${OMPI_COMM_WORLD_SIZE:-${PMI_SIZE:-none}}
on_node=${OMPI_COMM_WORLD_LOCAL_SIZE:-${MPI_LOCALNRANKS:-none}}
echo "$1 rank $rank of $size, $on_node on its node, threads $OMP_NUM_THREADS"
"""
PARTS = [f"part.{number}" for number in range(1, 9)]


def eventually(reached: Callable[[], object], seconds: float = 40) -> bool:
    return processes.wait_until(lambda: bool(reached()), seconds, 0.2)


@contextmanager
def slow_sbatch(account: Account, when: str) -> Iterator[Path]:
    """An sbatch in the user's home that takes its time; the file that is there once it does."""
    for name in ("reached", "submissions"):
        (account.home / name).unlink(missing_ok=True)
    account.write("sbatch", SLOW.format(command=shutil.which("sbatch"))).chmod(0o755)
    trap = account.write(f"slow-{when}", "")
    try:
        yield account.home / "reached"
    finally:
        trap.unlink()


def followed(gathering: Batcher, records: Sequence[RunRecord], seconds: float) -> list[RunRecord]:
    """The runs when they have ended, or after so many seconds."""
    found = list(records)

    def ended() -> bool:
        found[:] = [sighting.record for sighting in gathering.advance(found)]
        return all(record.ended for record in found)

    processes.wait_until(ended, seconds, 0.3)
    return found


@pytest.fixture
def make_hook(tmp_path: Path) -> Iterator[MakeHook]:
    made: list[BatchHook] = []

    def make(system: str, *, setup: str = "", profile: SiteProfile | None = None) -> BatchHook:
        transport = SSHTransport(f"runs_{system}", setup=setup, backoff=Backoff(first=0.2, longest=0.5))
        made.append(
            BatchHook(
                system,
                transport=transport,
                work_dir="~/work",
                profile=profile,
                runs_folder=tmp_path / "runs",
                max_poll_interval=1.0,
            )
        )
        return made[-1]

    yield make
    for hook in made:
        hook.close()


@pytest.fixture
def on_slurm(
    slurm: Slurm, slurm_login: Sshd, make_hook: MakeHook, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., BatchHook]]:
    monkeypatch.setenv("AIRFLOW_CONN_RUNS_SLURM", slurm_login.connection())
    yield lambda **options: make_hook("slurm", **options)
    slurm.command("scancel", "-u", slurm.account.name)
    slurm.wait_until_free()


@pytest.fixture
def on_gridengine(
    gridengine: GridEngine, gridengine_login: Sshd, make_hook: MakeHook, monkeypatch: pytest.MonkeyPatch
) -> BatchHook:
    monkeypatch.setenv("AIRFLOW_CONN_RUNS_SGE", gridengine_login.connection())
    return make_hook("sge")


def test_a_run_on_slurm(on_slurm: Callable[..., BatchHook], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = JobScript(
        'echo "$CLUSTERJOB_NAME {word}"; sh ./step.sh; echo oh >&2',
        jobname="hello",
        attributes={"word": "world"},
        aux_scripts={"step.sh": "echo step of {jobname}"},
        prologue="echo before >> near",
        epilogue='echo "after $LADING_STATE" >> near',
    )
    run = on_slurm().submit(script)
    assert run.get(PATIENCE) == 0
    assert (run.ready(), run.successful(), run.status) == (True, True, "succeeded")
    assert run.output() == "hello world\nstep of hello\noh\n"
    again = on_slurm().submit(script)
    assert (again.job_id, again.get(0)) == (run.job_id, 0)
    assert (tmp_path / "near").read_text() == "before\nafter succeeded\n"


def test_failures_on_slurm(on_slurm: Callable[..., BatchHook]) -> None:
    hook = on_slurm()
    failing = hook.submit(JobScript("echo bad; exit 3"))
    waiting = hook.submit(JobScript("sleep 300"))
    foreign = hook.submit(JobScript("sleep 301"))
    with pytest.raises(SubmitRejected, match="invalid partition"):
        hook.submit(JobScript("true", queue="nonesuch"))
    with pytest.raises(multiprocessing.TimeoutError):
        waiting.get(0.1)
    with pytest.raises(ValueError, match="not finished"):
        waiting.successful()
    waiting.cancel()
    hook.site.transport.run([f"scancel {foreign.job_id}"])  # as the user does by hand
    with pytest.raises(JobFailed, match="exit status 3"):
        failing.get(PATIENCE)
    for run in (waiting, foreign):
        with pytest.raises(JobFailed, match="cancelled") as caught:
            run.get(PATIENCE)
        assert (caught.value.record.state, caught.value.record.cause) == ("cancelled", "cancelled")


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_connection_cut_in_the_middle_of_a_submission(
    on_slurm: Callable[..., BatchHook], slurm: Slurm, slurm_login: Sshd, when: str
) -> None:
    """Before sbatch asks SLURM, and after it was answered."""
    hook = on_slurm(setup="PATH=$HOME:$PATH")
    with slow_sbatch(slurm.account, when) as reached, ThreadPoolExecutor(1) as pool:
        submitting = pool.submit(hook.submit, JobScript("echo run >> ../times"))
        assert eventually(reached.exists)
        slurm_login.cut()
        run = submitting.result(PATIENCE)
        assert run.get(PATIENCE) == 0
    assert (slurm.account.home / "submissions").read_text() == "submitted\n"
    assert hook.site.transport.run([f"cat {run.folder}/../times; rm {run.folder}/../times"])[0].stdout == "run\n"


@pytest.mark.parametrize("when", ["before", "after"])
def test_who_submits_an_array_is_gone(
    on_slurm: Callable[..., BatchHook], slurm: Slurm, slurm_login: Sshd, when: str
) -> None:
    """The connection is cut, and another process goes on from the runs alone."""
    site = on_slurm(setup="PATH=$HOME:$PATH").site
    script = JobScript("echo run >> ../times")
    shared = run_array.shared(script, site.system, "mine")
    assert shared is not None
    new = [site.new_record(str(uuid.uuid4()), script) for _ in range(4)]
    records = [replace(record, shared=shared.to_json()) for record in new]
    for record in records:
        site.place(record, script)
    with slow_sbatch(slurm.account, when) as reached, ThreadPoolExecutor(1) as pool:
        submitting = pool.submit(followed, Batcher(site), records, 5)
        assert eventually(reached.exists)
        slurm_login.cut()
        submitting.result()
        ended = followed(Batcher(site), records, 60)
    assert {record.state for record in ended} == {"succeeded"}, ended
    assert len({record.array_id for record in ended}) == 1
    assert (slurm.account.home / "submissions").read_text() == "submitted\n"
    (told,) = site.transport.run([f"cat {ended[0].folder}/../times; rm {ended[0].folder}/../times"])
    assert told.stdout == "run\n" * 4


def test_a_process_killed_while_it_submits(on_slurm: Callable[..., BatchHook], slurm: Slurm, tmp_path: Path) -> None:
    code = f"""
        from pathlib import Path
        from lading.hooks.job_scripts.hook import BatchHook
        from lading.hooks.job_scripts.script import JobScript
        hook = BatchHook(
            "slurm", ssh_conn_id="runs_slurm", work_dir="~/work", login_setup="PATH=$HOME:$PATH",
            runs_folder=Path({str(tmp_path / "runs")!r}),
        )
        hook.submit(JobScript("echo here"), key="mine")
    """
    with slow_sbatch(slurm.account, "after") as reached:
        process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)])
        assert eventually(reached.exists)
        process.kill()
        process.wait()
    run = on_slurm(setup="PATH=$HOME:$PATH").submit(JobScript("echo here"), key="mine")
    assert run.get(PATIENCE) == 0
    assert (slurm.account.home / "submissions").read_text() == "submitted\n"


def test_runs_on_gridengine(on_gridengine: BatchHook) -> None:
    fine = on_gridengine.submit(JobScript("echo $CLUSTERJOB_ID; exit 0", time="5 min"))
    failing = on_gridengine.submit(JobScript("exit 3"))
    ended = on_gridengine.submit(JobScript("sleep 300"))
    ended.cancel()
    assert fine.get(PATIENCE) == 0
    assert fine.output() == f"{fine.job_id}\n"
    with pytest.raises(JobFailed, match="exit status 3"):
        failing.get(PATIENCE)
    with pytest.raises(JobFailed, match="cancelled"):
        ended.get(PATIENCE)


def submit_array(hook: BatchHook, body: str, **resources: Any) -> JobArrayRun:
    run = hook.submit(JobScript(body, **resources))
    assert isinstance(run, JobArrayRun)
    return run


@pytest.mark.parametrize(("system", "array"), [("slurm", "2,5-9:2%2"), ("sge", "2-8:3%2")])
def test_each_element_of_an_array_has_its_own_end(system: str, array: str, request: pytest.FixtureRequest) -> None:
    """The element 5 fails, and 8 or 9 is cancelled while it runs."""
    made = request.getfixturevalue(f"on_{'slurm' if system == 'slurm' else 'gridengine'}")
    hook = made() if callable(made) else made
    body = """
        echo "element $CLUSTERJOB_ARRAY_INDEX"
        if [ $CLUSTERJOB_ARRAY_INDEX = 5 ]; then exit 3; fi
        if [ $CLUSTERJOB_ARRAY_INDEX -ge 8 ]; then sleep 300; fi
    """
    run = submit_array(hook, body, array=array)
    last = run.indices[-1]
    assert eventually(lambda: run[last].status == "running", 90)
    run[last].cancel()
    run.wait(PATIENCE)
    assert {index: run[index].status for index in run.indices} == {
        index: {5: "failed", last: "cancelled"}.get(index, "succeeded") for index in run.indices
    }
    assert run[5].record.exit_code == 3
    assert run[2].output() == "element 2\n"
    assert run[2].metadata["started"] <= run[2].metadata["completed"]
    assert run.status == "failed"
    assert "element 5" in str(run.record.reason)


def test_an_array_is_found_again(on_slurm: Callable[..., BatchHook], slurm: Slurm) -> None:
    body = "echo run >> ../times; sleep 2"
    first = submit_array(on_slurm(), body, array="1-3")
    again = submit_array(on_slurm(), body, array="1-3")
    assert again.job_id == first.job_id
    assert again.get(PATIENCE) == 0
    assert first.get(PATIENCE) == 0
    (told,) = on_slurm().site.transport.run([f"cat {first.folder}/../times; rm {first.folder}/../times"])
    assert told.stdout == "run\n" * 3


@pytest.fixture(scope="module")
def mpi() -> None:
    if not shutil.which("mpirun"):
        try:
            debian.install("mpich")
        except debian.MissingPackagesError as error:
            pytest.skip(str(error))


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        (
            "mpi_wrapper",
            [f"{part} rank {number % 4} of 4, 2 on its node, threads 1" for number, part in enumerate(PARTS, 1)],
        ),
        ("xargs", [f"{part} rank none of none, none on its node, threads 4" for part in PARTS]),
        ("array", [f"{part} rank none of none, none on its node, threads " for part in PARTS]),
        ("openmp", [" rank none of none, none on its node, threads 4"]),
        ("hybrid", [f" rank {rank} of 4, 2 on its node, threads 2" for rank in range(4)]),
    ],
)
def test_recipes(on_slurm: Callable[..., BatchHook], mpi: None, recipe: str, expected: list[str]) -> None:
    names: dict[str, JobScript] = {"JobScript": JobScript}  # type: ignore[dict-item]
    exec(RECIPES[recipe], names)  # type: ignore[arg-type]
    script = names["script"]
    script.aux_scripts["solve"] = SOLVE
    run = on_slurm().submit(script)
    try:
        assert run.get(PATIENCE) == 0
    finally:
        said = run.output()
    assert sorted(said.splitlines()) == sorted(expected)
