"""The page as a user sees it: in Debian's Chromium, on a real Airflow."""

from __future__ import annotations

import csv
import datetime
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from tests.services import node_python, processes
from tests.services.airflow import Airflow
from tests.services.chromium import Window, chromium
from tests.services.ec2 import FakeEC2
from tests.services.metrics import Collector
from tests.services.page_data import seed

# The folder for the screenshots of a run, if there is to be any.
PICTURES = Path(os.environ["LADING_PICTURES"]).absolute() if "LADING_PICTURES" in os.environ else None
SITES = """
[sites.local]
kind = "local"
cpus = 4
memory = "8 GiB"
disk = "10 GiB"
usd_per_hour = 0.4

[sites.cloud]
kind = "ec2"
aws_conn_id = ""
subnets = {subnets}
security_groups = ["{security_group}"]
ami = {{{images}}}
instance_types = ["m5.large"]
capacity_type = "spot-with-fallback"
user = "{user}"
ssh_port = {port}
work_dir = "{home}/lading"
python = "{python}"
dags = "sync"
setup = "export AIRFLOW_HOME=$HOME/airflow AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT=60"

# What shares have used is only counted where there is more than one; all that runs is of the other.
[[shares]]
name = "none"
dag = "no_such_dag"
weight = 0.01

[[shares]]
name = "all"
dag = "*"

[[budgets]]
name = "all"
dag = "*"
usd = 1000
per = "month"
"""
# Two of three fit at once, one fails, and one takes the whole machine until there is a file.
DAG = """
import time
from pathlib import Path
from airflow.sdk import dag, task
from lading.operators import resources

@dag(schedule=None)
def shown():
    @task(executor_config=resources(cpus=2, memory="200 MiB", time="10 min"))
    def nap(number):
        time.sleep(8)

    @task(executor_config=resources(cpus=4), trigger_rule="all_done")
    def large():
        while not Path("END_FILE").exists():
            time.sleep(0.1)

    @task
    def breaks():
        raise ValueError("on purpose")

    [nap.expand(number=[1, 2, 3]), breaks()] >> large()

shown()
"""
# Two machines that are bought, and jobs there that wait for a file to end.
BOUGHT = """
import time
from pathlib import Path
from typing import Any
from airflow.sdk import dag, task
from lading.operators import resources

@dag(schedule=None)
def bought():
    for kind in ("spot", "on-demand"):
        @task(task_id=kind, executor_config=resources(site="cloud", cpus=1.5, capacity_type=kind))
        def fly(end):
            while not Path(end).exists():
                time.sleep(0.1)

        fly("{end}")

bought()
"""
# One gang needs more than another task leaves, another one this machine and one that has yet to boot.
TOGETHER = """
import time
from pathlib import Path
from airflow.sdk import dag, task
from lading.operators import resources

BEGAN = Path("BEGAN_FILE")

@dag(schedule=None)
def together():
    @task(executor_config=resources(site="local", cpus=1))
    def other():
        BEGAN.touch()
        while BEGAN.exists():
            time.sleep(0.1)

    @task(executor_config=resources(site="local"))
    def wait():
        while not BEGAN.exists():
            time.sleep(0.1)

    @task(executor_config=resources(gang="large", site="local", cpus=2, attempts={"pauses": ["1h"], "count": 9}))
    def half(number):
        pass

    @task(executor_config=resources(gang="far", site="local", cpus=1))
    def here():
        pass

    @task(executor_config=resources(gang="far", site="cloud", cpus=1.5))
    def there():
        pass

    other()
    wait() >> half.expand(number=[1, 2])
    here()
    there()

together()
"""
# How many seconds the chart shows.
SECONDS_SHOWN = """() => {
    const chart = document.querySelector('[data-testid=packing-chart]').packingChart;
    return chart?.chart && chart.seconds(170);
}"""

# Whether the page is no wider than a window of so many pixels.
FITS = """width => {
    const frame = document.querySelector('[data-testid=lading]');
    return frame.clientWidth <= width && frame.scrollWidth <= frame.clientWidth + 1;
}"""

# How often the Tab key is pressed from the first control of the page to its last.
TAB_STOPS = """() => [...document.querySelectorAll(
    '[data-testid=lading] :is(a[href], button:not([disabled]), input, select, [tabindex])')]
    .filter((each) => each.tabIndex >= 0 && each.checkVisibility()).length"""
PAGE = "/plugin/lading"
# Seconds after which the memory of running jobs is reported, which is shown of sites.
MEASURED_SOON = {"lading.executors.agent.running.MEMORY_INTERVAL": 2.0}
# The sub-pages, and the tables that each has.
VIEWS = {
    "Overview": ("Sites", "Failures by cause"),
    "Waits": ("Waiting jobs",),
    "Machines": ("Machines",),
    "Jobs": ("Jobs",),
    "Cost": ("Costs by Dag",),
}

