"""The ``[lading]`` section of Airflow's configuration, read and validated in one place."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal, Protocol

from lading.hooks.files import host
from lading.hooks.files.addresses import scheme_of
from lading.hooks.files.sites_file import LOCAL, SitesError, read_sites
from lading.scheduling.accounting.share_table import HALF_LIFE
from lading.scheduling.hints.hints import Hints
from lading.scheduling.hints.retries import Factors
from lading.scheduling.model.resources import Resources, cpus_of_one
from lading.scheduling.sizing.auto import Choices, choices
from lading.scheduling.text.nearest import nearest, nearest_first
from lading.scheduling.text.printable import shortened
from lading.scheduling.text.units import UnitError, parse_count, parse_memory, parse_time

SECTION = "lading"

# With ``default_cpus = auto``, a task without hints gets at most DEFAULT_CPUS, depending on the machine.
AUTO = "auto"
DEFAULT_CPUS = 0.25
# ``sizing = hints``: tasks without hints are packed by the defaults alone.
HINTS = "hints"

# ``order = critical_path``: jobs of one priority are ordered by the longest remaining path of their run.
CRITICAL_PATH = "critical_path"

# The options that a team can override: its tasks' default requests, and what their retries get. All others concern the
# controller, which is shared by all teams.
OF_TEAMS = (
    "default_cpus",
    "default_memory",
    "default_disk",
    "retry_memory_factor",
    "retry_time_factor",
    "infrastructure_retries",
)

# Declared in the provider info; the fallback if Airflow has not loaded that, as on a machine that only runs tasks.
DEFAULTS: dict[str, str | None] = {
    "sites_file": None,
    "state_folder": "{AIRFLOW_HOME}/lading",
    "start_controller": "True",
    "default_cpus": "auto",
    "default_memory": "512 MiB",
    "default_disk": "0",
    "on_shutdown": "cancel",
    "shutdown_timeout": "30",
    "job_retention_days": "30",
    "retry_memory_factor": "2",
    "retry_time_factor": "2",
    "infrastructure_retries": "3",
    "input_roots": None,
    "sizing": AUTO,
    "order": "priority",
    "fair": "True",
    "share_half_life": "1d",
}


class Configuration(Protocol):
    """The part of Airflow's ``conf`` that is needed here."""

    def get(self, section: str, key: str, *, fallback: Any) -> Any: ...


class TeamConfiguration:
    """The options for a team: those of :data:`OF_TEAMS` that it sets itself, and the common values of all others.

    Airflow's own look-up for a team would fall back from the team's value to the option's default, ignoring the value
    set for all teams.

    :param conf: Airflow's configuration
    :param own: Airflow's configuration of this team, an executor's ``self.conf``; None: ``conf`` with ``team_name``
    """

    def __init__(self, team: str, conf: Any, own: Configuration | None = None) -> None:
        self.team, self.conf, self.own = team, conf, own

    def get(self, section: str, key: str, *, fallback: Any) -> Any:
        if section != SECTION or key not in OF_TEAMS or not self.sets(key):
            return self.conf.get(section, key, fallback=fallback)
        if self.own is not None:
            return self.own.get(section, key, fallback=fallback)
        return self.conf.get(section, key, fallback=fallback, team_name=self.team)

    def sets(self, key: str) -> bool:
        """Return whether the team sets an option in the environment or in its section of ``airflow.cfg``."""
        return team_variable(self.team, key) in os.environ or (
            self.conf.get(f"{self.team}={SECTION}", key, fallback=None) is not None
        )


