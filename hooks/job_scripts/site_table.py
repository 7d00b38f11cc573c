"""The batch sites of the sites file, for those who submit job scripts there."""

from __future__ import annotations

from pathlib import Path

from lading.hooks.batch.registry import batch_systems
from lading.hooks.batch.system import BatchSystem
from lading.hooks.files import sites_file
from lading.hooks.job_scripts.profile import ProfileError, SiteOptions, SiteProfile
from lading.hooks.job_scripts.run_site import RunSite
from lading.scheduling.text.printable import shortened


def batch_system(name: str) -> BatchSystem:
    """A batch system by its name.

    :raises ValueError: there is none
    """
    systems = batch_systems()
    if name not in systems:
        raise ValueError(f"batch system {name!r} is unknown; the systems are: {', '.join(systems)}")
    return systems[name]


def site_of(name: str) -> RunSite:
    """A batch site of ``[lading] sites_file``.

    :raises ValueError: there is no such file or site, it is no batch cluster, or a value in it is not valid
    """
    from airflow.sdk.configuration import conf

    path = conf.get("lading", "sites_file", fallback="")
    if not path:
        raise ProfileError(f"site {name!r}: there is no [lading] sites_file; set it to the file that has the site")
    return read_site(Path(path).expanduser(), name)


def read_site(path: Path, name: str) -> RunSite:
    """A batch site of a sites file.

    :raises ValueError: as :func:`site_of`
    """
    tables = sites_file.read_sites(path)
    if name not in tables:
        raise ProfileError(f"site {shortened(name)} is not in {path}; the sites are: {', '.join(tables)}")
    where = f"{path} [sites.{name}]"
    if not isinstance(tables[name], dict):
        raise ProfileError(f"{where} is no table")
    profile = SiteProfile.of_table(tables[name], where, others=True)
    try:
        system = batch_system(profile.kind or "")
    except ValueError as error:
        raise ProfileError(f"{where}: job scripts need a batch cluster, but kind = {profile.kind!r}: {error}") from None
    return RunSite(name, system, profile, SiteOptions.of_table(tables[name], where))
