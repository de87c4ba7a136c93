"""Engines of real models, their files, and the cache."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest

from inferlens.backends.base import Preparation
from inferlens.backends.tensorrt import engine
from inferlens.backends.tensorrt.builds import write_engine
from inferlens.backends.tensorrt.configuration import configuration
from inferlens.backends.tensorrt.engine import Job, built
from inferlens.backends.tensorrt.engine_check import check_plan
from inferlens.backends.tensorrt.network import network
from inferlens.errors import InferlensError, Unsupported
from inferlens.models import provenance
from inferlens.models.engine_header import read_header
from inferlens.record.files import sha256
from inferlens.record.record import Gpu

OUTPUTS = {
    "torchvision:resnet18": (1, 1000),
    "torchvision:mobilenet_v2": (1, 1000),
    "torchvision:vit_b_16": (1, 1000),
    "transformer": (1, 16, 64),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_real_models_become_engines_without_a_gpu(name: str, real: Any) -> None:
    job, made, preparation = real(name)
    header = read_header(made.plan[:64])
    assert header is not None
    assert header.variant == "rtx"
    assert header.size == len(made.plan)
    assert header.version == job.flavour.version
    assert [phase.name for phase in preparation.phases].count("build") == 1
    parsed = network(job.path, job.flavour)
    assert [(spec.name, spec.shape, spec.dtype) for spec in parsed.inputs] == [
        (spec.name, spec.shape, "float16") for spec in job.model.inputs
    ]
    told = provenance.read(made.path)
    assert told == made.provenance
    graph = onnx.load(job.path).graph
    assert [spec.name for spec in told.outputs] == [value.name for value in graph.output]
    assert [spec.name for spec in told.inputs] == [value.name for value in graph.input]
    assert [spec.name for spec in parsed.outputs] == [spec.name for spec in told.outputs]
    assert [(spec.shape, spec.dtype) for spec in told.outputs] == [(OUTPUTS[name], "float16")]
    assert told.inputs == job.model.inputs
    assert told.model.weights_sha256 == job.model.weights_sha256
    assert told.onnx_sha256 == sha256(job.path)
    assert (told.flavour, told.version) == (job.flavour.name, job.flavour.version)
    assert told.targets == ("8.0", "8.9")
    assert told.gpu == ""
    assert told.options["optimization_level"] == 3
    assert told.profiles == ({spec.name: (spec.shape,) * 3 for spec in job.model.inputs},)
    assert told.build_seconds
    check_plan(made.path, told, job.flavour, None)


def test_the_second_time_it_is_cached(job: Any, preparation: Preparation, monkeypatch: pytest.MonkeyPatch) -> None:
    first = built(job(), preparation)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "build", lambda *_: pytest.fail("it built"))
        second = built(job(), preparation)
    assert [phase.note for phase in preparation.phases] == ["", "cached"]
    assert second.cached
    assert second.plan == first.plan
    assert second.provenance == first.provenance


def test_an_option_that_times_tactics_does_nothing_where_none_are_timed(job: Any, preparation: Preparation) -> None:
    built(job(avg_timing_iterations=4), preparation)
    (warning,) = preparation.warnings
    assert (warning.code, "times no tactics" in warning.message) == ("no-effect", True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("optimization_level", 0), ("optimization_level", 5), ("max_num_tactics", 1), ("tactic_sources", "none"),
        ("sparsity", True), ("avg_timing_iterations", 8),
    ],
)  # fmt: skip
def test_options_that_tensorrt_for_rtx_does_not_act_on_say_so(
    name: str, value: Any, job: Any, preparation: Preparation
) -> None:
    """The plans are the same, so a row of such a sweep would differ by noise alone."""
    usual, other = built(job(), preparation), built(job(**{name: value}), preparation)
    assert other.plan == usual.plan
    assert [(warning.code, warning.message.split()[0]) for warning in preparation.warnings] == [("no-effect", name)]


@pytest.mark.parametrize("options", [{"tf32": True}, {"workspace": 256}, {"profiling_verbosity": "none"}], ids=str)
def test_options_that_it_acts_on_are_not_complained_of(
    options: dict[str, Any], job: Any, preparation: Preparation
) -> None:
    assert built(job(**options), preparation).plan != built(job(), preparation).plan
    assert preparation.warnings == []


def test_a_build_for_rtx_says_that_it_leaves_the_file_of_kernels_alone(
    job: Any, preparation: Preparation, tmp_path: Path
) -> None:
    write_engine(job(timing_cache=str(tmp_path / "kernels")), preparation, tmp_path / "a.engine")
    assert [warning.code for warning in preparation.warnings] == ["no-effect"]
    assert "timing_cache does nothing in a build" in preparation.warnings[0].message
    assert not (tmp_path / "kernels").exists()


def test_rebuild_builds(job: Any, preparation: Preparation) -> None:
    built(job(), preparation)
    again = Preparation(preparation.folder, preparation.cache, rebuild=True)
    assert not built(job(), again).cached


@pytest.mark.parametrize("damage", ["cut", "flipped", "no provenance"])
def test_a_damaged_plan_in_the_cache_is_built_again(damage: str, job: Any, preparation: Preparation) -> None:
    first = built(job(), preparation)
    if damage == "no provenance":
        provenance.beside(first.path).write_text("{}")
    else:
        first.path.write_bytes(first.plan[:-100] if damage == "cut" else first.plan[:-1] + b"\0")
    second = built(job(), preparation)
    assert not second.cached
    assert second.plan == first.plan
    assert built(job(), preparation).cached


def test_what_changes_a_plan_changes_its_key(job: Any, graph: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.onnx"
    model = onnx.load(graph)
    model.doc_string = "another graph"
    onnx.save(model, other)
    plugin = tmp_path / "plugin.so"
    plugin.write_bytes(b"a library")
    keys = [
        job().recipe.key,
        job(path=other).recipe.key,
        job(precision="fp16").recipe.key,
        job(batch=2).recipe.key,
        job(optimization_level=5).recipe.key,
        job(tf32=True).recipe.key,
        job(compute_capability="8.9").recipe.key,
        job(profiles="1x3x16x16/1x3x16x16/8x3x16x16").recipe.key,
        job(plugins=str(plugin)).recipe.key,
    ]
    assert len(set(keys)) == len(keys)
    assert job(cuda_graph=True, streams=2, timing_cache="file").recipe.key == keys[0]
    assert job(compute_capability="8.9+8.0").recipe.key == keys[0]


def test_weights_in_another_file_are_part_of_the_key(job: Any, graph: Path, tmp_path: Path) -> None:
    path = tmp_path / "split.onnx"
    onnx.save_model(onnx.load(graph), path, save_as_external_data=True, size_threshold=0, location="split.data")
    before = job(path=path).recipe.key
    data = (tmp_path / "split.data").read_bytes()
    (tmp_path / "split.data").write_bytes(data[::-1])
    assert job(path=path).recipe.key != before


def test_equal_plans_of_two_models_are_told_apart(job: Any, preparation: Preparation) -> None:
    built(job(), preparation)
    one = job()
    other = built(dataclasses.replace(one, model=dataclasses.replace(one.model, name="renamed")), preparation)
    assert other.cached
    assert other.provenance.model.name == "renamed"


def test_an_engine_is_written_with_its_provenance(job: Any, preparation: Preparation, tmp_path: Path) -> None:
    path = tmp_path / "model.engine"
    report = write_engine(job(), preparation, path)
    told = provenance.read(path)
    assert told is not None
    assert (report.sha256, report.size) == (told.file_sha256, path.stat().st_size)
    assert report.targets == ("8.0", "8.9")
    assert not report.cached
    assert write_engine(job(), preparation, path).cached
    assert sorted(file.name for file in tmp_path.iterdir() if file.is_file()) == ["model.engine", "model.engine.json"]


def test_a_build_that_fails_leaves_the_old_file(job: Any, preparation: Preparation, tmp_path: Path) -> None:
    path = tmp_path / "model.engine"
    write_engine(job(), preparation, path)
    before = path.read_bytes()
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no graph")
    with pytest.raises(InferlensError, match="cannot be read"):
        write_engine(dataclasses.replace(job(), path=broken), preparation, path)
    assert path.read_bytes() == before
    assert provenance.read(path) is not None


def test_without_a_gpu_targets_must_be_named(job: Any, preparation: Preparation) -> None:
    with pytest.raises(Unsupported, match="no GPU here") as raised:
        built(job(compute_capability=""), preparation)
    assert "compute_capability=7.5+8.0+8.6+8.9" in raised.value.hint
    with pytest.raises(Unsupported, match=r"cannot build for compute capability 9\.0") as raised:
        built(job(compute_capability="8.9+9.0"), preparation)
    assert "8.6" in raised.value.expected


def test_what_needs_a_gpu_says_so(job: Any, preparation: Preparation) -> None:
    with pytest.raises(Unsupported, match="with the option refittable it builds on a GPU alone") as raised:
        built(job(refittable=True, compute_capability="8.9"), preparation)
    assert raised.value.hint == "no refittable, or a machine with a GPU"


def test_the_builders_own_error_is_one_sentence(
    job: Any, preparation: Preparation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "current_gpu", lambda: Gpu(name="a GPU"))
    with pytest.raises(Unsupported, match=r"cannot build the engine: .+") as raised:
        built(job(refittable=True, compute_capability="8.9"), preparation)
    assert "\n" not in raised.value.what
    assert "/_src/" not in raised.value.what


def test_jobs_with_several_profiles_build(job: Any, preparation: Preparation) -> None:
    text = "1x3x16x16/2x3x16x16/8x3x16x16;16x3x16x16"
    made: Job = job(batch=16, profiles=text, profile=1)
    told = built(made, preparation).provenance
    assert told.profiles[0]["image"] == ((1, 3, 16, 16), (2, 3, 16, 16), (8, 3, 16, 16))
    assert told.profiles[1]["image"] == ((16, 3, 16, 16),) * 3
    assert told.inputs[0].profile == ((1, 3, 16, 16), (16, 3, 16, 16), (16, 3, 16, 16))  # best: of the one that runs
    first = built(job(batch=2, profiles=text), preparation).provenance
    assert first.inputs[0].profile == ((1, 3, 16, 16), (2, 3, 16, 16), (16, 3, 16, 16))
    assert told.outputs[0].shape == (-1, 10)


def test_running_out_of_memory_is_no_refusal(job: Any, preparation: Preparation, graph: Path) -> None:
    parsed = network(graph, job().flavour)
    config = configuration(parsed, job().options, job().profiles, job().targets)
    parsed.builder = SimpleNamespace(
        build_serialized_network=lambda *_: parsed.log.errors.append("Error Code 2: OutOfMemory (no 5 GiB)")
    )
    with pytest.raises(MemoryError, match="5 GiB"):
        engine.build_plan(parsed, config)
