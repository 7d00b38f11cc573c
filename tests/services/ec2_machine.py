"""The machine behind an instance of a fake EC2: a real sshd with processes, mounts and a host name of its own.

What it runs dies with it, as on a machine that is switched off. Of its user data ``ssh_keys``, ``ssh_authorized_keys``
and ``runcmd`` of a ``#cloud-config`` are heeded, as cloud-init does.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from moto.ec2 import ec2_backends
from moto.ec2.models.instances import Instance

from lading.scheduling.model.catalogue import bundled
from tests.services import processes
from tests.services.sshd import OPTIONS, PRIVILEGE_SEPARATION, PROGRAM

# How the addresses of instances begin, and in place of that those at which instances with public ones are reached.
NETWORK, PUBLIC = "127.77.", "127.78."
# A kernel leaves so much of what the specification says.
SHARE_OF_MEMORY = 0.97
# The user of an instance may not be able to run our Python.
SWITCH_OFF = """#!/bin/bash
url=${AWS_EC2_METADATA_SERVICE_ENDPOINT#http://}
exec 3<>"/dev/tcp/${url%%:*}/$(port=${url#*:}; echo "${port%%/*}")"
printf 'POST /%s/shutdown HTTP/1.0\\r\\n\\r\\n' "${url#*/}" >&3
cat <&3 >/dev/null
"""
SUDO = '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nexec "$@"\n'
CPUS = "import os\nos.cpu_count = lambda: {0}\nos.sched_getaffinity = lambda pid: set(range({0}))\n"
BOOT = """set -e
hostname "$1"
mount --bind "$2/meminfo" /proc/meminfo
mount --bind "$2/boot_id" /proc/sys/kernel/random/boot_id
mount --bind "$2/home" "$3"
mount -t tmpfs tmpfs /dev/shm
sh "$2/commands" </dev/null &
exec {server}
"""
SSHD = f'{PROGRAM} -D -e -f "$2/sshd_config"'
# A process that listens and never accepts: the kernel completes the connections, and nothing is ever sent.
LISTEN = "import signal, socket, sys; s = socket.create_server((sys.argv[1], int(sys.argv[2]))); signal.pause()"
HANGING = f'{shlex.quote(sys.executable)} -c {shlex.quote(LISTEN)} "$4" "$5"'


class Machine:
    """:param memory: MiB that its kernel sees; None: a little less than the specification of its type
    :param has_its_key: whether its SSH server has the key of its user data
    :param hangs: whether its SSH server accepts connections and sends nothing
    """

    def __init__(
        self,
        instance: Instance,
        folder: Path,
        port: int,
        user: str,
        home: Path,
        memory: int | None,
        *,
        has_its_key: bool = True,
        hangs: bool = False,
    ) -> None:
        self.instance, self.folder, self.port, self.user, self.home = instance, folder, port, user, home
        self.has_its_key, self.hangs = has_its_key, hangs
        capacity = bundled().types[instance.instance_type].capacity
        self.cpus = int(capacity.cpus)
        self.memory = memory or int(capacity.memory * SHARE_OF_MEMORY)
        self.server: subprocess.Popen[bytes] | None = None

    def start(self, environment: Mapping[str, str]) -> None:
        """Boot it; it answers some tens of milliseconds later."""
        PRIVILEGE_SEPARATION.mkdir(mode=0o755, exist_ok=True)
        self.folder.mkdir(mode=0o755)
        document = cloud_config(self.instance)
        self._keys(document)
        self._home()
        commands = "".join(f"{shlex.join(each)}\n" for each in document.get("runcmd", ()))
        (self.folder / "commands").write_text(commands)
        (self.folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
        (self.folder / "meminfo").write_text(meminfo(self.memory))
        programs = self.folder / "bin"
        programs.mkdir()
        for name, text in {"sudo": SUDO, "shutdown": SWITCH_OFF, "poweroff": SWITCH_OFF}.items():
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        (self.folder / "site").mkdir()
        (self.folder / "site" / "sitecustomize.py").write_text(CPUS.format(self.cpus))
        every = {
            "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin",
            "PYTHONPATH": str(self.folder / "site"),
            **environment,
        }
        lines = {
            **OPTIONS,
            "ListenAddress": f"{self.address}:{self.port}",
            "HostKey": str(self.folder / "host_key"),
            "AuthorizedKeysFile": str(self.folder / "authorized_keys"),
            "PidFile": "none",
            "AllowUsers": f"{self.user}@127.0.0.0/8",
            "MaxStartups": "100:30:200",
            "MaxSessions": "100",
            "SetEnv": " ".join(f'"{name}={value}"' for name, value in every.items()),
        }
        (self.folder / "sshd_config").write_text("".join(f"{name} {value}\n" for name, value in lines.items()))
        # A kernel's pid 1 takes all other processes with it, and dies with the process that started it.
        apart = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--uts", "--fork", "--mount-proc"]
        name = f"ip-{str(self.instance.private_ip).replace('.', '-')}"
        script = BOOT.format(server=HANGING if self.hangs else SSHD)
        of_machine = [name, str(self.folder), str(self.home), self.address, str(self.port)]
        boot = ["sh", "-c", script, "sh", *of_machine]
        with (self.folder / "log").open("ab") as log:
            self.server = subprocess.Popen(
                [*apart, "--kill-child", *boot],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )

    @property
    def address(self) -> str:
        """Where its SSH server answers: its public address, where it has one."""
        public = str(self.instance.public_ip or "")
        return public if public.startswith(PUBLIC) else str(self.instance.private_ip)

    def freeze(self) -> None:
        """Let its SSH server, with all its connections, stop answering.

        :raises OSError: it does not answer yet
        """
        assert self.server is not None, "it is switched off"
        socket.create_connection((self.address, self.port), 1).close()
        for each in processes.descendants(self.server.pid):
            if each.command.startswith(("sshd", str(PROGRAM))):
                with suppress(ProcessLookupError):  # the one of the connection above may have ended
                    os.kill(each.pid, signal.SIGSTOP)

    def stop(self) -> None:
        """Switch it off."""
        if self.server is not None:
            self.server.kill()
            self.server.wait()
            self.server = None
        shutil.rmtree(self.folder / "home", ignore_errors=True)

    def _keys(self, document: Mapping[str, Any]) -> None:
        key = self.folder / "host_key"
        private = document.get("ssh_keys", {}).get("ed25519_private")
        if private and self.has_its_key:
            key.write_text(private if private.endswith("\n") else private + "\n")
            key.chmod(0o600)
        else:
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
        allowed = [str(line) for line in document.get("ssh_authorized_keys", [])]
        pairs = ec2_backends["123456789012"]["us-east-1"].key_pairs
        if self.instance.key_name in pairs and (public := pairs[self.instance.key_name].material_public):
            allowed.append(public if isinstance(public, str) else public.decode())
        (self.folder / "authorized_keys").write_text("".join(line.strip() + "\n" for line in allowed))

    def _home(self) -> None:
        home = self.folder / "home"
        home.mkdir(mode=0o755)
        shutil.chown(home, self.user, self.user)


def cloud_config(instance: Instance) -> dict[str, Any]:
    """The user data of an instance; nothing where that is no ``#cloud-config``."""
    data = instance.user_data
    if not data:
        return {}
    text = data.decode()
    found = yaml.safe_load(text) if text.startswith("#cloud-config") else None
    return found if isinstance(found, dict) else {}


def meminfo(mib: int) -> str:
    """This machine's meminfo as it would be with so much memory."""
    text = Path("/proc/meminfo").read_text()
    sizes = {"MemTotal": mib * 1024, "MemFree": mib * 900, "MemAvailable": mib * 960}
    for name, kib in sizes.items():
        text = re.sub(rf"^{name}:.*$", f"{name}: {kib:>15} kB", text, flags=re.MULTILINE)
    return text
