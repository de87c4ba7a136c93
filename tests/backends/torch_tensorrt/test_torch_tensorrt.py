"""The backend ``torch_tensorrt`` where there is no GPU: what it answers, and what its options become.

Here the library is not imported: that needs a GPU, or a process of its own (see ``test_torch_tensorrt_partition``).
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from inferlens.backends.base import Preparation
from inferlens.backends.pytorch import export as dynamic
from inferlens.backends.pytorch.export import WRAPPED, flat_outputs
from inferlens.backends.torch_tensorrt import files, library, settings, shapes
from inferlens.backends.torch_tensorrt.backend import TorchTensorRT
from inferlens.backends.torch_tensorrt.captured import told_reason
from inferlens.backends.torch_tensorrt.front_ends import FRONT_ENDS, FrontEnd, compiling, said
from inferlens.backends.torch_tensorrt.monitor import ways_of
from inferlens.backends.torch_tensorrt.operators import clean_path
from inferlens.backends.torch_tensorrt.options import Options
from inferlens.backends.torch_tensorrt.runner import TensorRtRunner
from inferlens.backends.torch_tensorrt.scripts import loaded_partition, script_partition
from inferlens.errors import InferlensError, Unsupported
from inferlens.models.adapter import ByKeyword
from inferlens.models.provenance import Provenance
from inferlens.record.record import ModelFacts
from inferlens.spec.case import Case, TensorSpec
from tests.backends import small

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="tells what is said where there is no GPU")

# The settings that differ between versions; the others are in all.
BOTH = (
    "min_block_size require_full_compilation torch_executed_ops optimization_level workspace_size num_avg_timing_iters "
    "truncate_double disable_tf32 sparse_weights immutable_weights version_compatible hardware_compatible "
    "timing_cache_path cache_built_engines reuse_cached_engines pass_through_build_failures enable_autocast "
    "autocast_low_precision_type"
)
OLD = frozenset(f"{BOTH} use_python_runtime use_explicit_typing".split())
NEW = frozenset(BOTH.split())


def stub(names: frozenset[str] = NEW, *, rtx: bool = True) -> Any:
    return SimpleNamespace(
        rtx=rtx, flavour="TensorRT for RTX" if rtx else "TensorRT",
        settings=names, parameters=names | {"use_python_runtime"}, native_runtime=True,
        title="Torch-TensorRT 2.x", versions={"torch_tensorrt": "2.x", "tensorrt": "11"},
    )  # fmt: skip


def case(variant: str = "dynamo", precision: str = "fp32") -> Case:
    return small.case(f"torch_tensorrt:{variant}", device="cuda", precision=precision)


@no_gpu
def test_no_gpu_is_an_answer_and_the_library_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "found", lambda *_: True)
    able = TorchTensorRT().capabilities()
    assert "torch_tensorrt" in able.formats, "who has a compiled module is told of the missing GPU"
    assert not able.available
    refusal = able.refusal(case(), small.found("module"))
    assert isinstance(refusal, Unsupported)
    assert "no NVIDIA GPU" in refusal.what
    assert refusal.hint
    assert "torch_tensorrt" not in sys.modules


def test_missing_library_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_tensorrt", None)
    (absence,) = TorchTensorRT().capabilities().absent
    assert absence.reason == "Torch-TensorRT is not installed."
    assert absence.hint.startswith("pip install 'inferlens[tensorrt-rtx]'")


def test_variants_and_files() -> None:
    assert TorchTensorRT.variants == ("dynamo", "compile", "ts-trace", "ts-script", "loaded")
    assert set(TorchTensorRT.saves) == {".ep", ".ts"}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", set()),
        ("aten.relu.default", {"torch.ops.aten.relu.default"}),
        ("aten::add.Tensor + torch.ops.aten.mean.dim", {"torch.ops.aten.add.Tensor", "torch.ops.aten.mean.dim"}),
    ],
)
def test_operators_are_named_in_any_spelling(text: str, names: set[str]) -> None:
    assert set(settings.executed_ops(text)) == names


def test_an_operator_without_overload_means_all_of_them() -> None:
    assert {"torch.ops.aten.relu.default", "torch.ops.aten.relu.out"} <= set(settings.executed_ops("aten.relu"))


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("aten.rleu", "aten.relu"),
        ("aten.relu.defalt", "aten.relu.default"),
        ("relu", "did you mean aten.relu?"),
        ("mean.dim", "did you mean aten.mean.dim?"),
        ("foo.bar", "inferlens partition without torch_executed_ops"),
        ("foo", "inferlens partition without torch_executed_ops"),
    ],
)
def test_an_operator_that_there_is_not_is_named(text: str, near: str) -> None:
    with pytest.raises(InferlensError, match="is no operator") as caught:
        settings.executed_ops(text)
    assert near in caught.value.hint


def test_settings_are_those_of_the_installed_version(preparation: Preparation) -> None:
    wanted = Options(min_block_size=3, torch_executed_ops="aten.relu.default", optimization_level=5)
    for names in (OLD, NEW):
        known = stub(names)
        made = settings.dynamo_settings(wanted, case(), known, preparation, parameters=known.parameters)
        assert set(made) <= names
        assert made["min_block_size"] == 3
        assert made["torch_executed_ops"] == {"torch.ops.aten.relu.default"}
        assert made["optimization_level"] == 5
        assert made["disable_tf32"] is True
        assert made["pass_through_build_failures"] is True
        assert made["timing_cache_path"].startswith(str(preparation.folder)), "builds share no timings"
        assert ("use_explicit_typing" in made) == (names is OLD)
        assert "use_python_runtime" not in made


def test_python_runtime_is_refused_where_there_is_no_choice(preparation: Preparation) -> None:
    wanted = Options(use_python_runtime=True)
    settings.check(wanted, case(), stub(OLD), preparation)
    made = settings.dynamo_settings(wanted, case(), stub(OLD), preparation, parameters=OLD)
    assert made["use_python_runtime"] is True
    with pytest.raises(Unsupported, match="chooses it itself"):
        settings.check(wanted, case(), stub(NEW), preparation)


def test_autocast_keeps_the_weights(preparation: Preparation) -> None:
    wanted = Options(autocast=True)
    made = settings.dynamo_settings(wanted, case(precision="bf16"), stub(), preparation, parameters=NEW)
    assert made["enable_autocast"] is True
    assert made["autocast_low_precision_type"] is torch.bfloat16
    with pytest.raises(Unsupported, match="autocast"):
        settings.check(wanted, case("compile", "fp16"), stub(), preparation)


@pytest.mark.parametrize("name", settings.NOT_IN_SCRIPT)
def test_what_the_torchscript_front_end_has_not_is_refused(name: str, preparation: Preparation) -> None:
    value = 5 if name == "optimization_level" else True
    wanted = msgspec.structs.replace(Options(immutable_weights=False), **{name: value})
    with pytest.raises(Unsupported, match=f"has no '{name}'"):
        settings.check(wanted, case("ts-trace", "fp16"), stub(OLD), preparation)


def test_script_settings() -> None:
    wanted = Options(torch_executed_ops="aten.relu+aten.mean.dim", immutable_weights=False, tf32=True)
    made = settings.script_settings(wanted, case("ts-trace", "fp16"))
    assert made["torch_executed_ops"] == ["aten::mean", "aten::relu"]
    assert made["enabled_precisions"] == {torch.float32, torch.float16}
    assert made["refit"] is True
    assert made["disable_tf32"] is False
    assert made["min_block_size"] == Options().min_block_size


def test_engines_are_kept_only_if_their_weights_can_be_replaced(preparation: Preparation) -> None:
    with pytest.raises(Unsupported, match="weights can be replaced") as caught:
        settings.check(Options(engine_cache=True), case(), stub(), preparation)
    assert "immutable_weights=false" in caught.value.hint
    settings.check(Options(engine_cache=True, immutable_weights=False), case(), stub(), preparation)


@pytest.mark.parametrize(("name", "value"), zip(settings.OF_TACTICS, (5, 4, True), strict=True))
def test_what_does_nothing_is_a_warning(name: str, value: Any, preparation: Preparation) -> None:
    wanted = Options(**{name: value})
    settings.check(wanted, case(), stub(rtx=False), preparation)
    settings.check(Options(), case(), stub(rtx=True), preparation)
    assert not preparation.warnings
    settings.check(wanted, case(), stub(rtx=True), preparation)
    assert [warning.code for warning in preparation.warnings] == ["no-effect"]
    assert preparation.warnings[0].message.startswith(f"{name} does nothing: TensorRT for RTX times no tactics")


@pytest.mark.parametrize("name", ["hardware_compatible", "version_compatible"])
def test_engines_for_elsewhere_are_refused_where_the_library_would_ignore_it(
    name: str, preparation: Preparation
) -> None:
    wanted = Options(**{name: True})
    settings.check(wanted, case(), stub(rtx=False), preparation)
    with pytest.raises(Unsupported, match="TensorRT for RTX has no") as refused:
        settings.check(wanted, case(), stub(rtx=True), preparation)
    assert f"no {name}" in refused.value.hint


def test_examples_show_which_sizes_vary() -> None:
    static = TensorSpec("y", (1, 4))
    ranged, ones = TensorSpec.parse("x=1..16x3x8x8:opt=2"), TensorSpec.parse("x=1..16x3x8x8:opt=1")
    assert [spec.shape for spec in shapes.example_specs((ranged, static))] == [(2, 3, 8, 8), (1, 4)]
    assert shapes.example_specs((ones,))[0].shape == (2, 3, 8, 8), "a size of 1 would be a constant"
    assert shapes.moved_optimum((ranged, static)) == {}
    assert shapes.moved_optimum((ones,)) == {"x": (2, 3, 8, 8)}
    assert shapes.vary_from_one((static, ranged))
    assert not shapes.vary_from_one((static, TensorSpec.parse("x=2..16x1x8x8")))


def test_ranges_are_dimensions_of_the_export() -> None:
    class Many(nn.Module):
        def forward(self, *values: torch.Tensor) -> torch.Tensor:
            return values[0] + values[1]

    specs = (TensorSpec.parse("x=1..16x8:opt=2"), TensorSpec.parse("y=1..16x8:opt=2"))
    feed = tuple(torch.randn(spec.shape) for spec in shapes.example_specs(specs))
    program = torch.export.export(Many(), feed, dynamic_shapes=dynamic.export_dimensions(Many(), specs), strict=False)
    if torch.__version__ >= (2, 10):  # before that it cannot run a program of a variable number of arguments
        assert program.module()(torch.ones(5, 8), torch.ones(5, 8)).shape == (5, 8)
    lengths = [node.meta["val"].shape[0] for node in program.graph.nodes if node.op == "placeholder"]
    assert [isinstance(length, torch.SymInt) for length in lengths] == [True, True]
    assert dynamic.export_dimensions(Many(), (TensorSpec("x", (1, 8)),)) is None


@pytest.mark.parametrize(("around", "wrapped"), [(lambda module: module, ""), (flat_outputs, WRAPPED)])
def test_a_script_without_engines_says_so(around: Callable[[nn.Module], nn.Module], wrapped: str) -> None:
    script = torch.jit.trace(around(nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()), torch.randn(2, 4))
    part = script_partition(
        script.inlined_graph,
        front_end="ts-trace",
        min_block_size=5,
        flavour="TensorRT",
        forced=["aten::relu"],
        wrapped=wrapped,
    )
    assert part.engines == ()
    assert (part.operators, part.in_tensorrt) == (2, 0), "without an engine all are there to be counted"
    assert set(part.breaks[0].operators) == {"aten.linear", "aten.relu"}
    assert [(each.module, each.why) for each in part.segments[0].operators] == [("0", ""), ("1", "forced")]
    assert part.note


ENGINES = """
graph(%x : Tensor, %engine : __torch__.torch.classes.tensorrt.Engine):
  %1 : Tensor[] = prim::ListConstruct(%x)
  %2 : Tensor[] = tensorrt::execute_engine(%1, %engine)
  %3 : Tensor = prim::ListUnpack(%2)
  %4 : Tensor = aten::relu(%3)
  %5 : Tensor[] = prim::ListConstruct(%4)
  %6 : Tensor[] = tensorrt::execute_engine(%5, %engine)
  %7 : Tensor = prim::ListUnpack(%6)
  return (%7)
