"""The calls of a controller on a site that has one location."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lading.hooks.site import ObservedLocation, Site
from lading.hooks.spool.spool import Envelope
from lading.scheduling.model.reasons import Reason


def look(site: Site[Any]) -> ObservedLocation:
    """The location as it is now."""
    [seen] = site.observe().locations
    return seen


def put(site: Site[Any], envelopes: Sequence[Envelope]) -> None:
    """Give jobs to the location."""
    site.put({site.potential()[0].name: envelopes})


def cancel(site: Site[Any], reasons: Mapping[str, Reason]) -> None:
    """End jobs at the location."""
    site.cancel({site.potential()[0].name: reasons})
