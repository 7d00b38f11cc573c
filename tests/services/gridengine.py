"""A real Grid Engine of Debian's packages on this machine, for as long as a test session.

Everything is in a folder of its own, which is its SGE_ROOT: configuration, spool and accounting. A user comes in
through :class:`tests.services.sshd.Sshd` with :attr:`GridEngine.environment`. It has one host, this machine: Grid
Engine tells hosts apart by their names.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.services import debian, processes
from tests.services.account import Account, NeedsRootError
from tests.services.daemons import Daemons
from tests.services.ports import free_ports
from tests.services.service import Service

PACKAGES = ("gridengine-master", "gridengine-exec", "gridengine-client", "msmtp-mta")
PROGRAMS = Path("/usr/lib/gridengine")
INSTALLED = Path("/var/lib/gridengine")
DEFAULTS = Path("/usr/share/gridengine")
# The packages must not make a cluster of this machine when they are installed.
ANSWERS = "".join(
    f"gridengine-{part} shared/gridengine{question}\n"
    for part in ("common", "client", "master", "exec")
    for question in ("master string localhost", "cell string default", "config boolean false")
)
BOOTSTRAP = """\
admin_user              none
default_domain          none
ignore_fqdn             false
spooling_method         berkeleydb
spooling_lib            libspoolb
spooling_params         {root}/spooldb
binary_path             /usr/lib/gridengine
qmaster_spool_dir       {root}/qmaster
security_mode           none
listener_threads        2
worker_threads          2
scheduler_threads       1
"""
CONFIGURATION = {
    "execd_spool_dir": "{root}/execd",
    "mailer": "/bin/true",
    "min_uid": "0",
    "max_unheard": "00:00:10",
    "reschedule_unknown": "00:00:05",
    "load_report_time": "00:00:02",
    "reporting_params": "accounting=true reporting=false flush_time=00:00:05 accounting_flush_time=00:00:00 "
    "joblog=false sharelog=00:00:00",
}
SCHEDULER = {
    "schedule_interval": "0:0:1",
    "flush_submit_sec": "1",
    "flush_finish_sec": "1",
    "schedd_job_info": "true",
}
QUEUE = {
    "qname": "batch.q",
    "hostlist": "@allhosts",
    "pe_list": "smp",
    "shell": "/bin/bash",
    "shell_start_mode": "unix_behavior",
    "rerun": "TRUE",
    "load_thresholds": "NONE",
}
PARALLEL_ENVIRONMENT = """\
pe_name smp
slots 999
user_lists NONE
xuser_lists NONE
start_proc_args NONE
stop_proc_args NONE
allocation_rule $pe_slots
control_slaves FALSE
job_is_first_task TRUE
urgency_slots min
accounting_summary FALSE
qsort_args NONE
"""


class GridEngine(Service):
    """A running cell with the queue ``batch.q`` and the parallel environment ``smp``; a context manager.

    :param account: who may use it
    :param slots: of the queue; not the machine's
    """

    def __init__(self, account: Account, *, slots: int = 8) -> None:
        if os.geteuid() != 0:
            raise NeedsRootError("only root can run a Grid Engine that starts jobs of another user")
        if not all((PROGRAMS / name).exists() for name in ("sge_qmaster", "sge_execd", "qsub")):
            debian.install(*PACKAGES, while_installing=debian.NO_SERVICES, answers=ANSWERS)
        self.account = account
        self.slots = slots
        self.host = socket.gethostname()
        self.folder = Path(tempfile.mkdtemp(prefix="lading-gridengine-"))
        self.folder.chmod(0o755)
        master, execution = free_ports(2)
        self.environment = {
            "SGE_ROOT": str(self.folder),
            "SGE_CELL": "default",
            "SGE_QMASTER_PORT": str(master),
            "SGE_EXECD_PORT": str(execution),
        }
        self._daemons = Daemons(self.folder, self._daemon_environment, self._logs)
        self._write_files()

    def start(self) -> None:
        """Make the cell where there is none, start all that does not run, and wait until the queue takes jobs.

        :raises RuntimeError: something did not start; with the ends of the logs
        """
        fresh = not (self.folder / "spooldb" / "sge").exists()
        if fresh:
            self._make_spool()
        self.start_master()
        if fresh:
            self._configure()
        self.start_host()

    def stop(self) -> None:
        """Kill everything, jobs too, and remove the folder."""
        self._daemons.kill_all()
        shutil.rmtree(self.folder, ignore_errors=True)

    def command(self, *words: str) -> str:
        """Run a Grid Engine command as an administrator.

        :raises RuntimeError: it failed; with what it said
        """
        done = self._run(*words)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)} failed: {done.stdout}{done.stderr}")
        return done.stdout

    # -- faults

    def kill_master(self) -> None:
        """Kill sge_qmaster; running jobs go on, every command fails."""
        self._daemons.kill("sge_qmaster")

    def start_master(self) -> None:
        (self.folder / "qmaster" / "qmaster.pid").unlink(missing_ok=True)
        self._launch("sge_qmaster")
        self._daemons.wait(lambda: self._run("qconf", "-sh").returncode == 0, "sge_qmaster")
        if "sge_execd" in self._daemons:  # it counts as unknown only after it has reported once
            self._daemons.wait(lambda: self.queue_state() == "", "sge_execd", 60)

    def kill_host(self) -> None:
        """Kill sge_execd and the jobs on the host, as a power cut would; after 10 s its queue is unknown (``u``)."""
        started = processes.descendants(self._daemons.pid("sge_execd"))
        self._daemons.kill("sge_execd")
        processes.kill(started)

    def start_host(self) -> None:
        (self.folder / "execd" / self.host / "execd.pid").unlink(missing_ok=True)
        self._launch("sge_execd")
        self._daemons.wait(lambda: self.queue_state() == "", "sge_execd")

    def queue_state(self) -> str:
        """As qstat says it: nothing when it takes and starts jobs, ``d`` disabled, ``au`` silent..."""
        lines = self._run("qstat", "-f", "-q", "batch.q").stdout.splitlines()
        words = next((line.split() for line in lines if line.startswith("batch.q@")), [])
        return "au" if not words or words[3] == "-NA-" else "".join(words[5:6])

    def close_queue(self) -> None:
        """Let the queue start no more jobs; those that run go on."""
        self.command("qmod", "-d", "batch.q")

    def open_queue(self) -> None:
        self.command("qmod", "-e", "batch.q")

    def limit_jobs(self, most: int | None) -> None:
        """Let each user have at most so many jobs, waiting ones too (max_u_jobs)."""
        self._change("conf", "global", {"max_u_jobs": str(most or 0)})

    # -- inside

    def _write_files(self) -> None:
        common = self.folder / "default" / "common"
        common.mkdir(parents=True)
        for name in ("bin", "lib", "util", "utilbin"):
            (self.folder / name).symlink_to(INSTALLED / name)
        for name in ("qmaster", "execd", "spooldb", "settings"):
            (self.folder / name).mkdir()
        (common / "bootstrap").write_text(BOOTSTRAP.format(root=self.folder))
        (common / "act_qmaster").write_text(f"{self.host}\n")
        (common / "cluster_name").write_text("lading\n")
        # Whatever name the loopback address has, it is this host.
        (common / "host_aliases").write_text(f"{self.host} localhost\n")

    def _make_spool(self) -> None:
        resources = DEFAULTS / "util" / "resources"
        self.command("spoolinit", "berkeleydb", "libspoolb", str(self.folder / "spooldb"), "init")
        self.command("spooldefaults", "configuration", str(DEFAULTS / "default-configuration"))
        self.command("spooldefaults", "complexes", str(resources / "centry"))
        self.command("spooldefaults", "usersets", str(resources / "usersets"))
        self.command("spooldefaults", "managers", "root")

    def _configure(self) -> None:
        for option in ("-as", "-ah"):  # where users submit, where administrators work
            self._run("qconf", option, self.host)
        values = {name: value.format(root=self.folder) for name, value in CONFIGURATION.items()}
        self._change("conf", "global", values)
        self._change("sconf", "", SCHEDULER)
        self._add("-Ap", PARALLEL_ENVIRONMENT)
        self._add("-Ae", _EXECUTION_HOST.format(host=self.host))
        self._add("-Ahgrp", f"group_name @allhosts\nhostlist {self.host}\n")
        template = self.command("qconf", "-sq")
        self._add("-Aq", _changed(template, {**QUEUE, "slots": str(self.slots)}))

    def _change(self, kind: str, name: str, values: Mapping[str, str]) -> None:
        shown = self.command("qconf", f"-s{kind}", *([name] if name else []))
        path = self.folder / "settings" / (name or kind)  # the file's name is the object's
        path.write_text(_changed(shown, values))
        self.command("qconf", f"-M{kind}", str(path))

    def _add(self, option: str, text: str) -> None:
        path = self.folder / "settings" / option
        path.write_text(text)
        self.command("qconf", option, str(path))

    def _launch(self, name: str) -> None:
        self._daemons.start(name, [str(PROGRAMS / name)], self.folder / f"{name}.log")

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [str(PROGRAMS / words[0]), *words[1:]]
        return subprocess.run(command, capture_output=True, text=True, env=self._environment(), timeout=60)

    def _environment(self) -> dict[str, str]:
        path = f"{PROGRAMS}:{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
        return {"PATH": path, "HOME": str(self.folder), "LC_ALL": "C", **self.environment}

    def _daemon_environment(self) -> dict[str, str]:
        return {**self._environment(), "SGE_ND": "1"}  # no daemon: it stays our child

    def _logs(self) -> Iterator[Path]:
        yield from self.folder.glob("*.log")
        yield from self.folder.glob("qmaster/messages")


_EXECUTION_HOST = """\
hostname {host}
load_scaling NONE
complex_values NONE
user_lists NONE
xuser_lists NONE
projects NONE
xprojects NONE
usage_scaling NONE
report_variables NONE
"""


def _changed(text: str, values: Mapping[str, str]) -> str:
    """An object of qconf with other values; long values go on after a backslash at the line's end."""
    text = re.sub(r"\\\n\s*", "", text)
    missing = {name: value for name, value in values.items() if not re.search(rf"^{name}\s", text, re.MULTILINE)}
    for name, value in values.items():
        text = re.sub(rf"^{name}\s.*$", f"{name} {value}", text, flags=re.MULTILINE)
    return text + "".join(f"{name} {value}\n" for name, value in missing.items())
