"""The script by which a deployed model runs with PyTorch alone; backends say how its file is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inferlens.backends.pytorch.export import DTYPES
from inferlens.backends.scripts import beside, program, torch_inputs
from inferlens.spec.case import QUANTIZED, Case, TensorSpec

# ``forward`` does without hooks that check inputs, for as long as a small model takes.
PROGRAM = "torch.export.load({}).module(check_guards=False){}.forward"
CAPTURED = """
own = [tensor.clone() for tensor in inputs]  # a CUDA graph reads and writes memory of its own
torch.cuda.synchronize()
with torch.cuda.stream(torch.cuda.Stream()):
    for _ in range(3):
        call(*own)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    outputs = call(*own)


@torch.inference_mode()
def run(*inputs):
    for tensor, given in zip(own, inputs):
        assert given.shape == tensor.shape
        tensor.copy_(given)
    graph.replay()
    return outputs"""


def torch_script(
    case: Case,
    options: Any,
    inputs: tuple[TensorSpec, ...],
    load: Sequence[str],
    *,
    imports: Sequence[str] = (),
    floats: str = "",
) -> str:
    """Return the script of ``case``; the lines ``load`` define ``model``, and inputs are in ``floats`` if given."""
    on_gpu, last = case.device == "cuda", getattr(options, "channels_last", False)
    lines = [f"torch.set_num_threads({case.threads})"] if case.threads else []
    if on_gpu:
        lines.append(f"torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = {options.tf32}")
        lines.append(f"torch.backends.cudnn.benchmark = {getattr(options, 'cudnn_benchmark', False)}")
    lines += load
    lines += torch_inputs(inputs, DTYPES[floats or case.precision], case.device, channels_last=last)
    graph = getattr(options, "cuda_graph", False)
    call = ["", "", "@torch.inference_mode()", f"def {'call' if graph else 'run'}(*inputs):"]
    if getattr(options, "autocast", False):
        call.append(f"    with torch.autocast({case.device!r}, dtype=torch.{DTYPES[case.precision]}):")
        call.append("        return model(*inputs)")
    else:
        call.append("    return model(*inputs)")
    lines += [*call, *(["", CAPTURED] if graph else [])]
    return program(case, ["import torch", *imports], lines, "torch.cuda.synchronize()" if on_gpu else "")


def program_script(
    case: Case, options: Any, file: str, inputs: tuple[TensorSpec, ...], *then: str, imports: Sequence[str] = ()
) -> str:
    """The script for a module in an exported program; the lines ``then`` make something of ``model``."""
    last = ".to(memory_format=torch.channels_last)" if options.channels_last else ""
    load = [f"model = {PROGRAM.format(beside(file), last)}", *then]
    floats = "fp32" if options.autocast or case.precision in QUANTIZED else ""
    return torch_script(case, options, inputs, load, imports=imports, floats=floats)
