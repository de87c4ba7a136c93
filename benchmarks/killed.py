"""Whether a tuning that is killed goes on where it was: the long version of ``tuning/test_troubles.py``.

    python -m benchmarks.killed [--tunings 5] [--kills 10]

Each tuning is one of the fake backend's planted space. It is killed at moments that are drawn, then left to end, and
compared with one that nothing disturbed: its rounds, its answer, and that no round was measured twice that was kept.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TUNE = ("tune", "fake:demo", "--only", "fake:steady,fp32,knob_a,knob_b,knob_c,knob_d", "--budget", "1h")


def left_by(*moments: int) -> list[dict[str, Any]]:
    """What runs left that were killed at these moments."""
    command = [sys.executable, "-m", "tests.execution.tuning.killed", ",".join(map(str, moments)), *TUNE]
    words = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}  # its working directory is another
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, env=words, capture_output=True, text=True, check=True)
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(words: Sequence[str]) -> None:
    """Prints a line for each tuning."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.killed")
    parser.add_argument("--tunings", type=int, default=5)
    parser.add_argument("--kills", type=int, default=10)
    args = parser.parse_args(words)
    for seed in range(args.tunings):
        draw = random.Random(seed)
        whole, *runs, last = left_by(*(draw.randrange(1, 70) for _ in range(args.kills)), 0)
        twice = any(last["kept"][: len(one["kept"])] != one["kept"] for one in runs)
        rounds, expected = ([[case for _, case in trial] for trial in one["kept"]] for one in (last, whole))
        came = ", ".join(str(len(one["kept"])) for one in runs)
        said = "as undisturbed" if rounds == expected and last["best"] == whole["best"] else "DIFFERENT"
        again = "; ROUNDS WERE MEASURED TWICE" if twice else ""
        print(f"tuning {seed}: killed after {came} of {len(rounds)} rounds; {said}{again}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
