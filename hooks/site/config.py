"""What every kind of site takes from its table in the sites file."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PlainValidator, StrictBool, field_validator, model_validator

from lading.hooks.api_tunnel.address import endpoint
from lading.hooks.files.addresses import checked_scheme
from lading.hooks.files.table_model import Duration, DurationOrZero, Memory, TableModel, Texts, remote_path
from lading.scheduling.hints.gang_hints import AttemptSchedule
from lading.scheduling.hints.places import parse_container
from lading.scheduling.matching.admission import Admission
from lading.scheduling.placing.policies import DATA_LOCALITY, GREEDY, OF_ANY_SITE, PRICED
from lading.scheduling.resources import Resources
from lading.scheduling.site_names import declared_name

# The object stores of the three providers that Airflow reads by itself; what reaches any address, such as http or ftp,
# would send requests of a Dag's author from the controller's place in the network.
STAGE_SCHEMES = ("s3", "gs", "abfs")
# A path that begins with a variable of the machine's environment.
VARIABLE = re.compile(r"\$(\w+|\{\w+\})(/|$)")


class SiteConfig(TableModel):
    """What every kind of site takes from its table in the sites file."""

    kind: str
    accept_untargeted: StrictBool | None = Field(
        None,
        description="Whether tasks that name no site may run here; without it those do at the first site of the file "
        "alone.",
    )
    burst_after: DurationOrZero = Field(
        0,
        description="How long a task that names no site, and finds no room here, waits before it may go to the next "
        "site that takes such tasks.",
    )
    allowed_dags: Texts | None = Field(
        None,
        description="A list of patterns of Dag ids (`*`, `?`, `[...]`): only these may run here; without it every Dag.",
    )

    allowed_teams: Texts | None = Field(
        None,
        description="A list of the names of Airflow's [teams](teams.md), or patterns of them: only their Dags may run "
        "here; without it every Dag, also those of no team.",
    )

    stage_schemes: Texts = Field(
        STAGE_SCHEMES,
        description="A list of the schemes of object stores from which the controller brings files that tasks "
        "[stage](files.md#send-files-to-a-task): the same store under another name (`s3a`, `gcs`, `abfss`) counts as "
        "well; an empty list: none.",
    )

    built_in_policies: ClassVar[Sequence[str]] = OF_ANY_SITE
    """Those of Lading's own policies that it may have."""

    policy: str = Field(
        GREEDY,
        description="By which [policy](placement.md#policies) jobs get to its locations: `greedy`, `priced`, "
        "`first_come`, `data_locality`, or that of a plugin.",
    )
    locality_fallback: Literal["random", "cheapest"] = Field(
        "random", description="With `data_locality`: where a job goes whose inputs are nowhere that has room."
    )
    locality_wait: DurationOrZero = Field(
        0,
        description="With `data_locality`: how long a job waits for room where its inputs are.",
    )
    placement_interval: DurationOrZero | None = Field(
        None,
        description="How often a place is sought for jobs that have found none here, beside each end of a job; 0: only "
        "then; without it once a second.",
    )

    attempts: Annotated[AttemptSchedule, PlainValidator(AttemptSchedule.parse)] | None = Field(
        None,
        description="The hint `attempts` of [gangs](gangs.md) without one: a number, or a table; the default is "
        '`{pauses = ["15m", "15m", "30m", "1h"], count = 5, timeout = "10m"}`. The first possible site with this key '
        "counts.",
    )

    @field_validator("stage_schemes")
    @classmethod
    def _of_object_stores(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(map(checked_scheme, value)))

    @model_validator(mode="after")
    def _of_its_policy(self) -> SiteConfig:
        given = sorted(self.model_fields_set & {"locality_fallback", "locality_wait"})
        if given and self.policy != DATA_LOCALITY:
            raise ValueError(f"{' and '.join(given)} mean nothing without policy = '{DATA_LOCALITY}'")
        return self

    @property
    def admission(self) -> Admission:
        """Whose jobs it takes."""
        return Admission(self.allowed_dags, self.allowed_teams)

    @property
    def needs_planning(self) -> str | None:
        """What of the table needs the packages of the extra ``planning``, as it is written; None: nothing does."""
        return f'policy = "{PRICED}"' if self.policy == PRICED else None

    @property
    def limits(self) -> dict[str, str]:
        """What the table limits that may make jobs wait, by option, as text."""
        return {}

    @property
    def most_preemptions(self) -> int | None:
        """After how many of them a job goes to machines on demand; None: it does not, as there may be none."""
        return None

    def cpu_hour(self, capacity: Resources) -> float | None:
        """What an hour of one cpu costs of a location that has so much, USD; None: that is not known."""
        return None


