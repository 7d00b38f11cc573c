"""Which version of Lading this is. Both pyproject.toml take it from here, and sources without metadata have it, too.

Two distributions bring the same files: ``airflow-lading`` all of them, ``snakemake-executor-plugin-lading`` those that
it imports. In one environment they have to be of one version: the last one installed replaces files of the other.
"""

from __future__ import annotations

from collections.abc import Mapping

VERSION = "0.1.0"
DISTRIBUTIONS = ("airflow-lading", "snakemake-executor-plugin-lading")


class MixedVersions(RuntimeError):
    """Files of two versions are in one environment; the text says which, and what to do."""


def installed_versions() -> dict[str, str]:
    """The distributions of Lading in this environment, by name; none: these are sources that were copied."""
    from importlib.metadata import PackageNotFoundError, version  # a node agent starts without it

    found = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def check_versions(installed: Mapping[str, str] | None = None) -> None:
    """Check that all that is installed of Lading has the version of these files.

    :param installed: by distribution; None: what this environment has
    :raises MixedVersions: it has not
    """
    found = installed_versions() if installed is None else installed
    if set(found.values()) <= {VERSION}:
        return
    names = " and ".join(f"{name} {each}" for name, each in found.items())
    raise MixedVersions(
        f"{names} {'are' if len(found) > 1 else 'is'} installed, and the files of lading are of version {VERSION}: "
        "install all of Lading in the same version, or each distribution in an environment of its own"
    )
