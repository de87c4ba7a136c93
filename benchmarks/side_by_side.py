"""Commands that run at the same time: what takes long to build is built before it is measured."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

BUILD = ("--quick", "--iterations", "5", "--warmup", "2")


def run_side_by_side(commands: Iterable[Sequence[str]], folder: Path) -> float:
    """Runs ``inferlens`` commands side by side, each one's screen into a file; seconds until all have ended."""
    folder.mkdir(parents=True, exist_ok=True)

    def run(numbered: tuple[int, Sequence[str]]) -> None:
        number, words = numbered
        with (folder / f"screen-{number}.txt").open("w") as screen:
            command = [sys.executable, "-m", "inferlens", *words]
            code = subprocess.run(command, stdout=screen, stderr=subprocess.STDOUT, check=False).returncode
        if code:
            print(f"exit code {code}: inferlens {' '.join(words)}, see {screen.name}", flush=True)

    begin = time.monotonic()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(run, enumerate(commands)))
    return time.monotonic() - begin
