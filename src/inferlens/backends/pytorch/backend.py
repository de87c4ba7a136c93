"""Eager PyTorch, operator by operator, with an optional replay of its kernels from a CUDA graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any, ClassVar

from msgspec import Meta, structs

from inferlens.backends.availability import unsupported_on_error, warn_ignored_options
from inferlens.backends.base import (
    Backend,
    Capabilities,
    Deployer,
    GpuLaunch,
    KernelSources,
    Knob,
    Preparation,
    Recommendation,
    Saver,
)
from inferlens.backends.clocks import nvtx_enabled
from inferlens.backends.profiling.kernels import (
    CallRunner,
    MatchedKernels,
    MatchingTracer,
    eager_kernels,
    layers_of_kernels,
    module_scopes,
    sources_by_scope,
    trace_kernels,
)
from inferlens.backends.profiling.runs import check_level, module_layers, time_modules
from inferlens.backends.pytorch.runner import (
    Autocast,
    CudnnBenchmark,
    Feed,
    TorchOptions,
    TorchRunner,
    cast,
    example_feed,
    precision_dtype,
    torch_capabilities,
)
from inferlens.backends.scripts import program_script
from inferlens.errors import LateModule
from inferlens.models.inputs import flatten
from inferlens.models.model import Format, Model
from inferlens.models.work import module_hooks
from inferlens.record.profile import Layers
from inferlens.spec.case import HALF, Case, Option, TensorSpec

torch: Any = LateModule("torch")


class PyTorchOptions(TorchOptions, frozen=True, forbid_unknown_fields=True):
    """Options of eager PyTorch."""

    autocast: Autocast = False
    fuse: Annotated[
        bool, Meta(description="fold batch norms into the convolutions before them, as fuse_conv_bn_eval does")
    ] = False
    cudnn_benchmark: CudnnBenchmark = False
    cuda_graph: Annotated[
        bool, Meta(description="capture the call in a CUDA graph once and replay it; needs static shapes, on CUDA")
    ] = False


class PyTorch(Backend, Saver, Deployer):
    """Eager PyTorch."""

    name = "pytorch"
    summary = "PyTorch eager, operator by operator"
    options = PyTorchOptions
    aliases: ClassVar[dict[str, str]] = {"freeze": "fuse"}
    distributions = ("torch", "triton", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13")
    reference_for: ClassVar[dict[Format, tuple[str, dict[str, Option]]]] = {"module": ("", {}), "exported": ("", {})}
    saves: ClassVar[dict[str, str]] = {".pt2": "exported program"}
    script_packages = ("torch",)
    knobs = (
        Knob(name="cuda_graph", values=(True,), devices=("cuda",), helps=("host",)),
        Knob(name="channels_last", values=(True,), helps=("layout",)),
        Knob(name="fuse", values=(True,), helps=("memory",)),
        Knob(name="cudnn_benchmark", values=(True,), devices=("cuda",)),
        Knob(name="tf32", values=(True,), devices=("cuda",), precisions=("fp32",)),
    )
    recommended = (
        Recommendation("", "cpu"),
        Recommendation(""),
        Recommendation("", options={"cuda_graph": True}, precisions=("fp32",), fixed_shapes=True),
        Recommendation("", options={"cuda_graph": True}, precisions=HALF, convolutional=False, fixed_shapes=True),
        Recommendation(
            "", options={"channels_last": True, "cuda_graph": True, "cudnn_benchmark": True},
            precisions=HALF, convolutional=True, fixed_shapes=True,
        ),
    )  # fmt: skip

    def capabilities(self) -> Capabilities:
        return torch_capabilities(self.variants, ("module", "exported"))

    def prepare(self, model: Model, case: Case, preparation: Preparation) -> EagerRunner:
        options: PyTorchOptions = self.parse_options(case)
        runner = EagerRunner(model, case, preparation, options)
        self._fuse(model, case, preparation, options)
        return runner

    def save(self, model: Model, case: Case, preparation: Preparation, path: Path) -> None:
        """Write the exported program, on the CPU, with dynamic sizes and a note of its inputs."""
        precision_dtype(case.precision)  # raises for quantized precisions
        self._fuse(model, case, preparation, self.parse_options(case))
        runner = EagerRunner(model, structs.replace(case, device="cpu"), preparation, PyTorchOptions())
        runner.save_program(path, hint=f"--to {path.stem}.pt, which traces or scripts it")

    def times_kernels(self, case: Case, *, cached: bool = False) -> bool:  # noqa: ARG002
        """Return whether cuDNN times its convolutions in every process's first call."""
        return bool(self.parse_options(case).cudnn_benchmark)

    @staticmethod
    def _fuse(model: Model, case: Case, preparation: Preparation, options: PyTorchOptions) -> None:
        """Fuse the module in place, on the CPU and in fp32 before it is cast, so that nothing is rounded twice."""
        if not options.fuse or model.module is None:
            return
        hint = "without fuse"
        with (
            preparation.phase("build"),
            unsupported_on_error(f"'{model.name}' cannot be called to find batch norms to fuse", hint=hint),
            torch.inference_mode(mode=False),  # in which an entered runner leaves this thread
        ):
            cast(model.module, "fp32")
            folded = preparation.facts["batch_norms_folded"] = fuse(model.module, example_feed(model, case, "fp32"))
        if not folded:
            why = "no batch norm is the only reader of a convolution."
            warn_ignored_options(options, ("fuse",), why, preparation)

    def deploy_suffix(self, case: Case) -> str:  # noqa: ARG002
        return ".pt2"

    def deploy(self, model: Model, case: Case, preparation: Preparation, path: Path) -> None:
        self.prepare(model, case, preparation).save_program(path)

    def script(self, case: Case, file: str, inputs: tuple[TensorSpec, ...]) -> str:
        return program_script(case, self.parse_options(case), file, inputs)


