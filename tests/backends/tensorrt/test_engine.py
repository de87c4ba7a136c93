"""Engines of real models, their files, the cache, what the builder says when it fails, and how far builds differ."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import msgspec
import onnx
import pytest
import torch

from inferlens.backends.base import Preparation
from inferlens.backends.onnx.export import onnx_file
from inferlens.backends.tensorrt import engine
from inferlens.backends.tensorrt.engine import Built, EngineJob, build_to, built, write_engine
from inferlens.backends.tensorrt.engine_check import check_engine
from inferlens.backends.tensorrt.options import TensorRTOptions
from inferlens.errors import InferlensError, Unsupported
from inferlens.models import provenance
from inferlens.models.model import Model
from inferlens.models.resolve import load
from inferlens.models.sources.compiled import whole
from inferlens.record.files import sha256
from inferlens.spec.case import Case, TensorSpec
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
    made = built(job, preparation)
    header = whole(made.path)
    assert (header.variant, header.version) == ("rtx", rtx.version)
    read = provenance.read(made.path)
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
    torch.onnx.export(
        torch.nn.Conv2d(3, 8, 3).eval(), (torch.ones(2, 3, 64, 64),), "model.onnx", input_names=["x"], dynamo=True,
        verbose=False, dynamic_shapes=({0: "batch"},),
    )  # fmt: skip
    (steps,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    exec(compile(steps, str(PAGE), "exec"), {})
    assert whole(Path("model.engine")).version == rtx.version


# The cache


def test_the_second_time_it_is_cached_and_rebuild_builds(
    job: Any, preparation: Preparation, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = built(job(), preparation)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "build", lambda *_: pytest.fail("it built"))
        second = built(job(), preparation)
        other = dataclasses.replace(job(), model=dataclasses.replace(job().model, name="renamed"))
        assert built(other, preparation).provenance.model.name == "renamed", "equal engines of two models"
    assert [phase.note for phase in preparation.phases] == ["", "cached", "cached"]
    assert second.cached
    assert (second.content, second.provenance) == (first.content, first.provenance)
    assert not built(job(), Preparation(preparation.folder, preparation.cache, rebuild=True)).cached


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
    usual, other = built(job(), preparation), built(job(**options), preparation)
    assert (other.content == usual.content) == same
    assert [warning.code for warning in preparation.warnings] == ["no-effect"] * len(options) * same


@pytest.mark.parametrize("damage", ["cut", "flipped", "no provenance"])
def test_a_damaged_engine_in_the_cache_is_built_again(damage: str, job: Any, preparation: Preparation) -> None:
    first = built(job(), preparation)
    if damage == "no provenance":
        provenance.beside(first.path).write_text("{}")
    else:
        first.path.write_bytes(first.content[:-100] if damage == "cut" else first.content[:-1] + b"\0")
    second = built(job(), preparation)
    assert not second.cached
    assert second.content == first.content
    assert built(job(), preparation).cached


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
    second = built(job(batch=16, profiles=text, profile=1), preparation).provenance
    assert second.profiles[0]["image"] == ((1, 3, 16, 16), (2, 3, 16, 16), (8, 3, 16, 16))
    assert second.profiles[1]["image"] == ((16, 3, 16, 16),) * 3
    assert second.inputs[0].profile == ((1, 3, 16, 16), (16, 3, 16, 16), (16, 3, 16, 16))  # best: of the one that runs
    first = built(job(batch=2, profiles=text), preparation).provenance
    assert first.inputs[0].profile == ((1, 3, 16, 16), (2, 3, 16, 16), (16, 3, 16, 16))
    assert second.outputs[0].shape == (-1, 10)


# Files


def test_an_engine_is_written_with_its_provenance(job: Any, preparation: Preparation, tmp_path: Path) -> None:
    path = tmp_path / "model.engine"
    report = build_to(path, job(timing_cache=str(tmp_path / "kernels")), preparation)
    read = provenance.read(path)
    assert read is not None
    assert (report.sha256, report.size) == (read.file_sha256, path.stat().st_size)
    assert report.targets == ("8.0", "8.9")
    assert not report.cached
    assert [warning.code for warning in preparation.warnings] == ["no-effect"], "a build compiles no kernels to keep"
    assert build_to(path, job(), preparation).cached
    assert sorted(path.name for path in tmp_path.glob("*.*")) == ["model.engine", "model.engine.json"]


def test_what_cannot_be_written_or_read_is_one_message(job: Any, built: Built, tmp_path: Path) -> None:
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
        built(job(refittable=True, compute_capability="8.9"), preparation)
    assert "\n" not in raised.value.what
    assert "/_src/" not in raised.value.what
    with pytest.raises(Unsupported, match="no GPU here"):
        built(job(compute_capability=""), preparation)


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
