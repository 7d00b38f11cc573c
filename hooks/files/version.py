"""The version of Lading. Both pyproject.toml files read it from here, and so do sources without package metadata.

Two distributions install the same files: ``airflow-lading`` all of them, ``snakemake-executor-plugin-lading`` those
that it imports. In one environment both must have the same version, because the one installed last overwrites files.
"""

from __future__ import annotations

from collections.abc import Mapping

VERSION = "0.1.0"
DISTRIBUTIONS = ("airflow-lading", "snakemake-executor-plugin-lading")


class MixedVersions(RuntimeError):
    """Files of two versions are in one environment; the message names them and the remedy."""


def installed_versions() -> dict[str, str]:
    """Return the versions of Lading's installed distributions by name; empty for copied sources."""
    from importlib.metadata import PackageNotFoundError, version  # not at module level: it slows the agent's start

    found = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def check_versions(installed: Mapping[str, str] | None = None) -> None:
    """Check that every installed distribution of Lading has the version of these files.

    :param installed: versions by distribution; None: those of this environment
    :raises MixedVersions: the versions differ
    """
    found = installed_versions() if installed is None else installed
    if set(found.values()) <= {VERSION}:
        return
    names = " and ".join(f"{name} {each}" for name, each in found.items())
    raise MixedVersions(
        f"{names} {'are' if len(found) > 1 else 'is'} installed, but the files of lading have version {VERSION}: "
        "install all of Lading in the same version, or each distribution in its own environment"
    )
