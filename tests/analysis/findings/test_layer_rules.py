"""Each rule that looks at layers: a profile of which it speaks, with what numbers, and those of which it must not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from inferlens.record.partition import Operator, Segment, partition_of
from inferlens.record.record import Warning
from inferlens.record.work import ModuleWork, Work
from tests.analysis.findings.crafted import (
    MS,
    ON_GPU,
    ceilings,
    layer,
    layered,
    of_rule,
    tensor,
    the,
    untouched,
    work,
)
from tests.views.samples import case

REST = [layer(f"rest{number}", 6.0, kind="Pool") for number in range(10)]


def convolution(name: str, ms: float, channels: int, filters: int, size: int = 3, **fields: Any) -> Any:
    tensors = {
        "inputs": (tensor(1, channels, 56, 56), tensor(filters, channels, size, size)),
        "outputs": (tensor(1, filters, 56, 56),),
    }
    return layer(name, ms, **{**tensors, **fields})


# Floors and work


def test_a_layer_far_above_its_floor() -> None:
    of = layered(layer("conv1", 8.0), layer("fc", 2.0, kind="Gemm"), of=ON_GPU, timed="GPU")
    of = msgspec.structs.replace(of, work=work(conv1=2e9, fc=5e9), ceilings=ceilings(fp16=1e13))
    found = the("far-above-floor", of)
    assert (
        found.sentence
        == "conv1 takes 80 % of a profiled run (8.00 ms), 40 times its floor of 200 µs (bound by arithmetic)."
    )
    assert found.seconds == pytest.approx(7.8 * MS)
    assert found.subject == "conv1"
    near = msgspec.structs.replace(of, ceilings=ceilings(fp16=1e12))
    assert not of_rule("far-above-floor", near)
    assert not of_rule("far-above-floor", msgspec.structs.replace(of, ceilings=None))
    assert not of_rule("dominating", of), "a floor says more"


def test_floors_that_may_be_too_low_are_said_to_be() -> None:
    of = layered(layer("conv1", 8.0), layer("conv2", 2.0))
    of = msgspec.structs.replace(of, work=work(conv1=2e9, conv2=9e9, elsewhere=1e9), ceilings=ceilings(fp32=1e13))
    assert "Floors may be too low: the work of 1 module is in no layer." in the("far-above-floor", of).sentence


def test_what_to_try_fits_the_layer_and_what_its_floor_is_made_of() -> None:
    attention = layered(layer("attention", 8.0, "MultiheadAttention"), of=ON_GPU, timed="GPU")
    by_arithmetic = msgspec.structs.replace(attention, work=work(attention=2e9), ceilings=ceilings(fp16=1e13))
    assert "made by memory" not in the("far-above-floor", by_arithmetic).advice
    moved = Work(modules=(ModuleWork(module="attention", outputs=10**9, returned=10**9),))
    by_memory = msgspec.structs.replace(by_arithmetic, work=moved)
    assert "made by memory" in the("far-above-floor", by_memory).advice
    product = layered(
        layer("fc", 8.0, "Linear"), of=ON_GPU, timed="GPU", work=work(fc=2e9), ceilings=ceilings(fp16=1e13)
    )
    assert "channels-last" not in the("far-above-floor", product).advice, "a matrix has no channels"


def test_a_few_disturbed_runs_make_no_layer_slow() -> None:
    disturbed = tuple(80 * MS if run % 3 == 0 else 1 * MS for run in range(40))
    conv = msgspec.structs.replace(layer("conv1", 1.0), times=disturbed)
    of = layered(conv, layer("fc", 40.0, kind="Gemm"), whole=70.0, ceilings=ceilings(fp32=1e13))
    of = msgspec.structs.replace(of, work=work(conv1=5e9, fc=3e11))
    assert not of_rule("far-above-floor", of)


def test_a_module_is_told_from_those_inside_of_it() -> None:
    block, inside = layer("block", 8.0, "Block"), layer("block.pool", 2.0, "MaxPool2d")
    of = layered(block, inside, work=work(block=2e9, block__pool=5e9), ceilings=ceilings(fp32=1e13))
    assert the("far-above-floor", of).sentence.startswith("What block does outside of the modules in it takes 80 %")
    alone = layered(block, work=work(block=2e9), ceilings=ceilings(fp32=1e13))
    assert the("far-above-floor", alone).sentence.startswith("block takes 100 %")


def test_what_could_be_folded_away_is_not_measured_by_its_floor() -> None:
    pair = layered(layer("conv", 2.0, "Conv2d"), layer("bn", 8.0, "BatchNorm2d"))
    pair = msgspec.structs.replace(pair, work=work(conv=1e10, bn=1e9), ceilings=ceilings(fp32=1e13))
    assert of_rule("batch-norm-not-folded", pair)
    assert not of_rule("far-above-floor", pair)


def test_a_layer_that_takes_most_without_doing_most() -> None:
    of = layered(layer("stem", 40.0), *REST)
    assert not of_rule("dominating", of), "40 % of a run may be what it has to be"
    worked = msgspec.structs.replace(of, work=work(stem=1e8, rest0=9e8))
    assert (
        the("dominating", worked).sentence
        == "stem takes 40 % of a profiled run (40.0 ms) and does 10 % of the model's FLOPs."
    )
    assert not of_rule("dominating", msgspec.structs.replace(of, work=work(stem=5e8, rest0=5e8)))
    half = layered(layer("stem", 90.0), *REST)
    assert the("dominating", half).sentence.endswith(", more than the other 10 layers together.")
    assert not of_rule("dominating", layered(layer("all", 90.0), layer("more", 1.0))), "of two layers one is the larger"


def test_depthwise_convolutions_that_are_bound_by_memory() -> None:
    of = layered(layer("dw", 3.0), layer("rest", 7.0, kind="Pool"), of=ON_GPU, timed="GPU")
    moved = ModuleWork(module="dw", flops=1e9, inputs=10**9, outputs=10**9, returned=10**9)
    of = msgspec.structs.replace(of, work=Work(modules=(moved,)), ceilings=ceilings(fp16=1e14))
    found = the("bandwidth-bound", of)
    assert (
        "1 layer (Conv) is bound by memory and close to its floor: it takes 30 % of a profiled run (3.00 ms), 1.5 times"
        in (found.sentence)
    )
    assert found.seconds == pytest.approx(1 * MS)
    assert not of_rule("bandwidth-bound", msgspec.structs.replace(of, ceilings=ceilings(fp16=1e11))), "by arithmetic"
    busy = msgspec.structs.replace(ceilings(fp16=1e14), disturbed="Others had it.")
    assert not of_rule("bandwidth-bound", msgspec.structs.replace(of, ceilings=busy)), "its floor may be shorter"
    far = layered(layer("dw", 30.0), of=ON_GPU, timed="GPU", work=of.work, ceilings=of.ceilings)
    assert not of_rule("bandwidth-bound", far), "something else is to be won"


# The first convolution


def test_a_first_convolution_slower_than_the_others() -> None:
    others = [convolution(f"conv{number}", 1.0, 64, 64) for number in (2, 3, 4)]
    found = the("first-convolution", layered(convolution("conv1", 2.0, 3, 64), *others))
    assert (
        "has 3 input channels, takes 40 % of a profiled run (2.00 ms) and computes at 1/42.7 of the rate"
        in found.sentence
    )
    assert found.seconds == pytest.approx((2 - 3 / 64) * MS)
    assert not of_rule("first-convolution", layered(convolution("conv1", 0.05, 3, 64), *others)), "as fast as they are"
    assert not of_rule("first-convolution", layered(convolution("conv1", 2.0, 64, 64), *others)), "many channels"
    assert not of_rule("first-convolution", layered(*others, convolution("conv1", 2.0, 3, 64))), "not the first"
    assert not of_rule("first-convolution", layered(convolution("conv1", 2.0, 3, 64))), "the only one"


def test_without_weights_the_models_work_tells_the_rate() -> None:
    first = layer("conv1", 2.0, inputs=(tensor(1, 3, 224, 224),))
    other = layer("conv2", 1.0)
    of = layered(first, other)
    assert not of_rule("first-convolution", of), "nothing tells the rate, on a CPU"
    known = msgspec.structs.replace(of, work=work(conv1=1e8, conv2=1e9))
    assert "at 1/20.0 of the rate" in the("first-convolution", known).sentence
    on_gpu = layered(first, other, of=ON_GPU, timed="GPU")
    assert "2.00x as long as the mean of the other convolutions" in the("first-convolution", on_gpu).sentence
    assert the("first-convolution", on_gpu).seconds is None


def test_a_module_in_two_layers_is_done_once() -> None:
    layers = [layer(f"n{number}", 1.0, "Conv", "shared") for number in (2, 3)]
    first = layer("n1", 4.0, "Conv", "conv1", inputs=(tensor(1, 3, 56, 56),))
    of = layered(first, *layers, work=work(conv1=1e8, shared=2e8))
    assert "at 1/4.0 of the rate" in the("first-convolution", of).sentence
    broken = msgspec.structs.replace(of, work=work(conv1=1e8, shared=float("inf")))
    assert not of_rule("first-convolution", broken), "a broken file"


def test_a_transposed_convolution_has_the_work_of_its_module() -> None:
    """Of its weights the first dimension is the input's, so that they do not tell what an output takes."""
    first = convolution("conv1", 2.0, 3, 64)
    up = layer("up", 1.0, "ConvTranspose", inputs=(tensor(1, 64, 28, 28), tensor(64, 64, 2, 2)))
    of = layered(first, up)
    assert not of_rule("first-convolution", of), "nothing tells what the other one does"
    known = msgspec.structs.replace(of, work=work(conv1=1.0, up=2.0 * 64 * 28 * 28 * 64 * 4))
    assert f"at 1/{2 * 64 * 28 * 28 * 64 * 4 / (64 * 56 * 56 * 27):.1f} of the rate" in (
        the("first-convolution", known).sentence
    )


