"""``python -m lading.hooks.conformance --live SYSTEM``: tests a batch system against a real server."""

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
Submits, polls and cancels a few small jobs, and finally removes them and their files. The exit status is 0 if all
checks passed, 1 if one failed, 2 if nothing could be tested. The suite of recorded answers runs under pytest.
"""


def main(arguments: Sequence[str] | None = None) -> int:
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
    print(f"{failed} failed" if failed else "all checks passed")
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m lading.hooks.conformance", description=__doc__, epilog=EPILOG)
    add = parser.add_argument
    add(
        "--live",
        metavar="SYSTEM",
        required=True,
        help="the batch system: its kind in the sites file, or package.module:Class",
    )
    way = parser.add_mutually_exclusive_group()
    way.add_argument(
        "--ssh-conn-id", metavar="ID", help="the Airflow connection to the login node; default: this machine"
    )
    way.add_argument(
        "--control-master", metavar="WORDS", help="instead of --ssh-conn-id: the destination as typed after ssh"
    )
    add("--login-setup", metavar="LINES", default="", help="shell lines to run before commands on the login node")
    add(
        "--work-dir",
        metavar="DIR",
        default=SiteOptions().work_dir,
        help="a folder that the login node and the compute nodes share; default: %(default)s",
    )
    add("--profile", metavar="FILE", help="a TOML file with the site's profile")
    add("--queue", metavar="NAME", help="the queue for the jobs")
    add("--native", metavar="KEY=VALUE", action="append", default=[], help="a native directive; can be repeated")
    add(
        "--never",
        metavar="KEY=VALUE",
        help='a directive that keeps a job from ever starting, such as "dependency=afterok:{failed}", where '
        "{failed} is the id of a failed job; without this option, the checks skip jobs that never start",
    )
    add(
        "--timeout",
        metavar="TIME",
        type=_duration,
        default=300,
        help="how long to wait until a job has started and finished; default: 5 min",
    )
    return parser


def _duration(text: str) -> int:
    try:
        return parse_time(text)
    except UnitError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _system(name: str) -> BatchSystem:
    """Return a batch system by name, or an instance of a class that is not registered yet.

    :raises ValueError: it does not exist
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
            f"--live {name}: {attribute} is not a class derived from lading.hooks.batch.system.BatchSystem"
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
