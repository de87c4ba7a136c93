"""ONNX files of models: export, checks, and the modules of a graph's nodes.

Models are exported by ``torch.export``, which keeps the module path of every node. If that fails, the older tracing
exporter is used, and the record warns of it. Models that are ONNX files are used as they are.
"""

from __future__ import annotations

import ast
import shutil
import warnings
from collections import Counter
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from inferlens.backends.availability import ignore_deprecations, is_installed
from inferlens.backends.base import Preparation
from inferlens.backends.pytorch.runner import cast, dynamic_sizes, example_feed, export_dimensions, flat_outputs
from inferlens.errors import LateModule, Unsupported, installing, reason
from inferlens.models.files import onnx_file_precision, onnx_graph, weight_files
from inferlens.models.model import Array, Format, Model
from inferlens.models.work import PRODUCTS
from inferlens.record.files import open_locked
from inferlens.record.profile import Layer, Tensor
from inferlens.spec.case import Case, kept_layers, unknown_layer

onnx: Any = LateModule("onnx")
torch: Any = LateModule("torch")

EMBED_LIMIT = 1_500_000_000  # bytes of weights inside an ONNX file, which holds less than 2 GiB


def onnx_formats() -> tuple[Format, ...]:
    """Return the formats that can be exported to ONNX here, or are ONNX."""
    return ("module", "exported", "onnx") if is_installed("torch", "onnx", "onnxscript") else ("onnx",)


def onnx_versions() -> dict[str, str]:
    """Return the versions of the installed exporter libraries, without importing them."""
    return {name: metadata.version(name) for name in ("onnx", "onnxscript") if is_installed(name)}


def onnx_file(model: Model, case: Case, preparation: Preparation, precision: str) -> Path:
    """Return the model as an ONNX file with weights and float inputs in ``precision``; a new file is an artefact."""
    if model.path is not None and model.format == "onnx":
        return model.path
    path = preparation.folder / "model.onnx"
    if preparation.export_folder and (cached := preparation.export_folder / path.name).exists():
        with preparation.phase("export") as phase_note:
            phase_note.note = "cached"
        return cached
    if model.module is None:
        raise Unsupported(f"'{model.spec}' is neither a PyTorch module nor an ONNX file.")
    if model.format == "torchscript":
        message = f"'{model.spec}' is TorchScript, which cannot be exported to ONNX."
        raise Unsupported(message, hint="the original model")
    with open_locked(preparation.export_lock) if preparation.export_lock else nullcontext() as shared:
        if shared and (shared_path := Path(shared.read())).is_file():
            with preparation.phase("export") as phase_note:
                phase_note.note = "shared"
            return shared_path
        with preparation.phase("export"):
            preparation.folder.mkdir(parents=True, exist_ok=True)
            cast(model.module, precision)
            _export(model, example_feed(model, case, precision), precision, path, preparation)
        if shared:
            shared.write(str(path))
    for file in sorted(preparation.folder.glob("model.onnx*")):
        preparation.keep(file, "onnx" if file == path else "onnx weights")
    return path


def copy_onnx(source: Path, path: Path) -> None:
    """Copy an ONNX file. Weights in other files are merged into one, with the name of ``path`` and ``.data``."""
    if weight_files(source, onnx_graph(source)):
        onnx.save(onnx.load(str(source)), str(path), save_as_external_data=True, location=f"{path.name}.data")
    else:
        shutil.copyfile(source, path)


def cast_folded_weights(path: Path) -> None:
    """Cast folded convolution weights of a bf16 graph back to bf16, in place.

    The exporter folds batch norms into convolutions with NumPy, which has no bf16. The folded weights are in fp32 then,
    and no runtime takes such a graph.
    """
    model = onnx.load(str(path), load_external_data=False)
    operators = [node for node in model.graph.node if node.op_type in FOLDING_OPERATORS]
    weights = {name for node in operators for name in node.input[1:]}
    fp32, bf16 = onnx.TensorProto.FLOAT, onnx.TensorProto.BFLOAT16
    folded = [tensor for tensor in model.graph.initializer if tensor.name in weights and tensor.data_type == fp32]
    for tensor in folded:
        values = torch.from_numpy(onnx.numpy_helper.to_array(tensor, str(path.parent)).copy()).to(torch.bfloat16)
        raw = values.view(torch.int16).numpy().tobytes()
        tensor.CopyFrom(onnx.TensorProto(name=tensor.name, data_type=bf16, dims=tensor.dims, raw_data=raw))
    names = {tensor.name for tensor in folded}
    names |= {name for node in model.graph.node if names & set(node.input) for name in node.output}
    for value in model.graph.value_info:
        if value.name in names and value.type.tensor_type.elem_type == fp32:
            value.type.tensor_type.elem_type = bf16
    if folded:
        onnx.save(model, str(path))


