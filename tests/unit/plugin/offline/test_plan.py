"""`lading plan` and `lading simulate` as a user meets them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from lading.plugin.offline.command import main
from lading.plugin.offline.simulation import simulator, trace
from lading.plugin.offline.watch import ProgressWatch
from lading.scheduling.model.catalogue import BUNDLED_DATE, COLUMNS, bundled

CATALOGUE = "\n".join(
    [
        ",".join(COLUMNS),
        "small,2,4,x86_64,0,,0,0.1",
        "large,8,32,x86_64,0,,100,0.5",
        "arm,8,32,arm64,0,,0,0.2",
        "gpu,8,32,x86_64,1,T4,0,0.9",
        "unpriced,64,256,x86_64,0,,0,",
    ]
)
JOBS = "name,cpus,memory_mib,count\na,2,4096,3\nb,0.5,100,1\n"


class Folder:
    """Files to plan with, and the command line."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path, self.capsys = path, capsys
        self.write("catalogue.csv", CATALOGUE)

    def write(self, name: str, text: str) -> str:
        (self.path / name).write_text(text)
        return str(self.path / name)

    def run(self, command: str, jobs: str, *options: str) -> tuple[int, str, str]:
        arguments = [command, "--jobs", self.write("jobs.csv", jobs), *options]
        if "--catalogue" not in options:
            arguments += ["--catalogue", str(self.path / "catalogue.csv")]
        try:
            status = main(arguments)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        captured = self.capsys.readouterr()
        return status, captured.out, captured.err

    def plan(self, jobs: str, *options: str) -> dict[str, Any]:
        status, out, err = self.run("plan", jobs, "--output", "json", *options)
        assert status == 0, err
        answer: dict[str, Any] = json.loads(out)
        return answer

    def fault(self, jobs: str, *options: str, command: str = "plan") -> str:
        status, out, err = self.run(command, jobs, *options)
        assert status == 2
        assert out == ""
        assert err.count("\n") == 1
        return err.strip().replace(str(self.path) + "/", "")


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Folder:
    return Folder(tmp_path, capsys)


def test_json(folder: Folder) -> None:
    answer = folder.plan(JOBS, "--policy", "greedy", "--per-instance-cost", "0.3", "--horizon-hours", "2")
    seconds = answer.pop("plan_seconds")
    assert 0 < seconds < 100
    assert answer == {
        "policy": "greedy",
        "effort": "best",
        "cost_usd_per_hour": pytest.approx(0.4),
        "objective_usd_per_hour": pytest.approx(0.4 + 4 * 0.15),
        "lower_bound_usd_per_hour": pytest.approx(0.325),
        "gap": pytest.approx(0.4 / 0.325 - 1),
        "instances": [
            {"count": 3, "instance_type": "small", "usd_per_hour": 0.1, "instance": None, "jobs": {"a": 1}},
            {"count": 1, "instance_type": "small", "usd_per_hour": 0.1, "instance": None, "jobs": {"b": 1}},
        ],
        "waiting": [],
    }


def test_running_instances_are_filled_first_and_not_in_the_cost(folder: Folder) -> None:
    running = folder.write("running.csv", "instance,instance_type,cpus_used,memory_mib_used\ni-1,large,3.5,0\n")
    answer = folder.plan(JOBS, "--running", running)
    assert answer["instances"][0] == {
        "count": 1,
        "instance_type": "large",
        "usd_per_hour": 0.5,
        "instance": "i-1",
        "jobs": {"a": 2, "b": 1},
    }
    assert answer["cost_usd_per_hour"] == pytest.approx(0.1)


def test_waiting_jobs_are_no_error(folder: Folder) -> None:
    answer = folder.plan(JOBS, "--max-instances", "1", "--policy", "greedy")
    assert answer["waiting"] == [
        {
            "job": "a",
            "count": 2,
            "reason": "waits: 1 of 1 instances of the site are busy or booting",
            "code": "site_instances",
        },
        {
            "job": "b",
            "count": 1,
            "reason": "waits: 1 of 1 instances of the site are busy or booting",
            "code": "site_instances",
        },
    ]
    nothing = folder.plan(JOBS, "--max-instances", "0")
    assert (nothing["gap"], nothing["cost_usd_per_hour"], nothing["instances"]) == (None, 0, [])


def test_max_instances_of_a_task_counts_machines(folder: Folder) -> None:
    """Of machines of 8 cpus, as many as fit on two: the others wait, and other tasks have machines of their own."""
    jobs = "name,cpus,memory_mib,count,task,max_instances\na,2,8192,20,align,2\nb,2,8192,20,sort,\n"
    answer = folder.plan(jobs, "--types", "large")
    on = {name: sum(each["count"] for each in answer["instances"] if name in each["jobs"]) for name in "ab"}
    assert on == {"a": 2, "b": 5}
    words = "waits: 2 of 2 instances of `align` are busy or booting"
    assert answer["waiting"] == [{"job": "a", "count": 12, "reason": words, "code": "group_instances"}]


