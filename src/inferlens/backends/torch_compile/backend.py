"""``torch.compile`` with its own compiler, Inductor, in the modes that users choose between.

The compilation happens at the first call, so the runner makes that call itself when it is entered: it is the build.
What the compiler could not do as asked (graph breaks, CUDA graphs skipped) is said in facts and warnings.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import os
import shutil
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta
from msgspec.structs import replace

from inferlens.backends.availability import cuda_absence, cuda_quantized, found, imported, refused, warn_unheeded
from inferlens.backends.base import (
    Absence,
    Backend,
    Capabilities,
    Deployer,
    KernelOrigins,
    Knob,
    Launched,
    LayerProfiler,
    Noted,
    Origins,
    Preparation,
    Recommendation,
    Runner,
)
from inferlens.backends.onnx.quantize import (
    FOLDER,
    beside_record,
    check_share,
    from_cache,
    key_of,
    measured,
    seven_bits,
)
from inferlens.backends.profiling.kernels import (
    Called,
    MatchedKernels,
    kernels_of,
    layers_of,
    layers_of_kernels,
    matched_kernels,
    origins_by_match,
)
from inferlens.backends.profiling.layers import check_level
from inferlens.backends.pytorch.runner import (
    Feed,
    TorchOptions,
    TorchRunner,
    example_feed,
    flops_by_module,
    free_sizes,
    not_entered,
    share_of,
    tensor_of,
    torch_capabilities,
)
from inferlens.backends.scripts import program_script
from inferlens.backends.torch_compile.layers import QUANTIZED_PRODUCTS, Compiler, InductorNames
from inferlens.errors import Unsupported, library
from inferlens.models.model import Model
from inferlens.models.samples import calibration_feeds
from inferlens.models.work.torch_module import taken_apart
from inferlens.reasons import reason
from inferlens.record.layer_profile import Layers
from inferlens.spec.case import HALF, PRECISIONS, QUANTIZED, Case, Option, TensorSpec
from inferlens.spec.hints import Hint
from inferlens.spec.keep import check_kept, kept
from inferlens.units import plural

GRAPH_MODES = ("reduce-overhead", "max-autotune")  # these use CUDA graphs
AUTOTUNING = ("max-autotune", "max-autotune-no-cudagraphs")  # these tune by coordinate descent too
MODES_FOR = {"cuda_graph": GRAPH_MODES, "max_autotune": AUTOTUNING}  # what other backends have an option for
SAME_WITHOUT_GRAPHS = {"reduce-overhead": "default", "max-autotune-no-cudagraphs": "max-autotune"}
AS_TORCHAO = "torchao, where it is installed, quantizes to int8, and to fp8 on a GPU that has it"
CONFIGURED = ("freezing", "conv_1x1_as_mm", "coordinate_descent_tuning")  # in torch._inductor.config, by these names


class TorchCompileOptions(TorchOptions, frozen=True, forbid_unknown_fields=True):
    """Options of ``torch.compile``."""

    autocast: Annotated[
        bool, Meta(description="keep weights in fp32 and let torch.autocast choose the precision of each operator")
    ] = False
    freezing: Annotated[
        bool, Meta(description="make weights constants, which folds batch norms and orders weights while compiling")
    ] = False
    conv_1x1_as_mm: Annotated[bool, Meta(description="compute 1x1 convolutions as matrix products")] = False
    coordinate_descent_tuning: Annotated[
        bool, Meta(description="search on from the best Triton configuration, one parameter at a time, on CUDA")
    ] = False
    cudnn_benchmark: Annotated[
        bool, Meta(description="let cuDNN try its convolution algorithms at the first call and keep the fastest")
    ] = False
    fp8_scales: Annotated[
        Literal["tensor", "row"],
        Meta(description="what has one scale in fp8; row: each row, more exact, and the rest is in bf16, not fp16"),
    ] = "tensor"
    dynamic: Annotated[bool, Meta(description="compile for any input shape instead of this one")] = False
    fullgraph: Annotated[bool, Meta(description="refuse a model that does not compile into one graph")] = False


class TorchCompile(Backend, Deployer):
    """``torch.compile`` with Inductor."""

    name = "torch_compile"
    summary = "torch.compile (Inductor)"
    variants = ("default", "reduce-overhead", *AUTOTUNING)
    slow_variants: ClassVar[dict[str, float]] = dict.fromkeys(AUTOTUNING, 8.0)
    variant_helps: ClassVar[dict[str, tuple[str, ...]]] = {"reduce-overhead": ("host",), "max-autotune": ("host",)}
    options = TorchCompileOptions
    knobs = (
        Knob(name="freezing", values=(True,), build=1.5, helps=("layout", "memory")),
        Knob(name="cudnn_benchmark", values=(True,), devices=("cuda",)),
        Knob(name="channels_last", values=(True,), helps=("layout",)),
        Knob(name="conv_1x1_as_mm", values=(True,), variants=("default", "reduce-overhead")),
        Knob(
            name="coordinate_descent_tuning", values=(True,), devices=("cuda",),
            variants=("default", "reduce-overhead"), build=3.0,
        ),
        Knob(name="tf32", values=(True,), devices=("cuda",), precisions=("fp32",)),
    )  # fmt: skip
    recommended = (  # what is quantized is frozen anyway on the CPU
        Recommendation("default", "cpu", {"freezing": True}, PRECISIONS),
        Recommendation("reduce-overhead"),
        Recommendation("reduce-overhead", "cuda", {"freezing": True}, ("fp32",)),
        Recommendation("reduce-overhead", "cuda", {"freezing": True}, HALF, convolutional=False),
        Recommendation("reduce-overhead", "cuda", {"channels_last": True, "freezing": True}, HALF, convolutional=True),
    )

    def capabilities(self) -> Capabilities:
        torch, missing = imported("torch", "PyTorch", "torch")
        no_gpu = missing or cuda_absence(torch)
        on_gpu, limits = ((), {}) if no_gpu else cuda_quantized(torch)
        quantizes = {"cpu": ("int8",), "cuda": on_gpu} if found("torchao") else {}
        can = torch_capabilities(self.variants, ("module", "exported"), compiler_absence, quantizes, AS_TORCHAO)
        keeps = {"cpu": ("fp32",), "cuda": ("fp16",)}
        supports = [
            replace(one, keeps=keeps[one.device], without_data={} if one.device == "cuda" else None)
            if one.quantizes
            else one
            for one in can.supports
        ]
        return replace(can, supports=tuple(supports), limits=can.limits | limits)

    def prepare(self, model: Model, case: Case, preparation: Preparation) -> Runner:
        options: TorchCompileOptions = self.parse_options(case)
        same = SAME_WITHOUT_GRAPHS.get(case.variant)
        if same and case.device != "cuda":
            preparation.warn(
                "no-effect",
                f"{case.variant} differs from '{same}' by CUDA graphs, which {case.device} does not have: this ran as "
                f"'{same}' does.",
                f"Compare torch_compile:{same} instead.",
            )
        if case.variant in AUTOTUNING and case.device == "cuda":
            why = f"the mode {case.variant} does it already."
            warn_unheeded(options, ("coordinate_descent_tuning",), why, preparation)
        if case.precision in QUANTIZED and case.device == "cpu":
            model = dataclasses.replace(model, module=quantized_module(model, case, preparation))
            options = replace(options, freezing=True)
        _import_compiler()
        return CompiledRunner(model, case, preparation, options)

    def times_kernels(self, case: Case, *, built: bool = False) -> bool:
        return not built and (case.variant in AUTOTUNING or self.parse_options(case).coordinate_descent_tuning)

    @classmethod
    def effective(cls, case: Case) -> Case:
        """On the CPU, modes that differ by CUDA graphs alone are one."""
        case = super().effective(case)
        same = SAME_WITHOUT_GRAPHS.get(case.variant)
        return replace(case, variant=same) if same and case.device != "cuda" else case

    @classmethod
    def hint(cls, case: Case, option: str, value: Option, facts: Mapping[str, Any]) -> Hint:
        """By a mode, which is a variant, where one does it; what is frozen elsewhere is freezing here."""
        modes = MODES_FOR.get(option, ())
        if not modes:
            return super().hint(case, "freezing" if option == "freeze" else option, value, facts)
        if case.device != "cuda":
            return Hint()
        mode = "max-autotune" if case.variant in AUTOTUNING else modes[0]
        return Hint(asked=True) if case.variant in modes else Hint(f"{cls.name}:{mode}")

    def packages(self, case: Case) -> tuple[str, ...]:
        return ("torch", *["triton"] * (case.device == "cuda"), *["torchao"] * (case.precision in QUANTIZED))

    def deployed_as(self, case: Case) -> str:
        if case.precision in QUANTIZED and case.device == "cuda":
            raise Unsupported("What torchao quantized for a GPU is not deployed.", hint="--backend tensorrt, an engine")
        return ".pt2"

    def deploy(self, model: Model, case: Case, preparation: Preparation, path: Path) -> None:
        runner = self.prepare(model, case, preparation)
        assert isinstance(runner, CompiledRunner)
        runner.save_program(path)

    def script(self, case: Case, file: str, inputs: tuple[TensorSpec, ...]) -> str:
        options: TorchCompileOptions = self.parse_options(case)
        how = f"mode={case.variant!r}, dynamic={options.dynamic}, fullgraph={options.fullgraph}"
        quantized = case.precision in QUANTIZED
        set_here = [name for name in CONFIGURED if getattr(options, name) or (quantized and name == "freezing")]
        config = [f"torch._inductor.config.{name} = True" for name in set_here]
        compiled, imports = f"model = torch.compile(model, {how})", [f"import {OPERATORS}"] * quantized
        return program_script(case, options, file, inputs, *config, compiled, imports=imports)


def _import_compiler() -> None:
    """Imports Inductor, for seconds, as libraries are loaded, and not as this one builds; its workers start then."""
    from torch._inductor import config

    with config.patch(compile_threads=1):
        importlib.import_module("torch._inductor.compile_fx")


def compiler_absence(torch: Any, device: str) -> Absence | None:
    """What Inductor lacks to compile for a device; on CUDA Triton compiles the stubs by which it launches kernels."""
    names = {"cpu": (os.environ.get("CXX"), "g++", "clang++"), "cuda": (os.environ.get("CC"), "gcc", "clang", "cc")}
    if not any(shutil.which(name) for name in names[device] if name):
        hint = "install g++ (Debian: apt-get install g++), or name one in the variable CXX"
        return Absence("", f"torch.compile needs a C++ compiler on {device}, none is installed", hint, device)
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        hint = "install Python's headers (Debian: apt-get install python3-dev)"
        return Absence("", "torch.compile needs the header Python.h, it is not installed", hint, device)
    if device != "cuda":
        return None
    if not found("triton"):
        return Absence("", "torch.compile needs Triton on cuda, it is not installed", "pip install triton", device)
    if torch.cuda.get_device_capability() < (7, 0):
        return Absence("", "Triton needs a GPU of compute capability 7.0 or later", "a newer GPU", device)
    return None


class CompiledRunner(TorchRunner, LayerProfiler, KernelOrigins):
    """Calls the compiled module."""

    overlaps = False  # what was compiled is guarded, and compiled anew, as it is called

    def __init__(self, model: Model, case: Case, preparation: Preparation, options: TorchCompileOptions) -> None:
        by_row = case.precision == "fp8" and options.fp8_scales == "row"
        on_gpu = "bf16" if by_row else "fp16"
        super().__init__(model, case, preparation, options, rest=on_gpu if case.device == "cuda" else "fp32")
        self._options = options
        self._graphs = case.device == "cuda" and case.variant in GRAPH_MODES  # CUDA's
        self._compiler: Compiler | None = None  # where layers or kernels are to be told
        self._matched: MatchedKernels | None = None

    @contextmanager
    def settings(self) -> Iterator[None]:
        from torch._inductor import config
        from torch._inductor.utils import fresh_cache

        empty = fresh_cache() if self.preparation.rebuild else nullcontext()
        with super().settings(), empty, config.patch({name: getattr(self._options, name) for name in CONFIGURED}):
            yield

    def without_gradients(self) -> AbstractContextManager[Any]:
        """In no inference mode where weights are torchao's: torch before 2.14 does not compile these there."""
        import torch

        return torch.no_grad() if self._quantizes_linear else super().without_gradients()

    @property
    def _quantizes_linear(self) -> bool:
        return self.case.precision in QUANTIZED and self.case.device == "cuda"

    def __enter__(self) -> CompiledRunner:
        if self._quantizes_linear:
            quantize_linear(self._moved(), self.model, self.case, self.preparation, self._options.fp8_scales)
        super().__enter__()
        from torch._inductor.async_compile import shutdown_compile_workers

        shutdown_compile_workers()  # where all was in the cache they are still starting, and would slow down calls
        return self

    def build(self, module: Any) -> Callable[..., Any]:
        """Compiles, by calling once; where CUDA graphs are used, until they are recorded."""
        import torch
        import torch._inductor.config
        from torch._dynamo.utils import counters

        torch._dynamo.reset()
        counters.clear()
        if self.preparation.built:  # all is in the cache: nobody has to help, but who starts to would disturb others
            torch._inductor.config.compile_threads = 1
        if self.preparation.level in ("layer", "kernel") and not self._graphs:
            self._compiler = Compiler(module, self.case.variant, on_gpu=self.case.device == "cuda")
        try:
            compiled = self._compiled(module)
        except torch._dynamo.exc.Unsupported as error:
            what = f"'{self.model.name}' does not compile into one graph: {reason(error)}"
            raise Unsupported(what, hint="without fullgraph") from error
        self._tell({name: dict(counts) for name, counts in counters.items()})
        return compiled

    def _compiled(self, module: Any) -> Callable[..., Any]:
        """What was compiled, by Inductor in the case's mode or as it tells, and called until it is ready."""
        import torch

        how: dict[str, Any] = {"backend": self._compiler} if self._compiler else {"mode": self.case.variant}
        how |= {"dynamic": self._options.dynamic, "fullgraph": self._options.fullgraph}
        compiled = torch.compile(self.forward(module), **how)
        feed = self.seeded_feed()
        for tensor, spec in zip(feed, self.model.inputs, strict=True):
            for index in free_sizes(spec):
                if tensor.shape[index] > 1:  # a size of 1 is compiled for itself alone
                    torch._dynamo.mark_dynamic(tensor, index)
        with warnings.catch_warnings():
            # Inductor advises TF32 at every fp32 matrix product; whether it is used is this tool's option tf32.
            warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores", category=UserWarning)
            for _ in range(1 if self._compiler or not self._graphs else 3):  # compiles, warms up, records
                compiled(*feed)
        return compiled  # type: ignore[no-any-return]

    @property
    def reuses_outputs(self) -> bool:
        return self._graphs

    def profile_layers(self, feed: Feed, runs: int) -> Layers:
        """Time kernels and operators by torch.profiler: of replays, where CUDA graphs are used."""
        check_level(self.preparation)
        if self._graphs:
            kernels = kernels_of(self, feed, runs)
            return layers_of_kernels(kernels, self._matched.layers if self._matched else ())
        assert self._compiler is not None
        return layers_of(self, InductorNames(self._compiler), feed, runs, on_gpu=self.case.device == "cuda")

    def origins(self, launched: Sequence[Launched]) -> Origins:
        """The layers and modules of the same kernels in one call that is looked at.

        A replayed CUDA graph tells nothing; there the model is compiled once more, without.
        """
        if self._matched is None:
            call, module = self._call, self.model.module
            try:
                if self._compiler is None:
                    self._compiler = Compiler(module, self.case.variant, on_gpu=self.case.device == "cuda")
                    call = self._compiled(module)
                self._matched = matched_kernels(Called(call), InductorNames(self._compiler), self.seeded_feed())
            except RuntimeError as error:  # Dynamo's and Inductor's errors are such, and a lack of memory
                why = f"not known: the call that shows where kernels came from failed ({reason(error)})."
                self._matched = MatchedKernels([], {"modules": why})
        return origins_by_match(launched, self._matched)

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        import torch

        self._call = not_entered
        torch._dynamo.reset()  # lets go of the compiled code and, with it, of the CUDA graphs' memory
        super().__exit__(kind, *error)

    def _tell(self, counters: Mapping[str, Mapping[str, int]]) -> None:
        """What the compiler's counters say, as facts and warnings."""
        inductor = counters.get("inductor", {})
        reasons = [reason(text) for text in counters.get("graph_break", {})]
        breaks = sum(counters.get("graph_break", {}).values())
        facts = self.preparation.facts
        facts["graphs"] = counters.get("stats", {}).get("unique_graphs", 0)
        facts["graph_breaks"] = {"count": breaks, "reasons": reasons}
        hits, misses, bypasses = (inductor.get(f"fxgraph_cache_{how}", 0) for how in ("hit", "miss", "bypass"))
        facts["compile_cache"] = {"hits": hits, "misses": misses}
        self.cached = bool(hits) and not misses and not bypasses
        if breaks:
            self.preparation.warn(
                "graph-breaks",
                f"{plural(breaks, 'graph break')}, {plural(facts['graphs'], 'graph')}: {'; '.join(reasons[:3])}.",
                "Python runs between graphs; fullgraph=true shows where the first break is.",
            )
        skips = inductor.get("cudagraph_skips", 0)
        if self._graphs and self._compiler is None and skips:
            self.preparation.warn(
                "no-cuda-graph",
                f"{skips} of {facts['graphs']} compiled graphs run without a CUDA graph.",
                "The log of the case says why (TORCH_LOGS=cudagraphs).",
            )


