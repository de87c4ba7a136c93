"""Two cases in turns: when it is over, what counts, what is kept, and what the command says."""

import itertools
import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

import inferlens
from inferlens import InferlensError, load_records
from inferlens.analysis.ab_result import ABResult
from inferlens.analysis.interference import MachineLoad
from inferlens.analysis.samples import latest
from inferlens.cli.progress import RoundsBar
from inferlens.execution import ab as running
from inferlens.execution import child as processes
from inferlens.execution import race as rounds
from inferlens.measure import environment, monitor
from tests.commands import ended, launch
from tests.commands import inferlens as command

pytestmark = pytest.mark.usefixtures("one_process")
QUICK = {"warmup": 2, "iterations": 30}


LAUNCH = processes.launch


@pytest.fixture
def own_processes(one_process, probed_here, monkeypatch):
    """Cases of the new checkout have a process; all else is done here, and what it imports is forgotten."""

    def launched(task, *given, **words):
        if task == "benchmark" and given[0].case.checkout == "new":
            return LAUNCH(task, *given, **words)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "path", [*sys.path])
            patch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
            patch.chdir(os.getcwd())
            for name in [name for name in sys.modules if name.partition(".")[0] == "shop"]:
                del sys.modules[name]
            return launch(task, *given, **words)

    monkeypatch.setattr(processes, "launch", launched)


def ab(folder, a, b, **words):
    return inferlens.ab("fake:demo", a, b, output=str(folder), **{**QUICK, **words})


def test_twice_as_fast_is_decided_at_the_first_look_and_its_records_are_one_run_in_alternating_order(tmp_path):
    looks = []
    found = ab(tmp_path, "fake:steady", "fake:fast", on_round=looks.append)
    assert (found.verdict, found.end, found.rounds, found.exit_code) == ("FASTER", "decided", 3, 0)
    assert (found.ratio, [look.rounds for look in looks]) == (pytest.approx(0.5), [1, 2, 3])
    assert [look.verdict for look in looks] == ["UNDECIDED", "UNDECIDED", "FASTER"]
    assert (looks[0].ratio, looks[0].end, looks[0].odds, looks[0].ratio_text) == (None, "", {}, "no ratio yet")
    assert (found.base.median, found.candidate.median) == (pytest.approx(4e-3), pytest.approx(2e-3))
    assert found.sentence.startswith("B is FASTER: 2.00x as fast as A (1.83 to 2.19), 95 % sure, 3 rounds, ")
    records = load_records([tmp_path]).records
    assert [(record.repeat, record.case.variant) for record in records] == [
        (1, "steady"), (1, "fast"), (2, "fast"), (2, "steady"), (3, "steady"), (3, "fast"),
    ]  # fmt: skip
    assert {record.run for record in records} == {found.run}
    assert [len(repeats.records) for repeats in latest(records)] == [3, 3]
    assert {*found.base.records, *found.candidate.records} == {record.id for record in records}
    assert all(record.budget.mode == "latency" for record in records)


@pytest.mark.parametrize(("latency", "words", "verdict"), [
    ("4.12", {"iterations": 500}, "SLOWER"), ("4.12", {"iterations": 500, "threshold": 0.08}, "SAME"),
    ("4.12", {"iterations": 500, "threshold": "5%"}, "UNDECIDED"), ("4.07", {"iterations": 20}, "UNDECIDED"),
])  # fmt: skip
def test_noise(tmp_path, latency, words, verdict):
    found = ab(tmp_path, "fake:noisy latency=4", f"fake:noisy latency={latency}", max_rounds=5, **words)
    assert found.verdict == verdict, found.sentence
    if verdict == "UNDECIDED":
        assert (found.end, found.rounds, found.exit_code) == ("rounds", 5, 3)
        assert "probably" in found.sentence
        assert sum(found.odds.values()) == pytest.approx(1)
        assert found.retry_options
    assert found.ratio == pytest.approx(float(latency) / 4, rel=0.05 if words["iterations"] < 100 else 0.012)


