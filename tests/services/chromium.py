"""A headless Chromium of Debian, driven by Playwright."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, ConsoleMessage, Page, Response, sync_playwright

from tests.services import debian

# The tests run as root where they may, and Chromium's sandbox wants another user.
OPTIONS = ["--no-sandbox", "--disable-dev-shm-usage"]
GO = """path => { history.pushState(null, '', path); dispatchEvent(new PopStateEvent('popstate')); }"""


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A browser; the Debian packages are installed where they are missing."""
    if not shutil.which("chromium"):
        debian.install("chromium", "fonts-dejavu-core")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(shutil.which("chromium")), args=OPTIONS)
        try:
            yield browser
        finally:
            browser.close()


class Window:
    """A page of a browser that records what goes wrong in it.

    :param base: of its addresses
    :param without: the globals of the host that are hidden from it
    :param token: with which it is logged in; None: Airflow lets everyone in
    """

    def __init__(
        self,
        browser: Browser,
        base: str,
        *,
        width: int = 1280,
        height: int = 800,
        without: tuple[str, ...] = (),
        token: str | None = None,
    ) -> None:
        self.base = base
        self.faults: list[str] = []
        self.page: Page = browser.new_page(viewport={"width": width, "height": height})
        self.page.set_default_timeout(60_000)
        if token is not None:
            self.page.context.add_cookies([{"name": "_token", "value": token, "url": base}])
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("response", self._response)
        for name in without:
            hidden = f"Object.defineProperty(globalThis, {name!r}, {{get: () => undefined, set: () => {{}}}})"
            self.page.add_init_script(hidden)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.faults.append(message.text)

    def _response(self, response: Response) -> None:
        if response.status >= 400 and "/lading/" in response.url:
            self.faults.append(f"{response.status} {response.url}")

    def open(self, path: str) -> Page:
        """Go to a path of Airflow's UI."""
        self.page.goto(f"{self.base}{path}")
        return self.page

    def go(self, path: str) -> Page:
        """Go to a path of Airflow's UI as a link does, once a path was opened.

        Airflow's own files are not run again, which takes a browser more than a second of a processor.
        """
        self.page.evaluate(GO, path)
        return self.page

    def picture(self, file: Path) -> None:
        """Take a screenshot, to be looked at."""
        file.parent.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=file)
