"""Properties of job scripts: INI files of clusterjob, and layers."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from lading.hooks.job_scripts.properties import (
    JobProperties,
    JobScriptWarning,
    PropertyError,
    from_text,
    parse_ini,
    read_ini,
)

# The shape of the files in clusterjob's own tests and documentation.
CLUSTERJOB = """
[Attributes]
backend = pbs
shell = /bin/sh
prologue =
    mkdir -p {rootdir}/{workdir}
    rsync -av {workdir}/ {rootdir}/{workdir}
epilogue = rsync -av {rootdir}/{workdir}/ {workdir}
rootdir = ~/jobs
workdir = run001
# the following is a new attribute
text = Hello World, 100%% of $HOME and %(x)s
CamelCase: yes

[Resources]
queue = exec
nodes = 1
threads = 12
mem = 10000
time = 00:05:00
select = 1:ncpus=32:mpiprocs=32
-A = XXXX
-j = oe
--mail-type = END
exclusive = True
requeue = false
"""


def test_an_ini_file_of_clusterjob() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        properties = parse_ini(CLUSTERJOB, "job.ini")
    assert properties.attributes == {
        "backend": "pbs",
        "shell": "/bin/sh",
        "prologue": "\nmkdir -p {rootdir}/{workdir}\nrsync -av {workdir}/ {rootdir}/{workdir}",
        "epilogue": "rsync -av {rootdir}/{workdir}/ {workdir}",
        "rootdir": "~/jobs",
        "workdir": "run001",
        "text": "Hello World, 100%% of $HOME and %(x)s",
        "CamelCase": "yes",
    }
    assert properties.resources == {
        "queue": "exec",
        "nodes": "1",
        "threads": "12",
        "mem": "10000",
        "time": "00:05:00",
        "select": "1:ncpus=32:mpiprocs=32",
        "A": "XXXX",
        "j": "oe",
        "mail-type": "END",
        "exclusive": True,
        "requeue": False,
    }
    assert properties.backend == "torque"


def test_the_case_of_keys_is_kept() -> None:
    properties = parse_ini("[Attributes]\nInput = a\ninput = b\n[Resources]\na = now\nA = account\n", "x.ini")
    assert (properties.attributes, properties.resources) == (
        {"Input": "a", "input": "b"},
        {"a": "now", "A": "account"},
    )


@pytest.mark.parametrize(
    ("name", "backend"),
    [("pbs", "torque"), ("torque", "torque"), ("pbspro", "pbspro"), ("slurm", "slurm"), ("other", "other")],
)
def test_backends(name: str, backend: str) -> None:
    assert parse_ini(f"[Attributes]\nbackend = {name}\n", "x.ini").backend == backend
    assert parse_ini("[Attributes]\n", "x.ini").backend is None


def test_what_the_connection_replaces_is_dropped_with_a_warning() -> None:
    with pytest.warns(JobScriptWarning) as caught:
        properties = parse_ini("[Attributes]\nremote = login\nssh = /opt/ssh\nscp = scp\nx = 1\n", "x.ini")
    assert [str(each.message) for each in caught] == [
        "x.ini: remote, ssh, scp ignored: the Airflow connection of the site takes their place"
    ]
    assert properties.attributes == {"x": "1"}


def test_what_only_clusterjob_knows_is_a_placeholder_with_a_warning() -> None:
    with pytest.warns(JobScriptWarning, match=r"x.ini: Lading only uses sleep_interval for placeholders"):
        assert parse_ini("[Attributes]\nsleep_interval = 60\n", "x.ini").placeholders == {"sleep_interval": "60"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"x\.ini has no section; valid, with these capitals: \[Attributes\] and \[Resources\]"),
        ("nodes = 1\n", r"no section headers.*x\.ini"),
        (
            "[resources]\nnodes = 1\n",
            r"x\.ini has a section \[resources\]; valid, .*: \[Attributes\] and \[Resources\]",
        ),
        ("[DEFAULT]\nnodes = 1\n[Resources]\n", r"x\.ini has a section \[DEFAULT\]"),
        ("[Resources]\nnodes = 1\nnodes = 2\n", r"x\.ini.*'nodes'.*already exists"),
        ("[Resources]\nA = 1\n-A = 2\n", r"x\.ini: 'A' is given twice: '1' and '2'"),
        ("[Resources]\nNodes = 1\n", r"x\.ini: 'Nodes' is not 'nodes': upper and lower case matter"),
        ("[Attributes]\nRemote = 1\n", r"x\.ini: 'Remote' is not 'remote'"),
        ("[Attributes]\na b = 1\n", r"x\.ini: attribute 'a b' is not a name"),
        ("[Attributes]\n_a = 1\n", r"x\.ini: attribute '_a' is not a name"),
        ("[Resources]\n-l x = 1\n", r"x\.ini: resource '-l x' is not a name; valid: one of jobname, queue"),
        ("[Resources]\nnodes\n", r"x\.ini"),
    ],
)
def test_wrong_files(text: str, message: str) -> None:
    with pytest.raises(PropertyError, match=message) as caught:
        parse_ini(text, "x.ini")
    assert "\n" not in str(caught.value)


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "x.ini"
    path.write_bytes("\ufeff[Resources]\r\nqueue = größe\r\n".encode())
    assert read_ini(path).resources == {"queue": "größe"}
    path.write_bytes(b"[Resources]\nqueue = \xff\n")
    with pytest.raises(PropertyError, match=r"x\.ini is not UTF-8: byte 0xff at 20"):
        read_ini(path)
    with pytest.raises(PropertyError, match=r"nowhere\.ini cannot be read: No such file"):
        read_ini(tmp_path / "nowhere.ini")


def test_layers() -> None:
    site = JobProperties({"queue": "batch", "account": "a", "nodes": 1}, {"scratch": "/s", "shell": "/bin/sh"})
    ini = JobProperties({"nodes": "2", "time": "1h"}, {"scratch": "/t"})
    call = JobProperties.from_mapping({"nodes": 3, "account": None, "shell": "/bin/ksh"})
    properties = call.over(ini).over(site)
    assert properties.resources == {"queue": "batch", "account": None, "nodes": 3, "time": "1h"}
    assert properties.attributes == {"scratch": "/t", "shell": "/bin/ksh"}
    assert properties.placeholders == {"queue": "batch", "nodes": "3", "time": "1h"} | properties.attributes


def test_placeholders_are_in_words_and_resources_come_first() -> None:
    properties = JobProperties.from_mapping(
        {"exclusive": True, "nodes": 2, "queue": "", "x": "resource"}, {"x": "a", "y": 1.5}
    )
    assert properties.placeholders == {"exclusive": "true", "nodes": "2", "x": "resource", "y": "1.5"}


def test_a_property_is_given_once() -> None:
    with pytest.raises(PropertyError, match="'shell' is given twice: '/bin/sh' and '/bin/ksh'"):
        JobProperties.from_mapping({"shell": "/bin/sh"}, {"shell": "/bin/ksh"})


def test_booleans_in_text() -> None:
    assert [from_text("exclusive", text) for text in ("true", "False", "user", "1", "")] == [
        True,
        False,
        "user",
        "1",
        "",
    ]
    assert from_text("jobname", "true") == "true"
