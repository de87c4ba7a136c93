"""Parts of the scripts that run deployed models without Inferlens.

Each backend adds how its file is loaded, and what a call is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from inferlens.backends.pytorch.runner import DTYPES, FLOATS
from inferlens.spec.case import QUANTIZED, Case, TensorSpec

MAIN = """

if __name__ == "__main__":
    timer = timeit.Timer(lambda: {call})
    first = min(timer.repeat(number=1, repeat=10))  # these calls warm up
    number = max(1, int(1e-3 / first))  # short calls are timed together
    latency = statistics.median(timer.repeat(number=number, repeat=20)) / number
    print(f"latency {{float(f'{{latency * 1e3:.3g}}'):g}} ms")
"""


def program(case: Case, imports: Sequence[str], middle: Iterable[str], wait: str = "") -> str:
    """Return the whole script: ``middle`` defines ``inputs`` and ``run``, and ``wait`` waits for a call's end."""
    model = case.model.rpartition(":")[2].rpartition("/")[2]
    title = comment_text(f"{model} by {case.label}, on random inputs; prints the latency.")
    head = [f'"""{title}"""', "", "import statistics", "import timeit", "from pathlib import Path", "", *imports, ""]
    call = f"(run(*inputs), {wait})" if wait else "run(*inputs)"
    return "\n".join([*head, *middle, ""]) + MAIN.format(call=call)


def comment_text(text: str) -> str:
    """Return a text on one line, which cannot end a docstring or a comment."""
    return " ".join(text.replace("\\", "/").replace('"', "'").split())


def sibling_path(file: str) -> str:
    """Return code for the path of a file in the script's own folder."""
    return f"str(Path(__file__).with_name({file!r}))"


def numpy_inputs(specs: Iterable[TensorSpec], floats: str = "") -> list[str]:
    """Return lines that draw ``inputs`` as arrays, floats in the type ``floats`` or their own."""
    expressions = {}
    for spec in specs:
        if spec.dtype in FLOATS:
            array, dtype = f"random.standard_normal({spec.shape})", floats or spec.dtype
        else:
            array, dtype = f"random.integers({_bounds(spec)}, {spec.shape})", spec.dtype
        expressions[spec.name] = f"{array}.astype({dtype!r})"
    return ["random = np.random.default_rng(0)", *_input_list(expressions)]


def torch_inputs(specs: Iterable[TensorSpec], floats: str, device: str, *, channels_last: bool = False) -> list[str]:
    """Return lines that draw ``inputs`` as tensors on the device, floats in the type ``floats``."""
    expressions = {}
    for spec in specs:
        if spec.dtype in FLOATS:
            call, dtype = f"torch.randn({spec.shape}", floats
        else:
            call, dtype = f"torch.randint({_bounds(spec)}, {spec.shape}", spec.dtype
        order = ".to(memory_format=torch.channels_last)" if channels_last and len(spec.shape) == 4 else ""
        expressions[spec.name] = f"{call}, dtype=torch.{dtype}, device={device!r}){order}"
    return _input_list(expressions)


def _input_list(expressions: Mapping[str, str]) -> list[str]:
    """Return the lines of a list of expressions, one per input; the keys are the inputs' names."""
    if len(expressions) == 1:
        return [f"inputs = [{next(iter(expressions.values()))}]"]
    return ["inputs = [", *(f"    {text},  # {comment_text(name)}" for name, text in expressions.items()), "]"]


def _bounds(spec: TensorSpec) -> str:
    """Return the lower and the upper bound of an input's integers, as arguments in code."""
    low = 0 if spec.low is None else spec.low
    return f"{low}, {spec.high if spec.high is not None else max(2, low + 1)}"


# Scripts with PyTorch alone

# ``forward`` skips hooks that check inputs, which take as long as a small model.
LOAD_PROGRAM = "torch.export.load({}).module(check_guards=False){}.forward"
CUDA_GRAPH = """
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
    """Return the script of a PyTorch backend; the lines ``load`` define ``model``."""
    on_gpu = case.device == "cuda"
    channels_last = getattr(options, "channels_last", False)
    lines = [f"torch.set_num_threads({case.threads})"] if case.threads else []
    if on_gpu:
        lines.append(f"torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = {options.tf32}")
        lines.append(f"torch.backends.cudnn.benchmark = {getattr(options, 'cudnn_benchmark', False)}")
    lines += load
    lines += torch_inputs(inputs, DTYPES[floats or case.precision], case.device, channels_last=channels_last)
    graph = getattr(options, "cuda_graph", False)
    lines += ["", "", "@torch.inference_mode()", f"def {'call' if graph else 'run'}(*inputs):"]
    if getattr(options, "autocast", False):
        lines.append(f"    with torch.autocast({case.device!r}, dtype=torch.{DTYPES[case.precision]}):")
        lines.append("        return model(*inputs)")
    else:
        lines.append("    return model(*inputs)")
    lines += ["", CUDA_GRAPH] if graph else []
    return program(case, ["import torch", *imports], lines, "torch.cuda.synchronize()" if on_gpu else "")


def program_script(
    case: Case, options: Any, file: str, inputs: tuple[TensorSpec, ...], *then: str, imports: Sequence[str] = ()
) -> str:
    """Return the script for an exported program; the lines ``then`` transform ``model``."""
    order = ".to(memory_format=torch.channels_last)" if options.channels_last else ""
    load = [f"model = {LOAD_PROGRAM.format(sibling_path(file), order)}", *then]
    floats = "fp32" if options.autocast or case.precision in QUANTIZED else ""
    return torch_script(case, options, inputs, load, imports=imports, floats=floats)
