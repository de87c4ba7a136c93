"""Options become the builder's configuration and optimization profiles, or a refusal with the reason."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inferlens.backends.tensorrt import network as configuring
from inferlens.backends.tensorrt.backend import TensorRT
from inferlens.backends.tensorrt.flavours import Flavour
from inferlens.backends.tensorrt.network import Network, configuration, keep_timing_cache, network, use_timing_cache
from inferlens.backends.tensorrt.options import TensorRTOptions
from inferlens.backends.tensorrt.profiles import check_shapes, profiles, spread
from inferlens.errors import InferlensError, Unsupported
from inferlens.record.record import Gpu
from inferlens.spec.case import Case, TensorSpec

IMAGE = (TensorSpec("image", (1, 3, 16, 16)),)
TWO = (TensorSpec("image", (2, 3, 8, 8)),)
TEXTS = (TensorSpec("ids", (1, 128), "int64"), TensorSpec("mask", (1, 128), "int64"))


def options(**more: Any) -> TensorRTOptions:
    return TensorRTOptions(**{"compute_capability": "8.9", **more})


@pytest.fixture
def parsed(graph: Path, rtx: Flavour) -> Network:
    return network(graph, rtx)


def test_options_reach_the_builder(parsed: Network, rtx: Flavour) -> None:
    trt = rtx.module
    wanted = options(
        optimization_level=5, max_num_tactics=7, tactic_sources="JIT_CONVOLUTIONS", workspace=64,
        avg_timing_iterations=3, sparsity=True, refittable=True, profiling_verbosity="layer_names_only", tf32=True,
        compute_capability="8.0+8.9",
    )  # fmt: skip
    config = configuration(parsed, wanted, profiles("", IMAGE))
    reached = (config.num_compute_capabilities, config.builder_optimization_level, config.max_num_tactics)
    assert (*reached, config.avg_timing_iterations) == (2, 5, 7, 3)
    assert config.get_tactic_sources() == 1 << int(trt.TacticSource.JIT_CONVOLUTIONS)
    assert config.get_memory_pool_limit(trt.MemoryPoolType.WORKSPACE) == 64 * 2**20
    assert config.profiling_verbosity == trt.ProfilingVerbosity.LAYER_NAMES_ONLY
    for flag in ("SPARSE_WEIGHTS", "REFIT", "TF32"):
        assert config.get_flag(getattr(trt.BuilderFlag, flag))
    usual = configuration(parsed, options(), profiles("", IMAGE))
    assert not usual.get_flag(trt.BuilderFlag.TF32)
    assert usual.profiling_verbosity == trt.ProfilingVerbosity.DETAILED
    assert usual.builder_optimization_level == TensorRTOptions().optimization_level


def test_knobs_are_tried_only_in_the_flavour_where_they_act() -> None:
    for variant, precision, names in (
        ("rtx", "fp32", {"cuda_graph", "streams"}),
        ("trt", "fp16", {"cuda_graph", "streams", "optimization_level", "avg_timing_iterations", "max_num_tactics"}),
    ):
        of = Case(model="m", backend="tensorrt", variant=variant, device="cuda", precision=precision)
        assert {knob.name for knob in TensorRT.knobs if knob.fits(of)} == names


@pytest.mark.parametrize(
    ("more", "help"),
    [
        ({"version_compatible": True}, "build after an update"),
        ({"hardware_compatible": "ampere_plus"}, "compute_capability=7.5+8.0"),
        ({"tactic_sources": "GUESSES"}, "some of "),
        ({"compute_capability": "8.9+9.0"}, "8.6"),
        ({"compute_capability": ""}, "8.9"),
    ],
)
def test_what_the_flavour_lacks_is_refused(
    more: dict[str, Any], help: str, parsed: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(configuring, "current_gpu", lambda: None)
    with pytest.raises(InferlensError) as raised:
        configuration(parsed, options(**more), profiles("", IMAGE))
    assert help in str(raised.value)


@pytest.mark.parametrize(
    ("profile", "what"),
    [
        ({"image": ((1, 4, 16, 16),) * 3}, r"made for image=\?x3x16x16, not for 1x4x16x16"),
        ({"image": ((1, 3, 16),) * 3}, r"made for image=\?x3x16x16, not for 1x3x16"),
        ({"other": ((1, 3, 16, 16),) * 3}, "has an input 'image'"),
    ],
)
def test_a_profile_that_does_not_fit_the_graph_is_refused(profile: Any, what: str, parsed: Network) -> None:
    with pytest.raises(Unsupported, match=what):
        configuration(parsed, options(), (profile,))


# Profiles


@pytest.mark.parametrize(
    ("text", "specs", "found"),
    [
        ("", TWO, [{"image": ((2, 3, 8, 8),) * 3}]),
        (
            "1x3x8x8/2x3x8x8/16x3x8x8; 32x3x8x8",
            TWO,
            [{"image": ((1, 3, 8, 8), (2, 3, 8, 8), (16, 3, 8, 8))}, {"image": ((32, 3, 8, 8),) * 3}],
        ),
        (
            "ids=1x8/1x128/4x512 + mask=1x8/1x128/4x512",
            TEXTS,
            [dict.fromkeys(("ids", "mask"), ((1, 8), (1, 128), (4, 512)))],
        ),
        ("mask=1x8/1x128/4x512", TEXTS, [{"ids": ((1, 128),) * 3, "mask": ((1, 8), (1, 128), (4, 512))}]),
    ],
)
def test_profiles_as_text(text: str, specs: tuple[TensorSpec, ...], found: list[Any]) -> None:
    assert profiles(text, specs) == tuple(found)
    assert [list(profile) for profile in profiles(text, specs)] == [list(item) for item in found]


@pytest.mark.parametrize(
    ("text", "specs", "message"),
    [
        ("1x3x8x8/2x3x8x8", TWO, "is not a profile"),
        ("1x3x0x8", TWO, "is not a profile"),
        ("1x3", TWO, "does not fit"),
        ("4x3x8x8/2x3x8x8/8x3x8x8", TWO, "does not grow"),
        ("imag=1x3x8x8", TWO, "no input 'imag'"),
        ("1x3x8x8; ", TWO, "is not a profile"),
        ("1x8/1x128/4x512", TEXTS, "which input"),
        ("mask=1x8/1x128/4x512", (TensorSpec("ids", (-1, 128)), TEXTS[1]), r"are free \(\?x128\)"),
        ("imag=2x8", (TensorSpec("image\nError: fake", (-1, 8)),), "image Error: fake|no input 'imag'"),
    ],
)
def test_what_is_wrong_with_a_profile_is_said(text: str, specs: tuple[TensorSpec, ...], message: str) -> None:
    with pytest.raises(InferlensError, match=message) as raised:
        profiles(text, specs)
    assert "\n" not in str(raised.value)


def test_the_profile_that_runs_must_take_the_shape() -> None:
    both = profiles("1x3x8x8/1x3x8x8/1x3x8x8;2x3x8x8/2x3x8x8/8x3x8x8", TWO)
    check_shapes(both, 1, TWO)
    with pytest.raises(Unsupported, match="not 2x3x8x8"):
        check_shapes(both, 0, TWO)
    with pytest.raises(Unsupported, match="no profile 2: the engine has 2"):
        check_shapes(both, 2, TWO)
    (spec,) = spread(TWO, both)  # what the graph is exported for
    assert spec.profile == ((1, 3, 8, 8), (1, 3, 8, 8), (8, 3, 8, 8))


# TensorRT itself cannot be had without its vendor's index; a stand-in shows what it would be asked for.


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

    def combine(self, timings: Timings, ignore: bool) -> None:
        self.data |= timings.data

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
    flavour = Flavour("trt", "tensorrt", "TensorRT", "10.13.0.35", trt)
    definition = SimpleNamespace(num_inputs=0)
    return Network(flavour, SimpleNamespace(errors=[]), builder, definition, None, weakly_typed=True)


def test_weakly_typed_networks_may_be_lowered_to_the_cases_precision(stand_in: Network) -> None:
    assert not stand_in.flavour.strongly_typed_only
    assert not stand_in.flavour.jit
    assert not stand_in.flavour.targets
    for precision, flags in (("fp32", set()), ("fp16", {Flag.FP16}), ("bf16", {Flag.BF16}), ("int8", {Flag.INT8})):
        assert configuration(stand_in, TensorRTOptions(), (), precision).set == flags
    more = TensorRTOptions(version_compatible=True, hardware_compatible="ampere_plus", tf32=True)
    config = configuration(stand_in, more, ())
    assert config.set == {Flag.VERSION_COMPATIBLE, Flag.TF32}
    assert config.hardware_compatibility_level == 1


def test_timings_are_loaded_used_and_merged_back(stand_in: Network, parsed: Network, tmp_path: Path) -> None:
    path, config = tmp_path / "timings.cache", Config()
    use_timing_cache(stand_in, config, path)
    config.cache.data = set(b"ab")
    path.write_bytes(b"bc")  # another process, meanwhile
    keep_timing_cache(config, path)
    assert path.read_bytes() == b"abc"
    path.write_bytes(b"foreign")
    with pytest.raises(InferlensError, match=r"holds no timings of TensorRT 10"):
        use_timing_cache(stand_in, config, path)
    assert use_timing_cache(parsed, None, path) is None, "TensorRT for RTX times nothing"
