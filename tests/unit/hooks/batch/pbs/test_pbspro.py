"""PBS Pro and TORQUE where the conformance suite does not look: the questions as a shell asks them, and odd answers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.hooks.batch.pbs import output
from lading.hooks.batch.pbs.output import split
from lading.hooks.batch.pbs.pbspro import PBSPro
from lading.hooks.batch.pbs.torque import TORQUE
from lading.hooks.batch.status_query import StatusQuery
from lading.hooks.batch.system import CouldNotAsk
from lading.hooks.ssh.answer import CommandResult
from tests.recordings import recorded

# Like qstat of OpenPBS where no history is kept: with -x it shows no job, and does not fail.
NO_HISTORY = """\
case " $* " in
  *" -x "*) for each; do case $each in -*|dsv) ;; *)
    echo "qstat: PBS is not configured to maintain job history $each" >&2 ;; esac; done; exit 0 ;;
esac
printf 'Job Id: 1.pbs1|job_state=R|x=y\\n'
echo 'qstat: Unknown Job Id 3.pbs1' >&2
exit 153"""


def _asked(system: PBSPro, folder: Path, qstat: str, ids: tuple[str, ...] = (), qselect: str = ":") -> CommandResult:
    """The answer to a status query where the commands are these scripts."""
    return _done(system.status("hpc", ids), folder, qstat, qselect)


def _done(command: list[str], folder: Path, qstat: str, qselect: str) -> CommandResult:
    for name, script in (("qselect", qselect), ("qstat", qstat)):
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=folder, capture_output=True, env=environment)
    return CommandResult(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))


@pytest.mark.parametrize(("system", "options"), [(PBSPro(), "-t -x -f -F dsv"), (TORQUE(), "-t -x")])
def test_all_jobs_of_a_user(system: PBSPro, options: str, tmp_path: Path) -> None:
    two = '[ "$*" = "-u hpc" ] && printf "1.pbs1\\n2[].pbs1\\n"'
    answer = _asked(system, tmp_path, 'echo "$*"', qselect=two)
    assert answer.stdout == f"{options} 1.pbs1 2[].pbs1\n"
    answers = 'case $* in "-B -f") echo "Server: pbs1" ;; *) exit 1 ;; esac'
    assert system.statuses(_asked(system, tmp_path, answers)) == []
    for silent in (":", "exit 0", "echo Welcome"):
        with pytest.raises(CouldNotAsk, match="qstat -B names no server"):
            system.statuses(_asked(system, tmp_path, silent))
        with pytest.raises(CouldNotAsk, match="qstat -B names no server"):  # a wrapper that fails after its banner
            system.statuses(_asked(system, tmp_path, silent, qselect="echo 'Welcome to the cluster!'"))
    banner = f"echo; echo 'Welcome to the cluster!'; {two}; echo 'Maintenance on 24 Dec'"
    assert _asked(system, tmp_path, 'echo "$*"', qselect=banner).stdout == f"{options} 1.pbs1 2[].pbs1\n"
    with pytest.raises(CouldNotAsk, match="cannot connect"):
        system.statuses(
            _asked(system, tmp_path, "exit 1", qselect="echo 'qselect: cannot connect to server' >&2; exit 2")
        )


@pytest.mark.parametrize(("system", "options"), [(PBSPro(), "-t -x -f -F dsv"), (TORQUE(), "-t -x")])
def test_all_ids_in_one_question(system: PBSPro, options: str, tmp_path: Path) -> None:
    answer = _asked(system, tmp_path, 'echo "$*"; echo warning >&2; exit 7', ("1.pbs1", "2[].pbs1"))
    assert answer == CommandResult(7, f"{options} 1.pbs1 2[].pbs1\n", "warning\n")


def test_bytes_of_any_kind(tmp_path: Path) -> None:
    line = r"Job Id: 1.pbs1|Job_Name=gr\\366sse|job_state=R|Account_Name=\\302\\205\\342\\200\\250 ^M|x=y\\n"
    (job,) = PBSPro().statuses(_asked(PBSPro(), tmp_path, f'printf "{line}"', ("1.pbs1",)))
    assert (job.name, job.state) == ("gr\ufffdsse", "running")


def test_without_history_those_that_live_are_asked_for(tmp_path: Path) -> None:
    answer = _asked(PBSPro(), tmp_path, NO_HISTORY, ("1.pbs1", "3.pbs1"))
    assert answer.status == 153
    assert [(job.id, job.state) for job in PBSPro().statuses(answer)] == [("1.pbs1", "running")]
    assert "not configured" not in answer.stderr


# Like qstat of PBS Pro 13, which has no -F.
OLD = """\
case " $* " in
  *" -F "*) printf "qstat: invalid option -- 'F'\\nusage:\\tqstat [-f] [-J] [-p] [-t] [-x]\\n" >&2; exit 2 ;;
  *" -x "*) if [ -e no_history ]; then echo "qstat: PBS is not configured to maintain job history" >&2; exit 0; fi ;;
