"""What a model has to do in one call: FLOPs and bytes of every module, from shapes alone; nothing is computed.

A model that cannot be counted is no failure: its :class:`~inferlens.record.work.Work` has a note that says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from inferlens.models.model import Model
from inferlens.models.work.onnx_graph import count_onnx
from inferlens.models.work.torch_module import count_module
from inferlens.reasons import reason
from inferlens.record.work import Work
from inferlens.spec.case import Case

# Bytes of an element of what a model holds in fp32, by the precision that it runs in.
ELEMENT = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}
# Formats that do not show what they compute.
UNCOUNTED = ("torchscript", "openvino", "engine", "torch_tensorrt", "fake")
Makers = Callable[[Path], Mapping[str, tuple[str, ...]]]


def count(model: Model, case: Case, makers: Makers = lambda _: {}) -> Work:
    """The work of ``model`` at the inputs and in the precision of ``case``; never raises.

    ``makers`` gives, of an ONNX file, the paths of the modules that made each tensor, by its name.
    """
    element = ELEMENT.get(case.precision, 4)
    if case.options.get("inference_precision", "case") not in ("case", "f32"):
        element = min(element, 2)  # the backend computes in halves, or may choose to
    try:
        if model.format in UNCOUNTED:
            return Work(note=f"the format {model.format} does not show what is computed; what it was made from does")
        if model.format == "onnx" and model.path is not None:
            return count_onnx(model.path, model.inputs, element, makers(model.path))
        if model.module is None:
            return Work(note="there is no module to count")
        return count_module(model.module, model.inputs, element)
    except Exception as error:  # whatever a model's own code raises; what is measured must not depend on it
        return Work(note=f"counting failed: {reason(error)}")
