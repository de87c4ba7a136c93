"""Layers of what runs inside PyTorch on an NVIDIA GPU: kernels of Inductor and of TorchScript, traced to modules."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")


from inferlens.backends.abilities import LayerProfiler  # noqa: E402
from inferlens.models.model import Model  # noqa: E402
from inferlens.record.layer_profile import Layers  # noqa: E402
from inferlens.spec.case import TensorSpec  # noqa: E402
from tests.backends import small  # noqa: E402
from tests.backends.profiling.layered import ODD, Breaking, Costly, Fused, check, of, prepared, seconds, total  # noqa: E402
from tests.backends.profiling.layered import model as layered  # noqa: E402
from tests.backends.test_torchscript import Encoder  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

RUNS = 12  # more than are profiled at once
TRACE, SCRIPT = "torchscript:trace", "torchscript:script"
INDUCTOR = ("torch_compile:default", "torch_compile:reduce-overhead", "torch_compile:max-autotune")


def profiled(label: str, network: Model, folder: Path, precision: str = "fp32", **options: bool) -> Layers:
    case = small.case(label, device="cuda", precision=precision, options=options)
    with small.backend(label).prepare(network, case, prepared(folder)) as runner:
        assert isinstance(runner, LayerProfiler)
        feed = runner.place(small.arrays(network))
        for _ in range(3):
            runner.infer(feed)
        found = runner.profile_layers(feed, RUNS)
    assert found.timed == "GPU"
    assert found.clock.startswith("CUDA events" if label == "pytorch" else "torch.profiler (CUPTI)")
    check(found, RUNS)
    return found


def known(found: Layers) -> float:
    return seconds([layer for layer in found.layers if layer.modules]) / seconds(list(found.layers))


def real(name: str) -> Model:
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(0)
    module = getattr(torchvision.models, name)(weights=None).eval()
    spec = TensorSpec("image", (8, 3, 224, 224))
    return Model(f"torchvision:{name}", name, "module", (spec,), module=module)


@pytest.mark.parametrize("label", ["pytorch", *INDUCTOR, TRACE, SCRIPT])
def test_costs_are_where_the_work_is(label: str, tmp_path: Path) -> None:
    found = profiled(label, layered(Costly, 8, 64, 112, 112), tmp_path)
    first, second = seconds(of(found, "first")), seconds(of(found, "second"))
    assert second > 2 * first, found
    assert total(found, 0) > 0.3 * found.whole[0], found
    assert label == "pytorch" or all(layer.details["kernels"] for layer in found.layers), found


@pytest.mark.parametrize("label", INDUCTOR)
def test_fused_kernels_name_all_their_modules(label: str, tmp_path: Path) -> None:
    """Batch norm and ReLU are of one kernel; with max-autotune a convolution before or behind them may be of it too."""
    found = profiled(label, layered(Fused, 2, 3, 64, 64), tmp_path)
    assert known(found) > 0.9, found
    fused = [layer for layer in of(found, f"{ODD}.1", f"{ODD}.2") if layer.kind.startswith("Triton")]
    assert fused, found
    assert any("triton" in kernel for kernel in fused[0].details["kernels"]), found
    channels = 4 if fused[0].kind == "Triton template" and "last" in fused[0].modules else 32  # there it is a prologue
    assert (2, channels, 64, 64) in {tensor.shape for tensor in fused[0].outputs}, found
    assert of(found, "last"), found
    assert ("cuda_graph" in found.absent) == (label != INDUCTOR[0]), found


def test_graph_breaks(tmp_path: Path) -> None:
    found = profiled(INDUCTOR[0], layered(Breaking, 1, 64, 32), tmp_path)
    assert of(found, "first")
    assert of(found, "second")
    assert known(found) > 0.9


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "vit_b_16"])
@pytest.mark.parametrize(("label", "way"), [(INDUCTOR[0], ""), (TRACE, ""), (TRACE, "freeze")])
def test_real_models_are_attributed(label: str, way: str, name: str, tmp_path: Path) -> None:
    found = profiled(label, real(name), tmp_path, "fp16", **({way: True} if way else {}))
    assert known(found) > (0.95 if label == TRACE else 0.9), found.absent


@pytest.mark.parametrize("way", ["", "freeze"])
@pytest.mark.parametrize("label", [TRACE, SCRIPT])
def test_torchscript_attributes_transformers(label: str, way: str, tmp_path: Path) -> None:
    found = profiled(label, layered(Encoder, 4, 64, 32), tmp_path, **({way: True} if way else {}))
    assert known(found) > (0.5 if label == SCRIPT and way else 0.95)  # branches cannot be told apart there
    assert "layers.0" in {path for layer in found.layers for path in layer.modules} or (label == SCRIPT and way)
