"""TorchScript: the model traced or scripted, optionally frozen and optimised for inference.

A model that already is TorchScript runs as it is under either variant. Tracing and scripting happen on the case's
device and in its precision, because a trace bakes both into its constants.
"""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta, Struct, structs
from msgspec.structs import replace

from inferlens.backends.availability import quiet, refused
from inferlens.backends.base import (
    Backend,
    Capabilities,
    Deployer,
    KernelOrigin,
    KernelOrigins,
    Knob,
    Launched,
    LayerProfiler,
    Origins,
    Preparation,
    Recommendation,
    Runner,
    Saver,
)
from inferlens.backends.profiling.kernels import (
    Call,
    MatchedKernels,
    OperatorNames,
    layers_of,
    matched_kernels,
    numbered,
    origins_by_match,
    outermost,
)
from inferlens.backends.profiling.layers import Runnable, Taken, check_level
from inferlens.backends.profiling.traces import SPAN, TracedOperator, one_run
from inferlens.backends.pytorch.runner import (
    DTYPES,
    WRAPPED,
    Feed,
    TorchOptions,
    TorchRunner,
    flat_outputs,
    torch_capabilities,
)
from inferlens.backends.scripts import beside, torch_script
from inferlens.errors import Unsupported
from inferlens.models.model import Format, Model
from inferlens.models.sources.files import input_note
from inferlens.models.weights import buffers, restore
from inferlens.reasons import reason
from inferlens.record.layer_profile import Layer, Layers, Tensor
from inferlens.spec.case import HALF, Case, Option, TensorSpec
from inferlens.spec.hints import Hint

OPTIMISED = "optimize_for_inference leaves no names of modules, and operators that torch.profiler does not see"


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
        Knob(name="optimize_for_inference", values=(True,), without=("freeze",), helps=("memory",)),
        Knob(name="freeze", values=(True,), without=("optimize_for_inference",), helps=("memory",)),
        Knob(name="channels_last", values=(True,), helps=("layout",)),
        Knob(name="tf32", values=(True,), devices=("cuda",), precisions=("fp32",)),
    )
    left_out_on = ("cuda",)  # it was never the fastest there, and compiled the kernels of a DenseNet for minutes
    recommended = (
        Recommendation("trace", "cpu", {"optimize_for_inference": True}, ("fp32",)),
        Recommendation("trace", "cpu", {"freeze": True}, HALF),
    )

    def capabilities(self) -> Capabilities:
        return torch_capabilities(self.variants, ("module", "exported", "torchscript"))

    def prepare(self, model: Model, case: Case, preparation: Preparation) -> Runner:
        options: TorchScriptOptions = self.parse_options(case)
        if model.format == "exported" and case.variant == "script":
            raise Unsupported("An exported program has no source to script.", hint="--backend torchscript:trace")
        if case.variant == "script" and hasattr(type(model.module), "takes_names"):
            what = "Inputs by name are passed on by code that TorchScript cannot script."
            raise Unsupported(what, hint="--backend torchscript:trace, or example inputs as a tuple")
        if options.optimize_for_inference and preparation.level == "layer":
            raise Unsupported(f"{OPTIMISED}.", hint="--option torchscript.freeze=true")
        return ScriptRunner(model, case, preparation, options)

    def save(self, model: Model, case: Case, preparation: Preparation, path: Path) -> None:
        """Writes the traced or scripted module, on the CPU, with a note of its inputs."""
        runner = self.prepare(model, structs.replace(case, device="cpu"), preparation)
        assert isinstance(runner, ScriptRunner)
        runner.save(path)

    @classmethod
    def hint(cls, case: Case, option: str, value: Option, facts: Mapping[str, Any]) -> Hint:
        """What is optimised for inference is frozen first."""
        if option == "freeze" and cls.parse_options(case).optimize_for_inference:
            return Hint(asked=True)
        return super().hint(case, option, value, facts)

    def deployed_as(self, case: Case) -> str:  # noqa: ARG002
        return ".pt"

    def deploy(self, model: Model, case: Case, preparation: Preparation, path: Path) -> None:
        """Writes the script module, on the device of the case; it is frozen and optimised once it is loaded."""
        plain = structs.replace(self.parse_options(case), freeze=False, optimize_for_inference=False)
        ScriptRunner(model, case, preparation, plain).save(path)

    def script(self, case: Case, file: str, inputs: tuple[TensorSpec, ...]) -> str:
        options: TorchScriptOptions = self.parse_options(case)
        load = [f"model = torch.jit.load({beside(file)}).eval()"]
        if options.optimize_for_inference:
            load.append("model = torch.jit.optimize_for_inference(model)")
        elif options.freeze:
            load.append("model = torch.jit.freeze(model)")
        return torch_script(case, options, inputs, load)


