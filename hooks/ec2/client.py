"""EC2's API through Airflow's AWS connection: the requests that Lading makes, and the meaning of its errors.

| read | concluded | until |
|---|---|---|
| no connection, a truncated or invalid answer | ``SILENCE``: it may have been done | repeated with the same token |
| an error code in no table | ``PERMANENT``: see ``refusals`` | see there |
| an instance that cannot be parsed | it is skipped, and none counts as missing in that answer | the next answer |
| an instance in an unknown state | it is live | a known state; it does not answer |
| a lifecycle other than ``spot``, or none | on-demand | permanent |
| no launch or termination time | unknown | EC2 reports it |
| an invalid price, quota or subnet | it is skipped | the next answer |
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

from lading.hooks.deployment.deployment import Deployment
from lading.hooks.ec2.config import EC2Config
from lading.hooks.ec2.limits import EC2Limits
from lading.hooks.polling.outside_clock import seconds_ahead
from lading.scheduling.model.catalogue import LEAST_USD, MOST_USD

# The region of the Price List endpoint: https://docs.aws.amazon.com/general/latest/gr/billing.html
PRICING_REGION = "us-east-1"


class AWSTrouble(str, Enum):
    """What an error means for the caller."""

    CAPACITY = "capacity"
    """This zone has no capacity of this type now."""
    QUOTA = "quota"
    """The account has reached a limit for this kind of instance."""
    THROTTLE = "throttle"
    """There were too many requests."""
    TERMINATED = "terminated"
    """The instance launched with this token has terminated."""
    MISMATCH = "mismatch"
    """The token was used for a different request."""
    SILENCE = "silence"
    """There was no answer, so the request may have been carried out."""
    PERMANENT = "permanent"
    """It will be refused until something is changed."""


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


# Codes that reject the credentials, and therefore say nothing about the request itself.
CREDENTIALS = re.compile(
    r"AuthFailure|ExpiredToken|ExpiredTokenException|RequestExpired|InvalidClientTokenId|UnrecognizedClientException"
)
# After these codes, credentials, images and subnets are read again for the next request, because keys rotate, sessions
# expire, images are replaced and subnets deleted. Otherwise they are read again after SECONDS_UNTIL_READ_AGAIN.
STALE = re.compile(rf"{CREDENTIALS.pattern}|InvalidAMIID\..*|InvalidSubnetID\..*")
SECONDS_UNTIL_READ_AGAIN = 900.0
# The attributes with boto3 clients, which hold credentials.
CLIENTS = "reader", "launcher", "pricing"
INSTANCE_ID = re.compile(r"\bi-[0-9a-f]{8,17}\b")
# The instance is gone, so terminating it again is not an error.
GONE = "InvalidInstanceID.NotFound"


# The code at the start of the reason for a termination. It can be more specific than the separate code field:
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/troubleshooting-launch.html#troubleshooting-launch-internal
STATE_CODE = re.compile(r"(?:Server|Client)\.\w+(?:\.\w+)*")
# What parsing an invalid answer can raise.
NONSENSE = (LookupError, TypeError, ValueError, AttributeError, OverflowError)
T = TypeVar("T")
# The time of a termination is only in a text, "User initiated (2026-11-23 12:00:00 GMT)": StateTransitionReason in
# https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_Instance.html
TRANSITION = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")


class EC2Error(OSError):
    """EC2 refused a request, or did not answer.

    :ivar message: AWS's message
    """

    def __init__(self, trouble: AWSTrouble, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}" if code else message)
        self.trouble = trouble
        self.code = code
        self.message = message


@contextmanager
def translated() -> Iterator[None]:
    """:raises EC2Error: instead of anything that boto3 and Airflow's hook raise"""
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
    except BotoCoreError as error:  # no credentials, no region, an invalid parameter
        raise EC2Error(AWSTrouble.PERMANENT, "", str(error)) from error


