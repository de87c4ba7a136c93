"""OpenVINO on the CPU.

Modules are exported to ONNX in fp32, ONNX files are read as they are, and OpenVINO lowers the precision.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import psutil
from msgspec import Meta, Struct

from inferlens.backends.availability import import_library, is_installed, unsupported_on_error, warn_no_effect
from inferlens.backends.base import (
    Backend,
    Capabilities,
    Deployer,
    Inputs,
    Knob,
    LayerProfiler,
    Outputs,
    PhaseNote,
    Preparation,
    Quantizer,
    Recommendation,
    Runner,
    Support,
)
from inferlens.backends.onnx.graph import (
    OnnxNode,
    OnnxNodes,
    check_outputs,
    check_precision,
    copy_onnx,
    kept_nodes,
    module_paths,
    onnx_file,
    onnx_formats,
    onnx_versions,
    output_array,
    read_nodes,
)
from inferlens.backends.onnx.quantize import (
    cached_file,
    check_share,
    keep_in_record,
    needs_quantizing,
    quantized_folder,
    recorded_file,
    seven_bits,
)
from inferlens.backends.profiling.runs import NO_RUNS, check_level, time_runs
from inferlens.backends.scripts import numpy_inputs, program, sibling_path
from inferlens.errors import LateModule, Unsupported, library
from inferlens.models.compiled import new_provenance, write_provenance
from inferlens.models.files import onnx_file_precision
from inferlens.models.inputs import on_host, single_or_list
from inferlens.models.model import Format, Model
from inferlens.models.samples import calibration_feeds
from inferlens.models.work import PRODUCTS, infer_shapes, product_shares
from inferlens.record.profile import Layer, Layers, Tensor
from inferlens.spec.case import PRECISIONS, QUANTIZED, Case, TensorSpec
from inferlens.trace.kernels import first_precision

openvino: Any = LateModule("openvino")

TYPES = {"fp32": "f32", "fp16": "f16", "bf16": "bf16", "int8": "f32"}  # types of all that is not quantized
# By default OpenVINO does not use hyper-threading for latency.
HAS_HYPER_THREADING = psutil.cpu_count() != psutil.cpu_count(logical=False)
HYPER_THREADING = [Knob(name="enable_hyper_threading", values=(True,))] if HAS_HYPER_THREADING else []
# Options that OpenVINO chooses by default; its properties have the same names in capitals.
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
    quantized_suffix = ".xml"
    script_packages = ("numpy", "openvino")
    knobs = (
        Knob(name="enable_cpu_pinning", values=(False,)),
        *HYPER_THREADING,
        # For latency, fewer threads have the same effect: a single call uses the threads of one stream.
        Knob(name="hint", values=("throughput",), objectives=("throughput",)),
        Knob(name="streams", values=(2, 4), excludes=("hint",), objectives=("throughput",)),
        Knob(name="inference_precision", values=("bf16", "f16"), precisions=("int8",)),
    )
    recommended = (Recommendation("cpu", "cpu"),)

    def capabilities(self) -> Capabilities:
        openvino, missing = import_library("openvino", "OpenVINO", "openvino")
        formats: tuple[Format, ...] = (*onnx_formats(), "openvino")
        if missing:
            return Capabilities(formats=formats, absent=(missing,))
        abilities = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        precisions = tuple(name for name in TYPES if name.upper() in abilities)
        quantizes = ("int8",) if "int8" in precisions and is_installed("nncf") else ()
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

    def prepare(self, model: Model, case: Case, preparation: Preparation) -> OpenVinoRunner:
        if model.format == "onnx" and model.path is not None and onnx_file_precision(model.path) in QUANTIZED:
            check_precision(model.path, case.precision)
        if model.format == "openvino" and model.path is not None:
            return OpenVinoRunner(model.path, model, case, preparation, self.parse_options(case))
        if recorded := recorded_file(preparation, ".xml"):
            return OpenVinoRunner(recorded, model, case, preparation, self.parse_options(case))
        path = onnx_file(model, case, preparation, "fp32")
        if not needs_quantizing(model, case):
            return OpenVinoRunner(path, model, case, preparation, self.parse_options(case))
        quantized = keep_in_record(preparation, quantized_ir(path, model, case, preparation))
        return OpenVinoRunner(quantized, model, case, preparation, self.parse_options(case), plain=path)

    def exports(self, case: Case) -> str:
        return "" if case.precision in QUANTIZED else "fp32"

    def write_quantized(self, model: Model, case: Case, preparation: Preparation, path: Path) -> Path:
        """Write an IR: a graph, its weights in a second file, and its provenance."""
        plain = onnx_file(model, case, preparation, "fp32")
        preparation.export_folder = plain.parent  # reuse the export
        quantized = quantized_ir(plain, model, case, preparation)
        shutil.copyfile(quantized, path)
        shutil.copyfile(quantized.with_suffix(".bin"), path.with_suffix(".bin"))
        write_provenance(path, new_provenance(path, "OpenVINO IR", model, case))
        with OpenVinoRunner(quantized, model, case, preparation, self.parse_options(case), plain):
            return plain

    def deploy_suffix(self, case: Case) -> str:
        """Return the suffix of an ONNX graph, or of an IR if the model is quantized."""
        return ".xml" if case.precision in QUANTIZED else ".onnx"

    def deploy(self, model: Model, case: Case, preparation: Preparation, path: Path) -> None:
        runner = self.prepare(model, case, preparation)
        if path.suffix == ".onnx":
            copy_onnx(runner.path, path)
            return
        openvino.save_model(openvino.Core().read_model(str(runner.path)), str(path), compress_to_fp16=False)

    def script(self, case: Case, file: str, inputs: tuple[TensorSpec, ...]) -> str:
        model = Model(case.model, "", "onnx", inputs)
        runner = OpenVinoRunner(Path(file), model, case, Preparation(Path(), Path()), self.parse_options(case))
        floats = "" if case.model.startswith("onnx:") else "float32"  # a file keeps its own types
        shapes = {spec.name: list(spec.shape) for spec in inputs}
        lines = [
            "core = openvino.Core()",
            f"graph = core.read_model({sibling_path(file)})",
            f"NAMES = {[*shapes]!r}",
            "taken = [name for port in graph.inputs for name in port.names if name in NAMES]",
            *([] if floats else [f"graph.reshape({shapes!r})  # of free dimensions"]),
            f'compiled = core.compile_model(graph, "CPU", {runner._properties()!r})',
            "request = compiled.create_infer_request()",
            *numpy_inputs(inputs, floats),
            "",
            SCRIPT,
        ]
        return program(case, ["import numpy as np", "import openvino"], lines)


@dataclass(eq=False)
class OpenVinoRunner(Runner, LayerProfiler):
    """A synchronous request with tensors that are set in advance."""

    reuses_outputs = True

    path: Path
    model: Model
    case: Case
    preparation: Preparation
    options: OpenVINOOptions
    plain: Path | None = None  # the graph before quantization
    compiled: Any = field(default=None, init=False)
    request: Any = field(default=None, init=False)
    _bound_feed: list[Any] | None = field(default=None, init=False)
    _ports: list[tuple[str, Any]] = field(default_factory=list, init=False)

    def __enter__(self) -> OpenVinoRunner:
        with self.preparation.phase("build"):
            self.compile()
        facts = self.preparation.facts
        get_property = self.compiled.get_property
        facts["threads"] = get_property("INFERENCE_NUM_THREADS")
        facts["streams"] = get_property("NUM_STREAMS")
        facts["inference_precision"] = get_property("INFERENCE_PRECISION_HINT").get_type_name()
        if self.plain:
            share = int8_share(self.compiled, self.plain, self.model)
            check_share(share, self.model, self.case, self.preparation, "OpenVINO computes no product in int8")
        for name in SWITCHES:
            facts[name] = bool(get_property(name.upper()))
        for name in ("inference_precision", *SWITCHES):
            if getattr(self.options, name) not in (None, "case", "dynamic", facts[name]):
                warn_no_effect(self.preparation, name, "this CPU")
        return self

    def __exit__(self, *error: Any) -> None:
        self.request = self.compiled = self._bound_feed = None

    def compile(self) -> None:
        """Compile the file in place of the previous compilation, or raise Unsupported."""
        self.request = self.compiled = self._bound_feed = None  # two models would take twice the memory
        check_outputs(self.model)
        core = openvino.Core()
        graph = core.read_model(str(self.path))
        if self.model.format == "onnx":
            fix_sizes(graph, self.model)  # so that OpenVINO can plan memory
        with unsupported_on_error("OpenVINO cannot compile the graph"):
            self.compiled = core.compile_model(graph, "CPU", self._properties())
        self.request = self.compiled.create_infer_request()
        input_names = {spec.name for spec in self.model.inputs}
        self._ports = [(min(port.names & input_names), port.element_type.to_dtype()) for port in self.compiled.inputs]

    def place(self, inputs: Inputs) -> list[Any]:
        """Return tensors over copies of the arrays, in the graph's types and order."""
        return self._tensors({name: np.array(array, copy=True) for name, array in inputs.items()})

    def take(self, inputs: Mapping[str, Any]) -> list[Any]:
        """Return tensors over the arrays themselves, where those have the graph's types."""
        return self._tensors(on_host(inputs))

    def give(self, outputs: Any) -> Any:
        return single_or_list([*outputs.values()])

    def _tensors(self, arrays: Inputs) -> list[Any]:
        tensors = []
        for name, dtype in self._ports:
            array = np.require(arrays[name], dtype, ["C_CONTIGUOUS", "WRITEABLE"])
            tensors.append(openvino.Tensor(array, shared_memory=True))  # the tensor keeps the array alive
        return tensors

    def infer(self, feed: list[Any]) -> Any:
        """Call the request on this thread; a new feed is set first, without a copy."""
        if feed is not self._bound_feed:
            set_inputs(self.request, feed)
            self._bound_feed = feed
        return self.request.infer(share_outputs=True)  # views; the default copies the outputs

    def thread_caller(self) -> Callable[[list[Any]], Any]:
        """Return a call of its own request, which keeps the first feed that it is called with."""
        request = self.compiled.create_infer_request()
        bound: list[Any] = []

        def infer(feed: list[Any]) -> Any:
            if not bound:
                bound.append(feed)
                set_inputs(request, feed)
            return request.infer(share_outputs=True)

        return infer

    def profile_layers(self, feed: list[Any], runs: int) -> Layers:
        check_level(self.preparation)
        return profile_nodes(self, self.plain or self.path, feed, runs)

    def collect(self, outputs: Any) -> Outputs:
        return [output_array(output) for output in outputs.values()]

    def _properties(self) -> dict[str, Any]:
        """Return compile properties; without a precision OpenVINO computes fp32 in bf16 on some CPUs."""
        precision: str = self.options.inference_precision
        properties: dict[str, Any] = {
            "PERFORMANCE_HINT": self.options.hint.upper(),
            "INFERENCE_PRECISION_HINT": TYPES[self.case.precision] if precision == "case" else precision,
        }
        properties |= {name.upper(): value for name in SWITCHES if (value := getattr(self.options, name)) is not None}
        if self.options.streams:
            properties["NUM_STREAMS"] = self.options.streams
        if self.case.threads:
            properties["INFERENCE_NUM_THREADS"] = self.case.threads
        if self.preparation.level == "layer":
            properties["PERF_COUNT"] = True
        return properties