# A machine that is busy with something else is slow; that is no failure.
expect.set_options(timeout=60_000)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    """An API server alone, where people log in; what it shows is made up."""
    home = tmp_path_factory.mktemp("full")
    (home / "passwords.json").write_text(json.dumps({user: user for user in ("admin", "viewer")}))
    config = {
        "core.simple_auth_manager_all_admins": False,
        "core.simple_auth_manager_users": "admin:admin,viewer:viewer",
        "core.simple_auth_manager_passwords_file": home / "passwords.json",
    }
    airflow = Airflow(home, components=["api-server"], config=config, preloaded=True)
    airflow.migrate()
    engine = create_engine(airflow.environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"])
    with Session(engine) as session:
        seed(session, time.time(), jobs=1500, machines=9, waiting=5000)
    engine.dispose()
    airflow.start("api-server")
    airflow.wait_until_healthy()
    yield airflow
    airflow.stop()


def login(airflow: Airflow, user: str) -> str:
    """Log in; return the token."""
    answer = httpx.post(f"{airflow.url}/auth/token", json={"username": user, "password": user}, timeout=60)
    token: str = answer.raise_for_status().json()["access_token"]
    return token


@pytest.fixture(scope="module")
def admin(full: Airflow) -> str:
    return login(full, "admin")


@pytest.fixture(scope="module")
def ec2() -> Iterator[FakeEC2]:
    with FakeEC2(boot_seconds=0.5) as service:
        yield service


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    """What that Airflow sends to its backends of metrics and traces."""
    with Collector() as collector:
        yield collector


@pytest.fixture(scope="module")
def real(
    ec2: FakeEC2,
    collector: Collector,
    database_url: Callable[[str], str | None],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Airflow, str]]:
    """An Airflow that has run the Dag, but for its last task, which runs until :func:`end_shown`.

    It is on PostgreSQL: with SQLite the audit log of a request may find the database locked, and the request fails.
    """
    home = tmp_path_factory.mktemp("real")
    sites = SITES.format(
        subnets=list(ec2.subnets.values()),
        security_group=ec2.security_group,
        images=", ".join(f'{arch} = "{image}"' for arch, image in ec2.ami.items()),
        user=ec2.user,
        port=ec2.ssh_port,
        home=ec2.account.home,
        python=node_python.make(ec2.account),
    )
    (home / "sites.toml").write_text(sites)
    config = {
        "lading.sites_file": home / "sites.toml",
        "core.fernet_key": "cGxlYXNlIGRvIG5vdCB1c2UgdGhpcyBrZXkgZXZlcjE=",
        "metrics.otel_interval_milliseconds": 2000,
    }
    for section in ("metrics", "traces"):
        config |= {
            f"{section}.otel_on": True,
            f"{section}.otel_host": "127.0.0.1",
            f"{section}.otel_port": collector.port,
        }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**ec2.environment, "OTEL_TRACES_EXPORTER": "otlp_proto_http"}.items():
            patch.setenv(name, value)
        airflow = Airflow(
            home, database=database_url("postgresql"), config=config, preloaded=True, constants=MEASURED_SOON
        )
    with airflow:
        airflow.add_dag("shown", DAG.replace("END_FILE", str(home / "end")))
        # The chart begins with the first machine, and the run shall be what is looked at, not all there is.
        assert processes.wait_until(lambda: machines(airflow), 60), airflow.log_tails()
        run_id = airflow.trigger("shown")
        airflow.wait_for_task("shown", run_id, "large", "running", timeout=180)
        yield airflow, run_id


def end_shown(real: tuple[Airflow, str]) -> None:
    """Let the last task of the Dag end, and with it the run."""
    airflow, run_id = real
    (airflow.home / "end").touch()
    airflow.wait_for_run("shown", run_id)


def machines(airflow: Airflow) -> list[Any]:
    window = {"since": time.time() - 60, "until": time.time()}
    found: list[Any] = httpx.get(f"{airflow.url}/lading/machines", params=window, timeout=60).raise_for_status().json()
    return found


def picture(window: Window, name: str) -> None:
    if PICTURES is not None:
        window.picture(PICTURES / f"{name}.png")


def view(page: Page, name: str) -> None:
    """Go to one of the sub-pages as a person does."""
    page.get_by_role("navigation", name="Lading").get_by_role("link", name=name, exact=True).click()


def drawn(page: Page) -> None:
    """Wait until the chart is drawn."""
    page.wait_for_selector("[data-testid=packing-chart][data-redraw-ms]")


