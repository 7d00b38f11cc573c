"""EC2's API, by Airflow's connection to AWS: what we ask of it, and what its errors mean.

| read | concluded | until |
|---|---|---|
| no connection, an answer that is cut or makes no sense | ``SILENCE``: it may be done | asked again by its token |
| an error code in no table | ``PERMANENT``: see ``refusals`` | see there |
| an instance that cannot be read | costs itself alone, and none counts as missing in that answer | the next answer |
| an instance in a state that is none of EC2's | lives | a known state; it does not answer |
| neither ``spot`` nor anything else as its lifecycle | on demand | for good |
| no time of a launch or an end | not known | EC2 says it |
| a price, a quota or a subnet that makes no sense | costs itself alone | the next answer |
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from email.utils import mktime_tz, parsedate_tz
from enum import Enum
from functools import cached_property, wraps
from typing import Any, TypeVar

from lading.hooks.deployment import current
from lading.hooks.ec2.config import EC2Config
from lading.hooks.polling.outside_clock import seconds_ahead
from lading.scheduling.catalogue import LEAST_USD, MOST_USD

# Seconds. An answer to RunInstances may take long, and the Price List has much to say; the rest is asked for again, by
# the next round of the thread that describes instances. A tick waits for none of them.
CONNECT_TIMEOUT = 5
LAUNCH_TIMEOUT, PRICES_TIMEOUT, READ_TIMEOUT = 60, 20, 6
# Where the Price List answers: https://docs.aws.amazon.com/general/latest/gr/billing.html
PRICING_REGION = "us-east-1"
# TerminateInstances and DescribeInstances take more, but answer sooner for so many.
MOST_IDS = 100


class AWSTrouble(str, Enum):
    """What an error means."""

    CAPACITY = "capacity"
    """There is none of this type in this zone now."""
    QUOTA = "quota"
    """The account may not have more of this kind."""
    THROTTLE = "throttle"
    """There were too many requests."""
    TERMINATED = "terminated"
    """What was launched with this token has ended."""
    MISMATCH = "mismatch"
    """The token belongs to another request."""
    SILENCE = "silence"
    """There is no answer: it may have been done."""
    PERMANENT = "permanent"
    """It is refused until something is changed."""


# https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
CODES = {
    AWSTrouble.CAPACITY: "InsufficientInstanceCapacity|InsufficientHostCapacity|InsufficientReservedInstanceCapacity|"
    "InsufficientCapacity|UnfulfillableCapacity|SpotMaxPriceTooLow",
    AWSTrouble.QUOTA: "InstanceLimitExceeded|VcpuLimitExceeded|MaxSpotInstanceCountExceeded|"
    "MaxSpotFleetRequestCountExceeded",
    AWSTrouble.THROTTLE: "RequestLimitExceeded|ResourceCountExceeded|RequestThrottled|Throttling|ThrottlingException|"
    "ThrottledException|TooManyRequestsException|EC2ThrottledException|RequestThrottledException|SlowDown",
    AWSTrouble.TERMINATED: "IdempotentInstanceTerminated",
    AWSTrouble.MISMATCH: "IdempotentParameterMismatch|IdempotencyParameterMismatch",
    AWSTrouble.SILENCE: "Internal(?:Error|Failure|Server\\w*|Service\\w*)|ServerInternal|ServiceUnavailable\\w*|"
    "Unavailable|RequestTimeout|RequestTimeoutException|5\\d\\d",
}


# What says that the credentials are not taken, and nothing of what was asked with them.
CREDENTIALS = re.compile(
    r"AuthFailure|ExpiredToken|ExpiredTokenException|RequestExpired|InvalidClientTokenId|UnrecognizedClientException"
)
# After these the credentials, the images and the subnets are read again at the next question: keys rotate, sessions
# end, images are replaced, and subnets deleted. Without one of these they are read again after so many seconds.
STALE = re.compile(rf"{CREDENTIALS.pattern}|InvalidAMIID\..*|InvalidSubnetID\..*")
SECONDS_UNTIL_READ_AGAIN = 900.0
# Clients, which hold credentials.
CLIENTS = "reader", "launcher", "pricing"
INSTANCE_ID = re.compile(r"\bi-[0-9a-f]{8,17}\b")
# An instance that is none the worse for being ended again.
GONE = "InvalidInstanceID.NotFound"


# The code with which AWS begins the reason for an end. The code beside it may say less:
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/troubleshooting-launch.html#troubleshooting-launch-internal
STATE_CODE = re.compile(r"(?:Server|Client)\.\w+(?:\.\w+)*")
# What raises at an answer that makes no sense.
NONSENSE = (LookupError, TypeError, ValueError, AttributeError, OverflowError)
T = TypeVar("T")
# Only a text says when an instance was ended, "User initiated (2026-11-23 12:00:00 GMT)": StateTransitionReason in
# https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_Instance.html
TRANSITION = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")


class EC2Error(OSError):
    """EC2 has refused something, or has not answered.

    :ivar message: AWS's message
    """

    def __init__(self, trouble: AWSTrouble, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}" if code else message)
        self.trouble = trouble
        self.code = code
        self.message = message


@contextmanager
def translated() -> Iterator[None]:
    """:raises EC2Error: for all that boto3 and Airflow's hook raise"""
    from botocore.exceptions import BotoCoreError, ClientError, ConnectionError, HTTPClientError, IncompleteReadError
    from botocore.parsers import ResponseParserError

    try:
        yield
    except ClientError as error:
        said = error.response.get("Error", {})
        code = str(said.get("Code", ""))
        raise EC2Error(meaning(code), code, str(said.get("Message") or error)) from error
    except (HTTPClientError, ConnectionError, IncompleteReadError, ResponseParserError) as error:
        raise EC2Error(AWSTrouble.SILENCE, "", f"AWS does not answer: {error}") from error
    except BotoCoreError as error:  # no credentials, no region, a parameter that cannot be
        raise EC2Error(AWSTrouble.PERMANENT, "", str(error)) from error


