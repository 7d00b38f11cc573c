"""The catalogue: types, prices, overheads, and faults in its files."""

from __future__ import annotations

import pytest

from lading.scheduling.model import catalogue as catalogues
from lading.scheduling.model.catalogue import (
    BUNDLED_DATE,
    Catalogue,
    InstanceType,
    Offering,
    Overhead,
    bundled,
    parse_csv,
    parse_toml,
)
from lading.scheduling.model.quotas import is_burstable, vcpus
from lading.scheduling.model.resources import Resources
from lading.scheduling.text.csv_tables import TableError

HEADER = ",".join(catalogues.COLUMNS)


def parse(*rows: str) -> Catalogue:
    return parse_csv([HEADER + "\n", *(row + "\n" for row in rows)], "c.csv")


def test_the_bundled_prices() -> None:
    goods = bundled()
    assert len(goods.types) == 1344
    assert goods.types["c5d.large"].capacity == Resources(2, 4096, 50 * 10**9 // 2**20)
    assert goods.types["c5d.large"].offerings == (Offering(0.096),)
    assert goods.types["g6f.large"].capacity.gpus == 0.125
    assert goods.types["g6f.large"].features == {"NVIDIA L4", "gpu=l4"}
    assert goods.types["m7g.large"].arch == "aarch64", "as hints name it, which EC2 calls arm64"
    # A size that was written in decimal is a whole number of MiB all the same.
    assert goods.types["u-3tb1.56xlarge"].capacity.memory == 3 * 2**20
    assert BUNDLED_DATE in goods.sources[0]


def test_a_type_without_a_price_is_left_out() -> None:
    assert list(parse("a,1,2,x86_64,0,,0,", "b,1,2,x86_64,0,,0,0.5").types) == ["b"]
    with pytest.raises(TableError, match=r"^c.csv:1: no instance type has a price"):
        parse("a,1,2,x86_64,0,,0,")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("a,x,2,x86_64,0,,0,1", "vcpus 'x' is not a number"),
        ("a,-1,2,x86_64,0,,0,1", "vcpus '-1' is negative"),
        ("a,1,nan,x86_64,0,,0,1", "memory_gib 'nan' is not a finite number"),
        ("a,1,inf,x86_64,0,,0,1", "memory_gib 'inf' is not a finite number"),
        ("a,1,1e999,x86_64,0,,0,1", "memory_gib '1e999' is too large"),
        ("a,1,2,x86_64,0,,0,0", "usd_per_hour '0' is not above zero; valid: 1e-06 to 1,000,000"),
        ("a,1,2,x86_64,0,,0,-3", "usd_per_hour '-3' is negative"),
        ("a,1,2,,0,,0,1", "arch is empty"),
        (",1,2,x86_64,0,,0,1", "instance_type is empty"),
        ("a,1,2,x86_64,0,,0", "has 7 values for 8 columns"),
        ("ok,1,2,x86_64,0,,0,1", "instance_type 'ok' is already on line 2"),
    ],
)
def test_faults_name_file_line_and_value(row: str, message: str) -> None:
    with pytest.raises(TableError) as caught:
        parse("ok,1,2,x86_64,0,,0,1", "", row)
    assert str(caught.value).startswith("c.csv:4: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "c.csv:1: the file is empty"),
        (HEADER, "c.csv:1: the file has a header and no rows"),
        ("instance_type,vcpus\na,1", "c.csv:1: column 'memory_gib' is missing"),
        (
            HEADER.replace(",", ";"),
            f"c.csv:1: column 'instance_type' is missing; the header is '{HEADER.replace(',', ';')}'; it needs "
            "instance_type, vcpus, memory_gib, usd_per_hour, with commas between them",
        ),
        (HEADER + ",arch\na", "c.csv:1: column 'arch' occurs twice"),
        (HEADER + '\n"a,1', "c.csv:2: not CSV: unexpected end of data"),
    ],
)
def test_faults_of_the_whole_file(text: str, message: str) -> None:
    with pytest.raises(TableError) as caught:
        parse_csv(text.splitlines(), "c.csv")
    assert str(caught.value).startswith(message)


def test_what_a_table_of_another_cloud_may_lack() -> None:
    goods = parse_csv(["usd_per_hour,instance_type,memory_gib,vcpus,region", "0.1,e2,16,4,eu"], "c.csv")
    e2 = InstanceType("e2", Resources(4, 16384), (Offering(0.1),), source="c.csv", ebs_only=True)
    assert goods == Catalogue({"e2": e2})
    assert parse("e2,4,16,x86_64,,,,0.1") == goods


TOML = """
[[instance_types]]
instance_type = "lab.large"
vcpus = 16
memory_gib = 64.5
features = ["infiniband"]
usd_per_hour = 0.75

[[instance_types]]
instance_type = "lab.spot"
vcpus = 8
memory_gib = 16
arch = "arm64"
offerings = [
    {usd_per_hour = 0.5},
    {usd_per_hour = 0.1, capacity_type = "spot", zone = "b"},
]
"""