# Quantization by torchao: int8 on x86 CPUs, where the module is exported, calibrated and converted; on a GPU linear
# layers only, whose inputs are scaled in every call. On the CPU Inductor computes a product in int8 only if its weights
# are constants, so ``freezing`` is on.

SUFFIX = ".pt2"
# The operators of a quantized program, and how Inductor computes them in int8: without it they run, in fp32.
OPERATORS = "torchao.quantization.pt2e.quantizer.x86_inductor_quantizer"
LEAST_ROWS, MULTIPLE = 17, 8  # of inputs, and of both sizes of weights, that torch._int_mm takes on a GPU


def quantized_module(model: Model, case: Case, preparation: Preparation) -> Any:
    """The model's module with its convolutions and linear layers in int8, for inputs of the case's shape.

    It is read from a file in any case, so that what is measured is what is loaded later.
    """
    import torch

    library(OPERATORS, extra="quantize")
    path = measured(preparation, SUFFIX) or beside_record(preparation, quantized_program(model, case, preparation))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch.export.load(str(path)).module(check_guards=False)
    share = int8_share(module, example_feed(model, case, "fp32"))
    check_share(share, model, case, preparation, "no convolution or linear layer is")
    return module


def _keeping(x86: Any, layers: list[str]) -> Any:
    """The quantizer for x86, which leaves alone what is in these modules.

    Its own ``set_module_name_qconfig`` holds for what lies in one module as a whole: not for a convolution and the ReLU
    after it, which it quantizes together.
    """
    keeps = [x86.get_module_name_filter(layer) for layer in layers]

    class Keeping(x86.X86InductorQuantizer):  # type: ignore[misc]
        def annotate(self, model: Any) -> Any:
            kept = [node for node in model.graph.nodes if any(keep(node) for keep in keeps)]
            x86._annotate_nodes_not_quantize(kept)  # what is annotated already is not looked at again
            return super().annotate(model)

    return Keeping()


