"""Which GPUs a job gets: whole devices for whole numbers, a share of one device for a fraction."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from lading.scheduling.resources import TOLERANCE

# The node agent asks NVIDIA's driver which GPUs there are. Those of other makers cannot be given to jobs.
OTHER_MAKERS = "AMD", "Habana", "Qualcomm"


def not_supported(features: Collection[str]) -> str | None:
    """The model of a machine's GPU that no job can be given; None: it has none of these.

    :param features: what the machine has, the models of its GPUs among them
    """
    return next((word for word in sorted(features) if word.startswith(OTHER_MAKERS)), None)


def pick(free: Mapping[str, float], gpus: float) -> dict[str, float] | None:
    """The share of each device that a job gets, empty for a job without GPUs; None when the devices do not suffice.

    A whole GPU is never put together from leftovers of two: a program cannot use it as one. The fraction goes to the
    fullest device that can still take it, so that whole devices stay whole.

    :param free: the free share (0 to 1) of each device
    :param gpus: how many a job asks for, e.g. 2 or 0.5 or 1.5
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
