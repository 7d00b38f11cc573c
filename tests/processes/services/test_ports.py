"""Ports for the services of tests."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from tests.services import ports


def test_what_one_process_has_taken_no_other_gets() -> None:
    [port] = ports.free_ports(1)
    asked = f"from tests.services import ports; print(ports.take({port}), ports.free_ports(1)[0])"
    answer = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout.split()
    assert answer[0] == "False"
    assert int(answer[1]) != port


def test_connections_that_go_out_do_not_get_them() -> None:
    taken = ports.free_ports(50)
    assert len(set(taken)) == 50
    assert max(taken) < ports.first_ephemeral()


def test_a_port_on_which_something_listens_is_left_out() -> None:
    with socket.socket() as server:
        [port] = ports.free_ports(1)
        server.bind(("127.0.0.1", port))
        server.listen()
        asked = f"from tests.services import ports; print(ports.take({port}))"
        os.close(ports._taken.pop(port))  # as if another user had it, whose locks are elsewhere
        answer = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"
