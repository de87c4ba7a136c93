"""TorchScript: the model traced or scripted, optionally frozen and optimised for inference.

A TorchScript model runs as it is under either variant. Tracing and scripting use the case's device and precision,
because a trace makes both constants.
"""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta, Struct, structs
from msgspec.structs import replace

from inferlens.backends.availability import ignore_deprecations, unsupported_on_error
from inferlens.backends.base import Backend, Capabilities, Deployer, Knob, Preparation, Recommendation, Saver
from inferlens.backends.profiling.kernels import (
    Call,
    MatchedKernels,
    MatchingTracer,
    OperatorNames,
    kernels_below,
    number_calls,
    outermost_operators,
    trace_layers,
)
from inferlens.backends.profiling.runs import RUN_SPAN, LayerTimes, TracedOperator, check_level, trace_single_run
from inferlens.backends.pytorch.runner import DTYPES, Feed, TorchOptions, TorchRunner, flat_outputs, torch_capabilities
from inferlens.backends.scripts import sibling_path, torch_script
from inferlens.errors import LateModule, Unsupported, reason
from inferlens.models.files import input_note
from inferlens.models.model import Format, Model
from inferlens.models.weights import buffers, restore
from inferlens.record.profile import Layer, Layers, Tensor
from inferlens.spec.case import HALF, Case, Option, TensorSpec
from inferlens.spec.hints import Hint

torch: Any = LateModule("torch")

OPTIMISED_NOTE = "optimize_for_inference leaves no names of modules, and operators that torch.profiler does not see"


class TorchScriptOptions(TorchOptions, frozen=True, forbid_unknown_fields=True):
    """Options of TorchScript."""

    freeze: Annotated[
        bool,
        Meta(description="inline weights as constants (torch.jit.freeze), which folds batch norm into convolutions"),
    ] = False
    optimize_for_inference: Annotated[
        bool, Meta(description="freeze and fuse for inference (torch.jit.optimize_for_inference)")
    ] = False


class TorchScript(Backend, Saver, Deployer):
    """TorchScript, traced or scripted."""

    name = "torchscript"
    summary = "TorchScript, traced or scripted"
    variants = ("trace", "script")
    options = TorchScriptOptions
    reference_for: ClassVar[dict[Format, tuple[str, dict[str, Option]]]] = {"torchscript": ("script", {})}
    saves: ClassVar[dict[str, str]] = {".pt": "TorchScript"}
    script_packages = ("torch",)
    knobs = (
        # It freezes the module first.
        Knob(name="optimize_for_inference", values=(True,), excludes=("freeze",), helps=("memory",)),
        Knob(name="freeze", values=(True,), excludes=("optimize_for_inference",), helps=("memory",)),
        Knob(name="channels_last", values=(True,), helps=("layout",)),
        Knob(name="tf32", values=(True,), devices=("cuda",), precisions=("fp32",)),
    )
    excluded_devices = ("cuda",)  # never the fastest there, and compiles for minutes
    recommended = (
        Recommendation("trace", "cpu", {"optimize_for_inference": True}, ("fp32",)),
        Recommendation("trace", "cpu", {"freeze": True}, HALF),
    )

    def capabilities(self) -> Capabilities:
        return torch_capabilities(self.variants, ("module", "exported", "torchscript"))

    def prepare(self, model: Model, case: Case, preparation: Preparation) -> ScriptRunner:
        options: TorchScriptOptions = self.parse_options(case)
        if model.format == "exported" and case.variant == "script":
            raise Unsupported("An exported program has no source to script.", hint="--backend torchscript:trace")
        if case.variant == "script" and hasattr(type(model.module), "takes_names"):
            message = "Inputs by name use code that TorchScript cannot script."
            raise Unsupported(message, hint="--backend torchscript:trace, or example inputs as a tuple")
        if options.optimize_for_inference and preparation.level == "layer":
            raise Unsupported(f"{OPTIMISED_NOTE}.", hint="--option torchscript.freeze=true")
        return ScriptRunner(model, case, preparation, options)

    def save(self, model: Model, case: Case, preparation: Preparation, path: Path) -> None:
        """Write the traced or scripted module, on the CPU, with a note of its inputs."""
        self.prepare(model, structs.replace(case, device="cpu"), preparation).save(path)

    @classmethod
    def hint(cls, case: Case, option: str, value: Option, facts: Mapping[str, Any]) -> Hint:
        """Treat ``optimize_for_inference`` as freezing, which it does first."""
        if option == "freeze" and cls.parse_options(case).optimize_for_inference:
            return Hint(asked=True)
        return super().hint(case, option, value, facts)

    def deploy_suffix(self, case: Case) -> str:  # noqa: ARG002
        return ".pt"

    def deploy(self, model: Model, case: Case, preparation: Preparation, path: Path) -> None:
        """Write the script module on the case's device; the script freezes and optimises it."""
        plain = structs.replace(self.parse_options(case), freeze=False, optimize_for_inference=False)
        ScriptRunner(model, case, preparation, plain).save(path)

    def script(self, case: Case, file: str, inputs: tuple[TensorSpec, ...]) -> str:
        options: TorchScriptOptions = self.parse_options(case)
        load = [f"model = torch.jit.load({sibling_path(file)}).eval()"]
        if options.optimize_for_inference:
            load.append("model = torch.jit.optimize_for_inference(model)")
        elif options.freeze:
            load.append("model = torch.jit.freeze(model)")
        return torch_script(case, options, inputs, load)