class ScriptRunner(TorchRunner, LayerProfiler, KernelOrigins):
    """Calls the script module."""

    def __init__(self, model: Model, case: Case, preparation: Preparation, options: TorchScriptOptions) -> None:
        super().__init__(model, case, preparation, options)
        self._options = options
        self._wrapped = ""  # the path of the model in what was traced or scripted
        self._matched: MatchedKernels | None = None

    def save(self, path: Path) -> None:
        """Writes the script module, with a note of its inputs; the runner is not entered yet."""
        import torch

        with self, quiet():
            notes = input_note(self.model.inputs, DTYPES[self.case.precision])
            torch.jit.save(self._call, str(path), _extra_files=notes)

    def build(self, module: Any) -> Callable[..., Any]:
        """Traces or scripts, then freezes and optimises as asked, or refuses for the reason that TorchScript gives."""
        import torch

        variant, other = self.case.variant, "script" if self.case.variant == "trace" else "trace"
        hint = f"--backend torchscript:{other}"
        with quiet(), refused(f"TorchScript cannot {variant} '{self.model.name}'", hint=hint):
            script = self._script(module)
            if self._options.optimize_for_inference:
                script = torch.jit.optimize_for_inference(script)
            elif self._options.freeze and hasattr(script, "training"):  # frozen before it was saved, it has lost that
                script = torch.jit.freeze(script.eval())
        return script  # type: ignore[no-any-return]

    def profile_layers(self, feed: Feed, runs: int) -> Layers:
        check_level(self.preparation)
        return layers_of(self, self._names(feed), feed, runs, on_gpu=self.case.device == "cuda")

    def origins(self, launched: Sequence[Launched]) -> Origins:
        """The operators and modules of the same kernels in one call that is looked at."""
        if self._options.optimize_for_inference:
            return Origins((KernelOrigin(),) * len(launched), {"modules": f"{OPTIMISED}."})
        if self._matched is None:
            feed = self.seeded_feed()
            self._matched = matched_kernels(self, self._names(feed), feed)
        return origins_by_match(launched, self._matched)

    def _names(self, feed: Feed) -> ScriptNames:
        modules, on_gpu = Modules(self.model.module, self._wrapped), self.case.device == "cuda"
        return ScriptNames(self, modules, feed, on_gpu=on_gpu, frozen=not hasattr(self._call, "training"))

    def _script(self, module: Any) -> Any:
        import torch

        if isinstance(module, torch.jit.ScriptModule):
            self.preparation.facts["torchscript"] = "loaded as TorchScript, neither traced nor scripted here"
            # What was frozen has its weights as constants, which stay where and what they were.
            if not hasattr(module, "training") and (self.case.device != "cpu" or self.case.precision != "fp32"):
                what = "This TorchScript archive was frozen: its weights are fp32 constants on the CPU."
                raise Unsupported(what, hint="an archive saved without torch.jit.freeze, or fp32 on the CPU")
            return module
        self.preparation.facts["torchscript"] = {"trace": "traced", "script": "scripted"}[self.case.variant]
        if self.case.variant == "script":
            return torch.jit.script(module)
        return self._traced(module)

    def _traced(self, module: Any) -> Any:
        import torch

        feed, state = self.seeded_feed(), buffers(module)
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", torch.jit.TracerWarning)
            try:
                traced = torch.jit.trace(module, feed, check_trace=False, strict=False)
            except RuntimeError:
                # A trace returns tensors, tuples, lists and dictionaries of one type; any other output is flattened.
                self._wrapped = WRAPPED
                traced = torch.jit.trace(flat_outputs(module), feed, check_trace=False, strict=False)
        restore(module, state)  # which tracing has changed, and a file would keep
        # Values that became constants. Mostly they are shapes and harmless; where not, the outputs disagree.
        self.preparation.facts["trace_warnings"] = [reason(str(warning.message)) for warning in heard]
        return traced


