"""Eager PyTorch beyond the contract, and what all runners in PyTorch share."""

from collections import OrderedDict

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import nn

from inferlens.backends.base import TOLERANCES
from inferlens.backends.pytorch.runner import export_dimensions
from inferlens.execution.tasks import BenchmarkJob, BenchmarkResult, Reference, _warn_of_lower_precision
from inferlens.models.model import Model
from inferlens.record.record import Agreement
from inferlens.spec.case import Budget, TensorSpec
from tests.backends import small
from tests.backends.small import unsupported
from tests.commands import launch


@pytest.mark.parametrize(("device", "precision", "tf32", "expected"), [
    ("cuda", "fp32", True, "tf32"), ("cuda", "fp32", False, "fp32"), ("cpu", "fp32", True, "fp32"),
    ("cuda", "bf16", True, "bf16"),
])  # fmt: skip
def test_tf32_has_another_tolerance_on_cuda(device, precision, tf32, expected):
    case = small.case("pytorch", device=device, precision=precision, options={"tf32": True} if tf32 else {})
    assert small.backend("pytorch").tolerance(case) == TOLERANCES[expected]


def test_autocast_keeps_weights_in_fp32(preparation):
    model = small.model()
    inputs = small.arrays(model)
    expected = small.eager(model, inputs)
    case = small.case("pytorch", precision="bf16", options={"autocast": True})
    with small.backend("pytorch").prepare(model, case, preparation) as runner:
        assert {parameter.dtype for parameter in model.module.parameters()} == {torch.float32}
        feed = runner.place(inputs)
        outputs = runner.infer(feed)
        assert (feed[0].dtype, outputs.dtype) == (torch.float32, torch.bfloat16)
        assert 0 < small.error(runner.collect(outputs), expected) < TOLERANCES["bf16"]


class Norms(nn.Module):
    """Batch norms, of which the first two can be folded."""

    def __init__(self):
        super().__init__()
        self.plain = nn.Sequential(nn.Conv2d(3, 4, 1, bias=False), nn.BatchNorm2d(4))
        self.shown = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, groups=2), nn.BatchNorm2d(4, affine=False))
        self.counting = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4, track_running_stats=False))
        for name in ("called", "branched", "hooked", "returned"):
            self.add_module(name, nn.Conv2d(4, 4, 1))
            self.add_module(f"of_{name}", nn.BatchNorm2d(4))
        self.hooked.register_forward_hook(lambda _module, _arguments, item: item + 1)
        for part in self.modules():
            if isinstance(part, nn.BatchNorm2d) and part.running_mean is not None:
                nn.init.normal_(part.running_mean)
                nn.init.uniform_(part.running_var, 0.5, 2.0)

    def forward(self, image):
        image = self.counting(self.shown(self.plain(image)))
        image = self.of_called(self.called(self.called(image)))
        branched = self.branched(image)
        image = self.of_branched(branched) + torch.sigmoid(branched)
        returned = self.returned(self.of_hooked(self.hooked(image)))
        return {"returned": returned, "last": self.of_returned(returned)}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_fuse_folds_what_can_be_folded(precision, preparation):
    model = small.model(Norms, batch=2)
    inputs = small.arrays(model)
    expected = small.eager(model, inputs)
    case = small.case("pytorch", batch=2, precision=precision, options={"fuse": True})
    assert small.error(small.run(model, case, preparation, inputs), expected) < TOLERANCES[precision]
    assert preparation.facts["batch_norms_folded"] == 2
    assert not preparation.warnings
    folded = [path for path, part in model.module.named_modules() if isinstance(part, nn.Identity)]
    assert folded == ["plain.1", "shown.1"]


def test_a_saved_program_is_fused(preparation, tmp_path):
    backend, case = small.backend("pytorch"), small.case("pytorch", options={"fuse": True})
    backend.save(small.model(), case, preparation, tmp_path / "fused.pt2")
    called = [str(node.target) for node in torch.export.load(str(tmp_path / "fused.pt2")).graph.nodes]
    assert any("conv2d" in name for name in called)
    assert not any("batch_norm" in name for name in called)


def test_fuse_without_an_effect_is_a_warning(preparation):
    small.agrees(small.model(small.TwoInputs), small.case("pytorch", options={"fuse": True}), preparation)
    assert [warning.code for warning in preparation.warnings] == ["no-effect"]


@pytest.mark.parametrize(("option", "why"), [("autocast", "than fp32"), ("cuda_graph", "no CUDA graphs on cpu")])
def test_impossible_options_are_refused(option, why, preparation):
    case = small.case("pytorch", options={option: True})
    unsupported(why, small.backend("pytorch").prepare, small.model(), case, preparation)


