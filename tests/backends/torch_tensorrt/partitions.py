"""Partitions by the installed Torch-TensorRT, without a GPU: lowering and partitioning need none.

Importing the library takes long, and where there is no GPU one has to be assumed: the process is good for nothing else
afterwards. So this module, run once for all tests, does everything in one process and writes it as JSON: a run of
``inferlens partition``, the partitions of :data:`ASKED`, and what a network's layers carry for profiles.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from inferlens.backends.availability import ignore_deprecations
from inferlens.backends.torch_tensorrt.backend import TorchTensorRT
from inferlens.backends.torch_tensorrt.library import assume_gpu, load_library
from inferlens.backends.torch_tensorrt.runner import CONFIG_METHOD, detailed_engines
from inferlens.errors import InferlensError
from inferlens.models.model import Model
from inferlens.record.builds import Partition
from inferlens.spec.case import TensorSpec
from tests.backends import small
from tests.commands import inferlens

ROOT = Path(__file__).parents[3]
TINY = """import torch

def build():
    parts = torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4), torch.nn.Softmax(-1)
    return torch.nn.Sequential(*parts), torch.randn(2, 16)
"""
ENOUGH = "the network was looked at"
COMMAND = ("partition", "tiny:build", "--json", "--option", "torch_tensorrt.torch_executed_ops=aten.rlu,aten.relu")


class Made(msgspec.Struct):
    """What the process gives back: partitions by name, or why there is none; and how the command ended.

    ``carried`` is names and metadata of the layers of :class:`Attention` as a network whose engine will tell details.
    """

    partitions: dict[str, Partition | str]
    carried: list[tuple[str, str]]
    code: int
    output: str


class Inverse(nn.Module):
    def forward(self, rows):
        return torch.linalg.inv(rows + torch.eye(16, device=rows.device))


class Broken(nn.Module):
    """An operator without a converter between convolutions and a softmax."""

    def __init__(self):
        super().__init__()
        self.first, self.inverse, self.last = nn.Conv2d(3, 8, 3, padding=1), Inverse(), nn.Linear(16, 4)

    def forward(self, image):
        return torch.softmax(self.last(torch.relu(self.inverse(torch.relu(self.first(image)))) + 1), -1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.core, self.out = Core(), nn.Linear(64, 64)

    def forward(self, tokens):
        return self.out(self.core(tokens.view(1, 10, 4, 16).transpose(1, 2)).transpose(1, 2).reshape(1, 10, 64))


class Core(nn.Module):
    def forward(self, heads):
        return nn.functional.scaled_dot_product_attention(heads, heads, heads)


class Filtered(nn.Module):
    """A break of Dynamo's, by an operator whose output has as many rows as there are positive ones."""

    def __init__(self):
        super().__init__()
        self.before, self.after = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, rows):
        kept = torch.relu(self.before(rows))
        kept = kept[kept.sum(1) > 0]
        return torch.tanh(self.after(kept))


class Part(nn.Module):
    """A break in a part of a model."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, rows):
        rows = self.inner(rows)
        torch._dynamo.graph_break()
        return torch.tanh(rows)


class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 16)  # named as what is in the parts
        self.first, self.second = Part(), Part()

    def forward(self, rows):
        return self.second(self.first(torch.relu(self.inner(rows))))


def resnet18():
    import torchvision

    return torchvision.models.resnet18(weights=None)


IMAGE, SMALL = TensorSpec("x", (1, 3, 224, 224)), TensorSpec("x", (1, 3, 16, 16))
ROWS = TensorSpec("rows", (8, 16))
FROM_1_TO_16 = TensorSpec.parse("image=1..16x3x16x16:opt=1")  # 16: where a CPU would take another convolution
Asked = tuple[Callable[[], nn.Module], tuple[TensorSpec, ...], str, dict[str, Any]]
WHOLE = {"min_block_size": 1, "require_full_compilation": True}
ASKED = {
    "resnet18": (resnet18, (IMAGE,), "dynamo", {}),
    "large blocks": (resnet18, (IMAGE,), "dynamo", {"min_block_size": 100}),
    "forced": (resnet18, (IMAGE,), "dynamo", {"torch_executed_ops": "aten.max_pool2d+aten.add.Tensor"}),
    "compile": (resnet18, (IMAGE,), "compile", {}), "broken": (Broken, (SMALL,), "dynamo", WHOLE),
    "range from 1": (small.Convolution, (FROM_1_TO_16,), "compile", {"min_block_size": 1}),
    "filtered": (Filtered, (ROWS,), "compile", WHOLE), "parts": (Parts, (ROWS,), "compile", {"min_block_size": 1}),
}  # fmt: skip


def partition(asked, folder):
    make, specs, variant, options = asked
    torch.manual_seed(0)
    model = Model("test:model", "model", "module", specs, module=make().eval())
    case = small.case(f"torch_tensorrt:{variant}", device="cuda", options=options)
    try:
        return TorchTensorRT().partition(model, case, small.preparation(folder))
    except InferlensError as error:
        return str(error)


def carried():
    """Names and metadata of a network's layers; its engine, which needs a GPU, is not built."""
    noted = []
    with assume_gpu(), ignore_deprecations(), detailed_engines(load_library(), "layer"):
        from torch_tensorrt import dynamo
        from torch_tensorrt.dynamo.conversion._TRTInterpreter import TRTInterpreter

        configure = getattr(TRTInterpreter, CONFIG_METHOD)

        def configured(interpreter, *arguments):
            configure(interpreter, *arguments)
            network = interpreter.ctx.net
            noted.extend((layer.name, layer.metadata) for layer in map(network.get_layer, range(network.num_layers)))
            raise RuntimeError(ENOUGH)

        program = torch.export.export(Attention().eval(), (torch.randn(1, 10, 64),), strict=False)
        setattr(TRTInterpreter, CONFIG_METHOD, configured)
        try:
            dynamo.convert_exported_program_to_serialized_trt_engine(program, arg_inputs=[torch.randn(1, 10, 64)])
        except RuntimeError as stopped:
            if ENOUGH not in str(stopped):
                raise
    return noted


def main(target):
    """Writes everything."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tiny.py").write_text(TINY)
        done = inferlens(*COMMAND, cwd=Path(folder))
        found = {name: partition(item, Path(folder)) for name, item in ASKED.items()}
    target.write_bytes(msgspec.json.encode(Made(found, carried(), done.returncode, done.stdout)))


def made(folder):
    """Everything, made in a process of its own."""
    target = folder / "partitions.json"
    command = [sys.executable, "-m", __name__, str(target)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return msgspec.json.decode(target.read_bytes(), type=Made)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
