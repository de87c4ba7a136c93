"""Engines of real models, their files, the cache, what the builder says when it fails, and how far builds differ."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace

import onnx
import pytest
import torch
from msgspec.structs import replace

from inferlens.backends.base import Capabilities, Support
from inferlens.backends.onnx.graph import onnx_file
from inferlens.backends.tensorrt import engine
from inferlens.backends.tensorrt.backend import TensorRT
from inferlens.backends.tensorrt.engine import EngineJob, build_to, cached_engine, check_engine
from inferlens.backends.tensorrt.library import Flavour
from inferlens.backends.tensorrt.options import TensorRTOptions
from inferlens.backends.tensorrt.runner import Engine
from inferlens.execution.cases import expand
from inferlens.models.compiled import provenance_path, read_header, read_provenance, write_provenance
from inferlens.models.model import Model
from inferlens.models.resolve import find, load
from inferlens.record.files import sha256
from inferlens.record.record import Gpu
from inferlens.spec.case import Case, TensorSpec
from inferlens.spec.plan import Plan
from tests.backends import small
from tests.backends.small import unsupported
from tests.backends.tensorrt import without_gpu
from tests.backends.tensorrt.conftest import TARGETS
from tests.refusals import refusal

PAGE = Path(__file__).parents[3] / "docs" / "tensorrt.md"


def rtx_case(model, **more):
    return Case(model=model, backend="tensorrt", variant="rtx", device="cuda", **more)


def codes(preparation):
    return [warning.code for warning in preparation.warnings]


def test_a_transformer_becomes_an_engine_without_a_gpu(preparation, rtx):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    module = torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    model = Model("encoder", "encoder", "module", (TensorSpec("tokens", (1, 16, 64)),), module=module)
    case = rtx_case("encoder", precision="fp16")
    path = onnx_file(model, case, preparation, "fp16")
    job = EngineJob(path, model, case, rtx, TensorRTOptions(compute_capability=TARGETS), None)
    result = cached_engine(job, preparation)
    header, provenance = read_header(result.path), read_provenance(result.path)
    assert provenance == result.provenance
    (output,) = provenance.outputs
    assert (output.name, output.shape, output.dtype) == (
        onnx.load(path).graph.output[0].name, (1, 16, 64), "float16",
    )  # fmt: skip
    assert (provenance.inputs, provenance.flavour, provenance.version) == (model.inputs, rtx.name, rtx.version)
    assert (provenance.targets, provenance.gpu) == (("8.0", "8.9"), "")
    assert (header.variant, header.version) == ("rtx", rtx.version)
    assert (provenance.onnx_sha256, provenance.options["optimization_level"]) == (sha256(path), 3)
    assert provenance.profiles == ({"tokens": ((1, 16, 64),) * 3},)
    check_engine(result.path, provenance, rtx, None)


def test_the_steps_of_the_page(rtx, tmp_path, monkeypatch):
    """Run the Python code of ``docs/tensorrt.md``."""
    monkeypatch.chdir(tmp_path)
    small.exported(Path("model.onnx"), torch.nn.Conv2d(3, 8, 3), 2, 3, 64, 64, free=True, input_names=["x"])
    (steps,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    exec(compile(steps, str(PAGE), "exec"), {})
    assert read_header(Path("model.engine")).version == rtx.version


def test_an_engine_is_cached_until_a_rebuild(job, built, preparation, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(engine, "build", lambda *_: pytest.fail("it built"))
        second = cached_engine(job(), preparation)
        other = dataclasses.replace(job(), model=dataclasses.replace(job().model, name="renamed"))
        assert cached_engine(other, preparation).provenance.model.name == "renamed", "equal engines of two models"
    preparation.rebuild = True
    assert (second.cached, cached_engine(job(), preparation).cached) == (True, False)
    assert [phase.note for phase in preparation.phases] == ["cached", "cached", ""]
    assert (second.content, second.provenance) == (built.content, built.provenance)


@pytest.mark.parametrize(("options", "same"), [
    ({"optimization_level": 5, "max_num_tactics": 1, "sparsity": True}, True),
    ({"tactic_sources": "none", "avg_timing_iterations": 8}, True), ({"tf32": True}, False),
], ids=str)  # fmt: skip
def test_options_without_an_effect_on_tensorrt_for_rtx_are_warned_of(options, same, built, job, preparation):
    assert (cached_engine(job(**options), preparation).content == built.content) == same
    assert codes(preparation) == ["no-effect"] * len(options) * same


@pytest.mark.parametrize("damage", ["cut", "flipped", "no provenance"])
def test_a_damaged_engine_in_the_cache_is_built_again(damage, built, job, preparation):
    assert built.cached
    if damage == "no provenance":
        provenance_path(built.path).write_text("{}")
    else:
        built.path.write_bytes(built.content[:-100] if damage == "cut" else built.content[:-1] + b"\0")
    second = cached_engine(job(), preparation)
    assert (second.cached, second.content) == (False, built.content)
    assert cached_engine(job(), preparation).cached


def test_what_changes_an_engine_changes_its_key(job, graph, tmp_path):
    model, path, plugin, split = onnx.load(graph), tmp_path / "other.onnx", tmp_path / "lib.so", tmp_path / "s.onnx"
    onnx.save_model(onnx.load(graph), split, save_as_external_data=True, size_threshold=0, location="s.data")
    model.doc_string = "another graph"
    onnx.save(model, path)
    plugin.write_bytes(b"a library")
    changes = [
        {}, {"path": path}, {"precision": "fp16"}, {"batch": 2}, {"optimization_level": 5}, {"tf32": True},
        {"compute_capability": "8.9"}, {"profiles": "1x3x16x16/1x3x16x16/8x3x16x16"}, {"plugins": str(plugin)},
        {"path": split},
    ]  # fmt: skip
    keys = [job(**change).key for change in changes]
    (tmp_path / "s.data").write_bytes((tmp_path / "s.data").read_bytes()[::-1])
    assert len({*keys, job(path=split).key}) == len(keys) + 1, "weights in another file count too"
    assert job(cuda_graph=True, streams=2, timing_cache="file", compute_capability="8.9+8.0").key == keys[0]
    (tmp_path / "broken.onnx").write_bytes(b"no graph")
    refusal("cannot be read", lambda: job(path=tmp_path / "broken.onnx").key)


def test_jobs_with_several_profiles_build(job, preparation):
    text = "1x3x16x16/2x3x16x16/8x3x16x16;16x3x16x16"
    second = cached_engine(job(batch=16, profiles=text, profile=1), preparation).provenance
    assert second.profiles[0]["image"] == ((1, 3, 16, 16), (2, 3, 16, 16), (8, 3, 16, 16))
    assert second.profiles[1]["image"] == ((16, 3, 16, 16),) * 3
    assert second.inputs[0].profile == ((1, 3, 16, 16), (16, 3, 16, 16), (16, 3, 16, 16))  # best: of the one that runs
    first = cached_engine(job(batch=2, profiles=text), preparation).provenance
    assert first.inputs[0].profile == ((1, 3, 16, 16), (2, 3, 16, 16), (16, 3, 16, 16))
    assert second.outputs[0].shape == (-1, 10)


def test_an_engine_is_written_with_its_provenance(job, preparation, tmp_path):
    path = tmp_path / "model.engine"
    report = build_to(path, job(timing_cache=str(tmp_path / "kernels")), preparation)
    read = read_provenance(path)
    assert (report.sha256, report.size) == (read.file_sha256, path.stat().st_size)
    assert (report.targets, report.cached) == (("8.0", "8.9"), False)
    assert codes(preparation) == ["no-effect"], "a build compiles no kernels to keep"
    again = cached_engine(job(), preparation)
    assert again.cached
    assert build_to(path, job(), preparation).cached
    assert sorted(path.name for path in tmp_path.glob("*.*")) == ["model.engine", "model.engine.json"]
    (tmp_path / "b.engine").mkdir()
    refusal(r"b\.engine cannot be written", engine.write_engine, tmp_path / "b.engine", again.content, read)


@without_gpu
def test_what_needs_a_gpu_is_refused(job, preparation):
    wanted = job(refittable=True, compute_capability="8.9")
    error = unsupported(r"cannot build the engine: .+", cached_engine, wanted, preparation)
    assert "\n" not in error.what
    assert "/_src/" not in error.what
    unsupported("no GPU here", cached_engine, job(compute_capability=""), preparation)


def test_layers_that_differ_between_builds_are_named(job, preparation, tmp_path):
    chosen, times = iter(("sm80_a", "sm80_b", "sm80_a")), iter((0.0010, 0.0011, 0.0010))

    def examine(engine):
        assert engine[:4] == b"vtrt"
        layers = [{"Name": "conv", "TacticName": next(chosen)}, {"Name": "relu", "LayerType": "PointWise"}]
        return layers, next(times)

    report = build_to(tmp_path / "model.engine", job(), preparation, builds=3, examine=examine)
    (difference,) = report.differences
    assert (difference.name, difference.tactics) == ("conv", ("sm80_a", "sm80_b", "sm80_a"))
    assert {"1 of 2 layers differ.", "GPU time: 1.00 ms to 1.10 ms, 10 % apart."} <= {*report.findings}
    assert report.builds[0].layers == 2


# Engines from files

H200 = Gpu(name="NVIDIA H200", compute_capability="9.0")
A100 = Gpu(name="NVIDIA A100-SXM4-80GB", compute_capability="8.0")
PCIE = Gpu(name="NVIDIA A100-PCIE-40GB", compute_capability="8.0")
PROFILES = "1x3x16x16/2x3x16x16/3x3x16x16;4x3x16x16"


def flavour_of(version="10.13.0.35", **module):
    """Return a stand-in for TensorRT, which is not installed here."""
    return Flavour("trt", "stand_in", "TensorRT", version, type("Module", (), {"Runtime": object, **module}))


def replace_header(built, letters=b"ftrt", version=(10, 13, 0, 35)):
    """Replace the engine's header."""
    built.path.write_bytes(letters + built.content[4:24] + bytes(version) + built.content[28:])
    return built.path


