"""The table of a site of kind ``ec2``: machines that Lading launches in AWS."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, StrictBool, field_validator, model_validator

from lading.hooks.files.table_model import Amount, Arch, Duration, DurationOrZero, Hurry, Price, Texts
from lading.hooks.machines.fixed_config import MachinesConfig
from lading.scheduling.machine_traits import ON_DEMAND, SPOT
from lading.scheduling.placing.policies import GREEDY, OF_BUYERS
from lading.scheduling.plan import FORECAST

# What RunInstances takes as an image: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_RunInstances.html
AMI = re.compile(r"ami-[0-9a-f]{8,17}|/[\w./-]{1,1000}")
SUBNET = re.compile(r"subnet-[0-9a-f]{8,17}")
GROUP = re.compile(r"sg-[0-9a-f]{8,17}")
# Lading's own tags begin so, and AWS keeps the other prefix for itself.
RESERVED_TAGS = "lading:", "aws:"
MOST_TAGS = 40
WITH_FALLBACK = "spot-with-fallback"
# What the environment that ``airflow lading bootstrap`` makes has when it is made, and where that has failed.
READY, FAILED = ".lading-ready", ".lading-failed"
# How a machine switches itself off: what cloud images let their user do.
POWER_OFF = "sudo -n shutdown -h now"
# The last lines of what was said when something has failed that a machine was to do at its first boot.
LINES = 5
Family = Literal["standard", "dl", "f", "g", "hpc", "inf", "p", "trn", "u", "x"]


def _texts_by_name(value: Any) -> Any:
    if not isinstance(value, Mapping) or not all(isinstance(each, str) for each in value.values()):
        raise ValueError('a table of texts is expected, such as {team = "genomics"}')
    return value


Table = Annotated[dict[str, str], BeforeValidator(_texts_by_name)]


class EC2Config(MachinesConfig):
    """Machines of EC2, packed as one site."""

    built_in_policies: ClassVar[Sequence[str]] = OF_BUYERS

    aws_conn_id: str = Field(
        "aws_default", description="Airflow's connection to AWS; empty: the credentials that boto3 finds by itself."
    )
    region: str | None = Field(None, description="Where machines are launched; without it the connection's region.")
    subnets: Texts = Field(
        min_length=1,
        description="In which machines may be launched; of several in a zone the first that has free addresses.",
    )
    security_groups: Texts = Field((), description="Of the machines; without it the default one of their network.")
    ami: dict[Arch, str] = Field(
        min_length=1,
        description="The image of each architecture, its id or the name of an SSM parameter that has it: "
        '`{x86_64 = "ami-..."}`. Lading and Airflow\'s Task SDK are in it, or `boot_script` installs them.',
    )
    instance_types: Texts = Field(
        (),
        description="Patterns of the types that may be launched; without it all but burstable ones. These need a "
        "pattern that begins with their family, such as `t3.*`; they have standard credits and count with their "
        "baseline.",
    )
    exclude_types: Texts = Field((), description="Patterns of types that are not.")
    capacity_type: Literal["on-demand", "spot", "spot-with-fallback"] = Field(
        "on-demand",
        description="`on-demand`; `spot`, cheaper and reclaimed at any time; `spot-with-fallback`: on demand where "
        "there is no spot capacity.",
    )
    on_demand_after: int = Field(
        2,
        ge=0,
        description="With `spot-with-fallback`: a job that has lost so many machines to AWS goes to one on demand, "
        "unless its hint `capacity_type` says `spot`; 0: never.",
    )
    max_instances: int = Field(10, ge=1, description="How many machines there may be at a time.")
    max_per_type: int | None = Field(None, ge=1, description="How many of one type.")
    max_usd_per_hour: Price | None = Field(None, description="What all machines together may cost, USD per hour.")
    max_vcpus: dict[Family, int] = Field(
        {},
        description="How many vCPUs machines of a family may have together, on demand and spot each, as AWS's quotas "
        "count them: `{standard = 256, g = 64}`.",
    )
    min_instances: int = Field(0, ge=0, description="So many machines are kept though nothing runs on them.")
    idle_seconds: DurationOrZero = Field(120, description="How long a machine is kept on which nothing runs.")
    policy: str = Field(
        FORECAST,
        description="What decides which machines are launched: `forecast` plans for "
        "[everything that runs still have to do](packing.md#forecast), `greedy` for the jobs that wait. "
        "Any other [policy](placement.md#policies) chooses among the machines that are there, and machines are "
        "launched as with `forecast`.",
    )
    hurry: Hurry = Field(
        1.0,
        description="But for the policy `greedy`: [what an early end is worth](hurry.md) to runs without the hint "
        '`hurry`, 0 to 100, `"cheap"` (0), `"balanced"` (1) or `"fast"` (10).',
    )
    expected_boot_time: Duration = Field(
        60,
        description="How long a machine takes from its order to its first job, until "
        "[that has been measured](../reference/ec2.md#forecasts).",
    )
    key_pair: str | None = Field(
        None, description="A key pair of EC2 for people to log in; Lading has a key of its own in any case."
    )
    user: str = Field(
        "ec2-user", description="The user of the image as whom jobs run: the one that cloud-init sets up."
    )
    ssh_port: int = Field(22, ge=1, le=65535, description="The port of the machines' SSH servers.")
    address: Literal["private", "public"] = Field("private", description="The address at which machines are reached.")
    jump_host: str | None = Field(
        None, description="What leads to them, as one types it after `ssh`, such as `me@bastion.example.org`."
    )
    instance_profile: str | None = Field(None, description="The name of the IAM instance profile that jobs use.")
    disk: Amount | None = Field(None, description="Size of the root volume; without it the image's own.")
    tags: Table = Field({}, description="Tags of the machines and their volumes.")
    boot_script: str = Field(
        "", description="Shell lines that root runs at a machine's first boot, such as an installation."
    )
    readiness_probe: str = Field("", description="A shell command that succeeds when a machine may be given jobs.")
    cost_tags: StrictBool = Field(
        True,
        description="Whether machines are tagged with the team and the Dag of the jobs on them, `lading:team` and "
        "`lading:dag`, for [cost allocation](teams.md#aws-cost-allocation-tags); `shared` where these have several.",
    )
    terminate_on_shutdown: StrictBool = Field(
        True,
        description="Whether machines go when Airflow is stopped; otherwise those without jobs switch themselves off "
        "after `orphan_after`.",
    )
    orphan_after: Duration = Field(
        1800, ge=300, description="A machine without jobs, of which no controller has asked anything for so long, "
        "switches itself off."
    )  # fmt: skip
    prices: str | None = Field(None, description="A file of prices in place of AWS's own.")
    reserve_memory: Amount = Field(512, description="Memory that is left to the system and the node agent.")

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
        if len(value) > MOST_TAGS:
            raise ValueError(f"there are {len(value)} tags; valid: at most {MOST_TAGS}")
        return value

    @model_validator(mode="after")
    def _keeps_no_more_than_there_may_be(self) -> EC2Config:
        if self.min_instances > self.max_instances:
            raise ValueError(
                f"min_instances = {self.min_instances} is more than max_instances = {self.max_instances}; lower it"
            )
        if "hurry" in self.model_fields_set and self.buying != FORECAST:
            raise ValueError(
                f'hurry = {self.hurry:g} says nothing with policy = "{self.policy}"; leave one of them out: without '
                f'a policy it is "{FORECAST}"'
            )
        if self.orphan_after < 2 * self.max_poll_interval:
            raise ValueError(
                f"orphan_after = {self.orphan_after} is too short: machines would switch themselves off between two "
                f"questions; give {2 * self.max_poll_interval} or more, twice max_poll_interval"
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
        """How the files begin that ``boot_script`` leaves on a machine."""
        return f"{self.work_dir}-boot"

    @property
    def _boot_fault(self) -> str:
        """Shell text that says why ``boot_script`` failed, where Lading's Python is not there or the probe fails."""
        if not self.boot_script:
            return ""
        probe = f"{{ {self.readiness_probe}\n}} </dev/null >/dev/null 2>&1" if self.readiness_probe else "true"
        failed, python = shlex.quote(f"{self.boot_log}-failed"), shlex.quote(self.python)
        return (
            f"[ ! -e {failed} ] || {{ command -v {python} >/dev/null && {probe}\n}} || {{ cat {failed} >&2; exit 1; }}"
        )

    @property
    def environment(self) -> str | None:
        """The folder of the environment that has ``python``; None: it is in none that could be made."""
        folder, middle, name = self.python.rpartition("/bin/")
        is_there = middle and folder.startswith("/") and re.fullmatch(r"python[\d.]*", name)
        return folder if is_there else None

    @property
    def _environment_fault(self) -> str:
        """Shell text that says why the environment of ``python`` could not be made, where Lading is not in it."""
        if self.environment is None:
            return ""
        ready, failed = (shlex.quote(f"{self.environment}/{name}") for name in (READY, FAILED))
        return (
            f"[ -e {ready} ] || [ ! -e {failed} ] || {shlex.quote(self.python)} -c 'import lading.executors.host' "
            "2>/dev/null || { echo 'the user data of `airflow lading bootstrap` has failed on the machine, or on that "
            f"from which its image was made; its last lines:'; tail -n {LINES} {failed}; exit 1\n}} >&2"
        )

    @property
    def agent_idle_seconds(self) -> float:
        return self.orphan_after

    @property
    def buying(self) -> str:
        """The policy by which machines are launched."""
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
        """What may be launched."""
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
            raise ValueError(f"{each!r} is not {what}; valid: such as {example}")
    return values