def fix_sizes(graph: Any, model: Model) -> None:
    """Give the inputs of a graph the sizes of the model's inputs."""
    shapes = {spec.name: spec.shape for spec in model.inputs}
    graph.reshape({port: shapes[name] for port in graph.inputs for name in port.names if name in shapes})


def set_inputs(request: Any, feed: list[Any]) -> None:
    """Make a request read the tensors of ``feed``, without a copy."""
    for index, tensor in enumerate(feed):
        request.set_input_tensor(index, tensor)


# The script that runs a deployed graph with OpenVINO alone

SCRIPT = """
def run(*inputs):
    given = dict(zip(NAMES, inputs))
    return list(request.infer({name: given[name] for name in taken}, share_inputs=True).values())"""


# Quantizing to int8, by NNCF


def quantized_ir(path: Path, model: Model, case: Case, preparation: Preparation) -> Path:
    """Return the ONNX graph in ``path`` as an IR with quantized products, from the cache or newly quantized."""
    nncf = library("nncf", extra="quantize")
    keep = kept_nodes(path, case)
    versions = f"nncf {nncf.__version__}", f"openvino {openvino.__version__}"
    folder = quantized_folder(model, case, preparation, *keep, *versions)

    def write(file: Path, _: PhaseNote) -> None:
        logging.getLogger("nncf").setLevel(logging.ERROR)
        feeds = list(calibration_feeds(model, case))
        with unsupported_on_error("NNCF cannot quantize the graph"):
            graph = openvino.Core().read_model(str(path))
            fix_sizes(graph, model)
            names = [node.get_friendly_name() for node in graph.get_ordered_ops() if node.get_type_name() != "Constant"]
            kept_operations = [name for name in names if original_name(name, keep)]
            quantized = nncf.quantize(
                graph,
                nncf.Dataset(feeds),
                subset_size=len(feeds),
                model_type=nncf.ModelType.TRANSFORMER if _is_transformer(graph) else None,
                ignored_scope=nncf.IgnoredScope(names=kept_operations, validate=False) if keep else None,
                advanced_parameters=nncf.AdvancedQuantizationParameters(
                    overflow_fix=nncf.OverflowFix.ENABLE if seven_bits() else None
                ),
            )
            openvino.save_model(quantized, str(file), compress_to_fp16=False)

    return cached_file(folder / "openvino.xml", preparation, write)