def team_variable(team: str, key: str) -> str:
    """Return Airflow's name of the environment variable for a team's option."""
    return f"AIRFLOW__{team.upper()}___{SECTION.upper()}__{key.upper()}"


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of ``[lading]``.

    :param sites_file: the TOML file that describes the sites; None: one site, this machine
    :param state_folder: where Lading keeps its files on this machine
    :param default_resources: the request of a task without hints
    :param starts_controller: whether a scheduler starts a controller if none runs
    :param on_shutdown: what happens to running jobs when Airflow stops cleanly
    :param shutdown_seconds: the time limit for stopping
    :param job_retention_days: how long ended jobs stay in the store
    :param retry_factors: by how much a retry multiplies the request that the previous try exceeded
    :param infrastructure_retries: how many tries of one task instance that the infrastructure failed are given back
    :param input_roots: folders and prefixes of object store addresses; only below these are the sizes of inputs looked
        up and files staged; empty: everywhere
    :param shares_machine: whether the default cpus are so small that as many tasks as Airflow allows share this
        machine, which is the only one for tasks without hints
    :param packs_by_use: whether tasks without hints for memory or cpus are packed by what earlier tries have used
    :param order: of jobs with one priority if nothing is bought: by arrival, or by the longest remaining path of their
        run
    :param fair: whether shares take turns; without a table of shares, Dags of one priority do
    :param share_half_life: seconds after which a share's usage counts half
    """

    sites_file: Path | None
    state_folder: Path
    default_resources: Resources
    on_shutdown: Literal["leave", "cancel"]
    shutdown_seconds: int
    job_retention_days: int
    retry_factors: Factors = field(default_factory=Factors)
    infrastructure_retries: int = 3
    input_roots: tuple[str, ...] = ()
    starts_controller: bool = True
    shares_machine: bool = False
    packs_by_use: bool = True
    order: Literal["priority", "critical_path"] = "priority"
    fair: bool = True
    share_half_life: float = HALF_LIFE

    @classmethod
    def load(cls, conf: Configuration | None = None) -> Settings:
        """Read the options from ``conf``, by default Airflow's configuration.

        :raises AirflowConfigException: an option has an invalid value
        """
        # Imported here, because Airflow requests the defaults while it is still importing its configuration.
        from airflow.configuration import conf as airflow_conf

        read, sites_file = partial(_read, conf or airflow_conf), _read(conf or airflow_conf, "sites_file", _path)
        here = 0.0
        if (default_cpus := read("default_cpus", _cpus)) is None:
            parallelism, here = (conf or airflow_conf).get("core", "parallelism", fallback="32"), cpus_here(sites_file)
            default_cpus = cpus_of_one(here, int(parallelism), DEFAULT_CPUS)
        return cls(
            sites_file=sites_file,
            state_folder=read("state_folder", _path),
            default_resources=Resources(
                cpus=default_cpus,
                memory=read("default_memory", parse_memory),
                disk=read("default_disk", partial(parse_memory, zero=True)),
            ),
            on_shutdown=read("on_shutdown", _on_shutdown),
            shutdown_seconds=read("shutdown_timeout", parse_time),
            job_retention_days=read("job_retention_days", _days),
            retry_factors=Factors(memory=read("retry_memory_factor", _factor), time=read("retry_time_factor", _factor)),
            infrastructure_retries=read("infrastructure_retries", _tries),
            input_roots=read("input_roots", _roots) or (),
            starts_controller=read("start_controller", _switch),
            shares_machine=here > 0 and default_cpus < DEFAULT_CPUS,
            packs_by_use=read("sizing", _sizing),
            order=read("order", _order),
            fair=read("fair", _switch),
            share_half_life=read("share_half_life", parse_time),
        )

    @classmethod
    def of_team(cls, team: str, own: Configuration | None = None) -> Settings:
        """Read the options for a team (see :class:`TeamConfiguration`).

        :raises AirflowConfigException: an option has an invalid value, or the team sets an option that only exists for
            all teams
        """
        from airflow.configuration import conf as airflow_conf
        from airflow.exceptions import AirflowConfigException

        for key in DEFAULTS.keys() - {*OF_TEAMS}:
            if TeamConfiguration(team, airflow_conf, own).sets(key):
                raise AirflowConfigException(
                    f"{team_variable(team, key)}: a team has no {key} of its own, because one controller "
                    f"works for all teams; valid: {', '.join(OF_TEAMS)}"
                )
        return cls.load(TeamConfiguration(team, airflow_conf, own))

    def for_team(self, team: str | None) -> Settings:
        """Return these options for the jobs of a team's executor, which has validated the team's own ones at its start.

        :param team: None: the executor is for all teams
        """
        return self if team is None else replace(self, **_of_team(team))

    def choices(self, hints: Hints) -> Choices:
        """Return the amounts of a task that its author leaves to Lading."""
        is_auto, shares = self.packs_by_use, self.shares_machine
        return choices(hints, self.default_resources, is_auto=is_auto, shares_machine=shares)

    @property
    def controller_log(self) -> Path:
        """The log file of a controller that an executor has started."""
        return self.state_folder / "controller.log"

    @property
    def controller_bell(self) -> Path:
        """The FIFO that wakes the controller on this machine."""
        return self.state_folder / "controller.bell"

    @property
    def controller_mark(self) -> Path:
        """The file that names the job for which the controller on this machine is calling a plugin."""
        return self.state_folder / "controller.mark"

    @property
    def stopped(self) -> Path:
        """A file that exists from the clean stop of this machine's last scheduler until one starts."""
        return self.state_folder / "stopped"

    @property
    def schedulers_folder(self) -> Path:
        """The folder of files by which schedulers show each other that they are alive."""
        return self.state_folder / "schedulers"

    @property
    def spool_folder(self) -> Path:
        """The folder in which each site keeps its state, in a folder with its name."""
        return self.state_folder / "spool"

    @property
    def published_sites(self) -> Path:
        """The file in which the controller publishes the sites' locations for the check at Dag parse."""
        return self.state_folder / "sites.json"


