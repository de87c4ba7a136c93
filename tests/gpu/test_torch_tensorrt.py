"""Torch-TensorRT on an NVIDIA GPU: every variant, every group of options, ranges of sizes, files, partitions."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from inferlens.backends.base import TOLERANCES, Preparation, Runner  # noqa: E402
from inferlens.backends.torch_tensorrt import files  # noqa: E402
from inferlens.backends.torch_tensorrt.backend import TorchTensorRT  # noqa: E402
from inferlens.backends.torch_tensorrt.runner import TensorRtRunner  # noqa: E402
from inferlens.errors import InferlensError, Unsupported  # noqa: E402
from inferlens.execution import bench as api  # noqa: E402
from inferlens.execution.build import save, single  # noqa: E402
from inferlens.models.model import Model  # noqa: E402
from inferlens.spec.case import TensorSpec  # noqa: E402
from tests.backends import small  # noqa: E402
from tests.backends.torch_tensorrt.partitions import Broken, Filtered  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or importlib.util.find_spec("torch_tensorrt") is None,
        reason="needs an NVIDIA GPU and Torch-TensorRT",
    ),
]

Options = dict[str, Any]
VARIANTS = ("dynamo", "compile", "ts-trace", "ts-script")
SCRIPTS = ("ts-trace", "ts-script")
# Options that the installed flavour or version may refuse, with a reason; all others must run. TensorRT for RTX refuses
# the first two.
MAY_BE_REFUSED = ("version_compatible", "hardware_compatible", "sparse_weights", "use_python_runtime", "engine_cache")
GROUPS: list[tuple[str, str, Options]] = [
    ("dynamo", "fp32", {"min_block_size": 1}),
    ("dynamo", "fp32", {"optimization_level": 0}),
    ("dynamo", "fp16", {"optimization_level": 5}),
    ("dynamo", "fp32", {"require_full_compilation": True}),
    ("dynamo", "fp32", {"workspace_size": 2**30, "num_avg_timing_iters": 2}),
    ("dynamo", "fp32", {"truncate_double": True}),
    ("dynamo", "fp16", {"autocast": True}),
    ("dynamo", "bf16", {"autocast": True}),
    ("dynamo", "fp32", {"tf32": True}),
    ("dynamo", "fp16", {"sparse_weights": True}),
    ("dynamo", "fp32", {"immutable_weights": False}),
    ("dynamo", "fp32", {"version_compatible": True}),
    ("dynamo", "fp32", {"hardware_compatible": True}),
    ("dynamo", "fp32", {"torch_executed_ops": "aten.relu", "min_block_size": 1}),
    ("dynamo", "fp32", {"use_python_runtime": True}),
    ("dynamo", "fp16", {"use_python_runtime": True, "cuda_graph": True}),
    ("compile", "fp32", {"use_python_runtime": True}),
    ("compile", "fp16", {"optimization_level": 5, "min_block_size": 1}),
    ("compile", "fp32", {"torch_executed_ops": "aten.relu", "min_block_size": 1}),
    ("ts-trace", "fp32", {"min_block_size": 1, "workspace_size": 2**30, "tf32": True}),
    ("ts-script", "fp32", {"immutable_weights": False, "truncate_double": True}),
    ("ts-trace", "fp32", {"torch_executed_ops": "aten.relu", "min_block_size": 1}),
]


def name(value: Any) -> str:
    return ",".join(f"{key}={each}" for key, each in value.items()) if isinstance(value, dict) else str(value)


@pytest.fixture
def preparation(tmp_path: Path) -> Preparation:
    return small.preparation(tmp_path)


def case(variant: str, precision: str = "fp32", options: Options | None = None, batch: int = 3) -> Any:
    label = f"torch_tensorrt:{variant}"
    return small.case(label, device="cuda", precision=precision, batch=batch, options=options or {})


def prepared(variant: str, precision: str, options: Options, model: Model, preparation: Preparation) -> Runner:
    """A runner; skips what this build lacks."""
    wanted = case(variant, precision, options, model.inputs[0].shape[0])
    refusal = TorchTensorRT().capabilities().refusal(wanted, small.found(model.format))
    if refusal:
        pytest.skip(str(refusal))
    return TorchTensorRT().prepare(model, wanted, preparation)


def outputs_of(runner: Runner, inputs: Any) -> Any:
    outputs = runner.infer(runner.place(inputs))
    runner.synchronize()
    return runner.collect(outputs)


@pytest.mark.parametrize("cuda_graph", [False, True], ids=["calls", "graph"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_outputs_are_right_and_stay_so(
    variant: str, precision: str, cuda_graph: bool, preparation: Preparation
) -> None:
    model = small.model(batch=3)
    inputs, others = small.arrays(model), small.arrays(model, seed=1)
    expected, other = small.eager(model, inputs), small.eager(model, others)
    with prepared(variant, precision, {"cuda_graph": cuda_graph}, model, preparation) as runner:
        feed, second = runner.place(inputs), runner.place(others)
        for placed, right in ((feed, expected), (feed, expected), (second, other), (feed, expected)):
            outputs = runner.infer(placed)
            runner.synchronize()
            assert small.error(runner.collect(outputs), right) < small.allowed("torch_tensorrt:dynamo", precision)
        kept = runner.collect(runner.infer(feed))
        runner.infer(second)
        runner.synchronize()
        assert small.error(kept, expected) < small.allowed("torch_tensorrt:dynamo", precision), (
            "collected outputs were overwritten"
        )
    facts = preparation.facts
    assert facts["flavour"] in ("TensorRT", "TensorRT for RTX")
    assert facts["runtime"] == "C++"
    assert len(facts["partition"]["engines"]) == 1
    assert not preparation.warnings
    phases = [phase.name for phase in preparation.phases]
    assert phases == (["build"] if variant == "compile" else ["export", "build"])


@pytest.mark.parametrize(("variant", "precision", "options"), GROUPS, ids=name)
def test_each_group_of_options_runs_or_says_why_not(
    variant: str, precision: str, options: Options, preparation: Preparation
) -> None:
    model = small.model(batch=3)
    inputs = small.arrays(model)
    expected = small.eager(model, inputs)
    try:
        with prepared(variant, precision, options, model, preparation) as runner:
            got = outputs_of(runner, inputs)
    except Unsupported as refusal:
        assert set(options) & set(MAY_BE_REFUSED), f"{refusal}"  # noqa: PT017
        assert len(str(refusal)) > 30  # noqa: PT017
        return
    tolerance = TOLERANCES["tf32"] if options.get("tf32") else small.allowed("torch_tensorrt:dynamo", precision)
    assert small.error(got, expected) < tolerance
    if "torch_executed_ops" in options:
        operators = [name for each in preparation.facts["partition"]["breaks"] for name in each["operators"]]
        assert any("relu" in name for name in operators)
    if "use_python_runtime" in options:
        assert preparation.facts["runtime"] == "Python"


@pytest.mark.parametrize("variant", ["dynamo", "compile"])
def test_bf16_agrees_or_is_refused(variant: str, preparation: Preparation) -> None:
    model = small.model(batch=8)
    inputs = small.arrays(model)
    expected = small.eager(model, inputs)
    try:
        with prepared(variant, "bf16", {}, model, preparation) as runner:
            got = outputs_of(runner, inputs)
    except Unsupported as refusal:
        assert ": " in refusal.what  # noqa: PT017
        return
    assert 0 < small.error(got, expected) < TOLERANCES["bf16"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_two_inputs_and_nested_outputs(variant: str, preparation: Preparation) -> None:
    """The TorchScript front end need not take them: integers of 64 bits, and, when scripted, a dictionary."""
    model = small.model(small.TwoInputs, batch=3)
    inputs = small.arrays(model)
    expected = small.eager(model, inputs)
    try:
        with prepared(variant, "fp32", {"min_block_size": 1}, model, preparation) as runner:
            got = outputs_of(runner, inputs)
    except Unsupported as refusal:
        assert variant in SCRIPTS, f"{refusal}"  # noqa: PT017
        assert ": " in refusal.what  # noqa: PT017
        return
    assert [value.shape for value in got] == [(3, 6), (3, 6, 16), (3, 16), (3, 6)]
    assert small.error(got, expected) < small.allowed("torch_tensorrt:dynamo")


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_range_of_sizes_runs_at_its_ends_and_at_its_optimum(variant: str, preparation: Preparation) -> None:
    batches = (1, 2, 5) if variant == "compile" else (1, 2, 16)
    spec = TensorSpec.parse(f"image=1..{batches[-1]}x3x16x16:opt=2")
    at_two = msgspec.structs.replace(spec, shape=(2, 3, 16, 16))
    model = dataclasses.replace(small.model(), inputs=(at_two,))
    wanted = []
    for batch in batches:
        sized = dataclasses.replace(model, inputs=(msgspec.structs.replace(spec, shape=(batch, 3, 16, 16)),))
        inputs = small.arrays(sized)
        wanted.append((inputs, small.eager(sized, inputs)))
    with prepared(variant, "fp32", {}, model, preparation) as runner:
        for inputs, expected in wanted:
            got = outputs_of(runner, inputs)
            assert got[0].shape == expected[0].shape
            assert small.error(got, expected) < small.allowed("torch_tensorrt:dynamo")
    assert not preparation.warnings


def test_an_optimum_of_one_is_moved_and_said(preparation: Preparation) -> None:
    spec = TensorSpec.parse("image=1..4x3x16x16:opt=1")
    model = dataclasses.replace(small.model(), inputs=(msgspec.structs.replace(spec, shape=(1, 3, 16, 16)),))
    inputs = small.arrays(model)
    expected = small.eager(model, inputs)
    with prepared("dynamo", "fp32", {}, model, preparation) as runner:
        assert small.error(outputs_of(runner, inputs), expected) < small.allowed("torch_tensorrt:dynamo")
    assert [warning.code for warning in preparation.warnings] == ["moved-optimum"]
    assert "fastest at image 2x3x16x16" in preparation.warnings[0].message


@pytest.mark.parametrize(
    ("variant", "suffix", "options"),
    [
        ("dynamo", ".ep", {}), ("dynamo", ".ts", {}), ("ts-trace", ".ts", {}), ("ts-script", ".ts", {}),
        ("dynamo", ".ep", {"torch_executed_ops": "aten.relu", "min_block_size": 1}),
        ("dynamo", ".ep", {"autocast": True}),
    ],
    ids=name,
)  # fmt: skip
def test_a_saved_module_gives_equal_outputs(
    variant: str, suffix: str, options: Options, preparation: Preparation, tmp_path: Path
) -> None:
    precision = "fp16" if "autocast" in options else "fp32"
    model, path = small.model(batch=3), tmp_path / f"small{suffix}"
    inputs = small.arrays(model)
    with prepared(variant, precision, options, model, preparation) as runner:
        assert isinstance(runner, TensorRtRunner)
        before = outputs_of(runner, inputs)
        runner.save(path)
        files.describe(path, model, case(variant, precision, options), runner.options, runner.library, 1.0)
    for graph in ({}, {"cuda_graph": True}):
        loaded = Model("torch_tensorrt:small", "small", "torch_tensorrt", model.inputs, path=path)
        fresh = small.preparation(tmp_path)
        with TorchTensorRT().prepare(loaded, case("loaded", precision, graph), fresh) as runner:
            after = outputs_of(runner, inputs)
        assert small.error(after, before) < 1e-6
        assert not fresh.warnings
        built, told = preparation.facts["partition"], fresh.facts["partition"]
        assert list(told["engines"]) == [None] * len(built["engines"]), "a file does not tell what is in an engine"
        assert (told["operators"], told["in_tensorrt"]) == (None, None)
        beside = [name for each in told["breaks"] for name in each["operators"]]
        assert any("relu" in name for name in beside) == ("torch_executed_ops" in options)


@pytest.mark.parametrize(("variant", "suffix"), [("dynamo", ".ep"), ("dynamo", ".ts"), ("ts-script", ".ts")])
def test_a_saved_module_keeps_its_range_of_sizes(
    variant: str, suffix: str, preparation: Preparation, tmp_path: Path
) -> None:
    spec = TensorSpec.parse("image=1..16x3x16x16:opt=2")
    at_two = (msgspec.structs.replace(spec, shape=(2, 3, 16, 16)),)
    model, path = dataclasses.replace(small.model(), inputs=at_two), tmp_path / f"small{suffix}"
    TorchTensorRT().save(model, case(variant, batch=2), preparation, path)
    loaded = Model("torch_tensorrt:small", "small", "torch_tensorrt", at_two, path=path)
    with TorchTensorRT().prepare(loaded, case("loaded", batch=2), preparation) as runner:
        for batch in (1, 2, 16):
            sized = (msgspec.structs.replace(spec, shape=(batch, 3, 16, 16)),)
            other = dataclasses.replace(small.model(), inputs=sized)
            inputs = small.arrays(other)
            assert small.error(outputs_of(runner, inputs), small.eager(other, inputs)) < small.allowed(
                "torch_tensorrt:dynamo"
            )


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_torchscript_from_a_file_is_compiled_as_it_is(precision: str, preparation: Preparation, tmp_path: Path) -> None:
    made = small.model(batch=3)
    inputs = small.arrays(made)
    expected = small.eager(made, inputs)
    torch.jit.script(made.module).save(str(tmp_path / "small.pt"))
    script = torch.jit.load(str(tmp_path / "small.pt"))
    model = dataclasses.replace(made, format="torchscript", module=script, path=tmp_path / "small.pt")
    with prepared("ts-script", precision, {}, model, preparation) as runner:
        got = outputs_of(runner, inputs)
    assert small.error(got, expected) < small.allowed("torch_tensorrt:dynamo", precision)
    assert len(preparation.facts["partition"]["engines"]) == 1


@pytest.mark.parametrize("variant", SCRIPTS)
def test_of_a_script_what_is_not_known_is_no_number(variant: str, preparation: Preparation) -> None:
    model = small.model(batch=3)
    options = {"torch_executed_ops": "aten.relu", "min_block_size": 1}
    with prepared(variant, "fp32", options, model, preparation) as runner:
        outputs_of(runner, small.arrays(model))
    told = preparation.facts["partition"]
    assert set(told["engines"]) == {None}
    assert (told["operators"], told["in_tensorrt"]) == (None, None)
    forced = [each for segment in told["segments"] for each in segment["operators"] if each["name"] == "aten.relu"]
    assert {each["why"] for each in forced} == {"forced"}


def test_torch_compile_tells_modules_and_breaks(preparation: Preparation) -> None:
    model = Model("parts", "parts", "module", (TensorSpec("rows", (8, 16)),), module=Filtered().eval())
    inputs = small.arrays(model)
    with prepared("compile", "fp32", {"min_block_size": 1}, model, preparation) as runner:
        outputs_of(runner, inputs)
    told = preparation.facts["partition"]
    operators = [each for segment in told["segments"] for each in segment["operators"]]
    assert {each["module"] for each in operators} == {"", "before", "after"}
    (between,) = told["interruptions"]
    assert "aten.nonzero.default" in between["reason"]
    assert between["place"].startswith("partitions.py line ")


def test_engines_are_kept_and_used_again(tmp_path: Path) -> None:
    options = {"engine_cache": True, "immutable_weights": False}
    found, got = [], []
    inputs = small.arrays(small.model(batch=3))
    try:
        for _ in range(2):
            preparation = small.preparation(tmp_path)
            with prepared("dynamo", "fp32", options, small.model(batch=3), preparation) as runner:
                got.append(outputs_of(runner, inputs))
            found.append(preparation.facts["engine_cache"])
    except Unsupported as refusal:  # 2.11 cannot put folded weights into a kept engine of TensorRT for RTX
        assert "refit" in refusal.what  # noqa: PT017
        assert "engine_cache" in refusal.hint  # noqa: PT017
        return
    assert found[0] == {"hits": 0, "misses": 1}
    assert found[1] == {"hits": 1, "misses": 0}
    assert preparation.phases[-1].note == "cached"
    assert small.error(got[1], got[0]) < small.allowed("torch_tensorrt:dynamo")


def test_no_engine_is_said_and_one_whole_engine_can_be_demanded(preparation: Preparation) -> None:
    model = small.model(batch=3)
    inputs = small.arrays(model)
    expected = small.eager(model, inputs)
    with prepared("dynamo", "fp32", {"min_block_size": 100}, model, preparation) as runner:
        assert small.error(outputs_of(runner, inputs), expected) < small.allowed("torch_tensorrt:dynamo")
    assert [warning.code for warning in preparation.warnings] == ["no-engines"]
    spec = (TensorSpec("x", (1, 3, 16, 16)),)
    for variant in ("dynamo", "compile"):
        broken = Model("broken", "broken", "module", spec, module=Broken().eval())
        options = {"require_full_compilation": True, "min_block_size": 1}
        runner = prepared(variant, "fp32", options, broken, preparation)
        with pytest.raises(Unsupported, match="require_full_compilation was asked for"):
            runner.__enter__()


def test_a_partition_between_engines_runs(preparation: Preparation) -> None:
    """Engine, PyTorch, engine: what crosses is right."""
    torch.manual_seed(0)
    spec = (TensorSpec("x", (1, 3, 16, 16)),)
    model = Model("broken", "broken", "module", spec, module=Broken().eval())
    inputs = small.arrays(model)
    expected = small.eager(model, inputs)
    with prepared("dynamo", "fp32", {"min_block_size": 1}, model, preparation) as runner:
        assert small.error(outputs_of(runner, inputs), expected) < 1e-2  # an inverse enlarges what it is given
    told = preparation.facts["partition"]
    assert [each["runs_in"] for each in told["segments"]] == ["TensorRT", "PyTorch", "TensorRT"]
    assert told["segments"][1]["operators"][0]["module"] == "inverse"


def resnet18() -> Model:
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(0)
    module = torchvision.models.resnet18(weights=None).eval()
    for part in module.modules():
        if isinstance(part, torch.nn.BatchNorm2d):  # statistics near those of the activations: no layer is drowned
            torch.nn.init.uniform_(part.running_var, 0.5, 2.0)
    return Model("torchvision:resnet18", "resnet18", "module", (TensorSpec("x", (1, 3, 224, 224)),), module=module)


def test_resnet18_is_one_engine_of_89_operators(preparation: Preparation) -> None:
    model = resnet18()
    inputs = small.arrays(model)
    expected = small.eager(model, inputs)
    part = TorchTensorRT().partition(resnet18(), case("dynamo", batch=1), preparation)
    assert (part.operators, part.in_tensorrt, part.engines) == (89, 89, (89,))
    assert part.assumed_gpu == ""
    with prepared("dynamo", "fp16", {}, model, preparation) as runner:
        assert small.error(outputs_of(runner, inputs), expected) < TOLERANCES["fp16"]
        times = runner.clock.time(runner.infer, itertools.repeat(runner.place(inputs)), 50)
    built = preparation.facts["partition"]
    assert (built["operators"], list(built["engines"])) == (89, [89])
    assert built["fewest"]["most"] == 89
    assert 0 < float(np.median(times.gpu)) < 5e-3


def test_device_memory_is_given_back(preparation: Preparation) -> None:
    inputs = small.arrays(small.model(batch=3))
    left = []
    for _ in range(3):
        with prepared("dynamo", "fp32", {}, small.model(batch=3), preparation) as runner:
            outputs_of(runner, inputs)
            assert runner.device_memory() is None  # engines take memory that PyTorch does not see
        torch.cuda.synchronize()
        left.append(torch.cuda.memory_allocated())
    assert left[2] - left[1] < 2**20


@pytest.mark.parametrize(
    ("variant", "suffix"), [("dynamo", ".ep"), ("dynamo", ".ts"), ("ts-trace", ".ts"), ("ts-script", ".ts")]
)
def test_a_saved_module_runs_from_its_file_and_is_checked_against_its_source(
    variant: str, suffix: str, tmp_path: Path
) -> None:
    label = f"torch_tensorrt:{variant}"
    options = ["torch_tensorrt.min_block_size=1"]
    case = single({"model": "tests.gpu.crash:good", "option": options}, label)
    file = tmp_path / f"model{suffix}"
    save(file, case, cache=tmp_path / "cache")
    words = {"output": str(tmp_path / "out"), "iterations": 20, "warmup": 5}
    (record,) = api.bench(str(file), trust=True, **words)
    assert (record.status, record.reason) == ("ok", "")
    assert record.case.backend_label == "torch_tensorrt:loaded"
    assert record.agreement
    assert record.agreement.agrees is True
    with pytest.raises(InferlensError) as raised:
        api.bench(str(file), **words)
    assert "--trust" in raised.value.hint
