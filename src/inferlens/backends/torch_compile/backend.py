"""``torch.compile`` with its own compiler, Inductor, in the modes that users choose between.

Compilation happens at the first call, so the runner makes that call when it is entered: it is the build. Graph breaks
and skipped CUDA graphs become facts and warnings.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import os
import shutil
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta
from msgspec.structs import replace

from inferlens.backends.availability import is_installed, torch_gpu, unsupported_on_error, warn_ignored_options
from inferlens.backends.base import Absence, Backend, Capabilities, Deployer, Knob, Preparation, Recommendation
from inferlens.backends.onnx.quantize import (
    cached_file,
    check_share,
    keep_in_record,
    quantized_folder,
    recorded_file,
    seven_bits,
)
from inferlens.backends.profiling.kernels import CallRunner, MatchedKernels, MatchingTracer, kernels_below, trace_layers
from inferlens.backends.profiling.runs import check_level, trace_single_run
from inferlens.backends.pytorch.runner import (
    Autocast,
    CudnnBenchmark,
    Feed,
    TorchOptions,
    TorchRunner,
    dynamic_sizes,
    example_feed,
    input_tensors,
    not_entered,
    torch_capabilities,
)
from inferlens.backends.scripts import program_script
from inferlens.backends.torch_compile.layers import QUANTIZED_PRODUCTS, InductorNames, TracingCompiler
from inferlens.errors import LateModule, Unsupported, library, reason
from inferlens.models.model import Model
from inferlens.models.samples import calibration_feeds
from inferlens.models.work import count, decompose_fused_operators, flops_share
from inferlens.record.profile import Layers
from inferlens.spec.case import HALF, PRECISIONS, QUANTIZED, Case, Option, TensorSpec, check_kept, kept_layers
from inferlens.spec.hints import Hint
from inferlens.units import plural

torch: Any = LateModule("torch")

GRAPH_MODES = ("reduce-overhead", "max-autotune")  # these use CUDA graphs
AUTOTUNE_MODES = ("max-autotune", "max-autotune-no-cudagraphs")  # these tune by coordinate descent too
MODES_FOR = {"cuda_graph": GRAPH_MODES, "max_autotune": AUTOTUNE_MODES}  # modes for options of other backends
SAME_WITHOUT_GRAPHS = {"reduce-overhead": "default", "max-autotune-no-cudagraphs": "max-autotune"}
NO_TORCHAO = "torchao, where it is installed, quantizes to int8, and to fp8 on a GPU that has it"
CONFIG_OPTIONS = ("freezing", "conv_1x1_as_mm", "coordinate_descent_tuning")  # names in torch._inductor.config


class TorchCompileOptions(TorchOptions, frozen=True, forbid_unknown_fields=True):
    """Options of ``torch.compile``."""

    autocast: Autocast = False
    freezing: Annotated[
        bool, Meta(description="make weights constants, which folds batch norms and orders weights while compiling")
    ] = False
    conv_1x1_as_mm: Annotated[bool, Meta(description="compute 1x1 convolutions as matrix products")] = False
    coordinate_descent_tuning: Annotated[
        bool, Meta(description="search on from the best Triton configuration, one parameter at a time, on CUDA")
    ] = False
    cudnn_benchmark: CudnnBenchmark = False
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
    variants = ("default", "reduce-overhead", *AUTOTUNE_MODES)
    slow_variants: ClassVar[dict[str, float]] = dict.fromkeys(AUTOTUNE_MODES, 8.0)
    variant_helps: ClassVar[dict[str, tuple[str, ...]]] = {"reduce-overhead": ("host",), "max-autotune": ("host",)}
    options = TorchCompileOptions
    aliases: ClassVar[dict[str, str]] = {"freeze": "freezing"}
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
    recommended = (  # a quantized model is always frozen on the CPU
        Recommendation("default", "cpu", {"freezing": True}, PRECISIONS),
        Recommendation("reduce-overhead"),
        Recommendation("reduce-overhead", "cuda", {"freezing": True}, ("fp32",)),
        Recommendation("reduce-overhead", "cuda", {"freezing": True}, HALF, convolutional=False),
        Recommendation("reduce-overhead", "cuda", {"channels_last": True, "freezing": True}, HALF, convolutional=True),
    )

    def capabilities(self) -> Capabilities:
        gpu = torch_gpu()
        quantizes = {"cpu": ("int8",), "cuda": gpu.quantized} if is_installed("torchao") else {}
        capabilities = torch_capabilities(
            self.variants, ("module", "exported"), compiler_absence, quantizes, NO_TORCHAO
        )
        supports = []
        for support in capabilities.supports:
            if support.quantizes and support.device == "cuda":
                support = replace(support, keeps=("fp16",), without_data={})
            elif support.quantizes:
                support = replace(support, keeps=("fp32",))
            supports.append(support)
        return replace(capabilities, supports=tuple(supports), limits=capabilities.limits | gpu.quantized_limits)

    def prepare(self, model: Model, case: Case, preparation: Preparation) -> CompiledRunner:
        options: TorchCompileOptions = self.parse_options(case)
        equivalent = SAME_WITHOUT_GRAPHS.get(case.variant)
        if equivalent and case.device != "cuda":
            preparation.warn(
                "no-effect",
                f"{case.variant} differs from '{equivalent}' by CUDA graphs, which {case.device} does not have: "
                f"this ran as '{equivalent}'.",
                f"Compare torch_compile:{equivalent} instead.",
            )
        if case.variant in AUTOTUNE_MODES and case.device == "cuda":
            why = f"the mode {case.variant} does it already."
            warn_ignored_options(options, ("coordinate_descent_tuning",), why, preparation)
        if case.precision in QUANTIZED and case.device == "cpu":
            model = dataclasses.replace(model, module=quantized_module(model, case, preparation))
            options = replace(options, freezing=True)
        from torch._inductor import config

        with config.patch(compile_threads=1):  # a slow import, which is not part of the build; no worker starts yet
            importlib.import_module("torch._inductor.compile_fx")
        return CompiledRunner(model, case, preparation, options)

    def times_kernels(self, case: Case, *, cached: bool = False) -> bool:
        return not cached and (case.variant in AUTOTUNE_MODES or self.parse_options(case).coordinate_descent_tuning)

    @classmethod
    def effective(cls, case: Case) -> Case:
        """Return the case with one variant for modes that differ only by CUDA graphs, on the CPU."""
        case = super().effective(case)
        equivalent = SAME_WITHOUT_GRAPHS.get(case.variant)
        return replace(case, variant=equivalent) if equivalent and case.device != "cuda" else case

    @classmethod
    def hint(cls, case: Case, option: str, value: Option, facts: Mapping[str, Any]) -> Hint:
        """Return a mode, which is a variant, for options that modes replace."""
        modes = MODES_FOR.get(option, ())
        if not modes:
            return super().hint(case, option, value, facts)
        if case.device != "cuda":
            return Hint()
        mode = "max-autotune" if case.variant in AUTOTUNE_MODES else modes[0]
        return Hint(asked=True) if case.variant in modes else Hint(f"{cls.name}:{mode}")

    def packages(self, case: Case) -> tuple[str, ...]:
        return ("torch", *["triton"] * (case.device == "cuda"), *["torchao"] * (case.precision in QUANTIZED))

    def deploy_suffix(self, case: Case) -> str:
        if case.precision in QUANTIZED and case.device == "cuda":
            message = "Models that torchao quantized for a GPU cannot be deployed."
            raise Unsupported(message, hint="--backend tensorrt, an engine")
        return ".pt2"

    def deploy(self, model: Model, case: Case, preparation: Preparation, path: Path) -> None:
        self.prepare(model, case, preparation).save_program(path)

    def script(self, case: Case, file: str, inputs: tuple[TensorSpec, ...]) -> str:
        options: TorchCompileOptions = self.parse_options(case)
        arguments = f"mode={case.variant!r}, dynamic={options.dynamic}, fullgraph={options.fullgraph}"
        quantized = case.precision in QUANTIZED
        set_here = [name for name in CONFIG_OPTIONS if getattr(options, name) or (quantized and name == "freezing")]
        config = [f"torch._inductor.config.{name} = True" for name in set_here]
        compiled, imports = f"model = torch.compile(model, {arguments})", [f"import {OPERATORS}"] * quantized
        return program_script(case, options, file, inputs, *config, compiled, imports=imports)


def compiler_absence(torch: Any, device: str) -> Absence | None:
    """Return what Inductor lacks to compile for a device; on CUDA Triton compiles C stubs."""
    names = {"cpu": (os.environ.get("CXX"), "g++", "clang++"), "cuda": (os.environ.get("CC"), "gcc", "clang", "cc")}
    if not any(shutil.which(name) for name in names[device] if name):
        hint = "install g++ (Debian: apt-get install g++), or name one in the variable CXX"
        return Absence("", f"torch.compile needs a C++ compiler on {device}, none is installed", hint, device)
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        hint = "install Python's headers (Debian: apt-get install python3-dev)"
        return Absence("", "torch.compile needs the header Python.h, it is not installed", hint, device)
    if device != "cuda":
        return None
    if not is_installed("triton"):
        return Absence("", "torch.compile needs Triton on cuda, it is not installed", "pip install triton", device)
    if torch.cuda.get_device_capability() < (7, 0):
        return Absence("", "Triton needs a GPU of compute capability 7.0 or later", "a newer GPU", device)
    return None


MOST_SIZES = 256  # sizes for which a process may compile a module; beyond Dynamo's limit of 8, calls are not compiled


class CompiledRunner(TorchRunner, MatchingTracer):
    """A runner that calls the compiled module."""

    thread_safe = False  # calls check guards, and may compile again
    entered: ClassVar[int] = 0  # the entered runners of this process, which share Dynamo's cache

    def __init__(self, model: Model, case: Case, preparation: Preparation, options: TorchCompileOptions) -> None:
        by_row = case.precision == "fp8" and options.fp8_scales == "row"
        on_gpu = "bf16" if by_row else "fp16"
        super().__init__(model, case, preparation, options, rest=on_gpu if case.device == "cuda" else "fp32")
        self._options = options
        self._uses_cuda_graphs = case.device == "cuda" and case.variant in GRAPH_MODES
        self._compiler: TracingCompiler | None = None  # for profiles of layers or kernels

    @contextmanager
    def settings(self) -> Iterator[None]:
        from torch._dynamo import config as dynamo_config
        from torch._inductor import config
        from torch._inductor.utils import fresh_cache

        empty = fresh_cache() if self.preparation.rebuild else nullcontext()
        options = config.patch({name: getattr(self._options, name) for name in CONFIG_OPTIONS})
        with super().settings(), empty, options, dynamo_config.patch(recompile_limit=MOST_SIZES):
            yield

    def without_gradients(self) -> AbstractContextManager[Any]:
        """Return no inference mode for torchao's weights, which PyTorch before 2.14 cannot compile in it."""
        return torch.no_grad() if self._quantizes_linear else super().without_gradients()

    @property
    def _quantizes_linear(self) -> bool:
        return self.case.precision in QUANTIZED and self.case.device == "cuda"

    def __enter__(self) -> CompiledRunner:
        if self._quantizes_linear:
            self._module_on_device()
            quantize_linear(self.model, self.case, self.preparation, self._options.fp8_scales)
        super().__enter__()
        CompiledRunner.entered += 1
        from torch._inductor.async_compile import shutdown_compile_workers

        shutdown_compile_workers()  # after a cache hit they are still starting, which would slow down calls
        return self

    def build(self, module: Any) -> Callable[..., Any]:
        """Compile by calling once, or until CUDA graphs are recorded."""
        import torch._inductor.config
        from torch._dynamo.utils import counters

        if CompiledRunner.entered == 0:  # it would discard what other runners of this process have compiled
            torch._dynamo.reset()
        counters.clear()
        if self.preparation.already_built:  # everything is cached, and starting workers would disturb other processes
            torch._inductor.config.compile_threads = 1
        if self.preparation.level in ("layer", "kernel") and not self._uses_cuda_graphs:
            self._compiler = TracingCompiler(module, self.case.variant, on_gpu=self.case.device == "cuda")
        try:
            compiled = self._compile(module)
        except torch._dynamo.exc.Unsupported as error:
            message = f"'{self.model.name}' does not compile into one graph: {reason(error)}"
            raise Unsupported(message, hint="without fullgraph") from error
        self._report_counters({name: dict(counts) for name, counts in counters.items()})
        return compiled

    def _compile(self, module: Any) -> Callable[..., Any]:
        """Return the compiled module, called until it is ready."""
        arguments: dict[str, Any] = {"backend": self._compiler} if self._compiler else {"mode": self.case.variant}
        arguments |= {"dynamic": self._options.dynamic, "fullgraph": self._options.fullgraph}
        compiled = torch.compile(self.forward(module), **arguments)
        feed = self.seeded_feed()
        for tensor, spec in zip(feed, self.model.inputs, strict=True):
            for index in dynamic_sizes(spec):
                if tensor.shape[index] > 1:  # a size of 1 is compiled for itself alone
                    torch._dynamo.mark_dynamic(tensor, index)
        with warnings.catch_warnings():
            # Inductor recommends TF32 for every fp32 matrix product; the option tf32 decides.
            warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores", category=UserWarning)
            for _ in range(1 if self._compiler or not self._uses_cuda_graphs else 3):  # compiles, warms up, records
                compiled(*feed)
        return compiled  # type: ignore[no-any-return]

    @property
    def reuses_outputs(self) -> bool:
        return self._uses_cuda_graphs

    def compilations(self) -> int:
        from torch._dynamo.utils import counters

        return int(counters["stats"]["unique_graphs"])

    def profile_layers(self, feed: Feed, runs: int) -> Layers:
        """Time kernels and operators by torch.profiler; with CUDA graphs, those of replays."""
        check_level(self.preparation)
        if self._uses_cuda_graphs:
            return self.matched_layers(feed, runs)
        assert self._compiler is not None
        return trace_layers(self, InductorNames(self._compiler), feed, runs, on_gpu=self.case.device == "cuda")

    def matched_kernels(self) -> MatchedKernels:
        """Return the kernels of one untimed call; a model with CUDA graphs is compiled again without them."""
        call, module = self._call, self.model.module
        try:
            if self._compiler is None:
                self._compiler = TracingCompiler(module, self.case.variant, on_gpu=self.case.device == "cuda")
                call = self._compile(module)
            run = trace_single_run(CallRunner(call), self.seeded_feed(), on_gpu=True)
            return kernels_below(run.root, InductorNames(self._compiler))
        except RuntimeError as error:  # includes errors of Dynamo and Inductor, and a lack of memory
            why = f"unknown: the call without a CUDA graph failed ({reason(error)})."
            return MatchedKernels([], {"modules": why})

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        self._call = not_entered
        CompiledRunner.entered -= 1
        if CompiledRunner.entered == 0:
            torch._dynamo.reset()  # releases the compiled code and the CUDA graphs' memory
        super().__exit__(kind, *error)

    def _report_counters(self, counters: Mapping[str, Mapping[str, int]]) -> None:
        """Turn the compiler's counters into facts and warnings."""
        inductor = counters.get("inductor", {})
        reasons = [reason(text) for text in counters.get("graph_break", {})]
        breaks = sum(counters.get("graph_break", {}).values())
        facts = self.preparation.facts
        facts["graphs"] = counters.get("stats", {}).get("unique_graphs", 0)
        facts["graph_breaks"] = {"count": breaks, "reasons": reasons}
        hits, misses, bypasses = (inductor.get(f"fxgraph_cache_{outcome}", 0) for outcome in ("hit", "miss", "bypass"))
        facts["compile_cache"] = {"hits": hits, "misses": misses}
        self.built_from_cache = bool(hits) and not misses and not bypasses
        if breaks:
            self.preparation.warn(
                "graph-breaks",
                f"{plural(breaks, 'graph break')}, {plural(facts['graphs'], 'graph')}: {'; '.join(reasons[:3])}.",
                "Python runs between graphs; fullgraph=true shows where the first break is.",
            )
        skips = inductor.get("cudagraph_skips", 0)
        if self._uses_cuda_graphs and self._compiler is None and skips:
            self.preparation.warn(
                "no-cuda-graph",
                f"{skips} of {facts['graphs']} compiled graphs run without a CUDA graph.",
                "The log of the case says why (TORCH_LOGS=cudagraphs).",
            )


