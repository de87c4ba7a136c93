"""The check of outputs: how a model behaves, and whether its outputs agree with those of the reference."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferlens.backends import BACKENDS
from inferlens.backends.base import Preparation
from inferlens.measure.output_check import Expected, compare, judge, observe, worse
from inferlens.measure.series import Feeding
from inferlens.models.inputs import make_inputs, spec_of
from inferlens.models.model import Model
from inferlens.models.weights import buffers, restore
from inferlens.record.record import Agreement
from inferlens.spec.case import Case, TensorSpec

torch, onnx = pytest.importorskip("torch"), pytest.importorskip("onnx")
nn = torch.nn
from tests.models.test_work import Network  # noqa: E402


def in_place(self, x):
    return self.layer(x.mul_(0.5).add_(1))


def part(self, x):
    x[:, :4] += 1
    return self.layer(x)


def counter(self, x):
    self.count += 1
    return self.layer(x) + self.count


def replaced(self, x):
    self.count = self.count + x.mean()
    return self.layer(x) + self.count


def masked(self, x):
    return self.layer(x).masked_fill(torch.arange(8) % 4 == 0, float("-inf"))


def prepared(folder, call, backend="pytorch", **words):
    torch.manual_seed(0)
    module = Network(call, layer=nn.Linear(8, 8).requires_grad_(False)).eval()
    module.register_buffer("count", torch.zeros(()))
    model = Model("live:m", "m", "module", (spec_of("x", torch.zeros(4, 8)),), module=module)
    return runner_of(folder, model, backend, **words)


def runner_of(folder, model, backend, **words):
    name, _, variant = backend.partition(":")
    case = Case(model=model.spec, backend=name, variant=variant, device="cpu", **words)
    return BACKENDS.get(name)().prepare(model, case, Preparation(folder, folder)), model, case


def observed(runner, model):
    with runner:
        return observe(runner, model, make_inputs(model, 0), runner.infer)


@pytest.mark.parametrize(("call", "behavior"), [
    (lambda self, x: self.layer(x), set()), (in_place, {"writes inputs"}), (part, {"writes inputs"}),
    (counter, {"keeps state"}), (replaced, {"keeps state"}), (masked, {"not finite"}),
    (lambda self, x: self.layer(x) + 0.1 * torch.randn_like(x), {"random"}),
])  # fmt: skip
def test_two_calls_of_the_reference_show_how_a_module_behaves(tmp_path, call, behavior):
    runner, model, _ = prepared(tmp_path, call)
    assert set(observed(runner, model)[0]) == behavior


@pytest.mark.parametrize("call", [in_place, part])
def test_every_call_gets_fresh_inputs(tmp_path, call):
    runner, model, case = prepared(tmp_path, call)
    with runner:
        feeding = Feeding(runner, model, case, make_inputs(model, 0), Preparation(tmp_path, tmp_path), renews=True)
        latency = [runner.collect(runner.infer(next(feeding.latency)))[0] for _ in range(3)]
        feeding.renewed(feeding.checked_feed)
        back_to_back = [runner.collect(feeding.caller.infer(next(feeding.throughput)))[0] for _ in range(3)]
    assert all(np.array_equal(output, latency[0]) for output in (*latency, *back_to_back))


@pytest.mark.parametrize(("backend", "state"), [
    ("pytorch", "kept"), ("torchscript:trace", "kept"), ("onnxruntime:cpu", "lost"),
])  # fmt: skip
def test_an_export_with_frozen_state_is_wrong(tmp_path, backend, state):
    runner, model, _ = prepared(tmp_path, counter)
    behavior, expected = observed(runner, model)
    runner, model, _ = prepared(tmp_path, counter, backend)
    start = buffers(model.module)
    with runner:
        restore(model.module, start)
        calls = [runner.collect(runner.infer(runner.place(make_inputs(model, 0)))) for _ in range(2)]
    agreement = judge(calls, Expected("pytorch fp32 on cpu", behavior, expected), 1e-4)
    assert (agreement.agrees, agreement.state) == (state == "kept", state)


def test_random_outputs_are_not_compared():
    ours, theirs = [np.zeros((2, 2))], [np.ones((2, 2))]
    agreement = judge([ours, ours], Expected("x", {"random": "drawn"}, [theirs]), 1e-4)
    assert (agreement.agrees, agreement.reason) == (None, "outputs are random: not compared")


MAKE, KINDS = onnx.helper, onnx.TensorProto
ROW = MAKE.make_tensor_type_proto(KINDS.FLOAT, None)
SEQUENCE = ("s", MAKE.make_sequence_type_proto(ROW), [MAKE.make_node("SplitToSequence", ["x"], ["s"], axis=1)])
NOISE = ("y", MAKE.make_tensor_type_proto(KINDS.FLOAT, ["b", 16]), [MAKE.make_node("RandomNormalLike", ["x"], ["y"])])


def stored(folder, backend, name, kind, nodes, weights=()):
    """A runner and the model of these operators, whose output has this name and type."""
    pytest.importorskip(backend.partition(":")[0])
    x = MAKE.make_tensor_value_info("x", KINDS.FLOAT, ["batch", 16])
    graph = MAKE.make_graph(nodes, "g", [x], [MAKE.make_value_info(name, kind)], weights)
    opsets = [MAKE.make_opsetid("", 17), MAKE.make_opsetid("ai.onnx.ml", 1)]
    onnx.save(MAKE.make_model(graph, ir_version=8, opset_imports=opsets), folder / "net.onnx")
    model = Model("onnx:net.onnx", "net", "onnx", (TensorSpec("x", (1, 16)),), path=folder / "net.onnx")
    return runner_of(folder, model, backend)[:2]


def test_a_random_graph_is_recognized(tmp_path):
    assert set(observed(*stored(tmp_path, "onnxruntime:cpu", *NOISE))[0]) == {"random"}


def test_a_sequence_is_unpacked_and_does_not_grow(tmp_path):
    behavior, calls = observed(*stored(tmp_path, "onnxruntime:cpu", *SEQUENCE))
    assert (behavior, [value.shape for value in calls[0]]) == ({}, [(1, 1)] * 16)


def test_a_map_is_its_keys_and_its_values(tmp_path):
    kind = MAKE.make_sequence_type_proto(MAKE.make_map_type_proto(KINDS.INT64, ROW))
    words = {"domain": "ai.onnx.ml", "classlabels_int64s": [*range(16)]}
    runner, model = stored(tmp_path, "onnxruntime:cpu", "p", kind, [MAKE.make_node("ZipMap", ["x"], ["p"], **words)])
    (keys, values), *_ = observed(runner, model)[1]
    assert keys.tolist() == [*range(16)]
    assert np.allclose(values, make_inputs(model, 0)["x"][0])


def test_a_runtime_of_tensors_names_the_output_that_is_none(tmp_path):
    with pytest.raises(Exception, match="The output 's' is a sequence"), stored(tmp_path, "openvino:cpu", *SEQUENCE)[0]:
        pass


@pytest.mark.parametrize("backend", ["onnxruntime:cpu", "openvino:cpu"])
def test_text_is_compared_exactly(tmp_path, backend):
    nodes = [MAKE.make_node("ArgMax", ["x"], ["i"], axis=1, keepdims=0), MAKE.make_node("Gather", ["L", "i"], ["y"])]
    labels = MAKE.make_tensor("L", KINDS.STRING, [16], [f"class{number}".encode() for number in range(16)])
    kind = MAKE.make_tensor_type_proto(KINDS.STRING, ["batch"])
    runner, model = stored(tmp_path, backend, "y", kind, nodes, [labels])
    with runner:
        outputs = runner.collect(runner.infer(runner.place(make_inputs(model, 0))))
    for label, agrees in ((f"class{make_inputs(model, 0)['x'].argmax()}", True), ("other", False)):
        assert judge([outputs], Expected("x", {}, [[np.array([label])]]), 1e-4).agrees is agrees


# The comparison of outputs

RNG = np.random.default_rng(0)
SCORES = RNG.standard_normal((4, 1000)).astype(np.float32)


def test_equal_outputs_agree_exactly():
    agreement = compare([SCORES], [SCORES], 1e-4, "pytorch fp32")
    assert agreement == Agreement(
        reference="pytorch fp32", max_abs=0.0, rel_l2=0.0, cosine=1.0, top1=1.0, tolerance=1e-4, agrees=True
    )


@given(st.floats(1e-3, 1.0))
def test_a_known_relative_error_is_measured_as_that(error):
    agreement = compare([SCORES.astype(np.float64) * (1 + error)], [SCORES], 1e-4, "x")
    assert (agreement.rel_l2, agreement.cosine) == (pytest.approx(error, rel=1e-6), pytest.approx(1.0))
    assert (agreement.agrees, "above the tolerance" in agreement.reason) == (False, True)


def test_the_worst_output_counts_and_top1_is_the_share_of_rows_with_the_same_class():
    worst = compare([SCORES, SCORES * np.float32(1.5)], [SCORES, SCORES], 1e-4, "x")
    assert worst.rel_l2 == pytest.approx(0.5, rel=1e-5)
    ours = SCORES.copy()
    ours[0, (SCORES[0].argmax() + 1) % 1000] = 100.0
    assert compare([ours], [SCORES], 10.0, "x").top1 == 0.75


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_must_be_where_the_reference_has_them(bad):
    masked = SCORES.copy()
    masked[1, 1] = bad
    cases = [(masked, SCORES, False), (SCORES, masked, False), (-masked, masked, bool(np.isnan(bad)))]
    assert all(compare([ours], [theirs], 1e9, "x").agrees is agrees for ours, theirs, agrees in cases)
    assert compare([masked], [masked], 1e-4, "x").agrees is True
    assert compare([masked * np.float32(1.5)], [masked], 1e-4, "x").rel_l2 == pytest.approx(0.5, rel=1e-5)


@pytest.mark.parametrize("outputs", [[], [SCORES[:2]], [SCORES, SCORES]])
def test_other_shapes_are_wrong(outputs):
    agreement = compare(outputs, [SCORES], 1.0, "x")
    assert (agreement.agrees, "4x1000" in agreement.reason) == (False, True)


@pytest.mark.parametrize(("ours", "theirs", "agrees"), [
    (np.zeros((2, 3)), np.zeros((2, 3)), True), (np.ones((2, 3)), np.zeros((2, 3)), False),
    ([3, 4], [3, 4], True), ([4, 5], [3, 4], False), ([1 + 2j, 3j], [1 + 2j, 3j], True),
    ([1 - 2j, -3j], [1 + 2j, 3j], False), (np.zeros((0, 4)), np.zeros((0, 4)), None),
    (SCORES * np.nan, SCORES * np.nan, None),  # without a finite number, it proves nothing
])  # fmt: skip
def test_zero_integer_complex_and_empty_outputs(ours, theirs, agrees):
    assert compare([np.array(ours)], [np.array(theirs)], 1e-4, "x").agrees is agrees


def test_outputs_that_go_wrong_during_the_case_count():
    right, wrong = compare([SCORES], [SCORES], 1e-4, "x"), compare([SCORES * 2], [SCORES], 1e-4, "x")
    assert worse(right, wrong) is wrong
    assert worse(wrong, right) is wrong
    not_finite = Agreement(reference="x", agrees=False, reason="outputs are not finite")
    assert worse(wrong, not_finite) is not_finite, "an error of quantization may be allowed, NaN is not"
    assert worse(*[Agreement(reference="x", reason="no reference")] * 2).agrees is None
