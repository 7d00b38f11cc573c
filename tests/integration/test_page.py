"""The page as a person sees it: in Debian's Chromium, on a real Airflow."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.services import processes
from tests.services.airflow import Airflow
from tests.services.chromium import Window, chromium

# Where the screenshots of a run go, where somebody wants them: docs/page.png is one of them.
PICTURES = Path(os.environ["LADING_PICTURES"]).absolute() if "LADING_PICTURES" in os.environ else None
SITES = """
[sites.local]
kind = "local"
cpus = 4
memory = "8 GiB"
disk = "10 GiB"
usd_per_hour = 0.4
"""
# Two of three fit at once, one wants more than is free meanwhile, and one fails.
DAG = """
import time
from airflow.sdk import dag, task
from lading.operators import resources

@dag(schedule=None)
def shown():
    @task(executor_config=resources(cpus=2, memory="200 MiB", time="10 min"))
    def nap(number):
        time.sleep(8)

    @task(executor_config=resources(cpus=4))
    def large():
        time.sleep(60)

    @task
    def breaks():
        raise ValueError("on purpose")

    nap.expand(number=[1, 2, 3])
    large()
    breaks()

shown()
"""
FILL = """
import time
from airflow.utils.session import create_session
from tests.services.page_data import seed

with create_session(scoped=False) as session:
    seed(session, time.time(), jobs={jobs}, machines={machines}, waiting={waiting})
