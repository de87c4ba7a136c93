"""Floors: what each layer has to do, what of it is shared, and what remains to be won."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from inferlens.analysis.profile_table import profile_runs
from inferlens.analysis.roofline import Floor, Roofline, precision_of, roofline
from inferlens.analysis.work import assign_work as units_of
from inferlens.analysis.work import precisions
from inferlens.record.profile import Layer, OperatorWork, Profile, Tensor, Work
from inferlens.record.record import Warning
from inferlens.record.store import load_profiles
from inferlens.views.profiles.cases import ProfiledCase, precision_line
from tests.analysis import profiles as samples
from tests.analysis.profiles import ceilings, failed, kernel, made, module, of_kernels, operator, timed, work_of, worked
from tests.analysis.profiles import exact_layer as layer
from tests.refusals import refusal
from tests.views.samples import case, record

MEGA = 1_000_000
VISION_TRANSFORMER = Path(__file__).parents[2] / "examples" / "h200" / "kernels" / "vit_b_16"
HALF = 2  # bytes of an element
TOKENS, WIDTH, WIDE = 32 * 197, 768, 3072  # of a ViT-B/16 at batch 32
LAYER = "encoder.layers.encoder_layer_3"


def found(profile: Profile, **options: object) -> Roofline:
    made = roofline(profile, **options)
    assert isinstance(made, Roofline), made
    return made


def row(of: Roofline, name: str) -> Floor:
    (one,) = [row for row in of.rows if row.name == name]
    return one


TIMES = {"conv": 25e-3, "norm": 5e-3, "relu": 5e-3, "head": 8e-3}
EACH = [timed(name, time, name, kind="Module") for name, time in TIMES.items()]


def test_the_floor_is_the_longer_of_computing_and_moving():
    of = found(worked(EACH))
    conv, norm, head = row(of, "conv"), row(of, "norm"), row(of, "head")
    assert (conv.floor, conv.bound, conv.flops, conv.bytes) == (pytest.approx(20e-3), "compute", 20 * MEGA, 5 * MEGA)
    assert conv.intensity == pytest.approx(4)
    assert (norm.floor, norm.bound, norm.distance) == (pytest.approx(4.5e-3), "memory", pytest.approx(5 / 4.5))
    assert head.floor == pytest.approx(7e-3)  # weights, what it reads and what the model returns
    assert [one.won for one in of.rows] == pytest.approx([5e-3, 0.5e-3, 1e-3, 1e-3])
    assert [floor.name for floor in of.ranked] == ["conv", "relu", "head", "norm"]
    assert (of.floor, of.won, of.floored_time) == (pytest.approx(35.5e-3), pytest.approx(7.5e-3), pytest.approx(43e-3))
    assert of.time == pytest.approx(43.2e-3)
    assert of.outside == pytest.approx(0.2e-3)


def test_no_layer_is_below_its_floor():
    """What a layer of some weight reached, the device can reach; what moves its bytes faster is at its floor."""
    of = found(worked([timed("conv", 10e-3, "conv"), timed("norm", 1e-3, "norm"), timed("head", 14e-3, "head")]))
    conv, norm, head = of.rows
    assert of.rate == pytest.approx(2e9)
    assert (conv.floor, conv.distance, conv.won) == (pytest.approx(10e-3), pytest.approx(1.0), pytest.approx(0.0))
    assert (norm.floor, norm.bound, norm.won) == (pytest.approx(1e-3), "memory", 0.0)
    assert (head.floor, head.won) == (pytest.approx(7e-3), pytest.approx(7e-3))
    light = [timed("conv", 0.1e-3, "conv"), timed("norm", 20e-3, "norm"), timed("head", 14e-3, "head")]
    assert found(worked(light)).rate == 1e9
    of = found(worked([timed("conv", 30e-3, "conv"), timed("head", 0.5e-3, "head", kind="MatMul")]))
    assert (of.rate, [row.flops for row in of.rows]) == (1e9, [20e6, None]), "of other work than the model's"


def test_what_fits_into_the_cache_may_come_from_there():
    """Weights do if those of the whole model fit, here 5.5 MB; activations if those of the layer do."""
    for cache, floors in ((10, (20e-3, 0.45e-3)), (4.5, (20e-3, 0.5e-3)), (3.9, (20e-3, 4.5e-3)), (0, (20e-3, 4.5e-3))):
        near = replace(ceilings(), cached=1e10, cache=round(cache * MEGA))
        of = found(worked(EACH, ceilings=near))
        assert [row.floor for row in of.rows[:2]] == pytest.approx(list(floors)), cache


@pytest.mark.parametrize("modules", [("conv", "norm", "relu"), ("conv", "relu")])
def test_what_stays_within_a_fused_layer_is_not_moved_also_if_it_was_folded_away(modules):
    of = found(worked([timed("fused", 30e-3, *modules), timed("fc", 8e-3, "head")]))
    first = row(of, "fused")
    assert (first.bytes, first.flops) == ((1 + 0.5 + 2 + 2) * MEGA, 20 * MEGA)  # weights, what goes in, what comes out
    assert (first.won, first.bound) == (pytest.approx(10e-3), "compute")


def test_of_a_module_called_twice_each_layer_has_its_call():
    """``relu``, as in torchvision's blocks, on 2 and on 6 MB; a head on a large and a small image."""
    twice = work_of(
        module("one", flops=10, outputs=2, given=2), module("two", flops=10, outputs=6, relu=2),
        module("relu", outputs=8, one=2, two=6, calls=2, returned=6),
        operators=(
            operator("one", "aten.convolution", flops=10, outputs=2, given=2),
            operator("relu", "aten.relu_", outputs=2, made={0: 2}),
            operator("two", "aten.convolution", flops=10, outputs=6, made={1: 2}),
            operator("relu", "aten.relu_", outputs=6, made={2: 6}, returned=6),
        ),
    )  # fmt: skip
    layers = [timed("a", 20e-3, "one", "relu"), timed("b", 20e-3, "two", "relu")]
    # A profile of an earlier version has no operators, and which call is whose cannot be told.
    for work in (twice, replace(twice, operators=())):
        moved = [(row.flops, row.bytes) for row in found(worked(layers, work)).rows]
        assert moved == [(10 * MEGA, 4 * MEGA), (10 * MEGA, 8 * MEGA)]

    head = work_of(
        module("head", flops=10, weights=2, outputs=5, given=5, calls=2, returned=5),
        operators=tuple(operator("head", "Conv", size * 2, 1, size, given=size, returned=size) for size in (4, 1)),
    )
    of = found(worked([timed(str(n), 9e-3, "head", kind="Conv") for n in range(2)], head))
    assert [(row.flops, row.bytes) for row in of.rows] == [(8 * MEGA, 9 * MEGA), (2 * MEGA, 3 * MEGA)]


