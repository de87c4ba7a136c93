"""Model files: TorchScript (``.pt``), exported programs (``.pt2``) and, with trust, pickled modules.

The content of a file determines its kind. Nothing that can run code is unpickled unless the user trusts the file.
"""

from __future__ import annotations

import ast
import json
import math
import os
import pickle
import pickletools
import re
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Struct

from inferlens.errors import InferlensError, LateModule, library, paths_like, reason
from inferlens.models.inputs import shapes_fit, spec_of, with_example
from inferlens.models.model import TRUST, Format, LoadRequest, Model, ModelInfo, Sizes, Source
from inferlens.models.weights import unwrapped_module
from inferlens.record.files import MODELS, FileType, file_kind, sha256, wrong_file
from inferlens.spec.case import DTYPES, TensorSpec
from inferlens.units import listing

if TYPE_CHECKING:
    import torch
else:
    torch = LateModule("torch")


# An exported program (``.pt2``) is opened without trust only if it holds data alone. PyTorch evaluates some of its text
# as Python: sizes of dynamic dimensions (``sympy.sympify``), names in generated code, and imports of nested outputs.
# The text is checked first: all of it must have the plain form that ``torch.export.save`` writes.

# Pickles of any class, and native code. Compared in lower case, because PyTorch's reader of archives ignores case.
UNSAFE_PARTS = ("/custom_obj_", "/opaque_obj_", "/aotinductor/", "script_object")
UNSAFE_PAYLOADS = ("custom_obj_", "opaque_obj_")
PLAIN = re.compile(r"[\w .,:<>=+*/#@%|&^~!?$-]*")  # no quotes, brackets, backslashes or line ends: no way into code
FUNCTION = re.compile(r"[A-Z][A-Za-z]*|floor|ceiling|sqrt|log|exp|sin|cos|tan")  # of sizes; Max, FloorDiv, CeilToInt
TREES = ("in_spec", "out_spec")
IMPORTING = re.compile(r'__enum__|default_factory|\\[^"\\]')  # also if spelt otherwise
EXPRESSION = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
    ast.Name, ast.Load, ast.Constant, ast.Call, ast.keyword,
)  # fmt: skip


def code_in(path: Path) -> str:
    """Return the part of the file that could run code when it is opened; empty if there is none.

    Raises Exception if the file is no archive, or a part of it that should be JSON is not.
    """
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        if len({name.lower() for name in names}) != len(names):
            return "two parts of one name"  # PyTorch might read the unchecked one
        for name in names:
            if any(part in name.lower() for part in UNSAFE_PARTS):
                return name
            if name.lower().endswith(".json") or "/models/" in f"/{name.lower()}":
                text = next(_unsafe_texts(json.loads(archive.read(name)), ""), "")
                if text:
                    return f"'{text[:60]}' in {name}"
    return ""


def _unsafe_texts(value: Any, key: str) -> Iterator[str]:
    """Yield every text in ``value`` that is not of a plain form; ``key`` is the field that holds ``value``."""
    if isinstance(value, dict):
        is_metadata = key == "metadata" and all(isinstance(part, str) for part in value.values())
        if is_metadata and not {"expr_str", *TREES} & value.keys():
            return  # the origin of a node: stack traces and module paths, which nothing evaluates
        for name, part in value.items():
            yield from _unsafe_texts(name, "")
            yield from _unsafe_texts(part, name)
    elif isinstance(value, list):
        for part in value:
            yield from _unsafe_texts(part, key)
    elif isinstance(value, str) and not _is_plain(value, key):
        yield value


def _is_plain(text: str, key: str) -> bool:
    if key == "expr_str":
        return is_arithmetic(text)
    if key in TREES:
        return IMPORTING.search(text) is None
    if key == "guards_code":  # `module()` would run it, unless check_guards is false
        return True
    return PLAIN.fullmatch(text) is not None and not (key == "path_name" and text.startswith(UNSAFE_PAYLOADS))