def answered(ask: Callable[..., Any]) -> Callable[..., Any]:
    """Make a question of :class:`EC2` raise nothing but EC2Error, whatever the answer is, and read again what is stale.

    An answer that makes no sense counts as none: what was asked for may have been done.
    """

    @wraps(ask)
    def asked(self: EC2, *args: Any, **options: Any) -> Any:
        self.read_again(SECONDS_UNTIL_READ_AGAIN)
        try:
            with translated():
                return ask(self, *args, **options)
        except EC2Error as error:
            if STALE.fullmatch(error.code):
                self.read_again()
            raise
        except NONSENSE as error:
            message = f"the answer of AWS makes no sense ({ask.__name__}): {type(error).__name__}: {error}"
            raise EC2Error(AWSTrouble.SILENCE, "", message) from error

    return asked


@dataclass(frozen=True, slots=True)
class EC2Instance:
    """An instance as EC2 describes it.

    :param state: pending, running, shutting-down, terminated, stopping or stopped
    :param index: its place in its launch
    :param reason: why it is in its state, as AWS says, with the code first where it has one; empty: nothing was said
    :param launched_at: seconds since the epoch by AWS's clock, as ``ended_at``; None: that is not known
    :param ended_at: when it was ended or stopped; None: it lives, or EC2 does not say when that was
    :param client_token: of the request that launched it, which nothing can change later; empty: that had none
    :param image: the id of what it has booted from; empty: that is not known
    """

    id: str
    kind: str
    zone: str
    state: str
    capacity_type: str
    index: int
    private: str | None
    public: str | None
    tags: Mapping[str, str]
    reason: str
    launched_at: float | None = None
    ended_at: float | None = None
    client_token: str = ""
    image: str = ""

    @property
    def lives(self) -> bool:
        """Whether EC2 has not ended it; one in a state that is none of its known ones lives while it answers."""
        return self.state not in ("shutting-down", "terminated", "stopping", "stopped")


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """What an image is like.

    :param root: what it calls its root volume
    :param volumes: the sizes of its volumes, GiB, by what it calls them
    """

    root: str
    volumes: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class SpotPrice:
    """What a type costs on spot in a zone, USD per hour, and since when, epoch seconds."""

    kind: str
    zone: str
    usd: float
    since: float


