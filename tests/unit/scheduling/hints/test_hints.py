from __future__ import annotations

import json
import math
import subprocess
import sys
from datetime import timedelta
from fractions import Fraction

import pytest
from hypothesis import given as given_values
from hypothesis import strategies as st

from lading.operators import resources
from lading.scheduling.hints.hints import (
    HINT_KEY,
    HintError,
    Hints,
    JobLimits,
    given,
    merge,
    of_the_run,
    refuse_stray_hints,
    without_replaced,
)
from lading.scheduling.hints.values import HINT_NAMES, checked
from lading.scheduling.model.resources import Layout, Resources

DEFAULTS = Resources(cpus=0.25, memory=512, disk=0, gpus=0)
LEVEL = st.dictionaries(st.sampled_from(HINT_NAMES), st.integers(1, 9))


def test_all_hints() -> None:
    written = resources(cpus=4, memory="8 GiB", disk="1 TiB", gpus=0.5, time="2h", site="local")
    assert Hints.from_config(written) == Hints(cpus=4, memory=8192, disk=2**20, gpus=0.5, time=7200, site="local")


def test_a_range_has_the_least_that_will_do_and_the_wish() -> None:
    hints = Hints.from_config(json.loads(json.dumps(resources(cpus=(4, 16), memory=("2 GiB", "8 GiB"), gpus=(0, 1)))))
    assert hints.resources(DEFAULTS) == Resources(cpus=16, memory=8192, gpus=1)
    assert hints.minimum(hints.resources(DEFAULTS)) == Resources(cpus=4, memory=2048, gpus=0)
    assert hints.limits() == JobLimits(memory=8192)
    for wrong, words in (
        ({"cpus": (16, 4)}, "first the minimum, then the preferred amount"),
        ({"cpus": [1, 2, 3]}, "valid: two amounts"),
        ({"memory": ("1 GiB", "2 * input_size")}, "hint memory: '2 \\* input_size'"),
        ({"time": ("1h", "2h")}, "hint time: "),
    ):
        with pytest.raises(HintError, match=words):
            Hints.parse(wrong)


def test_no_hints() -> None:
    for config in (None, {}, {"KubernetesExecutor": {}}, {HINT_KEY: None}, [], resources()):
        assert Hints.from_config(config) == Hints()
    assert Hints().resources(DEFAULTS) == DEFAULTS


def test_hints_go_over_defaults() -> None:
    assert Hints(memory=2048, gpus=1).resources(DEFAULTS) == Resources(cpus=0.25, memory=2048, disk=0, gpus=1)


def test_zero_is_a_hint() -> None:
    hints = Hints.parse({"disk": 0, "gpus": 0})
    assert hints.resources(Resources(1, 1, disk=100, gpus=1)) == Resources(1, 1, disk=0, gpus=0)
    for name in ("cpus", "memory", "time"):
        with pytest.raises(HintError, match=f"hint {name}: 0 must be more than 0"):
            Hints.parse({name: 0})


def test_only_what_the_author_wrote_is_enforced() -> None:
    assert Hints(cpus=1, disk=1).limits() == JobLimits(memory=None, time=None)
    assert Hints(memory=2048, time=60).limits() == JobLimits(memory=2048, time=60)


def test_none_stands_for_no_hint() -> None:
    assert Hints.parse({"memory": None, "cpus": 1}) == Hints(cpus=1)


def test_unknown_hint() -> None:
    with pytest.raises(HintError) as error:
        Hints.parse({"mem": "8 GiB"})
    assert str(error.value) == (
        "hint mem: there is no such hint; did you mean memory? "
        "Valid: cpus, memory, disk, gpus, time, site, targets, filters, matching, "
        "instance_type, arch, os, features, properties, preferred, capacity_type, container, stage, max_instances, "
        "max_jobs, max_usd, hurry, finish_by, infrastructure_retries, queue, native, nodes, ppn, threads, gang, "
        "partial, spread, on_failure, attempts, ahead"
    )


