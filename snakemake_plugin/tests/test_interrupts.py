"""Ctrl-C is noted, whether or not its KeyboardInterrupt is lost."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from snakemake_executor_plugin_lading import runs
from snakemake_executor_plugin_lading.host import SnakemakeHost
from snakemake_executor_plugin_lading.interrupts import Interrupts
from snakemake_executor_plugin_lading.state_folder import StateFolder, transaction


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


def test_an_interrupt_is_deferred_until_a_transaction_has_ended(tmp_path: Path) -> None:
    state = StateFolder(tmp_path / "lading")
    database = SnakemakeHost.connect(state).engine
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def write(run_id: str, *, is_interrupted: bool) -> None:
        with transaction(database) as session:
            session.add(runs.WorkflowRunRow(run_id=run_id, owner=1, workdir="/flow"))
            session.flush()
            if is_interrupted:
                signal.raise_signal(signal.SIGINT)
                session.flush()

    with pytest.raises(KeyboardInterrupt):
        write("a", is_interrupted=True)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    write("b", is_interrupted=False)
    with transaction(database) as session:
        assert {row.run_id for row in runs.killed_runs(session, state.schedulers)} == {"a", "b"}
