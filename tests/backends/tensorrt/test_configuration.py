"""Options become the builder's configuration, or a refusal with the reason."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from inferlens.backends.base import Preparation
from inferlens.backends.tensorrt import configuration as configuring
from inferlens.backends.tensorrt.backend import TensorRT
from inferlens.backends.tensorrt.configuration import configuration
from inferlens.backends.tensorrt.engine import build_plan
from inferlens.backends.tensorrt.flavours import Flavour
from inferlens.backends.tensorrt.log import condensed
from inferlens.backends.tensorrt.network import Network, network
from inferlens.backends.tensorrt.options import Options
from inferlens.backends.tensorrt.profiles import profiles
from inferlens.backends.tensorrt.timing_cache import check_timing_cache, keep_timing_cache, use_timing_cache
from inferlens.errors import InferlensError, Unsupported
from inferlens.models.model import Model
from inferlens.record.record import Gpu
from inferlens.spec.case import Case, TensorSpec

IMAGE = (TensorSpec("image", (1, 3, 16, 16)),)
HERE = ("8.9",)


@pytest.fixture
def parsed(graph: Path, rtx: Flavour) -> Network:
    return network(graph, rtx)


def test_the_steps_can_be_used_alone(parsed: Network) -> None:
    config = configuration(parsed, Options(), profiles("1x3x16x16/2x3x16x16/8x3x16x16", IMAGE), ("8.0", "8.9"))
    assert config.num_compute_capabilities == 2
    assert build_plan(parsed, config)[:4] == b"vtrt"
    assert [(spec.name, spec.shape) for spec in parsed.inputs] == [("image", (-1, 3, 16, 16))]
    assert [spec.shape for spec in parsed.outputs] == [(-1, 10)]


def test_options_reach_the_builder(parsed: Network, rtx: Flavour) -> None:
    trt = rtx.module
    options = Options(
        optimization_level=5, max_num_tactics=7, tactic_sources="JIT_CONVOLUTIONS", workspace=64,
        avg_timing_iterations=3, sparsity=True, refittable=True, profiling_verbosity="layer_names_only", tf32=True,
    )  # fmt: skip
    config = configuration(parsed, options, profiles("", IMAGE), HERE)
    assert config.builder_optimization_level == 5
    assert config.max_num_tactics == 7
    assert config.get_tactic_sources() == 1 << int(trt.TacticSource.JIT_CONVOLUTIONS)
    assert config.get_memory_pool_limit(trt.MemoryPoolType.WORKSPACE) == 64 * 2**20
    assert config.avg_timing_iterations == 3
    assert config.profiling_verbosity == trt.ProfilingVerbosity.LAYER_NAMES_ONLY
    for flag in ("SPARSE_WEIGHTS", "REFIT", "TF32"):
        assert config.get_flag(getattr(trt.BuilderFlag, flag))


def test_defaults_are_fp32_and_tell_of_layers(parsed: Network, rtx: Flavour) -> None:
    config = configuration(parsed, Options(), profiles("", IMAGE), HERE)
    assert not config.get_flag(rtx.module.BuilderFlag.TF32)
    assert config.profiling_verbosity == rtx.module.ProfilingVerbosity.DETAILED
    assert config.builder_optimization_level == Options().optimization_level


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"version_compatible": True}, "no lean runtime"),
        ({"hardware_compatible": "ampere_plus"}, "no levels of hardware compatibility"),
        ({"tactic_sources": "GUESSES"}, "no tactic source 'guesses'"),
    ],
)
def test_what_the_flavour_lacks_is_refused(options: dict[str, Any], message: str, parsed: Network) -> None:
    with pytest.raises(InferlensError, match=message) as raised:
        configuration(parsed, Options(**options), profiles("", IMAGE), HERE)
    assert raised.value.hint or raised.value.expected


def test_a_flavour_without_levels_names_all_the_gpus_that_it_builds_for(parsed: Network, rtx: Flavour) -> None:
    with pytest.raises(Unsupported) as raised:
        configuration(parsed, Options(hardware_compatible="ampere_plus"), profiles("", IMAGE), HERE)
    assert f"compute_capability={'+'.join(rtx.targets)}" in raised.value.hint
    assert "7.5+8.0" in raised.value.hint


def test_targets_are_those_that_there_are(parsed: Network) -> None:
    with pytest.raises(Unsupported, match=r"cannot build for compute capability 9\.0") as raised:
        configuration(parsed, Options(), profiles("", IMAGE), ("8.9", "9.0"))
    assert "8.6" in raised.value.expected


def test_without_a_gpu_a_target_must_be_named(parsed: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configuring, "current_gpu", lambda: None)
    with pytest.raises(Unsupported, match="no GPU here") as raised:
        configuration(parsed, Options(), profiles("", IMAGE))
    assert "8.9" in raised.value.hint


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((-1, 3, 16, 16),) * 3, r"profile of image, \?x3x16x16/"),
        (((4, 3, 16, 16), (2, 3, 16, 16), (8, 3, 16, 16)), "profile of image, 4x3x16x16/2x3x16x16/8x3x16x16"),
    ],
)
def test_a_profile_that_is_no_range_is_refused(shapes: Any, message: str, parsed: Network) -> None:
    with pytest.raises(Unsupported, match=message) as raised:
        configuration(parsed, Options(), ({"image": shapes},), HERE)
    assert "grow" in raised.value.expected


SHARED = (TensorSpec("a", (1, 8)), TensorSpec("b", (1, 8)))


@pytest.fixture
def sum_of_two(tmp_path: Path, rtx: Flavour) -> Network:
    """Of two inputs whose first size is one and the same, ``N``."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 8]) for name in ("a", "b", "y")]
    graph = helper.make_graph([helper.make_node("Add", ["a", "b"], ["y"], name="add")], "graph", ends[:2], ends[2:])
    path = tmp_path / "sum.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return network(path, rtx)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a=1x8/2x8/4x8+b=1x8/2x8/4x8;a=4x8", "In profile 1 the size 'N' is 4 in the input 'a' and 1 in 'b'"),
        ("a=1x8/2x8/4x8+b=1x8/1x8/4x8", "In profile 0 the size 'N' is 1/2/4 in the input 'a' and 1/1/4 in 'b'"),
        ("a=1x8/2x8/4x8+b=1x8/2x8/2x8", "In profile 0 the size 'N' is 1/2/4 in the input 'a' and 1/2/2 in 'b'"),
        ("a=2x8+b=1x8/2x8/4x8", "In profile 0 the size 'N' is 2 in the input 'a' and 1/2/4 in 'b'"),
    ],
)
def test_a_size_that_inputs_share_has_one_value_in_a_profile(text: str, said: str, sum_of_two: Network) -> None:
    with pytest.raises(Unsupported, match=said) as raised:
        configuration(sum_of_two, Options(), profiles(text, SHARED), HERE)
    written = raised.value.hint.partition(" ")[0]  # what is advised builds
    assert configuration(sum_of_two, Options(), profiles(written, SHARED), HERE)


