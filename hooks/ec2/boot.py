"""Builds launch requests for EC2. Equal orders give equal bytes on every controller. No I/O."""

from __future__ import annotations

import hashlib
import hmac
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lading.hooks.ec2.client import EC2Instance, number, whole_gib
from lading.hooks.ec2.config import FAILED, READY, EC2Config
from lading.hooks.ec2.identity import Identity, matching
from lading.hooks.site import Order
from lading.scheduling.model.machine_traits import SPOT
from lading.scheduling.model.quotas import is_burstable

DEPLOYMENT, SITE, TOKEN, PRICE = "lading:deployment", "lading:site", "lading:token", "lading:usd-per-hour"
PROOF = "lading:proof"
# The largest user data in bytes, before encoding:
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/user-data.html
MOST_USER_DATA = 16384
# The states of instances that have terminated or are terminating:
# https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_InstanceState.html
ENDED = "shutting-down", "terminated"


@dataclass(frozen=True, slots=True)
class LaunchBatch:
    """Equal orders that are launched by one request.

    :param orders: the instance with launch index 0 belongs to the first one, and so on
    """

    orders: tuple[Order, ...]

    @property
    def token(self) -> str:
        """The request's ClientToken."""
        return self.orders[0].name

    @property
    def offering(self) -> tuple[str, str | None, str]:
        """Type, zone and capacity type."""
        launch = self.orders[0].launch
        return launch.kind, launch.zone, launch.capacity_type


def batches(orders: Sequence[Order], most: int = 16) -> list[LaunchBatch]:
    """Group equal orders into requests, keeping their order.

    :param most: orders in one request; a tag's value has at most 256 characters, enough for 16 names of 15 characters
    """
    alike: dict[tuple[str, str | None, str, float | None], list[Order]] = {}
    for each in orders:
        launch = each.launch
        alike.setdefault((launch.kind, launch.zone, launch.capacity_type, launch.usd_per_hour), []).append(each)
    return [
        LaunchBatch(tuple(found[start : start + most]))
        for found in alike.values()
        for start in range(0, len(found), most)
    ]


def tags(config: EC2Config, identity: Identity, scope: str, batch: LaunchBatch) -> list[dict[str, str]]:
    """Return the tags of a launch, by which its instances are found again.

    :param scope: the name of the site
    """
    price = batch.orders[0].launch.usd_per_hour
    ours = {
        DEPLOYMENT: identity.deployment,
        SITE: scope,
        TOKEN: " ".join(each.name for each in batch.orders),
        **({} if price is None else {PRICE: repr(price)}),
    }
    ours[PROOF] = proof(identity, ours)
    named = {"Name": f"lading {scope}"[:256], **config.tags, **ours}
    return [{"Key": key, "Value": value} for key, value in sorted(named.items())]


def proof(identity: Identity, tags: Mapping[str, str]) -> str:
    """Return the tag that authenticates the others. Only the deployment's secret can produce it."""
    return identity.proof(*(tags.get(name, "") for name in (DEPLOYMENT, SITE, TOKEN, PRICE)))


def is_ours(instance: EC2Instance, identities: Sequence[Identity]) -> bool:
    """Check whether we launched an instance that has our tags, because anyone allowed to set tags can copy them.

    The ClientToken of a launch cannot be changed by tags. It must be the first of the names in the tags, and the proof
    must match the tags.
    """
    identity, names = matching(identities, instance.tags.get(DEPLOYMENT, "")), instance.tags.get(TOKEN, "").split()
    if identity is None or not names or instance.client_token != names[0]:
        return False
    return hmac.compare_digest(instance.tags.get(PROOF, "").encode(), proof(identity, instance.tags).encode())


def user_data(config: EC2Config, identity: Identity, token: str) -> str:
    """Return the cloud-init configuration: the host key, our public key, and the boot script. JSON is valid YAML.

    https://cloudinit.readthedocs.io/en/latest/reference/modules.html
    """
    key = identity.host_key(token)
    document: dict[str, Any] = {
        "ssh_deletekeys": True,
        "ssh_genkeytypes": [],
        "ssh_keys": {"ed25519_private": key.private, "ed25519_public": key.public},
        "ssh_authorized_keys": [f"{identity.user_key.public} lading"],
    }
    if config.boot_script:
        document["runcmd"] = [["sh", "-c", BOOT, "sh", config.boot_script, config.boot_log]]
    return f"#cloud-config\n{json.dumps(document, sort_keys=True, indent=1)}\n"


def request(
    config: EC2Config,
    identity: Identity,
    scope: str,
    batch: LaunchBatch,
    image: str,
    subnet: str,
    root_device: str,
) -> dict[str, Any]:
    """Return the parameters of RunInstances.

    https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_RunInstances.html

    :param image: the id of the image for the type's architecture
    :param subnet: one in the zone of the launch
    :param root_device: the image's name for its root volume
    """
    kind, _, capacity_type = batch.offering
    found: dict[str, Any] = {
        "ClientToken": batch.token,
        "ImageId": image,
        "InstanceType": kind,
        "MinCount": 1,
        "MaxCount": len(batch.orders),
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1, "HttpEndpoint": "enabled"},
        "NetworkInterfaces": [_interface(config, subnet)],
        "TagSpecifications": [
            {"ResourceType": each, "Tags": tags(config, identity, scope, batch)} for each in ("instance", "volume")
        ],
        "UserData": user_data(config, identity, batch.token),
    }
    if capacity_type == SPOT:
        options = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
        found["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": options}
    if is_burstable(kind):  # T3 is unlimited by default: above its baseline it would cost more than its price
        found["CreditSpecification"] = {"CpuCredits": "standard"}
    if config.key_pair is not None:
        found["KeyName"] = config.key_pair
    if config.instance_profile is not None:
        found["IamInstanceProfile"] = {"Name": config.instance_profile}
    if config.disk:
        volume = {"VolumeSize": whole_gib(config.disk), "VolumeType": "gp3", "DeleteOnTermination": True}
        found["BlockDeviceMappings"] = [{"DeviceName": root_device, "Ebs": volume}]
    return found


