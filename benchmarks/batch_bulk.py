"""A site with many live jobs on a real SLURM behind a real sshd, counted and timed in this process.

Imported only once the environment names Airflow's folder, because Airflow reads its configuration when it is imported.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lading.executors.agent.tasks import probe
from lading.executors.controller.site_driver import SiteDriver
from lading.hooks.cluster.site import ClusterSite
from lading.hooks.spool.spool import Envelope
from lading.plugin.manager import site_kinds
from lading.scheduling.model.resources import Resources
from tests.services.account import Account
from tests.services.processes import wait_until
from tests.services.slurm import Slurm
from tests.services.sshd import Sshd

# What is counted of the batch system's commands.
COUNTED = ("squeue", "sbatch", "scancel", "sacct")
# The batch job of a task as its site sees it, without Airflow: it takes its envelope, reports its start, writes a line
# into its log every five seconds and reports its end when there is a file "over". It stands in Python's place, so its
# arguments are -m, the module, the folder, the submission and the index.
JOB = r"""#!/bin/sh
umask 077
cd "$3" || exit
task=$(sed -n "${5}p" "submissions/$4/tasks")
token=${task%%TAB*} log=${task#*TAB}
mkdir "spool/jobs/$token" && mv "spool/inbox/$token.json" "spool/jobs/$token/workload.json" || exit
mkdir -p "logs/$token/$(dirname "$log")"
say() {
  echo "{\"event\": \"$1\", \"token\": \"$token\", \"at\": $(date +%s)$2}" > "spool/events/.$token"
  mv "spool/events/.$token" "spool/events/$(date +%s%N).$token.jsonl"
}
say started ', "pid": 1'
until [ -e over ]; do echo "line $((line = line + 1)) of the log" >> "logs/$token/$log"; sleep 5; done
amounts='"exit_code": 0, "cause": null, "message": null, "peak_memory": 1, "cpu_seconds": 1.0'
say finished ", \"started_at\": null, $amounts"
""".replace("TAB", "\t")


@dataclass(frozen=True, slots=True)
class Round:
    """One round.

    :param thread: CPU seconds of the site's thread
    :param process: CPU seconds of all threads, such as those that encrypt
    """

    exchanges: int
    thread: float
    process: float


@dataclass
class Recorder:
    site: ClusterSite
    rounds: list[Round] = field(default_factory=list)
    exchanges: int = 0

    def __post_init__(self) -> None:
        rounds: Any = self.site.poller
        rounds.transport.exchange = self._counting(rounds.transport.exchange)
        rounds.round = self._timing(rounds.round)

    def _counting(self, exchange: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self.exchanges += 1
            return exchange(*arguments, **named)

        return call

    def _timing(self, call: Callable[[], None]) -> Callable[[], None]:
        def timed() -> None:
            before, thread, process = self.exchanges, time.thread_time(), time.process_time()
            try:
                call()
            finally:
                if made := self.exchanges - before:
                    self.rounds.append(Round(made, time.thread_time() - thread, time.process_time() - process))

        return timed

    def take(self) -> list[Round]:
        """The rounds since the last time."""
        taken, self.rounds[:] = list(self.rounds), []
        return taken


class Controller:
    """What the controller does with a site, without a database, and what the site has reported."""

    def __init__(self, site: ClusterSite) -> None:
        self.solo = SiteDriver(site)
        self.reported: dict[str, set[str]] = {}
        self.seconds: list[float] = []

    @property
    def known(self) -> bool:
        """Whether the site still has jobs."""
        return any(each.known for each in self.solo.seen)

    def tick(self) -> None:
        before = time.thread_time()
        for event in self.solo.tick():
            self.reported.setdefault(event["event"], set()).add(event["token"])
        self.seconds.append(time.thread_time() - before)

    def count(self, kind: str) -> int:
        return len(self.reported.get(kind, ()))

    def tick_until(self, reached: Callable[[], bool], seconds: float) -> None:
        """:raises RuntimeError: it was not reached within so many seconds"""

        def over() -> bool:
            self.tick()
            return reached()

        if not wait_until(over, seconds, 1.0):
            reported = {kind: len(tokens) for kind, tokens in self.reported.items()}
            raise RuntimeError(f"not reached within {seconds:g} s; reported so far: {reported}")


def measure(account: Account, slurm: Slurm, login: Sshd, jobs: int, running: int) -> None:
    """Print what ``jobs`` live jobs cost of which ``running`` run, from their submission to their end."""
    with tempfile.TemporaryDirectory(prefix="lading-benchmark-") as folder:
        site = make_site(account, running, Path(folder))
        controller = Controller(site)
        controller.tick()
        controller.seconds.clear()  # it has imported what it needs
        recorder = Recorder(site)
        try:
            controller.solo.put(envelopes(jobs))
            controller.tick_until(lambda: count(account)["sbatch"] > 0 and bool(recorder.rounds), 60)
            report(f"submitting {jobs} jobs", recorder.take())
            print(f"  {count(account)['sbatch']} × sbatch")
            controller.tick_until(lambda: controller.count("started") >= running, 180)
            report(f"until {running} of them run", recorder.take())
            asked, until = count(account)["squeue"], time.monotonic() + 40
            controller.tick_until(lambda: time.monotonic() > until, 60)
            steady = recorder.take()
            report(f"{jobs} live jobs, {running} running", steady)
            print(f"  {count(account)['squeue'] - asked} status queries in {len(steady)} rounds")
            account.write("work/over", "")
            controller.tick_until(lambda: controller.count("finished") == jobs, 300)
            controller.tick_until(lambda: not controller.known, 60)
            report("their ends", recorder.take())
            print(f"connections: {login.accepted}; commands of the whole run: {count(account)}")
            print(f"the controller's side of a tick: worst {1000 * max(controller.seconds):.0f} ms of CPU")
        finally:
            site.close("hand_over", 30.0)
            slurm.command("scancel", "-u", account.name)


def make_site(account: Account, running: int, folder: Path) -> ClusterSite:
    """A controller's side of the cluster, whose login node counts the commands of the batch system."""
    account.write("job", JOB).chmod(0o755)
    account.write("counted", "")
    kind = site_kinds()["slurm"]
    config = kind.config_model(
        kind="slurm",
        ssh_conn_id="cluster",
        work_dir=f"{account.home}/work",
        python=f"{account.home}/job",
        login_setup=counting(account),
        node_cpus=running,
        node_memory=16000,
        memory_overhead=0,
        api_url="http://127.0.0.1:1/execution/",
        max_poll_interval=2,
    )
    return kind("hpc", config, folder)  # type: ignore[arg-type, return-value]


def counting(account: Account) -> str:
    """Commands that write down that they were run, in the place of the batch system's; what sets the path to them."""
    folder = account.home / "counting"
    folder.mkdir(exist_ok=True)
    for name in COUNTED:
        path = folder / name
        path.write_text(f'#!/bin/sh\necho {name} >> {account.home}/counted\nexec /usr/bin/{name} "$@"\n')
        path.chmod(0o755)
    return f"PATH={folder}:$PATH"


def envelopes(count: int) -> Sequence[Envelope]:
    """Tasks that ask for one cpu each."""
    now = time.time()
    tokens = [str(uuid.uuid4()) for _ in range(count)]
    log = "dag_id=trivial/run_id=manual/task_id=one"
    return [
        Envelope(
            token,
            {**probe.workload(), "log_path": f"{log}/{token}.log"},
            Resources(1, 50),
            None,
            None,
            0,
            now,
            now + 3600,
        )
        for token in tokens
    ]


def count(account: Account) -> dict[str, int]:
    said = (account.home / "counted").read_text().split()
    return {name: said.count(name) for name in COUNTED}


def report(what: str, rounds: Sequence[Round]) -> None:
    thread, process = ([1000 * getattr(each, name) for each in rounds] for name in ("thread", "process"))
    print(
        f"{what}: {len(rounds)} rounds of at most {max(each.exchanges for each in rounds)} exchanges; CPU of the "
        f"site's thread: median {statistics.median(thread):.0f} ms, worst {max(thread):.0f} ms; of the process: median "
        f"{statistics.median(process):.0f} ms, worst {max(process):.0f} ms",
        flush=True,
    )