def test_throughput_is_compared_as_calls_a_second(tmp_path):
    found = ab(tmp_path, "fake:steady", "fake:fast", metric="throughput", iterations=None, seconds=0.2)
    assert (found.verdict, found.ratio) == ("FASTER", pytest.approx(0.5))
    assert "B is FASTER: 2.00x as fast as A" in found.sentence
    assert found.candidate.median == pytest.approx(500)


@pytest.mark.parametrize(("within", "done"), [("0s", 3), ("34s", 3), ("1h", 5)])
def test_when_the_time_is_up_no_round_is_begun(tmp_path, monkeypatch, within, done):
    """Each round takes some ticks; the first three run whatever the time."""
    clock = SimpleNamespace(monotonic=itertools.count(0.0, 2.0).__next__)
    for module in (running, rounds):
        monkeypatch.setattr(module, "time", clock)
    sides = ("fake:noisy latency=4", "fake:noisy latency=4.07")
    found = ab(tmp_path, *sides, within=within, max_rounds=5, iterations=20)
    assert (found.verdict, found.end, found.rounds) == ("UNDECIDED", "time" if done < 5 else "rounds", done)


@pytest.mark.parametrize(("a", "b", "said", "kept"), [
    ("fake:fast trouble=raise", "fake:steady", "A, failed: this backend was told to fail", 2),
    ("fake:steady", "fake:fast error=0.1", "B, outputs wrong: ", 2),
    ("fake:steady", "fake:fast cuda", "only on cpu", 1),
])  # fmt: skip
def test_a_side_that_fails_is_wrong_or_cannot_run_here_ends_it(tmp_path, a, b, said, kept):
    found = ab(tmp_path, a, b)
    assert (found.verdict, found.end, found.exit_code, found.rounds) == ("DID NOT RUN", "a side did not run", 4, 0)
    assert (found.ratio, found.interval) == (None, None)
    assert said in found.sentence
    assert len(load_records([tmp_path]).records) == kept


def test_a_process_that_fails_later_leaves_no_verdict(tmp_path, monkeypatch):
    """The round before it is not enough, and those that ran would mostly be the fast ones."""

    def sometimes(*given, **words):
        calls.append(given)
        return ended("crashed", "It fell.") if len(calls) == 8 else launch(*given, **words)

    calls = []
    monkeypatch.setattr(processes, "launch", sometimes)
    found = ab(tmp_path, "fake:steady", "fake:fast")
    assert (found.verdict, found.ratio) == ("DID NOT RUN", None)
    assert "crashed: It fell" in found.sentence


def test_what_is_not_the_same_work_is_said(tmp_path):
    found = ab(tmp_path, "fake:steady batch=2", "fake:steady batch=1 latency=8")
    assert "same work" in found.notes[0]
    assert not any("same work" in note for note in ab(tmp_path, "fake:steady", "fake:fast").notes)


# What A and B may be


@pytest.mark.parametrize(("given", "words", "labels", "ratio"), [
    (("fake:demo", "fake:steady", "fake:steady batch=4 latency=1"),  # a case overrules words of both
     {"batch": 8, "precision": "fp16", "option": ["fake.latency=2", "fake.per_item=0"]},
     ("fake:steady fp16 batch 8 cpu latency=2.0 per_item=0.0", "fake:steady fp16 batch 4 cpu latency=1.0 per_item=0.0"),
     0.5),
    (("fake:demo", "fp16", "latency=1"), {},  # of the usual backend
     ("fake:steady fp16 batch 1 cpu", "fake:steady fp32 batch 1 cpu latency=1.0"), 0.25),
    (("fake:demo fake:fast", "fake:other latency=1"), {},  # behind a model
     ("fake:fast fp32 batch 1 cpu", "fake:steady fp32 batch 1 cpu latency=1.0"), 0.5),
], ids=["shared", "usual backend", "behind a model"])  # fmt: skip
def test_words_of_a_case_may_stand_by_themselves_and_behind_a_model(tmp_path, given, words, labels, ratio):
    found = inferlens.ab(*given, output=str(tmp_path), **QUICK, **words)
    assert (found.a.label, found.b.label) == labels
    assert found.ratio == pytest.approx(ratio)


