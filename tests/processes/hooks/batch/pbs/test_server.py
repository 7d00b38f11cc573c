"""Runs of job scripts at an OpenPBS whose commands answer as recorded ones do, with a history of jobs and without."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from lading.hooks.batch import canceller, status_query
from lading.hooks.batch.pbs.pbspro import PBSPro
from lading.hooks.batch.refusals import CancelError
from lading.hooks.batch.system import Profile
from lading.hooks.job_scripts import layout
from lading.hooks.job_scripts.profile import SiteOptions, SiteProfile
from lading.hooks.job_scripts.run import RunRecord
from lading.hooks.job_scripts.run_site import RunSite
from lading.hooks.job_scripts.script import JobScript
from lading.hooks.ssh.local_transport import ShellTransport

# A folder for each job; "state" is what qstat shows of it.
SERVER = """\
import os, pathlib, signal, subprocess, sys, time
root = pathlib.Path({root!r})
command, words = pathlib.Path(sys.argv[0]).name, sys.argv[1:]

def show(id, state, *more):
    print("|".join([f"Job Id: {{id}}", f"Job_Name={{(root / id / 'name').read_text()}}", f"job_state={{state}}", *more,
                    "project=p"]))

def ended(folder):
    status = folder / "status"
    return status.read_text() if status.exists() else None

def over(folder):
    return ended(folder) or ((folder / "held").exists() and (folder / "deleted").exists())

def qsub(path):
    id = f"{{len([each for each in root.iterdir() if each.is_dir()])}}.pbs1"
    folder = root / id
    folder.mkdir()
    text = pathlib.Path(path).read_text()
    name = next(line.split()[2] for line in text.splitlines() if line.startswith("#PBS -N"))
    (folder / "name").write_text(name)
    if (root / "hold").exists():
        (folder / "held").touch()
    else:
        start = 'trap : TERM; echo $$ >pid; "$@"; echo $? >s; mv s status'
        words = ["env", f"PBS_JOBID={{id}}", "setsid", "sh", "-c", start, "sh", "bash", path]
        subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    print(id)

def qdel(id):
    folder = root / id
    if (folder / "held").exists() or ended(folder) is None:
        (folder / "deleted").touch()
    if not (folder / "held").exists() and ended(folder) is None:
        os.killpg(int((folder / "pid").read_text()), signal.SIGTERM)

def qstat(*words):
    history = not (root / "no_history").exists()
    status = 0
    for id in words:
        folder = root / id
        if not id.endswith(".pbs1"):
            continue
        if "-x" in words and not history:
            print(f"qstat: PBS is not configured to maintain job history {{id}}", file=sys.stderr)
        elif not folder.is_dir() or (not history and over(folder)):
            print(f"qstat: Unknown Job Id {{id}}", file=sys.stderr)
            status = 153
        elif (folder / "held").exists():
            show(id, *(("F", "substate=91") if (folder / "deleted").exists() else ("H", "Hold_Types=u")))
        elif ended(folder) is None:
            show(id, "R", "exec_host=pbs1/0")
        else:
            killed = (folder / "deleted").exists()
            show(id, "F", "exec_host=pbs1/0", "Exit_status=271" if killed else f"Exit_status={{ended(folder).strip()}}",
                 f"substate={{91 if killed else 92}}")
    sys.exit(status)

