"""Tunings of several models and batch sizes, and what Python gives of them, on the fake backend."""

from pathlib import Path

import pytest
from msgspec.structs import replace

import inferlens
from inferlens import InferlensError, Records, Tuning
from inferlens.execution.tuning import tune as running
from inferlens.record.store import TRIALS, load_records
from tests.commands import Heard
from tests.refusals import refusal

pytestmark = pytest.mark.usefixtures("one_process")

SPACE = ("fake:steady", "fake:fast", "fp32", "knob_a", "knob_b")
BEST = {"knob_a": 1, "knob_b": 2}


def tune(folder, model="fake:demo", **words):
    return inferlens.tune(model, only=SPACE, output=folder, **words)


def test_a_tuning_prints_its_screen_and_knows_the_winner(tmp_path):
    found = tune(tmp_path, within="error=1e-2", budget="5m")
    assert (found.fastest.case.variant, found.fastest.case.options) == ("fast", BEST)
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
    found = tune(tmp_path, observer=observer, **words)
    folders = [f"{model}/batch-{batch}" for model in ("one", "two") for batch in (1, 8)]
    assert [Path(each.folder) for each in found.tuned] == [tmp_path / folder / "best" for folder in folders]
    for folder, each in zip(folders, found.comparisons, strict=True):
        (left,) = load_records(tmp_path / folder / "best").records
        assert isinstance(each, Tuning)
        assert (left.case, each.fastest.case.options) == (each.fastest.case, BEST)
        assert (tmp_path / folder / "tuning" / TRIALS).exists()
        assert {record.case.batch for record in each} == {each.fastest.case.batch}
    with pytest.raises(InferlensError, match="fastest case in each of 4"):
        _ = found.fastest
    shown = str(found).splitlines()
    assert len(shown) <= 24
    assert [line.partition(":")[0] for line in shown[:4]] == [each.replace("/batch-", ", batch ") for each in folders]
    tune(tmp_path, observer=again, **words)
    assert (bool(observer.cases), again.cases) == (True, [])


def test_what_was_interrupted_in_a_later_batch_measures_the_earlier_no_more(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        tune(tmp_path, batch="1,8", observer=Heard(after=22))
    found = tune(tmp_path, batch="1,8", observer=(rest := Heard()))
    assert {case.batch for case in rest.cases} == {8}
    assert [each.fastest.case.options for each in found.comparisons] == [BEST, BEST]


def test_time_that_one_leaves_is_for_those_that_follow(tmp_path, monkeypatch):
    takes, given, run = {1: 100.0, 2: 700.0, 4: 100.0}, list[tuple[int, float]](), running.tune_one

    def timed(request, *rest):
        seconds, batch = rest[-1], request.plan.batch[0]
        given.append((batch, seconds))
        tuned = run(request, *rest)
        return replace(tuned, seconds=min(takes[batch], seconds))

    monkeypatch.setattr(running, "tune_one", timed)
    tune(tmp_path, batch=[1, 2, 4], budget=900)
    assert given == [(1, 300), (2, 400), (4, 400)]


def test_a_batch_of_which_nothing_runs_is_said(tmp_path):
    found = tune(tmp_path, batch=[1, 8], option="fake.trouble=raise")
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
    refusal(message, tune, tmp_path, **words)