def _export(model: Model, feed: tuple[Any, ...], precision: str, path: Path, preparation: Preparation) -> None:
    module: Any = model.module
    size = sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values())
    names = [spec.name for spec in model.inputs]
    with ignore_deprecations(), torch.no_grad():
        try:
            torch.onnx.export(
                module, feed, path, input_names=names, dynamo=True, external_data=size > EMBED_LIMIT, verbose=False,
                dynamic_shapes=export_dimensions(module, model.inputs),
            )  # fmt: skip
            if precision == "bf16":
                cast_folded_weights(path)
            preparation.facts["onnx_exporter"] = "torch.export"
            return
        except Exception as error:  # the other exporter may succeed
            export_error = error
        try:
            warnings.filterwarnings("ignore", category=torch.jit.TracerWarning)  # the record warns of it
            flat = flat_outputs(module)  # this exporter knows fewer types of outputs
            axes = {spec.name: dynamic_sizes(spec) for spec in model.inputs}
            torch.onnx.export(flat, feed, path, input_names=names, dynamo=False, verbose=False, dynamic_axes=axes)
        except Exception as error:
            reasons = f"{reason(export_error)} (tracing: {reason(error)})"
            raise Unsupported(f"'{model.name}' cannot be exported to ONNX: {reasons}") from export_error
    preparation.facts["onnx_exporter"] = "TorchScript"
    preparation.warn(
        "export-fallback",
        f"The older, tracing ONNX exporter was used, because the newer one failed: {reason(export_error)}.",
        "Its nodes have no module paths, and control flow is fixed to the path of this input.",
    )


def check_precision(path: Path, precision: str) -> None:
    """Refuse to run a file in another precision than that of its weights."""
    stored = onnx_file_precision(path)
    if stored != precision:
        message = f"The file {path.name} is in {stored}, and it is run as it is."
        raise Unsupported(message, hint=f"--precision {stored}, or a file written in {precision}")


def check_outputs(model: Model) -> None:
    """Refuse an ONNX file with an output that is a sequence or a map."""
    if model.format != "onnx" or model.path is None:
        return
    for value in onnx_graph(model.path).graph.output:
        kind = (value.type.WhichOneof("value") or "tensor_type").removesuffix("_type")
        if kind not in ("tensor", "sparse_tensor"):
            raise Unsupported(
                f"The output '{value.name}' is a {kind}, and only tensors are supported here.",
                hint="--backend onnxruntime:cpu, or an export without it, such as options={'zipmap': False}",
            )


def output_array(array: Any) -> Array:
    """Return a copy with floats as float32 and text as NumPy's type for text."""
    if array.dtype.kind == "S":
        return np.char.decode(array, "utf-8")
    if array.dtype == object:
        return np.array(array, dtype=str)
    return np.array(array, dtype=np.float32 if np.issubdtype(array.dtype, np.floating) else array.dtype)


# The modules of ONNX nodes.
#
# The exporter writes the scopes of a node into ``pkg.torch.onnx.name_scopes``, such as ``['', 'layer1', 'layer1.0',
# 'layer1.0.conv1', 'conv2d_1']``: the operator is last, its module before it. If a batch norm was folded into a
# convolution, the node has the scope of the batch norm, and its weight has the name of the convolution's. The node then
# has both modules.

SCOPES = "pkg.torch.onnx.name_scopes"
NO_SCOPES = (
    f"the ONNX file has no module paths ('{SCOPES}' in its nodes' metadata). They are there if it is exported with "
    "torch.onnx.export(..., dynamo=True), or if the PyTorch model itself is given."
)
FOLDING_OPERATORS = ("Conv", "ConvTranspose", "Gemm")  # operators into which a batch norm is folded
CONSTANT_KINDS = ("Constant",)  # nodes that do nothing at run time
DOMAINS = ("", "ai.onnx")
LARGEST_SHAPE_TENSOR = 4096  # bytes; larger weights cannot be shapes


