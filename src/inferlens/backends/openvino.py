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

import msgspec
import numpy as np
import psutil
from msgspec import Meta, Struct

from inferlens.backends.availability import found, imported, refused, warn_no_effect
from inferlens.backends.base import (
    Backend,
    Capabilities,
    Deployer,
    Inputs,
    Knob,
    LayerProfiler,
    Noted,
    Outputs,
    Preparation,
    Quantizer,
    Recommendation,
    Runner,
    Support,
    ordered,
)
from inferlens.backends.onnx.graph import (
    OnnxNode,
    OnnxNodes,
    check_outputs,
    check_precision,
    check_shapes,
    copy_onnx,
    kept_nodes,
    modules_among,
    onnx_file,
    operators_among,
    origins,
)
from inferlens.backends.onnx.quantize import (
    FOLDER,
    beside_record,
    check_share,
    from_cache,
    key_of,
    measured,
    seven_bits,
    to_quantize,
)
from inferlens.backends.onnxruntime.backend import onnx_formats, onnx_versions
from inferlens.backends.onnxruntime.runner import as_output
from inferlens.backends.profiling.layers import NO_RUNS, check_level, clocked_runs
from inferlens.backends.scripts import beside, numpy_inputs, program
from inferlens.errors import Unsupported, library
from inferlens.models import provenance
from inferlens.models.inputs import on_host, one_or_all
from inferlens.models.model import Format, Model
from inferlens.models.samples import calibration_feeds
from inferlens.models.sources.onnx import onnx_file_precision
from inferlens.models.work.onnx_graph import PRODUCTS, inferred, product_shares
from inferlens.record.layer_profile import Layer, Layers, Tensor
from inferlens.spec.case import PRECISIONS, QUANTIZED, Case, TensorSpec
from inferlens.trace.precision import first_precision

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


# Layers, from the counters of a request whose model was compiled with ``PERF_COUNT``.
#
# A counter is the mean over all runs since the compilation, in whole microseconds. The time of one run is the
# difference of mean times count, whose error grows with the count. The model is therefore compiled again every few
# runs, and no time is wrong by more than RUNS_OF_ONE microseconds. The runtime model holds the ONNX nodes of a node in
# ``originalLayersNames``, some with an ending such as ``/WithoutBiases``. Nodes that did not run are no layers.

SETTLING = 2  # runs of a fresh model that are not kept: memory and caches are cold
KEPT = 3  # runs of it that are
RUNS_OF_ONE = SETTLING + KEPT
CLOCK = f"OpenVINO's performance counters; each run's own time, within {RUNS_OF_ONE} microseconds, from their means"
INSERTED = "by OpenVINO, to change type or memory order"
INSERTED_BY_QUANTIZATION = "by quantization, to change type"
PRODUCT_KINDS = ("Convolution", "Deconvolution", "FullyConnected", "MatMul")
TENSOR_TYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "i64": "int64", "i32": "int32", "i8": "int8",
         "u8": "uint8", "boolean": "bool"}  # fmt: skip


class NodeCounter(Struct):
    """A node of the compiled graph, and its time in each run that is kept."""

    name: str
    kind: str
    primitive: str = ""
    ran: bool = False
    total: int = 0  # at least that many microseconds since the model was compiled
    times: list[float] = []  # seconds

    def read(self, counted: Any, count: int, *, keep: bool) -> None:
        """Takes what OpenVINO tells after ``count`` runs of the model; keeps the last run's time if asked to."""
        executed = counted.status == counted.Status.EXECUTED
        before = self.total if count > 1 else 0
        total = round(counted.real_time.total_seconds() * 1e6) * count if executed else before
        if executed and keep:
            self.ran, self.primitive = True, counted.exec_type
        if keep:
            self.times.append(max(total - before, 0) / 1e6)
        self.total = max(total, before)


