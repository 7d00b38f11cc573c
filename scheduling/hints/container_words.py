"""The container in which a task runs, in its author's words: ``docker://IMAGE`` or ``apptainer://IMAGE``."""

from __future__ import annotations

import re

from lading.scheduling.text.printable import shortened
from lading.scheduling.text.units import UnitError

LONGEST = 500
CONTAINER = re.compile(r"(docker|apptainer)://([A-Za-z0-9/][A-Za-z0-9_.:@/+-]*)")


def parse_container(value: object) -> str:
    """An image, with what runs it.

    :raises UnitError: it is something else
    """
    if isinstance(value, str) and len(value) <= LONGEST and CONTAINER.fullmatch(value):
        return value
    raise UnitError(
        f"{shortened(value)} is no container; valid: docker://IMAGE, apptainer:///path/of/image.sif or "
        "apptainer://IMAGE of a registry"
    )


def engine_and_image(container: str) -> tuple[str, str]:
    """The command that runs a container, and its image as the command names it."""
    engine, _, image = container.partition("://")
    return engine, f"docker://{image}" if engine == "apptainer" and not image.startswith("/") else image