def test_every_wrong_hint_is_named() -> None:
    with pytest.raises(HintError) as error:
        Hints.parse({"cpus": -1, "memory": "8 Gob", "time": "soon", "site": "", "xyzzy": 1, "gpus": 1})
    for words in ("cpus: -1", "memory: '8 Gob'", "time: 'soon'", "site: ''", "hint xyzzy"):
        assert words in str(error.value)
    assert "gpus:" not in str(error.value)


@pytest.mark.parametrize("value", ["cpus=4", 4, ["cpus"], True])
def test_something_else_than_hints(value: object) -> None:
    with pytest.raises(HintError, match="executor_config=resources"):
        Hints.from_config({HINT_KEY: value})


@given_values(st.lists(LEVEL, max_size=4))
def test_levels_merge_key_by_key(levels: list[dict[str, object]]) -> None:
    copies = [dict(level) for level in levels]
    merged = merge(*levels)
    for name in HINT_NAMES:
        values = [level[name] for level in levels if name in level]
        assert merged.get(name) == (values[-1] if values else None)
    assert levels == copies


@given_values(st.lists(LEVEL, min_size=1, max_size=4))
def test_merging_an_inherited_level_again_changes_nothing(levels: list[dict[str, object]]) -> None:
    # A task without an executor_config of its own has that of its Dag or task group.
    assert merge(*levels, merge(*levels)) == merge(*levels)


@given_values(
    st.dictionaries(
        st.sampled_from((*HINT_NAMES, "mem", "queue")),
        st.one_of(
            st.text(), st.floats(), st.integers(), st.booleans(), st.none(), st.timedeltas(), st.lists(st.integers())
        ),
    )
)
def test_resources_never_raises_and_is_plain_json(hints: dict[str, object]) -> None:
    written = resources(**hints)
    assert json.loads(json.dumps(written, allow_nan=False)) == written
    assert set(given(written)) >= {name for name, value in hints.items() if value is not None}


def test_resources_keeps_wrong_hints_for_the_policy() -> None:
    written = resources(memory=math.nan, cpus=Fraction(1, 2), time=[1], mem=None)
    with pytest.raises(HintError) as error:
        Hints.from_config(written)
    for words in ("memory: 'nan'", "cpus: 'Fraction(1, 2)'", "time: '[1]'", "hint mem:"):
        assert words in str(error.value)


def test_resources_turns_a_timedelta_into_seconds() -> None:
    assert resources(time=timedelta(hours=2)) == {"lading": {"time": 7200.0}}
    assert Hints.from_config(resources(time=timedelta(milliseconds=1500))).time == 2


def test_a_dag_file_pays_nothing_for_the_import() -> None:
    heavy = "{'airflow', 'pydantic', 'numpy', 'sqlalchemy'}"
    script = f"import sys, lading.operators, lading.scheduling.hints.hints; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


class Facts:
    """A job whose inputs are 3 GiB of files, on its second try."""

    attempt, map_index, runtime, input_size = 2, 0, 60.0, 3 * 2**30

    def value(self, name: str) -> object:
        return {"samples": [1, 2, 3], "none": 0}[name]

    def size(self, name: str) -> int:
        return 0


def test_expressions_are_hints_of_one_job() -> None:
    hints = Hints.parse(
        {
            "cpus": "min(8, len(samples))",
            "memory": "2 * input_size + 1 GiB",
            "time": "30 min * attempt",
            "disk": "1 GiB",
        }
    )
    assert (hints.cpus, hints.memory, hints.time, hints.disk) == (None, None, None, 1024)
    assert set(hints.expressions) == {"cpus", "memory", "time"}
    assert hints.evaluated(Facts()) == Hints(cpus=3, memory=7168, time=3600, disk=1024)
    assert hints.evaluated(Facts()).limits() == JobLimits(memory=7168, time=3600)


