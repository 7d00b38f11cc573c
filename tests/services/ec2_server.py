"""The process behind :class:`tests.services.ec2.FakeEC2`: moto's server, and before it what moto lacks.

moto launches MinCount instances whatever MaxCount is, takes no notice of ClientToken, is never out of capacity and has
no life behind its instances. All of that is decided here, on the form of a request, before moto sees it.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode
from xml.etree import ElementTree

from moto.ec2 import ec2_backends
from moto.ec2.models.instances import Instance, InstanceState, StateReason
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

from tests.services.ec2_faults import ERRORS, Faults, Request, error
from tests.services.ec2_imds import Metadata
from tests.services.ec2_ledger import Ledger
from tests.services.ec2_machine import NETWORK, PUBLIC, Machine
from tests.services.ec2_prices import products, quotas, spot_history
from tests.services.processes import end_in_order

ACCOUNT, REGION = "123456789012", "us-east-1"
TICK = 0.05
Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class Quiet(MotoRequestHandler):
    """Without a line for each request."""

    def log_request(self, *_: Any) -> None:
        """Nobody reads them."""


class Server:
    """The rules of EC2 before moto, and a machine behind each instance.

    :param folder: for the machines
    :param port: of the API, on 127.0.0.1
    :param ssh_port: of every machine, each on its own address
    :param user: who logs in there, and with what home
    :param boot_seconds: from the launch until sshd answers
    :param least_seconds: that are billed of an instance
    """

    def __init__(
        self, folder: Path, port: int, ssh_port: int, user: str, home: Path, boot_seconds: float, least_seconds: float
    ) -> None:
        self.folder, self.port, self.ssh_port = folder, port, ssh_port
        self.user, self.home, self.boot_seconds = user, home, boot_seconds
        self.faults, self.ledger = Faults(), Ledger(least_seconds=least_seconds)
        self.metadata = Metadata(self.shut_down)
        self.hidden_for = 0.0
        self.tokens: dict[str, tuple[str, str, bytes]] = {}
        self.machines: dict[str, Machine] = {}
        self.reclaims: dict[str, float] = {}
        self.sizes: dict[str, int] = {}
        self.moto = DomainDispatcherApplication(create_backend_app)
        self.lock = threading.RLock()

    # --- requests

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path.startswith("/fake/"):
            return self.control(path.removeprefix("/fake/"), environ, start)
        if path.startswith("/imds/"):
            return answer(start, *self.metadata.respond(path.removeprefix("/imds/"), environ))
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        form = dict(parse_qsl(body.decode(errors="replace"), keep_blank_values=True))
        if "." in (target := environ.get("HTTP_X_AMZ_TARGET", "")):  # of a service that speaks JSON
            form = {"Action": target.rpartition(".")[2]}
        request = Request(form, self.zone_of)
        self.faults.asked[request.action] += 1
        began = time.monotonic()
        while time.monotonic() - began < self.faults.pause(request):  # until it is allowed
            time.sleep(TICK)
        if (refusal := self.faults.refusal(request)) is not None:
            return answer(start, *refusal)
        if (own := self.own(request, body)) is not None:
            return answer(start, *own)
        if request.action == "DescribeInstances":
            self.look()  # or what is described would depend on how busy this process is
        if request.action == "RunInstances":
            status, found = self.run(request, environ)
        else:
            status, found = self.pass_on(environ, body)
        if request.action == "TerminateInstances":
            self.look()
        if request.action == "DescribeInstances":
            status, found = self.visible(request, status, found)
        if self.faults.is_lost(request):  # it is done, and the answer is lost
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        return answer(start, status, found)

    def own(self, request: Request, body: bytes) -> tuple[int, bytes] | None:
        """The answer to what moto does not know; None: it does."""
        if request.action == "GetProducts":
            return 200, products(self.ledger, json.loads(body))
        if request.action == "ListServiceQuotas":
            return 200, quotas(self.ledger)
        if request.dry and request.action != "RunInstances":
            return error(*ERRORS["dry"])
        if request.action == "DescribeSpotPriceHistory":
            return 200, spot_history(self.ledger, request.form, self.zones())
        return None

    def pass_on(self, environ: dict[str, Any], body: bytes) -> tuple[int, bytes]:
        """What moto answers."""
        said: list[str] = []
        environ = environ | {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        found = b"".join(self.moto(environ, lambda status, headers, *_: said.append(status)))
        return int(said[0].split()[0]), found

    def run(self, request: Request, environ: dict[str, Any]) -> tuple[int, bytes]:
        """RunInstances with EC2's rules of tokens and counts."""
        with self.lock:
            token = request.form.get("ClientToken")
            parameters = json.dumps(sorted(request.form.items()))
            if token in self.tokens and not request.dry:
                return self.replay(token, parameters)
            wanted = int(request.form.get("MaxCount", "1"))
            allowed, why = self.ledger.room(request, wanted)
            number, shortage = self.faults.left(request, allowed)
            if number < int(request.form.get("MinCount", "1")):
                return error(*ERRORS[shortage or why or "ice"], request)
            form = request.form | {"MinCount": str(number), "MaxCount": str(number)}
            if (missing := self.missing(form)) is not None:
                return error(400, *missing)
            status, found = self.pass_on(environ, urlencode(form).encode())
            if status == 200:
                ids = re.findall(r"<instanceId>(i-\w+)</instanceId>", found.decode())
                self.faults.used(request, len(ids))
                found = self.launched(request, ids, found)
                if token:
                    self.tokens[token] = (parameters, " ".join(ids), found)
            return status, found

    def replay(self, token: str, parameters: str) -> tuple[int, bytes]:
        """The same token again: https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-idempotency.html."""
        before, ids, found = self.tokens[token]
        if before != parameters:
            return error(*ERRORS["mismatch"])
        if all(self.instance(each).state == "terminated" for each in ids.split()):
            return error(*ERRORS["terminated"])
        return 200, found

    def launched(self, request: Request, ids: list[str], found: bytes) -> bytes:
        now = time.time()
        for each in ids:
            instance = self.instance(each)
            instance._state = InstanceState("pending", 0)
            if request.form.get("NetworkInterface.1.AssociatePublicIpAddress") == "true":
                instance.nics[0].public_ip = str(instance.private_ip).replace(NETWORK, PUBLIC, 1)
            self.ledger.launch(instance, request, hidden_until=now + self.hidden_for)
        return found.replace(b"<code>16</code>", b"<code>0</code>").replace(
            b"<name>running</name>", b"<name>pending</name>"
        )

    def visible(self, request: Request, status: int, found: bytes) -> tuple[int, bytes]:
        """DescribeInstances without what is too new to be seen."""
        now = time.time()
        hidden = {each.id for each in self.ledger.entries.values() if now < each.hidden_until}
        if status != 200 or not hidden:
            return status, found
        named = {value for name, value in request.form.items() if name.startswith("InstanceId")}
        if missing := sorted(named & hidden):
            return error(400, "InvalidInstanceID.NotFound", f"The instance ID '{missing[0]}' does not exist")
        tree = ElementTree.fromstring(found)
        space = tree.tag.partition("}")[0] + "}"
        ElementTree.register_namespace("", space.strip("{}"))
        reservations = tree.find(f"{space}reservationSet")
        for reservation in list(reservations if reservations is not None else ()):
            instances = reservation.find(f"{space}instancesSet")
            for item in list(instances if instances is not None else ()):
                if item.findtext(f"{space}instanceId") in hidden:
                    instances.remove(item)  # type: ignore[union-attr]
            if instances is not None and not len(instances):
                reservations.remove(reservation)  # type: ignore[union-attr]
        return status, ElementTree.tostring(tree)

    # --- what tests ask for

    def control(self, name: str, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        asked = json.loads(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)) or b"{}")
        with self.lock:
            found = getattr(self, f"do_{name}")(**asked)
        return answer(start, 200, json.dumps(found).encode())

    def do_refuse(self, **rule: Any) -> None:
        self.faults.add(**rule)

    def do_offer(self, **rule: Any) -> None:
        self.faults.offer(**rule)

    def do_allow(self) -> None:
        self.faults.clear()
        self.ledger.quotas.clear()
        self.hidden_for = 0.0

    def do_forget_tokens(self) -> None:
        self.tokens.clear()

    def do_slow(self, action: str, seconds: float, type: str) -> None:
        self.faults.slow[action, type] = seconds

    def do_quota(self, family: str, capacity_type: str, vcpus: int) -> None:
        self.ledger.quotas[family, capacity_type] = vcpus

    def do_architecture(self, image: str, arch: str) -> None:
        ec2_backends[ACCOUNT][REGION].amis[image].architecture = arch

    def do_hide(self, seconds: float) -> None:
        self.hidden_for = seconds

    def do_boot_seconds(self, seconds: float) -> None:
        self.boot_seconds = seconds

    def do_shrink(self, type: str, mib: int) -> None:
        self.sizes[type] = mib

    def do_price(self, **price: Any) -> None:
        self.ledger.set_price(time.time(), **price)

    def do_reclaim(self, instance_id: str, notice: float) -> None:
        at = time.time() + notice
        self.metadata.notices[instance_id] = at
        self.reclaims[instance_id] = at

    def do_kill(self, instance_id: str) -> None:
        self.end(instance_id, "Server.InternalError", by="")

    def do_freeze(self, instance_id: str) -> None:
        self.machines[instance_id].freeze()

    def do_ledger(self) -> list[dict[str, Any]]:
        self.look()
        return self.ledger.read(time.time())

    def do_requests(self) -> dict[str, int]:
        return dict(self.faults.asked)

    # --- machines

    def instance(self, name: str) -> Instance:
        return self.instances()[name]

    def instances(self) -> dict[str, Instance]:
        """All instances by their ids; moto looks through all of them for a single one."""
        reservations = list(ec2_backends[ACCOUNT][REGION].reservations.values())
        return {each.id: each for reservation in reservations for each in reservation.instances}

    def missing(self, form: Mapping[str, str]) -> tuple[str, str] | None:
        """What a launch names and there is not, as code and words: moto looks for it after a dry run, or never."""
        backend = ec2_backends[ACCOUNT][REGION]
        for name, value in form.items():
            if ".SecurityGroupId." in name and backend.get_security_group_from_id(value) is None:
                return "InvalidGroup.NotFound", f"The security group '{value}' does not exist"
            if name == "KeyName" and value not in backend.key_pairs:
                return "InvalidKeyPair.NotFound", f"The key pair '{value}' does not exist"
        return None

    def zone_of(self, subnet: str) -> str:
        return str(ec2_backends[ACCOUNT][REGION].get_subnet(subnet).availability_zone)

    def zones(self) -> Iterator[str]:
        """The zones that have subnets."""
        return iter(sorted(str(zone) for zone, subnets in ec2_backends[ACCOUNT][REGION].subnets.items() if subnets))

    def look(self) -> None:
        """Let what is due happen but for boots: reclaims, ends, and the first seconds of a life."""
        with self.lock:
            now = time.time()
            for each, at in list(self.reclaims.items()):
                if now >= at:
                    del self.reclaims[each]
                    self.end(each, "Server.SpotInstanceTermination", "Service")
            living = list(self.ledger.living())
            instances = self.instances() if living else {}
            for entry in living:
                instance, age = instances[entry.id], now - entry.born
                if instance.state in ("terminated", "stopped"):
                    self.stop(entry.id)
                    self.ledger.end(instance, now)
                elif instance.state == "pending" and age >= (pending := min(1.0, self.boot_seconds / 2)):
                    instance._state = InstanceState("running", 16)
                    entry.began = entry.launched + math.floor(pending)

    def boot_due(self) -> None:
        """Boot what is due; the kernel ends a machine with the thread that has started it."""
        with self.lock:
            due = [
                each.id
                for each in self.ledger.living()
                if time.time() - each.born >= self.boot_seconds and each.id not in self.machines
            ]
            instances = self.instances() if due else {}
            for instance in map(instances.__getitem__, due):
                if instance.state == "running" and not self.faults.befalls("never boots", instance.instance_type):
                    self.boot(instance)

    def boot(self, instance: Instance) -> None:
        machine = Machine(
            instance,
            self.folder / instance.id,
            self.ssh_port,
            self.user,
            self.home,
            self.sizes.get(instance.instance_type),
            has_its_key=not self.faults.befalls("another key", instance.instance_type),
            hangs=self.faults.befalls("hangs", instance.instance_type),
        )
        machine.start({"AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://127.0.0.1:{self.port}/imds/{instance.id}"})
        self.machines[instance.id] = machine
        self.metadata.add(instance)

    def end(self, name: str, code: str, by: str = "User") -> None:
        """An end that was not requested."""
        instance = self.instance(name)
        instance.terminate()
        instance.state_reason = StateReason(code, code)
        self.stop(name)
        self.ledger.end(instance, time.time(), by)

    def shut_down(self, name: str) -> None:
        """The machine has switched itself off."""
        instance = self.instance(name)
        if instance.instance_initiated_shutdown_behavior == "terminate":
            self.end(name, "Client.InstanceInitiatedShutdown")
        else:
            instance.stop()
            self.stop(name)
            self.ledger.end(instance, time.time())

    def stop(self, name: str) -> None:
        self.metadata.forget(name)
        self.reclaims.pop(name, None)
        if name in self.machines:
            self.machines.pop(name).stop()

    def serve(self) -> None:
        """Serve until SIGTERM or until the parent process has gone."""
        server = make_server("127.0.0.1", self.port, self, True, request_handler=Quiet)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        parent = os.getppid()
        try:
            while os.getppid() == parent:
                self.look()
                self.boot_due()
                time.sleep(TICK)
        finally:
            for name in list(self.machines):
                self.stop(name)


def answer(start: Callable[..., Any], status: int, body: bytes, kind: str = "text/xml") -> Iterator[bytes]:
    start(f"{status} -", [("Content-Type", kind), ("Content-Length", str(len(body)))])
    return iter([body])


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, kind in (("folder", Path), ("port", int), ("ssh-port", int), ("user", str), ("home", Path)):
        parser.add_argument(f"--{name}", type=kind, required=True)
    for name in ("boot-seconds", "least-seconds"):
        parser.add_argument(f"--{name}", type=float, required=True)
    asked = parser.parse_args()
    end_in_order()
    Server(**vars(asked)).serve()


if __name__ == "__main__":
    main()
