"""``airflow lading check``: finds faults in the configuration, the store and the sites; prints a finding per line.

With ``--policy``, it prints the minimum permissions of the accounts of sites instead.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
import uuid
from argparse import Namespace
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
from airflow.configuration import AIRFLOW_CONFIG, conf
from airflow.exceptions import AirflowConfigException, AirflowException
from airflow.executors.executor_loader import ExecutorLoader
from airflow.executors.executor_utils import ExecutorName
from airflow.models.team import Team
from airflow.utils import cli as airflow_cli
from airflow.utils.providers_configuration_loader import providers_configuration_loaded
from airflow.utils.session import create_session
from sqlalchemy.exc import SQLAlchemyError

from lading.executors.accounting import task_usage
from lading.executors.controller.housekeeping import cpu_hour
from lading.executors.controller.sites_file import budgets_of, shares_of
from lading.executors.orchestrator import executor_names
from lading.executors.settings import SECTION, Settings, unknown_options
from lading.hooks.files.host import existing
from lading.hooks.files.version import VERSION, MixedVersions, check_versions
from lading.hooks.site import Check, Site
from lading.plugin.database import read_connections
from lading.plugin.host import AirflowHost
from lading.plugin.service import mint
from lading.plugin.sites import SitesError, known_sites, load_sites
from lading.plugin.subcommands.console import complain, show
from lading.plugin.subcommands.controller_state import controller_finding
from lading.plugin.subcommands.trial import trial_finding
from lading.scheduling.accounting.budgets import PeriodBudget, Unit
from lading.scheduling.accounting.share_table import OTHERS, Share
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.resources import format_resources
from lading.scheduling.model.site_names import is_named
from lading.scheduling.text.nearest import nearest_first
from lading.scheduling.text.printable import shortened

BAD = "BAD"
# Placeholders of secrets in the examples in `deploy`.
PLACEHOLDER = re.compile("change[-_ ]?me", re.IGNORECASE)
# Secrets of any length, and the least number of bytes that is safe.
RANDOM, LEAST_SECRET = {("api_auth", "jwt_secret"), ("api", "secret_key")}, 32
NEW_SECRET = "give all of Airflow's components the same one, for example the output of `openssl rand -hex 32`"
# How long to wait for the trial job of a site, and for one whose machine has to be launched first, in seconds.
TRIAL_SECONDS, LAUNCH_SECONDS = 60, 600
EXECUTOR = "lading.executors.LadingExecutor"
# Limits of Airflow on the jobs that it queues per loop, in total and per run, and values at which they do not throttle.
ENOUGH = {
    ("scheduler", "max_tis_per_query"): 256,
    ("core", "parallelism"): 256,
    ("core", "max_active_tasks_per_dag"): 256,
}


@airflow_cli.suppress_logs_and_warning
@providers_configuration_loaded
def check(args: Namespace) -> None:
    """Print a finding per line; exits with status 1 if one is bad."""
    read_connections()
    if args.policy:
        policies(args.site)
        return
    rows = []
    timeout = args.timeout or (LAUNCH_SECONDS if args.launch else TRIAL_SECONDS)
    for finding in each_once(findings(args.site, timeout, args.launch)):
        row = finding_row(finding)
        if not finding.good:
            complain(f"{finding.what}: {finding.message}")
            if args.output in ("table", "plain"):  # the same reader sees stderr
                row["details"] = "see above"
        rows.append(row)
    show(AirflowHost(), rows, args.output)
    if any(row["result"] == BAD for row in rows):
        sys.exit(1)


def each_once(found: Iterable[Check]) -> Iterator[Check]:
    """Yield the findings. A finding that repeats an earlier one refers to the earlier one instead."""
    said: dict[str, str] = {}
    for finding in found:
        if finding.good:
            yield finding
        elif earlier := next((what for text, what in said.items() if is_repeated(text, finding.message)), None):
            yield replace(finding, message=f"see {earlier}")
        else:
            said[finding.message] = finding.what
            yield finding


def is_repeated(one: str, other: str) -> bool:
    return one in other or other in one


def policies(only: Sequence[str]) -> None:
    """Print the minimum permissions of the accounts of sites; exits with status 1 if a site is unknown or none has any.

    :param only: the names of the sites; empty: all
    """
    try:
        known = load_sites(Settings.load())
    except SitesError as error:
        complain(str(error))
        sys.exit(1)
    if unknown := sorted(name for name in only if not any(is_named(each, name) for each in known)):
        complain(f"There is no site {unknown[0]!r}; the sites are: {nearest_first(unknown[0], known)}.")
        sys.exit(1)
    try:
        named = [name for name in known if not only or any(is_named(name, one) for one in only)]
        policies = [known[name].policy() for name in named]
    except (ValueError, OSError) as error:
        complain(str(error))
        sys.exit(1)
    if not any(policies):
        complain("None of these sites has permissions to print; only sites of kind ec2 have.")
        sys.exit(1)
    for text in filter(None, policies):
        print(text)


def finding_row(finding: Check) -> dict[str, Any]:
    result = "warning" if finding.good and finding.warns else "ok" if finding.good else BAD
    return {"check": finding.what, "result": result, "details": finding.message}


def findings(only: Sequence[str], timeout: float, launch: bool = False) -> Iterator[Check]:
    """Check configuration, store and sites, in the order in which they are needed.

    :param only: the sites to check; empty: all
    :param timeout: seconds to wait for the trial job of each site
    :param launch: whether to launch machines for trial jobs
    """
    yield version_finding()
    yield executor_finding()
    try:
        settings = Settings.load()
    except AirflowConfigException as error:
        yield Check("configuration", False, str(error))
        return
    yield configuration_finding()
    yield from secret_findings()
    yield state_folder_finding(settings.state_folder)
    yield store_finding()
    yield from team_findings()
    yield token_finding()
    yield key_finding()
    yield controller_finding(AirflowHost(), settings)
    yield throttle_finding()
    try:
        sites = load_sites(settings)
    except SitesError as error:
        yield Check("sites", False, str(error))
        return
    yield Check("sites", True, ", ".join(f"{site.name} ({site.kind})" for site in sites.values()))
    yield here_finding(sites)
    yield default_finding(settings)
    yield sizing_finding(settings)
    yield from tenant_findings(settings, sites)
    for name in only or sites:
        # A cluster with several accounts is one site for each.
        named = [name] if not only else [each for each in sites if is_named(each, name)]
        for each in named:
            yield from site_findings(sites[each], timeout, launch)
        if not named:
            yield Check(f"site {name}", False, f"there is no such site; the sites are: {nearest_first(name, sites)}")


def version_finding() -> Check:
    """Report whether all installed parts of Lading have the same version."""
    try:
        check_versions()
    except MixedVersions as error:
        return Check("version", False, str(error))
    return Check("version", True, f"Lading {VERSION}")


def executor_finding() -> Check:
    """Report whether Airflow uses Lading, and can load all executors in ``[core] executor``."""
    named = executor_names.configured()
    for path in (each.path for each in named):
        try:
            ExecutorLoader.import_executor_cls(ExecutorName(ExecutorLoader.executors.get(path, path)))
        except ImportError as error:
            valid = nearest_first(path, [EXECUTOR, *ExecutorLoader.executors])
            message = f"[core] executor has {shortened(path)}, which cannot be loaded: {error}; valid: {valid}"
            return Check("executor", False, message)
    try:
        ExecutorLoader.get_executor_names(validate_teams=False)
    except AirflowException as error:
        return Check("executor", False, f"[core] executor: {error}")
    if any(each.is_lading for each in named):
        return Check("executor", True, f"[core] executor has {EXECUTOR}")
    names = ", ".join(each.path for each in named)
    return Check("executor", False, f"[core] executor is {names}; set it to {EXECUTOR}, or add it after a comma")


def configuration_finding() -> Check:
    """Report options that Lading does not have. Values were validated before."""
    if unknown := list(unknown_options()):
        return Check("configuration", False, "; ".join(unknown))
    return Check("configuration", True, f"the section [{SECTION}] is valid")


def secret_findings() -> Iterator[Check]:
    """Report secrets of Airflow that are placeholders or easy to guess."""
    found: Mapping[str, Any] = conf.as_dict(display_source=True, display_sensitive=True, raw=True)
    for section, options in found.items():
        for key, (value, source) in options.items():
            what, text = f"[{section}] {key} ({source})", str(value)
            size = len(text.encode())
            if (placeholder := PLACEHOLDER.search(text)) and conf.is_sensitive_option(section, key):
                yield Check(
                    what, False, f"still contains the placeholder {placeholder[0]}, which everybody knows; {NEW_SECRET}"
                )
            elif (section, key) in RANDOM and 0 < size < LEAST_SECRET and not is_airflows_own(text):
                message = f"has {size} bytes, so it can be guessed; valid: at least {LEAST_SECRET}; {NEW_SECRET}"
                yield Check(what, False, message)


def is_airflows_own(secret: str) -> bool:
    """Whether a secret looks like one that Airflow generates for a new ``airflow.cfg``: 16 random bytes."""
    try:
        return len(secret) == 24 and len(b64decode(secret, validate=True)) == 16
    except ValueError:
        return False


def store_finding() -> Check:
    host = AirflowHost()
    with host.session() as session:
        fault = host.store_fault(session)
    return Check("store", fault is None, fault or "the tables are up to date")


def state_folder_finding(folder: Path) -> Check:
    """Report whether Lading can write its state folder, which need not exist yet."""
    try:
        with tempfile.TemporaryFile(dir=existing(folder)) as file:
            file.write(b"x")
            file.flush()
    except OSError as error:
        message = f"{folder} cannot be written: {error}; it must belong to Airflow's user, on a disk with free space"
        return Check("state folder", False, message)
    return Check("state folder", True, f"{folder} is writable")


def token_finding() -> Check:
    """Report whether JWTs can be created, with which tasks authenticate to the API server."""
    try:
        mint()(str(uuid.uuid4()), 60.0)
    except Exception as error:  # a missing, unreadable or malformed key: each raises a different exception
        message = f"no JWT can be created: {error}; see jwt_secret and jwt_private_key_path in [api_auth]"
        return Check("tokens", False, message)
    return Check("tokens", True, "JWTs for tasks can be created")


def key_finding() -> Check:
    """Report whether the Fernet key persists. It identifies this deployment to its folders and machines."""
    core: Mapping[str, Any] = conf.as_dict(display_source=True, display_sensitive=True, raw=True)["core"]
    key, source = core.get("fernet_key", ("", "default"))
    if not str(key).strip():
        fault = "is empty, so Airflow encrypts no connections, and the URL of its database identifies this deployment"
    elif source == "default":
        fault = f"is not set: Airflow generated one for this process only, because it could not write {AIRFLOW_CONFIG}"
    elif source == "airflow.cfg" and is_of_container(Path(AIRFLOW_CONFIG), container_began_at()):
        fault = f"is in {AIRFLOW_CONFIG}, which was written in this container and is lost with it"
    else:
        return Check("fernet key", True, f"[core] fernet_key is set ({source})")
    return Check(
        "fernet key",
        True,
        f"[core] fernet_key {fault}; if it changes, Lading takes the folders of its sites for those of another "
        "deployment, so it starts nothing there, and it does not recognize the machines that it has launched; set "
        "AIRFLOW__CORE__FERNET_KEY to a permanent key, the same for all schedulers, API servers and controllers",
        warns=True,
    )


def team_findings() -> Iterator[Check]:
    """For each team with its own Lading executor, report whether its options are valid and Airflow has the team."""
    teams = [each.team for each in executor_names.configured() if each.team is not None and each.is_lading]
    known = Team.get_all_team_names() if teams else set()
    for team in teams:
        try:
            own = Settings.of_team(team)
        except AirflowConfigException as error:
            yield Check(f"team {team}", False, str(error))
            continue
        if team not in known:
            create = f"airflow teams create {team}"
            yield Check(
                f"team {team}", False, f"Airflow has no such team, so the scheduler will not start; run: {create}"
            )
            continue
        asked = format_resources(own.default_resources)
        yield Check(f"team {team}", True, f"it has its own executor; a task without hints requests {asked}")


def container_began_at(mounts: Path = Path("/proc/self/mountinfo")) -> float | None:
    """Return when the container of this process started, epoch seconds; None: no container, or its files outlive it."""
    try:
        lines = [line.split() for line in mounts.read_text().splitlines()]
    except OSError:
        return None
    roots = [line[line.index("-") + 1] for line in lines if len(line) > 4 and line[4] == "/" and "-" in line[:-1]]
    is_layered = bool(roots) and "overlay" in roots[-1]
    return psutil.Process(1).create_time() if is_layered else None


def is_of_container(file: Path, began_at: float | None) -> bool:
    """Whether a file was created in this container and is lost with it: it is neither on a volume nor in the image.

    :param began_at: when the container started, epoch seconds; None: there is no container
    """
    if began_at is None or not file.exists():
        return False
    found = file.stat()
    return found.st_dev == Path("/").stat().st_dev and found.st_mtime > began_at


def default_finding(settings: Settings) -> Check:
    """Report where a task without hints runs, and how many run at once."""
    what, asked = "tasks without hints", settings.default_resources
    try:
        known = known_sites(settings)
    except (OSError, json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        return Check(what, False, f"{settings.published_sites} cannot be read: {error!r}")
    except ValueError as error:
        return Check(what, False, f"what the sites have is unknown: {error}")
    takers = {name: site for name, site in known.items() if site.accept_untargeted}
    if not takers:
        return Check(
            what, False, "no site takes tasks that name no site; set accept_untargeted = true in the table of one"
        )
    text = f"a task without hints requests {format_resources(asked)}"
    fitting = [name for name, site in takers.items() if site.suits(PlannedJob("", asked))]
    if fitting:
        batch = takers[fitting[0]].dialect is not None
        text += (
            f", which fits site {fitting[0]}"
            + batch * ": it runs there as a batch job, so the nodes need the Dag files"
        )
        there = {name: takers[name].at_once(asked) for name in fitting}
        if None in there.values():
            return Check(what, True, text)
        counts = {name: count for name, count in there.items() if count is not None}
        total, limit = sum(counts.values()), conf.getint("core", "parallelism", fallback=0)
        by_site = (
            "" if len(counts) == 1 else f" ({', '.join(f'{count} at site {name}' for name, count in counts.items())})"
        )
        text += f"; {total} of them run at once{by_site}"
        if few := total < limit:
            least = takers[fitting[0]].scarcest(asked)
            text += (
                f", fewer than [core] parallelism = {limit}, limited by {least}; lower [{SECTION}] default_{least} "
                "to run more of them at once, if they use no more than that"
            )
        return Check(what, True, text, warns=few)
    rooms = {name: site.closest(PlannedJob("", asked)) for name, site in takers.items()}
    most = "; ".join(f"site {name} has {format_resources(room)}" for name, room in rooms.items() if room)
    return Check(
        what,
        False,
        f"{text}, more than any site has that takes tasks without a site: {most}; lower [{SECTION}] default_*",
    )


def tenant_findings(settings: Settings, sites: Mapping[str, Site[Any]]) -> Iterator[Check]:
    """Report the shares and budgets of the sites file, and those without effect."""
    shares = shares_of(settings.sites_file, sites, settings.share_half_life).table
    budgets = budgets_of(settings.sites_file)
    if shares:
        weights = {each.name: each.weight for each in shares}
        weights.setdefault(OTHERS, 1.0)
        faults = [] if settings.fair else [f"[{SECTION}] fair = False, so they have no effect"]
        faults += overkept(shares, sites)
        yield _tenants("shares", [f"{name}: weight {weight:g}" for name, weight in weights.items()], shares, faults)
    if budgets:
        amounts = [f"{each.name}: {each.unit.written(each.most)} {each.unit.value} a {each.per}" for each in budgets]
        faults = []
        if in_usd := ", ".join(each.name for each in budgets if each.unit is Unit.USD):
            if not any(map(has_price, sites.values())):
                faults.append(
                    f"no site has a price, so {in_usd} is never spent; set usd_per_hour or usd_per_cpu_hour "
                    "in the table of a site, or use cpu_hours instead of usd"
                )
            elif not any(map(pays_for_more, sites.values())):
                faults.append(
                    f"no site launches machines or has batch jobs with a price, so {in_usd} only warns; to stop jobs, "
                    "use cpu_hours instead of usd"
                )
        yield _tenants("budgets", amounts, budgets, faults)


def overkept(shares: Sequence[Share], sites: Mapping[str, Site[Any]]) -> Iterator[str]:
    """Yield where more is kept for shares than the sites have, as far as that is known."""
    for place in dict.fromkeys(kept.site for share in shares for kept in share.kept):
        named = [site for name, site in sites.items() if place is None or is_named(name, place)]
        machines = [each for site in named if not site.launches for each in site.potential()]
        if any(site.launches for site in named) or any(each.max_jobs is not None for each in machines):
            continue  # more can be launched at any time, or the size of the queue is unknown
        there = {name: sum(getattr(each.capacity, name) for each in machines) for name in ("cpus", "memory", "gpus")}
        there["machines"] = len(machines)
        for name, most in there.items():
            kept = {s.name: k.amounts[name] for s in shares for k in s.kept if k.site == place and name in k.amounts}
            if (total := sum(kept.values())) > most:
                where = "there are" if place is None else f"site {place} has"
                yield f"{name} = {total:g} is reserved for {', '.join(kept)}, but {where} only {most:g}; lower it"


def _tenants(what: str, found: Sequence[str], tables: Sequence[Share | PeriodBudget], faults: Sequence[str]) -> Check:
    named = sorted({each.who.team for each in tables if each.who.team is not None})
    known = set(Team.get_all_team_names()) if named and executor_names.has_teams() else set()
    if strange := [shortened(each) for each in named if each not in known]:
        valid = f"valid: {', '.join(sorted(known))}" if known else "it has none, or [core] multi_team is not set"
        faults = [*faults, f"Airflow has no team {' or '.join(strange)}, so that applies to no job; {valid}"]
    return Check(what, True, "; ".join([*found, *faults]), warns=bool(faults))


def has_price(site: Site[Any]) -> bool:
    return site.trial_costs or any(cpu_hour(site, each) for each in site.potential())


def pays_for_more(site: Site[Any]) -> bool:
    """Whether a site has something that a budget in USD can stop: launched machines, or batch jobs with a price."""
    is_launched = site.launches or any(each.max_jobs is not None for each in site.potential())
    return has_price(site) and is_launched


def here_finding(sites: Mapping[str, Site[Any]]) -> Check:
    """Report whether jobs can run on the machine that has the sites file."""
    here = [name for name, site in sites.items() if site.has_sites_file]
    if here:
        return Check("this machine", True, f"site {here[0]}, where the tasks of JobScriptOperator run")
    return Check(
        "this machine",
        True,
        "is not a site ([sites.local] enabled = false): all tasks run elsewhere, so Airflow and the Dags are needed "
        "there; a JobScriptOperator is an import error unless its executor_config names a site that has the sites file",
        warns=True,
    )


def sizing_finding(settings: Settings) -> Check:
    """Report what sizing tasks by their use frees."""
    what = "sizing"
    if not settings.packs_by_use:
        return Check(what, True, "tasks without hints are packed by the defaults ([lading] sizing = hints)")
    try:
        with create_session(scoped=False) as session:
            found = task_usage.freed(session, time.time())
    except SQLAlchemyError as error:
        return Check(what, False, f"the savings cannot be read: {error}")
    return Check(
        what,
        True,
        f"running tasks leave {found.cpus:.2f} cpus and {found.gib:.2f} GiB free thanks to sizing; in the last day it "
        f"freed {found.cpu_hours:.1f} cpu-hours and {found.gib_hours:.1f} GiB-hours",
    )


def throttle_finding() -> Check:
    """Report whether Airflow queues the jobs of a mapped task together or a few at a time."""
    few = {
        f"[{section}] {option}": (value, enough)
        for (section, option), enough in ENOUGH.items()
        if (value := conf.getint(section, option)) < enough
    }
    if not few:
        return Check("throttles", True, "Airflow queues the jobs of a mapped task together")
    raised = ", ".join(f"{option} from {value} to {enough} or more" for option, (value, enough) in few.items())
    return Check(
        "throttles",
        True,
        f"Airflow queues the jobs of a mapped task a few at a time; to queue them together, raise {raised}",
        warns=True,
    )


def site_findings(site: Site[Any], timeout: float, launch: bool) -> Iterator[Check]:
    """Check a site, and run trial jobs there if the checks succeed.

    :param launch: whether the trial can cost money
    """
    good = True
    for finding in site.checks():
        good = good and finding.good
        yield replace(finding, what=f"site {site.name}: {finding.what}")
    if good and site.trial_costs and not launch:
        message = (
            "not tried, because it costs money; --launch runs a trial job on the cheapest machine and terminates it"
        )
        yield Check(f"site {site.name}", True, message, warns=True)
    elif good:
        for what, part in site.parts().items():
            yield trial_finding(what, part, timeout)
