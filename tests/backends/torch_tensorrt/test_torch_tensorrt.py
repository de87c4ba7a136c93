"""The backend ``torch_tensorrt`` without a GPU: its answers, and its options as settings.

Here the library is not imported: that needs a GPU, or a process of its own (see ``test_partition``).
"""

import dataclasses
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from msgspec import structs

from inferlens.backends.torch_tensorrt import backend
from inferlens.backends.torch_tensorrt import library as settings
from inferlens.backends.torch_tensorrt import runner as running
from inferlens.backends.torch_tensorrt.library import Library, TorchTensorRTOptions
from inferlens.errors import Unsupported
from inferlens.models.compiled import Provenance
from inferlens.record.record import Gpu, ModelFacts
from tests.backends import small
from tests.backends.small import unsupported
from tests.refusals import refusal

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="shows what is said where there is no GPU")
# The settings that differ between versions; the others are in all.
BOTH = (
    "min_block_size require_full_compilation torch_executed_ops optimization_level workspace_size num_avg_timing_iters "
    "truncate_double disable_tf32 sparse_weights immutable_weights version_compatible hardware_compatible "
    "timing_cache_path cache_built_engines reuse_cached_engines pass_through_build_failures enable_autocast "
    "autocast_low_precision_type"
)
OLD = frozenset(f"{BOTH} use_python_runtime use_explicit_typing".split())
NEW = frozenset(BOTH.split())


def stub(names=NEW, *, rtx=True):
    """TensorRT 11.0.0.1, or TensorRT for RTX."""
    return Library(
        None, "tensorrt", "TensorRT for RTX" if rtx else "TensorRT", {"tensorrt": "11.0.0.1"}, rtx, True, True, names,
        names | {"use_python_runtime"},
    )  # fmt: skip


def case(variant="dynamo", precision="fp32"):
    return small.case(f"torch_tensorrt:{variant}", device="cuda", precision=precision)


@no_gpu
def test_no_gpu_is_an_answer_and_the_library_is_not_imported(monkeypatch, preparation):
    monkeypatch.setattr(settings, "is_installed", lambda *_: True)
    able = backend.TorchTensorRT().capabilities()
    assert "torch_tensorrt" in able.formats, "who has a compiled module hears of the missing GPU"
    assert not able.available
    refusal = able.refusal(case(), small.info("module"))
    assert isinstance(refusal, Unsupported)
    assert "no NVIDIA" in refusal.what
    assert "torch_tensorrt" not in sys.modules
    save = backend.TorchTensorRT().save
    unsupported("no NVIDIA driver", save, small.model(), case(), preparation, preparation.folder / "x.ep")


def test_operators_are_named_in_any_spelling():
    text = "aten::add.Tensor + torch.ops.aten.mean.dim"
    assert settings.executed_ops(text) == ["torch.ops.aten.add.Tensor", "torch.ops.aten.mean.dim"]
    assert {"torch.ops.aten.relu.default", "torch.ops.aten.relu.out"} <= set(settings.executed_ops("aten.relu"))
    for wrong, near in (("aten.rleu", "relu"), ("relu", "partition"), ("xyzw.bar", "partition")):
        assert near in refusal("is not an operator", settings.executed_ops, wrong).hint


def test_settings_are_those_of_the_installed_version(preparation):
    wanted = TorchTensorRTOptions(min_block_size=3, torch_executed_ops="aten.relu.default", optimization_level=5)
    for names in (OLD, NEW):
        made = settings.dynamo_settings(wanted, case(), stub(names), preparation)
        assert set(made) <= names
        assert (made["min_block_size"], made["optimization_level"], made["disable_tf32"]) == (3, 5, True)
        assert made["torch_executed_ops"] == {"torch.ops.aten.relu.default"}
        assert made["pass_through_build_failures"] is True
        assert made["timing_cache_path"].startswith(str(preparation.folder)), "builds share no timings"
        assert ("use_explicit_typing" in made) == (names is OLD)
        assert "use_python_runtime" not in made
    own = TorchTensorRTOptions(autocast=True, use_python_runtime=True)
    made = settings.dynamo_settings(own, case(precision="bf16"), stub(OLD), preparation)
    assert (made["use_python_runtime"], made["enable_autocast"]) == (True, True)
    assert made["autocast_low_precision_type"] is torch.bfloat16
    own = TorchTensorRTOptions(torch_executed_ops="aten.relu", tf32=True)
    script = settings.script_settings(own, case("ts-trace", "fp16"))
    assert (script["torch_executed_ops"], script["disable_tf32"]) == (["aten::relu"], False)
    assert script["enabled_precisions"] == {torch.float32, torch.float16}


