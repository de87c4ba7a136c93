"""The script by which a deployed engine runs with TensorRT and PyTorch's tensors alone, as a case has it."""

from __future__ import annotations

from textwrap import indent

from inferlens.backends.scripts import beside, program, torch_inputs
from inferlens.backends.tensorrt.options import TensorRTOptions
from inferlens.backends.tensorrt.runtime import TYPES
from inferlens.spec.case import Case, TensorSpec

BOUND = """inputs = [given.to(kinds.get(name, given.dtype)) for name, given in zip(NAMES, inputs)]  # the engine's types

# Memory that the engine reads and writes in every call; profile and shapes are those of the inputs above.
own = {name: given.clone() for name, given in zip(NAMES, inputs) if name in kinds}
for name, tensor in own.items():
    context.set_input_shape(name, tuple(tensor.shape))
outputs = {
    name: torch.empty(tuple(context.get_tensor_shape(name)), dtype=kind, device="cuda")
    for name, kind in kinds.items()
    if engine.get_tensor_mode(name) == trt.TensorIOMode.OUTPUT
}
for name, tensor in {**own, **outputs}.items():
    context.set_tensor_address(name, tensor.data_ptr())
torch.cuda.synchronize()


def call():
    if not context.execute_async_v3(torch.cuda.current_stream().cuda_stream):
        raise RuntimeError("TensorRT did not enqueue the call")"""
CAPTURED = """

with torch.cuda.stream(stream):
    call()  # loads, or compiles, the kernels
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    call()"""
FILL = """
    for name, given in zip(NAMES, inputs):
        if name in own:
            assert given.shape == own[name].shape
            own[name].copy_(given)"""
REPLAY = f"""

def run(*inputs):{FILL}
    graph.replay()
    return list(outputs.values())"""
# On the default stream TensorRT would wait for the GPU.
ENQUEUE = f"""

def run(*inputs):
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):{indent(FILL, "    ")}
        call()
    torch.cuda.current_stream().wait_stream(stream)
    return list(outputs.values())"""


def tensorrt_script(
    case: Case, file: str, inputs: tuple[TensorSpec, ...], options: TensorRTOptions, module: str
) -> str:
    """The script; ``module`` is the flavour's, such as ``tensorrt_rtx``."""
    kinds = ", ".join(f'"{name}": torch.{kind}' for name, kind in TYPES.items())
    lines = [
        "logger = trt.Logger(trt.Logger.WARNING)",
        'trt.init_libnvinfer_plugins(logger, "")',
        "runtime = trt.Runtime(logger)",
        *["runtime.engine_host_code_allowed = True"] * options.version_compatible,
        f"engine = runtime.deserialize_cuda_engine(open({beside(file)}, 'rb').read())",
        "context = engine.create_execution_context()",
        "stream = torch.cuda.Stream()",
        *[f"context.set_optimization_profile_async({options.profile}, stream.cuda_stream)"] * bool(options.profile),
        f"TYPES = {{{kinds}}}",
        "tensors = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]",
        "kinds = {name: TYPES[engine.get_tensor_dtype(name).name] for name in tensors}",
        f"NAMES = {[spec.name for spec in inputs]!r}",
        *torch_inputs(inputs, "float32", "cuda"),
        BOUND,
        *([CAPTURED, REPLAY] if options.cuda_graph else [ENQUEUE]),
    ]
    return program(case, [f"import {module} as trt", "import torch"], lines, "torch.cuda.synchronize()")
