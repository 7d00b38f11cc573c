"""The interface of every kind of site.

What a kind of site does about it lives in the rooms of the kinds; nothing here asks a site.
"""

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
    Site,
    StagingArea,
    Tenancy,
)
