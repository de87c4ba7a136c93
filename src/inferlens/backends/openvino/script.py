"""The script by which a deployed ONNX graph runs with OpenVINO alone, as a case has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferlens.backends.scripts import beside, numpy_inputs, program
from inferlens.spec.case import Case, TensorSpec

RUN = """
def run(*inputs):
    given = dict(zip(NAMES, inputs))
    outputs = request.infer({name: given[name] for name in taken}, share_inputs=True)
    return [outputs[index] for index in range(len(compiled.outputs))]"""


def openvino_script(
    case: Case, file: str, inputs: tuple[TensorSpec, ...], floats: str, properties: Mapping[str, Any]
) -> str:
    """The script; ``properties`` are those that the graph is compiled with, by OpenVINO's names."""
    shapes = {spec.name: list(spec.shape) for spec in inputs}
    lines = [
        "core = openvino.Core()",
        f"graph = core.read_model({beside(file)})",
        f"NAMES = {[*shapes]!r}",
        "taken = [name for port in graph.inputs for name in port.names if name in NAMES]",
        *([] if floats else [f"graph.reshape({shapes!r})  # of free dimensions"]),
        f'compiled = core.compile_model(graph, "CPU", {dict(properties)!r})',
        "request = compiled.create_infer_request()",
        *numpy_inputs(inputs, floats),
        "",
        RUN,
    ]
    return program(case, ["import numpy as np", "import openvino"], lines)
