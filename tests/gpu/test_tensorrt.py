"""TensorRT from ONNX on an NVIDIA GPU: option groups, shapes, files, copies, streams, and outputs that are right.

Lower precisions, times and memory are asked by the contract (``test_backends_gpu``).
"""

import dataclasses
import itertools

import msgspec
import numpy as np
import pytest
import torch

import inferlens
from inferlens.backends.base import Absence, Preparation
from inferlens.backends.pytorch.runner import HostIoRunner
from inferlens.backends.tensorrt.library import find_flavour
from inferlens.errors import InferlensError, Unsupported
from inferlens.spec.case import TensorSpec
from tests.backends import small

HERE = [variant for variant in ("trt", "rtx") if not isinstance(find_flavour(variant), Absence)]
pytestmark = pytest.mark.skipif(not HERE, reason="needs TensorRT or TensorRT for RTX")
RANGE = TensorSpec("image", (2, 3, 16, 16), least=(1, 3, 16, 16), best=(2, 3, 16, 16), most=(16, 3, 16, 16))


@pytest.fixture(params=HERE)
def label(request):
    return f"tensorrt:{request.param}"


def at(model, batch):
    """The model at another batch, its input with a range of sizes."""
    return dataclasses.replace(model, inputs=(msgspec.structs.replace(RANGE, shape=(batch, 3, 16, 16)),))


def prepared(label, model, preparation, precision="fp32", **options):
    case = small.case(label, device="cuda", precision=precision, batch=None, options=options)
    return small.backend(label).prepare(model, case, preparation)


def agrees(runner, label, model, **options):
    inputs = small.arrays(model)
    expected = small.eager(small.model(), inputs)
    assert small.error(small.outputs_of(runner, inputs), expected) < small.allowed(label, **options)


# Shapes


def test_the_engine_of_a_range_takes_all_its_batches_and_is_built_once(label, tmp_path):
    notes = []
    for batch in (1, 2, 16):
        (tmp_path / str(batch)).mkdir()
        preparation = Preparation(tmp_path / str(batch), tmp_path / "cache")
        with prepared(label, at(small.model(), batch), preparation) as runner:
            agrees(runner, label, at(small.model(), batch))
            notes.append("cached" in [phase.note for phase in preparation.phases if phase.name == "build"])
    assert notes == [False, True, True]


def test_several_profiles_and_the_one_that_runs(label, preparation):
    shapes = "1x3x16x16/1x3x16x16/4x3x16x16;8x3x16x16/8x3x16x16/16x3x16x16"
    with prepared(label, small.model(batch=8), preparation, profiles=shapes, profile=1) as runner:
        agrees(runner, label, small.model(batch=8))
    assert preparation.facts["profiles"] == 2
    with pytest.raises(InferlensError, match="Profile 0"):
        prepared(label, small.model(batch=8), preparation, profiles=shapes).__enter__()


# Options

# Options that a flavour may refuse, with a reason; with all others an engine must run.
MAY_BE_REFUSED = {
    "rtx": ("version_compatible", "hardware_compatible", "weakly_typed", "refittable"),
    "trt": ("weakly_typed", "compute_capability"),  # TensorRT 11 has strongly typed networks alone
}
TAKE_8 = ((8, 0), (8, 9), (9, 0))  # compute capabilities of GPUs that run engines for 8.0 and 8.9
GROUPS = [
    {"optimization_level": 5, "max_num_tactics": 4, "sparsity": True},
    {"tactic_sources": "none", "optimization_level": 0},
    {"workspace": 64, "avg_timing_iterations": 4, "profiling_verbosity": "none"}, {"version_compatible": True},
    {"hardware_compatible": "ampere_plus"}, {"refittable": True}, {"compute_capability": "8.0+8.9"},
    {"profiling_verbosity": "layer_names_only", "tf32": True}, {"weakly_typed": True}, {"streams": 3},
    {"streams": 2, "cuda_graph": True},
]  # fmt: skip


@pytest.mark.parametrize("options", GROUPS, ids=str)
def test_option_groups_give_right_outputs_or_a_reason(label, options, preparation):
    if "compute_capability" in options and torch.cuda.get_device_capability() not in TAKE_8:
        pytest.skip("this GPU runs no engine for 8.0 and 8.9")
    model = small.model(batch=4)
    try:
        with prepared(label, model, preparation, **options) as runner:
            agrees(runner, label, model, **options)
            feed = runner.place(small.arrays(model))
            assert runner.clock.window(runner.infer, itertools.repeat(feed), 12) > 0
    except Unsupported as refusal:
        assert set(options) & set(MAY_BE_REFUSED[label.partition(":")[2]]), f"{refusal}"  # noqa: PT017
        assert len(refusal.what) > 20  # noqa: PT017