def test_the_page_answers_its_questions(full: Airflow, admin: str, browser: Browser) -> None:
    window = Window(browser, full.url, token=admin, height=1000)
    page = window.open(PAGE)
    for tile in ("Running", "Waiting", "Failed tries, 24 h", "Machines up", "cpus requested", "USD per hour", "Today"):
        expect(page.locator(f"[data-tile={tile!r}]")).to_be_visible()
    expect(page.locator("[data-tile=Waiting]")).to_contain_text("5,000")
    expect(page.locator("[data-tile='Machines up']")).to_contain_text("9")
    sites = page.get_by_role("table", name="Sites")
    expect(sites).to_contain_text("it has not answered for more than 10 s")
    expect(sites).to_contain_text("max_allocations: 8 of 8")
    expect(page.get_by_role("table", name="Failures by cause")).to_contain_text("the log of the task")
    for name, begins in (("the dashboard", "{"), ("alert rules", "# Alerts for Grafana")):
        with page.expect_download() as download:
            page.get_by_role("link", name=name).click()
        assert download.value.path().read_text(encoding="utf-8").startswith(begins)
    picture(window, "now")
    view(page, "Waits")
    waits = page.get_by_role("table", name="Waiting jobs")
    for text in ("All allocations are busy", "max_allocations 200 of 200", "Raise max_allocations", "genomes"):
        expect(waits).to_contain_text(text)
    picture(window, "waits")
    view(page, "Machines")
    drawn(page)
    assert page.locator("[data-testid=packing-chart] canvas").count() >= 1
    expect(page.get_by_role("table", name="Machines")).to_contain_text("local/host")
    picture(window, "page")
    page.get_by_label("Time range").select_option("604800")
    page.wait_for_function(f"({SECONDS_SHOWN})() >= 86400")  # it begins with the first machine, a day before
    picture(window, "week")
    page.get_by_role("button", name="old: 2 nodes").click()  # one row for both becomes a row for each
    rows = "document.querySelector('[data-testid=packing-chart]').packingChart.shown.jobs.map((job) => job.place)"
    page.wait_for_function(f"{rows}.includes('old/n1')")
    page.reload()  # what is opened, and how far back it goes, is in the address
    page.wait_for_function(
        f"document.querySelector('[data-testid=packing-chart]')?.packingChart?.shown && {rows}.includes('old/n1')"
    )
    view(page, "Machines")
    machines = page.get_by_role("table", name="Machines").locator("tbody tr")
    requested = page.get_by_role("button", name="cpus, memory requested / up")
    requested.click()  # what can be drained first, then the busiest
    expect(page).to_have_url(re.compile("sort=used$"))
    header = page.get_by_role("table", name="Machines").get_by_role("columnheader", name="cpus, memory requested / up")
    expect(header).to_have_attribute("aria-sort", "ascending")
    first = machines.first.get_by_role("link").first  # its name: what it has cost grows meanwhile
    freest = first.inner_text()
    requested.click()
    expect(page).to_have_url(re.compile("sort=used&order=desc"))
    expect(first).not_to_have_text(freest, use_inner_text=True)
    page.go_back()
    expect(first).to_have_text(freest, use_inner_text=True)
    view(page, "Cost")
    expect(page.get_by_role("table", name="Costs by Dag")).to_contain_text("genomes")
    expect(page.locator("[data-tile=Used]")).to_contain_text("$")
    page.get_by_label("Split by").select_option("task")
    expect(page.get_by_role("table", name="Costs by task")).to_contain_text("genomes.align")
    page.get_by_label("Split by").select_option("run")
    expect(page.get_by_role("table", name="Costs by run")).to_contain_text("scheduled__1")
    picture(window, "cost")
    assert window.faults == []
    page.close()


def test_a_site_that_is_down_says_so_and_since_when(full: Airflow, admin: str, browser: Browser) -> None:
    window = Window(browser, full.url, token=admin)
    page = window.open(PAGE)
    old = page.get_by_role("table", name="Sites").locator("tbody tr", has_text="old")
    for text in ("down", re.compile(r"\d\d min ago"), "it has not answered for more than 10 s"):
        expect(old).to_contain_text(text)
    others = page.get_by_role("table", name="Sites").locator("tbody tr").filter(has_not_text="old")
    expect(others).to_have_count(2)
    for other in others.all():
        expect(other.locator("td").nth(1)).to_have_text("up")
    old.get_by_role("link", name="Machines of old").press("Enter")
    drawn(page)  # what ran there before is still shown, and nothing else
    assert page.get_by_label("Filter by site").input_value() == "old"
    expect(page.get_by_role("button", name="old: 2 nodes")).to_be_visible()
    expect(page.get_by_text("No machine is up")).to_be_visible()
    assert window.faults == []
    page.close()


def test_five_thousand_that_wait_are_a_row_for_each_reason(full: Airflow, admin: str, browser: Browser) -> None:
    window = Window(browser, full.url, token=admin)
    page = window.open(f"{PAGE}?view=waits")
    rows = page.get_by_role("table", name="Waiting jobs").locator("tbody tr")
    expect(rows).to_have_count(5)
    counts = [int(row.get_by_role("link").first.inner_text().replace(",", "")) for row in rows.all()]
    assert sum(counts) == 5000
    assert counts == sorted(counts, reverse=True)
    moment = r"(\w+ \d+, )?\d\d:\d\d"
    for row in rows.all():
        _, _, start, oldest, cpus, dags, remedy = row.locator("td").all_inner_texts()
        assert re.match(
            rf"about {moment}; between {moment} and {moment}\s+"
            r"[\d,]+ jobs ahead of it .*; (about one start every \d+ (s|min|h)|the start allows for)",
            start,
        ), start
        assert re.fullmatch(r"[\d.]+ (s|min|h)( \d+ (min|s))?", oldest), oldest
        assert cpus
        assert {"etl", "genomes", "report"} <= set(dags.split()), "of each Dag some wait"
        assert remedy
    # A group leads to its jobs, a Dag in it to those of both, and the back button to the group.
    rows.first.get_by_role("link", name="jobs: All allocations are busy").click()
    expect(page.get_by_test_id("matching")).to_have_text(f"{counts[0]:,} jobs")
    jobs = page.get_by_role("table", name="Jobs", exact=True).locator("tbody tr")
    expect(jobs).to_have_count(25)
    for job in jobs.all():
        expect(job).to_contain_text("200 of 200 allocations are busy")
    page.go_back()
    rows.first.get_by_role("link", name=re.compile("^etl: ")).click()
    expect(page.get_by_role("group", name="Active filters")).to_contain_text("Dag: etl")
    expect(jobs.first).to_contain_text("etl.")
    picture(window, "waiting")
    assert window.faults == []
    page.close()