def _is_transformer(graph: Any) -> bool:
    """Return whether the graph has attention, which is a softmax before its end, or normalizes by computed statistics.

    NNCF's scheme for transformers leaves such operators in fp32. With its other scheme the accuracy of magika's network
    falls from 95 to 79 %, with this one to 94.5 %.
    """
    for node in graph.get_ordered_ops():
        if node.get_type_name() in ("MVN", "Sqrt"):
            return True
        if node.get_type_name() in ("Softmax", "SoftMax"):
            readers = {port.get_node().get_type_name() for port in node.output(0).get_target_inputs()}
            if readers & {"MatMul", "Reshape", "Transpose", "Multiply", "Convert", "Dropout"}:
                return True
    return False


def int8_share(compiled: Any, path: Path, model: Model) -> float | None:
    """Return the share of the graph's multiply-adds that ``compiled`` does in int8, if it can be counted.

    Products inside a generated subgraph cannot be counted: OpenVINO does not report their precision.
    """
    onnx_model, graph = infer_shapes(path, model.inputs), read_nodes(path)
    shares = product_shares(onnx_model)
    if not any(node.op_type in PRODUCTS for node in onnx_model.graph.node):
        return 0.0
    quantized_outputs: set[str] = set()
    for information in map(node_information, compiled.get_runtime_model().get_ordered_ops()):
        nodes = original_nodes(information["originalLayersNames"], information["layerType"], graph)
        outputs = {node.outputs[0] for node in nodes}
        if information["layerType"] == "Subgraph" and any(shares.get(name) for name in outputs):
            return None
        if information.get("runtimePrecision") in ("i8", "u8"):
            quantized_outputs |= outputs
    return sum(shares.get(name, 0.0) for name in quantized_outputs) if shares else None