class Types(nn.Module):
    """Return tensors of several types in an ordered dictionary."""

    def forward(self, double, half, flags, small):
        assert double.dtype == half.dtype == torch.float32
        assert (flags.dtype, small.dtype) == (torch.bool, torch.uint8)
        spectrum = torch.fft.fft(double + half)
        return OrderedDict(sum=double + half, spectrum=spectrum.conj(), flags=~flags, bytes=small + 1)


def test_every_type_goes_in_and_comes_out(preparation):
    kinds = {
        "double": ("float64", 1.0), "half": ("bfloat16", np.float32(1)), "flags": ("bool", False),
        "small": ("uint8", np.uint8(1)),
    }  # fmt: skip
    specs = tuple(TensorSpec(name, (2, 4), dtype) for name, (dtype, _) in kinds.items())
    model = Model("types", "types", "module", specs, module=Types().eval())
    inputs = {name: np.full((2, 4), value) for name, (_, value) in kinds.items()}
    total, spectrum, flags, integers = small.run(model, small.case("pytorch"), preparation, inputs)
    assert [item.dtype for item in (total, spectrum, flags, integers)] == [np.float32, np.complex64, bool, np.uint8]
    assert (total.sum(), spectrum[0, 0], flags.all(), integers.max()) == (16, 8, True, 2)


def test_complex_buffers_keep_their_imaginary_parts_in_fp16(preparation):
    class Rotation(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("turn", torch.full((4,), 1j))

        def forward(self, values):
            return (values.float() * self.turn).imag

    model = Model("rotation", "rotation", "module", (TensorSpec("values", (4,)),), module=Rotation().eval())
    case = small.case("pytorch", precision="fp16")
    (got,) = small.run(model, case, preparation, {"values": np.ones(4, np.float32)})
    assert got.tolist() == [1, 1, 1, 1]


# Ranges of sizes, as exporters get them, and warnings of backends that run static shapes or less than fp32


class Pair(nn.Module):
    """Two inputs of one length; the second has another width."""

    def forward(self, a, b):
        return a + b.sum(-1, keepdim=True)


def test_an_exported_program_takes_every_size_in_range_and_none_above():
    specs = (TensorSpec.parse("a=1..8x4"), TensorSpec.parse("b=1..8x2..6"))
    feed = tuple(torch.ones(spec.profile[2]) for spec in specs)
    program = torch.export.export(Pair(), feed, dynamic_shapes=export_dimensions(Pair(), specs), strict=False).module()
    for rows, width in ((1, 2), (8, 6), (3, 5)):
        assert program(torch.ones(rows, 4), torch.ones(rows, width)).tolist() == [[1.0 + width] * 4] * rows
    with pytest.raises(Exception, match=r"(?i)guard|constraint|expected|must"):
        program(torch.ones(9, 4), torch.ones(9, 2))
    assert export_dimensions(Pair(), (TensorSpec("a", (2, 4)), TensorSpec("b", (2, 3)))) is None


@pytest.mark.parametrize(("label", "text", "warned"), [
    ("openvino:cpu", "image=1..4x3x16x16", True), ("openvino:cpu", "image=4x3x16x16", False),
    ("pytorch", "image=1..4x3x16x16", False),
])  # fmt: skip
def test_a_backend_with_static_shapes_warns_of_a_range(label, text, warned, tmp_path):
    case = replace(small.case(label, batch=2, threads=1), model="factory:tests.backends.small:Convolution")
    small.skip_unless_runs(case, "module")
    job = BenchmarkJob(
        case=replace(case, inputs=(TensorSpec.parse(text),)), budget=Budget(warmup=1, iterations=2),
        folder=str(tmp_path), cache=str(tmp_path), reference=Reference(name="none", missing="no reference"),
    )  # fmt: skip
    answer = launch("benchmark", job, BenchmarkResult, timeout=0.0).result
    assert (answer.status, answer.model.inputs[0].shape) == ("ok", (2, 3, 16, 16))
    assert ("static-shape" in [warning.code for warning in answer.warnings]) == warned


@pytest.mark.parametrize(("error", "fields", "warned"), [
    (5e-4, {}, True), (1e-4, {}, False), (5e-4, {"precision": "fp16"}, False),
    (5e-4, {"options": {"tf32": True}}, False), (None, {}, False),
])  # fmt: skip
def test_fp32_with_a_lower_precision_is_warned_of(error, fields, warned, preparation):
    agreement = Agreement(reference="pytorch fp32", rel_l2=error, tolerance=2e-2, agrees=error is not None or None)
    _warn_of_lower_precision(agreement, small.case("tensorrt:rtx", device="cuda", **fields), preparation)
    assert [warning.code for warning in preparation.warnings] == ["lower-precision"] * warned
