"""``airflow lading check``: a finding per line, and what accounts must be allowed."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from airflow.utils import cli as airflow_cli
from airflow.utils.providers_configuration_loader import providers_configuration_loaded

from lading.executors.settings import Settings
from lading.hooks.site import Check
from lading.plugin.database import read_connections
from lading.plugin.sites import SitesError, load_sites
from lading.plugin.subcommands.console import complain, show
from lading.plugin.subcommands.findings import findings

# What the trial job of a site may take, seconds, and where its machine has to be launched and to boot first.
TRIAL_SECONDS, LAUNCH_SECONDS = 60, 600


@airflow_cli.suppress_logs_and_warning
@providers_configuration_loaded
def check(args: Namespace) -> None:
    """Print a finding per line; status 1 if one is bad."""
    read_connections()
    if args.policy:
        policies(args.site)
        return
    found = []
    for finding in findings(args.site, args.timeout or (LAUNCH_SECONDS if args.launch else TRIAL_SECONDS), args.launch):
        found.append(finding)
        if not finding.good:
            complain(f"{finding.what}: {finding.words}")
    show(list(map(finding_row, found)), args.output)
    if not all(finding.good for finding in found):
        sys.exit(1)


def policies(only: Sequence[str]) -> None:
    """Print what the accounts of sites must be allowed; status 1 if a site is unknown or none has an account.

    :param only: the names of the sites; empty: all
    """
    try:
        known = load_sites(Settings.load())
    except SitesError as error:
        complain(str(error))
        sys.exit(1)
    if unknown := sorted(set(only) - known.keys()):
        complain(f"There is no site {unknown[0]!r}; the sites are: {', '.join(known)}.")
        sys.exit(1)
    try:
        found = [each.policy() for name, each in known.items() if not only or name in only]
    except (ValueError, OSError) as error:
        complain(str(error))
        sys.exit(1)
    if not any(found):
        complain("None of these sites has an account whose rights could be printed; sites of kind ec2 have.")
        sys.exit(1)
    for text in filter(None, found):
        print(text)


def finding_row(finding: Check) -> dict[str, Any]:
    result = "warning" if finding.good and finding.warns else "ok" if finding.good else "BAD"
    return {"check": finding.what, "result": result, "details": finding.words}
