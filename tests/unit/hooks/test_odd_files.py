"""Whatever lies in a file that Lading keeps, or that a site sends: its reader raises nothing but what it promises."""

from __future__ import annotations

import contextlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lading.executors.agent import container
from lading.executors.agent.supervisor import AgentJob, AgentJobFailed
from lading.hooks.cleanup import leftovers
from lading.hooks.cluster.allocations import remote_steps
from lading.hooks.cluster.jobs.excluded_nodes import ExcludedNodes
from lading.hooks.ec2 import boot, offers
from lading.hooks.ec2.boot import PRICE
from lading.hooks.ec2.config import EC2Config
from lading.hooks.job_scripts import layout
from lading.hooks.job_scripts.run_store import RunStore
from lading.hooks.machines import introduction
from lading.hooks.machines.introduction import MachineFacts
from lading.hooks.polling.task_logs import LogCopies
from lading.hooks.spool.spool import Spool
from lading.hooks.ssh import steps
from lading.hooks.ssh.answer import CommandResult, TransportError
from lading.scheduling.model.resources import Resources

NEST = "[" * 100_000
TABLE: dict[str, Any] = {
    "kind": "ec2",
    "subnets": ("subnet-0a1b2c3d",),
    "ami": {"x86_64": "ami-0a1b2c3d"},
    "work_dir": "/home/ec2-user/lading",
    "python": "/opt/airflow/bin/python",
}
CONFIG = EC2Config(**TABLE)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just(10**400)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=5,
)
patient = settings(suppress_health_check=list(HealthCheck), deadline=None)


def nearly(*names: str) -> st.SearchStrategy[str]:
    """Texts: objects that have some of these names with any values, and what is no JSON."""
    inner = st.dictionaries(st.sampled_from(names), VALUES)
    found = st.one_of(st.dictionaries(st.sampled_from(names), st.one_of(VALUES, inner)), VALUES)
    return st.one_of(found.map(json.dumps), st.text(max_size=10), st.just(NEST))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("odd")


@patient
@given(nearly("host", "boot_id", "arch", "os", "capacity", "cpus", "memory"))
def test_what_was_known_of_a_machine(folder: Path, text: str) -> None:
    (folder / "facts").write_text(text, errors="replace")
    found = introduction.load_facts(folder / "facts")
    assert found is None or found.capacity.memory >= 0


def test_what_was_known_of_a_machine_is_read_as_it_was_kept(tmp_path: Path) -> None:
    known = MachineFacts("h", "b", "x86_64", "linux", Resources(2.5, 10, 3, 1))
    introduction.save_facts(tmp_path / "facts", known)
    assert introduction.load_facts(tmp_path / "facts") == known


@patient
@given(nearly("known", "excluded", "until", "why"))
def test_nodes_that_were_excluded(folder: Path, text: str) -> None:
    (folder / "nodes").write_text(text, errors="replace")
    ExcludedNodes(60, folder / "nodes").reasons()


@patient
@given(nearly("record", "token", "folder", "jobname", "output"))
def test_records_of_runs(folder: Path, text: str) -> None:
    (folder / "runs").mkdir(exist_ok=True)
    (folder / "runs" / "a.json").write_text(text, errors="replace")
    RunStore(folder / "runs").living()


@patient
@given(st.lists(nearly("a", "b"), max_size=3))
def test_how_far_logs_were_copied(folder: Path, lines: list[str]) -> None:
    well = json.dumps({"well": [3, 4]})
    (folder / "copies").write_text("\n".join([*(line.replace("\n", " ") for line in lines), well]), errors="replace")
    copies = LogCopies(folder, folder / "copies")
    assert copies.offset("well") == 4, "a line that makes no sense costs itself alone"
    assert all(isinstance(copies.offset(token), int) for token in copies.tokens)


@patient
@given(nearly("ami", "roots", "x86_64"))
def test_sizes_of_images(folder: Path, text: str) -> None:
    (folder / offers.ROOTS).write_text(text, errors="replace")
    assert all(size > 0 for size in offers.kept_roots(folder, CONFIG).values())