def is_arithmetic(text: str) -> bool:
    """Return whether ``text`` consists of numbers, symbols, operators and functions such as ``Max(1, s0//2)``."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return all(isinstance(node, EXPRESSION) and _is_harmless(node) for node in ast.walk(tree))


def _is_harmless(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and FUNCTION.fullmatch(node.func.id) is not None
    if isinstance(node, ast.Constant):  # a text is the name of a symbol, as in Symbol('s17', integer=True)
        return isinstance(node.value, (bool, int, float)) or (isinstance(node.value, str) and node.value.isalnum())
    return not isinstance(node, ast.Name) or "__" not in node.id


SUFFIXES = (".pt", ".pth", ".pt2")
AGAIN = "copy or export it again: it may be cut short, of another kind, or of another version"
NOTE = "inferlens.inputs.json"
NOTE_PATH = re.compile(rf"(^|/)extra(_files)?/{re.escape(NOTE)}$")  # in archives of either kind
LARGEST_NOTE = 1 << 20  # bytes
MOST_ELEMENTS = 1 << 32  # of an input
# torch._export.serde.schema.ScalarType, and the classes that a pickle of TorchScript names
EXPORTED_TYPES = {6: "fp16", 7: "fp32", 13: "bf16"}
STORAGES = {"torch HalfStorage": "fp16", "torch FloatStorage": "fp32", "torch BFloat16Storage": "bf16"}
LARGEST = 1 << 26  # bytes of a description of weights; larger parts are not read
FORMATS: dict[FileType, Format] = {
    FileType.TORCHSCRIPT: "torchscript", FileType.EXPORTED: "exported", FileType.MODULE: "module",
    FileType.PICKLE: "module",
}  # fmt: skip


class TorchFile(Source):
    """Files that PyTorch wrote."""

    prefix = "file"
    kinds = tuple(FORMATS)

    def find(self, name: str) -> ModelInfo:
        path, kind = find_file(name, *self.kinds)
        precision = "fp32" if FORMATS[kind] == "module" else torch_file_precision(path)
        return ModelInfo(
            spec=f"file:{path}", name=path.stem, format=FORMATS[kind], batch=None, precision=precision,
            danger=_danger(path, kind),
        )  # fmt: skip

    def open(self, name: str, request: LoadRequest) -> Model:
        path, kind = find_file(name, *self.kinds)
        library("torch", extra="torch")
        self.find(name).check(request.trust)
        with broken_file(path), only_weights(not request.trust):
            return {FileType.TORCHSCRIPT: _script, FileType.EXPORTED: _exported}.get(kind, _pickled)(path)


def _danger(path: Path, kind: FileType) -> str:
    """Return a sentence on code that runs when a file is opened; empty if its parts show none."""
    if FORMATS[kind] == "module":
        return f"{path} is a pickle, which can run code when it is opened. Weights go with a model's name (--weights)."
    if kind is not FileType.EXPORTED:
        return ""
    with broken_file(path):
        code = code_in(path)
    return f"{path} holds {code}, which can run code when it is opened." if code else ""


def find_file(name: str, *kinds: FileType) -> tuple[Path, FileType]:
    """Return the file of that name and its kind. Raises InferlensError if none of ``kinds`` is there."""
    path = Path(name)
    if path.is_dir():
        raise InferlensError(f"{path} is a folder.", expected="a model file")
    if not path.is_file():
        raise InferlensError(f"The file {path} does not exist.", expected="a model file", hint=paths_like(path))
    try:
        kind = file_kind(path)
    except OSError as error:
        raise InferlensError(f"{path} cannot be read: {error.strerror}.", hint="a file that you may read") from error
    if kind.kind not in kinds or kind.packing:
        titles = [kind.value[0] for kind in kinds if kind in MODELS]
        raise wrong_file(path, kind, expected=" or ".join(titles) if len(titles) == 1 else "a model file")
    return path, kind.kind


@contextmanager
def broken_file(path: Path) -> Iterator[None]:
    """Turn any error of a library that reads a file into one message about the file."""
    try:
        yield
    except (InferlensError, MemoryError):
        raise
    except Exception as error:
        raise InferlensError(f"{path} cannot be read: {reason(error)}", hint=AGAIN) from error


@contextmanager
def only_weights(forced: bool) -> Iterator[None]:
    """Make ``torch.load`` unpickle only tensors, also where a library asks it to do more."""
    variable = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(variable)
    if forced:
        os.environ[variable] = "1"
    try:
        yield
    finally:
        os.environ.pop(variable, None)
        if before is not None:
            os.environ[variable] = before


def _script(path: Path) -> Model:
    return Model(
        format="torchscript",
        inputs=_noted_inputs(path),
        module=torch.jit.load(str(path), map_location="cpu").eval(),
        path=path,
        weights=f"in {path.name}",
        source=f"TorchScript file, sha256 {sha256(path)}",
    )


def _exported(path: Path) -> Model:
    noted_specs = _noted_inputs(path)
    try:
        program = torch.export.load(str(path))
    except pickle.UnpicklingError as error:
        raise InferlensError(
            f"{path} holds a pickle of more than tensors, or a broken one, which can run code when it is opened.",
            expected="an exported program that is data alone",
            hint=TRUST,
        ) from error
    module = program.module(check_guards=False)  # guards are text in the file, and would be run as Python
    tensors, constants = _arguments(program, path)
    _take_tensors(program, module, constants)
    shapes = {node.name: node.meta["val"].shape for node in program.graph.nodes if node.name in tensors}
    specs = []
    for name, tensor in tensors.items():
        symbols = tuple("" if isinstance(size, int) else str(size) for size in shapes[name])
        specs.append(msgspec.structs.replace(spec_of(name, tensor), names=symbols))
    if noted_specs:
        specs = _with_input_names(specs, noted_specs, path)
    bounds = (tuple(_bounds(program, size) for size in shapes[name]) for name in tensors)
    return Model(
        format="exported",
        module=module,
        path=path,
        inputs=tuple(specs),
        sizes=dict(zip((spec.name for spec in specs), bounds, strict=True)),
        weights=f"in {path.name}",
        source=f"exported program, sha256 {sha256(path)}",
    )


def _arguments(program: torch.export.ExportedProgram, path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return the tensors that a program was exported with and its constant arguments, by name.

    Arguments that are lists, tuples or dicts are flattened. Raises InferlensError if the file has no example inputs, or
    if an argument is another object.
    """
    from torch.export.graph_signature import InputKind

    signature = program.graph_signature.input_specs
    names = [spec.arg.name for spec in signature if spec.kind is InputKind.USER_INPUT]
    values = torch.utils._pytree.tree_leaves(program.example_inputs)
    if len(values) != len(names):
        raise InferlensError(f"{path} does not say what its inputs are.", hint="export it again with example inputs")
    arguments = dict(zip(names, values, strict=True))
    tensors = {name: value for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    constants = {name: value for name, value in arguments.items() if name not in tensors}
    objects = [name for name, value in constants.items() if not isinstance(value, (bool, int, float, str, type(None)))]
    if objects or not tensors:
        raise InferlensError(
            f"{path} takes {f'another object as {listing(objects)}' if objects else 'no tensors'}.",
            expected="tensors, and None, numbers or text as constants",
            hint="export a module that sets the other arguments itself",
        )
    return tensors, constants


def _take_tensors(
    program: torch.export.ExportedProgram, module: torch.fx.GraphModule, constants: Mapping[str, Any]
) -> None:
    """Make a module take the tensors of its program by position, in order, and put constants into its graph."""
    arguments, named = program.example_inputs or ((), {})
    if not named and all(hasattr(argument, "dtype") for argument in arguments):
        return
    for node in module.graph.find_nodes(op="placeholder"):
        if node.name in constants:

            def with_constant(argument: Any, node: Any = node) -> Any:
                return constants[node.name] if argument is node else argument

            for user in list(node.users):
                user.args, user.kwargs = torch.fx.map_arg((user.args, user.kwargs), with_constant)
            module.graph.erase_node(node)
    module.graph.set_codegen(torch.fx.graph.CodeGen())  # without the nesting of arguments and outputs
    module._forward_pre_hooks.clear()  # which check the nesting
    module._forward_pre_hooks_with_kwargs.clear()
    module.recompile()


def _with_input_names(specs: Sequence[TensorSpec], noted: Sequence[TensorSpec], path: Path) -> list[TensorSpec]:
    """Return a program's inputs with the names and the ranges of values from its note."""
    if [(len(spec.shape), spec.dtype) for spec in specs] != [(len(spec.shape), spec.dtype) for spec in noted]:
        raise InferlensError(f"The inputs that {path} describes do not fit its program.", hint="export it again")
    return [
        msgspec.structs.replace(spec, name=note.name, low=note.low, high=note.high)
        for spec, note in zip(specs, noted, strict=True)
    ]


def _bounds(program: torch.export.ExportedProgram, size: Any) -> tuple[int, int | None]:
    """Return the smallest and the largest value of a size. PyTorch writes 2 also where 0 and 1 work."""
    if isinstance(size, int):
        return size, size
    bounds = program.range_constraints.get(size.node.expr)
    if bounds is None:
        return 1, None
    least, most = (int(end) if end.is_Integer else None for end in (bounds.lower, bounds.upper))
    return least if least is not None and least > 2 else 1, most


def _pickled(path: Path) -> Model:
    module, key = unwrapped_module(torch.load(path, map_location="cpu", weights_only=False))
    if module is None:
        raise InferlensError(f"{path} holds no module.", expected="a module, or one under 'model' or the like")
    if key:  # checkpoints of training are in half precision to save space
        module = module.float()
    where = f"in {path.name}" + f" ('{key}')" * bool(key)
    return with_example(module, None, weights=where, source=f"pickled module, sha256 {sha256(path)}")


def torch_file_precision(path: Path) -> str:
    """Return the precision of most weights of an exported program, or of all weights of a TorchScript archive.

    Return fp32 if it cannot be read.
    """
    with suppress(Exception), zipfile.ZipFile(path) as archive:  # opening the file reports the error
        for entry in archive.infolist():
            if entry.file_size <= LARGEST and entry.filename.endswith("/model_weights_config.json"):
                sizes: Counter[str] = Counter()
                for weight in msgspec.json.decode(archive.read(entry))["config"].values():
                    meta = weight["tensor_meta"]
                    if meta["dtype"] in EXPORTED_TYPES:
                        sizes[EXPORTED_TYPES[meta["dtype"]]] += math.prod(size["as_int"] for size in meta["sizes"])
                return sizes.most_common(1)[0][0] if sizes else "fp32"
            if entry.file_size <= LARGEST and entry.filename.endswith("/data.pkl"):
                opcodes = pickletools.genops(archive.read(entry))
                names = {str(argument) for opcode, argument, _ in opcodes if opcode.name == "GLOBAL"}
                precisions = {STORAGES[name] for name in names if name in STORAGES}
                return precisions.pop() if len(precisions) == 1 else "fp32"
    return "fp32"


class _Note(Struct, frozen=True, forbid_unknown_fields=True):
    """A small JSON in the archive with the inputs in the order of the arguments.

    TorchScript keeps neither names nor shapes of its inputs, and an exported program keeps the names of ``forward``.
    """

    inputs: tuple[TensorSpec, ...]
    schema: Literal["inferlens.inputs/1"] = "inferlens.inputs/1"


def input_note(specs: tuple[TensorSpec, ...], floats: str) -> dict[str, str]:
    """Return extra files for PyTorch to write: the note of ``specs``, with floats in the type ``floats``.

    Return none for inputs that would be refused when the note is read, such as names with line ends.
    """
    specs = tuple(msgspec.structs.replace(spec, dtype=floats) if "float" in spec.dtype else spec for spec in specs)
    return {NOTE: msgspec.json.encode(_Note(specs)).decode()} if _can_be_fed(specs) else {}


def _noted_inputs(path: Path) -> tuple[TensorSpec, ...]:
    """Return the inputs in the note of the archive, if any. The note is checked, because its author is unknown."""
    with zipfile.ZipFile(path) as archive:
        notes = [entry for entry in archive.infolist() if NOTE_PATH.search(entry.filename)]
        if not notes:
            return ()
        specs: tuple[TensorSpec, ...] = ()
        if len(notes) == 1 and notes[0].file_size <= LARGEST_NOTE:
            with suppress(msgspec.DecodeError, ValueError, RecursionError):
                specs = msgspec.json.decode(archive.read(notes[0]), type=_Note).inputs
    if not _can_be_fed(specs):
        raise InferlensError(f"The inputs that {path} describes are not valid.", hint="export it again")
    return specs


def _can_be_fed(specs: tuple[TensorSpec, ...]) -> bool:
    """Return whether inputs are valid beyond the types of their fields."""
    names = {spec.name for spec in specs}
    return (
        0 < len(names) == len(specs)
        and all(name and PLAIN.fullmatch(name) for name in names)
        and all(spec.dtype in DTYPES for spec in specs)
        and shapes_fit(specs)
        and all(math.prod(spec.profile[2]) <= MOST_ELEMENTS for spec in specs)
    )


# onnx.TensorProto.DataType
FLOAT_TYPES = {1: "fp32", 10: "fp16", 16: "bf16"}
FLOATS = (*FLOAT_TYPES, 11)  # types of parameters; integers are shapes and indices
ONNX_DTYPES = {
    1: "float32", 2: "uint8", 3: "int8", 6: "int32", 5: "int16", 7: "int64", 9: "bool", 10: "float16", 11: "float64",
    16: "bfloat16",
}  # fmt: skip
FP8_TYPES = {17, 18, 19, 20}
QUANTIZED_OPERATORS = ("QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger", "DynamicQuantizeLinear")


class OnnxFile(Source):
    """ONNX graphs."""

    prefix = "onnx"
    format = "onnx"
    kinds = (FileType.ONNX,)

    def find(self, name: str) -> ModelInfo:
        path, _ = find_file(name, *self.kinds, FileType.UNKNOWN)  # its fields may stand in an unusual order
        model = onnx_graph(path)
        shape, precision = _inputs(model, path)[0][0].shape, graph_precision(model)
        batch = shape[0] if shape else 1
        return ModelInfo(spec=f"onnx:{path}", name=path.stem, format="onnx", batch=batch, precision=precision)

    def open(self, name: str, request: LoadRequest) -> Model:  # noqa: ARG002 - a file of weights is loaded afterwards
        path, _ = find_file(name, *self.kinds, FileType.UNKNOWN)
        model = onnx_graph(path)
        inputs = _inputs(model, path)
        return Model(
            format="onnx",
            path=path,
            inputs=tuple(spec for spec, _ in inputs),
            sizes={spec.name: sizes for spec, sizes in inputs},
            parameters=sum(math.prod(tensor.dims) for tensor in model.graph.initializer if tensor.data_type in FLOATS),
            weights=f"in {path.name}",
            source=f"ONNX file, sha256 {sha256(path, *weight_files(path, model))}",
        )


def onnx_graph(path: Path) -> Any:
    """Return the graph of an ONNX file, without weights in other files.

    Raises:
        MissingLibrary: if the package onnx is not there.
        InferlensError: if the file is no ONNX graph.
    """
    onnx = library("onnx", extra="onnx")
    with broken_file(path):
        model = onnx.load(str(path), load_external_data=False)
        if not model.graph.node:
            raise InferlensError(f"{path} is not an ONNX graph, or is empty.", hint=AGAIN)
        return model


def _inputs(model: Any, path: Path) -> list[tuple[TensorSpec, Sizes | None]]:
    """Return the inputs of the graph, and the sizes that they may have.

    A first size that is free, which some files write as -1, becomes 1. Other sizes that are free or missing become 0,
    and the user has to set them with ``--input``.
    """
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs: list[tuple[TensorSpec, Sizes | None]] = []
    for value in model.graph.input:
        if value.name in weights:
            continue
        tensor = value.type.tensor_type
        dtype = ONNX_DTYPES.get(tensor.elem_type)
        if dtype is None:
            raise InferlensError(f"The input '{value.name}' has an unknown type.", expected=", ".join(DTYPES))
        shape, sizes = [0, 0], None
        if tensor.HasField("shape"):
            shape = [max(int(size.dim_value), 0) for size in tensor.shape.dim]
            sizes = tuple((size or 1, size or None) for size in shape)
        shape[:1] = [size or 1 for size in shape[:1]]
        names = tuple(size.dim_param for size in tensor.shape.dim)
        inputs.append((TensorSpec(value.name, tuple(shape), dtype, names=names), sizes))
    if not inputs:
        raise InferlensError(f"The graph of {path} takes no inputs, so there is nothing to measure it with.")
    return inputs


def weight_files(path: Path, model: Any) -> list[Path]:
    """Return the files in the folder of ``path`` that hold its larger weights."""
    tensors = [tensor for tensor in model.graph.initializer if tensor.data_location]
    names = {entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "location"}
    for name in names:
        if Path(name).is_absolute() or ".." in Path(name).parts:  # not by resolved paths: a cache may consist of links
            raise InferlensError(f"{path} refers to weights in {name}.", expected="weights in the folder of the graph")
        if not (path.parent / name).is_file():
            message = f"{path.parent / name}, which holds weights of {path.name}, is missing."
            raise InferlensError(message, hint=f"copy it from where {path.name} comes from")
    return [path.parent / name for name in sorted(names)]


def onnx_file_precision(path: Path) -> str:
    """Return the precision of a file's graph, as :func:`graph_precision`."""
    return graph_precision(onnx_graph(path))


def graph_precision(model: Any) -> str:
    """Return the quantized type of the graph, or the type of most weights, or of its inputs; else fp32."""
    quantizing = {*QUANTIZED_OPERATORS, "QuantizeLinear", "DequantizeLinear"}
    if any(node.op_type in quantizing for node in model.graph.node):
        kinds = {weight.data_type for weight in model.graph.initializer}
        for node in model.graph.node:
            kinds |= {attribute.t.data_type for attribute in node.attribute if node.op_type == "Constant"}
        return "fp8" if kinds & FP8_TYPES else "int8"
    sizes: Counter[str] = Counter()
    for weight in model.graph.initializer:
        if weight.data_type in FLOAT_TYPES:
            sizes[FLOAT_TYPES[weight.data_type]] += math.prod(weight.dims)
    if not sizes:
        kinds = {value.type.tensor_type.elem_type for value in model.graph.input}
        sizes.update(FLOAT_TYPES[kind] for kind in kinds if kind in FLOAT_TYPES)
    return sizes.most_common(1)[0][0] if sizes else "fp32"
