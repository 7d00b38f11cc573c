"""Quotas of EC2: of each family of instance types so many vCPUs may run at once, on demand and on spot apart.

https://docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html
"""

from __future__ import annotations

import re
from functools import lru_cache

# The letters with which the types of a family begin.
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


@lru_cache(maxsize=4096)
def family(instance_type: str) -> str:
    """The family of a type: that of the longest letters with which it begins, else ``standard``."""
    letters = re.match(r"[a-z]*", instance_type)
    found = [
        (len(start), name)
        for name, starts in FAMILIES.items()
        for start in starts
        if letters is not None and letters.group().startswith(start)
    ]
    return max(found)[1] if found else "standard"


def quota(instance_type: str, capacity_type: str | None) -> str:
    """What a quota is called in limits: family and capacity type, such as ``standard spot``."""
    return f"{family(instance_type)} {capacity_type}"