@pytest.mark.parametrize(("options", "variant", "library", "help"), [
    ({"optimization_level": 5}, "ts-trace", OLD, "dynamo"),
    ({"use_python_runtime": True}, "dynamo", NEW, "without use_python_runtime"),
    ({"autocast": True}, "compile", NEW, "dynamo"),
    ({"hardware_compatible": True}, "dynamo", NEW, "no hardware_compatible"),
    ({"version_compatible": True}, "dynamo", NEW, "no version_compatible"),
])  # fmt: skip
def test_options_of_other_variants_and_versions_are_refused(options, variant, library, help, preparation):
    check, wanted = settings.check_options, TorchTensorRTOptions(**options)
    assert help in unsupported(".", check, wanted, case(variant, "fp16"), stub(library), preparation).hint
    check(wanted, case("dynamo", "fp16"), stub(OLD, rtx=False), preparation)
    assert not preparation.warnings


def test_options_without_an_effect_are_a_warning(preparation):
    options = TorchTensorRTOptions(optimization_level=5, num_avg_timing_iters=4, sparse_weights=True)
    for rtx, codes in ((False, []), (True, ["no-effect"] * 3)):
        settings.check_options(options, case(), stub(rtx=rtx), preparation)
        assert [warning.code for warning in preparation.warnings] == codes


def test_variants_that_cannot_be_saved_are_refused(preparation):
    model, target = small.model(), preparation.folder / "x.ep"
    save, words = backend.TorchTensorRT().save, r"cannot save its compiled model as \.ep"
    for variant in ("compile", "ts-trace", "loaded"):
        unsupported(words, save, model, case(variant), preparation, target)


@pytest.mark.parametrize(("changes", "rtx", "words"), [
    ({}, False, ""), ({"version": "11.0.0.9"}, False, ""),  # another build of the same version
    ({"version": "10.3.0.1"}, False, "engines of TensorRT 10.3.0.1; here is TensorRT 11.0.0.1"),
    ({"gpu": "NVIDIA L4", "compute_capability": "8.9"}, False, "NVIDIA L4"),
    ({"gpu": "NVIDIA L4", "compute_capability": "8.9", "options": {"hardware_compatible": True}}, False, ""),
    ({"gpu": "NVIDIA L4", "compute_capability": "8.9", "options": {"hardware_compatible": True}}, True, "L4"),
])  # fmt: skip
def test_a_file_for_another_gpu_or_version_is_not_opened(changes, rtx, words, monkeypatch):
    monkeypatch.setattr(running, "current_gpu", lambda: Gpu(name="NVIDIA A10", compute_capability="8.6"))
    provenance = Provenance(
        created="", kind="", file_sha256="", case=case(), model=ModelFacts(name="small"), format="module",
        flavour="TensorRT", version="11.0.0.1", gpu="NVIDIA A10", compute_capability="8.6",
    )  # fmt: skip
    provenance = structs.replace(provenance, **changes)
    with pytest.raises(Unsupported, match=words) if words else nullcontext():
        running.check_file(Path("x.ts"), provenance, dataclasses.replace(stub(rtx=False), rtx=rtx))


@pytest.mark.parametrize("name", ["x.ts", "x.ep"])
def test_a_file_of_another_kind_is_one_sentence(name, preparation):
    path = preparation.folder / name
    path.write_bytes(b"no module")
    assert "inferlens export" in refusal(r"cannot be opened: \w+ .+", running.open_module, path).hint
