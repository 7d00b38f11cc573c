"""SLURM where the conformance suite does not look: other versions, several clusters, federations, reasons as text."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest

from lading.hooks.batch.slurm.output import explain_reason
from lading.hooks.batch.slurm.system import SLURM
from lading.hooks.batch.status_query import StatusQuery
from lading.hooks.batch.system import (
    BatchJobRequest,
    CouldNotAsk,
    MemoryDialect,
    NativeJob,
    Profile,
    SubmitError,
    Unsupported,
)
from lading.hooks.ssh.answer import CommandResult
from tests.recordings import FOLDER, recorded


def test_ids_of_several_clusters() -> None:
    system = SLURM()
    assert system.element("7;far", 3) == "7_3;far"
    assert system.cancel(["7;far", "7_3;far"]) == ["scancel", "-M", "far", "7", "7_3"]
    *shell, script = system.cancel(["7;far", "8", "9;near"])
    assert shell == ["sh", "-c"]
    each = " || status=$?\n"
    assert f"scancel -M far 7{each}scancel 8{each}scancel -M near 9{each}" in script, "each number in its own cluster"
    assert system.status("hpc", ["7;far", "8;near"])[2:5] == ["squeue", "-M", "far,near"]
    words = system.accounting(["7;far"], "hpc", datetime(2026, 11, 20))
    assert words is not None
    assert words[:3] == ["sacct", "-M", "far"]
    assert words[-1].startswith("Cluster,JobID,")


def test_accounting_that_a_site_does_not_have() -> None:
    with pytest.raises(CouldNotAsk, match="disabled"):
        SLURM().accounted(CommandResult(1, "", "Slurm accounting storage is disabled\n"))


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("None", None),
        ("(null)", None),
        ("Resources", "it waits for resources to become free (Resources)"),
        (
            "ReqNodeNotAvail, UnavailableNodes:n1",
            "nodes that it needs are not available (ReqNodeNotAvail, UnavailableNodes:n1)",
        ),
        ("QOSMaxCpuPerUserLimit", "a limit of the QOS is reached (QOSMaxCpuPerUserLimit)"),
        ("RaisedSignal:9(Killed)", "it was killed by a signal (RaisedSignal:9(Killed))"),
        ("SomethingNew", "SomethingNew"),
    ],
)
def test_reasons_as_text(reason: str, expected: str | None) -> None:
    assert explain_reason(reason) == expected


def test_elements_that_slurm_lists_together() -> None:
    rows = "4559_[2-3%2]|PENDING||Priority|a\n4560_[1,3,...]|PENDING||Priority|a\n4561|RUNNING|n1|None|b\n"
    jobs = SLURM().statuses(CommandResult(0, rows))
    assert [(job.id, job.index) for job in jobs] == [("4559", 2), ("4559", 3), ("4561", None)]


# squeue(1), "JOB STATE CODES", and https://slurm.schedmd.com/job_state_codes.html, from 17.11 to 25.05.
STATES = {
    "pending": "PENDING CONFIGURING POWER_UP_NODE REQUEUED REQUEUE_FED REQUEUE_HOLD RESV_DEL_HOLD SPECIAL_EXIT "
    "EXPEDITING",
    "running": "RUNNING COMPLETING SUSPENDED RESIZING SIGNALING STAGE_OUT STOPPED UPDATE_DB REVOKED",
    "ended": "COMPLETED FAILED CANCELLED TIMEOUT DEADLINE NODE_FAIL BOOT_FAIL PREEMPTED OUT_OF_MEMORY",
}
NOT_LISTED = ("HIBERNATING", "OUT_OF_ME+", "COMPLETE")


def _of_sacct(rows: str) -> list[NativeJob]:
    return SLURM().accounted(CommandResult(0, rows))


@pytest.mark.parametrize(("state", "words"), STATES.items())
def test_states_of_all_versions(state: str, words: str) -> None:
    for word in words.split():
        (job,) = SLURM().statuses(CommandResult(0, f"7|{word}|n1|None|x\n"))
        (account,) = _of_sacct(f"7|{word}|0:0|Unknown|n1|x\n")
        assert (job.state, account.state) == (state, state), word
        assert (job.cause is None) == (account.cause is None) == (state != "ended" or word == "COMPLETED"), word


@pytest.mark.parametrize("word", NOT_LISTED)
def test_of_a_state_that_no_manual_lists_nothing_follows(word: str) -> None:
    (job,) = SLURM().statuses(CommandResult(0, f"7|{word}|n1|None|x\n"))
    (account,) = _of_sacct(f"7|{word}|0:0|Unknown|n1|x\n")
    for each in (job, account):
        assert (each.state, each.succeeded, each.cause) == ("running", None, None)
        assert "does not know" in (each.reason or "")


def test_all_jobs_are_asked_for() -> None:
    # Without --all those in hidden partitions are left out (squeue(1), "-a"), and would be taken for gone.
    assert "-a" in SLURM().status("hpc")
    assert "-a" in SLURM().status("hpc", ["7;far"])


def test_clusters_with_column_titles() -> None:
    # With -h, squeue of newer versions prints no line with the name of the cluster.
    titles = "JOBID|STATE|NODELIST|REASON|NAME\n"
    text = f"CLUSTER: far\n{titles}7|RUNNING|n1|None|x\n\nCLUSTER: near\n{titles}7_[2-3%1]|PENDING||Resources|y\n"
    jobs = SLURM().statuses(CommandResult(0, text))
    assert [(job.id, job.index) for job in jobs] == [("7;far", None), ("7;near", 2), ("7;near", 3)]
    assert SLURM().statuses(CommandResult(0, f"CLUSTER: far\n{titles}")) == []


@pytest.mark.parametrize(
    ("native", "clusters"),
    [
        ({"clusters": "far"}, ("far",)),
        ({"clusters": "Near,far,near"}, ("near", "far")),
        ({"M": "far"}, ("far",)),
        ({"clusters": False, "qos": "x"}, ()),
        ({}, ()),
    ],
)
def test_clusters_that_a_job_names(native: dict[str, str | bool], clusters: tuple[str, ...]) -> None:
    system = SLURM()
    assert system.native_clusters(native) == clusters
    header = "\n".join(system.header(BatchJobRequest(native=native), Profile(), "/bin/bash"))
    assert system.clusters_of_script(f"{header}\nexit\n#SBATCH --clusters=other\n") == clusters


@pytest.mark.parametrize("value", ["all", "near,all", "near, far", "", True, "a b"])
def test_clusters_in_which_no_lost_job_could_be_looked_up(value: str | bool) -> None:
    with pytest.raises(Unsupported, match="does not name the clusters"):
        SLURM().directives(BatchJobRequest(native={"clusters": value}), Profile())


def test_a_job_of_several_clusters_writes_the_id_that_sbatch_prints() -> None:
    assert SLURM().own_id("$SLURM_JOB_ID", ["far"]) == "$SLURM_JOB_ID;$SLURM_CLUSTER_NAME"
    assert SLURM().own_id("$SLURM_JOB_ID", ()) == "$SLURM_JOB_ID"


def test_a_cluster_that_cannot_be_reached() -> None:
    """As squeue and sbatch of 22.05 say it."""
    down = "{}: error: 'far' can't be reached now, or it is an invalid entry for --cluster.  Use 'sacctmgr list\n"
    unknown = "{}: error: No cluster 'nowhere' known by database.\n"
    titles = "JOBID|STATE|NODELIST|REASON|NAME\n"
    silent = "slurm_load_jobs error: Socket timed out on send/recv operation\n"
    for said in (down, unknown, silent, down + unknown):
        message = said.format("squeue", "squeue")
        assert len(SLURM().statuses(CommandResult(1, f"{titles}7|RUNNING|n1|None|x\n", message))) == 1
        with pytest.raises(CouldNotAsk):
            SLURM().statuses(CommandResult(1, "", message))
    with pytest.raises(CouldNotAsk):
        SLURM().statuses(CommandResult(1, titles, f"{down.format('squeue')}squeue: error: Socket timed out\n"))
    for said, kind in ((down, "transient"), (unknown + down, "permanent")):
        with pytest.raises(SubmitError) as caught:
            SLURM().submitted(CommandResult(1, "", said.format("sbatch", "sbatch")))
        assert caught.value.kind == kind


def test_a_user_whose_name_is_not_resolved_has_not_lost_his_jobs() -> None:
    # squeue lists nothing then, and ends with 0.
    with pytest.raises(CouldNotAsk, match="Invalid user: hpc"):
        SLURM().statuses(CommandResult(0, "", "squeue: error: Invalid user: hpc\n\n"))
    harmless = "squeue: error: Invalid user for SlurmUser slurm, ignored\n"
    assert SLURM().statuses(replace(recorded("slurm/queue_empty"), stderr=harmless)) == []


def test_a_job_that_another_cluster_of_a_federation_runs() -> None:
    rows = ["67|REVOKED||None|x\n", "67|COMPLETED|n1|None|x\n"]
    for text in ("".join(rows), "".join(reversed(rows))):
        assert [job.state for job in SLURM().statuses(CommandResult(0, text))] == ["ended"]
    (job,) = SLURM().statuses(CommandResult(0, rows[0]))
    assert (job.state, job.reason) == ("running", "another cluster of the federation has it")


def test_of_several_runs_the_last_counts_and_of_several_components_the_first() -> None:
    requeued = "7|NODE_FAIL|0:0|2026-11-20T19:37:40|n1|x\n7|COMPLETED|0:0|2026-11-20T19:47:40|n2|x\n"
    (job,) = _of_sacct(requeued)
    assert (job.nodes, job.succeeded) == ("n2", True)
    components = ["8+0|FAILED|1:0|Unknown|n1|x\n", "8+1|COMPLETED|0:0|Unknown|n2|x\n"]
    for text in ("".join(components), "".join(reversed(components))):
        (job,) = _of_sacct(text)
        assert (job.exit_code, job.nodes) == (1, "n1")


def test_accounts_with_gaps() -> None:
    job, other = _of_sacct(
        "7|FAILED||Unknown|None assigned|x\n7.extern|CANCELLED||Unknown|n1|extern\n"
        "7.batch|OUT_OF_MEMORY||Unknown|n1|batch\nnonsense|with|pipes\n8|TIMEOUT|0:0||(null)|y\n"
    )
    assert (job.cause, job.exit_code, job.nodes) == ("out_of_memory", None, None)
    assert (other.cause, other.exit_code, other.nodes) == ("time_limit", None, None)


def test_a_step_belongs_to_the_job_of_its_cluster() -> None:
    text = "far|7|FAILED|1:0|Unknown|n1|x\nnear|7|FAILED|1:0|Unknown|n1|x\nnear|7.0|OUT_OF_MEMORY|0:125|Unknown|n1|s\n"
    assert {job.id: job.cause for job in _of_sacct(text)} == {"7;far": "error", "7;near": "out_of_memory"}


TACC = """
-----------------------------------------------------------------
          Welcome to the Stampede3 Supercomputer