# Layers, from the counters of a request whose model was compiled with ``PERF_COUNT``.
#
# A counter is the mean over all runs since the compilation, in whole microseconds. The total after a run is the mean
# times the number of runs, and the time of one run is the difference of two totals, whose error grows with the number
# of runs. The model is therefore compiled again every few runs. The runtime model holds the ONNX nodes of a node in
# ``originalLayersNames``, some with an ending such as ``/WithoutBiases``. Nodes that did not run are no layers.

WARMUP_RUNS = 2  # discarded runs of a new compilation, with cold caches
MEASURED_RUNS = 3  # measured runs of a compilation
CLOCK = f"OpenVINO's performance counters; each run's own time, within {WARMUP_RUNS + MEASURED_RUNS} microseconds, \
from their means"
INSERTED = "by OpenVINO, to change type or memory order"
INSERTED_BY_QUANTIZING = "by quantization, to change type"
PRODUCT_KINDS = ("Convolution", "Deconvolution", "FullyConnected", "MatMul")
TENSOR_TYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "i64": "int64", "i32": "int32", "i8": "int8",
         "u8": "uint8", "boolean": "bool"}  # fmt: skip


class NodeCounter(Struct):
    """A node of the compiled graph, and its time in each measured run."""

    name: str
    kind: str
    primitive: str = ""
    has_run: bool = False
    total: int = 0  # microseconds since the compilation, at least
    times: list[float] = []  # seconds

    def update(self, info: Any, count: int, *, keep: bool) -> None:
        """Read the counter after ``count`` runs of the model. With ``keep``, add the time of the last run."""
        executed = info.status == info.Status.EXECUTED
        before = self.total if count > 1 else 0
        total = round(info.real_time.total_seconds() * 1e6) * count if executed else before
        if executed and keep:
            self.has_run, self.primitive = True, info.exec_type
        if keep:
            self.times.append(max(total - before, 0) / 1e6)
        self.total = max(total, before)