def quantized_program(model: Model, case: Case, preparation: Preparation) -> Path:
    """The file of the exported program with its products in int8, from the cache or made and put there."""
    torch, torchao = library("torch", extra="torch"), library("torchao", extra="quantize")
    key = key_of(model, case, f"torchao {torchao.__version__}", f"torch {torch.__version__}", case.keep)
    made = preparation.cache / FOLDER / key / f"torch_compile{SUFFIX}"

    def write(path: Path, _: Noted) -> None:
        with refused(f"'{model.name}' cannot be quantized"):
            torch.export.save(_quantized(model, case), str(path))

    return from_cache(made, preparation, write)


def _quantized(model: Model, case: Case) -> Any:
    import torch

    pt2e = library("torchao.quantization.pt2e.quantize_pt2e", extra="quantize")
    x86 = library(OPERATORS, extra="quantize")
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        # Strict: the quantizer tells calls of one module from each other. Guards are nodes that it does not know.
        feed = example_feed(model, case, "fp32")
        exported = torch.export.export(model.module, feed, strict=True).module(check_guards=False)
        check_kept(case, [path for path, _ in model.module.named_modules()] if model.module is not None else ())
        quantizer = _keeping(x86, list(kept(case)))
        quantizer.set_global(x86.get_default_x86_inductor_quantization_config(reduce_range=seven_bits()))
        observed = pt2e.prepare_pt2e(exported, quantizer)
        for arrays in calibration_feeds(model, case):
            observed(*(tensor_of(arrays[spec.name], spec, "fp32") for spec in model.inputs))
        module = pt2e.convert_pt2e(observed)
        read = {node.target for node in module.graph.nodes if node.op == "get_attr"}
        for name in [name for name, _ in module.named_parameters() if name not in read]:  # in fp32, as it was
            owner, _, last = name.rpartition(".")
            delattr(module.get_submodule(owner), last)
        return torch.export.export(module, feed)