def test_a_range_of_one_of_two_inputs_that_share_a_size_builds_no_engine(
    sum_of_two: Network, preparation: Preparation, tmp_path: Path
) -> None:
    """As of ``--input a=1..8x8:opt=2``: the engine would run at 2 alone, and its description claim 1 to 8."""
    inputs = (TensorSpec("a", (2, 8), least=(1, 8), best=(2, 8), most=(8, 8)), TensorSpec("b", (2, 8)))
    model = Model("onnx:sum.onnx", "sum", "onnx", inputs, path=tmp_path / "sum.onnx")
    case = Case(model=model.spec, backend="tensorrt", variant="rtx", options={"compute_capability": "8.9"})
    with pytest.raises(Unsupported, match="'N' is 1/2/8 in the input 'a' and 2 in 'b'") as raised:
        TensorRT().build(model, case, preparation, tmp_path / "sum.engine")
    assert raised.value.hint == "a=1x8/2x8/8x8+b=1x8/2x8/8x8 as that profile of --option tensorrt.profiles"
    assert not (tmp_path / "sum.engine.json").exists()


@pytest.mark.parametrize("text", ["a=1x8/2x8/4x8+b=1x8/2x8/4x8;a=4x8+b=4x8", "a=2x8+b=2x8"])
def test_profiles_in_which_a_shared_size_is_one_build(text: str, sum_of_two: Network) -> None:
    config = configuration(sum_of_two, Options(), profiles(text, SHARED), HERE)
    assert build_plan(sum_of_two, config)[:4] == b"vtrt"


