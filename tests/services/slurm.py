"""A real SLURM of Debian's packages on this machine, of several emulated nodes, for as long as a test session.

Everything is in a folder of its own: configuration, keys, sockets, state and logs. Nothing of the machine's own SLURM
or munge is used or changed. A user comes in through :class:`tests.services.sshd.Sshd` with :attr:`Slurm.environment`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.services import debian, processes
from tests.services.account import Account, NeedsRootError
from tests.services.daemons import Daemons
from tests.services.mariadb import MariaDB
from tests.services.ports import free_ports
from tests.services.service import Service

NAME = "lading"
PACKAGES = ("munge", "slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins")
ACCOUNTING_PACKAGES = ("slurmdbd", "slurm-wlm-mysql-plugin", "mariadb-server")

CONFIG = """\
ClusterName={name}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# a job that is requeued starts again after cred_expire, two minutes without it
AuthInfo=socket={munge}/socket,cred_expire=5
CredType=cred/munge
{communication}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
PropagateResourceLimits=NONE
ReturnToService=2
MailProg=/bin/true
SchedulerType=sched/backfill
SchedulerParameters=sched_min_interval=0,batch_sched_delay=0,sched_interval=2,bf_interval=2,bf_continue
PriorityType=priority/basic
SlurmctldTimeout=5
SlurmdTimeout={patience}
MessageTimeout=5
BatchStartTimeout=10
KillWait=2
CompleteWait=0
MinJobAge={min_job_age}
MaxJobCount={max_jobs}
MaxArraySize={max_array_size}
JobRequeue=1
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/jobcomp.txt
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
Prolog={folder}/prolog
{accounting}
{gres_types}
NodeName=DEFAULT CPUs={cpus} Sockets=1 CoresPerSocket={cpus} ThreadsPerCore=1 RealMemory={memory} State=UNKNOWN {traits}
{nodes}
PartitionName=batch Nodes=ALL Default=YES MaxTime=1-00:00:00 DefaultTime=00:10:00 DefMemPerCPU=500 State=UP
PartitionName=short Nodes=ALL MaxTime=00:05:00 DefaultTime=00:01:00 DefMemPerCPU=500 State=UP
"""
# slurmd 22.05 loads a cgroup plugin in any case; this one does nothing until it is used.
CGROUP = "CgroupPlugin=cgroup/v1\n"
PROLOG = """\
#!/bin/sh
[ ! -e {folder}/unlaunchable.$SLURMD_NODENAME ]
"""
ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
# with munge no password but the socket
AccountingStoragePass={munge}/socket
AccountingStorageEnforce=associations,limits,qos
"""
DATABASE = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database_port}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
CommitDelay=1
"""


class Slurm(Service):
    """A running cluster; a context manager.

    :param account: who may use it
    :param nodes: how many, called ``n1``, ``n2``...
    :param cpus: of each node; not the machine's
    :param memory: of each node, MiB
    :param patience: seconds after which a node that does not answer is down and its jobs have failed
    :param min_job_age: seconds for which a finished job stays visible
    :param traits: of each node, as its line in slurm.conf has them, such as ``Feature=ssd Gres=gpu:a100:2``
    :param gres: the lines of gres.conf, for what is among them; ``{folder}/gpu[0-7]`` pass for devices
    :param accounting: whether there is a slurmdbd, which takes seconds longer to start: sacct, limits per user
    :param name: of the cluster; the nodes of one that is not called ``lading`` start with it
    :param other: a running cluster with accounting, whose slurmdbd and munge this one shares, so that each can be named
        by ``--clusters``
    """

    def __init__(
        self,
        account: Account,
        *,
        nodes: int = 4,
        cpus: int = 8,
        memory: int = 16000,
        patience: int = 10,
        min_job_age: int = 300,
        max_jobs: int = 10000,
        max_array_size: int = 1001,
        accounting: bool = False,
        traits: str = "",
        gres: str = "",
        name: str = NAME,
        other: Slurm | None = None,
    ) -> None:
        if os.geteuid() != 0:
            raise NeedsRootError("only root can run the nodes of a SLURM that starts jobs of another user")
        wanted = [*PACKAGES, *(ACCOUNTING_PACKAGES if accounting else ())]
        programs = ["munged", "slurmctld", "slurmd", *(["slurmdbd", "mariadbd"] if accounting else [])]
        if not all(shutil.which(program, path="/usr/sbin") for program in programs):
            debian.install(*wanted, while_installing=debian.NO_SERVICES)
        self.account = account
        self.name, self.other = name, other
        first = "n" if name == NAME else name
        self.nodes = [f"{first}{number}" for number in range(1, nodes + 1)]
        self.folder = Path(tempfile.mkdtemp(prefix="lading-slurm-"))
        self.folder.chmod(0o755)
        self.environment = {"SLURM_CONF": str(self.folder / "slurm.conf")}
        self._daemons = Daemons(self.folder, self._environment, (self.folder / "logs").iterdir)
        self._database = MariaDB(self.folder / "database") if accounting else None
        self.port, self._accounting_port, *node_ports = free_ports(2 + nodes)
        self._munge = self.folder / "munge"
        if other is not None:
            self._accounting_port, self._munge = other._accounting_port, other._munge
        host = socket.gethostname().partition(".")[0]
        values = {"folder": self.folder, "port": self._accounting_port, "munge": self._munge}
        self._write(
            "slurm.conf",
            CONFIG.format(
                name=name,
                host=host,
                port=self.port,
                folder=self.folder,
                munge=self._munge,
                communication=_communication(host),
                patience=patience,
                min_job_age=min_job_age,
                max_jobs=max_jobs,
                max_array_size=max_array_size,
                accounting=ACCOUNTING.format(**values) if accounting or other else "",
                cpus=cpus,
                memory=memory,
                traits=traits,
                gres_types="GresTypes=" + ",".join(re.findall(r"^Name=(\w+)", gres, re.MULTILINE)) if gres else "",
                nodes="\n".join(
                    f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={each}"
                    for name, each in zip(self.nodes, node_ports, strict=True)
                ),
            ),
        )
        self._write("cgroup.conf", CGROUP)
        self._write("gres.conf", gres.format(folder=self.folder))
        for number in range(8):
            self._write(f"gpu{number}", "")
        self._write("prolog", PROLOG.format(folder=self.folder)).chmod(0o755)
        if self._database:
            text = DATABASE.format(**values, database_port=self._database.port)
            self._write("slurmdbd.conf", text).chmod(0o600)
        self._write("jobcomp.txt", "").chmod(0o666)  # sacct -c opens it for writing
        for each in ("munge", "state", "spool", "logs"):
            (self.folder / each).mkdir()
        key = self._write("munge/key", "")
        key.chmod(0o600)
        key.write_bytes(os.urandom(128))

    def start(self) -> None:
        """Start all that does not run, and wait until every node is idle.

        :raises RuntimeError: something did not start; with the ends of the logs
        """
        if self.other is None:
            options = [f"--{name}={self._munge / value}" for name, value in _MUNGE.items()]
            self._launch("munged", ["munged", "--foreground", "--num-threads=4", *options])
            self._daemons.wait((self._munge / "socket").exists, "munged")
        if self._database:
            self._start_accounting(self._database)
        if self._database or self.other:
            self._register()
        self.start_controller(wait=False)
        for node in self.nodes:
            self.start_node(node, wait=False)
        self.wait_until_idle()

    def stop(self) -> None:
        """Kill everything, jobs too, and remove the folder."""
        self._daemons.kill_all()
        if self._database:
            self._database.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def scontrol(self, *words: str) -> str:
        """An administrator's command.

        :raises RuntimeError: it failed; with what it said
        """
        return self.command("scontrol", *words)

    def command(self, *words: str) -> str:
        """Run a SLURM command as root.

        :raises RuntimeError: it failed; with what it said
        """
        done = self._run(words)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)} failed: {done.stdout}{done.stderr}")
        return done.stdout

    # -- faults

    def wait_until_saved(self, job: str, seconds: float = 20) -> bool:
        """Wait until slurmctld has written down how a job is; else it is unknown after a restart."""
        mark = f"saved-{time.time_ns()}"
        self.scontrol("update", f"JobId={job}", f"Comment={mark}")
        states = self.folder / "state" / "job_state"
        return processes.wait_until(lambda: states.exists() and mark.encode() in states.read_bytes(), seconds)

    def kill_controller(self) -> None:
        """Kill slurmctld; running jobs go on, and every command fails after some seconds."""
        self._daemons.kill("slurmctld")

    @contextlib.contextmanager
    def frozen_controller(self) -> Iterator[None]:
        """Let slurmctld accept connections without an answer; afterwards it does what it was asked meanwhile."""
        pid = self._daemons.pid("slurmctld")
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def start_controller(self, *, wait: bool = True) -> None:
        self._launch("slurmctld", ["slurmctld", "-D"])
        if wait:
            self._daemons.wait(lambda: "UP" in self._run(["scontrol", "ping"]).stdout, "slurmctld")
            # Until the nodes are known again, nothing starts on them.
            living = [node for node in self.nodes if f"slurmd.{node}" in self._daemons]
            self._daemons.wait(lambda: all(self.node_state(node) in _WELL for node in living), "the nodes")

    def kill_node(self, node: str, *, with_jobs: bool = True) -> None:
        """Kill a node's slurmd as a power cut would, and what runs on it; after ``patience`` seconds it is down.

        :param with_jobs: False: only its daemon dies, its jobs go on
        """
        started = processes.descendants(self._daemons.pid(f"slurmd.{node}"))
        self._daemons.kill(f"slurmd.{node}")
        if with_jobs:
            steps = [p for p in processes.belonging(self.folder / "spool" / node, ()) if "slurmstepd" in p.command]
            for step in steps:
                started += [step, *processes.descendants(step.pid)]
            processes.kill({process.pid: process for process in started}.values())

    def start_node(self, node: str, *, wait: bool = True) -> None:
        """Start a node's slurmd; a node that was down is taken into service again."""
        (self.folder / "spool" / node).mkdir(exist_ok=True)
        self._launch(f"slurmd.{node}", ["slurmd", "-D", "-N", node])
        if wait:
            self._daemons.wait(lambda: self.node_state(node) in _WELL, f"slurmd.{node}")

    def fail_launches(self, node: str, *, failing: bool = True) -> None:
        """Let a node's prolog fail: SLURM drains it, and holds the job, or cancels it where it may not be requeued."""
        mark = self.folder / f"unlaunchable.{node}"
        if failing:
            mark.touch()
        else:
            mark.unlink()

    def node_state(self, node: str) -> str:
        """As sinfo says it: ``idle``, ``mixed``, ``allocated``, ``down``, ``drained``..., with a star when silent."""
        return self._run(["sinfo", "-h", "-N", "-n", node, "-p", "batch", "-o", "%T"]).stdout.strip()

    def drain_node(self, node: str) -> None:
        """Let a node take no more jobs."""
        self.scontrol("update", f"NodeName={node}", "State=DRAIN", "Reason=test")

    def resume_node(self, node: str) -> None:
        self.scontrol("update", f"NodeName={node}", "State=RESUME")

    def close_queue(self, queue: str = "batch", state: str = "DRAIN") -> None:
        """Let a queue take no more jobs (DRAIN: those in it may start), start none (DOWN), or neither (INACTIVE)."""
        self.scontrol("update", f"PartitionName={queue}", f"State={state}")

    def open_queue(self, queue: str = "batch") -> None:
        self.close_queue(queue, "UP")

    def limit_jobs(self, most: int | None) -> None:
        """Let the user have at most so many jobs, pending ones too (MaxSubmitJobs); needs accounting."""
        limit = f"MaxSubmitJobs={-1 if most is None else most}"
        self.command("sacctmgr", "-i", "modify", "user", self.account.name, "set", limit)

    def wait_until_free(self, seconds: float = 30) -> None:
        """Wait until no job is left. Nodes may be "mixed" then: 22.05 does not report one as idle whose job was
        cancelled after slurmctld had been killed."""
        self._daemons.wait(lambda: not self._run(["squeue", "-h"]).stdout, "the jobs' end", seconds)

    def wait_until_idle(self, seconds: float = 30) -> None:
        """Wait until all nodes are idle."""
        self._daemons.wait(lambda: all(self.node_state(node) == "idle" for node in self.nodes), "the nodes", seconds)

    # -- inside

    def _start_accounting(self, database: MariaDB) -> None:
        database.start()
        database.execute(
            "create database if not exists slurm_acct_db; create user if not exists slurm@'127.0.0.1' identified by "
            "'slurm'; grant all on slurm_acct_db.* to slurm@'127.0.0.1'"
        )
        self._launch("slurmdbd", ["slurmdbd", "-D"])
        self._daemons.wait(lambda: self._run(["sacctmgr", "-n", "list", "cluster"]).returncode == 0, "slurmdbd")

    def _register(self) -> None:
        """Make the cluster and its users known to slurmdbd."""
        there = f"Cluster={self.name}"
        users = ["user", f"{self.account.name},root", "Account=lading"]
        for thing in (["cluster", self.name], ["account", "lading", there], [*users, there]):
            self._run(["sacctmgr", "-i", "add", *thing])

    def _launch(self, name: str, command: Sequence[str]) -> None:
        self._daemons.start(name, command, self.folder / "logs" / name)

    def _run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return subprocess.run(command, capture_output=True, text=True, env=self._environment(), timeout=120)
        return subprocess.CompletedProcess(command, 124, "", "no answer")

    def _environment(self) -> dict[str, str]:
        path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
        return {"PATH": path, "HOME": str(self.folder), "LC_ALL": "C", **self.environment}

    def _write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path


_WELL = {"idle", "mixed", "allocated", "completing", "drained", "draining"}
_MUNGE = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}


def _communication(host: str) -> str:
    """Listen on the address of the machine's name instead of all, where that is the loopback address."""
    with contextlib.suppress(OSError):
        if socket.gethostbyname(host).startswith("127."):
            return "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny"
    return ""
