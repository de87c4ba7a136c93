"""OpenVINO on the CPU. Modules are exported to ONNX in fp32, ONNX files are read as they are; OpenVINO lowers the
precision itself.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import psutil
from msgspec import Meta, Struct

from inferlens.backends.abilities import Deployer, LayerProfiler, Quantizer
from inferlens.backends.availability import found, imported, refused, warn_no_effect
from inferlens.backends.base import (
    Backend,
    Capabilities,
    Inputs,
    Knob,
    Noted,
    Outputs,
    Preparation,
    Recommendation,
    Runner,
    Support,
    ordered,
)
from inferlens.backends.onnx.export import check_outputs, check_precision, check_shapes, copy_onnx, onnx_file
from inferlens.backends.onnx.modules import kept_nodes, origins
from inferlens.backends.onnx.quantize import FOLDER, key_of, to_quantize
from inferlens.backends.onnxruntime.backend import onnx_formats, onnx_versions
from inferlens.backends.onnxruntime.runner import as_output
from inferlens.backends.openvino.profile import information, layers_of, original, originals
from inferlens.backends.profiling.layer_runs import check_level
from inferlens.backends.quantized import beside_record, check_share, from_cache, measured, seven_bits
from inferlens.backends.scripts import beside, numpy_inputs, program
from inferlens.errors import library
from inferlens.models import provenance
from inferlens.models.inputs import on_host, one_or_all
from inferlens.models.model import Format, Model
from inferlens.models.samples import calibration_feeds
from inferlens.models.sources.onnx import onnx_file_precision
from inferlens.models.work.onnx_graph import PRODUCTS, inferred, product_shares
from inferlens.record.layer_profile import Layers
from inferlens.spec.case import PRECISIONS, QUANTIZED, Case, TensorSpec

TYPES = {"fp32": "f32", "fp16": "f16", "bf16": "bf16", "int8": "f32"}  # of what is not quantized
# OpenVINO does not use it by itself for latency; where there is none, the option does nothing.
HAS_HYPER_THREADING = psutil.cpu_count() != psutil.cpu_count(logical=False)
HYPER_THREADING = [Knob(name="enable_hyper_threading", values=(True,))] if HAS_HYPER_THREADING else []
# Options that are OpenVINO's own choice unless they are given; its properties have the same names in capitals.
SWITCHES = ("enable_cpu_pinning", "enable_hyper_threading")


class OpenVINOOptions(Struct, frozen=True, forbid_unknown_fields=True):
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
    enable_cpu_pinning: Annotated[bool | None, Meta(description="tie threads to cores; left out, OpenVINO chooses")] = (
        None
    )
    enable_hyper_threading: Annotated[
        bool | None, Meta(description="use every thread of a core; left out, OpenVINO chooses by the hint")
    ] = None


class OpenVino(Backend, Quantizer, Deployer):
    """OpenVINO."""

    name = "openvino"
    summary = "OpenVINO on the CPU"
    variants = ("cpu",)
    options = OpenVINOOptions
    distributions = ("openvino",)
    quantized_as = ".xml"
    script_packages = ("numpy", "openvino")
    knobs = (
        Knob(name="enable_cpu_pinning", values=(False,)),
        *HYPER_THREADING,
        # A single call has the threads of one stream: a lower number of threads does the same for it.
        Knob(name="hint", values=("throughput",), objectives=("throughput",)),
        Knob(name="streams", values=(2, 4), without=("hint",), objectives=("throughput",)),
        Knob(name="inference_precision", values=("bf16", "f16"), precisions=("int8",)),
    )
    recommended = (Recommendation("cpu", "cpu"),)

    def capabilities(self) -> Capabilities:
        openvino, missing = imported("openvino", "OpenVINO", "openvino")
        formats: tuple[Format, ...] = (*onnx_formats(), "openvino")
        if missing:
            return Capabilities(formats=formats, absent=(missing,))
        abilities = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        precisions = tuple(name for name in TYPES if name.upper() in abilities)
        quantizes = ("int8",) if "int8" in precisions and found("nncf") else ()
        return Capabilities(
            formats=formats,
            supports=(Support("cpu", "cpu", precisions, quantizes=quantizes, keeps=("fp32",)),),
            limits={
                f"cpu/{name}": f"OpenVINO has no {name} arithmetic on this CPU (it has {', '.join(abilities)})"
                for name in (*PRECISIONS, *QUANTIZED)
                if name not in precisions
            },
            libraries={"openvino": str(openvino.__version__), **onnx_versions()},
        )

    def prepare(self, model: Model, case: Case, preparation: Preparation) -> Runner:
        if model.format == "onnx" and model.path is not None and onnx_file_precision(model.path) in QUANTIZED:
            check_precision(model.path, case.precision)
        if model.format == "openvino" and model.path is not None:
            return OpenVinoRunner(model.path, model, case, preparation, self.parse_options(case))
        plain, path = None, measured(preparation, ".xml") or onnx_file(model, case, preparation, "fp32")
        if path.suffix != ".xml" and to_quantize(model, case):
            path, plain = beside_record(preparation, quantized_ir(path, model, case, preparation)), path
        return OpenVinoRunner(path, model, case, preparation, self.parse_options(case), plain)

    def exports(self, case: Case) -> str:
        return "" if case.precision in QUANTIZED else "fp32"

    def write_quantized(self, model: Model, case: Case, preparation: Preparation, path: Path) -> Path:
        """Writes an IR: a graph, its weights in a file beside it, and what it was made from."""
        plain = onnx_file(model, case, preparation, "fp32")
        preparation.exported = plain.parent  # not once more
        made = quantized_ir(plain, model, case, preparation)
        shutil.copyfile(made, path)
        shutil.copyfile(made.with_suffix(".bin"), path.with_suffix(".bin"))
        provenance.write(path, provenance.of(path, "OpenVINO IR", model, case))
        with OpenVinoRunner(made, model, case, preparation, self.parse_options(case), plain):
            return plain

    def deployed_as(self, case: Case) -> str:
        """An ONNX graph; OpenVINO's own form of one that is quantized."""
        return ".xml" if case.precision in QUANTIZED else ".onnx"

    def deploy(self, model: Model, case: Case, preparation: Preparation, path: Path) -> None:
        runner = self.prepare(model, case, preparation)
        assert isinstance(runner, OpenVinoRunner)
        write_graph(runner.path, path)

    def script(self, case: Case, file: str, inputs: tuple[TensorSpec, ...]) -> str:
        model = Model(case.model, "", "onnx", inputs)
        runner = OpenVinoRunner(Path(file), model, case, Preparation(Path(), Path()), self.parse_options(case))
        floats = "" if case.model.startswith("onnx:") else "float32"  # a file keeps its own types
        return openvino_script(case, file, inputs, floats, runner._properties())


