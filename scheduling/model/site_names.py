"""Names of sites: the site of one account of a cluster is named ``TABLE@ACCOUNT``."""

from __future__ import annotations

ACCOUNT = "@"


def declared_name(site: str) -> str:
    """The name of a site's table in the sites file: ``hpc`` for ``hpc@hpc_genomics``."""
    return site.partition(ACCOUNT)[0]


def is_named(site: str, by: str | None) -> bool:
    """Whether a name in a hint means a site: its own name, or its table's name for any account."""
    return by is not None and by in (site, declared_name(site))