# Quantization by torchao. On x86 CPUs the module is exported, calibrated and converted to int8; Inductor computes a
# product in int8 only if its weights are constants, so ``freezing`` is on. On a GPU only linear layers are quantized;
# their inputs are scaled in every call.

SUFFIX = ".pt2"
# Importing it makes Inductor compute the quantized operators in int8; without it they run in fp32.
OPERATORS = "torchao.quantization.pt2e.quantizer.x86_inductor_quantizer"
MIN_ROWS, SIZE_MULTIPLE = 17, 8  # limits of torch._int_mm on a GPU, for inputs and for both sizes of weights


def quantized_module(model: Model, case: Case, preparation: Preparation) -> Any:
    """Return the module with convolutions and linear layers in int8, for inputs of the case's shape.

    It is always read from a file, so that the measured module is the one that ``inferlens.load`` loads.
    """
    library(OPERATORS, extra="quantize")
    path = recorded_file(preparation, SUFFIX)
    path = path or keep_in_record(preparation, quantized_program(model, case, preparation))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch.export.load(str(path)).module(check_guards=False)
    share = int8_share(module, example_feed(model, case, "fp32"))
    check_share(share, model, case, preparation, "no convolution or linear layer is")
    return module


def _partial_quantizer(x86: Any, layers: list[str]) -> Any:
    """Return the quantizer for x86, which leaves out the operators of these modules.

    Its own ``set_module_name_qconfig`` does not keep a convolution and the ReLU after it, which it quantizes together.
    """
    filters = [x86.get_module_name_filter(layer) for layer in layers]

    class PartialQuantizer(x86.X86InductorQuantizer):  # type: ignore[misc]
        def annotate(self, model: Any) -> Any:
            nodes = [node for node in model.graph.nodes if any(matches(node) for matches in filters)]
            x86._annotate_nodes_not_quantize(nodes)  # the quantizer skips annotated nodes
            return super().annotate(model)

    return PartialQuantizer()


