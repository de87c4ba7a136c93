"""``inferlens tune`` on the planted space of the fake backend, whose best is known."""

import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import psutil
import pytest
from msgspec.structs import replace

import inferlens
from inferlens import Records, Tuning
from inferlens.analysis.measures import host_peak
from inferlens.analysis.samples import CaseRuns
from inferlens.analysis.tuning import Trial, candidate_facts, find_tunings, load_tuning
from inferlens.backends.fake import BEST, Fake
from inferlens.errors import InferlensError
from inferlens.execution import race as rounds
from inferlens.execution import resume as trial_log
from inferlens.execution import tasks
from inferlens.execution.protocol import Observer
from inferlens.execution.tuning import tune as tuning
from inferlens.execution.tuning.space import search_selection
from inferlens.execution.tuning.tune import TuningRequest
from inferlens.execution.tuning.tune import tune as run_tune
from inferlens.record.files import make_folder
from inferlens.record.store import TRIALS, load_records, lock_folder
from inferlens.spec.objective import Constraint, Objective
from inferlens.spec.plan import Plan, toml_words
from inferlens.views.renderers import render
from inferlens.views.tuning import tuning_document
from tests.commands import Heard
from tests.refusals import refusal

pytestmark = pytest.mark.usefixtures("one_process")
KNOB_A, A_1 = ("fake:steady", "fp32", "fake.knob_a"), {"knob_a": 1}


def tune(folder, observer=None, budget=3600.0, space=None, **words):
    limits = words.pop("limits", ())
    objective = Objective.parse(words.pop("objective", "latency"))
    only = words.pop("only", ("fake:steady", "fake:fast", "fp32"))
    plan = Plan.from_words({"model": "fake:demo", "warmup": 2, "output": str(folder), **words})
    request = TuningRequest(plan=plan, objective=objective, constraints=Constraint.parse_all(limits), budget=budget)
    (tuned,) = run_tune(request, search_selection(space, only), observer or Observer())
    return tuned