def profile_nodes(runner: Any, path: Path, feed: Any, runs: int) -> Layers:
    """Time the nodes of a model that was compiled with ``PERF_COUNT``; refuse several streams."""
    if int(runner.compiled.get_property("NUM_STREAMS")) != 1:
        raise Unsupported("OpenVINO counts each stream separately.", hint="hint=latency, streams=1")
    counters: list[NodeCounter] = []
    runtime_nodes: dict[str, Any] = {}  # by name, from the first compilation: some names differ in the next
    timed_runs, count = NO_RUNS, 0

    def read_counters() -> None:
        nonlocal count
        count += 1
        info = runner.request.profiling_info
        if not counters:
            counters.extend(NodeCounter(node.node_name, node.node_type) for node in info)
        if [node.node_type for node in info] != [counter.kind for counter in counters]:
            raise Unsupported("OpenVINO compiled the same model into different graphs, so runs cannot be combined.")
        for counter, node in zip(counters, info, strict=True):
            counter.update(node, count, keep=count > WARMUP_RUNS)

    while len(timed_runs.whole) < runs:
        runner.compile()
        nodes = runner.compiled.get_runtime_model().get_ordered_ops()
        runtime_nodes = runtime_nodes or {node.get_friendly_name(): node for node in nodes}
        count = 0
        time_runs(runner, feed, WARMUP_RUNS, read_counters)
        timed_runs += time_runs(runner, feed, min(MEASURED_RUNS, runs - len(timed_runs.whole)), read_counters)
    graph = read_nodes(path)
    run_counters = [counter for counter in counters if counter.has_run]
    run_names = {counter.name for counter in run_counters}
    absent = {"begins": "the library does not report when a layer began"}
    return timed_runs.layers(
        (_layer(counter, runtime_nodes.get(counter.name), graph, run_names) for counter in run_counters),
        clock=CLOCK,
        absent=absent | ({"modules": graph.absent} if graph.absent else {}),
    )


