"""The script of a submission, for each batch system."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lading.hooks.batch.request import new_name, titled, untitled
from lading.hooks.batch.slurm.system import SLURM
from lading.hooks.batch.status_query import is_called, plain_name
from lading.hooks.batch.submit_limits import chunks, largest_array
from lading.hooks.batch.system import NativeJob
from lading.hooks.cluster.jobs.config import ClusterConfig
from lading.hooks.cluster.jobs.job_script import ArrayShape, ScriptWriter, shape
from lading.hooks.deployment.airflow import AirflowDeployment
from lading.hooks.deployment.deployment import BatchDefaults
from lading.hooks.site import config as site_config
from lading.hooks.spool.spool import Envelope
from lading.plugin.manager import batch_systems
from lading.scheduling.model.resources import Layout, Resources

SYSTEMS = batch_systems()
SHAPE = ArrayShape(Layout(threads=2), memory=1000, gpus=0, time=3600)


def config(**options: object) -> ClusterConfig:
    table = {"kind": "slurm", "work_dir": "/my work", "python": "/py", "node_cpus": 8, "node_memory": 9000, **options}
    return ClusterConfig.model_validate(table)


def script(name: str, count: int, **options: object) -> list[str]:
    if name == "sge":
        options["parallel_environment"] = "smp"
    return ScriptWriter(SYSTEMS[name], config(**options), "http://api").submission("L1", count, SHAPE).splitlines()


@pytest.mark.parametrize(
    ("name", "array", "index"),
    [
        ("slurm", "#SBATCH --array=1-3", "$SLURM_ARRAY_TASK_ID"),
        ("pbspro", "#PBS -J 1-3", "$PBS_ARRAY_INDEX"),
        ("torque", "#PBS -t 1-3", "$PBS_ARRAYID"),
        ("lsf", '#BSUB -J "L1[1-3]"', "$LSB_JOBINDEX"),
        ("sge", "#$ -t 1-3", "$SGE_TASK_ID"),
    ],
)
def test_an_array_runs_one_task_per_element(name: str, array: str, index: str) -> None:
    lines = script(name, 3)
    assert array in lines
    options = "--kill-grace 10 --keep-failed 3600"
    command = f"exec /py -m lading.executors.agent.batch_job '/my work' L1 \"{index}\" {options}"
    assert lines[-1] == command
    single = script(name, 1)
    assert array not in single
    assert single[-1] == command.replace(f'"{index}"', "1")


def test_jobs_have_their_scratch_folders_where_the_site_says() -> None:
    assert script("slurm", 1, scratch="$FAST/jobs", keep_failed_scratch="0")[-1].endswith(
        " --keep-failed 0 --scratch '$FAST/jobs'"
    )


def test_pbs_pro_takes_only_arrays_that_it_may_start_again() -> None:
    assert "#PBS -r y" in script("pbspro", 3)
    assert "#PBS -r n" in script("pbspro", 1)
    assert "#PBS -r n" in script("torque", 3)


def test_directives_and_setup_of_the_site() -> None:
    lines = script("slurm", 1, queue="long", resources={"account": "astro"}, setup="module load x", api_url="http://y")
    assert "#SBATCH --partition=long" in lines
    assert "#SBATCH --account=astro" in lines
    assert lines.index("module load x") < lines.index("export AIRFLOW__CORE__EXECUTION_API_SERVER_URL=http://api")


def test_what_a_task_asks_for() -> None:
    envelope = Envelope("a", {}, Resources(1.5, 1000, 0, 0.5), 2000, 60, 0, 0.0, 0.0)
    assert shape(envelope, config()) == ArrayShape(Layout(threads=2), memory=2384, gpus=1, time=60 + 10 + 120, least=60)
    free = Envelope("a", {}, Resources(0.25, 8800), None, None, 0, 0.0, 0.0)
    assert shape(free, config()) == ArrayShape(Layout(), memory=9000, gpus=0, time=86400), "no more than a node has"


def test_arrays_have_their_limits() -> None:
    assert largest_array(SLURM(), config(max_array_size=10).profile) == 9
    assert largest_array(SYSTEMS["pbspro"], config(max_array_size=10).profile) == 10
    assert largest_array(SYSTEMS["pbspro"], config(max_array_size=1).profile) == 1
    assert [list(each) for each in chunks("abcde", 2, SYSTEMS["pbspro"])] == [["a", "b"], ["c", "d"], ["e"]]


LAID_OUT = Envelope("a", {}, Resources(4, 1000), 2000, 60, 0, 0.0, 0.0, layout=Layout(2, 2, 2))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("slurm", ["--nodes=2", "--ntasks-per-node=2", "--cpus-per-task=2", "--mem=2384"]),
        ("pbspro", ["-l select=2:ncpus=4:mpiprocs=2:ompthreads=2:mem=2384mb"]),
        ("torque", ["-l nodes=2:ppn=4"]),
        ("lsf", ["-n 8", '-R "span[ptile=4]"', "-M 2384"]),
        ("sge", ["-pe smp 8"]),
    ],
)
def test_a_task_of_several_nodes(name: str, expected: list[str]) -> None:
    made = config(**({"parallel_environment": "smp"} if name == "sge" else {}))
    asked = shape(LAID_OUT, made)
    lines = ScriptWriter(SYSTEMS[name], made, "http://api").submission("L1", 1, asked).splitlines()
    assert {f"{SYSTEMS[name].prefix} {each}" for each in expected} <= set(lines)
    assert {"export OMP_NUM_THREADS=2", "export LADING_NODES=2"} <= set(lines)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("slurm", ["--nodes=2-8", "--ntasks-per-node=2"]),
        ("pbspro", ["-l select=8:ncpus=4:mpiprocs=2:ompthreads=2:mem=2384mb"]),
        ("torque", ["-l nodes=8:ppn=4"]),
        ("lsf", ["-n 32", '-R "span[ptile=4]"']),
        ("sge", ["-pe smp 32"]),
    ],
)
def test_of_a_range_of_nodes_slurm_grants_some_and_the_others_are_asked_for_the_most(
    name: str, expected: list[str]
) -> None:
    made = config(**({"parallel_environment": "smp"} if name == "sge" else {}))
    asked = shape(replace(LAID_OUT, layout=Layout(8, 2, 2, least_nodes=2)), made)
    lines = ScriptWriter(SYSTEMS[name], made, "http://api").submission("L1", 1, asked).splitlines()
    assert {f"{SYSTEMS[name].prefix} {each}" for each in expected} <= set(lines)
    granted = "${SLURM_JOB_NUM_NODES:?}" if name == "slurm" else "8"
    assert f"export LADING_NODES={granted}" in lines
    least = shape(replace(LAID_OUT, layout=Layout(2, 2, 2, least_nodes=2)), made)
    if name == "slurm":
        assert "#SBATCH --nodes=2\n" in ScriptWriter(SLURM(), made, "http://api").submission("L1", 1, least)


def test_a_range_of_nodes_travels_with_the_job() -> None:
    wide = replace(LAID_OUT, layout=Layout(8, 2, 2, least_nodes=2))
    assert Envelope.from_json(wide.to_json()).layout == wide.layout


def test_a_task_of_several_nodes_where_nodes_are_ignored() -> None:
    made = config(nodes="ignore")
    text = ScriptWriter(SLURM(), made, "http://api").submission("L1", 1, shape(LAID_OUT, made))
    assert {"#SBATCH --ntasks=4", "#SBATCH --cpus-per-task=2", "#SBATCH --mem-per-cpu=596"} <= set(text.splitlines())
    assert "--nodes" not in text
    ranged = shape(replace(LAID_OUT, layout=Layout(2, 2, 2, least_nodes=1)), made)
    text = ScriptWriter(SLURM(), made, "http://api").submission("L1", 1, ranged)
    assert {"#SBATCH --ntasks=4", "export LADING_NODES=2"} <= set(text.splitlines()), "on how many does not matter"


def test_only_tasks_of_one_layout_share_an_array() -> None:
    alone = replace(LAID_OUT, layout=None)
    wide = replace(LAID_OUT, layout=Layout(4, 1, 4))
    shapes = {shape(each, config()) for each in (LAID_OUT, alone, wide, replace(LAID_OUT, token="b"))}
    assert len(shapes) == 3, "all of them need the same on each node"


def test_what_nodes_are_ignored_for_is_checked_with_the_table() -> None:
    with pytest.raises(ValueError, match="nodes = 'ignore' and whole_node contradict each other"):
        config(nodes="ignore", whole_node={"cpus": 8})
    with pytest.raises(ValueError, match="nodes"):
        config(nodes=2)


@pytest.mark.parametrize(
    ("name", "one", "several"),
    [
        (
            "slurm",
            ["#SBATCH --job-name=bwa_mem.sample=A_B.L0123456789abcd", '#SBATCH --comment="bwa_mem: sample=A_B"'],
            ["#SBATCH --job-name=bwa_mem.L0123456789abcd", '#SBATCH --comment="bwa_mem: 1 sample=A_B; 2 sample=C"'],
        ),
        ("pbspro", ["#PBS -N bwa_mem.sample-A_B.L0123456789abcd"], ["#PBS -N bwa_mem.L0123456789abcd"]),
        ("torque", ["#PBS -N L0123456789abcd"], ["#PBS -N L0123456789abcd"]),
        (
            "lsf",
            ['#BSUB -J "bwa_mem.sample=A_B.L0123456789abcd"', '#BSUB -Jd "bwa_mem: sample=A_B"'],
            ['#BSUB -J "bwa_mem.L0123456789abcd[1-2]"', '#BSUB -Jd "bwa_mem: 1 sample=A_B; 2 sample=C"'],
        ),
        ("sge", ["#$ -N bwa_mem.sample-A_B.L0123456789abcd"], ["#$ -N bwa_mem.L0123456789abcd"]),
    ],
)
def test_a_batch_job_is_called_by_its_rule_and_wildcards(name: str, one: list[str], several: list[str]) -> None:
    options = {"parallel_environment": "smp"} if name == "sge" else {}
    writer = ScriptWriter(SYSTEMS[name], config(**options), "http://api")
    titles = [("bwa_mem", "sample=A\n$\"'`\\B"), ("bwa_mem", "sample=C")]
    for lines, found in ((one, titles[:1]), (several, titles)):
        text = writer.submission("L0123456789abcd", len(found), SHAPE, titles=found).splitlines()
        assert set(lines) <= set(text), text


@pytest.mark.parametrize("title", ["bwa_mem.sample=A", "1.x", "ä", "", "a" * 500, "Lx.L0123456789abcd"])
def test_a_job_is_found_by_the_end_of_its_name(title: str) -> None:
    name = new_name()
    shown = titled(name, title, "_=")
    assert len(shown) < 120
    assert shown[0].isalpha()
    assert untitled(shown) == name
    for index, written in ((None, shown), (3, f"{shown}-3"), (3, f"{shown}[3]")):
        job = NativeJob(id="7", state="running", index=index, name=written)
        assert is_called(job, name)
        assert not is_called(job, new_name())
    assert plain_name(NativeJob(id="7", state="running", index=3, name=f"{shown}-3")) == name


def test_jobs_of_snakemake_ask_for_little_more_than_their_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(AirflowDeployment):
        def batch_defaults(self) -> BatchDefaults:
            return BatchDefaults(48, time=None)

    monkeypatch.setattr(site_config, "AIRFLOW", Other())
    free = Envelope("a", {}, Resources(1, 1000), None, None, 0, 0.0, 0.0)
    assert shape(free, config()) == ArrayShape(Layout(), memory=1048, gpus=0, time=None)
    lines = ScriptWriter(SYSTEMS["slurm"], config(), "http://api").of_one(free).splitlines()
    assert not [line for line in lines if "--time" in line]
    assert shape(free, config(time=60, memory_overhead=5)).time == 60
    assert shape(free, config(memory_overhead=0)).memory == 1000
    assert config(mode="allocation").added_memory == 384


def test_limits_have_what_is_set() -> None:
    assert config(mode="job", max_jobs=5, max_submitted=200, queue="batch").limits == {
        "max_jobs": "5", "max_submitted": "200", "queue": "batch",
    }  # fmt: skip
    assert "max_submitted" not in config(mode="job").limits
