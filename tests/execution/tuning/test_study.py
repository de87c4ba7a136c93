"""A study on the fake backend: what each value of an option does is known."""

import pytest

from inferlens.errors import InferlensError
from inferlens.execution.protocol import Observer
from inferlens.execution.tuning.tune import study, study_request
from inferlens.record.store import load_records
from inferlens.spec.plan import Plan
from inferlens.views.renderers import render
from inferlens.views.tuning import study_answer, study_document
from tests.commands import Heard

NONE_FASTER = "No value of {} is faster than its default: {}"

pytestmark = pytest.mark.usefixtures("one_process")


def studied(folder, text, observer=None, budget=3600.0, **words):
    plan = Plan.from_words({"model": "fake:demo", "warmup": 2, "output": str(folder), "mode": "latency", **words})
    return study(study_request(plan, text, budget), observer or Observer())


def test_each_value_is_set_against_the_default(tmp_path):
    found = studied(tmp_path, "fake.knob_a=3,1,2")
    assert [(each.value, each.is_default) for each in found.values] == [(0, True), (1, False), (2, False), (3, False)]
    speedups = [each.comparison.speedup if each.comparison else None for each in found.values]
    assert speedups == [None, pytest.approx(1.25), pytest.approx(1 / 0.93), pytest.approx(0.8)]
    verdicts = [each.comparison.verdict if each.comparison else None for each in found.values]
    assert verdicts == [None, "FASTER", "FASTER", "SLOWER"]
    assert study_answer(found) == "knob_a=1 is 1.25x its default (1.18 to 1.33)."
    kept = load_records(tmp_path / "demo").records
    assert {record.id for each in found.values for record in each.records} == {record.id for record in kept}
    assert len(kept) == 4 + 10
    shown = render(study_document(found, "results/demo"), "table", width=100)
    assert len(shown.splitlines()) <= 24
    assert shown.index("1.25x its default") < shown.index("0 (default)") < shown.index("1.08x")
    assert "Use it: --option fake.knob_a=1" in shown


@pytest.mark.parametrize(("text", "words", "said"), [
    ("knob_a=3", {}, NONE_FASTER.format("knob_a", "knob_a=3 is 0.800x its default (0.732 to 0.874).")),
    ("knob_c=2,0", {}, NONE_FASTER.format("knob_c", "knob_c=2 is 0.909x its default (0.832 to 0.994).")),
    ("knob_b=1", {"option": "fake.knob_a=1"},
     NONE_FASTER.format("knob_b", "knob_b=1 is 0.905x its default (0.828 to 0.989).")),
    ("knob_d=1,2", {"option": "fake.knob_c=1"}, "knob_d=1 is 1.33x its default (1.17 to 1.52)."),
    ("latency=4.4,5", {}, NONE_FASTER.format("latency", "latency=4.4 is 0.909x its default (0.859 to 0.963).")),
    ("threads=1,2", {}, "threads makes no difference (within 2 %)."),
    ("knob_e=1", {}, "No value of knob_e can be compared with its default: too few ran with right outputs."),
])  # fmt: skip
def test_the_answer_is_one_sentence(tmp_path, text, words, said):
    found = studied(tmp_path, text, backend="fake", **words)
    assert study_answer(found) == said
    study_document(found, "results").blocks()


def test_what_is_not_decided_when_the_time_is_over_is_said_so(tmp_path):
    found = studied(tmp_path, "latency=4.07", budget=0.0, backend="fake:noisy", iterations=20)
    assert len(found.values[0].records) == 1 + 2
    assert study_answer(found).endswith("not decided; more with --within.")


def test_what_was_interrupted_goes_on_and_measures_nothing_twice(tmp_path):
    words = {"text": "fake.knob_a=1,2", "folder": tmp_path}
    for after in (2, 4):
        with pytest.raises(KeyboardInterrupt):
            studied(**words, observer=Heard(after))
    found = studied(**words, observer=(rest := Heard()))
    assert study_answer(found) == "knob_a=1 is 1.25x its default (1.18 to 1.33)."
    assert len(rest.cases) == 8, "but the one in which it was interrupted"
    assert {record.run for each in found.values for record in each.records} == {found.values[0].records[0].run}
    assert (studied(**words, observer=(nothing := Heard())).values, nothing.cases) == (found.values, [])
    studied(tmp_path, "fake.knob_a=1,3", others := Heard())
    assert len(others.cases) == 11, "another study begins anew"
    (said,) = others.remarks
    assert str(tmp_path / "demo" / "study-1") in said, "where the rounds of the other one are"
    assert rest.remarks == []


def test_with_a_longer_budget_it_goes_on(tmp_path):
    words = {"text": "latency=4.07", "backend": "fake:noisy", "iterations": 20}
    first = studied(tmp_path, budget=0.0, **words)
    found = studied(tmp_path, observer=(more := Heard()), **words)
    assert found.values[0].records[: 1 + 2] == first.values[0].records
    assert more.cases


def test_throughput_is_studied_where_it_is_asked_for(tmp_path):
    found = studied(tmp_path, "fake.knob_a=1", mode="throughput")
    assert study_answer(found).startswith("knob_a=1 is 1.25x")
    assert "items/s" in render(study_document(found, "results"))


@pytest.mark.parametrize(("text", "words", "message"), [
    ("fake.knob_a", {}, "names no values"), ("knob_z=1", {}, "no knob 'knob_z'.*did you mean"),
    ("fake.knob_z=1", {}, "no option 'knob_z'.*did you mean"),
    ("faek.knob_a=1", {}, "no backend 'faek'.*did you mean fake"),
    ("fake.knob_a=9", {}, "does not take '9'.*from 0 to 3"), ("fake.knob_a=0", {}, "0 is the default of fake.knob_a"),
    ("fake.threads=0", {}, "not valid for threads"), ("threads=1", {}, "Several backends have threads.*--backend"),
    ("knob_a=1", {"backend": "pytorch"}, "no knob 'knob_a'"),
    ("fake.knob_a=1", {"backend": "pytorch"}, "for a backend that the plan leaves out"),
    ("knob_a=1", {"option": "fake.knob_a=2"}, "given twice"),
    ("knob_d=1", {"backend": "fake"}, "knob_d=1 does nothing for fake:steady.*fake.knob_c=VALUE"),
    ("knob_a=1", {"precision": "fp32,fp16", "backend": "fake:all"}, "and 6 are left.*--backend fake:steady"),
])  # fmt: skip
def test_what_cannot_be_studied_is_refused_before_anything_runs(tmp_path, text, words, message):
    with pytest.raises(InferlensError, match=message):
        studied(tmp_path, text, Heard(1), **words)