def test_jobs_are_found_sorted_and_paged_and_all_is_in_the_address(full: Airflow, admin: str, browser: Browser) -> None:
    window = Window(browser, full.url, token=admin)
    page = window.open(PAGE)
    matching, jobs = page.get_by_test_id("matching"), page.get_by_role("table", name="Jobs", exact=True)
    page.get_by_label("Find a job or machine").fill("genomes.align[7]")
    page.get_by_label("Find a job or machine").press("Enter")
    expect(jobs.locator("tbody tr").first).to_contain_text("genomes.align[7]")
    page.get_by_label("Find a job or machine").fill("local/host")
    page.get_by_label("Find a job or machine").press("Enter")
    page.get_by_role("list", name="Found").get_by_role("link", name="Chart of local/host").click()
    expect(page.get_by_role("table", name="Machines").locator("tbody tr")).to_have_count(1)
    page.go_back()
    page.go_back()
    page.get_by_role("button", name="Remove find genomes.align[7]").click()
    expect(matching).to_have_text("more than 5,000 jobs")  # no more are counted
    page.get_by_label("Filter by state").select_option("failed")
    expect(page.get_by_role("table", name="Failures by cause")).to_be_visible()
    # What is looked for from everywhere is looked for here among what is chosen.
    page.get_by_label("Find a job or machine").fill("align")
    page.get_by_label("Find a job or machine").press("Enter")
    expect(page.get_by_role("group", name="Active filters")).to_contain_text("state: failed")
    expect(page).to_have_url(re.compile("q=align"))
    page.go_back()
    expect(page.get_by_label("Find a job or machine")).to_have_value("")
    page.get_by_label("Filter by site").select_option("hpc")
    expect(matching).to_have_text(re.compile("^[0-9]{2} jobs"))
    jobs.get_by_role("button", name="Ran").click()
    expect(jobs.get_by_role("columnheader", name="Ran")).to_have_attribute("aria-sort", "descending")
    busy = page.locator("[aria-busy=true]")
    expect(busy).to_have_count(0)
    first = jobs.locator("tbody tr").first
    longest = first.inner_text()
    page.get_by_role("button", name="Next page").click()
    expect(page.get_by_role("button", name="First page")).to_be_enabled()
    expect(busy).to_have_count(0)
    address, second = page.url, first.inner_text()
    page.go_back()
    expect(first).to_have_text(longest, use_inner_text=True)
    page.goto(address)  # as whoever it is sent to
    expect(first).to_have_text(second, use_inner_text=True)
    expect(page.get_by_role("group", name="Active filters")).to_contain_text("site: hpc")
    picture(window, "jobs")
    assert window.faults == []
    page.close()


def test_one_failing_route_is_said_of_its_section_and_an_outage_once(
    full: Airflow, admin: str, browser: Browser
) -> None:
    window = Window(browser, full.url, token=admin)
    page = window.page
    stale, of_section = page.get_by_test_id("stale"), page.locator("[data-testid=lading] .trouble")
    page.route("**/lading/failures**", lambda route: route.fulfill(status=500, json={"detail": "on purpose"}))
    window.open(PAGE)
    expect(page.get_by_role("table", name="Sites")).to_be_visible()
    expect(page.get_by_role("region", name=re.compile("^Failures"))).to_contain_text("Could not be loaded: on purpose")
    expect(of_section).to_have_count(1)
    with page.expect_response("**/lading/summary"):  # the others go on
        pass
    expect(stale).to_have_count(0)
    with page.expect_request("**/lading/failures**"):  # before it would have asked by itself
        of_section.get_by_role("button", name="Try now").click()
    page.unroute_all()
    expect(of_section).to_have_count(0)
    view(page, "Machines")
    drawn(page)
    page.route("**/lading/**", lambda route: route.abort())
    expect(stale).to_contain_text(re.compile(r"Not updated since \d\d:\d\d:\d\d: the API server does not answer"))
    expect(stale).to_have_count(1)
    expect(of_section).to_have_count(0)
    expect(page.get_by_role("table", name="Machines")).to_contain_text("local/host")  # what was known is still there
    picture(window, "stale")
    with page.expect_request("**/lading/**"):
        stale.get_by_role("button", name="Try now").click()
    page.unroute_all()
    expect(stale).to_have_count(0)
    page.route("**/lading/**", lambda route: route.fulfill(status=401, json={"detail": "Not authenticated"}))
    expect(stale.get_by_role("link", name="Log in")).to_be_visible()
    page.unroute_all()
    expect(stale).to_have_count(0)
    page.close()


def test_all_is_within_reach_of_the_tab_key(full: Airflow, admin: str, browser: Browser) -> None:
    window = Window(browser, full.url, token=admin)
    page = window.open(PAGE)
    for name, tables in VIEWS.items():
        view(page, name)
        for caption in tables:
            expect(page.get_by_role("table", name=caption, exact=True)).to_be_visible()
        stops = page.evaluate(TAB_STOPS)
        assert 5 < stops < 40, (name, stops)
    view(page, "Machines")
    table = page.get_by_role("table", name="Machines")
    expect(table).to_be_visible()
    buttons = table.locator("tbody").get_by_role("button")
    expect(buttons).not_to_have_count(0)  # whether the user may act is another answer
    names = [each.get_attribute("aria-label") or "" for each in buttons.all()]
    assert len(names) == len(set(names)) > 10, "each is named with its machine"
    first = table.get_by_role("button", name=names[0])
    first.focus()
    page.keyboard.press("ArrowDown")
    expect(table.get_by_role("button", name=names[2])).to_be_focused()
    assert window.faults == []
    page.close()