class EagerRunner(TorchRunner, MatchingTracer):
    """A runner that calls the module or replays a call; its layers are the called modules."""

    def profile_layers(self, feed: Feed, runs: int) -> Layers:
        uses_hooks = (
            self.case.device != "cuda" or nvtx_enabled()
        )  # under another profiler torch.profiler sees no kernels
        check_level(self.preparation, replays=uses_hooks and self.graph is not None)
        if uses_hooks:
            return time_modules(self, self.model.module, feed, runs, on_gpu=self.case.device == "cuda")
        inputs = feed if self.graph is None else self.graph.inputs
        layers, absent = module_layers(CallRunner(self._call), self.model.module, inputs)
        timed = layers_of_kernels(trace_kernels(self, feed, runs), layers)
        return structs.replace(timed, absent=timed.absent | absent)

    def scopes(self) -> AbstractContextManager[Any]:
        return module_scopes(self.model.module)

    def kernel_sources(self, launched: Sequence[GpuLaunch]) -> KernelSources:
        """Return the innermost module around each launch; a replay has the modules of an equal eager call."""
        return sources_by_scope(launched) if self.graph is None else super().kernel_sources(launched)

    def matched_kernels(self) -> MatchedKernels:
        assert self.graph is not None
        return eager_kernels(self.model.module, self.forward(self.model.module), self.graph.inputs)


def fuse(module: Any, feed: Sequence[Any]) -> int:
    """Fold batch norms of a module in evaluation mode, in place, and return how many; each becomes an ``nn.Identity``.

    One call with ``feed`` shows which convolution is before a batch norm, because many models cannot be traced
    symbolically. Convolutions that are called twice, or whose output has another reader, do not change.
    """
    from torch import nn
    from torch.nn.utils.fusion import fuse_conv_bn_weights
    from torch.utils._python_dispatch import TorchDispatchMode

    # Exact types: subclasses may do more in forward, as timm's batch norms with an activation.
    kinds = {nn.BatchNorm1d: nn.Conv1d, nn.BatchNorm2d: nn.Conv2d, nn.BatchNorm3d: nn.Conv3d}
    parts = list(module.modules())
    norms = [part for part in parts if type(part) in kinds and not part.training and part.running_mean is not None]
    if not norms:
        return 0
    hooked = {part for part in parts if part._forward_pre_hooks or part._forward_hooks}
    calls: Counter[Any] = Counter()
    reads: Counter[Any] = Counter()  # reads of a convolution's output
    producers: dict[Any, Any] = {}  # the convolution that computed a module's first argument, by module

    class ReadCounter(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, operator: Any, _: Any, arguments: Any = (), named: Any = None) -> Any:
            count_reads(arguments, named)
            return operator(*arguments, **(named or {}))

    def count_reads(*values: Any) -> None:
        leaves = torch.utils._pytree.tree_leaves(values)
        reads.update(leaf.producer for leaf in leaves if hasattr(leaf, "producer"))

    def enter(part: Any, arguments: Any) -> None:
        calls[part] += 1
        producers[part] = getattr(arguments[0], "producer", None) if arguments else None

    def leave(part: Any, _arguments: Any, _named: Any, result: Any = None) -> None:
        if type(part) in kinds.values() and result is not None:
            result.producer = part

    folded = set()
    with torch.no_grad():
        with module_hooks(enter, leave), ReadCounter():
            outputs = module(*feed)
        count_reads(list(flatten(outputs)))
        for norm in norms:
            layer: Any = producers.get(norm)
            is_only_reader = calls[norm] == calls[layer] == reads[layer] == 1
            if type(layer) is kinds[type(norm)] and is_only_reader and not {norm, layer} & hooked:
                folded.add(norm)
                layer.weight, layer.bias = fuse_conv_bn_weights(
                    layer.weight, layer.bias, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
                )
    for part in parts:
        for name, child in list(part._modules.items()):
            if child in folded:
                setattr(part, name, nn.Identity())
    return len(folded)