# What is inserted


def test_layers_that_only_change_order_or_type() -> None:
    inserted = {"details": {"inserted": "by the backend"}}
    reorders = [layer(f"r{number}", 0.3, "Reorder", **inserted) for number in range(10)]
    own = layer("permute", 1.0, "Transpose", "encoder")
    found = the("reformats", layered(*reorders, own, layer("conv", 96.0)))
    assert found.sentence == (
        "11 layers that only change memory order or type (10 Reorder and 1 Transpose) take 4 % of a profiled "
        "run (4.00 ms). 1 of them is the model's own."
    )
    assert found.seconds == pytest.approx(4 * MS)
    assert "inferlens layers --sort order" in found.advice
    assert "Permute and cast less" in the("reformats", layered(own, layer("conv", 9.0))).advice
    assert not of_rule("reformats", layered(*reorders, layer("conv", 200.0))), "too little"
    ends = [*reorders[:2], layer("conv", 9.0)]
    assert "cannot be fed" in the("reformats", layered(*ends)).advice
    assert "channels-last" in the("reformats", layered(*ends, of=ON_GPU, timed="GPU")).advice
    cast = layered(layer("cast", 1.0, "Cast", **inserted), layer("conv", 9.0))
    assert "the case's precision" in the("reformats", cast).advice
    assert not of_rule("reformats", layered(layer("flatten", 5.0, "Reshape"), layer("conv", 5.0)))


