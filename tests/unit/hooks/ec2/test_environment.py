"""User data that makes an environment from a stock image."""

from __future__ import annotations

import pytest
import yaml

from lading.hooks.ec2.boot import environment
from lading.hooks.ec2.config import EC2Config
from lading.plugin.subcommands.cli import ARG_LADING
from lading.plugin.subcommands.instances import airflow_requirements


def table(python: str) -> EC2Config:
    found = {"kind": "ec2", "work_dir": "/w", "python": python, "subnets": ["subnet-0a1b2c3d"]}
    return EC2Config.model_validate({**found, "ami": {"x86_64": "ami-0a1b2c3d"}})


def test_what_pip_installs_is_what_is_here() -> None:
    found = list(airflow_requirements())
    assert any(each.startswith("apache-airflow==3.") for each in found)
    text = environment(table("/opt/airflow/bin/python3.11"), [*found, "airflow-lading @ a b;c"])
    head = text.partition("{")[0]
    assert ".lading-failed instead" in head, "where the reader looks when it fails"
    assert "aws ec2 get-console-output" in head
    script = yaml.safe_load(text)["runcmd"][0][2]
    assert "'airflow-lading @ a b;c'" in script
    assert "folder=/opt/airflow\n" in script
    assert '"$folder/bin/pip" install' in script


def test_where_pip_gets_lading_from_must_be_said_for_no_index_has_it() -> None:
    assert ARG_LADING.kwargs["required"]


@pytest.mark.parametrize("python", ["/usr/python3", "/bin/python3", "/opt/bin/pypy"])
def test_a_python_that_is_in_no_environment_is_refused(python: str) -> None:
    with pytest.raises(ValueError, match="valid: a path such as /opt/airflow/bin/python"):
        environment(table(python), [])


def test_user_data_has_an_end() -> None:
    with pytest.raises(ValueError, match="at most 16,384"):
        environment(table("/opt/airflow/bin/python"), ["x" * 17_000])
