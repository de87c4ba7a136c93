"""Layers of engines on an NVIDIA GPU: times of every run, modules, and what is said where the engine tells less."""

import pytest

import inferlens
from inferlens.backends.base import Absence
from inferlens.backends.tensorrt.library import find_flavour

pytest.importorskip("torchvision")
VARIANT = next((variant for variant in ("trt", "rtx") if not isinstance(find_flavour(variant), Absence)), "")
pytestmark = pytest.mark.skipif(not VARIANT, reason="needs TensorRT or TensorRT for RTX")


def profiled(backend, folder, **words):
    (profile,) = inferlens.profile(
        "resnet18", backend=backend, precision="fp16", device="cuda", runs=20, iterations=50, output=str(folder),
        **words,
    )  # fmt: skip
    assert profile.status == "ok", profile.reason
    return profile


def attributed(profile):
    every = profile.layers.layers
    return sum(sum(layer.times) for layer in every if layer.modules) / sum(sum(layer.times) for layer in every)


@pytest.mark.parametrize(("backend", "least", "options"), [
    (f"tensorrt:{VARIANT}", 0.95, ()),
    ("torch_tensorrt:dynamo", 0.95, ()),
    ("torch_tensorrt:dynamo", 0.95, ("torch_tensorrt.use_python_runtime=true",)),
    ("torch_tensorrt:dynamo", 0.9, ("torch_tensorrt.torch_executed_ops=aten.max_pool2d",)),
    ("torch_tensorrt:compile", 0.7, ()),  # weights are inputs of these engines
    ("torch_tensorrt:ts-trace", 0, ()),  # TensorRT for RTX renames layers, and these engines tell names alone
], ids=str)  # fmt: skip
def test_layers_are_timed_in_every_run(backend, least, options, tmp_path):
    profile = profiled(backend, tmp_path, option=list(options))
    timed = [layer for layer in profile.layers.layers if layer.times]
    assert all(len(layer.times) == 20 for layer in timed)
    assert len(timed) > 15
    sums = [sum(layer.times[run] for layer in timed) for run in range(20)]
    assert all(0 < total <= 1.05 * whole for total, whole in zip(sums, profile.layers.whole, strict=True))
    assert len(set(sums)) > 1  # samples, no mean of them
    print(backend, options, attributed(profile), profile.layers.absent, profile.layers.clock)
    assert attributed(profile) >= least, profile.layers.absent
    assert least or attributed(profile) > 0.95 or "torch_tensorrt:dynamo" in profile.layers.absent["modules"]