def int8_share(module: Any, feed: tuple[Any, ...]) -> float:
    """The share of a graph's multiply-adds whose factors are quantized; tensors have no values meanwhile."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    whole = quantized = 0.0

    class Counting(torch.fx.Interpreter):  # type: ignore[misc]
        def run_node(self, node: Any) -> Any:
            nonlocal whole, quantized
            name = getattr(node.target, "__name__", "").partition(".")[0]
            with FlopCounterMode(display=False) as counter:
                made = super().run_node(node)
            if node.op == "call_function" and name in QUANTIZED_PRODUCTS:
                factors = node.args[1:3] if name == "addmm" else node.args[:2]
                whole += counter.get_total_flops()
                quantized += counter.get_total_flops() * all("dequantize" in str(factor.target) for factor in factors)
            return made

    with taken_apart(), FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        Counting(module).run(*feed)
    return quantized / whole if whole else 0.0


def quantize_linear(
    module: Any, model: Model, case: Case, preparation: Preparation, fp8_scales: str = "tensor"
) -> None:
    """Give the linear layers of ``module``, in place and on the device, weights and inputs in the case's precision."""
    import torch

    quantization = library("torchao.quantization", extra="quantize")
    known, keep = dict(module.named_modules()), kept(case)
    check_kept(case, known)

    def is_taken(each: Any, path: str) -> bool:
        # Attention calls the weights of its last layer, which is of a subclass, itself.
        return type(each) is torch.nn.Linear and not any(f"{path}.".startswith(f"{layer}.") for layer in keep)

    def fits(path: str) -> bool:
        sizes = known[path].in_features, known[path].out_features
        rows = work.get(path, math.inf) / (2 * math.prod(sizes))
        return rows >= LEAST_ROWS and not any(size % MULTIPLE for size in sizes)

    linear, what = [path for path, item in known.items() if is_taken(item, path)], "linear layers"
    with preparation.phase("quantize"):
        device = next((parameter.device for parameter in module.parameters()), "cpu")
        feed = (tensor.to(device) for tensor in example_feed(model, case, _floats(module)))
        work = flops_by_module(module, tuple(feed))
        if linear and case.precision == "int8":
            linear, what = [*filter(fits, linear)], f"linear layers of {LEAST_ROWS} rows or more and sizes in eights"
        why = f"it has no modules of {what}"
        check_share(share_of(work, linear), model, case, preparation, why, calibrated=False)
        if case.precision == "int8":
            config = quantization.Int8DynamicActivationInt8WeightConfig()
        else:
            scales = {"tensor": quantization.PerTensor, "row": quantization.PerRow}[fp8_scales]()
            config = quantization.Float8DynamicActivationFloat8WeightConfig(granularity=scales)
        with refused(f"torchao cannot quantize '{model.name}'"):
            quantization.quantize_(module, config, lambda _, path: path in linear)


def _floats(module: Any) -> str:
    import torch

    kinds = {torch.float16: "fp16", torch.bfloat16: "bf16"}
    return next((kinds[parameter.dtype] for parameter in module.parameters() if parameter.dtype in kinds), "fp32")