def layers_of(runner: Any, path: Path, feed: Any, runs: int) -> Layers:
    """Time the nodes of a model that was compiled with ``PERF_COUNT``; refuse several streams, or graphs that vary."""
    if int(runner.compiled.get_property("NUM_STREAMS")) != 1:
        raise Unsupported("OpenVINO counts for each of several streams by itself.", hint="hint=latency, streams=1")
    counters: list[NodeCounter] = []
    described: dict[str, Any] = {}  # of the first model: some names are others in the next
    clocked, done = NO_RUNS, 0

    def after() -> None:
        nonlocal done
        done += 1
        info = runner.request.profiling_info
        if not counters:
            counters.extend(NodeCounter(node.node_name, node.node_type) for node in info)
        if [node.node_type for node in info] != [counter.kind for counter in counters]:
            raise Unsupported("OpenVINO compiled the same model into different graphs, so runs cannot be put together.")
        for counter, node in zip(counters, info, strict=True):
            counter.read(node, done, keep=done > SETTLING)

    while len(clocked.whole) < runs:
        runner.compile_anew()
        nodes = runner.compiled.get_runtime_model().get_ordered_ops()
        described = described or {node.get_friendly_name(): node for node in nodes}
        done = 0
        clocked_runs(runner, feed, SETTLING, after)
        clocked += clocked_runs(runner, feed, min(KEPT, runs - len(clocked.whole)), after)
    graph = origins(path)
    ran = {counter.name for counter in counters if counter.ran}
    return clocked.layers(
        (_layer(counter, described.get(counter.name), graph, ran) for counter in counters if counter.ran),
        clock=CLOCK,
        absent={"begins": "the library does not report when a layer began"}
        | ({"modules": graph.absent} if graph.absent else {}),
    )


def _layer(counter: NodeCounter, described: Any, graph: OnnxNodes, ran: set[str]) -> Layer:
    """One layer; ``described`` is its node in the runtime model, ``ran`` the names of all nodes that ran."""
    notes = information(described)
    from_names = originals(notes.get("originalLayersNames", counter.name), counter.kind, graph)
    details: dict[str, Any] = {"primitive": counter.primitive}
    for key, note in (("layouts", "outputLayouts"), ("precision", "runtimePrecision")):
        if notes.get(note):
            details[key] = notes[note]
    if described is not None and not notes.get("originalLayersNames"):
        details["inserted"] = INSERTED
    if counter.name.rpartition("/")[2].startswith("fq_"):  # as NNCF calls what it adds
        details["inserted"] = INSERTED_BY_QUANTIZATION
    return Layer(
        name=counter.name,
        kind=counter.kind,
        modules=modules_among(from_names),
        operators=operators_among(from_names),
        inputs=tuple(one for port in described.inputs() for one in read(port, ran)) if described else (),
        outputs=tuple(map(tensor, described.outputs())) if described else (),
        precision=first_precision([notes.get("runtimePrecision", "")]),
        details=details,
        times=tuple(counter.times),
    )


def information(node: Any) -> dict[str, str]:
    """What the runtime model says of a node, as texts."""
    return {} if node is None else {key: str(value.astype(str)) for key, value in node.get_rt_info().items()}


def originals(names: str, kind: str, graph: OnnxNodes) -> list[OnnxNode]:
    """The ONNX nodes in a list of names with commas between them, each by its name or by a tensor that it writes.

    A convolution that OpenVINO changed, to have a normalization in it, has a name of its own and those of what follows;
    so of a layer that is a product, by its ``kind``, the product before these is one of them.
    """
    known = {**graph.by_output, **graph.by_name}
    found = [known[name] for part in names.split(",") if (name := original(part, known))]
    if kind in PRODUCT_KINDS and found and not any(node.kind in PRODUCTS for node in found):
        found += graph.product_before(found[0])
    return graph.in_order(found)


def original(name: str, nodes: Collection[str]) -> str:
    """The one of the ONNX ``nodes`` that an operation such as ``node_Conv_1/WithoutBiases`` came from, if any."""
    while name and name not in nodes:
        name = name.rpartition("/")[0]
    return name


def read(port: Any, ran: set[str]) -> list[Tensor]:
    """What a node reads at ``port``, by the name of the node that wrote it: nodes that did not run wrote nothing.

    A reshape hands on what it was given, and a concatenation in place has the tensors of all its inputs.
    """
    source = port.get_source_output()
    found: list[Any] = []
    open_ = [source]
    while open_:
        output = open_.pop()
        node = output.get_node()
        inputs = [item.get_source_output() for item in node.inputs()]
        if node.get_friendly_name() in ran or not inputs:
            found.append(output)
        else:
            varying = [item for item in inputs if information(item.get_node()).get("layerType") != "Const"]
            open_ += reversed(varying or inputs[:1])
    if len(found) == 1:
        return [msgspec.structs.replace(tensor(source), name=tensor(found[0]).name)]
    return [tensor(item) for item in found]


def tensor(port: Any) -> Tensor:
    """A port of the runtime model; a dimension that is free is -1."""
    kind = port.get_element_type().get_type_name()
    shape = port.get_partial_shape()
    return Tensor(
        name=port.get_node().get_friendly_name(),
        shape=tuple(size.get_length() if size.is_static else -1 for size in shape) if shape.rank.is_static else (),
        dtype=TENSOR_TYPES.get(kind, kind),
    )
