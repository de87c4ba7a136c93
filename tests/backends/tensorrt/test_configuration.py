"""Options become the builder's configuration, or a refusal with the reason."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inferlens.backends.tensorrt.build_errors import explained
from inferlens.backends.tensorrt.configuration import configuration
from inferlens.backends.tensorrt.engine import build_plan
from inferlens.backends.tensorrt.flavours import Flavour
from inferlens.backends.tensorrt.log import condensed
from inferlens.backends.tensorrt.network import Network, network
from inferlens.backends.tensorrt.options import Options
from inferlens.backends.tensorrt.profiles import profiles
from inferlens.backends.tensorrt.timing_cache import keep_timing_cache, use_timing_cache
from inferlens.case import TensorSpec
from inferlens.errors import InferlensError, Unsupported

IMAGE = (TensorSpec("image", (1, 3, 16, 16)),)


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
    config = configuration(parsed, options, profiles("", IMAGE))
    assert config.builder_optimization_level == 5
    assert config.max_num_tactics == 7
    assert config.get_tactic_sources() == 1 << int(trt.TacticSource.JIT_CONVOLUTIONS)
    assert config.get_memory_pool_limit(trt.MemoryPoolType.WORKSPACE) == 64 * 2**20
    assert config.avg_timing_iterations == 3
    assert config.profiling_verbosity == trt.ProfilingVerbosity.LAYER_NAMES_ONLY
    for flag in ("SPARSE_WEIGHTS", "REFIT", "TF32"):
        assert config.get_flag(getattr(trt.BuilderFlag, flag))


def test_defaults_are_fp32_and_tell_of_layers(parsed: Network, rtx: Flavour) -> None:
    config = configuration(parsed, Options(), profiles("", IMAGE))
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
        configuration(parsed, Options(**options), profiles("", IMAGE))
    assert raised.value.cure or raised.value.expected


@pytest.mark.parametrize("shape", [(1, 4, 16, 16), (1, 3, 16)])
def test_a_profile_must_fit_the_graph(shape: tuple[int, ...], parsed: Network) -> None:
    specs = (TensorSpec("image", shape),)
    with pytest.raises(Unsupported, match=r"made for image=\?x3x16x16, not for"):
        configuration(parsed, Options(), profiles("", specs))
    with pytest.raises(Unsupported, match="has an input 'image'"):
        configuration(parsed, Options(), profiles("", (TensorSpec("other", (1, 3, 16, 16)),)))


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
def stand_in() -> Network:
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


def test_tensorrt_for_rtx_times_nothing(parsed: Network, tmp_path: Path) -> None:
    assert use_timing_cache(parsed, None, tmp_path / "none") is None


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("Myelin (cudnn_impl.cpp:89: CHECK(dtype == myelinTypeFP8E4M3) failed", "no INT8 convolutions"),
        ("Myelin (kernel_gen.cpp:1212: CHECK(sm_vers_.size() == 1) failed.", "one compute capability at a time"),
        ("Cannot compile for target(s) sm75, sm80, because the model contains HW-specific datatypes: fp8_e4m3.",
         "GPUs of compute capability 7.5, 8.0 have no FP8"),
        ("Error Code 1: Cuda Runtime (In generateForCurrent at /_src/x.cpp:186)", "on a GPU alone"),
    ],
)  # fmt: skip
def test_known_errors_of_the_builder_are_explained(error: str, reason: str) -> None:
    told, cure = explained([error], has_gpu=False)
    assert reason in told
    assert cure


def test_other_errors_of_the_builder_are_its_own_words() -> None:
    assert explained(["Error Code 9: Internal Error (no tactic In x at /y.cpp:1)"], has_gpu=True) == (
        "Internal Error: no tactic",
        "",
    )
