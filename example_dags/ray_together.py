"""Count primes with a head and its workers, which start together or not at all and talk to each other over the network.

A Ray cluster, an MPI program, or a service with its clients needs the same: a part of it alone does no work but costs
money. Here the head hands out ranges of numbers. Each worker counts the primes in its ranges, and the head adds up the
counts. Without the hint ``gang``, the head could start when there is room for only one task, and the workers could
start hours later.

The Dag runs at any site that supports gangs (docs/how_to/gangs.md). The gang can use several machines if the machines
can reach each other by host name.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, TypedDict

from airflow.sdk import dag, get_current_context, task

from lading.operators import resources

WORKERS = 3
BELOW = 200_000
STEP = 5_000
# How many seconds the head and its workers wait for each other. They start together, but not at the same instant.
PATIENCE = 120


class Address(TypedDict):
    host: str
    port: int
    word: str  # a secret that only workers know, so that the head ignores other clients


class Work:
    """The ranges that are not handed out yet, and the number of primes in the ranges that workers have counted."""

    def __init__(self) -> None:
        self.ranges = deque((start, min(start + STEP, BELOW)) for start in range(0, BELOW, STEP))
        self.primes = 0
        self.done: dict[str, int] = {}
        self.lock = threading.Lock()

    def next(self) -> tuple[int, int] | None:
        with self.lock:
            return self.ranges.popleft() if self.ranges else None

    def welcome(self, worker: str) -> None:
        with self.lock:
            self.done[worker] = 0

    def add(self, worker: str, primes: int) -> None:
        with self.lock:
            self.primes += primes
            self.done[worker] += 1


def is_prime(number: int) -> bool:
    return number > 1 and all(number % each for each in range(2, int(number**0.5) + 1))


def lines(connection: socket.socket) -> Iterator[Any]:
    """Yield the messages of the other side, one JSON value per line."""
    with connection.makefile("r", encoding="utf-8") as stream:
        yield from map(json.loads, stream)


def say(connection: socket.socket, value: object) -> None:
    connection.sendall(json.dumps(value).encode() + b"\n")


def look_after(connection: socket.socket, word: str, work: Work) -> None:
    """Send ranges to a worker until no range is left."""
    with connection:
        said = lines(connection)
        hello = next(said)
        if hello.get("word") != word:
            return
        # Count the worker even if it gets no range, because other workers were faster.
        work.welcome(hello["name"])
        while (part := work.next()) is not None:
            say(connection, part)
            work.add(hello["name"], next(said))


@dag(schedule=None, tags=["lading"], doc_md=__doc__)
def ray_together() -> None:
    """Start a head and its workers together or not at all."""

    @task(
        executor_config=resources(gang="ray", cpus=0.25, memory="300 MiB"),
        execution_timeout=timedelta(minutes=10),
    )
    def head() -> dict[str, int]:
        """Hand out the ranges, and add up the counts."""
        work, word = Work(), secrets.token_hex(16)
        with socket.create_server((socket.gethostname(), 0)) as server:
            server.settimeout(PATIENCE)
            host, port = server.getsockname()[:2]
            address = Address(host=host, port=port, word=word)
            get_current_context()["ti"].xcom_push("address", address)
            threads = []
            for _ in range(WORKERS):
                connection, _ = server.accept()
                threads.append(threading.Thread(target=look_after, args=(connection, word, work)))
                threads[-1].start()
            for thread in threads:
                thread.join()
        print(f"{work.primes} primes below {BELOW}; ranges of each worker: {work.done}")
        return {"primes": work.primes, "workers": len(work.done)}

    @task(
        executor_config=resources(gang="ray", cpus=0.25, memory="300 MiB"),
        execution_timeout=timedelta(minutes=10),
    )
    def worker(number: int) -> int:
        """Count the primes in the ranges that the head hands out; return the number of ranges."""
        deadline, address = time.monotonic() + PATIENCE, None
        while address is None:
            address = get_current_context()["ti"].xcom_pull(task_ids="head", key="address", map_indexes=-1)
            if time.monotonic() > deadline:
                raise TimeoutError(f"the head did not push its address within {PATIENCE} s")
            time.sleep(0.2)
        counted = 0
        with socket.create_connection((address["host"], address["port"]), timeout=PATIENCE) as connection:
            say(connection, {"name": f"worker {number}", "word": address["word"]})
            for first, behind in lines(connection):
                say(connection, sum(map(is_prime, range(first, behind))))
                counted += 1
        return counted

    head()
    worker.expand(number=list(range(WORKERS)))


ray_together()
