"""`lading script`: a job script as it would be submitted. Imports Airflow only if the options name a site or a Dag."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from lading.hooks.batch.system import BatchSystem
from lading.hooks.files import safe_files
from lading.hooks.job_scripts.profile import SiteProfile, read_profile
from lading.hooks.job_scripts.properties import (
    JobProperties,
    JobScriptWarning,
    PropertyError,
    from_text,
    read_ini,
)
from lading.hooks.job_scripts.script import JobScript
from lading.plugin.manager import batch_systems
from lading.plugin.offline.options import UsageError
from lading.scheduling.text.nearest import nearest_first
from lading.scheduling.text.printable import printable, printable_lines


def run_script(args: argparse.Namespace, out: TextIO | None = None) -> int:
    if args.dag is not None or args.task is not None:
        text = of_task(args)
    elif args.body is None:
        raise UsageError("there is nothing to print; give --body FILE, or --dag DAG and --task TASK")
    else:
        text = of_body(args)
    stream = (out or sys.stdout).buffer
    if stream.isatty():  # for people; a file or another command gets the exact bytes
        text = printable_lines(text)
    # Bytes of the body that are not valid UTF-8 are printed unchanged.
    stream.write(text.encode("utf-8", errors="surrogateescape"))
    stream.flush()
    return 0


def of_task(args: argparse.Namespace) -> str:
    if args.dag is None or args.task is None:
        raise UsageError("--dag and --task belong together; give both")
    others = {f"--{name}": getattr(args, name) for name in ("body", "scheduler", "profile", "site", "ini", "resource")}
    if given := [flag for flag, value in others.items() if value]:
        raise UsageError(f"{' and '.join(given)} cannot be combined with --dag and --task; leave one of them out")
    from lading.plugin.offline import task_script

    submission = task_script.of_task(args.dag, args.task)
    for note in submission.notes:
        print(printable(f"note: {note}"), file=sys.stderr)
    return submission.text


def of_body(args: argparse.Namespace) -> str:
    """Render the script of --body. Warnings go to stderr."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", JobScriptWarning)
        try:
            text = rendered(args)
        except ValueError as error:
            raise UsageError(str(error)) from None
    for warning in caught:
        print(printable(f"warning: {warning.message}"), file=sys.stderr)
    return text


def rendered(args: argparse.Namespace) -> str:
    """Render the script that the options describe.

    :raises ValueError: an option, a file or a value is not valid; the message names it
    """
    body = read_body(args.body)
    site = site_profile(args)
    ini = read_ini(Path(args.ini)) if args.ini else JobProperties()
    system = chosen(args.scheduler, site, ini)
    script = JobScript(body).over(call(args.resource).over(ini).over(site.properties))
    text = script.render(system, site.profile)
    for doubt in script.doubts():
        warnings.warn(doubt, JobScriptWarning, stacklevel=2)
    return text


def read_body(path: str) -> str:
    """Read a file, or standard input for ``-``. Newlines and bytes that are not valid UTF-8 are kept unchanged."""
    try:
        data = safe_files.read_limited(sys.stdin.buffer) if path == "-" else safe_files.read_bytes(path)
    except safe_files.FileError as error:
        raise UsageError(f"--body: {path} {error}") from None
    return data.decode("utf-8", errors="surrogateescape")


def site_profile(args: argparse.Namespace) -> SiteProfile:
    """Return the profile of --profile or --site; an empty one if neither is given."""
    if args.profile and args.site:
        raise UsageError(f"--profile {args.profile} and --site {args.site} both describe the site; give one of them")
    if args.profile:
        return read_profile(Path(args.profile))
    return of_site(args.site) if args.site else SiteProfile()


def of_site(name: str) -> SiteProfile:
    from lading.executors.settings import Settings
    from lading.plugin.sites import read_sites

    path = Settings.load().sites_file
    if path is None:
        raise UsageError(f"--site {name}: there is no [lading] sites_file; set it, or give --profile FILE")
    tables = read_sites(path)
    if name not in tables:
        raise UsageError(f"--site {name}: {path} has no such site; the sites are: {nearest_first(name, tables)}")
    return SiteProfile.of_table(tables[name], f"{path} [sites.{name}]", others=True)


def chosen(scheduler: str | None, site: SiteProfile, ini: JobProperties) -> BatchSystem:
    """Return the batch system of --scheduler or of the site, or else of the INI file."""
    systems = batch_systems()
    valid = f"the schedulers are: {', '.join(systems)}"
    if scheduler and site.kind and scheduler != site.kind:
        raise UsageError(
            f"--scheduler {scheduler} does not match the kind of the site, {site.kind!r}; leave --scheduler out"
        )
    name = scheduler or site.kind or ini.backend
    if name is None:
        raise UsageError(
            f"no scheduler is named; give --scheduler, --profile, --site or an INI file with backend; {valid}"
        )
    if name not in systems:
        raise UsageError(f"scheduler {name!r} is unknown; {valid}")
    if ini.backend not in (None, name):
        warnings.warn(
            f"backend {ini.backend} of the INI file is ignored; {name} is used", JobScriptWarning, stacklevel=2
        )
    return systems[name]


def call(pairs: Sequence[str]) -> JobProperties:
    """Read the job properties of the -r options."""
    given: dict[str, str | bool] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"-r {pair!r} has no value; write KEY=VALUE, or {pair}=true for a bare flag")
        if key in given:
            raise PropertyError(f"-r {key} is given twice: {given[key]!r} and {value!r}; keep one")
        given[key] = from_text(key, value)
    return JobProperties.from_mapping(given)
