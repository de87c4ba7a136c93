from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

import inferlens
from inferlens import InferlensError
from inferlens.analysis.compare.cases import AUTOCORRELATED, Compared, compare
from inferlens.record.machine import Marks
from inferlens.record.record import Measurement
from inferlens.stats import compare as statistics
from tests.analysis.compare.sides import broken, ran, saved
from tests.views.samples import WRONG, case

FAST, SLOW = case("openvino"), case("onnxruntime:cpu")


def one(base, candidate, **words):
    """The only case of a comparison."""
    (found,) = compare(base, candidate, **words).cases
    return found


@pytest.mark.parametrize(
    ("seconds", "noise", "verdict", "code"),
    [(11e-3, 1, "SLOWER", 1), (9e-3, 1, "FASTER", 0), (10e-3, 1, "SAME", 0), (10e-3, 20, "UNDECIDED", 3)],
)
def test_the_verdict_and_the_exit_code(seconds, noise, verdict, code):
    compared = compare(ran(noise=noise), ran(seconds=seconds, noise=noise, run="new"))
    assert [each.verdict for each in compared.cases] == [verdict]
    assert compared.exit_code == code
    assert compared.cases[0].reason


def test_figures_are_those_of_the_statistics():
    base, candidate = ran(), ran(seconds=11e-3, run="new")
    found = one(base, candidate)
    samples = [[each.samples("latency") for each in side] for side in (base, candidate)]
    expected = statistics.compare(*samples)
    assert (found.ratio, found.interval, found.between) == (expected.ratio, expected.interval, True)
    assert found.change == pytest.approx(0.1, abs=1e-6)
    assert found.base.median == pytest.approx(10e-3, rel=1e-4)
    assert (found.base.processes, found.base.samples) == (5, 500)
    assert found.base.records == tuple(each.id for each in base)
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
    (found,) = compared.cases
    assert (found.verdict, found.candidate.state, found.candidate.median) == ("DID NOT RUN", state, None)
    assert reason in found.reason
    assert compared.exit_code == compare(candidate, ran()).exit_code == 4


def test_a_case_of_one_side_alone_did_not_run_on_the_other():
    compared = compare([*ran(), *ran(SLOW)], [*ran(run="new"), *ran(FAST, run="new")])
    assert {each.case.backend: (each.base.state, each.candidate.state) for each in compared.cases} == {
        "pytorch": ("ok", "ok"), "onnxruntime": ("ok", "missing"), "openvino": ("missing", "ok"),
    }  # fmt: skip
    assert [each.verdict for each in compared.cases] == ["SAME", "DID NOT RUN", "DID NOT RUN"]
    assert compared.exit_code == 4
    assert compared.comparisons == 1


def test_what_ran_on_neither_side_is_no_news():
    dead = [broken(FAST, "unsupported")], [broken(FAST, "unsupported", run="new")]
    compared = compare([*ran(), *dead[0]], [*ran(run="new"), *dead[1]])
    assert [each.verdict for each in compared.cases] == ["SAME", "DID NOT RUN"]
    assert compared.cases[1].on_neither
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


def test_threshold_and_level():
    base, candidate = ran(), ran(seconds=10.4e-3, run="new")
    assert one(base, candidate).verdict == "SLOWER"
    assert one(base, candidate, threshold=0.1).verdict == "SAME"
    sure, unsure = (one(base, candidate, level=level).interval for level in (0.999, 0.6))
    assert sure.low < unsure.low < unsure.high < sure.high


@pytest.mark.parametrize(
    "words",
    [{"threshold": 0.0}, {"threshold": -1.0}, {"threshold": math.nan}, {"threshold": math.inf}, {"level": 0.2},
     {"level": 1.0}, {"level": math.nan}, {"metric": "speed"}, {"metric": "warm-up"}],
)  # fmt: skip
def test_arguments_out_of_range(words):
    with pytest.raises(InferlensError) as error:
        compare(ran(), ran(run="new"), **words)
    assert error.value.expected


@pytest.mark.parametrize(("device", "verdict"), [("cpu", "UNDECIDED"), ("cuda", "SLOWER")])
def test_one_process_of_the_cpu_is_believed_less(device, verdict):
    """There a neighbour on the same core has made processes slower by a third for as long as they lived."""
    of = case(device=device)
    assert one(ran(of, processes=1), ran(of, seconds=13e-3, processes=1, run="new")).verdict == verdict


def test_one_disturbed_process_claims_nothing():
    marks = Marks(count=100, disturbed=tuple(range(50)), touched={"cpu busy": 50})
    base, slow = ran(processes=1), ran(seconds=17e-3, processes=1, run="new")
    assert one(base, slow).verdict == "SLOWER"
    found = one(base, [msgspec.structs.replace(each, marks=marks) for each in slow])
    assert (found.verdict, "disturbed" in found.reason) == ("UNDECIDED", True)


def with_samples(samples, run="new"):
    measured = (Measurement(metric="latency", unit="s", clock="a clock", samples=tuple(samples)),)
    return ran(run=run, measurements=measured)


@pytest.mark.parametrize(
    "samples",
    [(), (0.0,) * 50, (math.nan,) * 50, (math.inf,) * 50, (None,) * 50, (-1.0,) * 50, (5e-324,) * 50, (1e308,) * 50],
)
def test_samples_that_are_no_times_cannot_be_compared(samples):
    for base, candidate in ((ran(), with_samples(samples)), (with_samples(samples), ran(run="old"))):
        compared = compare(base, candidate)
        assert compared.cases[0].verdict == "DID NOT RUN"
        assert compared.cases[0].ratio is None
        assert compared.exit_code == 4


def test_from_folders_and_files_and_python(tmp_path: Path):
    base, candidate = saved(tmp_path / "base", ran()), saved(tmp_path / "new", ran(seconds=11e-3, run="new"))
    compared = inferlens.compare(base, str(candidate), threshold=0.05)
    assert isinstance(compared, Compared)
    assert inferlens.Compared is Compared
    assert compared == inferlens.compare(ran(), ran(seconds=11e-3, run="new"), threshold=0.05)
    assert compared.of("SLOWER") == compared.cases
    first = sorted(base.rglob("record.json"))[0]
    assert len(inferlens.compare(first, candidate).cases[0].base.records) == 1
    with pytest.raises(AttributeError):
        compared.level = 0.5


def test_runs_whose_processes_come_in_waves_say_so():
    def waves(seconds: float, run: str):
        each = [seconds * math.exp(0.05 * math.sin(2 * math.pi * index / 12)) for index in range(12)]
        return [
            msgspec.structs.replace(record, id=f"{run} {index}", repeat=index)
            for index, second in enumerate(each)
            for record in ran(seconds=second, run=run, processes=1)
        ]

    found = one(waves(10e-3, "base"), waves(10.6e-3, "new"))
    assert found.verdict == "UNDECIDED"
    assert AUTOCORRELATED in found.base.notes
    assert AUTOCORRELATED in found.candidate.notes
    assert AUTOCORRELATED not in one(ran(processes=12), ran(seconds=10.6e-3, run="new", processes=12)).base.notes
