"""ONNX files that become networks or have one clear message; options of the builder; flavours and plugins."""

import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import onnx
import pytest
import torch
from onnx import TensorProto, helper

from inferlens.backends.base import Absence
from inferlens.backends.tensorrt import library as libraries
from inferlens.backends.tensorrt import options as configuring
from inferlens.backends.tensorrt.backend import TensorRT
from inferlens.backends.tensorrt.engine import cached_engine
from inferlens.backends.tensorrt.library import Flavour
from inferlens.backends.tensorrt.options import TensorRTOptions, parse_profiles
from inferlens.record.record import Gpu
from inferlens.spec.case import Case, TensorSpec
from tests.backends.small import quantized_file, unsupported
from tests.backends.tensorrt import without_gpu
from tests.refusals import refusal

EVIL = "evil\x1b[31m\nError: fake"
SCOPES = "['', 'encoder', 'encoder.layers.3', 'encoder.layers.3.warp', 'warp']"
CONSTANT = helper.make_node("Constant", [], ["one"], value=helper.make_tensor("one", TensorProto.INT64, [1], [1]))


@pytest.mark.parametrize("content", [b"", b"hello" * 100, "cut", "garbled", None])
def test_a_broken_file_is_one_sentence(content, graph, tmp_path, rtx):
    path, whole = tmp_path / "broken.onnx", graph.read_bytes()
    if content == "garbled":
        content = whole[:200] + bytes(reversed(whole[200:600])) + whole[600:]
    if content is not None:
        path.write_bytes(whole[: len(whole) // 2] if content == "cut" else content)
    raised = unsupported(".", configuring.parse_network, path, rtx)
    assert str(path) in str(raised)
    assert "\n" not in str(raised)


@pytest.mark.parametrize(("nodes", "named"), [
    ([helper.make_node("Det", ["x"], ["y"], name="det")], ["'det' (Det)", "no such operator"]),
    ([helper.make_node("Relu", ["nothing"], ["y"], name="relu")], ["'relu' (Relu)"]),
    ([helper.make_node("Add", ["x", "w"], ["y"], name="add")], ["'add' (Add)", "broadcast"]),
    ([CONSTANT, helper.make_node("Add", ["x", "one"], ["y"], name="add")], ["'add' (Add)", "Float and Int64"]),
    ([helper.make_node(EVIL, ["x"], ["y"], name=EVIL)], ["the ONNX node 'evil [31m Error: fake'"]),
], ids=["operator", "dangling", "shapes", "types", "name"])  # fmt: skip
def test_a_node_that_cannot_be_parsed_is_named(nodes, named, tmp_path, rtx):
    raised = unsupported(".", configuring.parse_network, saved(tmp_path, nodes, domains=("acme",)), rtx)
    assert all(words in raised.what for words in named), raised.what
    assert "Error Code" not in raised.what
    assert "\n" not in str(raised)
    assert raised.hint


class Positive(torch.nn.Module):
    def forward(self, x):
        return torch.nonzero(x > 0)


@without_gpu
def test_an_unsupported_operator_is_named_with_its_module(tmp_path, rtx):
    """A custom operator deep in a module, and NonZero, for which the parser looks for a missing plugin."""
    node = helper.make_node("Warp", ["a"], ["y"], name="node_warp", domain="acme")
    node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=SCOPES)
    warp = saved(tmp_path, [helper.make_node("Relu", ["x"], ["a"], name="relu"), node], domains=("acme",))
    places = tmp_path / "places.onnx"
    outer = torch.nn.Sequential()
    outer.add_module("places", Positive())
    torch.onnx.export(outer.eval(), (torch.ones(4, 8),), places, dynamo=True, verbose=False)
    for path, operator, module in ((warp, "Warp", "encoder.layers.3.warp"), (places, "NonZero", "places")):
        raised = unsupported(".", configuring.parse_network, path, rtx)
        assert f"({operator}, in the module {module}): it has no such operator." in raised.what


@without_gpu
@pytest.mark.parametrize("kind", ["int8", "fp8"])
@pytest.mark.parametrize("layers", ["linear", "convolution"])
def test_quantized_graphs_build_as_they_are(kind, layers, tmp_path, job, preparation, rtx):
    wanted = job(path=quantized_file(tmp_path, kind, layers), precision=kind, compute_capability="8.9")
    if layers == "linear":
        model = dataclasses.replace(wanted.model, inputs=(TensorSpec("image", (4, 32)),))
        wanted = dataclasses.replace(wanted, model=model)
    parsed = configuring.parse_network(wanted.path, rtx)
    parts = map(parsed.definition.get_layer, range(parsed.definition.num_layers))
    assert {"QUANTIZE", "DEQUANTIZE"} <= {part.type.name for part in parts}
    version = tuple(map(int, rtx.version.split(".")[:2]))
    if ((kind, layers) == ("int8", "convolution") and version < (1, 7)) or version < (1, 5):
        unsupported("cannot build the engine", cached_engine, wanted, preparation)
    else:
        assert len(cached_engine(wanted, preparation).content) > 1000


def saved(folder, nodes, domains=()):
    """Save a graph from ``x`` to ``y``, both 1x4, with a weight ``w`` of size 3."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in ("x", "y")]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [3], [1, 2, 3])
    sets = [helper.make_opsetid("", 20), *(helper.make_opsetid(domain, 1) for domain in domains)]
    graph = helper.make_graph(nodes, "graph", ends[:1], ends[1:], [weight])
    onnx.save(helper.make_model(graph, opset_imports=sets, ir_version=10), folder / "made.onnx")
    return folder / "made.onnx"


# Options become the builder's configuration and optimization profiles, or a refusal.

IMAGE = (TensorSpec("image", (1, 3, 16, 16)),)
TWO = (TensorSpec("image", (2, 3, 8, 8)),)
TEXTS = (TensorSpec("ids", (1, 128), "int64"), TensorSpec("mask", (1, 128), "int64"))


def options(**more):
    return TensorRTOptions(**{"compute_capability": "8.9", **more})


@pytest.fixture
def parsed(graph, rtx):
    return configuring.parse_network(graph, rtx)


def test_options_reach_the_builder(parsed, rtx):
    trt = rtx.module
    wanted = options(
        optimization_level=5, max_num_tactics=7, tactic_sources="JIT_CONVOLUTIONS", workspace=64,
        avg_timing_iterations=3, sparsity=True, refittable=True, profiling_verbosity="layer_names_only", tf32=True,
        compute_capability="8.0+8.9",
    )  # fmt: skip
    config = configuring.builder_config(parsed, wanted, parse_profiles("", IMAGE))
    reached = (config.num_compute_capabilities, config.builder_optimization_level, config.max_num_tactics)
    assert (*reached, config.avg_timing_iterations) == (2, 5, 7, 3)
    assert config.get_tactic_sources() == 1 << int(trt.TacticSource.JIT_CONVOLUTIONS)
    assert config.get_memory_pool_limit(trt.MemoryPoolType.WORKSPACE) == 64 * 2**20
    assert config.profiling_verbosity == trt.ProfilingVerbosity.LAYER_NAMES_ONLY
    for flag in ("SPARSE_WEIGHTS", "REFIT", "TF32"):
        assert config.get_flag(getattr(trt.BuilderFlag, flag))
    usual = configuring.builder_config(parsed, options(), parse_profiles("", IMAGE))
    assert not usual.get_flag(trt.BuilderFlag.TF32)
    assert usual.profiling_verbosity == trt.ProfilingVerbosity.DETAILED
    assert usual.builder_optimization_level == TensorRTOptions().optimization_level


def test_knobs_are_tried_only_in_the_flavour_where_they_act():
    for variant, precision, names in (
        ("rtx", "fp32", {"cuda_graph", "streams"}),
        ("trt", "fp16", {"cuda_graph", "streams", "optimization_level", "avg_timing_iterations", "max_num_tactics"}),
    ):
        of = Case(model="m", backend="tensorrt", variant=variant, device="cuda", precision=precision)
        assert {knob.name for knob in TensorRT.knobs if knob.fits(of)} == names


@pytest.mark.parametrize(("more", "help"), [
    ({"version_compatible": True}, "build after an update"),
    ({"hardware_compatible": "ampere_plus"}, "compute_capability=7.5+8.0"),
    ({"tactic_sources": "GUESSES"}, "some of "), ({"compute_capability": "8.9+9.0"}, "8.6"),
    ({"compute_capability": ""}, "8.9"),
])  # fmt: skip
def test_options_that_the_flavour_lacks_are_refused(more, help, parsed, monkeypatch):
    monkeypatch.setattr(configuring, "current_gpu", lambda: None)
    raised = refusal(".", configuring.builder_config, parsed, options(**more), parse_profiles("", IMAGE))
    assert help in str(raised)


@pytest.mark.parametrize(("profile", "what"), [
    ({"image": ((1, 4, 16, 16),) * 3}, r"made for image=\?x3x16x16, not for 1x4x16x16"),
    ({"image": ((1, 3, 16),) * 3}, r"made for image=\?x3x16x16, not for 1x3x16"),
    ({"other": ((1, 3, 16, 16),) * 3}, "has an input 'image'"),
])  # fmt: skip
def test_a_profile_that_does_not_fit_the_graph_is_refused(profile, what, parsed):
    unsupported(what, configuring.builder_config, parsed, options(), (profile,))


@pytest.mark.parametrize(("text", "specs", "profiles"), [
    ("", TWO, [{"image": ((2, 3, 8, 8),) * 3}]),
    (
        "1x3x8x8/2x3x8x8/16x3x8x8; 32x3x8x8", TWO,
        [{"image": ((1, 3, 8, 8), (2, 3, 8, 8), (16, 3, 8, 8))}, {"image": ((32, 3, 8, 8),) * 3}],
    ),
    (
        "ids=1x8/1x128/4x512 + mask=1x8/1x128/4x512", TEXTS,
        [dict.fromkeys(("ids", "mask"), ((1, 8), (1, 128), (4, 512)))],
    ),
    ("mask=1x8/1x128/4x512", TEXTS, [{"ids": ((1, 128),) * 3, "mask": ((1, 8), (1, 128), (4, 512))}]),
])  # fmt: skip
def test_profiles_as_text(text, specs, profiles):
    assert parse_profiles(text, specs) == tuple(profiles)
    assert [list(profile) for profile in parse_profiles(text, specs)] == [list(profile) for profile in profiles]


@pytest.mark.parametrize(("text", "specs", "message"), [
    ("1x3x8x8/2x3x8x8", TWO, "is not a profile"), ("1x3x0x8", TWO, "is not a profile"),
    ("1x3", TWO, "is not a profile"), ("4x3x8x8/2x3x8x8/8x3x8x8", TWO, "is not a profile"),
    ("imag=1x3x8x8", TWO, "names no input of the model, such as image"), ("1x3x8x8; ", TWO, "is not a profile"),
    ("1x8/1x128/4x512", TEXTS, "names no input"),
    ("mask=1x8/1x128/4x512", (TensorSpec("ids", (-1, 128)), TEXTS[1]), r"are free \(\?x128\)"),
    ("imag=2x8", (TensorSpec("image\nError: fake", (-1, 8)),), "such as image Error: fake"),
])  # fmt: skip
def test_a_wrong_profile_is_refused(text, specs, message):
    assert "\n" not in str(refusal(message, parse_profiles, text, specs))


# TensorRT is not installed without its vendor's index. A stand-in shows the calls.


class Flag:
    TF32, SPARSE_WEIGHTS, REFIT, VERSION_COMPATIBLE, FP16, BF16, INT8 = range(7)


class Config:
    """A builder's configuration that keeps its flags."""

    def __init__(self):
        self.flags = set()
        self.set_flag, self.clear_flag = self.flags.add, self.flags.discard


@pytest.fixture
def stand_in(monkeypatch):
    monkeypatch.setattr(configuring, "current_gpu", lambda: Gpu(name="a GPU", compute_capability="8.9"))
    trt = SimpleNamespace(
        BuilderFlag=Flag, ProfilingVerbosity=SimpleNamespace(DETAILED=2),
        HardwareCompatibilityLevel=SimpleNamespace(AMPERE_PLUS=1), IBuilderConfig=object,
    )  # fmt: skip
    builder = SimpleNamespace(create_builder_config=Config)
    flavour = Flavour("trt", "tensorrt", "TensorRT", "10.13.0.35", trt)
    definition = SimpleNamespace(num_inputs=0)
    return configuring.Network(flavour, SimpleNamespace(errors=[]), builder, definition, None, weakly_typed=True)


def test_weakly_typed_networks_may_be_lowered_to_the_cases_precision(stand_in):
    assert not stand_in.flavour.strongly_typed_only
    assert not stand_in.flavour.jit
    assert not stand_in.flavour.targets
    for precision, flags in (("fp32", set()), ("fp16", {Flag.FP16}), ("bf16", {Flag.BF16}), ("int8", {Flag.INT8})):
        assert configuring.builder_config(stand_in, TensorRTOptions(), (), precision).flags == flags
    more = TensorRTOptions(version_compatible=True, hardware_compatible="ampere_plus", tf32=True)
    config = configuring.builder_config(stand_in, more, ())
    assert (config.flags, config.hardware_compatibility_level) == ({Flag.VERSION_COMPATIBLE, Flag.TF32}, 1)


# Which flavours there are, whether they are what they are called, and the plugins that they load

SOURCE = Path(__file__).with_name("plugin.cpp")
# In a process of its own: what is registered stays so until a process ends.
LOADED = """
import sys
from inferlens.backends.base import Absence
from inferlens.backends.tensorrt.library import load_flavour, load_plugins, registered_plugins

rtx, library = load_flavour("rtx"), sys.argv[1]
before = registered_plugins(rtx)
for _ in range(2):
    load_plugins(rtx, library)
print(*sorted(set(registered_plugins(rtx)) - set(before)), sep="\\n")
"""


def test_a_flavour_that_is_not_here_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", None)
    assert "tensorrt-rtx" in unsupported(".", libraries.load_flavour, "rtx").hint


def test_rtx_under_the_name_of_tensorrt_is_not_tensorrt(rtx, monkeypatch):
    """Torch-TensorRT for RTX puts it there."""
    alias = ModuleType("tensorrt")
    alias.__file__ = rtx.module.__file__
    alias.__version__ = rtx.version
    monkeypatch.setitem(sys.modules, "tensorrt", alias)
    flavour = libraries.find_flavour("trt")
    assert isinstance(flavour, Absence) or flavour.module is not alias
    assert sys.modules["tensorrt"] is alias


def test_targets_are_named_where_there_is_no_gpu_and_sorted(rtx):
    assert libraries.resolve_targets(("8.9", "8.0"), rtx, None) == ("8.0", "8.9")
    for named, hint in (((), "compute_capability=7.5+8.0"), (("8.9", "9.0"), "machine with such a GPU")):
        assert hint in unsupported(".", libraries.resolve_targets, named, rtx, None).hint


def test_plugins_are_loaded_by_path(rtx, tmp_path):
    assert all(name[-1].isdigit() for name in libraries.registered_plugins(rtx))  # each with its version
    (tmp_path / "text.so").write_text("no library")
    for name in ("none.so", ".", "text.so"):
        raised = refusal(".", libraries.load_plugins, rtx, str(tmp_path / name))
        assert str(tmp_path) in raised.what
    assert raised.hint.startswith(f"ldd {tmp_path}/text.so")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    path = tmp_path_factory.mktemp("plugin") / "libwarp.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(path), str(SOURCE)], check=True)
    return path


def test_a_real_library_of_plugins_is_loaded_and_listed(library, rtx):
    done = subprocess.run([sys.executable, "-c", LOADED, str(library)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()) == (0, ["acme::Warp 1"]), done.stderr


def test_errors_are_condensed_to_what_they_say():
    errors = [
        "IBuilder::buildSerializedNetwork: Error Code 6: API Usage Error (Unable to load library: libx.so.1 In Impl at "
        "/_src/runtime/dispatch/libLoader.cpp:305)",
        "[checkMacros.cpp::catchCudaError::247] Error Code 1: Cuda Runtime (In x at /y.cpp:1 (cudaError 35: old))",
        "ITensor::getDimensions: Error Code 4: Shape Error (dimensions differ In op at /_src/x.cpp:2700)",
    ]
    summary = libraries.error_summary(errors)
    assert "API Usage Error (Unable to load library: libx.so.1)" in summary
    assert "Shape Error (dimensions differ)" in summary
    assert "_src" not in summary
    assert "Cuda Runtime" not in summary
    assert libraries.error_summary([])
