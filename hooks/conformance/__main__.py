"""``python -m lading.hooks.conformance --live SYSTEM``: a batch system tried against a real server."""

from __future__ import annotations

import argparse
import functools
import importlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lading.hooks.batch.system import BatchSystem
from lading.hooks.conformance.live import Trial
from lading.hooks.job_scripts.profile import SiteOptions, SiteProfile, read_profile
from lading.hooks.job_scripts.properties import JobProperties
from lading.hooks.job_scripts.run_site import batch_system
from lading.scheduling.text.units import UnitError, parse_time

EPILOG = """\
A few small jobs are submitted, asked about and cancelled; they and their files are removed in the end. The exit status
is 0 if all went well, 1 if something did not, 2 if nothing could be tried. The suite of recorded answers is for pytest.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Try a batch system as the options say; the exit status."""
    options = _parser().parse_args(arguments)
    try:
        system = _system(options.live)
        site = read_profile(Path(options.profile)) if options.profile else SiteProfile()
        site = replace(site, properties=_properties(options).over(site.properties))
        given = {"ssh_conn_id": options.ssh_conn_id, "control_master": options.control_master}
        table = {key: value for key, value in given.items() if value is not None}
        way = SiteOptions.of_table(
            {**table, "work_dir": options.work_dir, "login_setup": options.login_setup}, "options"
        )
        with way.transport() as transport:
            say = functools.partial(print, flush=True)
            trial = Trial(system, transport, options.work_dir, site, options.timeout, say, _never(options))
            failed = trial.run()
    except (ValueError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    print(f"{failed} failed" if failed else "all went well")
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m lading.hooks.conformance", description=__doc__, epilog=EPILOG)
    add = parser.add_argument
    add("--live", metavar="SYSTEM", required=True, help="its name, as kind in the sites file, or package.module:Class")
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--ssh-conn-id", metavar="ID", help="Airflow's connection to the login node; else on this machine")
    way.add_argument("--control-master", metavar="WORDS", help="in place of it, what one types after ssh")
    add("--login-setup", metavar="LINES", default="", help="shell lines before the commands on the login node")
    add(
        "--work-dir",
        metavar="DIR",
        default=SiteOptions().work_dir,
        help="login node and nodes share it; default: %(default)s",
    )
    add("--profile", metavar="FILE", help="the TOML file of the site's profile")
    add("--queue", metavar="NAME", help="the queue of the jobs")
    add("--native", metavar="KEY=VALUE", action="append", default=[], help="a directive; may be repeated")
    add(
        "--never",
        metavar="KEY=VALUE",
        help='a directive with which a job can never start, such as "dependency=afterok:{failed}", where {failed} is '
        "the id of a job that has failed; without it that is not tried",
    )
    add(
        "--timeout",
        metavar="TIME",
        type=_duration,
        default=300,
        help="for which a job may wait and run; default: 5 min",
    )
    return parser


def _duration(text: str) -> int:
    try:
        return parse_time(text)
    except UnitError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _system(name: str) -> BatchSystem:
    """The batch system of a name, or of a class that no plugin offers yet.

    :raises ValueError: there is none
    """
    module, colon, attribute = name.partition(":")
    if not colon:
        return batch_system(name)
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"--live {name}: {error}; give package.module:Class, with the package in PYTHONPATH") from None
    if not (isinstance(found, type) and issubclass(found, BatchSystem)):
        raise ValueError(
            f"--live {name}: {attribute} is no class that derives from lading.hooks.batch.system.BatchSystem"
        )
    try:
        return found()
    except TypeError as error:
        raise ValueError(f"--live {name}: {error}") from None


def _never(options: argparse.Namespace) -> tuple[str, str] | None:
    if options.never is None:
        return None
    key, equals, value = options.never.partition("=")
    if not (key and equals):
        raise ValueError(f"--never {options.never!r}: KEY=VALUE is expected")
    return key, value


def _properties(options: argparse.Namespace) -> JobProperties:
    pairs: dict[str, object] = {"queue": options.queue} if options.queue else {}
    for directive in options.native:
        key, equals, value = directive.partition("=")
        if not key:
            raise ValueError(f"--native {directive!r}: KEY=VALUE is expected, or KEY for a bare flag")
        pairs[key] = value if equals else True
    return JobProperties.from_mapping(pairs, None)


if __name__ == "__main__":
    sys.exit(main())
