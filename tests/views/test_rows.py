from __future__ import annotations

import csv
import io
import json

import pytest

from inferlens.errors import InferlensError
from inferlens.record.record import Environment, Gpu, ModelFacts, Phase
from inferlens.spec.case import TensorSpec, with_batch
from inferlens.views.columns import headline
from inferlens.views.rows import rows

from .samples import CPU, WRONG, case, cpu_records, failure, gpu_records, io_records, record, series, shown


def constant(backend: str, seconds: float, count: int = 100, **fields):
    return record(case(backend), samples=(seconds,) * count, **fields)


def by_name(records, reference=None):
    return {row.name: row for row in rows(records, reference)}


def test_speedups_are_ratios_of_medians():
    found = by_name([constant("pytorch", 0.02), constant("openvino", 0.01), constant("torchscript:trace", 0.04)])
    assert found["pytorch fp32"].is_reference
    assert found["openvino fp32"].speedup == pytest.approx(2.0)
    assert (found["openvino fp32"].speedup_low, found["openvino fp32"].speedup_high) == pytest.approx((2.0, 2.0))
    assert found["torchscript:trace fp32"].speedup == pytest.approx(0.5)
    assert [row.name for row in found.values() if row.fastest] == ["openvino fp32"]
    assert {row.reference for row in found.values()} == {"pytorch fp32"}


def test_order_is_reference_then_speed_then_wrong_then_failed():
    names = [
        row.name
        for row in rows(
            [
                failure(case("onnxruntime:cpu")),
                constant("torchscript:trace", 0.003, agreement=WRONG),
                constant("openvino", 0.02),
                constant("torch_compile:inductor", 0.01),
                constant("pytorch", 0.05),
            ]
        )
    ]
    assert [name.split()[0] for name in names] == [
        "pytorch",
        "torch_compile:inductor",
        "openvino",
        "torchscript:trace",
        "onnxruntime:cpu",
    ]


def test_rates_are_measured_and_never_derived_from_latency():
    of = case(batch=8)
    with_rate, without = rows([record(of, median=0.01, rate=250.0)])[0], rows([record(of, median=0.01)])[0]
    assert with_rate.iterations_per_second == pytest.approx(250.0)
    assert with_rate.items_per_second == pytest.approx(2000.0)
    assert (without.iterations_per_second, without.items_per_second) == (None, None)


def test_wrong_outputs_are_neither_ranked_nor_given_a_speedup():
    found = by_name([constant("pytorch", 0.02), constant("openvino", 0.001, agreement=WRONG)])
    wrong = found["openvino fp32"]
    assert (wrong.ranked, wrong.fastest, wrong.speedup, wrong.agrees) == (False, False, None, False)
    assert wrong.median == 0.001
    assert found["pytorch fp32"].fastest


def test_failures_keep_status_reason_and_cure_and_show_no_numbers():
    failed = failure(case("openvino"), "crashed", "signal 11", "--batch 1", measurements=record().measurements)
    row = by_name([record(), failed])["openvino fp32"]
    assert (row.status, row.reason, row.hint, row.median, row.samples) == ("crashed", "signal 11", "--batch 1", None, 0)


def test_build_is_export_and_build():
    phases = (Phase("load", 9.0), Phase("export", 1.0), Phase("build", 2.0), Phase("build", 0.5))
    assert rows([record(phases=phases)])[0].build == 3.5
    assert rows([record(phases=(Phase("load", 9.0),))])[0].build is None


def test_rows_of_different_machines_are_never_compared():
    elsewhere = Environment(cpu="AMD EPYC 9654", cpu_threads=16)
    here, there = constant("pytorch", 0.02), constant("openvino", 0.01, environment=elsewhere)
    found = by_name([here, there])
    assert found["openvino fp32"].reference == "openvino fp32"
    assert found["openvino fp32"].speedup == 1.0
    both = rows([here, constant("pytorch", 0.01, environment=elsewhere)])
    assert [row.is_reference for row in both] == [True, True]


def test_batches_are_never_compared():
    found = rows([record(case(batch=8)), record(case(batch=1)), record(case("openvino", batch=8), median=0.005)])
    assert [row.batch for row in found] == [1, 8, 8]
    assert [row.is_reference for row in found] == [True, True, False]


def test_each_device_has_its_own_pytorch():
    both = Environment(cpu=CPU, gpus=(Gpu(name="NVIDIA H200"),))
    found = by_name(
        [
            record(case(device=device), samples=(seconds,) * 50, environment=both)
            for device, seconds in (("cpu", 0.02), ("cuda", 0.002))
        ]
        + [record(case("tensorrt", device="cuda"), samples=(0.001,) * 50, environment=both)]
    )
    assert found["tensorrt fp32 cuda"].reference == "pytorch fp32 cuda"
    assert found["tensorrt fp32 cuda"].speedup == pytest.approx(2.0)
    assert found["pytorch fp32 cpu"].speedup == 1.0
    assert found["tensorrt fp32 cuda"].device_name == "NVIDIA H200"


def test_without_pytorch_the_first_that_ran_is_the_reference():
    found = by_name([failure(case()), constant("openvino", 0.02), constant("onnxruntime:cpu", 0.01)])
    assert found["onnxruntime:cpu fp32"].reference == "openvino fp32"