class ScriptRunner(TorchRunner, MatchingTracer):
    """A runner that calls the script module."""

    def __init__(self, model: Model, case: Case, preparation: Preparation, options: TorchScriptOptions) -> None:
        super().__init__(model, case, preparation, options)
        self._options = options
        self._wrapped_path = ""  # the model's path inside the traced module

    def save(self, path: Path) -> None:
        """Write the script module with a note of its inputs; the runner is not entered yet."""
        with self, ignore_deprecations():
            notes = input_note(self.model.inputs, DTYPES[self.case.precision])
            torch.jit.save(self._call, str(path), _extra_files=notes)

    def build(self, module: Any) -> Callable[..., Any]:
        """Trace or script, then freeze and optimise as asked, or refuse with TorchScript's reason."""
        variant, alternative = self.case.variant, "script" if self.case.variant == "trace" else "trace"
        hint = f"--backend torchscript:{alternative}"
        with (
            ignore_deprecations(),
            unsupported_on_error(f"TorchScript cannot {variant} '{self.model.name}'", hint=hint),
        ):
            script = self._script(module)
            if self._options.optimize_for_inference:
                script = torch.jit.optimize_for_inference(script)
            elif self._options.freeze and hasattr(script, "training"):  # a module that was saved frozen lacks it
                script = torch.jit.freeze(script.eval())
        return script  # type: ignore[no-any-return]

    def profile_layers(self, feed: Feed, runs: int) -> Layers:
        check_level(self.preparation)
        return trace_layers(self, self._names(feed), feed, runs, on_gpu=self.case.device == "cuda")

    def matched_kernels(self) -> MatchedKernels:
        if self._options.optimize_for_inference:
            return MatchedKernels([], {"modules": f"{OPTIMISED_NOTE}."})
        feed = self.seeded_feed()
        names = self._names(feed)
        return kernels_below(trace_single_run(self, feed, on_gpu=True).root, names)

    def _names(self, feed: Feed) -> ScriptNames:
        modules, on_gpu = ModulePaths(self.model.module, self._wrapped_path), self.case.device == "cuda"
        return ScriptNames(self, modules, feed, on_gpu=on_gpu, frozen=not hasattr(self._call, "training"))

    def _script(self, module: Any) -> Any:
        if isinstance(module, torch.jit.ScriptModule):
            self.preparation.facts["torchscript"] = "loaded as TorchScript, neither traced nor scripted here"
            # The weights of a frozen module are constants, which keep their device and type.
            if not hasattr(module, "training") and (self.case.device != "cpu" or self.case.precision != "fp32"):
                message = "This TorchScript archive was frozen: its weights are fp32 constants on the CPU."
                raise Unsupported(message, hint="an archive saved without torch.jit.freeze, or fp32 on the CPU")
            return module
        self.preparation.facts["torchscript"] = {"trace": "traced", "script": "scripted"}[self.case.variant]
        if self.case.variant == "script":
            return torch.jit.script(module)
        return self._trace(module)

    def _trace(self, module: Any) -> Any:
        feed, state = self.seeded_feed(), buffers(module)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", torch.jit.TracerWarning)
            try:
                traced = torch.jit.trace(module, feed, check_trace=False, strict=False)
            except RuntimeError:
                # A trace cannot return other outputs than tensors, and tuples, lists and dictionaries of one type.
                self._wrapped_path = WRAPPED_PATH
                traced = torch.jit.trace(flat_outputs(module), feed, check_trace=False, strict=False)
        restore(module, state)  # tracing has changed it, and a file would keep that
        # Values that became constants, mostly harmless shapes; otherwise the outputs disagree.
        self.preparation.facts["trace_warnings"] = [reason(str(warning.message)) for warning in caught]
        return traced


