"""``inferlens ab`` as a person runs it: exit codes, what it prints, what it keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inferlens import load_records
from tests.commands import inferlens, launch, started

QUICK = ("--warmup", "2", "--iterations", "100")


def test_in_processes_of_its_own(tmp_path: Path) -> None:
    done = started("ab", "fake:demo", "fake:steady", "fake:fast", *QUICK, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    *sides, _, _, verdict = done.stdout.splitlines()
    assert sides == ["A  fake:steady fp32 batch 1 cpu  4.00 ms", "B  fake:fast fp32 batch 1 cpu    2.00 ms"]
    assert verdict.startswith(
        "FASTER: B takes 0.500 times as long as A (0.500 to 0.500), with 95 % confidence, after 3"
    )
    assert "[2/40] fake:fast 2.00 ms" in done.stderr
    assert "round 3: B takes 0.500 times as long as A" in done.stderr
    assert "inferlens show results" in done.stderr
    assert len(load_records([tmp_path / "results"]).records) == 6


@pytest.mark.parametrize(
    ("a", "b", "words", "code", "verdict"),
    [
        ("fake", "fake:fast", (), 0, "FASTER"),
        ("fake:noisy", "fake:noisy latency=4.001", ("--threshold", "5%"), 0, "SAME"),
        ("fake:fast", "fake", (), 1, "SLOWER"),
        ("fake:noisy", "fake:noisy latency=4.07", ("--max-rounds", "3"), 3, "UNDECIDED"),
        ("fake", "fake:noisy latency=4.07", ("--within", "0s"), 3, "UNDECIDED"),
        ("fake", "fake:fast trouble=raise", (), 4, "DID NOT RUN"),
    ],
)
def test_exit_codes(tmp_path: Path, a: str, b: str, words: tuple[str, ...], code: int, verdict: str) -> None:
    done = inferlens("ab", "fake:demo", a, b, *QUICK, *words, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert done.stdout.splitlines()[-1].startswith(f"{verdict}: ")


def test_json_is_all_that_standard_output_has(tmp_path: Path) -> None:
    done = inferlens("ab", "fake:demo", "fake", "fake:fast", *QUICK, "--json", cwd=tmp_path)
    data = json.loads(done.stdout)
    assert (data["schema"], data["verdict"], data["exit_code"], data["rounds"]) == ("inferlens.ab/1", "FASTER", 0, 3)
    assert data["a"]["variant"] == "steady"
    assert data["candidate"]["median"] == pytest.approx(0.002)
    assert data["rule"]["within"] == 600.0


@pytest.mark.parametrize("calls", [5, 9])
def test_an_interrupted_one_says_how_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
    """In the first round, and in the third: the model, the backends and the reference are three calls of their own."""
    begun: list[object] = []

    def interrupted(*given: Any, **words: Any) -> object:
        begun.append(given)
        if len(begun) == calls:
            raise KeyboardInterrupt
        return launch(*given, **words)

    monkeypatch.setattr("tests.commands.launch", interrupted)
    done = inferlens("ab", "fake:demo", "fake", "fake:fast", *QUICK, cwd=tmp_path)
    assert done.returncode == 130, done.stderr
    assert "Interrupted" in done.stderr
    assert ("UNDECIDED: no ratio yet, after 2 rounds" in done.stdout) is (calls == 9)


@pytest.mark.parametrize(
    "words",
    [
        ("fake:demo", "fake"), ("fake:demo", "fake", "fake"), ("fake:demo", "fake", "fake fp61"),
        ("fake:demo", "fake", "nothing"), ("nowhere.onnx", "pytorch", "onnxruntime"),
        ("fake:demo", "fake", "fake:fast", "--max-rounds", "1"), ("fake:demo", "fake", "fake:fast", "--within", "x"),
        ("fake:demo", "fake", "fake:fast", "--batch", "0"),
    ],
)  # fmt: skip
def test_bad_input_is_one_message(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = inferlens("ab", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout
