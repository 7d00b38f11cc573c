"""How what the tests and benchmarks start ends."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_process_that_ends_in_order_ignores_no_signal_in_the_background_of_a_shell(number: signal.Signals) -> None:
    code = "import sys; from tests.services.processes import end_in_order; end_in_order()\n"
    code += "try: print(flush=True); sys.stdin.read()\nexcept KeyboardInterrupt: sys.exit(3)"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell has it for what it starts there
    try:
        process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        assert process.wait() == 3