def unknown_options() -> Iterator[str]:
    """Yield a message for each misspelt option or section in Airflow's environment and ``airflow.cfg``."""
    from airflow.configuration import conf

    variables = [name for name in os.environ if name.startswith("AIRFLOW__")]
    written = [(name, *_section_and_key(name)) for name in variables]
    written += [
        (f"[{section}] {key} in airflow.cfg", section, key) for section in conf.sections() for key in conf[section]
    ]
    for where, section, key in written:
        _, is_of_team, own = section.rpartition("=")
        valid = OF_TEAMS if is_of_team else tuple(DEFAULTS)
        if own == SECTION and key not in valid:
            what = "option of a team" if is_of_team else "option"
            yield f"{where}: there is no such {what}; valid: {nearest_first(key, valid)}"
        elif own not in conf.configuration_description and nearest(own, [SECTION], cutoff=0.8):
            yield f"{where}: there is no section [{own}]; did you mean [{SECTION}]?"


def _section_and_key(variable: str) -> tuple[str, str]:
    """Return the section, as in ``airflow.cfg`` (``team=lading``), and the key that an environment variable sets."""
    first, _, rest = variable.removeprefix("AIRFLOW__").lower().partition("__")
    if rest.startswith("_"):
        second, _, key = rest[1:].partition("__")
        return f"{first}={second}", key
    return first, rest


@lru_cache(maxsize=256)
def _of_team(team: str) -> Mapping[str, Any]:
    found = Settings.of_team(team)
    return {name: getattr(found, name) for name in ("default_resources", "retry_factors", "infrastructure_retries")}


