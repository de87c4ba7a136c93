"""A candidate that hangs, crashes, is short of memory or is wrong costs its own time, and no other's measurement."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from inferlens.execution.protocol import Observer, PlannedCase
from inferlens.execution.scheduler import Scheduler
from inferlens.execution.tuning import tune as tuning
from inferlens.execution.tuning.space import search_selection
from inferlens.execution.tuning.tune import TuningReport, TuningRequest
from inferlens.execution.tuning.tune import tune as run_tune
from inferlens.record.record import Record
from inferlens.spec.objective import Objective
from inferlens.spec.plan import Plan

STATUSES = {"segfault": "crashed", "exit": "crashed", "hang": "timed out"}


def tune(folder: Path, only: Sequence[str], knobs: str = "", **words: Any) -> TuningReport:
    file = folder / "space.toml"
    file.write_text(f"[knobs.fake]\n{knobs}\n")
    plan = Plan.from_words({"model": "fake:demo", "warmup": 2, "output": str(folder / "results"), **words})
    request = TuningRequest(plan=plan, objective=Objective.parse("latency"), budget=3600.0)
    (tuned,) = run_tune(request, search_selection(file, only=("fake:steady", "fp32", *only)), Observer())
    return tuned


def records(tuned: TuningReport) -> list[Record]:
    return [record for trial in tuned.trials for record in trial.records]


def test_in_processes_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that hangs does so for as long as the others of its family make one wait for, not until the deadline."""
    monkeypatch.setattr(tuning, "LEAST_PATIENCE", 2.0)
    tuned = tune(tmp_path, ("knob_a", "knob_e", "trouble"), f"knob_a = [1]\ntrouble = {[*STATUSES]}")
    assert tuned.best
    assert tuned.best.options == {"knob_a": 1}
    found = {
        trouble: [each for each in records(tuned) if each.case.options.get("trouble") == trouble]
        for trouble in STATUSES
    }
    assert {trouble: {each.status for each in found[trouble]} for trouble in found} == {
        trouble: {status} for trouble, status in STATUSES.items()
    }
    assert all(len(each) == 1 for each in found.values())
    (hung,) = found["hang"]
    (told,) = re.findall(r"not done after ([0-9.]+) s", hung.reason)
    assert 2.0 < float(told) < 5.0
    assert all(each.ranked for each in records(tuned) if not {"trouble", "knob_e"} & each.case.options.keys())
    (wrong,) = (each for each in records(tuned) if each.case.options == {"knob_e": 1})
    assert wrong.agreement
    assert wrong.agreement.agrees is False
    assert not wrong.measurements


def short_beside_others(monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    """What has an option has the memory for it only where it is alone."""
    measured = Scheduler.measure_together

    def short(self: Scheduler, cases: Sequence[PlannedCase], *others: Any, **words: Any) -> list[Record]:
        found = measured(self, cases, *others, **words)
        less = {"status": "out of memory", "measurements": ()}
        return [replace(each, **less) if option in each.case.options else each for each in found]

    monkeypatch.setattr(Scheduler, "measure_together", short)


@pytest.mark.usefixtures("one_process")
def test_what_has_no_memory_even_alone_is_out(tmp_path: Path) -> None:
    tuned = tune(tmp_path, ("knob_a", "trouble"), "trouble = ['memory error']")
    assert tuned.best
    assert tuned.best.options == {"knob_a": 1}
    found = [each for each in records(tuned) if "trouble" in each.case.options]
    assert [each.status for each in found] == ["out of memory"]


@pytest.mark.usefixtures("one_process")
def test_what_has_the_memory_alone_is_measured_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short_beside_others(monkeypatch, "knob_b")
    tuned = tune(tmp_path, ("knob_a", "knob_b"))
    assert tuned.best
    assert tuned.best.options == {"knob_a": 1, "knob_b": 2}
    assert all(each.ranked for each in records(tuned))
    in_turns = [{"in turns with" in each.facts for each in trial.records} for trial in tuned.trials if not trial.final]
    assert in_turns[:2] == [{False}, {True}]
    assert in_turns[2:]
    assert all(each == {False} for each in in_turns[2:])
