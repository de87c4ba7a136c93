"""The script by which a deployed ONNX graph runs with OpenVINO alone, as a case has it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inferlens.backends.onnx.export import copy_onnx
from inferlens.backends.scripts import beside, numpy_inputs, program
from inferlens.spec.case import Case, TensorSpec

RUN = """
def run(*inputs):
    given = dict(zip(NAMES, inputs))
    return list(request.infer({name: given[name] for name in taken}, share_inputs=True).values())"""


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


def write_graph(source: Path, path: Path) -> None:
    """Writes a graph to ``path``, by whose suffix it is ONNX, or OpenVINO's own form with its weights beside it."""
    if path.suffix == ".onnx":
        copy_onnx(source, path)
        return
    import openvino

    openvino.save_model(openvino.Core().read_model(str(source)), str(path), compress_to_fp16=False)
