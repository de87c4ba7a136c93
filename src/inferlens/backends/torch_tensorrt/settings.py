"""What the options mean in the words of a front end and of the installed version of the library.

What a version or a front end does not know is asked of it, never of its version number. An option that cannot be had
and would change what is measured is ``Unsupported``; one that makes no difference is a warning of the record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from inferlens.backends.availability import warn_unheeded
from inferlens.backends.base import Preparation
from inferlens.backends.pytorch.cast import dtype_of
from inferlens.backends.torch_tensorrt.library import Library
from inferlens.backends.torch_tensorrt.options import Options, words
from inferlens.errors import InferlensError, Unsupported, suggestion
from inferlens.spec.case import Case

DEFAULT_LEVEL = 3  # TensorRT's own, which then need not be set
# Options that the TorchScript front end has no word for, and what they are when they are not asked for.
NOT_IN_SCRIPT = {
    "optimization_level": DEFAULT_LEVEL, "autocast": False, "version_compatible": False, "hardware_compatible": False,
    "use_python_runtime": False, "engine_cache": False,
}  # fmt: skip
OTHER = "--backend torch_tensorrt:dynamo"
# Options for the choice of tactics, which TensorRT for RTX does not heed: see the backend ``tensorrt``.
OF_TACTICS = ("optimization_level", "num_avg_timing_iters", "sparse_weights")
NAMES = "inferlens partition without torch_executed_ops, which shows the names of the model's operators"
SPACES = ("aten", "prims", "torchvision")  # where an operator is looked for that is named without its own


def check(options: Options, case: Case, library: Library, preparation: Preparation) -> None:
    """Refuses, or warns of, options that the front end or the installed version cannot honour.

    Raises:
        Unsupported: for one that would change what is measured.
    """
    label = case.backend_label
    if case.variant.startswith("ts-"):
        for name, default in NOT_IN_SCRIPT.items():
            if getattr(options, name) != default:
                raise Unsupported(f"The TorchScript front end has no '{name}'.", hint=OTHER)
    if options.autocast and case.variant == "compile":
        raise Unsupported(f"Torch-TensorRT's autocast is a step of the export, which {label} has not.", hint=OTHER)
    if options.use_python_runtime and "use_python_runtime" not in library.settings:
        runtime = "C++" if library.native_runtime else "Python"
        raise Unsupported(
            f"{library.title} has one runtime and chooses it itself ({runtime} here).",
            hint="without use_python_runtime",
        )
    if options.engine_cache and options.immutable_weights:
        raise Unsupported(
            "Torch-TensorRT keeps only engines whose weights can be replaced.",
            hint="--option torch_tensorrt.immutable_weights=false",
        )
    if library.rtx:
        _check_rtx(options, library, preparation)


def _check_rtx(options: Options, library: Library, preparation: Preparation) -> None:
    """The same for what TensorRT for RTX has not, which Torch-TensorRT ignores there without a word."""
    if options.hardware_compatible:
        raise Unsupported(
            f"{library.flavour} has no levels of hardware compatibility.",
            hint="no hardware_compatible; build on each kind of GPU that is to run it",
        )
    if options.version_compatible:
        raise Unsupported(
            f"{library.flavour} has no lean runtime, which runs the engines of other versions.",
            hint="no version_compatible; build again after an update",
        )
    why = f"{library.flavour} times no tactics, and its engines are the same at any value."
    warn_unheeded(options, OF_TACTICS, why, preparation)


def dynamo_settings(
    options: Options, case: Case, library: Library, preparation: Preparation, *, parameters: frozenset[str]
) -> dict[str, Any]:
    """Keyword arguments of ``torch_tensorrt.dynamo.compile``, or ``options`` of ``torch.compile``.

    Args:
        options, case: what was asked for.
        library: the installed one; names that it does not know are left out.
        preparation: for its folders.
        parameters: names that the front end takes.

    Raises:
        InferlensError: for an operator that there is not.
    """
    kept = engine_folder(library, preparation) if options.engine_cache else preparation.folder
    wanted = {
        "min_block_size": options.min_block_size,
        "require_full_compilation": options.require_full_compilation,
        "torch_executed_ops": set(executed_ops(options.torch_executed_ops)),
        "optimization_level": None if options.optimization_level == DEFAULT_LEVEL else options.optimization_level,
        "workspace_size": options.workspace_size,
        "num_avg_timing_iters": options.num_avg_timing_iters,
        "truncate_double": options.truncate_double,
        "disable_tf32": not options.tf32,
        "sparse_weights": options.sparse_weights,
        "immutable_weights": options.immutable_weights,
        "version_compatible": options.version_compatible,
        "hardware_compatible": options.hardware_compatible,
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
    wanted |= {"use_python_runtime": True} if options.use_python_runtime else {}
    if options.autocast:
        wanted |= {"enable_autocast": True, "autocast_low_precision_type": dtype_of(case.precision)}
    return {name: value for name, value in wanted.items() if name in library.settings and name in parameters}


def script_settings(options: Options, case: Case) -> dict[str, Any]:
    """Keyword arguments of ``torch_tensorrt.ts.compile``.

    Raises:
        InferlensError: for an operator that there is not.
    """
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
    """Full names (``torch.ops.aten.relu.default``) of the operators that ``aten.relu+aten::mean.dim`` means.

    A name without an overload means all of them.

    Raises:
        InferlensError: if there is no such operator.
    """
    return [name for word in words(text) for name in _overloads(word)]


def not_there(text: str, operators: Iterable[str]) -> str:
    """What must be said of names in ``text`` that no operator of the lowered graph has; empty if there are none.

    ``operators`` are the graph's, by names such as ``aten.relu.default``.
    """
    known = {f"torch.ops.{name}" for name in operators}
    missing = [word for word in words(text) if known.isdisjoint(_overloads(word))]
    if not missing:
        return ""
    return f"The lowered graph has no {' and no '.join(missing)}, so torch_executed_ops does nothing there."


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
            hint=_near(space, name, overload, overloads),
        )
    yield from (f"torch.ops.{space}.{name}.{each}" for each in ([overload] if overload else overloads))


def _near(space: str, name: str, overload: str, overloads: Iterable[str]) -> str:
    """What may have been meant by a name that is no operator's; its space may have been left out."""
    from torch._C import _jit_get_all_schemas

    if overloads:
        return suggestion(f"{space}.{name}.{overload}", [f"{space}.{name}.{each}" for each in overloads])
    known = {schema.name.replace("::", ".") for schema in _jit_get_all_schemas()}
    if name and any(each.startswith(f"{space}.") for each in known):
        near = suggestion(f"{space}.{name}", {each for each in known if each.startswith(f"{space}.")})
        return near or NAMES
    full = next((each for each in (f"{place}.{space}" for place in SPACES) if each in known), "")
    if full:  # ``relu``, or ``mean.dim``
        return f"did you mean {full}{f'.{name}' if name else ''}?"
    return NAMES


def engine_folder(library: Library, preparation: Preparation) -> Path:
    """Where built engines are kept: one folder for each GPU and each version of what builds, for the library's own
    names of engines tell neither.
    """
    import torch

    words = [*(f"{name}-{version}" for name, version in library.versions.items()), torch.cuda.get_device_name()]
    return preparation.cache / "torch_tensorrt" / "-".join(words).replace(" ", "_").replace("/", "_")
