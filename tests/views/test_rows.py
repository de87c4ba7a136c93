"""Rows of records: names, order, references, speed-ups, and cases measured in several processes."""

import json
import random
import shlex

import msgspec
import numpy as np
import pytest
import typer
from msgspec.structs import replace

from inferlens.cli.commands import app
from inferlens.record.machine import Energy, MachineLog, Marks
from inferlens.record.record import IN_TURNS, Environment, Gpu, Measurement, Memory, ModelFacts, Phase, Record
from inferlens.spec.case import Budget, TensorSpec, with_batch
from inferlens.spec.plan import words_of
from inferlens.views.answer import answers
from inferlens.views.records import headline, records_document
from inferlens.views.renderers import render
from inferlens.views.rows import rows
from tests.snapshots import screens_test
from tests.views.samples import (
    CPU,
    GPU,
    GPU_MACHINE,
    WRONG,
    case,
    cpu_records,
    failure,
    gpu_records,
    on_busy_machine,
    record,
    series,
    shown,
)


def flat(seconds: float, of=None, **fields) -> Record:
    """A hundred samples of one time, told apart by the words of the case."""
    of = of or case()
    return record(of, samples=(seconds,) * 100, id=f"{of.label} {of.digest}", **fields)


def by_name(records, reference=None):
    return {row.name: row for row in rows(list(records), reference)}


def processes(backend: str, *medians: float):
    """A case measured in so many processes, each with its median."""
    known = {"of": case(backend), "repeats": len(medians)}
    return [record(median=median, rate=1 / median, id=f"{backend}-{index}", repeat=index, **known)
            for index, median in enumerate(medians)]  # fmt: skip


def test_the_own_batch_of_a_model_and_the_same_size_are_one_case():
    own, asked = (record(case(batch=batch), run=str(batch), id=str(batch)) for batch in (None, 1))
    other = record(case(batch=8), id="8")
    assert [(row.batch, row.runs) for row in rows([own, asked, other])] == [(1, 2), (8, 1)]


# One process each


def test_order_is_by_speed_then_wrong_then_failed():
    fell = failure(case("onnxruntime:cpu"), "crashed", "signal 11", "--batch 1", measurements=record().measurements)
    ran = ("openvino", 0.02), ("torch_compile:inductor", 0.01), ("pytorch", 0.05)
    found = rows(
        [fell, flat(0.003, case("torchscript:trace"), agreement=WRONG), *(flat(time, case(name)) for name, time in ran)]
    )
    names = ["torch_compile:inductor", "openvino", "pytorch", "torchscript:trace", "onnxruntime:cpu"]
    assert [row.name.split()[0] for row in found] == names
    wrong, failed = found[-2:]
    assert (wrong.ranked, wrong.fastest, wrong.speedup, wrong.median) == (False, False, None, 0.003)
    assert (failed.status, failed.reason, failed.hint) == ("crashed", "signal 11", "--batch 1")
    assert (failed.median, failed.samples) == (None, 0)


def test_rates_are_measured_and_never_derived_from_latency():
    of = case(batch=8)
    with_rate, without = rows([record(of, median=0.01, rate=250.0)])[0], rows([record(of, median=0.01)])[0]
    assert with_rate.iterations_per_second == pytest.approx(250.0)
    assert with_rate.items_per_second == pytest.approx(2000.0)
    assert (without.iterations_per_second, without.items_per_second) == (None, None)


def test_machines_batches_and_ways_to_call_are_never_compared_and_depths_are():
    elsewhere = Environment(cpu="AMD EPYC 9654", cpu_threads=16)
    here = flat(0.02)
    found = by_name([here, flat(0.01, case("openvino"), environment=elsewhere)])
    assert (found["openvino fp32"].reference, found["openvino fp32"].speedup) == ("openvino fp32", 1.0)
    for item in ({"environment": elsewhere}, {"case": case(cold=True)}):
        both = rows([here, replace(here, id="other", **item)])
        assert [row.is_reference for row in both] == [True, True]
    both = rows([record(case(batch=8)), record(case(batch=1))])
    assert [(row.batch, row.is_reference) for row in both] == [(1, True), (8, True)]
    found = rows([record(), record(case(depth=4), rate=100.0)])
    assert [(row.name, row.is_reference) for row in found] == [("pytorch fp32", True), ("pytorch fp32 depth 4", False)]