@pytest.mark.parametrize("shape", [(1, 4, 16, 16), (1, 3, 16)])
def test_a_profile_must_fit_the_graph(shape: tuple[int, ...], parsed: Network) -> None:
    specs = (TensorSpec("image", shape),)
    with pytest.raises(Unsupported, match=r"made for image=\?x3x16x16, not for"):
        configuration(parsed, Options(), profiles("", specs), HERE)
    with pytest.raises(Unsupported, match="has an input 'image'"):
        configuration(parsed, Options(), profiles("", (TensorSpec("other", (1, 3, 16, 16)),)), HERE)


def test_an_input_of_which_the_graph_tells_no_shape_is_said_to_be_one(tmp_path: Path, rtx: Flavour) -> None:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "graph", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "x.onnx")
    parsed, shapes = network(tmp_path / "x.onnx", rtx), profiles("", (TensorSpec("x", (2, 3)),))
    with pytest.raises(Unsupported, match="tells no shape of its input 'x', and TensorRT takes that for a scalar"):
        configuration(parsed, Options(), shapes, HERE)


def test_errors_are_condensed_to_what_they_say() -> None:
    told = condensed(
        [
            "IBuilder::buildSerializedNetwork: Error Code 6: API Usage Error (Unable to load library: libx.so.1 In "
            "Impl at /_src/runtime/dispatch/libLoader.cpp:305)",
            "[checkMacros.cpp::catchCudaError::247] Error Code 1: Cuda Runtime (In x at /y.cpp:1 (cudaError 35: old))",
            "ITensor::getDimensions: Error Code 4: Shape Error (dimensions differ In op at /_src/x.cpp:2700)",
        ]
    )
    assert told == "API Usage Error: Unable to load library: libx.so.1; Shape Error: dimensions differ"
    assert condensed([]) == "no reason given"
    told = condensed(["Error Code 9: Internal Error (no tactic (of any kind) In x at /y.cpp:1)", "no libx (in /lib)."])
    assert told == "Internal Error: no tactic (of any kind); no libx (in /lib)"


# TensorRT itself cannot be had without its vendor's index; a stand-in tells what it would be asked for.


class Flag:
    """Names of flags, as an enumeration of TensorRT 10 has them."""

    TF32, SPARSE_WEIGHTS, REFIT, VERSION_COMPATIBLE, FP16, BF16, INT8 = range(7)


class Config:
    """A builder's configuration that remembers."""

    def __init__(self) -> None:
        self.set: set[int] = set()
        self.cache: Any = None

    def set_flag(self, flag: int) -> None:
        self.set.add(flag)

    def clear_flag(self, flag: int) -> None:
        self.set.discard(flag)

    def create_timing_cache(self, data: bytes) -> Any:
        return None if data.startswith(b"foreign") else Timings(data)

    def set_timing_cache(self, cache: Any, ignore: bool) -> bool:
        assert not ignore
        self.cache = cache
        return True

    def get_timing_cache(self) -> Any:
        return self.cache


