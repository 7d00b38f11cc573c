"""Each view of the page on a full house: in light and dark, on a phone and on a screen of 4K it fits and has a title.

``LADING_PICTURES=FOLDER`` keeps a screenshot of each.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.services.airflow import Airflow
from tests.services.chromium import Window, chromium
from tests.services.full_house import full_house

PICTURES = Path(os.environ["LADING_PICTURES"]).absolute() if "LADING_PICTURES" in os.environ else None
PAGE = "/plugin/lading"
# Width and height in pixels, and whether it is dark.
SCREENS = {
    "light": (1440, 1000, False), "dark": (1440, 1000, True), "phone": (390, 844, False), "4k": (3840, 2160, False),
}  # fmt: skip
# The address of each view, and the section or table that it has once it is loaded.
VIEWS = {
    "overview": (PAGE, "Sites"),
    "waits": (f"{PAGE}?view=waits", "Waiting jobs"),
    "waits-of-a-site": (f"{PAGE}?view=waits&site=hpc", "Waiting jobs"),
    "machines": (f"{PAGE}?view=machines", "Machines"),
    "memory-of-a-site": (f"{PAGE}?view=machines&site=cloud&measure=memory", "Machines"),
    "jobs": (f"{PAGE}?view=jobs", "Jobs"),
    "failed-jobs": (f"{PAGE}?view=jobs&state=failed&within=604800", "Failed jobs"),
    "cost": (f"{PAGE}?view=cost", "Costs by Dag"),
    "cost-by-site": (f"{PAGE}?view=cost&split=site", "Idle machines"),
    "cost-by-run": (f"{PAGE}?view=cost&split=run&days=6", "Costs by run"),
    "dag": ("/dags/genomes/plugin/lading-dag", "Runs of genomes"),
    "run": ("/dags/genomes/runs/{run}/plugin/lading-run", "Tasks of the run"),
    "task": ("/dags/genomes/runs/{run}/tasks/fetch/plugin/lading-task", None),
    "mapped-task": ("/dags/genomes/runs/{run}/tasks/align/mapped/0/plugin/lading-task", None),
    "home": ("/", None),
}
# Whether nothing is wider than the window.
FITS = """() => {
    const frame = document.querySelector('[data-testid=lading], .lading');
    return frame && frame.clientWidth <= innerWidth && frame.scrollWidth <= frame.clientWidth + 1;
}"""

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
    for name, (path, table) in VIEWS.items():
        page = window.open(path.format(run=quote(run, safe="")))
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
            page.wait_for_timeout(1500)  # until nothing moves any more
            window.picture(PICTURES / f"{screen}-{name}.png")
    assert len(titles) == 5, titles
    assert [fault for fault in window.faults if "lading" in fault.lower()] == []
    window.page.close()