def test_each_device_has_its_own_reference():
    both = Environment(cpu=CPU, gpus=(Gpu(name="NVIDIA H200"),))
    ways = (("pytorch", "cpu", 0.02), ("pytorch", "cuda", 0.002), ("tensorrt", "cuda", 0.001))
    found = by_name(record(case(backend, device=device), samples=(seconds,) * 50, environment=both)
                    for backend, device, seconds in ways)  # fmt: skip
    fast = found["tensorrt fp32 cuda"]
    assert (fast.reference, fast.speedup) == ("pytorch fp32 cuda", pytest.approx(2.0))
    assert found["pytorch fp32 cpu"].speedup == 1.0
    assert fast.device_name == "NVIDIA H200"


def test_the_usual_reference_is_the_plainest_row_in_whatever_order_the_rows_were_measured():
    tuned, plain = record(case(options={"channels_last": True}), samples=(0.01,) * 50), flat(0.02)
    assert by_name([tuned, plain])["pytorch fp32 channels_last=true"].speedup == pytest.approx(2.0)
    threads = [record(case(threads=count), samples=(0.03,) * 50) for count in (1, 4, 2)]
    ways = [*threads, record(case(precision="bf16"), samples=(0.01,) * 50), flat(0.01, case("openvino"))]
    for records, expected in (
        ([tuned, plain, *ways], "pytorch fp32"),
        ([tuned, *ways], "pytorch fp32 4 threads"),
        ([failure(case()), flat(0.02, case("openvino")), flat(0.01, case("onnxruntime:cpu"))], "openvino fp32"),
    ):
        orders = ([*records], records[::-1], random.Random(1).sample(records, len(records)))
        assert [{row.reference for row in rows(order) if row.ok} for order in orders] == [{expected}] * 3


ON_CPU = [one for one in cpu_records() if one.status == "ok"]


@pytest.mark.parametrize(("records", "words", "name"), [
    (ON_CPU, "openvino", "openvino fp32"), (ON_CPU, "onnxruntime:cpu", "onnxruntime:cpu fp32"),
    (ON_CPU, "onnxruntime graph_level=basic", "onnxruntime:cpu fp32 graph_level=basic"),
    (ON_CPU, "onnxruntime:cpu fp32 batch 1 cpu graph_level=basic", "onnxruntime:cpu fp32 graph_level=basic"),
    (gpu_records((1,)), "fp32 cuda", "pytorch fp32"),  # the plainest of those that fit
    (gpu_records((1,)), "fp16 onnxruntime", "onnxruntime:tensorrt fp16"),
])  # fmt: skip
def test_a_reference_is_named_by_words(records, words, name):
    assert {row.reference for row in rows(records, words) if row.ok} == {name}


def test_a_failure_before_the_inputs_were_known_stays_in_its_comparison():
    lost = failure(case("openvino"), model=ModelFacts(name="torchvision:resnet18"))
    assert len({row.comparison for row in rows([record(), lost])}) == 1


@pytest.mark.parametrize(("records", "names"), [
    ([record(case(seed=seed)) for seed in (0, 1)], ["pytorch fp32", "pytorch fp32 (2)"]),
    ([record(case("openvino", precision="int8"), facts={"quantized_share": 0})], ["openvino int8 (partly)"]),
])  # fmt: skip
def test_names_tell_rows_apart(records, names):
    assert sorted(row.name for row in rows(records)) == names


