"""Screens as they are stored, one file each in tests/golden/screens: they hold the wording, so that tests need not.

``WRITE_SCREENS=1 python -m pytest PATH`` writes the files of the tests in PATH again.
"""

import difflib
import os
from pathlib import Path

import pytest

SCREENS = Path(__file__).parent / "golden" / "screens"


def compare_with_stored(name: str, text: str) -> None:
    """Fail with the lines that differ if a screen is not as it was stored."""
    path, text = SCREENS / f"{name}.txt", text.replace("\r\n", "\n")
    if os.environ.get("WRITE_SCREENS"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    stored = path.read_text("utf-8") if path.exists() else ""
    if stored != text:
        lines = difflib.unified_diff(stored.splitlines(), text.splitlines(), "stored", "now", n=2, lineterm="")
        pytest.fail("\n".join([name, *lines]), pytrace=False)


def screens_test(folder: str, screens: dict[str, object]) -> object:
    """Return a test with a case for each screen, a function without arguments that returns its text."""

    @pytest.mark.parametrize("name", screens)
    def test_screen_is_as_stored(name):
        compare_with_stored(f"{folder}/{name}", screens[name]())

    return test_screen_is_as_stored
