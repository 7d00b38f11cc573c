"""Whether any process is left over if Airflow is shut down right after a kill, with ``[lading] on_shutdown = cancel``.

    python -m benchmarks.kills [--seeds 1 2 3 4] [--kills 8]

Each time, the scheduler, the controller or both are killed (SIGKILL) at a random moment, including while they start.
Then a scheduler is started again, as a service manager would do, and shut down at a random later moment. Any remaining
process of Lading is printed with the moments that led to it. Exits with status 1 if there was one.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.services import processes
from tests.services.airflow import Airflow
from tests.services.processes import Process

DAG = """
import time
from airflow.sdk import dag, task
from lading.operators import resources

@dag(schedule=None)
def sleepers():
    @task(executor_config=resources(cpus=1, memory=64))
    def sleep(number):
        time.sleep(600)
    sleep.expand(number=[1, 2])

sleepers()
"""
SITES = """
[sites.local]
kind = "local"
cpus = 4
memory = "8 GiB"
kill_grace = "2 s"
"""
# What Airflow's scheduler logs when it ends in order.
IN_ORDER = "Exiting gracefully upon receiving signal"
VICTIMS = ("controller",), ("scheduler",), ("scheduler", "controller")
# What lives so long after the end of the scheduler stays, seconds: it says when it waits for longer.
PATIENCE = 45.0


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill before an orderly stop.

    :param lived: for how long Airflow's scheduler had lived before it, seconds
    :param down: for how long there was none, where that was killed, seconds
    :param after: seconds from the kill, or from the new start, to the orderly stop
    :param tasks: whether tasks run, or are about to
    """

    victims: Sequence[str]
    lived: float
    down: float
    after: float
    tasks: bool

    @classmethod
    def draw(cls, chance: random.Random) -> Kill:
        # Half of them early: a controller takes seconds to begin.
        lived = chance.choice([chance.uniform(0, 8), chance.uniform(8, 25)])
        after = chance.choice([0.0, chance.uniform(0, 2), chance.uniform(2, 20)])
        return cls(chance.choice(VICTIMS), lived, chance.uniform(0, 6), after, chance.random() < 0.7)

    def __str__(self) -> str:
        down = f", down for {self.down:.1f} s" if "scheduler" in self.victims else ""
        tasks = "with tasks" if self.tasks else "idle"
        return (
            f"{' and '.join(self.victims)} killed after {self.lived:.1f} s {tasks}{down}, stop {self.after:.1f} s later"
        )


def carry_out(airflow: Airflow, kill: Kill) -> list[Process]:
    """Kill, stop in order, and return what stays."""
    airflow.start("scheduler")
    if kill.tasks:
        airflow.trigger("sleepers")
    time.sleep(kill.lived)
    controllers = [each for each in airflow.processes() if is_controller(each)]
    if "scheduler" in kill.victims:
        session = airflow.pid("scheduler")
        airflow.kill("scheduler")
        end([each.pid for each in processes.living().values() if each.session == session])
    if "controller" in kill.victims:
        end([each.pid for each in controllers])
    if "scheduler" in kill.victims:
        time.sleep(kill.down)
        airflow.start("scheduler")
    pause = kill.after
    while not stopped_in_order(airflow, pause):
        pause += 1.0
        airflow.start("scheduler")
    processes.wait_until(lambda: not left_behind(airflow), PATIENCE)
    return left_behind(airflow)


def stopped_in_order(airflow: Airflow, after: float) -> bool:
    """Stop the scheduler after so many seconds; False: it has died of the signal, too early for Airflow."""
    log = airflow.log_file("scheduler")
    before = log.read_text(errors="replace").count(IN_ORDER)
    time.sleep(after)
    airflow.kill("scheduler", signal.SIGTERM)
    return log.read_text(errors="replace").count(IN_ORDER) > before


def is_controller(process: Process) -> bool:
    words = str(process.command)
    return "lading.plugin" in words and "controller" in words


def left_behind(airflow: Airflow) -> list[Process]:
    """What lives and is of no component that runs."""
    sessions = {airflow.pid(component) for component in ("api-server", "dag-processor")}
    return [each for each in airflow.processes() if each.session not in sessions]


def end(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    processes.wait_until(lambda: not set(pids) & set(processes.living()), 30)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kills", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--kills", type=int, default=8, help="kills per seed")
    options = parser.parse_args()
    left = 0
    with tempfile.TemporaryDirectory(prefix="lading-kills-") as folder:
        home = Path(folder)
        (home / "sites.toml").write_text(SITES)
        config = {"lading.sites_file": home / "sites.toml", "lading.on_shutdown": "cancel"}
        components = "dag-processor", "scheduler", "api-server"
        with Airflow(home, config=config, components=components, preloaded=True) as airflow:
            airflow.add_dag("sleepers", DAG)
            airflow.kill("scheduler", signal.SIGTERM)
            for seed in options.seeds:
                chance = random.Random(seed)
                for number in range(1, options.kills + 1):
                    kill = Kill.draw(chance)
                    stays = carry_out(airflow, kill)
                    print(f"seed {seed}, {number}: {kill}: {len(stays)} left", flush=True)
                    for process in stays:
                        left += 1
                        print(f"    {process.pid} {process.command}", flush=True)
                    if stays:
                        print(airflow.log_tails(40), flush=True)
                    processes.kill(stays)
            airflow.start("scheduler")  # its end is that of this Airflow
            airflow.wait_until_healthy()
    print(f"{len(options.seeds) * options.kills} kills, {left} processes left")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
