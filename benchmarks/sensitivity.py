"""How much each layer of the zoo's models shows in the outputs, with the weights of ``models.weights.randomize``.

Every weight, one at a time, is multiplied by 1.02; printed are the smallest and the median relative L2 change of the
outputs, and beside them what rounding does: fp32 against fp64, fp16 and bf16 against fp32. Agreement proves something
if the first are well above the fp32 tolerance, and is not fooled if the last are well below theirs.

    python benchmarks/sensitivity.py [MODEL ...] [--seed N]
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from inferlens.models.weights import randomize
from inferlens.models.zoo import ResNet34

FACTOR = 1.02
TORCHVISION = ("alexnet", "mobilenet_v2", "resnet18", "resnet50", "vit_b_16")


def build(name: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    source = torch.Generator().manual_seed(1)
    if name == "bert":
        import transformers

        bert = transformers.AutoModel.from_config(transformers.BertConfig())
        return bert, (torch.randint(0, 30522, (1, 128), generator=source),)
    makers: dict[str, Callable[[], torch.nn.Module]] = {"resnet34": ResNet34}
    if name in TORCHVISION:
        import torchvision

        makers[name] = lambda: torchvision.models.get_model(name, weights=None)
    elif name == "convnext_atto":
        import timm

        makers[name] = lambda: timm.create_model(name)
    return makers[name](), (torch.randn(1, 3, 224, 224, generator=source),)


def tensors(outputs: Any) -> list[torch.Tensor]:
    if isinstance(outputs, torch.Tensor):
        return [outputs]
    parts = outputs.values() if hasattr(outputs, "values") else outputs
    return [tensor for part in parts if part is not None for tensor in tensors(part)]


def change(outputs: Any, reference: Any) -> float:
    pairs = zip(tensors(outputs), tensors(reference), strict=True)
    return max(float((ours.double() - theirs.double()).norm() / theirs.double().norm()) for ours, theirs in pairs)


def rounding(module: torch.nn.Module, example: tuple[torch.Tensor, ...], kind: torch.dtype) -> float:
    inputs = [value.to(kind) if value.is_floating_point() else value for value in example]
    return change(copy.deepcopy(module).to(kind)(*inputs), module(*example))


def sensitivities(module: torch.nn.Module, example: tuple[torch.Tensor, ...]) -> Iterator[tuple[float, str]]:
    reference = module(*example)
    for name, parameter in module.named_parameters():
        if "bias" not in name.rpartition(".")[2]:
            kept = parameter.clone()
            parameter.mul_(FACTOR)
            yield change(module(*example), reference), name
            parameter.copy_(kept)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=[*TORCHVISION, "resnet34", "convnext_atto", "bert"])
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for name in arguments.models:
        module, example = build(name)
        begin = time.perf_counter()
        randomize(module, example, arguments.seed)
        seconds = time.perf_counter() - begin
        found = sorted(sensitivities(module, example))
        noise = [rounding(module, example, kind) for kind in (torch.float64, torch.float16, torch.bfloat16)]
        print(
            f"{name:14} {seconds:5.2f} s  weights {len(found):3}  least {found[0][0]:.1e} at {found[0][1]},"
            f" median {found[len(found) // 2][0]:.1e}  fp32 {noise[0]:.1e} fp16 {noise[1]:.1e} bf16 {noise[2]:.1e}",
            flush=True,
        )


if __name__ == "__main__":
    main()