class Timings:
    """Timings as a set of letters."""

    def __init__(self, data: bytes) -> None:
        self.data = set(data)

    def combine(self, other: Timings, ignore: bool) -> None:
        self.data |= other.data

    def serialize(self) -> bytes:
        return bytes(sorted(self.data))


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Network:
    monkeypatch.setattr(configuring, "current_gpu", lambda: Gpu(name="a GPU", compute_capability="8.9"))
    trt = SimpleNamespace(
        BuilderFlag=Flag, ProfilingVerbosity=SimpleNamespace(DETAILED=2),
        HardwareCompatibilityLevel=SimpleNamespace(AMPERE_PLUS=1), IBuilderConfig=object,
    )  # fmt: skip
    builder = SimpleNamespace(create_builder_config=Config)
    definition = SimpleNamespace(num_inputs=0)
    flavour = Flavour("trt", "tensorrt", "TensorRT", "10.13.0.35", trt)
    return Network(flavour, SimpleNamespace(errors=[]), builder, definition, None, weakly_typed=True)


def test_weakly_typed_networks_may_be_lowered_to_the_cases_precision(stand_in: Network) -> None:
    assert not stand_in.flavour.strongly_typed_only
    assert not stand_in.flavour.jit
    assert not stand_in.flavour.targets
    for precision, flags in (("fp32", set()), ("fp16", {Flag.FP16}), ("bf16", {Flag.BF16}), ("int8", {Flag.INT8})):
        assert configuration(stand_in, Options(), (), precision=precision).set == flags
    more = Options(version_compatible=True, hardware_compatible="ampere_plus", tf32=True)
    config = configuration(stand_in, more, ())
    assert config.set == {Flag.VERSION_COMPATIBLE, Flag.TF32}
    assert config.hardware_compatibility_level == 1


def test_timings_are_loaded_used_and_merged_back(stand_in: Network, tmp_path: Path) -> None:
    path, config = tmp_path / "timings.cache", Config()
    use_timing_cache(stand_in, config, path)
    config.cache.data = set(b"ab")
    path.write_bytes(b"bc")  # another process, meanwhile
    keep_timing_cache(config, path)
    assert path.read_bytes() == b"abc"
    path.write_bytes(b"foreign")
    with pytest.raises(InferlensError, match=r"holds no timings of TensorRT 10"):
        use_timing_cache(stand_in, config, path)


def test_the_file_of_timings_is_looked_at_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"timings")
    for fine in ("", str(tmp_path / "file"), str(tmp_path / "new"), str(tmp_path / "new" / "folder" / "new")):
        check_timing_cache(fine)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    for name, problem in ((".", "is a folder"), ("file/new", "file is no folder")):
        with pytest.raises(InferlensError, match=problem) as raised:
            check_timing_cache(str(tmp_path / name))
        assert str(tmp_path / name) in raised.value.what
    with pytest.raises(InferlensError, match="is no file"):
        check_timing_cache("/dev/null")


@pytest.mark.parametrize(
    ("name", "value", "taken"),
    [
        ("max_num_tactics", "99999999999", "0 to 2147483646"), ("avg_timing_iterations", 10**11, "1 to 2147483647"),
        ("workspace", "9" * 30, "0 to 8796093022207"), ("optimization_level", "9", "a whole number from 0 to 5"),
        ("streams", 0, "a whole number, 1 or more"), ("sparsity", "perhaps", "true or false"),
        ("hardware_compatible", "all", "one of none, ampere_plus, same_compute_capability"),
    ],
)  # fmt: skip
def test_a_value_that_an_option_does_not_take(name: str, value: Any, taken: str) -> None:
    case = Case(model="small", backend="tensorrt", variant="rtx", options={name: value})
    with pytest.raises(InferlensError) as raised:
        TensorRT.parse_options(case)
    assert raised.value.what == f"The option tensorrt.{name} does not take '{value}'."
    assert taken in raised.value.expected


@pytest.mark.parametrize(
    "options", [{"max_num_tactics": 2**31 - 2}, {"avg_timing_iterations": 2**31 - 1}, {"workspace": 2**43 - 1}], ids=str
)
def test_the_largest_values_are_taken_by_the_builder_too(options: dict[str, Any], parsed: Network) -> None:
    assert build_plan(parsed, configuration(parsed, Options(**options), profiles("", IMAGE), ("8.9",)))


def test_tensorrt_for_rtx_times_nothing(parsed: Network, tmp_path: Path) -> None:
    assert use_timing_cache(parsed, None, tmp_path / "none") is None
