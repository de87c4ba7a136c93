"""Layers of engines: what inspector and profiler told of real ones, and what is said where they tell less."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from inferlens.backends.abilities import Launched
from inferlens.backends.onnx.modules import Node, Origins
from inferlens.backends.tensorrt.inspector import named_layer, sources, told_layers
from inferlens.backends.tensorrt.layer_profiling import NO_ONNX, absences, origin_in
from inferlens.backends.tensorrt.layer_times import Reporting, as_told, recorder, timed_layers
from inferlens.backends.torch_tensorrt.engines import engines_in, read_sums
from inferlens.backends.torch_tensorrt.inspector import module_and_operator, origin_among
from inferlens.backends.torch_tensorrt.kernel_origins import origins_in
from inferlens.errors import Unsupported
from inferlens.record.layer_profile import Layer

SAMPLES = Path(__file__).parent / "samples"
PATHS = frozenset({"", "conv1", "maxpool", "layer1", "layer1.0", "layer1.0.conv1", "layer4.1.conv2", "avgpool", "fc"})


def sample(name: str) -> Any:
    return json.loads((SAMPLES / name).read_text())


def nowhere(_: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return (), ()


def test_reports_of_an_engine_meet_what_its_inspector_tells() -> None:
    layers = told_layers(sample("resnet18-dynamo-engine.json")["Layers"], origin_among(PATHS))
    reports = [[(name, ms) for name, ms in run] for run in sample("resnet18-dynamo-reports.json")]
    timed = timed_layers(layers, reports, named_layer(nowhere))
    assert [layer.name for layer in timed] == [name for name, _ in reports[0]]
    assert all(len(layer.times) == 5 for layer in timed)
    assert sum(layer.times[-1] for layer in timed) == pytest.approx(0.0004095, rel=1e-3)
    stem = timed[1]
    assert stem.kind == "runtime_fusion"
    assert (stem.inputs[0].shape, stem.inputs[0].dtype) == ((1, 4, 224, 224), "float16")
    assert stem.details["inspector"]["LayerType"] == "runtime_fusion"
    by_name = {module: layer for layer in timed for module in layer.modules}
    assert by_name["layer4.1.conv2"].kind == "correlation"
    assert by_name["layer4.1.conv2"].operators == ("aten.convolution.default",)


def test_metadata_names_every_part_of_a_fused_layer() -> None:
    entry = {
        "Name": "__myl_CorrMulAddRelu_myl0_3",
        "Metadata": "[CONVOLUTION]-[aten_ops.convolution.default]-[layer1.0.conv1/convolution_1]\x1f"
        "[ACTIVATION]-[aten_ops.relu.default]-[layer1.0/relu_1]",
    }
    (layer,) = told_layers([entry], origin_among(PATHS))
    assert layer.modules == ("layer1.0.conv1", "layer1.0")
    assert layer.operators == ("aten.convolution.default", "aten.relu.default")


def test_metadata_of_an_onnx_graph() -> None:
    graph = Origins(
        [
            Node("node_Conv_1", "Conv", ("x", "w"), ("a",), ("layer1.0.conv1",)),
            Node("node_relu", "Relu", ("a",), ("b",), ("layer1.0",)),
        ]
    )
    entry = {"Name": "fused", "Metadata": "[ONNX Layer: node_Conv_1]\x1f[ONNX Layer: node_relu]"}
    (layer,) = told_layers([entry], origin_in(graph))
    assert layer.modules == ("layer1.0.conv1", "layer1.0")
    assert layer.operators == ("Conv", "Relu")
    (named,) = told_layers([{"Name": "node_Conv_1 + node_relu", "LayerType": "CaskConvolution"}], origin_in(graph))
    assert named.modules == layer.modules
    (written,) = told_layers([{"Name": "__myl_x", "Outputs": [{"Name": "b"}]}], origin_in(graph))
    assert written.modules == ("layer1.0",)


def test_layers_of_the_script_front_end_name_their_scope() -> None:
    layers = told_layers(sample("resnet18-script-engine.json")["Layers"], origin_among(PATHS))
    assert ("layer1.0.conv1",) in [layer.modules for layer in layers]
    assert ("maxpool",) in [layer.modules for layer in layers]
    assert absences(sample("resnet18-script-engine.json")["Layers"], "", layers)["details"].startswith("the engine")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("[SHUFFLE]-[aten_ops.flatten.using_ints]-[/flatten]", ("", "aten.flatten.using_ints")),
        ("[ELEMENTWISE]-[aten_ops.add.Tensor]-[layer1.0/add_2_scale]", ("layer1.0", "aten.add.Tensor")),
        ("[CONVOLUTION]-[aten_ops.convolution.default]-[nobody.knows/convolution]", None),
        ("%4 : Tensor = aten::relu(%3), scope: __module # file.py:1:0", ("", "aten::relu")),
        (
            "%4 : Tensor = aten::conv2d(%3), scope: __module.module/__module.module.fc # f.py:1:0",
            ("fc", "aten::conv2d"),
        ),
        ("__mye35665_myl0_7", None),
    ],
)
def test_names_of_layers(name: str, expected: Any) -> None:
    assert module_and_operator(name, PATHS) == expected


def test_an_engine_that_tells_names_only_says_how_to_get_more() -> None:
    layers = told_layers(["node_Conv_1", "node_relu"], nowhere)
    assert [layer.name for layer in layers] == ["node_Conv_1", "node_relu"]
    assert "profiling_verbosity=detailed" in absences(["node_Conv_1"], NO_ONNX, layers)["details"]
    assert "profiling_verbosity=detailed" in absences([], "", layers)["details"]
    assert absences(["a"], NO_ONNX, layers)["modules"] == NO_ONNX


def test_what_the_native_runtime_wrote_is_sums() -> None:
    runs = [dict(read_sums((SAMPLES / f"resnet18-run-{run}.trace").read_text())) for run in range(3)]
    stem = "__myl_CorrMulAddRelu_myl0_1"
    assert [runs[run][stem] for run in range(3)] == pytest.approx([108.8, runs[1][stem], 299.712])
    assert list(runs[0]) == [entry["Name"] for entry in sample("resnet18-dynamo-engine.json")["Layers"]]


class FakeRecorder:
    def __init__(self) -> None: ...


class FakeContext:
    """Reports when asked, or, if ``stubborn``, from within its calls alone."""

    enqueue_emits_profile = True

    def __init__(self, stubborn: bool) -> None:
        self.stubborn = stubborn
        self.profiler: Any = None

    def execute_async_v3(self, _: int) -> bool:
        if self.enqueue_emits_profile:
            self.profiler.report_layer_time("conv", 2.0)
        return True

    def report_to_profiler(self) -> bool:
        if not self.stubborn:
            self.profiler.report_layer_time("conv", 1.0)
        return not self.stubborn


@pytest.mark.parametrize("stubborn", [False, True])
def test_contexts_report_when_asked_or_from_within_their_calls(stubborn: bool) -> None:
    context, module = FakeContext(stubborn), ModuleType("fake")
    module.IProfiler = FakeRecorder  # type: ignore[attr-defined]
    with Reporting(context, module) as reporting:
        context.execute_async_v3(0)
        assert reporting.take() == ([] if stubborn else [("conv", 1.0)])
        reporting.emit()
        context.execute_async_v3(0)
        assert reporting.take() == [("conv", 2.0)]
    assert context.enqueue_emits_profile


def test_layers_of_one_name_are_told_apart_by_their_order() -> None:
    layers = [Layer(name="a"), Layer(name="b"), Layer(name="a", kind="second"), Layer(name="never")]
    timed = timed_layers(
        layers,
        [[("a", 1.0), ("b", 2.0), ("a", 3.0)], [("a", 4.0), ("b", 5.0), ("a", 6.0), ("new", 7.0)]],
        named_layer(nowhere),
    )
    assert [(layer.name, layer.kind, layer.times) for layer in timed] == [
        ("a", "", (0.001, 0.004)),
        ("b", "", (0.002, 0.005)),
        ("a", "second", (0.003, 0.006)),
        ("never", "", ()),
        ("new", "", (0.0, 0.007)),
    ]


def test_layers_that_are_reported_and_not_told_still_have_their_modules() -> None:
    name = "%8 : Tensor = aten::relu(%7), scope: __module.layer1/__module.layer1.0 # f.py:1:0_myl0_3"
    (layer,) = timed_layers([], [[(name, 1.0)]], named_layer(origin_among(PATHS)))
    assert layer.modules == ("layer1.0",)
    assert layer.times == (0.001,)


def test_reports_under_other_names_go_by_their_order() -> None:
    layers = [Layer(name="a"), Layer(name="b")]
    assert as_told([("a'", 1.0), ("b'", 2.0)], layers) == [("a", 1.0), ("b", 2.0)]
    assert as_told([("a", 1.0), ("c", 2.0)], layers) == [("a", 1.0), ("c", 2.0)]
    assert as_told([("c", 1.0)], layers) == [("c", 1.0)]


def test_a_runtime_that_will_not_profile_says_so() -> None:
    with pytest.raises(Unsupported, match="reports no times of layers"):
        timed_layers([Layer(name="a")], [[], []], named_layer(nowhere))


class FakeEngine:
    """The runtime in C++: writes sums into a folder."""

    def __init__(self) -> None:
        self.profile_path_prefix = ""
        self.on = False
        self.sum = 0.0

    def enable_profiling(self) -> None:
        self.on = True

    def disable_profiling(self) -> None:
        self.on = False

    def set_profile_format(self, _: str) -> None: ...

    def get_engine_layer_info(self) -> str:
        return '{"Layers": ["say \\"conv\\""], "Bindings": ["x"]}'

    def run(self, microseconds: float) -> None:
        self.sum += microseconds
        text = f'[ {{ "name": "say "conv"", "ph": "X", "ts": 0, "dur": {self.sum}, "tid": 1 }} ]'
        (Path(self.profile_path_prefix) / "e_engine_execution_profile.trace").write_text(text)


def test_the_native_runtime_s_runs_are_differences_of_its_sums(tmp_path: Path) -> None:
    from inferlens.backends.torch_tensorrt.engines import NativeEngine

    engine = FakeEngine()
    inside = NativeEngine("e", engine, tmp_path / "reports")
    with inside:
        assert engine.on
        for microseconds in (20.0, 30.0, 25.0):
            engine.run(microseconds)
            assert inside.take() == [('say "conv"', pytest.approx(microseconds / 1e3))]
    assert not engine.on
    assert not (tmp_path / "reports").exists()
    assert inside.information() == (['say "conv"'], ["x"])


def test_a_module_without_engines_has_none(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    assert engines_in(torch.nn.Sequential(torch.nn.ReLU()), tmp_path, None) == []
    assert engines_in(torch.jit.script(torch.nn.ReLU()), tmp_path, None) == []


def test_a_layer_that_was_rewritten_names_its_source() -> None:
    assert sources({"Metadata": "[ONNX Layer: node_Conv_805]__gemm_from_conv1x1"}) == ["node_Conv_805"]
    assert sources({"Metadata": "[ONNX Layer: a]b]\x1e[ONNX Layer: c]"}) == ["a]b", "c"]


def test_a_region_is_given_by_its_two_ends() -> None:
    assert sources({"Name": "{ForeignNode[node_a...node_b]}"}) == ["node_a", "node_b"]


def test_the_real_library_takes_the_recorder_and_the_metadata() -> None:
    tensorrt = pytest.importorskip("tensorrt_rtx")
    made = recorder(tensorrt)()
    made.report_layer_time("conv", 1.5)
    assert made.take() == [("conv", 1.5)]
    assert made.take() == []
    network = tensorrt.Builder(tensorrt.Logger()).create_network(0)
    layer = network.add_identity(network.add_input("x", tensorrt.float32, (1, 2)))
    layer.metadata = layer.metadata or "[IDENTITY]-[aten_ops.clone.default]-[fc/clone]"
    assert network.get_layer(0).metadata.endswith("[fc/clone]")


def kernel(name: str, *around: str, operator: str = "") -> Launched:
    return Launched(name=name, around=around, operator=operator)


def test_kernels_of_an_engine_and_of_parts_that_pytorch_runs_have_their_origins() -> None:
    layers = [
        Layer(name="a", modules=("one",), details={"inspector": {"Name": "a", "TacticName": "tactic_a"}}),
        Layer(name="__mye1"),
        Layer(name="b", modules=("two",)),
    ]
    part = Layer(name="_run_on_gpu_0", kind="PyTorch", modules=("pool",))
    launched = [
        kernel("fill", "aten::empty", operator="aten::fill_"),
        kernel("tactic_a", "tensorrt::execute_engine", operator="tensorrt::execute_engine"),
        kernel("max_pool", "inferlens part _run_on_gpu_0", "aten::max_pool2d", operator="aten::max_pool2d"),
        kernel("gemm", "tensorrt::execute_engine", operator="tensorrt::execute_engine"),
    ]
    told = origins_in(launched, layers, [part], {"details": "no more"})
    assert [(each.layer, each.modules) for each in told.of] == [
        ("", ()), ("a", ("one",)), ("_run_on_gpu_0", ("pool",)), ("b", ("two",)),
    ]  # fmt: skip
    assert told.absent == {"details": "no more"}