def test_toml() -> None:
    goods = parse_toml(TOML, "c.toml")
    assert goods.types["lab.large"].capacity == Resources(16, 66048)
    assert goods.types["lab.large"].features == {"infiniband"}
    assert goods.types["lab.spot"].offerings == (Offering(0.5), Offering(0.1, "spot", "b"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("vcpus = 16", "vcpus = -16", "c.toml:2: vcpus '-16' is negative"),
        ("vcpus = 8", "cores = 8", "c.toml:9: 'cores' is not one of instance_type, vcpus"),
        ('"spot", zone', '"cheap", zone', "c.toml:9: capacity_type 'cheap' is neither on-demand nor spot"),
        ("usd_per_hour = 0.5", "usd_per_hour = 0", "c.toml:9: usd_per_hour '0' is not above zero"),
        ("lab.spot", "lab.large", "c.toml:9: instance_type 'lab.large' is already on line 2"),
        ("vcpus = 16", "vcpus = ", "c.toml:4: not TOML"),
        ('["infiniband"]', '"infiniband"', "c.toml:2: features 'infiniband' is not a list of names"),
        ("[[instance_types]]", "[[types]]", "c.toml:1: there is no [[instance_types]] table"),
    ],
)
def test_faults_in_toml(old: str, new: str, message: str) -> None:
    with pytest.raises(TableError) as caught:
        parse_toml(TOML.replace(old, new), "c.toml")
    assert str(caught.value).startswith(message)


def test_select_takes_patterns() -> None:
    goods = bundled()
    chosen = goods.select(["c7i.*", "m7i.large"], ["*.metal*"])
    assert "c7i.large" in chosen.types
    assert "m7i.large" in chosen.types
    assert not any(".metal" in name or name.startswith("r") for name in chosen.types)
    with pytest.raises(ValueError, match=r"'zz\.\*' matches none of the 1344 instance types"):
        goods.select(["zz.*"])
    with pytest.raises(ValueError, match="leaves none"):
        goods.select(["c7i.*"], ["c7i.*"])


def test_overheads_disks_and_order_of_sources() -> None:
    goods = parse("ebs,2,4,x86_64,0,,0,1", "disk,2,4,x86_64,0,,10,1").with_ebs(2048)
    assert goods.types["ebs"].capacity.disk == 2048
    assert goods.types["disk"].capacity.disk == 10**10 // 2**20
    less = goods.without_overhead(Overhead(memory=100, disk=48, memory_share=0.25, disk_share=0.5))
    assert less.types["ebs"].capacity == Resources(2, 3072 - 100, 1024 - 48)
    assert goods.without_overhead(Overhead(memory=10**6)).types["ebs"].capacity.memory == 0
    mine = parse("c5d.large,2,4,x86_64,0,,0,7")
    both = mine.over(bundled())
    assert both.types["c5d.large"].offerings == (Offering(7.0),)
    assert len(both.types) == 1344
    assert set(both.sources) == {"c.csv", catalogues.BUNDLED_SOURCE}


@pytest.mark.parametrize("patterns", [(), ("*",), ("t*",), ("*.large",)])
def test_burstable_types_are_out_unless_they_are_named(patterns: tuple[str, ...]) -> None:
    kept = bundled().select(patterns).types
    assert not [name for name in kept if name.startswith(("t2", "t3", "t4"))]
    assert ("m7i.large" in kept) == (patterns != ("t*",))


@pytest.mark.parametrize("pattern", ["t3.*", "t3.large", "t3*"])
def test_a_burstable_type_that_is_named_has_its_baseline(pattern: str) -> None:
    kept = bundled().select([pattern]).types
    assert kept["t3.large"].capacity.cpus == 0.6
    assert all(0 < kind.capacity.cpus < 4 for kind in kept.values())
    with pytest.raises(
        ValueError, match=r"burstable types are only selected by a pattern that begins with their family"
    ):
        bundled().select(["*"], ["[!t]*", "trn*"])


def test_no_burstable_type_has_its_vcpus_and_quotas_count_those() -> None:
    bursts = {name: kind.capacity.cpus for name, kind in bundled().types.items() if is_burstable(name)}
    assert {name.partition(".")[0] for name in bursts} == {"t2", "t3", "t3a", "t4g"}
    assert bursts["t2.xlarge"] == 0.9, "22.5 % of 4"
    assert all(cpus <= 0.4 * vcpus(name, cpus) for name, cpus in bursts.items())
    assert (vcpus("t3.2xlarge", 3.2), vcpus("m7i.large", 2.0)) == (8.0, 2.0)


def test_gpus_that_are_not_measured_are_none() -> None:
    assert bundled().types["g4ad.xlarge"].capacity.gpus == 0
    assert bundled().types["g4dn.xlarge"].capacity.gpus == 1