class OnnxNode(Struct, frozen=True):
    """A node of an ONNX graph, and the paths of its modules."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    modules: tuple[str, ...] = ()


class OnnxNodes:
    """The nodes of a graph, by position, name and output."""

    def __init__(self, nodes: Iterable[OnnxNode], absent: str = "") -> None:
        self.nodes = tuple(nodes)
        self.absent = absent or ("" if any(node.modules for node in self.nodes) else NO_SCOPES)
        self.by_name = {node.name: node for node in self.nodes if node.name}
        self.by_output = {name: node for node in self.nodes for name in node.outputs}
        self._index = {node.outputs: index for index, node in enumerate(self.nodes)}

    def in_graph_order(self, nodes: Iterable[OnnxNode]) -> list[OnnxNode]:
        """Return the distinct ``nodes`` in the order of the graph, without constants."""
        indices = {self._index[node.outputs] for node in nodes if node.kind not in CONSTANT_KINDS}
        return [self.nodes[index] for index in sorted(indices)]

    def product_before(self, node: OnnxNode) -> list[OnnxNode]:
        """Return the last product before ``node`` along the first inputs, if there is one, or ``node`` itself."""
        while node.kind not in PRODUCTS:
            sources = [self.by_output[name] for name in node.inputs if name in self.by_output]
            sources = [source for source in sources if source.kind not in CONSTANT_KINDS]
            if not sources:
                return []
            node = sources[0]
        return [node]

    def nodes_between(self, outputs: Iterable[str], stops: set[str]) -> list[OnnxNode]:
        """Return the nodes that compute ``outputs`` from the tensors in ``stops`` and the graph's inputs."""
        nodes: dict[tuple[str, ...], OnnxNode] = {}
        pending = list(outputs)
        while pending:
            node = self.by_output.get(pending.pop())
            if node is not None and node.outputs not in nodes:
                nodes[node.outputs] = node
                pending += [name for name in node.inputs if name not in stops]
        return self.in_graph_order(nodes.values())


def read_nodes(path: Path) -> OnnxNodes:
    """Read the nodes of an ONNX file, without its weights."""
    if path.suffix == ".xml":
        return OnnxNodes((), "an IR of OpenVINO's has no module paths; the original model has them.")
    try:
        import onnx
    except ImportError:
        why = f"the module paths in an ONNX file are read with the package onnx: {installing('onnx')}"
        return OnnxNodes((), why)
    graph = onnx.load(str(path), load_external_data=False).graph
    uses = Counter(name for node in graph.node for name in set(node.input))
    return OnnxNodes(
        OnnxNode(node.name, node.op_type, tuple(node.input), tuple(node.output), node_modules(node, uses))
        for node in graph.node
        if any(node.output)
    )


def kept_nodes(path: Path, case: Case) -> tuple[str, ...]:
    """Return the names of the nodes that ``case`` keeps, in order. Raise Unsupported for an unknown layer."""
    if not case.keep:
        return ()
    nodes = read_nodes(path).nodes
    names = [node.name for node in nodes]
    kept: set[str] = set()
    for layer in kept_layers(case):
        in_layer = {node.name for node in nodes if any(f"{module}.".startswith(f"{layer}.") for module in node.modules)}
        in_layer |= {layer}.intersection(names)
        if not in_layer:
            raise unknown_layer(layer, dict.fromkeys([*module_paths(nodes), *names]))
        kept |= in_layer
    return tuple(name for name in names if name in kept)


def node_modules(node: Any, uses: Counter[str]) -> tuple[str, ...]:
    """Return the module paths of an ONNX node; ``uses`` counts the readers of each tensor."""
    scopes = node_scopes(node)
    if not scopes:
        return ()
    module = scopes[-2] if len(scopes) > 1 else ""
    is_folded = node.op_type in FOLDING_OPERATORS and "batch_norm" in scopes[-1] and len(node.input) > 1
    if is_folded and uses[node.input[1]] == 1 and "." in node.input[1]:
        return tuple(dict.fromkeys((node.input[1].rpartition(".")[0], module)))
    return (module,)


