"""``inferlens ab`` as a person runs it: exit codes, what it prints, what it keeps."""

import json
import re
from typing import Any

import pytest

from inferlens import load_records
from inferlens.analysis.ab_result import ABResult
from inferlens.analysis.interference import MachineLoad
from inferlens.cli.progress import RoundsBar
from inferlens.measure import environment, monitor
from tests.commands import inferlens, launch

QUICK = ("--warmup", "2", "--iterations", "100")


def test_it_shows_the_answer_the_sides_and_its_progress(tmp_path):
    done = inferlens("ab", "fake:demo", "fake:steady", "fake:fast", *QUICK, "--max-rounds", "3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    verdict, common, _, *sides, _, last = done.stdout.splitlines()
    assert verdict.startswith("B is FASTER: 2.00x as fast as A (1.83 to 2.19), 95 % sure, 3 rounds, ")
    assert (common, sides) == ("demo · fp32 · batch 1 · cpu", ["A fake:steady   4.00 ms", "B fake:fast     2.00 ms"])
    assert last == "The records: inferlens show results"
    assert "[2/2] fake:fast 2.00 ms" in done.stderr
    assert "round 3: B is 2.00x as fast as A" in done.stderr
    assert len(load_records([tmp_path / "results"]).records) == 6


def test_rounds_of_two_models_are_of_both(tmp_path):
    done = inferlens("ab", "fake:demo", "fake:other", *QUICK, "--max-rounds", "3", cwd=tmp_path)
    said = [line for line in done.stderr.splitlines() if "round" in line]
    assert [line[:32] for line in said] == [f"round {number}: B is 1.00x as fast as A" for number in (3,)]


@pytest.mark.parametrize(("a", "b", "words", "code", "verdict"), [
    ("fake", "fake:fast", (), 0, "FASTER"),
    ("fake:noisy", "fake:noisy latency=4.001", ("--threshold", "5%"), 0, "SAME"),
    ("fake:fast", "fake", (), 1, "SLOWER"),
    ("fake:noisy", "fake:noisy latency=4.07", ("--within", "0s"), 3, "UNDECIDED"),
    ("fake", "fake:fast trouble=raise", (), 4, "DID NOT RUN"),
])  # fmt: skip
def test_exit_codes(tmp_path, a, b, words, code, verdict):
    done = inferlens("ab", "fake:demo", a, b, *QUICK, *words, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    words = {"SAME": "EQUALLY FAST"}.get(verdict, verdict)
    assert words in done.stdout.splitlines()[0]
    assert ("To decide it: the same command with --within" in done.stdout) is (verdict == "UNDECIDED")


def test_on_a_busy_machine_it_says_so_and_the_exit_code_does_if_asked(tmp_path, monkeypatch):
    load = MachineLoad(busy=True, other_cpus=1.0, cpus=2)
    monkeypatch.setattr(ABResult, "machine_load", property(lambda _: load))
    words = ("ab", "fake:demo", "fake:fast", "fake", *QUICK, "--max-rounds", "3")
    asked = inferlens(*words, "--fail-on-busy", cwd=tmp_path)
    assert (asked.returncode, "B is SLOWER" in asked.stdout) == (5, True)
    assert "Other programs used 1.0 of 2 CPUs. This is the answer for the machine as busy as it was." in asked.stdout
    data = json.loads(inferlens(*words, "--json", cwd=tmp_path).stdout)
    assert (data["exit_code"], data["machine_load"]["other_cpus"]) == (1, 1.0)


def test_it_waits_for_a_quiet_machine_if_asked(tmp_path, monkeypatch):
    looks = iter(["other programs use 0.9 of 2 CPUs", ""])
    monkeypatch.setattr(monitor, "other_programs", lambda **_: next(looks))
    words = ("ab", "fake:demo", "fake:fast", "fake", *QUICK, "--max-rounds", "3")
    progress = inferlens(*words, "--wait", "1m", cwd=tmp_path).stderr
    waiting = progress.index("for a quiet machine: other programs use 0.9 of 2 CPUs.")
    assert 0 < waiting < progress.index("The machine is quiet after")


def test_json_is_all_that_standard_output_has(tmp_path):
    done = inferlens("ab", "fake:demo", "fake", "fake:fast", *QUICK, "--json", cwd=tmp_path)
    data = json.loads(done.stdout)
    assert (data["schema"], data["verdict"], data["exit_code"], data["rounds"]) == ("inferlens.ab/1", "FASTER", 0, 3)
    assert data["a"]["variant"] == "steady"
    assert data["candidate"]["median"] == pytest.approx(0.002)
    assert data["rule"]["within"] == 600.0


def test_interrupted_steps_are_shown_with_those_that_are_over(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "check", lambda *_: None)
    update = RoundsBar.update

    def interrupted(bar: RoundsBar, so_far: Any) -> None:
        update(bar, so_far)
        if len(so_far.steps) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(RoundsBar, "update", interrupted)
    pythons = ",".join(f"{name}/bin/python" for name in "abc")
    done = inferlens("ab", "fake:demo", "fake", "--python", pythons, *QUICK, cwd=tmp_path)
    assert (done.returncode, "Interrupted" in done.stderr) == (130, True), done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines() if " ms" in line] == ["a", "b", "c"]
    assert re.findall(r"^\[./.\]", done.stderr, re.M) == ["[1/2]", "[2/2]"] * 2


@pytest.mark.parametrize("calls", [5, 7])
def test_an_interrupted_one_says_how_it_stands(tmp_path, monkeypatch, calls):
    """In the first round, and in the second: the model, the backends and the reference are three calls of their own."""
    begun: list[object] = []

    def interrupted(*given: Any, **words: Any) -> object:
        begun.append(given)
        if len(begun) == calls:
            raise KeyboardInterrupt
        return launch(*given, **words)

    monkeypatch.setattr("tests.commands.launch", interrupted)
    done = inferlens("ab", "fake:demo", "fake", "fake:fast", *QUICK, cwd=tmp_path)
    assert (done.returncode, "Interrupted" in done.stderr) == (130, True), done.stderr
    assert ("UNDECIDED" in done.stdout) is (calls == 7)