def test_without_chakra_the_tables_are_plain(full: Airflow, admin: str, browser: Browser) -> None:
    window = Window(browser, full.url, token=admin, without=("ChakraUI",))
    page = window.open(PAGE)
    expect(page.locator("[data-tile=Waiting]")).to_contain_text("5,000")
    for name, tables in VIEWS.items():
        view(page, name)
        for table in tables:
            expect(page.get_by_role("table", name=table, exact=True).locator("tbody tr")).not_to_have_count(0)
    view(page, "Machines")
    drawn(page)
    page.get_by_role("table", name="Machines").get_by_role("button", name="Drain").first.click()
    page.get_by_role("alertdialog").get_by_role("button").first.click()
    expect(page.get_by_role("table", name="Requests")).to_contain_text("the controller has not processed it yet")
    picture(window, "plain")
    assert [fault for fault in window.faults if "lading" in fault.lower()] == []
    page.close()


def test_in_the_dark_and_on_a_phone(full: Airflow, admin: str, browser: Browser) -> None:
    window = Window(browser, full.url, token=admin)
    window.page.add_init_script("localStorage.setItem('theme', 'dark')")
    page = window.open(f"{PAGE}?view=machines")
    drawn(page)
    picture(window, "dark")
    page.set_viewport_size({"width": 390, "height": 844})
    for name, tables in VIEWS.items():
        view(page, name)
        expect(page.get_by_role("table", name=tables[0], exact=True)).to_be_visible()
        page.wait_for_function(FITS, arg=390)  # nothing but tables is wider
        picture(window, f"phone-{name.lower()}")
    assert window.faults == []
    page.close()


def test_each_table_can_be_had_as_csv_and_all_is_done_by_keyboard(
    full: Airflow, admin: str, browser: Browser, tmp_path: Path
) -> None:
    window = Window(browser, full.url, token=admin)
    page = window.open(PAGE)
    first = {
        "Sites": "site", "Failures by cause": "cause", "Waiting jobs": "jobs", "Machines": "machine", "Jobs": "dag_id",
        "Costs by Dag": "dag",
    }  # fmt: skip
    for name, table in [(name, table) for name, tables in VIEWS.items() for table in tables]:
        view(page, name)
        button = page.get_by_role("button", name=f"{table} as CSV", exact=True)
        shown = page.get_by_role("table", name=table, exact=True).locator("tbody tr")
        expect(shown).not_to_have_count(0)
        with page.expect_download() as download:
            button.press("Enter")
        assert download.value.suggested_filename == f"lading_{table.lower().replace(' ', '_')}.csv"
        download.value.save_as(tmp_path / table)
        with (tmp_path / table).open(newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))
        assert rows[0][0] == first[table]
        assert {len(row) for row in rows} == {len(rows[0])}
        if table == "Jobs":
            expect(page.get_by_test_id("matching")).to_have_text("more than 5,000 jobs")
            assert len(rows) - 1 > 6000 > shown.count() == 25, "all of them, not those that are shown or counted"
            assert {"run_id", "cause", "started_at", "usd", "native_id"} <= set(rows[0])
        else:
            assert len(rows) - 1 == shown.count()
        if table == "Waiting jobs":
            assert sum(int(row[0]) for row in rows[1:]) == 5000
    view(page, "Jobs")
    which = page.get_by_label("Filter by state")
    which.focus()
    which.press("w")  # waiting
    expect(page.get_by_role("table", name="Jobs", exact=True)).to_contain_text("queued")
    view(page, "Overview")
    pause = page.get_by_role("button", name="Pause").first
    pause.press("Enter")
    page.keyboard.press("Escape")
    expect(pause).to_be_focused()
    assert window.faults == []  # from here on Airflow misses the Dag, which is made up
    view(page, "Cost")
    page.get_by_role("table", name="Costs by Dag").get_by_role("link", name="etl", exact=True).press("Enter")
    page.wait_for_url("**/dags/etl/plugin/lading-dag")
    page.close()


def test_times_are_in_the_zone_of_the_user(full: Airflow, admin: str, browser: Browser) -> None:
    now = time.time()
    answer = httpx.get(
        f"{full.url}/lading/machines",
        params={"since": now - 3600, "until": now},
        headers={"Authorization": f"Bearer {admin}"},
        timeout=60,
    )
    machine = next(each for each in answer.raise_for_status().json() if each["key"] == "local/host")
    zone = datetime.timezone(datetime.timedelta(hours=5, minutes=45))
    since = datetime.datetime.fromtimestamp(machine["spans"][0][0], zone)
    window = Window(browser, full.url, token=admin)
    window.page.add_init_script("localStorage.setItem('timezone', '\"Asia/Kathmandu\"')")
    page = window.open(f"{PAGE}?view=machines")
    row = page.get_by_role("table", name="Machines").locator("tr", has_text="local/host")
    expect(row).to_contain_text(f"{since:%b} {since.day}, {since:%H:%M}")
    page.close()


def test_who_may_read_one_dag_sees_of_the_others_grey_rectangles(full: Airflow, browser: Browser) -> None:
    window = Window(browser, full.url, token=login(full, "viewer"), height=1600)
    page = window.open(PAGE)
    said = []

    def read(name: str, table: str, *texts: str) -> None:
        view(page, name)
        for text in texts:
            expect(page.get_by_role("table", name=table, exact=True)).to_contain_text(text)
        said.append(page.locator("[data-testid=lading]").inner_text())
        assert page.get_by_role("button", name=re.compile("Pause|Drain|Terminate")).count() == 0, (
            "to look is not to act"
        )

    read("Overview", "Failures by cause", "and others")
    read("Waits", "Waiting jobs", "and others")
    read("Cost", "Costs by Dag", "genomes")
    expect(page.get_by_text("The totals include Dags you cannot read only for past days")).to_be_visible()
    read("Jobs", "Jobs", "another Dag's task")
    page.get_by_label("Filter by state").select_option("failed")
    expect(page.get_by_role("table", name="Jobs", exact=True)).not_to_contain_text("another Dag's task")
    read("Machines", "Machines", "local/host")
    drawn(page)
    found = page.evaluate(
        "() => { const chart = document.querySelector('[data-testid=packing-chart]').packingChart;"
        " return chart.shown.jobs.map((job, index) =>"
        " [job.dagId ?? null, chart.color(job), chart.tip('jobs', index)]); }"
    )
    grey = {color for dag, color, _ in found if dag is None}
    assert {dag for dag, _, _ in found} == {"genomes", None}
    assert len(grey) == 1
    assert grey.isdisjoint(color for dag, color, _ in found if dag is not None)
    assert all(tip.startswith("<b>another Dag's task</b>") for dag, _, tip in found if dag is None)
    names = ("etl", "extract", "load", r"draw\b", "report.")  # the page says of some jobs below which they are drawn
    assert [name for name in names if any(re.search(rf"\b{name}", text) for text in said)] == []
    picture(window, "viewer")
    assert window.faults == []
    page.close()


def test_nothing_is_asked_while_the_page_is_hidden(full: Airflow, admin: str, browser: Browser) -> None:
    window = Window(browser, full.url, token=admin)
    page = window.open(f"{PAGE}?view=machines")
    drawn(page)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.evaluate(
        "() => { Object.defineProperty(document, 'hidden', {value: true, configurable: true});"
        " document.dispatchEvent(new Event('visibilitychange')); }"
    )
    page.wait_for_timeout(1000)
    asked.clear()
    page.wait_for_timeout(7000)
    assert [url for url in asked if "/lading/" in url] == []
    with page.expect_request(lambda request: "cursor=" in request.url, timeout=60_000):  # it goes on where it was
        page.evaluate(
            "() => { Object.defineProperty(document, 'hidden', {value: false, configurable: true});"
            " document.dispatchEvent(new Event('visibilitychange')); }"
        )
    page.close()


def test_with_no_job_ever_and_below_another_base_path(browser: Browser, tmp_path: Path) -> None:
    airflow = Airflow(tmp_path / "below", components=["api-server"], preloaded=True)
    base = f"{airflow.url}/air/flow"
    airflow.environment["AIRFLOW__API__BASE_URL"] = base
    airflow.migrate()
    airflow.start("api-server")

    def is_healthy() -> bool:
        with suppress(httpx.TransportError):
            return httpx.get(f"{base}/api/v2/monitor/health", timeout=5).status_code == 200
        return False

    try:
        assert processes.wait_until(is_healthy, 120, 0.5), airflow.log_tails()
        window = Window(browser, base)
        page = window.open(PAGE)
        for name, texts in {
            "Overview": ("No controller has run yet", "Nothing has failed"),
            "Waits": ("No job is waiting",),
            "Machines": ("No job ran in this time", "No machine is up"),
            "Jobs": ("No job matches these filters",),
            "Cost": ("No job ran in this time",),
        }.items():
            view(page, name)
            for text in texts:
                expect(page.get_by_text(text).first).to_be_visible()
        assert page.url.startswith(f"{base}{PAGE}?view=cost")
        picture(window, "empty")
        assert window.faults == []
    finally:
        airflow.stop()


def test_the_tab_of_a_task_instance_shows_its_tries(real: tuple[Airflow, str], browser: Browser) -> None:
    airflow, run_id = real
    window = Window(browser, airflow.url, height=1000)
    page = window.open(f"/dags/shown/runs/{run_id}/tasks/nap/mapped/2/plugin/lading-task")
    expect(page.get_by_text("Try 1", exact=True)).to_be_visible()
    expect(page.get_by_text("waits for a place").first).to_be_visible()
    facts = page.locator("[data-testid=lading] dl")
    for words in ("succeeded", "200 MiB (limit 200 MiB)", "10 min", "local /", "$0.0"):
        expect(facts).to_contain_text(words)
    picture(window, "task")
    page = window.open(f"/dags/shown/runs/{run_id}/tasks/breaks/plugin/lading-task")
    expect(page.locator("[data-testid=lading] dl")).to_contain_text("failed")
    page = window.open(f"/dags/shown/runs/{run_id}/tasks/nap/mapped/2/details")
    page.get_by_role("link", name="Where it ran and why").click()
    expect(page.get_by_text("Try 1", exact=True)).to_be_visible()
    assert window.faults == []
    page.close()