@pytest.mark.parametrize("price", ["nan", "inf", "-1", "1e400", "x", ""])
def test_a_price_in_a_tag_that_makes_no_sense_is_none(price: str) -> None:
    assert boot.price({PRICE: price}) is None
    assert boot.price({PRICE: "0.25"}) == 0.25


NAMES = "exit_code", "reason", "cause", "outputs", "cpu_seconds", "peak", "is_out_of_memory"
WELL = {
    "exit_code": 0,
    "reason": None,
    "cause": "error",
    "outputs": {"/a": 1},
    "cpu_seconds": 1.5,
    "peak": 2,
}


def concluded(folder: Path, text: str) -> AgentJob:
    job = AgentJob("a", Spool(folder))
    job.folder.root.mkdir(parents=True, exist_ok=True)
    container.path_of(job.folder.root).write_text(text, errors="replace")
    container.conclude(job, 0, "docker", is_killed=False)
    return job


@patient
@given(st.dictionaries(st.sampled_from(NAMES), VALUES))
def test_what_a_job_has_left_in_its_container(folder: Path, odd: dict[str, Any]) -> None:
    with contextlib.suppress(AgentJobFailed):
        job = concluded(folder, json.dumps({**WELL, **odd}))
        assert job.used is not None
        assert job.used[0] < float("inf")


@pytest.mark.parametrize("text", [NEST, "", "[]", "{}", json.dumps({**WELL, "cpu_seconds": float("inf")})])
def test_what_makes_no_sense_in_a_container_fails_its_job_with_a_reason(tmp_path: Path, text: str) -> None:
    with pytest.raises(AgentJobFailed, match="the outcome that the container left cannot be read"):
        concluded(tmp_path, text)
    assert concluded(tmp_path, json.dumps(WELL)).outputs == {"/a": 1}


@given(st.lists(st.text(max_size=6) | st.sampled_from(["9" * 5000, "²", "-", "a\t1\t2\t3\t4"]), max_size=4))
def test_what_was_cleaned(parts: list[str]) -> None:
    with contextlib.suppress(TransportError):
        leftovers.swept(CommandResult(0, "\t".join(parts) + "\n.\n", ""))


@pytest.mark.parametrize("read", [layout.sentinel, layout.in_job, layout.times])
@given(st.lists(st.text(max_size=6) | st.sampled_from(["0", "1", "9" * 5000, "²", "1700000000"]), max_size=4))
def test_what_a_script_has_left(read: Callable[[str], object], words: list[str]) -> None:
    read(" ".join(words))


def packed_up(values: dict[str, str]) -> bytes:
    return ("{" + ", ".join(f'"{name}": {value}' for name, value in values.items()) + "}").encode()


@pytest.mark.parametrize("odd", ["", "nan", "NaN", "1e999", "9" * 5000, '"x"', "null", "[]"])
@pytest.mark.parametrize("field", ["now", "left"])
def test_an_agent_that_began_at_no_time_has_not_begun(field: str, odd: str) -> None:
    well = {"host": '"h"', "now": "1700000000.0", "left": "60.0"}
    assert remote_steps.read_up(packed_up(well)) is not None
    assert remote_steps.read_up(packed_up(well | {field: odd})) is None


def packed(*members: tarfile.TarInfo) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for member in members:
            archive.addfile(member)
    return file.getvalue()


@given(st.integers(0, 1535), st.binary(max_size=20))
def test_tars_that_are_damaged(at: int, noise: bytes) -> None:
    whole = packed(tarfile.TarInfo("a"), tarfile.TarInfo("b"))
    with contextlib.suppress(ValueError):
        steps.read_tar(whole[:at] + noise + whole[at + len(noise) :])


def test_a_second_name_of_nothing_is_a_value_error() -> None:
    link = tarfile.TarInfo("a")
    link.type, link.linkname = tarfile.LNKTYPE, "nowhere"
    with pytest.raises(ValueError, match="damaged"):
        steps.read_tar(packed(link))
