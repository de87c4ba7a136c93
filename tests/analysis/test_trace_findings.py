"""What traces are advised: by whom time is lost, how much could be saved, in the order of that; nothing for little."""

from pathlib import Path
from typing import Any

import pytest

from inferlens.analysis.evidence import Finding
from inferlens.analysis.trace import trace_findings
from inferlens.trace.analysis import Analysis
from inferlens.trace.read import read_trace
from tests.commands import refusal_of
from tests.trace.samples import GPU, H100, event, kernel, launch, shared, step, text

BMM = "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1>"
ALIGNED = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x64_tn_align8>"
SOFTMAX = "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16>"
SCALE = "void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<c10::BFloat16>>"
COPY = "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda>"
Work = tuple[str, float, str]  # a kernel, the microseconds that it takes, and its operator


def queued(*work: Work, every: float = 0.0) -> bytes:
    """A step that launches kernels at once, which run one after the other; or one every so many microseconds."""
    events, at = [], 100.0
    for number, (name, takes, operator) in enumerate(work, 1):
        begin = 10 + (every or 1) * number
        at = max(at, begin + 1) if every else at
        category = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
        events += [event(operator, begin, 0.9), launch(number, begin, 0.5), kernel(number, at, takes, name, category)]
        at += takes
    wait = event("cudaDeviceSynchronize", 90 + len(work) * every, at - 90, "cuda_runtime")
    return text(step(0, 0, at + 10), *events, wait, deviceProperties=[GPU])


def advised(trace: bytes | Path) -> dict[str, Finding]:
    return {trace_finding.code: trace_finding for trace_finding in trace_findings(Analysis(read_trace(trace)))}


PRODUCT = (BMM, 200, "aten::bmm")
ATTENTION = [PRODUCT, (SCALE, 50, "aten::div"), (SOFTMAX, 300, "aten::_softmax"), PRODUCT]


def test_attention_of_single_kernels_is_named_and_its_products_are_not_advised_twice():
    ((code, of),) = advised(queued(*ATTENTION)).items()
    assert code == "attention-not-fused"
    # Softmax, scaling, and seven eighths of products that read one of eight elements at a time.
    assert of.seconds == pytest.approx((350 + 400 * 7 / 8) * 1e-6)
    start = "Attention is not fused, 1 softmax a step: 100 % of the GPU's time with its products: "
    assert of.sentence.startswith(start)
    assert "scaled_dot_product_attention" in of.hint


@pytest.mark.parametrize("work", [
    [(ALIGNED, 300, "aten::addmm"), (SOFTMAX, 300, "aten::_softmax"), (ALIGNED, 300, "aten::addmm")],
    [(BMM, 300, "aten::bmm"), (SOFTMAX, 300, "aten::_softmax"), ("topk", 5, "aten::topk"), (BMM, 300, "aten::bmm")],
], ids=["experts", "sampling"])  # fmt: skip
def test_a_softmax_elsewhere_is_no_attention(work):
    assert "attention-not-fused" not in advised(queued(*work))


def test_products_of_odd_sizes_say_what_they_are_built_for():
    of = advised(queued((BMM, 400, "aten::bmm"), (ALIGNED, 600, "aten::mm")))["misaligned"]
    assert of.seconds == pytest.approx(350e-6, rel=1e-3)
    assert of.sentence.startswith("40 % of the GPU's time ")
    assert "built for sm_75 and not for this GPU's sm_90" in of.sentence
    assert of.hint == "Make the sizes of products multiples of 8, by padding."
    assert "misaligned" not in advised(queued((BMM, 1, "aten::bmm"), (ALIGNED, 999, "aten::mm"))), "too little"


def test_a_kernel_that_waits_for_the_host_is_no_time_to_save():
    """One launched every millisecond leaves the GPU idle in between, whatever the kernels take."""
    moves = [(COPY, 200.0, "aten::copy_")] * 30
    assert advised(queued(*moves))["moves"].saving == pytest.approx(1.0, abs=0.05)
    found = [*advised(queued(*moves, every=900))]
    assert (found[0], "moves" in found) == ("host-bound", False)


def test_what_could_save_most_comes_first_and_nothing_is_advised_for_little():
    small = [(SCALE, 2.0, "aten::add")] * 30
    found = advised(queued(*small, (COPY, 300, "aten::copy_"), (SCALE, 300, "aten::mul"), (ALIGNED, 600, "aten::mm")))
    won = [finding.saving or 0.0 for finding in found.values()]
    assert won == sorted(won, reverse=True)
    assert min(won) > 0.02
    assert {"small-kernels", "moves", "elementwise"} <= set(found)
    # Of the run of elementwise kernels the longest stays; a copy does not end it.
    assert found["elementwise"].seconds == pytest.approx(60e-6)


def test_the_calls_of_a_first_step_are_no_reason_to_launch_less():
    events = [event("cudaMalloc", 10, 8000, "cuda_runtime"), launch(1, 8020), kernel(1, 8100, 500, BMM)]
    found = advised(text(step(0, 0, 9000), *events, deviceProperties=[GPU]))
    assert found["set-up"].seconds == pytest.approx(8e-3, rel=0.01)
    assert "cudaMalloc" in found["set-up"].sentence
    assert "host-bound" not in found


def test_a_gap_after_a_wait_of_the_host_is_that_waits():
    events: list[dict[str, Any]] = [step(0, 0, 1600)]
    for number in range(3):
        at, key = 500.0 * number, number + 1
        events += [event("aten::mm", at + 5, 10), launch(key, at + 10), kernel(key, at + 30, 200, ALIGNED)]
        events += [event("aten::item", at + 40, 400), event("cudaStreamSynchronize", at + 50, 190, "cuda_runtime")]
    of = advised(text(*events, deviceProperties=[GPU]))["synchronising"]
    assert of.seconds == pytest.approx(2 * 281e-6, rel=0.01)  # from the end of a kernel to the next launch
    assert "2 waits of the host a step, most by aten::item" in of.sentence


def test_a_trace_of_a_cpu_is_advised_too():
    events = [event("aten::mm", 0, 450), event("aten::copy_", 450, 150), event("aten::relu", 600, 100)]
    found = advised(text(step(0, 0, 1000), *events))
    assert [(code, round((finding.seconds or 0) * 1e6)) for code, finding in found.items()] == [
        ("outside-operators", 300), ("products", 225), ("moves", 150),
    ]  # fmt: skip
    only = advised(text(step(0, 0, 1000), event("aten::mm", 0, 1000)))
    assert only["products"].hint.endswith(": inferlens bench MODEL --device cpu --precision fp32,bf16")


def test_a_real_trace_is_advised_for_the_data_loader_and_for_attention():
    found = advised(shared(H100))
    assert list(found) == ["data-loader", "attention-not-fused"]
    assert [finding.saving for finding in found.values()] == pytest.approx([0.511, 0.383], abs=2e-3)


@pytest.mark.parametrize("steps", [6, 7])  # the next cycle waits, or warms up
def test_a_trace_that_was_exported_after_the_cycle_is_named_as_that(steps, tmp_path):
    profiler = pytest.importorskip("torch").profiler
    plan = profiler.schedule(wait=1, warmup=1, active=3)
    with profiler.profile(activities=[profiler.ProfilerActivity.CPU], schedule=plan) as made:
        for _ in range(steps):
            made.step()
    made.export_chrome_trace(str(tmp_path / "late.json"))
    said = refusal_of("trace", "late.json", cwd=tmp_path)
    assert "late.json has only the profiler's own events: it was exported outside of the active steps" in said
    assert "on_trace_ready" in said