class EnforcingConfig(SiteConfig):
    """The limits of jobs whose author gave none."""

    memory_limit: Memory | None = Field(
        None, description="Memory above which a job whose author gave none is ended; without it there is no limit."
    )
    time_limit: Duration | None = Field(
        None, description="Time after which a job whose author gave none is ended; without it there is no limit."
    )
    kill_grace: Duration = Field(10, description="Time between SIGTERM and SIGKILL when a job is ended.")
    scratch: str = Field(
        "",
        description="A folder on its machines in which each job has one of its own while it runs, as `LADING_SCRATCH` "
        "and `TMPDIR`: absolute, or beginning with a variable that is set there (`$SCRATCH/jobs`); without it their "
        "folder for temporary files.",
    )
    container: str = Field(
        "",
        description="The [container](containers.md) of tasks that name none: `docker://IMAGE`, "
        "`apptainer:///path/of/image.sif` or `apptainer://IMAGE`; without it they run in none.",
    )
    container_python: str = Field(
        "python", description="The Python in the images of containers that has Lading and Airflow's Task SDK."
    )
    keep_failed_scratch: DurationOrZero = Field(
        3600,
        description="How long the scratch folder of a failed job is kept, unless another job needs its room; 0: not at "
        "all.",
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
    """A site whose node agents hold room for jobs that wait."""

    patience: Duration = Field(
        60,
        description="How long smaller jobs can overtake a waiting job before room is kept free for it; jobs of higher "
        "priority can for five times as long.",
    )


class RemoteConfig(EnforcingConfig):
    """A site on other machines: what is there for jobs, and how they reach Airflow's API and their Dags."""

    work_dir: str
    python: str
    max_poll_interval: float
    api: Literal["url", "tunnel"] = Field(
        "url",
        description="How jobs reach Airflow's execution API: `url`, directly; `tunnel`, through the SSH connection.",
    )
    api_url: str | None = Field(
        None,
        description="Where jobs, with a tunnel the controller's machine, reach Airflow's execution API; without it "
        "`[core] execution_api_server_url`.",
    )
    dags: Literal["shared", "sync"] = Field(
        "shared",
        description="Where jobs read their Dags: `shared`, where Airflow's configuration on their machine says; "
        "`sync`, in `work_dir`, where the bundle of the controller's machine is brought whenever its content is new.",
    )
    max_bundle_size: Memory = Field(100, description="With `sync`: how much a bundle may have in all.")

    def needs_tunnel(self, api: str) -> bool:
        """Whether jobs reach the API through the SSH connection.

        :param api: its URL; empty: they report to none
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
            raise ValueError("max_bundle_size means nothing without dags = 'sync'")
        return self

    @property
    @abstractmethod
    def min_poll_interval(self) -> float:
        """Seconds between two questions while jobs change; ``max_poll_interval`` is while nothing happens."""


def sites_accepting_untargeted(configs: Mapping[str, SiteConfig], is_implicit: bool = False) -> frozenset[str]:
    """The sites that take tasks which name none: those with ``accept_untargeted``, and the first one unless it has
    ``accept_untargeted = false``.

    :param is_implicit: whether the first is this machine without a table; it yields to a site that is declared so
    """
    said = {name: config.accept_untargeted for name, config in configs.items()}
    if not (is_implicit and True in said.values()):
        # All accounts of the first table, where it has several.
        first = next(iter(map(declared_name, said)), "")
        said |= {name: takes is not False for name, takes in said.items() if declared_name(name) == first}
    return frozenset(name for name, takes in said.items() if takes)
