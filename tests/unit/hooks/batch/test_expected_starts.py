"""When batch systems expect jobs to start, as their status commands say it."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from lading.hooks.batch.lsf.output import moment
from lading.hooks.batch.lsf.system import LSF
from lading.hooks.batch.pbs.pbspro import PBSPro
from lading.hooks.batch.slurm.system import SLURM
from lading.hooks.ssh.answer import CommandResult

AT = 1_795_722_005


def test_slurm_says_it_of_jobs_that_wait() -> None:
    rows = [
        f"11|PENDING||Priority|start={AT}|lading-a", "12|PENDING||Resources|start=N/A|lading-b",
        f"13|RUNNING|n1|None|start={AT - 60}|lading-c", f"14_2|PENDING||Priority|start={AT}|a|start=b|c",
        "15|PENDING||Priority|recorded before",
    ]  # fmt: skip
    jobs = {job.id: job for job in SLURM().statuses(CommandResult(0, "\n".join(rows)))}
    assert {id: job.starts_at for id, job in jobs.items()} == {"11": AT, "12": None, "13": None, "14": AT, "15": None}
    assert [jobs[id].name for id in ("11", "14", "15")] == ["lading-a", "a|start=b|c", "recorded before"]
    command = SLURM().status("hpc")
    assert command[:3] == ["env", "SLURM_TIME_FORMAT=%s", "squeue"], "the time zone of the host is not known"
    assert command[-1].endswith("|start=%S|%j")


@pytest.mark.parametrize("text", [str(AT), "Thu Nov 26 19:40:05 2026", "Thu Nov  26 19:40:05 2026"])
def test_pbs_says_it_as_seconds_or_as_a_date(text: str) -> None:
    row = f"Job Id: 7.pbs1|job_state=Q|Hold_Types=n|estimated.exec_vnode=(n1)|estimated.start_time={text}|substate=10"
    [job] = PBSPro().statuses(CommandResult(0, row + "\n"))
    assert job.starts_at == AT
    assert "TZ=UTC" in " ".join(PBSPro().status("hpc"))


@pytest.mark.parametrize("text", ["", "-", "soon", "Thu Nov 31 19:40:05 2026", "Nov 26"])
def test_pbs_may_say_nothing(text: str) -> None:
    row = f"Job Id: 7.pbs1|job_state=Q|Hold_Types=n|estimated.start_time={text}|substate=10"
    [job] = PBSPro().statuses(CommandResult(0, row + "\n"))
    assert job.starts_at is None


NOW = datetime(2026, 12, 30, 12, 0, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("Dec 30 19:40", datetime(2026, 12, 30, 19, 40)),
        ("Jan  2 08:00", datetime(2027, 1, 2, 8)),
        ("Jan 2 08:00:07 2027 E", datetime(2027, 1, 2, 8, 0, 7)),
        ("Feb 29 08:00", None),
        ("-", None),
        ("soon", None),
    ],
)
def test_lsf_says_it_as_a_date_without_a_year(text: str, at: datetime | None) -> None:
    found = moment(text, NOW)
    if at is None:
        assert found is None or text.startswith("Feb"), "no year near by has that day, or another one has"
    else:
        assert found == at.replace(tzinfo=timezone.utc).timestamp()


def test_lsf_has_it_in_a_column_where_it_knows_that() -> None:
    with_start, without = LSF().status("hpc")[4:]
    assert "estart_time" in with_start
    assert "estart_time" not in without
    header = "JOBID^JOBINDEX^STAT^EXIT_CODE^EXEC_HOST^EXIT_REASON^PEND_REASON^ESTART_TIME^JOB_NAME"
    rows = ["202^0^PEND^-^-^-^New job is waiting for scheduling;^Nov 26 19:40:05 2026^a^b", "203^0^PEND^-^-^-^-^-^x"]
    jobs = LSF().statuses(CommandResult(0, "\n".join([header, *rows, ""])))
    assert [(job.name, job.starts_at) for job in jobs] == [("a^b", AT), ("x", None)]
