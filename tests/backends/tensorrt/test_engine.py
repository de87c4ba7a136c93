"""Engines of real models, their files, the cache, what the builder says when it fails, and how far builds differ."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import onnx
import pytest
import torch

from inferlens.backends.base import Capabilities, Preparation, Support
from inferlens.backends.onnx.graph import onnx_file
from inferlens.backends.tensorrt import engine
from inferlens.backends.tensorrt.backend import TensorRT
from inferlens.backends.tensorrt.engine import (
    BuiltEngine,
    EngineJob,
    build_to,
    cached_engine,
    check_engine,
    write_engine,
)
from inferlens.backends.tensorrt.library import Flavour, TensorRTOptions
from inferlens.backends.tensorrt.runner import Engine
from inferlens.errors import InferlensError, Unsupported
from inferlens.execution.cases import expand
from inferlens.models.compiled import provenance_path, read_engine_header, read_provenance, write_provenance
from inferlens.models.model import Model
from inferlens.models.resolve import find, load
from inferlens.record.files import sha256
from inferlens.record.record import Gpu
from inferlens.spec.case import Case, TensorSpec
from inferlens.spec.plan import Plan
from tests.backends import small
from tests.backends.tensorrt import without_gpu
from tests.backends.tensorrt.conftest import TARGETS

PAGE = Path(__file__).parents[3] / "docs" / "tensorrt.md"
OUTPUTS = {"torchvision:resnet18": (1, 1000), "transformer": (1, 16, 64)}


def real(name: str) -> tuple[Model, Case]:
    case = Case(model=name, backend="tensorrt", variant="rtx", device="cuda", precision="fp16")
    if name != "transformer":
        case = msgspec.structs.replace(case, inputs=(TensorSpec("x", (1, 3, 64, 64)),))
        return load(case), case
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    module = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    return Model(case.model, "encoder", "module", (TensorSpec("tokens", (1, 16, 64)),), module=module), case


@pytest.mark.parametrize("name", OUTPUTS)
def test_real_models_become_engines_without_a_gpu(name: str, tmp_path: Path, rtx: Any) -> None:
    preparation = small.preparation(tmp_path)
    model, case = real(name)
    path = onnx_file(model, case, preparation, "fp16")
    job = EngineJob(path, model, case, rtx, TensorRTOptions(compute_capability=TARGETS), None)
    made = cached_engine(job, preparation)
    header = read_engine_header(made.path)
    assert (header.variant, header.version) == ("rtx", rtx.version)
    read = read_provenance(made.path)
    assert read == made.provenance
    graph = onnx.load(path).graph
    assert [spec.name for spec in read.outputs] == [value.name for value in graph.output]
    assert [(spec.shape, spec.dtype) for spec in read.outputs] == [(OUTPUTS[name], "float16")]
    assert (read.inputs, read.model.weights_sha256) == (model.inputs, model.weights_sha256)
    assert (read.flavour, read.version, read.targets, read.gpu) == (rtx.name, rtx.version, ("8.0", "8.9"), "")
    assert (read.onnx_sha256, read.options["optimization_level"]) == (sha256(path), 3)
    assert read.profiles == ({spec.name: (spec.shape,) * 3 for spec in model.inputs},)
    check_engine(made.path, read, rtx, None)


def test_the_steps_of_the_page(rtx: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ``docs/tensorrt.md`` says to do in Python is done."""
    monkeypatch.chdir(tmp_path)
    small.exported(Path("model.onnx"), torch.nn.Conv2d(3, 8, 3), 2, 3, 64, 64, free=True, input_names=["x"])
    (steps,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    exec(compile(steps, str(PAGE), "exec"), {})
    assert read_engine_header(Path("model.engine")).version == rtx.version


# The cache


def test_the_second_time_it_is_cached_and_rebuild_builds(
    job: Any, preparation: Preparation, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = cached_engine(job(), preparation)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "build", lambda *_: pytest.fail("it built"))
        second = cached_engine(job(), preparation)
        other = dataclasses.replace(job(), model=dataclasses.replace(job().model, name="renamed"))
        assert cached_engine(other, preparation).provenance.model.name == "renamed", "equal engines of two models"
    assert [phase.note for phase in preparation.phases] == ["", "cached", "cached"]
    assert second.cached
    assert (second.content, second.provenance) == (first.content, first.provenance)
    assert not cached_engine(job(), Preparation(preparation.folder, preparation.cache, rebuild=True)).cached


@pytest.mark.parametrize(
    ("options", "same"),
    [
        ({"optimization_level": 5, "max_num_tactics": 1, "sparsity": True}, True),
        ({"tactic_sources": "none", "avg_timing_iterations": 8}, True), ({"tf32": True}, False),
    ],
    ids=str,
)  # fmt: skip
def test_options_that_tensorrt_for_rtx_does_not_act_on_are_warned_of(
    options: dict[str, Any], same: bool, job: Any, preparation: Preparation
) -> None:
    """The engines are the same, so a row of such a sweep would differ by noise alone."""
    usual, other = cached_engine(job(), preparation), cached_engine(job(**options), preparation)
    assert (other.content == usual.content) == same
    assert [warning.code for warning in preparation.warnings] == ["no-effect"] * len(options) * same


@pytest.mark.parametrize("damage", ["cut", "flipped", "no provenance"])
def test_a_damaged_engine_in_the_cache_is_built_again(damage: str, job: Any, preparation: Preparation) -> None:
    first = cached_engine(job(), preparation)
    if damage == "no provenance":
        provenance_path(first.path).write_text("{}")
    else:
        first.path.write_bytes(first.content[:-100] if damage == "cut" else first.content[:-1] + b"\0")
    second = cached_engine(job(), preparation)
    assert not second.cached
    assert second.content == first.content
    assert cached_engine(job(), preparation).cached


def test_what_changes_an_engine_changes_its_key(job: Any, graph: Path, tmp_path: Path) -> None:
    model, path, plugin, split = onnx.load(graph), tmp_path / "other.onnx", tmp_path / "lib.so", tmp_path / "s.onnx"
    onnx.save_model(onnx.load(graph), split, save_as_external_data=True, size_threshold=0, location="s.data")
    model.doc_string = "another graph"
    onnx.save(model, path)
    plugin.write_bytes(b"a library")
    changes: list[dict[str, Any]] = [
        {}, {"path": path}, {"precision": "fp16"}, {"batch": 2}, {"optimization_level": 5}, {"tf32": True},
        {"compute_capability": "8.9"}, {"profiles": "1x3x16x16/1x3x16x16/8x3x16x16"}, {"plugins": str(plugin)},
        {"path": split},
    ]  # fmt: skip
    keys = [job(**change).key for change in changes]
    (tmp_path / "s.data").write_bytes((tmp_path / "s.data").read_bytes()[::-1])
    assert len({*keys, job(path=split).key}) == len(keys) + 1, "weights in another file count too"
    assert job(cuda_graph=True, streams=2, timing_cache="file", compute_capability="8.9+8.0").key == keys[0]


def test_jobs_with_several_profiles_build(job: Any, preparation: Preparation) -> None:
    text = "1x3x16x16/2x3x16x16/8x3x16x16;16x3x16x16"
    second = cached_engine(job(batch=16, profiles=text, profile=1), preparation).provenance
    assert second.profiles[0]["image"] == ((1, 3, 16, 16), (2, 3, 16, 16), (8, 3, 16, 16))
    assert second.profiles[1]["image"] == ((16, 3, 16, 16),) * 3
    assert second.inputs[0].profile == ((1, 3, 16, 16), (16, 3, 16, 16), (16, 3, 16, 16))  # best: of the one that runs
    first = cached_engine(job(batch=2, profiles=text), preparation).provenance
    assert first.inputs[0].profile == ((1, 3, 16, 16), (2, 3, 16, 16), (16, 3, 16, 16))
    assert second.outputs[0].shape == (-1, 10)


# Files


def test_an_engine_is_written_with_its_provenance(job: Any, preparation: Preparation, tmp_path: Path) -> None:
    path = tmp_path / "model.engine"
    report = build_to(path, job(timing_cache=str(tmp_path / "kernels")), preparation)
    read = read_provenance(path)
    assert read is not None
    assert (report.sha256, report.size) == (read.file_sha256, path.stat().st_size)
    assert report.targets == ("8.0", "8.9")
    assert not report.cached
    assert [warning.code for warning in preparation.warnings] == ["no-effect"], "a build compiles no kernels to keep"
    assert build_to(path, job(), preparation).cached
    assert sorted(path.name for path in tmp_path.glob("*.*")) == ["model.engine", "model.engine.json"]


def test_what_cannot_be_written_or_read_is_one_message(job: Any, built: BuiltEngine, tmp_path: Path) -> None:
    (tmp_path / "b.engine").mkdir()
    with pytest.raises(InferlensError, match=r"b\.engine cannot be written"):
        write_engine(tmp_path / "b.engine", built.content, built.provenance)
    (tmp_path / "broken.onnx").write_bytes(b"no graph")
    with pytest.raises(InferlensError, match="cannot be read"):
        _ = dataclasses.replace(job(), path=tmp_path / "broken.onnx").key


# What the builder says


@without_gpu
def test_what_needs_a_gpu_is_refused(job: Any, preparation: Preparation) -> None:
    with pytest.raises(Unsupported, match=r"cannot build the engine: .+") as raised:
        cached_engine(job(refittable=True, compute_capability="8.9"), preparation)
    assert "\n" not in raised.value.what
    assert "/_src/" not in raised.value.what
    with pytest.raises(Unsupported, match="no GPU here"):
        cached_engine(job(compute_capability=""), preparation)


# Repeated builds


def test_layers_that_differ_are_named(job: Any, preparation: Preparation, tmp_path: Path) -> None:
    chosen = iter(("sm80_a", "sm80_b", "sm80_a"))
    times = iter((0.0010, 0.0011, 0.0010))

    def examine(engine: bytes) -> tuple[list[dict[str, Any]], float]:
        assert engine[:4] == b"vtrt"
        layers = [{"Name": "conv", "TacticName": next(chosen)}, {"Name": "relu", "LayerType": "PointWise"}]
        return layers, next(times)

    report = build_to(tmp_path / "model.engine", job(), preparation, builds=3, examine=examine)
    (difference,) = report.differences
    assert (difference.name, difference.tactics) == ("conv", ("sm80_a", "sm80_b", "sm80_a"))
    assert "1 of 2 layers differ." in report.findings
    assert "GPU time: 1.00 ms to 1.10 ms, 10 % apart." in report.findings
    assert report.builds[0].layers == 2


# Engines from files: what cannot run here is refused in one sentence, before TensorRT sees it; what needs asking.

H200 = Gpu(name="NVIDIA H200", compute_capability="9.0")
A100 = Gpu(name="NVIDIA A100-SXM4-80GB", compute_capability="8.0")
PCIE = Gpu(name="NVIDIA A100-PCIE-40GB", compute_capability="8.0")
PROFILES = "1x3x16x16/2x3x16x16/3x3x16x16;4x3x16x16"
Opened = Callable[..., Any]


def flavour_of(version: str = "10.13.0.35", **module: Any) -> Flavour:
    """TensorRT itself cannot be had here: a stand-in."""
    return Flavour("trt", "stand_in", "TensorRT", version, type("Module", (), {"Runtime": object, **module}))


def headed(built: BuiltEngine, letters: bytes = b"ftrt", version: tuple[int, ...] = (10, 13, 0, 35)) -> Path:
    """The engine, in its place, with another header."""
    built.path.write_bytes(letters + built.content[4:24] + bytes(version) + built.content[28:])
    return built.path


@pytest.mark.parametrize("size", [0, 3, 20, 63, 1000, -1, None])
def test_a_truncated_or_foreign_file(size: int | None, built: BuiltEngine, rtx: Flavour, tmp_path: Path) -> None:
    path = tmp_path / "model.engine"
    path.write_bytes(b"PK\x03\x04" + b"0" * 500 if size is None else built.content[:size])
    check_engine(built.path, built.provenance, rtx, None)
    with pytest.raises(Unsupported, match=r"is damaged|is not a TensorRT engine|is empty") as raised:
        check_engine(path, None, rtx, None)
    assert str(path) in raised.value.what
    assert "build" in raised.value.hint


def test_an_engine_of_the_other_flavour_or_another_version(built: BuiltEngine, rtx: Flavour) -> None:
    with pytest.raises(Unsupported, match=r"was built by TensorRT 10\.13\.0\.35; TensorRT for RTX .* cannot") as raised:
        check_engine(headed(built), None, rtx, None)
    assert raised.value.hint == "--backend tensorrt:trt"
    here = tuple(int(part) for part in rtx.version.split("."))
    check_engine(headed(built, b"vtrt", (*here[:3], 121)), None, rtx, None)
    for version in ((1, 5, 0, 9), (2, 0, 0, 1)):
        with pytest.raises(Unsupported, match=r"was built by TensorRT for RTX \d\.\d\.0\.\d; .* cannot run it"):
            check_engine(headed(built, b"vtrt", version), None, rtx, None)


@pytest.mark.parametrize("version", ["0.9.0.1", "\u00b2.6.1", "9" * 5000])
def test_a_description_of_another_version_is_one_sentence(version: str, built: BuiltEngine, rtx: Flavour) -> None:
    read = msgspec.structs.replace(built.provenance, version=version)
    with pytest.raises(Unsupported, match="was built by TensorRT for RTX"):
        check_engine(built.path, read, rtx, None)


@without_gpu
def test_the_runtime_has_the_last_word(built: BuiltEngine, rtx: Flavour, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU it does not know, and is not asked."""
    with pytest.raises(Unsupported, match=r"cannot run here, on NVIDIA H200 with .*Error reading CUDA GPU properties"):
        check_engine(built.path, built.provenance, rtx, H200)
    known = rtx.module.EngineInvalidityDiagnostics
    causes = int(known.UNSUPPORTED_CC)
    runtime = SimpleNamespace(get_engine_validity=lambda _: ("invalid", causes))
    monkeypatch.setattr(rtx.module.Runtime, "__new__", lambda *_: runtime)
    monkeypatch.setattr(rtx.module.EngineValidity, "INVALID", "invalid")
    check_engine(built.path, built.provenance, rtx, H200)
    causes |= int(known.OLD_CUDA_DRIVER)
    with pytest.raises(Unsupported, match=r"on NVIDIA H200 with .*: unsupported cc, old cuda driver"):
        check_engine(built.path, built.provenance, rtx, H200)


@pytest.mark.parametrize(
    ("level", "built_on", "gpu", "fits"),
    [
        ("none", A100, A100, True),
        ("none", A100, PCIE, False),
        ("same_compute_capability", A100, PCIE, True),
        ("same_compute_capability", A100, H200, False),
        ("ampere_plus", A100, H200, True),
        ("ampere_plus", A100, Gpu(name="Tesla T4", compute_capability="7.5"), False),
        ("none", Gpu(name="a GPU\nError: fake", compute_capability="8.0"), A100, False),
    ],
)
def test_engines_of_tensorrt_belong_to_a_gpu(
    level: str, built_on: Gpu, gpu: Gpu, fits: bool, built: BuiltEngine
) -> None:
    trt = flavour_of()
    read = msgspec.structs.replace(
        built.provenance, flavour=trt.name, version=trt.version, gpu=built_on.name, compute_capability="8.0",
        options={"hardware_compatible": level},
    )  # fmt: skip
    if fits:
        check_engine(headed(built), read, trt, gpu)
        return
    with pytest.raises(Unsupported, match=gpu.name) as raised:
        check_engine(headed(built), read, trt, gpu)
    assert "\n" not in str(raised.value)


def test_version_compatible_engines_run_on_later_versions(built: BuiltEngine) -> None:
    read = msgspec.structs.replace(built.provenance, version="10.13.0.35", options={"version_compatible": True})
    check_engine(headed(built), read, flavour_of("10.14.1.48"), None)
    for version, item in (("10.9.0.34", read), ("10.14.1.48", None)):
        with pytest.raises(Unsupported, match="cannot run it"):
            check_engine(headed(built), item, flavour_of(version), None)


# Files


@pytest.fixture
def two(job: Any, preparation: Preparation, tmp_path: Path) -> Path:
    """An engine with two profiles, built to run the second."""
    path = tmp_path / "two.engine"
    build_to(path, job(batch=4, profiles=PROFILES, profile=1), preparation)
    return path


@pytest.fixture
def opened(preparation: Preparation) -> Opened:
    """The runner of an engine from a file, for a case with some options and a batch."""

    def prepared(path: Path, batch: int | None = None, trust: bool = False, **options: Any) -> Any:
        model_info = find(str(path))
        batch = batch or model_info.batch
        case = Case(
            model=model_info.spec, backend="tensorrt", variant="rtx", device="cuda", batch=batch, options=options
        )
        preparation.trust = trust
        return TensorRT().prepare(load(case), case, preparation)

    return prepared


def described(path: Path, **options: Any) -> None:
    """Has the JSON beside an engine name other options."""
    made = read_provenance(path)
    assert made is not None
    write_provenance(path, msgspec.structs.replace(made, options={**made.options, **options}))


def test_the_profile_that_it_was_built_to_run_runs(two: Path, opened: Opened) -> None:
    assert opened(two).options.profile == 1
    assert opened(two, batch=2, profile=0).options.profile == 0
    with pytest.raises(Unsupported, match="Profile 1 takes image from 4x3x16x16 to 4x3x16x16, not 2x3x16x16"):
        opened(two, batch=2)
    with pytest.raises(Unsupported, match="There is no profile 2"):
        opened(two, profile=2)


def test_an_engine_that_holds_code_needs_trust(two: Path, opened: Opened) -> None:
    described(two, version_compatible=True)
    with pytest.raises(InferlensError, match=str(two)) as raised:
        opened(two)
    assert raised.value.hint.startswith("--trust")
    assert opened(two, trust=True).hint == ""
    provenance_path(two).unlink()
    case = Case(model=f"engine:{two}", backend="tensorrt", variant="rtx", device="cuda", batch=4)
    model = Model(case.model, "two", "engine", small.model(batch=4).inputs, path=two)
    for trust in (True, False):
        runner: Any = TensorRT().prepare(model, case, Preparation(two.parent, two.parent, trust=trust))
        assert ("--trust" in runner.hint) == (not trust), "nothing describes it: that is what may help"


class Opening:
    """A runtime that opens nothing, and keeps what it was allowed."""

    last: Any = None

    def __init__(self, _: Any) -> None:
        self.engine_host_code_allowed = False
        Opening.last = self

    def deserialize_cuda_engine(self, _: bytes) -> None:
        return None


@pytest.mark.parametrize("trust", [True, False])
def test_host_code_is_allowed_where_it_was_asked_for(trust: bool) -> None:
    log = type("Log", (), {})
    trt = flavour_of(Runtime=Opening, ILogger=log, init_libnvinfer_plugins=lambda *_: True)
    with pytest.raises(Unsupported, match="cannot open the engine") as raised:
        Engine(b"", trt, host_code=trust, hint="" if trust else "--trust")
    assert Opening.last.engine_host_code_allowed is trust
    assert raised.value.hint == ("" if trust else "--trust")


def test_plugins_are_loaded_only_if_they_are_named_again(two: Path, opened: Opened) -> None:
    described(two, plugins="a.so\nError: fake")
    with pytest.raises(InferlensError, match=r"plugins of a\.so Error: fake, which") as raised:
        opened(two)
    assert raised.value.hint.startswith("--option tensorrt.plugins=")
    assert "\n" not in str(raised.value)
    assert opened(two, plugins="").options.plugins == ""
    with pytest.raises(InferlensError, match=r"The plugin library .* is not a file"):
        opened(two, plugins="/none.so")


def test_options_of_the_builder_do_nothing_for_it(two: Path, opened: Opened, preparation: Preparation) -> None:
    opened(two, tf32=False, cuda_graph=True, profile=1)  # as it was built, and options of a run
    assert preparation.warnings == []
    opened(two, tf32=True)
    assert [warning.code for warning in preparation.warnings] == ["no-effect"]


def test_a_broken_file_is_told_when_it_is_found_and_is_a_row_beside_others(two: Path) -> None:
    """So before anybody asks for a GPU."""
    provenance_path(two).unlink()
    two.write_bytes(two.read_bytes()[:5000])
    with pytest.raises(Unsupported, match=r"is damaged: it has 5000 of \d+ bytes"):
        find(str(two)).check(trusted=False)
    found = [find(str(two)), find("inferlens:resnet34")]
    able = {"tensorrt": Capabilities(formats=("module", "engine"), supports=(Support("rtx", "cuda", ("fp32",)),))}
    plan = Plan.from_words(
        {"model": [model_info.spec for model_info in found], "backend": "tensorrt", "device": "cuda"}
    )
    assert [planned.refusal is None for planned in expand(plan, found, able)] == [False, True]


# Kernels of TensorRT for RTX are kept where an engine runs, which takes a GPU; a stand-in shows what is done with them.


class Kernels:
    """A cache of kernels that takes what begins with ``good``."""

    def deserialize(self, content: bytes) -> bool:
        return content.startswith(b"good")

    def serialize(self) -> bytes:
        return b"good and more"


def test_a_file_of_kernels_that_is_none_is_refused_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "kernels"
    engine: Any = object.__new__(Engine)
    config = SimpleNamespace(create_runtime_cache=Kernels, set_runtime_cache=lambda _: None)
    engine.cuda_engine, engine._cache = SimpleNamespace(create_runtime_config=lambda: config), path
    for content in (b"", b"good"):
        path.write_bytes(content)
        engine._use_cache(path)
        engine.save_kernels()
        assert path.read_bytes() == b"good and more"
    path.write_bytes(b"a photograph")
    with pytest.raises(Unsupported, match="holds no kernels"):
        engine._use_cache(path)
    assert path.read_bytes() == b"a photograph"
