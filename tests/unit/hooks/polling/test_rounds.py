"""When the rounds of a poller begin."""

from __future__ import annotations

import threading
import time

from lading.hooks.polling.rounds import Rounds


class Looks:
    """A poller that notes when its rounds were."""

    def __init__(self) -> None:
        self.no_api: str | None = None
        self.at: list[float] = []

    def round(self) -> None:
        self.at.append(time.monotonic())

    def pause(self) -> float:
        return 600.0


def test_what_comes_while_there_is_leisure_comes_in_one_round() -> None:
    looks = Looks()
    rounds = Rounds("lab", looks, None, leisure=lambda: 2.0)
    rounds.start()
    assert rounds.answered_within(120)
    for _ in range(3):
        rounds.wake()
    while len(looks.at) < 2 and time.monotonic() < looks.at[0] + 120:
        time.sleep(0.01)
    rounds.stop(120)
    assert 2.0 <= looks.at[1] - looks.at[0] < 120, "whatever has woken it"
    assert len(looks.at) == 2


def test_without_leisure_a_round_begins_at_once() -> None:
    looks = Looks()
    rounds = Rounds("lab", looks, None)
    rounds.start()
    assert rounds.answered_within(120)
    rounds.wake()
    while len(looks.at) < 2 and time.monotonic() < looks.at[0] + 120:
        time.sleep(0.005)
    rounds.stop(120)
    assert looks.at[1] - looks.at[0] < 120


def test_the_end_of_each_round_is_reported() -> None:
    looks, reported = Looks(), threading.Semaphore(0)
    rounds = Rounds("hpc", looks, None, finished=reported.release)
    rounds.start()
    for number in (1, 2):
        assert reported.acquire(timeout=120)
        assert len(looks.at) == number
        rounds.wake()
    rounds.stop(120)


def test_a_round_that_gets_no_answer_is_shown_before_it_has_failed() -> None:
    rounds = Rounds("hpc", Looks(), None)
    assert rounds.silence is None
    rounds.under_way_since = time.monotonic() - 1
    assert rounds.silence is None
    rounds.under_way_since = time.monotonic() - 24
    assert (rounds.silence or "").startswith("no answer since 20")
