"""The keys that all kinds of site share in the sites file."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PlainValidator, PrivateAttr, StrictBool, field_validator, model_validator

from lading.hooks.api_tunnel.address import endpoint
from lading.hooks.deployment.airflow import AIRFLOW
from lading.hooks.deployment.deployment import Deployment
from lading.hooks.files.addresses import checked_scheme
from lading.hooks.files.table_model import Duration, DurationOrZero, Memory, TableModel, Texts, remote_path
from lading.scheduling.hints.gang_hints import AttemptSchedule
from lading.scheduling.hints.places import parse_container
from lading.scheduling.matching.admission import Admission
from lading.scheduling.model.resources import Resources
from lading.scheduling.model.site_names import declared_name
from lading.scheduling.placing.policies import DATA_LOCALITY, GREEDY, OF_ANY_SITE, PRICED
from lading.scheduling.starts.queueing import PATIENCE

# The object stores of the three providers that Airflow reads natively. A scheme that reaches any address, such as http
# or ftp, would let a Dag author send requests from the controller's network.
STAGE_SCHEMES = ("s3", "gs", "abfs")
# A path that begins with an environment variable of the machine.
VARIABLE = re.compile(r"\$(\w+|\{\w+\})(/|$)")


class SiteConfig(TableModel):
    """The keys that every kind of site has in the sites file.

    The validation context can have the ``deployment`` that the site belongs to. It is Airflow's by default, because
    Airflow and Dag authors create sites, too.
    """

    _deployment: Deployment = PrivateAttr(AIRFLOW)

    def model_post_init(self, context: Any) -> None:
        self._deployment = (context or {}).get("deployment", AIRFLOW)

    @property
    def deployment(self) -> Deployment:
        return self._deployment

    kind: str
    accept_untargeted: StrictBool | None = Field(
        None,
        description="Whether tasks that name no site can run here. Default: yes for the first site of the file, no for "
        "all other sites.",
    )
    burst_after: DurationOrZero = Field(
        0,
        description="How long a task that names no site waits for room here before it can move to the next site that "
        "accepts such tasks.",
    )
    allowed_dags: Texts | None = Field(
        None,
        description="A list of patterns of Dag ids (`*`, `?`, `[...]`). Only these Dags can run here. If not set, all "
        "Dags can.",
    )

    allowed_teams: Texts | None = Field(
        None,
        description="A list of names of Airflow's [teams](teams.md), or patterns of such names. Only Dags of these "
        "teams can run here. If not set, all Dags can, including Dags without a team.",
    )

    stage_schemes: Texts = Field(
        STAGE_SCHEMES,
        description="A list of the schemes of object stores from which the controller copies files that tasks "
        "[stage](files.md#send-files-to-a-task). Other names of the same store (`s3a`, `gcs`, `abfss`) are "
        "included. With an empty list, nothing is copied from object stores.",
    )

    built_in_policies: ClassVar[Sequence[str]] = OF_ANY_SITE
    """The built-in policies that its table can name."""

    policy: str = Field(
        GREEDY,
        description="The [policy](placement.md#policies) that places jobs on the locations of the site: `greedy`, "
        "`priced`, `first_come`, `data_locality`, or a policy of a plugin.",
    )
    locality_fallback: Literal["random", "cheapest"] = Field(
        "random",
        description="With `data_locality`: where a job goes if no location that holds its inputs has room.",
    )
    locality_wait: DurationOrZero = Field(
        0,
        description="With `data_locality`: how long a job waits for room at a location that holds its inputs.",
    )
    placement_interval: DurationOrZero | None = Field(
        None,
        description="How often Lading tries again to place jobs that found no room here. It also tries whenever a job "
        "finishes. With 0, it tries only then. Default: once a second.",
    )

    attempts: Annotated[AttemptSchedule, PlainValidator(AttemptSchedule.parse)] | None = Field(
        None,
        description="The hint `attempts` of [gangs](gangs.md) that do not set it: a number or a table. Default: "
        '`{pauses = ["15m", "15m", "30m", "1h"], count = 5, timeout = "10m"}`. If a gang can run at '
        "several sites, the first one that has this key decides.",
    )

    @field_validator("stage_schemes")
    @classmethod
    def _of_object_stores(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(map(checked_scheme, value)))

    @model_validator(mode="after")
    def _of_its_policy(self) -> SiteConfig:
        given = sorted(self.model_fields_set & {"locality_fallback", "locality_wait"})
        if given and self.policy != DATA_LOCALITY:
            raise ValueError(f"{' and '.join(given)} cannot be used without policy = '{DATA_LOCALITY}'")
        return self

    @property
    def admission(self) -> Admission:
        return Admission(self.allowed_dags, self.allowed_teams)

    @property
    def needs_planning(self) -> str | None:
        """The setting that needs the packages of the extra ``planning``, as it is written; None if there is none."""
        return f'policy = "{PRICED}"' if self.policy == PRICED else None

    @property
    def limits(self) -> dict[str, str]:
        """The limits in the table that can make jobs wait, as text by option."""
        return {}

    @property
    def most_preemptions(self) -> int | None:
        """The number of preemptions after which a job gets on-demand machines; None: never, or preemption is not
        possible."""
        return None

    def cpu_hour(self, capacity: Resources) -> float | None:
        """Return what an hour of one CPU costs at a location of this capacity, USD; None: unknown."""
        return None


class EnforcingConfig(SiteConfig):
    """The limits of jobs that declare none themselves."""

    memory_limit: Memory | None = Field(
        None,
        description=(
            "Memory limit of jobs that declare none. A job that exceeds it is killed. If not set, there is no limit."
        ),
    )
    time_limit: Duration | None = Field(
        None,
        description=(
            "Time limit of jobs that declare none. A job that exceeds it is killed. If not set, there is no limit."
        ),
    )
    kill_grace: Duration = Field(10, description="Time between SIGTERM and SIGKILL when a job is killed.")
    scratch: str = Field(
        "",
        description="A folder on the machines of the site. Each running job gets a folder of its own in it, whose path "
        "is in the variables `LADING_SCRATCH` and `TMPDIR`. The path must be absolute, or begin with a "
        "variable that is set on the machines (`$SCRATCH/jobs`). Default: the machine's folder for temporary "
        "files.",
    )
    container: str = Field(
        "",
        description="The [container](containers.md) of tasks that name none: `docker://IMAGE`, "
        "`apptainer:///path/of/image.sif` or `apptainer://IMAGE`. If not set, these tasks run outside "
        "containers.",
    )
    container_python: str = Field(
        "python",
        description="The Python interpreter in container images. It must have Lading and Airflow's Task SDK installed.",
    )
    keep_failed_scratch: DurationOrZero = Field(
        3600,
        description="How long the scratch folder of a failed job is kept, unless another job needs the space. With "
        "0, it is deleted immediately.",
    )

    @field_validator("container")
    @classmethod
    def _is_container(cls, value: str) -> str:
        return parse_container(value) if value else value

    @field_validator("scratch")
    @classmethod
    def _is_folder(cls, value: str) -> str:
        return value if not value or VARIABLE.match(value) else remote_path(value)


class PackedConfig(EnforcingConfig):
    """A site whose node agents reserve room for waiting jobs."""

    patience: Duration = Field(
        PATIENCE,
        description="How long smaller jobs can overtake a waiting job before Lading reserves room for the waiting job. "
        "Jobs with a higher priority can overtake it for five times as long.",
    )


class RemoteConfig(EnforcingConfig):
    """A site on other machines: its folders, and how its jobs reach Airflow's API and their Dags."""

    # Whether other deployments can use the same machines, where each of them needs a folder of its own.
    machines_are_shared: ClassVar[bool] = True

    work_dir: str
    python: str
    max_poll_interval: float
    api: Literal["url", "tunnel"] = Field(
        "url",
        description="How jobs reach Airflow's execution API. `url`: directly. `tunnel`: through the SSH connection.",
    )
    api_url: str | None = Field(
        None,
        description="The URL at which jobs reach Airflow's execution API. With a tunnel: the URL at which the "
        "controller's machine reaches it. Default: `[core] execution_api_server_url`.",
    )
    dags: Literal["shared", "sync"] = Field(
        "shared",
        description="Where jobs read their Dags. `shared`: in the places that Airflow's configuration on their machine "
        "names. `sync`: in `work_dir`; the controller copies a bundle there whenever its content has changed.",
    )
    max_bundle_size: Memory = Field(100, description='With `dags = "sync"`: the maximum total size of a bundle.')

    @property
    def execution_api(self) -> str:
        """The URL of the API that jobs report to, such as Airflow's execution API; empty: they report to none."""
        own = self.deployment.api_url()
        return (self.api_url or own) if own else ""

    def needs_tunnel(self, api: str) -> bool:
        """Check whether jobs reach the API through the SSH connection.

        :param api: its URL; empty: they report to no API
        """
        return self.api == "tunnel" and api != ""

    @field_validator("api_url")
    @classmethod
    def _of_http(cls, value: str | None) -> str | None:
        if value is not None:
            endpoint(value)
        return value

    @field_validator("work_dir", "python")
    @classmethod
    def _is_path(cls, value: str) -> str:
        return remote_path(value)

    @model_validator(mode="after")
    def _has_bundles_to_limit(self) -> RemoteConfig:
        if self.dags != "sync" and "max_bundle_size" in self.model_fields_set:
            raise ValueError("max_bundle_size cannot be used without dags = 'sync'")
        return self

    @property
    @abstractmethod
    def min_poll_interval(self) -> float:
        """Seconds between two polls while jobs change; ``max_poll_interval`` applies while nothing happens."""


def sites_accepting_untargeted(configs: Mapping[str, SiteConfig], is_implicit: bool = False) -> frozenset[str]:
    """Return the sites that accept tasks which name no site: those with ``accept_untargeted``, and the first site
    unless it has ``accept_untargeted = false``.

    :param is_implicit: whether the first site is this machine without a table; it yields to a site that accepts such
        tasks explicitly
    """
    said = {name: config.accept_untargeted for name, config in configs.items()}
    if not (is_implicit and True in said.values()):
        # If the first table has several accounts, all of them.
        first = next(iter(map(declared_name, said)), "")
        said |= {name: takes is not False for name, takes in said.items() if declared_name(name) == first}
    return frozenset(name for name, takes in said.items() if takes)
