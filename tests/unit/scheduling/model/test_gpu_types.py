"""Types of GPUs: how they are requested, and which machines have them."""

from __future__ import annotations

import pytest

from lading.scheduling.hints.hints import HintError, Hints
from lading.scheduling.matching.wishes import MatchedMachine, lacking
from lading.scheduling.model.catalogue import bundled
from lading.scheduling.model.gpus import nearest, parse_type, split_type, type_of, with_types
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.resources import Resources
from lading.scheduling.text.units import UnitError


@pytest.mark.parametrize(
    ("text", "type"),
    [
        ("a100", "a100"),
        ("A100", "a100"),
        ("NVIDIA A100-SXM4-40GB", "a100"),  # nvidia-smi
        ("nvidia_a100_80gb_pcie", "a100"),  # SLURM's AutoDetect=nvml
        ("Tesla V100-SXM2-16GB", "v100"),
        ("TeslaV100_SXM2_32GB", "v100"),  # LSF's gmodel
        ("NVIDIAA100_SXM4_40GB", "a100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA GeForce RTX 3090", "rtx-3090"),
        ("rtx_3090", "rtx-3090"),
        ("NVIDIA RTX A6000", "rtx-a6000"),
        ("NVIDIA TITAN V", "titan-v"),
        ("TITANV", "titanv"),
    ],
)
def test_one_type_has_one_name_whoever_writes_it(text: str, type: str) -> None:
    assert parse_type(text) == type


@pytest.mark.parametrize("text", ["", "7", "a;b", "nvidia", 100, "x" * 60])
def test_what_is_no_type(text: object) -> None:
    with pytest.raises(UnitError, match="not a type of GPU; valid"):
        parse_type(text)


def test_a_number_of_gpus_with_a_type_is_a_number_and_a_property_of_the_machine() -> None:
    hints = Hints.parse({"gpus": "A100:2", "features": ["nvme"]})
    assert (hints.gpus, hints.features) == (2, {"gpu=a100", "nvme"})
    assert type_of(hints.features) == "a100"
    assert Hints.parse({"gpus": ("a100:1", "a100:4")}).least == {"gpus": 1}
    assert Hints.parse({"gpus": "a100:0.5"}).gpus == 0.5
    assert Hints.parse({"gpus": "t4: 1 + attempt"}).expressions["gpus"] is not None
    assert Hints.parse({"gpus": 1}).features == frozenset()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("a100", "valid: a number, or a type with a number: 'a100:1'"),
        ("a100:0", "0 GPUs cannot have a type"),
        ("a100:x y", "hint gpus"),
        (("a100:1", "t4:2"), "two amounts of the same type"),
        ({"a100": 1}, "hint gpus"),
    ],
)
def test_what_is_no_number_of_gpus_says_what_is(value: object, message: str) -> None:
    with pytest.raises(HintError, match=message):
        Hints.parse({"gpus": value})


def test_the_catalogue_knows_the_types_of_ec2() -> None:
    types = bundled().types
    assert "gpu=a10g" in types["g5.xlarge"].features
    unnamed = [name for name, each in types.items() if each.capacity.gpus and type_of(each.features) is None]
    assert unnamed == []
    assert not [name for name, each in types.items() if not each.capacity.gpus and type_of(each.features)]
    assert with_types(["NVIDIA ???"]) == {"NVIDIA ???"}


def machine(name: str, *features: str) -> MatchedMachine:
    return MatchedMachine("lab", Location(name, Resources(8, 8000, 0, 1), features=frozenset(features)), None)


def test_a_machine_that_does_not_say_its_type_has_none_and_the_message_says_how_to_say_it() -> None:
    job = PlannedJob("t", Resources(1, 100, 0, 1), features=frozenset(["gpu=a100"]))
    reason = lacking(job, [machine("m1"), machine("m2", "gpu=a10g"), machine("m3", "gpu=v100")]).sentence
    assert "hint gpus: type 'a100' is not available, valid: a10g, v100" in reason
    assert "gpu_type (for a machine) or gpu_types (for a cluster)" in reason
    assert "no machine declares the type of its GPUs" in lacking(job, [machine("m1")]).sentence
    many = [f"gpu=t{number}" for number in range(20)]
    assert "and 14 more" in nearest("t7", many)


def test_what_has_no_type_is_left_as_it_is() -> None:
    for value in (1, "2", "2 * attempt", "auto", (1, 2)):
        assert split_type(value)[1] is None
