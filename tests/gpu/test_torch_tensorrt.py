"""Torch-TensorRT on an NVIDIA GPU: groups of options, ranges of sizes, files, partitions.

Right outputs, lower precisions, times and memory of its variants are asked by the contract (``test_backends_gpu``).
"""

import dataclasses
import importlib.util

import msgspec
import pytest
import torch

import inferlens
from inferlens.backends.base import TOLERANCES
from inferlens.backends.torch_tensorrt.backend import TorchTensorRT
from inferlens.errors import InferlensError, Unsupported
from inferlens.execution.cases import cases_on, only_case
from inferlens.execution.deploy import save
from inferlens.models.model import Model
from inferlens.spec.case import TensorSpec
from tests.backends import small
from tests.backends.torch_tensorrt.partitions import Broken

pytestmark = pytest.mark.skipif(not importlib.util.find_spec("torch_tensorrt"), reason="needs Torch-TensorRT")

VARIANTS = ("dynamo", "compile", "ts-trace", "ts-script")
# Options that the installed flavour or version may refuse, with a reason; all others must run.
MAY_BE_REFUSED = ("version_compatible", "hardware_compatible", "sparse_weights", "use_python_runtime")
FORCED = {"torch_executed_ops": "aten.relu", "min_block_size": 1}
GROUPS = [
    ("dynamo", "fp16", {"optimization_level": 5}),
    ("dynamo", "fp32", {"require_full_compilation": True, "truncate_double": True}),
    ("dynamo", "fp32", {"workspace_size": 2**30, "num_avg_timing_iters": 2, "optimization_level": 0}),
    ("dynamo", "bf16", {"autocast": True}), ("dynamo", "fp32", {"tf32": True, "immutable_weights": False}),
    ("dynamo", "fp16", {"sparse_weights": True}), ("dynamo", "fp32", {"version_compatible": True}),
    ("dynamo", "fp32", {"hardware_compatible": True}), ("dynamo", "fp32", FORCED),
    ("dynamo", "fp16", {"use_python_runtime": True, "cuda_graph": True}),
    ("compile", "fp32", {"use_python_runtime": True}),
    ("compile", "fp16", {"optimization_level": 5, "min_block_size": 1}), ("compile", "fp32", FORCED),
    ("ts-trace", "fp32", {"min_block_size": 1, "workspace_size": 2**30, "tf32": True}),
    ("ts-script", "fp32", {"immutable_weights": False, "truncate_double": True}), ("ts-trace", "fp32", FORCED),
    *((variant, "fp16", {"cuda_graph": True}) for variant in VARIANTS),
]  # fmt: skip


def name(value):
    return ",".join(f"{key}={item}" for key, item in value.items()) if isinstance(value, dict) else str(value)


def case(variant, precision="fp32", options=None, batch=3):
    label = f"torch_tensorrt:{variant}"
    return small.case(label, device="cuda", precision=precision, batch=batch, options=options or {})


def prepared(variant, precision, options, model, preparation):
    """A runner; skips what this build lacks."""
    wanted = case(variant, precision, options, model.inputs[0].shape[0])
    return small.skip_unless_runs(wanted, model.format).prepare(model, wanted, preparation)


def ranged(batch, most=16, best=2):
    """The small model at a batch, its input with a range of sizes."""
    spec = TensorSpec.parse(f"image=1..{most}x3x16x16:opt={best}")
    return dataclasses.replace(small.model(), inputs=(msgspec.structs.replace(spec, shape=(batch, 3, 16, 16)),))


def agrees(runner, model, tolerance=0.0):
    inputs = small.arrays(model)
    expected = small.eager(small.model() if "image" in inputs else model, inputs)
    tolerance = tolerance or small.allowed("torch_tensorrt:dynamo")
    assert small.error(small.outputs_of(runner, inputs), expected) < tolerance


@pytest.mark.parametrize(("variant", "precision", "options"), GROUPS, ids=name)
def test_each_group_of_options_runs_or_says_why_not(variant, precision, options, preparation):
    model = small.model(batch=3)
    tolerance = TOLERANCES["tf32"] if options.get("tf32") else small.allowed("torch_tensorrt:dynamo", precision)
    try:
        with prepared(variant, precision, options, model, preparation) as runner:
            agrees(runner, model, tolerance)
    except Unsupported as refusal:
        assert set(options) & set(MAY_BE_REFUSED), f"{refusal}"  # noqa: PT017
        assert len(str(refusal)) > 30  # noqa: PT017
        return
    facts = preparation.facts
    assert facts["flavour"] in ("TensorRT", "TensorRT for RTX")
    assert facts["runtime"] == ("Python" if "use_python_runtime" in options else "C++")
    phases = [phase.name for phase in preparation.phases]
    assert phases == (["build"] if variant == "compile" else ["export", "build"])
    if options is FORCED:
        operators = [item for segment in facts["partition"]["segments"] for item in segment["operators"]]
        assert {operator["why"] for operator in operators if "relu" in operator["name"]} == {"forced"}
    if variant.startswith("ts-"):
        assert (facts["partition"]["operators"], set(facts["partition"]["engines"])) == (None, {None})


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_range_of_sizes_runs_at_its_ends_and_at_its_optimum(variant, preparation):
    batches = (1, 2, 5) if variant == "compile" else (1, 2, 16)
    with prepared(variant, "fp32", {}, ranged(2, batches[-1]), preparation) as runner:
        for batch in batches:
            agrees(runner, ranged(batch, batches[-1]))
    assert not preparation.warnings


