"""Names of sites: one that is an account of a cluster has its table's name and that of the account."""

from __future__ import annotations

ACCOUNT = "@"


def declared_name(site: str) -> str:
    """The name of the table in the sites file of which a site is; ``hpc`` of ``hpc@hpc_genomics``."""
    return site.partition(ACCOUNT)[0]


def is_named(site: str, by: str | None) -> bool:
    """Whether a name in a hint means a site: it is its own, or that of its table, whatever its account."""
    return by is not None and by in (site, declared_name(site))