def test_expressions_without_a_job_are_values() -> None:
    assert Hints.parse({"memory": "2 * 1 GiB", "cpus": "2 + 2", "time": "1 h + 30 min"}) == Hints(
        cpus=4, memory=2048, time=5400
    )


def test_an_empty_file_is_no_error() -> None:
    assert Hints.parse({"memory": 'inputs["a"].size * 2', "disk": 'inputs["a"].size'}).evaluated(Facts()) == Hints(
        memory=1, disk=0
    )


@pytest.mark.parametrize(
    ("hints", "words"),
    [
        ({"memory": "8 Gob"}, "hint memory: '8 Gob' is not an amount of memory"),
        ({"memory": "-4"}, "hint memory: '-4' must be more than 0"),
        ({"cpus": "many"}, "hint cpus: 'many' is not a number"),
        ({"memory": "2 * inputsize("}, "hint memory: '2 * inputsize(' cannot be read"),
        ({"memory": "open('x') * 2"}, "hint memory: \"open('x') * 2\": there is no function open"),
        ({"max_instances": 0}, "hint max_instances: 0 is not a number of machines"),
        ({"max_instances": "input_size"}, "hint max_instances: 'input_size' is not a number of machines"),
        (
            {"sbg:maxNumberOfParallelInstances": "x"},
            "hint sbg:maxNumberOfParallelInstances: 'x' is not a number of machines",
        ),
        ({"instance_type": 3}, "hint instance_type: 3 is not an instance type"),
        ({"site": "2 * input_size"}, "hint site: '2 * input_size' is not the name of a site"),
    ],
)
def test_expressions_that_are_wrong(hints: dict[str, object], words: str) -> None:
    with pytest.raises(HintError) as error:
        Hints.parse(hints)
    assert str(error.value).startswith(words)


@pytest.mark.parametrize(
    ("hints", "words"),
    [
        ({"memory": "input_size - 9 GiB"}, "hint memory: -6144.0 must be more than 0"),
        ({"cpus": "none * 1"}, "hint cpus: 0 must be more than 0"),
        ({"time": "input_size"}, "hint time: 'input_size': the result is bytes, expected seconds"),
        ({"memory": "input_size * 10 ** 9"}, "must be less than 2 PiB"),
    ],
)
def test_results_that_are_wrong(hints: dict[str, object], words: str) -> None:
    with pytest.raises(HintError) as error:
        Hints.parse(hints).evaluated(Facts())
    assert words in str(error.value)


def test_auto_is_decided_later_and_a_hint_of_three_only() -> None:
    parsed = Hints.from_config(resources(memory="auto", cpus=" AUTO ", time="1h"))
    assert parsed == Hints(time=3600, auto={"memory": None, "cpus": None})
    assert (parsed.resources(DEFAULTS), parsed.limits()) == (DEFAULTS, JobLimits(time=3600))
    for name in ("disk", "gpus"):
        with pytest.raises(HintError, match=f"hint {name}: 'auto'"):
            Hints.parse({name: "auto"})
    with pytest.raises(HintError, match="hint cpus: it cannot be combined with nodes"):
        Hints.parse({"cpus": "auto", "nodes": 2})


def test_names_of_seven_bridges() -> None:
    level = {"sbg:AWSInstanceType": "c5.xlarge;ebs-gp2;1024", "sbg:maxNumberOfParallelInstances": "4"}
    assert Hints.parse(level) == Hints(instance_type="c5.xlarge", max_instances=4)
    assert merge(level, {"max_instances": 2}) == {"instance_type": "c5.xlarge;ebs-gp2;1024", "max_instances": 2}
    assert Hints.parse(of_the_run(level)) == Hints(instance_type="c5.xlarge", run_max_instances=4)


