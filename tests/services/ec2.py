"""A fake EC2: moto in a process of its own, and a real sshd behind each of its instances.

Nothing leaves this machine: the API answers on a free port of 127.0.0.1, and the instances have addresses of
127.77.0.0/16, those with a public one in its place of 127.78.0.0/16. An unprivileged account logs in there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.services import debian, processes
from tests.services.account import Account
from tests.services.ports import free_ports
from tests.services.service import Service
from tests.services.sshd import PROGRAM

REGION = "us-east-1"
ROOT = Path(__file__).parents[2]
# What any client of the simulator signs with.
CREDENTIALS = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}

# With these moto refuses a wrong image, type or key as EC2 does.
STRICT = {
    "MOTO_ENABLE_AMI_VALIDATION": "true",
    "MOTO_EC2_ENABLE_INSTANCE_TYPE_VALIDATION": "true",
    "MOTO_ENABLE_KEYPAIR_VALIDATION": "true",
}


class FakeEC2(Service):
    """A running EC2; a context manager.

    :ivar endpoint: the URL of its API, for ``AWS_ENDPOINT_URL`` or ``endpoint_url``
    :ivar subnets: the id of a subnet in each zone
    :ivar ami: the id of an image of each architecture
    :ivar user: who can log in to an instance
    :ivar ssh_port: of every instance, each on its private address
    :param boot_seconds: from RunInstances until sshd answers
    :param least_seconds: that are billed of an instance
    :param python: with moto, which the server runs in; None: this one
    :raises NeedsRootError: we are not root
    """

    def __init__(
        self, boot_seconds: float = 1.0, least_seconds: float = 60.0, python: str | Path | None = None
    ) -> None:
        self._boot_seconds, self._least_seconds = boot_seconds, least_seconds
        self._python = str(python or sys.executable)
        self.account = Account()
        self.user = self.account.name
        self.port, self.ssh_port = free_ports(2)
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.folder = Path(tempfile.mkdtemp(prefix="lading-ec2-"))
        self.folder.chmod(0o755)
        self.log = self.folder / "log"
        self.subnets: dict[str, str] = {}
        self.ami: dict[str, str] = {}
        self.security_group = ""
        self._server: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What makes any AWS client of a process talk to this EC2."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            **{name.upper(): value for name, value in CREDENTIALS.items()},
        }

    @property
    def table(self) -> dict[str, Any]:
        """What the table of a site says of this EC2: all but its types, and what its jobs need."""
        return {
            "kind": "ec2",
            "aws_conn_id": "",
            "subnets": tuple(self.subnets.values()),
            "security_groups": (self.security_group,),
            "ami": self.ami,
            "user": self.user,
            "ssh_port": self.ssh_port,
            "work_dir": f"{self.account.home}/lading",
        }

    @property
    def toml(self) -> str:
        """The same as lines of a sites file."""
        values = {**self.table, **{f"ami.{arch}": image for arch, image in self.ami.items()}}
        return "\n".join(f"{name} = {json.dumps(value)}" for name, value in values.items() if name != "ami")

    @cached_property
    def client(self) -> Any:
        """An EC2 client without retries."""
        return self.make("ec2")

    def make(self, service: str) -> Any:
        """A client of a service of AWS, without retries."""
        import boto3
        from botocore.config import Config

        config = Config(retries={"total_max_attempts": 1}, read_timeout=300)  # moto is slow to begin on a busy machine
        return boto3.client(service, REGION, endpoint_url=self.endpoint, config=config, **CREDENTIALS)

    def start(self) -> None:
        """Start it, with a network, a subnet in each of three zones, and an image of each architecture.

        :raises RuntimeError: it did not start; with what it said
        """
        if not PROGRAM.exists():
            debian.install("openssh-server", "openssh-client", while_installing=debian.NO_SERVICES)
        command = [self._python, "-m", "tests.services.ec2_server", "--folder", str(self.folder)]
        command += ["--port", str(self.port), "--ssh-port", str(self.ssh_port), "--user", self.user]
        command += ["--home", str(self.account.home), "--boot-seconds", str(self._boot_seconds)]
        command += ["--least-seconds", str(self._least_seconds)]
        with self.log.open("ab") as log:
            self._server = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=os.environ | STRICT,
                start_new_session=True,
            )
        if not processes.wait_until(self._answers, 60, 0.1):
            raise RuntimeError(f"the fake EC2 did not start:\n{processes.tails([self.log], 20)}")
        self._furnish()

    def stop(self) -> None:
        """End it with all its instances, and remove its folder."""
        if self._server is not None:
            self._server.terminate()
            try:
                self._server.wait(120)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait()
            self._server = None
        self.account.remove()
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- what it does to those who use it

    def refuse(
        self,
        what: str,
        type: str | None = None,
        zone: str | None = None,
        capacity_type: str | None = None,
        times: int | None = None,
        action: str | None = None,
    ) -> None:
        """Refuse requests until :meth:`allow`.

        :param what: ``ice``, ``quota``, ``throttle``, ``unauthorized``, ``unavailable``, ``unsupported``; ``lost``: it
            is done, but the connection ends before the answer
        :param type: only of this instance type, or pattern of them
        :param times: only so many
        :param action: by default RunInstances; ``*``: all
        """
        self._ask("refuse", what=what, type=type, zone=zone, capacity_type=capacity_type, times=times, action=action)

    def slow(self, action: str, seconds: float, type: str = "*") -> None:
        """Answer requests of an action, or pattern of them, so late, or as soon as :meth:`allow` is called.

        :param type: only for this instance type, or pattern of them
        """
        self._ask("slow", action=action, seconds=seconds, type=type)

    def allow(self) -> None:
        """Refuse nothing any more, hide nothing that is launched from now on, and answer at once."""
        self._ask("allow")

    def forget_tokens(self) -> None:
        """Take tokens of launches for new ones that were used before, as after a day."""
        self._ask("forget_tokens")

    def offer(
        self, left: int, type: str | None = None, zone: str | None = None, capacity_type: str | None = None
    ) -> None:
        """There is capacity for so many more instances, of MinCount to MaxCount as many as that."""
        self._ask("offer", left=left, type=type, zone=zone, capacity_type=capacity_type)

    def quota(self, vcpus: int, family: str = "standard", capacity_type: str = "on-demand") -> None:
        """Limit the running vCPUs of a family to this number."""
        self._ask("quota", vcpus=vcpus, family=family, capacity_type=capacity_type)

    def hide(self, seconds: float) -> None:
        """What is launched from now on is not described before so many seconds."""
        self._ask("hide", seconds=seconds)

    def reclaim(self, instance_id: str, notice: float = 120.0) -> None:
        """Take an instance away, so many seconds after a notice of that."""
        self._ask("reclaim", instance_id=instance_id, notice=notice)

    def kill(self, instance_id: str) -> None:
        """Let an instance die without a notice, with all that it runs."""
        self._ask("kill", instance_id=instance_id)

    def shrink(self, type: str, mib: int) -> None:
        """Instances of this type that boot from now on have so much memory."""
        self._ask("shrink", type=type, mib=mib)

    def never_boots(self, type: str) -> None:
        """Instances of this type, or pattern of them, run, but never answer."""
        self.refuse("never boots", type=type)

    def gives_another_key(self, type: str) -> None:
        """SSH servers of instances of this type, or pattern of them, have another key than their user data says."""
        self.refuse("another key", type=type)

    def hangs(self, type: str) -> None:
        """SSH servers of instances of this type, or pattern of them, accept connections and send nothing."""
        self.refuse("hangs", type=type)

    def freeze(self, instance_id: str) -> None:
        """Let the SSH server of an instance, with all its connections, be there and say nothing; the rest goes on."""
        self._ask("freeze", instance_id=instance_id)

    def price(self, type: str, usd_per_hour: float, zone: str | None = None, capacity_type: str | None = None) -> None:
        """Change a price."""
        self._ask("price", type=type, usd_per_hour=usd_per_hour, zone=zone, capacity_type=capacity_type)

    @property
    def boot_seconds(self) -> float:
        return self._boot_seconds

    @boot_seconds.setter
    def boot_seconds(self, seconds: float) -> None:
        self._boot_seconds = seconds
        self._ask("boot_seconds", seconds=seconds)

    # --- what has happened to it

    def ledger(self) -> list[dict[str, Any]]:
        """All instances that there ever were, oldest first.

        :returns: of each ``id``, ``type``, ``zone``, ``capacity_type``, ``launched`` and ``ended`` (epoch seconds;
            None: it lives) and ``usd``, what it has cost until now, with its volumes and address: by the
            second, at least a minute
        """
        found: list[dict[str, Any]] = self._ask("ledger")
        return found

    def requests(self) -> dict[str, int]:
        """How many requests there were, by action."""
        found: dict[str, int] = self._ask("requests")
        return found

    def living(self) -> list[str]:
        """The ids of the instances that have not ended."""
        return [each["id"] for each in self.ledger() if each["ended"] is None]

    def _ask(self, name: str, **values: Any) -> Any:
        request = urllib.request.Request(f"{self.endpoint}/fake/{name}", json.dumps(values).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=120) as response:
            return json.load(response)

    def _answers(self) -> bool:
        if self._server is not None and self._server.poll() is not None:
            raise RuntimeError(f"the fake EC2 ended:\n{processes.tails([self.log], 20)}")
        try:
            self._ask("requests")
        except OSError:
            return False
        return True

    def _furnish(self) -> None:
        network = self.client.create_vpc(CidrBlock="127.77.0.0/16")["Vpc"]["VpcId"]
        for number, letter in enumerate("abc"):
            zone = f"{REGION}{letter}"
            subnet = self.client.create_subnet(
                VpcId=network, CidrBlock=f"127.77.{64 * number}.0/18", AvailabilityZone=zone
            )
            self.subnets[zone] = subnet["Subnet"]["SubnetId"]
        group = self.client.create_security_group(GroupName="lading", Description="SSH", VpcId=network)
        self.security_group = group["GroupId"]
        for arch, name in (("x86_64", "x86_64"), ("aarch64", "arm64")):
            image = self.client.register_image(
                Name=f"linux-{name}", Architecture=name, RootDeviceName="/dev/sda1", VirtualizationType="hvm"
            )
            self.ami[arch] = image["ImageId"]
            self._ask("architecture", image=image["ImageId"], arch=name)  # moto drops it
