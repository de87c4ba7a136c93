"""Browsers, for tests of pages and notebooks."""

import shutil
from typing import Any

import pytest

BROWSERS = {"chromium": ("chromium",), "firefox": ("firefox-esr", "firefox")}


@pytest.fixture(scope="module", params=BROWSERS)
def browser(request: pytest.FixtureRequest) -> Any:
    """Either browser, set to dark."""
    path = next(filter(None, map(shutil.which, BROWSERS[request.param])), None)
    if not path:
        pytest.skip(f"{request.param.capitalize()} is not there")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not there")
    quiet = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
    dark = {"layout.css.prefers-color-scheme.content-override": 0}  # what a context asks of Firefox has no effect
    with playwright.sync_playwright() as made:
        if request.param == "chromium":
            opened = made.chromium.launch(executable_path=path, args=quiet)
        else:
            try:
                opened = made.firefox.launch(executable_path=path, channel="moz-firefox", firefox_user_prefs=dark)
            except playwright.Error as error:
                if "unknown command" not in str(error):
                    raise
                pytest.skip("this Firefox is too old for Playwright")
        yield opened
        opened.close()