def answered(ask: Callable[..., Any]) -> Callable[..., Any]:
    """Make a request method of :class:`EC2` raise nothing but EC2Error, and refresh stale data before it.

    An invalid answer counts as no answer, because the request may have been carried out.
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
            message = f"the answer of AWS is invalid ({ask.__name__}): {type(error).__name__}: {error}"
            raise EC2Error(AWSTrouble.SILENCE, "", message) from error

    return asked


@dataclass(frozen=True, slots=True)
class EC2Instance:
    """An instance as EC2 describes it.

    :param state: pending, running, shutting-down, terminated, stopping or stopped
    :param index: its launch index
    :param reason: AWS's reason for its state, starting with the code if there is one; empty: none given
    :param launched_at: epoch seconds by AWS's clock, like ``ended_at``; None: unknown
    :param ended_at: when it was terminated or stopped; None: it is live, or EC2 does not report the time
    :param client_token: that of the request that launched it, which cannot be changed later; empty: there was none
    :param image: the id of the image it was booted from; empty: unknown
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
        """Whether EC2 has not terminated or stopped it; an instance in an unknown state is live."""
        return self.state not in ("shutting-down", "terminated", "stopping", "stopped")


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """The properties of an image.

    :param root: its name for the root volume
    :param volumes: the sizes of its volumes, GiB, by device name
    """

    root: str
    volumes: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class SpotPrice:
    """The spot price of a type in a zone, USD per hour, and since when, epoch seconds."""

    kind: str
    zone: str
    usd: float
    since: float


