"""The interface that every kind of site implements. The implementations are in the packages of the kinds."""

from __future__ import annotations

from lading.hooks.site.config import PackedConfig, RemoteConfig, SiteConfig, sites_accepting_untargeted
from lading.hooks.site.observation import LocationState, Observation, ObservedLocation, alike, check_location, join
from lading.hooks.site.site import (
    Check,
    ElasticSite,
    Holding,
    ListedInstance,
    Order,
    RemovedLeftovers,
    RequestRefusal,
    Site,
    StagingArea,
    Tenancy,
)