def test_it_finds_the_planted_best_and_leaves_it_ready(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a long path would be on the screen
    observer, folder = Heard(), Path("results")
    tuned = tune(folder, observer)
    best = tuned.best
    assert (best.variant, best.options) == ("fast", BEST)
    assert tuned.answer.kind in ("fastest", "equal")
    assert tuned.complete
    assert len(tuned.candidates) < tuned.size / 5
    assert len(observer.cases) < tuned.size / 5
    (left,) = load_records(folder / "demo" / "best").records
    assert left.case == best
    assert toml_words(folder / "demo" / "best" / "best.toml", "plan")["option"] == {"fake": BEST}
    assert not (folder / "demo" / "tuning" / "work").exists()
    kept = {each.setting for each in tuned.effects if each.chosen}
    assert kept == {f"{name}={value}" for name, value in BEST.items()}
    others = {each.setting for each in tuned.effects} - kept
    assert others <= {setting for one in tuned.candidates for setting in one.settings}
    assert not {each.partition("=")[0] for each in others} & {*BEST}, "what takes the place of one is not beside it"
    shown = render(tuning_document(tuned), "table", width=100)
    assert len(shown.splitlines()) <= 24
    assert "inferlens.load(" in shown


def test_where_no_default_keeps_a_limit_settings_may(tmp_path):
    only = ("fake:fast", "fp32", "fake.knob_a", "fake.knob_b")
    kept = tune(tmp_path, only=only, limits=("latency=1.8ms",))
    assert kept.best.options == {"knob_a": 1, "knob_b": 2}
    assert not kept.broken_constraints


def test_what_was_interrupted_goes_on_and_measures_nothing_twice(tmp_path):
    only, whole = ("fake:fast", "fp32", "fake.knob_a", "fake.knob_b"), Heard()
    expected = tune(tmp_path / "whole", whole, only=only)
    for after in (3, 5):
        with pytest.raises(KeyboardInterrupt):
            tune(tmp_path / "parts", Heard(after), only=only)
    lines = (tmp_path / "parts" / "demo" / "tuning" / TRIALS).read_bytes().splitlines()[1:]
    kept = sum(len(msgspec.json.decode(line, type=Trial).records) for line in lines)
    rest = Heard()
    resumed = tune(tmp_path / "parts", rest, only=only)
    assert 0 < kept == len(whole.cases) - len(rest.cases)
    assert resumed.best == expected.best
    rounds = [[record.case.digest for record in trial.records] for trial in resumed.trials]
    assert rounds == [[record.case.digest for record in trial.records] for trial in expected.trials]
    again = Heard()
    assert (tune(tmp_path / "parts", again, only=only).best, again.cases) == (expected.best, [])


def test_a_winner_that_is_gone_is_built_anew_and_one_that_is_there_stays(tmp_path):
    tuned = tune(tmp_path, only=KNOB_A)
    best, work = tmp_path / "demo" / "best", tmp_path / "demo" / "tuning" / "work"
    (best / "model.bin").touch()
    shutil.copytree(best, work / "demo" / "half", ignore=lambda *_: ["model.bin"])  # stopped while it was removed
    tune(tmp_path, only=KNOB_A)
    assert (best / "model.bin").exists()
    shutil.move(best, tmp_path / "mine")
    observer = Heard()
    assert tune(tmp_path, observer, only=KNOB_A).folder == str(best)
    assert observer.cases == [tuned.best] == [load_records(best).records[0].case]
    assert not work.exists()


def test_another_request_begins_anew_and_what_was_measured_is_kept(tmp_path):
    only = ("fake:fast", "fp32", "fake.knob_a", "fake.knob_f")
    first, home = tune(tmp_path, only=only), tmp_path / "demo"
    assert "knob_f" in first.best.options
    for number, limit in enumerate(("build=5s", "build=6s"), 1):
        observer = Heard()
        tuned = tune(tmp_path, observer, only=only, limits=(limit,))
        assert observer.cases
        assert "knob_f" not in tuned.best.options
        former = [f"tuning-{n + 1}" for n in range(number)]
        assert sorted(each.name for each in home.glob("tuning*")) == ["tuning", *former]
    assert (load_tuning(home / "tuning-1").trials, find_tunings([home])) == (first.trials, [home / "tuning"])


def test_what_changed_under_the_same_name_is_measured_anew(tmp_path):
    data, counts = tmp_path / "data.npz", []
    for seed in (0, 0, 1):
        observer = Heard()
        np.savez(data, x=np.random.default_rng(seed).standard_normal((4, 3, 8, 8), np.float32))
        tune(tmp_path / "results", observer, calibration=str(data), only=KNOB_A)
        counts.append(len(observer.cases))
    assert counts == [counts[0], 0, counts[0]]


@pytest.mark.parametrize(("model", "file", "words"), [
    ("openvino:net.xml", "net.xml", {}), ("openvino:net.xml", "net.bin", {}), ("factory:nets:make", "nets.py", {}),
    ("factory:nets:make", "beside.py", {}), ("hub:hub:make", "hub/hubconf.py", {}),
    ("torchvision:resnet18", "w.pt", {"weights": "w.pt"}),
    ("torchvision:resnet18", "images/0/a.png", {"calibration": "images"}),
    ("torchvision:resnet18", "judge.py", {"accuracy": "judge:answers"}),
])  # fmt: skip
def test_a_tuning_knows_its_files_by_what_they_hold(model, file, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("net.xml", "nets.py", file):
        make_folder(Path(name).parent)
        Path(name).write_bytes(b"1")
    plan = Plan.from_words({"model": model, **words})
    before = trial_log.content_of(model, plan)
    for name in ("other.txt", "hub/__pycache__/hubconf.pyc"):
        make_folder(Path(name).parent)
        Path(name).write_bytes(b"2")
    assert before == trial_log.content_of(model, plan) != []
    Path(file).write_bytes(b"22")
    assert before != trial_log.content_of(model, plan)


def test_the_winner_meets_what_bench_would_find(tmp_path, monkeypatch):
    """The best in fp32, where another precision wins, and the reference is slower than both."""
    prepare, times = Fake.prepare, {"fast fp32": 4.0, "fast fp16": 4.0, "steady fp32": 1.0, "steady fp16": 0.5}

    def timed(self, model, case, preparation):
        latency = times[f"{case.variant} {case.precision}"]
        case = msgspec.structs.replace(case, options={**case.options, "latency": latency})
        return prepare(self, model, case, preparation)

    monkeypatch.setattr(Fake, "prepare", timed)
    tuned = tune(tmp_path, only=("fake:steady", "fake:fast", "fp32", "fp16", "fake.knob_a"))
    ways = {record.case.way for record in tuned.final_records}
    assert ways >= {"fake:steady fp16 knob_a=1", "fake:steady", "fake:fast"}
    assert "2.50x fake:steady fp32" in " ".join(render(tuning_document(tuned), "table").split())


def test_one_at_a_time_has_a_folder(tmp_path):
    with lock_folder(tmp_path / "demo"), pytest.raises(InferlensError, match="Another run measures into"):
        tune(tmp_path)


def test_with_a_longer_budget_it_searches_on(tmp_path):
    short, long = Heard(), Heard()
    first = tune(tmp_path / "parts", short, budget=1e-9)
    assert not first.complete
    found = tune(tmp_path / "parts", long)
    assert (found.best.variant, found.best.options) == ("fast", BEST)
    searched = [trial for trial in first.trials if not trial.final]
    assert [each.records for each in found.trials[: len(searched)]] == [each.records for each in searched]
    assert {trial.budget for trial in found.trials if trial.final} == {3600.0}


@pytest.mark.parametrize(("budget", "least"), [(150.0, 0.8), (200.0, 0.8), (250.0, 0.9), (300.0, 0.76)])
def test_the_search_leaves_time_for_the_finals_and_takes_the_rest(tmp_path, monkeypatch, budget, least):
    """Where each process takes ten seconds, and the finals have time for two rounds."""
    monkeypatch.setattr(psutil, "cpu_count", lambda **_: None)  # which number of threads is usual
    run, begin = Heard(), time.monotonic()
    clock = SimpleNamespace(monotonic=lambda: begin + 10.0 * len(run.cases))
    for module in (tuning, rounds):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(tuning, "PATIENCE", 10.0)  # of the budget: a process has what is left
    patience, patient = tuning.Tuner._patience, list[bool]()

    def watched(tuner, case):
        found, left = patience(tuner, case), budget - 10.0 * len(run.cases)
        patient.append(found <= tuning.LEAST_PATIENCE + left + 1)
        return found

    monkeypatch.setattr(tuning.Tuner, "_patience", watched)
    tuned = tune(tmp_path, run, budget=budget)
    assert all(patient)
    assert not tuned.complete
    assert sum(trial.final for trial in tuned.trials) >= 2
    assert least * budget <= sum(trial.seconds for trial in tuned.trials) <= budget + 1e-6


@pytest.mark.parametrize(("objective", "limits", "more", "best"), [
    ("latency", ["throughput=1"], (), A_1), ("throughput", ["p99=10s"], (), A_1),
    ("throughput", [], ("fake.knob_b",), {"knob_a": 1, "knob_b": 2}), ("latency.p99", ["latency=1s"], (), A_1),
])  # fmt: skip
def test_all_that_is_aimed_at_or_limited_is_measured(tmp_path, objective, limits, more, best):
    tuned = tune(tmp_path, objective=objective, limits=limits, only=(*KNOB_A, *more))
    assert (tuned.broken_constraints, tuned.answer.kind in ("fastest", "equal", "likeliest")) == ((), True)
    assert tuned.best.options == best


@pytest.mark.parametrize("words", [{"limits": ("memory=1GiB",)}, {"objective": "memory"}])
def test_memory_that_exporting_takes_is_not_the_models(tmp_path, monkeypatch, words):
    exporting = list[bool]()
    prepare = Fake.prepare

    def export(self, model, case, preparation):
        exporting.append(preparation.export_folder is None)
        with preparation.phase("export") as noted:
            noted.note = "" if exporting[-1] else "cached"
        if exporting[-1]:
            (preparation.folder / "model.onnx").touch()
            preparation.keep(preparation.folder / "model.onnx", "onnx")
        return prepare(self, model, case, preparation)

    monkeypatch.setattr(Fake, "prepare", export)
    monkeypatch.setattr(tasks, "host_peak", lambda: 2**31 if exporting and exporting[-1] else 2**29)
    tuned = tune(tmp_path, only=KNOB_A, **words)
    assert (tuned.broken_constraints, tuned.best.options) == ((), {"knob_a": 1} if "limits" in words else {})
    assert {each.memory for each in candidate_facts(tuned)} == {2**29}
    assert [one for one in candidate_facts(tuned) if "limit" in one.outcome] == []
    assert host_peak(CaseRuns(tuned.final_records)) == 2**29
    (record,) = load_records(tuned.folder).records
    assert [each.path for each in record.artefacts] == ["model.onnx"], "it can be loaded without the model's code"
    assert Path(tuned.folder, "model.onnx").is_file()


def test_where_nothing_keeps_the_limits_the_nearest_miss_is_the_answer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a long path would be on the screen
    tuned = tune(Path("results"), limits=("latency=1us",), only=KNOB_A)
    assert "beyond the limit" in tuned.broken_constraints[0]
    assert tuned.best.options == {"knob_a": 1}, "settings are tried all the same"
    shown = render(tuning_document(tuned), "table", width=100)
    assert "comes nearest" in shown
    (winner,) = [line for line in shown.splitlines() if line.startswith(" 1 ")]
    assert winner.rstrip().endswith("breaks a limit")


@pytest.mark.parametrize("trouble", ["raise", "unsupported", "rubbish"])
def test_candidates_that_fail_cost_their_own_time_alone(tmp_path, trouble):
    tuned = tune(tmp_path, option=[f"fake.trouble={trouble}"], only=KNOB_A)
    assert (tuned.answer.kind == "none") == (trouble != "rubbish")


def test_rounds_are_kept_whole_and_those_that_cannot_be_read_are_measured_again(tmp_path):
    tuned = tune(tmp_path, only=KNOB_A)
    path = tmp_path / "demo" / "tuning" / TRIALS
    whole = path.read_bytes()
    lines = whole.splitlines()
    assert [msgspec.json.decode(line, type=Trial) for line in lines[1:]] == list(tuned.trials)
    path.write_bytes(whole[:-20])  # a power cut
    observer = Heard()
    tune(tmp_path, observer, only=KNOB_A)
    assert len(observer.cases) == len(tuned.trials[-1].records)
    path.write_bytes(b"\n".join([*lines[:2], b'{"records": 1}', *lines[3:], b""]))
    found = tune(tmp_path, observer := Heard(), only=KNOB_A)
    assert (found.best, found.trials[0]) == (tuned.best, tuned.trials[0])
    assert len(observer.cases) == sum(len(trial.records) for trial in found.trials[1:])


# Tunings of several models and batch sizes, and what Python gives of them

SPACE = ("fake:steady", "fake:fast", "fp32", "knob_a", "knob_b")
A_B = {"knob_a": 1, "knob_b": 2}


def tune_all(folder, model="fake:demo", **words):
    return inferlens.tune(model, only=SPACE, output=folder, **words)


def test_a_tuning_prints_its_screen_and_knows_the_winner(tmp_path):
    found = tune_all(tmp_path, within="error=1e-2", budget="5m")
    assert (found.fastest.case.variant, found.fastest.case.options) == ("fast", A_B)
    assert found.fastest in found.equally_fast
    assert {each.setting for each in found.effects if each.chosen} == {"knob_a=1", "knob_b=2"}
    assert all(each.low <= each.speedup <= each.high for each in found.effects if each.speedup)
    assert ("inferlens.load(" in str(found), "<table>" in found._repr_html_()) == (True, True)
    assert len(str(found).splitlines()) <= 24
    assert found.to_polars().columns == list(found.to_pandas().columns)
    assert len(found.to_polars()) == len({record.case.digest for record in found})
    assert isinstance(found[:2], Records)
    with found.load() as fast:
        assert fast.record.case == found.fastest.case


def test_each_batch_of_each_model_is_a_tuning_of_its_own(tmp_path):
    observer, again, words = Heard(), Heard(), {"model": ["fake:one", "fake:two"], "batch": [1, 8], "budget": 3600}
    found = tune_all(tmp_path, observer=observer, **words)
    folders = [f"{model}/batch-{batch}" for model in ("one", "two") for batch in (1, 8)]
    assert [Path(each.folder) for each in found.tuned] == [tmp_path / folder / "best" for folder in folders]
    for folder, each in zip(folders, found.comparisons, strict=True):
        (left,) = load_records(tmp_path / folder / "best").records
        assert isinstance(each, Tuning)
        assert (left.case, each.fastest.case.options) == (each.fastest.case, A_B)
        assert (tmp_path / folder / "tuning" / TRIALS).exists()
        assert {record.case.batch for record in each} == {each.fastest.case.batch}
    with pytest.raises(InferlensError, match="fastest case in each of 4"):
        _ = found.fastest
    shown = str(found).splitlines()
    assert len(shown) <= 24
    assert [line.partition(":")[0] for line in shown[:4]] == [each.replace("/batch-", ", batch ") for each in folders]
    tune_all(tmp_path, observer=again, **words)
    assert (bool(observer.cases), again.cases) == (True, [])


def test_what_was_interrupted_in_a_later_batch_measures_the_earlier_no_more(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        tune_all(tmp_path, batch="1,8", observer=Heard(after=22))
    found = tune_all(tmp_path, batch="1,8", observer=(rest := Heard()))
    assert {case.batch for case in rest.cases} == {8}
    assert [each.fastest.case.options for each in found.comparisons] == [A_B, A_B]


def test_time_that_one_leaves_is_for_those_that_follow(tmp_path, monkeypatch):
    takes, given, run = {1: 100.0, 2: 700.0, 4: 100.0}, list[tuple[int, float]](), tuning.tune_one

    def timed(request, *rest):
        seconds, batch = rest[-1], request.plan.batch[0]
        given.append((batch, seconds))
        tuned = run(request, *rest)
        return replace(tuned, seconds=min(takes[batch], seconds))

    monkeypatch.setattr(tuning, "tune_one", timed)
    tune_all(tmp_path, batch=[1, 2, 4], budget=900)
    assert given == [(1, 300), (2, 400), (4, 400)]


def test_a_batch_of_which_nothing_runs_is_said(tmp_path):
    found = tune_all(tmp_path, batch=[1, 8], option="fake.trouble=raise")
    said = [f"demo, batch {batch}: nothing ran with right outputs" for batch in (1, 8)]
    assert [line.partition(".")[0] for line in str(found).splitlines()[:2]] == said
    for each in found.comparisons:
        assert not each
        with pytest.raises(InferlensError, match="No case ran"):
            _ = each.fastest


@pytest.mark.usefixtures("short_rounds")
def test_a_live_module_is_tuned_and_its_winner_called(tmp_path):
    torch = pytest.importorskip("torch")
    module, example = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU()).eval(), torch.randn(2, 8)
    words = {"only": ("pytorch", "fp32", "fuse"), "output": tmp_path}
    found = inferlens.tune(module, example, **words)
    assert found.fastest.case.backend == "pytorch"
    with found.load() as fast:
        assert torch.allclose(fast(example), module(example), atol=1e-5)
    inferlens.tune(module, example, observer=(again := Heard()), **words)
    assert not again.cases
    module[0].weight.data += 1
    refusal("other weights", found.load)
    with pytest.raises(KeyboardInterrupt):  # after a case: another module of this name is another model
        inferlens.tune(module, example, observer=Heard(after=1), **words)


@pytest.mark.parametrize(("words", "message"), [
    ({"objective": "latensy"}, "no objective 'latensy'.*latency"), ({"within": "error"}, "has no limit"),
    ({"budget": "soon"}, "soon"), ({"batch": [1, 8], "precision": "int8"}, "No precision is left|does not run int8"),
])  # fmt: skip
def test_what_means_nothing_is_refused(tmp_path, words, message):
    refusal(message, tune_all, tmp_path, **words)
