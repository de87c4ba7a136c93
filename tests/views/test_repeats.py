"""Rows of cases that were measured in several processes, of rates alone, cold, and bound by something."""

from __future__ import annotations

import math

import msgspec
import pytest
from msgspec.structs import replace

from inferlens.analysis.compare.cases import compare
from inferlens.analysis.findings.warnings import AUTOCORRELATED, OTHER_CARD
from inferlens.record.machine import Energy
from inferlens.record.record import Gpu, Measurement, Memory, Record
from inferlens.views.chart import Chart
from inferlens.views.rows import of_comparisons, rows
from inferlens.views.verdict import verdict

from .samples import GPU, GPU_MACHINE, WRONG, case, failure, record, series, shown


def processes(backend: str, *medians: float, **fields):
    """A case measured in so many processes, each with its median."""
    return [
        record(case(backend), median=median, rate=1 / median, id=f"{backend}-{index}", repeat=index, **fields)
        for index, median in enumerate(medians)
    ]


def rates(backend: str, rate: float, **fields):
    windows = tuple(rate * (1 + 0.002 * ((7 * step) % 10 - 4)) for step in range(10))
    measured = Measurement(metric="throughput", unit="calls/s", clock="host", samples=windows)
    return record(case(backend), median=None, measurements=(measured,), **fields)


def test_processes_of_one_run_are_one_row_whose_interval_covers_them():
    (row,) = rows(processes("pytorch", 0.0100, 0.0102, 0.0104))
    assert (row.processes, row.between, row.samples) == (3, True, 3 * len(series(0.01)))
    assert row.median == pytest.approx(0.0102, rel=0.02)
    assert row.median_high / row.median_low > 1.04
    for name in ("mean", "p95", "p99"):
        low, middle, high = (getattr(row, f"{name}{end}") for end in ("_low", "", "_high"))
        assert low < middle < high, name
    (alone,) = rows(processes("pytorch", 0.0102))
    assert alone.median_high - alone.median_low < (row.median_high - row.median_low) / 3


def test_a_speed_up_that_comes_in_waves_says_so():
    wave = [1 + 0.05 * math.sin(2 * math.pi * index / 12) for index in range(12)]
    mixed = [wave[(5 * index) % 12] for index in range(12)]
    base = processes("pytorch", *[0.01] * 12)
    wavy, calm = (
        next(row for row in rows([*base, *processes("openvino", *(0.01 * one for one in each))]) if row.speedup != 1)
        for each in (wave, mixed)
    )
    said = AUTOCORRELATED.message
    assert any(said in each for each in wavy.warnings)
    assert not any(said in each for each in calm.warnings)
    assert wavy.speedup_high - wavy.speedup_low > calm.speedup_high - calm.speedup_low


def test_none_is_called_the_fastest_where_its_speed_up_may_be_none():
    wave = [0.0097 * (1 + 0.05 * math.sin(2 * math.pi * index / 12)) for index in range(12)]
    shown = rows([*processes("pytorch", *[0.01] * 12), *processes("openvino", *wave)])
    base, other = (next(row for row in shown if row.is_reference is found) for found in (True, False))
    assert other.median_high < base.median_low
    assert other.speedup_low < 1 < other.speedup_high
    assert base.fastest
    assert other.fastest
    assert "within each other's doubt" in verdict(shown)[0]


def test_what_lies_between_two_that_cannot_be_told_apart_cannot_either():
    wave = [0.0097 * (1 + 0.05 * math.sin(2 * math.pi * index / 12)) for index in range(12)]
    between = processes("onnxruntime", *[0.00995] * 12)
    shown = rows([*processes("pytorch", *[0.01] * 12), *between, *processes("openvino", *wave)])
    assert len(shown) == 3
    assert all(row.fastest for row in shown)
    slower = rows(
        [*processes("pytorch", *[0.01] * 12), *processes("onnxruntime", *[0.0105] * 12), *processes("openvino", *wave)]
    )
    assert [row.fastest for row in sorted(slower, key=lambda row: row.median)] == [True, True, False]


def on_card(backend: str, median: float, uuid: str, device: str = "cuda"):
    environment = msgspec.structs.replace(GPU_MACHINE, gpus=(Gpu(name=GPU, uuid=uuid),))
    return record(case(backend, device=device), median=median, id=backend, environment=environment)


def test_a_speed_up_against_another_card_of_the_same_name_says_so():
    reference = on_card("pytorch", 0.01, "GPU-1")
    near, far = on_card("torchscript:trace", 0.008, "GPU-1"), on_card("tensorrt", 0.005, "GPU-2")
    shown = rows([reference, near, far])
    assert [row.other_card for row in shown] == [False, True, False]
    assert [OTHER_CARD.message in " ".join(row.warnings) for row in shown] == [False, True, False]
    assert of_comparisons([reference, near, far]) == {"tensorrt": (OTHER_CARD,)}


