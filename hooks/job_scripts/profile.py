"""The profile of a site for job scripts: its batch system, how that is configured, and default properties of jobs.

It is a TOML document of its own, or part of the site's table in the sites file::

    kind = "slurm"
    queue = "batch"                         # a common resource: the default of every job

    [memory]                                # any field of lading.hooks.batch.system.Profile
    per = "cpu"

    [resources]                             # the scheduler's own directives; also takes common resources
    account = "astro"

    [attributes]                            # placeholders, shell, prologue, epilogue
    scratch = "/scratch/astro"
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, ValidationError

from lading.hooks.batch.directives import COMMON_RESOURCES
from lading.hooks.batch.site_config import BatchSiteConfig, SiteRules
from lading.hooks.batch.system import Profile
from lading.hooks.files import safe_files
from lading.hooks.files.table_model import Texts, describe_fault, describe_former_key, directive_value, remote_path
from lading.hooks.job_scripts.properties import JobProperties, PropertyError
from lading.scheduling.text import toml
from lading.scheduling.text.nearest import listed
from lading.scheduling.text.printable import shortened

KEYS = ("kind", "resources", "attributes")


class ProfileError(ValueError):
    """A profile is not valid. The message names the file, the key, its value and what is valid."""


@dataclass(frozen=True, slots=True)
class SiteProfile:
    """The properties of a site that matter to job scripts.

    :param kind: the name of its batch system; None: the profile does not say
    :param profile: how it differs from other sites with that batch system
    :param properties: defaults of jobs, which an INI file or the call can override
    """

    kind: str | None = None
    profile: Profile = field(default_factory=Profile)
    properties: JobProperties = field(default_factory=JobProperties)

    @classmethod
    def of_table(cls, table: Mapping[str, Any], where: str, *, others: bool = False) -> SiteProfile:
        """Read the profile from a table.

        :param where: the file and the table, for messages
        :param others: whether the table may have keys of other readers, which are ignored
        :raises ProfileError: a key is unknown, or a value is not valid
        """
        if (
            isinstance(table.get("nodes"), str)
            and table["nodes"] != "ignore"
            and not table["nodes"].strip().isdecimal()
        ):
            raise ProfileError(f"{where}: nodes = {table['nodes']!r} is not valid; valid: a number or 'ignore'")
        fields = {key: value for key, value in table.items() if key in Profile.model_fields}
        if fields.get("nodes", "ignore") != "ignore":
            del fields["nodes"]  # a number is the default of jobs that set none
        common = {key: value for key, value in table.items() if key in COMMON_RESOURCES and key not in fields}
        unknown = sorted(table.keys() - {*fields, *common, *KEYS})
        if unknown and not others:
            known = listed("the keys are", unknown[0], dict.fromkeys((*KEYS, *Profile.model_fields, *COMMON_RESOURCES)))
            raise ProfileError(f"{where}: {shortened(unknown[0])} is unknown{known}")
        kind = table.get("kind")
        if kind is not None and not isinstance(kind, str):
            raise ProfileError(f"{where}: kind = {shortened(kind)} is not text")
        resources, attributes = (_subtable(table, key, where) for key in KEYS[1:])
        twice = sorted(common.keys() & resources.keys())
        if twice:
            raise ProfileError(f"{where}: {twice[0]} is set both at the top level and in [resources]; keep one")
        try:
            return cls(
                kind, Profile(**fields), JobProperties.of_sections((common | resources).items(), attributes.items())
            )
        except ValidationError as error:
            raise ProfileError(f"{where}: {'; '.join(map(describe_fault, error.errors()))}") from None
        except PropertyError as error:
            raise ProfileError(f"{where}: {error}") from None


class SiteOptions(BatchSiteConfig):
    """The settings for runs in a site's table of the sites file; the names are those of its keys.

    :param work_dir: the folder that login node and compute nodes share; absolute, or below the home as ``~/...``
    """

    work_dir: Annotated[str, AfterValidator(partial(remote_path, below_home=True))] = "~/lading"
    allowed_dags: Texts | None = None
    allowed_teams: Texts | None = None

    @classmethod
    def of_table(cls, table: Mapping[str, Any], where: str) -> SiteOptions:
        """Read the options from a table; keys of other readers are ignored.

        :param where: the file and the table, for messages
        :raises ProfileError: a value is not valid, or a key has been renamed
        """
        if former := [text for key in table if (text := describe_former_key(key)) is not None]:
            raise ProfileError(f"{where}: {'; '.join(former)}")
        try:
            return cls(**{name: table[name] for name in cls.model_fields if name in table})
        except ValidationError as error:
            raise ProfileError(f"{where}: {'; '.join(map(describe_fault, error.errors()))}") from None


# The keys of a table for connecting to the site and polling it.
OPTIONS = tuple(name for name in SiteOptions.model_fields if name not in SiteRules.__slots__)


def parse_profile(text: str, where: str) -> SiteProfile:
    """Read the profile from the text of a TOML document.

    :param where: the name of the file, for messages
    :raises ProfileError: it is not valid TOML, has an unknown key, or a value is not valid
    """
    try:
        return SiteProfile.of_table(toml.parse(text), where)
    except toml.TomlError as error:
        raise ProfileError(f"{where} is not valid TOML: {error}") from None


def read_profile(path: Path) -> SiteProfile:
    """Read the profile from a TOML file.

    :raises ProfileError: it cannot be read, or is not valid
    """
    try:
        return parse_profile(safe_files.read_text(path), str(path))
    except safe_files.FileError as error:
        raise ProfileError(f"{path} {error}") from None


def _subtable(table: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    value = table.get(key, {})
    if not isinstance(value, dict):
        raise ProfileError(f"{where}: {key} = {shortened(value)} is not a table; write [{key}] and a line for each")
    for name, setting in value.items():
        if not isinstance(setting, str | int | float | bool):
            raise ProfileError(f"{where}: {key}.{name} = {shortened(setting)} is not text, a number or a boolean")
        if key == "resources":
            _check_directive(setting, f"{where}: {key}.{name}")
    return value


def _check_directive(value: Any, what: str) -> None:
    try:
        directive_value(value)
    except ValueError as error:
        raise ProfileError(f"{what} = {shortened(value)}: {error}") from None