def cpus_here(sites_file: Path | None) -> float:
    """Return the cpus of this machine for tasks if no other site takes tasks that name no site, else 0.

    An invalid sites file counts as 0 here; it is reported when the sites are created.
    """
    table: Mapping[str, Any] = {}
    if sites_file is not None:
        try:
            tables = [each for each in read_sites(sites_file).values() if isinstance(each, dict)]
        except SitesError:
            return 0.0
        here = [each for each in tables if each.get("kind") == LOCAL]
        others = [each for each in tables if each.get("kind") != LOCAL]
        if any(each.get("accept_untargeted") for each in others) or (
            here and (len(here) > 1 or here[0] is not tables[0])
        ):
            return 0.0
        table = here[0] if here else {}
    if table.get("enabled") is False or table.get("accept_untargeted") is False:
        return 0.0
    try:
        given, kept = table.get("cpus"), table.get("reserve_cpus", 0)
        return parse_count(given) if given is not None else host.usable_cpus() - parse_count(kept, zero=True)
    except UnitError:
        return 0.0


def _cpus(text: str) -> float | None:
    """Parse a number of cpus; None: ``auto``."""
    return None if text == AUTO else parse_count(text)


def _read(conf: Configuration, option: str, parse: Callable[[str], Any]) -> Any:
    """Read and parse an option; None: neither the user nor the defaults set it."""
    from airflow.configuration import AIRFLOW_HOME
    from airflow.exceptions import AirflowConfigException

    default = DEFAULTS[option]
    fallback = default and default.format(AIRFLOW_HOME=AIRFLOW_HOME)
    text = str(conf.get(SECTION, option, fallback=fallback) or "").strip()
    if not text and default is None:
        return None
    try:
        return parse(text)
    except ValueError as error:
        raise AirflowConfigException(f"[{SECTION}] {option}: {error}") from error


def _path(text: str) -> Path:
    path = _expanded(Path(text))
    if not path.is_absolute():
        # A relative path would mean different files, as Airflow's processes do not share a working directory.
        raise ValueError(f"{shortened(text)} is not an absolute path; valid: a path that starts with / or ~")
    return path


def _expanded(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError as error:  # ~name of an unknown user
        raise ValueError(
            f"{shortened(str(path))} names the home folder of an unknown user; valid: a path that starts with / or ~/"
        ) from error


def _roots(text: str) -> tuple[str, ...]:
    roots = tuple(root.strip() for root in text.split(","))
    for root in roots:
        if not root.startswith("/") and (scheme_of(root) is None or root.endswith("://")):
            raise ValueError(
                f"{shortened(root)} is not a folder for inputs; valid: absolute paths and addresses such as "
                "s3://bucket/folder, separated by commas"
            )
    return tuple(root if root.startswith("/") else f"{scheme_of(root)}://{root.partition('://')[2]}" for root in roots)


def _switch(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{shortened(text)} is not a boolean; valid: True, False")
    return text.lower() == "true"


def _on_shutdown(text: str) -> str:
    if text not in ("leave", "cancel"):
        raise ValueError(f"{shortened(text)} is not a way to stop; valid: leave, cancel")
    return text


def _sizing(text: str) -> bool:
    if text not in (AUTO, HINTS):
        raise ValueError(f"{shortened(text)} is not a way to size tasks; valid: {AUTO}, {HINTS}")
    return text == AUTO


def _order(text: str) -> str:
    if text not in ("priority", CRITICAL_PATH):
        raise ValueError(f"{shortened(text)} is not an order of jobs; valid: priority, {CRITICAL_PATH}")
    return text


def _factor(text: str) -> float:
    try:
        factor = parse_count(text)
    except ValueError:
        factor = 0.0
    if not 1 <= factor <= 100:
        raise ValueError(f"{shortened(text)} is not a factor; valid: a number from 1 (same request again) to 100")
    return factor


def _tries(text: str) -> int:
    if not text.isdecimal() or len(text) > 2:
        raise ValueError(f"{shortened(text)} is not a number of tries; valid: a whole number from 0 (none) to 99")
    return int(text)


def _days(text: str) -> int:
    if not text.isdecimal() or not 1 <= len(text) <= 5 or int(text) < 1:
        raise ValueError(f"{shortened(text)} is not a number of days; valid: a whole number from 1 to 99999")
    return int(text)