def test_two_models_of_the_same_inputs(tmp_path):
    found = inferlens.ab("fake:demo", "fake:other", backend="fake", output=str(tmp_path), **QUICK)
    assert (found.verdict, found.a.model, found.b.model) == ("SAME", "fake:demo", "fake:other")
    assert "A and B are EQUALLY FAST within 2 %: B is 1.00x as fast as A" in found.sentence
    assert found.outputs.agrees
    assert "A and B give the same outputs (relative L2 difference 0, tolerance 0.0001)." in str(found)
    assert {path.name for path in tmp_path.iterdir()} - {".cache"} == {"demo", "other"}


def test_two_modules_of_one_class(tmp_path):
    torch = pytest.importorskip("torch")
    plain = torch.nn.Sequential(torch.nn.Linear(8, 8))
    larger = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Linear(64, 8))
    words = {**QUICK, "output": str(tmp_path), "within": "0s"}
    found = inferlens.ab(plain, larger, example_inputs=torch.ones(1, 8), **words)
    assert (found.a.model, found.b.model, found.rounds) == ("live:Sequential", "live:Sequential (B)", 3)
    assert [record.model.parameters for record in load_records(tmp_path).records[:2]] == [72, 1096]
    assert found.outputs.agrees is False
    assert "DIFFERENT OUTPUTS" in str(found)


CODE = """
import torch
from shop.sizes import WIDTH
def build():
    return torch.nn.Sequential(torch.nn.Linear(8, WIDTH), torch.nn.Linear(WIDTH, 8)), torch.ones(1, 8)
"""