@pytest.mark.parametrize("size", [0, 3, 20, 63, 1000, -1, None])
def test_a_truncated_or_foreign_file(size, built, rtx):
    check_engine(built.path, built.provenance, rtx, None)
    built.path.write_bytes(b"PK\x03\x04" + b"0" * 500 if size is None else built.content[:size])
    error = unsupported(r"is not a whole TensorRT engine", check_engine, built.path, None, rtx, None)
    assert str(built.path) in error.what
    assert "build" in error.hint


def test_an_engine_of_the_other_flavour_or_another_version(built, rtx):
    words = r"was built by TensorRT 10\.13\.0\.35; TensorRT for RTX .* cannot"
    assert unsupported(words, check_engine, replace_header(built), None, rtx, None).hint == "--backend tensorrt:trt"
    here = tuple(int(part) for part in rtx.version.split("."))
    check_engine(replace_header(built, b"vtrt", (*here[:3], 121)), None, rtx, None)
    words = r"was built by TensorRT for RTX \d\.\d\.0\.\d; .* cannot run it"
    for version in ((1, 5, 0, 9), (2, 0, 0, 1)):
        unsupported(words, check_engine, replace_header(built, b"vtrt", version), None, rtx, None)
    built.path.write_bytes(built.content)
    for described in ("0.9.0.1", "\u00b2.6.1", "9" * 5000):
        read = replace(built.provenance, version=described)
        unsupported("was built by TensorRT for RTX", check_engine, built.path, read, rtx, None)