def test_a_name_carries_the_range_a_model_was_prepared_for_where_ranges_differ():
    def ranged(text, batch):
        inputs = (TensorSpec.parse(text),)
        of = case("tensorrt:rtx", device="cuda", inputs=inputs, batch=batch)
        return record(of, model=ModelFacts(name=of.model, inputs=with_batch(inputs, batch)))

    fixed = record(case("tensorrt:rtx", device="cuda", batch=2))
    wide, narrow = ranged("input=1..16x3x224x224:opt=2", 2), ranged("input=1..8x3x224x224", 2)
    assert sorted(row.name for row in rows([wide, narrow, fixed])) == [
        "tensorrt:rtx fp32", "tensorrt:rtx fp32 input=1..16x3x224x224 opt 2x3x224x224",
        "tensorrt:rtx fp32 input=1..8x3x224x224",
    ]  # fmt: skip
    found = rows([wide, fixed])
    assert found[0].comparison == found[1].comparison  # the same work, so they are compared
    (row,) = rows([wide])
    assert row.name == "tensorrt:rtx fp32"
    assert "prepared for input=1..16x3x224x224 opt 2x3x224x224" in headline([row])
    assert "prepared" not in headline(found)


def test_a_batch_outside_of_the_range_is_a_row_and_not_the_end_of_the_table():
    inputs = (TensorSpec.parse("input=1..4x3x224x224"),)
    ran = record(case(inputs=inputs, batch=4), model=ModelFacts(name="m", inputs=inputs))
    refused = failure(case(inputs=inputs, batch=8), "unsupported", model=ModelFacts(name="m"))
    found = rows([ran, refused])
    assert [(row.batch, row.status) for row in found] == [(4, "ok"), (8, "unsupported")]
    assert found[0].table == found[1].table


def test_device_memory_is_shown_on_one_basis_alone():
    nvml = Memory(device_peak=900 << 20, device_basis="NVML: memory of the case's processes", library_peak=1)
    old = Memory(device_peak=200 << 20, device_basis="torch.cuda.max_memory_allocated: tensors only")
    found = by_name([record(case("pytorch"), memory=nvml), record(case("openvino"), memory=old)])
    assert {name: row.device_peak for name, row in found.items()} == {"pytorch fp32": 900 << 20, "openvino fp32": None}


ENQUEUE = Measurement(metric="enqueue time", unit="s", clock="host", samples=series(0.00095))
ON_GPU = record(case(device="cuda"), median=0.001, gpu=0.0009, energy=Energy(joules=0.25, low=0.2, high=0.3))
ON_GPU = replace(ON_GPU, measurements=(*ON_GPU.measurements, ENQUEUE))


# Rates alone


def rates(backend: str, rate: float, **fields):
    windows = tuple(rate * (1 + 0.002 * ((7 * step) % 10 - 4)) for step in range(10))
    measured = Measurement(metric="throughput", unit="calls/s", clock="host", samples=windows)
    return record(case(backend), median=None, measurements=(measured,), **fields)


def test_rates_alone_are_ranked_by_themselves_and_not_among_latencies():
    found = rows([rates("pytorch", 100.0), rates("openvino", 300.0)])
    fast = next(row for row in found if row.fastest)
    assert (fast.name, fast.median, fast.speedup) == ("openvino fp32", None, pytest.approx(3.0))
    assert "openvino  300 items/s  3.00x pytorch" in str(answers(found)[0])
    mixed = by_name([record(), rates("openvino", 1e6)])
    assert (mixed["openvino fp32"].ranked, mixed["openvino fp32"].speedup) == (False, None)
    assert mixed["pytorch fp32"].fastest


# Several processes


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


def test_processes_count_alike_however_many_samples_they_have():
    short = [record(samples=(0.004,) * 100, id=f"short-{index}", repeat=index, repeats=4) for index in (1, 2, 3)]
    (row,) = rows([record(samples=(0.001,) * 5000, id="long", repeats=4), *short])
    assert row.median == pytest.approx(row.mean) == pytest.approx(row.p95) == pytest.approx((0.001 * 0.004**3) ** 0.25)


def on_card(backend: str, median: float, uuid: str):
    environment = msgspec.structs.replace(GPU_MACHINE, gpus=(Gpu(name=GPU, uuid=uuid),))
    return record(case(backend, device="cuda"), median=median, id=backend, environment=environment)


