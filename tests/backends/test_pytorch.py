"""What eager PyTorch has beyond the contract, and what all runners in PyTorch share."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from inferlens.backends.availability import torch_settings
from inferlens.backends.base import TOLERANCES, Absence, Capabilities, Preparation, Saver, Support
from inferlens.errors import Unsupported
from inferlens.models.model import Model
from inferlens.spec.case import TensorSpec
from tests.backends import small


def settings() -> tuple[int, bool, bool, bool]:
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    return torch.get_num_threads(), cuda.matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark


def test_settings_are_set_and_put_back() -> None:
    before = settings()
    with torch_settings(threads=1, tf32=False):
        assert settings()[:3] == (1, False, False)
        assert torch.get_float32_matmul_precision() == "highest"
    with torch_settings(threads=None, tf32=True, cudnn_benchmark=True):
        assert settings() == (before[0], True, True, True)
    assert settings() == before


def test_a_failing_build_puts_settings_back(preparation: Preparation) -> None:
    class Failing(small.Convolution):
        def to(self, *_: Any, **__: Any) -> Any:
            raise RuntimeError("no memory left")

    threads = torch.get_num_threads()
    runner = small.backend("pytorch").prepare(small.model(Failing), small.case("pytorch", threads=1), preparation)
    with pytest.raises(RuntimeError, match="no memory left"):
        runner.__enter__()
    assert torch.get_num_threads() == threads
    assert not torch.is_inference_mode_enabled()


def test_tf32_has_its_own_tolerance_on_cuda() -> None:
    backend = small.backend("pytorch")
    assert backend.tolerance(small.case("pytorch", device="cuda", options={"tf32": True})) == TOLERANCES["tf32"]
    assert backend.tolerance(small.case("pytorch", device="cuda")) == TOLERANCES["fp32"]
    assert backend.tolerance(small.case("pytorch", options={"tf32": True})) == TOLERANCES["fp32"]
    case = small.case("pytorch", device="cuda", precision="bf16", options={"tf32": True})
    assert backend.tolerance(case) == TOLERANCES["bf16"]


def test_autocast_keeps_weights_in_fp32(preparation: Preparation) -> None:
    model = small.model()
    inputs = small.arrays(model)
    expected = small.eager(model, inputs)
    case = small.case("pytorch", precision="bf16", options={"autocast": True})
    with small.backend("pytorch").prepare(model, case, preparation) as runner:
        assert model.module is not None
        assert {parameter.dtype for parameter in model.module.parameters()} == {torch.float32}
        feed = runner.place(inputs)
        outputs = runner.infer(feed)
        assert feed[0].dtype == torch.float32
        assert outputs.dtype == torch.bfloat16
        assert 0 < small.error(runner.collect(outputs), expected) < TOLERANCES["bf16"]


class Norms(nn.Module):
    """Batch norms of which the first two can be folded, and reasons why the others cannot."""

    def __init__(self) -> None:
        super().__init__()

        class Activated(nn.BatchNorm2d):
            def forward(self, image: torch.Tensor) -> torch.Tensor:
                return torch.relu(super().forward(image))

        self.plain = nn.Sequential(nn.Conv2d(3, 4, 1, bias=False), nn.BatchNorm2d(4))
        self.shown = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, groups=2), nn.BatchNorm2d(4, affine=False))
        self.activated = nn.Sequential(nn.Conv2d(4, 4, 1), Activated(4))
        self.counting = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4, track_running_stats=False))
        self.called, self.of_called = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.branched, self.of_branched = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.hooked, self.of_hooked = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.hooked.register_forward_hook(lambda _module, _arguments, item: item + 1)
        self.returned, self.of_returned = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.never = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))
        for part in self.modules():
            if isinstance(part, nn.BatchNorm2d) and part.running_mean is not None:
                nn.init.normal_(part.running_mean)
                nn.init.uniform_(part.running_var, 0.5, 2.0)

    def forward(self, image: torch.Tensor) -> Any:
        image = self.counting(self.activated(self.shown(self.plain(image))))
        image = self.of_called(self.called(self.called(image)))
        branched = self.branched(image)
        image = self.of_branched(branched) + torch.sigmoid(branched)
        returned = self.returned(self.of_hooked(self.hooked(image)))
        return {"returned": returned, "last": self.of_returned(returned)}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_fuse_folds_what_can_be_folded(precision: str, preparation: Preparation) -> None:
    model = small.model(Norms, batch=2)
    inputs = small.arrays(model)
    expected = small.eager(model, inputs)
    case = small.case("pytorch", batch=2, precision=precision, options={"fuse": True})
    assert small.error(small.run(model, case, preparation, inputs), expected) < TOLERANCES[precision]
    assert preparation.facts["batch_norms_folded"] == 2
    assert not preparation.warnings
    assert model.module is not None
    folded = [path for path, part in model.module.named_modules() if isinstance(part, nn.Identity)]
    assert folded == ["plain.1", "shown.1"]


@pytest.mark.parametrize("options", [{}, {"fuse": True}])
def test_fuse_leaves_no_batch_norm_to_run(options: dict[str, bool], preparation: Preparation) -> None:
    model = small.model()
    preparation.level = "layer"
    with small.backend("pytorch").prepare(model, small.case("pytorch", options=options), preparation) as runner:
        feed = runner.place(small.arrays(model))
        with torch.profiler.profile() as profile:
            runner.infer(feed)
        layers = runner.profile_layers(feed, 2).layers
    assert any("batch_norm" in event.key for event in profile.key_averages()) == (not options)
    kinds = {layer.name: layer.kind for layer in layers}
    assert kinds["norm"] == ("Identity" if options else "BatchNorm2d")
    assert kinds["convolution"] == "Conv2d"


def test_what_is_saved_is_fused(preparation: Preparation, tmp_path: Path) -> None:
    backend, case = small.backend("pytorch"), small.case("pytorch", options={"fuse": True})
    assert isinstance(backend, Saver)
    backend.save(small.model(), case, preparation, tmp_path / "fused.pt2")
    called = [str(node.target) for node in torch.export.load(str(tmp_path / "fused.pt2")).graph.nodes]
    assert any("conv2d" in name for name in called)
    assert not any("batch_norm" in name for name in called)


def test_fuse_with_nothing_to_fold_is_said(preparation: Preparation) -> None:
    model = small.model(small.TwoInputs)
    small.agrees(model, small.case("pytorch", options={"fuse": True}), preparation)
    assert [warning.code for warning in preparation.warnings] == ["no-effect"]


@pytest.mark.parametrize(("option", "why"), [("autocast", "than fp32"), ("cuda_graph", "no CUDA graphs on cpu")])
def test_options_that_cannot_be_are_refused(option: str, why: str, preparation: Preparation) -> None:
    case = small.case("pytorch", options={option: True})
    with pytest.raises(Unsupported, match=why):
        small.backend("pytorch").prepare(small.model(), case, preparation)


def test_exported_program(preparation: Preparation) -> None:
    model = small.model()
    small.agrees(small.as_program(model), small.case("pytorch"), preparation, model)


class Types(nn.Module):
    """Returns what is not a plain float tensor, in an ordered dictionary."""

    def forward(self, double: torch.Tensor, half: torch.Tensor, flags: torch.Tensor, small: torch.Tensor) -> Any:
        assert double.dtype == half.dtype == torch.float32
        assert flags.dtype == torch.bool
        assert small.dtype == torch.uint8
        spectrum = torch.fft.fft(double + half)
        return OrderedDict(sum=double + half, spectrum=spectrum.conj(), flags=~flags, bytes=small + 1)


def test_every_type_goes_in_and_comes_out(preparation: Preparation) -> None:
    kinds = {"double": "float64", "half": "bfloat16", "flags": "bool", "small": "uint8"}
    specs = tuple(TensorSpec(name, (2, 4), dtype) for name, dtype in kinds.items())
    model = Model("types", "types", "module", specs, module=Types().eval())
    inputs = {
        "double": np.ones((2, 4), np.float64),
        "half": np.ones((2, 4), np.float32),
        "flags": np.zeros((2, 4), bool),
        "small": np.ones((2, 4), np.uint8),
    }
    total, spectrum, flags, integers = small.run(model, small.case("pytorch"), preparation, inputs)
    assert [item.dtype for item in (total, spectrum, flags, integers)] == [np.float32, np.complex64, bool, np.uint8]
    assert (total.sum(), spectrum[0, 0], flags.all(), integers.max()) == (16, 8, True, 2)


def test_complex_buffers_keep_their_imaginary_parts_in_fp16(preparation: Preparation) -> None:
    class Rotation(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("turn", torch.full((4,), 1j))

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return (values.float() * self.turn).imag

    model = Model("rotation", "rotation", "module", (TensorSpec("values", (4,)),), module=Rotation().eval())
    case = small.case("pytorch", precision="fp16")
    (got,) = small.run(model, case, preparation, {"values": np.ones(4, np.float32)})
    assert got.tolist() == [1, 1, 1, 1]


def test_absence_on_one_device_does_not_refuse_the_other() -> None:
    able = Capabilities(
        formats=("module",),
        supports=(Support("", "cpu", ("fp32",)),),
        absent=(Absence("", "no GPU is there", "buy one", device="cuda"),),
    )
    assert able.refusal(small.case("pytorch"), small.found("module")) is None
    refusal = able.refusal(small.case("pytorch", device="cuda"), small.found("module"))
    assert refusal is not None
    assert refusal.what == "no GPU is there"