@pytest.mark.parametrize(("variant", "suffix", "precision", "options"), [
    ("dynamo", ".ep", "fp32", {}), ("dynamo", ".ts", "fp32", {}), ("ts-trace", ".ts", "fp32", {}),
    ("dynamo", ".ep", "fp32", FORCED), ("dynamo", ".ep", "fp16", {"autocast": True}),
], ids=name)  # fmt: skip
def test_a_saved_module_gives_right_outputs(variant, suffix, precision, options, preparation, tmp_path):
    model, path = small.model(batch=3), tmp_path / f"small{suffix}"
    TorchTensorRT().save(model, case(variant, precision, options), preparation, path)
    built = preparation.facts["partition"]
    for graph in ({}, {"cuda_graph": True}):
        loaded = Model("torch_tensorrt:small", "small", "torch_tensorrt", model.inputs, path=path)
        fresh = small.preparation(tmp_path)
        with TorchTensorRT().prepare(loaded, case("loaded", precision, graph), fresh) as runner:
            agrees(runner, small.model(batch=3), small.allowed("torch_tensorrt:dynamo", precision))
            outputs = small.outputs_of(runner, small.arrays(model))
        assert outputs[0].shape == (3, 10)
        assert not fresh.warnings
        loaded_facts = fresh.facts["partition"]
        assert list(loaded_facts["engines"]) == [None] * len(built["engines"]), "a file lacks what is in an engine"
        in_pytorch = [operator for each in loaded_facts["breaks"] for operator in each["operators"]]
        assert any("relu" in operator for operator in in_pytorch) == (options is FORCED)


@pytest.mark.parametrize(("variant", "suffix"), [("dynamo", ".ep"), ("dynamo", ".ts"), ("ts-script", ".ts")])
def test_a_saved_module_keeps_its_range_of_sizes(variant, suffix, preparation, tmp_path):
    model, path = ranged(2), tmp_path / f"small{suffix}"
    TorchTensorRT().save(model, case(variant, batch=2), preparation, path)
    loaded = Model("torch_tensorrt:small", "small", "torch_tensorrt", model.inputs, path=path)
    with TorchTensorRT().prepare(loaded, case("loaded", batch=2), preparation) as runner:
        for batch in (1, 2, 16):
            agrees(runner, ranged(batch))


def broken():
    torch.manual_seed(0)
    return Model("broken", "broken", "module", (TensorSpec("x", (1, 3, 16, 16)),), module=Broken().eval())


def test_no_engine_is_said_and_one_whole_engine_can_be_demanded(preparation):
    model = small.model(batch=3)
    with prepared("dynamo", "fp32", {"min_block_size": 100}, model, preparation) as runner:
        agrees(runner, small.model(batch=3))
    assert [warning.code for warning in preparation.warnings] == ["no-engines"]
    for variant in ("dynamo", "compile"):
        options = {"require_full_compilation": True, "min_block_size": 1}
        runner = prepared(variant, "fp32", options, broken(), preparation)
        with pytest.raises(Unsupported, match="require_full_compilation"):
            runner.__enter__()


def test_a_partition_between_engines_runs(preparation):
    """Engine, PyTorch, engine: what crosses is right."""
    model = broken()
    inputs = small.arrays(model)
    expected = small.eager(model, inputs)
    with prepared("dynamo", "fp32", {"min_block_size": 1}, model, preparation) as runner:
        assert small.error(small.outputs_of(runner, inputs), expected) < 1e-2  # an inverse enlarges what it is given
    told = preparation.facts["partition"]
    assert [item["runs_in"] for item in told["segments"]] == ["TensorRT", "PyTorch", "TensorRT"]
    assert told["segments"][1]["operators"][0]["module"] == "inverse"
    beforehand = TorchTensorRT().partition(model, case("dynamo", options={"min_block_size": 1}), preparation)
    assert (beforehand.assumed_gpu, beforehand.engines) == ("", tuple(told["engines"]))


@pytest.mark.parametrize(("variant", "suffix"), [("dynamo", ".ep"), ("ts-trace", ".ts"), ("ts-script", ".ts")])
def test_a_saved_module_runs_from_its_file_and_is_checked_against_its_source(variant, suffix, tmp_path):
    options = ["torch_tensorrt.min_block_size=1"]
    case = only_case(cases_on({"model": "tests.gpu.crash:good", "option": options}, f"torch_tensorrt:{variant}"))
    file = tmp_path / f"model{suffix}"
    save(file, case, cache=tmp_path / "cache")
    words = {"output": str(tmp_path / "out"), "iterations": 20, "warmup": 5}
    (record,) = inferlens.bench(str(file), trust=True, **words)
    assert (record.status, record.reason, record.case.backend_label) == ("ok", "", "torch_tensorrt:loaded")
    assert record.agreement.agrees is True
    with pytest.raises(InferlensError) as raised:
        inferlens.bench(str(file), **words)
    assert "--trust" in raised.value.hint