def test_timings_or_kernels_are_kept_in_a_file(label, preparation, tmp_path):
    file = tmp_path / "kept" / "kernels.cache"
    for _ in range(2):
        with prepared(label, small.model(batch=4), preparation, timing_cache=str(file)) as runner:
            agrees(runner, label, small.model(batch=4))
        assert file.stat().st_size > 0


# Copies and streams


@pytest.mark.parametrize("options", [{}, {"cuda_graph": True}], ids=str)
def test_calls_from_and_to_the_host(label, options, preparation):
    model = small.model(batch=4)
    inputs, others = small.arrays(model), small.arrays(model, seed=1)
    expected = [small.eager(model, item) for item in (inputs, others)]
    with HostIoRunner(prepared(label, model, preparation, **options)) as runner:
        for arrays, right in zip((inputs, others), expected, strict=True):
            feed = runner.place(arrays)
            timings = runner.clock.time(runner.infer, itertools.repeat(feed), 10)
            assert set(timings.stages) == {"H2D time", "compute time", "D2H time"}
            parts = [sum(stage[call] for stage in timings.stages.values()) for call in range(10)]
            np.testing.assert_allclose(parts, timings.gpu, atol=2e-6)
            assert small.error(runner.collect(runner.infer(feed)), right) < small.allowed(label)
            assert all(tensor.is_pinned() for tensor in feed.pinned)


# Files


def bench(*models, **words):
    return list(inferlens.bench([str(model) for model in models], iterations=20, warmup=5, quick=True, **words))


@pytest.fixture
def engine(label, tmp_path):
    path = tmp_path / "model.engine"
    small.exported(tmp_path / "model.onnx", small.model(batch=4).module, 4, 3, 16, 16, external_data=False)
    from inferlens.execution.cases import cases_on, only_case
    from inferlens.execution.deploy import save

    case = only_case(cases_on({"model": str(tmp_path / "model.onnx")}, label))
    save(path, case, cache=tmp_path / "cache")
    return path


def test_an_engine_runs_from_its_file_and_is_checked_against_its_source(engine, tmp_path):
    (record,) = bench(engine, output=str(tmp_path / "out"))
    assert (record.status, record.reason) == ("ok", "")
    assert record.agreement.agrees is True
    assert "onnxruntime" in record.agreement.reference


def test_an_engine_without_provenance_runs_and_says_what_is_not_known(engine, tmp_path):
    engine.with_name("model.engine.json").unlink()
    (record,) = bench(engine, input="image=4x3x16x16", output=str(tmp_path / "out"))
    assert record.status == "ok"
    assert record.agreement.agrees is None
    assert {warning.code for warning in record.warnings} == {"unknown-origin"}
    record, *_ = bench(engine, input="wrong=4x3x16x16", output=str(tmp_path / "out"))
    assert "image=4x3x16x16" in record.reason


def test_several_builds_tell_how_far_they_differ(label, preparation, tmp_path):
    model = small.model(batch=4)
    case = small.case(label, device="cuda", batch=None)
    report = small.backend(label).build(model, case, preparation, tmp_path / "a.engine", builds=2)
    assert len(report.builds) >= 2
    assert all(build.layers and build.gpu_seconds for build in report.builds)
    assert report.findings


# A crash


def test_an_illegal_memory_access_leaves_the_other_cases_right(label, tmp_path):
    models = ["tests.gpu.crash:illegal_access", "tests.gpu.crash:good"]
    words = {"backend": f"pytorch,{label}", "precision": "fp32", "seed": 0, "option": "pytorch.cuda_graph=false"}
    records = bench(*models, output=str(tmp_path / "out"), **words)
    first, *others = sorted(records, key=lambda record: record.created)
    assert (first.model.name, first.case.backend) == ("tests.gpu.crash.illegal_access", "pytorch")
    assert first.status in ("failed", "crashed")
    good = [record for record in others if record.model.name == "tests.gpu.crash.good"]
    assert [record.status for record in good] == ["ok", "ok"]
    right = [record for record in others if record.status == "ok"]
    assert all(record.agreement and record.agreement.agrees for record in right)