"""


def test_of_a_script_with_engines_what_is_not_known_is_no_number() -> None:
    graph = torch._C.parse_ir(ENGINES.replace("__torch__.torch.classes.tensorrt.Engine", "Tensor"))
    part = script_partition(graph, front_end="ts-script", min_block_size=5, flavour="TensorRT")
    assert (part.operators, part.in_tensorrt, part.engines) == (None, None, (None, None))
    assert [each.runs_in for each in part.segments] == ["TensorRT", "PyTorch", "TensorRT"]
    (between,) = part.breaks
    assert (between.operators, between.modules, between.why) == ({"aten.relu": 1}, (None,), ())


def test_a_compiled_module_from_a_file_tells_what_its_graph_has() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    known = {"front_end": "loaded", "min_block_size": 5, "flavour": "TensorRT"}
    program = torch.export.export(module, (torch.randn(2, 4),), strict=False).module()
    part = loaded_partition(program, **known)  # type: ignore[arg-type]
    assert part is not None
    assert part.engines == ()
    assert [(each.name, each.module) for each in part.segments[0].operators] == [
        ("aten.linear.default", "0"), ("aten.relu.default", "1"),
    ]  # fmt: skip
    script = loaded_partition(torch.jit.trace(module, torch.randn(2, 4)), **known)  # type: ignore[arg-type]
    assert script is not None
    assert script.operators == 2
    assert loaded_partition(module, **known) is None, "no graph to read"  # type: ignore[arg-type]


def test_a_failure_in_the_table_of_choices_is_a_note() -> None:
    class Failing:
        def at(self, *_: int) -> Any:
            raise AssertionError("Couldn't create subgraphs")

    ways = ways_of([Failing()], 5)  # type: ignore[list-item]
    assert (ways.choices, ways.total) == ((), 0)
    assert ways.note.endswith("could not be found out: AssertionError: Couldn't create subgraphs.")


def test_a_case_that_ran_does_not_fail_for_its_partition(preparation: Preparation) -> None:
    class Unreadable:
        def segments(self, _: int) -> Any:
            raise KeyError("a version that keeps it elsewhere")

    runner = TensorRtRunner(small.model(), case(), preparation, Options(), stub())
    runner._graphs = [Unreadable()]  # type: ignore[list-item]
    runner._tell()
    assert "partition" not in preparation.facts
    assert "could not be told: KeyError" in preparation.facts["no_partition"]
    demanding = Options(require_full_compilation=True)
    strict = TensorRtRunner(small.model(), case(), preparation, demanding, stub())
    strict._graphs = [Unreadable()]  # type: ignore[list-item]
    with pytest.raises(KeyError):
        strict._tell()


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (
            "Failed to trace builtin operator\n  Explanation: Dynamo does not know how to trace builtin operator "
            "`print` with argument types ['str']\n  Hint: Avoid calling it.\n\n  Developer debug context: builtin",
            "Failed to trace builtin operator: Dynamo does not know how to trace builtin operator `print` with "
            "argument types ['str']",
        ),
        ("generic_jump TensorVariable()", "generic_jump TensorVariable()"),
        ("", ""),
    ],
)
def test_a_reason_of_dynamos_keeps_what_it_is_about(reason: str, told: str) -> None:
    assert told_reason(reason) == told


class Subtracting(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a - b


def test_a_module_whose_inputs_are_named_is_scripted() -> None:
    script = FRONT_ENDS["ts-script"].export(ByKeyword.of(Subtracting(), ["b", "a"]), None)  # type: ignore[arg-type]
    one, two = torch.ones(2), torch.zeros(2)
    assert torch.equal(script(one, two), two - one)


def test_torchscript_is_taken_by_the_front_end_that_is_made_for_it(tmp_path: Path) -> None:
    path = tmp_path / "script.pt"
    torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()).save(str(path))
    script = torch.jit.load(str(path))
    assert FRONT_ENDS["ts-script"].export(script, None) is script  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("min_block_size", "0", "a whole number, 1 or more"),
        ("optimization_level", 9, "a whole number from 0 to 5"),
        ("autocast", "maybe", "true or false"),
    ],
)
def test_a_value_that_an_option_does_not_take_says_what_it_takes(name: str, value: Any, expected: str) -> None:
    with pytest.raises(InferlensError) as raised:
        TorchTensorRT.parse_options(msgspec.structs.replace(case(), options={name: value}))
    assert str(raised.value).startswith(f"The option torch_tensorrt.{name} does not take '{value}'.")
    assert raised.value.expected == expected


def test_torchscript_has_no_partition_before_it_is_built(preparation: Preparation) -> None:
    script = dataclasses.replace(small.model(), format="torchscript")
    for variant in ("dynamo", "ts-script"):
        with pytest.raises(Unsupported, match="is TorchScript, of which the partition is told only when") as told:
            TorchTensorRT().partition(script, case(variant), preparation)
        assert told.value.hint.startswith("the model that it was made from, or the record of inferlens bench")


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("layer1.0.conv1", "layer1.0.conv1"),
        ("", ""),
        ("L['self']._modules['layer1']._modules['0']", "layer1.0"),
        ("L['self'].layer1", "layer1"),
    ],
)
def test_module_paths_are_those_of_named_modules(text: str, path: str) -> None:
    assert clean_path(text) == path


def test_what_cannot_be_saved_says_what_can(preparation: Preparation) -> None:
    model, target = small.model(), preparation.folder / "x.ep"
    for variant in ("compile", "ts-trace", "loaded"):
        with pytest.raises(Unsupported, match=r"cannot be saved as \.ep"):
            TorchTensorRT().save(model, case(variant), preparation, target)
    python = msgspec.structs.replace(case(), options={"use_python_runtime": True})
    with pytest.raises(Unsupported, match="Python runtime cannot be saved"):
        TorchTensorRT().save(model, python, preparation, target)


@no_gpu
def test_where_there_is_no_gpu_nothing_is_compiled_to_be_saved(preparation: Preparation) -> None:
    with pytest.raises(Unsupported, match="builds engines on a GPU alone: no NVIDIA GPU") as refused:
        TorchTensorRT().save(small.model(), case(), preparation, preparation.folder / "x.ep")
    assert "pip" not in refused.value.hint


@pytest.mark.parametrize("front_end", FRONT_ENDS.values(), ids=lambda each: each.variant)
def test_a_model_that_does_not_compile_is_sent_to_another_front_end(front_end: FrontEnd) -> None:
    with (
        pytest.raises(Unsupported, match="cannot compile 'm': RuntimeError: no converter") as refused,
        compiling("m", "compile", front_end.instead),
    ):
        raise RuntimeError("no converter")
    other = refused.value.hint.removeprefix("--backend torch_tensorrt:")
    assert other in FRONT_ENDS
    assert other != front_end.variant


def test_operators_that_are_forced_in_vain_are_named() -> None:
    there = ["aten.clamp.default", "aten.add.Tensor", "getitem"]
    assert settings.not_there("", there) == ""
    assert settings.not_there("aten.add+aten.clamp.default", there) == ""
    assert "no aten.hardtanh and no aten.add.Scalar," in settings.not_there("aten.hardtanh+aten.add.Scalar", there)


def test_an_error_within_a_graph_names_its_operator_and_the_models_line() -> None:
    node = "%r : [num_users=1] = call_function[target=torch.ops.aten.roll.default](args = (%x,), kwargs = {})"
    stack = 'Original traceback:\n  File "/home/me/model.py", line 7, in forward\n    return x.roll(1)'
    assert said(RuntimeError(f"no such type\n\nWhile executing {node}\n{stack}")) == (
        "no such type (at aten.roll.default, model.py line 7)"
    )
    assert said(ValueError("no graph\nat all")) == "no graph at all"


def made(**more: Any) -> Provenance:
    told = {
        "created": "", "kind": "", "file_sha256": "", "case": case(), "model": ModelFacts(name="small"),
        "format": "module", "flavour": "TensorRT", "version": "11.0.0.1", "gpu": "NVIDIA T4",
        "compute_capability": "7.5",
    }  # fmt: skip
    return Provenance(**{**told, **more})


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({}, ""),
        ({"version": "11.0.0.9"}, ""),  # another build of the same version
        ({"version": "10.3.0.1"}, "engines of TensorRT 10.3.0.1; here is TensorRT 11.0.0.1"),
        ({"flavour": "TensorRT for RTX"}, "engines of TensorRT for RTX"),
        ({"gpu": "NVIDIA L4", "compute_capability": "8.9"}, r"built on NVIDIA L4 \(compute capability 8.9\)"),
        ({"gpu": "NVIDIA L4", "compute_capability": "8.9", "options": {"hardware_compatible": True}}, ""),
    ],
)
def test_a_file_for_another_gpu_or_version_is_not_opened(
    told: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_gpu", lambda: ("NVIDIA T4", "7.5"))
    known = SimpleNamespace(flavour="TensorRT", package="tensorrt", versions={"tensorrt": "11.0.0.1"}, rtx=False)
    if not words:
        files.check(Path("x.ts"), made(**told), known)  # type: ignore[arg-type]
        return
    with pytest.raises(Unsupported, match=words):
        files.check(Path("x.ts"), made(**told), known)  # type: ignore[arg-type]


def test_tensorrt_for_rtx_opens_no_file_of_another_gpu_whatever_it_was_built_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(files, "_gpu", lambda: ("NVIDIA T4", "7.5"))
    known = SimpleNamespace(
        flavour="TensorRT for RTX", package="tensorrt_rtx", versions={"tensorrt_rtx": "1.6.1"}, rtx=True
    )
    told = made(
        flavour="TensorRT for RTX", version="1.6.1", gpu="NVIDIA L4", compute_capability="8.9",
        options={"hardware_compatible": True},
    )  # fmt: skip
    with pytest.raises(Unsupported, match="built on NVIDIA L4"):
        files.check(Path("x.ts"), told, known)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["x.ts", "x.ep"])
def test_a_file_of_another_kind_is_one_sentence(name: str, preparation: Preparation) -> None:
    path = preparation.folder / name
    path.write_bytes(b"no module")
    with pytest.raises(InferlensError, match=r"cannot be opened: \w+: .+") as caught:
        files.open_module(path)
    assert "inferlens export" in caught.value.hint
