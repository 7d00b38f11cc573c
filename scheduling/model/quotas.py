"""What the name of an EC2 instance type reveals: the quota that its vCPUs count against, and whether it is burstable.

AWS limits the running vCPUs of each family of types, separately for on-demand and spot instances:
https://docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html

A burstable type has a baseline below its vCPUs. Anything above it consumes credits. When they are used up, the instance
is either slowed down to its baseline (``standard``) or billed for each vCPU-hour (``unlimited``):
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/burstable-credits-baseline-concepts.html
"""

from __future__ import annotations

import re
from functools import lru_cache

# The prefixes of the types of each family.
FAMILIES = {
    "standard": ("a", "c", "d", "h", "i", "m", "r", "t", "z"),
    "dl": ("dl",),
    "f": ("f",),
    "g": ("g", "vt"),
    "hpc": ("hpc",),
    "inf": ("inf",),
    "p": ("p",),
    "trn": ("trn",),
    "u": ("u",),
    "x": ("x",),
}

BURSTABLE = re.compile(r"(t[1-9][a-z]*)\.(.+)")
# (Baseline in cpus, vCPUs) of each size of T2 and T3; T3a and T4g equal T3.
T2 = {
    "nano": (0.05, 1), "micro": (0.1, 1), "small": (0.2, 1), "medium": (0.4, 2), "large": (0.6, 2),
    "xlarge": (0.9, 4), "2xlarge": (1.35, 8),
}  # fmt: skip
T3 = {
    "nano": (0.1, 2), "micro": (0.2, 2), "small": (0.4, 2), "medium": (0.4, 2), "large": (0.6, 2),
    "xlarge": (1.6, 4), "2xlarge": (3.2, 8),
}  # fmt: skip


def is_burstable(instance_type: str) -> bool:
    """Whether a type needs credits to run at full speed: the families T2, T3, T3a and T4g."""
    return BURSTABLE.fullmatch(instance_type) is not None


def names_burstable(pattern: str) -> bool:
    """Whether a pattern names a burstable family: ``t3.*`` and ``t3.large`` do, ``*`` and ``t*`` do not."""
    return re.match(r"t[1-9]", pattern) is not None


def baseline(instance_type: str, vcpus: float) -> float:
    """The cpus that a type always provides: its vCPUs, or the baseline of a burstable type.

    :param vcpus: the vCPUs in its specification
    """
    found = BURSTABLE.fullmatch(instance_type)
    if found is None:
        return vcpus
    # Future sizes are assumed to have the lowest baseline per vCPU of all sizes.
    known, _ = (T2 if found[1] == "t2" else T3).get(found[2], (0.05 * vcpus, 0))
    return min(vcpus, known)


def vcpus(instance_type: str, cpus: float) -> float:
    """The vCPUs of a type that count against its quota, at least one.

    :param cpus: what jobs can use of it
    """
    found = BURSTABLE.fullmatch(instance_type)
    known = (T2 if found[1] == "t2" else T3).get(found[2]) if found is not None else None
    return max(1.0, cpus) if known is None else float(known[1])


@lru_cache(maxsize=4096)
def family(instance_type: str) -> str:
    """The family of a type: the longest prefix that matches, else ``standard``."""
    letters = re.match(r"[a-z]*", instance_type)
    matches = [
        (len(start), name)
        for name, starts in FAMILIES.items()
        for start in starts
        if letters is not None and letters.group().startswith(start)
    ]
    return max(matches)[1] if matches else "standard"


def quota(instance_type: str, capacity_type: str | None) -> str:
    """The name of a quota in limits: family and capacity type, such as ``standard spot``."""
    return f"{family(instance_type)} {capacity_type}"