# Layers are the operators that TorchScript's interpreter calls, fused or not, with the modules that they came from. The
# graph that ran has the modules, and PyTorch's execution trace of one untimed call has the tensors.

GROUP, LOOP = "prim::TensorExprGroup", "prim::Loop"
SELF_NAMES = ("TOP", "SELF", "UNKNOWN_INSTANCE", "INSTANCE_NAME_UNKNOWN")  # the calling module, or a function of it
WRAPPED_PATH = "module"  # the model's path inside the module of flat_outputs
MAX_PATHS = 64  # through a graph with branches
TYPES = {
    "float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16", "long": "int64",
    "long int": "int64", "int": "int32", "unsigned char": "uint8", "signed char": "int8",
}  # fmt: skip

# Ways through a graph, by the number of calls that they explain: the number of skipped nodes, and a linked list of the
# nodes that explain the calls.
Paths = dict[int, tuple[int, Any]]
Tensors = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]  # inputs and outputs


class ModulePaths:
    """The paths of a model's modules, from the texts in which TorchScript names them."""

    def __init__(self, module: Any, wrapped: str = "") -> None:
        # A script module has the original types; a traced one may contain the model at a path.
        named = list(module.named_modules(remove_duplicate=False))
        first_paths = {id(part): path for path, part in reversed(named)}
        self._types = {path: getattr(part, "original_name", type(part).__name__) for path, part in named}
        # TorchScript may use any path of a module.
        self._first_paths: dict[str, str] = {path: first_paths[id(part)] for path, part in named}
        self._wrapped = wrapped
        self.has_names = False  # whether any node has a module

    def node_path(self, node: Any) -> str | None:
        """Return the module of a graph node; empty is the model, ``None`` is unknown."""
        scope, instances = node.scopeName(), node.getModuleHierarchy()
        if not scope and not instances:
            return ""
        self.has_names = True
        path = self.scope_path(scope) if scope else None
        return self.instance_path(instances) if path is None and instances else path

    def scope_path(self, scope: str) -> str | None:
        """Return the path in a traced node's scope, such as ``__module.block/__module.block.0``."""
        path = scope.rpartition("/__module.")[2].removeprefix("__module.")
        if self._wrapped:
            path = path.removeprefix(self._wrapped).removeprefix(".")
        return self._first_paths.get(path)

    def instance_path(self, text: str) -> str:
        """Return the path in the instances of an inlined node, such as ``block(Block).0(Conv2d)``.

        The instances leave out containers of modules. If several modules match, return the path of the module around
        them.
        """
        path = ""
        for part in text.split("."):
            name, _, kind = part.rpartition("(")
            if name in SELF_NAMES or (name == self._wrapped and not path and name not in self._types):
                continue
            inner = self._child_path(path, name, kind.rstrip(")"))
            if inner is None:
                break
            path = inner
        return self._first_paths[path]

    def _child_path(self, path: str, name: str, kind: str) -> str | None:
        """Return the module of this name and kind below ``path``, also inside a container."""
        prefix = f"{path}." if path else ""
        if prefix + name in self._types:
            return prefix + name
        matches = {
            self._first_paths[inner]
            for inner, inner_kind in self._types.items()
            if inner.startswith(prefix) and inner.rpartition(".")[2] == name and inner_kind == kind
        }
        return matches.pop() if len(matches) == 1 else None


