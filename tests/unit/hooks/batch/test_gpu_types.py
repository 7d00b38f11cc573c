"""A type of GPU in the words of each batch system."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lading.hooks.batch.native import refuse
from lading.hooks.batch.registry import batch_systems
from lading.hooks.batch.system import BatchJobRequest, Profile, Unsupported
from lading.hooks.cluster.allocations.layout import AllocationFolder
from lading.hooks.cluster.allocations.script import AllocationWriter, market, terms
from lading.hooks.cluster.jobs.config import ClusterConfig
from lading.hooks.cluster.jobs.job_script import ScriptWriter
from lading.hooks.cluster.jobs.layout import ClusterFolder
from lading.hooks.cluster.site import cluster_kind
from lading.hooks.files import hardware
from lading.plugin.manager import site_kinds
from lading.scheduling.model.gpus import parse_type
from lading.scheduling.provisioning import Launch
from tests.clusters.paper import envelope

TYPED = BatchJobRequest(gpus=2, gpu_type="a100")
SYSTEMS = batch_systems()


@pytest.mark.parametrize(
    ("system", "profile", "directive"),
    [
        ("slurm", {}, "--gres=gpu:a100:2"),
        ("slurm", {"gpu_resource": "gpu_nvidia"}, "--gres=gpu_nvidia:a100:2"),
        ("pbspro", {"gpu_type_resource": "gpu_model"}, "-l select=1:ncpus=1:ngpus=2:gpu_model=a100"),
        ("torque", {}, "-l nodes=1:ppn=1:gpus=2:a100"),
        ("lsf", {}, '-gpu "num=2:gmodel=a100"'),
        ("sge", {"gpu_resource": "gpu", "gpu_type_resource": "gpu_type"}, "-l gpu_type=a100"),
    ],
)
def test_each_batch_system_has_words_for_a_type(system: str, profile: dict[str, str], directive: str) -> None:
    assert directive in SYSTEMS[system].directives(TYPED, Profile(**profile))
    untyped = SYSTEMS[system].directives(replace(TYPED, gpu_type=None), Profile(**profile))
    assert "a100" not in "\n".join(untyped)


@pytest.mark.parametrize(("system", "profile"), [("pbspro", {}), ("sge", {"gpu_resource": "gpu"})])
def test_where_a_site_has_a_word_of_its_own_it_has_to_say_it(system: str, profile: dict[str, str]) -> None:
    with pytest.raises(Unsupported, match="set gpu_type_resource of the site"):
        SYSTEMS[system].directives(TYPED, Profile(**profile))


def config(**options: object) -> ClusterConfig:
    table = {"kind": "slurm", "work_dir": "/shared", "python": "/python", "node_cpus": 8, "node_memory": "64 GiB"}
    return ClusterConfig(**{**table, "node_gpus": 4, **options})  # type: ignore[arg-type]


def test_a_task_asks_for_a_type_as_the_batch_system_calls_it() -> None:
    site = config(gpu_types=["nvidia_a100_80gb_pcie", "v100"])
    task = envelope("a")
    typed = replace(task, resources=replace(task.resources, gpus=1.0), gpu_type="a100")
    writer = ScriptWriter(SYSTEMS["slurm"], site, "http://api")
    assert "#SBATCH --gres=gpu:nvidia_a100_80gb_pcie:1\n" in writer.of_one(typed)
    assert "#SBATCH --gres=gpu:1\n" in writer.of_one(replace(typed, gpu_type=None))
    assert "gres" not in writer.of_one(task)


def test_an_allocation_has_gpus_of_the_type_of_its_site() -> None:
    site = config(gpu_types=["a100"], mode="allocation")
    launch = Launch("[null, []]", market(site).capacity, 3600.0, ())
    folder = AllocationFolder(ClusterFolder("/shared"), "L1")
    script = AllocationWriter(SYSTEMS["slurm"], site, "http://api").allocation(folder, terms(launch, site))
    assert "#SBATCH --gres=gpu:a100:4\n" in script


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpu_types": ["a100"], "node_gpus": 0}, "cannot be used without node_gpus"),
        ({"gpu_types": ["a100", "A100"]}, "two of them are the same type, a100"),
        ({"gpu_types": ["a100", "v100"], "mode": "allocation"}, "an allocation has GPUs of one type"),
        ({"gpu_types": ["7"]}, "not a type of GPU"),
        ({"gpu_types": ["rtx 3090"]}, "accepts a blank in the name"),
    ],
)
def test_types_that_a_cluster_cannot_have(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**options)


def test_the_location_of_a_cluster_says_its_types(tmp_path: Path) -> None:
    site = cluster_kind(SYSTEMS["slurm"])("hpc", config(gpu_types=["a100", "rtx_3090"]), tmp_path)
    assert site.potential()[0].features == {"gpu=a100", "gpu=rtx-3090"}


@pytest.mark.parametrize(
    ("models", "type"),
    [
        (["NVIDIA A100-SXM4-40GB"] * 2, "a100"),
        (["NVIDIA A100-SXM4-40GB", "Tesla T4"], None),
        (["", "Tesla T4"], None),
        ([], None),
    ],
)
def test_the_type_of_a_machine_is_what_its_driver_says(tmp_path: Path, models: list[str], type: str | None) -> None:
    for number, model in enumerate(models):
        folder = tmp_path / f"proc/driver/nvidia/gpus/0000:0{number}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 75\n")
    assert hardware.gpu_type(tmp_path) == type
    assert type is None or parse_type(type) == type


def test_a_cluster_that_lacks_the_word_for_types_is_refused_when_it_is_read() -> None:
    with pytest.raises(ValueError, match="set gpu_type_resource of the site"):
        cluster_kind(SYSTEMS["pbspro"]).refuse(config(kind="pbspro", gpu_types=["a100"]))
    cluster_kind(SYSTEMS["pbspro"]).refuse(config(kind="pbspro", gpu_types=["a100"], gpu_type_resource="gpu_model"))


def test_a_resource_of_slurm_that_has_a_type_already_is_refused_with_another_type() -> None:
    own = config(gpu_types=["a100"], gpu_resource="gpu:a100")
    with pytest.raises(ValueError, match=r"has a type already; .*set gpu_resource = 'gpu'"):
        cluster_kind(SYSTEMS["slurm"]).refuse(own)
    assert "--gres=gpu:a100:2" in SYSTEMS["slurm"].directives(BatchJobRequest(gpus=2), own.profile)


def test_a_native_directive_for_gpus_is_refused_with_the_hint_to_use() -> None:
    with pytest.raises(Unsupported, match="use the hint gpus, such as 2, or 2 of a type: 'a100:2'"):
        refuse({"gres": "gpu:a100:1"}, SYSTEMS["slurm"], Profile())
    with pytest.raises(Unsupported, match="use the hint memory"):
        refuse({"mem": "1G"}, SYSTEMS["slurm"], Profile())


def test_machines_have_the_type_that_their_tables_say(tmp_path: Path) -> None:
    hosts = [{"ssh_conn_id": "m1", "gpu_type": "NVIDIA A100-SXM4-40GB"}, {"ssh_conn_id": "m2"}]
    table = {"kind": "ssh", "work_dir": "/shared", "python": "/python", "hosts": hosts}
    lab = site_kinds()["ssh"]
    one, other = lab("lab", lab.config_model(**table), tmp_path / "lab").potential()
    assert (one.features, other.features) == ({"gpu=a100"}, frozenset())
    local = site_kinds()["local"]
    [here] = local("local", local.config_model(gpu_type="T4", gpus=1), tmp_path / "local").potential()
    assert here.features == {"gpu=t4"}