def test_speed_ups_are_against_the_reference_on_the_same_card_of_several_of_one_kind():
    near, far = on_card("torchscript:trace", 0.008, "GPU-1"), on_card("tensorrt", 0.005, "GPU-2")
    found = {row.backend: row for row in rows([on_card("pytorch", 0.01, "GPU-1"), near, far])}
    assert found["torchscript:trace"].speedup == pytest.approx(1.25, rel=0.01)
    assert (found["tensorrt"].speedup, found["tensorrt"].place) == (1.0, 1)  # by itself there
    assert [found[name].device_name for name in ("pytorch", "tensorrt")] == [f"{GPU} GPU-1", f"{GPU} GPU-2"]


def test_the_card_that_a_case_ran_on_is_its_machine_and_not_the_first_of_the_host():
    two = (Gpu(name="NVIDIA L4", uuid="GPU-1"), Gpu(name=GPU, uuid="GPU-2"))
    both = replace(GPU_MACHINE, gpus=two)
    found = record(case(device="cuda"), environment=both, machine=MachineLog(interval=0.1, gpu_uuid="GPU-2"))
    (row,) = rows([found])
    assert (row.device_name, row.card) == (GPU, "GPU-2")
    assert row.machine != rows([record(case(device="cuda"), environment=both)])[0].machine


def test_a_process_that_failed_is_told_and_one_that_is_wrong_makes_the_case_wrong():
    good = processes("pytorch", 0.010, 0.010)
    failed = failure(case("pytorch"), reason="It broke.", id="third", repeat=2)
    (row,) = rows([*good, failed])
    assert (row.ok, row.processes) == (True, 2)
    assert any("1 of 3 processes failed: It broke." in note.message for note in row.notes)
    (row,) = rows([*good, record(case("pytorch"), agreement=WRONG, id="third", repeat=2)])
    assert (row.agrees, row.ranked) == (False, False)


# The answer of each comparison: a winner with those that may be as fast, or the likeliest.


def rounds(count: int, of: dict[str, float], spread: float = 0.004, seed: int = 1, batch: int = 1, **fields):
    """Records of a race: each case once by itself, then in rounds; processes differ by ``spread``, rounds by 5 %."""
    generator = np.random.default_rng(seed)
    found = []
    for turn in range(count + 1):
        wave = generator.normal(0, 0.05)
        for place, (backend, seconds) in enumerate(of.items()):
            median = seconds * float(np.exp(wave + generator.normal(0, spread)))
            samples = tuple(median * (1 + 1e-4 * (step % 7 - 3)) for step in range(60))
            created = f"2026-05-04T10:{turn:02d}:{place:02d}Z"
            name = f"{backend}-{batch}-{turn}"
            of_it = case(backend, batch=batch)
            found.append(record(of_it, samples=samples, repeat=turn, created=created, id=name, **fields))
    return found


def told(*records, reference=None):
    return [str(answer) for answer in answers(rows(records, reference))]


NOTHING_LEFT = Marks(count=9, discarded=tuple(range(9)))


@pytest.mark.parametrize(("records", "why"), [
    ([failure(case()), failure(case("openvino"))], "No way ran."),
    ([record(samples=(0.01,) * 9, marks=NOTHING_LEFT)], "No way has samples of all its processes."),
    ([record(agreement=WRONG)], "No way ran with right outputs."),
    ([record(run="a"), failure(case(), run="a", repeat=1)], "No way has samples of all its processes."),
])  # fmt: skip
def test_without_a_winner_the_answer_says_why(records, why):
    assert told(*records)[0].startswith(f"NONE  {why}")


THREE_WAYS = {"pytorch": 25e-3, "openvino": 16e-3, "onnxruntime": 17.3e-3}
EQUALS = {"pytorch": 25e-3, "openvino": 16e-3, "onnxruntime": 16.01e-3}
CLOSE = {"pytorch": 16.02e-3, "openvino": 16e-3, "onnxruntime": 16.01e-3}
OPEN = rounds(3, {"pytorch": 16.4e-3, "openvino": 16e-3}, spread=0.08)  # three rounds decide nothing


