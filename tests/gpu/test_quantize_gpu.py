"""Models that are quantized for a GPU: each way runs and is right, or is a row with its reason."""

import importlib.util

import numpy as np
import pytest
import torch

import inferlens
from inferlens.backends.base import Absence
from inferlens.backends.tensorrt.library import find_flavour, load_flavour
from tests.backends.test_quantize import Residual

ENGINES = [f"tensorrt:{name}" for name in ("trt", "rtx") if not isinstance(find_flavour(name), Absence)]
OF_TORCH = [
    *["torch_compile"] * (importlib.util.find_spec("torchao") is not None),
    *["torch_tensorrt:dynamo"] * (importlib.util.find_spec("modelopt") is not None
                                  and importlib.util.find_spec("torch_tensorrt") is not None),
]  # fmt: skip
pytestmark = pytest.mark.skipif(not ENGINES and not OF_TORCH, reason="needs TensorRT, torchao or ModelOpt")
RIGHT = {"int8": 0.1, "fp8": 0.15}  # relative L2 error of models whose weights are random


class Transformer(torch.nn.Module):
    """Attention and linear layers; torch's own TransformerEncoderLayer is none that torchao's fp8 is compiled in."""

    def __init__(self):
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(32, 4, batch_first=True)
        self.wide, self.narrow = torch.nn.Linear(32, 128), torch.nn.Linear(128, 32)

    def forward(self, words):
        seen = words + self.attention(words, words, words, need_weights=False)[0]
        return seen + self.narrow(self.wide(seen).relu())


LAYERS = {"linear": (Transformer, (8, 16, 32), "words"), "convolution": (Residual, (8, 3, 32, 32), "image")}


def old_rtx():
    return tuple(map(int, load_flavour("rtx").version.split(".")[:2])) < (1, 7)


@pytest.mark.parametrize("kind", ["int8", "fp8"])
@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("label", [*ENGINES, *OF_TORCH])
def test_each_way_is_right_or_says_why_not(label, layers, kind, tmp_path):
    made, shape, name = LAYERS[layers]
    torch.manual_seed(0)
    module = made().eval()
    data = np.random.default_rng(0).standard_normal((32, *shape[1:]), dtype=np.float32)
    np.savez(tmp_path / "data.npz", **{name: data})
    (record,) = inferlens.bench(
        module, torch.zeros(shape), backend=label, precision=kind, device="cuda", iterations=20, warmup=5, quick=True,
        calibration=str(tmp_path / "data.npz"), output=str(tmp_path / "out"),
    )  # fmt: skip
    if kind == "fp8" and torch.cuda.get_device_capability() < (8, 9):
        assert record.status == "unsupported"
        assert "fp8 needs 8.9" in record.reason
        return
    rtx = label.endswith("rtx") or (label.startswith("torch_tensorrt") and not isinstance(find_flavour("rtx"), Absence))
    if rtx and kind == "int8" and (layers == "convolution" or label.startswith("torch_tensorrt")) and old_rtx():
        assert record.status == "unsupported"
        assert len(record.reason) > 20
        return
    if (label, layers, kind) == ("torch_compile", "convolution", "int8"):  # its head has 8 rows
        assert record.status == "unsupported"
        assert "17 rows" in record.reason
        return
    assert record.status == "ok", f"{record.reason}\n{record.output_tail}"
    share = record.facts["quantized_share"]
    assert share < 0.5 if (label, layers) == ("torch_compile", "convolution") else share > 0.5
    assert [phase.name for phase in record.phases].count("quantize") == 1
    right = record.agreement.rel_l2 is not None and 0 < record.agreement.rel_l2 < RIGHT[kind]
    assert right or (rtx and (kind, layers) == ("fp8", "convolution"))  # which RTX computes wrongly on some GPUs


@pytest.mark.skipif("torch_compile" not in OF_TORCH, reason="needs torchao")
@pytest.mark.skipif(not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9), reason="needs fp8")
@pytest.mark.parametrize("scales", ["tensor", "row"])
def test_torchao_needs_no_data(scales, tmp_path):
    torch.manual_seed(0)
    (record,) = inferlens.bench(
        Transformer().eval(), torch.randn(8, 16, 32), backend="torch_compile", precision="fp8", device="cuda",
        quick=True, option=f"torch_compile.fp8_scales={scales}", iterations=20, warmup=5, output=str(tmp_path),
    )  # fmt: skip
    assert record.status == "ok", f"{record.reason}\n{record.output_tail}"
    assert 0 < (record.agreement.rel_l2 or 0) < RIGHT["fp8"]


@pytest.mark.skipif(not ENGINES, reason="needs TensorRT")
def test_engines_of_two_precisions_read_the_same_ranges(tmp_path):
    torch.manual_seed(0)
    inferlens.bench(
        Transformer().eval(), torch.randn(8, 16, 32), backend=[*ENGINES, "onnxruntime:cpu"], precision=["int8", "fp8"],
        calibration="random", iterations=20, warmup=5, quick=True, output=str(tmp_path),
    )  # fmt: skip
    assert len(list(tmp_path.rglob("calibration.json"))) == 1