def test_architecture_gpus_disk_and_hints(folder: Folder) -> None:
    jobs = (
        "name,cpus,memory_mib,gpus,disk_gib,arch,instance_type,time_seconds,count\n"
        "plain,2,4096,,,,,,\narm,1,1,,,arm64,,60,\ngpu,1,1,0.5,,,,,2\ndisk,1,1,,90,,,,\nhint,1,1,,,,arm,,\n"
    )
    answer = folder.plan(jobs)
    kinds = {job: machine["instance_type"] for machine in answer["instances"] for job in machine["jobs"]}
    assert kinds["arm"] == kinds["hint"] == "arm"
    assert (kinds["gpu"], kinds["disk"]) == ("gpu", "large")
    assert kinds["plain"] != "arm"
    anywhere = folder.plan("name,cpus,memory_mib,arch\nx,1,1,any\n", "--types", "large", "arm")
    assert anywhere["instances"][0]["instance_type"] == "arm"
    cheaper = folder.plan("name,cpus,memory_mib,disk_gib\nx,1,1,90\n", "--ebs-gib", "90")
    assert cheaper["instances"][0]["instance_type"] == "small"


def test_types_and_overheads(folder: Folder) -> None:
    job = "name,cpus,memory_mib\nx,1,4096\n"
    kinds = [
        folder.plan(job, *options)["instances"][0]["instance_type"]
        for options in ([], ["--exclude-types", "sm*"], ["--types", "g*", "l*"], ["--overhead-memory", "1"])
    ]
    assert kinds == ["small", "large", "large", "large"]


def test_the_table_shows_the_date_of_the_bundled_prices(folder: Folder) -> None:
    status = main(["plan", "--jobs", folder.write("jobs.csv", JOBS), "--types", "c7i.*", "m7i.*"])
    captured = folder.capsys.readouterr()
    assert status == 0
    assert "7i." in captured.out
    assert BUNDLED_DATE in captured.out


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ("", "jobs.csv:1: the file is empty"),
        ("name,cpus,memory_mib\n", "jobs.csv:1: the file has a header and no rows"),
        ("name,cpus\na,1\n", "jobs.csv:1: column 'memory_mib' is missing"),
        ("name,cpus,memory_mib\na,1,1\nb,-1,1\n", "jobs.csv:3: cpus '-1' is negative"),
        ("name,cpus,memory_mib\na,NaN,1\n", "jobs.csv:2: cpus 'NaN' is not a finite number"),
        ("name,cpus,memory_mib\na,1,inf\n", "jobs.csv:2: memory_mib 'inf' is not a finite number"),
        ("name,cpus,memory_mib\na,1,4 GiB\n", "jobs.csv:2: memory_mib '4 GiB' is not a number"),
        ("name,cpus,memory_mib\na,,1\n", "jobs.csv:2: cpus '' is not a number"),
        ("name,cpus,memory_mib,count\na,1,1,0\n", "jobs.csv:2: count '0' is not above zero; valid: 1 to 1,000,000"),
        ("name,cpus,memory_mib,count\na,1,1,1.5\n", "jobs.csv:2: count '1.5' is not a whole number"),
        ("name,cpus,memory_mib\na,1,1\n\na,2,2\n", "jobs.csv:4: name 'a' is already on line 2"),
        (
            "name,cpus,memory_mib,instance_type\na,1,1,huge\n",
            "jobs.csv:2: instance_type 'huge' is not in the catalogue, or has no price there; valid: arm, gpu, large, ",
        ),
        ("name,cpus,memory_mib,instance_type\na,1,1,unpriced\n", "jobs.csv:2: instance_type 'unpriced' is not in"),
        (
            "name,cpus,memory_mib,instance_type\na,4,1,small\n",
            "jobs.csv:2: job 'a' is too large for every machine that",
        ),
        ("name,cpus,memory_mib\na,1,1\nb,9,1\n", "jobs.csv:3: job 'b' is too large for every machine that is x86_64"),
        ("name,cpus,memory_mib,max_instances\na,1,1,2\n", "jobs.csv:2: max_instances limits the jobs of a task"),
        (
            "name,cpus,memory_mib,task,max_instances\na,1,1,x,2\nb,1,1,x,3\n",
            "jobs.csv:3: max_instances '3' of task 'x' was 2 in an earlier row; valid: the same number",
        ),
        ("name,cpus,memory_mib,arch\na,1,1,sparc\n", "jobs.csv:2: job 'a' fits no machine: none is sparc"),
    ],
)
def test_faults_of_jobs_name_file_line_and_value(folder: Folder, jobs: str, message: str) -> None:
    assert folder.fault(jobs).startswith(message)


