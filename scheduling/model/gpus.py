"""Types of GPUs, and which GPUs a job gets: whole devices for whole numbers, a share of one device for a fraction."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

from lading.scheduling.model.machine_traits import IS
from lading.scheduling.model.resources import TOLERANCE
from lading.scheduling.text.nearest import nearest as closest
from lading.scheduling.text.printable import shortened
from lading.scheduling.text.units import UnitError

# The node agent queries NVIDIA's driver for the GPUs of its machine. GPUs of other makers cannot be assigned to jobs.
OTHER_MAKERS = "AMD", "Habana", "Qualcomm"
# The property that holds a machine's type of GPU, as in ``gpu=a100``.
PROPERTY = "gpu"
_TYPE = re.compile(r"[A-Za-z][\w. -]*")
_BARE_TYPE = re.compile(r"[A-Za-z][A-Za-z-]{0,20}[0-9][\w-]{0,20}")
# What precedes a model's own name, the maker and the product line, and what follows it, the form factor and the memory.
_BEFORE = re.compile(r"(?:nvidia|tesla|geforce|quadro|graphics)+")
_BEHIND = re.compile(r"(?:sxm\d*|pcie?|nvl|hbm\d\w*|[0-9]+gi?b|mig|oem)")


def parse_type(text: object) -> str:
    """The short name of a type of GPU: ``a100`` for ``A100``, ``NVIDIA A100-SXM4-40GB`` and ``nvidia_a100_80gb_pcie``.

    :raises UnitError: the text is not the name of a GPU type
    """
    words = (
        re.split(r"[\s_-]+", text.strip().lower()) if isinstance(text, str) and _TYPE.fullmatch(text.strip()) else []
    )
    name: list[str] = []
    for word in words:
        if name and _BEHIND.fullmatch(word):
            break
        if (rest := _BEFORE.sub("", word, count=1) if not name else word) != "":
            name.append(rest)
    if not name or len(found := "-".join(name)) > 40:
        raise UnitError(
            f"{shortened(text)} is not a type of GPU; valid: the name of a model, such as 'a100' or 'rtx-3090'"
        )
    return found


def gpu_feature(type: str) -> str:
    """The feature of machines whose GPUs have this type (a name from :func:`parse_type`)."""
    return f"{PROPERTY}{IS}{type}"


def with_types(features: Iterable[str]) -> frozenset[str]:
    """The features of a machine, plus the GPU types that follow from the NVIDIA models among them."""
    known, types = frozenset(features), set()
    for each in known:
        if each.startswith("NVIDIA "):
            with suppress(UnitError):
                types.add(gpu_feature(parse_type(each)))
    return known | types


def type_of(features: Iterable[str]) -> str | None:
    """The type of GPU that a job requests, from its features; None: any type."""
    return next((each.partition(IS)[2] for each in features if each.startswith(f"{PROPERTY}{IS}")), None)


def split_type(value: object) -> tuple[object, str | None]:
    """Split a requested amount of GPUs into the number and the type: ``"a100:2"`` is two GPUs of type a100.

    :raises UnitError: the type is invalid, or the two ends of a range have different types
    """
    if isinstance(value, (list, tuple)):
        parts = [split_type(each) for each in value]
        types = {type for _, type in parts}
        if len(types) > 1:
            raise UnitError(f"{shortened(value)} is not a range; valid: two amounts of the same type of GPU")
        return [number for number, _ in parts], next(iter(types), None)
    if isinstance(value, str) and _BARE_TYPE.fullmatch(value.strip()):
        example = f"{value.strip()}:1"
        raise UnitError(
            f"{shortened(value)} is not a number of GPUs; valid: a number, or a type with a number: {example!r}"
        )
    if not isinstance(value, str) or ":" not in value or not _TYPE.fullmatch(value.partition(":")[0].strip()):
        return value, None
    name, _, number = value.partition(":")
    return number.strip(), parse_type(name)


def nearest(type: str, features: Iterable[str]) -> str:
    """Describe the available types most similar to an unavailable one, and how machines declare theirs.

    :param features: the features of all machines
    """
    known = sorted({each.partition(IS)[2] for each in features if each.startswith(f"{PROPERTY}{IS}")})
    close = closest(type, known, 6, cutoff=0.0)
    more = f" and {len(known) - len(close)} more" if len(known) > len(close) else ""
    there = f"valid: {', '.join(sorted(close))}{more}" if close else "because no machine declares the type of its GPUs"
    return f"{there}; the sites file declares types with gpu_type (for a machine) or gpu_types (for a cluster)"


def not_supported(features: Collection[str]) -> str | None:
    """The model of a machine's unsupported GPU; None if it has none.

    :param features: the machine's features, which include the models of its GPUs
    """
    return next((word for word in sorted(features) if word.startswith(OTHER_MAKERS)), None)


def pick(free: Mapping[str, float], gpus: float) -> dict[str, float] | None:
    """The share of each device that a job gets; empty for a job without GPUs, None if the devices do not suffice.

    A whole GPU is never composed from parts of two devices, because a program cannot use those as one. A fraction goes
    to the fullest device that still has room for it, so that other devices stay whole.

    :param free: the free share (0 to 1) of each device
    :param gpus: how many the job requests, e.g. 2, 0.5 or 1.5
    """
    whole = math.floor(gpus + TOLERANCE)
    fraction = gpus - whole if gpus - whole > TOLERANCE else 0.0
    untouched = [device for device, share in free.items() if share >= 1 - TOLERANCE]
    if len(untouched) < whole:
        return None
    shares = dict.fromkeys(untouched[:whole], 1.0)
    if fraction:
        roomy = [device for device, share in free.items() if device not in shares and share >= fraction - TOLERANCE]
        if not roomy:
            return None
        shares[min(roomy, key=lambda device: free[device])] = fraction
    return shares
