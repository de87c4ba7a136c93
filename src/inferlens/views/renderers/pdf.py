"""A page as PDF: printed by Chromium, with a profile that is thrown away, and without a network."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from inferlens.errors import InferlensError, reason

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
TIMEOUT = 120.0  # seconds for a page
_QUIET = (
    "--headless", "--disable-gpu", "--disable-extensions", "--disable-sync", "--disable-background-networking",
    "--disable-component-update", "--no-first-run", "--no-default-browser-check", "--no-pdf-header-footer",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)  # fmt: skip


def browser() -> str:
    """The Chromium of this machine; an :class:`InferlensError` if there is none."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not found:
        what = "A PDF is printed by Chromium or Chrome, and neither is on the PATH."
        raise InferlensError(what, hint="apt install chromium; or a file that ends in .html, which any browser prints")
    return found


def printed(page: str, folder: Path) -> bytes:
    """The page as PDF; ``folder`` is where files may be for a moment, for some browsers see no others' ``/tmp``.

    Raises:
        InferlensError: if there is no Chromium, or it does not print.
    """
    command = [browser(), *_QUIET, *(["--no-sandbox"] if os.geteuid() == 0 else [])]  # which root cannot have
    said, made = "", b""
    try:
        with TemporaryDirectory(prefix="inferlens-pdf-", dir=folder, ignore_cleanup_errors=True) as inside:
            source, target = Path(inside).resolve() / "page.html", Path(inside).resolve() / "page.pdf"
            source.write_text(page, encoding="utf-8")
            command += [f"--user-data-dir={inside}/profile", f"--print-to-pdf={target}", source.as_uri()]
            done = subprocess.run(command, capture_output=True, timeout=TIMEOUT, check=False)
            said = reason("\n".join(done.stderr.decode(errors="replace").splitlines()[-3:]))
            made = target.read_bytes() if target.is_file() else b""
    except (OSError, subprocess.TimeoutExpired) as error:
        said = reason(error)
    if not made.startswith(b"%PDF"):
        raise InferlensError(
            f"{command[0]} printed no PDF: {said}.", hint="a file that ends in .html, to print by hand"
        )
    return made