def test_columns_that_are_not_read_are_named(folder: Folder) -> None:
    misspelt = JOBS.replace("count", "counts")
    running = folder.write("running.csv", "instance,instance_type,cpus_used,memory_mib_used,gpus\n")
    prices = folder.write("prices.csv", CATALOGUE.replace("gpu_name", "region"))
    status, _, err = folder.run("plan", misspelt, "--running", running, "--catalogue", prices, "--policy", "greedy")
    assert status == 0
    said = [line.replace(f"{folder.path}/", "").split("; valid: ") for line in err.splitlines()]
    assert [words for words, _ in said] == [
        "prices.csv:1: unknown columns, ignored: 'region'",
        "jobs.csv:1: unknown columns, ignored: 'counts'",
        "running.csv:1: unknown columns, ignored: 'gpus'",
    ]
    assert said[1][1].endswith("time_seconds, count, task, max_instances, team, dag")
    assert folder.run("plan", JOBS, "--policy", "greedy")[2] == ""


def test_faults_of_other_files_and_options(folder: Folder) -> None:
    running = folder.write("running.csv", "instance,instance_type,cpus_used,memory_mib_used\ni,huge,0,0\n")
    assert folder.fault(JOBS, "--running", running).startswith("running.csv:2: instance_type 'huge' is not in")
    free = folder.write("free.csv", CATALOGUE + "\nfree,1,1,x86_64,0,,0,0\n")
    assert folder.fault(JOBS, "--catalogue", free).startswith("free.csv:7: usd_per_hour '0' is not above zero")
    ppc = folder.write("ppc.csv", "instance_type,vcpus,memory_gib,usd_per_hour,arch\np9,4,16,0.1,ppc64le\n")
    assert folder.fault(JOBS, "--catalogue", ppc).endswith("fits no machine: none is x86_64; available: p9 (ppc64le)")
    assert folder.fault(JOBS, "--catalogue", "nowhere.csv").startswith("nowhere.csv:1: cannot be read: No such file")
    assert folder.fault(JOBS, "--types", "zz*").startswith("--types, --exclude-types: 'zz*' matches none of the 4")
    assert "'-1' is not a finite number of at least 0" in folder.fault(JOBS, "--max-instances", "-1")
    assert "'0' is not greater than 0" in folder.fault(JOBS, "--horizon-hours", "0")
    (folder.path / "jobs.csv").write_bytes(b"name,cpus,memory_mib\n\xff,1,1\n")
    assert main(["plan", "--jobs", str(folder.path / "jobs.csv")]) == 2
    assert "jobs.csv:1: is not UTF-8: byte 0xff at 21; valid: text in UTF-8" in folder.capsys.readouterr().err


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        (
            "name,cpus,memory_mib\na,0,0\n",
            "jobs.csv:2: cpus '0' and memory_mib '0' request nothing; valid: at least one of the two above 0",
        ),
        ("name,cpus,memory_mib\na,1e308,1\n", "jobs.csv:2: cpus '1e308' is too large; valid: 0, or 0.001 to 999,999"),
        ("name,cpus,memory_mib\na,1e-300,1\n", "jobs.csv:2: cpus '1e-300' is too small; valid: 0, or 0.001 to"),
        ("name,cpus,memory_mib\na,1,1e308\n", "jobs.csv:2: memory_mib '1e308' is too large; valid: 0 to 2,147,483,647"),
        (
            "name,cpus,memory_mib,disk_gib\na,1,1,1e9\n",
            "jobs.csv:2: disk_gib '1e9' is too large; valid: 0 to 2,097,151",
        ),
        (
            "name,cpus,memory_mib,gpus\na,1,1,1e9\n",
            "jobs.csv:2: gpus '1e9' is too large; valid: 0, or 0.001 to 999,999",
        ),
        ("name,cpus,memory_mib,time_seconds\na,1,1,1e300\n", "jobs.csv:2: time_seconds '1e300' is too large; valid:"),
        ("name,cpus,memory_mib,count\na,1,1,1e12\n", "jobs.csv:2: count '1e12' is too large; valid: 1 to 1,000,000"),
        ("name,cpus,memory_mib,count\na,1,1,1e18\n", "jobs.csv:2: count '1e18' is too large; valid: 1 to 1,000,000"),
        (
            "name,cpus,memory_mib,count\na,1,1,600000\nb,1,1,600000\n",
            "jobs.csv:3: with count '600000' there are 1,200,000 jobs; valid: at most 1,000,000",
        ),
        (f"name,cpus,memory_mib\n{'a' * 4000},1,1\n", "jobs.csv:2: name 'aaa"),
        (f"name,cpus,memory_mib{',x' * 100}\n", "jobs.csv:1: the header has 103 columns; valid: at most 100"),
        (f"name,cpus,memory_mib\na,{'9' * 100_000},1\n", "jobs.csv:2: cpus '999"),
    ],
)
def test_amounts_that_only_slips_have_are_refused(folder: Folder, jobs: str, message: str) -> None:
    fault = folder.fault(jobs)
    assert fault.startswith(message)
    assert len(fault) < 300


