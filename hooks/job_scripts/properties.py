"""The properties of a job script: its resources, and its attributes, which are all other properties.

They come in layers, each overriding the one before: the profile of the site, an INI file, the call. The INI files are
those of clusterjob (https://clusterjob.readthedocs.io, "INI files"): ``[Attributes]`` and ``[Resources]``, without
interpolation; but the case of keys is kept, because ``-a`` and ``-A`` are different directives.
"""

from __future__ import annotations

import configparser
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lading.hooks.batch.directives import ATTRIBUTES, COMMON_RESOURCES, given
from lading.hooks.files import safe_files
from lading.scheduling.text.printable import cut, shortened

# clusterjob's names of batch systems that differ from Lading's.
BACKENDS = {"pbs": "torque"}
# clusterjob's commands for reaching the cluster; here a site has an Airflow connection.
REPLACED = ("remote", "ssh", "scp")
# clusterjob's housekeeping, which has no effect here.
WITHOUT_EFFECT = ("cache_folder", "cache_prefix", "debug_cmds", "max_sleep_interval", "sleep_interval")

_OWN = (*COMMON_RESOURCES, *ATTRIBUTES)

SECTIONS = ("Attributes", "Resources")
_ATTRIBUTE = re.compile(r"[A-Za-z]\w*", re.ASCII)
_RESOURCE = re.compile(r"-{0,2}([A-Za-z][A-Za-z0-9_.-]*)")
_BOOLEANS = {"true": True, "false": False}


class PropertyError(ValueError):
    """A property that is not valid. The message names it, its value and what is valid."""


class JobScriptWarning(UserWarning):
    """Something in a job script or its properties has no effect, or most likely not the intended one."""


@dataclass(frozen=True, slots=True)
class JobProperties:
    """The properties of a job script. A key whose value is None removes what lower layers set.

    :param resources: by the names in ``COMMON_RESOURCES`` or by the scheduler's own; True is a bare flag
    :param attributes: ``shell``, ``prologue`` and so on; all others become placeholders
    """

    resources: Mapping[str, Any] = field(default_factory=dict)
    attributes: Mapping[str, str | None] = field(default_factory=dict)

    @classmethod
    def from_mapping(cls, resources: Mapping[str, Any], attributes: Mapping[str, Any] | None = None) -> JobProperties:
        """Read properties from a call; ``shell``, ``prologue`` and the like may be among the resources.

        :raises PropertyError: a key is not valid, or two keys mean the same
        """
        named = [(key, value) for key, value in resources.items() if key in ATTRIBUTES]
        rest = [(key, value) for key, value in resources.items() if key not in ATTRIBUTES]
        return cls.of_sections(rest, [*named, *(attributes or {}).items()])

    @classmethod
    def of_sections(
        cls, resources: Iterable[tuple[str, Any]], attributes: Iterable[tuple[str, Any]] = ()
    ) -> JobProperties:
        """Read properties from a file, which separates resources from attributes.

        :raises PropertyError: a key is not valid, or two keys mean the same
        """
        return cls(
            _unique((resource_key(key), value) for key, value in resources),
            _unique((attribute_key(key), None if value is None else format_value(value)) for key, value in attributes),
        )

    def over(self, lower: JobProperties) -> JobProperties:
        """Return these properties over a lower layer, which provides those that are missing here."""
        return JobProperties({**lower.resources, **self.resources}, {**lower.attributes, **self.attributes})

    @property
    def backend(self) -> str | None:
        """Lading's name of the batch system; None: not given."""
        name = self.attributes.get("backend")
        return BACKENDS.get(name, name) if name else None

    @property
    def placeholders(self) -> dict[str, str]:
        """The text of every property that has a value. A resource takes precedence over an attribute."""
        attributes = {key: value for key, value in self.attributes.items() if value is not None}
        return attributes | {key: format_value(value) for key, value in self.resources.items() if given(value)}


def format_value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def from_text(key: str, value: str) -> str | bool:
    """Read a resource from a file or a command line: ``true`` and ``false`` of a native directive are booleans."""
    return value if key in (*COMMON_RESOURCES, *ATTRIBUTES) else _BOOLEANS.get(value.lower(), value)


def resource_key(key: str) -> str:
    """Return the name of a resource without the dashes that clusterjob's users write before native ones.

    :raises PropertyError: it is not a valid name, or it is a common one in another case, which is a slip
    """
    match = _RESOURCE.fullmatch(key)
    if match is None:
        raise PropertyError(
            f"resource {shortened(key)} is not a name; valid: one of {', '.join(COMMON_RESOURCES)} or the name of a "
            "directive of the scheduler, a letter, then letters, digits, '-', '_' and '.'"
        )
    return _in_case(match[1], COMMON_RESOURCES)


