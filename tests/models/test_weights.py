"""Random weights under which every layer shows, and weights from files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from inferlens.backends.base import TOLERANCES
from inferlens.case import Case
from inferlens.errors import InferlensError
from inferlens.measure.agreement import compare
from inferlens.models.inputs import make_inputs
from inferlens.models.model import Model
from inferlens.models.outputs import flatten
from inferlens.models.resolve import find, load
from inferlens.models.weights import load_weights

ZOO = [
    "torchvision:alexnet", "torchvision:mobilenet_v2", "torchvision:resnet18", "torchvision:resnet50",
    "torchvision:vit_b_16", "inferlens:resnet34", "transformers:bert", "timm:convnext_atto",
]  # fmt: skip
LAYERS = 16  # of a large model a spread sample, first and last included; benchmarks/sensitivity.py takes them all


def opened(name: str) -> Model:
    return load(Case(model=find(name).spec, backend="pytorch"))


def outputs(model: Model) -> list[np.ndarray]:
    assert model.module is not None
    arrays = [torch.from_numpy(array) for array in make_inputs(model, 0).values()]
    with torch.inference_mode():
        return [tensor.float().numpy() for tensor in flatten(model.module(*arrays))]


def weights_of(model: Model) -> list[tuple[str, torch.Tensor]]:
    """Every weight that is multiplied with something: matrices, norms' and layer scales' vectors; no biases."""
    assert model.module is not None
    return [(name, value) for name, value in model.module.named_parameters() if not name.endswith("bias")]


@pytest.mark.parametrize("name", ZOO)
def test_two_percent_on_any_layers_weights_is_caught(name: str) -> None:
    model = opened(name)
    reference = outputs(model)
    weights = weights_of(model)
    indices = np.unique(np.linspace(0, len(weights) - 1, LAYERS).round().astype(int))
    for layer, weight in (weights[index] for index in indices):
        kept = weight.clone()
        with torch.no_grad():
            weight.mul_(1.02)
            agreement = compare(outputs(model), reference, TOLERANCES["fp32"], "itself")
            weight.copy_(kept)
        assert agreement.agrees is False, f"{layer}: {agreement.rel_l2}"
    assert compare(outputs(model), reference, TOLERANCES["fp32"], "itself").rel_l2 == 0


@pytest.mark.parametrize("name", ["torchvision:mobilenet_v2", "inferlens:resnet34", "timm:convnext_atto"])
def test_activations_suit_fp16(name: str) -> None:
    model = opened(name)
    assert model.module is not None
    seen: list[float] = []
    for part in model.module.modules():
        part.register_forward_hook(lambda *call: seen.append(float(call[2].abs().max())))
    outputs(model)
    assert min(seen) > 0.01
    assert max(seen) < 1e4


def test_weights_depend_on_the_seed_alone() -> None:
    script = (
        "from inferlens.case import Case; from inferlens.models.resolve import load; import sys\n"
        "case = Case(model='timm:resnet10t', backend='x', batch=int(sys.argv[2]), seed=int(sys.argv[1]))\n"
        "print(load(case).weights_sha256)"
    )
    first, *same, other = [
        subprocess.run(
            [sys.executable, "-c", script, seed, batch], capture_output=True, text=True, check=True,
            env={**os.environ, "OMP_NUM_THREADS": threads},
        ).stdout
        for seed, batch, threads in (("0", "1", "1"), ("0", "8", "2"), ("1", "1", "2"))
    ]  # fmt: skip
    assert same == [first]
    assert other != first


def test_a_weights_file_that_does_not_fit_names_what_differs(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 4))
    torch.save({"0.weight": torch.zeros(3, 9), "0.bias": torch.zeros(3), "x": torch.zeros(1)}, tmp_path / "w.pth")
    with pytest.raises(InferlensError) as raised:
        load_weights(module, tmp_path / "w.pth")
    for words in ("2 missing: 1.bias, 1.weight", "1 not the model's: x", "1 of another shape: 0.weight"):
        assert words in str(raised.value)


@pytest.mark.parametrize("wrapper", [None, "state_dict", "model"])
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_weights_files_of_the_usual_forms_load(tmp_path: Path, wrapper: str | None, suffix: str) -> None:
    from safetensors.torch import save_file

    source, target = torch.nn.Linear(2, 3), torch.nn.Linear(2, 3)
    state = source.state_dict()
    if suffix == ".safetensors":
        save_file(state, tmp_path / "w.safetensors")
    else:
        torch.save({wrapper: state, "epoch": 3} if wrapper else state, tmp_path / "w.pth")
    load_weights(target, tmp_path / f"w{suffix}")
    assert torch.equal(target.weight, source.weight)


class Bomb:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return (open, (str(self.mark), "w"))


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_hostile_or_broken_weights_file_is_one_message_and_runs_nothing(tmp_path: Path, suffix: str) -> None:
    path, mark = tmp_path / f"w{suffix}", tmp_path / "mark"
    for write in (lambda: torch.save({"weight": Bomb(mark)}, path), lambda: path.write_bytes(b"\x80\x02junk")):
        write()
        with pytest.raises(InferlensError, match="cannot be read as weights"):
            load_weights(torch.nn.Linear(2, 3), path)
    assert not mark.exists()
    with pytest.raises(InferlensError, match="does not exist"):
        load_weights(torch.nn.Linear(2, 3), tmp_path / "none.pth")
