"""Services that tests share, and what a skipped test means in CI."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from lading.hooks.batch.system import BatchSystem
from tests.services.airflow import Airflow, AirflowError
from tests.services.examples import EXAMPLES
from tests.services.postgres import Postgres

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background of a script: what the tests start must not inherit that it ignores Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests start Python hundreds of times: it must not compile Airflow, and pytest not the tests, each time anew.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A machine that is busy with something else is slow, which is no failure. CI tries the same examples every time.
settings.register_profile("lading", deadline=None, max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("lading"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "lading")

pytest_plugins = ["tests.services.airflow_tables", "tests.services.reporting", "tests.services.workers"]

DATABASES = ("sqlite", "postgresql")
STARTED = pytest.StashKey[list[Airflow]]()
# The folders of tests/integration whose tests share services, which end with the last one of them.
SHARING = {"clusters", "shared", "two_executors"}
# What shares one service takes longer than all tests shall, and another SLURM starts in seconds: those of them that do
# without Grid Engine have two of their own, and those of jobs that no Airflow has queued have one.
APART = {
    "clusters of SLURM": ("ahead", "coming_work", "expected_starts", "gangs", "launch_failures"),
    "clusters of users": ("accounts", "script_jobs", "site_conformance"),
    "clusters of jobs": ("batch_services", "cluster_faults", "job_runs", "job_script_operator", "live_conformance"),
}
# Their jobs have the same names, by which an agent finds what a job has left, to kill it.
AGENTS = "tests/processes/executors/agent"
# The scopes that take longest, longest first, so that all processes end at about the same time.
LONGEST = (
    "tests/integration/test_restarts.py",
    "clusters",
    "clusters of jobs",
    "tests/integration/test_page.py",
    "tests/integration/test_page_views.py",
    "clusters of SLURM",
    "clusters of users",
    "tests/processes/hooks/ec2/test_faults.py",
    "shared",
    "tests/processes/hooks/ec2/test_points.py",
    AGENTS,
    "tests/processes/hooks/ec2/test_site.py",
    "tests/integration/test_machines.py",
    "tests/integration/test_commands.py",
    "tests/integration/test_burst.py",
    "tests/integration/test_lab.py",
    "tests/integration/test_locality.py",
    "tests/integration/test_forecast.py",
    "tests/integration/teams/test_script_attacks.py",
    "tests/integration/test_api_outage.py",
    "tests/integration/test_standalone.py",
    "tests/integration/test_database.py",
    "tests/processes/plugin/subcommands/test_instances.py",
    "two_executors",
    "tests/processes/executors/gangs/test_points.py",
    "tests/integration/test_service.py",
    "tests/integration/test_interruption.py",
    "tests/integration/test_shares.py",
    "tests/integration/test_api_tunnel.py",
    "tests/integration/test_transport.py",
    "tests/integration/test_store.py",
    "tests/unit/plugin/ui/test_web.py",
    "tests/processes/hooks/cluster/test_site.py",
    # Compiles what the planner needs, once for all: what else needs it begins when that is done.
    "tests/unit/scheduling/packing/test_priced.py",
    "tests/unit/test_demo.py",
    "tests/unit/executors/forecast/test_allocation_work.py",
    "tests/unit/plugin/offline/simulation/test_contention.py",
    "tests/unit/executors/controller/test_share_launches.py",
    "tests/unit/executors/forecast/test_live.py",
    "tests/unit/hooks/api_tunnel/test_gate.py",
    "tests/processes/hooks/cluster/test_job_mode.py",
    "tests/unit/hooks/test_readers.py",
    "tests/unit/plugin/ui/test_app.py",
    "tests/unit/executors/gangs/test_gang_controller.py",
    "tests/processes/hooks/job_scripts/test_hook.py",
    "tests/unit/executors/controller/test_site_threads.py",
    "tests/processes/hooks/job_scripts/test_array.py",
    "tests/processes/hooks/conformance/test_live.py",
    "tests/processes/plugin/test_policies.py",
    "tests/unit/executors/controller/test_launched.py",
    "tests/unit/plugin/offline/test_plan.py",
    "tests/unit/executors/controller/test_simulated.py",
    "tests/unit/plugin/offline/simulation/test_simulator.py",
)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL server, started when the first test needs it."""
    with Postgres() as server:
        yield server