class EC2:
    """Requests to EC2. Several threads can use it.

    :param make: creates a boto3 client for a service, a region and the options of botocore's Config; without it,
        Airflow's connection is used
    """

    def __init__(
        self, config: EC2Config, make: Callable[..., Any] | None = None, limits: EC2Limits = EC2Limits()
    ) -> None:
        self.config, self.limits = config, limits
        self._make = make or (lambda *asked: _client(config.deployment, config.aws_conn_id, *asked))
        self._images: dict[str, str] = {}
        self._pictures: dict[str, ImageFacts] = {}
        self._zones: Mapping[str, tuple[str, ...]] | None = None
        self._read_at = time.monotonic()
        self.unread = False
        """Whether the last description contained an instance that could not be parsed; then none counts as missing."""
        self.clock_ahead = 0.0
        """Seconds by which AWS's clock is ahead of ours, as measured from its answers so far; 0: they agree."""

    def read_again(self, older_than: float = 0.0) -> None:
        """Read credentials, image parameters and subnets again for the next request.

        :param older_than: seconds; data read more recently is kept
        """
        if (now := time.monotonic()) - self._read_at >= older_than:
            self._read_at = now
            for name in CLIENTS:
                self.__dict__.pop(name, None)
            self._images.clear()
            self._zones = None

    @cached_property
    def reader(self) -> Any:
        """The client for requests that can be repeated safely."""
        return self._made("ec2", total_max_attempts=2)

    @cached_property
    def launcher(self) -> Any:
        """The client that launches. It makes one attempt, because boto3 retries when AWS has no capacity."""
        return self._made("ec2", total_max_attempts=1, read_timeout=self.limits.launch_timeout)

    @cached_property
    def pricing(self) -> Any:
        """The client of the Price List, which has endpoints in few regions that serve all."""
        return self._made("pricing", region=PRICING_REGION, read_timeout=self.limits.prices_timeout)

    @property
    def region(self) -> str:
        return self.config.region or str(self.reader.meta.region_name)

    @answered
    def _made(
        self, service: str, total_max_attempts: int = 3, region: str | None = None, read_timeout: float | None = None
    ) -> Any:
        retries = {"total_max_attempts": total_max_attempts, "mode": "standard"}
        timeouts = {"connect_timeout": 5, "read_timeout": read_timeout or self.limits.read_timeout}
        options = {"retries": retries, **timeouts}
        return self._make(service, region or self.config.region, options)

    @answered
    def run(self, parameters: Mapping[str, Any]) -> list[EC2Instance]:
        """Launch instances.

        :raises EC2Error: they were not launched, or that is unknown
        """
        return list(read([self.launcher.run_instances(**parameters)]))

    @answered
    def describe(self, filters: Mapping[str, Sequence[str]]) -> list[EC2Instance]:
        """Return the instances that match all filters, including recently terminated ones.

        :param filters: values by filter name
        :raises EC2Error: AWS did not answer
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
        said = parsedate_tz(str(page.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", "")))
        if said is not None:
            self.clock_ahead = seconds_ahead(mktime_tz(said), asked_at, time.time(), self.clock_ahead)

    def terminate(self, ids: Sequence[str]) -> dict[str, EC2Error]:
        """Terminate instances, whatever runs on them; one that is already gone is not an error.

        AWS refuses the whole request because of a single instance. Instances named in the error are taken out; if it
        names none, the request is split in halves.

        :returns: the errors of the instances that AWS refuses to terminate, by id
        :raises EC2Error: EC2 accepts no requests for now, or does not answer
        """
        refused: dict[str, EC2Error] = {}
        parts = [list(ids[start : start + 100]) for start in range(0, len(ids), 100)]
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
        """Set tags of instances; their other tags are kept.

        :raises EC2Error: EC2 refuses it, or does not answer; some instances may have the tags
        """
        given = [{"Key": key, "Value": value} for key, value in sorted(tags.items())]
        # TerminateInstances and DescribeInstances accept more ids, but answer faster for this many.
        for start in range(0, len(ids), 100):
            self.reader.create_tags(Resources=list(ids[start : start + 100]), Tags=given)

    @answered
    def _terminate(self, ids: Sequence[str]) -> None:
        self.reader.terminate_instances(InstanceIds=list(ids))

    @answered
    def zones(self) -> Mapping[str, tuple[str, ...]]:
        """Return those subnets of the table that exist, by zone, in the table's order.

        :raises EC2Error: AWS did not answer, or none of them exists
        """
        if (zones := self._zones) is None:
            # With a filter, because requesting a missing subnet by its id would fail for all.
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
        """Return the subnets of the table that do not exist.

        :raises EC2Error: see :meth:`zones`
        """
        known = {subnet for subnets in self.zones().values() for subnet in subnets}
        return [subnet for subnet in self.config.subnets if subnet not in known]

    @answered
    def image_facts(self, image: str) -> ImageFacts:
        """Return the properties of an image. They never change, so they are requested once.

        :raises EC2Error: it does not exist, or AWS did not answer
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
        """Return the size of the root volume of a machine with this image, which ``disk`` overrides, and of all its
        volumes, GiB.

        :raises EC2Error: see :meth:`image_facts`
        :raises LookupError: the image does not exist
        """
        image_facts = self.image_facts(image)
        sizes = dict(image_facts.volumes)
        if self.config.disk:
            sizes[image_facts.root] = whole_gib(self.config.disk)
        return sizes.get(image_facts.root, 0.0), sum(sizes.values())

    @answered
    def role(self, profile: str) -> str:
        """Return the ARN of the role in an instance profile.

        :raises EC2Error: it has none, or AWS did not answer
        """
        found = self._made("iam").get_instance_profile(InstanceProfileName=profile)["InstanceProfile"]["Roles"]
        if not found:
            raise EC2Error(AWSTrouble.PERMANENT, "", f"the instance profile {profile} has no role")
        return str(found[0]["Arn"])

    @answered
    def encrypts(self) -> bool:
        """Check whether any volume of a machine is encrypted, by its image or by default in the account.

        :raises EC2Error: AWS did not answer
        """
        if self.reader.get_ebs_encryption_by_default()["EbsEncryptionByDefault"]:
            return True
        found = self.reader.describe_images(ImageIds=[self.image(arch) for arch in self.config.ami])["Images"]
        volumes = (each for image in found for each in image.get("BlockDeviceMappings", ()))
        return any(each.get("Ebs", {}).get("Encrypted", False) for each in volumes)

    @answered
    def quotas(self) -> list[tuple[str, float]]:
        """Return the account's EC2 quotas with AWS's names.

        :raises EC2Error: AWS did not answer
        """
        found = listed(self._made("service-quotas"), "list_service_quotas", "Quotas", ServiceCode="ec2")
        return list(parse_rows(found, _quota))

    @answered
    def spot_prices(self, kind: str, zone: str, since: float, until: float) -> list[tuple[float, float]]:
        """Return the spot prices of a type over a period, oldest first, including the one valid at its start.

        :param since: epoch seconds, like ``until``
        :returns: for each price, since when it was valid, epoch seconds, and USD per hour
        :raises EC2Error: AWS did not answer
        """
        asked: dict[str, Any] = {"InstanceTypes": [kind], "ProductDescriptions": ["Linux/UNIX"]}
        asked |= {"AvailabilityZone": zone, "StartTime": since, "EndTime": until}
        found = listed(self.reader, "describe_spot_price_history", "SpotPriceHistory", **asked)
        return sorted((each.since, each.usd) for each in parse_rows(found, spot_price))

    @answered
    def arch(self, kind: str) -> str:
        """Return the architecture, named as by uname, of a type that is in no table.

        :raises EC2Error: AWS did not answer, or the type does not exist
        """
        answer = self.reader.describe_instance_types(InstanceTypes=[kind])
        supported = answer["InstanceTypes"][0]["ProcessorInfo"]["SupportedArchitectures"]
        return "aarch64" if "arm64" in supported else "x86_64"

    @answered
    def image(self, arch: str) -> str:
        """Return the id of the image for an architecture; an SSM parameter is looked up once.

        :raises EC2Error: there is none, or AWS did not answer
        """
        said = self.config.ami.get(arch)
        if said is None:
            message = f"the table names no image for {arch}: set ami = {{{arch} = ...}}, or exclude such types"
            raise EC2Error(AWSTrouble.PERMANENT, "", message)
        if not said.startswith("/"):
            return said
        if said not in self._images:
            self._images[said] = str(self._made("ssm").get_parameter(Name=said)["Parameter"]["Value"])
        return self._images[said]


