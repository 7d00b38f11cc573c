"""What a job can require of a machine other than amounts: architecture, system, features, properties, capacity type."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from lading.scheduling.text.nearest import nearest
from lading.scheduling.text.printable import shortened
from lading.scheduling.text.units import UnitError

# The default: nearly all scientific software is built for it.
DEFAULT_ARCH = "x86_64"
# The value for jobs that run on every architecture.
ANY_ARCH = "any"
DEFAULT_OS = "linux"
ON_DEMAND = "on-demand"
SPOT = "spot"
CAPACITY_TYPES = (ON_DEMAND, SPOT)
# uname(1), SLURM and conda use the names on the right; EC2, Docker and Go those on the left.
ARCH_NAMES = {"amd64": DEFAULT_ARCH, "x86-64": DEFAULT_ARCH, "x64": DEFAULT_ARCH, "arm64": "aarch64"}
NAMES_OF_ARCHS = "x86_64, aarch64 and other names that `uname -m` prints"
WORD = re.compile(r"[a-z0-9][a-z0-9._-]{0,31}")
# Models of GPUs have names of several words, such as NVIDIA A10G.
FEATURE = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+:/-]{0,63}")
PROPERTY = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,31}")
# Separates a property's name from its value; no plain feature contains it.
IS = "="


def parse_arch(value: object) -> str:
    """An architecture under the name that uname uses: ``arm64`` is ``aarch64``.

    :raises UnitError: it is not an architecture
    """
    word = parse_wanted_arch(value)
    if word == ANY_ARCH:
        raise UnitError(f"{shortened(value)} is not the architecture of a machine; valid: {NAMES_OF_ARCHS}")
    return word


def parse_wanted_arch(value: object) -> str:
    """An architecture as for :func:`parse_arch`, or ``any``.

    :raises UnitError: it is neither
    """
    word = _word(value, "an architecture", f"{NAMES_OF_ARCHS}, or {ANY_ARCH}")
    return ARCH_NAMES.get(word, word)


def parse_os(value: object) -> str:
    """An operating system by its name.

    :raises UnitError: it is not a valid name
    """
    return _word(value, "an operating system", "linux, or the name that a site gives to its own")


def parse_capacity_type(value: object) -> str:
    """``on-demand``, or ``spot`` for a machine that can be reclaimed at any time.

    :raises UnitError: it is neither
    """
    word = value.strip().lower() if isinstance(value, str) else ""
    if word not in CAPACITY_TYPES:
        raise UnitError(f"{shortened(value)} is not a capacity type; valid: {' or '.join(CAPACITY_TYPES)}")
    return word


def parse_features(value: object) -> frozenset[str]:
    """Features of a machine: a list of names, or text with commas between them.

    :raises UnitError: it is not a list of valid names
    """
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, (list, tuple, set, frozenset)) or not all(isinstance(word, str) for word in words):
        raise UnitError(f'{shortened(value)} is not a list of features; valid: names such as ["avx512", "nvme"]')
    features = frozenset(word.strip() for word in words)
    for word in sorted(features):
        if not FEATURE.fullmatch(word):
            raise UnitError(
                f"{shortened(word)} is not a feature; valid: 1 to 64 letters, digits, blanks and . _ + : / -, "
                "beginning with a letter or a digit"
            )
    if len(features) > 32:
        raise UnitError(f"there are {len(features)} features; valid: at most 32")
    return features


def parse_properties(value: object) -> frozenset[str]:
    """Named properties that a machine must have, such as ``{"license": "matlab"}``.

    :returns: each as a feature with a name, ``license=matlab``
    :raises UnitError: it is not a mapping of valid names to values
    """
    if not isinstance(value, Mapping):
        raise UnitError(
            f'{shortened(value)} are not properties; valid: names with values, such as {{"license": "matlab"}}'
        )
    properties = set()
    for name, said in value.items():
        if not isinstance(name, str) or not PROPERTY.fullmatch(name):
            raise UnitError(
                f"{shortened(name)} is not the name of a property; valid: 1 to 32 letters, digits, _ . and -, "
                "beginning with a letter"
            )
        text = str(said) if isinstance(said, (str, int)) and not isinstance(said, bool) else ""
        if not FEATURE.fullmatch(text.strip()):
            raise UnitError(
                f"{name} = {shortened(said)} is not the value of a property; valid: a whole number, or 1 to 64 "
                "letters, digits, blanks and . _ + : / -, beginning with a letter or a digit"
            )
        properties.add(f"{name}{IS}{text.strip()}")
    if len(properties) > 32:
        raise UnitError(f"there are {len(properties)} properties; valid: at most 32")
    return frozenset(properties)


def valid_types(asked: str, valid: Collection[str]) -> str:
    """The valid instance types as text, for a message about an invalid one; only the most similar if there are many."""
    if not valid:
        return "because no machine has been given an instance_type"
    if len(valid) <= 24:
        return f"valid: {', '.join(sorted(valid))}"
    close = nearest(asked, valid, 5, cutoff=0.0)
    return f"valid: {', '.join(close)} and {len(valid) - len(close)} more"


def _word(value: object, what: str, valid: str) -> str:
    word = value.strip().lower() if isinstance(value, str) else ""
    if not WORD.fullmatch(word):
        raise UnitError(f"{shortened(value)} is not {what}; valid: {valid}")
    return word