# Layers: the operators that TorchScript's interpreter calls, fused ones too, with the modules that they came from. The
# graph that ran holds the modules; PyTorch's execution trace of one untimed call holds the tensors.

GROUP, LOOP = "prim::TensorExprGroup", "prim::Loop"
NO_NAMES = "the graph that ran names no modules for them."
FROZEN = "it was frozen before it was saved. Freeze with the option of this backend instead."
SELF = ("TOP", "SELF", "UNKNOWN_INSTANCE", "INSTANCE_NAME_UNKNOWN")  # the module that called, or a function of it
MOST_WAYS = 64  # that are followed through a graph with branches
TYPES = {
    "float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16", "long": "int64",
    "long int": "int64", "int": "int32", "unsigned char": "uint8", "signed char": "int8",
}  # fmt: skip

# By how many calls it explains: how many nodes a way passes over, and what it takes, each with what it took before.
Ways = dict[int, tuple[int, Any]]
Tensors = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]  # inputs and outputs


class Modules:
    """The modules of a model, and their paths from the texts in which TorchScript names them."""

    def __init__(self, module: Any, wrapped: str = "") -> None:
        # A script module tells the types that it was made from; in what was traced the model may lie at a path.
        named = list(module.named_modules(remove_duplicate=False))
        first: dict[int, str] = {}
        for path, part in named:
            first.setdefault(id(part), path)
        self._types = {path: getattr(part, "original_name", type(part).__name__) for path, part in named}
        self._first = {path: first[id(part)] for path, part in named}  # TorchScript goes by any of a module's paths
        self._wrapped = wrapped
        self.named = False  # whether any node named one

    def path_of(self, node: Any) -> str | None:
        """The module of a node of the graph: the model itself where none is named; ``None`` if that is not known."""
        scope, instances = node.scopeName(), node.getModuleHierarchy()
        if not scope and not instances:
            return ""
        self.named = True
        path = self.of_scope(scope) if scope else None
        return self.of_instances(instances) if path is None and instances else path

    def of_scope(self, scope: str) -> str | None:
        """The path in a traced node's scope, such as ``__module.block/__module.block.0``."""
        path = scope.rpartition("/__module.")[2].removeprefix("__module.")
        if self._wrapped:
            path = path.removeprefix(self._wrapped).removeprefix(".")
        return self._first.get(path)

    def of_instances(self, text: str) -> str:
        """The path in the instances that a node was inlined from, such as ``block(Block).0(Conv2d)``.

        Modules that only hold others are not named there; where it is not told which of several it was, it is the path
        of what they all are in.
        """
        path = ""
        for part in text.split("."):
            name, _, kind = part.rpartition("(")
            if name in SELF or (name == self._wrapped and not path and name not in self._types):
                continue
            inner = self._below(path, name, kind.rstrip(")"))
            if inner is None:
                break
            path = inner
        return self._first[path]

    def _below(self, path: str, name: str, kind: str) -> str | None:
        """The module of a name that is called from one, which may lie in a list of modules or the like."""
        direct = f"{path}.{name}" if path else name
        if direct in self._types:
            return direct
        named = (item for item in self._types if item.rpartition(".")[2] == name)
        below = [item for item in named if not path or item.startswith(f"{path}.")]
        alike = {self._first[item] for item in below if self._types[item] == kind}
        return alike.pop() if len(alike) == 1 else None


class ExecutedNode(Struct):
    """A node of the graph that ran, with the kinds and modules of what it was fused from, and the blocks in it."""

    name: str
    kinds: tuple[str, ...]
    paths: tuple[str | None, ...]
    blocks: list[list[ExecutedNode]] = []