def quantized_program(model: Model, case: Case, preparation: Preparation) -> Path:
    """Return the file of the exported int8 program, from the cache or newly quantized."""
    torchao = library("torchao", extra="quantize")
    versions = f"torchao {torchao.__version__}", f"torch {torch.__version__}"
    folder = quantized_folder(model, case, preparation, *versions, case.keep)

    def write(path: Path, _: object) -> None:
        with unsupported_on_error(f"'{model.name}' cannot be quantized"):
            torch.export.save(_quantize(model, case), str(path))

    return cached_file(folder / f"torch_compile{SUFFIX}", preparation, write)


def _quantize(model: Model, case: Case) -> Any:
    pt2e = library("torchao.quantization.pt2e.quantize_pt2e", extra="quantize")
    x86 = library(OPERATORS, extra="quantize")
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        # Strict, so that the quantizer can distinguish calls of one module. It does not know guard nodes.
        feed = example_feed(model, case, "fp32")
        exported = torch.export.export(model.module, feed, strict=True).module(check_guards=False)
        check_kept(case, [path for path, _ in model.module.named_modules()] if model.module is not None else ())
        quantizer = _partial_quantizer(x86, list(kept_layers(case)))
        quantizer.set_global(x86.get_default_x86_inductor_quantization_config(reduce_range=seven_bits()))
        observed = pt2e.prepare_pt2e(exported, quantizer)
        for arrays in calibration_feeds(model, case):
            observed(*input_tensors(arrays, model.inputs, "fp32"))
        module = pt2e.convert_pt2e(observed)
        used = {node.target for node in module.graph.nodes if node.op == "get_attr"}
        for name in [name for name, _ in module.named_parameters() if name not in used]:  # the unused fp32 weights
            owner, _, attribute = name.rpartition(".")
            delattr(module.get_submodule(owner), attribute)
        return torch.export.export(module, feed)