esac
cat said
echo 'qstat: Unknown Job Id 9.pbs1' >&2
exit 153"""
PLAIN = """\
Job Id: 7[2].pbs1
    Job_Name = a|b\\c
    job_state = R
    exec_host = n1/0
    Variable_List = PBS_O_HOME=/home/hpc,X=() {  echo

}
    array_id = 7[].pbs1

"""


@pytest.mark.parametrize("history", [True, False])
def test_versions_without_that_form(history: bool, tmp_path: Path) -> None:
    if not history:
        (tmp_path / "no_history").touch()
    (tmp_path / "said").write_text(recorded("pbspro/plain").stdout + PLAIN)
    answer = _asked(PBSPro(), tmp_path, OLD, ("0.pbs1", "7[].pbs1", "9.pbs1"))
    assert (answer.status, answer.stderr) == (153, "qstat: Unknown Job Id 9.pbs1\n")
    ended, running = PBSPro().statuses(answer)
    assert (ended.id, ended.cause, ended.nodes) == ("0.pbs1", "time_limit", "pbs1/0")
    assert ended.reason == "it ran longer than requested"
    assert (running.id, running.index, running.name, running.state) == ("7[].pbs1", 2, "a|b\\c", "running")


def test_a_cut_answer_without_that_form_says_nothing_of_its_last_job(tmp_path: Path) -> None:
    text = recorded("pbspro/plain").stdout
    (tmp_path / "said").write_text(PLAIN + text[: text.index("    Exit_status")])
    answer = _asked(PBSPro(), tmp_path, OLD, ("0.pbs1", "7[].pbs1"))
    assert [job.id for job in PBSPro().statuses(answer)] == ["7[].pbs1"]


def test_a_command_with_other_options_is_no_answer(tmp_path: Path) -> None:
    with pytest.raises(CouldNotAsk, match="usage: another"):
        PBSPro().statuses(_asked(PBSPro(), tmp_path, "echo 'usage: another' >&2; exit 2", ("1.pbs1",)))


def test_a_job_that_the_server_has_abandoned_never_starts() -> None:
    said = "Job Id: 1.pbs1|Job_Name=x|job_state=H|Hold_Types=s|comment=job held, too many failed attempts to run|x=y\n"
    (job,) = PBSPro().statuses(CommandResult(0, said))
    assert (job.state, job.cause, job.reason) == ("pending", "error", "job held, too many failed attempts to run")


def test_an_id_of_another_form_costs_itself_alone() -> None:
    said = "Job Id: R12.pbs1|job_state=R|x=y\nJob Id: 1.pbs1|job_state=R|x=y\n"
    assert [job.id for job in PBSPro().statuses(CommandResult(0, said))] == ["1.pbs1"]


def test_a_server_without_history_has_not_said_that_jobs_are_gone() -> None:
    with pytest.raises(CouldNotAsk, match="not configured to maintain job history"):
        PBSPro().statuses(recorded("pbspro/no_history"))


def test_ids() -> None:
    assert split("8.pbs1") == ("8.pbs1", None)
    assert split("8[].pbs1") == ("8[].pbs1", None)
    assert split("8[3].login-1.example.org") == ("8[].login-1.example.org", 3)
    assert PBSPro().element("8[].pbs1", 3) == "8[3].pbs1"
    with pytest.raises(ValueError, match="is not the ID"):
        split("Job 8")


def _read(name: str) -> dict[str, object]:
    ((_, attributes),) = output.parse_dsv(recorded(f"pbspro/{name}").stdout)
    return attributes


def test_values_with_separators() -> None:
    assert _read("paths")["Output_Path"] == 'pbs1:/home/hpc/d ir/a"b|c'
    assert _read("separators")["Account_Name"] == "a^Mb^Kc\fd\u0085e\u2028f^[g\x7fh"
    assert _read("comment")["comment"] == "line one\nline two\ttab"
    assert str(_read("forged")["Account_Name"]).startswith("x\n    job_state = F\n    Exit_status = 0\n")


def test_lines_that_an_older_version_has_not_escaped() -> None:
    text = "Job Id: 1.pbs1|job_state=F|Variable_List=F=() {\n echo b\n}|Exit_status=3|x=y\n\nWelcome!\n"
    text += "Job Id: 2.pbs1|job_state=R|x=y\n"
    (_, first), (_, second) = output.parse_dsv(text)
    assert first == {"job_state": "F", "Variable_List": "F=() {\n echo b\n}", "Exit_status": "3", "x": "y"}
    assert second == {"job_state": "R", "x": "y"}


@given(st.integers(0, 10_000))
def test_a_cut_answer_is_never_wrong_about_an_end(length: int) -> None:
    whole = {(job.id, job.index): job for job in PBSPro().statuses(recorded("pbspro/ended"))}
    said = recorded("pbspro/ended").stdout
    try:
        jobs = PBSPro().statuses(CommandResult(0, said[: length % len(said)]))
    except CouldNotAsk:
        return
    assert all(
        (job.cause, job.exit_code) == (other.cause, other.exit_code)
        for job in jobs
        for other in [whole[job.id, job.index]]
    )


@given(st.text(st.sampled_from("a1|\\nfN=.:^\n\r\t\u2028 "), max_size=60))
def test_a_name_of_any_characters_is_no_attribute(name: str) -> None:
    written = name.replace("\\", "\\\\").replace("|", "\\|").replace("\n", "\\n").replace("\r", "^M")
    line = f"Job Id: 1.pbs1|Job_Name={written}|job_state=R|comment={written}|x=y\n"
    ((_, attributes),) = output.parse_dsv(line)
    expected = name.replace("\r", "^M")
    assert attributes == {"Job_Name": expected, "job_state": "R", "comment": expected, "x": "y"}


def _element(**attributes: str) -> str:
    fields = {"job_state": "Q", "stime": "Sun Nov 22 00:28:02 2026", **attributes, "project": "p"}
    return "".join(["Job Id: 11[4].pbs1", *(f"|{name}={value}" for name, value in fields.items()), "\n"])


def _array(**attributes: str) -> str:
    return _element(**attributes).replace("11[4]", "11[]")


@pytest.mark.parametrize(
    ("state", "comment", "reason"),
    [
        ("B", "Job Array Began at Sun Nov 22 at 00:28", None),
        ("B", "what an operator wrote", None),
        ("Q", "Not Running: Queue not started.", "Not Running: Queue not started."),
    ],
)
def test_the_comment_of_an_array_that_has_begun_is_no_reason_to_wait(
    state: str, comment: str, reason: str | None
) -> None:
    answer = CommandResult(0, _array(job_state=state, comment=comment) + _element(comment=comment, Exit_status="1"))
    (job,) = PBSPro().statuses(answer)
    assert (job.state, job.reason, job.cause, job.exit_code) == ("pending", reason, None, None)


@pytest.mark.parametrize(
    ("attributes", "cause", "exit_code"),
    [
        ({"comment": "Subjob finished", "Exit_status": "1"}, "cancelled", None),
        ({"comment": "Subjob finished"}, "cancelled", None),
        ({"comment": "Job Array Began at Sun Nov 22 at 00:28", "Exit_status": "1"}, "cancelled", None),
        ({"comment": "Subjob terminated", "Exit_status": "271"}, "cancelled", None),
        # Versions that keep nothing of an element but how it has ended.
        ({"comment": "Subjob failed", "Exit_status": "3"}, "error", 3),
        ({"comment": "Subjob finished", "Exit_status": "0"}, None, 0),
        ({}, None, None),
        ({"exec_host": "pbs1/3", "Exit_status": "1"}, "error", 1),
    ],
)
def test_an_element_that_never_ran_has_not_the_exit_status_of_its_array(
    attributes: dict[str, str], cause: str | None, exit_code: int | None
) -> None:
    (job,) = PBSPro().statuses(CommandResult(0, _element(job_state="X", **attributes)))
    assert (job.state, job.cause, job.exit_code) == ("ended", cause, exit_code)


def test_an_array_without_its_elements_says_nothing_of_them() -> None:
    with pytest.raises(CouldNotAsk, match="reports no job"):
        PBSPro().statuses(CommandResult(0, _array(job_state="B")))
    two = PBSPro().statuses(CommandResult(0, _array(job_state="B") + "Job Id: 1.pbs1|job_state=R\n"))
    assert [job.id for job in two] == ["1.pbs1"]


def test_of_several_ids_each_is_reported_or_declared_unknown() -> None:
    ids = ["12[].pbs1", "11[].pbs1", "3.pbs1", "1.pbs1", "9999.pbs1"]
    found = StatusQuery(PBSPro(), "hpc", ids).read(recorded("pbspro/queue"))
    assert (found.silent, "9999.pbs1" in found.unknown) == ([], True)
    assert not found.is_silent(("11[].pbs1", 77))
    first_alone = CommandResult(0, "Job Id: 1.pbs1|job_state=R|x=y\n")
    assert StatusQuery(PBSPro(), "hpc", ["1.pbs1", "6.pbs1"]).read(first_alone).silent == ["6.pbs1"]


def test_of_several_ids_torque_says_each_in_a_document_of_its_own() -> None:
    query = StatusQuery(TORQUE(), "hpc", ["28.trq1", "29.trq1", "9999.trq1"])
    answer = recorded("torque/two_ids")
    found = query.read(CommandResult(153, answer.stdout, recorded("torque/unknown").stderr))
    assert (found.silent, set(found.unknown)) == ([], {"28.trq1", "29.trq1", "9999.trq1"})
    assert query.read(CommandResult(0, answer.stdout)).silent == ["9999.trq1"]


@pytest.mark.parametrize("named", ["12.trq1", "12.trq1.example.org", "12.TRQ-1"])
@pytest.mark.parametrize("id", ["12.trq1", "12.trq1.example.org"])
def test_the_name_of_the_server_may_be_written_in_full_or_in_short(id: str, named: str) -> None:
    answer = CommandResult(
        153, "", f"qstat: Unknown Job Id Error {named}\nqstat: Unknown Job Id Error 8[].{named[3:]} (12)\n"
    )
    ids = [id, "8[].trq1", "2.trq1", "8.trq1", "1.trq1"]
    found = StatusQuery(TORQUE(), "hpc", ids).read(answer)
    assert (set(found.unknown), found.silent) == ({id, "8[].trq1"}, ["1.trq1", "2.trq1", "8.trq1"])


@pytest.mark.parametrize("shown", ["12.pbs1", "12.pbs1.example.org"])
@pytest.mark.parametrize("asked", ["12", "12.pbs1", "12.pbs1.example.org", "12.PBS1"])
def test_a_job_is_found_however_its_server_is_called(asked: str, shown: str) -> None:
    said = f"Job Id: {shown}|job_state=R|x=y\nJob Id: {shown.replace('12', '8[3]', 1)}|job_state=R|x=y\n"
    found = StatusQuery(PBSPro(), "hpc", [asked, asked.replace("12", "8[]", 1), "2.pbs1"]).read(CommandResult(0, said))
    assert (found.get((asked, None), None) is not None, found.silent) == (True, ["2.pbs1"])
    assert found.get((asked.replace("12", "8[]", 1), 3), None) is not None


def _document(id: str, name: str = "x") -> str:
    job = f"<Job><Job_Id>{id}</Job_Id><Job_Name>{name}</Job_Name><job_state>R</job_state></Job>"
    return f"<?xml version='1.0'?>\n<Data>{job}</Data>\n"


@pytest.mark.parametrize("bad", [_document("2.trq1", "a</Job_Name>"), _document("2.trq1")[:-20], "<Data>"])
def test_a_document_that_makes_no_sense_says_nothing_of_its_own_job(bad: str) -> None:
    query = StatusQuery(TORQUE(), "hpc", ["1.trq1", "2.trq1"])
    found = query.read(CommandResult(0, _document("1.trq1") + bad))
    assert ([job.id for job in found.jobs], found.silent) == (["1.trq1"], ["2.trq1"])
    with pytest.raises(CouldNotAsk, match="truncated or cannot be parsed"):
        query.read(CommandResult(0, bad))


def test_an_entity_that_xml_does_not_have_is_text() -> None:
    (job,) = TORQUE().statuses(CommandResult(0, _document("1.trq1", "a&b;c&amp;d")))
    assert job.name == "a&b;c&d"


@pytest.mark.parametrize(("system", "options"), [(PBSPro(), "-t -x -f -F dsv"), (TORQUE(), "-t -x")])
def test_a_lookup_by_name_asks_for_the_known_ids_too(system: PBSPro, options: str, tmp_path: Path) -> None:
    known = ("1.pbs1", "5.pbs1")
    (tmp_path / "2a.pbs1").touch()  # what a shell could take an array's id for
    for qselect, expected in (
        ('printf "1.pbs1\\n2[a].pbs1\\n"', "1.pbs1 2[a].pbs1 5.pbs1"),
        (":", "1.pbs1 5.pbs1"),
    ):
        command = StatusQuery(system, "hpc", known, by_name=True).command
        shown = 'case $* in "-B -f") echo "Server: pbs1" ;; *) echo "$*" ;; esac'
        answer = _done(command, tmp_path, shown, qselect)
        assert answer.stdout == f"{options} {expected}\n"


def test_a_lookup_by_name_shows_jobs_that_have_ended() -> None:
    query = StatusQuery(PBSPro(), "hpc", ["1.pbs1", "5.pbs1", "6.pbs1", "7.pbs1"], by_name=True)
    said = "Job Id: 1.pbs1|job_state=R|x=y\nJob Id: 5.pbs1|job_state=F|Exit_status=3|x=y\n"
    found = query.read(CommandResult(153, said, "qstat: Unknown Job Id 6.pbs1\n"))
    assert [(job.id, job.state, job.exit_code) for job in found.jobs] == [
        ("1.pbs1", "running", None),
        ("5.pbs1", "ended", 3),
    ]
    assert (found.silent, found.is_silent(("6.pbs1", None))) == (["7.pbs1"], False)


def test_a_request_that_can_never_run_is_distinguished_from_one_that_waits() -> None:
    for comment, never in (
        ("Can Never Run: Insufficient amount of resource: ncpus (R: 64 A: 8 T: 8)", True),
        ("Not Running: Insufficient amount of resource: ncpus (R: 2 A: 1 T: 8)", False),
    ):
        line = f"Job Id: 7.pbs1|Job_Name=x|job_state=Q|comment={comment}\n"
        [job] = PBSPro().statuses(CommandResult(0, line))
        assert (job.state, job.cause, job.never, job.reason) == ("pending", None, never, comment)


def test_of_two_servers_none_is_taken_for_the_other() -> None:
    """Each of them has a job 7; qstat writes the names of servers in full."""
    row = "Job Id: 7.{}|Job_Name=lading-a|job_state=R|x=y\n"
    query = StatusQuery(PBSPro(), "hpc", ["7.pbs1", "7.pbs2", "8.pbs1"])
    found = query.read(CommandResult(0, row.format("pbs2.example.org") + row.format("pbs1").replace("7.", "8.")))
    assert found.get(("7.pbs1", None), None) is found.get(("7.pbs2", None), None) is None
    assert (found.silent, found.is_silent(("7.pbs1", None))) == (["7.pbs1", "7.pbs2"], True)
    said = "qstat: Unknown Job Id 7.pbs1.example.org\nqstat: Unknown Job Id 8.pbs1.example.org\n"
    assert query.read(CommandResult(153, "", said)).silent == ["7.pbs1", "7.pbs2"]
    assert query.read(CommandResult(153, "", "qstat: Unknown Job Id 7.pbs1\n")).silent == ["7.pbs2", "8.pbs1"]


def test_a_job_that_was_moved_to_another_server_is_not_followed() -> None:
    (job,) = PBSPro().statuses(CommandResult(0, "Job Id: 7.pbs1|Job_Name=x|job_state=M|x=y\n"))
    assert (job.state, job.strange, job.succeeded) == ("running", True, None)
    assert "moved to another server" in str(job.reason)
