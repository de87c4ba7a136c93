"""PyTorch's operators: the FLOPs of those that have any to speak of, and which only move or touch data.

FLOPs are those of matrix products, convolutions and attention, by the formulas of :mod:`torch.utils.flop_counter`: a
multiplication and an addition are two, a bias is none. Elementwise operators and reductions have none.
"""

from __future__ import annotations

import math
from typing import Any

# Besides those that PyTorch tags as pointwise; its tag for reductions is newer than PyTorch 2.9. What works in place
# goes by the name without its end.
_LIGHT = """
_adaptive_avg_pool2d _adaptive_avg_pool3d _batch_norm_no_update _conj_physical _embedding_bag
_embedding_bag_forward_only _fused_rms_norm _log_softmax _masked_softmax _native_batch_norm_legit
_native_batch_norm_legit_functional _native_batch_norm_legit_no_training _prelu_kernel _safe_softmax _softmax _stack
_to_copy _unsafe_index _unsafe_index_put _upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact1d
_upsample_nearest_exact2d _upsample_nearest_exact3d _weight_norm_interface adaptive_max_pool2d adaptive_max_pool3d
alias_copy all amax amin aminmax any arange argmax argmin as_strided_copy as_strided_scatter avg_pool1d avg_pool2d
avg_pool3d bernoulli bincount bucketize cat celu channel_shuffle col2im complex constant_pad_nd copy count_nonzero
cummax cummin cumprod cumsum dequantize detach_copy diag_embed diagonal_copy diagonal_scatter elu embedding
embedding_bag empty empty_like empty_permuted empty_strided expand_copy exponential eye fill flip floor_divide
fractional_max_pool2d fractional_max_pool3d full full_like gather glu hamming_window hann_window hardsigmoid hardswish
hardtanh im2col index index_add index_copy index_fill index_put index_reduce index_select isin kthvalue leaky_relu
lift lift_fresh_copy linalg__powsum linalg_vector_norm linspace log_sigmoid_forward log_softmax logcumsumexp logspace
logsumexp masked_fill masked_scatter masked_select max max_pool2d_with_indices max_pool3d_with_indices max_unpool2d
max_unpool3d mean median min mode multinomial nanmedian nansum narrow_copy native_batch_norm native_channel_shuffle
native_dropout native_group_norm native_layer_norm new_empty new_empty_strided new_full new_ones new_zeros nonzero
nonzero_static norm normal ones ones_like permute_copy pixel_shuffle pixel_unshuffle polar prod put
quantize_per_channel quantize_per_tensor rand rand_like randint randint_like randn randn_like random randperm range
reflection_pad1d reflection_pad2d reflection_pad3d renorm repeat repeat_interleave replication_pad1d replication_pad2d
replication_pad3d resize roll rot90 rrelu_with_noise rsub scalar_tensor scatter scatter_add scatter_reduce
searchsorted select_copy select_scatter selu slice_copy slice_scatter softmax sort split_copy split_with_sizes_copy
squeeze_copy stack std std_mean sum t_copy take topk trace transpose_copy tril tril_indices triu triu_indices
unbind_copy unfold_copy uniform unsafe_split unsafe_split_with_sizes unsqueeze_copy upsample_bicubic2d
upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_trilinear3d
var var_mean view_copy zero zeros zeros_like
"""
LIGHT = frozenset(_LIGHT.split())
# They read of their first tensor no more than they write, or than is asked for: see :func:`picked`.
PICKING = frozenset(
    ("embedding", "gather", "index", "index_select", "_unsafe_index", "embedding_bag", "_embedding_bag")
)
# They write of their first tensor as many elements as their last one has, and read none.
PLACING = frozenset(
    ("index_add_", "index_copy_", "index_put_", "index_reduce_", "masked_scatter_", "put_", "scatter_", "scatter_add_",
     "scatter_reduce_")
)  # fmt: skip
# They look at their tensor in another way from then on, and write nothing.
TURNING = frozenset(("as_strided_", "detach_", "squeeze_", "t_", "transpose_", "unsqueeze_"))
# They write their first tensor and do not read it.
OVERWRITING = frozenset(("copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_"))


def flops(operator: Any, arguments: tuple[Any, ...], named: dict[str, Any], result: Any) -> float | None:
    """FLOPs of one call; ``None`` where there is no formula for an operator that may have many."""
    from torch.utils.flop_counter import flop_registry, sdpa_flop_count

    packet = plain(operator)
    if packet in flop_registry:
        return float(flop_registry[packet](*arguments, **named, out_val=result))
    short = packet.__name__
    if short.startswith("_scaled_dot_product"):  # variants of a device that the registry does not name
        return float(sdpa_flop_count(*(tensor.shape for tensor in arguments[:3])))
    if short in ("mv", "dot", "vdot", "addmv"):
        matrix = arguments[1] if short == "addmv" else arguments[0]
        return float(2 * math.prod(matrix.shape))
    if short in ("_int_mm", "_addmm_activation", "addbmm"):
        left, right = arguments[-2:]
        return float(2 * math.prod(left.shape) * right.shape[-1])
    return 0.0 if is_light(operator) else None


def plain(operator: Any) -> Any:
    """The packet of an operator; of one that works in place, that of the one that returns the same anew."""
    import torch

    packet = operator._overloadpacket
    name = str(packet.__name__)
    if str(operator.namespace) != "aten" or not name.endswith("_") or name.endswith("__"):
        return packet
    return getattr(torch.ops.aten, name[:-1], packet)


def is_light(operator: Any) -> bool:
    """Whether an operator's bytes are its work."""
    import torch

    if torch.Tag.pointwise in operator.tags or is_view(operator):
        return True
    return str(operator.namespace) in ("aten", "prims") and str(plain(operator).__name__) in LIGHT


def is_view(operator: Any) -> bool:
    """Whether an operator only looks at its tensor in another way, or makes it look so in place (``transpose_``)."""
    return bool(operator.is_view) or str(operator._overloadpacket.__name__) in TURNING


def picked(name: str, arguments: tuple[Any, ...], size: int, written: int) -> int:
    """Bytes that one of :data:`PICKING` reads of its first tensor, of ``size``, at most.

    A bag's rows are added up before they are ``written``, so that does not tell.
    """
    if "bag" in name:
        rows, asked = int(arguments[0].shape[0]), int(arguments[1].numel())
        return min(size, size // max(rows, 1) * asked)
    return min(size, written)
