"""Commands that run at the same time: what takes long to build is built before it is measured."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

BUILD = ("--quick", "--iterations", "5", "--warmup", "2")


def run_side_by_side(commands: Iterable[Sequence[str]], folder: Path) -> float:
    """How many seconds ``inferlens`` with each of these words took, all at once; each one's screen lies in a file."""
    folder.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    begun = []
    for number, words in enumerate(commands):
        with (folder / f"screen-{number}.txt").open("w") as screen:
            command = [sys.executable, "-m", "inferlens", *words]
            begun.append(subprocess.Popen(command, stdout=screen, stderr=subprocess.STDOUT))
    for each in begun:
        each.wait()
    return time.monotonic() - begin