def _layer(counter: NodeCounter, node: Any, graph: OnnxNodes, run_names: set[str]) -> Layer:
    """Return a layer; ``node`` is its node in the runtime model, ``run_names`` the names of all nodes that ran."""
    information = node_information(node)
    original = original_nodes(information.get("originalLayersNames", counter.name), counter.kind, graph)
    details: dict[str, Any] = {"primitive": counter.primitive}
    for detail, key in (("layouts", "outputLayouts"), ("precision", "runtimePrecision")):
        if information.get(key):
            details[detail] = information[key]
    if node is not None and not information.get("originalLayersNames"):
        details["inserted"] = INSERTED
    if counter.name.rpartition("/")[2].startswith("fq_"):  # NNCF's name for inserted nodes
        details["inserted"] = INSERTED_BY_QUANTIZING
    return Layer(
        name=counter.name,
        kind=counter.kind,
        modules=module_paths(original),
        operators=tuple(node.kind for node in original),
        inputs=tuple(tensor for port in node.inputs() for tensor in port_tensors(port, run_names)) if node else (),
        outputs=tuple(map(port_tensor, node.outputs())) if node else (),
        precision=first_precision([information.get("runtimePrecision", "")]),
        details=details,
        times=tuple(counter.times),
    )


def node_information(node: Any) -> dict[str, str]:
    """Return the runtime information of a node, as texts."""
    return {} if node is None else {key: str(value.astype(str)) for key, value in node.get_rt_info().items()}


def original_nodes(names: str, kind: str, graph: OnnxNodes) -> list[OnnxNode]:
    """Return the ONNX nodes in a comma-separated list of names of nodes or of their outputs.

    A convolution with a folded normalization only has the names of the nodes behind the convolution. For such a product
    by ``kind``, the product before these nodes is added.
    """
    by_name = {**graph.by_output, **graph.by_name}
    nodes = [by_name[name] for part in names.split(",") if (name := original_name(part, by_name))]
    if kind in PRODUCT_KINDS and nodes and not any(node.kind in PRODUCTS for node in nodes):
        nodes += graph.product_before(nodes[0])
    return graph.in_graph_order(nodes)


def original_name(name: str, nodes: Collection[str]) -> str:
    """Return the one of the ONNX ``nodes`` from which an operation such as ``node_Conv_1/WithoutBiases`` came."""
    while name and name not in nodes:
        name = name.rpartition("/")[0]
    return name


def port_tensors(port: Any, run_names: set[str]) -> list[Tensor]:
    """Return the tensors at an input ``port``, named after the nodes in ``run_names`` that wrote them.

    Nodes that did not run wrote nothing: a reshape passes its input on, and a concatenation in place has the tensors of
    all its inputs.
    """
    written: list[Any] = []
    pending = [port.get_source_output()]
    while pending:
        output = pending.pop()
        node = output.get_node()
        sources = [node_input.get_source_output() for node_input in node.inputs()]
        if node.get_friendly_name() in run_names or not sources:
            written.append(output)
        else:
            varying = [source for source in sources if node_information(source.get_node()).get("layerType") != "Const"]
            pending += reversed(varying or sources[:1])
    if len(written) == 1:
        name = port_tensor(written[0]).name
        return [msgspec.structs.replace(port_tensor(port.get_source_output()), name=name)]
    return [port_tensor(output) for output in written]


def port_tensor(port: Any) -> Tensor:
    """Return the tensor of a port of the runtime model; a free dimension is -1."""
    kind = port.get_element_type().get_type_name()
    shape = port.get_partial_shape()
    return Tensor(
        name=port.get_node().get_friendly_name(),
        shape=tuple(size.get_length() if size.is_static else -1 for size in shape) if shape.rank.is_static else (),
        dtype=TENSOR_TYPES.get(kind, kind),
    )
