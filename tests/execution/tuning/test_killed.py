"""A tuning that is killed goes on where it was, whenever that is: with the same answer, and nothing measured twice."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
TUNE = ("tune", "fake:demo", "--only", "fake:steady,fp32,knob_b")


def left_by(folder: Path, where: str, *moments: object) -> list[dict[str, Any]]:
    """What runs of one tuning left that were killed at these moments, one after the other; 0 is the end."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "tests.execution.tuning.killed", where, ",".join(map(str, moments)), *TUNE]
    words = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "TMPDIR": str(folder)}  # what is killed leaves its scratch
    done = subprocess.run(command, cwd=folder, env={**os.environ, **words}, capture_output=True, text=True, check=True)
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def options(one: dict[str, Any]) -> list[list[Any]]:
    """What was measured in each round."""
    return [[case for _, case in trial] for trial in one["kept"]]


def check(runs: list[dict[str, Any]], whole: dict[str, Any]) -> None:
    """Each run kept what the one before it had; the last one ended as the undisturbed one did."""
    for before, after in itertools.pairwise(runs):
        assert after["kept"][: len(before["kept"])] == before["kept"]
    for one in runs:
        assert one["files"] in ([], ["best.toml", "record.json"]), "the winner is there whole, or not at all"
    assert not runs[-1]["killed"]
    assert options(runs[-1]) == options(whole)
    assert {name: runs[-1][name] for name in ("best", "files", "beside")} == {
        "best": whole["best"], "files": whole["files"], "beside": ["best", "tuning"]
    }  # fmt: skip


@pytest.fixture(scope="module")
def at_ten_moments(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What an undisturbed run leaves, and those of another tuning, ten of which are killed."""
    draw = random.Random(1)
    return left_by(tmp_path_factory.mktemp("killed"), "here", *(draw.randrange(1, 28) for _ in range(10)), 0)


def test_killed_at_ten_moments_it_ends_as_if_undisturbed(at_ten_moments: list[dict[str, Any]]) -> None:
    whole, *runs = at_ten_moments
    assert whole["best"] == {"knob_b": 1}
    assert sum(one["killed"] for one in runs) >= 5, "some runs end before a late moment, because little is left to do"
    assert len({len(one["kept"]) for one in runs}) >= 3, "they came far before they were killed"
    check(runs, whole)


def test_killed_while_rounds_are_kept_and_the_winner_is_put_in_place(tmp_path: Path) -> None:
    moments = (*("trials:4", "trials:6"), *(f"best:{number}" for number in range(1, 7)))
    whole, *runs = left_by(tmp_path, "here", *moments, 0)
    assert [one["killed"] for one in runs].count(False) == 1
    check(runs, whole)


def test_killed_with_processes_of_its_own(at_ten_moments: list[dict[str, Any]], tmp_path: Path) -> None:
    runs = left_by(tmp_path, "apart", 51, 0)
    assert [(one["killed"], len(one["kept"])) for one in runs] == [(True, 2), (False, 4)]
    check(runs, at_ten_moments[0])