def test_a_layout_says_how_many_cpus_there_are_on_a_node() -> None:
    hints = Hints.from_config(resources(nodes=4, ppn="2", threads=16, memory="8 GiB", gpus=1))
    assert hints.layout == Layout(4, 2, 16)
    assert hints.resources(DEFAULTS) == Resources(cpus=32, memory=8192, disk=0, gpus=1)
    assert Hints.parse({"nodes": 2}).layout == Layout(2, 1, 1)
    assert Hints.parse({"nodes": 2}).resources(DEFAULTS).cpus == 1
    assert Hints.parse({"threads": 3}).layout == Layout(1, 1, 3)
    assert Hints.parse({"cpus": 2}).layout is None


def test_a_range_of_nodes() -> None:
    for written in ((2, 8), [2, 8], ["2", "8"]):
        hints = Hints.from_config(resources(nodes=written, ppn=4, memory=("4 GiB", "8 GiB")))  # type: ignore[arg-type]
        assert hints.layout == Layout(8, 4, 1, least_nodes=2)
        assert hints.minimum(hints.resources(DEFAULTS)) == Resources(cpus=4, memory=4096)
    assert Hints.parse({"nodes": (2, 8), "max_instances": 4}).layout == Layout(4, 1, 1, least_nodes=2)
    assert Hints.parse({"nodes": (2, 8), "run_max_instances": 2}).layout == Layout(2, 1, 1, least_nodes=2)
    assert Hints.parse({"nodes": (2, 8), "max_instances": 9}).layout == Layout(8, 1, 1, least_nodes=2)


@pytest.mark.parametrize(
    ("hints", "words"),
    [
        ({"nodes": 0}, "hint nodes: 0 is not a number of nodes; valid: a whole number of at least 1"),
        ({"nodes": 1.5}, "hint nodes: 1.5 is not a number of nodes"),
        ({"nodes": True}, "hint nodes: True is not a number of nodes"),
        ({"nodes": "2 * attempt"}, "hint nodes: '2 * attempt' is not a number of nodes"),
        (
            {"nodes": (0, 8)},
            "hint nodes: 0 is not a number of nodes; valid: a whole number of at least 1, or two of them as a range: "
            "(2, 8)",
        ),
        ({"nodes": (2, True)}, "hint nodes: True is not a number of nodes"),
        ({"nodes": (2, 2.5)}, "hint nodes: 2.5 is not a number of nodes"),
        ({"nodes": (8, 2)}, "hint nodes: (8, 2) is not a range; valid: first the minimum, then the preferred amount"),
        ({"nodes": [2, 4, 8]}, "hint nodes: [2, 4, 8] is not a range; valid: two amounts, the minimum and"),
        ({"nodes": "2-8"}, "hint nodes: '2-8' is not a number of nodes"),
        ({"nodes": (3, 8), "max_instances": 2}, "hint nodes: 3 is more than max_instances, which allows 2 machines"),
        ({"ppn": (2, 4)}, "hint ppn: "),
        ({"ppn": "many"}, "hint ppn: 'many' is not a number of processes on a node"),
        ({"threads": -1}, "hint threads: -1 is not a number of threads of a process"),
        (
            {"nodes": 2, "ppn": 4, "cpus": 4},
            "hint cpus: it cannot be combined with nodes and ppn, because ppn × threads are",
        ),
        ({"threads": 2, "cpus": "attempt * 1"}, "valid: cpus alone, or nodes, ppn, threads without it"),
    ],
)
def test_layouts_that_make_no_sense(hints: dict[str, object], words: str) -> None:
    with pytest.raises(HintError) as error:
        Hints.parse(hints)
    assert words in str(error.value)


def test_a_layout_and_the_cpus_of_another_level_replace_each_other() -> None:
    dag, group, task = {"cpus": 2, "memory": 1}, {"nodes": 2, "ppn": 4}, {"cpus": 1}
    assert merge(*without_replaced(dag, {"nodes": 2})) == {"memory": 1, "nodes": 2}
    assert merge(*without_replaced(dag, group, task)) == {"memory": 1, "cpus": 1}
    assert merge(*without_replaced(group, {"threads": 2})) == {"nodes": 2, "ppn": 4, "threads": 2}
    assert merge(*without_replaced(dag, {"nodes": None})) == {**dag, "nodes": None}
    with pytest.raises(HintError, match="hint cpus"):
        Hints.parse(merge(*without_replaced(dag, {"nodes": 2, "cpus": 2})))


