"""The table of a site of kind ``ec2``, whose machines Lading launches in AWS."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, StrictBool, field_validator, model_validator

from lading.hooks.files.table_model import Amount, Arch, Duration, DurationOrZero, Hurry, Price, Texts
from lading.hooks.machines.fixed_config import MachinesConfig
from lading.scheduling.model.machine_traits import ON_DEMAND, SPOT
from lading.scheduling.model.plan import FORECAST
from lading.scheduling.placing.policies import GREEDY, OF_BUYERS

# What RunInstances accepts as an image: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_RunInstances.html
AMI = re.compile(r"ami-[0-9a-f]{8,17}|/[\w./-]{1,1000}")
SUBNET = re.compile(r"subnet-[0-9a-f]{8,17}")
GROUP = re.compile(r"sg-[0-9a-f]{8,17}")
# Lading's own tags start with the first prefix; AWS reserves the second.
RESERVED_TAGS = "lading:", "aws:"
WITH_FALLBACK = "spot-with-fallback"
# Files in the environment that ``airflow lading bootstrap`` builds: it is complete, or building it failed.
READY, FAILED = ".lading-ready", ".lading-failed"
# How a machine shuts itself down; cloud images allow this to their default user.
POWER_OFF = "sudo -n shutdown -h now"
Family = Literal["standard", "dl", "f", "g", "hpc", "inf", "p", "trn", "u", "x"]


def _texts_by_name(value: Any) -> Any:
    if not isinstance(value, Mapping) or not all(isinstance(each, str) for each in value.values()):
        raise ValueError('a table of texts is expected, such as {team = "genomics"}')
    return value


Table = Annotated[dict[str, str], BeforeValidator(_texts_by_name)]


class EC2Config(MachinesConfig):
    """EC2 instances as one site."""

    built_in_policies: ClassVar[Sequence[str]] = OF_BUYERS
    machines_are_shared: ClassVar[bool] = False

    aws_conn_id: str = Field(
        "aws_default",
        description="Airflow's AWS connection. If empty, Lading uses the credentials that boto3 finds by itself.",
    )
    region: str | None = Field(None, description="The region of the machines. Default: the region of the connection.")
    subnets: Texts = Field(
        min_length=1,
        description="A list of the subnets in which machines are launched. If a zone has several of them, the "
        "first one with free addresses is used.",
    )
    security_groups: Texts = Field(
        (), description="A list of security groups for the machines. Default: the default group of their VPC."
    )
    ami: dict[Arch, str] = Field(
        min_length=1,
        description='The image for each architecture: `{x86_64 = "ami-..."}`. Give the id of an image, or the name '
        "of an SSM parameter that contains the id. The image must contain Lading and Airflow's Task "
        "SDK, or `boot_script` must install them.",
    )
    instance_types: Texts = Field(
        (),
        description="A list of patterns of the instance types that can be launched. Default: all types except "
        "burstable ones. To use burstable types, give a pattern that starts with their family, such as "
        "`t3.*`. They run with standard credits, and Lading counts only their baseline performance.",
    )
    exclude_types: Texts = Field((), description="A list of patterns of instance types that are never launched.")
    capacity_type: Literal["on-demand", "spot", "spot-with-fallback"] = Field(
        "on-demand",
        description="`on-demand`. `spot`: cheaper machines that AWS can reclaim at any time. `spot-with-fallback`: "
        "spot machines, and on-demand machines when there is no spot capacity.",
    )
    on_demand_after: int = Field(
        2,
        ge=0,
        description="With `spot-with-fallback`: after AWS has reclaimed the machine of a job this many times, the job "
        "goes to an on-demand machine, unless its hint `capacity_type` is `spot`. With 0, it never does.",
    )
    max_instances: int = Field(10, ge=1, description="The maximum number of machines at a time.")
    max_per_type: int | None = Field(None, ge=1, description="The maximum number of machines of one type.")
    max_usd_per_hour: Price | None = Field(
        None, description="The maximum cost of all machines together, in USD per hour."
    )
    max_vcpus: dict[Family, int] = Field(
        {},
        description="The maximum number of vCPUs for each of AWS's quotas: `{standard = 256, g = 64}`. On-demand and "
        "spot machines are counted separately, as in AWS's quotas.",
    )
    min_instances: int = Field(0, ge=0, description="The number of machines that are kept even when idle.")
    idle_seconds: DurationOrZero = Field(120, description="How long an idle machine is kept.")
    policy: str = Field(
        FORECAST,
        description="How Lading decides which machines to launch. `forecast` plans for [all remaining work of the live "
        "runs](packing.md#forecast). `greedy` plans only for the jobs that wait now. Any other "
        "[policy](placement.md#policies) only chooses among the existing machines, and machines are launched "
        "as with `forecast`.",
    )
    hurry: Hurry = Field(
        1.0,
        description="[How much finishing early is worth](hurry.md) for runs without the hint `hurry`: 0 to 100, "
        '`"cheap"` (0), `"balanced"` (1) or `"fast"` (10). Cannot be combined with the policy `greedy`.',
    )
    expected_boot_time: Duration = Field(
        60,
        description="How long a machine is expected to take from its order to its first job, until Lading [has "
        "measured this](../reference/ec2.md#forecasts).",
    )
    key_pair: str | None = Field(
        None, description="An EC2 key pair with which people can log in. Lading always uses a key of its own."
    )
    user: str = Field(
        "ec2-user",
        description="The user that runs the jobs. This must be the default user that cloud-init sets up in the image.",
    )
    ssh_port: int = Field(22, ge=1, le=65535, description="The port of the machines' SSH servers.")
    address: Literal["private", "public"] = Field(
        "private", description="Which address of a machine Lading uses to reach it: `private` or `public`."
    )
    jump_host: str | None = Field(
        None, description="A jump host to reach the machines, written as for `ssh`, such as `me@bastion.example.org`."
    )
    instance_profile: str | None = Field(None, description="The name of the IAM instance profile for jobs.")
    disk: Amount | None = Field(None, description="The size of the root volume. Default: that of the image.")
    tags: Table = Field({}, description="Additional tags for the machines and their volumes.")
    boot_script: str = Field(
        "", description="Shell lines that run as root at a machine's first boot, for example to install software."
    )
    readiness_probe: str = Field("", description="A shell command that succeeds once a machine can be given jobs.")
    cost_tags: StrictBool = Field(
        True,
        description="Whether machines get the tags `lading:team` and `lading:dag`, with the team and Dag of their "
        "jobs, for [cost allocation](teams.md#aws-cost-allocation-tags). The value is `shared` if a "
        "machine has jobs of several teams or Dags.",
    )
    terminate_on_shutdown: StrictBool = Field(
        True,
        description="Whether machines are terminated when Airflow is stopped. If `false`, machines without jobs shut "
        "themselves down after `orphan_after`.",
    )
    orphan_after: Duration = Field(
        1800, ge=300, description=("A machine without jobs shuts itself down if it has had no contact with a "
                                  "controller for this long.")
    )  # fmt: skip
    prices: str | None = Field(None, description="A file with prices, which are used instead of AWS's prices.")
    reserve_memory: Amount = Field(512, description="Memory reserved for the system and the node agent.")

    @field_validator("subnets")
    @classmethod
    def _are_subnets(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return _each(value, SUBNET, "the id of a subnet", "subnet-0a1b2c3d")

    @field_validator("security_groups")
    @classmethod
    def _are_groups(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return _each(value, GROUP, "the id of a security group", "sg-0a1b2c3d")

    @field_validator("ami")
    @classmethod
    def _are_images(cls, value: dict[str, str]) -> dict[str, str]:
        _each(tuple(value.values()), AMI, "an image or the name of an SSM parameter", "ami-0a1b2c3d, /my/image")
        return value

    @field_validator("tags")
    @classmethod
    def _are_free(cls, value: dict[str, str]) -> dict[str, str]:
        for name, said in value.items():
            if name.lower().startswith(RESERVED_TAGS) or not 0 < len(name) <= 128 or len(said) > 256:
                raise ValueError(
                    f"{name!r} cannot be a tag; valid: names of 1 to 128 characters that do not begin with "
                    f"{' or '.join(RESERVED_TAGS)}, and values of at most 256"
                )
        if len(value) > 40:
            raise ValueError(f"there are {len(value)} tags; valid: at most 40")
        return value

    @model_validator(mode="after")
    def _keeps_no_more_than_there_may_be(self) -> EC2Config:
        if self.min_instances > self.max_instances:
            raise ValueError(
                f"min_instances = {self.min_instances} is more than max_instances = {self.max_instances}; lower it"
            )
        if "hurry" in self.model_fields_set and self.buying != FORECAST:
            raise ValueError(
                f'hurry = {self.hurry:g} has no effect with policy = "{self.policy}"; remove one of them: the default '
                f'policy is "{FORECAST}"'
            )
        if self.orphan_after < 2 * self.max_poll_interval:
            raise ValueError(
                f"orphan_after = {self.orphan_after} is too short: machines would shut down between two polls; set "
                f"{2 * self.max_poll_interval} or more, twice max_poll_interval"
            )
        return self

    @property
    def agent_setup(self) -> str:
        probe = ""
        if self.readiness_probe:
            fault = "{ echo 'it is not ready: the probe fails' >&2; exit 1; }"
            probe = f"{{ {self.readiness_probe}\n}} </dev/null >&2 || {fault}"
        return "\n".join(filter(None, [self._boot_fault, self._environment_fault, probe, self.setup]))

    @property
    def boot_log(self) -> str:
        """The common prefix of the files that ``boot_script`` leaves on a machine."""
        return f"{self.work_dir}-boot"

    @property
    def _boot_fault(self) -> str:
        """Shell text that reports why ``boot_script`` failed, if Lading's Python is missing or the probe fails."""
        if not self.boot_script:
            return ""
        probe = f"{{ {self.readiness_probe}\n}} </dev/null >/dev/null 2>&1" if self.readiness_probe else "true"
        failed, python = shlex.quote(f"{self.boot_log}-failed"), shlex.quote(self.python)
        return (
            f"[ ! -e {failed} ] || {{ command -v {python} >/dev/null && {probe}\n}} || {{ cat {failed} >&2; exit 1; }}"
        )

    @property
    def environment(self) -> str | None:
        """The folder of the environment that contains ``python``; None: not in one that can be built."""
        folder, middle, name = self.python.rpartition("/bin/")
        is_there = middle and folder.startswith("/") and re.fullmatch(r"python[\d.]*", name)
        return folder if is_there else None

    @property
    def _environment_fault(self) -> str:
        """Shell text that reports why building the environment of ``python`` failed, if Lading is missing from it."""
        if self.environment is None:
            return ""
        ready, failed = (shlex.quote(f"{self.environment}/{name}") for name in (READY, FAILED))
        return (
            f"[ -e {ready} ] || [ ! -e {failed} ] || {shlex.quote(self.python)} -c 'import lading.executors.host' "
            "2>/dev/null || { echo 'the user data of `airflow lading bootstrap` failed on this machine, or on the one "
            f"its image was made from; its last lines:'; tail -n 5 {failed}; exit 1\n}} >&2"
        )

    @property
    def agent_idle_seconds(self) -> float:
        return self.orphan_after

    @property
    def buying(self) -> str:
        """The policy that decides which machines are launched."""
        return GREEDY if self.policy == GREEDY else FORECAST

    @property
    def switch_off(self) -> str:
        return POWER_OFF

    @property
    def reads_notices(self) -> bool:
        return True

    @property
    def most_preemptions(self) -> int | None:
        return self.on_demand_after if self.on_demand_after and self.capacity_type == WITH_FALLBACK else None

    @property
    def capacity_types(self) -> tuple[str, ...]:
        return (SPOT, ON_DEMAND) if self.capacity_type == WITH_FALLBACK else (self.capacity_type,)

    @property
    def limits(self) -> dict[str, str]:
        found = {"max_instances": str(self.max_instances)}
        if self.max_per_type is not None:
            found["max_per_type"] = str(self.max_per_type)
        if self.max_vcpus:
            found["max_vcpus"] = ", ".join(f"{name} {most}" for name, most in sorted(self.max_vcpus.items()))
        if self.max_usd_per_hour is not None:
            found["max_usd_per_hour"] = f"{self.max_usd_per_hour:g} USD"
        return found


def _each(values: tuple[str, ...], pattern: re.Pattern[str], what: str, example: str) -> tuple[str, ...]:
    for each in values:
        if not pattern.fullmatch(each):
            raise ValueError(f"{each!r} is not {what}; valid: for example {example}")
    return values
