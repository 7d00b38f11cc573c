"""Each view of the page on a full house: it fits on a phone and on a screen of 4K, in light and dark, and has a title;
and a page that is open for long keeps nothing.

``LADING_PICTURES=FOLDER`` keeps a screenshot of each view on each screen.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from playwright.sync_api import Browser, expect
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from tests.services.airflow import Airflow
from tests.services.chromium import Window, chromium
from tests.services.full_house import full_house
from tests.services.page_data import go_on
from tests.services.processes import wait_until

PICTURES = Path(os.environ["LADING_PICTURES"]).absolute() if "LADING_PICTURES" in os.environ else None
PAGE = "/plugin/lading"
# Width and height in pixels, and whether it is dark.
SCREENS = {
    "light": (1440, 1000, False), "dark": (1440, 1000, True), "phone": (390, 844, False), "4k": (3840, 2160, False),
}  # fmt: skip
# The address of each view, and the section or table that it has once it is loaded, which the view before it lacks.
VIEWS = {
    "overview": (PAGE, "Sites"),
    "waits": (f"{PAGE}?view=waits", "Waiting jobs"),
    "machines": (f"{PAGE}?view=machines", "Machines"),
    "waits-of-a-site": (f"{PAGE}?view=waits&site=hpc", "Waiting jobs"),
    "memory-of-a-site": (f"{PAGE}?view=machines&site=cloud&measure=memory", "Machines"),
    "jobs": (f"{PAGE}?view=jobs", "Jobs"),
    "cost": (f"{PAGE}?view=cost", "Costs by Dag"),
    "failed-jobs": (f"{PAGE}?view=jobs&state=failed&within=604800", "Failures by cause"),
    "cost-by-site": (f"{PAGE}?view=cost&split=site", "Idle cpus"),
    "cost-by-run": (f"{PAGE}?view=cost&split=run&days=6", "Costs by run"),
    "dag": ("/dags/genomes/plugin/lading-dag", "Runs of genomes"),
    "run": ("/dags/genomes/runs/{run}/plugin/lading-run", "Tasks of the run"),
    "task": ("/dags/genomes/runs/{run}/tasks/fetch/plugin/lading-task", None),
    "mapped-task": ("/dags/genomes/runs/{run}/tasks/align/mapped/0/plugin/lading-task", None),
    "home": ("/", None),
}
# Whether nothing is wider than its frame, nor the frame than the window, and no table has rows that only a second
# scroll bar would show; Airflow gives a tab at least 1,000 pixels.
FITS = """() => {
    const frame = document.querySelector('.lading'), isTab = location.pathname.includes('/dags/');
    const isWhole = (table) => table.scrollHeight <= table.clientHeight + 1;
    return frame && [...document.querySelectorAll('.lading .scroll')].every(isWhole)
        && (isTab || frame.clientWidth <= innerWidth) && frame.scrollWidth <= frame.clientWidth + 1;
}"""
# Whether nothing moves any more, but for what always does.
RESTS = """() => document.getAnimations().every((each) =>
    each.playState !== 'running' || each.effect.getComputedTiming().iterations === Infinity)"""

expect.set_options(timeout=60_000)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Airflow, str, str]]:
    """An Airflow on a full house, a token of its admin, and a run that goes on."""
    with full_house(tmp_path_factory.mktemp("house"), days=8) as airflow:
        answer = httpx.post(f"{airflow.url}/auth/token", json={"username": "admin", "password": "admin"}, timeout=60)
        token: str = answer.raise_for_status().json()["access_token"]
        headers = {"Authorization": f"Bearer {token}"}
        runs = httpx.get(f"{airflow.url}/lading/dags/genomes/runs", headers=headers, timeout=60).raise_for_status()
        yield airflow, token, runs.json()["runs"][0]["run_id"]


@pytest.mark.parametrize("screen", SCREENS)
def test_each_view_fits_on_each_screen(house: tuple[Airflow, str, str], browser: Browser, screen: str) -> None:
    airflow, token, run = house
    width, height, is_dark = SCREENS[screen]
    window = Window(browser, airflow.url, token=token, width=width, height=height)
    window.page.add_init_script(f"localStorage.setItem('theme', '{'dark' if is_dark else 'light'}')")
    titles = set()
    page = window.page
    for name, (path, table) in VIEWS.items():
        address = path.format(run=quote(run, safe=""))
        # One screen opens each address anew. So is what has no table of its own by which to know that it is there.
        if screen == "light" or name == "overview" or table is None:
            window.open(address)
        else:
            window.go(address)
        if table is None:
            expect(page.locator(".lading").first).to_be_visible()
        else:
            expect(page.get_by_role("table", name=table, exact=True)).to_be_visible()
        if "machines" in path:
            page.wait_for_selector("[data-testid=packing-chart][data-redraw-ms]")
        page.wait_for_function(FITS)
        if path.startswith(PAGE):
            titles.add(page.title())
        if PICTURES is not None:
            page.wait_for_function(RESTS)
            window.picture(PICTURES / f"{screen}-{name}.png")
    assert len(titles) == 5, titles
    assert [fault for fault in window.faults if "lading" in fault.lower()] == []
    window.page.close()


# How far the column headings of the table of machines are below the heading of its section, once half of it has passed.
HEADINGS = """() => {
    const section = document.querySelector('section[aria-label=Machines]'), box = section.querySelector('.scroll');
    const frame = document.querySelector('.lading');
    frame.scrollTop += box.getBoundingClientRect().top - frame.getBoundingClientRect().top + box.clientHeight / 2;
    return new Promise((resolve) => setTimeout(() => resolve(
        section.querySelector('th').getBoundingClientRect().top
            - section.querySelector('.head').getBoundingClientRect().bottom), 300));
}"""


def test_column_headings_stay_below_the_heading_of_their_section(
    house: tuple[Airflow, str, str], browser: Browser
) -> None:
    airflow, token, _ = house
    window = Window(browser, airflow.url, token=token, width=1440, height=1000)
    page = window.open(f"{PAGE}?view=machines")
    expect(page.get_by_role("table", name="Machines", exact=True)).to_be_visible()
    page.wait_for_selector("[data-testid=packing-chart][data-redraw-ms]")
    assert -1 <= page.evaluate(HEADINGS) <= 0, "no text of a row shows between them"
    window.page.close()


# The seconds that the packing chart shows, and how far the page is scrolled.
SHOWN = "() => document.querySelector('[data-testid=packing-chart]').packingChart.seconds(170)"
SCROLLED = "() => document.querySelector('.lading').scrollTop"


def test_the_wheel_scrolls_the_page_over_the_chart_and_zooms_with_ctrl(
    house: tuple[Airflow, str, str], browser: Browser
) -> None:
    airflow, token, _ = house
    window = Window(browser, airflow.url, token=token, width=1440, height=1000)
    page = window.open(f"{PAGE}?view=machines")
    page.wait_for_selector("[data-testid=packing-chart][data-redraw-ms]")
    expect(page.get_by_role("table", name="Machines", exact=True)).to_be_visible()
    shown = page.evaluate(SHOWN)
    page.locator("[data-testid=packing-chart] canvas").first.hover(position={"x": 600, "y": 100})
    page.keyboard.down("Control")
    page.mouse.wheel(0, -120)
    page.wait_for_function(f"({SHOWN})() < {0.95 * shown}")
    page.keyboard.up("Control")
    zoomed = page.evaluate(SHOWN)
    assert page.evaluate(SCROLLED) == 0
    page.mouse.wheel(0, 120)
    page.wait_for_function(f"({SCROLLED})() > 50")
    assert page.evaluate(SHOWN) == pytest.approx(zoomed, rel=0.05), "without Ctrl it does not zoom"
    window.page.close()


# On a phone each row is a card with a line for each cell: its title, and its parts in a column next to it. These are
# the cells with a part elsewhere, and the cards whose own title is not above their cells.
MISPLACED = """() => {
    const left = (each) => each.getBoundingClientRect().left;
    const all = [...document.querySelectorAll('.lading td:not(:first-child) > *')];
    const parts = all.filter((each) => each.checkVisibility());
    const titles = [...document.querySelectorAll('.lading td:first-child')];
    return [
        ...parts.filter((part) => left(part) < left(part.parentElement) + 90).map((part) => part.parentElement),
        ...titles.filter((title) => getComputedStyle(title).display !== 'block'),
    ].map((cell) => cell.innerText);
}"""


def test_on_a_phone_each_part_of_a_cell_is_next_to_its_title(house: tuple[Airflow, str, str], browser: Browser) -> None:
    airflow, token, _ = house
    window = Window(browser, airflow.url, token=token, width=390, height=844)
    window.open(PAGE)
    for view, table in (("now", "Shares"), ("machines", "Machines"), ("jobs", "Jobs"), ("cost", "Savings")):
        page = window.go(f"{PAGE}?view={view}")
        expect(page.get_by_role("table", name=table, exact=True)).to_be_visible()
        assert page.evaluate(MISPLACED) == [], view
    window.page.close()


# The tables that hide rows: their box is lower than they are.
SCROLLING = """() => [...document.querySelectorAll('.lading .scroll:has(> table)')]
    .filter((box) => box.scrollHeight > box.clientHeight + 1).map((box) => box.getAttribute('aria-label'))"""


def test_what_right_sizes_would_save_leads_to_the_lines_to_paste(
    house: tuple[Airflow, str, str], browser: Browser
) -> None:
    airflow, token, _ = house
    window = Window(browser, airflow.url, token=token, width=1440, height=1000)
    page = window.open(f"{PAGE}?view=cost")
    savings = page.get_by_role("region", name="Savings from right sizes", exact=True)
    expect(savings).to_be_attached()
    expect(page.get_by_role("table", name="Costs by Dag")).to_be_visible()
    expect(savings).not_to_be_in_viewport()
    tile = page.locator("[data-tile='Savings from right sizes']").get_by_role("button")
    tile.first.click()
    expect(savings).to_be_in_viewport()
    expect(savings).to_be_focused()
    # Below its amount it names the tasks that save most, each of which leads to its line in one click.
    task = tile.nth(1).inner_text()
    tile.nth(1).click()
    row = savings.get_by_role("row").filter(has_text=task)
    expect(row).to_be_focused()
    expect(row.get_by_role("button", name=f"Copy the line for {task}")).to_be_in_viewport()
    window.page.close()


def test_a_budget_is_one_click_away_and_no_table_hides_rows_in_a_box_that_scrolls(
    house: tuple[Airflow, str, str], browser: Browser
) -> None:
    airflow, token, _ = house
    window = Window(browser, airflow.url, token=token, width=1440, height=1000)
    page = window.open(f"{PAGE}?view=cost")
    budgets = page.locator("[data-tile='Budgets']")
    expect(budgets).to_contain_text(re.compile(r"ml \$\d"))
    budgets.get_by_role("button", name=re.compile("^ml ")).click()
    row = page.get_by_role("table", name="Budgets", exact=True).get_by_role("row").filter(has_text="team ml")
    expect(row).to_be_focused()
    expect(row).to_be_in_viewport()
    for view in ("cost", "machines"):
        page = window.open(f"{PAGE}?view={view}")
        expect(page.locator(".lading table").nth(0)).to_be_visible()
        assert page.evaluate(SCROLLING) == [], view
    window.page.close()


def test_the_line_of_a_task_is_one_click_away_on_the_tab_of_its_dag(
    house: tuple[Airflow, str, str], browser: Browser
) -> None:
    airflow, token, _ = house
    window = Window(browser, airflow.url, token=token, width=1440, height=1000)
    page = window.open("/dags/genomes/plugin/lading-dag")
    sizes = page.get_by_role("region", name="Right sizes", exact=True)
    copy = sizes.get_by_role("button", name="Copy the line for align")
    expect(copy).to_be_attached()
    page.get_by_role("button", name="Right sizes of its tasks").click()
    expect(sizes.get_by_role("heading")).to_be_in_viewport()
    expect(sizes.get_by_role("button", name=re.compile("^Copy the line for ")).first).to_be_in_viewport()
    window.page.close()


def test_no_view_of_a_house_with_a_controller_says_that_none_runs(house: tuple[Airflow, str, str]) -> None:
    airflow, token, _ = house

    def counted() -> float:
        answer = httpx.get(f"{airflow.url}/lading/summary", headers={"Authorization": f"Bearer {token}"}, timeout=60)
        found = answer.raise_for_status().json()
        assert found["controller_lives"]
        at: float = found["shares"][0]["at"]
        return at

    before = counted()
    assert wait_until(lambda: counted() > before, 60)


def test_the_task_of_a_saving_leads_to_its_right_size(house: tuple[Airflow, str, str], browser: Browser) -> None:
    airflow, token, _ = house
    window = Window(browser, airflow.url, token=token, width=1440, height=1000)
    page = window.open(f"{PAGE}?view=cost")
    row = page.get_by_role("table", name="Savings", exact=True).locator("tbody tr").last
    task = row.get_attribute("data-row")
    assert task is not None
    row.get_by_role("link", name=task, exact=True).click()
    sizes = page.get_by_role("region", name="Right sizes", exact=True)
    marked = sizes.locator("tr.marked")
    expect(marked).to_have_attribute("data-row", task.partition(".")[2])
    expect(marked.get_by_role("button", name=re.compile("^Copy the line for "))).to_be_in_viewport()
    window.page.close()


# Sums up how far the page's content has moved, as a fraction of the window, since it was opened.
MOVED = """
window.moved = 0;
new PerformanceObserver(list => { for (const entry of list.getEntries()) window.moved += entry.value; })
  .observe({type: 'layout-shift', buffered: true});