class ScriptNames(OperatorNames):
    """What the operators of a (frozen) script module are, from the graph that ran and one call that is looked at."""

    def __init__(self, runner: Runnable, modules: Modules, feed: Any, *, on_gpu: bool, frozen: bool) -> None:
        import torch

        with TemporaryDirectory(prefix="inferlens-") as folder:
            file = Path(folder, "execution.json")
            observer = torch.profiler.ExecutionTraceObserver().register_callback(str(file))
            root = one_run(runner, feed, on_gpu=on_gpu, execution_trace_observer=observer).root
            seen = tensors_in(file.read_bytes()) if file.is_file() else {}
        nodes = nodes_of(torch.jit.last_executed_optimized_graph(), modules)
        self._bare = frozen and not modules.named
        self.why_unknown = FROZEN if self._bare else NO_NAMES
        self._loops = any(node.name == LOOP for node in every(nodes))
        self._without_tensors = 0
        calls = self.calls(root)
        numbers = {id(operator): call for call, operator in numbered(root.every())}
        self._known = {
            call: self._named(operator.name, node, seen.get(numbers[id(operator)], ((), ())))
            for (call, operator), node in zip(calls, matched([name for (name, _), _ in calls], nodes), strict=True)
        }

    def calls(self, root: TracedOperator) -> list[tuple[Call, TracedOperator]]:
        """The operators of a run that the interpreter called itself."""
        return numbered(
            outermost(
                root, lambda traced_operator: "::" in traced_operator.name or traced_operator.name.startswith("fused_")
            )
        )

    def named(self, taken: Mapping[Call, Taken]) -> dict[Call, Layer]:
        """By module and operator, with a number where several are the same; the turns of a loop are one layer."""
        count: Counter[str] = Counter()
        alike: dict[Any, Layer] = {}
        found = {}
        for call in taken:
            layer = self._known.get(call) or Layer(name="", kind=short(call[0]), operators=(call[0],))
            key = (call[0], layer.modules, layer.inputs) if self._loops else call
            if key not in alike:
                name = "/".join(filter(None, (layer.modules[0] if layer.modules else "", layer.kind)))
                count[name] += 1
                alike[key] = replace(layer, name=name if count[name] == 1 else f"{name} #{count[name]}")
            found[call] = alike[key]
        self._without_tensors = sum(not layer.outputs for layer in alike.values())
        return found

    def absent(self) -> dict[str, str]:
        count = self._without_tensors
        return {"tensors": f"not known of {count} operators that were fused."} if count else {}

    def _named(self, name: str, node: ExecutedNode | None, tensors: Tensors) -> Layer:
        known = node.paths if node and not self._bare else ()
        return Layer(
            name="",
            kind=short(name),
            modules=tuple(dict.fromkeys(path for path in known if path is not None)),
            operators=tuple(dict.fromkeys(node.kinds)) if node else (name,),
            inputs=tensors[0],
            outputs=tensors[1],
        )


def nodes_of(block: Any, modules: Modules) -> list[ExecutedNode]:
    """The nodes of the graph that ran or of a block in it, in order."""
    found = []
    for node in block.nodes():
        kind, parts = node.kind(), [node]
        if kind == GROUP:
            parts = [item for item in node.g("Subgraph").nodes() if item.kind() != "prim::Constant"]
        blocks = [nodes_of(inner, modules) for inner in node.blocks()]
        found.append(
            ExecutedNode(kind, tuple(part.kind() for part in parts), tuple(map(modules.path_of, parts)), blocks)
        )
    return found


def every(nodes: list[ExecutedNode]) -> Iterator[ExecutedNode]:
    """All nodes, with those in the blocks of nodes."""
    for node in nodes:
        yield node
        for block in node.blocks:
            yield from every(block)


def within(nodes: list[ExecutedNode], words: set[str]) -> list[ExecutedNode]:
    """The nodes of some names, and those that hold such."""
    found = []
    for node in nodes:
        blocks = [within(block, words) for block in node.blocks]
        if any(blocks) or node.name in words:
            found.append(ExecutedNode(node.name, node.kinds, node.paths, blocks if any(blocks) else []))
    return found


