"""The options of the backend ``torch_tensorrt``, under the names that the library gives them, and what they mean.

What a version or a front end does not know is asked of it, never of its version number. An option that cannot be had
and would change what is measured is ``Unsupported``; one that makes no difference is a warning of the record.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct, structs

from inferlens.backends.availability import warn_unheeded
from inferlens.backends.base import Preparation
from inferlens.backends.pytorch.cast import dtype_of
from inferlens.backends.tensorrt.flavours import words
from inferlens.backends.torch_tensorrt.library import Library
from inferlens.errors import InferlensError, Unsupported, suggestion
from inferlens.spec.case import Case

MOST = 5 * 2**30  # bytes of kept engines; the library removes the oldest
DEFAULT_LEVEL = 3  # TensorRT's own, which then need not be set
# Options that the TorchScript front end has no word for, and what they are when they are not asked for.
NOT_IN_SCRIPT = {
    "optimization_level": DEFAULT_LEVEL, "autocast": False, "version_compatible": False, "hardware_compatible": False,
    "use_python_runtime": False, "engine_cache": False,
}  # fmt: skip
OTHER = "--backend torch_tensorrt:dynamo"
# Options for the choice of tactics, which TensorRT for RTX does not heed: see the backend ``tensorrt``.
OF_TACTICS = ("optimization_level", "num_avg_timing_iters", "sparse_weights")
NOT_IN_RTX = {"hardware_compatible": "levels of hardware compatibility", "version_compatible": "lean runtime"}


class Options(Struct, frozen=True, forbid_unknown_fields=True):
    """Options of Torch-TensorRT."""

    min_block_size: Annotated[int, Meta(description="fewest operators of an engine; PyTorch runs the others", ge=1)] = 5
    require_full_compilation: Annotated[bool, Meta(description="refuse a model that PyTorch would run in part")] = False
    torch_executed_ops: Annotated[str, Meta(description="operators for PyTorch, as aten.relu+aten.mean.dim")] = ""
    optimization_level: Annotated[int, Meta(description="how long the builder searches, 0 to 5", ge=0, le=5)] = 3
    workspace_size: Annotated[int, Meta(description="most bytes on the GPU for a tactic; 0 is no limit", ge=0)] = 0
    num_avg_timing_iters: Annotated[int, Meta(description="how often a tactic is timed; the mean counts", ge=1)] = 1
    truncate_double: Annotated[bool, Meta(description="compute float64 in float32")] = False
    autocast: Annotated[bool, Meta(description="weights in fp32; the library's autocast lowers operators")] = False
    tf32: Annotated[bool, Meta(description="TF32 in fp32 convolutions and matrix products; off: fp32 is fp32")] = False
    sparse_weights: Annotated[bool, Meta(description="let tactics use weights of which two in four are zero")] = False
    immutable_weights: Annotated[bool, Meta(description="engines whose weights cannot be replaced")] = True
    version_compatible: Annotated[bool, Meta(description="engines that later versions of TensorRT can run")] = False
    hardware_compatible: Annotated[bool, Meta(description="engines for other GPUs too, Ampere and newer")] = False
    engine_cache: Annotated[bool, Meta(description="keep and reuse engines; needs immutable_weights=false")] = False
    use_python_runtime: Annotated[bool, Meta(description="run engines from Python rather than from C++")] = False
    cuda_graph: Annotated[bool, Meta(description="capture the call in a CUDA graph once and replay it")] = False


def check(options: Options, case: Case, library: Library, preparation: Preparation) -> None:
    """Refuses, or warns of, options that the front end or the installed version cannot honour."""
    if case.variant.startswith("ts-"):
        for name, default in NOT_IN_SCRIPT.items():
            if getattr(options, name) != default:
                raise Unsupported(f"The TorchScript front end has no '{name}'.", hint=OTHER)
    if options.autocast and case.variant == "compile":
        raise Unsupported("torch.compile has no step of export, which autocast is a part of.", hint=OTHER)
    if options.use_python_runtime and "use_python_runtime" not in library.settings:
        raise Unsupported("This version chooses its runtime itself.", hint="without use_python_runtime")
    if options.engine_cache and options.immutable_weights:
        raise Unsupported(
            "Torch-TensorRT keeps only engines whose weights can be replaced.",
            hint="--option torch_tensorrt.immutable_weights=false",
        )
    if library.rtx:  # what Torch-TensorRT would ignore there without a word
        for name, what in NOT_IN_RTX.items():
            if getattr(options, name):
                raise Unsupported(f"{library.flavour} has no {what}.", hint=f"no {name}; build where it is to run")
        warn_unheeded(options, OF_TACTICS, f"{library.flavour} times no tactics.", preparation)


def dynamo_settings(options: Options, case: Case, library: Library, preparation: Preparation) -> dict[str, Any]:
    """Keyword arguments of ``dynamo.compile``, or options of ``torch.compile``, as far as this version knows them."""
    known = library.settings if case.variant == "compile" else library.settings & library.parameters
    kept = engine_folder(library, preparation) if options.engine_cache else preparation.folder
    wanted = structs.asdict(options) | {
        "torch_executed_ops": set(executed_ops(options.torch_executed_ops)),
        "optimization_level": None if options.optimization_level == DEFAULT_LEVEL else options.optimization_level,
        "disable_tf32": not options.tf32,
        # By default builds share timings in a folder of temporary files: how long one takes would depend on those
        # before it. Here each case begins with none, unless it is to use what others left.
        "timing_cache_path": str(kept / "timing.cache"),
        "cache_built_engines": options.engine_cache,
        "reuse_cached_engines": options.engine_cache and not preparation.rebuild,
        # A build that fails is a row with the reason, not a run of PyTorch.
        "pass_through_build_failures": True,
        # Types are the module's own. This is the default in new versions; older ones let the builder choose.
        "use_explicit_typing": True,
    }
    if not options.use_python_runtime:
        del wanted["use_python_runtime"]
    if options.autocast:
        wanted |= {"enable_autocast": True, "autocast_low_precision_type": dtype_of(case.precision)}
    return {name: value for name, value in wanted.items() if name in known}


def script_settings(options: Options, case: Case) -> dict[str, Any]:
    """Keyword arguments of ``torch_tensorrt.ts.compile``."""
    import torch

    names = (name.removeprefix("torch.ops.").split(".") for name in executed_ops(options.torch_executed_ops))
    return {
        "min_block_size": options.min_block_size,
        "require_full_compilation": options.require_full_compilation,
        "torch_executed_ops": sorted({f"{space}::{name}" for space, name, _ in names}),
        "workspace_size": options.workspace_size,
        "num_avg_timing_iters": options.num_avg_timing_iters,
        "truncate_long_and_double": options.truncate_double,
        "disable_tf32": not options.tf32,
        "sparse_weights": options.sparse_weights,
        "refit": not options.immutable_weights,
        "enabled_precisions": {torch.float32, dtype_of(case.precision)},
    }


def executed_ops(text: str) -> list[str]:
    """``torch.ops.aten.relu.default`` and so on, of ``aten.relu+aten::mean.dim``; without an overload all of them."""
    return [name for word in words(text) for name in _overloads(word)]


def _overloads(word: str) -> Iterator[str]:
    import torch

    space, _, rest = word.removeprefix("torch.ops.").replace("::", ".").partition(".")
    name, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, space), name, None) if name else None
    overloads = packet.overloads() if packet is not None else []
    if packet is None or (overload and overload not in overloads):
        raise InferlensError(
            f"torch_executed_ops names '{word}', which is no operator.",
            expected="names such as aten.relu or aten.relu.default, joined by +",
            hint=suggestion(name, dir(getattr(torch.ops, space))) or "inferlens partition shows the names",
        )
    yield from (f"torch.ops.{space}.{name}.{each}" for each in ([overload] if overload else overloads))


def counting_cache(options: Options, library: Library, preparation: Preparation) -> Any:
    """The library's cache of engines on disk, which counts ``hits`` and ``misses``; ``None`` if none is wanted."""
    if not options.engine_cache or "cache_built_engines" not in library.settings:
        return None
    from torch_tensorrt.dynamo._engine_cache import DiskEngineCache

    class Counting(DiskEngineCache):  # type: ignore[misc]
        """Counts what is found where it is looked for before a build."""

        hits = 0
        misses = 0

        def save(self, *arguments: Any, **more: Any) -> None:
            self.misses += 1
            super().save(*arguments, **more)

        def load(self, *arguments: Any, **more: Any) -> Any:
            blob = super().load(*arguments, **more)
            self.hits += blob is not None
            return blob

    folder = engine_folder(library, preparation)
    folder.mkdir(parents=True, exist_ok=True)
    return Counting(str(folder), MOST)


def engine_folder(library: Library, preparation: Preparation) -> Path:
    """Where built engines are kept: a folder for each GPU and version, which the library's names of engines lack."""
    import torch

    parts = [*(f"{name}-{version}" for name, version in library.versions.items()), torch.cuda.get_device_name()]
    return preparation.cache / "torch_tensorrt" / "-".join(parts).replace(" ", "_").replace("/", "_")
