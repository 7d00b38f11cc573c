"""Where a task shall run, as authors write it: site, instance type, container, and targets, of which one will do."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lading.scheduling.text.printable import shortened
from lading.scheduling.text.units import UnitError

# A site's name is a folder, a column and a word in messages.
SITE_NAME = re.compile(r"(?!.{65})[A-Za-z0-9][A-Za-z0-9_-]*(?:@[A-Za-z0-9][A-Za-z0-9_.-]*)?")
LONGEST_NAME = 64
# Of a queue, or of a pattern of instance types.
LONGEST_WITHIN = 250
MOST_TARGETS = 32
FILTER_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")

LONGEST_CONTAINER = 500
CONTAINER = re.compile(r"(docker|apptainer)://([A-Za-z0-9/][A-Za-z0-9_.:@/+-]*)")


@dataclass(frozen=True, slots=True)
class Target:
    """A site, or a part of one, as ``hpc/long`` or ``cloud/c7i.*``.

    :param within: of a batch site: the queue; of any other: a pattern of instance types (``*``, ``?``, ``[...]``);
        None: the whole site
    """

    site: str
    within: str | None = None

    @classmethod
    def parse(cls, text: object) -> Target:
        """:raises UnitError: it is none"""
        site, slash, within = text.strip().partition("/") if isinstance(text, str) else ("", "", "")
        good = SITE_NAME.fullmatch(site) and bool(within) == bool(slash)
        if not good or not within.isprintable() or " " in within or len(within) > LONGEST_WITHIN:
            raise UnitError(
                f"{shortened(text)} is not a target; valid: a site, a queue of it, or a pattern of its instance types: "
                '"hpc", "hpc/long", "cloud/c7i.*"'
            )
        return cls(site, within or None)

    def __str__(self) -> str:
        return self.site if self.within is None else f"{self.site}/{self.within}"


def parse_targets(value: object) -> tuple[str, ...]:
    """Targets in the order in which they are tried: a list of texts, or one.

    :raises UnitError: it is something else, or one of them is no target
    """
    written = [value] if isinstance(value, str) else value
    if not isinstance(written, (list, tuple)) or not 0 < len(written) <= MOST_TARGETS:
        raise UnitError(
            f'{shortened(value)} is no list of targets; valid: 1 to {MOST_TARGETS}, such as ["hpc/long", "cloud/c7i.*"]'
        )
    return tuple(dict.fromkeys(str(Target.parse(each)) for each in written))


def parse_filters(value: object) -> tuple[str, ...]:
    """The names of binding filters, which choose among targets, in the order in which they are applied.

    :raises UnitError: it is something else
    """
    written = [value] if isinstance(value, str) else value
    if isinstance(written, (list, tuple)) and all(isinstance(e, str) and FILTER_NAME.fullmatch(e) for e in written):
        return tuple(written)
    raise UnitError(f'{shortened(value)} is no list of binding filters; valid: names such as ["shuffle"]')


def parse_stage(value: object) -> tuple[str, ...]:
    """The names of the inputs whose files are brought to where a task runs.

    :raises UnitError: it is something else
    """
    written = [value] if isinstance(value, str) else value
    if isinstance(written, (list, tuple)) and written and all(isinstance(e, str) and e.isidentifier() for e in written):
        return tuple(dict.fromkeys(written))
    raise UnitError(f'{shortened(value)} is no list of inputs; valid: names of the task\'s inputs such as ["reads"]')


def parse_instance_type(value: object) -> str:
    """The type of machine; Seven Bridges may add its disks behind semicolons, which say nothing about the machine.

    :raises UnitError: it is no name
    """
    name = value.partition(";")[0].strip() if isinstance(value, str) else ""
    if not name or len(name) > LONGEST_NAME or not name.isprintable():
        raise UnitError(
            f"{shortened(value)} is not an instance type; valid: a name of at most {LONGEST_NAME} letters, "
            "such as c7i.2xlarge"
        )
    return name


def parse_site(value: object) -> str:
    """The name of a site.

    :raises UnitError: it cannot be one
    """
    if not isinstance(value, str) or not SITE_NAME.fullmatch(value.strip()):
        raise UnitError(f"{shortened(value)} is not the name of a site, valid: letters, digits, - and _, at most 64")
    return value.strip()


def parse_container(value: object) -> str:
    """An image, with what runs it.

    :raises UnitError: it is something else
    """
    if isinstance(value, str) and len(value) <= LONGEST_CONTAINER and CONTAINER.fullmatch(value):
        return value
    raise UnitError(
        f"{shortened(value)} is no container; valid: docker://IMAGE, apptainer:///path/of/image.sif or "
        "apptainer://IMAGE of a registry"
    )


def engine_and_image(container: str) -> tuple[str, str]:
    """The command that runs a container, and its image as the command names it."""
    engine, _, image = container.partition("://")
    return engine, f"docker://{image}" if engine == "apptainer" and not image.startswith("/") else image