def likely_property(key: str) -> str | None:
    """Return Lading's property that a native directive's name most likely misspells; None: none.

    >>> likely_property("tim"), likely_property("walltime"), likely_property("account")
    ('time', 'time', None)
    """
    plain = re.sub(r"[-_.]", "", key.lower())
    if len(plain) < 3 or key in _OWN:
        return None
    near = [name for name in _OWN if _is_one_step(plain, name)]
    # A compound with a dash, such as time-min, is a native directive of some scheduler.
    within = [name for name in _OWN if (key.isalpha() and plain.startswith(name)) or plain == f"wall{name}"]
    return next(iter([*near, *within]), None)


def _is_one_step(text: str, name: str) -> bool:
    """Whether the two differ by one inserted, deleted, replaced or transposed letter."""
    if text == name:
        return True
    start = next(at for at in range(len(name) + 1) if text[: at + 1] != name[: at + 1])
    left, right = text[start:], name[start:]
    swapped = left[:2] == right[:2][::-1] and left[2:] == right[2:]
    return swapped or left[1:] == right or left == right[1:] or left[1:] == right[1:]


def attribute_key(key: str) -> str:
    """Check and return the name of an attribute.

    :raises PropertyError: it is not a valid name, or is a known one in another case
    """
    if not _ATTRIBUTE.fullmatch(key):
        raise PropertyError(
            f"attribute {shortened(key)} is not a name: a letter, then letters, digits and '_' are expected"
        )
    return _in_case(key, (*ATTRIBUTES, *REPLACED))


def parse_ini(text: str, where: str) -> JobProperties:
    """Read properties from the text of an INI file; warn about those that have no effect.

    :param where: the name of the file, for messages
    :raises PropertyError: it is not an INI file, or has an unknown section or an invalid key
    """
    # No section is special, so that [DEFAULT] is refused as unknown instead of leaking into the others.
    parser = configparser.ConfigParser(interpolation=None, default_section="")
    parser.optionxform = str  # type: ignore[method-assign,assignment]
    try:
        parser.read_string(text, where)
    except configparser.Error as error:
        raise PropertyError(cut(" ".join(str(error).split()))) from None
    unknown = [section for section in parser.sections() if section not in SECTIONS]
    if unknown or not parser.sections():
        found = f"has a section {cut(f'[{unknown[0]}]')}" if unknown else "has no section"
        raise PropertyError(f"{where} {found}; valid, with these capitals: [Attributes] and [Resources]")
    attributes, resources = (parser.items(name) if parser.has_section(name) else [] for name in SECTIONS)
    try:
        properties = JobProperties.of_sections([(key, from_text(key, value)) for key, value in resources], attributes)
    except PropertyError as error:
        raise PropertyError(f"{where}: {error}") from None
    return _without_replaced(properties, where)


def read_ini(path: Path) -> JobProperties:
    """Read properties from an INI file in UTF-8; warn about those that have no effect.

    :raises PropertyError: it cannot be read or is not valid
    """
    try:
        text = safe_files.read_text(path)
    except safe_files.FileError as error:
        raise PropertyError(f"{path} {error}") from None
    return parse_ini(text, str(path))


def _without_replaced(properties: JobProperties, where: str) -> JobProperties:
    replaced = [key for key in REPLACED if key in properties.attributes]
    idle = [key for key in WITHOUT_EFFECT if key in properties.attributes]
    if replaced:
        _warn(f"{where}: {', '.join(replaced)} ignored: the Airflow connection of the site takes their place")
    if idle:
        _warn(f"{where}: Lading only uses {', '.join(idle)} for placeholders, unlike clusterjob")
    return replace(properties, attributes={k: v for k, v in properties.attributes.items() if k not in REPLACED})


def _warn(message: str) -> None:
    warnings.warn(message, JobScriptWarning, stacklevel=4)


def _unique(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in items:
        if key in result:
            raise PropertyError(
                f"{shortened(key)} is given twice: {shortened(result[key])} and {shortened(value)}; keep one"
            )
        result[key] = value
    return result


def _in_case(key: str, known: Iterable[str]) -> str:
    for name in known:
        if key != name and key.lower() == name:
            raise PropertyError(f"{shortened(key)} is not {name!r}: upper and lower case matter; write {name!r}")
    return key