class ExecutedNode(Struct):
    """A node of the graph that ran, with the kinds and modules of its fused parts, and its blocks."""

    name: str
    kinds: tuple[str, ...]
    paths: tuple[str | None, ...]
    blocks: list[list[ExecutedNode]] = []


class ScriptNames(OperatorNames):
    """The operators of a script module, from the graph that ran and one untimed call."""

    def __init__(self, runner: TorchRunner, modules: ModulePaths, feed: Any, *, on_gpu: bool, frozen: bool) -> None:
        with TemporaryDirectory(prefix="inferlens-") as folder:
            file = Path(folder, "execution.json")
            observer = torch.profiler.ExecutionTraceObserver().register_callback(str(file))
            root = trace_single_run(runner, feed, on_gpu=on_gpu, execution_trace_observer=observer).root
            tensors_by_call = trace_tensors(file.read_bytes()) if file.is_file() else {}
        nodes = nodes_of(torch.jit.last_executed_optimized_graph(), modules)
        self._unnamed = frozen and not modules.has_names
        self.unknown_reason = "the graph that ran names no modules for them."
        if self._unnamed:
            self.unknown_reason = "it was frozen before it was saved. Freeze with the option of this backend instead."
        calls = self.calls(root)
        numbers = {id(operator): call for call, operator in number_calls(root.walk())}
        self._layers = {
            call: self._layer(operator.name, node, tensors_by_call.get(numbers[id(operator)], ((), ())))
            for (call, operator), node in zip(calls, match_nodes([name for (name, _), _ in calls], nodes), strict=True)
        }

    def calls(self, root: TracedOperator) -> list[tuple[Call, TracedOperator]]:
        """Return the operators of a run that the interpreter called itself."""
        return number_calls(outermost_operators(root, lambda name: "::" in name or name.startswith("fused_")))

    def name_layers(self, times: Mapping[Call, LayerTimes]) -> dict[Call, Layer]:
        """Name layers by module and operator, with a number among equals."""
        count: Counter[str] = Counter()
        layers = {}
        for call in times:
            layer = self._layers.get(call) or Layer(name="", kind=short_kind(call[0]), operators=(call[0],))
            name = "/".join(filter(None, (layer.modules[0] if layer.modules else "", layer.kind)))
            count[name] += 1
            layers[call] = replace(layer, name=name if count[name] == 1 else f"{name} #{count[name]}")
        return layers

    def absent(self) -> dict[str, str]:
        count = sum(not layer.outputs for layer in self._layers.values())
        return {"tensors": f"unknown for {count} fused operators."} if count else {}

    def _layer(self, name: str, node: ExecutedNode | None, tensors: Tensors) -> Layer:
        paths = node.paths if node and not self._unnamed else ()
        return Layer(
            name="",
            kind=short_kind(name),
            modules=tuple(dict.fromkeys(path for path in paths if path is not None)),
            operators=tuple(dict.fromkeys(node.kinds)) if node else (name,),
            inputs=tensors[0],
            outputs=tensors[1],
        )


def nodes_of(block: Any, modules: ModulePaths) -> list[ExecutedNode]:
    """Return the nodes of the graph that ran, or of a block in it, in order."""
    result = []
    for node in block.nodes():
        parts = [node]
        if node.kind() == GROUP:
            parts = [part for part in node.g("Subgraph").nodes() if part.kind() != "prim::Constant"]
        kinds, paths = tuple(part.kind() for part in parts), tuple(map(modules.node_path, parts))
        result.append(ExecutedNode(node.kind(), kinds, paths, [nodes_of(inner, modules) for inner in node.blocks()]))
    return result


def walk(nodes: list[ExecutedNode]) -> Iterator[ExecutedNode]:
    """Yield all nodes, with those in blocks."""
    for node in nodes:
        yield node
        for block in node.blocks:
            yield from walk(block)


def filter_nodes(nodes: list[ExecutedNode], names: set[str]) -> list[ExecutedNode]:
    """Return the nodes with these names, and those that contain such nodes."""
    result = []
    for node in nodes:
        blocks = [filter_nodes(block, names) for block in node.blocks]
        if any(blocks) or node.name in names:
            result.append(ExecutedNode(node.name, node.kinds, node.paths, blocks if any(blocks) else []))
    return result


