"""How EC2 is asked."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config

from lading.hooks.ec2.client import EC2, AWSTrouble, EC2Error
from lading.hooks.ec2.limits import EC2Limits
from tests.unit.hooks.ec2.test_launch import config


@pytest.fixture
def silent() -> Iterator[str]:
    """The URL of a server that takes requests and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_a_look_that_hangs_is_abandoned_before_it_is_due_again_and_a_launch_is_waited_for(silent: str) -> None:
    """A listing is repeated in the next round, which a retry here would hold up."""
    made: dict[str, Any] = {}

    def make(service: str, region: str | None, options: dict[str, Any]) -> Any:
        made.setdefault(service, options)
        keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
        return boto3.client(service, "us-east-1", endpoint_url=silent, config=Config(**options), **keys)  # type: ignore[call-overload]

    tenth = EC2Limits().read_timeout / 10
    ec2, began = EC2(config(), make, EC2Limits(read_timeout=tenth)), time.monotonic()
    with pytest.raises(EC2Error) as caught:
        ec2.describe({})
    assert caught.value.trouble is AWSTrouble.SILENCE
    attempts = made["ec2"]["retries"]["total_max_attempts"]
    assert attempts * tenth <= time.monotonic() - began
    assert attempts * (10 * tenth + made["ec2"]["connect_timeout"]) < 30
    assert EC2Limits().launch_timeout >= 60
