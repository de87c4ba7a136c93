"""Measuring on a real GPU: calls in flight, cold caches, rotating inputs, the watch and what the record says of it."""

import itertools
import statistics
import time

import pytest
import torch

import inferlens
from inferlens.analysis.measures import bound_by
from inferlens.analysis.notes import case_notes
from inferlens.analysis.samples import CaseRuns
from inferlens.backends.clocks import CudaClock
from inferlens.execution.load.run import load_test
from inferlens.execution.protocol import Observer
from inferlens.measure.ceilings import measure
from inferlens.measure.series import TIMES_CACHE, Feeding, cache_bytes, flusher
from inferlens.models import resolve
from inferlens.record.record import IN_TURNS, KERNEL_FAMILIES
from tests.backends import small

pytestmark = pytest.mark.alone
CAPTURED = [
    ("pytorch", {}), ("pytorch", {"cuda_graph": True}), ("tensorrt:rtx", {}), ("tensorrt:rtx", {"cuda_graph": True}),
    ("onnxruntime:cuda", {}),
]  # fmt: skip

PLAIN = {"backend": "pytorch", "option": "pytorch.cuda_graph=false"}  # by its name alone the backend is two ways


def bench(*models, **words):
    records = inferlens.bench(list(models), device="cuda", **{"quick": "repeats" not in words, **words})
    assert [record.status for record in records] == ["ok"] * len(records), [record.reason for record in records]
    return records


@pytest.mark.parametrize("depth", [1, 2, 4, None])
def test_no_more_calls_than_the_depth_are_in_flight(depth):
    """A matrix product of a millisecond and more: the host runs ahead of the GPU as far as it may."""
    x = torch.randn(6144, 6144, device="cuda")
    ahead = []
    done = []

    def infer(_):
        ahead.append(sum(not event.query() for event in done))
        x @ x
        done.append(torch.cuda.Event())
        done[-1].record()

    CudaClock().window(infer, itertools.repeat(None), 20, depth)
    if depth is None:
        assert max(ahead) > 8
    else:
        assert max(ahead) == depth - 1 or (depth > 2 and max(ahead) == depth - 2), ahead


@pytest.mark.parametrize(("label", "options"), CAPTURED, ids=str)
def test_rotating_inputs_give_each_its_own_outputs(label, options, tmp_path):
    case, model = small.case(label, device="cuda", options=options, rotate=True), small.model()
    preparation = small.preparation(tmp_path)
    with small.skip_unless_runs(case, "module").prepare(model, case, preparation) as runner:
        first, second = (small.arrays(model, seed=seed) for seed in (0, 1))
        for arrays in (first, second, first):
            feed = runner.place(arrays)
            runner.bind(feed)
            outputs = runner.collect(runner.infer(feed))
            assert small.error(outputs, small.eager(small.model(), arrays)) < small.allowed(label)
        feeding = Feeding(runner, model, case, first, preparation)
        timings = runner.clock.time(runner.infer, feeding.latency, 20)
        assert len(timings.latency) == len(timings.begins) == 20
    assert preparation.facts["rotating inputs"]["feeds"] > 2