// Cost shows what it has after 3 s, and then moves: here it waits for a slow machine.
const timeout = window.setTimeout;
window.setTimeout = (call, wait, ...rest) => timeout(call, wait === 3000 ? 180000 : wait, ...rest);
"""


@pytest.mark.parametrize("width", [390, 1280])
def test_cost_does_not_move_while_it_loads_and_its_tiles_lead_to_headings_in_sight(
    house: tuple[Airflow, str, str], browser: Browser, width: int
) -> None:
    airflow, token, _ = house
    window = Window(browser, airflow.url, token=token, width=width, height=800)
    window.page.add_init_script(MOVED)
    page = window.open(f"{PAGE}?view=cost")
    expect(page.get_by_role("table", name="Savings")).to_be_visible(timeout=180_000)
    page.wait_for_timeout(1000)
    assert page.evaluate("window.moved") < 0.1, "what Airflow moves before it shows the page included"
    for tile, section in (
        ("Budgets", "Budgets"),
        ("Most expensive run", "Most expensive runs"),
        ("Savings from right sizes", "Savings from right sizes"),
    ):
        page.locator(f"[data-tile='{tile}']").get_by_role("button").first.click()
        heading = page.get_by_role("region", name=section, exact=True).get_by_role("heading").bounding_box()
        bar = page.locator(".lading > header").bounding_box()
        assert heading is not None
        assert bar is not None
        assert heading["y"] >= bar["y"] + bar["height"], section
    window.page.close()


def test_a_job_has_its_log_and_what_to_do_about_it(house: tuple[Airflow, str, str], browser: Browser) -> None:
    airflow, token, _ = house
    window = Window(browser, airflow.url, token=token, width=1440, height=1000)
    page = window.open(f"{PAGE}?view=jobs&state=failed&cause=out_of_memory")
    first = page.get_by_role("table", name="Jobs", exact=True).locator("tbody tr").first
    expect(first).to_contain_text(re.compile("The Dag's author.*: "))
    first.get_by_role("link", name=re.compile(r"^Log of try \d+ of ")).click()
    page.wait_for_url(re.compile(r"/dags/.*/runs/.*/tasks/.*\?try_number=\d+$"))
    window.page.close()


def test_the_tab_of_a_task_shows_the_try_whose_log_was_read(house: tuple[Airflow, str, str], browser: Browser) -> None:
    airflow, token, _ = house
    query = {"state": "failed", "limit": 100}
    headers = {"Authorization": f"Bearer {token}"}
    answer = httpx.get(f"{airflow.url}/lading/jobs", params=query, headers=headers, timeout=60).raise_for_status()
    failed = next(job for job in answer.json()["jobs"] if (job["since_then"] or {}).get("state") == "succeeded")
    window = Window(browser, airflow.url, token=token, width=1440, height=1000)
    page = window.open(f"{PAGE}?view=jobs&state=failed&q={failed['id']}")
    page.get_by_role("table", name="Jobs", exact=True).get_by_role(
        "link", name=re.compile(r"^Log of try 1 of ")
    ).click()
    page.wait_for_url(re.compile(r"\?try_number=1$"))
    # Airflow's grid leads to the same tab of others, and so does the page that is left.
    tab = page.locator("a[href*='lading-task']:not([id^='grid-'], .lading *)")
    tab.click()
    sections = page.locator(".lading section")
    expect(sections).to_have_count(2)
    expect(sections.first).to_contain_text("failed")
    expect(sections.first.get_by_role("heading")).to_have_text("Try 1")
    page.get_by_role("button", name="Show try 2 first").click()
    expect(sections.first.get_by_role("heading")).to_have_text("Try 2")
    page.get_by_role("link", name="Logs").click()
    tab.click()
    expect(sections.first.get_by_role("heading")).to_have_text("Try 2")
    assert [fault for fault in window.faults if "lading" in fault.lower()] == []
    window.page.close()


def test_when_the_last_job_of_a_dag_starts_takes_a_click_and_leads_to_that_job(
    house: tuple[Airflow, str, str], browser: Browser
) -> None:
    airflow, token, _ = house
    window = Window(browser, airflow.url, token=token, width=1440, height=1000)
    page = window.open(f"{PAGE}?view=waits")
    group = page.get_by_role("table", name="Waiting jobs").locator("tbody tr", has_text="etl_orders")
    group.get_by_role("button", name="Starts by Dag").click()
    expect(group).to_contain_text(re.compile(r"etl_orders \d+first .*, last about (\w+ \d+, )?\d\d:\d\d"))
    last = re.findall(r"last about ((?:\w+ \d+, )?\d\d:\d\d)", group.inner_text())
    group.get_by_role("link", name="etl_orders: jobs of this group by expected start").click()
    jobs = page.get_by_role("table", name="Jobs", exact=True)
    expect(jobs.get_by_role("columnheader", name="Starts")).to_have_attribute("aria-sort", "descending")
    expect(page.get_by_role("group", name="Active filters")).to_contain_text("Dag: etl_orders")
    assert len(last) == 2
    page.wait_for_selector("[aria-busy=false]")
    starts = jobs.locator("tbody tr .starts").first
    expect(starts).to_contain_text(re.compile(r"^about "))
    jobs.get_by_role("button", name="Starts").click()
    expect(jobs.get_by_role("columnheader", name="Starts")).to_have_attribute("aria-sort", "ascending")
    assert [fault for fault in window.faults if "lading" in fault.lower()] == []
    window.page.close()


# What a browser keeps of a page: bytes of JavaScript's heap, nodes of documents, listeners of events.
KEPT = ("JSHeapUsedSize", "Nodes", "JSEventListeners")
# Rounds through the views while jobs end and begin; by the first of these all that is loaded once has been.
WARM, ROUNDS = 5, 20


def test_a_page_that_is_open_for_long_keeps_nothing(house: tuple[Airflow, str, str], browser: Browser) -> None:
    airflow, token, _ = house
    window = Window(browser, airflow.url, token=token)
    page = window.open(f"{PAGE}?view=machines")
    main_thread = page.context.new_cdp_session(page)
    main_thread.send("Performance.enable")
    engine, chance = create_engine(airflow.environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"]), random.Random(3)

    def kept() -> dict[str, float]:
        for _ in range(3):  # what a finalizer releases is collected by the next one
            main_thread.send("HeapProfiler.collectGarbage")
        found = {each["name"]: each["value"] for each in main_thread.send("Performance.getMetrics")["metrics"]}
        return {name: found[name] for name in KEPT}

    tables = {
        "Overview": "Sites",
        "Waits": "Waiting jobs",
        "Jobs": "Jobs",
        "Cost": "Costs by Dag",
        "Machines": "Machines",
    }
    chart = page.locator("[data-testid=packing-chart][data-redraw-ms]")  # a handle of the element would keep it
    amounts = []
    for number in range(1, ROUNDS + 1):
        with Session(engine) as session:
            go_on(session, chance, time.time(), 5)
        for view, table in tables.items():
            page.get_by_role("navigation", name="Lading").get_by_role("link", name=view, exact=True).click()
            expect(page.get_by_role("table", name=table, exact=True)).to_be_visible()
        with page.expect_response(lambda answer: "cursor=" in answer.url):  # the chart gets what has changed
            pass
        chart.wait_for()
        if number % WARM == 0:  # to collect garbage takes as long as a round
            amounts.append(kept())
    engine.dispose()
    for name in KEPT:
        # What is kept is still there in both: an answer that has just come is there in one.
        later = min(each[name] for each in amounts[-2:])
        assert later <= 1.1 * amounts[0][name], [each[name] for each in amounts]
    assert [fault for fault in window.faults if "lading" in fault.lower()] == []
    page.close()
