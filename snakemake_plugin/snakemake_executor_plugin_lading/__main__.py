"""``python -m snakemake_executor_plugin_lading controller FOLDER``: runs a controller while it is needed."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from snakemake_executor_plugin_lading.state_folder import StateFolder

log = logging.getLogger(__name__)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m snakemake_executor_plugin_lading")
    parser.add_argument("command", choices=["controller"])
    parser.add_argument("folder", type=Path, help="the state folder of the workflow, such as .snakemake/lading")
    state = StateFolder(parser.parse_args().folder.absolute())
    from lading.hooks.files.child_processes import raise_open_files_limit
    from lading.hooks.files.version import MixedVersions, check_versions
    from lading.plugin.serving import log_to, serve_until_signal
    from lading.plugin.sites import SitesError, load_sites
    from snakemake_executor_plugin_lading.host import SnakemakeHost, read_environment

    host = SnakemakeHost.connect(state)
    found = host.settings()

    log_to(found, True, "INFO")
    raise_open_files_limit()
    try:
        check_versions()
        sites = load_sites(found, host)
    except (MixedVersions, SitesError) as error:
        log.critical("%s", error)  # has to be the last line, because the executor quotes it
        sys.exit(1)
    serve_until_signal(host, sites, lambda run_id, seconds: read_environment(state, run_id), found, managed=True)


if __name__ == "__main__":
    main()