def node_scopes(node: Any) -> list[str]:
    """Return the scopes that the exporter wrote into a node, if any."""
    written = next((entry.value for entry in node.metadata_props if entry.key == SCOPES), "")
    try:
        scopes = ast.literal_eval(written) if written else []
    except (SyntaxError, ValueError):
        return []
    return [str(scope) for scope in scopes] if isinstance(scopes, list) else []


def module_paths(nodes: Iterable[OnnxNode]) -> tuple[str, ...]:
    """Return the distinct modules of some nodes, in order."""
    return tuple(dict.fromkeys(module for node in nodes for module in node.modules))


class OnnxLayers:
    """The nodes of an ONNX file as layers, with the tensors between them, without constants.

    Weights have a name and a shape, and are not inputs of the graph. ``notes`` say what is missing in the layers.
    """

    def __init__(self, graph: Any) -> None:
        self._tensors = {value.name: _tensor(value) for value in (*graph.value_info, *graph.input, *graph.output)}
        for weight in graph.initializer:
            shape, dtype = tuple(weight.dims), _type(weight.data_type)
            self._tensors[weight.name] = Tensor(name=weight.name, shape=shape, dtype=dtype, format="weights")
        weights = {weight.name for weight in (*graph.initializer, *graph.sparse_initializer)}
        uses = Counter(name for node in graph.node for name in set(node.input))
        self.inputs = tuple(_tensor(value) for value in graph.input if value.name not in weights)
        self.outputs = tuple(map(_tensor, graph.output))
        self.layers = tuple(self._layer(node, uses) for node in graph.node if node.op_type not in CONSTANT_KINDS)
        kinds = {node.op_type for node in graph.node for field in node.attribute if field.graphs or field.HasField("g")}
        self.notes: tuple[str, ...] = ()
        if kinds:
            names = ", ".join(sorted(kinds))
            self.notes += (f"Nodes with graphs inside of them, such as If and Loop, are drawn without these: {names}.",)
        if not any(layer.modules for layer in self.layers):
            self.notes += (f"modules: {NO_SCOPES}",)

    def _layer(self, node: Any, uses: Counter[str]) -> Layer:
        kind = node.op_type if node.domain in DOMAINS else f"{node.domain}.{node.op_type}"
        return Layer(
            name=node.name or next(iter(node.output), ""),
            kind=kind,
            modules=node_modules(node, uses),
            operators=(kind,),
            inputs=tuple(self._tensors.get(name, Tensor(name=name)) for name in node.input if name),
            outputs=tuple(self._tensors.get(name, Tensor(name=name)) for name in node.output if name),
            details=dict(filter(None, map(_attribute, node.attribute))),
        )


def onnx_layers(path: Path) -> OnnxLayers:
    """Read the nodes of an ONNX file as layers, with the shapes that can be inferred."""
    model = onnx_graph(path)
    for weights in model.graph.initializer:
        if len(weights.raw_data) > LARGEST_SHAPE_TENSOR:
            weights.ClearField("raw_data")
    with suppress(Exception):  # without shapes if the model is too large or broken
        model = onnx.shape_inference.infer_shapes(model)
    return OnnxLayers(model.graph)


def _tensor(value: Any) -> Tensor:
    kind = value.type.tensor_type
    sizes = [size.dim_value if size.HasField("dim_value") else -1 for size in kind.shape.dim]
    return Tensor(name=value.name, shape=tuple(sizes), dtype=_type(kind.elem_type))


def _type(number: int) -> str:
    names: dict[int, str] = {code: name.lower() for name, code in onnx.TensorProto.DataType.items()}
    name = names.get(number, "")
    return {"float": "float32", "double": "float64", "undefined": ""}.get(name, name)


def _attribute(attribute: Any) -> tuple[str, str] | None:
    """Return the name and text of an attribute that is a number, a few numbers, or a text."""
    if attribute.HasField("i"):
        return attribute.name, str(attribute.i)
    if attribute.HasField("f"):
        return attribute.name, f"{attribute.f:g}"
    if attribute.HasField("s"):
        return attribute.name, attribute.s[:100].decode(errors="replace")
    if 0 < len(attribute.ints) <= 8:
        return attribute.name, "x".join(map(str, attribute.ints))
    return None
