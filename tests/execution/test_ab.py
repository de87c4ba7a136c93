"""Two cases in turns: when it is over, what counts, and what is kept."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import inferlens
from inferlens import ABResult, InferlensError, load_records
from inferlens.analysis.interference.samples import latest
from inferlens.execution import ab as running
from inferlens.execution import child_process as processes
from tests.commands import ended, launch

pytestmark = pytest.mark.usefixtures("one_process")
QUICK: dict[str, Any] = {"warmup": 2, "iterations": 30}


def ab(folder: Path, a: str, b: str, **words: Any) -> ABResult:
    return inferlens.ab("fake:demo", a, b, output=str(folder), **{**QUICK, **words})


def test_twice_as_fast_is_decided_at_the_first_look(tmp_path: Path) -> None:
    looks: list[ABResult] = []
    found = ab(tmp_path, "fake:steady", "fake:fast", on_round=looks.append)
    assert (found.verdict, found.end, found.rounds, found.exit_code) == ("FASTER", "decided", 3, 0)
    assert found.ratio == pytest.approx(0.5)
    assert [look.rounds for look in looks] == [1, 2, 3]
    assert [look.verdict for look in looks] == ["UNDECIDED", "UNDECIDED", "FASTER"]
    assert (looks[0].ratio, looks[0].end, looks[0].standing) == (None, "", "no ratio yet")
    assert (found.base.median, found.candidate.median) == (pytest.approx(4e-3), pytest.approx(2e-3))
    assert "FASTER: B takes 0.500 times as long as A (0.500 to 0.500), with 95 % confidence" in found.sentence


@pytest.mark.parametrize(
    ("latency", "words", "verdict"),
    [
        ("4.12", {"iterations": 500}, "SLOWER"),
        ("4.12", {"iterations": 500, "threshold": 0.05}, "SAME"),
        ("4.12", {"iterations": 500, "threshold": "3.5%"}, "UNDECIDED"),
        ("4.07", {"iterations": 20}, "UNDECIDED"),
    ],
)
def test_noise(tmp_path: Path, latency: str, words: dict[str, Any], verdict: str) -> None:
    found = ab(tmp_path, "fake:noisy latency=4", f"fake:noisy latency={latency}", max_rounds=4, **words)
    assert found.verdict == verdict, found.sentence
    if verdict == "UNDECIDED":
        assert (found.end, found.rounds, found.exit_code) == ("rounds", 4, 3)
    assert found.ratio == pytest.approx(float(latency) / 4, rel=1e-3)


def test_records_are_those_of_one_run_in_alternating_order(tmp_path: Path) -> None:
    found = ab(tmp_path, "fake:steady", "fake:fast")
    records = load_records([tmp_path]).records
    assert [(record.repeat, record.case.variant) for record in records] == [
        (0, "steady"), (0, "fast"), (1, "fast"), (1, "steady"), (2, "steady"), (2, "fast"),
    ]  # fmt: skip
    assert {record.run for record in records} == {found.run}
    assert [len(repeats.records) for repeats in latest(records)] == [3, 3]
    assert {*found.base.records, *found.candidate.records} == {record.id for record in records}
    assert all(record.budget.mode == "latency" for record in records)


def test_throughput_is_compared_as_calls_a_second(tmp_path: Path) -> None:
    found = ab(tmp_path, "fake:steady", "fake:fast", metric="throughput", iterations=None, seconds=0.2)
    assert (found.verdict, found.ratio) == ("FASTER", pytest.approx(0.5))
    assert "B does 2.000 times as many calls a second as A" in found.sentence
    assert found.candidate.median == pytest.approx(500)


@pytest.mark.parametrize(("within", "done"), [("0s", 1), ("22s", 2), ("1h", 4)])
def test_when_the_time_is_up_no_round_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, within: str, done: int
) -> None:
    """Each round takes four or five ticks; the first runs whatever the time."""
    monkeypatch.setattr(running, "time", SimpleNamespace(monotonic=itertools.count(0.0, 2.0).__next__))
    sides = ("fake:noisy latency=4", "fake:noisy latency=4.07")
    found = ab(tmp_path, *sides, within=within, max_rounds=4, iterations=20)
    assert (found.verdict, found.end, found.rounds) == ("UNDECIDED", "time" if done < 4 else "rounds", done)


@pytest.mark.parametrize(
    ("a", "b", "words", "said", "kept"),
    [
        ("fake:fast trouble=raise", "fake:steady", {"interleave": "processes"}, "A, failed: RuntimeError", 1),
        ("fake:steady", "fake:fast trouble=raise", {"interleave": "processes"}, "B, failed: RuntimeError", 2),
        ("fake:steady", "fake:fast error=0.1", {}, "B, wrong", 2),
        ("fake:steady", "fake:fast cuda", {}, "only on cpu", 1),
    ],
)
def test_a_side_that_fails_is_wrong_or_cannot_run_here_ends_it(
    tmp_path: Path, a: str, b: str, words: dict[str, Any], said: str, kept: int
) -> None:
    found = ab(tmp_path, a, b, **words)
    assert (found.verdict, found.end, found.exit_code, found.rounds) == ("DID NOT RUN", "a side did not run", 4, 0)
    assert (found.ratio, found.interval) == (None, None)
    assert said in found.sentence
    assert len(load_records([tmp_path]).records) == kept


def test_a_process_that_fails_later_leaves_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two rounds before it are not enough, and those that ran would mostly be the fast ones."""

    def sometimes(*given: Any, **words: Any) -> Any:
        calls.append(given)
        return ended("crashed", "It fell.") if len(calls) == 9 else launch(*given, **words)

    calls: list[Any] = []
    monkeypatch.setattr(processes, "launch", sometimes)
    found = ab(tmp_path, "fake:steady", "fake:fast")
    assert (found.verdict, found.ratio) == ("DID NOT RUN", None)
    assert "crashed: It fell" in found.sentence


