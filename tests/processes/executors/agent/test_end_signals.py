"""The signals by which an agent is asked to end."""

from __future__ import annotations

import subprocess
import sys

INTERRUPTED = """
import io, logging, signal, sys
from lading.executors.agent.end_signals import EndSignals

class Raw(io.RawIOBase):
    def writable(self):
        return True

    def write(self, data):
        if b"busy" in bytes(data):
            signal.raise_signal(signal.SIGTERM)
        return sys.__stdout__.buffer.write(data)

sys.stderr = io.TextIOWrapper(io.BufferedWriter(Raw()), write_through=True)
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
signals = EndSignals([signal.SIGTERM])
signals.receive()
logging.info("busy")
assert signals.received
signals.log_new()
"""


def test_a_signal_that_interrupts_what_is_logged_is_logged_behind_it() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout.split("\n")) == (0, ["busy", "received SIGTERM", ""]), done.stderr
