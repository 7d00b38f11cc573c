"""Install Lading with systemd in a Debian of its own, by the commands of the guide: ``python -m tests.systemd``.

A container, whose first process is systemd, has no network but its loopback. It is started again for a boot, and gets a
newer Lading while a task runs.

No part of ``make test``: it takes about six minutes, 3 GB of disk, root or ``sudo``, and installs Debian packages.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.services import debian
from tests.services.deployed import DAG, Deployed
from tests.services.podman import as_root, engine
from tests.services.processes import end_in_order, wait_until

CLONE = Path(__file__).parents[1]
GUIDE = CLONE / "docs/how_to/deployment.md"
SUITE = "bookworm"
PACKAGES = ("systemd", "systemd-sysv", "dbus", "python3", "python3-venv", "postgresql", "ca-certificates")
CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"
UNITS = (
    "airflow-migrate",
    "lading-controller",
    "airflow-scheduler",
    "airflow-api-server",
    "airflow-dag-processor",
    "airflow-triggerer",
)
NAME = "lading-systemd"


def main() -> None:
    end_in_order()
    if sys.argv[1:]:
        with engine() as docker:
            use(Machine(docker, Path(sys.argv[1])))
        return
    debian.install("mmdebstrap", "iproute2", "podman", "runc", "catatonit")
    folder = Path(tempfile.mkdtemp(prefix="lading-systemd-"))
    try:
        root = make_debian(folder)
        # A network of its own, since the units listen at fixed ports.
        command = [*as_root(), "unshare", "--net", sys.executable, "-m", "tests.systemd", str(root)]
        subprocess.run(command, check=True, cwd=CLONE)
    finally:
        subprocess.run([*as_root(), "rm", "-rf", str(folder)], check=False)


def make_debian(folder: Path) -> Path:
    """A Debian with PostgreSQL, a clone with wheels, and /opt/airflow; its root folder."""
    root = folder / "root"
    run(*as_root(), "mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, str(root))
    for path in ("etc/resolv.conf", CERTIFICATES):
        run(*as_root(), "cp", f"/{path}", str(root / path))
    clone = folder / "clone"
    copy_clone(clone)
    build_wheel(clone, "dist")
    version = clone / "hooks/files/version.py"
    now = version.read_text()
    version.write_text(re.sub(r'^VERSION = ".*"$', 'VERSION = "99.0.0"', now, flags=re.MULTILINE))
    build_wheel(clone, "next")
    version.write_text(now)
    run(*as_root(), "cp", "-r", str(clone), str(root / "root/clone"))
    print("Debian has PostgreSQL and a clone with its wheel")
    pip = [f"{name}={value}" for name, value in os.environ.items() if name in ("PIP_INDEX_URL", "PIP_DEFAULT_TIMEOUT")]
    settings = ["env", "-i", f"PATH={os.defpath}:/usr/sbin:/sbin", "HOME=/root", f"PIP_CERT=/{CERTIFICATES}", *pip]
    run(*as_root(), "chroot", str(root), *settings, "bash", "-e", "-c", f"cd /root/clone\n{guided(0)}")
    print("/opt/airflow has the packages of requirements.lock, by their hashes, and the wheel")
    return root


def copy_clone(folder: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=CLONE, check=True, capture_output=True, text=True)
    for name in listed.stdout.rstrip("\0").split("\0"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CLONE / name, folder / name)


def build_wheel(clone: Path, folder: str) -> None:
    run(
        *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"),
        *("--wheel-dir", str(clone / folder), str(clone)),
    )
    shutil.rmtree(clone / "build", ignore_errors=True)


def guided(number: int) -> str:
    """The commands of the guide's section on systemd: those of one block."""
    [section] = re.findall(r"^## systemd$(.*?)^## ", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    blocks = re.findall(r"^( *)```sh\n(.*?)^ *```$", section, re.MULTILINE | re.DOTALL)
    indent, block = blocks[number]
    return re.sub(f"^{indent}", "", block, flags=re.MULTILINE)


def run(*command: str) -> str:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout


class Machine:
    """The container whose first process is systemd."""

    def __init__(self, docker: Path, root: Path) -> None:
        self.docker, self.root = docker, root

    def start(self) -> None:
        run("ip", "link", "set", "lo", "up")
        options = ["--name", NAME, "--systemd=always", "--network=host", "--hostname", NAME]
        run(str(self.docker), "run", "--detach", *options, "--rootfs", str(self.root), "/lib/systemd/systemd")
        self.wait_for_boot()

    def wait_for_boot(self) -> None:
        command = [str(self.docker), "exec", NAME, "systemctl", "is-system-running"]

        def is_up() -> bool:
            return subprocess.run(command, capture_output=True, text=True).stdout.strip() in ("running", "degraded")

        assert wait_until(is_up, 300, 1), run(str(self.docker), "exec", NAME, "systemctl", "list-jobs")
        assert self.shell("systemctl is-system-running") == "running\n", self.shell("systemctl --failed")

    def boot(self) -> None:
        """Shut down and start again."""
        run(str(self.docker), "stop", "--time=180", NAME)
        run(str(self.docker), "start", NAME)
        self.wait_for_boot()

    def shell(self, commands: str) -> str:
        return run(str(self.docker), "exec", "--workdir=/root/clone", NAME, "bash", "-e", "-c", commands)

    def states(self) -> set[str]:
        command = [str(self.docker), "exec", NAME, "systemctl", "is-active", *UNITS]
        return set(subprocess.run(command, capture_output=True, text=True).stdout.split())

    def tails(self) -> str:
        return "\n".join(self.shell(f"journalctl --no-pager --lines 20 --unit {each}") for each in UNITS)


def use(machine: Machine) -> None:
    """Install the units, log in, run Dags, restart, stop, boot and upgrade."""
    machine.start()
    machine.shell(guided(1))
    machine.shell(f"systemd-analyze verify {' '.join(f'/etc/systemd/system/{each}.service' for each in UNITS)}")
    print("systemd has nothing to say of the units, and has started them")
    deployed = Deployed("http://127.0.0.1:8080", machine.tails)
    deployed.wait_for_health()
    password = json.loads(machine.shell("cat /var/lib/airflow/passwords.json"))["admin"]
    deployed.log_in(password)
    print("Logged in as admin")
    tasks = machine.root / "tmp-of-tasks"
    machine.shell(f"install --directory --owner airflow /{tasks.name}")
    dags = machine.root / "var/lib/airflow/dags"
    (dags / "deployed.py").write_text(DAG.format(folder=f"/{tasks.name}"))
    # Else it looks for new files every five minutes.
    machine.shell("systemctl restart airflow-dag-processor")
    run_id = deployed.trigger()
    deployed.wait_for_task(run_id, "running", "failed")
    machine.shell("systemctl restart airflow-migrate")
    deployed.wait_for_health()
    (tasks / "go").touch()
    deployed.wait_for_success(run_id)
    print("A Dag ran, whose task outlived a restart of all units")
    print(machine.shell(guided(2)))
    (tasks / "go").unlink()
    run_id = deployed.trigger()
    deployed.wait_for_task(run_id, "running", "failed")
    machine.shell("/opt/airflow/bin/pip install --no-deps next/airflow_lading-*.whl")
    machine.shell("systemctl restart airflow-migrate")
    deployed.wait_for_health()
    (tasks / "go").touch()
    deployed.wait_for_success(run_id)
    deployed.wait_for_success(deployed.trigger())
    assert "Lading 99.0.0" in machine.shell(guided(2))
    print("A task outlived an upgrade of Lading, and another ran after it")
    machine.boot()
    assert machine.states() == {"active"}, machine.tails()
    deployed.wait_for_health()
    deployed.wait_for_success(deployed.trigger())
    print("All units started at a boot")
    machine.shell("systemctl stop airflow-migrate")
    assert machine.states() == {"inactive"}, machine.tails()
    machine.shell("mv /etc/lading/secrets.env /root")
    machine.shell(f"! systemctl start {' '.join(UNITS)}")
    assert machine.states() == {"inactive", "failed"}
    print("All units stopped with airflow-migrate, and none starts without secrets")


if __name__ == "__main__":
    main()