def test_what_is_not_the_same_work_is_said(tmp_path: Path) -> None:
    found = ab(tmp_path, "fake:steady batch=2", "fake:steady batch=1 latency=8")
    assert "same work" in found.notes[0]
    assert not [note for note in ab(tmp_path, "fake:steady", "fake:fast").notes if "same work" in note]


def test_shared_words_are_of_both_and_a_case_overrules_them(tmp_path: Path) -> None:
    shared: dict[str, Any] = {"batch": 8, "precision": "fp16", "option": ["fake.latency=2", "fake.per_item=0"]}
    found = ab(tmp_path, "fake:steady", "fake:steady batch=4 latency=1", **shared)
    assert found.a.label == "fake:steady fp16 batch 8 cpu latency=2.0 per_item=0.0"
    assert found.b.label == "fake:steady fp16 batch 4 cpu latency=1.0 per_item=0.0"


@pytest.mark.parametrize(
    ("a", "b", "words", "said"),
    [
        ("fake", "fake:steady", {}, "the same case"),
        ("fake", "fake:fast", {"batch": "1,8"}, "A means 2 cases"),
        ("fake", "fake:all", {}, "B means 3 cases"),
        ("fake", "fake:quick", {}, "no variant 'quick'"),
        ("fake", "fake:fast pace=3", {}, "no option 'pace'"),
        ("fake", "fake:fast pytorch.tf32=true", {}, "leaves out"),
        ("fake", "fake:fast", {"option": ["pytorch.tf32=true"]}, "backend of neither case"),
        ("fake", "fake:fast", {"max_rounds": 2}, "2 rounds at most"),
        ("fake", "fake:fast", {"threshold": 0}, "threshold"),
        ("fake", "fake:fast", {"level": "100%"}, "level"),
        ("fake", "fake:fast", {"within": "soon"}, "no duration"),
        ("fake", "fake:fast", {"colour": "red"}, "'colour'"),
        ("fake", "fake:fast", {"interleave": "layers"}, "calls and processes"),
    ],
)
def test_bad_input_is_refused(tmp_path: Path, a: str, b: str, words: dict[str, Any], said: str) -> None:
    with pytest.raises(InferlensError, match=said):
        ab(tmp_path, a, b, **words)
    assert not list(tmp_path.rglob("record.json"))
