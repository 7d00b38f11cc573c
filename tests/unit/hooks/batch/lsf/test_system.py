"""LSF where the conformance suite does not look: the command that works for OpenLava, too."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.hooks.batch.lsf.system import LSF
from lading.hooks.batch.status_query import StatusQuery
from lading.hooks.batch.system import CouldNotAsk, NativeJob
from lading.hooks.ssh.answer import CommandResult
from tests.recordings import recorded


def _asked(folder: Path, script: str) -> CommandResult:
    """The answer to a status query where ``bjobs`` is this script."""
    path = folder / "bjobs"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(LSF().status("hpc", ["114"]), capture_output=True, text=True, env=environment)
    return CommandResult(done.returncode, done.stdout, done.stderr)


def test_columns_where_bjobs_has_them(tmp_path: Path) -> None:
    answer = _asked(tmp_path, f"cat <<'END'\n{recorded('lsf/queue').stdout}END\necho \"$*\" > '{tmp_path}/words'")
    assert LSF().statuses(answer) == LSF().statuses(recorded("lsf/queue"))
    words = (tmp_path / "words").read_text()
    assert words.startswith("-a -u hpc -o jobid jobindex stat ")
    assert words.endswith("job_name delimiter='^'\n")


def test_the_table_where_bjobs_has_no_columns(tmp_path: Path) -> None:
    table = recorded("lsf/openlava_queue_wide").stdout
    refusal = "bjobs: invalid option -- 'o'\\nusage: bjobs [-h] ..."
    script = f"case $* in *-o*) printf \"{refusal}\" >&2; exit 255 ;; esac\ncat <<'END'\n{table}END"
    assert LSF().statuses(_asked(tmp_path, script)) == LSF().statuses(recorded("lsf/openlava_queue_wide"))


def test_the_table_where_bjobs_has_not_all_columns(tmp_path: Path) -> None:
    table = recorded("lsf/openlava_queue_wide").stdout
    script = f"case $* in *-o*) echo 'Unknown field name: pend_reason' >&2; exit 255 ;; esac\ncat <<'END'\n{table}END"
    assert LSF().statuses(_asked(tmp_path, script)) == LSF().statuses(recorded("lsf/openlava_queue_wide"))


def test_no_job_at_all(tmp_path: Path) -> None:
    assert LSF().statuses(_asked(tmp_path, "echo 'No job found' >&2; exit 255")) == []
    assert LSF().statuses(_asked(tmp_path, "echo 'No job found' >&2")) == []


def test_no_answer_at_all(tmp_path: Path) -> None:
    with pytest.raises(CouldNotAsk, match="LSF is down"):
        LSF().statuses(_asked(tmp_path, "echo 'LSF is down. Please wait ...' >&2; exit 255"))


def test_a_command_cannot_forge_its_history() -> None:
    """The first job of the recording prints what LSF says of successes."""
    found = {job.id: job for job in LSF().accounted(recorded("lsf/history"))}
    assert found["117"] == NativeJob(id="117", state="ended", cause="error", exit_code=7)
    assert found["103"].reason == "TERM_RUNLIMIT: job killed after reaching LSF run time limit"


def test_the_script_is_read_from_a_file_of_any_name(tmp_path: Path) -> None:
    path = tmp_path / "a $(b) 'c'.sh"
    path.write_text("#BSUB -n 1\n")
    (tmp_path / "bsub").write_text("#!/bin/sh\ncat\necho $LSB_NTRIES tries\n")
    (tmp_path / "bsub").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(LSF().submit(str(path)), capture_output=True, text=True, env=environment)
    assert done.stdout == "#BSUB -n 1\n1 tries\n", "it does not wait until fewer jobs are pending"


SECTION = """\
Job <9>, Job Name <x>, User <hpc>, Project <default>, Command <c>
Fri Nov 20 19:37:14{year}: Submitted from host <lava1>, to Queue <normal>, CWD <$HOME>;
{limits}
Fri Nov 20 19:37:15{year}: Dispatched 1 Task(s) on Host(s) <h1>, Allocated 1 Slot(s) on Host(s) <h1>;
Fri Nov 20 19:37:15{year}: Starting (Pid 23299);
{events}
Summary of time in seconds spent in various states by  Fri Nov 20 19:38:16{year}
  PEND     PSUSP    RUN      USUSP    SSUSP    UNKWN    TOTAL
  1        0        {ran}       0        0        0        62
