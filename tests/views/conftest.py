"""Charts that are drawn once, and browsers for tests of pages and notebooks."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from inferlens.views import picture

QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
DARK = {"layout.css.prefers-color-scheme.content-override": 0}  # Firefox ignores what a context asks for
FIRST_FIREFOX = 143  # the first one that has the command network.addDataCollector, which Playwright sends


@pytest.fixture(scope="module")
def charts() -> Iterator[dict[str, str]]:
    """The pictures of a module's charts by their JSON: equal charts are drawn once."""
    pictures: dict[str, str] = {}
    draw = picture.converter().vegalite_to_svg

    def draw_once(chart: dict[str, Any]) -> str:
        text = json.dumps(chart)
        return pictures.get(text) or pictures.setdefault(text, draw(chart))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(picture.converter(), "vegalite_to_svg", draw_once)
        yield pictures


@pytest.fixture
def one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Charts are as wide for a phone as for a desk, so that each is drawn once."""
    monkeypatch.setattr(picture, "_for_phone", lambda chart: chart)


@pytest.fixture(scope="session")
def playwright() -> Iterator[Any]:
    with pytest.importorskip("playwright.sync_api", reason="playwright is not there").sync_playwright() as started:
        yield started


@pytest.fixture(scope="session")
def browser(playwright: Any) -> Iterator[Any]:
    """Chromium, for what is the same in every browser; ``firefox`` is for what may differ."""
    path = shutil.which("chromium")
    if not path:
        pytest.skip("Chromium is not there")
    with playwright.chromium.launch(executable_path=path, args=QUIET) as chromium:
        yield chromium


@pytest.fixture(scope="session")
def firefox(playwright: Any) -> Iterator[Any]:
    path = shutil.which("firefox-esr") or shutil.which("firefox")
    if not path:
        pytest.skip("Firefox is not there")
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    if int(re.findall(r"\d+", version)[0]) < FIRST_FIREFOX:
        pytest.skip(f"{version.strip()} is too old for Playwright")
    with playwright.firefox.launch(executable_path=path, channel="moz-firefox", firefox_user_prefs=DARK) as firefox:
        yield firefox