ATTENTION = work_of(
    module("attention", flops=16, weights=4, outputs=3, given=3, returned=3),
    operators=(
        operator("attention", "aten.addmm", flops=6, weights=3, outputs=9, given=3),
        operator("attention", "aten._scaled_dot_product_attention", flops=8, outputs=3, made={0: 9}),
        operator("attention", "aten.addmm", flops=2, weights=1, outputs=3, made={1: 3}, returned=3),
    ),
)


# An ONNX file may have two products where a runtime has one layer.
FIRST, MIDDLE, LAST = ATTENTION.operators
IN_PARTS = replace(ATTENTION, operators=(FIRST, *[replace(MIDDLE, operator="MatMul", flops=4e6)] * 2, LAST))


@pytest.mark.parametrize(("kinds", "work", "flops"), [
    ("MatMul Attention MatMul", ATTENTION, [6, 8, 2]),
    ("MatMul Transpose Attention Cast Gemm", ATTENTION, [6, None, 8, None, 2]),
    ("MatMul MatMul", ATTENTION, [None, None]), ("Attention Transpose", ATTENTION, [16, None]),
    ("MatMul MatMul Softmax MatMul Gemm", IN_PARTS, [6, 4, None, 4, 2]),
])  # fmt: skip
def test_several_products_of_a_module_go_to_as_many_layers_or_to_none(kinds, work, flops):
    layers = [timed(f"{n}", 30e-3, "attention", kind=kind) for n, kind in enumerate(kinds.split())]
    assert [row.flops and row.flops / MEGA for row in found(worked(layers, work)).rows] == flops


def test_a_layer_that_only_moves_data_computes_nothing():
    """ONNX Runtime's GRU with the transpositions around it; OpenVINO's tells no module, and only those are known."""
    recurrent = work_of(module("gru", flops=10, weights=2, outputs=1, given=1, returned=1))
    moving = timed("in", 5e-3, "gru", kind="Transpose")
    for kind in ("GRU", "LSTMSequence", "dynamic_quantize_lstm", "rnn_tanh"):
        of = found(worked([moving, timed("run", 20e-3, "gru", kind=kind)], recurrent))
        assert [row.flops for row in of.rows] == [None, 10 * MEGA], kind
        assert not of.unplaced
    of = found(worked([moving, timed("run", 20e-3, kind="GRUSequence")], recurrent))
    assert ([row.floor for row in of.rows], of.unplaced) == ([None, None], ("gru",))