"""
MINUTE = "\n RUNLIMIT                \n 1.0 min of h1\n"
TWO_LIMITS = "\n CPULIMIT                 RUNLIMIT                \n 0.1 min of h1            1.0 min of h1\n"
ENDED = "Fri Nov 20 19:38:16{year}: Exited with exit code {code}. The CPU time used is 0.1 seconds;"


def _ended(
    code: int, limits: str = "", events: str = "", ran: int = 61, year: str = ""
) -> tuple[str | None, int | None]:
    text = SECTION.format(limits=limits, events=f"{events}{ENDED.format(code=code, year=year)}", ran=ran, year=year)
    (job,) = LSF().accounted(CommandResult(0, text))
    assert (job.id, job.name, job.state) == ("9", "x", "ended")
    return job.cause, job.exit_code


@pytest.mark.parametrize("year", ["", " 2026", " CET 2026"])
@pytest.mark.parametrize("limits", [MINUTE, TWO_LIMITS])
@pytest.mark.parametrize("code", [140, 255])
def test_a_run_limit_that_is_not_reported(code: int, limits: str, year: str) -> None:
    assert _ended(code, limits, year=year) == ("time_limit", code)


def test_an_exit_code_like_that_of_the_run_limit() -> None:
    assert _ended(140) == ("error", 140)
    assert _ended(255, MINUTE.replace("1.0", "2.0")) == ("error", 255)
    # It was suspended for a while.
    assert _ended(255, MINUTE, ran=50) == ("error", 255)
    assert _ended(3, MINUTE) == ("error", 3)
    killed = "Fri Nov 20 19:38:16: Signal <KILL> requested by user or administrator <hpc>;\n"
    assert _ended(140, MINUTE, killed) == ("cancelled", 140)
    assert _ended(140, MINUTE, killed.replace("KILL", "USR1")) == ("time_limit", 140)


def test_from_one_year_into_the_next() -> None:
    text = SECTION.format(limits=MINUTE, events=ENDED.format(code=255, year=""), ran=61, year="")
    text = text.replace("Fri Nov 20 19:37:1", "Thu Dec 31 23:59:3").replace("Fri Nov 20 19:38", "Fri Jan  1 00:00")
    (job,) = LSF().accounted(CommandResult(0, text))
    assert job.cause == "error"  # 41 seconds


@pytest.mark.parametrize(
    ("text", "other"), [("1.0 min", "1.0.0 min"), ("Nov 20 19:38:16: E", "Nov 40 19:38:16: E"), ("Nov", "Mär")]
)
def test_a_date_or_a_limit_that_cannot_be_read_costs_no_other_job_its_account(text: str, other: str) -> None:
    section = SECTION.format(limits=MINUTE, events=ENDED.format(code=255, year=""), ran=61, year="")
    found = LSF().accounted(CommandResult(0, section.replace(text, other) + section.replace("<9>", "<10>")))
    assert [(job.id, job.cause) for job in found] == [("9", "error"), ("10", "time_limit")]


def test_what_bhist_has_not_said() -> None:
    """Never an error of ours: unknown jobs, or no answer."""
    assert LSF().accounted(CommandResult(255, "No matching job found\n")) == []
    assert LSF().accounted(CommandResult(255, "", "No matching job found\n")) == []
    assert LSF().accounted(recorded("lsf/openlava_history_held")) == []
    for answer in (
        CommandResult(0),
        CommandResult(0, "\n\n"),
        CommandResult(255),
        CommandResult(0, "Summary of time in seconds\n"),
    ):
        with pytest.raises(CouldNotAsk):
            LSF().accounted(answer)


def test_a_name_that_is_folded_is_not_known() -> None:
    folded = recorded("lsf/openlava_history_blanks").stdout.replace(
        "two words and more>, User <hpc>, Project <default>, Com\n                     mand",
        "two words and many more than there is room for, so it is fold\n                     ed>, User <hpc>, Command",
    )
    (job,) = LSF().accounted(CommandResult(0, folded))
    assert (job.id, job.name, job.exit_code) == ("112", None, 0)


def test_an_end_without_a_beginning() -> None:
    """The beginning may be in an older file than bhist has read."""
    text = SECTION.format(limits="", events=ENDED.format(code=3, year=""), ran=61, year="")
    text = "\n".join(line for line in text.split("\n") if "19:37" not in line)
    (job,) = LSF().accounted(CommandResult(0, text))
    assert (job.cause, job.exit_code) == ("error", 3)


@given(st.text(max_size=200))
def test_any_text_is_an_answer_or_none(text: str) -> None:
    for read in (LSF().accounted, LSF().statuses):
        for said in (text, f"Job <1>, {text}", f"Job Id <1>,\nFri Nov 20 19:37:14: {text}"):
            with contextlib.suppress(CouldNotAsk):
                read(CommandResult(0, said))


def test_names_like_dates(tmp_path: Path) -> None:
    header = "JOBID   USER    STAT  QUEUE      FROM_HOST   EXEC_HOST   JOB_NAME   SUBMIT_TIME\n"
    row = "7       hpc     RUN   normal     lava1       lava1       x Nov 20 18:58 y Nov 20 19:37:14 2026\n"
    (job,) = LSF().statuses(CommandResult(0, header + row))
    assert job.name == "x Nov 20 18:58 y"


TABLE = "JOBID   USER    STAT  QUEUE      FROM_HOST   EXEC_HOST   JOB_NAME   SUBMIT_TIME\n"
COLUMNS = "JOBID^JOBINDEX^STAT^EXIT_CODE^EXEC_HOST^EXIT_REASON^PEND_REASON^JOB_NAME\n"


def _row(date: str, name: str = "x") -> str:
    return f"7       hpc     RUN   normal     lava1       lava1       {name} {date}\n"


@pytest.mark.parametrize(
    "date",
    [
        *(
            "Nov 22 00:33",
            "Nov 22 00:33:07",
            "Nov 22 00:33 2026",
            "Nov 22 2026",
            "Nov 22 00:33 L",
            "Nov  2 00:33:07 2026 E",
        ),
        *("22. Nov 00:33", "22 nov. 00:33", "2. Mär 2026", "Mär  2 00:33", "2026-11-22 00:33", "2026-11-22 00:33:07 X"),
    ],
)
def test_dates_as_locales_write_them(date: str) -> None:
    for name in ("x", "x Nov 20 18:58 y", "22.", "x 2026", "a  b"):
        (job,) = LSF().statuses(CommandResult(0, TABLE + _row(date, name)))
        assert (job.id, job.state, job.nodes, job.name) == ("7", "running", "lava1", name)


@pytest.mark.parametrize(
    "said",
    [
        TABLE + _row("Nov 22 00:33").replace("7 ", "1 ", 1) + _row("im November"),
        TABLE + _row("Nov 22 00:33").replace("7 ", "1 ", 1) + "7       hpc     RUN   nor",
        TABLE + _row("Nov 22 00:33").replace("7 ", "1 ", 1) + "7",
        f"{COLUMNS}1^0^RUN^-^h^-^-^n\n7^0^RU",
        f"{COLUMNS}1^0^RUN^-^h^-^-^n\n7^0^RU\n\nWelcome!\n",
        f"{COLUMNS}7^0^RU\n1^0^RUN^-^h^-^-^n\n",
        f"{COLUMNS}1^0^RUN^-^h^-^-^n\n7",
    ],
)
def test_a_row_that_cannot_be_read_says_nothing_of_its_job(said: str) -> None:
    found = StatusQuery(LSF(), "hpc", ["1", "7", "9"]).read(CommandResult(0, said))
    is_cut = not said.endswith("\n")  # with 9, which may have come after 7; else that is gone
    assert ([job.id for job in found.jobs], found.silent) == (["1"], ["7", "9"] if is_cut else ["7"])
    assert not found.is_whole


def test_elements_in_rows_that_cannot_be_read() -> None:
    said = f"{COLUMNS}7^1^RUN^-^h^-^-^n\n7^2^RUN"
    found = StatusQuery(LSF(), "hpc", ["7"]).read(CommandResult(0, said))
    assert [found.is_silent(("7", index)) for index in (1, 2)] == [False, True]


def test_a_number_that_is_cut() -> None:
    ids = ["1", "77", "78", "87"]
    found = StatusQuery(LSF(), "hpc", ids).read(CommandResult(0, f"{COLUMNS}1^0^RUN^-^h^-^-^n\n7"))
    assert found.silent == ["77", "78", "87"]


def test_no_row_that_can_be_read() -> None:
    for said in (TABLE + _row("im November"), f"{COLUMNS}7^0^RU"):
        with pytest.raises(CouldNotAsk, match="cannot be parsed"):
            LSF().statuses(CommandResult(0, said))


def _wide(user: str, stat: str, host: str, name: str) -> str:
    return f"{7:<7} {user:<7} {stat:<5} {'normal':<10} {'login1':<11} {host:<11} {name:<10} Nov 20 19:37\n"


@pytest.mark.parametrize("user", ["hpc", "first.last@example.org"])
@pytest.mark.parametrize("name", ["x", "two words", "a_name_of_its_own"])
def test_a_user_whose_name_is_longer_than_its_column(user: str, name: str) -> None:
    (waits,) = LSF().statuses(CommandResult(0, TABLE + _wide(user, "PEND", "", name)))
    assert (waits.state, waits.nodes, waits.name) == ("pending", None, name)
    (runs,) = LSF().statuses(CommandResult(0, TABLE + _wide(user, "RUN", "4*node-12.example.org", name)))
    assert (runs.state, runs.nodes, runs.name) == ("running", "4*node-12.example.org", name)
    (never,) = LSF().statuses(CommandResult(0, TABLE + _wide(user, "EXIT", "", name)))
    assert (never.cause, never.reason) == ("cancelled", "it has never run")


def test_an_exit_code_where_a_line_is_folded() -> None:
    section = SECTION.format(limits="", events=ENDED.format(code=7, year=""), ran=61, year="")
    for fold in ("exit code 7", "with exit code"):
        text = section.replace(fold, fold.replace(" ", f"\n{' ' * 21}", 1))
        assert [job.exit_code for job in LSF().accounted(CommandResult(0, text))] == [7]


def test_many_blanks_in_a_name_cost_little() -> None:
    began = time.process_time()
    (job,) = LSF().statuses(CommandResult(0, TABLE + _row("Nov 22 00:33", f"a{' ' * 50_000}b")))
    assert len(job.name or "") == 50_002
    with pytest.raises(CouldNotAsk):
        LSF().statuses(CommandResult(0, TABLE + _row("im November", f"a{' ' * 50_000}b")))
    assert time.process_time() - began < 1


@pytest.mark.parametrize("words", ["Unknown user", "User permission denied", "Request from non-LSF host rejected"])
def test_refusals_that_any_job_of_the_account_would_meet(words: str) -> None:
    error = LSF().wording.submit_error(CommandResult(255, "", f"{words}. Job not submitted.\n"))
    assert (error.kind, error.of_account) == ("permanent", True)


def test_a_job_that_could_not_be_started_anywhere_has_failed_with_the_message_of_lsf() -> None:
    words = "TERM_CWD_NOTEXIST: current working directory is not accessible or does not exist on the execution host"
    could_not, killed = LSF().statuses(CommandResult(0, f"{COLUMNS}7^0^EXIT^255^-^{words}^-^x\n8^0^EXIT^-^-^-^-^x\n"))
    assert (could_not.cause, could_not.reason, could_not.exit_code) == ("error", words, 255)
    assert (killed.cause, killed.reason) == ("cancelled", "it has never run")


def test_names_of_queues_are_not_cut(tmp_path: Path) -> None:
    queues, rest = recorded("lsf/nodes").stdout.split("HOST_NAME", 1)
    cut, whole = (queues.replace("normal", name) for name in ("*y_and_long_one", "a_very_long_one"))
    scripts = {
        "bqueues": f"case $* in *-w*) echo '{whole}' ;; *) echo '{cut}' ;; esac",
        "bhosts": f"cat <<'END'\nHOST_NAME{rest}END",
        "lshosts": ":",
        "bparams": ":",
    }
    for name, script in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert LSF.survey is not None
    done = subprocess.run(LSF.survey.command, capture_output=True, text=True, env=environment)
    assert LSF.survey.inventory(CommandResult(done.returncode, done.stdout)).queues == ["a_very_long_one"]


def test_a_job_that_traps_the_signal_of_its_run_limit_has_reached_it() -> None:
    """OpenLava calls it done, since it has exited with 0."""
    answer = recorded("lsf/openlava_history_limit")
    end = answer.stdout.index("Exited with exit code 140")
    done = answer.stdout[:end] + "Done successfully." + answer.stdout[end + len("Exited with exit code 140.") :]
    [job] = LSF().accounted(CommandResult(0, done))
    assert (job.cause, job.state) == ("time_limit", "ended")
    [job] = LSF().accounted(CommandResult(0, done.replace("00:34:17", "00:33:40").replace("  62  ", "  25  ")))
    assert (job.cause, job.exit_code) == (None, 0)
