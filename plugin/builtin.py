"""The built-in kinds of sites, registered like any third party's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lading.hooks.local import LocalSite
from lading.hooks.site import Site
from lading.plugin.hookspecs import hookimpl


@hookimpl
def site_kinds() -> Sequence[type[Site[Any]]]:
    return [LocalSite]
