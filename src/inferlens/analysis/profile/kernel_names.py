"""What a kernel's name tells: whether it uses tensor cores, and how to write it in few words.

Names are those that CUPTI gives, demangled. Most are of a library or a compiler that says in them how the kernel
computes; those that say nothing are left open and not guessed.
"""

from __future__ import annotations

import re

from inferlens.trace import tensor_cores

_REPEATED = re.compile(r"(_[A-Za-z]{1,40})\1{1,99}(?![A-Za-z])")  # cuDNN names one pointwise step after the other
_HASH = re.compile(r"_0x[0-9a-f]{16,}")
_ANONYMOUS = re.compile(r"\(anonymous namespace\)::|\{lambda\([^()]*\)#\d+\}")
_NAME = re.compile(r"(?<!\w)[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*")
# In template arguments: data types and containers, which many kernels share, and wrappers of what tells them apart.
_COMMON = re.compile(
    r"^(?:void|const|int|unsigned|signed|long|short|float|double|bool|char|true|false|half|nv_bfloat16|__half2?"
    r"|__nv_\w+|cudnn\w+_t|c10::\w+|std::\w+|at::TensorIteratorBase|at::Tensor|at::detail::\w+|\w*NumericTypeConverter"
    r"|at::native::(?:ReduceOp|gpu_kernel_impl\w*|\w*TensorListMetadata|memory::\w+|TrivialOffset\w*|detail::\w+"
    r"|OpaqueType|UnaryOpFunctor|BinaryFunctor|BUnaryFunctor|AUnaryFunctor)|TrivialOffset\w*|OffsetCalculator)$"
)
_ALONE = ("Kernel", "Kernel2", "device_kernel", "kernel")  # names that say nothing without their arguments


def uses_tensor_cores(name: str, kind: str = "kernel") -> bool | None:
    """Whether a kernel uses tensor cores, as its name tells; ``None`` where the name does not tell.

    What names say is of the instructions a kernel was written with, not of how many it executed.
    """
    return tensor_cores.told(name) if kind == "kernel" else False


def short_name(name: str) -> str:
    """A kernel's name without return type, namespaces, arguments, hashes, and all but one template argument.

    Of the template arguments the first stays that is no data type: the functor of an elementwise kernel, the kernel
    within a wrapper. Different kernels may have the same short name.
    """
    plain = _ANONYMOUS.sub("", _HASH.sub("", name)).removeprefix("void ").strip()
    plain = plain.replace("cudnn_generated_fort_native_", "cudnn_…_")
    plain = _REPEATED.sub(lambda each: f"{each[1]}×{len(each[0]) // len(each[1])}", plain)
    found = _NAME.match(plain)
    if not found or found.end() == len(plain):
        return plain.rpartition("::")[2] or name
    rest = plain[found.end() :]
    if not rest.startswith(("<", "(")):
        return plain
    own = found[0].rpartition("::")[2]
    inner = _telling(_arguments(rest)) if rest.startswith("<") else ""
    if not inner:
        return f"{own}<…>" if rest.startswith("<") else own
    return inner if own in _ALONE else f"{own}<{inner}>"


def _arguments(text: str) -> str:
    """What stands between the first angle bracket and the one that closes it."""
    depth = 0
    for place, character in enumerate(text):
        depth += (character == "<") - (character == ">" and text[place - 1] != "-")
        if depth == 0:
            return text[1:place]
    return ""


def _telling(arguments: str) -> str:
    """The first name among template arguments that is no common type, without its namespaces."""
    names = (each[0] for each in _NAME.finditer(arguments) if not _COMMON.match(each[0]))
    return next(names, "").rpartition("::")[2]