def with_tail() -> list[Record]:
    """Two ways, of which one call in ten of the fastest takes three times as long."""
    fast = tuple(10e-3 * (3.0 if place % 10 == 0 else 1.0) * (1 + 1e-3 * (place % 7)) for place in range(400))
    even = tuple(12e-3 * (1 + 1e-3 * (place % 7)) for place in range(400))
    return [record(case("pytorch"), samples=fast), record(case("openvino:cpu"), samples=even)]


def with_noise(item: Record) -> Record:
    """The record, calibrated with noise."""
    noisy = replace(item.case, precision="int8", calibration="random")
    return replace(item, case=noisy, facts={"quantized_share": 1.0})


def sized(length: int, median: float, batch: int = 1) -> Record:
    """A record of rows of token numbers, without names for its dimensions."""
    facts = ModelFacts(name="bert", inputs=(TensorSpec("ids", (batch, length), "int64"),))
    inputs = () if length == 32 else facts.inputs  # the model's own length is one of them
    return record(case(inputs=inputs, batch=batch), samples=(median,) * 100, model=facts, rate=1 / median)


def busy_rates() -> list[Record]:
    """Rates alone, of a machine that is busy in the first series and in four turns."""
    first = [record(case(name), median=None, rate=rate) for name, rate in (("pytorch", 50.0), ("openvino", 80.0))]
    turns = [replace(item, id=f"{item.id}-{turn}", repeat=turn, facts={IN_TURNS: "another"})
             for turn in range(1, 5) for item in first]  # fmt: skip
    return [replace(item, marks=None, window_marks=item.marks) for item in map(on_busy_machine, [*first, *turns])]


def left_out() -> list[Record]:
    """Three ways that ran, three that are wrong, one that is unsupported."""
    reason = "OpenVINO has no operator for this layer, and none that could be put together from the others here."
    wrong = [flat(0.01, case(precision="int8", threads=count), agreement=WRONG) for count in (1, 2, 3)]
    ran = [flat(0.01 * count, case(threads=count)) for count in (1, 2, 3)]
    return [*ran, *wrong, failure(case("openvino"), "unsupported", reason)]


BUSY = [on_busy_machine(item) for item in rounds(4, {"pytorch": 20e-3, "openvino": 16e-3})]
CACHED = [
    record(phases=(Phase("build", 31.0),)), record(case("tensorrt:rtx"), phases=(Phase("build", 0.2, "cached"),)),
]  # fmt: skip
THREADS = [flat(0.01 * count, case(threads=count)) for count in range(1, 31)]
BATCHES = [record(case(batch=batch), median=0.01 * batch, rate=rate) for batch, rate in ((1, 90), (8, 50), (32, 12.6))]
ONCE = [flat(seconds, case(name, batch=batch)) for name, seconds in (("pytorch", 20e-3), ("openvino", 19e-3))
        for batch in (1, 32)]  # fmt: skip
AT_BATCHES = [flat(0.01 * batch / threads, case(batch=batch, threads=threads))
              for batch in (1, 8, 16, 32) for threads in range(1, 9)]  # fmt: skip


def elsewhere(where) -> str:
    return render(records_document(OPEN, where=where), "markdown")


