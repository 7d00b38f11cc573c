"""What all batch systems share: requests, answers, directives, and what is the same in all five."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from lading.hooks.batch.directives import settings
from lading.hooks.batch.refusals import Wording, any_of
from lading.hooks.batch.system import (
    ArrayRange,
    BatchJobRequest,
    BatchSystem,
    MemoryDialect,
    NativeJob,
    Profile,
    SubmitError,
    Unsupported,
    WholeNode,
)
from lading.hooks.ssh.answer import CommandResult
from lading.plugin.manager import batch_systems

SYSTEMS = batch_systems()
MPI = {"nodes": 2, "ppn": 32, "threads": 1}
OPENMP = {"nodes": 1, "ppn": 1, "threads": 32}
HYBRID = {"nodes": 4, "ppn": 2, "threads": 16}

# The table of the parallel model, with 32-core nodes as the example.
TABLE = {
    "slurm": (
        ["--nodes=2", "--ntasks-per-node=32", "--cpus-per-task=1"],
        ["--nodes=1", "--ntasks-per-node=1", "--cpus-per-task=32"],
        ["--nodes=4", "--ntasks-per-node=2", "--cpus-per-task=16"],
    ),
    "pbspro": (
        ["-l select=2:ncpus=32:mpiprocs=32:ompthreads=1"],
        ["-l select=1:ncpus=32:mpiprocs=1:ompthreads=32"],
        ["-l select=4:ncpus=32:mpiprocs=2:ompthreads=16"],
    ),
    "torque": (["-l nodes=2:ppn=32"], ["-l nodes=1:ppn=32"], ["-l nodes=4:ppn=32"]),
    "lsf": (
        ["-n 64", '-R "span[ptile=32]"'],
        ["-n 32", '-R "span[ptile=32]"'],
        ["-n 128", '-R "span[ptile=32]"'],
    ),
    "sge": (["-pe mpi 64"], ["-pe mpi 32"], ["-pe mpi 128"]),
}
PROFILES = {"sge": Profile(parallel_environment="mpi")}


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_parallel_model(name: str) -> None:
    profile = PROFILES.get(name, Profile())
    made = tuple(SYSTEMS[name].directives(BatchJobRequest(**shape), profile) for shape in (MPI, OPENMP, HYBRID))
    assert made == TABLE[name]


# The same where the site places by cores; one process has one node in any case.
IGNORED = {
    "slurm": (
        ["--ntasks=64", "--cpus-per-task=1"],
        ["--ntasks=1", "--cpus-per-task=32"],
        ["--ntasks=8", "--cpus-per-task=16"],
    ),
    "pbspro": (
        ["-l select=64:ncpus=1:mpiprocs=1:ompthreads=1"],
        ["-l select=1:ncpus=32:mpiprocs=1:ompthreads=32"],
        ["-l select=8:ncpus=16:mpiprocs=1:ompthreads=16"],
    ),
    "torque": (["-l procs=64"], ["-l nodes=1:ppn=32"], ["-l nodes=8:ppn=16"]),
    "lsf": (["-n 64"], ["-n 32", '-R "span[hosts=1]"'], ["-n 128", '-R "span[block=16]"']),
    "sge": TABLE["sge"],
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_parallel_model_where_nodes_are_ignored(name: str) -> None:
    profile = Profile(nodes="ignore", parallel_environment="mpi")
    made = tuple(SYSTEMS[name].directives(BatchJobRequest(**shape), profile) for shape in (MPI, OPENMP, HYBRID))
    assert made == IGNORED[name]


@pytest.mark.parametrize("name", SYSTEMS)
def test_without_a_shape_there_is_nothing_to_ignore(name: str) -> None:
    profile = Profile(nodes="ignore", parallel_environment="mpi")
    request = BatchJobRequest(jobname="a", time=60)
    assert SYSTEMS[name].directives(request, profile) == SYSTEMS[name].directives(request, Profile())
    assert not any("nodes" in each for each in SYSTEMS["slurm"].directives(BatchJobRequest(ppn=3), profile))


@pytest.mark.parametrize(
    ("name", "several", "one"),
    [
        ("slurm", "--mem-per-cpu=1366", "--mem=8192"),
        ("pbspro", "-l select=4:ncpus=3:mpiprocs=1:ompthreads=3:mem=4096mb", "mem=8192mb"),
        ("torque", "-l mem=16384mb", "-l mem=8192mb"),
        ("lsf", "-M 16384", "-M 8192"),
    ],
)
def test_each_process_has_its_part_of_the_memory_where_nodes_are_ignored(name: str, several: str, one: str) -> None:
    profile = Profile(nodes="ignore")
    assert several in SYSTEMS[name].directives(BatchJobRequest(nodes=2, ppn=2, threads=3, mem=8192), profile)
    single = SYSTEMS[name].directives(BatchJobRequest(nodes=1, ppn=1, threads=3, mem=8192), profile)
    assert any(each.endswith(one) for each in single)


def test_a_gpu_for_each_node_needs_nodes() -> None:
    profile = Profile(nodes="ignore", parallel_environment="mpi", gpu_resource="gpu")
    for system in SYSTEMS.values():
        with pytest.raises(Unsupported, match=r"gpus = 1: .*nodes = 'ignore'"):
            system.directives(BatchJobRequest(ppn=2, gpus=1), profile)
        assert any("gpu" in each for each in system.directives(BatchJobRequest(nodes=1, threads=2, gpus=1), profile))


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"whole_node": {"cpus": 32}}, "whole_node"),
        ({"memory": {"per": "node", "resource": "mem"}}, "valid: cpu, slot, job, none"),
    ],
)
def test_what_needs_nodes_is_refused_where_they_are_ignored(table: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Profile.model_validate({"nodes": "ignore", **table})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("slurm", ["--ntasks-per-node=3"]),
        ("pbspro", ["-l select=1:ncpus=3:mpiprocs=3:ompthreads=1"]),
        ("torque", ["-l nodes=1:ppn=3"]),
        ("lsf", ["-n 3", '-R "span[ptile=3]"']),
        ("sge", ["-pe mpi 3"]),
    ],
)
def test_what_is_missing_counts_as_one_but_with_slurm(name: str, expected: list[str]) -> None:
    assert SYSTEMS[name].directives(BatchJobRequest(ppn=3), PROFILES.get(name, Profile())) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("slurm", ["--mem=4096"]),
        ("pbspro", ["-l select=1:ncpus=1:mem=4096mb"]),
        ("torque", ["-l mem=4096mb"]),
        ("lsf", ["-M 4096"]),
        ("sge", []),
    ],
)
def test_memory_where_the_site_says_nothing(name: str, expected: list[str]) -> None:
    assert SYSTEMS[name].directives(BatchJobRequest(mem=4096), Profile()) == expected


@pytest.mark.parametrize("per", ["cpu", "slot"])
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("slurm", ["--nodes=2", "--ntasks-per-node=2", "--cpus-per-task=3", "--mem-per-cpu=683"]),
        ("pbspro", ["-l select=2:ncpus=6:mpiprocs=2:ompthreads=3", "-l pmem=683mb"]),
        ("torque", ["-l nodes=2:ppn=6", "-l pmem=683mb"]),
        ("lsf", ["-n 12", '-R "span[ptile=6]"', "-M 683"]),
    ],
)
def test_memory_per_cpu_is_rounded_up(name: str, expected: list[str], per: str) -> None:
    request = BatchJobRequest(nodes=2, ppn=2, threads=3, mem=4097)
    assert SYSTEMS[name].directives(request, Profile(memory={"per": per})) == expected


@pytest.mark.parametrize(
    ("name", "dialect", "expected"),
    [
        ("slurm", {"unit": "G"}, "--mem=5G"),
        ("slurm", {"unit": "K"}, "--mem=4195328K"),
        ("slurm", {"resource": "mem-per-gpu"}, "--mem-per-gpu=4097"),
        ("pbspro", {"unit": "G"}, "-l select=2:ncpus=2:mpiprocs=2:ompthreads=1:mem=5gb"),
        ("pbspro", {"resource": "vmem"}, "-l select=2:ncpus=2:mpiprocs=2:ompthreads=1:vmem=4097mb"),
        ("pbspro", {"per": "job"}, "-l select=2:ncpus=2:mpiprocs=2:ompthreads=1:mem=4097mb"),
        ("torque", {"per": "job"}, "-l mem=8194mb"),
        ("torque", {}, "-l mem=8194mb"),
        ("torque", {"per": "node"}, "-l mem=4097mb"),
        ("torque", {"resource": "vmem", "unit": "K"}, "-l vmem=8390656kb"),
        ("torque", {"per": "cpu", "resource": "pvmem"}, "-l pvmem=2049mb"),
        ("lsf", {"unit": "K"}, "-M 4195328"),
        ("lsf", {"unit": "G", "resource": "mem"}, '-R "rusage[mem=5]"'),
        # Where LSF_UNIT_FOR_LIMITS is not set: the limit is in KiB, what is reserved in MiB.
        ("lsf", {"unit": "K", "resource": "M,mem"}, "-M 4195328"),
        ("lsf", {"unit": "K", "resource": "M,mem"}, '-R "rusage[mem=4097]"'),
        ("sge", {"per": "slot", "resource": "h_vmem"}, "-l h_vmem=2049M"),
        ("sge", {"per": "slot", "resource": "h_vmem", "unit": "G"}, "-l h_vmem=3G"),
        ("sge", {"per": "node", "resource": "mem_free", "unit": "K"}, "-l mem_free=4195328K"),
        ("sge", {"per": "job", "resource": "mem_total"}, "-l mem_total=8194M"),
        ("sge", {"per": "slot", "resource": "virtual_free", "unit": "B"}, "-l virtual_free=2148007936"),
    ],
)
def test_memory_dialects(name: str, dialect: dict[str, str], expected: str) -> None:
    profile = Profile(memory=dialect, parallel_environment="mpi")
    assert expected in SYSTEMS[name].directives(BatchJobRequest(nodes=2, ppn=2, mem=4097), profile)


@pytest.mark.parametrize(("name", "both"), [("lsf", ["-M 4", '-R "rusage[mem=4]"']), ("sge", ["-l M=4M", "-l mem=4M"])])
def test_memory_under_two_names(name: str, both: list[str]) -> None:
    profile = Profile(memory=MemoryDialect(per="node", resource="M,mem"))
    assert SYSTEMS[name].directives(BatchJobRequest(mem=4), profile) == both


@pytest.mark.parametrize("name", SYSTEMS)
def test_memory_that_the_site_does_not_want_to_hear_of(name: str) -> None:
    profile = Profile(memory=MemoryDialect(per="none", resource="h_vmem"))
    assert SYSTEMS[name].directives(BatchJobRequest(mem=4), profile) == []


@pytest.mark.parametrize(
    ("name", "seconds", "expected"),
    [
        ("slurm", 1, "--time=00:01:00"),
        ("slurm", 7200, "--time=02:00:00"),
        ("slurm", 129601, "--time=1-12:01:00"),
        ("pbspro", 61, "-l walltime=00:01:01"),
        ("torque", 129600, "-l walltime=36:00:00"),
        ("lsf", 61, "-W 2"),
        ("lsf", 7200, "-W 120"),
        ("sge", 3661, "-l h_rt=01:01:01"),
    ],
)
def test_time(name: str, seconds: int, expected: str) -> None:
    assert SYSTEMS[name].directives(BatchJobRequest(time=seconds), Profile()) == [expected]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("slurm", ["--job-name=j", "--partition=q", "--output=o", "--error=e"]),
        ("pbspro", ["-N j", "-q q", "-o o", "-e e"]),
        ("torque", ["-N j", "-q q", "-o o", "-e e"]),
        ("lsf", ["-J j", "-q q", "-o o", "-e e"]),
        ("sge", ["-N j", "-q q", "-o o", "-e e"]),
    ],
)
def test_names_and_files(name: str, expected: list[str]) -> None:
    request = BatchJobRequest(jobname="j", queue="q", stdout="o", stderr="e")
    assert SYSTEMS[name].directives(request, Profile()) == expected


@pytest.mark.parametrize(("name", "expected"), [("pbspro", "-j oe"), ("torque", "-j oe"), ("sge", "-j y")])
def test_one_file_for_both_outputs(name: str, expected: str) -> None:
    assert SYSTEMS[name].directives(BatchJobRequest(stdout="o", stderr="o"), Profile()) == ["-o o", expected]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("slurm", ["--job-name=j", "--array=1-9%2"]),
        ("pbspro", ["-N j", "-J 1-9%2"]),
        ("torque", ["-N j", "-t 1-9%2"]),
        ("lsf", ['-J "j[1-9]%2"']),
        ("sge", ["-N j", "-t 1-9", "-tc 2"]),
    ],
)
def test_job_arrays(name: str, expected: list[str]) -> None:
    assert SYSTEMS[name].directives(BatchJobRequest(jobname="j", array=ArrayRange("1-9", 2)), Profile()) == expected


@pytest.mark.parametrize("name", ["pbspro", "sge"])
def test_one_range_where_there_are_no_lists(name: str) -> None:
    with pytest.raises(Unsupported, match="one range"):
        SYSTEMS[name].directives(BatchJobRequest(array=ArrayRange("1,3,5")), Profile())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("slurm", ["--nodes=2", "--ntasks-per-node=4", "--exclusive"]),
        ("pbspro", ["-l select=2:ncpus=32:mpiprocs=4:ompthreads=1", "-l place=scatter:excl"]),
        ("torque", ["-l nodes=2:ppn=32"]),
        ("lsf", ["-n 8", '-R "span[ptile=4]"', "-x"]),
        ("sge", ["-pe mpi 64"]),
    ],
)
def test_whole_nodes(name: str, expected: list[str]) -> None:
    profile = Profile(whole_node=WholeNode(cpus=32, memory=1000), parallel_environment="mpi")
    assert SYSTEMS[name].directives(BatchJobRequest(nodes=2, ppn=4), profile) == expected
    for too_much in (BatchJobRequest(ppn=33), BatchJobRequest(mem=1001)):
        with pytest.raises(Unsupported, match="whole_node"):
            SYSTEMS[name].directives(too_much, profile)


@pytest.mark.parametrize(
    ("name", "native", "expected"),
    [
        ("slurm", {"account": "x", "A": "y z"}, None),
        ("slurm", {"account": "x", "q": "high", "exclusive": True}, ["--account=x", "-q high", "--exclusive"]),
        ("slurm", {"comment": 'a "b" #c \\d'}, [r'--comment="a \"b\" #c \\d"']),
        ("pbspro", {"A": "x", "V": True, "place": "excl"}, ["-A x", "-V", "-l place=excl"]),
        ("pbspro", {"W": "group_list=a", "bigmem": True}, ["-W group_list=a", "-l bigmem=True"]),
        ("torque", {"naccesspolicy": "singlejob"}, ["-l naccesspolicy=singlejob"]),
        ("lsf", {"P": "x", "app": "a b", "x": True}, ["-P x", '-app "a b"', "-x"]),
        ("lsf", {"R": "select[type==any]"}, ['-R "select[type==any]"']),
        ("sge", {"cwd": True, "P": "x", "exclusive": True}, ["-cwd", "-P x", "-l exclusive=true"]),
        ("sge", {"pe": "smp 4", "hold_jid": "7"}, ["-pe smp 4", "-hold_jid 7"]),
    ],
)
def test_native_directives(name: str, native: dict[str, str | bool], expected: list[str] | None) -> None:
    request = BatchJobRequest(native={**native, "left": None, "out": False})
    if expected is None:
        with pytest.raises(Unsupported, match="conflicts with"):
            SYSTEMS[name].directives(request, Profile())
    else:
        assert SYSTEMS[name].directives(request, Profile()) == expected


@pytest.mark.parametrize(
    ("name", "jobname"), [("pbspro", "a b"), ("torque", "a\tb"), ("lsf", "a[1]"), ("sge", "1a"), ("sge", "a:b")]
)
def test_names_that_a_scheduler_refuses(name: str, jobname: str) -> None:
    with pytest.raises(Unsupported, match="jobname"):
        SYSTEMS[name].directives(BatchJobRequest(jobname=jobname), Profile())


def test_slots_without_an_environment() -> None:
    with pytest.raises(Unsupported, match="parallel_environment"):
        SYSTEMS["sge"].directives(BatchJobRequest(threads=2), Profile())
    assert SYSTEMS["sge"].directives(BatchJobRequest(threads=1), Profile()) == []
    assert SYSTEMS["sge"].directives(BatchJobRequest(threads=4, native={"pe": "smp 4"}), Profile()) == ["-pe smp 4"]


def test_settings_of_directives() -> None:
    assert settings("--nodes=2") == ["nodes"]
    assert settings("-N 2") == ["N"]
    assert settings("-l select=2:ncpus=4:mem=1gb") == ["l select"]
    assert settings("-l nodes=1:ppn=2,mem=1gb") == ["l nodes", "l mem"]
    assert settings('-R "select[a] span[ptile=2]"') == ["R select", "R span"]


def test_array_ranges() -> None:
    assert list(ArrayRange("1,3,7-9")) == [1, 3, 7, 8, 9]
    assert list(ArrayRange("0-8:3")) == [0, 3, 6]
    with pytest.raises(ValueError, match="the maximum is"):
        ArrayRange("0-999999999")
    assert str(ArrayRange("0-9", 2)) == "0-9%2"
    for text in ("", "a", "3-1", "1-", "0-4:0", "1,1", "1;2", "1-9%2"):
        with pytest.raises(ValueError, match="array indices"):
            ArrayRange(text)
    with pytest.raises(ValueError, match="max_running"):
        ArrayRange("0-9", 0)


@given(st.lists(st.integers(0, 50), min_size=1, unique=True))
def test_an_array_has_the_indices_that_were_written(indices: list[int]) -> None:
    assert list(ArrayRange(",".join(map(str, indices)))) == indices


def test_numbers_of_a_request_are_positive() -> None:
    for name in ("nodes", "ppn", "threads", "mem", "time", "gpus"):
        with pytest.raises(ValueError, match=name):
            BatchJobRequest(**{name: 0})


def test_profiles_are_checked() -> None:
    for wrong in (
        {"nonsense": 1},
        {"memory": {"per": "core"}},
        {"memory": {"resource": "a b"}},
        {"whole_node": {"cpus": 0}},
    ):
        with pytest.raises(ValidationError):
            Profile.model_validate(wrong)


def test_a_job_that_has_ended_is_no_success_by_itself() -> None:
    assert NativeJob(id="1", state="ended").succeeded is None
    assert NativeJob(id="1", state="running").succeeded is None
    assert NativeJob(id="1", state="ended", exit_code=0).succeeded is True
    assert NativeJob(id="1", state="ended", exit_code=3).succeeded is False
    assert NativeJob(id="1", state="ended", exit_code=0, cause="time_limit").succeeded is False


def test_what_was_said_fits_into_a_message() -> None:
    assert CommandResult(1, "out", " first\n\nsecond \n").message == "first second"
    assert CommandResult(1, "out").message == "out"
    assert CommandResult(3).message == "no output, but exit status 3"
    assert CommandResult(None).message == "no answer"
    assert len(CommandResult(1, "x" * 10**6).message) < 2100


def test_a_full_disk_is_a_passing_fault() -> None:
    wording = Wording(any_of("never"), any_of("limit"), any_of("down"), any_of("gone"))
    assert wording.submit_error(CommandResult(1, "", "write error: No space left on device")).kind == "transient"
    assert wording.submit_error(CommandResult(137)).kind == "transient"
    assert wording.submit_error(CommandResult(1)).kind == "transient"
    assert wording.submit_error(CommandResult(1, "", "whatever")).kind == "permanent"


def test_the_five() -> None:
    assert list(SYSTEMS) == ["slurm", "pbspro", "torque", "lsf", "sge"]
    assert [system.prefix for system in SYSTEMS.values()] == ["#SBATCH", "#PBS", "#PBS", "#BSUB", "#$"]
    assert all(isinstance(system, BatchSystem) for system in SYSTEMS.values())


def test_translators_need_neither_airflow_nor_pytest() -> None:
    code = (
        "import sys; import lading.hooks.batch.slurm.system, lading.hooks.batch.pbs.torque; "
        "import lading.hooks.batch.lsf.system, lading.hooks.batch.sge.system, lading.hooks.conformance; "
        "print(sorted({'airflow', 'pytest', 'paramiko', 'subprocess'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


SUBMITTED = {
    "slurm": ("7\n", "8\n", "7"),
    "pbspro": ("7.pbs1\n", "8.pbs1\n", "7.pbs1"),
    "torque": ("7[].trq1\n", "2026\n", "7[].trq1"),
    "lsf": ("Job <7> is submitted to queue <q>.\n", "Job <8> is submitted to default queue <q>.\n", "7"),
    "sge": ("7\n", 'Your job 8 ("x") has been submitted\n', "7"),
}


@pytest.mark.parametrize("name", SUBMITTED)
def test_two_candidates_for_an_id_are_none(name: str) -> None:
    """A site that prints a number of its own; the job is looked up by its name."""
    first, second, id = SUBMITTED[name]
    assert SYSTEMS[name].submitted(CommandResult(0, first + first)) == id
    for text in (first + second, second + first):
        with pytest.raises(SubmitError) as caught:
            SYSTEMS[name].submitted(CommandResult(0, text))
        assert caught.value.kind == "transient"
