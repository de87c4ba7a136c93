"""What a model has to do, whatever runs it, and what a machine can do at best: frozen data.

Work is counted for every module without the modules in it, so that the modules' work adds up to the model's. A
multiplication and an addition are two FLOPs. Sizes are bytes, rates are per second.
"""

from __future__ import annotations

from inferlens.record.display import Struct


class ModuleWork(Struct, frozen=True, kw_only=True):
    """What one module does by itself in one call of the model. Tensors are counted where they cross its border.

    Attributes:
        module: its path; the model itself is the empty one.
        flops: floating-point operations of all calls, in matrix products, convolutions and attention.
        weights: bytes of the parameters and buffers that its own operators read, each once in a call.
        inputs, outputs: bytes of the activations that go into its operators from outside of it, and come out of it.
        sources: of ``inputs``, the bytes that each other module has made, by its path; the rest are the model's inputs.
        returned: of ``outputs``, the bytes that the model returns.
        operators: its operators by name, each with how often it is called.
    """

    module: str
    kind: str = ""
    calls: int = 1
    flops: float = 0.0
    weights: int = 0
    inputs: int = 0
    outputs: int = 0
    sources: dict[str, int] = {}
    returned: int = 0
    operators: dict[str, int] = {}


class OperatorWork(Struct, frozen=True, kw_only=True):
    """What one call of an operator does. Tensors are counted as it reads and writes them, each once.

    Attributes:
        module: the path of the module whose own operator it is.
        operator: its name, such as ``aten.addmm``.
        flops: as of a module; ``weights``: bytes of the parameters and buffers that it reads.
        inputs: bytes of the activations that it reads; ``outputs``: those that it writes and others read.
        sources: of ``inputs``, the bytes that each other operator has made, by its place from 0 among all of them.
        returned: of ``outputs``, the bytes that the model returns.
    """

    module: str
    operator: str
    flops: float = 0.0
    weights: int = 0
    inputs: int = 0
    outputs: int = 0
    sources: dict[int, int] = {}
    returned: int = 0


class Work(Struct, frozen=True, kw_only=True):
    """What a model does in one call.

    Attributes:
        modules: in the order in which they are first called, also those whose operators are all in modules inside.
        operators: each call of one, in the order of execution; none in profiles of earlier versions.
        uncovered: operators whose FLOPs are not known, each with how often it is called; not those whose bytes are
            their work.
        note: how it was counted, or why it was not.
    """

    modules: tuple[ModuleWork, ...] = ()
    operators: tuple[OperatorWork, ...] = ()
    uncovered: dict[str, int] = {}
    note: str = ""


class Ceilings(Struct, frozen=True, kw_only=True):
    """What a device reaches at best, as measured on it.

    Attributes:
        bandwidth: bytes per second that a copy within its memory reads and writes together.
        cached: the same of a copy that stays in its caches; 0 where that was not measured.
        cache: bytes of its last cache; 0 where that is not known.
        rates: floating-point operations per second of matrix products and convolutions, by precision (``tf32`` too).
        basis: what was measured with which library.
        absent: why a precision has no rate.
        disturbed: what made them lower than they are, as far as is known; such are not kept for later.
    """

    device: str
    bandwidth: float
    rates: dict[str, float]
    cached: float = 0.0
    cache: int = 0
    measured: str = ""
    basis: str = ""
    absent: dict[str, str] = {}
    disturbed: str = ""
