"""Ctrl-C is noted, whether or not its KeyboardInterrupt is lost."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest
from snakemake_executor_plugin_lading.interrupts import Interrupts


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """Handlers that raise nothing."""
    before = {each: signal.signal(each, lambda *_: None) for each in (signal.SIGINT, signal.SIGTERM)}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


def test_ctrl_c_alone_is_an_interrupt_and_is_noted_until_the_end() -> None:
    interrupts = Interrupts()
    try:
        signal.raise_signal(signal.SIGTERM)
        assert not interrupts.look()
        signal.raise_signal(signal.SIGINT)
        assert interrupts.look()
        assert interrupts.look()
    finally:
        interrupts.close()
    assert signal.set_wakeup_fd(-1) == -1
    interrupts.close()


def test_nothing_is_noted_after_the_end() -> None:
    interrupts = Interrupts()
    interrupts.close()
    signal.raise_signal(signal.SIGINT)
    assert not interrupts.look()


def test_a_program_that_has_signals_write_elsewhere_is_left_alone() -> None:
    reader, writer = os.pipe2(os.O_NONBLOCK)
    signal.set_wakeup_fd(writer)
    try:
        interrupts = Interrupts()
        signal.raise_signal(signal.SIGINT)
        assert not interrupts.look()
        assert os.read(reader, 10) == bytes([signal.SIGINT])
        interrupts.close()
    finally:
        assert signal.set_wakeup_fd(-1) == writer
        os.close(reader)
        os.close(writer)


def test_in_another_thread_nothing_is_noted() -> None:
    made: list[Interrupts] = []
    thread = threading.Thread(target=lambda: made.append(Interrupts()))
    thread.start()
    thread.join()
    signal.raise_signal(signal.SIGINT)
    assert not made[0].look()
    made[0].close()