@dataclass(eq=False)
class OpenVinoRunner(Runner, LayerProfiler):
    """One synchronous request with its tensors set beforehand."""

    reuses_outputs = True

    path: Path
    model: Model
    case: Case
    preparation: Preparation
    options: OpenVINOOptions
    plain: Path | None = None  # the graph that was quantized
    compiled: Any = field(default=None, init=False)
    request: Any = field(default=None, init=False)
    _bound: list[Any] | None = field(default=None, init=False)
    _ports: list[tuple[str, Any]] = field(default_factory=list, init=False)

    def __enter__(self) -> OpenVinoRunner:
        with self.preparation.phase("build"):
            self.compile_anew()
        facts, told = self.preparation.facts, self.compiled.get_property
        facts["threads"] = told("INFERENCE_NUM_THREADS")
        facts["streams"] = told("NUM_STREAMS")
        facts["inference_precision"] = told("INFERENCE_PRECISION_HINT").get_type_name()
        if self.plain:
            share = int8_share(self.compiled, self.plain, self.model)
            check_share(share, self.model, self.case, self.preparation, "OpenVINO computes no product in int8")
        for name in SWITCHES:
            facts[name] = bool(told(name.upper()))
        for name in ("inference_precision", *SWITCHES):
            if getattr(self.options, name) not in (None, "case", "dynamic", facts[name]):
                warn_no_effect(self.preparation, name, "this CPU")
        return self

    def __exit__(self, *error: Any) -> None:
        self.request = self.compiled = self._bound = None

    def compile_anew(self) -> None:
        """Reads and compiles the file, in the place of what was compiled before, or refuses."""
        import openvino

        self.request = self.compiled = self._bound = None  # two would take twice the memory
        check_outputs(self.model)
        core = openvino.Core()
        graph = core.read_model(str(self.path))
        if self.model.format == "onnx":
            inputs = [(port.get_any_name(), port.partial_shape) for port in graph.inputs]
            check_shapes(
                [(name, [size.get_length() if size.is_static else "?" for size in shape]) for name, shape in inputs],
                self.model.inputs,
            )
            # With the case's sizes for free dimensions OpenVINO can plan memory.
            names = {spec.name: spec.shape for spec in self.model.inputs}
            graph.reshape({port: names[name] for port in graph.inputs for name in port.names if name in names})
        with refused("OpenVINO cannot compile the graph"):
            self.compiled = core.compile_model(graph, "CPU", self._properties())
        self.request = self.compiled.create_infer_request()
        known = {spec.name for spec in self.model.inputs}
        # Name and type of each of the inputs.
        self._ports = [(min(port.names & known), port.element_type.to_dtype()) for port in self.compiled.inputs]

    def place(self, inputs: Inputs) -> list[Any]:
        """Tensors over copies of the arrays, in the types that the graph declares and the order of its inputs."""
        names = [spec.name for spec in self.model.inputs]
        arrays = zip(names, ordered(inputs, self.model.inputs), strict=True)
        return self._tensors({name: np.array(array, copy=True) for name, array in arrays})

    def take(self, given: Mapping[str, Any]) -> list[Any]:
        """Tensors over the arrays themselves, where those are of the graph's types."""
        return self._tensors(on_host(given))

    def give(self, outputs: Any) -> Any:
        return one_or_all([*outputs.values()])

    def _tensors(self, arrays: Inputs) -> list[Any]:
        import openvino

        placed = []
        for name, dtype in self._ports:
            array = np.require(arrays[name], dtype, ["C_CONTIGUOUS", "WRITEABLE"])
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
        check_level(self.preparation)
        return layers_of(self, self.plain or self.path, feed, runs)

    def collect(self, outputs: Any) -> Outputs:
        return [as_output(output) for output in outputs.values()]

    def _properties(self) -> dict[str, Any]:
        """Properties of the compilation. Without the precision OpenVINO would compute fp32 in bf16 on some CPUs."""
        named = self.options.inference_precision
        precision = TYPES[self.case.precision] if named == "case" else named
        properties: dict[str, Any] = {
            "PERFORMANCE_HINT": self.options.hint.upper(),
            "INFERENCE_PRECISION_HINT": precision,
        }
        properties |= {name.upper(): value for name in SWITCHES if (value := getattr(self.options, name)) is not None}
        if self.options.streams:
            properties["NUM_STREAMS"] = self.options.streams
        if self.case.threads:
            properties["INFERENCE_NUM_THREADS"] = self.case.threads
        if self.preparation.level == "layer":
            properties["PERF_COUNT"] = True
        return properties