def test_kernels_that_one_operator_launched_are_one_row():
    conv = work_of(module("conv", flops=12, weights=4, outputs=3, given=3, returned=3))
    names = ("void cudnn::nchwToNhwcKernel<__half>(int)", "{}", "void cublasLt::splitKreduce_kernel<32, 16>(int)")
    for computing in ("nvjet_sm90_hsh_64x32_64x16_4x2_h_bz_NNT", "a_kernel_that_says_nothing"):
        times = (2e-3, 30e-3, 4e-3)
        kernels = [kernel(name.format(computing), time, "conv", operator="aten::cudnn_convolution")
                   for name, time in zip(names, times, strict=True)]  # fmt: skip
        bias = kernel("elementwise_kernel", 1e-3, "conv", operator="aten::add_")
        of = found(of_kernels("eager", made(*kernels, bias), work=conv, ceilings=ceilings()))
        first, second = of.rows
        assert (first.name, first.kernels, first.time) == (computing, 3, pytest.approx(36e-3, rel=0.01))
        assert (first.flops, first.bytes, second.flops) == (12 * MEGA, 10 * MEGA, None)


def test_what_a_fast_path_does_not_call_is_part_of_the_module_around_it():
    inner = work_of(
        module("", outputs=0), module("layer", outputs=1, layer_linear=1, given=1, returned=1),
        module("layer.linear", flops=8, weights=2, outputs=1, given=1),
    )  # fmt: skip
    eager = [timed("", 1e-3, "", kind="Module"), timed("layer", 10e-3, "layer", kind="Module")]
    of = found(worked(eager, inner))
    outer, inner = row(of, ""), row(of, "layer")
    assert (inner.flops, inner.bytes) == (8 * MEGA, (2 + 1 + 1) * MEGA)
    assert (outer.floor, outer.distance, outer.won, of.unplaced) == (0, None, pytest.approx(1e-3), ())


def test_work_of_which_no_layer_is_known_is_said():
    of = found(worked([timed("conv+norm+relu", 30e-3, "conv", "norm", "relu"), timed("Reorder", 1e-3)]))
    reorder = row(of, "Reorder")
    assert (reorder.flops, reorder.floor, reorder.won, reorder.distance) == (None, None, None, None)
    assert (of.ranked[-1], of.unplaced, of.floored_time) == (reorder, ("head",), pytest.approx(30e-3))


def test_by_module_fused_layers_are_divided_by_flops():
    layers = [timed("conv+norm+relu", 30e-3, "conv", "norm", "relu"), timed("fc", 8e-3, "head"), timed("Reorder", 1e-3)]
    of, by = found(worked(layers)), found(worked(layers), by="module")
    assert [(row.name, row.modules) for row in by.rows] == [("conv", ("conv",)), ("head", ("head",)), ("", ())]
    assert (by.rows[0].kind, by.rows[2].kind) == ("Module", "")
    assert (by.time, by.floor, by.won) == (of.time, of.floor, of.won)
    one, other = module("a.one", flops=3, outputs=1, given=1), module("a.two", flops=1, outputs=1, a_one=1, returned=1)
    both = worked([timed("both", 8e-3, "a.one", "a.two")], work_of(one, other))
    by = found(both, by="module")
    assert [value for row in by.rows for value in (row.time, row.distance)] == pytest.approx([6e-3, 2.0, 2e-3, 2.0])
    (top,) = found(both, by="module", depth=1).rows
    assert (top.name, top.flops, top.time) == ("a", pytest.approx(4 * MEGA), pytest.approx(8e-3))


def test_the_rate_is_that_of_the_precision_that_ran():
    gpu = case("pytorch", device="cuda", options={"tf32": True})
    rates = ceilings(fp32=1e9, tf32=4e9)
    of = found(worked(EACH, of=gpu, ceilings=rates, timed="GPU"))
    assert (of.precision, of.rate) == ("tf32", 4e9)
    assert row(of, "conv").floor == pytest.approx(5e-3)
    plain = worked(EACH, of=case("tensorrt", device="cuda"), ceilings=rates)
    assert precision_of(plain) == "fp32"
    lowered = replace(record(plain.case), warnings=(Warning("lower-precision", "It is TF32."),))
    assert precision_of(plain, lowered) == "tf32"
    assert precision_of(worked(EACH, of=case("pytorch", options={"tf32": True}))) == "fp32"  # no CPU has it
    openvino = replace(worked(EACH, of=case("openvino")), facts={"inference_precision": "bf16"})
    assert precision_of(openvino) == "bf16"
    half = found(worked(EACH, of=case("pytorch", precision="fp16")))
    assert (half.precision, half.rate, row(half, "conv").bound) == ("fp16", None, "memory")
    assert row(half, "conv").floor == pytest.approx(5e-3)


def test_why_there_are_no_floors():
    unmeasured = "The ceilings of its device were not measured."
    for of, why in (
        (failed(case(), "It broke."), "It broke."), (worked(EACH, None), "Its work was not counted."),
        (worked(EACH, Work(note="an engine")), "Its work was not counted: an engine."),
        (worked(EACH, ceilings=None), unmeasured), (worked(EACH, ceilings=ceilings(0.0)), unmeasured),
    ):  # fmt: skip
        assert roofline(of) == why
    refusal("no kind of row 'modul'", roofline, worked(EACH), by="modul")


