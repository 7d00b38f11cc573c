"""Where a task runs, as authors write it: site, instance type, container, and alternative targets."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lading.scheduling.text.printable import shortened
from lading.scheduling.text.units import UnitError

# A site's name is used as a folder name, in a database column and in messages.
SITE_NAME = re.compile(r"(?!.{65})[A-Za-z0-9][A-Za-z0-9_-]*(?:@[A-Za-z0-9][A-Za-z0-9_.-]*)?")
LONGEST_NAME = 64
MOST_TARGETS = 32
FILTER_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")

CONTAINER = re.compile(r"(docker|apptainer)://([A-Za-z0-9/][A-Za-z0-9_.:@/+-]*)")


@dataclass(frozen=True, slots=True)
class Target:
    """A site or a part of one, such as ``hpc/long`` or ``cloud/c7i.*``.

    :param within: for a batch site, the queue; for any other site, a pattern of instance types (``*``, ``?``,
        ``[...]``); None: the whole site
    """

    site: str
    within: str | None = None

    @classmethod
    def parse(cls, text: object) -> Target:
        """:raises UnitError: it is not a target"""
        site, slash, within = text.strip().partition("/") if isinstance(text, str) else ("", "", "")
        good = SITE_NAME.fullmatch(site) and bool(within) == bool(slash)
        if not good or not within.isprintable() or " " in within or len(within) > 250:
            raise UnitError(
                f"{shortened(text)} is not a target; valid: a site, a queue of it, or a pattern of its instance types: "
                '"hpc", "hpc/long", "cloud/c7i.*"'
            )
        return cls(site, within or None)

    def __str__(self) -> str:
        return self.site if self.within is None else f"{self.site}/{self.within}"


def parse_targets(value: object) -> tuple[str, ...]:
    """Targets in the order in which they are tried: a list of texts, or one text.

    :raises UnitError: it is neither, or one of them is not a target
    """
    written = [value] if isinstance(value, str) else value
    if not isinstance(written, (list, tuple)) or not 0 < len(written) <= MOST_TARGETS:
        raise UnitError(
            f'{shortened(value)} is not a list of targets; valid: 1 to {MOST_TARGETS}, such as ["hpc/long", '
            '"cloud/c7i.*"]'
        )
    return tuple(dict.fromkeys(str(Target.parse(each)) for each in written))


def parse_filters(value: object) -> tuple[str, ...]:
    """The names of binding filters, which choose among targets, in the order in which they are applied.

    :raises UnitError: it is not a list of names
    """
    written = [value] if isinstance(value, str) else value
    if isinstance(written, (list, tuple)) and all(isinstance(e, str) and FILTER_NAME.fullmatch(e) for e in written):
        return tuple(written)
    raise UnitError(f'{shortened(value)} is not a list of binding filters; valid: names such as ["shuffle"]')


def parse_stage(value: object) -> tuple[str, ...]:
    """The names of the inputs whose files are copied to where a task runs.

    :raises UnitError: it is not a list of names
    """
    written = [value] if isinstance(value, str) else value
    if isinstance(written, (list, tuple)) and written and all(isinstance(e, str) and e.isidentifier() for e in written):
        return tuple(dict.fromkeys(written))
    raise UnitError(f'{shortened(value)} is not a list of inputs; valid: names of the task\'s inputs such as ["reads"]')


def parse_instance_type(value: object) -> str:
    """The instance type. Seven Bridges may append its disks after semicolons, which are ignored.

    :raises UnitError: it is not a name
    """
    name = value.partition(";")[0].strip() if isinstance(value, str) else ""
    if not name or len(name) > LONGEST_NAME or not name.isprintable():
        raise UnitError(
            f"{shortened(value)} is not an instance type; valid: a name of at most {LONGEST_NAME} letters, "
            "such as c7i.2xlarge"
        )
    return name


def parse_site(value: object) -> str:
    if not isinstance(value, str) or not SITE_NAME.fullmatch(value.strip()):
        raise UnitError(f"{shortened(value)} is not the name of a site, valid: letters, digits, - and _, at most 64")
    return value.strip()


def parse_container(value: object) -> str:
    """An image with the engine that runs it.

    :raises UnitError: it is neither a Docker nor an Apptainer image
    """
    if isinstance(value, str) and len(value) <= 500 and CONTAINER.fullmatch(value):
        return value
    raise UnitError(
        f"{shortened(value)} is not a container; valid: docker://IMAGE, apptainer:///path/of/image.sif, or "
        "apptainer://IMAGE for an image in a registry"
    )


def engine_and_image(container: str) -> tuple[str, str]:
    """The command that runs a container, and the image as that command names it."""
    engine, _, image = container.partition("://")
    return engine, f"docker://{image}" if engine == "apptainer" and not image.startswith("/") else image
