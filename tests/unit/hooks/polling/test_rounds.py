"""When the rounds of a poller begin."""

from __future__ import annotations

import select
import socket
import threading
import time
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from lading.hooks.polling.rounds import Rounds
from lading.hooks.ssh.answer import TransportError


class Looks:
    """A poller that notes when its rounds were."""

    def __init__(self, trouble: Exception | None = None) -> None:
        self.no_api: str | None = None
        self.at: list[float] = []
        self.trouble = trouble

    def round(self) -> None:
        self.at.append(time.monotonic())
        if self.trouble is not None:
            raise self.trouble

    def pause(self) -> float:
        return 600.0


def test_what_comes_while_there_is_leisure_comes_in_one_round() -> None:
    looks = Looks()
    rounds = Rounds("lab", looks, leisure=lambda: 2.0)
    rounds.start()
    assert rounds.answered_within(120)
    for _ in range(3):
        rounds.wake()
    while len(looks.at) < 2 and time.monotonic() < looks.at[0] + 120:
        time.sleep(0.01)
    rounds.stop(120)
    assert 2.0 <= looks.at[1] - looks.at[0] < 120, "whatever has woken it"
    assert len(looks.at) == 2


def test_news_that_comes_while_there_is_leisure_is_read_after_it() -> None:
    looks, reported = Looks(), threading.Semaphore(0)
    ours, theirs = socket.socketpair()
    news = SimpleNamespace(
        fileno=ours.fileno, has_come=lambda: bool(select.select([ours], [], [], 0)[0] and ours.recv(9))
    )
    with ours, theirs:
        rounds = Rounds("lab", looks, news=news, leisure=lambda: 1.0, finished=reported.release)
        rounds.start()
        for number in (1, 2, 3):
            assert reported.acquire(timeout=120)
            assert len(looks.at) == number
            theirs.send(b"news")
        rounds.stop(120)
    assert min(after - before for before, after in pairwise(looks.at)) >= 1.0


def test_without_leisure_a_round_begins_at_once() -> None:
    looks = Looks()
    rounds = Rounds("lab", looks)
    rounds.start()
    assert rounds.answered_within(120)
    rounds.wake()
    while len(looks.at) < 2 and time.monotonic() < looks.at[0] + 120:
        time.sleep(0.005)
    rounds.stop(120)
    assert looks.at[1] - looks.at[0] < 120


@pytest.mark.parametrize(("pause", "back_off"), [(1.0, 0.0), (0.0, 1.0)], ids=["its own", "of the connection"])
def test_a_failed_round_is_not_repeated_at_once_however_often_it_is_requested(
    monkeypatch: pytest.MonkeyPatch, pause: float, back_off: float
) -> None:
    monkeypatch.setattr("lading.hooks.polling.rounds.PAUSE_AFTER_TROUBLE", pause)
    error = TransportError("no route\0")
    error.retry_in = back_off
    looks, reported = Looks(error), threading.Semaphore(0)
    rounds = Rounds("hpc", looks, finished=reported.release)
    rounds.start()
    assert reported.acquire(timeout=120)
    assert rounds.trouble == "no route\ufffd", "as every database can store it"
    rounds.wake()
    assert reported.acquire(timeout=120)
    assert looks.at[1] - looks.at[0] >= 1.0
    rounds.stop(120)


def test_a_trouble_is_logged_by_the_thread_that_has_met_it_alone(caplog: Any) -> None:
    """A site is observed in one thread and talks to its login node in another, and both know why it does not answer."""
    reported = threading.Semaphore(0)
    login = Rounds("hpc", Looks(OSError("no route")), finished=reported.release)
    login.start()
    assert reported.acquire(timeout=120)
    site = Rounds("hpc", Looks(login.error("no answer yet")), finished=reported.release)
    site.start()
    assert reported.acquire(timeout=120)
    assert site.trouble == "no route"
    assert len(caplog.records) == 1
    for each in (login, site):
        each.stop(120)


def test_tasks_are_done_in_order_before_the_next_round_and_even_if_it_is_not_due(caplog: Any) -> None:
    looks, reported, done = Looks(), threading.Semaphore(0), list[str]()
    rounds = Rounds("lab", looks, finished=reported.release, on_request=True)
    rounds.start()
    rounds.add("Site 'lab' could not do a", lambda: done.append("a"))
    rounds.add("Site 'lab' could not do b", lambda: {}["b"])
    rounds.add("Site 'lab' could not do c", lambda: done.append(f"c after {len(looks.at)} rounds"))
    rounds.wake()
    assert reported.acquire(timeout=120)
    assert done == ["a", "c after 0 rounds"]
    assert [each.getMessage() for each in caplog.records] == ["Site 'lab' could not do b: 'b' (logged once, retrying)"]
    assert rounds.trouble is None, "it is not the site that failed"
    rounds.stopping = True
    rounds.add("", lambda: done.append("d"))
    rounds.stop(120)
    assert done[2:] == ["d"]
    assert len(looks.at) == 1, "no other was requested"


def test_a_round_starts_as_soon_as_it_may() -> None:
    looks, reported, is_ready = Looks(), threading.Semaphore(0), threading.Event()
    rounds = Rounds("lab", looks, finished=reported.release, is_ready=is_ready.is_set)
    rounds.start()
    rounds.wake()
    assert not reported.acquire(timeout=0.2)
    is_ready.set()
    rounds.wake()
    assert reported.acquire(timeout=120)
    rounds.stop(120)


def test_the_end_of_each_round_is_reported() -> None:
    looks, reported = Looks(), threading.Semaphore(0)
    rounds = Rounds("hpc", looks, finished=reported.release)
    rounds.start()
    for number in (1, 2):
        assert reported.acquire(timeout=120)
        assert len(looks.at) == number
        rounds.wake()
    rounds.stop(120)


def test_a_round_that_gets_no_answer_is_shown_before_it_has_failed() -> None:
    rounds = Rounds("hpc", Looks())
    assert rounds.silence is None
    rounds.under_way_since = time.monotonic() - 1
    assert rounds.silence is None
    rounds.under_way_since = time.monotonic() - 24
    assert (rounds.silence or "").startswith("no answer since 20")
