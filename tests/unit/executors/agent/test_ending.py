"""The notice of a spot machine that is taken away, as the instance metadata service gives it."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lading.executors.agent import ending
from lading.executors.agent.ending import Ending, SpotNotice, ending_of_notice
from lading.hooks.spool.spool import Spool
from tests.services.ec2_imds import Metadata, serving
from tests.services.outside_clocks import off

NAME = "i-0a1b2c3d"


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[Metadata]:
    found = Metadata(lambda name: None)
    found.values[NAME] = {}
    with serving(found) as url:
        monkeypatch.setenv(ending.METADATA_VARIABLE, f"{url}/{NAME}")
        monkeypatch.setattr(ending, "INTERVAL", 0.0)
        monkeypatch.setattr(ending, "TIMEOUT", 60.0)  # a busy machine answers late
        yield found


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    found = Spool(tmp_path / "spool")
    found.create()
    return found


def test_a_notice_says_when_jobs_are_to_end(metadata: Metadata, spool: Spool) -> None:
    notice = SpotNotice()
    assert notice.read(spool, 5) is None
    assert not spool.ends_at.exists()
    metadata.notices[NAME] = at = time.time() + 100
    found = notice.read(spool, 5)
    assert found is not None
    assert found.left == pytest.approx(at - ending.BEFORE - time.time(), abs=20)
    assert (found.cause.cause, found.grace) == ("preempted", 5)
    assert time.strftime("%H:%M:%S UTC", time.gmtime(int(at))) in str(found.cause.reason)
    assert float(spool.ends_at.read_text()) == pytest.approx(at - ending.BEFORE, abs=20)


@off
def test_jobs_get_as_long_whatever_this_machines_clock_says(
    metadata: Metadata, spool: Spool, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    metadata.notices[NAME] = time.time() + 100
    clock = SimpleNamespace(time=lambda: time.time() - ahead, monotonic=time.monotonic)
    monkeypatch.setattr(ending, "time", clock)
    found = SpotNotice().read(spool, 5)
    assert found is not None
    assert found.left == pytest.approx(100 - ending.BEFORE, abs=20)


def test_a_notice_without_a_time_counts_from_now(
    metadata: Metadata, spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "parsedate_tz", lambda words: None)
    metadata.notices[NAME] = time.time() - 1000
    found = SpotNotice().read(spool, 5)
    assert found is not None
    assert found.left == pytest.approx(ending.LONGEST_NOTICE - ending.BEFORE, abs=9)


def test_a_token_that_does_not_hold_any_more_is_asked_for_anew(metadata: Metadata, spool: Spool) -> None:
    notice = SpotNotice()
    notice._backoff.first = 0.0
    assert notice.read(spool, 5) is None
    metadata.tokens.clear()
    metadata.notices[NAME] = time.time() + 100
    assert notice.read(spool, 5) is None
    assert notice.read(spool, 5) is not None


@pytest.mark.parametrize(
    "said",
    [b"", b"terminate", b"[]", b'{"action": "terminate"}', b'{"action": 1, "time": "2026-01-01T00:00:00Z"}', b"\xff"],
)
def test_what_makes_no_sense_ends_nothing(
    metadata: Metadata, spool: Spool, said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    respond = metadata.respond

    def wrong(path: str, environ: dict[str, Any]) -> tuple[int, bytes]:
        return (200, said) if path.endswith("instance-action") else respond(path, environ)

    monkeypatch.setattr(metadata, "respond", wrong)
    assert SpotNotice().read(spool, 5) is None


def test_a_service_that_hangs_holds_the_agent_up_for_a_second_and_then_ever_less_often(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        notice = SpotNotice(f"http://127.0.0.1:{deaf.getsockname()[1]}")
        began = time.monotonic()
        for _ in range(100):
            assert notice.read(spool, 5) is None
        assert time.monotonic() - began < 50 * ending.TIMEOUT, "it is left alone for a while"


def of(seconds: float, grace: float) -> Ending:
    now = datetime(2026, 11, 23, 12, tzinfo=timezone.utc)
    return ending_of_notice(now + timedelta(seconds=seconds), now.timestamp(), grace)


def test_jobs_get_what_time_there_is() -> None:
    assert of(100, 5).left == pytest.approx(70, abs=9)
    assert of(100, 300).grace == 20, "what is reported after that would not arrive"
    assert of(10, 5).left < 0, "it is late, so they are asked to end at once"
    assert of(4000, 5).left == pytest.approx(90, abs=9), "there is no more than was announced before"


def test_notices_are_read_as_aws_writes_them() -> None:
    at = ending.checked(ending.InstanceAction, json.loads('{"action": "terminate", "time": "2017-09-18T08:22:00Z"}'))[
        "time"
    ]  # the example of its documentation
    assert at == datetime(2017, 9, 18, 8, 22, tzinfo=timezone.utc)