def _interface(config: EC2Config, subnet: str) -> dict[str, Any]:
    found: dict[str, Any] = {"DeviceIndex": 0, "SubnetId": subnet, "DeleteOnTermination": True}
    if config.security_groups:
        found["Groups"] = list(config.security_groups)
    # Set explicitly, because a subnet can assign a public address by default, which costs money.
    found["AssociatePublicIpAddress"] = config.address == "public"
    return found


def subnet_of(request: Mapping[str, Any]) -> str:
    return str(request["NetworkInterfaces"][0]["SubnetId"])


def mark(config: EC2Config, image: str) -> str:
    """Return the image's id, followed by a hash of the site options that also determine what its machines have."""
    reported = [config.boot_script, config.setup, config.scratch]
    return f"{image} {hashlib.sha256(json.dumps(reported).encode()).hexdigest()[:8]}" if any(reported) else image


def named(tags: Mapping[str, str], index: int) -> str | None:
    """Return the name that an instance was ordered under; None if its tags do not hold it.

    :param index: its launch index
    """
    names = tags.get(TOKEN, "").split()
    return names[index] if 0 <= index < len(names) else None


def price(tags: Mapping[str, str]) -> float | None:
    """Return the price of an instance when it was ordered, USD per hour; None if its tags do not hold it."""
    return number(tags.get(PRICE))


# Its output goes to a file in the folder and, when it exits, also to cloud-init's log and the console. The last line is
# the result.
ENVIRONMENT = """set -eu
folder={folder}
mkdir -p "$folder"
exec 3>&1 >"$folder/.lading-log" 2>&1
rm -f "$folder/{ready}" "$folder/{failed}"
trap 'status=$?
cat "$folder/.lading-log" >&3
if test -e "$folder/{ready}"; then echo "airflow lading bootstrap: $folder is ready" >&3; else
    mv "$folder/.lading-log" "$folder/{failed}"
    echo "airflow lading bootstrap: $folder could not be made, status $status; see $folder/{failed}" >&3
fi' EXIT
if command -v dnf >/dev/null; then dnf install -y python3.11 python3.11-pip
elif command -v apt-get >/dev/null; then apt-get update && apt-get install -y python3 python3-venv; fi
for python in python3.13 python3.12 python3.11 python3.10 python3; do
    if "$python" -c 'import sys, venv; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then break; fi
done
"$python" -m venv "$folder"
"$folder/bin/pip" install --no-input {requirements}
touch "$folder/{ready}"
"""
# For people who start a machine with it manually; the cloud-init configuration follows.
HEAD = """#cloud-config
# Start an instance of a stock image with this as its user data. After some minutes it creates the file {ready} in
# {folder}; then create an image of the instance. If it fails, it creates {failed} instead, with all its output. The
# console shows the same output, so that you need not log in:
#   aws ec2 get-console-output --latest --output text --instance-id ID
"""
# Runs the table's ``boot_script``. If it fails, leaves a file with the error, for whoever logs in later.
BOOT = """sh -c "$1" >"$2.log" 2>&1
status=$?
cat "$2.log"
[ $status = 0 ] || { echo "boot_script of the site's table has failed with status $status; its last lines ($2.log):"; \
tail -n 5 "$2.log"; } >"$2-failed"
exit $status"""


def environment(config: EC2Config, requirements: Sequence[str]) -> str:
    """Return user data that builds the Python environment of jobs on a stock Linux image, to be saved as an image.

    When the installation is complete, the environment contains a file ``.lading-ready``. If it fails, there is
    ``.lading-failed`` with the error message, which machines launched from such an image report.

    :param requirements: what pip installs
    :raises ValueError: ``python`` in the table is not in an environment that can be built
    """
    folder = config.environment
    if folder is None:
        raise ValueError(
            f"python = {config.python!r} is not in an environment that can be built; valid: a path such as "
            "/opt/airflow/bin/python"
        )
    script = ENVIRONMENT.format(
        folder=shlex.quote(folder),
        requirements=" ".join(map(shlex.quote, requirements)),
        ready=READY,
        failed=FAILED,
    )
    head = HEAD.format(folder=json.dumps(folder), ready=READY, failed=FAILED)
    text = f"{head}{json.dumps({'runcmd': [['sh', '-c', script]]}, indent=1)}\n"
    if len(text.encode()) > MOST_USER_DATA:
        raise ValueError(f"the user data has {len(text.encode()):,} bytes; valid: at most {MOST_USER_DATA:,}")
    return text