"""


# A machine that is busy with something else is slow; that is no failure.
expect.set_options(timeout=60_000)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    """An API server alone; what it shows is made up."""
    airflow = Airflow(tmp_path_factory.mktemp("full"), components=["api-server"])
    airflow.migrate()
    environment = {**airflow.environment, "PYTHONPATH": str(Path(__file__).parents[2])}
    fill = FILL.format(jobs=1500, machines=9, waiting=5000)
    subprocess.run([sys.executable, "-c", fill], env=environment, check=True, timeout=120)
    airflow.start("api-server")
    airflow.wait_until_healthy()
    yield airflow
    airflow.stop()


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Airflow, str]]:
    """An Airflow that has run the Dag, but for its last task."""
    home = tmp_path_factory.mktemp("real")
    (home / "sites.toml").write_text(SITES)
    with Airflow(home, config={"lading.sites_file": home / "sites.toml"}) as airflow:
        airflow.add_dag("shown", DAG)
        run_id = airflow.trigger("shown")
        end = time.monotonic() + 180
        while sum(ti["state"] in ("success", "failed") for ti in airflow.task_instances("shown", run_id)) < 4:
            assert time.monotonic() < end, airflow.log_tails()
            time.sleep(1)
        yield airflow, run_id


def picture(window: Window, name: str) -> None:
    if PICTURES is not None:
        window.picture(PICTURES / f"{name}.png")


def drawn(page: Page) -> None:
    """Wait until the chart is drawn."""
    page.wait_for_selector("[data-testid=packing-chart][data-redraw-ms]")


def test_the_page_answers_its_questions(full: Airflow, browser: Browser) -> None:
    window = Window(browser, full.url, height=1600)
    page = window.open("/plugin/lading")
    for tile in ("Running", "Waiting", "Machines", "cpus used of up", "USD per hour", "Today"):
        expect(page.locator(f"[data-tile={tile!r}]")).to_be_visible()
    expect(page.locator("[data-tile=Waiting]")).to_contain_text("5,000")
    expect(page.locator("[data-tile=Machines]")).to_contain_text("9")
    waits = page.get_by_role("table", name="Waiting jobs")
    for words in ("All allocations are busy", "Raise max_allocations", "The queue of the batch system", "genomes"):
        expect(waits).to_contain_text(words)
    sites = page.get_by_role("table", name="Sites")
    expect(sites).to_contain_text("it has not answered for more than 10 s")
    expect(sites).to_contain_text("max_allocations = 4")
    drawn(page)
    assert page.locator("[data-testid=packing-chart] canvas").count() >= 1
    expect(page.get_by_role("table", name="Machines")).to_contain_text("local/host")
    expect(page.get_by_role("table", name="Costs by Dag")).to_contain_text("genomes")
    picture(window, "page")
    page.get_by_label("How far back").select_option("21600")
    drawn(page)
    assert window.faults == []
    page.close()


def test_without_chakra_the_tables_are_plain(full: Airflow, browser: Browser) -> None:
    window = Window(browser, full.url, without=("ChakraUI",))
    page = window.open("/plugin/lading")
    expect(page.locator("[data-tile=Waiting]")).to_contain_text("5,000")
    for name in ("Sites", "Waiting jobs", "Machines", "Costs by Dag"):
        expect(page.get_by_role("table", name=name).locator("tbody tr")).not_to_have_count(0)
    drawn(page)
    page.get_by_role("table", name="Machines").get_by_role("button", name="Drain").first.click()
    page.get_by_role("button", name="Yes", exact=True).click()
    expect(page.get_by_role("table", name="What was asked")).to_contain_text("the controller has not done it yet")
    picture(window, "plain")
    assert [fault for fault in window.faults if "lading" in fault.lower()] == []
    page.close()


@pytest.mark.parametrize(
    ("name", "width", "height", "theme"), [("phone", 390, 844, "light"), ("dark", 1280, 800, "dark")]
)
def test_on_a_phone_and_in_the_dark(
    full: Airflow, browser: Browser, name: str, width: int, height: int, theme: str
) -> None:
    window = Window(browser, full.url, width=width, height=height)
    window.page.add_init_script(f"localStorage.setItem('theme', {theme!r})")
    page = window.open("/plugin/lading")
    drawn(page)
    frame = page.locator("[data-testid=lading]")
    assert frame.evaluate("each => each.scrollWidth <= each.clientWidth + 1"), "nothing but tables is wider"
    picture(window, name)
    assert window.faults == []
    page.close()


def test_a_table_can_be_had_as_csv(full: Airflow, browser: Browser, tmp_path: Path) -> None:
    window = Window(browser, full.url)
    page = window.open("/plugin/lading")
    with page.expect_download() as download:
        page.get_by_role("button", name="Waiting jobs as CSV").click()
    download.value.save_as(tmp_path / "waits.csv")
    with (tmp_path / "waits.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert rows[0][:2] == ["Jobs", "Waits for"]
    assert sum(int(row[0].replace(",", "")) for row in rows[1:]) == 5000
    page.close()


def test_nothing_is_asked_while_nobody_looks(full: Airflow, browser: Browser) -> None:
    window = Window(browser, full.url)
    page = window.open("/plugin/lading")
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
    page.evaluate(
        "() => { Object.defineProperty(document, 'hidden', {value: false, configurable: true});"
        " document.dispatchEvent(new Event('visibilitychange')); }"
    )
    page.wait_for_timeout(4000)
    assert any("cursor=" in url for url in asked), "it goes on where it was"
    page.close()


def test_with_no_job_ever_and_below_another_base_path(browser: Browser, tmp_path: Path) -> None:
    airflow = Airflow(tmp_path / "below", components=["api-server"])
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
        page = window.open("/plugin/lading")
        for words in ("No controller has run yet", "Nothing waits", "No job ran in this time", "No machine is up"):
            expect(page.get_by_text(words)).to_be_visible()
        picture(window, "empty")
        assert window.faults == []
    finally:
        airflow.stop()


def test_the_tab_of_a_task_instance_tells_its_tries(real: tuple[Airflow, str], browser: Browser) -> None:
    airflow, run_id = real
    window = Window(browser, airflow.url, height=1000)
    page = window.open(f"/dags/shown/runs/{run_id}/tasks/nap/mapped/2/plugin/lading-task")
    expect(page.get_by_text("Try 1", exact=True)).to_be_visible()
    expect(page.get_by_text("waits in Airflow").first).to_be_visible()
    facts = page.locator("[data-testid=lading] dl")
    for words in ("succeeded", "200 MiB (limit 200 MiB)", "10 min", "local /", "$0.0"):
        expect(facts).to_contain_text(words)
    picture(window, "task")
    page = window.open(f"/dags/shown/runs/{run_id}/tasks/breaks/plugin/lading-task")
    expect(page.locator("[data-testid=lading] dl")).to_contain_text("failed")
    assert window.faults == []
    page.close()


def test_the_tab_of_a_run_and_that_of_its_dag(real: tuple[Airflow, str], browser: Browser) -> None:
    airflow, run_id = real
    window = Window(browser, airflow.url, height=1300)
    page = window.open(f"/dags/shown/runs/{run_id}/plugin/lading-run")
    expect(page.locator("[data-tile=Jobs]")).to_contain_text("5")
    expect(page.locator("[data-tile=Took]")).to_contain_text("at least")
    expect(page.get_by_role("table", name="Longest waits")).to_contain_text("shown.nap[")
    drawn(page)
    picture(window, "run")
    page = window.open("/dags/shown/plugin/lading-dag")
    page.get_by_role("link", name=run_id).click()
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
    drawn(page)
    picture(window, "real")
    asked = page.get_by_role("table", name="What was asked")
    for label, words in (("Pause", "it is given no more jobs"), ("Resume", "it is given jobs again")):
        page.get_by_role("button", name=label, exact=True).click()
        expect(page.get_by_role("button", name="No", exact=True)).to_be_focused()
        page.get_by_role("button", name="Yes", exact=True).press("Enter")
        expect(asked).to_contain_text(words)
    assert window.faults == []
    page.close()
