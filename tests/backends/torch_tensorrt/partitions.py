"""Partitions by the installed Torch-TensorRT, without a GPU: lowering and partitioning need none.

Importing the library takes long, and without a GPU it has to assume one, which spoils the process for other tests. So
this module runs once, in its own process, and writes JSON: a run of ``inferlens partition``, and the partitions of
:data:`REQUESTS`.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import torch
from torch import nn

from inferlens.backends.torch_tensorrt.backend import TorchTensorRT
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
COMMAND = ("partition", "tiny:build", "--json", "--option", "torch_tensorrt.torch_executed_ops=aten.rlu,aten.relu")


class Made(msgspec.Struct):
    """The result of the process: partitions by name, or why there is none, and the code and output of the command."""

    partitions: dict[str, Partition | str]
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


class Filtered(nn.Module):
    """A break of Dynamo's, by an operator whose output has as many rows as there are positive ones."""

    def __init__(self):
        super().__init__()
        self.before, self.after = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, rows):
        kept = torch.relu(self.before(rows))
        kept = kept[kept.sum(1) > 0]
        return torch.tanh(self.after(kept))


def resnet18():
    import torchvision

    return torchvision.models.resnet18(weights=None)


IMAGE, SMALL = TensorSpec("x", (1, 3, 224, 224)), TensorSpec("x", (1, 3, 16, 16))
ROWS = TensorSpec("rows", (8, 16))
FROM_1_TO_16 = TensorSpec.parse("image=1..16x3x16x16:opt=1")  # 16: where a CPU would take another convolution
WHOLE = {"min_block_size": 1, "require_full_compilation": True}
REQUESTS = {
    "resnet18": (resnet18, (IMAGE,), "dynamo", {}),
    "large blocks": (small.Convolution, (SMALL,), "dynamo", {"min_block_size": 100}),
    "forced": (resnet18, (IMAGE,), "dynamo", {"torch_executed_ops": "aten.max_pool2d+aten.add.Tensor"}),
    "broken": (Broken, (SMALL,), "dynamo", WHOLE),
    "range from 1": (small.Convolution, (FROM_1_TO_16,), "compile", {"min_block_size": 1}),
    "filtered": (Filtered, (ROWS,), "compile", WHOLE),
}  # fmt: skip


def partition(request, folder):
    make, specs, variant, options = request
    torch.manual_seed(0)
    model = Model("test:model", "model", "module", specs, module=make().eval())
    case = small.case(f"torch_tensorrt:{variant}", device="cuda", options=options)
    try:
        return TorchTensorRT().partition(model, case, small.preparation(folder))
    except InferlensError as error:
        return str(error)


def main(target):
    sys.modules["modelopt"] = None  # Torch-TensorRT imports it if it is there, for a quarter of the time
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tiny.py").write_text(TINY)
        done = inferlens(*COMMAND, cwd=Path(folder))
        partitions = {name: partition(request, Path(folder)) for name, request in REQUESTS.items()}
    target.write_bytes(msgspec.json.encode(Made(partitions, done.returncode, done.stdout)))


def made(folder):
    """Run this module in a process, unless another one does so for this folder, and return its results."""
    target = folder / "partitions.json"
    with open(folder / "partitions.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed
        if not target.exists():
            command = [sys.executable, "-m", __name__, str(target)]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr[-3000:]
    return msgspec.json.decode(target.read_bytes(), type=Made)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
