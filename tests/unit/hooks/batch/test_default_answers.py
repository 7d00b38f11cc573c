"""What each batch system's reader concludes where an answer does not say it all: the tables in the modules."""

from __future__ import annotations

import pytest

from lading.hooks.batch.status_query import Statuses, StatusQuery
from lading.hooks.batch.system import CouldNotAsk
from lading.hooks.ssh.answer import CommandResult
from lading.plugin.manager import batch_systems
from tests.recordings import recorded

SYSTEMS = batch_systems()
LSF_TITLES = "JOBID^JOBINDEX^STAT^EXIT_CODE^EXEC_HOST^EXIT_REASON^PEND_REASON^JOB_NAME\n"
ROWS = {
    "slurm": "JOBID|STATE|NODELIST|REASON|start=START_TIME|NAME\n7|{state}|n1|None|start=N/A|{name}\n",
    "pbspro": "Job Id: 7|Job_Name={name}|job_state={state}|x=y\n",
    "torque": "<Data><Job><Job_Id>7</Job_Id><Job_Name>{name}</Job_Name><job_state>{state}</job_state></Job></Data>\n",
    "lsf": LSF_TITLES + "7^0^{state}^-^h^-^-^{name}\n",
    "sge": "<job_info><job_list><JB_job_number>7</JB_job_number><JB_name>{name}</JB_name>"
    "<state>{state}</state></job_list></job_info>\n",
}
NAME = "lading-0123456"
STATES = {
    "slurm": {
        "pending": "PENDING CONFIGURING REQUEUED REQUEUE_FED REQUEUE_HOLD RESV_DEL_HOLD SPECIAL_EXIT EXPEDITING",
        "running": "RUNNING COMPLETING SUSPENDED STOPPED RESIZING SIGNALING STAGE_OUT UPDATE_DB REVOKED",
        "ended": "COMPLETED FAILED CANCELLED TIMEOUT DEADLINE NODE_FAIL BOOT_FAIL PREEMPTED OUT_OF_MEMORY",
        "strange": "HIBERNATING running R 42 ? RUN-2 PENDING_2 «»",
    },
    "pbspro": {"pending": "Q H W T", "running": "B R E S U", "ended": "F X", "strange": "M ? Z q «»"},
    "torque": {"pending": "Q H W T", "running": "R E S", "ended": "C", "strange": "? L c «»"},
    "lsf": {
        "pending": "PEND PSUSP WAIT PROV FWD_PEND",
        "running": "RUN USUSP SSUSP UNKWN ZOMBI",
        "ended": "DONE EXIT PDONE PERR",
        "strange": "HIBERNATING run ? «»",
    },
    "sge": {
        "pending": "qw hqw hRwq Rq Eqw Ew",
        "running": "r t Rr s S T dr dt hr",
        "ended": "z",
        "strange": "? x qw! RUNNING «»",
    },
}
SILENT = {
    "nothing": "",
    "a blank line": "\n \n",
    "a banner": "Welcome to the cluster!\n  * Maintenance on 24 Dec, 08:00 *\n",
    "an error, as output": "Error: the controller does not answer\n",
    "a localized message": "Kein Auftrag gefunden\n",
}


def row(name: str, state: str) -> str:
    return ROWS[name].format(state=state, name=NAME)


def asked(name: str, answer: CommandResult, *ids: str) -> Statuses:
    return StatusQuery(SYSTEMS[name], "hpc", ids or ("7",)).read(answer)


@pytest.mark.parametrize(
    ("name", "expected", "word"),
    [
        (name, expected, word.replace("«»", ""))
        for name, states in STATES.items()
        for expected, words in states.items()
        for word in words.split()
    ],
)
def test_each_state(name: str, expected: str, word: str) -> None:
    (job,) = asked(name, CommandResult(0, row(name, word))).jobs
    assert (job.state, job.strange) == (("running", True) if expected == "strange" else (expected, False))
    assert job.succeeded is not True or word in ("COMPLETED", "DONE")
    if job.strange:
        assert (job.cause, job.exit_code) == (None, None)
        assert job.reason


@pytest.mark.parametrize("text", SILENT.values(), ids=SILENT)
@pytest.mark.parametrize("name", STATES)
def test_an_answer_that_proves_nothing_is_none(name: str, text: str) -> None:
    for answer in (
        CommandResult(0, text),
        CommandResult(0, "", text),
        CommandResult(1, text),
        CommandResult(None, text),
    ):
        with pytest.raises(CouldNotAsk):
            asked(name, answer)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("slurm", recorded("slurm/queue_empty")),
        ("pbspro", recorded("pbspro/unknown")),
        ("torque", recorded("torque/unknown")),
        ("lsf", recorded("lsf/openlava_none")),
        ("lsf", CommandResult(0, LSF_TITLES)),
        ("sge", recorded("sge/queue_empty")),
    ],
)
def test_an_answer_without_jobs_that_proves_that_it_was_asked(name: str, answer: CommandResult) -> None:
    assert list(asked(name, answer).jobs) == []


@pytest.mark.parametrize("name", STATES)
def test_a_banner_around_an_answer_changes_nothing(name: str) -> None:
    banner, text = SILENT["a banner"], row(name, STATES[name]["running"].split()[0])
    plain = asked(name, CommandResult(0, text))
    for said in (banner + text, text + banner, banner + text.replace("\n", "\r\n") + banner):
        assert asked(name, CommandResult(0, said)).jobs == plain.jobs


@pytest.mark.parametrize("name", STATES)
def test_an_answer_that_is_cut_anywhere_invents_no_absence(name: str) -> None:
    """The jobs 7 and 77 are there, and an answer may end after any character."""
    text = row(name, STATES[name]["running"].split()[0])
    second = (
        text.replace("7|", "77|")
        .replace("7^", "77^")
        .replace("7<", "77<")
        .removeprefix(LSF_TITLES)
        .removeprefix(ROWS["slurm"].partition("\n")[0] + "\n")
    )
    whole = text + second
    if name == "sge":
        whole = text.replace("</job_info>\n", "") + second.removeprefix("<job_info>")
    for length in range(len(whole)):
        try:
            found = asked(name, CommandResult(0, whole[:length]), "7", "77")
        except CouldNotAsk:
            continue
        for id in ("7", "77"):
            is_known = found.get((id, None), NAME) is not None or found.is_silent((id, None))
            # Where a line ends, nothing shows that others are missing; of a job that is gone its files decide.
            assert is_known or whole[:length].endswith("\n"), (length, id, whole[:length])
        is_closed = whole[:length].endswith(("\n", "</Data>", "</job_info>"))
        assert is_closed or not found.is_whole, "the name of another job may be missing"
