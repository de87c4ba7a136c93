"""OpenVINO on the CPU. Modules are exported to ONNX in fp32, ONNX files are read as they are; OpenVINO lowers the
precision itself.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta, Struct

from inferlens.backends.abilities import LayerProfiler
from inferlens.backends.availability import first_lines, imported
from inferlens.backends.base import Backend, Capabilities, Inputs, Outputs, Preparation, Runner, Support, ordered
from inferlens.backends.onnx.export import check_precision, check_shapes, onnx_file
from inferlens.backends.onnxruntime.backend import onnx_formats, onnx_versions
from inferlens.backends.onnxruntime.runner import as_output
from inferlens.backends.openvino.profile import layers_of
from inferlens.backends.profiling.layer_runs import check_level
from inferlens.errors import Unsupported
from inferlens.models.model import Model
from inferlens.models.sources.onnx import onnx_file_precision
from inferlens.record.layer_profile import Layers
from inferlens.spec.case import PRECISIONS, QUANTIZED, Case

TYPES = {"fp32": "f32", "fp16": "f16", "bf16": "bf16", "int8": "f32"}  # of what is not quantized
ABILITIES = {"fp32": "FP32", "fp16": "FP16", "bf16": "BF16", "int8": "INT8"}


class Options(Struct, frozen=True, forbid_unknown_fields=True):
    """Options of OpenVINO."""

    hint: Annotated[
        Literal["latency", "throughput"], Meta(description="what OpenVINO chooses streams and threads for")
    ] = "latency"
    streams: Annotated[
        int, Meta(description="calls that OpenVINO can run side by side; 0 leaves it to the hint", ge=0)
    ] = 0
    inference_precision: Annotated[
        Literal["case", "f32", "f16", "bf16", "dynamic"],
        Meta(description="type to compute in; case: the case's precision, dynamic: OpenVINO's own choice"),
    ] = "case"


class OpenVino(Backend):
    """OpenVINO."""

    name = "openvino"
    summary = "OpenVINO on the CPU"
    variants = ("cpu",)
    options = Options
    distributions = ("openvino",)

    def capabilities(self) -> Capabilities:
        """fp32, and those of the lower precisions that OpenVINO says this CPU has."""
        openvino, missing = imported("openvino", "OpenVINO", "openvino")
        formats = onnx_formats()
        if openvino is None or missing is not None:
            return Capabilities(formats=formats, absent=(missing,) if missing else ())
        abilities = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        precisions = tuple(name for name in ABILITIES if ABILITIES[name] in abilities)
        return Capabilities(
            formats=formats,
            supports=(Support("cpu", "cpu", precisions),),
            limits={
                f"cpu/{name}": f"OpenVINO has no {name} arithmetic on this CPU (it has {', '.join(abilities)})"
                for name in (*PRECISIONS, *QUANTIZED)
                if name not in precisions
            },
            libraries={"openvino": str(openvino.__version__), **onnx_versions()},
        )

    def prepare(self, model: Model, case: Case, preparation: Preparation) -> Runner:
        """Exports if the model is no ONNX file; a runner that compiles it when it is entered."""
        options: Options = self.parse_options(case)
        if model.format == "onnx" and model.path is not None and onnx_file_precision(model.path) in QUANTIZED:
            check_precision(model.path, case.precision)
        return OpenVinoRunner(onnx_file(model, case, preparation, "fp32"), model, case, preparation, options)


class OpenVinoRunner(Runner, LayerProfiler):
    """One synchronous request with its tensors set beforehand."""

    def __init__(self, path: Path, model: Model, case: Case, preparation: Preparation, options: Options) -> None:
        self._path = path
        self._model = model
        self._case = case
        self._preparation = preparation
        self._options = options
        self.compiled: Any = None
        self.request: Any = None
        self._bound: list[Any] | None = None

    def __enter__(self) -> OpenVinoRunner:
        with self._preparation.phase("build"):
            self.compile_anew()
        facts = self._preparation.facts
        facts["threads"] = self.compiled.get_property("INFERENCE_NUM_THREADS")
        facts["streams"] = self.compiled.get_property("NUM_STREAMS")
        facts["inference_precision"] = self.compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
        return self

    def __exit__(self, *error: Any) -> None:
        self.request = self.compiled = self._bound = None

    def compile_anew(self) -> None:
        """Reads and compiles the file, in the place of what was compiled before.

        Raises:
            Unsupported: if OpenVINO cannot, or the file's inputs do not fit the case.
        """
        import openvino

        self.request = self.compiled = self._bound = None  # two would take twice the memory
        core = openvino.Core()
        graph = core.read_model(str(self._path))
        if self._model.format == "onnx":
            inputs = [(port.get_any_name(), port.partial_shape) for port in graph.inputs]
            check_shapes(
                [(name, [size.get_length() if size.is_static else "?" for size in shape]) for name, shape in inputs],
                self._model.inputs,
            )
            # With the case's sizes for free dimensions OpenVINO can plan memory.
            names = {spec.name: spec.shape for spec in self._model.inputs}
            graph.reshape({port: names[name] for port in graph.inputs for name in port.names if name in names})
        try:
            self.compiled = core.compile_model(graph, "CPU", self._properties())
        except RuntimeError as error:
            if "alloc" in str(error).lower():
                raise
            raise Unsupported(f"OpenVINO cannot compile the graph: {first_lines(error)}") from error
        self.request = self.compiled.create_infer_request()

    def place(self, inputs: Inputs) -> list[Any]:
        """Tensors over arrays of the types that the graph declares, in the order of its inputs."""
        import openvino

        names = [spec.name for spec in self._model.inputs]
        by_name = dict(zip(names, ordered(inputs, self._model.inputs), strict=True))
        placed = []
        for port in self.compiled.inputs:
            name = next(name for name in port.names if name in by_name)
            array = np.array(by_name[name], dtype=port.element_type.to_dtype(), order="C", copy=True)
            placed.append(openvino.Tensor(array, shared_memory=True))  # the tensor keeps the array alive
        return placed

    def infer(self, feed: list[Any]) -> Any:
        """One call on the calling thread's time; a feed that is not the last one is set first, which copies nothing."""
        if feed is not self._bound:
            for index, tensor in enumerate(feed):
                self.request.set_input_tensor(index, tensor)
            self._bound = feed
        return self.request.infer(share_outputs=True)  # views of the outputs; by default it would copy them

    def caller(self) -> Callable[[list[Any]], Any]:
        """A request of its own, which keeps the first feed that it is called with."""
        request = self.compiled.create_infer_request()
        bound: list[Any] = []

        def infer(feed: list[Any]) -> Any:
            if not bound:
                bound.append(feed)
                for index, tensor in enumerate(feed):
                    request.set_input_tensor(index, tensor)
            return request.infer(share_outputs=True)

        return infer

    def profile_layers(self, feed: list[Any], runs: int) -> Layers:
        """Times the nodes by OpenVINO's own counters, for which the model was compiled."""
        check_level(self._preparation)
        return layers_of(self, self._path, feed, runs)

    def collect(self, outputs: Any) -> Outputs:
        """See :class:`~inferlens.backends.base.Runner`."""
        return [as_output(outputs[index]) for index in range(len(self.compiled.outputs))]

    def _properties(self) -> dict[str, Any]:
        """Properties of the compilation. Without the precision OpenVINO would compute fp32 in bf16 on some CPUs."""
        named = self._options.inference_precision
        precision = TYPES[self._case.precision] if named == "case" else named
        properties: dict[str, Any] = {
            "PERFORMANCE_HINT": self._options.hint.upper(),
            "INFERENCE_PRECISION_HINT": precision,
        }
        if self._options.streams:
            properties["NUM_STREAMS"] = self._options.streams
        if self._case.threads:
            properties["INFERENCE_NUM_THREADS"] = self._case.threads
        if self._preparation.level == "layer":
            properties["PERF_COUNT"] = True
        return properties