def test_products_of_one_module_are_told_apart_by_their_shapes():
    """Attention of one query: the backend computes the keys and values first."""

    def of(name: str, inner: int, rows: int, columns: int, time: float) -> Layer:
        shapes = [Tensor(shape=(rows, inner)), Tensor(shape=(inner, columns))]
        layer = timed(name, time, "attention", kind="MatMul")
        return replace(layer, inputs=tuple(shapes), outputs=(Tensor(shape=(rows, columns)),))

    keys = OperatorWork(module="attention", operator="aten.mm", flops=2.0 * 196 * 256 * 512)
    query = OperatorWork(module="attention", operator="aten.addmm", flops=2.0 * 256 * 256)
    work = work_of(module("attention", flops=51), operators=(query, keys))
    layers = [of("keys", 256, 196, 512, 60e-3), of("query", 256, 1, 256, 1e-3)]
    units, unplaced = units_of(layers, work)
    assert [unit.work.flops for unit in units if unit.work] == [keys.flops, query.flops]
    assert unplaced == ()
    other = [of("keys", 256, 196, 512, 60e-3), of("other", 256, 7, 256, 1e-3)]
    unit, unknown = units_of(other, work)[0]
    assert (unit.work and unit.work.flops, unknown.work) == (keys.flops, None)


def test_shares_add_up_and_what_stayed_is_named():
    """Two products in int8, one in fp32, a softmax, and two conversions: 50 ms of layers in a call of 60 ms."""
    layers = (
        layer("q", 4.0, "QuantizeLinear", "conv", details={"inserted": "by quantization"}),
        layer("conv", 20.0, "QLinearConv", precision="int8"), layer("fc", 5.0, "QGemm", precision="int8"),
        layer("softmax", 5.0, "Softmax", precision="fp32"),
        layer("dq", 6.0, "DequantizeLinear", "head", details={"inserted": "by quantization"}),
        layer("head", 10.0, "Gemm", precision="fp32"),
    )  # fmt: skip
    flops = samples.work(conv=8e9, fc=1e9, head=1e9)
    of = samples.layered(*layers, of=case("onnxruntime:cpu", precision="int8"), whole=60.0, work=flops)
    runs = profile_runs(of)
    found = precisions(of, runs)
    assert found.time == pytest.approx({"int8": 25 / 60, "fp32": 15 / 60})
    assert found.work == pytest.approx({"int8": 0.9, "fp32": 0.1})
    assert (found.converting, found.conversions, found.stayed) == (pytest.approx(10 / 60), (0, 4), (5,))
    assert sum(found.time.values()) + found.converting + runs.share(runs.outside) == pytest.approx(1)
    assert precision_line(ProfiledCase(of)) == (
        "int8 41.7 % of the time, 90 % of multiply-adds; fp32 25 %; 2 conversions 16.7 %"
    )


@pytest.mark.parametrize("backend", ["pytorch", "torch_compile", "tensorrt", "torch_tensorrt"])
def test_products_of_a_vision_transformer(backend):
    """Each computes what it computes, reads its inputs and weights, and writes its outputs; of every backend alike."""
    (folder,) = VISION_TRANSFORMER.glob(f"{backend}-*b32-cuda")
    (of,) = map(roofline, load_profiles([folder]).profiles)
    rows = [row for row in of.rows if row.flops]
    attention = [row for row in rows if row.modules == (f"{LAYER}.self_attention",)]
    (wide,) = [row for row in rows if f"{LAYER}.mlp.0" in row.modules]
    (patches,) = [row for row in rows if row.modules == ("conv_proj",)]
    assert [(row.flops, row.bytes / HALF) for row in (*attention, wide, patches)] == [
        (2 * TOKENS * WIDTH * 3 * WIDTH, TOKENS * WIDTH + 3 * WIDTH * WIDTH + TOKENS * 3 * WIDTH),
        (2 * 2 * 32 * 197 * 197 * WIDTH, 4 * TOKENS * WIDTH),
        (2 * TOKENS * WIDTH * WIDTH, TOKENS * WIDTH + WIDTH * (WIDTH + 1) + TOKENS * WIDTH),
        (2 * TOKENS * WIDTH * WIDE, TOKENS * WIDTH + WIDE * (WIDTH + 1) + TOKENS * WIDE),
        (2 * 32 * 14 * 14 * WIDTH * 3 * 16**2, 32 * 3 * 224**2 + WIDTH * (3 * 16**2 + 1) + 32 * WIDTH * 14 * 14),
    ]
    assert patches.distance == pytest.approx(patches.time / (patches.flops / of.rate), rel=1e-6)
