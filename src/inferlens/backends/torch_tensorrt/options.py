"""Options of the backend ``torch_tensorrt``, under the names that the library gives them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class Options(Struct, frozen=True, forbid_unknown_fields=True):
    """Options of Torch-TensorRT."""

    min_block_size: Annotated[
        int, Meta(description="fewest operators of an engine; smaller blocks run in PyTorch", ge=1)
    ] = 5
    require_full_compilation: Annotated[bool, Meta(description="refuse a model of which PyTorch would run a part")] = (
        False
    )
    torch_executed_ops: Annotated[
        str, Meta(description="operators that PyTorch runs in any case, such as aten.relu+aten.mean.dim")
    ] = ""
    optimization_level: Annotated[int, Meta(description="how long the builder searches, 0 to 5", ge=0, le=5)] = 3
    workspace_size: Annotated[
        int, Meta(description="most memory of the GPU that a tactic may use, in bytes; 0 is no limit", ge=0)
    ] = 0
    num_avg_timing_iters: Annotated[int, Meta(description="how often a tactic is timed; the mean counts", ge=1)] = 1
    truncate_double: Annotated[bool, Meta(description="compute float64 in float32")] = False
    autocast: Annotated[
        bool,
        Meta(description="keep weights in fp32 and let the library's autocast choose the precision of each operator"),
    ] = False
    tf32: Annotated[bool, Meta(description="let fp32 convolutions and matrix products use TF32; off: fp32 is fp32")] = (
        False
    )
    sparse_weights: Annotated[bool, Meta(description="let tactics use weights of which two in four are zero")] = False
    immutable_weights: Annotated[bool, Meta(description="engines whose weights cannot be replaced")] = True
    version_compatible: Annotated[bool, Meta(description="engines that later versions of TensorRT can run")] = False
    hardware_compatible: Annotated[bool, Meta(description="engines for other GPUs too, Ampere and newer")] = False
    engine_cache: Annotated[
        bool, Meta(description="keep built engines and use them again; needs immutable_weights=false")
    ] = False
    use_python_runtime: Annotated[bool, Meta(description="run engines from Python rather than from C++")] = False
    cuda_graph: Annotated[bool, Meta(description="capture the call in a CUDA graph once and replay it")] = False


def words(text: str) -> tuple[str, ...]:
    """The values of an option that takes several, joined by ``+``."""
    return tuple(word.strip() for word in text.split("+") if word.strip())
