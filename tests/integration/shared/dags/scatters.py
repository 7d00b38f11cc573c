"""Scatters of every kind, checked to the value by test_scatter.py."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import Asset, TaskGroup, dag, get_current_context, task
from airflow.sdk.exceptions import AirflowSkipException

from lading.operators import resources, scatter

HOME = Path(os.environ.get("AIRFLOW_HOME", "/nowhere"))
SMALL = {"executor_config": resources(cpus=0.1)}


@task
def listed(rows):
    """Outputs as lists all the way down."""
    return [listed.function(row) if isinstance(row, list) or hasattr(row, "_indexes") else row for row in rows]


@dag(schedule=None, default_args=SMALL)
def shapes():
    @task
    def numbers(count):
        return list(range(count))

    @task
    def pair(a, b):
        return None if (a, b) == (1, 1) else f"{a}{b}"

    @task
    def triple(a, b, c):
        return a + b + c

    @task
    def even(a):
        if a % 2:
            raise AirflowSkipException(f"{a} is odd")
        return a

    @task
    def item(pair):
        return list(pair)

    @task
    def ranged(row):
        return len(row)

    with TaskGroup("group"):
        nested = scatter(pair, a=numbers(2), b=["x", 1, {"y": [2]}], method="nested_crossproduct")
        listed.override(task_id="nested")(nested)
    listed.override(task_id="rows")(scatter(ranged, row=nested))
    three = scatter(triple.partial(c=[0]), a=[[1], [2]], b=[[3], [4], [5]], method="nested_crossproduct")
    listed.override(task_id="lists")(three)
    listed.override(task_id="skipped")(scatter(even, a=numbers.override(task_id="five")(5)))
    listed.override(task_id="dict")(scatter(item, pair={"k": 1, "l": None}))
    bash = BashOperator.partial(task_id="bash", env={"GREETING": "hello"}, append_env=True)
    greetings = scatter(bash, bash_command=["echo $GREETING {{ ti.map_index }}", "echo {{ run_id }} | wc -l"])
    listed.override(task_id="classic")(greetings)
    nothing = numbers.override(task_id="nothing")(0)
    for name, a, b in (("outer", nothing, [1, 2]), ("inner", [1, 2], nothing)):
        empty = scatter(pair.override(task_id=f"empty_{name}"), a=a, b=b, method="nested_crossproduct")
        listed.override(task_id=f"no_{name}")(empty)


@dag(schedule=None, default_args=SMALL)
def unequal():
    @task
    def some():
        return [1, 2, 3]

    @task
    def text():
        return "text"

    @task
    def pair(a, b):
        return a, b

    scatter(pair, a=some(), b=[1, 2], method="dotproduct")
    scatter(pair.partial(b=1).override(task_id="no_list"), a=text())


@dag(schedule=None, default_args=SMALL)
def chunks():
    @task(retries=1, retry_delay=timedelta(seconds=1), executor_config=resources(cpus=2))
    def square(n):
        context = get_current_context()
        with (HOME / "diary" / "chunks").open("a") as diary:
            diary.write(f"{context['ti'].try_number} {n}\n")
        if context["ti"].try_number == 1 and n in (3, 8):
            raise ValueError(f"{n} is not ready")
        return None if n == 5 else n * n

    @task
    def many():
        return list(range(3000))

    @task
    def identity(n, add):
        return n + add

    @task
    def total(outputs):
        return [len(outputs), outputs[2999], sum(outputs)]

    listed(scatter(square, n=list(range(10)), chunk_size=4))
    table = scatter(square.override(task_id="table", retries=0).partial(), n=[1, 2, 4, 6], chunk_size=3)
    listed.override(task_id="short")(table)
    total(scatter(identity.partial(add=1), n=many()))


@dag(schedule=None, default_args={**SMALL, "retries": 2, "retry_delay": timedelta(seconds=1)})
def lessons():
    @task(executor_config=resources(memory="300 MiB"))
    def hungry(first):
        block = bytearray(os.urandom(1024)) * (1024 * 400)  # with Airflow's own more than 300, less than 600 MiB
        if get_current_context()["ti"].try_number == 1:
            time.sleep(300)  # it is ended long before, unless the machine stands still
        return len(block)

    @task(executor_config=resources(time="4 s * attempt ** 4"))
    def slow():
        if get_current_context()["ti"].try_number == 1:
            time.sleep(30)

    scatter(hungry, first=[True])
    slow()


@dag(schedule=None, default_args={"executor_config": resources(cpus=0.1, max_jobs=3)})
def limited():
    @task
    def note(n, name):
        marks = HOME / "diary" / "limited"
        marks.mkdir(exist_ok=True)
        mark = marks / f"{name}-{n}"
        mark.touch()
        # All that may be at once are there soon; then the others wait until the test has seen that.
        while name == "two" and not (HOME / "diary" / "limited-end").exists():
            time.sleep(0.1)
        time.sleep(2)
        count = [len(list(marks.glob(f"{name}-*"))), len(list(marks.iterdir()))]
        mark.unlink()
        return count

    two = scatter(note.override(task_id="two").partial(name="two"), n=list(range(4)), max_jobs=2, max_instances=1)
    free = scatter(note.override(task_id="free").partial(name="free"), n=[0, 1])
    listed.override(task_id="counts")(two)
    listed.override(task_id="free_counts")(free)


@dag(schedule=None, default_args={"executor_config": {"lading": {"sbg:AWSInstanceType": "none.such", "cpus": 0.1}}})
def machines():
    @task(executor_config=resources(instance_type="test.xlarge"))
    def double(n):
        return 2 * n

    scatter(double, n=[1, 2])


@dag(schedule=None, default_args=SMALL)
def sized():
    @task
    def files():
        folder = HOME / "sized"
        folder.mkdir(exist_ok=True)
        paths = []
        for number in (1, 3):
            path = folder / f"{number}.bin"
            path.write_bytes(b"x" * (number * 2**20))
            paths.append(str(path))
        return paths

    @task
    def work(path, more, fixed=None):
        return path

    @task
    def here():
        return {"class": "File", "path": "/none/of/ours", "size": 5 * 2**20}

    found = files()
    asked = resources(memory="500 MiB + 10 * input_size", cpus="len(more) / 4", disk='inputs["path"].size')
    scatter(work.partial(fixed=here()), path=found, more=[["a"], ["a", "b"]], method="dotproduct", resources=asked)
    work.override(task_id="ordinary", executor_config=asked)(
        path=found, more=["a"], fixed=Asset(name="x", uri=f"file://{HOME}/sized/3.bin")
    )
    work.override(task_id="expanded", executor_config=asked).partial(more=[1]).expand(path=found)
    scatter(
        work.override(task_id="chunked").partial(more=["a"]),
        path=found,
        chunk_size=2,
        resources=resources(cpus=0.1, disk="input_size"),
    )
    bad = work.override(task_id="bad").partial(more=[1])
    scatter(bad, path=["/there/is/none", f"{HOME}/airflow.cfg"], resources=resources(memory="input_size + 400 MiB"))


shapes()
unequal()
chunks()
lessons()
limited()
machines()
sized()