def test_the_tab_of_a_run_and_that_of_its_dag(real: tuple[Airflow, str], browser: Browser) -> None:
    airflow, run_id = real
    window = Window(browser, airflow.url, height=1300)
    page = window.open(f"/dags/shown/runs/{run_id}/plugin/lading-run")
    expect(page.locator("[data-tile=Jobs]")).to_contain_text("5")
    expect(page.locator("[data-tile=Took]")).to_contain_text("until now")
    tasks = page.get_by_role("table", name="Tasks of the run").locator("tbody tr")
    expect(tasks).to_have_count(3)
    for task in ("nap", "breaks", "large"):
        expect(tasks.filter(has_text=task).get_by_role("img")).to_have_attribute("aria-label", re.compile("runs "))
    expect(page.get_by_test_id("critical")).to_contain_text(re.compile("(nap|breaks) → large"))
    expect(page.get_by_role("table", name="Longest waits")).to_contain_text("shown.nap[")
    drawn(page)
    zoom = page.evaluate(
        "() => document.querySelector('[data-testid=packing-chart]').packingChart.chart.getOption().dataZoom[0]"
    )
    found = httpx.get(f"{airflow.url}/lading/dags/shown/runs/{run_id}", timeout=60).raise_for_status().json()
    assert 0 < found["totals"]["began_at"] - zoom["startValue"] / 1000 < 60, "its own time is looked at"
    picture(window, "run")
    page = window.open("/dags/shown/plugin/lading-dag")
    page.get_by_role("link", name=run_id, exact=True).click()
    expect(page.locator("[data-tile=Jobs]")).to_be_visible()
    assert window.faults == []
    page.close()


def test_home_has_a_tile_and_the_navigation_an_entry(real: tuple[Airflow, str], browser: Browser) -> None:
    airflow, _ = real
    window = Window(browser, airflow.url, height=1200)
    page = window.open("/")
    page.get_by_role("link", name="What runs where").click()
    expect(page.get_by_role("table", name="Sites")).to_contain_text("local")
    expect(page.locator("[data-tile=Today]")).to_contain_text("$")
    shares = page.get_by_role("table", name="Shares").locator("tbody tr")
    expect(shares.filter(has_text="Dags *")).to_contain_text(re.compile("[0-9]+ % of 99 %"))

    def memory_used() -> int:
        found = httpx.get(f"{airflow.url}/lading/summary", timeout=60).raise_for_status().json()
        return sum(site["memory_used"] for site in found["sites"] if site["name"] == "local")

    assert processes.wait_until(lambda: memory_used() > 0, 150)
    expect(page.get_by_role("table", name="Sites")).to_contain_text("MiB used")
    picture(window, "real")
    asked = page.get_by_role("table", name="Requests")
    local = page.get_by_role("table", name="Sites").locator("tbody tr", has_text="local")
    for label, words in (("Pause", "it gets no more jobs"), ("Resume", "it gets jobs again")):
        local.get_by_role("button", name=f"{label} local", exact=True).click()
        expect(page.get_by_role("button", name="Cancel", exact=True)).to_be_focused()
        page.get_by_role("alertdialog").get_by_role("button").first.press("Enter")
        expect(asked).to_contain_text(words)
    assert window.faults == []
    page.close()


def test_a_budget_is_lifted_on_the_page_and_holds_again(real: tuple[Airflow, str], browser: Browser) -> None:
    airflow, _ = real
    window = Window(browser, airflow.url, height=1200)
    page = window.open(f"{PAGE}?view=cost")
    budget = page.get_by_role("table", name="Budgets").locator("tbody tr", has_text="Dags *")
    expect(budget).to_contain_text("of $1,000", timeout=120_000)
    for label in ("Lift", "Restore"):
        budget.get_by_role("button", name=f"{label} all", exact=True).click()
        page.get_by_role("alertdialog").get_by_role("button").first.press("Enter")
        if label == "Lift":
            expect(budget).to_contain_text("lifted by", timeout=120_000)
        else:
            expect(budget).not_to_contain_text("lifted by", timeout=120_000)
    logged = airflow.rest("GET", "eventLogs", limit=200, order_by="-event_log_id")["event_logs"]
    asked = [each["extra"] or "" for each in logged if each["event"] == "lading_request"]
    assert any('"lift"' in each for each in asked), asked
    assert any('"restore"' in each for each in asked), asked
    assert window.faults == []
    page.close()


