"""Each rule of profiles: evidence of which it speaks, and of which it must not; the list of findings, and its page."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace as with_

import inferlens
from inferlens.analysis.evidence import make_finding, rule
from inferlens.analysis.findings import PROFILE_RULES, findings, gain
from inferlens.analysis.trace import TRACE_RULES
from inferlens.record.builds import Operator, Segment, partition_of
from inferlens.record.profile import Kernel, ModuleWork, Profile, Work
from inferlens.record.record import Environment, Gpu, Record, Warning
from tests.analysis import profiles as samples
from tests.analysis.profiles import MS, ON_GPU, RUNS, launched, layered, of_rule, tensor, the, work
from tests.analysis.profiles import exact_kernel as kernel
from tests.analysis.profiles import exact_layer as layer
from tests.analysis.profiles import exact_record as unprofiled
from tests.analysis.profiles import terabyte_ceilings as ceilings
from tests.refusals import refusal
from tests.views.samples import case

PAGE = Path(__file__).parents[2] / "docs" / "findings.md"
TENSOR = "sm90_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_execute_segment_k_off"
PLAIN = "ampere_sgemm_32x128_tn"
FP32 = case(device="cuda")
INSERTED = {"details": {"inserted": "by the backend"}}


def half(name: str, ms: float, given: int, made: int) -> Any:
    inputs, outputs = ((tensor(8, size, dtype="float16"),) for size in (given, made))
    return layer(name, ms, "Linear", inputs=inputs, outputs=outputs)


def gpu(*layers: Any, **fields: Any) -> Profile:
    return layered(*layers, of=ON_GPU, timed="GPU", **fields)


def partition(*reasons: str, whole: bool = False, **fields: Any) -> Any:
    """As a record keeps it: an engine of nine operators and, unless it is ``whole``, one that PyTorch runs."""
    engine = Segment("TensorRT", (Operator("aten.conv.default", "layer1"),) * 9)
    rest = Segment("PyTorch", (Operator("aten.sort.default", "layer4", "unsupported"),))
    segments = [engine] if whole else [engine, rest]
    partition = partition_of(segments, front_end="dynamo", min_block_size=5, graph_breaks=reasons)
    return {**msgspec.to_builtins(partition), **fields}


Makes = Callable[[Profile], Record] | None


def after(ms: float, **fields: Any) -> Makes:
    """The record of unprofiled calls of so many milliseconds."""
    return lambda of: unprofiled(of, ms, **fields)


def with_facts(**facts: Any) -> Makes:
    return after(10.0, facts=msgspec.json.decode(msgspec.json.encode(facts)))


MOVED = Work(modules=(ModuleWork(module="dw", flops=1e9, inputs=10**9, outputs=10**9, returned=10**9),))
DEPTHWISE = gpu(layer("dw", 3.0), layer("rest", 7.0, kind="Pool"), work=MOVED, ceilings=ceilings(fp16=1e14))
FAR = gpu(layer("conv1", 8.0), layer("fc", 2.0, "Gemm"), work=work(conv1=2e9, fc=5e9), ceilings=ceilings(fp16=1e13))
FAR_KERNEL = with_(launched(kernel("cutlass", 8000.0, modules=("fc",)), kernel("pool", 2000.0)),
                   work=work(fc=2e9), ceilings=ceilings(fp16=1e13))  # fmt: skip
NEAR = gpu(layer("conv1", 8.0), work=work(conv1=7e10), ceilings=ceilings(fp16=1e13))
OUTSIDE = layered(layer("conv", 6.0), whole=10.0)
NOISY = with_(OUTSIDE, layers=with_(layered(layer("conv", 1e-6)).layers, whole=(*(1 * MS,) * 24, *(30 * MS,) * 16)))
UNSTABLE = tuple(25 * MS if run % 5 == 0 else 10 * MS for run in range(RUNS))
REORDERS = [layer(f"r{number}", 0.3, "Reorder", **INSERTED) for number in range(10)]
OWN = layer("permute", 1.0, "Transpose", "encoder")
TO_AND_FRO = [layer("to", 0.2, "MemcpyToHost"), layer("from", 0.3, "MemcpyFromHost"), layer("conv", 9.5)]
CHAIN = [layer("in", 5.0, "Gather"), layer("add", 1.0, "Add"), layer("norm", 3.0, "LayerNormalization")]
PAIR = [layer("conv", 8.0, "Conv2d"), layer("bn", 2.0, "BatchNorm2d")]
ENGINE = layered(layer("engine", 8.0, "Engine", "layer1"), layer("sort", 2.0, "Sort", "layer4"), of=ON_GPU)
ON_CPU = layer("nms", 1.0, "NonMaxSuppression", details={"provider": "CPUExecutionProvider"})
CONV = layered(layer("conv", 1.0))
TF32 = layered(layer("conv", 8.0), layer("p", 2.0, "Pool"), of=FP32, ceilings=ceilings(fp32=5e13, tf32=2e14))
NORM, CAST = layer("ln", 5.0, "LayerNorm"), layer("cast", 5.0, "Cast", outputs=(tensor(1, dtype="float16"),))
TURING = Environment(gpus=(Gpu(name="of old", compute_capability="7.5"),))
WAITING = launched(kernel(TENSOR, 4.0, 400, tensor_cores=True), kernel("relu", 2.0, 80))
SMALL = kernel(TENSOR, 300.0, grid=(33, 1, 1), modules=("layer4.conv2",))
SLOW = kernel(PLAIN, 100.0, 5, tensor_cores=False, layer="fc1", modules=("fc1",))
FAST = kernel(TENSOR, 100.0, 5, tensor_cores=True)
TO_NHWC = kernel("void cudnn::ops::nchwToNhwcKernel<__half, __half>", 30.0, 4)
COPY = kernel("Memcpy HtoD (Pageable -> Device)", 100.0, kind="copy", grid=())
COPIES = launched(TO_NHWC, COPY, kernel(TENSOR, 780.0))

INT8 = case("onnxruntime:cpu", precision="int8")
IN_INT8 = layer("conv", 9.0, "QLinearConv", precision="int8")

# The rule, a profile, its record, and numbers of what is found: fields, or by their names of the finding's own.
SPEAKS: list[tuple[str, Profile, Makes, dict[str, Any]]] = [
    ("far-above-floor", FAR, None, {"subject": "conv1", "seconds": 7.8 * MS, "share": 0.8, "distance": 40}),
    ("far-above-floor", FAR_KERNEL, None, {"subject": "fc", "seconds": 7.8 * MS, "distance": 40}),
    ("near-ceiling", NEAR, None, {"saving": None, "share": 0.875, "floor": 7 * MS}),
    ("bandwidth-bound", DEPTHWISE, None, {"seconds": 1 * MS, "share": 0.3, "parts": 1, "bytes": 2e9}),
    ("outside-layers", OUTSIDE, after(9.0), {"seconds": 3 * MS, "added by profiling": 1 * MS}),
    ("reformats", layered(*REORDERS, OWN, layer("conv", 96.0)), None, {"seconds": 4 * MS, "layers": 11}),
    ("reformats", layered(layer("Reformatting CopyNode for Input Tensor 0 to conv1", 1.0, kind=""), layer("c", 9.0)),
     None, {"share": 0.1}),
    ("reformats", layered(IN_INT8, layer("dq", 1.0, "DequantizeLinear", "head"), of=INT8), None,
     {"layers": 1, "seconds": 1 * MS, "share": 0.1}),
    ("reformats", COPIES, None, {"calls": 4, "share": 0.12, "subject": "nchwToNhwcKernel<…>"}),
    ("host-copies", layered(*TO_AND_FRO, of=ON_GPU), None, {"copies": 2, "share": 0.05}),
    ("host-copies", COPIES, after(1.0), {"copies": 1, "share": 0.1}),
    ("unfused-chains", layered(layer("conv1", 8.0, "Conv2d"), layer("relu", 1.0, "ReLU"), layer("gelu", 0.5, "GELU"),
                               layer("pool", 0.5, "MaxPool2d"), layer("tanh", 1.0, "Tanh")), None,
     {"layers": 2, "seconds": 1.5 * MS}),
    ("unfused-chains", layered(*CHAIN), None, {"seconds": 1 * MS}),
    ("unfused-chains", layered(*PAIR), None, {"layers": 1, "seconds": 2 * MS}),
    ("fallback", ENGINE, with_facts(partition=partition()),
     {"subject": "layer4", "operators": 10, "in PyTorch": 1, "segments": 2, "engines": 1}),
    ("fallback", ENGINE, with_facts(partition=partition(engines=[None, None], operators=1)),
     {"operators": None, "in PyTorch": 1, "engines": 2}),
    ("fallback", layered(ON_CPU, layer("conv", 9.0), of=ON_GPU), None, {"layers": 1, "share": 0.1}),
    ("graph-breaks", CONV, with_facts(graph_breaks={"count": 2, "reasons": ["print()"]}, graphs=3),
     {"breaks": 2, "graphs": 3}),
    ("tensor-cores-unused", launched(SLOW, FAST), None, {"share": 0.5, "calls": 5, "subject": "fc1"}),
    ("tf32-off", TF32, None, {"share": 0.8, "seconds": None}),
    ("tf32-off", launched(SLOW, kernel("add", 500.0), of=FP32), None, {"share": 0.5, "seconds": None}),
    ("fp32-layers", layered(layer("conv", 2.0), NORM, CAST, half("fc", 8.0, 8, 8), of=ON_GPU), None,
     {"layers": 1, "share": 0.1}),
    ("host-bound", WAITING, after(5.0),
     {"seconds": 3.24 * MS, "saving": 0.648, "launches": 480, "kernels": 480, "unprofiled": True}),
    ("host-bound", gpu(layer("conv", 1.0)), after(1.0, enqueue=0.95, gpu=0.9), {"share": 0.95}),
    ("tiny-kernels", launched(kernel("add", 2.0, 200), kernel(TENSOR, 50.0, 10)), None,
     {"tiny": 200, "calls": 210, "mean": 2e-6, "share": 4 / 9}),
    ("few-blocks", launched(SMALL, kernel("add", 700.0)), None,
     {"share": 0.3, "idle": 0.225 * MS, "seconds": 0.225 * MS, "subject": "layer4.conv2"}),
    ("doubtful-profile", layered(layer("conv", 10.0)), after(4.0), {"cost": 2.5}),
    ("doubtful-profile", layered(layer("conv", 10.0)), after(20.0), {"cost": 0.5}),
    ("doubtful-profile", launched(kernel("add", 2000.0)), after(1.5), {"busy": 2 * MS}),
    ("fp32-layers", layered(IN_INT8, layer("head", 1.0, "Gemm", precision="fp32"), of=INT8), None,
     {"layers": 1, "share": 0.1, "subject": "head", "seconds": None}),
    ("unstable", with_(CONV, layers=with_(CONV.layers, whole=UNSTABLE)), None, {"p95": 25 * MS, "median": 10 * MS}),
]  # fmt: skip
# The rule, why it is silent, a profile, its record.
SILENT: list[tuple[str, str, Profile, Makes]] = [
    ("far-above-floor", "the call waits for the host", FAR_KERNEL, after(20.0)),
    ("far-above-floor", "fused rather than faster", gpu(layer("conv", 2.0), layer("bn", 8.0, "BatchNorm2d"),
     work=work(conv=1e10, bn=1e9), ceilings=ceilings(fp16=1e13)), None),
    ("near-ceiling", "far", FAR, None),
    ("near-ceiling", "its floor may be shorter", with_(NEAR, ceilings=with_(NEAR.ceilings, disturbed="Others.")), None),
    ("bandwidth-bound", "by arithmetic", with_(DEPTHWISE, ceilings=ceilings(fp16=1e11)), None),
    ("bandwidth-bound", "its floor may be shorter",
     with_(DEPTHWISE, ceilings=with_(ceilings(fp16=1e14), disturbed="Others had it.")), None),
    ("outside-layers", "profiling has added it", OUTSIDE, after(6.3)),
    ("outside-layers", "more than there is", NOISY, after(0.9)),
    ("reformats", "too little", layered(*REORDERS, layer("conv", 200.0)), None),
    ("host-copies", "asked for", layered(*TO_AND_FRO, of=case(device="cuda", io="host")), None),
    ("host-copies", "inside the GPU", launched(kernel("Memcpy DtoD (Device -> Device)", 100.0, kind="copy", grid=()),
                                               kernel(TENSOR, 100.0)), None),
    ("unfused-chains", "before the convolution", layered(*reversed(PAIR)), None),
    ("fallback", "one engine", ENGINE, with_facts(partition=partition(whole=True))),
    *[("fallback", "nonsense", ENGINE, with_facts(partition=item))
      for item in ("x", [], {"breaks": "x"}, partition(operators="many"))],
    *[("graph-breaks", "none", CONV, with_facts(graph_breaks=item))
      for item in ({"count": 0, "reasons": []}, "x", {"count": "2"}, None)],
    ("tensor-cores-unused", "fp32 without TF32", launched(SLOW, FAST, of=FP32), None),
    *[("tensor-cores-unused", name, launched(kernel(name, 100.0, tensor_cores=False), FAST), None)
      for name in ("gemv2T_kernel_val", "conv_depthwise2d_forward_kernel", "splitKreduce_kernel", "softmax")],
    ("tf32-off", "on", layered(layer("conv", 8.0), of=case(device="cuda", options={"tf32": True})), None),
    ("tf32-off", "used unasked", TF32, after(10.0, warnings=(Warning("lower-precision", "In."),))),
    ("tf32-off", "an old GPU", with_(TF32, environment=TURING), None),
    ("fp32-layers", "spared", layered(NORM, CAST, half("fc", 8.0, 8, 8), of=ON_GPU), None),
    ("host-bound", "busy", WAITING, after(2.0)), ("host-bound", "profiled calls wait for the profiler", WAITING, None),
    *[("tiny-kernels", "no times",
       launched(kernel("add", 2.0, 200), Kernel(name="add", calls=200, times=times), busy=1e-3), None)
      for times in ((1e-6,) * 3, (float("nan"),) * 40, ())],
    ("few-blocks", "full", launched(kernel(TENSOR, 300.0, grid=(132, 1, 1))), None),
    *[("doubtful-profile", "near", layered(layer("conv", 10.0)), after(ms)) for ms in (8.0, 12.5)],
    ("fp32-layers", "no multiply-adds", layered(IN_INT8, layer("s", 1.0, "Softmax", precision="fp32"),
                                                of=INT8), None),
    ("fp32-layers", "not asked for", layered(IN_INT8, layer("head", 1.0, "Gemm", precision="fp32")), None),
    ("unstable", "steady", CONV, None),
]  # fmt: skip


@pytest.mark.parametrize(("code", "of", "record", "numbers"), SPEAKS, ids=[item[0] for item in SPEAKS])
def test_a_rule_speaks(code, of, record, numbers):
    finding = the(code, of, record=record(of) if record else None)
    said = {name: getattr(finding, name) if hasattr(finding, name) else finding.numbers[name] for name in numbers}
    assert said == {name: value if isinstance(value, str | bool | None) else pytest.approx(value)
                    for name, value in numbers.items()}  # fmt: skip
    assert finding.subject
    assert finding.hint.endswith(".") or ": inferlens " in finding.hint
    assert finding.seconds is None or 0 <= finding.seconds <= (finding.whole or 0)


@pytest.mark.parametrize(("code", "why", "of", "record"), SILENT, ids=[f"{item[0]}: {item[1]}" for item in SILENT])
def test_a_rule_is_silent(code, why, of, record):
    assert not of_rule(code, of, record=record(of) if record else None), why


def test_at_most_three_layers_are_far_and_those_that_lose_most():
    layers = [layer(f"conv{number}", float(number)) for number in range(1, 6)]
    flops = {f"conv{number}": 1e9 for number in range(1, 6)}
    of = gpu(*layers, work=work(**flops), ceilings=ceilings(fp16=1e14))
    assert [finding.subject for finding in of_rule("far-above-floor", of)] == ["conv5", "conv4", "conv3"]


def test_what_wins_little_is_not_the_first():
    little = launched(kernel(TENSOR, 300.0, grid=(131, 1, 1)), kernel("add", 700.0))
    first, second = findings(little)
    assert (first.code, second.code) == ("near-ceiling", "few-blocks")
    assert (second.saving or 1) < 0.02
    assert first.hint.endswith("-b pytorch --batch 1 --precision int8 --calibration random")


@pytest.mark.parametrize(("others", "hint"), [
    ({}, "A backend that fuses such layers: inferlens bench "),
    ({"openvino": 8 * MS, "onnxruntime:cpu": None}, "Take openvino, which was measured: 1.25x as fast."),
    ({"openvino": 20 * MS, "onnxruntime:cpu": None}, "Other backends were measured and are no faster; only a lower "),
])  # fmt: skip
def test_ways_that_were_measured_are_not_advised_again(others, hint):
    of = layered(layer("conv", 8.0, "Conv2d"), layer("relu", 2.0, "ReLU"))
    (finding,) = inferlens.findings(of, unprofiled(of, 10.0), others)
    assert finding.hint.startswith(hint)


def test_nothing_is_won_of_a_call_by_what_is_no_part_of_it():
    """A profiled call that takes much longer is another one; while a call waits for the host, kernels do not matter."""
    of = layered(*PAIR)
    for ms, wins in ((4.0, False), (9.5, True)):
        found = findings(of, unprofiled(of, ms))
        assert [bool(gain(finding, found)) for finding in found if finding.code == "unfused-chains"] == [wins]
    small = launched(SMALL, kernel("add", 700.0))
    for ms, winning in ((1.1, ["few-blocks"]), (5.0, ["host-bound"])):
        found = findings(small, unprofiled(small, ms))
        assert [finding.code for finding in found if gain(finding, found)] == winning


def test_findings_are_of_one_case():
    for several in ((layered(layer("conv", 1.0), of=ON_GPU), layered(layer("conv", 1.0))), ()):
        refusal("one case", findings, several)


def test_profiles_without_anything_have_no_findings():
    broken = samples.eager()
    less = with_(broken.layers, whole=broken.layers.whole[:-1])
    for of in (samples.failed(case()), samples.profile(case(), []), with_(broken, layers=less)):
        assert findings(of) == []


def test_a_template_is_filled_from_numbers_and_names_are_only_text():
    finding = make_finding(
        "{layers:#layer} {layers:is|are} {times:two} as long: {seconds:duration}, {bytes:bytes} {name}.",
        {"layers": 2, "seconds": 2e-3, "bytes": 2**20}, times=1.234, name="{0} {seconds}",
    )  # fmt: skip
    assert finding.sentence == "2 layers are 1.2 as long: 2.00 ms, 1.00 MiB {0} {seconds}."
    assert finding.numbers == {"layers": 2, "seconds": 2e-3, "bytes": 2**20}


def test_rules_are_found_by_themselves_and_are_in_the_page_and_the_tests():
    added = rule("mine", hint="This.")(lambda _: [make_finding("There is one.")])
    assert [(finding.code, finding.hint) for finding in added(None)] == [("mine", "This.")]
    page = PAGE.read_text(encoding="utf-8")
    codes = {item.code for item in PROFILE_RULES}
    assert set(re.findall(r"^### `([\w-]+)`$", page, re.M)) == codes
    assert {item[0] for item in SPEAKS} == {item[0] for item in SILENT} == codes
    assert set(re.findall(r"^\| `([\w-]+)` \|", page, re.M)) == {item.code for item in TRACE_RULES} | {"host-bound"}


@pytest.mark.parametrize(("channels", "weights", "words"), [
    ((510, 512), (512, 510, 3, 3), "; channels of fc1 (510 to 512) are not multiples of 8."),
    ((512, 512), (512, 512, 3, 3), ""), ((3, 60), (60, 3, 7, 7), ""), ((60, 60), (60, 1, 3, 3), ""),
])  # fmt: skip
def test_unused_tensor_cores_name_the_channels_that_do_not_fit(channels, weights, words):
    image, made = (tensor(1, size, 56, 56) for size in channels)
    layers = layered(layer("fc1", 1.0, inputs=(image, tensor(*weights)), outputs=(made,)), of=ON_GPU)
    (sentence,) = {
        finding.sentence for finding in findings((layers, launched(SLOW))) if finding.code == "tensor-cores-unused"
    }
    assert sentence.partition("fc1")[2] == (words or ".")