def test_a_cold_cache_is_slower_for_what_reads_more_than_it_computes():
    size = cache_bytes("cuda")
    assert size > 1 << 20
    weights = torch.randn(size // 8, device="cuda")  # half of the cache: warm, it is never read from memory
    weights.sum()
    graph = torch.cuda.CUDAGraph()  # launched at once, however slow the host is
    with torch.cuda.graph(graph):
        weights.sum()
    flush = flusher("cuda", TIMES_CACHE * size)

    def flushed():
        while True:
            flush()
            yield None

    clock = CudaClock()
    clock.time(lambda _: graph.replay(), itertools.repeat(None), 50)
    warm = statistics.median(clock.time(lambda _: graph.replay(), itertools.repeat(None), 200).gpu)
    cold = statistics.median(clock.time(lambda _: graph.replay(), flushed(), 200).gpu)
    assert cold > 1.1 * warm  # 1.18 on an H200


def test_the_record_says_what_the_machine_did(tmp_path):
    (record,) = bench("resnet18", **PLAIN, precision="fp16", batch=32, max_time="4s", output=str(tmp_path))
    assert record.machine.gpu.sm_clock
    latency = record.measurement("latency")
    assert record.machine.gpu.times[0] <= latency.begins[0]
    assert record.marks.count == len(latency.samples)
    assert record.memory.device_basis.startswith("NVML")
    assert (record.memory.device_peak or 0) > (record.memory.library_peak or 0) > 0
    assert record.memory.parts["weights"] > 20e6
    assert record.energy.joules or record.energy.reason
    assert bound_by(record) in ("host", "GPU")


def test_small_calls_are_bound_by_the_host_and_large_ones_by_the_gpu(tmp_path):
    words = {**PLAIN, "precision": "fp16", "batch": "1,128", "seconds": "1s"}
    small_call, large_call = bench("resnet50", **words, output=str(tmp_path))
    assert (bound_by(small_call), bound_by(large_call)) == ("host", "GPU")


def test_the_clock_knows_what_it_reads_of_a_kernel_that_does_nothing():
    floors = [CudaClock().floor() for _ in range(5)]
    assert 0.5e-6 < min(floors) <= max(floors) < 50e-6


def short():
    """A model of one small kernel, and its input."""
    return torch.nn.ReLU(), torch.randn(1, 16)


def test_a_short_call_says_how_much_of_it_is_launch_and_events(tmp_path):
    (record,) = bench(f"{__name__}:short", **PLAIN, seconds="200ms", output=str(tmp_path))
    assert "gpu-floor" in [warning.code for warning in case_notes(CaseRuns((record,)))]


def test_two_processes_on_one_gpu_take_turns(tmp_path):
    """Neither is a stranger to the other's watch, and what belongs to both is told of neither."""
    ab_result = inferlens.ab(
        "resnet18", "pytorch fp16", "pytorch fp16 channels_last=true", device="cuda",
        seconds="500ms", max_rounds=3, output=str(tmp_path),
    )  # fmt: skip
    assert ab_result.verdict != "DID NOT RUN", ab_result.reason
    records = [record for record in inferlens.load_records([tmp_path]).records if record.repeat > 1]
    assert len(records) >= 4
    for record in records:
        assert record.facts[IN_TURNS]
        assert not [span for span in record.marks.spans if span.kind == "foreign process"]
        # memory of the whole GPU belongs to both
        assert record.memory.device_peak is None or "the case's processes" in record.memory.device_basis
    turns = sorted((begin, record.id) for record in records for begin in record.measurement("latency").begins)
    assert sum(one != other for (_, one), (_, other) in itertools.pairwise(turns)) > len(records)


def test_a_gpu_has_a_bandwidth_and_rates_that_repeat():
    begin = time.perf_counter()
    first = measure("cuda", torch.cuda.get_device_name())
    assert time.perf_counter() - begin < 30
    second = measure("cuda", torch.cuda.get_device_name())
    assert first.bandwidth == pytest.approx(second.bandwidth, rel=0.05)
    for precision, rate in first.rates.items():
        assert rate == pytest.approx(second.rates[precision], rel=0.1), precision
    properties = torch.cuda.get_device_properties(0)
    clock = getattr(properties, "memory_clock_rate", 0)  # kHz; two transfers a cycle
    if clock:
        assert 0.5 < first.bandwidth / (2e3 * clock * properties.memory_bus_width / 8) <= 1
    if "tf32" in first.rates:
        assert first.rates["fp32"] < first.rates["tf32"] < first.rates["fp16"]
        assert first.rates["bf16"] == pytest.approx(first.rates["fp16"], rel=0.2)


# Several processes on one machine's GPUs: a worker for each GPU, and rounds that are held at once.


def test_a_worker_for_each_gpu(tmp_path):
    """Cases that do the same work are on one card, each record tells which, and all outputs are right."""
    records = inferlens.bench(
        ["torchvision:resnet18", "torchvision:squeezenet1_1"], backend="pytorch,torchscript:trace", precision="fp16",
        option="pytorch.cuda_graph=false", device="cuda", devices="all", quick=True, iterations=20, warmup=5,
        output=tmp_path,
    )  # fmt: skip
    assert [(record.status, record.ranked) for record in records] == [("ok", True)] * 4
    cards = {model: {record.machine.gpu_uuid for record in records if record.case.model == model} for model in
             {record.case.model for record in records}}  # fmt: skip
    assert all(len(its) == 1 and "" not in its for its in cards.values())
    assert len(set.union(*cards.values())) == min(torch.cuda.device_count(), 2)


# A tuning on an NVIDIA GPU: it ends with a winner that is right, and that can be used.


def test_it_ends_with_a_right_winner_that_can_be_called(tmp_path):
    (tuned,) = inferlens.tune(
        "torchvision:resnet18", backend="pytorch,torch_compile", precision="fp16", batch=8, device="cuda",
        without=["torch_compile:max-autotune", "torch_compile:max-autotune-no-cudagraphs"], budget="80s",
        output=tmp_path,
    ).tuned  # fmt: skip
    assert (tuned.best.device, tuned.best.precision, tuned.best.batch) == ("cuda", "fp16", 8)
    assert {record.status for record in tuned.final_records} == {"ok"}
    assert all(record.agreement and record.agreement.agrees for record in tuned.final_records)
    looked = [record for record in tuned.search_records if record.ranked]
    assert all(abs(sum(record.facts[KERNEL_FAMILIES].values()) - 1) < 0.01 for record in looked), "of the GPU time"
    named = [record for record in tuned.search_records if record.ranked and IN_TURNS in record.facts]
    if not any("case_memory" in record.machine.absent for record in named if record.machine):  # NVML names processes
        peaks = [record.memory.device_peak or 0 for record in named]
        assert min(peaks) > 100 * 2**20
        assert max(peaks) < 8 * 2**30, "of one process, not of all that took turns"
    module = resolve.load(tuned.best).module
    images = torch.rand(8, 3, 224, 224, device="cuda", dtype=torch.half)
    with torch.no_grad():
        expected = module.cuda().half()(images)
        found = inferlens.load(tmp_path / "resnet18" / "best")(images)
    assert torch.linalg.norm(found.float() - expected.float()) < 0.02 * torch.linalg.norm(expected.float())


# Load: answers are right, the use and the energy of the GPU are in the record, and nothing compiles.


def loaded(output, backend, option="", **words):
    way = {"backend": backend, "device": "cuda", "precision": "fp16", "option": [option] if option else []}
    own = {"instances": 1, "seconds": "1.5s", "batching": "max=2", "output": str(output)}
    records = []
    load_test("resnet18", {**way, **own, **words}, Observer(), records)
    (record,) = records
    assert record.status == "ok", record.reason
    assert record.agreement.agrees, record.agreement
    assert record.mixed_up == 0
    return record


def test_a_record_has_the_use_and_the_energy_of_the_gpu(tmp_path):
    record = loaded(tmp_path, "pytorch", "pytorch.cuda_graph=true", rate=("200",))
    (run,) = record.runs
    assert run.throughput == pytest.approx(200, rel=0.1)
    assert 0 < run.gpu <= 1
    assert run.energy.joules is None or 0.1 < run.energy.joules < 5, run.energy


def test_nothing_compiles_under_load(tmp_path):
    record = loaded(tmp_path, "torch_compile:reduce-overhead", rate=("200",))
    assert record.runs[0].compiled == {}
