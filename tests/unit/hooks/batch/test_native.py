"""Native hints: from the author to the directives of the batch job."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from lading.hooks.batch.native import over, refuse
from lading.hooks.batch.system import Profile, Unsupported
from lading.hooks.cluster.jobs.config import ClusterConfig
from lading.hooks.cluster.jobs.job_script import ScriptWriter, shape
from lading.hooks.spool.spool import Envelope
from lading.operators import resources
from lading.plugin.manager import batch_systems
from lading.scheduling.hints.hints import HintError, Hints, merge
from lading.scheduling.model.resources import Layout, Resources

SYSTEMS = batch_systems()
PROFILES = {"sge": Profile(parallel_environment="smp")}


def hints(**given: Any) -> Hints:
    return Hints.from_config(resources(**given))


def script(name: str, given: Hints, count: int = 1, **options: Any) -> list[str]:
    table = {"kind": name, "work_dir": "/work", "python": "/py", "node_cpus": 8, "node_memory": 9000, **options}
    config = ClusterConfig.model_validate(table | ({"parallel_environment": "smp"} if name == "sge" else {}))
    asked = Envelope("a", {}, Resources(1, 100), None, None, 0, 0.0, 0.0, given.queue, given.native)
    writer = ScriptWriter(SYSTEMS[name], config, "http://api")
    lines = writer.submission("L1", count, shape(asked, config)).splitlines()
    prefix = f"{SYSTEMS[name].prefix} "
    return [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]


def test_what_an_author_writes() -> None:
    given = resources(queue="long", native={"--account": "astro", "exclusive": True, "nice": 5, "qos": None})
    assert json.loads(json.dumps(given)) == given
    parsed = Hints.from_config(given)
    assert (parsed.queue, parsed.is_native) == ("long", True)
    assert parsed.native == {"account": "astro", "exclusive": True, "nice": "5", "qos": False}
    assert not hints(cpus=1).is_native


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"queue": ""}, "hint queue: '' is not a queue"),
        ({"queue": "a\n#SBATCH --uid=0"}, "is not a queue"),
        ({"queue": 3}, "hint queue: 3 is not a queue"),
        ({"native": "account=astro"}, "is not a mapping; valid: directives by key"),
        ({"native": {"a b": 1}}, "'a b' is not a directive"),
        ({"native": {"account": "astro\n#SBATCH --uid=0"}}, "valid: one line of text"),
        ({"native": {"account": "astro\u2028x"}}, "valid: one line of text"),
        ({"native": {"account": ""}}, "valid: one line of text"),
        ({"native": {"account": ["astro"]}}, "account is"),
        ({"native": {"-A": 1, "A": 2}}, "A is given twice"),
        ({"native": {"time": "2h"}}, "time cannot be a directive of a task: write the hint time"),
        ({"native": {"mem": 100}}, "write the hint memory"),
        ({"native": {"queue": "x"}}, "write the hint queue"),
        ({"native": {f"k{number}": 1 for number in range(51)}}, "at most 50"),
    ],
)
def test_what_cannot_be_a_directive(given: dict[str, Any], words: str) -> None:
    with pytest.raises(HintError) as error:
        hints(**given)
    assert words in str(error.value)


def test_directives_are_merged_one_by_one() -> None:
    of_dag = {"queue": "short", "native": {"account": "astro", "--qos": "low"}, "cpus": 2}
    of_task = {"queue": "long", "native": {"-qos": "high", "exclusive": True}}
    merged = Hints.parse(merge(of_dag, of_task))
    assert (merged.queue, merged.cpus) == ("long", 2)
    assert merged.native == {"account": "astro", "qos": "high", "exclusive": True}
    assert Hints.parse(merge({"native": "x"}, of_task)).native == {"qos": "high", "exclusive": True}


@pytest.mark.parametrize(
    ("name", "native", "directives"),
    [
        ("slurm", {"account": "astro", "exclusive": True}, ["--partition=long", "--account=astro", "--exclusive"]),
        ("pbspro", {"A": "astro", "l": "place=excl"}, ["-q long", "-A astro", "-l place=excl"]),
        ("torque", {"A": "astro"}, ["-q long", "-A astro"]),
        ("lsf", {"P": "astro", "R": "select[mem>100]"}, ["-q long", "-P astro", '-R "select[mem>100]"']),
        ("sge", {"P": "astro", "h_vmem": "4G"}, ["-q long", "-P astro", "-l h_vmem=4G"]),
    ],
)
def test_they_become_directives(name: str, native: dict[str, Any], directives: list[str]) -> None:
    found = script(name, hints(queue="long", native=native), queue="short")
    assert set(directives) <= set(found)
    assert not any("short" in each for each in found)
    assert any("short" in each for each in script(name, hints(), queue="short"))


def test_those_of_the_task_go_over_those_of_the_site() -> None:
    site = {"account": "astro", "qos": "low", "comment": "from the site", "exclusive": True}
    given = hints(native={"A": "bio", "comment": "mine", "exclusive": False})
    found = script("slurm", given, resources=site)
    assert {"-A bio", "--qos=low", "--comment=mine"} <= set(found)
    assert not any(each.startswith(("--account", "--exclusive")) for each in found)
    assert over({"pe": False}, {"pe": "smp 4"}, SYSTEMS["sge"]) == {}


@pytest.mark.parametrize(
    ("name", "key", "kept"),
    [("slurm", "export", "--export=NONE"), ("slurm", "no-requeue", "--no-requeue"), ("pbspro", "r", "-r n")],
)
def test_what_lading_needs_is_not_taken_away(name: str, key: str, kept: str) -> None:
    assert kept in script(name, hints(native={key: False}))


@pytest.mark.parametrize(
    ("name", "native"),
    [
        *(("slurm", {key: "1"}) for key in ("job-name", "J", "partition", "t", "nodes", "mem-per-cpu", "array", "o")),
        *(("slurm", {key: "1"}) for key in ("export", "cpus_per_task", "gres", "error", "wrap")),
        *(("slurm", {key: True}) for key in ("requeue", "no-requeue", "wait", "test-only", "help", "test")),
        *(("slurm", {key: "1"}) for key in ("arra", "job-nam", "cluster")),
        *(("slurm", {key: "all"}) for key in ("clusters", "M")),
        *(("pbspro", {key: "1"}) for key in ("N", "walltime", "select", "J", "S", "r", "o", "e", "q")),
        *(("pbspro", {"l": value}) for value in ("walltime=10", "select=2:ncpus=4")),
        ("pbspro", {"W": "block=true"}),
        *(("torque", {key: "1"}) for key in ("t", "walltime", "nodes", "mem")),
        *(("lsf", {key: "1"}) for key in ("J", "W", "n", "o", "oo", "M", "q")),
        ("lsf", {"R": "span[hosts=1]"}),
        ("lsf", {"K": True}),
        *(("lsf", {key: True}) for key in ("Jname", "qlong", "ofile", "W10", "Kx", "xK", "xqlong")),
        *(("sge", {key: "1"}) for key in ("N", "h_rt", "s_rt", "t", "o", "S", "r", "sync", "w", "jsv")),
        ("sge", {"pe": "mpi 4"}),
    ],
)
def test_what_lading_sets_is_refused(name: str, native: dict[str, Any]) -> None:
    given = Hints.parse({"native": native}).native if "nodes" not in native and "mem" not in native else native
    with pytest.raises(Unsupported, match=next(iter(native))):
        refuse(given, SYSTEMS[name], PROFILES.get(name, Profile()))


@pytest.mark.parametrize(
    ("name", "native"),
    [
        ("slurm", {"account": "astro", "exclusive": True, "constraint": "gpu|fast", "nodelist": "n1", "qos": "x"}),
        ("slurm", {"clusters": "near,far"}),
        ("slurm", {"M": "far"}),
        ("pbspro", {"A": "astro", "p": "5", "W": "umask=077"}),
        ("torque", {"A": "astro", "l": "naccesspolicy=singlejob"}),
        ("lsf", {"P": "astro", "x": True, "R": "select[mem>100]"}),
        ("sge", {"P": "astro", "l": "exclusive=true", "hostname": "n1"}),
    ],
)
def test_what_it_does_not_set_is_taken(name: str, native: dict[str, Any]) -> None:
    refuse(native, SYSTEMS[name], PROFILES.get(name, Profile()))


def test_two_of_them_may_not_contradict_each_other() -> None:
    with pytest.raises(Unsupported, match="conflict"):
        refuse({"account": "a", "A": "b"}, SYSTEMS["slurm"], Profile())


def test_what_got_past_the_policy_is_refused_when_it_is_submitted() -> None:
    with pytest.raises(ValueError, match="job-name"):
        script("slurm", Hints(native={"job-name": "x"}))


def test_old_envelopes_are_read() -> None:
    now = Envelope("a", {}, Resources(1, 100), None, None, 0, 0.0, 0.0, "long", {"A": "x", "exclusive": True})
    assert Envelope.from_json(now.to_json()) == now
    wide = replace(now, layout=Layout(2, 4, 1))
    assert Envelope.from_json(wide.to_json()) == wide
    fields = json.loads(now.to_json())
    del fields["queue"], fields["native"], fields["layout"]
    old = Envelope.from_json(json.dumps(fields))
    assert (old.queue, old.native, old.layout) == (None, {}, None)