-----------------------------------------------------------------

No reservation for this job
--> Verifying valid submit host (login4)...OK
--> Verifying that quota for filesystem /work2/02661/me/stampede3 is at  0.00% allocated...OK
"""


@pytest.mark.parametrize(
    ("stdout", "stderr", "id"),
    [
        (f"{TACC}Submitted batch job 519605\n", "", "519605"),
        (f"{TACC}519605\n", "", "519605"),
        ("Submitted batch job 60060368 on cluster slaking\n", "", "60060368;slaking"),
        ("75168975;cluster_1\n", "", "75168975;cluster_1"),
        ("7787232\n", "sbatch: no partition specified, using default partition m100_all_serial\n", "7787232"),
        ("7\n", "sbatch: lua: your job was moved to 2 nodes\nsbatch: error: this is only a warning\n", "7"),
    ],
)
def test_submissions_with_other_text_around(stdout: str, stderr: str, id: str) -> None:
    assert SLURM().submitted(CommandResult(0, stdout, stderr)) == id


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("limit", "Unable to create job record, try again"),
        ("limit", "MaxJobCount limit reached"),
        ("limit", "System submissions disabled"),
        ("limit", "Requested operation is presently disabled"),
        ("limit", "Licenses currently unavailable"),
        ("limit", "Requested reservation not usable now"),
        ("limit", "Required node not available (down, drained or reserved)"),
        ("limit", "Requested nodes are busy"),
        ("limit", "Partition in DOWN state"),
        ("limit", "Requested partition configuration not available now"),
        ("limit", "Requested account has breached requested QOS usage threshold"),
        ("transient", "Unexpected message received"),
        ("transient", "Message receive failure"),
        ("transient", "Communication connection failure"),
        ("transient", "Rate limit exceeded, please retry later"),
        ("transient", "Invalid authentication credential"),
        ("transient", "Error generating job credential"),
        ("transient", "I/O error writing script/environment to file"),
        ("transient", "Controller is in standby mode, try a different controller"),
        ("transient", "Incompatible versions of client and server code"),
        ("transient", "Unable to connect to database"),
        ("transient", "Unable to resolve user ID to user name"),
        ("transient", "Job locked by another sibling"),
        ("permanent", "Unspecified error"),
        ("permanent", "Invalid job array specification"),
        ("permanent", "Requested node configuration is not available"),
        ("permanent", "More processors requested than permitted"),
        ("permanent", "Invalid or unknown association"),
    ],
)
def test_refusals_of_all_versions(kind: str, words: str) -> None:
    with pytest.raises(SubmitError) as caught:
        SLURM().submitted(CommandResult(1, "", f"sbatch: error: Batch job submission failed: {words}\n"))
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("limit", "AssocGrpSubmitJobsLimit"),
        ("limit", "AssocMaxSubmitJobLimit"),
        ("limit", "QOSMaxSubmitJobPerUserLimit"),
        ("limit", "QOSMaxSubmitJobPerAccountLimit"),
        ("permanent", "AssocMaxWallDurationPerJobLimit"),
        ("permanent", "QOSMaxCpuPerUserLimit"),
        ("permanent", "QOSMinGRES"),
        ("permanent", "QOSMaxLicensePerJob"),
    ],
)
def test_limits_of_accounts(kind: str, code: str) -> None:
    policy = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
    with pytest.raises(SubmitError) as caught:
        SLURM().submitted(
            CommandResult(1, "", f"sbatch: error: {code}\nsbatch: error: Batch job submission failed: {policy}\n")
        )
    assert caught.value.kind == kind


def test_a_configuration_that_cannot_be_read_now() -> None:
    for words in (
        "error: fetch_config: DNS SRV lookup failed\nsbatch: fatal: Could not establish a configuration source\n",
        "error: Invalid user for SlurmUser slurm, ignored\nsbatch: fatal: Unable to process configuration file\n",
    ):
        with pytest.raises(SubmitError) as caught:
            SLURM().submitted(CommandResult(1, "", words))
        assert caught.value.kind == "transient"


def test_accounting_that_is_down() -> None:
    words = (
        "sacct: error: slurm_persist_conn_open_without_init: failed to open persistent connection to host:slurm:6819: "
        "Connection refused\nsacct: error: Sending PersistInit msg: Connection refused\n"
        "sacct: error: Problem talking to the database: Connection refused\n"
    )
    with pytest.raises(CouldNotAsk, match="persistent connection"):
        SLURM().accounted(CommandResult(1, "", words))


def test_jobs_that_newer_versions_do_not_find_to_cancel() -> None:
    words = "scancel: error: No active jobs match ALL job filters, including: user_name=hpc\n"
    SLURM().cancelled(CommandResult(1, "", words))


def test_memory_in_mib_where_the_site_counts_in_gib() -> None:
    # slurm.conf(5), "default_gbytes": a number without a unit is in GiB there.
    profile = Profile(memory=MemoryDialect(unit="M"))
    assert SLURM().directives(BatchJobRequest(mem=4097), profile) == ["--mem=4097M"]
    assert SLURM().directives(BatchJobRequest(mem=4097), Profile()) == ["--mem=4097"]


def test_what_slurmstepd_has_killed_without_cgroups_was_out_of_memory() -> None:
    """Slurm 25.11.7 with OverMemoryKill, in the columns that are asked for."""
    text = "6|FAILED|0:9|2026-11-24T19:23:16|n1||200M|x\n6.batch|CANCELLED by 0|0:9|2026-11-24T19:23:16|n1|{}||batch\n"
    for used, cause in (("322M", "out_of_memory"), ("329724K", "out_of_memory"), ("150M", "error"), ("", "error")):
        [job] = SLURM().accounted(CommandResult(0, text.format(used)))
        assert (job.cause, job.exit_code, job.name) == (cause, 137, "x")
    [failed] = SLURM().accounted(CommandResult(0, text.format("322M").replace("FAILED|0:9", "FAILED|1:0")))
    assert failed.cause == "error"
    log = (FOLDER / "slurm/overmemorykill-25.11.7.txt").read_text()
    assert SLURM().wording.memory is not None
    assert len(SLURM().wording.memory.findall(log)) == 2


@pytest.mark.parametrize(
    ("reason", "cause", "never"),
    [
        ("DependencyNeverSatisfied", "error", False),
        ("PartitionTimeLimit", None, True),
        ("Dependency", None, False),
        ("Resources", None, False),
    ],
)
def test_what_can_never_start(reason: str, cause: str | None, never: bool) -> None:
    [waits] = SLURM().statuses(CommandResult(0, f"44|PENDING||{reason}|lading-4342ed6c\n"))
    assert (waits.cause, waits.never) == (cause, never)
    [ended] = SLURM().statuses(CommandResult(0, f"44|CANCELLED||{reason}|lading-4342ed6c\n"))
    assert (ended.cause, ended.never) == ("cancelled", False)


def _sections(name: str) -> dict[str, list[str]]:
    """The lines of a recording by what was tried."""
    parts = (FOLDER / f"{name}.txt").read_text().split("$ ")[1:]
    return {lines[0]: lines[1:] for part in parts if (lines := part.splitlines())}


def _queued(lines: list[str]) -> list[tuple[str, int | None, str, str | None, str | None]]:
    """What the rows of squeue among some lines say: id, index, state, cause, reason."""
    rows = "".join(f"{line}\n" for line in lines if line.count("|") == 4)
    return [(job.id, job.index, job.state, job.cause, job.reason) for job in SLURM().statuses(CommandResult(0, rows))]


def _accounted(lines: list[str]) -> list[tuple[str, int | None, str, str | None, int | None]]:
    """The same of the rows of sacct: id, index, state, cause, exit code."""
    rows = "".join(f"{line}\n" for line in lines if line.count("|") == 5)
    return [
        (job.id, job.index, job.state, job.cause, job.exit_code) for job in SLURM().accounted(CommandResult(0, rows))
    ]


def test_a_job_of_several_components_is_one() -> None:
    lines = _sections("slurm/formats-25.11.7")["hetjob"]
    waits, resources = _queued(lines[1:4])
    assert waits[:4] == ("44", None, "ended", "cancelled")
    assert resources == ("50", None, "pending", None, "it waits for resources to become free (Resources)")
    assert [job[:4] for job in _queued(lines[4:])] == [
        ("49", None, "ended", "cancelled"),
        ("50", None, "ended", "cancelled"),
    ]
    assert _accounted(lines) == [("50", None, "ended", "cancelled", None)]


def test_elements_that_run_beside_those_that_wait() -> None:
    lines = _sections("slurm/formats-25.11.7")["array"]
    assert [job[:3] for job in _queued(lines)] == [("52", 1, "running"), ("52", 2, "running"), ("49", None, "ended")]
    found = {index: state for id, index, state, *_ in _accounted(lines) if id == "52"}
    assert found == {2: "running", **dict.fromkeys(range(3, 61), "pending")}


def test_a_job_that_was_requeued_and_is_held_has_not_ended() -> None:
    lines = _sections("slurm/formats-25.11.7")["requeue hold"]
    assert _queued(lines) == [("55", None, "pending", None, "it was requeued and is held (job requeued in held state)")]
    assert _accounted(lines) == [("55", None, "pending", None, None)], "its last run counts"


def test_a_job_whose_nodes_are_drained_waits() -> None:
    sections = _sections("slurm/formats-25.11.7")
    *nodes, waits = sections["drain, reboot, sinfo"]
    [(id, _, state, cause, reason)] = _queued([waits])
    assert (id, state, cause) == ("56", "pending", None)
    assert str(reason).startswith("Nodes required for job are DOWN, DRAINED or reserved")
    assert SLURM().survey is not None
    for lines in (nodes, sections["exclusive"][1:]):
        there = SLURM().survey.inventory(CommandResult(0, "".join(f"{line}\n" for line in lines)))
        assert there.queues == ["batch", "off", "short"]
        assert there.count_nodes(["batch"]) == (1, 0)


def test_refusals_of_newer_versions_are_for_good() -> None:
    lines = _sections("slurm/formats-25.11.7")["unknown"]
    SLURM().wording.check_asked(CommandResult(1, "", f"{lines[0]}\n"))
    with pytest.raises(CouldNotAsk):
        SLURM().statuses(CommandResult(0, "", f"{lines[1]}\n"))
    refusals = [line for line in lines if line.startswith("sbatch: ")]
    assert len(refusals) == 5
    for line in refusals:
        with pytest.raises(SubmitError) as caught:
            SLURM().submitted(CommandResult(1, "", f"{line}\n"))
        assert caught.value.kind == "permanent", line


def test_a_job_that_a_signal_has_ended() -> None:
    lines = _sections("slurm/formats-25.11.7")["signals"]
    assert _accounted(lines) == [("58", None, "ended", "error", 137)]


def test_jobs_that_a_node_could_not_start() -> None:
    """As 22.05.8 shows them whose prolog has failed; the first may not be requeued."""
    jobs = {(job.id, job.index): job for job in SLURM().statuses(recorded("slurm/queue_launch_failed"))}
    found = {key: (job.state, job.cause, job.never) for key, job in jobs.items()}
    held = "pending", "node_failure", False
    assert found == {
        ("1", None): ("ended", "cancelled", False),
        ("2", None): held,
        ("3", 1): held,
        ("3", 2): held,
        ("5", None): ("ended", None, False),
        ("6", None): ("pending", None, False),
        ("7", None): ("pending", None, True),
    }
    assert jobs["2", None].reason == "it could not be launched, and is held (launch failed requeued held)"
    accounts = {(job.id, job.index): job for job in SLURM().accounted(recorded("slurm/accounts_launch_failed"))}
    assert (accounts["1", None].cause, accounts["1", None].nodes) == ("node_failure", "n1")
    assert accounts["3", 2].cause == "cancelled", "by its user"
    (cancelled,) = _of_sacct("9|CANCELLED by 0|0:0|Unknown|n1|x\n9.batch|CANCELLED|0:15|Unknown|n1|batch\n")
    assert cancelled.cause == "cancelled", "while its script ran"


def test_a_reason_is_shown_as_slurm_says_it() -> None:
    for reason in ("ReqNodeNotAvail, UnavailableNodes:node_1", "what_nobody_knows yet"):
        assert str(explain_reason(reason)).removesuffix(")").endswith(reason)
    assert explain_reason("(null)") is explain_reason("None") is explain_reason(" ") is None


@pytest.mark.parametrize("end", ["", "12", "1|RUNNING|n1|None|start=N/A|lad", "1|RUN"])
def test_an_answer_that_is_cut_says_nothing_of_what_it_lacks(end: str) -> None:
    titles = "JOBID|STATE|NODELIST|REASON|start=START_TIME|NAME\n"
    answer = CommandResult(0, f"{titles}7|RUNNING|n1|None|start=N/A|lading-7\n{end}")
    found = StatusQuery(SLURM(), "hpc", ["1", "7", "12", "123"]).read(answer)
    assert found.get(("7", None), "lading-7") is not None
    missing = [id for id in ("1", "12", "123") if found.get((id, None), "lading-8") is None]
    assert [id for id in missing if found.is_silent((id, None))] == (missing if end else [])
    assert found.is_whole == (not end)
    assert "1" not in missing or not end.startswith("1|RUNNING"), "only its name is cut"