# The script that runs a deployed graph with OpenVINO alone


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


# Quantizing to int8, by NNCF


def quantized_ir(path: Path, model: Model, case: Case, preparation: Preparation) -> Path:
    """The ONNX graph in ``path`` as an IR of OpenVINO's with quantized products, kept in the cache."""
    import openvino

    nncf = library("nncf", extra="quantize")
    keep = kept_nodes(path, case)
    key = key_of(model, case, *keep, f"nncf {nncf.__version__}", f"openvino {openvino.__version__}")
    made = preparation.cache / FOLDER / key / "openvino.xml"

    def write(written: Path, _: Noted) -> None:
        logging.getLogger("nncf").setLevel(logging.ERROR)
        feeds = list(calibration_feeds(model, case))
        with refused("NNCF cannot quantize the graph"):
            graph = openvino.Core().read_model(str(path))
            shapes = {spec.name: spec.shape for spec in model.inputs}
            graph.reshape({port: shapes[name] for port in graph.inputs for name in port.names if name in shapes})
            quantized = nncf.quantize(
                graph,
                nncf.Dataset(feeds),
                subset_size=len(feeds),
                model_type=nncf.ModelType.TRANSFORMER if _attends(graph) or _normalizes(graph) else None,
                ignored_scope=nncf.IgnoredScope(names=_operations(graph, keep), validate=False) if keep else None,
                advanced_parameters=nncf.AdvancedQuantizationParameters(
                    overflow_fix=nncf.OverflowFix.ENABLE if seven_bits() else None
                ),
            )
            openvino.save_model(quantized, str(written), compress_to_fp16=False)

    return from_cache(made, preparation, write)


def _attends(graph: Any) -> bool:
    """Whether a softmax is within the graph, and not at its end: that is attention, which NNCF treats differently."""
    softmax = [node for node in graph.get_ordered_ops() if node.get_type_name() in ("Softmax", "SoftMax")]
    inner = ("MatMul", "Reshape", "Transpose", "Multiply", "Convert", "Dropout")
    return any(
        port.get_node().get_type_name() in inner for node in softmax for port in node.output(0).get_target_inputs()
    )


def _normalizes(graph: Any) -> bool:
    """Whether values are divided by what they measure, as layer normalization does, and batch normalization does not.

    NNCF's scheme for transformers leaves what that is made of in fp32. With its other scheme the accuracy of magika's
    network falls from 95 to 79 %, with this one to 94.5 %.
    """
    return any(node.get_type_name() in ("MVN", "Sqrt") for node in graph.get_ordered_ops())


def _operations(graph: Any, nodes: Collection[str]) -> list[str]:
    """The names of OpenVINO's operations that came from these ONNX nodes."""
    names = [node.get_friendly_name() for node in graph.get_ordered_ops() if node.get_type_name() != "Constant"]
    return [name for name in names if original(name, nodes)]


def int8_share(compiled: Any, path: Path, model: Model) -> float | None:
    """The share of the multiply-adds of the graph in ``path`` that ``compiled`` does in int8, if it can be counted.

    Products that became a part of one generated subgraph cannot: OpenVINO does not tell what it computes them in.
    """
    loaded, graph = inferred(path, model.inputs), origins(path)
    shares = product_shares(loaded)
    if not any(node.op_type in PRODUCTS for node in loaded.graph.node):
        return 0.0
    found: set[str] = set()
    for notes in map(information, compiled.get_runtime_model().get_ordered_ops()):
        made = {
            onnx_node.outputs[0] for onnx_node in originals(notes["originalLayersNames"], notes["layerType"], graph)
        }
        if notes["layerType"] == "Subgraph" and any(shares.get(name) for name in made):
            return None
        if notes.get("runtimePrecision") in ("i8", "u8"):
            found |= made
    return sum(shares.get(name, 0.0) for name in found) if shares else None