def test_a_copying_node_of_tensorrt_is_known_by_its_name() -> None:
    copy = layer("Reformatting CopyNode for Input Tensor 0 to conv1", 1.0, kind="")
    assert the("reformats", layered(copy, layer("conv", 9.0))).share == pytest.approx(0.1)


def test_copies_between_host_and_gpu() -> None:
    copies = [layer("to", 0.2, "MemcpyToHost"), layer("from", 0.3, "MemcpyFromHost")]
    found = the("host-copies", layered(*copies, layer("conv", 9.5), of=ON_GPU))
    assert found.sentence.startswith("2 copies between host and GPU inside of a run take 5 % of it (500 µs)")
    assert not of_rule("host-copies", layered(*copies, layer("conv", 9.5), of=case(device="cuda", io="host")))
    assert not of_rule("host-copies", layered(*copies, layer("conv", 9.5))), "there is no GPU"


# Fusion


def test_pointwise_layers_by_themselves() -> None:
    eager = [layer("conv1", 8.0, "Conv2d"), layer("relu", 1.0, "ReLU"), layer("gelu", 0.5, "GELU"),
             layer("pool", 0.5, "MaxPool2d"), layer("tanh", 1.0, "Tanh")]  # fmt: skip
    found = the("unfused-chains", layered(*eager))
    assert "2 layers right after a convolution" in found.sentence
    assert found.seconds == pytest.approx(1.5 * MS), "a single one after a pooling layer has to stay"
    assert "onnxruntime and openvino" in found.advice
    on_gpu = the("unfused-chains", layered(*eager, of=ON_GPU, timed="GPU"))
    assert "onnxruntime and tensorrt" in on_gpu.advice, "OpenVINO runs on the CPU alone here"
    compiled = [layer("n1", 8.0, "Conv", "conv1"), layer("n2", 2.0, "HardSwish", "act")]
    assert "this one has not fused them" in the("unfused-chains", layered(*compiled)).advice
    assert not of_rule("unfused-chains", layered(*compiled[:1], layer("n2", 0.1, "Relu", "act")))


