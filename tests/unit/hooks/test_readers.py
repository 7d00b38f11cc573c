"""Every reader of user input gives a result or one line of error, in bounded time, whatever it gets."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lading.executors.settings import DEFAULTS, Settings
from lading.hooks.job_scripts.profile import parse_profile
from lading.hooks.job_scripts.properties import JobProperties, parse_ini
from lading.hooks.job_scripts.run_site import batch_system, read_site
from lading.hooks.job_scripts.script import JobScript
from lading.plugin.manager import site_kinds
from lading.plugin.offline.command import main
from lading.plugin.offline.options import COMMANDS
from lading.plugin.offline.simulation import trace
from lading.plugin.sites import faults, load_sites
from lading.scheduling.hints.expressions import Expression
from lading.scheduling.hints.hints import Hints, merge, of_the_run
from lading.scheduling.model import catalogue
from lading.scheduling.model.resources import Resources
from lading.scheduling.text import toml, units
from tests.services.examples import part

LONGEST_MESSAGE = 5000
patient = settings(deadline=10_000, suppress_health_check=list(HealthCheck))
KNOWN = catalogue.bundled()
KINDS = site_kinds()

# What breaks readers: numbers without measure, words of formats, characters that are none, much of one thing.
WORDS = (
    "0 -1 1e308 1e-308 1e999 nan inf -inf true false 0x10 1_000 9" + "9" * 5000 + " \0 \x1b[2J \u202e é [red] [/red] "
    "\" ' ''' \\ , ; = # % { } [ ] [[ ]] ( ) . .. / * ** + - ~ $ ` | & \r \n \r\n \t \ud7ff \uffff"
).split(" ")
STRANGE = st.one_of(st.text(max_size=30), st.sampled_from(WORDS), st.integers().map(str), st.floats().map(str))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.just(10**4000)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=6,
)


def mixed(*words: str) -> st.SearchStrategy[str]:
    """Text of words of a format and of anything else."""
    pieces = st.one_of(
        st.sampled_from(words), st.sampled_from(words), STRANGE, st.just("[" * 2000), st.just("a." * 300)
    )
    return st.lists(pieces, max_size=25).map("".join)


def read(reader: Callable[[], Any], error_type: type[Exception] = ValueError) -> Any:
    """What the reader gives; an error must be a short text in one line."""
    try:
        return reader()
    except error_type as error:
        message = str(error)
        assert message
        assert "\n" not in message
        assert len(message) < LONGEST_MESSAGE
        return None


TABLE = ("name,cpus,memory_mib", "\n", ",", "a", "b", "1", "0", "0.5", "4096", '"', "count", "time_seconds", "gpus")


@patient
@given(mixed(*TABLE, "arch", "instance_type", "disk_gib", "\na,1,1", "\nb,2,2"))
def test_tables_of_jobs(text: str) -> None:
    read(lambda: trace.parse_jobs(text.splitlines(keepends=True), "jobs.csv", KNOWN))
    with_header = "name,cpus,memory_mib,count\n" + text
    read(lambda: trace.parse_jobs(with_header.splitlines(keepends=True), "jobs.csv", KNOWN))


@patient
@given(mixed(*TABLE, "\na,1,1,0,10", "\nb,2,2,5,1e300"))
def test_traces_and_running_instances(text: str) -> None:
    with_header = "name,cpus,memory_mib,arrival_seconds,duration_seconds\n" + text
    read(lambda: trace.parse_trace(with_header.splitlines(keepends=True), "trace.csv", KNOWN))
    running = "instance,instance_type,cpus_used,memory_mib_used\n" + text
    read(lambda: trace.parse_running(running.splitlines(keepends=True), "running.csv", KNOWN))


@patient
@given(mixed(*catalogue.COLUMNS, ",", "\n", "\na,2,4,x86_64,0,,0,0.1", "\nb,2,4,arm64,1,T4,0,", "1", "0.1"))
def test_catalogues_in_csv(text: str) -> None:
    with_header = ",".join(catalogue.COLUMNS) + "\n" + text
    for each in (text, with_header):
        read(lambda each=each: catalogue.parse_csv(each.splitlines(keepends=True), "catalogue.csv"))  # type: ignore[misc]


TOML = (
    "[sites.a]\n",
    "[",
    "]",
    "{",
    "}",
    "=",
    "\n",
    "kind",
    "cpus",
    "'",
    '"',
    "'local'",
    "'slurm'",
    "a.b",
    "true",
    "1",
)


@patient
@given(mixed(*TOML, "[[instance_types]]\n", *(f"{name} = 1\n" for name in catalogue.COLUMNS), "offerings = [{"))
def test_catalogues_in_toml(text: str) -> None:
    read(lambda: catalogue.parse_toml(text, "catalogue.toml"))


@patient
@given(st.dictionaries(st.sampled_from((*catalogue.COLUMNS, "features", "offerings")), VALUES))
def test_instance_types_of_any_values(entry: dict[str, Any]) -> None:
    row = read(lambda: catalogue.toml_row(entry, "catalogue.toml", 1))
    if row is not None:
        read(lambda: catalogue.toml_type(row, entry))


@patient
@given(
    mixed(
        *TOML, "work_dir = '/x'\n", "python = '/x'\n", "node_cpus = 1\n", "node_memory = 1000\n", "[sites.b.memory]\n"
    )
)
def test_sites_files(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "sites.toml"
    path.write_bytes(text.encode(errors="surrogatepass"))
    options = Settings(path, path.parent, Resources(1, 1), "cancel", 30, 30)
    read(lambda: load_sites(options))
    for name in ("a", "nobody"):
        read(lambda name=name: read_site(path, name))  # type: ignore[misc]


@part(0.2, patient)
@given(st.binary(max_size=200))
def test_files_of_any_bytes(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "anything"
    path.write_bytes(content)
    options = Settings(path, path.parent, Resources(1, 1), "cancel", 30, 30)
    read(lambda: load_sites(options))
    read(lambda: read_site(path, "a"))
    assert main(["plan", "--jobs", str(path)]) == 2
    assert main(["script", "--body", "/dev/null", "--profile", str(path), "--scheduler", "slurm"]) in (0, 2)
    assert main(["script", "--body", "/dev/null", "--ini", str(path), "--scheduler", "slurm"]) in (0, 2)


SITE_KEYS = (
    "cpus",
    "memory",
    "disk",
    "gpus",
    "instance_type",
    "time_limit",
    "patience",
    "kill_grace",
    "reserve_cpus",
)
CLUSTER_KEYS = ("work_dir", "python", "queue", "node_cpus", "node_memory", "max_jobs", "api_url", "memory", "resources")


@patient
@given(
    st.dictionaries(st.sampled_from(SITE_KEYS), st.one_of(VALUES, STRANGE)),
    st.dictionaries(st.sampled_from((*CLUSTER_KEYS, "whole_node", "attributes", "setup")), st.one_of(VALUES, STRANGE)),
)
def test_sites_of_any_values(local: dict[str, Any], cluster: dict[str, Any]) -> None:
    needed = {"work_dir": "/x/y", "python": "/x/python", "node_cpus": 1, "node_memory": 1000}
    for table in ({"kind": "local", **local}, {"kind": "slurm", **needed, **cluster}, {"kind": local or []}):
        for fault in faults("a", table, KINDS):
            assert "\n" not in fault
            assert len(fault) < LONGEST_MESSAGE


@patient
@given(mixed(*TOML, "[resources]\n", "[attributes]\n", "[memory]\n", "per = 'cpu'\n", "account = 'x'\n", "mem = 5\n"))
def test_profiles(text: str) -> None:
    read(lambda: parse_profile(text, "profile.toml"))


@patient
@given(mixed("[Attributes]\n", "[Resources]\n", "=", ":", "\n", " ", "backend = slurm\n", "mem = 5\n", "#", ";", "%("))
def test_ini_files(text: str) -> None:
    read(lambda: parse_ini(text, "job.ini"))


@patient
@given(st.dictionaries(st.one_of(st.text(), st.sampled_from(("mem", "time", "nodes", "jobname", "stdout"))), VALUES))
def test_properties_of_job_scripts(properties: dict[str, Any]) -> None:
    for name in ("slurm", "pbspro", "torque", "lsf", "sge"):
        read(
            lambda name=name: (
                JobScript("true\n").over(JobProperties.from_mapping(properties)).render(batch_system(name))
            )  # type: ignore[misc]
        )


@patient
@given(mixed("#!/bin/sh\n", "{input}", "{", "}", "{input!q}", "{{", "\n", "#SBATCH -x\n", "{a.b}", "{a[0]}", "!"))
def test_bodies_of_job_scripts(body: str) -> None:
    read(lambda: JobScript(body, input="x").render(batch_system("slurm")))


HINTS = (
    "cpus", "memory", "disk", "gpus", "time", "site", "instance_type", "arch", "os", "features", "properties",
    "capacity_type", "max_instances", "max_jobs", "nodes", "queue", "native",
)  # fmt: skip


@patient
@given(st.dictionaries(st.one_of(st.sampled_from(HINTS), st.text(), st.integers()), st.one_of(VALUES, STRANGE)))
def test_hints(hints: dict[Any, Any]) -> None:
    parsed = read(lambda: Hints.parse(hints))
    if parsed is not None:
        json.dumps(parsed.resources(Resources()).cpus)
    read(lambda: Hints.parse(of_the_run(merge(hints, hints))))
    read(lambda: Hints.from_config({"lading": hints}))


class Facts:
    attempt, map_index, input_size, runtime = 2, 3, 2**40, 60.0

    def value(self, name: str) -> object:
        return {"text": "x" * 1000, "number": 7, "list": list(range(1000))}.get(name, 1e308)

    def size(self, name: str) -> int:
        return 2**60


@patient
@given(
    mixed("input_size", "attempt", " * ", " + ", "**", "9", "1 GiB", "(", ")", "min(", "sum(", "list", "text", "number",
          ",", " if ", " else ", " and ", "[0]", ".size", "inputs[\"x\"]", "not ", "-", "//", "%", "==", "len(", "1h"),
    st.sampled_from(("memory", "time", "count")),
)  # fmt: skip
def test_expressions(text: str, kind: Any) -> None:
    expression = read(lambda: Expression.parse(text, kind))
    if expression is not None:
        read(lambda: expression.evaluate(Facts()))


@patient
@given(st.one_of(STRANGE, VALUES, mixed("1", "h", "GiB", "MiB", ":", "-", ".", " ", "min", "30", "d")))
def test_units(value: object) -> None:
    for parse in (units.parse_memory, units.parse_time, units.parse_count):
        read(lambda parse=parse: parse(value))  # type: ignore[misc]


@patient
@given(mixed("1", "0", ".", "e", "-", "308", "inf", "nan", "greedy", "priced", ","))
def test_options_of_the_command_line(text: str) -> None:
    for command in COMMANDS.values():
        for option in command.options:
            if kind := option.settings.get("type"):
                read(lambda kind=kind: kind(text), argparse.ArgumentTypeError)  # type: ignore[misc]


@patient
@given(st.sampled_from(sorted(DEFAULTS)), mixed("1", "0", "/", "leave", "cancel", " ", "GiB", "~", "d"))
def test_the_configuration(option: str, text: str) -> None:
    from airflow.exceptions import AirflowConfigException

    class Configuration:
        def get(self, section: str, key: str, *, fallback: Any) -> Any:
            return text if key == option else fallback

    read(lambda: Settings.load(Configuration()), AirflowConfigException)


@patient
@given(mixed(*TOML))
def test_toml(text: str) -> None:
    read(lambda: toml.parse(text))


DOTS = "." * 5000
LONG_KEY = "a" + ".a" * 200


@pytest.mark.parametrize(
    "text",
    [
        f"x = 1\n# {DOTS}",
        f'x = "{DOTS}" # {DOTS}',
        f"x = '{DOTS}'",
        f'x = """{DOTS}\n"{DOTS}""{DOTS}\\"""{DOTS}"""""',
        f"x = '''{DOTS}\n'{DOTS}'''''",
        f'"{DOTS}" = 1',
        f"x = [{'1.5, ' * 5000}]",
        f"x = [{'{a.b = 1.5}, ' * 5000}]",
        f'x = "#" # "{DOTS}',
    ],
)
def test_dots_that_part_no_key(text: str) -> None:
    assert toml.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        f"{LONG_KEY}.a = 1",
        f"{LONG_KEY}.'a' = 1",
        f"a{' . a' * 201} = 1",
        f'x = "#"\n[{LONG_KEY}.a]',
        f"[[{LONG_KEY}.a]]",
        f"x = {{ y = 1, {LONG_KEY}.a = 1 }}",
        f"x = '\\'\n{LONG_KEY}.a = ''",
        f'x = """"a"""""\n{LONG_KEY}.a = 1',
    ],
)
def test_dots_of_a_key(text: str) -> None:
    with pytest.raises(toml.TomlError, match="has more than 200 dots") as caught:
        toml.parse(text)
    assert caught.value.line == text.count("\n") + 1


@pytest.mark.parametrize("text", ['"', "'", '"""', "'''", "#", '"\\', 'x = "', "[", ".\n"])
def test_strings_without_an_end_take_no_time(text: str) -> None:
    begin = time.process_time()
    for times in (1, 2, 100_000):
        read(lambda times=times: toml.parse(text * times))  # type: ignore[misc]
    assert time.process_time() - begin < 10


@pytest.mark.parametrize("path", ["/dev/zero", "/", "/nowhere", "x" * 4500, "a\0b"])
def test_what_is_no_file(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = Settings(Path(path), Path("/tmp"), Resources(1, 1), "cancel", 30, 30)
    read(lambda: load_sites(options))
    read(lambda: read_site(Path(path), "a"))
    for arguments in (
        ["plan", "--jobs", path],
        ["simulate", "--jobs", path],
        ["script", "--body", "/dev/null", "--profile", path],
        ["script", "--body", "/dev/null", "--ini", path],
        ["script", "--body", path, "--scheduler", "slurm"],
    ):
        assert main(arguments) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_a_missing_quote_in_toml_is_named() -> None:
    with pytest.raises(toml.TomlError, match=r"at line 2, .*; a quote is probably missing at the end of") as error:
        toml.parse('a = 1\nkind = "slurm\nb = 1\n')
    assert error.value.line == 2