@pytest.mark.parametrize("name", ["a\nb", "x" * 4000, "memory\x1b[2J", "\ud800", 7, "\u202ecpus"])
def test_the_name_of_an_unknown_hint_is_quoted_in_one_short_line(name: object) -> None:
    with pytest.raises(HintError) as caught:
        Hints.parse({name: 1})  # type: ignore[dict-item]
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 160 + len(", ".join(HINT_NAMES)), "the name is cut, whatever hints there are"
    assert "valid: cpus, memory" in message.lower(), "after a suggestion, a sentence begins"


@pytest.mark.parametrize(
    "hint", ["cpus", "memory", "time", "max_instances", "site", "queue", "native", "instance_type"]
)
@pytest.mark.parametrize(
    "value",
    ["x\n" * 4000, 10**5000, [0] * 10**6, b"\0" * 4000, {"a\nb": 10**5000}, "\ud800"],
    ids=["lines", "digits", "list", "bytes", "mapping", "surrogate"],
)
def test_a_wrong_value_is_quoted_in_one_short_line(hint: str, value: object) -> None:
    with pytest.raises(HintError) as caught:
        Hints.parse({hint: value})
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 700


@pytest.mark.parametrize(
    ("hints", "parsed"),
    [
        ({"arch": "amd64"}, Hints(arch="x86_64")),
        ({"arch": " ARM64 "}, Hints(arch="aarch64")),
        ({"arch": "Any"}, Hints(arch="any")),
        ({"arch": "ppc64le", "os": "Linux"}, Hints(arch="ppc64le", os="linux")),
        ({"features": ["nvme", "NVIDIA A10G", "nvme"]}, Hints(features=frozenset(["nvme", "NVIDIA A10G"]))),
        ({"features": "avx512, nvme"}, Hints(features=frozenset(["avx512", "nvme"]))),
        ({"features": []}, Hints()),
        ({"properties": {"license": " matlab ", "cuda": 12}}, Hints(features=frozenset(["license=matlab", "cuda=12"]))),
        ({"features": "nvme", "properties": {"a": "b"}}, Hints(features=frozenset(["nvme", "a=b"]))),
        ({"capacity_type": "Spot", "max_jobs": "3"}, Hints(capacity_type="spot", max_jobs=3)),
        ({"nodes": 2, "max_instances": 2}, Hints(nodes=2, max_instances=2)),
    ],
)
def test_traits_that_distinguish_machines(hints: dict[str, object], parsed: Hints) -> None:
    assert Hints.parse(hints) == parsed


@pytest.mark.parametrize(
    ("hints", "words"),
    [
        ({"arch": "x86 64"}, "hint arch: 'x86 64' is not an architecture; valid: x86_64, aarch64"),
        ({"os": 7}, "hint os: 7 is not an operating system; valid: linux"),
        ({"features": [1]}, "hint features: [1] is not a list of features"),
        ({"features": "avx512,"}, "hint features: '' is not a feature"),
        ({"features": [f"f{number}" for number in range(33)]}, "hint features: there are 33 features; valid: at most"),
        ({"features": ["license=matlab"]}, "hint features: 'license=matlab' is not a feature"),
        (
            {"properties": ["license"]},
            "hint properties: ['license'] are not properties; valid: names with values, such",
        ),
        ({"properties": {"a=b": "c"}}, "hint properties: 'a=b' is not the name of a property; valid: 1 to 32 letters"),
        ({"properties": {"a": "b,c"}}, "hint properties: a = 'b,c' is not the value of a property; valid: a whole"),
        ({"properties": {"a": True}}, "hint properties: a = True is not the value of a property"),
        ({"properties": {f"p{each}": 1 for each in range(33)}}, "hint properties: there are 33 properties; valid: at"),
        ({"capacity_type": "reserved"}, "hint capacity_type: 'reserved' is not a capacity type; valid: on-demand or"),
        ({"max_jobs": 0}, "hint max_jobs: 0 is not a number of jobs"),
        (
            {"nodes": 3, "run_max_instances": 2},
            "hint nodes: 3 is more than max_instances of the Dag, which allows 2 machines",
        ),
    ],
)
def test_traits_that_distinguish_no_machines(hints: dict[str, object], words: str) -> None:
    with pytest.raises(HintError) as error:
        Hints.parse(hints)
    assert str(error.value).startswith(words)


