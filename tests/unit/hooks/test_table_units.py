"""Lengths of time and amounts of memory in a site's table: the same units wherever the table is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from lading.hooks.batch.system import WholeNode
from lading.hooks.cluster.jobs.config import ClusterConfig
from lading.hooks.files.table_model import FORMER_KEYS
from lading.hooks.job_scripts.profile import ProfileError, SiteOptions
from lading.hooks.job_scripts.run_site import read_site
from lading.plugin.manager import site_kinds

DURATIONS = {"max_poll_interval", "lost_after", "cancel_unrunnable_after"}
TABLE = {"kind": "slurm", "work_dir": "/w", "python": "/p", "node_cpus": 4, "node_memory": "8 GiB"}


def config(**options: Any) -> ClusterConfig:
    return ClusterConfig(**{**TABLE, **options})


@pytest.mark.parametrize(("text", "seconds"), [("30 s", 30), ("1 min", 60), ("00:00:40", 40), (20, 20), ("20", 20)])
@pytest.mark.parametrize("name", sorted(DURATIONS))
def test_lengths_of_time(name: str, text: object, seconds: int) -> None:
    assert getattr(config(**{name: text}), name) == seconds
    assert getattr(SiteOptions.of_table({name: text}, "table"), name) == seconds


@pytest.mark.parametrize("value", [0, -1, True, "", "5 parsecs", float("inf"), float("nan"), [5], "1e400"])
@pytest.mark.parametrize("name", sorted(DURATIONS))
def test_what_is_no_length_of_time(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        config(**{name: value})
    with pytest.raises(ProfileError, match=name):
        SiteOptions.of_table({name: value}, "table")


def test_every_length_of_time_of_runs_is_read_as_such() -> None:
    kinds = {name: field.annotation for name, field in SiteOptions.model_fields.items()}
    assert {name for name, kind in kinds.items() if kind in (int, float) or float in get_args(kind)} == DURATIONS


def test_memory(tmp_path: Path) -> None:
    for text, mib in (("64 GiB", 65536), (1000, 1000), ("1500", 1500)):
        assert WholeNode.model_validate({"cpus": 4, "memory": text}).memory == mib
    found = config(
        node_memory="8 GiB", memory_overhead="1 GiB", node_disk="1 TiB", max_bundle_size="1 GiB", dags="sync"
    )
    assert (found.node_memory, found.memory_overhead, found.node_disk, found.max_bundle_size) == (
        8192,
        1024,
        2**20,
        1024,
    )
    path = tmp_path / "sites.toml"
    path.write_text(
        '[sites.hpc]\nkind = "slurm"\nlost_after = "5 min"\n[sites.hpc.whole_node]\ncpus = 4\nmemory = "64 GiB"\n'
    )
    site = read_site(path, "hpc")
    assert site.options.lost_after == 300
    assert site.profile.profile.whole_node == WholeNode(cpus=4, memory=65536)


def test_keys_of_before_the_first_release_are_refused_with_their_new_names(tmp_path: Path) -> None:
    path = tmp_path / "sites.toml"
    path.write_text('[sites.hpc]\nkind = "slurm"\nabsence_deadline = "5 min"\npoll_shortest = 2\n')
    with pytest.raises(ProfileError) as raised:
        read_site(path, "hpc")
    assert "[sites.hpc]: absence_deadline is now called lost_after; rename it; poll_shortest is no longer a key" in str(
        raised.value
    )


def test_a_former_key_is_no_key_of_any_kind_and_its_new_name_is_one() -> None:
    models = [site.config_model for site in site_kinds().values()]
    known = {key for model in models for key in model.model_fields}
    for former, name in FORMER_KEYS.items():
        having = [model for model in models if former in model.model_fields]
        assert not having if name is None else not [model for model in having if name in model.model_fields], former
    assert {name for name in FORMER_KEYS.values() if name is not None} <= known
