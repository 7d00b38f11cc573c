"""Whatever a row of a batch system's answer holds: its reader raises nothing but what it promises, and a row that makes
no sense costs itself alone."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.hooks.batch.lsf.system import LSF
from lading.hooks.batch.pbs.pbspro import PBSPro
from lading.hooks.batch.pbs.torque import TORQUE
from lading.hooks.batch.sge.system import SGE
from lading.hooks.batch.slurm.system import SLURM
from lading.hooks.batch.system import BatchSystem, CouldNotAsk, NativeJob
from lading.hooks.ssh.answer import CommandResult

SYSTEMS: dict[str, BatchSystem] = {each.name: each for each in (SLURM(), PBSPro(), TORQUE(), LSF(), SGE())}
NOISE = st.one_of(
    st.text(max_size=8),
    st.sampled_from(["²", "٣", "9" * 5000, "-1", "|", "^", "<", "&", "=", " ", "", "]", "[", "\x85", "\x1c", "\ud800"]),
)


@dataclass(frozen=True)
class Table:
    """An answer, as rows that each describe one job: its number in place of ``ID``.

    :param read: which of the readers
    """

    read: Callable[[BatchSystem, CommandResult], list[NativeJob]]
    row: str
    head: str = ""
    tail: str = ""

    def of(self, rows: list[str]) -> CommandResult:
        return CommandResult(0, self.head + "".join(rows) + self.tail, "")


STATUS, ACCOUNTS = (lambda system, answer: system.statuses(answer)), (lambda system, answer: system.accounted(answer))
DSV = (
    "Job Id: ID.s|Job_Name=«n»|job_state=«F»|Exit_status=«0»|exec_host=«h/0»|comment=«x»|resources_used.mem=«5kb»|"
    "Resource_List.mem=«1gb»\n"
)
XML = (
    "<job_list state='running'><JB_job_number>ID</JB_job_number><JB_name>«n»</JB_name><state>«r»</state>"
    "<queue_name>«all.q@h»</queue_name><tasks>«3»</tasks></job_list>\n"
)
DATA = (
    "<Data><Job><Job_Id>«ID.s»</Job_Id><Job_Name>«n»</Job_Name><job_state>«C»</job_state><exit_status>«271»"
    "</exit_status><resources_used><mem>«5kb»</mem><walltime>«01:00:00»</walltime></resources_used><Resource_List>"
    "<mem>«5kb»</mem><walltime>«01:00:00»</walltime></Resource_List></Job></Data>\n"
)
QACCT = (
    "==============\njobnumber «ID»\ntaskid «3»\njobname «n»\nhostname «h»\nfailed «100» : «assumedly»\n"
    "exit_status «137»\nslots «2»\nend_time «x»\nmaxvmem «1.5G»\nru_wallclock «60»\n"
    "category -l h_vmem=«1G»,h_rt=«1:00:00» -pe x 2\n"
)
BHIST = (
    "Job <ID>, Job Name <«n»>, User <me>, Project <default>, Command <«x»>\n"
    "Mon Nov  2 10:00:00: Submitted from host <«h»>;\n RUNLIMIT\n «1.0» min of h\n"
    "Mon Nov  «2» 10:00:01: Started on <«h»>;\n"
    "Mon Nov  2 10:«02»:01: Exited with exit code «140». The CPU time used is «1»;\n"
    "Summary of time\n  PEND     PSUSP    RUN      USUSP    SSUSP    UNKWN    TOTAL\n"
    "  1        0        «120»      0 0 0 1\n"
)
TABLES = {
    "slurm": Table(STATUS, "«ID»_«3»|«RUNNING»|«n1»|«None»|«name»\n"),
    "slurm spans": Table(STATUS, "ID_[«1-3%2»]|«PENDING»|«n1»|«None»|«name»\n"),
    "slurm sacct": Table(ACCOUNTS, "«ID»|«FAILED»|«0»:«9»|«2026-11-02T10:00:00»|«n1»|«5K»|«1G»|«name»\n"),
    "pbspro": Table(STATUS, DSV),
    "torque": Table(STATUS, DATA),
    "sge": Table(STATUS, XML, "<?xml version='1.0'?>\n<job_info><queue_info>\n", "</queue_info></job_info>"),
    "sge qacct": Table(ACCOUNTS, QACCT),
    "lsf": Table(
        STATUS,
        "ID^«3»^«EXIT»^«140»^«h»^«reason»^«-»^«name»\n",
        "JOBID^JOBINDEX^STAT^EXIT_CODE^EXEC_HOST^EXIT_REASON^PEND_REASON^JOB_NAME\n",
    ),
    "lsf table": Table(
        STATUS,
        "ID    me      «RUN»   «normal»     «h»           «h2»          «name»       Nov  2 10:0«0»\n",
        "JOBID   USER    STAT  QUEUE      FROM_HOST   EXEC_HOST   JOB_NAME   SUBMIT_TIME\n",
    ),
    "lsf bhist": Table(ACCOUNTS, BHIST),
}
MARKS = re.compile("[«»]")
VALUE = re.compile("«([^»]*)»")


def row(table: Table, number: int) -> str:
    return MARKS.sub("", table.row.replace("ID", str(number)))


def spoilt_row(table: Table, number: int, which: int, noise: str, *, whole: bool) -> str:
    """A row of which one value is something else, or has it in front."""
    values = list(VALUE.finditer(text := table.row.replace("ID", str(number))))
    value = values[which % len(values)]
    return MARKS.sub("", text[: value.start()] + noise + text[value.end() if whole else value.start() :])


def spoilt(row: str, at: float, length: int, noise: str) -> str:
    start = int(at * len(row))
    return row[:start] + noise + row[start + length :]


@pytest.mark.parametrize("name", TABLES)
@given(which=st.integers(0, 20), noise=NOISE.filter(lambda text: not set(text) & set("\n\r«»")), whole=st.booleans())
def test_a_row_that_makes_no_sense_costs_itself_alone(name: str, which: int, noise: str, whole: bool) -> None:
    table, system = TABLES[name], SYSTEMS[name.partition(" ")[0]]
    rows = [row(table, number) for number in (7001, 7002, 7003)]
    well = {(job.id, job.index): job for job in table.read(system, table.of(rows))}
    rows[1] = spoilt_row(table, 7002, which, noise, whole=whole)
    found = {(job.id, job.index): job for job in table.read(system, table.of(rows))}
    others = {key: job for key, job in well.items() if not key[0].startswith("7002")}
    assert len({id for id, _ in others}) == 2
    assert {key: found.get(key) for key in others} == others, rows[1]


@pytest.mark.parametrize("name", TABLES)
@given(rows=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 40), NOISE), max_size=4))
def test_readers_raise_what_they_promise(name: str, rows: list[tuple[float, int, str]]) -> None:
    table, system = TABLES[name], SYSTEMS[name.partition(" ")[0]]
    text = table.of([row(table, number) for number in (7001, 7002, 7003)]).stdout
    for at, length, noise in rows:
        text = spoilt(text, at, length, noise)
    for read in (STATUS, ACCOUNTS):
        with contextlib.suppress(CouldNotAsk):
            read(system, CommandResult(0, text, ""))