def test_features_of_a_task_are_in_the_place_of_those_of_its_dag() -> None:
    assert merge({"features": ["nvme"], "cpus": 2}, {"features": ["avx512"]}) == {"features": ["avx512"], "cpus": 2}
    assert of_the_run({"max_jobs": 4, "max_instances": 2}) == {"run_max_jobs": 4, "run_max_instances": 2}


def test_features_are_in_one_order_whatever_they_are_given_in() -> None:
    assert resources(features={"b", "a"}) == resources(features=("b", "a")) == {HINT_KEY: {"features": ["a", "b"]}}


@pytest.mark.parametrize(
    ("value", "hurry"), [("cheap", 0.0), ("balanced", 1.0), ("fast", 10.0), (2, 2.0), ("0.5", 0.5)]
)
def test_a_hurry_is_a_number_or_a_word_for_one(value: object, hurry: float) -> None:
    assert Hints.parse({"hurry": value}).hurry == hurry


@pytest.mark.parametrize("value", [-1, 101, "slow", True, float("nan")])
def test_a_hurry_that_is_none_names_those_there_are(value: object) -> None:
    with pytest.raises(
        HintError, match=r"hint hurry: .* is not a value of hurry; valid: 0 to 100, or one of cheap, balanced, fast"
    ):
        Hints.parse({"hurry": value})


@pytest.mark.parametrize("cpus", [1e-9, "0.001", 0.0099, "1 / 1000"])
def test_next_to_no_cpus_are_refused_with_the_floor(cpus: object) -> None:
    with pytest.raises(HintError, match=r"hint cpus: .* is too few cpus; valid: 0.01 or more"):
        Hints.parse({"cpus": cpus})


def test_an_expression_for_a_small_file_gives_the_least_number_of_cpus() -> None:
    assert checked("cpus", 1e-9) == 0.01
    assert Hints.parse({"cpus": 0.01}).cpus == 0.01


@pytest.mark.parametrize(
    "config", [{"cpus": 1}, {"cpu": "256"}, {"mem": 4}, {"Memory": 4}, {"gpu": 1, "pod_override": None}, {"node": 2}]
)
def test_hints_outside_the_key_of_lading_are_refused(config: dict[str, object]) -> None:
    with pytest.raises(HintError, match=r"outside resources\(\.\.\.\), where Lading ignores it; valid: "):
        refuse_stray_hints(config)
    refuse_stray_hints({**resources(), **config})


@pytest.mark.parametrize(
    "key",
    # Kubernetes; Amazon ECS; AWS Batch; Celery and Kubernetes; of somebody else
    ["pod_override", "pod_template_file", "KubernetesExecutor", "overrides", "cluster", "capacityProviderStrategy",
     "launchType", "platformVersion", "taskDefinition", "networkConfiguration", "containerOverrides", "nodeOverrides",
     "jobQueue", "timeout", "retryStrategy", "tags", "a", "", 3],
)  # fmt: skip
def test_keys_of_other_executors_are_not_ours(key: object) -> None:
    refuse_stray_hints({key: 1})


def test_an_executor_config_that_is_no_dict_has_no_hints() -> None:
    refuse_stray_hints(None)
    refuse_stray_hints(["cpus"])
