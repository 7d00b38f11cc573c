# ruff: noqa: RUF012  -- the suite declares them as class variables
"""The suite for third parties' batch systems, run for the built-in ones, with recorded answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from xml.sax.saxutils import escape

import pytest

from lading.hooks.batch.inventory import Inventory, Nodes
from lading.hooks.batch.lsf.system import LSF
from lading.hooks.batch.pbs.pbspro import PBSPro
from lading.hooks.batch.pbs.torque import TORQUE
from lading.hooks.batch.sge.system import SGE
from lading.hooks.batch.slurm.system import SLURM
from lading.hooks.batch.system import BatchJobRequest, CouldNotAsk, MemoryDialect, Profile, SubmitError
from lading.hooks.conformance import Conformance
from lading.hooks.ssh.answer import CommandResult
from tests.recordings import FOLDER, recorded


def _running(id: str, **more: object) -> dict[str, object]:
    return {"id": id, "state": "running", "cause": None, "exit_code": None, **more}


def _pending(id: str, **more: object) -> dict[str, object]:
    return {"id": id, "state": "pending", "exit_code": None, **more}


def _ended(id: str, cause: str | None, exit_code: int | None, **more: object) -> dict[str, object]:
    return {"id": id, "state": "ended", "cause": cause, "exit_code": exit_code, **more}


def _slurm_listing(jobs: Sequence[tuple[int, str]]) -> CommandResult:
    return CommandResult(0, "".join(f"{number}|RUNNING|n1|None|{name}\n" for number, name in jobs))


def _titled(answer: CommandResult) -> CommandResult:
    """What was recorded without the titles of its columns, with them."""
    return replace(answer, stdout=f"JOBID|STATE|NODELIST|REASON|NAME\n{answer.stdout}")


class TestSLURM(Conformance):
    system = SLURM()
    surveyed = [
        (
            recorded("slurm/nodes"),
            Inventory(
                [Nodes(8, 16000, "batch", 4, 1), Nodes(8, 16000, "short", 2, 0)],
                ["batch", "short"],
                "batch",
                {"batch": 4, "short": 2},
                {"batch": 86400, "short": 300},
            ),
        )
    ]
    accepted = [
        (recorded("slurm/submitted"), "1"),
        (recorded("slurm/submitted_array"), "6"),
        (CommandResult(0, "4559;far\n"), "4559;far"),
        (CommandResult(0, "Submitted batch job 4559\n"), "4559"),
        (CommandResult(0, "sbatch: a word of the filter\n77\n"), "77"),
    ]
    refused = [
        *((recorded(f"slurm/refused_{what}"), "limit") for what in ("limit", "drained")),
        *(
            (recorded(f"slurm/refused_{what}"), "permanent")
            for what in ("partition", "memory", "option", "account", "array", "qos")
        ),
        (recorded("slurm/refused_unreachable"), "transient"),
        *(
            (CommandResult(1, "", f"sbatch: error: Batch job submission failed: {words}\n"), kind)
            for words, kind in (
                ("Socket timed out on send/recv operation", "transient"),
                ("Unable to contact slurm controller (connect failure)", "transient"),
                ("Zero Bytes were transmitted or received", "transient"),
                ("Resource temporarily unavailable", "transient"),
                ("Slurm controller not responding, sleeping and retrying", "transient"),
                ("Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)", "limit"),
                ("Required partition not available (inactive or drain)", "limit"),
                ("Invalid job dependency", "permanent"),
                ("Access/permission denied", "permanent"),
                ("Requested time limit is invalid (missing or exceeds some limit)", "permanent"),
            )
        ),
        (
            CommandResult(1, "", "sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Job violates policy"),
            "limit",
        ),
        (
            CommandResult(
                1,
                "",
                "sbatch: error: QOSMaxWallDurationPerJobLimit\nsbatch: error: Batch job submission failed: "
                "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)\n",
            ),
            "permanent",
        ),
    ]
    queues = [
        (
            recorded("slurm/queue"),
            [
                _running("1", name="timeout.sh", nodes="n1"),
                _running("2"),
                _ended("3", "error", None),
                _ended("4", "error", None),
                _ended("5", None, 0, name='a|b "c" é <&> [3]'),
                _ended("6", None, 0, index=0, name="arr.sh"),
                _ended("6", "error", None, index=1),
                *(_running("6", index=index) for index in (2, 3, 4)),
                _pending("6", index=5),
                _pending("7", reason="the user holds it (JobHeldUser)"),
                _pending("8"),
                _pending("9"),
                _ended("10", "error", None),
                _running("11"),
            ],
        ),
        (
            CommandResult(0, "CLUSTER: far\n5_[1-3%2]|PENDING||Priority|x\nCLUSTER: near\n6|RUNNING|n1|None|y\n"),
            [*(_pending("5;far", index=index) for index in (1, 2, 3)), _running("6;near")],
        ),
        (
            CommandResult(0, "7+0|RUNNING|n1|None|het\n7+1|RUNNING|n2|None|het\n8|CANCELLED by 0|n1|None|x\n"),
            [_running("7", nodes="n1"), _ended("8", "cancelled", None)],
        ),
    ]
    accounts = [
        (
            recorded("slurm/accounts"),
            [
                _ended("1", "time_limit", None, nodes="n1"),
                _ended("2", "node_failure", None),
                _ended("3", "error", 7),
                _ended("4", "error", 137),
                _ended("5", None, 0),
                _ended("6", None, 0, index=0),
                _ended("6", "error", 3, index=1),
                *(_running("6", index=index) for index in (2, 3)),
                _ended("6", "cancelled", None, index=4),
                _running("6", index=5),
                _pending("7"),
                _pending("8"),
                _pending("9"),
                _ended("10", "error", None),
                _ended("11", "cancelled", None),
            ],
        ),
        (
            CommandResult(
                0,
                "far|21|FAILED|1:0|2026-11-20T19:37:40|n1|step\nfar|21.0|OUT_OF_MEMORY|0:125|Unknown|n1|s\n"
                "22|OUT_OF_MEMORY|0:125|2026-11-20T19:37:40|n1|oom\n23|COMPLETED|0:0|2026-11-20T19:37:40|n1|fine\n"
                "23.0|OUT_OF_MEMORY|0:125|2026-11-20T19:37:40|n1|s\n24|CANCELLED by 1001|0:0|Unknown|None assigned|c\n"
                "25|PREEMPTED|0:15|Unknown|n1|p\n26|BOOT_FAIL|0:0|Unknown|n1|b\n27|DEADLINE|0:0|Unknown|n1|d\n",
            ),
            [
                _ended("21;far", "out_of_memory", 1),
                _ended("22", "out_of_memory", None),
                _ended("23", None, 0),
                _ended("24", "cancelled", None, nodes=None),
                _ended("25", "preempted", 143),
                _ended("26", "node_failure", None),
                _ended("27", "time_limit", None),
            ],
        ),
    ]
    questions = [
        (
            ["1;lading", "2;lading", "3;lading", "1"],
            recorded("slurm/queue_clusters"),
            {"1;lading": "running", "2;lading": "pending", "3;lading": "unknown", "1": None},
        ),
        (
            ["1", "5", "6", "7", "99"],
            _titled(recorded("slurm/queue")),
            {"1": "running", "5": "ended", "6": "pending", "7": "pending", "99": "unknown"},
        ),
        (["1", "5", "99"], recorded("slurm/queue"), {"1": "running", "5": "ended", "99": None}),
        (["1", "2;far"], _titled(CommandResult(0, "1|RUNNING|n1|None|x\n")), {"1": "running", "2;far": None}),
        (["1", "2"], recorded("slurm/queue_empty"), {"1": "unknown", "2": "unknown"}),
    ]
    nothing = [
        recorded("slurm/queue_empty"),
        recorded("slurm/queue_unknown"),
        CommandResult(0, "CLUSTER: far\nJOBID|STATE|NODELIST|REASON|NAME\n"),
    ]
    unreachable = [
        recorded("slurm/queue_unreachable"),
        CommandResult(0),
        CommandResult(0, "CLUSTER: far\n"),
        CommandResult(0, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"),
        recorded("slurm/queue_nobody"),
        CommandResult(1, "", "slurm_load_jobs error: Socket timed out on send/recv operation\n"),
        CommandResult(
            1, "", "slurm_load_jobs error: Invalid job id specified\nslurm_load_jobs error: Socket timed out\n"
        ),
    ]
    strange = CommandResult(0, "9|HIBERNATING|n1|None|x\n")
    hopeless = [CommandResult(0, "44|PENDING||DependencyNeverSatisfied|a\n")]
    not_launched = [
        CommandResult(0, f"44|{state}||{reason}|a\n")
        for state, reason in (
            ("PENDING", "launch failed requeued held"),
            ("PENDING", "launch_failed_requeued_held"),
            ("REQUEUE_HOLD", "(launch failed requeued held)"),
            ("PENDING", "user env retrieval failed requeued held"),
            ("PENDING", "UserEnv retrieval failed, requeued held"),
            ("PENDING", "JobHoldMaxRequeue"),
        )
    ]
    never = [
        *(CommandResult(0, f"44|PENDING||{reason}|a\n") for reason in ("PartitionTimeLimit", "BadConstraints")),
        CommandResult(0, "44|PENDING||job requeued in special exit state|a\n"),
        CommandResult(0, "44|SPECIAL_EXIT||job requeued in held state|a\n"),
    ]
    killed_for_memory = [(FOLDER / "slurm/overmemorykill-25.11.7.txt").read_text().partition("batch.log")[2]]
    cancelled = [
        recorded("slurm/cancelled"),
        recorded("slurm/cancelled_gone"),
        CommandResult(1, "", "scancel: error: Kill job error on job id 9: Invalid job id specified\n"),
    ]
    not_cancelled = [
        recorded("slurm/cancel_unreachable"),
        CommandResult(1, "", "scancel: error: Kill job error on job id 9: Access/permission denied\n"),
    ]
    conflicts = [
        (BatchJobRequest(nodes=2), "nodes", "3"),
        (BatchJobRequest(nodes=2), "N", "3"),
        (BatchJobRequest(time=60), "t", "3"),
        (BatchJobRequest(mem=60), "mem-per-cpu", "3"),
        (BatchJobRequest(queue="q"), "partition", "x"),
    ]
    listing = staticmethod(_slurm_listing)


def _dsv(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", "\\n")


def _dsv_listing(jobs: Sequence[tuple[int, str]]) -> CommandResult:
    lines = [f"Job Id: {number}.pbs1|Job_Name={_dsv(name)}|job_state=R|queue=workq\n" for number, name in jobs]
    return CommandResult(0, "".join(lines))


def _one_pbs(**attributes: object) -> CommandResult:
    fields = [f"{name.replace('__', '.')}={value}" for name, value in {"job_state": "F", **attributes}.items()]
    return CommandResult(0, "|".join(["Job Id: 9.pbs1", *fields]) + "\n")


_USED = {"resources_used__walltime": "00:01:02", "resources_used__mem": "1000000kb"}
PBS_REFUSALS = [
    ("qsub: cannot connect to server pbs1 (errno=15010)\n", "transient"),
    (
        "pbs_iff: cannot connect to host\nNo Permission.\nqsub: cannot connect to server pbs1 (errno=15007)\n",
        "transient",
    ),
    ("Connection refused\nqsub: cannot connect to server pbs1 (errno=15010)\n", "transient"),
    ("qsub: would exceed queue generic's per-user limit of jobs in 'Q' state\n", "limit"),
    ("qsub: would exceed queue generic's per-user limit\n", "limit"),
    ("qsub: Maximum number of jobs already in queue\n", "limit"),
    ("qsub: would exceed limit on resource ncpus in queue workq for user hpc\n", "limit"),
    ("qsub: Queue is not enabled\n", "limit"),
    ("qsub: Unknown queue\n", "permanent"),
    ("qsub: Unknown resource type: nonsense\n", "permanent"),
    ("qsub: Job violates queue and/or server resource limits\n", "permanent"),
    ("qsub: Unauthorized Request\n", "permanent"),
    ("qsub: illegal -N value\nusage: qsub [-a date_time] [-A account_string] [-c interval]\n", "permanent"),
    ("qsub: Job name is too long \n", "permanent"),
    ("qsub: Illegal attribute or resource value Resource_List.select\n", "permanent"),
    ("qsub: Unknown resource Resource_List.nosuch\n", "permanent"),
    ("qsub: cannot send environment with the job\n", "permanent"),
    ("qsub: Failed to recv data from background qsub\n", "transient"),
    ("qsub: Failed to save job/resv, refer server logs for details\n", "transient"),
    ("qsub: Server connection table full\n", "transient"),
    ("qsub: Expired credential\n", "transient"),
    ("qsub: Maximum number of jobs in 'Q' state for user hpc already in complex\n", "limit"),
    ("qsub: would exceed user hpc's limit on resource ncpus in complex for jobs in 'Q' state\n", "limit"),
    ("qsub: Array job exceeds server or queue size limit\n", "limit"),
    ("qsub: Floating License unavailable\n", "limit"),
    ("qsub: You have reached the limit of 100 queued jobs\n", "limit"),
    ("qsub: walltime limit exceeded: the queue allows 24:00:00\n", "permanent"),
    ("qsub: Resource limit exceeds allowable\n", "permanent"),
    ("qsub: hook error: request rejected as filter hook 'submit' encountered an exception\n", "permanent"),
    ("qsub: Job rejected by all possible destinations\n", "permanent"),
]


class TestPBSPro(Conformance):
    system = PBSPro()
    surveyed = [
        (
            recorded("pbspro/nodes"),
            Inventory([Nodes(2, 24105, idle=0), Nodes(8, 16384, idle=0), Nodes(8, 16384, idle=1)], ["workq"], "workq"),
        )
    ]
    accepted = [
        (CommandResult(0, "8.pbs1\n"), "8.pbs1"),
        (CommandResult(0, "536[].pbs1\n"), "536[].pbs1"),
        (CommandResult(0, "12345.login-1.cluster.example.org\n"), "12345.login-1.cluster.example.org"),
    ]
    refused = [(CommandResult(170, "", words), kind) for words, kind in PBS_REFUSALS]
    queues = [
        (
            recorded("pbspro/queue"),
            [
                _ended("12[].pbs1", None, 0, index=0),
                _ended("12[].pbs1", "error", 1, index=1),
                _ended("12[].pbs1", "error", 2, index=2, name="arrf"),
                _ended("11[].pbs1", None, 0, index=0, nodes="pbs1/3"),
                _ended("11[].pbs1", "error", 3, index=1, name="arr"),
                *(_running("11[].pbs1", index=index) for index in (2, 3)),
                _pending("11[].pbs1", index=4, name="arr", cause=None, reason=None),
                _ended("3.pbs1", "error", 3),
                _running("1.pbs1", nodes="pbs1/1"),
            ],
        ),
        (
            recorded("pbspro/ended"),
            [
                _ended("0.pbs1", "time_limit", None, name="tlimit"),
                _ended("3.pbs1", "error", 3),
                _ended("4.pbs1", "error", 137),
                _ended("5.pbs1", "error", 143),
                _ended("9.pbs1", "cancelled", None),
                _ended("10.pbs1", "cancelled", 143),
            ],
        ),
        (
            recorded("pbspro/deleted_elements"),
            [
                _ended("11[].pbs1", "cancelled", 143, index=3),
                _ended("11[].pbs1", "cancelled", None, index=4),
            ],
        ),
        (recorded("pbspro/arrays"), [_ended("12[].pbs1", None, None)]),
        (
            recorded("pbspro/waiting"),
            [
                _pending("6.pbs1", reason="the user holds it"),
                _pending(
                    "7.pbs1", reason="Not Running: Insufficient amount of resource: ncpus (R: 8 A: 5 T: 8)", cause=None
                ),
                _pending("8.pbs1"),
            ],
        ),
        (recorded("pbspro/forged"), [_pending("48.pbs1", name="inject", reason="the user holds it")]),
        (recorded("pbspro/environment"), [_pending("15.pbs1", name="envV", reason="the user holds it")]),
        *(
            (_one_pbs(**{"stime": "Fri Nov 20 19:37:05 2026", **attributes}), [_ended("9.pbs1", cause, code)])
            for attributes, cause, code in (
                ({"Exit_status": 0}, None, 0),
                ({"Exit_status": 3}, "error", 3),
                ({"Exit_status": 265}, "error", 137),
                ({"Exit_status": 137}, "error", 137),
                ({"Exit_status": 271}, "cancelled", 143),
                ({"Exit_status": 265, "substate": 91}, "cancelled", 137),
                ({"Exit_status": 0, "substate": 91}, "cancelled", 0),
                ({"Exit_status": -29}, "time_limit", None),
                ({"Exit_status": -28}, "time_limit", None),
                ({"Exit_status": -27}, "out_of_memory", None),
                ({"Exit_status": -20}, "node_failure", None),
                ({"Exit_status": -25}, "error", None),
                ({"Exit_status": -31}, "out_of_memory", None),
                ({"Exit_status": -32}, "node_failure", None),
                ({"Exit_status": -1}, "error", None),
                ({"Exit_status": 271, **_USED, "Resource_List__walltime": "00:01:00"}, "time_limit", 143),
                ({"Exit_status": 265, **_USED, "Resource_List__mem": "1gb"}, "error", 137),
                ({"Exit_status": 265, **_USED, "Resource_List__mem": "970mb"}, "out_of_memory", 137),
                ({"substate": 91}, "cancelled", None),
                ({}, None, None),
            )
        ),
        # What it depended on has failed: it never ran.
        (_one_pbs(substate=92), [_ended("9.pbs1", "cancelled", None)]),
        (_one_pbs(job_state="M"), [_running("9.pbs1")]),
    ]
    questions = [
        (
            ["12[].pbs1", "11[].pbs1", "3.pbs1", "1.pbs1", "9999.pbs1", "7.pbs1"],
            recorded("pbspro/queue"),
            {
                "12[].pbs1": "ended",
                "11[].pbs1": "running",
                "3.pbs1": "ended",
                "1.pbs1": "running",
                "9999.pbs1": "unknown",
                "7.pbs1": None,
            },
        ),
    ]
    nothing = [
        recorded("pbspro/unknown"),
        recorded("pbspro/finished"),
        CommandResult(0, "no jobs\n"),
    ]
    unreachable = [
        recorded("pbspro/unreachable"),
        recorded("pbspro/no_history"),
        CommandResult(1, "", "qstat: Unknown Job Id 99.pbs1\nqstat: cannot connect to server pbs1 (errno=15010)\n"),
        CommandResult(0, ""),
        *(recorded(f"pbspro/{form}") for form in ("plain", "json")),
    ]
    strange = _one_pbs(job_state="Y", Exit_status=0)
    never = [
        CommandResult(
            0,
            "Job Id: 7.pbs1|Job_Name=x|job_state=Q|"
            "comment=Can Never Run: Insufficient amount of resource: ncpus (R: 64 A: 8 T: 8)\n",
        )
    ]
    cancelled = [
        CommandResult(0),
        CommandResult(35, "", "qdel: Job has finished 8.pbs1\n"),
        CommandResult(153, "", "qdel: Unknown Job Id 9\n"),
        CommandResult(35, "", "qdel: Job has finished 2.pbs1\nqdel: Job has finished 3.pbs1\n"),
        CommandResult(153, "", "qdel: Unknown Job Id 9999[1].pbs1\n"),
        CommandResult(97, "", "qdel: Delete already in progress 12.pbs1\n"),
        CommandResult(1, "", "qdel: Request invalid for finished array subjob 8[1].pbs1\n"),
    ]
    not_cancelled = [
        CommandResult(162, "", "Connection refused\nCouldn't connect to cluster: pbs1\n"),
        CommandResult(1, "", "qdel: illegally formed job identifier: abc\n"),
        CommandResult(159, "", "qdel: Unauthorized Request  8.pbs1\n"),
        CommandResult(1, "", "qdel: Unknown Job Id 9.pbs1\nqdel: cannot connect to server pbs1 (errno=15010)\n"),
    ]
    conflicts = [
        (BatchJobRequest(nodes=2), "select", "3"),
        (BatchJobRequest(nodes=2), "l", "place=scatter,nodes=3"),
        (BatchJobRequest(nodes=2), "ncpus", "3"),
        (BatchJobRequest(time=60), "walltime", "3"),
        (BatchJobRequest(jobname="a"), "N", "x"),
    ]
    listing = staticmethod(_dsv_listing)


def _torque(*jobs: str) -> str:
    return f'<?xml version="1.0"?>\n<Data>{"".join(f"<Job>{job}</Job>" for job in jobs)}</Data>\n'


def _as_xml(name: str) -> CommandResult:
    """What ``qstat -x`` says of the jobs that a recording has from ``qstat -f``."""
    answer = recorded(name)
    jobs = []
    for section in re.split("^Job Id: ", answer.stdout, flags=re.MULTILINE)[1:]:
        id, _, rest = section.partition("\n")
        groups: dict[str, str] = {}
        for key, value in re.findall(r"^    ([\w.]+) = (.*)$", rest, re.MULTILINE):
            group, _, part = key.partition(".")
            text = escape(value.strip())
            groups[group] = groups.get(group, "") + (f"<{part}>{text}</{part}>" if part else text)
        body = "".join(f"<{key}>{value}</{key}>" for key, value in groups.items())
        jobs.append(_torque(f"<Job_Id>{id}</Job_Id>{body}"))
    return CommandResult(answer.status, "".join(jobs), answer.stderr)


def _one_torque(attributes: str) -> CommandResult:
    return CommandResult(0, _torque(f"<Job_Id>9.tq1</Job_Id><Job_Name>x</Job_Name>{attributes}"))


def _torque_listing(jobs: Sequence[tuple[int, str]]) -> CommandResult:
    return CommandResult(
        0,
        "".join(
            _torque(f"<Job_Id>{number}.tq1</Job_Id><Job_Name>{escape(name)}</Job_Name><job_state>R</job_state>")
            for number, name in jobs
        ),
    )


class TestTORQUE(Conformance):
    system = TORQUE()
    surveyed = [(recorded("torque/nodes"), Inventory([Nodes(8, 24105, idle=0)], ["batch"], "batch", {"batch": 1}))]
    accepted = [(CommandResult(0, "1.tq1\n"), "1.tq1"), (CommandResult(0, "1[].tq1\n"), "1[].tq1")]
    refused = [
        *((CommandResult(172, "", words), kind) for words, kind in PBS_REFUSALS),
        *(
            (CommandResult(190, "", f"qsub: submit error ({words})\n"), kind)
            for words, kind in (
                (
                    "Maximum number of jobs already in queue for user MSG=total number of current user's jobs exceeds "
                    "the queue limit: user hpc@trq1, queue short",
                    "limit",
                ),
                (
                    "Job exceeds queue resource limits MSG=cannot locate feasible nodes (nodes file is empty, all "
                    "systems are busy, or no nodes have the requested feature)",
                    "limit",
                ),
                ("Queue is not enabled MSG=queue is disabled: user hpc@trq1, queue off", "limit"),
                ("Unknown queue MSG=requested queue not found", "permanent"),
                (
                    "Job exceeds queue resource limits MSG=cannot satisfy queue max walltime requirement",
                    "permanent",
                ),
                ("Unknown resource type  Resource_List.nosuch", "permanent"),
                ("Illegal attribute or resource value for Resource_List.walltime", "permanent"),
                ("Bad Job Array Request MSG=Requested array size too large, limit is 100", "limit"),
                ("Queue is currently not available", "limit"),
                ("Queue does not allow job arrays", "permanent"),
                ("Unable to get connection to socket", "transient"),
                ("Error reading data from socket", "transient"),
                ("Can not establish connection", "transient"),
                ("Too many submit retries", "transient"),
            )
        ),
        (CommandResult(1, "", "qsub:  file must be an ascii script\n"), "permanent"),
        (
            CommandResult(
                111,
                "",
                "\nUnable to communicate with trq1(10.9.9.1)\nCannot connect to specified server host 'trq1'.\n"
                "qsub: cannot connect to server trq1 (errno=111) Connection refused\n",
            ),
            "transient",
        ),
    ]
    queues = [
        (recorded("torque/element"), [_running("11[].trq1", index=2, name="arr-2", nodes="trq1/4")]),
        (
            recorded("torque/two_ids"),
            [
                _ended("28.trq1", None, 0, name='a"b'),
                _ended("29.trq1", None, 0, name="a&b<c>"),
            ],
        ),
        (recorded("torque/environment"), [_pending("34.trq1", name="envV", reason="the user holds it")]),
        (_as_xml("torque/plain_running"), [_running("3.trq1", name="run")]),
        (
            _as_xml("torque/plain_elements"),
            [
                _ended("11[].trq1", None, 0, index=0, name="arr-0"),
                _ended("11[].trq1", "error", 3, index=1, name="arr-1"),
                _running("11[].trq1", index=2),
                _ended("11[].trq1", "cancelled", 143, index=3),
                _running("11[].trq1", index=4),
            ],
        ),
        (_as_xml("torque/plain_time_limit"), [_ended("0.trq1", "time_limit", None)]),
        (_as_xml("torque/plain_three"), [_ended("5.trq1", "error", 3)]),
        (_as_xml("torque/plain_sig9"), [_ended("6.trq1", "error", 137)]),
        (_as_xml("torque/plain_sig15"), [_ended("7.trq1", "error", 143)]),
        (
            _as_xml("torque/plain_waits"),
            [_pending("13.trq1", reason="Not Running: Not enough of the right type of nodes are available")],
        ),
        (
            _one_torque("<job_state>H</job_state><Hold_Types>l</Hold_Types>"),
            [_pending("9.tq1", reason="the maximum number of elements of its array is running")],
        ),
        (
            _one_torque("<job_state>C</job_state><exit_status>-10</exit_status>"),
            [_ended("9.tq1", "out_of_memory", None)],
        ),
        (
            _one_torque("<job_state>C</job_state><exit_status>-14</exit_status>"),
            [_ended("9.tq1", "node_failure", None)],
        ),
        # It was deleted while it waited.
        (_one_torque("<job_state>C</job_state>"), [_ended("9.tq1", "cancelled", None)]),
    ]
    questions = [
        (["28.trq1", "29.trq1", "30.trq1"], recorded("torque/two_ids"), {"30.trq1": None}),
        (["9999.trq1", "3.trq1"], recorded("torque/unknown"), {"9999.trq1": "unknown", "3.trq1": None}),
    ]
    nothing = [
        recorded("torque/unknown"),
        recorded("torque/nothing"),
        CommandResult(53, "", "qstat: Unknown Array ID 11[].trq1\n"),
    ]
    unreachable = [
        recorded("torque/unreachable"),
        recorded("torque/plain_running"),
        CommandResult(0, ""),
        CommandResult(0, "Job ID    Name   User\n------ ----- ----\n1.tq1   a   hpc\n"),
    ]
    strange = _one_torque("<job_state>Z</job_state><exit_status>0</exit_status>")
    cancelled = [
        CommandResult(0),
        CommandResult(153, "", "qdel: Unknown Job Id Error 9.tq1\n"),
        CommandResult(153, "", "qdel: nonexistent job id: 9999\n"),
        CommandResult(156, "", "qdel: Invalid request MSG=job cancel in progress 9.tq1\n"),
        CommandResult(153, "", "qdel: nonexistent job id: 11[77]\n"),
        CommandResult(170, "", "qdel: Request invalid for state of job MSG=invalid state for job - COMPLETE 9.tq1\n"),
    ]
    not_cancelled = [
        CommandResult(1, "", "qdel: Unauthorized Request  MSG=operation not permitted 9.tq1\n"),
        CommandResult(224, "", "qdel: Server could not connect to MOM 3.trq1\n"),
    ]
    conflicts = [
        (BatchJobRequest(nodes=2), "l", "nodes=3:ppn=4"),
        (BatchJobRequest(nodes=2), "procs", "3"),
        (BatchJobRequest(mem=60), "l", "mem=3gb"),
        (BatchJobRequest(time=60), "walltime", "3"),
    ]
    listing = staticmethod(_torque_listing)


HEADER = "JOBID^JOBINDEX^STAT^EXIT_CODE^EXEC_HOST^EXIT_REASON^PEND_REASON^JOB_NAME\n"


def _lsf_listing(jobs: Sequence[tuple[int, str]]) -> CommandResult:
    return CommandResult(0, HEADER + "".join(f"{number}^0^RUN^-^host1^-^-^{name}\n" for number, name in jobs))


class TestLSF(Conformance):
    system = LSF()
    surveyed = [(recorded("lsf/nodes"), Inventory([Nodes(8, 24115, idle=0)], ["normal"], "normal", {"normal": 1}))]
    accepted = [
        (CommandResult(0, "Job <114> is submitted to default queue <normal>.\n"), "114"),
        (CommandResult(0, "Job <115> is submitted to queue <long>.\n"), "115"),
    ]
    refused = [
        (CommandResult(255, "", f"{words}\n"), kind)
        for words, kind in (
            ("LSF is down. Please wait ...", "transient"),
            ("batch system daemon not responding ... still trying\nlsb_submit: Connection refused", "transient"),
            ("batch system daemon not responding ... still trying", "transient"),
            ("Failed in an LSF library call: Communication time out. Job not submitted.", "transient"),
            ("User <hpc>: Pending job threshold reached. Retrying in 60 seconds...", "limit"),
            ("Job limit has been reached. Job not submitted.", "limit"),
            ("Queue has been closed. Job not submitted.", "limit"),
            ("nosuch: No such queue. Job not submitted.", "permanent"),
            ("User cannot use the queue. Job not submitted.", "permanent"),
            ("Bad resource requirement syntax. Job not submitted.", "permanent"),
            ("normal: Queue has been closed. Job not submitted.", "limit"),
            ("User <hpc>: Pending job threshold reached. Job not submitted.", "limit"),
            ("User <hpc>: Pending job slot threshold reached. Job not submitted.", "limit"),
            ("Job array index too large. Job not submitted.", "limit"),
            ("No job Id can be used now. Job not submitted.", "limit"),
            ("The destination queue has reached its job limit. Job not submitted.", "limit"),
            ("Failed in an LSF library call: External authentication failed. Job not submitted.", "transient"),
            ("Error during XDR. Job not submitted.", "transient"),
            ("Contacting batch daemon: Communication timeout. Job not submitted.", "transient"),
            ("Master batch daemon internal error. Job not submitted.", "transient"),
            ("Batch service not registered. Job not submitted.", "transient"),
            ("Request aborted by esub. Job not submitted.", "permanent"),
            ("Too many processors requested. Job not submitted.", "permanent"),
            ("abc: Bad RUNLIMIT specification. Job not submitted.", "permanent"),
            ("RUNLIMIT: Cannot exceed queue's hard limit(s). Job not submitted.", "permanent"),
            ("No command is specified. Job not submitted.", "permanent"),
            ("nosuch: Bad host name, host group name or cluster name. Job not submitted.", "permanent"),
        )
    ]
    queues = [
        (
            recorded("lsf/queue"),
            [
                _running("201", name="plain", nodes="4*host1:4*host2"),
                _pending("202", index=1, name="arr"),
                _pending("202", index=2, reason="The user has reached the limit; more to come; and more"),
                _pending("203", reason="it is held"),
                _ended("204", None, 0, name="a^b"),
                _ended("205", "error", 7),
                _ended("206", "out_of_memory", 137),
                _ended("207", "time_limit", 140),
                _ended("208", "cancelled", 130),
                _ended("209", "cancelled", None),
                _ended("210", "preempted", 130),
                _ended("211", "error", 137),
                _running("212"),
                _running("213"),
            ],
        ),
        (
            recorded("lsf/openlava_queue"),
            [
                *(_running("114", index=index, name="arr", nodes="lava1") for index in (1, 2)),
                _running("115", name="run"),
                *(_pending("114", index=index, name="arr") for index in (3, 4)),
                _pending("116", reason="it is held"),
            ],
        ),
        (
            recorded("lsf/openlava_queue_wide"),
            [
                *(_running("114", index=index) for index in (1, 2)),
                _running("115"),
                *(_pending("114", index=index, nodes=None) for index in (3, 4)),
                _pending("116", name="true"),
            ],
        ),
        (
            recorded("lsf/openlava_live"),
            [
                *(
                    _running(id, name=name, nodes="lava1")
                    for id, name in (("120", "s1"), ("122", "s2"), ("101", "limit"), ("106", "run"))
                ),
                *(_running("110", index=index, name="arr") for index in (3, 5)),
                *(_pending(id) for id in ("123", "124", "126", "109", "116", "121")),
            ],
        ),
        (
            recorded("lsf/openlava_ended"),
            [
                *(_ended(id, None, 0) for id in ("102", "104", "105", "112", "114", "115", "125", "120")),
                _ended("103", "error", None, name="three"),
                _ended("110", None, 0, index=1),
                *(_ended("110", "error", None, index=index) for index in (2, 4)),
                _ended("111", None, 0, index=1),
                *(_ended("111", "error", None, index=index, name="arrf") for index in (2, 3)),
                _ended("113", "error", None, name='a "b" <c>, d'),
                _ended("108", "cancelled", None),
                _ended("107", "error", None),
                _ended("101", "error", None),
            ],
        ),
        (recorded("lsf/openlava_one_unknown"), [_running("106"), _ended("102", None, 0)]),
    ]
    accounts = [
        *(
            (recorded(f"lsf/openlava_history_{name}"), expected)
            for name, expected in (
                ("done", [_ended("102", None, 0, name="ok")]),
                ("three", [_ended("103", "error", 3, name="three")]),
                ("self_killed", [_ended("104", None, 0)]),
                ("killed", [_ended("107", "cancelled", 130)]),
                ("killed_waiting", [_ended("108", "cancelled", None, name="killpend")]),
                ("held", []),
                ("limit", [_ended("101", "time_limit", 140)]),
                ("element", [_ended("110", "error", 3, index=2, name="arr")]),
                ("blanks", [_ended("112", None, 0, name="two words and more")]),
                ("odd_name", [_ended("113", "error", 4, name='a "b" <c>, d')]),
                ("unicode", [_ended("114", None, 0, name="größe-λ")]),
                ("one_unknown", [_ended("102", None, 0)]),
                ("unknown", []),
                (
                    "several",
                    [
                        _ended("110", "error", None, index=3),
                        *(_ended(id, "error", 137) for id in ("229", "230", "232", "233")),
                        _ended("231", "error", 139),
                    ],
                ),
            )
        ),
        (
            recorded("lsf/history"),
            [
                _ended("117", "error", 7),
                _ended("118", None, 0, name="fine one"),
                _ended("103", "time_limit", 140, index=4, name="arr"),
                _ended("119", "cancelled", 130),
                _ended("120", "cancelled", None),
                _ended("121", "out_of_memory", 137),
            ],
        ),
    ]
    questions = [
        (
            ["201", "202", "204", "999"],
            recorded("lsf/queue"),
            {"201": "running", "202": "pending", "204": "ended", "999": "unknown"},
        ),
        (["9999"], recorded("lsf/openlava_unknown"), {"9999": "unknown"}),
    ]
    nothing = [
        recorded("lsf/openlava_unknown"),
        recorded("lsf/openlava_none"),
        CommandResult(0, "", "No job found\n"),
        CommandResult(255, "", "No unfinished job found\n"),
        CommandResult(0, HEADER),
    ]
    unreachable = [
        recorded("lsf/openlava_unreachable"),
        recorded("lsf/openlava_no_columns"),
        CommandResult(0, ""),
        CommandResult(255, "", "LSF is down. Please wait ...\n"),
        CommandResult(255, "", "batch daemon not responding ... still trying\n"),
        CommandResult(255, "", "Job <9> is not found\nFailed in an LSF library call: Communication time out\n"),
    ]
    strange = CommandResult(0, f"{HEADER}9^0^FROZEN^0^host1^-^-^x\n")
    cancelled = [
        CommandResult(0, "Job <114[2]> is being terminated\n"),
        CommandResult(255, "", "Job <9>: Job has already finished\n"),
        CommandResult(255, "Job <8> is being terminated\n", "Job <9>: No matching job found\n"),
        recorded("lsf/openlava_cancelled_in_part"),
        CommandResult(255, "", "Job <110>: Operation is in progress\nJob <9>: Job has already finished\n"),
    ]
    not_cancelled = [
        CommandResult(255, "", "Job <110>: Operation is in progress\nJob <9>: User permission denied\n"),
        CommandResult(255, "", "Job <9>: User permission denied\n"),
        CommandResult(255, "", "LSF is down. Please wait ...\n"),
    ]
    conflicts = [
        (BatchJobRequest(nodes=2), "n", "3"),
        (BatchJobRequest(nodes=2), "R", "span[hosts=1]"),
        (BatchJobRequest(time=60), "W", "3"),
        (BatchJobRequest(stdout="a"), "oo", "x"),
    ]
    listing = staticmethod(_lsf_listing)


def _sge(*jobs: str) -> str:
    return (
        "<?xml version='1.0'?>\n<job_info xmlns:xsd=\"http://example.org/qstat.xsd\">\n  <queue_info>\n"
        + "".join(f"    <job_list state='running'>\n{job}\n    </job_list>\n" for job in jobs)
        + "  </queue_info>\n  <job_info>\n  </job_info>\n</job_info>\n"
    )


def _sge_listing(jobs: Sequence[tuple[int, str]]) -> CommandResult:
    return CommandResult(
        0,
        _sge(
            *(
                f"<JB_job_number>{number}</JB_job_number><JB_name>{escape(name)}</JB_name><state>r</state>"
                for number, name in jobs
            )
        ),
    )


class TestSGE(Conformance):
    system = SGE()
    surveyed = [(recorded("sge/nodes"), Inventory([Nodes(2, 24115, idle=1)], ["batch.q"]))]
    profile = Profile(
        parallel_environment="mpi", gpu_resource="gpu", memory=MemoryDialect(per="slot", resource="h_vmem")
    )
    accepted = [
        (recorded("sge/submitted"), "1"),
        (recorded("sge/submitted_array"), "6"),
        (CommandResult(0, 'Your job 139 ("a (b) c") has been submitted\n'), "139"),
        (CommandResult(0, 'Your job-array 139.1-10:2 ("arr") has been submitted\n'), "139"),
    ]
    refused = [
        *(
            (recorded(f"sge/refused_{what}"), "permanent")
            for what in ("queue", "resource", "pe", "option", "name", "tasks")
        ),
        (recorded("sge/refused_limit"), "limit"),
        (recorded("sge/refused_unreachable"), "transient"),
        (
            CommandResult(1, "", "Unable to run job: job rejected: Only 10 jobs are allowed per user (current: 10).\n"),
            "limit",
        ),
        (CommandResult(1, "", "error: commlib error: got select error (Connection refused)\n"), "transient"),
        (CommandResult(1, "", "Unable to run job: unable to send message to qmaster using port 6444\n"), "transient"),
    ]
    questions = [
        (["1", "7", "99"], recorded("sge/queue"), {"1": "running", "7": "pending", "99": "unknown"}),
        (["1", "2"], recorded("sge/queue_empty"), {"1": "unknown", "2": "unknown"}),
    ]
    nothing = [recorded("sge/queue_empty")]
    unreachable = [recorded("sge/queue_unreachable"), CommandResult(0, ""), recorded("sge/cut")]
    strange = CommandResult(0, _sge("<JB_job_number>9</JB_job_number><JB_name>x</JB_name><state>Y</state>"))
    cancelled = [
        recorded("sge/cancelled"),
        recorded("sge/cancelled_gone"),
        CommandResult(1, 'denied: job "99999" does not exist\n', ""),
        CommandResult(1, "job 140 is already in deletion\n", ""),
    ]
    not_cancelled = [
        recorded("sge/cancel_unreachable"),
        CommandResult(1, 'denied: "hpc" is not allowed to delete "root"\n'),
    ]
    conflicts = [
        (BatchJobRequest(nodes=2), "pe", "smp 3"),
        (BatchJobRequest(time=60), "h_rt", "3"),
        (BatchJobRequest(time=60), "l", "h_rt=3"),
        (BatchJobRequest(mem=60), "h_vmem", "3G"),
        (BatchJobRequest(jobname="a"), "N", "x"),
    ]
    listing = staticmethod(_sge_listing)
    queues = [
        (
            recorded("sge/collapsed"),
            [
                *(_running("139", index=index, name="arr", nodes="ge1") for index in (1, 2)),
                _running("140"),
                _pending("144", cause="error"),
                *(_pending("139", index=index) for index in (3, 4)),
                _pending("141"),
                _pending("142"),
            ],
        ),
        (
            recorded("sge/queue"),
            [
                _running("1", name="timeout.sh"),
                *(_running("6", index=index, name="arr.sh") for index in (3, 4, 5)),
                _running("10"),
                _pending("9", cause="error"),
                _pending("6", index=6),
                _pending("7"),
                _pending("8"),
            ],
        ),
        (
            recorded("sge/queue_deleted"),
            [
                _running("1"),
                *(_running("6", index=index) for index in (3, 6)),
                *(_pending(number) for number in ("7", "8", "9")),
            ],
        ),
    ]
    accounts = [
        (
            recorded("sge/accounts"),
            [
                _ended("1", "time_limit", 137),
                _ended("2", "error", 12),
                _ended("3", "error", 7, reason=None),
                _ended("4", "error", 137, reason="assumedly after job"),
                _ended("5", None, 0, name="a|b<&>"),
                _ended("6", "error", 3, index=1),
                _ended("6", None, 0, index=2),
                *(_ended("6", "error", 137, index=index) for index in (4, 5)),
                _ended("8", None, 0),
                _ended("10", "error", 137),
                _ended("11", None, 0),
            ],
        ),
        (recorded("sge/accounts_unknown"), []),
    ]


def test_a_name_that_is_cut_is_no_name() -> None:
    (job, *_) = [job for job in LSF().statuses(recorded("lsf/openlava_queue_all")) if job.id == "102"]
    assert job.name is None


def _all_answers(suite: type[Conformance]) -> list[CommandResult]:
    pairs = [*suite.accepted, *suite.refused, *suite.queues, *suite.accounts]
    lists = [suite.nothing, suite.unreachable, [suite.strange], suite.cancelled, suite.not_cancelled]
    return [*(answer for answer, _ in pairs), *(answer for answers in lists for answer in answers)]


SUITES = (TestSLURM, TestPBSPro, TestTORQUE, TestLSF, TestSGE)
RECORDINGS = {suite.system.name: _all_answers(suite) for suite in SUITES}
for _suite in SUITES:
    _suite.foreign = RECORDINGS


def test_torque_finds_nothing_in_the_answers_of_its_relative() -> None:
    for answer in RECORDINGS["pbspro"]:
        try:
            assert TORQUE().statuses(answer) == []
        except CouldNotAsk:
            continue


@pytest.mark.parametrize("suite", [TestSLURM, TestPBSPro, TestTORQUE, TestLSF, TestSGE])
def test_a_command_that_fails_although_it_says_an_id_may_have_submitted_the_job(suite: type[Conformance]) -> None:
    for answer, id in suite.accepted:
        failed = replace(answer, status=1, stderr=f"{answer.stderr}the account could not be charged\n")
        if suite is TestSGE and "has been submitted" in answer.message:  # Grid Engine warns of a job it has taken
            assert suite.system.submitted(failed) == id
            continue
        with pytest.raises(SubmitError) as raised:
            suite.system.submitted(failed)
        assert raised.value.kind == "transient"