@pytest.fixture(scope="session")
def database_url(request: pytest.FixtureRequest) -> Callable[[str], str | None]:
    """Make an empty database of a kind of :data:`DATABASES`; None stands for Airflow's own SQLite file."""
    numbers = itertools.count(1)

    def make(kind: str) -> str | None:
        if kind == "sqlite":
            return None
        server: Postgres = request.getfixturevalue("postgres")
        return server.create_database(f"airflow{next(numbers)}")

    return make


@pytest.fixture
def start_airflow(
    request: pytest.FixtureRequest, database_url: Callable[[str], str | None], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Airflow]]:
    """Start an Airflow for one test: ``start_airflow(database="postgresql", **options of Airflow)``.

    It is stopped when the test ends, by the test itself (``stop(orphans=True)`` after a SIGKILL) or here.
    """
    started = request.node.stash.setdefault(STARTED, [])

    def start(database: str = "sqlite", **options: Any) -> Airflow:
        home = tmp_path_factory.mktemp("airflow")
        service = Airflow(home, database=database_url(database), preloaded=True, **options)
        started.append(service)
        return service.__enter__()

    yield start
    errors = []
    for service in started:
        try:
            service.stop()
        except AirflowError as error:
            errors.append(str(error))
    assert not errors, "\n".join(errors)


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name batch systems: the names of tests must be the same in all processes that run them."""
    return val.name if isinstance(val, BatchSystem) else None


def scope_of(nodeid: str) -> str:
    """Which tests run in the same process, one after the other: of a folder of :data:`SHARING`, else of a module."""
    path = Path(nodeid.partition("::")[0])
    if path.is_relative_to(AGENTS):
        return AGENTS
    if path.parent.name not in SHARING:
        return str(path)
    name = path.stem.removeprefix("test_")
    apart = (scope for scope, names in APART.items() if path.parent.name == "clusters" and name in names)
    return next(apart, path.parent.name)


class ByService(LoadScopeScheduling):  # type: ignore[misc]
    """Gives tests that share a service to the same process (``pytest -n``), what takes longest first."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        config.option.loadscopereorder = False  # the order is that of pytest_collection_modifyitems
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[Any]:
    """Keep the garbage collector from what lasts.

    It took a quarter of the time of the imports, of which nothing is garbage, and a sixth of the tests' to look at it.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put first what takes longest, where several processes run the tests."""
    if not hasattr(config, "workerinput"):
        return
    places = {scope: place for place, scope in enumerate(LONGEST)}

    def key(item: pytest.Item) -> tuple[int, bool]:
        return places.get(scope_of(item.nodeid), len(places)), "/integration/" not in item.nodeid

    items.sort(key=key)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByService:
    """The scheduler of the processes that run the tests, where there are several."""
    return ByService(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
    """Show the services' logs of a failed test; in CI, count a skipped test as failed.

    Where PostgreSQL may not be installed its tests are skipped. In CI a skip would hide a missing service.
    """
    report: pytest.TestReport = yield
    if report.failed:
        for service in _services(item):
            report.sections.append(("Airflow's logs", service.log_tails()))
    return _skip_is_failure(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Iterator[Any]:
    """The same for modules that skip themselves."""
    return _skip_is_failure((yield))


def _services(item: pytest.Item) -> list[Airflow]:
    values = getattr(item, "funcargs", {}).values()
    return [*(value for value in values if isinstance(value, Airflow)), *item.stash.get(STARTED, [])]


def _skip_is_failure(report: Any) -> Any:
    if os.environ.get("CI") == "true" and report.skipped and not hasattr(report, "wasxfail"):
        *_, reason = report.longrepr if isinstance(report.longrepr, tuple) else ("", report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid} was skipped, which fails in CI: {reason}"
    return report
