"""Candidates that hang, crash or are short of memory, and a tuning that is killed: nothing else is lost."""

import itertools
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from inferlens.execution import child
from inferlens.execution.child import launch as launch_process
from inferlens.execution.protocol import CaseJob
from inferlens.execution.scheduler import Scheduler
from inferlens.execution.tuning import tune as tuning
from tests import commands
from tests.execution.tuning import test_tune

STATUSES = {"segfault": "crashed", "exit": "crashed", "hang": "timed out"}


def tune(folder, only, knobs=""):
    file = folder / "space.toml"
    file.write_text(f"[knobs.fake]\n{knobs}\n")
    return test_tune.tune(folder / "results", space=file, only=("fake:steady", "fp32", *only), backend="fake")


def records(tuned):
    return [record for trial in tuned.trials for record in trial.records]


@pytest.mark.usefixtures("without_torch", "one_process")
def test_candidates_that_crash_or_hang_are_out_and_take_no_other_along(tmp_path, monkeypatch):
    """The one that hangs does so for as long as the others of its family make one wait for, not until the deadline.

    Only these have processes of their own.
    """

    def launch(task, job, *words, **options):
        troubled = isinstance(job, CaseJob) and "trouble" in job.case.options
        return (launch_process if troubled else commands.launch)(task, job, *words, **options)

    monkeypatch.setattr(child, "launch", launch)
    monkeypatch.setattr(tuning, "LEAST_PATIENCE", 3.0)  # on a busy machine a process starts in seconds
    tuned = tune(tmp_path, ("knob_a", "trouble"), f"knob_a = [1]\ntrouble = {[*STATUSES]}")
    assert tuned.best.options == {"knob_a": 1}
    found = [each for each in records(tuned) if "trouble" in each.case.options]
    assert {each.case.options["trouble"]: each.status for each in found} == STATUSES
    assert len(found) == len(STATUSES), "each once"
    (told,) = (match[1] for each in found if (match := re.search(r"not done after ([0-9.]+) s", each.reason)))
    assert 3.0 < float(told) < 9.0
    assert all(record.ranked for record in records(tuned) if "trouble" not in record.case.options)


@pytest.mark.usefixtures("one_process")
def test_what_has_no_memory_even_alone_is_out(tmp_path):
    tuned = tune(tmp_path, ("knob_a", "trouble"), "trouble = ['memory error']")
    assert tuned.best.options == {"knob_a": 1}
    found = [each for each in records(tuned) if "trouble" in each.case.options]
    assert [each.status for each in found] == ["out of memory"]


@pytest.mark.usefixtures("one_process")
def test_what_has_the_memory_alone_is_measured_alone(tmp_path, monkeypatch):
    measured = Scheduler.measure_in_turns

    def short(*words, **options):
        less = {"status": "out of memory", "measurements": ()}
        return [
            replace(each, **less) if "knob_b" in each.case.options else each for each in measured(*words, **options)
        ]

    monkeypatch.setattr(Scheduler, "measure_in_turns", short)
    tuned = tune(tmp_path, ("knob_a", "knob_b"))
    assert tuned.best.options == {"knob_a": 1, "knob_b": 2}
    assert all(each.ranked for each in records(tuned))
    in_turns = [{"in turns with" in each.facts for each in trial.records} for trial in tuned.trials if not trial.final]
    assert in_turns[:2] == [{False}, {True}]
    assert in_turns[2:]
    assert all(each == {False} for each in in_turns[2:])


# A tuning that is killed.


ROOT = Path(__file__).parents[3]
TUNE = ("tune", "fake:demo", "--backend", "fake", "--only", "fake:steady,fp32,knob_b")


def left_by(folder, *moments):
    """What runs of one tuning left that were killed at these moments, one after the other; 0 is the end."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "tests.execution.tuning.killed", ",".join(map(str, moments)), *TUNE]
    words = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "TMPDIR": str(folder)}  # what is killed leaves its scratch
    done = subprocess.run(command, cwd=folder, env={**os.environ, **words}, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def check(runs, whole):
    """Each run kept what the one before it had; the last one ended as the undisturbed one did."""
    for before, after in itertools.pairwise(runs):
        assert after["kept"][: len(before["kept"])] == before["kept"]
    for one in runs:
        assert one["files"] in ([], ["best.toml", "record.json"]), "the winner is there whole, or not at all"
    assert not runs[-1]["killed"]
    rounds, expected = ([[case for _, case in trial] for trial in one["kept"]] for one in (runs[-1], whole))
    assert rounds == expected
    assert {name: runs[-1][name] for name in ("best", "files", "beside")} == {
        "best": whole["best"], "files": whole["files"], "beside": ["best", "tuning"]
    }  # fmt: skip


def test_killed_at_ten_moments_it_ends_as_if_undisturbed(tmp_path):
    draw = random.Random(1)
    whole, *runs = left_by(tmp_path, *(draw.randrange(1, 28) for _ in range(10)), 0)
    assert whole["best"] == {"knob_b": 1}
    assert sum(one["killed"] for one in runs) >= 5, "some runs end before a late moment, because little is left to do"
    assert len({len(one["kept"]) for one in runs}) >= 3, "they came far before they were killed"
    check(runs, whole)


def test_killed_while_rounds_are_kept_and_the_winner_is_put_in_place(tmp_path):
    moments = (*("trials:4", "trials:6"), *(f"best:{number}" for number in range(1, 7)))
    whole, *runs = left_by(tmp_path, *moments, 0)
    assert [one["killed"] for one in runs].count(False) == 1
    check(runs, whole)
