"""Whether ``inferlens ab`` finds what made a network 3 % slower, and finds nothing where nothing was done.

ResNet-101 is held against itself with one more of its 33 blocks, and against a copy of itself, at two batch sizes.
Everything is built before.

    python -m benchmarks.small_difference [--device cuda] [--within 70s] [--other longer,copy] [-o FOLDER]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torchvision.models.resnet import Bottleneck, ResNet

import inferlens
from benchmarks.side_by_side import BUILD, run_side_by_side

HERE = "benchmarks.small_difference"  # it is run as ``__main__``


def base() -> torch.nn.Module:  # residual blocks begin at zero: outputs of random weights stay in the range of fp16
    return ResNet(Bottleneck, [3, 4, 23, 3], zero_init_residual=True)


def copy() -> torch.nn.Module:
    return ResNet(Bottleneck, [3, 4, 23, 3], zero_init_residual=True)


def longer() -> torch.nn.Module:
    return ResNet(Bottleneck, [3, 4, 24, 3], zero_init_residual=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--within", default="70s")
    parser.add_argument("--other", default="longer,copy")
    parser.add_argument("-o", "--output", default="results/small_difference")
    words = parser.parse_args()
    cuda, others = words.device == "cuda", words.other.split(",")
    case = {
        "backend": "torch_compile:reduce-overhead" if cuda else "pytorch",
        "precision": "fp16" if cuda else "fp32",
        "device": words.device,
        "output": words.output,  # what is built once is in its cache
    }
    asked = [f"--{name}={value}" for name, value in case.items()]
    every = [
        ["bench", f"{HERE}:{name}", f"--input=x={batch}x3x224x224", *asked, *BUILD]
        for batch in (1, 32)
        for name in ("base", *others)
    ]
    print(f"built in {run_side_by_side(every, Path(words.output) / 'built'):.0f} s", flush=True)
    for batch in (1, 32):
        for item in others:
            sides = f"{HERE}:base", f"{HERE}:{item}"
            ab_result = inferlens.ab(*sides, input=f"x={batch}x3x224x224", within=words.within, **case)
            print(f"batch {batch}, {item}: {ab_result.verdict} {ab_result.ratio} {ab_result.interval}", end=" ")
            print(f"{ab_result.rounds} rounds, {ab_result.seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
