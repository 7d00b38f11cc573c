"""What a job script needs to know of a site: its scheduler, what is special there, and the properties jobs have there.

It is a TOML document of its own, or stands in the table of the site in the sites file::

    kind = "slurm"
    queue = "batch"                         # a common resource that every job has unless it says something else

    [memory]                                # any field of lading.hooks.batch.system.Profile
    per = "cpu"

    [resources]                             # the scheduler's own directives; common resources may stand here, too
    account = "astro"

    [attributes]                            # placeholders, shell, prologue, epilogue
    scratch = "/scratch/astro"
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lading.hooks.batch.directives import COMMON_RESOURCES
from lading.hooks.batch.system import Profile
from lading.hooks.files import text_file
from lading.hooks.files.table_model import directive_value
from lading.hooks.job_scripts.properties import JobProperties, PropertyError
from lading.scheduling import toml
from lading.scheduling.printable import cut, printable, shortened

KEYS = ("kind", "resources", "attributes")


class ProfileError(ValueError):
    """A profile is not valid. The message names the file, the key, its value and what is valid."""


@dataclass(frozen=True, slots=True)
class SiteProfile:
    """A site as job scripts see it.

    :param kind: the name of its batch system; None: the profile does not say
    :param profile: how it differs from others with that batch system
    :param properties: what jobs have unless an INI file or the call says something else
    """

    kind: str | None = None
    profile: Profile = field(default_factory=Profile)
    properties: JobProperties = field(default_factory=JobProperties)

    @classmethod
    def of_table(cls, table: Mapping[str, Any], where: str, *, others: bool = False) -> SiteProfile:
        """The profile that a table describes.

        :param where: the file and the table, for messages
        :param others: whether the table has keys that are not the profile's, which are left alone
        :raises ProfileError: a key is unknown, or a value is not valid
        """
        if (
            isinstance(table.get("nodes"), str)
            and table["nodes"] != "ignore"
            and not table["nodes"].strip().isdecimal()
        ):
            raise ProfileError(f"{where}: nodes = {table['nodes']!r} is not valid; a number or 'ignore' is")
        fields = {key: value for key, value in table.items() if key in Profile.model_fields}
        if fields.get("nodes", "ignore") != "ignore":
            del fields["nodes"]  # it is what jobs have unless they say something else
        common = {key: value for key, value in table.items() if key in COMMON_RESOURCES and key not in fields}
        unknown = sorted(table.keys() - {*fields, *common, *KEYS})
        if unknown and not others:
            known = ", ".join(dict.fromkeys((*KEYS, *Profile.model_fields, *COMMON_RESOURCES)))
            raise ProfileError(f"{where}: {shortened(unknown[0])} is unknown; the keys are: {known}")
        kind = table.get("kind")
        if kind is not None and not isinstance(kind, str):
            raise ProfileError(f"{where}: kind = {shortened(kind)} is no text")
        resources, attributes = (_subtable(table, key, where) for key in KEYS[1:])
        twice = sorted(common.keys() & resources.keys())
        if twice:
            raise ProfileError(f"{where}: {twice[0]} stands above and in [resources]; keep one")
        try:
            return cls(
                kind, Profile(**fields), JobProperties.of_sections((common | resources).items(), attributes.items())
            )
        except ValidationError as error:
            raise ProfileError(f"{where}: {'; '.join(map(_words, error.errors()))}") from None
        except PropertyError as error:
            raise ProfileError(f"{where}: {error}") from None


def parse_profile(text: str, where: str) -> SiteProfile:
    """The profile in a TOML document.

    :param where: the name of the file, for messages
    :raises ProfileError: it is no TOML, has an unknown key, or a value is not valid
    """
    try:
        return SiteProfile.of_table(toml.parse(text), where)
    except toml.TomlError as error:
        raise ProfileError(f"{where} is no valid TOML: {error}") from None


def read_profile(path: Path) -> SiteProfile:
    """The profile in a TOML file.

    :raises ProfileError: it cannot be read, or is not valid
    """
    try:
        return parse_profile(text_file.read(path), str(path))
    except text_file.FileError as error:
        raise ProfileError(f"{path} {error}") from None


def _subtable(table: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    value = table.get(key, {})
    if not isinstance(value, dict):
        raise ProfileError(f"{where}: {key} = {shortened(value)} is no table; write [{key}] and a line for each")
    for name, each in value.items():
        if not isinstance(each, str | int | float | bool):
            raise ProfileError(f"{where}: {key}.{name} = {shortened(each)} is no text, number or boolean")
        if key == "resources":
            _check_directive(each, f"{where}: {key}.{name}")
    return value


def _check_directive(value: Any, what: str) -> None:
    try:
        directive_value(value)
    except ValueError as error:
        raise ProfileError(f"{what} = {shortened(value)}: {error}") from None


def _words(fault: Any) -> str:
    place = cut(printable(".".join(str(part) for part in fault["loc"])))
    if fault["type"] == "extra_forbidden":
        return f"'{place}' is unknown"
    said = fault["msg"].removeprefix("Value error, ")
    return f"{place} = {shortened(fault['input'])}: {said}" if place else said