def matched(names: list[str], nodes: list[ExecutedNode]) -> list[ExecutedNode | None]:
    """For each operator that was called, by name, the node that it was; ``None`` where that cannot be told.

    Without branches there are as many nodes of a name as calls, and they go by order. Else what was called
    is followed through the graph.
    """
    words = [GROUP if "::" not in name else name for name in names]
    alike: defaultdict[str, list[ExecutedNode]] = defaultdict(list)
    for node in every(nodes):
        alike[node.name].append(node)
    count, done = Counter(words), Counter[str]()
    followed: dict[int, ExecutedNode] = {}
    if any(len(alike[word]) != count[word] for word in count):
        seen = [place for place, word in enumerate(words) if alike[word]]
        ways = follow(within(nodes, set(words)), [words[place] for place in seen], {0: (0, None)})
        _, way = ways.get(len(seen), (0, None))
        for place in reversed(seen if way else []):
            way, followed[place] = way
    found: list[ExecutedNode | None] = []
    for place, word in enumerate(words):
        found.append(alike[word][done[word]] if len(alike[word]) == count[word] else followed.get(place))
        done[word] += 1
    return found


def follow(nodes: list[ExecutedNode], words: list[str], ways: Ways) -> Ways:
    """Ways through some nodes that explain calls.

    A branch takes the nodes of one of its blocks, a loop its own any number of times. Of ways that explain as many
    calls the one that passes over fewest nodes is kept, and of all ways only the best.
    """
    for node in nodes:
        after: Ways = dict(ways) if node.name == LOOP else {}
        turn = ways
        while turn and node.blocks:
            more = [way for block in node.blocks for way in follow(block, words, turn).items() if _keep(after, *way)]
            turn = dict(more) if node.name == LOOP else {}
        if not node.blocks:
            for at, (passed, item) in ways.items():
                _keep(after, at, (passed + 1, item))
                if at < len(words) and words[at] == node.name:
                    _keep(after, at + 1, (passed, (item, node)))
        ways = dict(sorted(after.items(), key=lambda way: way[1][0])[:MOST_WAYS])
    return ways


def _keep(ways: Ways, at: int, way: tuple[int, Any]) -> bool:
    better = at not in ways or way[0] < ways[at][0]
    if better:
        ways[at] = way
    return better


def short(kind: str) -> str:
    """A kind without its namespace, if it is one of PyTorch's own."""
    return kind.removeprefix("aten::").removeprefix("prim::")


def tensors_in(execution: bytes) -> dict[Call, Tensors]:
    """The tensors of each call of the run in an execution trace; none where it is not whole."""
    try:
        nodes = sorted(msgspec.json.decode(execution)["nodes"], key=lambda node: node["id"])  # in order of the begins
    except msgspec.MsgspecError:
        return {}
    begin = max((node["id"] for node in nodes if node["name"] == SPAN), default=0)
    count: Counter[str] = Counter()
    found = {}
    for node in nodes:
        if node["id"] >= begin:
            found[node["name"], count[node["name"]]] = tensors(node["inputs"]), tensors(node["outputs"])
            count[node["name"]] += 1
    return found


def tensors(values: dict[str, list[Any]]) -> tuple[Tensor, ...]:
    """The tensors among some values, those in lists too."""
    found: list[Tensor] = []
    for shape, kind in zip(values["shapes"], values["types"], strict=False):
        several = kind.startswith("GenericList[Tensor")
        dtype = kind.removeprefix("GenericList[").partition(",")[0].removeprefix("Tensor(").rstrip(")]")
        if kind.startswith("Tensor(") or several:
            shapes = [item for item in (shape if several else [shape]) if isinstance(item, list)]
            found += [Tensor(shape=tuple(shape), dtype=TYPES.get(dtype, dtype)) for shape in shapes]
    return tuple(tensor for tensor in found if "nullptr" not in tensor.dtype)