class EC2:
    """What is asked of EC2. Several threads may use it.

    :param make: makes a client of a service in a region, with what botocore's Config takes; without it by Airflow's
        connection
    """

    def __init__(self, config: EC2Config, make: Callable[..., Any] | None = None) -> None:
        self.config = config
        self._make = make or (lambda *asked: _client(config.aws_conn_id, *asked))
        self._images: dict[str, str] = {}
        self._pictures: dict[str, ImageFacts] = {}
        self._zones: Mapping[str, tuple[str, ...]] | None = None
        self._read_at = time.monotonic()
        self.unread = False
        """Whether an instance in the last description could not be read, so that none is missing in it."""
        self.clock_ahead = 0.0
        """Seconds by which AWS's clock is ahead of ours, as measured in its answers so far; 0: they agree."""

    def read_again(self, older_than: float = 0.0) -> None:
        """Read the credentials, the parameters of images and the subnets again at the next question.

        :param older_than: seconds; what was read later than that ago is kept
        """
        if (now := time.monotonic()) - self._read_at >= older_than:
            self._read_at = now
            for name in CLIENTS:
                self.__dict__.pop(name, None)
            self._images.clear()
            self._zones = None

    @cached_property
    def reader(self) -> Any:
        """The client for all that may be asked twice."""
        return self._made("ec2", total_max_attempts=2)

    @cached_property
    def launcher(self) -> Any:
        """The client that launches: boto3 would repeat what AWS has no capacity for."""
        return self._made("ec2", total_max_attempts=1, read_timeout=LAUNCH_TIMEOUT)

    @cached_property
    def pricing(self) -> Any:
        """The client of the Price List, which answers in few regions for all."""
        return self._made("pricing", region=PRICING_REGION, read_timeout=PRICES_TIMEOUT)

    @property
    def region(self) -> str:
        """Where machines are launched."""
        return self.config.region or str(self.reader.meta.region_name)

    @answered
    def _made(
        self, service: str, total_max_attempts: int = 3, region: str | None = None, read_timeout: float | None = None
    ) -> Any:
        retries = {"total_max_attempts": total_max_attempts, "mode": "standard"}
        timeouts = {"connect_timeout": CONNECT_TIMEOUT, "read_timeout": read_timeout or READ_TIMEOUT}
        options = {"retries": retries, **timeouts}
        return self._make(service, region or self.config.region, options)

    @answered
    def run(self, parameters: Mapping[str, Any]) -> list[EC2Instance]:
        """Launch instances.

        :raises EC2Error: they were not launched, or that is not known
        """
        return list(read([self.launcher.run_instances(**parameters)]))

    @answered
    def describe(self, filters: Mapping[str, Sequence[str]]) -> list[EC2Instance]:
        """The instances of which all this is so, those that have ended lately among them.

        :param filters: values by the name of a filter
        :raises EC2Error: it could not be asked
        """
        asked = [{"Name": name, "Values": list(values)} for name, values in filters.items()]
        options = {"Filters": asked, "PaginationConfig": {"PageSize": 1000}}
        found: list[EC2Instance] = []
        asked_at, listed = time.time(), 0
        for page in self.reader.get_paginator("describe_instances").paginate(**options):
            self._compare_clocks(page, asked_at)
            reservations = page.get("Reservations", ())
            found += read(reservations)
            listed += sum(len(each.get("Instances") or ()) if isinstance(each, Mapping) else 1 for each in reservations)
            asked_at = time.time()
        self.unread = len(found) < listed
        return found

    def _compare_clocks(self, page: Mapping[str, Any], asked_at: float) -> None:
        """Measure by how much AWS's clock is ahead of ours: each answer says the time."""
        said = parsedate_tz(str(page.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", "")))
        if said is not None:
            self.clock_ahead = seconds_ahead(mktime_tz(said), asked_at, time.time(), self.clock_ahead)

    def terminate(self, ids: Sequence[str]) -> dict[str, EC2Error]:
        """End instances, whatever runs on them; one that is gone already is none the worse for it.

        AWS refuses a request for all because of one of them: those that it names are set apart, and where it names
        none the request is halved.

        :returns: why those are not ended that AWS refuses to end, by their ids
        :raises EC2Error: EC2 takes no requests for now, or does not answer
        """
        refused: dict[str, EC2Error] = {}
        parts = [list(ids[start : start + MOST_IDS]) for start in range(0, len(ids), MOST_IDS)]
        while parts:
            part = parts.pop()
            try:
                self._terminate(part)
            except EC2Error as error:
                if error.trouble in (AWSTrouble.SILENCE, AWSTrouble.THROTTLE) or CREDENTIALS.fullmatch(error.code):
                    raise
                named = [each for each in part if each in INSTANCE_ID.findall(error.message)]
                if len(part) == 1 or named:
                    apart = part if len(part) == 1 else named
                    refused |= {} if error.code == GONE else dict.fromkeys(apart, error)
                    part = [each for each in part if each not in apart]
                    parts += [part] if part else []
                else:
                    parts += [part[: len(part) // 2], part[len(part) // 2 :]]
        return refused

    @answered
    def tag(self, ids: Sequence[str], tags: Mapping[str, str]) -> None:
        """Set tags of instances; others that they have stay.

        :raises EC2Error: EC2 refuses it, or does not answer; some may have them
        """
        given = [{"Key": key, "Value": value} for key, value in sorted(tags.items())]
        for start in range(0, len(ids), MOST_IDS):
            self.reader.create_tags(Resources=list(ids[start : start + MOST_IDS]), Tags=given)

    @answered
    def _terminate(self, ids: Sequence[str]) -> None:
        self.reader.terminate_instances(InstanceIds=list(ids))

    @answered
    def zones(self) -> Mapping[str, tuple[str, ...]]:
        """The subnets of the table that there are by their zones, in the order of the table.

        :raises EC2Error: it could not be asked, or there is none of them
        """
        if (zones := self._zones) is None:
            # By a filter: asked for by its id, one that there is not would be an error for all.
            asked = [{"Name": "subnet-id", "Values": list(self.config.subnets)}]
            zone_of = dict(parse_rows(self.reader.describe_subnets(Filters=asked)["Subnets"], _subnet))
            found: dict[str, list[str]] = {}
            for subnet in self.config.subnets:
                if (zone := zone_of.get(subnet)) is not None:
                    found.setdefault(zone, []).append(subnet)
            if not found:
                message = f"there is no subnet {' or '.join(self.config.subnets)} in {self.region}"
                raise EC2Error(AWSTrouble.PERMANENT, "", f"{message}: correct `subnets` or `region` of the table")
            self._zones = zones = {zone: tuple(subnets) for zone, subnets in found.items()}
        return zones

    def unknown_subnets(self) -> list[str]:
        """The subnets of the table that there are not.

        :raises EC2Error: see :meth:`zones`
        """
        known = {subnet for subnets in self.zones().values() for subnet in subnets}
        return [subnet for subnet in self.config.subnets if subnet not in known]

    @answered
    def image_facts(self, image: str) -> ImageFacts:
        """What an image is like; it never changes, so that it is asked for once.

        :raises EC2Error: there is none, or it could not be asked
        """
        if image not in self._pictures:
            found = self.reader.describe_images(ImageIds=[image])["Images"][0]
            volumes = {
                str(each["DeviceName"]): float(each["Ebs"].get("VolumeSize", 0))
                for each in found.get("BlockDeviceMappings", ())
                if "Ebs" in each
            }
            self._pictures[image] = ImageFacts(str(found.get("RootDeviceName", "")), volumes)
        return self._pictures[image]

    def volumes(self, image: str) -> tuple[float, float]:
        """The size of the root volume of a machine with this image, which ``disk`` changes, and of all, GiB.

        :raises EC2Error: see :meth:`image_facts`
        :raises LookupError: there is none
        """
        image_facts = self.image_facts(image)
        sizes = dict(image_facts.volumes)
        if self.config.disk:
            sizes[image_facts.root] = whole_gib(self.config.disk)
        return sizes.get(image_facts.root, 0.0), sum(sizes.values())

    @answered
    def role(self, profile: str) -> str:
        """The ARN of the role in an instance profile.

        :raises EC2Error: there is none, or it could not be asked
        """
        found = self._made("iam").get_instance_profile(InstanceProfileName=profile)["InstanceProfile"]["Roles"]
        if not found:
            raise EC2Error(AWSTrouble.PERMANENT, "", f"the instance profile {profile} has no role")
        return str(found[0]["Arn"])

    @answered
    def encrypts(self) -> bool:
        """Whether a volume of a machine is encrypted, by its image or because the account has it so.

        :raises EC2Error: it could not be asked
        """
        if self.reader.get_ebs_encryption_by_default()["EbsEncryptionByDefault"]:
            return True
        found = self.reader.describe_images(ImageIds=[self.image(arch) for arch in self.config.ami])["Images"]
        volumes = (each for image in found for each in image.get("BlockDeviceMappings", ()))
        return any(each.get("Ebs", {}).get("Encrypted", False) for each in volumes)

    @answered
    def quotas(self) -> list[tuple[str, float]]:
        """The quotas of EC2 that the account has, by the names that AWS gives them.

        :raises EC2Error: it could not be asked
        """
        found = listed(self._made("service-quotas"), "list_service_quotas", "Quotas", ServiceCode="ec2")
        return list(parse_rows(found, _quota))

    @answered
    def spot_prices(self, kind: str, zone: str, since: float, until: float) -> list[tuple[float, float]]:
        """The prices of a type on spot over a time, oldest first, with the one that held when it began.

        :param since: epoch seconds, as ``until``
        :returns: since when each held, epoch seconds, and USD per hour
        :raises EC2Error: it could not be asked
        """
        asked: dict[str, Any] = {"InstanceTypes": [kind], "ProductDescriptions": ["Linux/UNIX"]}
        asked |= {"AvailabilityZone": zone, "StartTime": since, "EndTime": until}
        found = listed(self.reader, "describe_spot_price_history", "SpotPriceHistory", **asked)
        return sorted((each.since, each.usd) for each in parse_rows(found, spot_price))

    @answered
    def arch(self, kind: str) -> str:
        """The architecture of a type that no table names, as uname calls it.

        :raises EC2Error: it could not be asked, or there is none
        """
        answer = self.reader.describe_instance_types(InstanceTypes=[kind])
        supported = answer["InstanceTypes"][0]["ProcessorInfo"]["SupportedArchitectures"]
        return "aarch64" if "arm64" in supported else "x86_64"

    @answered
    def image(self, arch: str) -> str:
        """The id of the image of an architecture; a parameter of SSM is looked up once.

        :raises EC2Error: there is none, or it could not be asked
        """
        said = self.config.ami.get(arch)
        if said is None:
            message = f"the table names no image for {arch}: give ami = {{{arch} = ...}}, or leave such types out"
            raise EC2Error(AWSTrouble.PERMANENT, "", message)
        if not said.startswith("/"):
            return said
        if said not in self._images:
            self._images[said] = str(self._made("ssm").get_parameter(Name=said)["Parameter"]["Value"])
        return self._images[said]


def whole_gib(mib: int) -> int:
    """MiB as the GiB of a volume."""
    return -(-mib // 1024)


def _client(aws_conn_id: str, service: str, region: str | None, options: Mapping[str, Any]) -> Any:
    try:
        return current.deployment().aws_client(aws_conn_id, service, region, options)
    except ImportError as error:
        raise EC2Error(AWSTrouble.PERMANENT, "", str(error)) from error


def listed(client: Any, operation: str, key: str, **asked: Any) -> Iterator[Any]:
    """What all pages of an answer have under a key."""
    return (each for page in client.get_paginator(operation).paginate(**asked) for each in page.get(key) or ())


def parse_rows(rows: Iterable[Any], parse: Callable[[Any], T]) -> Iterator[T]:
    """What ``parse`` makes of each row of an answer; a row that makes no sense costs itself alone."""
    for row in rows:
        try:
            found = parse(row)
        except NONSENSE:
            continue
        yield found


def text_of(row: Mapping[str, Any], key: str) -> str:
    """:raises ValueError: it is no text, or empty"""
    value = row[key]
    if not isinstance(value, str) or not value:
        raise ValueError(f"{key} is {value!r}")
    return value


def spot_price(row: Mapping[str, Any]) -> SpotPrice:
    """A row of the history of spot prices.

    :raises ValueError: the price makes no sense
    """
    if (usd := number(row["SpotPrice"])) is None:
        raise ValueError(f"SpotPrice is {row['SpotPrice']!r}")
    return SpotPrice(text_of(row, "InstanceType"), text_of(row, "AvailabilityZone"), usd, row["Timestamp"].timestamp())


def _quota(row: Mapping[str, Any]) -> tuple[str, float]:
    value = float(row["Value"])
    if not 0 <= value < math.inf:
        raise ValueError(f"Value is {value!r}")
    return text_of(row, "QuotaName"), value


def _subnet(row: Mapping[str, Any]) -> tuple[str, str]:
    return text_of(row, "SubnetId"), text_of(row, "AvailabilityZone")


def number(value: object) -> float | None:
    """A price that makes sense, USD per hour; None: it does not."""
    try:
        usd = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return usd if LEAST_USD <= usd <= MOST_USD and not isinstance(value, bool) else None


def meaning(code: str) -> AWSTrouble:
    """What an error code of AWS's means."""
    return next((each for each, codes in CODES.items() if re.fullmatch(codes, code)), AWSTrouble.PERMANENT)


def read(reservations: Iterable[Mapping[str, Any]]) -> Iterator[EC2Instance]:
    """The instances of reservations; one that makes no sense is left out."""
    for reservation in reservations:
        if isinstance(reservation, Mapping):
            yield from parse_rows(reservation.get("Instances") or (), _instance)


def _instance(found: Mapping[str, Any]) -> EC2Instance:
    transition = str(found.get("StateTransitionReason", ""))
    return EC2Instance(
        str(found["InstanceId"]),
        str(found["InstanceType"]),
        str(found.get("Placement", {}).get("AvailabilityZone", "")),
        str(found["State"]["Name"]),
        "spot" if found.get("InstanceLifecycle") == "spot" else "on-demand",
        int(found.get("AmiLaunchIndex", 0)),
        found.get("PrivateIpAddress") or None,
        found.get("PublicIpAddress") or None,
        {str(tag["Key"]): str(tag["Value"]) for tag in found.get("Tags", ())},
        _reason(found.get("StateReason") or {}) or transition,
        launched.timestamp() if isinstance(launched := found.get("LaunchTime"), datetime) else None,
        _time(transition),
        str(found.get("ClientToken") or ""),
        str(found.get("ImageId") or ""),
    )


def _reason(found: Mapping[str, Any]) -> str:
    """Why an instance is in its state: the message, and before it the code where the message begins with none."""
    code, message = str(found.get("Code") or ""), str(found.get("Message") or "")
    if STATE_CODE.match(message) or not STATE_CODE.match(code):
        return message
    return f"{code}: {message}" if message else code


def _time(transition: str) -> float | None:
    """When a state was come to, seconds since the epoch; None: the text does not say it."""
    found = TRANSITION.search(transition)
    with suppress(ValueError):
        return datetime.fromisoformat(f"{found[1]}+00:00").timestamp() if found is not None else None
    return None