def test_of_a_chain_without_a_producer_the_longest_stays() -> None:
    chain = [layer("in", 5.0, "Gather"), layer("add", 1.0, "Add"), layer("norm", 3.0, "LayerNormalization")]
    assert the("unfused-chains", layered(*chain)).seconds == pytest.approx(1 * MS)


def test_batch_norms_that_could_be_folded() -> None:
    pair = [layer("conv", 8.0, "Conv2d"), layer("bn", 2.0, "BatchNorm2d")]
    found = the("batch-norm-not-folded", layered(*pair))
    assert found.sentence.startswith("1 batch norm right after a convolution or a matrix product is not folded")
    assert found.seconds == pytest.approx(2 * MS)
    assert not of_rule("unfused-chains", layered(*pair)), "said once"
    assert not of_rule("batch-norm-not-folded", layered(*reversed(pair))), "before the convolution, as in DenseNet"
    between = [pair[0], layer("relu", 1.0, "ReLU"), pair[1]]
    assert not of_rule("batch-norm-not-folded", layered(*between)), "not through an activation"
    gone = [pair[0], msgspec.structs.replace(pair[1], times=())]
    assert not of_rule("batch-norm-not-folded", layered(*gone)), "it is not executed"


# A model in pieces


def partition(*reasons: str, whole: bool = False, **fields: Any) -> Any:
    """As a record keeps it: an engine of nine operators and, unless it is ``whole``, one that PyTorch runs."""
    engine = Segment("TensorRT", (Operator("aten.conv.default", "layer1"),) * 9)
    rest = Segment("PyTorch", (Operator("aten.sort.default", "layer4", "unsupported"),))
    segments = [engine] if whole else [engine, rest]
    made = partition_of(segments, front_end="dynamo", min_block_size=5, graph_breaks=reasons)
    return {**msgspec.to_builtins(made), **fields}


def with_facts(of: Any, **facts: Any) -> Any:
    return untouched(of, 10.0, facts=msgspec.json.decode(msgspec.json.encode(facts)))


def test_what_falls_back_to_pytorch() -> None:
    of = layered(layer("engine", 8.0, "Engine", "layer1"), layer("sort", 2.0, "Sort", "layer4"), of=ON_GPU)
    found = the("fallback", of, record=with_facts(of, partition=partition()))
    assert found.sentence == (
        "1 of 10 operators falls back to PyTorch, in 1 segment beside 1 engine: layer4 (aten.sort.default: not "
        "supported). Layers of modules that are wholly in PyTorch take 20 % of a profiled run (2.00 ms)."
    )
    assert (found.subject, found.share) == ("layer4", pytest.approx(0.2))
    assert not of_rule("fallback", of, record=with_facts(of, partition=partition(whole=True)))
    scripted = partition(engines=[None, None], in_tensorrt=0, operators=1)
    scripted["breaks"][0]["modules"] = [""]
    told = the("fallback", of, record=with_facts(of, partition=scripted)).sentence
    assert told.startswith(
        "1 operator falls back to PyTorch, in 1 segment beside 2 engines: aten.sort.default: not sup"
    )
    for hostile in ("x", 7, [], {"breaks": "x"}, partition(operators="many")):
        assert not of_rule("fallback", of, record=with_facts(of, partition=hostile))


def test_nodes_that_onnx_runtime_leaves_on_the_cpu() -> None:
    layers = [layer("nms", 1.0, "NonMaxSuppression", details={"provider": "CPUExecutionProvider"}), layer("conv", 9.0)]
    assert (
        "1 layer runs on the CPU (NonMaxSuppression) and takes 10 %"
        in the("fallback", layered(*layers, of=ON_GPU)).sentence
    )
    assert not of_rule("fallback", layered(*layers)), "there it belongs"


def test_graph_breaks() -> None:
    of = layered(layer("conv", 1.0))
    found = the("graph-breaks", of, record=with_facts(of, graph_breaks={"count": 2, "reasons": ["print()"]}, graphs=3))
    assert found.sentence == "2 graph breaks split the compiled model into 3 graphs: print()."
    for nothing in ({"count": 0, "reasons": []}, "x", {"count": "2"}, None):
        assert not of_rule("graph-breaks", of, record=with_facts(of, graph_breaks=nothing))
    broken = with_facts(of, partition=partition("call to print"))
    assert the("graph-breaks", of, record=broken).sentence == "1 graph break splits the compiled model: call to print."


# Precision


def half(name: str, ms: float, kind: str, given: int, made: int) -> Any:
    return layer(
        name, ms, kind, inputs=(tensor(8, given, dtype="float16"),), outputs=(tensor(8, made, dtype="float16"),)
    )