def test_rounds_are_pairs_so_that_drift_cancels_out():
    drift = (0.0100, 0.0110, 0.0121, 0.0133)
    base = processes("pytorch", *drift)
    fast = processes("openvino", *(seconds * 0.97 for seconds in drift))
    alone = [
        record(case("openvino"), median=0.97 * s, id=f"other-{i}", repeat=i, run="run-2") for i, s in enumerate(drift)
    ]
    paired = next(row for row in rows([*base, *fast]) if row.backend == "openvino")
    apart = next(row for row in rows([*base, *alone]) if row.backend == "openvino")
    assert paired.speedup == pytest.approx(apart.speedup)
    assert paired.speedup_low > 1
    assert apart.speedup_low < 1


def test_a_process_that_failed_is_told_and_one_that_is_wrong_makes_the_case_wrong():
    good = processes("pytorch", 0.010, 0.010)
    failed = failure(case("pytorch"), reason="It broke.", id="third", repeat=2)
    (row,) = rows([*good, failed])
    assert (row.ok, row.processes) == (True, 2)
    assert any("1 of 3 processes failed: It broke." in warning for warning in row.warnings)
    (row,) = rows([*good, record(case("pytorch"), agreement=WRONG, id="third", repeat=2)])
    assert (row.agrees, row.ranked) == (False, False)


def test_rates_alone_are_ranked_by_themselves():
    shown = rows([rates("pytorch", 100.0), rates("openvino", 300.0)])
    fast = next(row for row in shown if row.fastest)
    assert (fast.name, fast.median) == ("openvino fp32", None)
    assert fast.speedup == pytest.approx(3.0)
    assert verdict(shown)[0].endswith("300 calls/s against 100 calls/s.")
    assert shown[0].seconds_range is not None
    assert "throughput" in Chart().render([rates("pytorch", 100.0)])


def test_rates_are_not_ranked_among_latencies():
    shown = {row.name: row for row in rows([record(case("pytorch"), median=0.01), rates("openvino", 1e6)])}
    assert not shown["openvino fp32"].ranked
    assert shown["openvino fp32"].speedup is None
    assert shown["pytorch fp32"].fastest


def test_cold_and_warm_are_not_compared_and_depths_are():
    warm, cold = record(case("pytorch")), record(case("pytorch", cold=True), median=0.02)
    assert [row.is_reference for row in rows([warm, cold])] == [True, True]
    deep = record(case("pytorch", depth=4), rate=100.0)
    found = rows([warm, deep])
    assert [row.name for row in found] == ["pytorch fp32", "pytorch fp32 depth 4"]
    assert [row.is_reference for row in found] == [True, False]


def stars(*rows_of):
    return {row.name for row in rows(list(rows_of)) if row.fastest}


@pytest.mark.parametrize(("device", "too_close", "apart"), [("cpu", 45, 60), ("cuda", 5, 7)])
def test_one_process_each_has_to_differ_by_what_compare_asks_for(device: str, too_close: int, apart: int):
    base = record(case("pytorch", device=device), samples=(0.01,) * 100)

    def slower(percent: int) -> Record:
        return record(case("torchscript", device=device), samples=(0.01 * (1 + percent / 100),) * 100)

    assert stars(base, slower(too_close)) == {"pytorch fp32", "torchscript fp32"}
    assert stars(base, slower(apart)) == {"pytorch fp32"}
    for percent, expected in ((too_close, "UNDECIDED"), (apart, "SLOWER")):
        sides = [[replace(each, case=base.case)] for each in (base, slower(percent))]
        assert [each.verdict for each in compare(*sides).cases] == [expected]


def test_processes_count_alike_however_many_samples_they_have():
    long = record(case(), samples=(0.001,) * 5000, id="long")
    short = [record(case(), samples=(0.004,) * 100, id=f"short-{index}", repeat=index) for index in (1, 2, 3)]
    (row,) = rows([long, *short])
    assert row.median == pytest.approx(row.mean) == pytest.approx(row.p95) == pytest.approx((0.001 * 0.004**3) ** 0.25)


def test_device_memory_is_shown_on_one_basis_alone():
    nvml = Memory(device_peak=900 << 20, device_basis="NVML: memory of the case's processes", library_peak=1)
    old = Memory(device_peak=200 << 20, device_basis="torch.cuda.max_memory_allocated: tensors only")
    shown = rows([record(case("pytorch"), memory=nvml), record(case("openvino"), memory=old)])
    assert {row.name: row.device_peak for row in shown} == {"pytorch fp32": 900 << 20, "openvino fp32": None}


def test_energy_and_what_a_call_waits_for_are_columns():
    gpu = record(case(device="cuda"), median=0.001, gpu=0.0009, energy=Energy(joules=0.25, low=0.2, high=0.3))
    enqueue = Measurement(metric="enqueue time", unit="s", clock="host", samples=series(0.00095))
    gpu = type(gpu)(**{**{name: getattr(gpu, name) for name in gpu.__struct_fields__},
                       "measurements": (*gpu.measurements, enqueue)})  # fmt: skip
    (row,) = rows([gpu])
    assert (row.energy, row.energy_low, row.energy_high, row.bound) == (0.25, 0.2, 0.3, "host")
    text = shown([gpu], width=200)
    assert "250 ± 20.0 %" in text
    assert "mJ per item" in text
    assert "Bound by the host" in text