# Each shows an answer, or what is said beneath the table.
SCREENS = {
    "a winner": lambda: shown(rounds(6, THREE_WAYS)),
    "equals": lambda: shown(rounds(16, EQUALS, spread=0.002)),
    "calibrated with noise": lambda: shown([flat(0.02), with_noise(flat(0.01, case("openvino")))]),
    "the likeliest": lambda: shown(OPEN),
    "three that may be faster": lambda: shown(rounds(4, CLOSE, spread=0.03, seed=2)),
    "two typical speeds": lambda: shown(with_tail()),
    "a rate that contradicts": lambda: shown(
        [record(case("openvino"), median=0.8e-3, rate=111.0), record(case(), rate=99.0)]),
    "two comparisons are open": lambda: shown(ONCE),
    "measured once": lambda: shown([flat(0.02), flat(0.01, case("openvino"))]),
    "only one ran": lambda: shown([flat(0.02), failure(case("openvino"))]),
    "throughput hardly grows": lambda: shown(BATCHES),
    "sizes": lambda: shown([sized(32, 0.01), sized(64, 0.02), sized(256, 0.16)], width=120),
    "sizes at batches": lambda: shown([sized(*at) for at in ((32, 0.01), (64, 0.02), (32, 0.02, 8), (64, 0.05, 8))]),
    "low terminal": lambda: render(records_document(THREADS), lines=24),
    "high terminal": lambda: render(records_document(THREADS), lines=60),
    "rows that are left out": lambda: render(records_document(left_out(), top=3)),
    "the first of each batch": lambda: render(records_document(AT_BATCHES, top=1)),
    "rates of a busy machine": lambda: shown(busy_rates()), "busy machine": lambda: shown(BUSY),
    "built and cached": lambda: shown(CACHED, width=100, columns="latency,build") + shown(CACHED),
    "energy": lambda: shown([ON_GPU], width=400, wide=True),
    "of a run elsewhere": lambda: elsewhere("other place/resnet18") + elsewhere(["one", "and two"]),
}  # fmt: skip
test_screen = screens_test("records", SCREENS)


def test_screens_fit_on_a_screen():
    for name in SCREENS.keys() - {"high terminal", "of a run elsewhere", "sizes"}:
        lines = SCREENS[name]().splitlines()
        assert len(lines) <= 24, name


def test_programs_get_how_busy_the_machine_was():
    data = json.loads(shown(BUSY, "json"))
    assert data["machine_load"] == {"busy": True, "other_cpus": 1.0, "cpus": 2, "gpu_share": None, "steal": 0.0}


def test_the_command_that_decides_has_all_words_of_the_plan():
    spec = TensorSpec.parse("ids=1..4x128:int64:0..30522:opt=2x128")
    fields = {"inputs": (spec, TensorSpec("mask", (1, 128), "int64")), "weights": "my weights.pth", "seed": 3}
    cases = [case("pytorch", options={"channels_last": True}, **fields), case("openvino", threads=2, **fields)]
    budget = Budget(threshold=0.01, level=0.9, iterations=60, warmup=2, timeout=90.0)
    race = rounds(3, {"pytorch": 16.4e-3, "openvino": 16e-3}, spread=0.15, budget=budget)
    (answer,) = answers(rows([replace(item, case=cases[item.case.backend == "openvino"]) for item in race]))
    name, *said = shlex.split(answer.decide)[1:]
    command = typer.main.get_command(app).get_command(None, name)
    context = command.make_context(name, said)
    told = {key: value for key, value in context.params.items() if value not in (None, [], False, ())}
    sides = [told.pop(side) for side in "ab"]
    assert (told["weights"], told["seed"]) == ("my weights.pth", 3)
    assert {words_of(side, ["pytorch", "openvino"])["backend"] for side in sides} == {"pytorch", "openvino"}
    assert TensorSpec.parse_all(told["input"]) == (fields["inputs"],)
    assert (told["threshold"], told["level"]) == ("1%", "90%")
    assert (told["iterations"], told["warmup"], told["timeout"]) == (60, 2, "90s")


def test_rounds_are_pairs_so_that_drift_cancels_out():
    drift = (0.0100, 0.0110, 0.0121, 0.0133)
    base = processes("pytorch", *drift)
    fast = processes("openvino", *(seconds * 0.97 for seconds in drift))
    alone = [replace(item, run="run-2") for item in fast]
    paired, row = (next(row for row in rows([*base, *item]) if row.backend == "openvino") for item in (fast, alone))
    assert paired.speedup == pytest.approx(row.speedup, rel=1e-3)
    assert row.speedup_low < 1 < paired.speedup_low
