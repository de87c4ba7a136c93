from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

import inferlens
from inferlens import InferlensError
from inferlens.analysis.comparison import compare, match_cases, record_pair
from inferlens.record.record import Environment, Gpu, Measurement
from inferlens.stats import comparison as statistics
from tests.analysis.compare.sides import broken, ran, saved
from tests.views.samples import WRONG, case

FAST, SLOW = case("openvino"), case("onnxruntime:cpu")


def one(base, candidate, **words):
    """The only case of a comparison."""
    (compared_case,) = compare(base, candidate, **words).cases
    return compared_case


def test_figures_are_those_of_the_statistics():
    base, candidate = ran(), ran(seconds=11e-3, run="new")
    found = one(base, candidate)
    samples = [[record.samples("latency") for record in side] for side in (base, candidate)]
    expected = statistics.compare(*samples)
    assert (found.ratio, found.interval, found.replicated) == (expected.ratio, expected.interval, True)
    assert found.change == pytest.approx(0.1, abs=1e-6)
    assert found.base.median == pytest.approx(10e-3, rel=1e-4)
    assert (found.base.processes, found.base.samples) == (5, 500)
    assert found.base.records == tuple(record.id for record in base)
    assert found.change_interval.low < 0.1 < found.change_interval.high


@pytest.mark.parametrize(("rate", "verdict"), [(90.0, "SLOWER"), (110.0, "FASTER"), (100.0, "SAME")])
def test_more_throughput_is_faster(rate, verdict):
    found = one(ran(rate=100.0), ran(rate=rate, run="new"), metric="throughput")
    assert found.verdict == verdict
    assert found.change == pytest.approx(rate / 100 - 1, abs=1e-6)
    assert found.ratio == pytest.approx(100 / rate)
    assert found.change_interval.low <= found.change <= found.change_interval.high
    assert found.candidate.median == pytest.approx(rate, rel=1e-4)


@pytest.mark.parametrize("metric", ["GPU time", "gpu-time", " GPU_TIME "])
def test_gpu_time(metric):
    of = case(device="cuda")
    compared = compare(ran(of, gpu=9e-3), ran(of, gpu=5e-3, run="new"), metric=metric)
    assert compared.metric == "GPU time"
    assert compared.cases[0].verdict == "FASTER"


RIGHT = ran(seconds=5e-3, run="new")


@pytest.mark.parametrize(
    ("candidate", "state", "reason"),
    [
        ([broken(status="out of memory", run="new")], "out of memory", "out of memory. It fell."),
        ([*RIGHT[:4], broken(status="timed out", run="new")], "timed out", "(1 of 5 processes)"),  # the others are fast
        ([*RIGHT[:4], *ran(seconds=5e-3, run="new", agreement=WRONG)[4:]], "wrong",
         "wrong outputs. Relative L2 error 0.52 is above 0.0001."),
    ],
)  # fmt: skip
def test_what_did_not_end_well_is_never_faster(candidate, state, reason):
    compared = compare(ran(), candidate)
    (compared_case,) = compared.cases
    assert (compared_case.verdict, compared_case.candidate.state, compared_case.candidate.median) == (
        "DID NOT RUN",
        state,
        None,
    )
    assert reason in compared_case.reason
    assert compared.exit_code == compare(candidate, ran()).exit_code == 4


def test_a_case_of_one_side_alone_did_not_run_on_the_other():
    compared = compare([*ran(), *ran(SLOW)], [*ran(run="new"), *ran(FAST, run="new")])
    assert {one.case.backend: (one.base.state, one.candidate.state) for one in compared.cases} == {
        "pytorch": ("ok", "ok"), "onnxruntime": ("ok", "missing"), "openvino": ("missing", "ok"),
    }  # fmt: skip
    assert [compared_case.verdict for compared_case in compared.cases] == ["SAME", "DID NOT RUN", "DID NOT RUN"]
    assert compared.exit_code == 4
    assert compared.comparisons == 1


def test_what_ran_on_neither_side_is_no_news():
    dead = [broken(FAST, "unsupported")], [broken(FAST, "unsupported", run="new")]
    compared = compare([*ran(), *dead[0]], [*ran(run="new"), *dead[1]])
    assert [compared_case.verdict for compared_case in compared.cases] == ["SAME", "DID NOT RUN"]
    assert compared.cases[1].ran_on_neither
    assert compared.exit_code == 0
    assert compare(*dead).exit_code == 4, "nothing at all was compared"


def test_the_worst_decides_the_exit_code():
    base = [*ran(noise=20), *ran(FAST), *ran(SLOW)]
    same, slower = ran(SLOW, run="new"), ran(SLOW, 20e-3, run="new")
    undecided, stopped = ran(noise=20, run="new"), [broken(FAST, run="new")]
    assert compare(base, [*undecided, *stopped, *slower]).exit_code == 1
    assert compare(base, [*undecided, *stopped, *same]).exit_code == 4
    assert compare(base, [*undecided, *ran(FAST, run="new"), *same]).exit_code == 3