def match_nodes(names: list[str], nodes: list[ExecutedNode]) -> list[ExecutedNode | None]:
    """Return for each called operator its node, or ``None`` if that is ambiguous.

    Without branches a name has as many nodes as calls, in the same order. Otherwise the calls are followed through the
    graph.
    """
    names = [GROUP if "::" not in name else name for name in names]
    nodes_by_name: defaultdict[str, list[ExecutedNode]] = defaultdict(list)
    for node in walk(nodes):
        nodes_by_name[node.name].append(node)
    count, used = Counter(names), Counter[str]()
    followed: dict[int, ExecutedNode] = {}
    if any(len(nodes_by_name[name]) != count[name] for name in count):
        indices = [index for index, name in enumerate(names) if nodes_by_name[name]]
        paths = follow_paths(filter_nodes(nodes, set(names)), [names[index] for index in indices], {0: (0, None)})
        _, path = paths.get(len(indices), (0, None))
        for index in reversed(indices if path else []):
            path, followed[index] = path
    result: list[ExecutedNode | None] = []
    for index, name in enumerate(names):
        has_order = len(nodes_by_name[name]) == count[name]
        result.append(nodes_by_name[name][used[name]] if has_order else followed.get(index))
        used[name] += 1
    return result


def follow_paths(nodes: list[ExecutedNode], calls: list[str], paths: Paths) -> Paths:
    """Return paths through ``nodes`` that explain the ``calls``, which are names.

    A branch takes the nodes of one of its blocks, and a loop those of its block any number of times. Of the paths that
    explain the same number of calls, the one that skips the fewest nodes is kept; of all paths, the best MAX_PATHS.
    """
    for node in nodes:
        extended: Paths = dict(paths) if node.name == LOOP else {}
        pending = paths
        while pending and node.blocks:
            inside = (path for block in node.blocks for path in follow_paths(block, calls, pending).items())
            better = [path for path in inside if _keep_better(extended, *path)]
            pending = dict(better) if node.name == LOOP else {}
        if not node.blocks:
            for explained, (skipped, chain) in paths.items():
                _keep_better(extended, explained, (skipped + 1, chain))
                if explained < len(calls) and calls[explained] == node.name:
                    _keep_better(extended, explained + 1, (skipped, (chain, node)))
        paths = dict(sorted(extended.items(), key=lambda path: path[1][0])[:MAX_PATHS])
    return paths


def _keep_better(paths: Paths, explained: int, path: tuple[int, Any]) -> bool:
    is_better = explained not in paths or path[0] < paths[explained][0]
    if is_better:
        paths[explained] = path
    return is_better


def short_kind(kind: str) -> str:
    """Return a kind without PyTorch's own namespaces."""
    return kind.removeprefix("aten::").removeprefix("prim::")


def trace_tensors(execution: bytes) -> dict[Call, Tensors]:
    """Return the tensors of each call in an execution trace; nothing if it is cut short."""
    try:
        nodes = sorted(msgspec.json.decode(execution)["nodes"], key=lambda node: node["id"])  # in the order of begins
    except msgspec.MsgspecError:
        return {}
    begin = max((node["id"] for node in nodes if node["name"] == RUN_SPAN), default=0)
    count: Counter[str] = Counter()
    by_call = {}
    for node in nodes:
        if node["id"] >= begin:
            by_call[node["name"], count[node["name"]]] = traced_tensors(node["inputs"]), traced_tensors(node["outputs"])
            count[node["name"]] += 1
    return by_call


def traced_tensors(values: dict[str, list[Any]]) -> tuple[Tensor, ...]:
    """Return the tensors among some values, also those in lists."""
    result: list[Tensor] = []
    for value, kind in zip(values["shapes"], values["types"], strict=False):
        dtype = kind.removeprefix("GenericList[").partition(",")[0].removeprefix("Tensor(").rstrip(")]")
        shapes = value if kind.startswith("GenericList[Tensor") else [value] if kind.startswith("Tensor(") else []
        for shape in shapes:
            if isinstance(shape, list) and "nullptr" not in dtype:
                result.append(Tensor(shape=tuple(shape), dtype=TYPES.get(dtype, dtype)))
    return tuple(result)