def test_pytorch_with_options_is_no_default_reference():
    tuned = record(case(options={"channels_last": True}), samples=(0.01,) * 50)
    found = by_name([tuned, constant("pytorch", 0.02)])
    assert found["pytorch fp32"].is_reference
    assert found["pytorch fp32 channels_last=true"].speedup == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("openvino", "openvino fp32"),
        ("torchscript:trace", "torchscript:trace fp32"),
        ("onnxruntime:cpu", "onnxruntime:cpu fp32"),
        ("onnxruntime graph_level=basic", "onnxruntime:cpu fp32 graph_level=basic"),
        ("onnxruntime:cpu fp32 batch 1 cpu graph_level=basic", "onnxruntime:cpu fp32 graph_level=basic"),
    ],
)
def test_a_reference_is_named_by_words(words, name):
    assert {row.reference for row in rows([r for r in cpu_records() if r.status == "ok"], words)} == {name}


def test_an_ambiguous_reference_lists_what_it_fits():
    with pytest.raises(InferlensError, match="fits 3 cases") as caught:
        rows(gpu_records((1,)), "fp32 cuda")
    assert "'onnxruntime:cuda fp32 batch 1 cuda'" in str(caught.value)


def test_a_failure_before_the_inputs_were_known_stays_in_its_comparison():
    bare = record().model
    lost = failure(case("openvino"), model=type(bare)(name="torchvision:resnet18"))
    assert len({row.comparison for row in rows([record(), lost])}) == 1


def test_cases_that_look_alike_get_different_names():
    found = rows([record(case(seed=seed)) for seed in (0, 1)])
    assert sorted(row.name for row in found) == ["pytorch fp32", "pytorch fp32 (2)"]


def test_all_that_cannot_be_told_from_the_fastest_are_marked():
    near = [
        record(case(), samples=series(0.01, spread=0.1)),
        record(case("openvino"), samples=series(0.01, spread=0.1)),
    ]
    found = by_name([*near, constant("torchscript:trace", 0.02)])
    assert [name for name, row in found.items() if row.fastest] == ["pytorch fp32", "openvino fp32"]


def test_rows_that_begin_on_the_host_are_never_compared_with_those_on_the_device():
    found = by_name(io_records())
    host, device = found["tensorrt:rtx fp32 host io"], found["tensorrt:rtx fp32"]
    assert (host.reference, device.reference) == ("pytorch fp32 host io", "pytorch fp32")
    assert host.speedup == pytest.approx(5.5 / 3.5)
    assert device.speedup == pytest.approx(2.0)
    assert host.fastest
    assert device.fastest
    assert (host.h2d, host.compute, host.d2h) == pytest.approx((0.001, 0.002, 0.0005))
    assert (device.h2d, device.compute, device.d2h) == (None, None, None)
    assert len({row.table for row in found.values()}) == 1


def test_a_name_carries_the_range_a_model_was_prepared_for_where_ranges_differ():
    def ranged(text, batch, **fields):
        inputs = (TensorSpec.parse(text),)
        of = case("tensorrt:rtx", device="cuda", inputs=inputs, batch=batch)
        model = ModelFacts(name=of.model, inputs=with_batch(inputs, batch))
        return record(of, model=model, **fields)

    fixed = record(case("tensorrt:rtx", device="cuda", batch=2))
    wide, narrow = ranged("input=1..16x3x224x224:opt=2", 2), ranged("input=1..8x3x224x224", 2)
    assert sorted(row.name for row in rows([wide, narrow, fixed])) == [
        "tensorrt:rtx fp32",
        "tensorrt:rtx fp32 input=1..16x3x224x224 opt 2x3x224x224",
        "tensorrt:rtx fp32 input=1..8x3x224x224",
    ]
    found = rows([wide, fixed])
    assert found[0].comparison == found[1].comparison  # the same work, so they are compared
    (alone,) = rows([wide])
    assert alone.name == "tensorrt:rtx fp32"
    assert "prepared for input=1..16x3x224x224 opt 2x3x224x224" in headline([alone])
    assert "prepared" not in headline(found)


def test_a_batch_outside_of_the_range_is_a_row_and_not_the_end_of_the_table():
    inputs = (TensorSpec.parse("input=1..4x3x224x224"),)
    ran = record(case(inputs=inputs, batch=4), model=ModelFacts(name="m", inputs=inputs))
    refused = failure(case(inputs=inputs, batch=8), "unsupported", model=ModelFacts(name="m"))
    found = rows([ran, refused])
    assert [(row.batch, row.status) for row in found] == [(4, "ok"), (8, "unsupported")]
    assert found[0].table == found[1].table


def test_the_new_fields_are_in_csv_and_json():
    lines = list(csv.DictReader(io.StringIO(shown(io_records(), "csv"))))
    assert {line["io"] for line in lines} == {"device", "host"}
    assert {line["h2d"] for line in lines} == {"", "0.001"}
    assert {line["cached"] for line in lines} == {"false"}
    data = json.loads(shown(io_records(), "json"))["rows"]
    assert {(row["io"], row["h2d"], row["d2h"]) for row in data} == {("device", None, None), ("host", 0.001, 0.0005)}


def test_the_build_column_says_cached_instead_of_a_time():
    phases = (Phase("build", 0.2, "cached"),)
    drawn = shown([record(), record(case("tensorrt:rtx"), phases=phases)], width=160)
    line = next(line for line in drawn.splitlines() if line.startswith("tensorrt:rtx"))
    assert "cached" in line.split()