def test_cases_share_the_error():
    base = [*ran(), *ran(FAST), *ran(SLOW), *ran(case("torchscript:trace"))]
    candidate = [*ran(run="new"), *ran(FAST, run="new"), *ran(SLOW, run="new"), broken(case("torchscript:trace"))]
    compared = compare(base, candidate)
    assert compared.comparisons == 3
    alone = one(ran(), ran(run="new"))
    assert compared.cases[0].interval.low < alone.interval.low
    assert compared.cases[0].interval.high > alone.interval.high


def test_one_process_each_is_undecided():
    once, again = ran(processes=1), ran(seconds=17e-3, processes=1, run="new")
    assert one(once, again).verdict == "UNDECIDED"


@pytest.mark.parametrize(
    "samples",
    [(), (0.0,) * 50, (math.nan,) * 50, (math.inf,) * 50, (None,) * 50, (-1.0,) * 50, (5e-324,) * 50, (1e308,) * 50],
)
def test_samples_that_are_no_times_cannot_be_compared(samples):
    measured = (Measurement(metric="latency", unit="s", clock="a clock", samples=samples),)
    compared = compare(ran(measurements=measured), ran(run="new"))
    assert [(compared_case.verdict, compared_case.ratio) for compared_case in compared.cases] == [("DID NOT RUN", None)]
    assert compared.exit_code == compare(ran(), ran(run="new", measurements=measured)).exit_code == 4


def test_from_folders_and_files_and_python(tmp_path: Path):
    base, candidate = saved(tmp_path / "base", ran()), saved(tmp_path / "new", ran(seconds=11e-3, run="new"))
    compared = inferlens.compare(base, str(candidate), threshold=0.05)
    assert compared == inferlens.compare(ran(), ran(seconds=11e-3, run="new"), threshold=0.05)
    assert compared.with_verdict("SLOWER") == compared.cases
    first = sorted(base.rglob("record.json"))[0]
    assert len(inferlens.compare(first, candidate).cases[0].base.records) == 1


# Which cases belong together

HERE, THERE = (Environment(cpu="one CPU", gpus=(Gpu(name=name),)) for name in ("A", "B"))


def on(environment, of=None, run="base"):
    return ran(of, run=f"{run}-{environment.gpus[0].name}", environment=environment, processes=2)


def runs(found):
    return [tuple(side and side.first.run for side in item) for item in found]


def test_cases_are_in_the_order_of_the_base():
    first, second, third = case(), case("openvino"), case("onnxruntime:cpu")
    found = match_cases([*ran(second), *ran(first)], [*ran(third, run="new"), *ran(first, run="new")])
    assert [next(filter(None, item)).first.case for item in found] == [second, first, third]


@pytest.mark.parametrize(
    "change",
    [{"batch": 2}, {"precision": "fp16"}, {"threads": 1}, {"options": {"a": 1}}, {"seed": 1}, {"weights": "x"},
     {"io": "host"}, {"model": "other"}],
)  # fmt: skip
def test_cases_that_differ_in_anything_are_not_compared(change):
    other = msgspec.structs.replace(case(), **change)
    found = match_cases([*ran(), *ran(case("openvino"))], [*ran(other, run="new"), *ran(case("openvino"), run="new")])
    assert sum(record_pair(item) is not None for item in found) == 1


def test_each_machine_is_compared_with_itself_and_a_case_of_one_machine_on_each_side_with_the_other():
    found = match_cases([*on(HERE), *on(THERE)], [*on(THERE, run="new"), *on(HERE, run="new")])
    assert runs(found) == [("base-A", "new-A"), ("base-B", "new-B")]
    assert runs(match_cases(on(HERE), on(THERE, run="new"))) == [("base-A", "new-B")]


def test_a_machine_without_its_like_on_the_other_side_is_left_alone():
    assert runs(match_cases([*on(HERE), *on(THERE)], on(HERE, run="new"))) == [("base-A", "new-A"), ("base-B", None)]
    third = Environment(cpu="one CPU", gpus=(Gpu(name="C"),))
    with pytest.raises(InferlensError, match="No case is on both sides"):
        match_cases([*on(HERE), *on(THERE)], on(third, run="new"))


def test_a_record_is_not_compared_with_itself():
    with pytest.raises(InferlensError, match="the same records"):
        match_cases(ran(), ran())


@pytest.mark.parametrize(("base", "candidate"), [([], []), (ran(), []), (ran(), ran(case("openvino")))])
def test_nothing_on_both_sides_is_one_message(base, candidate):
    with pytest.raises(InferlensError, match="No case is on both sides") as error:
        match_cases(base, candidate)
    assert "inferlens show" in error.value.hint
