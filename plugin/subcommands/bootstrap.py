"""``airflow lading bootstrap``: user data that makes the environment of jobs from a stock image."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator
from importlib.metadata import distributions

from airflow.utils import cli as airflow_cli
from airflow.utils.providers_configuration_loader import providers_configuration_loaded

from lading.executors.settings import Settings
from lading.plugin.sites import SitesError, load_sites
from lading.plugin.subcommands.console import complain


@airflow_cli.suppress_logs_and_warning
@providers_configuration_loaded
def bootstrap(args: Namespace) -> None:
    """Print the user data; status 1 if the site has no machines that boot by it."""
    try:
        sites = load_sites(Settings.load())
        if args.site not in sites:
            raise SitesError(f"there is no site {args.site!r}; the sites are: {', '.join(sites)}")
        text = sites[args.site].bootstrap([*airflow(), args.lading])
    except ValueError as error:
        complain(str(error))
        sys.exit(1)
    if text is None:
        complain(f"Site {args.site} launches no machines from images; sites of kind ec2 do.")
        sys.exit(1)
    print(text, end="")


def airflow() -> Iterator[str]:
    """Airflow and its providers as they are here, for pip."""
    found = {each.metadata["Name"].lower(): each.version for each in distributions() if each.metadata["Name"]}
    yield from (f"{name}=={found[name]}" for name in sorted(found) if name.startswith("apache-airflow"))