def whole_gib(mib: int) -> int:
    """Convert MiB to the GiB of a volume, rounded up."""
    return -(-mib // 1024)


def _client(
    deployment: Deployment, aws_conn_id: str, service: str, region: str | None, options: Mapping[str, Any]
) -> Any:
    try:
        return deployment.aws_client(aws_conn_id, service, region, options)
    except ImportError as error:
        raise EC2Error(AWSTrouble.PERMANENT, "", str(error)) from error


def listed(client: Any, operation: str, key: str, **asked: Any) -> Iterator[Any]:
    """Return the items under a key in all pages of an answer."""
    return (each for page in client.get_paginator(operation).paginate(**asked) for each in page.get(key) or ())


def parse_rows(rows: Iterable[Any], parse: Callable[[Any], T]) -> Iterator[T]:
    """Yield what ``parse`` returns for each row of an answer; only invalid rows are skipped."""
    for row in rows:
        try:
            found = parse(row)
        except NONSENSE:
            continue
        yield found


def text_of(row: Mapping[str, Any], key: str) -> str:
    """:raises ValueError: it is not text, or is empty"""
    value = row[key]
    if not isinstance(value, str) or not value:
        raise ValueError(f"{key} is {value!r}")
    return value


def spot_price(row: Mapping[str, Any]) -> SpotPrice:
    """Parse a row of the spot price history.

    :raises ValueError: the price is invalid
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
    """Convert a price, USD per hour; None if it is not plausible."""
    try:
        usd = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return usd if LEAST_USD <= usd <= MOST_USD and not isinstance(value, bool) else None


def meaning(code: str) -> AWSTrouble:
    return next((each for each, codes in CODES.items() if re.fullmatch(codes, code)), AWSTrouble.PERMANENT)


def read(reservations: Iterable[Mapping[str, Any]]) -> Iterator[EC2Instance]:
    """Yield the instances of reservations; invalid ones are skipped."""
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
    """Return the reason for an instance's state: the message, prefixed with the code unless it starts with one."""
    code, message = str(found.get("Code") or ""), str(found.get("Message") or "")
    if STATE_CODE.match(message) or not STATE_CODE.match(code):
        return message
    return f"{code}: {message}" if message else code


def _time(transition: str) -> float | None:
    """Return the time of a state transition, epoch seconds; None if the text has none."""
    found = TRANSITION.search(transition)
    with suppress(ValueError):
        return datetime.fromisoformat(f"{found[1]}+00:00").timestamp() if found is not None else None
    return None