@pytest.mark.parametrize(("level", "built_on", "gpu", "fits"), [
    ("none", A100, A100, True), ("none", A100, PCIE, False), ("same_compute_capability", A100, PCIE, True),
    ("same_compute_capability", A100, H200, False), ("ampere_plus", A100, H200, True),
    ("ampere_plus", A100, Gpu(name="Tesla T4", compute_capability="7.5"), False),
    ("none", Gpu(name="a GPU\nError: fake", compute_capability="8.0"), A100, False),
])  # fmt: skip
def test_engines_of_tensorrt_belong_to_a_gpu(level, built_on, gpu, fits, built):
    trt = flavour_of()
    read = replace(
        built.provenance, flavour=trt.name, version=trt.version, gpu=built_on.name, compute_capability="8.0",
        options={"hardware_compatible": level},
    )  # fmt: skip
    if fits:
        check_engine(replace_header(built), read, trt, gpu)
    else:
        assert "\n" not in str(unsupported(gpu.name, check_engine, replace_header(built), read, trt, gpu))


def test_version_compatible_engines_run_on_later_versions(built):
    read = replace(built.provenance, version="10.13.0.35", options={"version_compatible": True})
    check_engine(replace_header(built), read, flavour_of("10.14.1.48"), None)
    for version, item in (("10.9.0.34", read), ("10.14.1.48", None)):
        unsupported("cannot run it", check_engine, replace_header(built), item, flavour_of(version), None)


@pytest.fixture(scope="module")
def two_profiles(job, tmp_path_factory):
    """An engine with two profiles, built to run the second."""
    wanted = job(batch=4, profiles=PROFILES, profile=1)
    return cached_engine(wanted, small.preparation(tmp_path_factory.mktemp("two")))


