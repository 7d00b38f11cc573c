"""The task policy inside a real DagBag; an Airflow process takes seconds to begin, so one parses all Dags, in forks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.clusters.published import MACHINE, site

# A process that has imported Airflow, and parses each folder of Dags, with an environment, in a fork of itself.
PARSER = """
import json, os, sys, traceback
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization

def parse(home):
    bag = DagBag(f"{home}/dags")
    dags = [
        DagSerialization.from_dict(json.loads(json.dumps(DagSerialization.to_dict(dag)))) for dag in bag.dags.values()
    ]
    found = {
        "errors": {path.rpartition("/")[2]: error for path, error in bag.import_errors.items()},
        "tasks": {f"{dag.dag_id}.{task.task_id}": task.executor_config for dag in dags for task in dag.tasks},
        "defaults": {dag.dag_id: dag.default_args for dag in bag.dags.values()},
    }
    with open(f"{home}/parsed.json", "w") as stream:
        json.dump(found, stream)

for line in sys.stdin:
    home, environment = json.loads(line)
    pid = os.fork()
    if pid == 0:
        log = os.open(f"{home}/log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(environment)
        status = 1
        try:
            parse(home)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""

LEVELS = """
from datetime import timedelta
from airflow.sdk import DAG, TaskGroup, task, task_group
from airflow.providers.standard.operators.bash import BashOperator
from lading.operators import resources

with DAG("levels", default_args={"executor_config": {**resources(cpus=2, memory="1 GiB"), "other": {"a": 1}}}):
    BashOperator(task_id="inherits", bash_command="true")
    BashOperator(task_id="own_config", bash_command="true", executor_config={"KubernetesExecutor": {"b": 2}})
    BashOperator(task_id="own_hints", bash_command="true", executor_config=resources(memory="2 GiB", time="2h"))
    BashOperator.partial(task_id="mapped", executor_config=resources(gpus=1)).expand(bash_command=["true"])
    BashOperator.partial(task_id="mapped_inherits").expand(bash_command=["true"])

    @task
    def flow_inherits(): ...

    @task(executor_config=resources(disk="1 GiB"))
    def flow(x=None): ...

    flow_inherits()
    flow()
    flow.override(task_id="flow_mapped").expand(x=[1, 2])

    with TaskGroup("outer", default_args={"executor_config": resources(cpus=3)}):
        BashOperator(task_id="inherits", bash_command="true")
        with TaskGroup("inner", default_args={"executor_config": resources(time=timedelta(hours=1))}):
            flow.override(task_id="mapped").expand(x=[1, 2])

    @task_group(default_args={"executor_config": resources(gpus=1)})
    def mapped_group(x):
        flow.override(task_id="flow")(x)

    mapped_group.expand(x=[1, 2])
"""

LEVELS_MERGED = {
    "inherits": {"lading": {"cpus": 2, "memory": "1 GiB"}, "other": {"a": 1}},
    "own_config": {"lading": {"cpus": 2, "memory": "1 GiB"}, "KubernetesExecutor": {"b": 2}},
    "own_hints": {"lading": {"cpus": 2, "memory": "2 GiB", "time": "2h"}},
    "mapped": {"lading": {"cpus": 2, "memory": "1 GiB", "gpus": 1}},
    "mapped_inherits": {"lading": {"cpus": 2, "memory": "1 GiB"}, "other": {"a": 1}},
    "flow_inherits": {"lading": {"cpus": 2, "memory": "1 GiB"}, "other": {"a": 1}},
    "flow": {"lading": {"cpus": 2, "memory": "1 GiB", "disk": "1 GiB"}},
    "flow_mapped": {"lading": {"cpus": 2, "memory": "1 GiB", "disk": "1 GiB"}},
    "outer.inherits": {"lading": {"cpus": 3, "memory": "1 GiB"}},
    "outer.inner.mapped": {"lading": {"cpus": 3, "memory": "1 GiB", "time": 3600.0, "disk": "1 GiB"}},
    "mapped_group.flow": {"lading": {"cpus": 2, "memory": "1 GiB", "gpus": 1, "disk": "1 GiB"}},
}

NATIVE = """
from airflow.sdk import DAG
from airflow.providers.standard.operators.bash import BashOperator
from lading.operators import resources
of_dag = resources(queue="short", native={"account": "astro", "qos": "low"})
of_task = resources(queue="long", native={"qos": "high", "exclusive": True}, site="hpc")
with DAG("native", default_args={"executor_config": of_dag}):
    BashOperator(task_id="inherits", bash_command="true")
    BashOperator(task_id="own", bash_command="true", queue="of_airflow", executor_config=of_task)
with DAG("mpi", default_args={"executor_config": resources(cpus=2, memory=50)}):
    BashOperator(task_id="wide", bash_command="true", executor_config=resources(site="hpc", nodes=2, ppn=2))
"""

PLAIN = """
from airflow.sdk import DAG
from airflow.providers.standard.operators.bash import BashOperator
from lading.operators import resources
with DAG("plain"):
    BashOperator(task_id="none", bash_command="true")
    BashOperator(task_id="other", bash_command="true", executor_config={"a": 1})
    BashOperator(task_id="list", bash_command="true", executor_config=["a"])
    both = {**resources(cpus=1), "cpu": "256"}
    BashOperator(task_id="both", bash_command="true", executor_config=both)
"""

# Patterns of a Dag are for inputs that each task can be given, also where one of them leaves some out.
OPTIONAL = """
from airflow.sdk import DAG, task
from lading.operators import resources
of_dag = resources(targets=["small", "wide"], matching={"small": [{"sample": "^big_"}, {"reference": "^hg"}]})
with DAG("optional", default_args={"executor_config": of_dag}):
    @task
    def align(sample, reference=None): ...
    align("big_1")
    align.override(task_id="mapped").expand(sample=["big_1", "big_2"])
"""

# To another executor nothing is added: some pass every key on, and what stands there is not ours to judge.
ELSEWHERE = """
from airflow.sdk import DAG
from airflow.providers.standard.operators.bash import BashOperator
from lading.operators import resources
with DAG("elsewhere", default_args={"executor_config": resources(cpus=10000, nonsense=1)}):
    BashOperator(task_id="t", bash_command="true", executor="LocalExecutor", executor_config={"cpu": "256"})
"""


def wrong(hints: str, defaults: str = "{}") -> str:
    return textwrap.dedent(f"""
        from airflow.sdk import DAG
        from airflow.providers.standard.operators.bash import BashOperator
        from lading.operators import resources
        with DAG("d", default_args={defaults}):
            BashOperator(task_id="fine", bash_command="true")
            BashOperator.partial(task_id="t", executor_config={hints}).expand(bash_command=["true"])
    """)


WRONG = {
    "unit": ('resources(memory="8 Gob", cpus=-1)', ["memory: '8 Gob'", '"8 GiB"', "cpus: -1 must be more than 0"]),
    "name": ('resources(mem="8 GiB")', ["hint mem", "mean memory? Valid: cpus, memory, disk, gpus, time, site"]),
    "outside": (
        '{"cpu": 4, "memory": "8 GiB"}',
        [
            "executor_config has 'cpu', 'memory' outside resources(...)",
            "executor_config=resources(cpus=..., memory=...",
        ],
    ),
    "shape": ('{"lading": "cpus=4"}', ["'cpus=4'", "executor_config=resources(cpus=2"]),
    "expression": ('resources(memory="2 *")', ["hint memory: '2 *' cannot be read"]),
    "input": (
        'resources(memory="len(samples) * 1 GiB")',
        [
            "hint memory: 'len(samples) * 1 GiB' uses samples, which is not an input of the task; its inputs: "
            "bash_command"
        ],
    ),
    "input_of_a_pattern": (
        'resources(targets=["small"], matching={"small": {"smaple": "^big_"}})',
        ["hint matching: 'smaple', which has a pattern for target 'small', is not an input of the task; its inputs: "],
    ),
    "pattern": (
        'resources(targets=["small"], matching={"small": {"bash_command": "(?=a)b"}})',
        ["hint matching: '(?=a)b', of input 'bash_command'", "invalid perl operator: (?=; valid is the syntax of RE2"],
    ),
    "instance_type": (
        'resources(instance_type="c7i.large")',
        ["hint instance_type: 'c7i.large' is not available, valid: c7i.xlarge, r7i.large"],
    ),
    "much_for_type": (
        'resources(instance_type="c7i.xlarge", cpus=8)',
        ["hint cpus: 8 is more than instance type 'c7i.xlarge' of site 'small' can ever give: small has 4 cpus"],
    ),
    "site": ('resources(site="moon")', ["hint site: there is no site 'moon'", "valid: small, wide, hpc, packed, sge"]),
    "queue_at_no_batch_site": (
        'resources(site="small", queue="long")',
        ["hint queue: only batch sites have queues and native directives, and site 'small' is not one"],
    ),
    "directive_at_no_batch_site": (
        'resources(site="wide", native={"account": "a"})',
        ["hint native: only batch sites"],
    ),
    "directive_of_lading": (
        'resources(site="hpc", native={"account": "astro", "job-name": "mine"})',
        [
            "hint native: at site 'hpc', job-name (--job-name=mine) duplicates what Lading sets from other hints and "
            "the site"
        ],
    ),
    "directive_without_site": ('resources(native={"time-min": "x", "ntasks-per-node": 2})', ["ntasks-per-node"]),
    "directive_of_two_lines": ('resources(native={"account": "a\\n#SBATCH -N 9"})', ["one line of text"]),
    "nodes_at_no_batch_site": (
        'resources(site="small", nodes=2)',
        ["hint nodes: only a batch site with mode = 'job' has nodes, ppn, threads, and site 'small' is not one"],
    ),
    "nodes_in_allocations": ('resources(site="packed", ppn=2)', ["hint ppn: only a batch site with mode = 'job'"]),
    "nodes_with_cpus": ('resources(site="hpc", nodes=2, cpus=2)', ["hint cpus: it cannot be combined with nodes"]),
    "nodes_with_type": (
        'resources(instance_type="c7i.xlarge", nodes=2)',
        ["hint nodes: only a batch site with mode = 'job'"],
    ),
    "much_on_a_node": (
        'resources(site="hpc", nodes=2, ppn=2, threads=2)',
        ["hint ppn × threads: 4 is more than site 'hpc' can ever give: hpc has 2 cpus"],
    ),
    "slots_without_environment": (
        'resources(site="sge", nodes=2)',
        ["hint nodes: at site 'sge', ", "parallel_environment"],
    ),
    "much_for_batch": (
        'resources(queue="long", cpus=8)',
        ["hint cpus: 8 is more than any one site can ever give: hpc has 2 cpus"],
    ),
    "much": ("resources(cpus=9)", ["hint cpus: 9 is more than any one site can ever give", "small has 4 cpus"]),
    "much_at_site": (
        'resources(cpus=5, memory="3 GiB", site="small")',
        ["hint cpus: 5 is more than site 'small' can ever give", "small has 4 cpus, 16 GiB memory"],
    ),
    "much_together": (
        'resources(cpus=8, memory="16 GiB")',
        ["hint cpus: 8, hint memory: 16 GiB are more than any one site", "wide has 8 cpus, 4 GiB memory"],
    ),
}


# Two wrong ones with a right one between them, and so many more that not all are named.
SEVERAL = """
from airflow.sdk import DAG
from airflow.providers.standard.operators.bash import BashOperator
from lading.operators import resources
with DAG("several"):
    BashOperator(task_id="first", bash_command="true", executor_config=resources(mem=1))
    BashOperator(task_id="right", bash_command="true", executor_config=resources(cpus=1))
    BashOperator.partial(task_id="second", executor_config=resources(cpus=-1)).expand(bash_command=["true"])
    for number in range(20):
        BashOperator(task_id=f"more_{number}", bash_command="true", executor_config=resources(site="moon"))
"""


@dataclass(frozen=True)
class Parsed:
    errors: dict[str, str]
    tasks: dict[str, Any]
    defaults: dict[str, Any]
    log: str


class Parser:
    """Parses Dag files as an Airflow of its own, of which the state folder is ``home``/lading."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PARSER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **{name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "_AIRFLOW"))},
                "AIRFLOW_HOME": str(folder),
                "AIRFLOW__CORE__EXECUTOR": "lading.executors.LadingExecutor,LocalExecutor",
            },
        )

    def __call__(self, home: Path, dags: dict[str, str], published: str | None = None, **environment: str) -> Parsed:
        folder = home / "dags"
        folder.mkdir()
        for name, source in dags.items():
            (folder / f"{name}.py").write_text(source)
        if published is not None:
            (home / "lading").mkdir()
            (home / "lading" / "sites.json").write_text(published)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        own = {"AIRFLOW__LADING__STATE_FOLDER": str(home / "lading"), **environment}
        self.process.stdin.write(json.dumps([str(home), own]) + "\n")
        self.process.stdin.flush()
        said = ""
        while not said.strip("-").isdigit():  # Airflow may say something of its own
            said = self.process.stdout.readline().rstrip("\n")
            assert said or self.process.poll() is None
        log = (home / "log").read_text()
        assert said == "0", log
        return Parsed(**json.loads((home / "parsed.json").read_text()), log=log)


@pytest.fixture(scope="module")
def parse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parser]:
    parser = Parser(tmp_path_factory.mktemp("airflow"))
    yield parser
    assert parser.process.stdin is not None
    parser.process.stdin.close()
    assert parser.process.wait(120) == 0


SITES = {
    "small": site(4, 16384, 10240, 1, "c7i.xlarge", "r7i.large"),
    "wide": site(8, 4096, 10240),
    "hpc": site(2, 100, dialect={"system": "slurm", "profile": {}, "takes_layouts": True}),
    "packed": site(2, 100, dialect={"system": "slurm", "profile": {}, "takes_layouts": False}),
    "sge": site(2, 100, dialect={"system": "sge", "profile": {}, "takes_layouts": True}),
}


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory, parse: Parser) -> Parsed:
    dags = {"levels": LEVELS, "plain": PLAIN, "elsewhere": ELSEWHERE, "native": NATIVE, "optional": OPTIONAL}
    dags |= {name: wrong(hints) for name, (hints, _) in WRONG.items()}
    dags["several"] = SEVERAL
    dags["outside_in_dag"] = wrong("{}", defaults='{"executor_config": {"memory": "8 GiB"}}')
    dags["list"] = wrong('["a"]', defaults='{"executor_config": resources(cpus=1)}')
    return parse(tmp_path_factory.mktemp("home"), dags, json.dumps({"sites": SITES}))


def test_right_hints_are_no_import_errors(parsed: Parsed) -> None:
    assert set(parsed.errors) == {*(f"{name}.py" for name in WRONG), "list.py", "several.py", "outside_in_dag.py"}


@pytest.mark.parametrize("task", LEVELS_MERGED)
def test_the_serialized_task_has_the_hints_of_all_levels(parsed: Parsed, task: str) -> None:
    assert parsed.tasks[f"levels.{task}"] == LEVELS_MERGED[task]


def test_native_directives_are_merged_one_by_one(parsed: Parsed) -> None:
    of_dag = {"queue": "short", "native": {"account": "astro", "qos": "low"}}
    merged = {"account": "astro", "qos": "high", "exclusive": True}
    assert parsed.tasks["native.inherits"] == {"lading": of_dag}
    assert parsed.tasks["native.own"] == {"lading": {"queue": "long", "native": merged, "site": "hpc"}}


def test_nodes_go_over_the_cpus_of_the_dag(parsed: Parsed) -> None:
    assert parsed.tasks["mpi.wide"] == {"lading": {"memory": 50, "site": "hpc", "nodes": 2, "ppn": 2}}


def test_what_tasks_share_is_left_as_it_is(parsed: Parsed) -> None:
    shared = {"lading": {"cpus": 2, "memory": "1 GiB"}, "other": {"a": 1}}
    assert parsed.defaults["levels"] == {"executor_config": shared}


def test_tasks_without_hints_are_left_as_they_are(parsed: Parsed) -> None:
    assert [parsed.tasks[f"plain.{name}"] for name in ("none", "other", "list")] == [{}, {"a": 1}, ["a"]]


def test_tasks_of_other_executors_are_left_as_they_are(parsed: Parsed) -> None:
    assert parsed.tasks["elsewhere.t"] == {"cpu": "256"}


def test_hints_outside_the_key_of_lading_are_left_where_a_task_also_has_that_key(parsed: Parsed) -> None:
    assert parsed.tasks["plain.both"] == {"lading": {"cpus": 1}, "cpu": "256"}


def test_hints_of_a_dag_outside_the_key_of_lading_are_an_import_error(parsed: Parsed) -> None:
    assert "executor_config has 'memory' outside resources(...)" in parsed.errors["outside_in_dag.py"]


@pytest.mark.parametrize("name", WRONG)
def test_wrong_hints_are_an_import_error(parsed: Parsed, name: str) -> None:
    error = parsed.errors[f"{name}.py"]
    for words in ("AirflowClusterPolicyViolation", "Dag 'd', task 't': ", *WRONG[name][1]):
        assert words in error


def test_all_wrong_tasks_of_a_dag_are_reported_at_once(parsed: Parsed) -> None:
    first, second, *others, last = parsed.errors["several.py"].splitlines()
    assert "Dag 'several', task 'first': hint mem: there is no such hint" in first
    assert second.startswith("Dag 'several', task 'second': hint cpus: -1 must be more than 0")
    named = [line.partition(": ")[0] for line in others]
    assert named == [f"Dag 'several', task 'more_{number}'" for number in range(18)]
    assert last == "+ 2 more tasks with wrong hints"


def test_an_executor_config_that_cannot_carry_hints(parsed: Parsed) -> None:
    assert (
        "executor_config is ['a'], which cannot carry the hints of the Dag; valid: a dict" in parsed.errors["list.py"]
    )


def machine(name: str, cpus: float, memory: int, **others: Any) -> dict[str, Any]:
    return {**MACHINE, "cpus": cpus, "memory": memory, "disk": 0, "gpus": 0, "instance_type": name, **others}


APART = {
    # The other type of the same site has enough memory, and no type has both.
    "much_for_a_type_of_several": (
        'resources(instance_type="big.cpu", cpus=16, memory="32 GiB")',
        ["hint memory: 32 GiB is more than instance type 'big.cpu' of site 'cloud' can ever give: cloud has 32 cpus"],
    ),
    "arch": ('resources(arch="ppc64le")', ["hint arch: 'ppc64le' is not available, valid: aarch64, x86_64"]),
    "arch_at_site": (
        'resources(arch="arm64", site="small")',
        ["hint arch: 'aarch64' is not available, valid: x86_64"],
    ),
    "os": ('resources(os="Windows")', ["hint os: 'windows' is not available, valid: linux"]),
    "capacity_type": ('resources(capacity_type="spot")', ["capacity_type: 'spot' is not available, valid: on-demand"]),
    "no_capacity_type": ('resources(capacity_type="cheap")', ["'cheap' is not a capacity type; valid: on-demand or"]),
    "features": (
        'resources(features=["sve", "tpu"])',
        ["hint features: 'tpu' is not available, valid: avx512, nvme, sve"],
    ),
    "features_of_several": (
        'resources(features=["sve", "avx512"])',
        [
            "no machine has arch x86_64 (that of tasks without the hint arch) and has avx512, sve; available: ",
            "big.arm aarch64 linux on-demand with nvme, sve at site 'cloud'",
        ],
    ),
    # What names no architecture runs on that of its site.
    "features_of_another_arch": (
        'resources(features=["sve"])',
        ["no machine has arch x86_64 (that of tasks without the hint arch) and has sve; available: "],
    ),
    "features_where_there_are_none": (
        'resources(features=["sve"], site="small")',
        ["hint features: 'sve' is not available, because no machine has been given any"],
    ),
    "nodes_over_machines": (
        'resources(site="hpc", nodes=3, max_instances=2)',
        ["hint nodes: 3 is more than max_instances, which allows 2 machines"],
    ),
}
CLOUD = {
    "small": SITES["small"],
    "hpc": SITES["hpc"],
    "cloud": {
        **site(1, 1),
        "accept_untargeted": True,
        "locations": [
            machine("big.cpu", 32, 8 * 1024, features=["avx512"]),
            machine("big.memory", 4, 256 * 1024),
            machine("big.arm", 64, 8 * 1024, arch="aarch64", features=["nvme", "sve"]),
        ],
    },
}


def test_traits_of_machines_are_compared_with_what_there_is(tmp_path: Path, parse: Parser) -> None:
    right = {
        "right_arch": "resources(arch='arm64', features=['sve'], cpus=40)",
        "right_type": "resources(instance_type='big.arm')",
        "right_features": "resources(features='avx512', os='linux', capacity_type='on-demand')",
    }
    dags = {name: wrong(hints) for name, (hints, _) in APART.items()}
    dags |= {name: wrong(hints).replace('DAG("d"', f'DAG("{name}"') for name, hints in right.items()}
    parsed = parse(tmp_path, dags, json.dumps({"sites": CLOUD}))
    assert set(parsed.errors) == {f"{name}.py" for name in APART}
    for name, (_, said) in APART.items():
        for words in ("AirflowClusterPolicyViolation", "Dag 'd', task 't': ", *said):
            assert words in parsed.errors[f"{name}.py"]


OF_A_TOOL = """
from airflow.sdk import DAG
from airflow.providers.standard.operators.bash import BashOperator
from lading.operators import resources

SAME = resources(cpus=2, memory="1 GiB", max_instances=3)

class Aligner(BashOperator):
    executor_config = resources(memory="30 GiB", features=["avx512"])

with DAG("tool", default_args={"executor_config": SAME}):
    Aligner(task_id="inherits", bash_command="true")
    Aligner(task_id="own", bash_command="true", executor_config=resources(memory="40 GiB"))
    Aligner(task_id="equal", bash_command="true", executor_config=dict(SAME))
    Aligner.partial(task_id="mapped").expand(bash_command=["true"])
    Aligner.partial(task_id="own_mapped", executor_config=resources(memory="40 GiB")).expand(bash_command=["true"])
with DAG("bare"):
    Aligner(task_id="bare", bash_command="true")
"""


def test_the_hints_of_an_operator_lie_between_those_of_the_dag_and_of_the_task(tmp_path: Path, parse: Parser) -> None:
    lab = {**site(1, 1), "locations": [machine("big", 8, 64 * 1024, features=["avx512"])]}
    parsed = parse(tmp_path, {"tool": OF_A_TOOL}, json.dumps({"sites": {"lab": lab}}))
    assert parsed.errors == {}
    tool = {"features": ["avx512"], "memory": "30 GiB"}
    of_dag = {"cpus": 2, "run_max_instances": 3}
    assert {name: config["lading"] for name, config in parsed.tasks.items()} == {
        "tool.inherits": {**of_dag, **tool},
        "tool.own": {**of_dag, **tool, "memory": "40 GiB"},
        "tool.equal": {**of_dag, **tool, "memory": "1 GiB", "max_instances": 3},
        "tool.mapped": {**of_dag, **tool},
        "tool.own_mapped": {**of_dag, **tool, "memory": "40 GiB"},
        "bare.bare": tool,
    }


EXPRESSIONS = """
from airflow.sdk import DAG, task
from lading.operators import resources, scatter

@task
def found():
    return ["/a"]

@task
def use(path, number=0):
    return path

asked = {"executor_config": resources(memory="input_size * 2 + number * 1 GiB", cpus=1)}
with DAG("expressions", default_args={"executor_config": resources(max_instances=9, cpus=2)}):
    use.override(task_id="ordinary", **asked)(found(), number=3)
    scatter(use.override(**asked), path=["/a"], number=[1], method="dotproduct", max_instances=2)
"""


def test_expressions_bring_along_where_the_inputs_come_from(tmp_path: Path, parse: Parser) -> None:
    parsed = parse(tmp_path, {"expressions": EXPRESSIONS}, json.dumps({"sites": SITES}))
    assert parsed.errors == {}
    hints = {"run_max_instances": 9, "cpus": 1, "memory": "input_size * 2 + number * 1 GiB"}
    assert parsed.tasks["expressions.found"] == {"lading": {"run_max_instances": 9, "cpus": 2}}
    assert parsed.tasks["expressions.ordinary"] == {
        "lading": hints,
        "lading_inputs": {
            "fixed": {"path": {"xcom": ["found", "return_value"], "mapped": False}, "number": {"value": 3}}
        },
    }
    assert parsed.tasks["expressions.use"] == {
        "lading": {**hints, "max_instances": 2},
        "lading_inputs": {
            "fixed": {},
            "method": "dotproduct",
            "mapped": {"path": {"value": ["/a"]}, "number": {"value": [1]}},
            "plan": "plan_use",
        },
    }
    assert parsed.tasks["expressions.plan_use"] == parsed.tasks["expressions.gather_use"] == {}


def test_where_plugins_ask_for_inputs_all_tasks_that_have_some_bring_them_along(tmp_path: Path, parse: Parser) -> None:
    sites = {"small": {**SITES["small"], "needs_inputs": True}, "wide": SITES["wide"]}
    parsed = parse(tmp_path, {"levels": LEVELS, "expressions": EXPRESSIONS}, json.dumps({"sites": sites}))
    assert parsed.errors == {}
    assert parsed.tasks["levels.inherits"]["lading_inputs"]["fixed"]["bash_command"] == {"value": "true"}
    assert parsed.tasks["expressions.use"]["lading_inputs"]["mapped"] == {
        "path": {"value": ["/a"]}, "number": {"value": [1]},
    }  # fmt: skip
    assert "lading_inputs" not in parsed.tasks["expressions.found"], "it has none"


def test_trouble_of_ours_breaks_no_dag(tmp_path: Path, parse: Parser) -> None:
    dags = {"much": wrong("resources(cpus=9)"), "unit": wrong("resources(cpus=-1)")}
    parsed = parse(tmp_path, dags, published="{")
    assert list(parsed.errors) == ["unit.py"]
    assert parsed.log.count("Hints are not checked against the sites") == 1


def test_the_machine_that_runs_a_task_may_not_know_the_sites(tmp_path: Path, parse: Parser) -> None:
    dags = {"much": wrong("resources(cpus=9)")}
    # What Airflow's task runner sets before it parses the Dag.
    context = {"_AIRFLOW_PARSING_CONTEXT_DAG_ID": "d", "_AIRFLOW_PARSING_CONTEXT_TASK_ID": "t"}
    assert parse(tmp_path, dags, json.dumps({"sites": SITES}), **context).errors == {}


def test_hints_wait_unread_where_lading_is_not_the_default(tmp_path: Path, parse: Parser) -> None:
    dags = {
        "levels": LEVELS,
        "much": wrong("resources(cpus=9)"),
        "named": wrong("resources(cpus=9)", defaults='{"executor": "lading"}'),
    }
    parsed = parse(
        tmp_path,
        dags,
        json.dumps({"sites": SITES}),
        AIRFLOW__CORE__EXECUTOR="LocalExecutor,lading:lading.executors.LadingExecutor",
    )
    assert list(parsed.errors) == ["named.py"]
    assert parsed.tasks["levels.own_config"] == {"KubernetesExecutor": {"b": 2}}


PLACED = {
    "local": SITES["small"],
    "hpc": site(64, 99999, dialect=SITES["hpc"]["dialect"], accept_untargeted=False),
}

SCRIPTS = """
from airflow.sdk import DAG, TaskGroup
from airflow.providers.standard.operators.bash import BashOperator
from lading.operators import JobScriptOperator, resources
script = {"body": "true", "site": "hpc"}
with DAG("scripts"):
    JobScriptOperator(task_id="plain", **script)
    JobScriptOperator(task_id="asks", executor_config=resources(cpus=2), **script)
    JobScriptOperator(task_id="says", executor_config=resources(site="hpc", queue="long"), **script)
    JobScriptOperator.partial(task_id="mapped", site="hpc").expand(body=["true", "false"])
    BashOperator(task_id="bash", bash_command="true")
there = resources(site="hpc", queue="long", native={"account": "a"}, cpus=3, memory="1 GiB")
with DAG("inherits", default_args={"executor_config": there}):
    JobScriptOperator(task_id="script", **script)
    BashOperator(task_id="bash", bash_command="true")
    with TaskGroup("group", default_args={"executor_config": resources(site="hpc")}):
        JobScriptOperator(task_id="script", executor_config=resources(memory="2 GiB"), **script)
"""


def test_the_task_of_a_job_script_runs_where_the_sites_file_is(tmp_path: Path, parse: Parser) -> None:
    parsed = parse(tmp_path, {"scripts": SCRIPTS}, json.dumps({"sites": PLACED}))
    assert parsed.errors == {}
    assert {name: task.get("lading") for name, task in parsed.tasks.items()} == {
        "scripts.plain": {"site": "local"},
        "scripts.asks": {"cpus": 2, "site": "local"},
        "scripts.says": {"site": "hpc", "queue": "long"},
        "scripts.mapped": {"site": "local"},
        "scripts.bash": None,
        "inherits.script": {"cpus": 3, "memory": "1 GiB", "site": "local"},
        "inherits.bash": {"site": "hpc", "queue": "long", "native": {"account": "a"}, "cpus": 3, "memory": "1 GiB"},
        "inherits.group.script": {"cpus": 3, "memory": "2 GiB", "site": "local"},
    }


UNNAMED = """
from airflow.sdk import DAG, task
from airflow.providers.standard.operators.bash import BashOperator
from lading.operators import resources, scatter
with DAG("d"):
    BashOperator(task_id="t", bash_command="true"{hints})
"""


UNFIT = {
    "much": ("cpus=9", "hint cpus: 9 is more than site 'local' can ever give"),
    "native": ('queue="long"', "hint queue: only batch sites"),
    "type": ('instance_type="none"', "hint instance_type: 'none' is not available"),
}


def test_a_task_that_names_no_site_must_fit_one_that_takes_such_tasks(tmp_path: Path, parse: Parser) -> None:
    dags = {
        name: UNNAMED.replace("{hints}", f", executor_config=resources({hints})") for name, (hints, _) in UNFIT.items()
    }
    parsed = parse(tmp_path, {**dags, "plain": UNNAMED.replace("{hints}", "")}, json.dumps({"sites": PLACED}))
    assert sorted(parsed.errors) == sorted(f"{name}.py" for name in UNFIT)
    advice = (
        "the task names no site, and only local can run such tasks: give it the hint site, valid: hpc; or set "
        "accept_untargeted = true in the table of one of these"
    )
    for name, (_, words) in UNFIT.items():
        assert words in parsed.errors[f"{name}.py"]
        assert (advice in parsed.errors[f"{name}.py"]) is (name != "type"), "hpc is named where it would do"


def test_where_no_site_takes_them_tasks_must_name_one(tmp_path: Path, parse: Parser) -> None:
    sites = {name: {**site, "accept_untargeted": False, "has_sites_file": False} for name, site in PLACED.items()}
    dags = {
        "bare": UNNAMED.replace("{hints}", ""),
        "named": UNNAMED.replace("{hints}", ', executor_config=resources(site="hpc")'),
        "script": SCRIPTS,
    }
    parsed = parse(tmp_path, dags, json.dumps({"sites": sites}))
    assert sorted(parsed.errors) == ["bare.py", "script.py"]
    assert "no site takes tasks that name no site; the task names no site, and no site can" in parsed.errors["bare.py"]
    assert "the task reads the sites file, but no site runs jobs on a machine" in parsed.errors["script.py"]


def test_what_tasks_without_hints_ask_for_must_fit(tmp_path: Path, parse: Parser) -> None:
    dags = {"bare": UNNAMED.replace("{hints}", "")}
    parsed = parse(tmp_path, dags, json.dumps({"sites": PLACED}), AIRFLOW__LADING__DEFAULT_CPUS="5")
    assert "5 cpus" in parsed.errors["bare.py"]


def test_the_policy_is_there_whatever_is_imported_first() -> None:
    code = (
        "import lading.plugin.policies, airflow.settings as settings;"
        "print([each.plugin_name for each in settings.get_policy_plugin_manager().hook.task_policy.get_hookimpls()])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "['lading']"


RULED = {
    "local": {**PLACED["local"], "rules": {"allowed_dags": ["etl_*", "reports_*"], "refused_native": []}},
    "hpc": {**PLACED["hpc"], "rules": {"allowed_dags": ["reports_*"], "refused_native": ["qos"]}},
}
RULED_DAG = """
from airflow.sdk import DAG, task
from airflow.providers.standard.operators.bash import BashOperator
from lading.operators import JobScriptOperator, resources, scatter
from tests.clusters.published import site
with DAG("{dag}"):
    {task}
"""
BASH = 'BashOperator(task_id="t", bash_command="true"{more})'
TASKS = {
    "bare": BASH.replace("{more}", ""),
    "hints": BASH.replace("{more}", ", executor_config=resources(cpus=1)"),
    "named": BASH.replace("{more}", ', executor_config=resources(site="hpc")'),
    "native": BASH.replace("{more}", ', executor_config=resources(site="hpc", native={"qos": "x"})'),
    "always": BASH.replace("{more}", ', executor_config=resources(site="hpc", native={"export-file": "/f"})'),
    "script": 'JobScriptOperator(task_id="t", site="hpc", body="true")',
    "mapped": 'JobScriptOperator.partial(task_id="t", site="hpc").expand(body=["true"])',
    "elsewhere": 'JobScriptOperator(task_id="t", site="hpc", body="true", executor="LocalExecutor")',
    "qos": 'JobScriptOperator(task_id="t", site="hpc", body="true", properties={"qos": "x", "mem": 5})',
}


def test_a_dag_that_no_site_takes_is_an_import_error(tmp_path: Path, parse: Parser) -> None:
    dags = {
        f"{dag}_{name}": RULED_DAG.replace("{dag}", f"{dag}_{name}").replace("{task}", task)
        for dag in ("etl", "reports", "other")
        for name, task in TASKS.items()
    }
    executors = "lading:lading.executors.LadingExecutor,LocalExecutor"
    parsed = parse(tmp_path, dags, json.dumps({"sites": RULED}), AIRFLOW__CORE__EXECUTOR=executors)
    refused = {"named", "native", "always", "script", "mapped", "elsewhere", "qos"}
    assert set(parsed.errors) == {
        *(f"other_{name}.py" for name in TASKS),
        *(f"etl_{name}.py" for name in refused),
        *(f"reports_{name}.py" for name in ("native", "always", "qos")),
    }
    for name in ("bare", "hints"):
        words = f"Dag 'other_{name}' is not allowed there: site 'local' has allowed_dags = ['etl_*', 'reports_*']"
        assert words in parsed.errors[f"other_{name}.py"]
    for name in refused:
        words = f"Dag 'etl_{name}' is not allowed there: site 'hpc' has allowed_dags = ['reports_*']"
        assert words in parsed.errors[f"etl_{name}.py"]
    assert "qos is not accepted here: refused_native = ['qos']" in parsed.errors["reports_native.py"]
    assert "at site 'hpc', qos is not accepted here: refused_native = ['qos']" in parsed.errors["reports_qos.py"]
    assert "export-file is accepted at no site, because it reads an environment" in parsed.errors["reports_always.py"]


BOUND = """
from airflow.sdk import DAG, TaskGroup
from airflow.providers.standard.operators.bash import BashOperator
from lading.operators import resources

with DAG("train_a"):
    BashOperator(task_id="plain", bash_command="true")
    BashOperator(task_id="elsewhere", bash_command="true", executor_config=resources(site="wide"))
    with TaskGroup("outer"), TaskGroup("models", prefix_group_id=False):
        BashOperator(task_id="fit", bash_command="true", executor_config=resources(cpus=2))
        BashOperator.partial(task_id="mapped").expand(bash_command=["true"])
with DAG("other", default_args={"executor_config": resources(site="wide", queue="long")}):
    BashOperator(task_id="own", bash_command="true", executor_config=resources(targets=["hpc/gpu", "small/c7i.*"]))
with DAG("wrong"):
    BashOperator(task_id="t", bash_command="true", executor_config=resources(targets=["hpc/gpu", "small/m5.*"], cpus=5))
"""


def test_the_sites_file_binds_tasks_that_do_not_say_where_they_run(tmp_path: Path, parse: Parser) -> None:
    only_some = {"wide": {"not_an_input_of_all_tasks": "a"}}
    bindings = [
        {"targets": ["hpc/gpu", "wide"], "dag": "train_*", "task": "*", "group": "*models", "filters": ["shuffle"]},
        {"targets": ["wide"], "dag": "train_*", "task": "*", "group": None, "filters": [], "matching": only_some},
    ]
    right, _, wrong = BOUND.partition('with DAG("wrong")')
    imports = right.partition("with DAG")[0]
    dags = {"bound": right, "wrong": f"{imports}with DAG('wrong'){wrong}"}
    found = parse(tmp_path, dags, json.dumps({"sites": SITES, "bindings": bindings}))
    assert list(found.errors) == ["wrong.py"]
    assert (
        "hint targets: no target suits the task: target 'hpc/gpu': hint cpus: 5 is more than"
        in found.errors["wrong.py"]
    )
    assert (
        "target 'small/m5.*': there is no instance type 'm5.*', valid: c7i.xlarge, r7i.large"
        in found.errors["wrong.py"]
    )
    models = {"targets": ["hpc/gpu", "wide"], "filters": ["shuffle"]}
    assert {name: config["lading"] for name, config in found.tasks.items()} == {
        "train_a.plain": {"targets": ["wide"], "matching": only_some},
        "train_a.elsewhere": {"site": "wide"},
        "train_a.fit": {"cpus": 2, **models},
        "train_a.mapped": models,
        "other.own": {"targets": ["hpc/gpu", "small/c7i.*"]},
    }