def test_channels_that_do_not_fit_tensor_cores() -> None:
    fc1, fc2 = half("fc1", 1.0, "Linear", 510, 512), half("fc2", 9.0, "Linear", 512, 512)
    found = the("tensor-cores-unused", layered(fc1, fc2, of=ON_GPU))
    assert found.sentence.startswith(
        "Channels of fc1 (510 to 512) are no multiples of 8. They take 10 % of a profiled run"
    )
    assert "may be" in found.sentence, "shapes alone do not prove it"
    assert not of_rule("tensor-cores-unused", layered(fc2, of=ON_GPU))
    assert not of_rule("tensor-cores-unused", layered(fc1, fc2)), "a CPU"
    assert not of_rule("tensor-cores-unused", layered(fc1, fc2, of=case(device="cuda"))), "fp32 without TF32"
    assert of_rule("tensor-cores-unused", layered(fc1, fc2, of=case(device="cuda", options={"tf32": True})))
    first = convolution("conv1", 5.0, 3, 64)
    grouped = layer("dw", 5.0, inputs=(tensor(1, 60, 8, 8), tensor(60, 1, 3, 3)), outputs=(tensor(1, 60, 8, 8),))
    assert not of_rule("tensor-cores-unused", layered(first, grouped, fc2, of=ON_GPU)), "rules of their own"


def test_fp32_on_a_gpu_that_has_tf32() -> None:
    fp32 = case(device="cuda")
    of = layered(layer("conv", 8.0), layer("pool", 2.0, "Pool"), of=fp32, ceilings=ceilings(fp32=5e13, tf32=2e14))
    found = the("tf32-off", of)
    assert "take 80 % of a profiled run (8.00 ms) in full fp32, although this GPU has TF32" in found.sentence
    assert found.seconds == pytest.approx(6 * MS)
    assert "accuracy" in found.advice
    assert the("tf32-off", msgspec.structs.replace(of, ceilings=None)).seconds is None
    assert not of_rule("tf32-off", layered(layer("conv", 8.0), of=case(device="cuda", options={"tf32": True})))
    assert not of_rule("tf32-off", layered(layer("conv", 8.0), of=ON_GPU)), "fp16"
    assert not of_rule("tf32-off", layered(layer("conv", 8.0))), "a CPU"
    assert not of_rule("tf32-off", layered(layer("conv", 1.0), layer("pool", 9.0, "Pool"), of=fp32)), "too little"
    lowered = untouched(of, 10.0, warnings=(Warning("lower-precision", "In TF32."),))
    assert not of_rule("tf32-off", of, record=lowered), "the library uses it unasked"
    turing = msgspec.structs.replace(of.environment.gpus[0], compute_capability="7.5")
    older = msgspec.structs.replace(of, environment=msgspec.structs.replace(of.environment, gpus=(turing,)))
    assert not of_rule("tf32-off", older)


def test_layers_in_fp32_in_an_fp16_case() -> None:
    single, norm = layer("conv", 2.0), layer("ln", 5.0, "LayerNorm")
    cast = layer("cast", 5.0, "Cast", outputs=(tensor(1, dtype="float16"),))
    found = the("fp32-layers", layered(single, norm, cast, half("fc", 8.0, "Linear", 8, 8), of=ON_GPU))
    assert found.sentence.startswith("1 of 4 layers computes in fp32 although the case is fp16 (Conv), and takes 10 %")
    assert not of_rule("fp32-layers", layered(norm, cast, half("fc", 8.0, "Linear", 8, 8), of=ON_GPU))
    assert not of_rule("fp32-layers", layered(single, of=case(device="cuda"))), "fp32 was asked for"
    unknown = layer("x", 2.0, inputs=(), outputs=())
    assert not of_rule("fp32-layers", layered(unknown, of=ON_GPU)), "no type is told"


# Around the layers


def test_time_outside_of_all_layers() -> None:
    of = layered(layer("conv", 6.0), whole=10.0)
    found = the("outside-layers", of, record=untouched(of, 10.0))
    assert found.sentence == "40 % of a profiled run (4.00 ms) is spent outside of all layers."
    assert of_rule("outside-layers", of, record=untouched(of, 9.0))[0].seconds == pytest.approx(3 * MS)
    assert not of_rule("outside-layers", of, record=untouched(of, 6.3)), "profiling has added it"
    assert not of_rule("outside-layers", of), "nobody knows what profiling has added"
    on_gpu = layered(layer("conv", 6.0), whole=10.0, timed="GPU", of=ON_GPU)
    assert not of_rule("outside-layers", on_gpu, record=untouched(on_gpu, 10.0))