@pytest.fixture
def two(two_profiles, tmp_path):
    """That engine, in a file of the test's own."""
    engine.write_engine(tmp_path / "two.engine", two_profiles.content, two_profiles.provenance)
    return tmp_path / "two.engine"


@pytest.fixture
def opened(preparation):
    """The runner of an engine from a file, for a case with some options and a batch."""

    def prepared(path, batch=None, trust=False, **options):
        model_info = find(str(path))
        case = rtx_case(model_info.spec, batch=batch or model_info.batch, options=options)
        preparation.trust = trust
        return TensorRT().prepare(load(case), case, preparation)

    return prepared


def describe(path, **options):
    """Change the options in the provenance of an engine."""
    provenance = read_provenance(path)
    write_provenance(path, replace(provenance, options={**provenance.options, **options}))


def test_the_profile_that_it_was_built_to_run_runs(two, opened, preparation):
    assert (opened(two).options.profile, opened(two, batch=2, profile=0).options.profile) == (1, 0)
    unsupported("Profile 1 takes image from 4x3x16x16 to 4x3x16x16, not 2x3x16x16", opened, two, batch=2)
    unsupported("There is no profile 2", opened, two, profile=2)
    opened(two, tf32=False, cuda_graph=True, profile=1)  # as it was built, and options of a run
    assert preparation.warnings == []
    opened(two, tf32=True)
    assert codes(preparation) == ["no-effect"], "options of the builder do nothing for it"


def test_an_engine_that_holds_code_needs_trust(two, opened):
    describe(two, version_compatible=True)
    assert refusal(str(two), opened, two).hint.startswith("--trust")
    assert opened(two, trust=True).host_code


@pytest.mark.parametrize("trust", [True, False])
def test_host_code_is_allowed_only_with_trust(trust):
    runtime = SimpleNamespace(deserialize_cuda_engine=lambda _: None, engine_host_code_allowed=False)
    words = {"Runtime": lambda _: runtime, "ILogger": type("Log", (), {}), "init_libnvinfer_plugins": lambda *_: True}
    error = unsupported("cannot open the engine", Engine, b"", flavour_of(**words), host_code=trust)
    assert (runtime.engine_host_code_allowed, "--trust" in error.hint) == (trust, not trust)


def test_plugins_are_loaded_only_if_they_are_named_again(two, opened):
    describe(two, plugins="a.so\nError: fake")
    error = refusal(r"plugins of a\.so Error: fake, which", opened, two)
    assert error.hint.startswith("--option tensorrt.plugins=")
    assert "\n" not in str(error)
    assert opened(two, plugins="").options.plugins == ""
    refusal(r"The plugin library .* is not a file", opened, two, plugins="/none.so")


def test_a_broken_file_is_a_row_among_others(two):
    provenance_path(two).unlink()
    two.write_bytes(two.read_bytes()[:5000])
    unsupported(r"is not a whole TensorRT engine \(5000 bytes\)", find(str(two)).check, trusted=False)
    models = [find(str(two)), find("inferlens:resnet34")]
    able = {"tensorrt": Capabilities(formats=("module", "engine"), supports=(Support("rtx", "cuda", ("fp32",)),))}
    plan = Plan.from_words({"model": [item.spec for item in models], "backend": "tensorrt", "device": "cuda"})
    assert [planned.refusal is None for planned in expand(plan, models, able)] == [False, True]


def test_a_file_without_kernels_is_refused_and_stays(tmp_path):
    path = tmp_path / "kernels"
    engine = object.__new__(Engine)
    # TensorRT for RTX keeps kernels on a GPU only: a stand-in reads what begins with "good".
    kernels = {"deserialize": lambda content: content.startswith(b"good"), "serialize": lambda: b"good and more"}
    config = SimpleNamespace(create_runtime_cache=lambda: SimpleNamespace(**kernels), set_runtime_cache=lambda _: None)
    engine.cuda_engine, engine._cache = SimpleNamespace(create_runtime_config=lambda: config), path
    for content in (b"", b"good"):
        path.write_bytes(content)
        engine._use_cache(path)
        engine.save_kernels()
        assert path.read_bytes() == b"good and more"
    path.write_bytes(b"a photograph")
    unsupported("holds no kernels", engine._use_cache, path)
    assert path.read_bytes() == b"a photograph"