def int8_share(module: Any, feed: tuple[Any, ...]) -> float:
    """Return the share of a graph's multiply-adds with quantized factors. Nothing is computed."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    total = quantized = 0.0

    class ProductCounter(torch.fx.Interpreter):  # type: ignore[misc]
        def run_node(self, node: Any) -> Any:
            nonlocal total, quantized
            name = getattr(node.target, "__name__", "").partition(".")[0]
            with FlopCounterMode(display=False) as counter:
                result = super().run_node(node)
            if node.op == "call_function" and name in QUANTIZED_PRODUCTS:
                factors = node.args[1:3] if name == "addmm" else node.args[:2]
                total += counter.get_total_flops()
                if all("dequantize" in str(factor.target) for factor in factors):
                    quantized += counter.get_total_flops()
            return result

    with decompose_fused_operators(), FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        ProductCounter(module).run(*feed)
    return quantized / total if total else 0.0


def quantize_linear(model: Model, case: Case, preparation: Preparation, fp8_scales: str = "tensor") -> None:
    """Quantize the linear layers of the model's module and their inputs to the case's precision, in place."""
    quantization = library("torchao.quantization", extra="quantize")
    assert model.module is not None
    modules = dict(model.module.named_modules())
    check_kept(case, modules)
    kept = kept_layers(case)
    paths = [
        path
        for path, part in modules.items()
        # Attention uses the weights of its last layer, a subclass, without calling it.
        if type(part) is torch.nn.Linear and not any(f"{path}.".startswith(f"{layer}.") for layer in kept)
    ]
    with preparation.phase("quantize"):
        largest = tuple(replace(spec, shape=spec.profile[2]) for spec in model.inputs)
        work = count(dataclasses.replace(model, inputs=largest), case)
        flops = {part.module: part.flops for part in work.modules}

        def fits_int8(path: str) -> bool:
            sizes = modules[path].in_features, modules[path].out_features
            rows = flops.get(path, math.inf) / (2 * math.prod(sizes))
            return rows >= MIN_ROWS and not any(size % SIZE_MULTIPLE for size in sizes)

        if case.precision == "int8":
            paths = [*filter(fits_int8, paths)]
        why = f"it has no modules of linear layers (for int8 of {MIN_ROWS} rows or more and sizes in eights)"
        check_share(flops_share(work, paths), model, case, preparation, why, calibrated=False)
        if case.precision == "int8":
            config = quantization.Int8DynamicActivationInt8WeightConfig()
        else:
            scales = {"tensor": quantization.PerTensor, "row": quantization.PerRow}[fp8_scales]()
            config = quantization.Float8DynamicActivationFloat8WeightConfig(granularity=scales)
        with unsupported_on_error(f"torchao cannot quantize '{model.name}'"):
            quantization.quantize_(model.module, config, lambda _, path: path in paths)
