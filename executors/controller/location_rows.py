"""What is stored of sites, of their locations and of what machines have, as rows."""

from __future__ import annotations

import json
from typing import Any

from lading.executors import store
from lading.executors.store.tables import as_name, clean
from lading.hooks.site import LocationState, Observation, Seen, Site, join
from lading.scheduling.location import Location
from lading.scheduling.matching.market import kind_in_words

# The column of the type takes so many characters; what an allocation is for may take more.
LONGEST_TYPE = 64


def as_row(site: Site[Any], position: int) -> store.SiteRow:
    """The row of a site."""
    return store.SiteRow(name=site.name, kind=site.kind, position=position, limits=json.dumps(site.config.limits))


def rows(site: Site[Any], observation: Observation, now: float) -> list[store.LocationRow]:
    """The rows of all that a site has; one that launches its locations has a row of its own before these."""
    if not site.launches or (market := observation.market) is None:
        return [row(site, each, each.note, each.location.instance_type, now) for each in observation.locations]
    trouble = None if observation.trouble is None else observation.trouble.sentence
    state = LocationState.UP if trouble is None else LocationState.UNREACHABLE
    itself = Seen(Location(site.name, market.capacity), state)
    kinds = {each.name: kind_in_words(str(each.location.instance_type)) for each in observation.locations}
    launched = [row(site, each, join(kinds[each.name], each.note), None, now) for each in observation.locations]
    return [row(site, itself, join(trouble, observation.note), None, now), *launched]


def machines(site: Site[Any], observation: Observation, now: float) -> list[store.Capacity]:
    """What the machines of a site have that nobody launched; a queue is none, and what was launched has its own row."""
    if site.launches:
        return []
    found = [each.location for each in observation.locations if each.state != LocationState.BOOTING]
    return [
        store.Capacity(
            site=site.name,
            name=each.name,
            cpus=each.capacity.cpus,
            memory=each.capacity.memory,
            gpus=each.capacity.gpus,
            usd_per_hour=None if (rate := cpu_hour(site, each)) is None else rate * each.capacity.cpus,
            since=now,
        )
        for each in found
        if each.max_jobs is None
    ]


def cpu_hour(site: Site[Any], location: Location) -> float | None:
    """What an hour of a cpu of a location costs, USD: as its site says of it, or as its table does; None: neither."""
    if location.usd_per_hour > 0 and location.capacity.cpus > 0:
        return location.usd_per_hour / location.capacity.cpus
    usd: float | None = site.config.cpu_hour(location.capacity)
    return usd


def row(site: Site[Any], seen: Seen, note: str | None, instance_type: str | None, now: float) -> store.LocationRow:
    """The row of one location."""
    location, capacity = seen.location, seen.location.capacity
    return store.LocationRow(
        site=site.name,
        name=location.name,
        kind=site.kind,
        instance_type=None if instance_type is None else clean(instance_type)[:LONGEST_TYPE],
        cpus=capacity.cpus,
        memory=capacity.memory,
        disk=capacity.disk,
        gpus=capacity.gpus,
        arch=location.arch,
        os=location.os,
        features=", ".join(sorted(location.features)) or None,
        capacity_type=location.capacity_type,
        nodes=location.nodes,
        idle_nodes=location.idle_nodes,
        wraps=as_name(location.wraps),
        stacked=location.stacked,
        usd_per_cpu_hour=cpu_hour(site, location),
        note=clean(note or "") or (None if seen.state == LocationState.UP else f"it is {seen.state.value}"),
        state=seen.state.value,
        native_id=as_name(seen.native_id),
        node=as_name(seen.node),
        seen_at=now,
    )