@pytest.mark.parametrize(
    ("option", "value", "valid"),
    [
        ("--ebs-gib", "1e308", "0 to 2,097,151"),
        ("--per-instance-cost", "1e308", "0 to 1,000,000"),
        ("--horizon-hours", "1e-308", "0.001 to 1,000,000"),
        ("--horizon-hours", "inf", "0.001 to 1,000,000"),
        ("--overhead-memory", "1e308", "0 to 2,147,483,647"),
        ("--max-instances", "1e308", "0 to 2,147,483,647"),
    ],
)
def test_options_that_only_slips_have_are_refused(folder: Folder, option: str, value: str, valid: str) -> None:
    fault = folder.fault(JOBS, option, value)
    assert f"argument {option}: '{value}' is " in fault
    assert f"; valid: {valid}" in fault


@pytest.mark.parametrize("price", ["1e308", "1e-308"])
def test_prices_that_only_slips_have_are_refused(folder: Folder, price: str) -> None:
    dear = folder.write("dear.csv", CATALOGUE + f"\ndear,1,1,x86_64,0,,0,{price}\n")
    fault = folder.fault(JOBS, "--catalogue", dear)
    assert fault.startswith(f"dear.csv:7: usd_per_hour '{price}' is too ")
    assert fault.endswith("; valid: 1e-06 to 1,000,000")