def test_machines_that_were_bought_say_what_they_cost_and_are_let_go(
    real: tuple[Airflow, str], ec2: FakeEC2, browser: Browser
) -> None:
    airflow, _ = real
    end = ec2.account.folder / "end"
    airflow.add_dag("bought", BOUGHT.replace("{end}", str(end)))
    run_id = airflow.trigger("bought")
    window = Window(browser, airflow.url, height=1400)
    page = window.open(f"{PAGE}?view=jobs&state=running")
    running = page.get_by_role("table", name="Jobs", exact=True)
    for task in ("bought.spot", "bought.on-demand"):
        expect(running).to_contain_text(task, timeout=120_000)
    view(page, "Machines")
    machines = page.get_by_role("table", name="Machines")
    of = {kind: machines.locator("tr", has_text=f"m5.large, {kind}") for kind in ("spot", "on-demand")}
    for kind, row in of.items():
        expect(row).to_contain_text("up")
        expect(row).to_contain_text("i-")
        prices: list[float] = []

        def are_shown(row: Locator = row, prices: list[float] = prices) -> bool:
            prices[:] = map(float, re.findall(r"\$([0-9.]+)", row.inner_text()))
            page.wait_for_timeout(100)  # so that what is new is shown
            return prices[1] > 0

        assert processes.wait_until(are_shown, 60), kind
        assert prices[1] < prices[0], kind
    picture(window, "bought")
    asked = page.get_by_role("table", name="Requests")
    for kind, label, words in (("on-demand", "Drain", "takes no more jobs"), ("spot", "Terminate", "it has ended")):
        of[kind].get_by_role("button", name=label).click()
        page.get_by_role("alertdialog").get_by_role("button").first.click()
        if kind == "on-demand":  # the row of the other one goes
            expect(of[kind]).to_contain_text(re.compile("drain requested by|draining"))
        expect(asked).to_contain_text(words)
    expect(of["on-demand"]).to_contain_text("draining")
    expect(of["spot"]).to_have_count(0)
    assert processes.wait_until(lambda: len(ec2.living()) == 1, 60), "what drains has a job"
    end.touch()
    expect(machines.locator("tr", has_text="m5.large")).to_have_count(0)
    assert processes.wait_until(lambda: ec2.living() == [], 60), ec2.ledger()
    assert airflow.wait_for_run("bought", run_id) == "failed", "the task that was ended has no retries"
    page = window.open(f"/dags/bought/runs/{run_id}/plugin/lading-run")
    expect(page.locator("[data-tile=Cost]")).to_contain_text("$")
    assert window.faults == []
    page.close()


def test_who_holds_what_and_what_sleeps_is_woken(
    real: tuple[Airflow, str], ec2: FakeEC2, browser: Browser, collector: Collector, tmp_path: Path
) -> None:
    airflow, _ = real
    end_shown(real)  # this machine is empty
    ec2.boot_seconds = 3600.0  # until that is seen for which it has to boot
    airflow.add_dag("together", TOGETHER.replace("BEGAN_FILE", str(tmp_path / "began")))
    run_id = airflow.trigger("together")
    window = Window(browser, airflow.url)
    page = window.open(f"{PAGE}?view=waits")
    waits = page.get_by_role("table", name="Waiting jobs")
    expect(waits).to_contain_text(re.compile(r"together's gang far holds 1 cpu at local/\S+ for 1 of its jobs"))
    expect(waits.locator("tr", has_text="Reserving capacity for its gang")).to_contain_text(
        "looking for room for gang 'far' at cloud"
    )
    large = waits.locator("tr", has_text="Waiting for its next attempt")
    expect(large).to_contain_text("attempt 1 of 9")
    expect(large).to_contain_text("airflow lading wake")
    picture(window, "gangs")
    # It sleeps for an hour now; once it is woken and `other` has ended, it begins.
    shown = airflow.lading("top", "--once")
    assert all(words in shown for words in ("cloud", "local", "attempt")), shown

    def reasons() -> set[str]:
        return {tags["reason"] for tags in collector.tags("airflow.lading.jobs.waiting")}

    assert processes.wait_until(lambda: {"attempted", "gang_room"} <= reasons(), 60), reasons()
    ec2.boot_seconds = 0.5
    assert airflow.wait_for_task("together", run_id, "there", "success")
    page = window.open(f"/dags/together/runs/{run_id}/tasks/half/mapped/0/plugin/lading-task")
    facts = page.locator("[data-testid=lading] dl")
    expect(facts).to_contain_text("attempted")
    page.get_by_role("button", name="Wake").click()
    page.get_by_role("alertdialog").get_by_role("button").first.click()
    expect(facts).to_contain_text("attempt 2 of 9")
    picture(window, "woken")
    (tmp_path / "began").unlink()
    assert window.faults == []
    page.close()


@pytest.mark.usefixtures("real")
def test_metrics_and_traces_tell_the_same(collector: Collector) -> None:
    documented = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
    names = {
        f"airflow.{name}" for name in re.findall(r"^\| `(lading\.[a-z_.]+)` \|", documented.read_text(), re.MULTILINE)
    }
    names.remove("airflow.lading.jobs.queue")  # which only a batch system has
    names.remove("airflow.lading.team.cpus")  # Airflow has no teams here
    names.remove("airflow.lading.jobs.expected")  # of jobs that start after half a minute or more, with a forecast
    assert processes.wait_until(lambda: collector.names() >= names, 60), names - collector.names()

    assert processes.wait_until(lambda: {"site": "cloud"} in collector.tags("airflow.lading.usd_per_hour"), 60)

    def phases() -> set[str]:
        return {each.name for each in collector.spans()}

    wanted = {"lading.airflow", "lading.sent", "lading.boot", "lading.runs", "worker.here"}
    assert processes.wait_until(lambda: wanted <= phases(), 60), wanted - phases()
    # What is exported again, because the answer was late, is one span still.
    [trace] = {each.trace_id for each in collector.spans() if each.name == "worker.here"}

    def boots() -> bool:
        return any(each.name == "lading.boot" and each.trace_id == trace for each in collector.spans())

    assert processes.wait_until(boots, 60), "they are on the trace of the run"