@pytest.fixture
def checkouts(tmp_path, monkeypatch):
    """Two of a package: one in the folder itself, one in ``src``."""
    for place, width in (("old", 4), ("new/src", 64)):
        package = tmp_path / place / "shop"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "models.py").write_text(CODE)
        (package / "sizes.py").write_text(f"WIDTH = {width}")
    subprocess.run(["git", "init", "-q", "new"], cwd=tmp_path, check=True)
    commit = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "one"]
    subprocess.run(["git", "add", "."], cwd=tmp_path / "new", check=True)
    subprocess.run(commit, cwd=tmp_path / "new", check=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_one_factory_in_two_checkouts(checkouts, monkeypatch, own_processes):
    """Each side imports its own code, and its record says from where, and which revision that is."""
    monkeypatch.setattr(running, "LEAST_VERDICT_ROUNDS", 1)  # the verdict is no matter here
    found = inferlens.ab("shop.models:build", checkout="old,new", threads=1, within="0s", **QUICK)
    records = load_records("results").records[:2]
    assert [(record.case.checkout, record.model.parameters) for record in records] == [("old", 76), ("new", 1096)]
    assert [len(record.environment.git_revision) for record in records] == [len(found.revisions[0]), 12]
    assert found.revisions[1] == records[1].environment.git_revision
    assert f"B new ({found.revisions[1]})" in str(found)
    assert found.outputs.agrees is False


def test_code_that_is_not_in_the_checkout_is_refused(checkouts, own_processes):
    (checkouts / "empty").mkdir()
    with pytest.raises(InferlensError, match=r"shop.models:build.*"):
        inferlens.ab("shop.models:build", checkout="old,empty")
    with pytest.raises(InferlensError, match="resnet18 comes with a library, not from the checkout old"):
        inferlens.ab("torchvision:resnet18", checkout="old,new")
    assert not (checkouts / "results").exists()


@pytest.mark.parametrize(("given", "words", "said"), [
    ("fake:demo", {}, "What to compare fake:demo with is missing"),
    ("fake:demo, fake:fast", {}, "What to compare fake:fast with is missing"),
    ("fake:demo, fake, fake:fast", {"checkout": "a,b"}, "in one case of one model"),
    ("fake:demo, fake:other", {"checkout": "a,b"}, "no folder a"),
    ("fake:demo, onnxruntim", {"python": "a,b"}, "'onnxruntim' is not a word of a case"),
    ("fake:demo", {"checkout": ["nowhere", "."]}, "no folder nowhere"),
    ("fake:demo, fake, fake checkout=nowhere", {}, "no folder nowhere"),
    ("fake:demo fp61, fake:other", {}, "'fp61' is not a word"), ("fake:demo", {"python": ""}, "A side is missing"),
    ("fake:demo, fake, fake:fast", {"python": "a,b"}, "one case of one model"),
    ("fake:demo, fake", {"python": "a,b", "checkout": "a,b"}, "one case of one model"),
    ("fake:demo, fake", {"python": "a,b,c"}, "one case of one model"),
    ("fake:demo", {"python": "old/bin/python,"}, "A side is missing"),
    ("fake:demo, fake, fake:steady", {}, "the same case"), ("fake:demo, fake, fake:all", {}, "B means 3 cases"),
    ("fake:demo, fake, fake:fast", {"batch": "1,8"}, "A means 2 cases"),
    ("fake:demo, fake, fake:fast pace=3", {}, "no option 'pace'"),
    ("fake:demo, fake, fake:fast pytorch.tf32=true", {}, "leaves out"),
    ("fake:demo, fake, fake:fast", {"option": ["pytorch.tf32=true"]}, "backend of neither case"),
    ("fake:demo, fake, fake:fast", {"max_rounds": 1}, "--max-rounds 1 is out of range"),
    ("fake:demo, fake, fake:fast", {"threshold": 0}, "threshold"),
    ("fake:demo, fake, fake:fast", {"level": "100%"}, "level"),
    ("fake:demo, fake, fake:fast", {"within": "soon"}, "is not a duration"),
    ("fake:demo batch=2, fake:other", {},
     r"x=2x3x8x8:float32 of A, x=1x3x8x8:float32 of B.*Try: --input x=2x3x8x8"),
])  # fmt: skip
def test_what_cannot_be_compared_is_refused(given, words, said, tmp_path):
    with pytest.raises(InferlensError, match=said):
        inferlens.ab(*given.split(", "), output=str(tmp_path), **QUICK, **words)
    assert not list(tmp_path.rglob("record.json"))


# What it says


def test_it_prints_itself(tmp_path):
    found = ab(tmp_path, "fake:steady", "fake:fast batch=2")
    answer, common, _, *sides = str(found).splitlines()[:5]
    assert (answer, common) == (found.sentence, "demo · fp32 · cpu")
    assert sides == ["A fake:steady batch 1   4.00 ms", "B fake:fast batch 2     2.50 ms"]
    long = replace(found, b=replace(found.b, weights="weights/" * 40), notes=("Something else is to be known.",) * 30)
    lines = str(long).splitlines()
    assert len(lines) <= 10
    assert max(map(len, lines)) <= 100
    assert " ".join(lines).endswith(f"(28 more: inferlens show {tmp_path} --view notes)")


@pytest.mark.parametrize(("rounds", "more"), [
    (5, {"within": "15m", "max-rounds": "15"}), (60, {"within": "9m", "max-rounds": "100"}), (100, {"threshold": "4%"}),
])  # fmt: skip
def test_three_times_as_many_rounds_may_decide_it(tmp_path, rounds, more):
    found = ab(tmp_path, "fake:steady", "fake:fast", within="0s", max_rounds=rounds)
    assert replace(found, verdict="UNDECIDED", rounds=rounds, seconds=250.0).retry_options == more


def test_its_records_are_judged_by_what_they_were_measured_with(tmp_path):
    found = ab(tmp_path, "fake:steady", "fake:steady latency=4.4", threshold="20%", level="80%")
    assert found.verdict == "SAME"
    shown = load_records(tmp_path)
    assert {(each.budget.threshold, each.budget.level) for each in shown} == {(0.2, 0.8)}
    assert "as fast: fake:steady latency=4.4 4.40 ms" in shown.answer


# The command: exit codes, what it prints, what it keeps.

FEW = ("--warmup", "2", "--iterations", "100")


def test_it_shows_the_answer_the_sides_and_its_progress(tmp_path):
    done = command("ab", "fake:demo", "fake:steady", "fake:fast", *FEW, "--max-rounds", "3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    verdict, common, _, *sides, _, last = done.stdout.splitlines()
    assert verdict.startswith("B is FASTER: 2.00x as fast as A (1.83 to 2.19), 95 % sure, 3 rounds, ")
    assert (common, sides) == ("demo · fp32 · batch 1 · cpu", ["A fake:steady   4.00 ms", "B fake:fast     2.00 ms"])
    assert last == "The records: inferlens show results"
    assert "[2/2] fake:fast 2.00 ms" in done.stderr
    assert "round 3: B is 2.00x as fast as A" in done.stderr
    assert len(load_records([tmp_path / "results"]).records) == 6


def test_rounds_of_two_models_are_of_both(tmp_path):
    done = command("ab", "fake:demo", "fake:other", *FEW, "--max-rounds", "3", cwd=tmp_path)
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
    done = command("ab", "fake:demo", a, b, *FEW, *words, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    words = {"SAME": "EQUALLY FAST"}.get(verdict, verdict)
    assert words in done.stdout.splitlines()[0]
    assert ("To decide it: the same command with --within" in done.stdout) is (verdict == "UNDECIDED")


def test_on_a_busy_machine_it_says_so_and_the_exit_code_does_if_asked(tmp_path, monkeypatch):
    load = MachineLoad(busy=True, other_cpus=1.0, cpus=2)
    monkeypatch.setattr(ABResult, "machine_load", property(lambda _: load))
    words = ("ab", "fake:demo", "fake:fast", "fake", *FEW, "--max-rounds", "3")
    asked = command(*words, "--fail-on-busy", cwd=tmp_path)
    assert (asked.returncode, "B is SLOWER" in asked.stdout) == (5, True)
    assert "Other programs used 1.0 of 2 CPUs. This is the answer for the machine as busy as it was." in asked.stdout
    data = json.loads(command(*words, "--json", cwd=tmp_path).stdout)
    assert (data["exit_code"], data["machine_load"]["other_cpus"]) == (1, 1.0)


def test_it_waits_for_a_quiet_machine_if_asked(tmp_path, monkeypatch):
    looks = iter(["other programs use 0.9 of 2 CPUs", ""])
    monkeypatch.setattr(monitor, "other_programs", lambda **_: next(looks))
    words = ("ab", "fake:demo", "fake:fast", "fake", *FEW, "--max-rounds", "3")
    progress = command(*words, "--wait", "1m", cwd=tmp_path).stderr
    waiting = progress.index("for a quiet machine: other programs use 0.9 of 2 CPUs.")
    assert 0 < waiting < progress.index("The machine is quiet after")


def test_json_is_all_that_standard_output_has(tmp_path):
    done = command("ab", "fake:demo", "fake", "fake:fast", *FEW, "--json", cwd=tmp_path)
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
    done = command("ab", "fake:demo", "fake", "--python", pythons, *FEW, cwd=tmp_path)
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
    done = command("ab", "fake:demo", "fake", "fake:fast", *FEW, cwd=tmp_path)
    assert (done.returncode, "Interrupted" in done.stderr) == (130, True), done.stderr
    assert ("UNDECIDED" in done.stdout) is (calls == 7)