globals()[command](*words)
"""


class Server(ShellTransport):
    """The way to it.

    :param root: where its jobs are
    """

    def __init__(self, root: Path, *, history: bool) -> None:
        self.root = root
        commands = root.parent / "commands"
        for folder in (root, commands):
            folder.mkdir()
        for name in ("qsub", "qstat", "qdel"):
            (commands / name).write_text(f"#!{sys.executable}\n{SERVER.format(root=str(root))}")
            (commands / name).chmod(0o755)
        if not history:
            (root / "no_history").touch()
        super().__init__(setup=f"PATH={commands}:$PATH; export PATH")


@pytest.fixture(params=[True, False], ids=["history", "no history"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Server:
    return Server(tmp_path / "server", history=request.param)


class Runs:
    """Runs there, looked at until something is so of all."""

    def __init__(self, server: Server, bodies: Sequence[str]) -> None:
        options = SiteOptions(work_dir=str(server.root.parent / "work"), lost_after=0.6)
        self.site = RunSite("pbs", PBSPro(), SiteProfile(profile=Profile()), options, server)
        scripts = [JobScript(body) for body in bodies]
        self.records = [self.site.new_record(f"t{n}-{n:032d}", script) for n, script in enumerate(scripts)]
        for record, script in zip(self.records, scripts, strict=True):
            self.site.place(record, script)

    def until(self, is_so: Callable[[RunRecord], bool]) -> list[RunRecord]:
        end = time.monotonic() + 120
        while not all(map(is_so, self.records)):
            assert time.monotonic() < end, self.records
            self.records = [sighting.record for sighting in self.site.advance(self.records)]
            time.sleep(0.1)
        return self.records


def test_each_of_several_runs_is_seen(server: Server) -> None:
    runs = Runs(server, ["sleep 2", "exit 3", "sleep 3", "true"])
    runs.until(lambda record: record.job_id is not None)
    ended = runs.until(lambda record: record.ended)
    assert [(record.state, record.cause, record.exit_code) for record in ended] == [
        ("succeeded", None, 0),
        ("failed", "error", 3),
        ("succeeded", None, 0),
        ("succeeded", None, 0),
    ]


@pytest.mark.parametrize("held", [True, False])
def test_deleted_by_hand(server: Server, held: bool) -> None:
    if held:
        (server.root / "hold").touch()
    runs = Runs(server, ["touch began; sleep 60"] * 2)
    runs.until(
        lambda record: record.reason == "the user holds it" if held else (Path(record.folder) / "began").exists()
    )
    runs.site.transport.run([f"qdel {record.job_id}" for record in runs.records])
    assert [record.cause for record in runs.until(lambda record: record.ended)] == ["cancelled"] * 2


@pytest.mark.parametrize("shell", ["/bin/bash", "/bin/sh"])
def test_a_script_that_ends_at_the_moment_of_a_signal_leaves_a_status(shell: str, tmp_path: Path) -> None:
    """As ``qdel`` sends it, to all processes of a job."""
    for number in range(6):
        folder = tmp_path / str(number)
        folder.mkdir()
        script = JobScript("touch began; exec sleep 60", shell=shell)
        for name, text in layout.files(script, PBSPro(), Profile(), str(folder), jobname="a_name").items():
            (folder / name).write_text(text)
        environment = {**os.environ, "PBS_JOBID": "1.pbs1"}
        command = [shell, layout.WRAPPER]
        job = subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True)
        while not (folder / "began").exists():
            time.sleep(0.01)
        os.killpg(job.pid, signal.SIGTERM)
        job.wait(timeout=120)
        assert (folder / layout.EXIT).read_text().split()[0] == "143"


def test_what_a_run_prints_is_read_while_qstat_hangs(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs(server, ["echo hello; sleep 600"])
    (record,) = runs.until(lambda record: record.state == "running")
    qstat = server.root.parent / "commands/qstat"
    works = qstat.read_text()
    qstat.write_text("#!/bin/sh\nexec sleep 600\n")
    monkeypatch.setattr(status_query, "QUESTION_LIMIT", 1)
    end = time.monotonic() + 120
    while True:
        (sighting,) = runs.site.advance([record], {record.token: 0})
        assert sighting.record.state == "running"
        if sighting.output == b"hello\n":
            break
        assert time.monotonic() < end
    with pytest.raises(CancelError, match="the status of jobs to cancel is unknown"):
        runs.site.cancel([record])
    [note] = (server.root.parent / "work" / canceller.NOTES).iterdir()
    assert note.read_text() == f"{record.job_id}\t-\t{record.name}\n", "which a controller ends, once qstat answers"
    qstat.write_text(works)
    runs.site.cancel([record])
