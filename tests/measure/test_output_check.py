"""The check of outputs: how a model behaves, and whether its outputs agree with those of the reference."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferlens.backends import BACKENDS
from inferlens.backends.base import Preparation
from inferlens.measure.output_check import Expected, compare, judge, observe, worse
from inferlens.measure.series import Feeding
from inferlens.models.inputs import make_inputs, own_precision, spec_of
from inferlens.models.model import Model, OpenedModel
from inferlens.models.weights import buffers, restore
from inferlens.record.record import Agreement
from inferlens.spec.case import Case, TensorSpec

torch = pytest.importorskip("torch")
nn = torch.nn


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 8).requires_grad_(False)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        return self.layer(x)


class InPlace(Plain):
    def forward(self, x):
        x.mul_(0.5).add_(1)
        return self.layer(x)


class Part(Plain):
    def forward(self, x):
        x[:, :4] += 1
        return self.layer(x)


class Counter(Plain):
    def forward(self, x):
        self.count += 1
        return self.layer(x) + self.count


class Replaced(Plain):
    def forward(self, x):
        self.count = self.count + x.mean()
        return self.layer(x) + self.count


class Unused(Plain):
    def forward(self, x):
        self.count += 1
        return self.layer(x)


class Noise(Plain):
    def forward(self, x):
        return self.layer(x) + 0.1 * torch.randn_like(x)


class Masked(Plain):
    def forward(self, x):
        return self.layer(x).masked_fill(torch.arange(8) % 4 == 0, float("-inf"))


def prepared(folder, module, backend="pytorch", **words):
    model = Model("live:m", "m", "module", (spec_of("x", torch.zeros(4, 8)),), module=module.eval())
    return runner_of(folder, model, backend, **words)


def runner_of(folder, model, backend, **words):
    name, _, variant = backend.partition(":")
    case = Case(model=model.spec, backend=name, variant=variant, device="cpu", **words)
    return BACKENDS.get(name)().prepare(model, case, Preparation(folder, folder)), model, case


def observed(runner, model):
    with runner:
        return observe(runner, model, make_inputs(model, 0), runner.infer)


@pytest.mark.parametrize(("kind", "behavior"), [
    (Plain, set()), (Unused, set()), (InPlace, {"writes inputs"}), (Part, {"writes inputs"}),
    (Counter, {"keeps state"}), (Replaced, {"keeps state"}), (Noise, {"random"}), (Masked, {"not finite"}),
])  # fmt: skip
def test_two_calls_of_the_reference_show_how_a_module_behaves(tmp_path, kind, behavior):
    runner, model, _ = prepared(tmp_path, kind())
    assert set(observed(runner, model)[0]) == behavior


@pytest.mark.parametrize("kind", [InPlace, Part])
def test_every_call_gets_its_inputs_anew(tmp_path, kind):
    runner, model, case = prepared(tmp_path, kind())
    with runner:
        feeding = Feeding(runner, model, case, make_inputs(model, 0), Preparation(tmp_path, tmp_path), renews=True)
        latency = [runner.collect(runner.infer(next(feeding.latency)))[0] for _ in range(3)]
        feeding.renewed(feeding.first)
        back_to_back = [runner.collect(feeding.caller.infer(next(feeding.throughput)))[0] for _ in range(3)]
    assert all(np.array_equal(output, latency[0]) for output in (*latency, *back_to_back))


@pytest.mark.parametrize(
    ("backend", "state"), [("pytorch", "kept"), ("torchscript:trace", "kept"), ("onnxruntime:cpu", "lost")]
)
def test_an_export_that_froze_the_state_is_not_right(tmp_path, backend, state):
    if backend.startswith("onnx"):
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
    runner, model, _ = prepared(tmp_path, Counter())
    behavior, expected = observed(runner, model)
    module = Counter()
    runner, model, _ = prepared(tmp_path, module, backend)
    start = buffers(module)
    with runner:
        restore(module, start)
        calls = [runner.collect(runner.infer(runner.place(make_inputs(model, 0)))) for _ in range(2)]
    result = judge(calls, Expected("pytorch fp32 on cpu", behavior, expected), 1e-4)
    assert (result.agrees, result.state) == (state == "kept", state)


def test_random_outputs_are_not_compared():
    ours, theirs = [np.zeros((2, 2))], [np.ones((2, 2))]
    result = judge([ours, ours], Expected("x", {"random": "drawn"}, [theirs]), 1e-4)
    assert result.agrees is None
    assert result.reason == "outputs are random: not compared"


@pytest.mark.parametrize(("module", "precision"), [
    (lambda: nn.Linear(2, 2).half(), "fp16"), (lambda: nn.Conv2d(3, 8, 3).bfloat16(), "bf16"),
    (lambda: nn.Linear(2, 2), ""), (lambda: nn.Sequential(nn.Linear(2, 2).half(), nn.Linear(2, 2)), ""),
    (lambda: nn.ReLU(), ""),
])  # fmt: skip
def test_a_module_has_the_precision_that_all_its_weights_are_in(module, precision):
    assert own_precision(OpenedModel(format="module", module=module())) == precision


def graph(path, nodes, outputs, weights=(), *, ml=False):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    make = onnx.helper
    opsets = [make.make_opsetid("", 17)] + [make.make_opsetid("ai.onnx.ml", 1)] * ml
    x = make.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 16])
    graph = make.make_graph(nodes, "g", [x], outputs, list(weights))
    onnx.save(make.make_model(graph, ir_version=8, opset_imports=opsets), str(path))
    return Model(f"onnx:{path}", path.stem, "onnx", (TensorSpec("x", (1, 16)),), path=path)


def sequence(path):
    onnx = pytest.importorskip("onnx")
    make = onnx.helper
    node = make.make_node("SplitToSequence", ["x"], ["s"], axis=1)
    return graph(path, [node], [make.make_tensor_sequence_value_info("s", onnx.TensorProto.FLOAT, None)])


def test_a_random_graph_is_seen_to_be_random(tmp_path):
    onnx = pytest.importorskip("onnx")
    make = onnx.helper
    output = make.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", 16])
    model = graph(tmp_path / "noise.onnx", [make.make_node("RandomNormalLike", ["x"], ["y"])], [output])
    runner, model, _ = runner_of(tmp_path, model, "onnxruntime:cpu")
    assert set(observed(runner, model)[0]) == {"random"}


def test_a_sequence_is_unpacked_and_does_not_grow(tmp_path):
    runner, model, _ = runner_of(tmp_path, sequence(tmp_path / "seq.onnx"), "onnxruntime:cpu")
    behavior, calls = observed(runner, model)
    assert behavior == {}
    assert [value.shape for value in calls[0]] == [(1, 1)] * 16


def test_a_map_is_its_keys_and_its_values(tmp_path):
    onnx = pytest.importorskip("onnx")
    make, kinds = onnx.helper, onnx.TensorProto
    value = make.make_map_type_proto(kinds.INT64, make.make_tensor_type_proto(kinds.FLOAT, None))
    output = make.make_value_info("p", make.make_sequence_type_proto(value))
    words = {"domain": "ai.onnx.ml", "classlabels_int64s": [*range(16)]}
    model = graph(tmp_path / "zip.onnx", [make.make_node("ZipMap", ["x"], ["p"], **words)], [output], ml=True)
    runner, model, _ = runner_of(tmp_path, model, "onnxruntime:cpu")
    (keys, values), *_ = observed(runner, model)[1]
    assert keys.tolist() == [*range(16)]
    assert np.allclose(values, make_inputs(model, 0)["x"][0])


def test_a_runtime_of_tensors_names_the_output_that_is_none(tmp_path):
    pytest.importorskip("openvino")
    runner, _, _ = runner_of(tmp_path, sequence(tmp_path / "seq.onnx"), "openvino:cpu")
    with pytest.raises(Exception, match="The output 's' is a sequence"), runner:
        pass


@pytest.mark.parametrize("backend", ["onnxruntime:cpu", "openvino:cpu"])
def test_text_is_compared_exactly(tmp_path, backend):
    pytest.importorskip(backend.partition(":")[0])
    onnx = pytest.importorskip("onnx")
    make, kinds = onnx.helper, onnx.TensorProto
    nodes = [
        make.make_node("ArgMax", ["x"], ["i"], axis=1, keepdims=0),
        make.make_node("Gather", ["L", "i"], ["label"]),
    ]
    labels = make.make_tensor("L", kinds.STRING, [16], [f"class{number}".encode() for number in range(16)])
    output = make.make_tensor_value_info("label", kinds.STRING, ["batch"])
    model = graph(tmp_path / "label.onnx", nodes, [output], [labels])
    runner, model, _ = runner_of(tmp_path, model, backend)
    with runner:
        outputs = runner.collect(runner.infer(runner.place(make_inputs(model, 0))))
    label = f"class{make_inputs(model, 0)['x'].argmax()}"
    assert judge([outputs], Expected("x", {}, [[np.array([label])]]), 1e-4).agrees is True
    assert judge([outputs], Expected("x", {}, [[np.array(["other"])]]), 1e-4).agrees is False


# The check passes what is right and fails what is not.


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
    assert agreement.rel_l2 == pytest.approx(error, rel=1e-6)
    assert agreement.cosine == pytest.approx(1.0)
    assert agreement.agrees is False
    assert "above the tolerance" in agreement.reason


def test_the_worst_output_counts_and_top1_is_the_share_of_rows_with_the_same_class():
    assert compare([SCORES, SCORES * np.float32(1.5)], [SCORES, SCORES], 1e-4, "x").rel_l2 == pytest.approx(
        0.5, rel=1e-5
    )
    ours = SCORES.copy()
    ours[0, (SCORES[0].argmax() + 1) % 1000] = 100.0
    assert compare([ours], [SCORES], 10.0, "x").top1 == 0.75


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_must_be_where_the_reference_has_them(bad):
    masked = SCORES.copy()
    masked[1, 1] = bad
    assert compare([masked], [SCORES], 1e9, "x").agrees is False
    assert compare([SCORES], [masked], 1e9, "x").agrees is False
    assert compare([-masked], [masked], 1e9, "x").agrees is bool(np.isnan(bad))
    assert compare([masked], [masked], 1e-4, "x").agrees is True
    assert compare([masked * np.float32(1.5)], [masked], 1e-4, "x").rel_l2 == pytest.approx(0.5, rel=1e-5)


def test_a_reference_without_a_finite_number_proves_nothing():
    assert compare([SCORES * np.nan], [SCORES * np.nan], 1e-4, "x").agrees is None


@pytest.mark.parametrize("outputs", [[], [SCORES[:2]], [SCORES, SCORES]])
def test_other_shapes_are_wrong(outputs):
    agreement = compare(outputs, [SCORES], 1.0, "x")
    assert agreement.agrees is False
    assert "4x1000" in agreement.reason


@pytest.mark.parametrize(("ours", "theirs", "agrees"), [
    (np.zeros((2, 3)), np.zeros((2, 3)), True), (np.ones((2, 3)), np.zeros((2, 3)), False),
    (np.array([3, 4]), np.array([3, 4]), True), (np.array([4, 5]), np.array([3, 4]), False),
    (np.array([1 + 2j, 3j]), np.array([1 + 2j, 3j]), True), (np.array([1 - 2j, -3j]), np.array([1 + 2j, 3j]), False),
    (np.zeros((0, 4)), np.zeros((0, 4)), None),
])  # fmt: skip
def test_zero_integer_complex_and_empty_outputs(ours, theirs, agrees):
    assert compare([ours], [theirs], 1e-4, "x").agrees is agrees


def test_outputs_that_go_wrong_while_the_case_runs_are_seen():
    right, wrong = compare([SCORES], [SCORES], 1e-4, "x"), compare([SCORES * 2], [SCORES], 1e-4, "x")
    assert worse(right, wrong) is wrong
    assert worse(wrong, right) is wrong
    assert worse(*[Agreement(reference="x", reason="no reference")] * 2).agrees is None