def test_too_many_rows_are_refused(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert trace.MOST_JOBS == 1_000_000
    monkeypatch.setattr(trace, "MOST_JOBS", 100)
    rows = "".join(f"j{i},2,4096\n" for i in range(102))
    fault = folder.fault("name,cpus,memory_mib\n" + rows)
    assert fault == "jobs.csv:102: this is row 101; valid: at most 100; combine equal rows"
    fault = folder.fault("name,cpus,memory_mib,count\na,1,1,40\nb,1,1,40\nc,1,1,40\n")
    assert fault.startswith("jobs.csv:4: with count '40' there are 120 jobs; valid: at most 100; ")


def jobs_on_all(answer: dict[str, Any]) -> Counter[str]:
    """The names of the jobs on all machines, each as often as it is there."""
    found: Counter[str] = Counter()
    for each in answer["instances"]:
        for name, count in each["jobs"].items():
            found[name] += count * each["count"]
    return found


@pytest.mark.parametrize("options", [("--policy", "greedy"), ("--effort", "fast")])
def test_rows_that_are_alike_are_planned_as_one_and_named_each(folder: Folder, options: tuple[str, ...]) -> None:
    sizes = {"a": "1,1000", "b%s": "3, 9000", "c": "0.5,3000"}
    rows = [f"{size}{i},{amounts}" for i in range(30) for size, amounts in sizes.items()]
    each = folder.plan("name,cpus,memory_mib\n" + "\n".join(rows), *options)
    together = folder.plan(
        "name,cpus,memory_mib,count\n" + "\n".join(f"{size},{amounts},30" for size, amounts in sizes.items()), *options
    )
    assert jobs_on_all(each) == {row.split(",")[0]: 1 for row in rows}
    assert each["cost_usd_per_hour"] == together["cost_usd_per_hour"]

    def filled(answer: dict[str, Any]) -> Counter[tuple[str, tuple[tuple[str, int], ...]]]:
        found: Counter[tuple[str, tuple[tuple[str, int], ...]]] = Counter()
        for machine in answer["instances"]:
            jobs: Counter[str] = Counter()
            for name, count in machine["jobs"].items():
                jobs[name[0]] += count
            found[machine["instance_type"], tuple(sorted(jobs.items()))] += machine["count"]
        return found

    assert filled(each) == filled(together)


def test_rows_that_are_alike_have_counts(folder: Folder) -> None:
    answer = folder.plan("name,cpus,memory_mib,count\nb,2,4096,3\na,2,4096,3\n", "--policy", "greedy")
    assert [(each["jobs"], each["count"]) for each in answer["instances"]] == [({"a": 1}, 3), ({"b": 1}, 3)]


def test_each_of_the_rows_that_wait_is_named(folder: Folder) -> None:
    rows = "name,cpus,memory_mib\na,8,1\nb,8,1\nc,8,1\n"
    answer = folder.plan(rows, "--policy", "greedy", "--max-instances", "1")
    assert jobs_on_all(answer) == {"a": 1}
    assert [(wait["job"], wait["count"]) for wait in answer["waiting"]] == [("b", 1), ("c", 1)]


def test_a_fault_among_rows_that_are_alike_names_its_own_line(folder: Folder) -> None:
    rows = "name,cpus,memory_mib\n" + "".join(f"j{i},1,1\n" for i in range(50))
    assert folder.fault(f"{rows}j7,1,1\n") == "jobs.csv:52: name 'j7' is already on line 9"
    assert folder.fault(f"{rows} ,1,1\n") == "jobs.csv:52: name is empty"
    assert folder.fault(f"{rows}k,1\n") == "jobs.csv:52: 'k,1' has 2 values for 3 columns"
    assert folder.fault(f"{rows}k,99,1\na,99,1\n").startswith("jobs.csv:52: job 'k' is too large for every machine")


def test_many_different_jobs_are_refused_quickly(folder: Folder) -> None:
    rows = "".join(f"j{i},1,{i + 1}\n" for i in range(20_001))
    fault = folder.fault("name,cpus,memory_mib\n" + rows)
    assert fault.startswith("jobs.csv:20002: job 'j20000' raises the number of different requests to 20,001")


def test_a_device_is_no_table(folder: Folder) -> None:
    fault = folder.fault(JOBS, "--running", "/dev/zero")
    assert fault == "/dev/zero:1: has more than 67,108,864 bytes; valid: a smaller file"


@pytest.mark.parametrize(
    "text", ["x = " + "[" * 3000 + "]" * 3000, "x = " + "{a=" * 3000 + "1" + "}" * 3000, "a." * 3000]
)
def test_a_catalogue_nested_deeply_is_refused(folder: Folder, text: str) -> None:
    assert folder.fault(JOBS, "--catalogue", folder.write("deep.toml", text)).startswith("deep.toml:1: not TOML: ")


def test_a_table_shows_the_first_lines_of_many(folder: Folder) -> None:
    rows = "".join(f"j{i},2,1\n" for i in range(1100))
    status, out, _ = folder.run("plan", "name,cpus,memory_mib\n" + rows, "--policy", "greedy", "--types", "small")
    assert status == 0
    assert "and 100 more lines; --output json has all of them" in out
    answer = folder.plan("name,cpus,memory_mib\n" + rows, "--policy", "greedy", "--types", "small")
    assert len(answer["instances"]) == 1100


TRACE = "name,cpus,memory_mib,arrival_seconds,duration_seconds,count\na,2,4096,0,100,3\nb,1,100,50,10,1\n"


def test_ctrl_c_prints_the_best_plan_so_far(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "".join(f"j{i},{1 + i % 7},{1000 + 37 * i}\n" for i in range(40))
    found = ProgressWatch.__call__

    def interrupted(watch: ProgressWatch, what: str, part: float) -> bool:
        if not watch.asked:
            signal.raise_signal(signal.SIGINT)
        return found(watch, what, part)

    monkeypatch.setattr(ProgressWatch, "__call__", interrupted)
    status, out, err = folder.run("plan", f"name,cpus,memory_mib\n{rows}", "--output", "json")
    assert status == 130
    assert "stopped early" in err
    placed = [job for each in json.loads(out)["instances"] for job in each["jobs"] for _ in range(each["count"])]
    assert sorted(placed) == sorted(f"j{i}" for i in range(40))


def test_a_second_ctrl_c_ends_the_command(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    def impatient(watch: ProgressWatch, what: str, part: float) -> bool:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        return True

    monkeypatch.setattr(ProgressWatch, "__call__", impatient)
    status, out, err = folder.run("plan", JOBS)
    assert (status, out) == (130, "")
    assert "before there was a result to print" in err


def test_progress_is_shown_on_stderr_after_a_while(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lading.plugin.offline.watch.SOON", 3600.0)  # on a machine that is busy with something else
    quiet = folder.run("plan", JOBS, "--progress", "--output", "json")
    assert "insertion" not in quiet[2]
    monkeypatch.setattr("lading.plugin.offline.watch.SOON", 0.0)
    status, out, err = folder.run("plan", JOBS, "--progress", "--output", "json")
    assert status == 0
    assert "insertion" in err
    assert json.loads(out)["instances"] == json.loads(quiet[1])["instances"]


def test_simulate_compares_policies(folder: Folder) -> None:
    status, out, _ = folder.run("simulate", TRACE, "--compare", "greedy,priced", "--output", "json")
    runs = json.loads(out)["runs"]
    assert status == 0
    assert [run["policy"] for run in runs] == ["greedy", "priced"]
    for run in runs:
        assert (run["jobs"], run["unplaced"]) == (4, 0)
        assert run["cost_usd"] >= run["lower_bound_usd"] > 0
        assert run["makespan_seconds"] >= 100
    status, out, _ = folder.run("simulate", TRACE, "--boot-seconds", "10")
    assert status == 0
    assert "lower bound, USD" in out


def test_the_chart_over_time(folder: Folder, tmp_path: Path) -> None:
    for name in ("chart.svg", "chart.html"):
        status, _, _ = folder.run("simulate", TRACE, "--compare", "greedy,forecast", "--plot", str(tmp_path / name))
        assert status == 0
        text = (tmp_path / name).read_text(encoding="utf-8")
        assert text.count("<path") == 2 * 3
        assert "forecast: " in text
    ElementTree.fromstring((tmp_path / "chart.svg").read_text(encoding="utf-8"))
    # Before anything is read, or simulated for minutes.
    fault = folder.fault("", "--plot", "chart.png", command="simulate")
    assert "no known file type; valid: a name that ends in .svg or .html" in fault
    status, out, err = folder.run("simulate", TRACE, "--plot", str(tmp_path / "nowhere/chart.svg"))
    assert status == 2
    assert "cost, USD" in out
    assert err.endswith("chart.svg': No such file or directory\n")


def test_faults_of_traces(folder: Folder) -> None:
    assert folder.fault(JOBS, command="simulate").startswith("jobs.csv:1: column 'arrival_seconds' is missing")
    late = TRACE.replace(",50,10,", ",-50,10,")
    assert folder.fault(late, command="simulate").startswith("jobs.csv:3: arrival_seconds '-50' is negative")
    assert folder.fault(TRACE.replace("b,1,", "b,99,"), command="simulate").startswith("jobs.csv:3: job 'b' is too")
    assert "'best' is not one of greedy, priced, alone, forecast" in folder.fault(
        TRACE, "--compare", "best", command="simulate"
    )


def test_a_simulation_ends(folder: Folder) -> None:
    assert folder.fault(TRACE.replace(",50,10,", ",50,1e300,"), command="simulate").startswith(
        "jobs.csv:3: duration_seconds '1e300' is too large; valid: 0 to"
    )
    for option, value, valid in (
        ("--capacity-errors", "1", "0 to 0.95"),
        ("--capacity-errors", "0.999", "0 to 0.95"),
        ("--reclaims-per-hour", "1e9", "0 to 60"),
        ("--tick-seconds", "1e-300", "0.001 to 2,147,483,647"),
        ("--billing-seconds", "1e-300", "0.001 to 2,147,483,647"),
        ("--boot-seconds", "1e300", "0 to 2,147,483,647"),
    ):
        fault = folder.fault(TRACE, option, value, command="simulate")
        assert f"argument {option}: '{value}' is too " in fault
        assert f"; valid: {valid}" in fault
    # An arrival that a tick misses by less than the rounding of ticks.
    assert folder.run("simulate", TRACE.replace(",50,10,", ",50.0000000001,10,"))[0] == 0


def test_a_simulation_in_which_jobs_never_end_is_abandoned(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator, "MOST_VAIN_PLANS", 40)
    spot = (
        '[[instance_types]]\ninstance_type = "small"\nvcpus = 2\nmemory_gib = 4\n'
        'offerings = [{usd_per_hour = 0.1, capacity_type = "spot"}]\n'
    )
    long = TRACE.replace(",0,100,", ",0,360000,")
    options = ["--catalogue", folder.write("spot.toml", spot), "--reclaims-per-hour", "60"]
    fault = folder.fault(long, *options, command="simulate")
    assert fault.startswith("--capacity-errors 0, --reclaims-per-hour 60: no job has ended in 40 plans in a row")
    assert fault.endswith("lower one of them")


def test_the_console_script_imports_no_airflow(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.csv"
    jobs.write_text(JOBS)
    code = (
        "import sys; from lading.plugin.offline.command import main; status = main(sys.argv[1:]);"
        "assert 'airflow' not in sys.modules; sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "plan", "--jobs", str(jobs), "--policy", "greedy"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("output", ["json", "table"])
def test_an_output_that_is_not_read_ends_the_command_without_a_traceback(tmp_path: Path, output: str) -> None:
    jobs = tmp_path / "jobs.csv"
    # More than a pipe holds.
    jobs.write_text("name,cpus,memory_mib\n" + "".join(f"{n:0250},1.{n % 5000},1\n" for n in range(9999)))
    command = [sys.executable, "-m", "lading.plugin.offline.command", "plan", "--policy", "greedy"]
    command += ["--jobs", str(jobs), "--output", output]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "the output cannot be written: No space left on device\n")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1


def test_a_trace_has_fewer_jobs_than_a_plan(folder: Folder) -> None:
    header = "name,cpus,memory_mib,arrival_seconds,duration_seconds,count\n"
    advice = "valid: at most 100,000; lower the counts, or leave rows out"
    for rows, fault in (
        ("a,1,1024,0,100,1000000\n", f"jobs.csv:2: with count '1000000' there are 1,000,000 jobs; {advice}"),
        (
            "a,1,1024,0,100,60000\nb,1,1024,0,100,40000\nc,1,1024,5,1,1\n",
            f"jobs.csv:4: with count '1' there are 100,001 jobs; {advice}",
        ),
    ):
        assert folder.fault(header + rows, command="simulate") == fault
    lines = f"{header}a,1,1024,0,100,60000\nb,1,1024,0,100,40000\n".splitlines(keepends=True)
    jobs, _ = trace.parse_trace(lines, "jobs.csv", bundled())
    assert sum(job.count for job in jobs.jobs) == 100_000


WORKFLOW = json.dumps(
    {
        "workflow": {
            "specification": {
                "tasks": [
                    {"name": "a_1", "id": "1", "parents": []},
                    {"name": "a_2", "id": "2", "parents": ["1"]},
                    {"name": "b", "id": "3", "parents": ["1", "2"]},
                ]
            },
            "execution": {
                "tasks": [
                    {"id": "1", "runtimeInSeconds": 100, "memoryInBytes": 1048576},
                    {"id": "2", "runtimeInSeconds": 50, "memoryInBytes": 1048576},
                    {"id": "3", "runtimeInSeconds": 25, "memoryInBytes": 1048576},
                ]
            },
        }
    }
)


def workflow(folder: Folder, text: str, *options: str) -> tuple[int, str, str]:
    file = folder.write("flow.json", text)
    try:
        status = main(["simulate", "--workflow", file, "--catalogue", str(folder.path / "catalogue.csv"), *options])
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    captured = folder.capsys.readouterr()
    return status, captured.out, captured.err.replace(f"{folder.path}/", "")


def test_a_workflow_is_simulated_beside_equal_machines(folder: Folder) -> None:
    status, out, err = workflow(folder, WORKFLOW, "--output", "json", "--lengths", "known")
    assert status == 0, err
    answer = json.loads(out)
    assert [run["policy"] for run in answer["runs"]] == ["greedy", "forecast"]
    assert [run["unplaced"] for run in answer["runs"]] == [0, 0]
    [said] = answer["workflows"]
    assert said["critical_path_seconds"] == 175
    assert said["reference"]["machines"] == 1
    assert said["reference"]["makespan_seconds"] == 175
    assert answer["runs"][1]["cost_usd"] == pytest.approx(said["reference"]["cost_usd"], rel=0.01)
    status, out, _ = workflow(
        folder, WORKFLOW, "--starts", "0", "30", "--scale", "2", "--compare", "forecast", "--hurry", "cheap"
    )
    assert status == 0
    assert "critical path 350 s" in out
    assert "│ jobs                      │ 6 " in out


REQUESTS = "task,cpus,memory_mib\na,2,4096\nnone.*,1,100\n*,2,2048\n"


def test_what_sizing_is_worth_on_a_recorded_workflow(folder: Folder) -> None:
    requests = folder.write("requests.csv", REQUESTS)
    sized = ("--requests", requests, "--sizes", "asked,auto,exact", "--compare", "greedy,forecast")
    status, out, err = workflow(folder, WORKFLOW, *sized, "--runs", "1", "2", "--output", "json")
    assert status == 0
    assert "requests.csv: these rows match no task: 'none.*'" in err
    found = json.loads(out)["runs"]
    columns = [(run["policy"], run["sizes"], run["run"], run["short"]) for run in found]
    expected = [("asked", None), ("auto", 1), ("auto", 2), ("exact", None)]
    assert columns == [(policy, *each, 0) for policy in ("greedy", "forecast") for each in expected]
    asked, first, second, exact = found[:4]
    assert asked["of_cost"] == 1.0
    assert second["of_cost"] == second["cost_usd"] / asked["cost_usd"] <= first["of_cost"]
    assert exact["of_makespan"] == exact["makespan_seconds"] / asked["makespan_seconds"]
    assert asked["memory_utilisation"] > 10 * exact["memory_utilisation"], "1 MiB of 4 GiB"
    status, out, _ = workflow(folder, WORKFLOW, "--sizes", "auto", "--runs", "10", "--compare", "greedy")
    assert status == 0
    assert "greedy, auto, run 10" in out
    assert "tries that fell short" in out


@pytest.mark.parametrize(
    ("text", "options", "fault"),
    [
        (WORKFLOW, ("--sizes", "right"), "argument --sizes: 'right' is not one of asked, auto, exact"),
        (WORKFLOW, ("--sizes", "asked", "--runs", "2"), "--runs needs --sizes auto; add it, or leave --runs out"),
        (WORKFLOW, ("--sizes", "auto", "--runs", "0"), "--runs 0: runs are counted from 1"),
        (WORKFLOW, ("--sizes", "auto", "--runs", "101"), "argument --runs: '101' is too large; valid: 0 to 100"),
        (WORKFLOW, ("--requests", "nowhere.csv"), "nowhere.csv:1: "),
        (
            "no",
            (),
            "flow.json: Expecting value: line 1 column 1 (char 0); valid: a run recorded in WfFormat 1.4 or 1.5",
        ),
        (WORKFLOW.replace('"1", "2"', '"1", "9"'), (), "flow.json: task '3': parent '9' is not in the file"),
        (
            WORKFLOW.replace("1048576", "9" * 14),
            (),
            "flow.json: task '1' is too large for every machine that is x86_64",
        ),
        (WORKFLOW, ("--jobs", "jobs.csv"), "--workflow cannot be combined with --jobs; give one of them"),
        (
            WORKFLOW,
            ("--hurry", "soon"),
            "argument --hurry: 'soon' is not a value of hurry; valid: 0 to 100, or one of cheap, bal",
        ),
        (
            WORKFLOW,
            ("--hurry", "1", "--compare", "greedy"),
            "--hurry needs the policy forecast; add it to --compare, or leave",
        ),
        (
            WORKFLOW,
            ("--plan-seconds", "1", "--compare", "greedy"),
            "--plan-seconds needs the policy forecast; add it to --compare, or leave --plan-seconds out",
        ),
        (WORKFLOW, ("--per-instance-cost", "1"), "--per-instance-cost has no effect on the policy forecast; compare"),
        (WORKFLOW, ("--compare", "hours"), "'hours' is not one of greedy, priced, alone, forecast"),
        (WORKFLOW, ("--starts", "-1"), "argument --starts: '-1' is not a finite number of at least 0"),
        (WORKFLOW, ("--starts", *["0"] * 34_000), "there are 102,000 tasks; valid: at most 100,000"),
    ],
)
def test_what_is_wrong_with_a_workflow(folder: Folder, text: str, options: tuple[str, ...], fault: str) -> None:
    status, out, err = workflow(folder, text, *options)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert fault in err


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("task,cpus\na,1\n", "requests.csv:1: column 'memory_mib' is missing"),
        ("task,cpus,memory_mib\nz,1,1\n", "requests.csv:1: no row matches a task; the tasks are 'a, b'"),
        ("task,cpus,memory_mib\na,0,1\n", "requests.csv:2: cpus '0' is not above zero"),
        ("task,cpus,memory_mib\na,1,1\na,2,2\n", "requests.csv:3: task 'a' is already on line 2"),
        ("task,cpus,memory_mib\na,99,1\n", "flow.json: task '1' is too large for every machine"),
    ],
)
def test_what_is_wrong_with_requests(folder: Folder, text: str, fault: str) -> None:
    status, out, err = workflow(folder, WORKFLOW, "--requests", folder.write("requests.csv", text))
    assert (status, out) == (2, "")
    assert fault in err


def test_options_of_workflows_need_one(folder: Folder) -> None:
    assert folder.fault(TRACE, "--lengths", "task", command="simulate").startswith("--lengths needs --workflow")
    for option in (("--sizes", "auto"), ("--runs", "2"), ("--requests", "r.csv")):
        fault = folder.fault(TRACE, *option, command="simulate")
        assert fault.startswith(f"{option[0]} needs --workflow FILE; add that, or leave this option out")
    with pytest.raises(SystemExit):
        raise SystemExit(main(["simulate"]))
    assert folder.capsys.readouterr().err.startswith(
        "there is nothing to simulate; give --jobs FILE, --workflow FILE or --dag DAG"
    )


@pytest.mark.parametrize("command", ["plan", "simulate"])
def test_without_numpy_and_highs_one_line_says_what_installs_them(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    for module in ("numpy", "highspy"):
        monkeypatch.setitem(sys.modules, module, None)
    status, out, err = folder.run(command, JOBS)
    assert (status, out) == (2, "")
    assert err == (
        f"lading {command} needs NumPy and HiGHS, which are not installed: pip install 'airflow-lading[planning]'\n"
    )
